// numpy's .npy files of whole numbers: header, and two-dimensional token batches. The one-dimensional rows of
// ids that training reads are opened by tokens.h, which knows the other forms too.
#ifndef DEPTHBENCH_RUNTIME_NPY_H
#define DEPTHBENCH_RUNTIME_NPY_H
#include "runtime/file.h"

// How ids are stored.
typedef struct IdLayout {
    uint8_t width; // 1, 2, 4, 8 bytes
    bool is_signed, big_endian;
} IdLayout;
// Decodes n ids. Returns the number of leading ids that lie in [0, limit); *bad is the first one that does
// not.
size_t ids_decode(IdLayout layout, const uint8_t *bytes, size_t n, int64_t limit, int32_t *out, int64_t *bad);

enum { NPY_MAX_RANK = 8 };
typedef struct NpyHeader {
    IdLayout layout;
    int32_t rank;
    int64_t shape[NPY_MAX_RANK], count;
    uint64_t data; // offset of the first element
} NpyHeader;
bool npy_is(const uint8_t *head, size_t n); // the six bytes of the magic
// Checks everything, the file's length included. Column order of two or more dimensions, floats, bools,
// structured types and pickles are refused (code 2).
Status npy_header(const File *f, NpyHeader *out) MUST_USE;
// A batch [rows, columns] of ids below vocab (0: any that fit int32). *ids: mem_free.
Status npy_load_batch(const char *path, int64_t vocab, int32_t **ids, int64_t *rows,
                      int64_t *columns) MUST_USE;
// Writes ids as a numpy file of <i4 with this shape (rank 1 or 2).
Status npy_save_i32(const char *path, const int32_t *ids, int32_t rank, const int64_t *shape) MUST_USE;
#endif

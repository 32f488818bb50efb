// safetensors files: named tensors with a JSON header (docs/formats.md 4). The reader trusts nothing in the
// header until names, sizes and offsets are proven against the file's length; the writer streams tensor by
// tensor.
#ifndef DEPTHBENCH_RUNTIME_SAFETENSORS_H
#define DEPTHBENCH_RUNTIME_SAFETENSORS_H
#include "runtime/file.h"

typedef enum StDtype {
    ST_F64,
    ST_I64,
    ST_U64,
    ST_F32,
    ST_I32,
    ST_U32,
    ST_F16,
    ST_BF16,
    ST_I16,
    ST_U16,
    ST_F8_E4M3,
    ST_F8_E5M2,
    ST_I8,
    ST_U8,
    ST_BOOL,
    N_ST_DTYPES
} StDtype;
enum { ST_MAX_RANK = 8, ST_MAX_HEADER = 100000000 };
const char *st_dtype_name(StDtype dtype);
size_t st_dtype_bytes(StDtype dtype);

typedef struct StTensor {
    const char *name;
    StDtype dtype;
    int32_t rank;
    int64_t shape[ST_MAX_RANK];
    int64_t count;       // elements
    uint64_t begin, end; // bytes, from the first data byte
} StTensor;
// "[2,3]" into a buffer of 160 bytes; returns it.
const char *st_shape_text(int32_t rank, const int64_t *shape, char out[160]);

// ---- Reader. Tensors are in the order of their data.
typedef struct StFile StFile;
Status st_open(const char *path, StFile **out) MUST_USE;
void st_close(StFile *f);
int32_t st_count(const StFile *f);
const StTensor *st_tensor(const StFile *f, int32_t i);
int32_t st_find(const StFile *f, const char *name);            // -1 when absent
const char *st_metadata(const StFile *f, const char *key);     // NULL when absent
Status st_read(StFile *f, int32_t i, void *out) MUST_USE;      // the bytes as they are
Status st_read_f32(StFile *f, int32_t i, float *out) MUST_USE; // F64 F32 F16 BF16 become f32; others: code 2

// ---- Writer. Order in the file: widest type first, then name. Use:
//     TRY(st_create(path, entries, n, meta, &w));
//     while ((i = st_next(w)) >= 0) { status = st_write(w, data_of(entries[i])); ... }   // on failure:
//     st_abandon TRY(st_commit(&w));
typedef struct StEntry {
    const char *name; // must live until st_commit
    StDtype dtype;
    int32_t rank;
    int64_t shape[ST_MAX_RANK];
} StEntry;
typedef struct StMeta { // key NULL ends the list
    const char *key, *value;
} StMeta;
typedef struct StWriter StWriter;
Status st_create(const char *path, const StEntry *entries, int32_t n, const StMeta *meta,
                 StWriter **out) MUST_USE;
int32_t st_next(const StWriter *w);                      // entry whose data is due; -1: all written
Status st_write(StWriter *w, const void *data) MUST_USE; // all bytes of that entry
Status st_commit(StWriter **w) MUST_USE;                 // frees the writer in every case
void st_abandon(StWriter **w);
// SHA-256 and length of what was written so far, for a manifest: call after the last st_write.
void st_digest(StWriter *w, char sha256[65], uint64_t *bytes);
#endif

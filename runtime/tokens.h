// Token files: one long row of ids in a file, in any of the forms of docs/formats.md 1 (raw arrays, numpy,
// llm.c shards).
#ifndef DEPTHBENCH_RUNTIME_TOKENS_H
#define DEPTHBENCH_RUNTIME_TOKENS_H
#include "runtime/npy.h"

typedef struct TokenFile {
    File file;
    IdLayout layout;
    uint64_t data; // offset of the first id
    int64_t count;
    char form[24]; // "raw u16", "numpy i64", "llm.c u16"
} TokenFile;
typedef enum TokenKind { TOKENS_NONE, TOKENS_RAW, TOKENS_NUMPY, TOKENS_LLMC } TokenKind;
// By content, then by name. TOKENS_NONE with code 0: not a token file (a text, say). Known but unreadable
// forms: code 2.
Status tokens_find(const char *path, TokenKind *kind) MUST_USE;
// Checks header, length and a sample of the ids against vocab (> 0). width: bytes of a raw id; 0: from
// NAME.meta.json, the suffix .u16 or .u32, or the smallest that holds vocab - 1. No ids at all: code 2.
Status tokens_open(const char *path, TokenKind kind, int64_t vocab, int width, TokenFile *out) MUST_USE;
void tokens_close(TokenFile *f);
// Ids [at, at+n), each checked against vocab: position and id are named (code 2).
Status tokens_read(const TokenFile *f, int64_t at, int64_t n, int64_t vocab, int32_t *out) MUST_USE;
bool tokens_suffix(const char *path); // .npy .bin .u16 .u32
#endif

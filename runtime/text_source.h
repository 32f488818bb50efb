// Bytes of a file, unpacked on the way when it is gzip or zstd by content.
#ifndef DEPTHBENCH_RUNTIME_TEXT_SOURCE_H
#define DEPTHBENCH_RUNTIME_TEXT_SOURCE_H
#include "ir/base.h"

typedef struct Source Source;
// A name that says .gz or .zst over other content is refused, and the reverse is unpacked only when the name
// says so.
Status source_open(const char *path, Source **out) MUST_USE;
// Up to n bytes; *got is 0 only at the end. A packed stream that ends early or is damaged: code 2.
Status source_read(Source *s, void *out, size_t n, size_t *got) MUST_USE;
void source_close(Source *s);
#endif

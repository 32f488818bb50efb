// Documents of a text file, one by one, as a stream: .txt (one document), .jsonl .json .ndjson (one a line),
// each plain, .gz (any number of members) or .zst (any number of frames). UTF-8 is checked.
#ifndef DEPTHBENCH_RUNTIME_TEXT_H
#define DEPTHBENCH_RUNTIME_TEXT_H
#include "ir/base.h"

typedef struct TextOptions {
    const char *field;    // NULL: "text"
    bool replace_invalid; // each maximal invalid part becomes U+FFFD instead of being refused
} TextOptions;
typedef struct TextFile TextFile;
bool text_is(const char *path); // by name
Status text_open(const char *path, const TextOptions *o, TextFile **out) MUST_USE;
// The next document; *text is NULL after the last. Lives until the next call. Errors name byte and line.
Status text_next(TextFile *f, const char **text, size_t *n) MUST_USE;
int64_t text_replaced(const TextFile *f); // invalid parts replaced so far
void text_close(TextFile *f);

// Length of the longest valid UTF-8 prefix (surrogates and overlong forms are invalid).
size_t utf8_valid_prefix(const char *text, size_t n);
// Length of the maximal invalid part at the start of text (which is not valid there); at least 1.
size_t utf8_invalid_part(const char *text, size_t n);
#endif

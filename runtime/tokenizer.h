// Byte-level BPE from a tokenizer.json file (GPT-NeoX, GPT-2, dolma2 families), and the tokenizer "bytes".
//
// The same ids as the Hugging Face library gives, in time linear in the text (a word's merges: n log n).
#ifndef DEPTHBENCH_RUNTIME_TOKENIZER_H
#define DEPTHBENCH_RUNTIME_TOKENIZER_H
#include "ir/base.h"

typedef struct Tokenizer Tokenizer;
// path: a tokenizer.json, or "bytes" (ids 0..255 and the end token 256). What is not understood is refused,
// naming the key and its value (code 2).
Status tokenizer_open(const char *path, Tokenizer **out) MUST_USE;
void tokenizer_close(Tokenizer *t);
int32_t tokenizer_vocab(const Tokenizer *t);    // highest id + 1
const char *tokenizer_hash(const Tokenizer *t); // SHA-256 of the file; of "bytes" for that one
// The end token: `asked` (-1: not asked), else the one of <|endoftext|>, </s>, <|end_of_text|> that is there.
Status tokenizer_eos(const Tokenizer *t, int64_t asked, int32_t *eos) MUST_USE;

// A growing row of ids; mem_free(ids.at).
typedef struct Ids {
    int32_t *at;
    size_t n, cap;
} Ids;
Status ids_reserve(Ids *ids, size_t more) MUST_USE;

typedef struct Encode {
    bool literal_specials; // special tokens written in the text are plain characters
    int64_t specials;      // counts those met
} Encode;
// Appends the ids of a text, which must be valid UTF-8 (text.h checks); may hold NUL. Not thread-safe: one
// Tokenizer keeps a cache of words.
Status tokenizer_encode(Tokenizer *t, const char *text, size_t n, Encode *e, Ids *out) MUST_USE;
// The bytes of ids; bytes that are no UTF-8 become U+FFFD. Ids out of range: code 2. *out: mem_free, NUL
// after it.
Status tokenizer_decode(const Tokenizer *t, const int32_t *ids, size_t n, char **out, size_t *out_n) MUST_USE;
// The bytes of one id, not checked for UTF-8; empty for an id without a token.
const char *tokenizer_bytes(const Tokenizer *t, int32_t id, size_t *n);
#endif

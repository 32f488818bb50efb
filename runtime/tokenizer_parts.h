// Parts of the tokenizer that its files share: the loaded file, splitting, merging, normalising.
#ifndef DEPTHBENCH_RUNTIME_TOKENIZER_PARTS_H
#define DEPTHBENCH_RUNTIME_TOKENIZER_PARTS_H
#include "runtime/tokenizer.h"

// ---- Merges (bpe.c)
typedef struct Merge {
    uint64_t pair; // left id << 32 | right id; UINT64_MAX: empty place
    uint32_t rank;
    int32_t id; // of the two together
} Merge;
typedef struct Bpe {
    int32_t byte_id[256];
    Merge *table; // open addressing
    size_t mask;
    // work space of one word
    int32_t *ids;
    uint32_t *next, *prev;
    size_t cap;
    uint64_t *heap;
    size_t heap_cap;
} Bpe;
Status bpe_init(Bpe *b, size_t n_merges) MUST_USE;
void bpe_free(Bpe *b);
bool bpe_add(Bpe *b, int32_t left, int32_t right, uint32_t rank,
             int32_t id); // false: the pair is there already
Status bpe_encode(Bpe *b, const uint8_t *word, size_t n, Ids *out) MUST_USE;

// ---- Splitting into words (tokenizer_split.c)
typedef enum SplitKind { SPLIT_NONE, SPLIT_GPT2, SPLIT_CL100K } SplitKind;
extern const char *const split_pattern[3]; // as tokenizer.json spells them; NULL for SPLIT_NONE
// Length of the word that starts at text; n > 0, valid UTF-8.
size_t split_word(SplitKind kind, const uint8_t *text, size_t n);
bool split_is_space(int32_t c);                  // Unicode White_Space
bool split_is_word_char(int32_t c);              // \w
int32_t split_char(const uint8_t *p, size_t *n); // decodes one character of valid text

// ---- Normal forms (tokenizer_normal.c)
typedef enum NormalForm { NORMAL_NFC, NORMAL_NFD, NORMAL_NFKC, NORMAL_NFKD } NormalForm;
typedef struct Bytes {
    uint8_t *at;
    size_t n, cap;
} Bytes;
Status bytes_add(Bytes *b, const void *data, size_t n) MUST_USE;
// Appends the normal form of a text; linear but for sorting runs of combining marks (n log n).
Status normal_add(NormalForm form, const uint8_t *text, size_t n, Bytes *out) MUST_USE;

// ---- Added tokens: a tree of bytes, one for raw and one for normalised text.
typedef struct Added {
    int32_t id;
    bool single_word, lstrip, rstrip, special;
} Added;
typedef struct TreeNode {
    uint8_t byte;
    int32_t child, sibling; // 0: none
    int32_t token;          // index in Tokenizer.added, -1: none
} TreeNode;
typedef struct Tree {
    TreeNode *at; // 0 is not used
    int32_t n, cap;
    int32_t root[256];
} Tree;

// ---- The file (tokenizer_load.c)
enum { MAX_FORMS = 8 };
typedef struct CacheWord {
    uint64_t hash;
    uint32_t word, ids; // places in the two stores
    uint16_t n_word, n_ids;
} CacheWord;
struct Tokenizer {
    bool bytes_only;
    char hash[65];
    int32_t vocab;
    uint32_t *start; // [vocab + 1] places in store; an empty token: no such id
    uint8_t *store;
    Bpe bpe;
    NormalForm forms[MAX_FORMS];
    int n_forms;
    SplitKind split;
    bool prefix_space;
    Added *added;
    int32_t n_added;
    Tree raw, normal;
    // words seen before and their ids
    CacheWord *cache;
    uint8_t *cache_words;
    int32_t *cache_ids;
    size_t n_cache_words, n_cache_ids;
    Bytes piece, scratch;
};
Status tokenizer_load(const char *path, Tokenizer *t) MUST_USE;
#endif

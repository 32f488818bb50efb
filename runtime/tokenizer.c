// Encoding and decoding: see tokenizer.h; order of the steps: docs/formats.md 3.
//
// Words repeat, so the ids of short ones are kept in a table of fixed size by hash; a full table is emptied.
#include "runtime/tokenizer.h"
#include "runtime/text.h"
#include "runtime/tokenizer_parts.h"
#include <string.h>
#include <xxhash.h>

enum { CACHE_SLOTS = 1 << 17, CACHE_LONGEST = 64, CACHE_WORDS = 4 << 20, CACHE_IDS = 2 << 20 };

Status ids_reserve(Ids *ids, size_t more) {
    if (ids->cap - ids->n >= more)
        return STATUS_OK;
    size_t cap = MAX_OF(ids->cap + ids->cap / 2, ids->n + more);
    int32_t *at = mem_realloc(ids->at, cap * sizeof *at);
    if (!at)
        return status_memory("a row of token ids", cap * sizeof *at);
    ids->at = at;
    ids->cap = cap;
    return STATUS_OK;
}

static Status open_bytes(Tokenizer *t) {
    enum { END_TOKEN = 256 };
    t->bytes_only = true;
    t->vocab = END_TOKEN + 1;
    t->start = mem_alloc((END_TOKEN + 2) * sizeof *t->start);
    t->store = mem_alloc(END_TOKEN);
    if (!t->start || !t->store)
        return status_memory("a tokenizer", END_TOKEN * 5);
    for (uint32_t i = 0; i <= END_TOKEN + 1; i++) {
        t->start[i] = MIN_OF(i, (uint32_t)END_TOKEN);
        if (i < END_TOKEN)
            t->store[i] = (uint8_t)i;
    }
    memcpy(t->hash, "bytes", 6);
    return STATUS_OK;
}

Status tokenizer_open(const char *path, Tokenizer **out) {
    *out = NULL;
    Tokenizer *t = mem_alloc(sizeof *t);
    if (!t)
        return status_memory("a tokenizer", sizeof *t);
    Status s = strcmp(path, "bytes") == 0 ? open_bytes(t) : tokenizer_load(path, t);
    if (!s.code && !t->bytes_only) {
        t->cache = mem_alloc(CACHE_SLOTS * sizeof *t->cache);
        t->cache_words = mem_alloc(CACHE_WORDS);
        t->cache_ids = mem_alloc(CACHE_IDS * sizeof *t->cache_ids);
        if (!t->cache || !t->cache_words || !t->cache_ids)
            s = status_memory("the tokenizer's cache", CACHE_SLOTS * sizeof *t->cache);
    }
    if (s.code)
        tokenizer_close(t);
    else
        *out = t;
    return s;
}

void tokenizer_close(Tokenizer *t) {
    if (!t)
        return;
    bpe_free(&t->bpe);
    mem_free(t->start);
    mem_free(t->store);
    mem_free(t->added);
    mem_free(t->raw.at);
    mem_free(t->normal.at);
    mem_free(t->cache);
    mem_free(t->cache_words);
    mem_free(t->cache_ids);
    mem_free(t->piece.at);
    mem_free(t->scratch.at);
    mem_free(t);
}

int32_t tokenizer_vocab(const Tokenizer *t) {
    return t->vocab;
}

const char *tokenizer_hash(const Tokenizer *t) {
    return t->hash;
}

const char *tokenizer_bytes(const Tokenizer *t, int32_t id, size_t *n) {
    *n = t->start[id + 1] - t->start[id];
    return (const char *)t->store + t->start[id];
}

Status tokenizer_eos(const Tokenizer *t, int64_t asked, int32_t *eos) {
    static const char *const names[] = {"<|endoftext|>", "</s>", "<|end_of_text|>"};
    if (asked >= t->vocab)
        return status_make(EXIT_REQUEST, "--eos %lld: the tokenizer has %d ids", (long long)asked,
                           (int)t->vocab);
    *eos = asked >= 0 ? (int32_t)asked : t->bytes_only ? 256 : -1;
    if (*eos >= 0)
        return STATUS_OK;
    int found = 0;
    for (int32_t id = 0; id < t->vocab; id++) {
        size_t n;
        const char *bytes = tokenizer_bytes(t, id, &n);
        for (size_t k = 0; k < COUNT_OF(names); k++) {
            if (n == strlen(names[k]) && memcmp(bytes, names[k], n) == 0) {
                *eos = id;
                found++;
            }
        }
    }
    if (found == 1)
        return STATUS_OK;
    return status_make(EXIT_REQUEST,
                       "the tokenizer has %d of the end tokens <|endoftext|>, </s>, <|end_of_text|>, one is "
                       "needed: give its id with --eos",
                       found);
}

// ---- Encoding

static void cache_empty(Tokenizer *t) {
    memset(t->cache, 0, CACHE_SLOTS * sizeof *t->cache);
    t->n_cache_words = 0;
    t->n_cache_ids = 0;
}

// The slot of a word: the one that holds it, an empty one, or NULL when its neighbourhood is full.
static CacheWord *cache_slot(Tokenizer *t, uint64_t hash, const uint8_t *word, size_t n) {
    for (size_t i = 0; i < 16; i++) {
        CacheWord *c = &t->cache[(hash + i) & (CACHE_SLOTS - 1)];
        if (!c->n_word ||
            (c->hash == hash && c->n_word == n && memcmp(t->cache_words + c->word, word, n) == 0))
            return c;
    }
    return NULL;
}

static Status add_word(Tokenizer *t, const uint8_t *word, size_t n, Ids *out) {
    if (n > CACHE_LONGEST)
        return bpe_encode(&t->bpe, word, n, out);
    uint64_t hash = XXH3_64bits(word, n);
    CacheWord *c = cache_slot(t, hash, word, n);
    if (c && c->n_word) {
        TRY(ids_reserve(out, c->n_ids));
        memcpy(out->at + out->n, t->cache_ids + c->ids, c->n_ids * sizeof *out->at);
        out->n += c->n_ids;
        return STATUS_OK;
    }
    size_t before = out->n;
    TRY(bpe_encode(&t->bpe, word, n, out));
    size_t n_ids = out->n - before;
    if (!c || t->n_cache_words + n > CACHE_WORDS || t->n_cache_ids + n_ids > CACHE_IDS) {
        cache_empty(t);
        c = cache_slot(t, hash, word, n);
    }
    *c =
        (CacheWord){hash, (uint32_t)t->n_cache_words, (uint32_t)t->n_cache_ids, (uint16_t)n, (uint16_t)n_ids};
    memcpy(t->cache_words + t->n_cache_words, word, n);
    memcpy(t->cache_ids + t->n_cache_ids, out->at + before, n_ids * sizeof *out->at);
    t->n_cache_words += n;
    t->n_cache_ids += n_ids;
    return STATUS_OK;
}

static Status add_words(Tokenizer *t, const uint8_t *text, size_t n, Ids *out) {
    if (n && t->prefix_space && text[0] != ' ') {
        t->scratch.n = 0;
        TRY(bytes_add(&t->scratch, " ", 1));
        TRY(bytes_add(&t->scratch, text, n));
        text = t->scratch.at;
        n++;
    }
    while (n) {
        size_t length = split_word(t->split, text, n);
        TRY(add_word(t, text, length, out));
        text += length;
        n -= length;
    }
    return STATUS_OK;
}

// Longest added token that starts at text; -1: none.
static int32_t tree_match(const Tree *tree, const uint8_t *text, size_t n, size_t *length) {
    int32_t found = -1, node = tree->root[text[0]];
    for (size_t i = 0; node;) {
        const TreeNode *at = &tree->at[node];
        if (at->byte != text[i]) {
            node = at->sibling;
            continue;
        }
        i++;
        if (at->token >= 0) {
            found = at->token;
            *length = i;
        }
        node = i < n ? at->child : 0;
    }
    return found;
}

static bool word_before(const uint8_t *text, size_t at) {
    size_t start = at, length;
    while (start && (text[--start] & 0xC0) == 0x80) {
    }
    return at && split_is_word_char(split_char(text + start, &length));
}

static size_t strip_left(const uint8_t *text, size_t low, size_t at) {
    while (at > low) {
        size_t start = at, length;
        while (start && (text[--start] & 0xC0) == 0x80) {
        }
        if (!split_is_space(split_char(text + start, &length)) || start < low)
            break;
        at = start;
    }
    return at;
}

static size_t strip_right(const uint8_t *text, size_t n, size_t at) {
    size_t length;
    while (at < n && split_is_space(split_char(text + at, &length)))
        at += length;
    return at;
}

// Finds the next added token in text from byte `at` on; what stands before it is [done, *start), it ends at
// *end.
static int32_t next_added(const Tokenizer *t, const Tree *tree, const Encode *e, const uint8_t *text,
                          size_t n, size_t done, size_t *start, size_t *end) {
    for (size_t at = done, length; at < n; at++) {
        if (!tree->root[text[at]])
            continue;
        int32_t token = tree_match(tree, text + at, n - at, &length);
        if (token < 0)
            continue;
        const Added *a = &t->added[token];
        size_t after = at + length, unused;
        bool inside =
            a->single_word &&
            (word_before(text, at) || (after < n && split_is_word_char(split_char(text + after, &unused))));
        if (inside || (e->literal_specials && a->special)) {
            at = after - 1;
            continue;
        }
        *start = a->lstrip ? strip_left(text, done, at) : at;
        *end = a->rstrip ? strip_right(text, n, after) : after;
        return token;
    }
    *start = *end = n;
    return -1;
}

typedef Status AddPiece(Tokenizer *t, const uint8_t *text, size_t n, Encode *e, Ids *out);

// Cuts the added tokens of a tree out of a text; `rest` encodes what lies between.
static Status cut_added(Tokenizer *t, const Tree *tree, AddPiece *rest, const uint8_t *text, size_t n,
                        Encode *e, Ids *out) {
    for (size_t done = 0, start, end; done < n; done = end) {
        int32_t token = next_added(t, tree, e, text, n, done, &start, &end);
        if (start > done)
            TRY(rest(t, text + done, start - done, e, out));
        if (token < 0)
            break;
        TRY(ids_reserve(out, 1));
        out->at[out->n++] = t->added[token].id;
        e->specials += t->added[token].special;
    }
    return STATUS_OK;
}

static Status add_plain(Tokenizer *t, const uint8_t *text, size_t n, Encode *e, Ids *out) {
    (void)e;
    return add_words(t, text, n, out);
}

static Status add_piece(Tokenizer *t, const uint8_t *text, size_t n, Encode *e, Ids *out) {
    for (int k = 0; k < t->n_forms; k++) {
        t->scratch.n = 0;
        TRY(normal_add(t->forms[k], text, n, &t->scratch));
        Bytes swap = t->piece;
        t->piece = t->scratch;
        t->scratch = swap;
        text = t->piece.at;
        n = t->piece.n;
    }
    return cut_added(t, &t->normal, add_plain, text, n, e, out);
}

Status tokenizer_encode(Tokenizer *t, const char *text, size_t n, Encode *e, Ids *out) {
    Encode own = {0};
    if (!t->bytes_only)
        return cut_added(t, &t->raw, add_piece, (const uint8_t *)text, n, e ? e : &own, out);
    TRY(ids_reserve(out, n));
    for (size_t i = 0; i < n; i++)
        out->at[out->n++] = (uint8_t)text[i];
    return STATUS_OK;
}

// ---- Decoding

static Status repair(const Bytes *in, Bytes *out) {
    for (size_t at = 0; at < in->n;) {
        const char *p = (const char *)in->at + at;
        size_t good = utf8_valid_prefix(p, in->n - at);
        TRY(bytes_add(out, p, good));
        at += good;
        if (at < in->n) {
            at += utf8_invalid_part((const char *)in->at + at, in->n - at);
            TRY(bytes_add(out, "\xEF\xBF\xBD", 3));
        }
    }
    return bytes_add(out, "", 1);
}

Status tokenizer_decode(const Tokenizer *t, const int32_t *ids, size_t n, char **out, size_t *out_n) {
    Bytes raw = {0}, text = {0};
    *out = NULL;
    Status s = STATUS_OK;
    for (size_t i = 0; i < n && !s.code; i++) {
        if (ids[i] < 0 || ids[i] >= t->vocab) {
            s = status_make(EXIT_REQUEST, "id %d at position %zu: the tokenizer has %d ids", (int)ids[i], i,
                            (int)t->vocab);
        } else {
            size_t length;
            const char *bytes = tokenizer_bytes(t, ids[i], &length);
            s = bytes_add(&raw, bytes, length);
        }
    }
    if (!s.code)
        s = repair(&raw, &text);
    mem_free(raw.at);
    if (s.code) {
        mem_free(text.at);
        return s;
    }
    *out = (char *)text.at;
    *out_n = text.n - 1;
    return STATUS_OK;
}

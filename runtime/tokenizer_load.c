// Reads tokenizer.json: see docs/formats.md 3. Whatever is not understood is refused by key and value, so
// that no text is ever encoded by rules that are only nearly the file's.
#include "runtime/file.h"
#include "runtime/json_in.h"
#include "runtime/sha256.h"
#include "runtime/tokenizer_parts.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_TOKENIZER_FILE = 256 << 20, MAX_TOKENS = 1 << 24 };

typedef struct Loader {
    Tokenizer *t;
    const char *path;
    json_t *vocab;
    const char **text; // [vocab] as the file spells it; NULL: no such id
    size_t *length;
    bool *is_added;
    int16_t byte_of[512]; // byte characters; -1: none
} Loader;

static Status refuse(const Loader *l, const char *key, const json_t *value) {
    char *text = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    Status s = status_make(EXIT_REQUEST, "%s: %s is %.120s: such a tokenizer is not read", l->path, key,
                           text ? text : "missing");
    free(text);
    return s;
}

// The byte characters: printable Latin-1 stands for itself, the other 68 bytes for U+0100 and up.
static void byte_characters(int16_t byte_of[512]) {
    int next = 256;
    memset(byte_of, -1, 512 * sizeof *byte_of);
    for (int b = 0; b < 256; b++) {
        bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        byte_of[itself ? b : next++] = (int16_t)b;
    }
}

static bool is_off(const json_t *value) {
    return !value || json_is_null(value) || json_is_false(value);
}

static bool is_blank(const json_t *value) {
    return is_off(value) || (json_is_string(value) && json_string_length(value) == 0);
}

static bool is_type(const json_t *object, const char *type) {
    const char *text = json_string_value(json_object_get(object, "type"));
    return text && strcmp(text, type) == 0;
}

// ---- Normaliser and pre-tokenizer

static Status read_normalizer(Loader *l, const json_t *value) {
    static const char *const names[] = {"NFC", "NFD", "NFKC", "NFKD"};
    if (is_off(value))
        return STATUS_OK;
    if (is_type(value, "Sequence")) {
        const json_t *list = json_object_get(value, "normalizers");
        if (!json_is_array(list) || json_array_size(list) > MAX_FORMS)
            return refuse(l, "normalizer", value);
        size_t i;
        json_t *item;
        json_array_foreach(list, i, item) {
            if (is_type(item, "Sequence"))
                return refuse(l, "normalizer", value);
            TRY(read_normalizer(l, item));
        }
        return STATUS_OK;
    }
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        if (is_type(value, names[i]) && l->t->n_forms < MAX_FORMS) {
            l->t->forms[l->t->n_forms++] = (NormalForm)i;
            return STATUS_OK;
        }
    }
    return refuse(l, "normalizer", value);
}

static Status read_byte_level(Loader *l, const json_t *value, bool alone) {
    const json_t *use = json_object_get(value, "use_regex");
    bool regex = !use || json_is_true(use);
    if (regex && !alone)
        return refuse(l, "pre_tokenizer: use_regex after a Split", value);
    if (regex)
        l->t->split = SPLIT_GPT2;
    l->t->prefix_space = json_is_true(json_object_get(value, "add_prefix_space"));
    return STATUS_OK;
}

static Status read_split(Loader *l, const json_t *value) {
    const char *regex = json_string_value(json_object_get(json_object_get(value, "pattern"), "Regex"));
    const char *behavior = json_string_value(json_object_get(value, "behavior"));
    bool invert = json_is_true(json_object_get(value, "invert"));
    // The patterns leave nothing between their matches, so both spellings keep the matches alone.
    bool kept = behavior && ((strcmp(behavior, "Removed") == 0 && invert) ||
                             (strcmp(behavior, "Isolated") == 0 && !invert));
    for (int k = SPLIT_GPT2; regex && kept && k <= SPLIT_CL100K; k++) {
        if (strcmp(regex, split_pattern[k]) == 0) {
            l->t->split = (SplitKind)k;
            return STATUS_OK;
        }
    }
    return refuse(l, "pre_tokenizer: Split", value);
}

static Status read_pre_tokenizer(Loader *l, const json_t *value) {
    if (is_type(value, "ByteLevel"))
        return read_byte_level(l, value, true);
    const json_t *list = json_object_get(value, "pretokenizers");
    const json_t *first = json_array_get(list, 0), *second = json_array_get(list, 1);
    if (!is_type(value, "Sequence") || json_array_size(list) != 2 || !is_type(first, "Split") ||
        !is_type(second, "ByteLevel"))
        return refuse(l, "pre_tokenizer", value);
    TRY(read_split(l, first));
    return read_byte_level(l, second, false);
}

// ---- Vocabulary

static Status note_id(Loader *l, const char *token, const json_t *id, int64_t *highest) {
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= MAX_TOKENS)
        return status_make(EXIT_REQUEST, "%s: token %.80s: its id is not a whole number from 0 to %d",
                           l->path, token, MAX_TOKENS - 1);
    *highest = MAX_OF(*highest, json_integer_value(id));
    return STATUS_OK;
}

static Status place_token(Loader *l, const char *token, size_t n, int64_t id, bool added) {
    if (l->text[id] && added && l->length[id] == n && memcmp(l->text[id], token, n) == 0) {
        l->is_added[id] = true;
        return STATUS_OK;
    }
    if (l->text[id])
        return status_make(EXIT_REQUEST, "%s: id %lld belongs to two tokens, %.80s and %.80s", l->path,
                           (long long)id, l->text[id], token);
    l->text[id] = token;
    l->length[id] = n;
    l->is_added[id] = added;
    return STATUS_OK;
}

static Status count_ids(Loader *l, const json_t *added) {
    int64_t highest = -1;
    const char *token;
    json_t *id, *item;
    size_t i;
    json_object_foreach(l->vocab, token, id) {
        TRY(note_id(l, token, id, &highest));
    }
    json_array_foreach(added, i, item) {
        const char *content = json_string_value(json_object_get(item, "content"));
        if (!content || !*content)
            return refuse(l, "an added token", item);
        TRY(note_id(l, content, json_object_get(item, "id"), &highest));
        const json_t *in_vocab = json_object_get(l->vocab, content);
        if (in_vocab && json_integer_value(in_vocab) != json_integer_value(json_object_get(item, "id")))
            return refuse(l, "the vocabulary gives another id to an added token; that token", item);
    }
    if (highest < 0)
        return status_make(EXIT_REQUEST, "%s: the vocabulary is empty", l->path);
    l->t->vocab = (int32_t)highest + 1;
    return STATUS_OK;
}

// The bytes that a token of the vocabulary stands for; a token with other than byte characters stands for its
// UTF-8.
static size_t token_bytes(const Loader *l, int32_t id, uint8_t *out) {
    const uint8_t *p = (const uint8_t *)l->text[id], *end = p + l->length[id];
    size_t n = 0, length;
    bool plain = !l->is_added[id];
    for (; plain && p < end; p += length) {
        int32_t c = split_char(p, &length);
        plain = c < 512 && l->byte_of[c] >= 0;
        if (plain)
            out[n++] = (uint8_t)l->byte_of[c];
    }
    if (plain)
        return n;
    memcpy(out, l->text[id], l->length[id]);
    return l->length[id];
}

static Status read_vocab(Loader *l, const json_t *added) {
    if (!json_is_object(l->vocab))
        return refuse(l, "model.vocab", l->vocab);
    TRY(count_ids(l, added));
    size_t n = (size_t)l->t->vocab, total = 0;
    l->text = mem_alloc(n * sizeof *l->text);
    l->length = mem_alloc(n * sizeof *l->length);
    l->is_added = mem_alloc(n);
    l->t->start = mem_alloc((n + 1) * sizeof *l->t->start);
    if (!l->text || !l->length || !l->is_added || !l->t->start)
        return status_memory("a vocabulary", n * 20);
    const char *token;
    size_t length, i;
    json_t *id, *item;
    json_object_keylen_foreach(l->vocab, token, length, id) {
        TRY(place_token(l, token, length, json_integer_value(id), false));
        total += length;
    }
    json_array_foreach(added, i, item) {
        const json_t *content = json_object_get(item, "content");
        TRY(place_token(l, json_string_value(content), json_string_length(content),
                        json_integer_value(json_object_get(item, "id")), true));
        total += json_string_length(content);
    }
    l->t->store = mem_alloc(total);
    if (!l->t->store)
        return status_memory("a vocabulary", total);
    uint32_t at = 0;
    for (size_t k = 0; k < n; k++) {
        l->t->start[k] = at;
        if (l->text[k])
            at += (uint32_t)token_bytes(l, (int32_t)k, l->t->store + at);
    }
    l->t->start[n] = at;
    return STATUS_OK;
}

// ---- Merges

static int32_t id_of(const Loader *l, const char *token, size_t n) {
    const json_t *id = json_object_getn(l->vocab, token, n);
    return id ? (int32_t)json_integer_value(id) : -1;
}

static Status read_merge(Loader *l, const json_t *merge, size_t rank) {
    char joined[1024];
    const char *a = json_string_value(json_array_get(merge, 0)),
               *b = json_string_value(json_array_get(merge, 1));
    size_t n_a, n_b;
    if (json_is_string(merge)) {
        a = json_string_value(merge);
        const char *blank = strchr(a, ' ');
        b = blank ? blank + 1 : NULL;
        n_a = blank ? (size_t)(blank - a) : 0;
        n_b = b ? strlen(b) : 0;
    } else {
        n_a = a ? strlen(a) : 0;
        n_b = b ? strlen(b) : 0;
    }
    if (!n_a || !n_b || n_a + n_b > sizeof joined || (json_is_string(merge) && strchr(b, ' ')))
        return refuse(l, "model.merges: an entry", merge);
    memcpy(joined, a, n_a);
    memcpy(joined + n_a, b, n_b);
    int32_t left = id_of(l, a, n_a), right = id_of(l, b, n_b), both = id_of(l, joined, n_a + n_b);
    if (left < 0 || right < 0 || both < 0)
        return refuse(l, "model.merges: an entry with parts that the vocabulary lacks", merge);
    if (!bpe_add(&l->t->bpe, left, right, (uint32_t)rank, both))
        return refuse(l, "model.merges: an entry that stands there twice", merge);
    return STATUS_OK;
}

static Status read_merges(Loader *l, const json_t *merges) {
    if (!json_is_array(merges))
        return refuse(l, "model.merges", merges);
    TRY(bpe_init(&l->t->bpe, json_array_size(merges)));
    for (int c = 0; c < 512; c++) {
        if (l->byte_of[c] < 0)
            continue;
        char text[2] = {(char)c, 0};
        size_t n = 1;
        if (c >= 0x80) {
            text[0] = (char)(0xC0 | c >> 6);
            text[1] = (char)(0x80 | (c & 0x3F));
            n = 2;
        }
        int32_t id = id_of(l, text, n);
        // Bytes that no UTF-8 text holds may lack a token.
        int b = l->byte_of[c];
        if (id < 0 && b != 0xC0 && b != 0xC1 && b < 0xF5)
            return status_make(EXIT_REQUEST,
                               "%s: the vocabulary has no token for byte %d: not a byte-level tokenizer",
                               l->path, b);
        l->t->bpe.byte_id[b] = id;
    }
    size_t rank;
    json_t *merge;
    json_array_foreach(merges, rank, merge) {
        TRY(read_merge(l, merge, rank));
    }
    return STATUS_OK;
}

static Status read_model(Loader *l, const json_t *model, const json_t *added) {
    static const char *const off[] = {"dropout", "byte_fallback", "ignore_merges", "fuse_unk"};
    static const char *const blank[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const json_t *type = json_object_get(model, "type");
    // Old files leave the type out; merges tell that it is BPE.
    if (type ? !is_type(model, "BPE") : !json_object_get(model, "merges"))
        return refuse(l, "model.type", type);
    for (size_t i = 0; i < COUNT_OF(off); i++) {
        if (!is_off(json_object_get(model, off[i])))
            return refuse(l, off[i], json_object_get(model, off[i]));
    }
    for (size_t i = 0; i < COUNT_OF(blank); i++) {
        if (!is_blank(json_object_get(model, blank[i])))
            return refuse(l, blank[i], json_object_get(model, blank[i]));
    }
    l->vocab = json_object_get(model, "vocab");
    TRY(read_vocab(l, added));
    return read_merges(l, json_object_get(model, "merges"));
}

// ---- Added tokens

static Status tree_node(Tree *tree, uint8_t byte, int32_t sibling, int32_t *out) {
    if (tree->n + 1 >= tree->cap) {
        int32_t cap = MAX_OF(64, tree->cap * 2);
        TreeNode *at = mem_realloc(tree->at, (size_t)cap * sizeof *at);
        if (!at)
            return status_memory("the tokenizer's added tokens", (size_t)cap * sizeof *at);
        tree->at = at;
        tree->cap = cap;
    }
    *out = ++tree->n;
    tree->at[*out] = (TreeNode){.byte = byte, .sibling = sibling, .token = -1};
    return STATUS_OK;
}

static Status tree_add(Tree *tree, const uint8_t *text, size_t n, int32_t token) {
    int32_t node = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t first = node ? tree->at[node].child : tree->root[text[0]], next = first;
        while (next && tree->at[next].byte != text[i])
            next = tree->at[next].sibling;
        if (!next) {
            TRY(tree_node(tree, text[i], first, &next));
            if (node)
                tree->at[node].child = next;
            else
                tree->root[text[0]] = next;
        }
        node = next;
    }
    tree->at[node].token = token;
    return STATUS_OK;
}

static Status read_added(Loader *l, const json_t *added) {
    size_t n = json_array_size(added), i;
    l->t->added = mem_alloc(n * sizeof *l->t->added);
    if (!l->t->added)
        return status_memory("the tokenizer's added tokens", n * sizeof *l->t->added);
    json_t *item;
    json_array_foreach(added, i, item) {
        l->t->added[i] = (Added){.id = (int32_t)json_integer_value(json_object_get(item, "id")),
                                 .single_word = json_is_true(json_object_get(item, "single_word")),
                                 .lstrip = json_is_true(json_object_get(item, "lstrip")),
                                 .rstrip = json_is_true(json_object_get(item, "rstrip")),
                                 .special = json_is_true(json_object_get(item, "special"))};
        const char *content = json_string_value(json_object_get(item, "content"));
        size_t length = json_string_length(json_object_get(item, "content"));
        bool normalized = json_is_true(json_object_get(item, "normalized"));
        Bytes form[2] = {{0}};
        Status s = bytes_add(&form[0], content, length);
        int now = 0;
        for (int k = 0; k < l->t->n_forms && normalized && !s.code; k++, now = !now) {
            form[!now].n = 0;
            s = normal_add(l->t->forms[k], form[now].at, form[now].n, &form[!now]);
        }
        if (!s.code)
            s = tree_add(normalized ? &l->t->normal : &l->t->raw, form[now].at, form[now].n, (int32_t)i);
        mem_free(form[0].at);
        mem_free(form[1].at);
        TRY(s);
    }
    l->t->n_added = (int32_t)n;
    return STATUS_OK;
}

static Status read_all(Loader *l, const json_t *file) {
    const json_t *added = json_object_get(file, "added_tokens");
    if (!json_is_object(file) || !json_object_get(file, "model"))
        return status_make(EXIT_REQUEST, "%s: not a tokenizer.json: it has no \"model\"", l->path);
    if (!is_off(added) && !json_is_array(added))
        return refuse(l, "added_tokens", added);
    byte_characters(l->byte_of);
    TRY(read_normalizer(l, json_object_get(file, "normalizer")));
    TRY(read_pre_tokenizer(l, json_object_get(file, "pre_tokenizer")));
    TRY(read_model(l, json_object_get(file, "model"), added));
    return read_added(l, added);
}

Status tokenizer_load(const char *path, Tokenizer *t) {
    FileBytes bytes;
    TRY(file_load(path, MAX_TOKENIZER_FILE, &bytes));
    Sha256 sum;
    sha256_init(&sum);
    sha256_add(&sum, bytes.at, bytes.n);
    sha256_hex(&sum, t->hash);
    json_t *file;
    Status s = jin_parse(path, bytes.at, bytes.n, true, &file);
    mem_free(bytes.at);
    Loader l = {.t = t, .path = path};
    if (!s.code)
        s = read_all(&l, file);
    mem_free(l.text);
    mem_free(l.length);
    mem_free(l.is_added);
    json_decref(file);
    return s;
}

// numpy files: see npy.h. The header is a Python literal; the little of that language that numpy writes is
// parsed here, keys in any order.
#include "runtime/npy.h"
#include <string.h>

enum { MAX_NPY_HEADER = 1 << 16 };

size_t ids_decode(IdLayout layout, const uint8_t *bytes, size_t n, int64_t limit, int32_t *out,
                  int64_t *bad) {
    int w = layout.width;
    for (size_t i = 0; i < n; i++, bytes += w) {
        uint64_t v = 0;
        for (int k = 0; k < w; k++)
            v |= (uint64_t)bytes[layout.big_endian ? w - 1 - k : k] << 8 * k;
        int64_t id = (int64_t)v;
        if (layout.is_signed && w < 8)
            id = (int64_t)(v << (64 - 8 * w)) >> (64 - 8 * w);
        if (id < 0 || id >= limit) {
            *bad = id;
            return i;
        }
        out[i] = (int32_t)id;
    }
    return n;
}

bool npy_is(const uint8_t *head, size_t n) {
    return n >= 6 && memcmp(head, "\x93NUMPY", 6) == 0;
}

typedef struct Scan {
    const char *at, *end;
    const char *path;
} Scan;

static Status bad_header(const Scan *s, const char *what) {
    return status_make(EXIT_REQUEST, "%s: numpy header: %s", s->path, what);
}

static void skip_blanks(Scan *s) {
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\n' || *s->at == '\t'))
        s->at++;
}

static bool take(Scan *s, char c) {
    skip_blanks(s);
    if (s->at == s->end || *s->at != c)
        return false;
    s->at++;
    return true;
}

static bool take_word(Scan *s, const char *word) {
    skip_blanks(s);
    size_t n = strlen(word);
    if ((size_t)(s->end - s->at) < n || memcmp(s->at, word, n) != 0)
        return false;
    s->at += n;
    return true;
}

static bool take_string(Scan *s, char *out, size_t size) {
    skip_blanks(s);
    if (s->at == s->end || (*s->at != '\'' && *s->at != '"'))
        return false;
    char quote = *s->at++;
    size_t n = 0;
    while (s->at < s->end && *s->at != quote) {
        if (n + 1 < size)
            out[n++] = *s->at;
        s->at++;
    }
    out[n] = 0;
    return s->at < s->end && *s->at++ == quote;
}

static Status parse_descr(Scan *s, IdLayout *out) {
    static const struct {
        const char *code;
        uint8_t width;
        bool is_signed;
    } kinds[] = {{"u1", 1, false}, {"u2", 2, false}, {"u4", 4, false},
                 {"u8", 8, false}, {"i4", 4, true},  {"i8", 8, true}};
    char text[40];
    if (!take_string(s, text, sizeof text))
        return bad_header(s, "structured types are not read: token ids are single whole numbers");
    if (strchr(text, 'O'))
        return bad_header(s, "pickled objects are refused; save the ids as whole numbers");
    bool order = strchr("<>|=", text[0]) && text[0];
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        if (strcmp(text + order, kinds[i].code) == 0) {
            *out = (IdLayout){kinds[i].width, kinds[i].is_signed, text[0] == '>'};
            return STATUS_OK;
        }
    }
    return status_make(EXIT_REQUEST, "%s: numpy type %s: token ids must be whole numbers (u1 u2 u4 u8 i4 i8)",
                       s->path, text);
}

static Status parse_shape(Scan *s, NpyHeader *h) {
    if (!take(s, '('))
        return bad_header(s, "shape is not a tuple");
    size_t count = 1;
    while (!take(s, ')')) {
        skip_blanks(s);
        size_t size = 0, digits = 0;
        for (; s->at < s->end && *s->at >= '0' && *s->at <= '9'; s->at++, digits++) {
            if (!size_mul(size, 10, &size) || !size_add(size, (size_t)(*s->at - '0'), &size))
                return bad_header(s, "a size in shape overflows");
        }
        if (!digits)
            return bad_header(s, "a size in shape is not a whole number of 0 or more");
        if (h->rank == NPY_MAX_RANK)
            return bad_header(s, "more than 8 dimensions");
        if (size > INT64_MAX || !size_mul(count, size, &count) || count > INT64_MAX)
            return bad_header(s, "the product of shape overflows");
        h->shape[h->rank++] = (int64_t)size;
        if (!take(s, ',')) {
            if (!take(s, ')'))
                return bad_header(s, "shape is not closed");
            break;
        }
    }
    h->count = (int64_t)count;
    return STATUS_OK;
}

static Status parse_dict(Scan *s, NpyHeader *h) {
    bool fortran = false, have[3] = {false, false, false};
    if (!take(s, '{'))
        return bad_header(s, "not a dictionary");
    while (!take(s, '}')) {
        char key[32];
        if (!take_string(s, key, sizeof key) || !take(s, ':'))
            return bad_header(s, "ends early or is damaged");
        if (strcmp(key, "descr") == 0) {
            TRY(parse_descr(s, &h->layout));
            have[0] = true;
        } else if (strcmp(key, "fortran_order") == 0) {
            fortran = take_word(s, "True");
            if (!fortran && !take_word(s, "False"))
                return bad_header(s, "fortran_order is neither True nor False");
            have[1] = true;
        } else if (strcmp(key, "shape") == 0) {
            if (have[2])
                return bad_header(s, "shape stands there twice");
            TRY(parse_shape(s, h));
            have[2] = true;
        } else {
            return bad_header(s, "has an unknown key");
        }
        take(s, ',');
    }
    if (!have[0] || !have[1] || !have[2])
        return bad_header(s, "descr, fortran_order or shape is missing");
    if (fortran && h->rank > 1)
        return bad_header(s, "column order (fortran_order) is not read; save it with order='C'");
    return STATUS_OK;
}

Status npy_header(const File *f, NpyHeader *out) {
    *out = (NpyHeader){0};
    uint8_t head[12];
    size_t got;
    TRY(file_read_some(f, 0, head, sizeof head, &got));
    if (!npy_is(head, got))
        return status_make(EXIT_REQUEST, "%s: not a numpy file", f->path);
    Scan s = {.path = f->path};
    if (got < 10 || head[6] < 1 || head[6] > 3 || head[7] != 0 || (head[6] > 1 && got < 12))
        return bad_header(&s, "version is not 1.0, 2.0 or 3.0, or it ends early");
    uint64_t start = head[6] == 1 ? 10 : 12;
    uint64_t n = (uint64_t)head[8] | (uint64_t)head[9] << 8;
    if (head[6] > 1)
        n |= (uint64_t)head[10] << 16 | (uint64_t)head[11] << 24;
    if (n > MAX_NPY_HEADER || start + n > f->size)
        return bad_header(&s, "ends after the file, or is longer than 64 kB");
    char *text = mem_alloc((size_t)n + 1);
    if (!text)
        return status_memory("a numpy header", (size_t)n);
    Status status = file_read_at(f, start, text, (size_t)n);
    s.at = text;
    s.end = text + n;
    if (!status.code)
        status = parse_dict(&s, out);
    mem_free(text);
    if (status.code)
        return status;
    out->data = start + n;
    size_t bytes;
    if (!size_mul((size_t)out->count, out->layout.width, &bytes) || bytes != f->size - out->data)
        return status_make(
            EXIT_REQUEST, "%s: shape asks for %lld ids of %d bytes, the file holds %llu bytes of data",
            f->path, (long long)out->count, out->layout.width, (unsigned long long)(f->size - out->data));
    return STATUS_OK;
}

static Status load_batch(const File *f, int64_t vocab, int32_t **ids, int64_t *rows, int64_t *columns) {
    NpyHeader h;
    TRY(npy_header(f, &h));
    if (h.rank != 2 || h.count == 0)
        return status_make(EXIT_REQUEST,
                           "%s: a batch of tokens has the shape [batch, seq+1]; this array has %d dimensions"
                           " and %lld elements",
                           f->path, (int)h.rank, (long long)h.count);
    size_t n = (size_t)h.count, bytes = n * h.layout.width;
    uint8_t *raw = mem_alloc(bytes);
    *ids = mem_alloc(n * sizeof **ids);
    if (!raw || !*ids) {
        mem_free(raw);
        return status_memory("a batch of tokens", bytes + n * sizeof **ids);
    }
    Status s = file_read_at(f, h.data, raw, bytes);
    int64_t limit = vocab ? vocab : INT32_MAX, bad = 0;
    size_t good = s.code ? n : ids_decode(h.layout, raw, n, limit, *ids, &bad);
    mem_free(raw);
    if (!s.code && good < n && (bad < 0 || !vocab))
        s = status_make(EXIT_REQUEST, "%s: id %lld at row %lld, position %lld is not a token id", f->path,
                        (long long)bad, (long long)((int64_t)good / h.shape[1]),
                        (long long)((int64_t)good % h.shape[1]));
    else if (!s.code && good < n)
        s = status_make(EXIT_REQUEST, "%s: id %lld at row %lld, position %lld: the vocabulary has %lld ids",
                        f->path, (long long)bad, (long long)((int64_t)good / h.shape[1]),
                        (long long)((int64_t)good % h.shape[1]), (long long)limit);
    *rows = h.shape[0];
    *columns = h.shape[1];
    return s;
}

Status npy_load_batch(const char *path, int64_t vocab, int32_t **ids, int64_t *rows, int64_t *columns) {
    *ids = NULL;
    File f;
    TRY(file_open(path, &f));
    Status s = load_batch(&f, vocab, ids, rows, columns);
    file_close(&f);
    if (s.code) {
        mem_free(*ids);
        *ids = NULL;
    }
    return s;
}

Status npy_save_i32(const char *path, const int32_t *ids, int32_t rank, const int64_t *shape) {
    char head[128];
    memset(head, ' ', sizeof head);
    memcpy(head, "\x93NUMPY\x01\x00\x76\x00", 10);
    char text[100];
    size_t count = (size_t)shape[0] * (rank > 1 ? (size_t)shape[1] : 1);
    char second[24] = "";
    if (rank > 1)
        snprintf(second, sizeof second, " %lld", (long long)shape[1]);
    int n = snprintf(text, sizeof text, "{'descr': '<i4', 'fortran_order': False, 'shape': (%lld,%s), }",
                     (long long)shape[0], second);
    memcpy(head + 10, text, (size_t)n);
    head[127] = '\n';
    FileWriter w;
    TRY(file_create(path, &w));
    Status s = file_write(&w, head, sizeof head);
    for (size_t i = 0; i < count && !s.code; i++) {
        uint32_t v = (uint32_t)ids[i];
        uint8_t bytes[4] = {(uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16), (uint8_t)(v >> 24)};
        s = file_write(&w, bytes, 4);
    }
    if (s.code) {
        file_abandon(&w);
        return s;
    }
    return file_commit(&w);
}

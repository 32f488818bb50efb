// Documents of a text file: see text.h. Two layers: a byte source (plain, gzip, zstd) and the documents on
// top.
#include "runtime/text.h"
#include "runtime/file.h"
#include "runtime/json_in.h"
#include "runtime/text_source.h"
#include <string.h>

enum { CHUNK = 1 << 18 };
#define LONGEST ((size_t)1 << 31)

struct TextFile {
    Source *source;
    char path[FILE_PATH];
    char field[128];
    bool lines, replace, ended, done, started;
    char *buffer; // [used, filled): read but not given out
    size_t used, filled, cap;
    uint64_t offset; // of buffer[used] in the unpacked text
    int64_t line, replaced;
    char *mended; // a document after replacements
    size_t mended_cap;
    json_t *object; // owns the current document of a JSONL file
};

// ---- UTF-8

// Length of the valid character at p, 0 when there is none; *part: length of the maximal invalid part then.
static size_t valid_char(const uint8_t *p, size_t n, size_t *part) {
    *part = 1;
    if (p[0] < 0x80)
        return 1;
    size_t need = p[0] >= 0xC2 && p[0] <= 0xDF   ? 2
                  : p[0] >= 0xE0 && p[0] <= 0xEF ? 3
                  : p[0] >= 0xF0 && p[0] <= 0xF4 ? 4
                                                 : 0;
    if (!need)
        return 0;
    uint8_t low = p[0] == 0xE0   ? 0xA0
                  : p[0] == 0xF0 ? 0x90
                                 : 0x80,
            high = p[0] == 0xED   ? 0x9F
                   : p[0] == 0xF4 ? 0x8F
                                  : 0xBF;
    for (size_t i = 1; i < need; i++) {
        if (i >= n || p[i] < low || p[i] > high) {
            *part = i;
            return 0;
        }
        low = 0x80;
        high = 0xBF;
    }
    return need;
}

size_t utf8_valid_prefix(const char *text, size_t n) {
    const uint8_t *p = (const uint8_t *)text;
    size_t at = 0, part;
    while (at < n) {
        uint64_t eight;
        if (n - at >= 8 && (memcpy(&eight, p + at, 8), (eight & 0x8080808080808080u) == 0)) {
            at += 8;
            continue;
        }
        size_t length = valid_char(p + at, n - at, &part);
        if (!length)
            break;
        at += length;
    }
    return at;
}

size_t utf8_invalid_part(const char *text, size_t n) {
    size_t part;
    valid_char((const uint8_t *)text, n, &part);
    return part;
}

// ---- Names

static bool ends(const char *name, size_t n, const char *suffix) {
    size_t k = strlen(suffix);
    return n > k && memcmp(name + n - k, suffix, k) == 0;
}

static size_t inner_length(const char *path) {
    size_t n = strlen(path);
    return ends(path, n, ".gz") ? n - 3 : ends(path, n, ".zst") ? n - 4 : n;
}

static bool is_lines(const char *path) {
    size_t n = inner_length(path);
    return ends(path, n, ".jsonl") || ends(path, n, ".json") || ends(path, n, ".ndjson");
}

bool text_is(const char *path) {
    size_t n = inner_length(path);
    return is_lines(path) || ends(path, n, ".txt") || ends(path, n, ".text");
}

Status text_open(const char *path, const TextOptions *o, TextFile **out) {
    *out = NULL;
    const char *field = o->field ? o->field : "text";
    TextFile *f = mem_alloc(sizeof *f);
    if (!f)
        return status_memory("a text reader", sizeof *f);
    f->lines = is_lines(path);
    f->replace = o->replace_invalid;
    snprintf(f->path, sizeof f->path, "%s", path);
    Status s = strlen(field) < sizeof f->field
                   ? STATUS_OK
                   : status_make(EXIT_REQUEST, "--text-field: name longer than 127 bytes");
    snprintf(f->field, sizeof f->field, "%s", field);
    if (!s.code)
        s = source_open(path, &f->source);
    if (s.code)
        text_close(f);
    else
        *out = f;
    return s;
}

void text_close(TextFile *f) {
    if (!f)
        return;
    source_close(f->source);
    json_decref(f->object);
    mem_free(f->buffer);
    mem_free(f->mended);
    mem_free(f);
}

int64_t text_replaced(const TextFile *f) {
    return f->replaced;
}

// ---- Buffer

static Status fill(TextFile *f) {
    if (f->used) {
        memmove(f->buffer, f->buffer + f->used, f->filled - f->used);
        f->filled -= f->used;
        f->used = 0;
    }
    if (f->cap - f->filled < CHUNK) {
        size_t cap = MAX_OF(f->cap * 2, f->filled + CHUNK);
        if (cap > LONGEST)
            return status_make(EXIT_REQUEST, "%s: a document or line longer than 2 GB (from byte %llu on)",
                               f->path, (unsigned long long)f->offset);
        char *buffer = mem_realloc(f->buffer, cap + 1);
        if (!buffer)
            return status_memory("a text", cap);
        f->buffer = buffer;
        f->cap = cap;
    }
    size_t got;
    TRY(source_read(f->source, f->buffer + f->filled, CHUNK, &got));
    f->filled += got;
    f->ended = got == 0;
    return STATUS_OK;
}

static Status skip_mark(TextFile *f) {
    while (!f->ended && f->filled - f->used < 3)
        TRY(fill(f));
    if (f->filled - f->used >= 3 && memcmp(f->buffer + f->used, "\xEF\xBB\xBF", 3) == 0) {
        f->used += 3;
        f->offset += 3;
    }
    f->started = true;
    return STATUS_OK;
}

static Status mended_add(TextFile *f, size_t *n, const char *text, size_t length) {
    if (f->mended_cap - *n < length) {
        size_t cap = MAX_OF(f->mended_cap * 2, *n + length);
        char *at = mem_realloc(f->mended, cap);
        if (!at)
            return status_memory("a text", cap);
        f->mended = at;
        f->mended_cap = cap;
    }
    memcpy(f->mended + *n, text, length);
    *n += length;
    return STATUS_OK;
}

// Checks a document or line; with --invalid replace *text moves to a mended copy.
static Status check_utf8(TextFile *f, const char **text, size_t *n) {
    size_t good = utf8_valid_prefix(*text, *n);
    if (good == *n)
        return STATUS_OK;
    if (!f->replace) {
        char line[40] = "";
        if (f->lines)
            snprintf(line, sizeof line, "line %lld, ", (long long)f->line);
        return status_make(EXIT_REQUEST,
                           "%s: %sbyte %llu: not UTF-8 (0x%02x); convert it, or use --invalid replace",
                           f->path, line, (unsigned long long)(f->offset + good), (uint8_t)(*text)[good]);
    }
    size_t out = 0;
    for (size_t at = 0; at < *n;) {
        good = utf8_valid_prefix(*text + at, *n - at);
        if (good)
            TRY(mended_add(f, &out, *text + at, good));
        at += good;
        if (at == *n)
            break;
        at += utf8_invalid_part(*text + at, *n - at);
        TRY(mended_add(f, &out, "\xEF\xBF\xBD", 3));
        f->replaced++;
    }
    *text = f->mended;
    *n = out;
    return STATUS_OK;
}

// ---- JSON lines

static int hex4(const char *p, const char *end) {
    int v = 0;
    for (int i = 0; i < 4; i++) {
        if (p + i >= end)
            return -1;
        char c = p[i];
        int d = c >= '0' && c <= '9'                 ? c - '0'
                : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                     : -1;
        if (d < 0)
            return -1;
        v = v * 16 + d;
    }
    return v;
}

// Escapes of lone surrogates, in place, become \ufffd.
static void mend_escapes(TextFile *f, char *p, char *end) {
    while (p < end) {
        if (*p != '\\') {
            p++;
            continue;
        }
        if (p + 1 >= end || p[1] != 'u') {
            p += 2;
            continue;
        }
        int c = hex4(p + 2, end), low = p + 7 < end && p[6] == '\\' && p[7] == 'u' ? hex4(p + 8, end) : -1;
        if (c >= 0xD800 && c < 0xDC00 && low >= 0xDC00 && low < 0xE000) {
            p += 12;
            continue;
        }
        if (c >= 0xD800 && c < 0xE000) {
            memcpy(p + 2, "fffd", 4);
            f->replaced++;
        }
        p += 6;
    }
}

static Status no_text(const TextFile *f, const char *problem) {
    char names[160] = "";
    size_t n = 0;
    const char *key;
    json_t *value;
    json_object_foreach(f->object, key, value) {
        int length = n < 120 ? snprintf(names + n, sizeof names - n, "%s%.40s", n ? ", " : "", key) : 0;
        n += (size_t)length;
    }
    return status_make(EXIT_REQUEST,
                       "%s: line %lld: field %s %s; the fields are: %s (choose one with --text-field)",
                       f->path, (long long)f->line, f->field, problem, names);
}

static Status parse_line(TextFile *f, const char **text, size_t *n) {
    TRY(check_utf8(f, text, n));
    if (f->replace && memchr(*text, '\\', *n)) {
        size_t copied = 0;
        if (*text != f->mended)
            TRY(mended_add(f, &copied, *text, *n));
        mend_escapes(f, f->mended, f->mended + *n);
        *text = f->mended;
    }
    json_error_t error;
    json_decref(f->object);
    // Other fields are none of our business: repeated keys and huge numbers pass.
    f->object = json_loadb(*text, *n, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &error);
    if (!f->object)
        return status_make(json_error_code(&error) == json_error_out_of_memory ? EXIT_WORK : EXIT_REQUEST,
                           "%s: line %lld, column %d: not valid JSON: %s", f->path, (long long)f->line,
                           error.column, error.text);
    if (!json_is_object(f->object))
        return status_make(EXIT_REQUEST, "%s: line %lld: not a JSON object", f->path, (long long)f->line);
    const json_t *value = json_object_get(f->object, f->field);
    if (!value)
        return no_text(f, "is missing");
    if (!json_is_string(value))
        return no_text(f, "is not a string");
    *text = json_string_value(value);
    *n = json_string_length(value);
    return STATUS_OK;
}

static Status next_line(TextFile *f, const char **text, size_t *n) {
    for (size_t seen = 0;;) {
        const char *start = f->buffer + f->used;
        const char *end = f->filled > f->used ? memchr(start + seen, '\n', f->filled - f->used - seen) : NULL;
        if (!end && !f->ended) {
            seen = f->filled - f->used;
            TRY(fill(f));
            continue;
        }
        size_t length = end ? (size_t)(end - start) : f->filled - f->used, whole = length + (end != NULL);
        if (!end && length == 0) {
            *text = NULL;
            f->done = true;
            return STATUS_OK;
        }
        f->line++;
        *n = length && start[length - 1] == '\r' ? length - 1 : length;
        *text = start;
        size_t blank = 0;
        while (blank < *n && (start[blank] == ' ' || start[blank] == '\t'))
            blank++;
        Status s = blank < *n ? parse_line(f, text, n) : STATUS_OK;
        f->used += whole;
        f->offset += whole;
        if (s.code || blank < length - (length > 0 && start[length - 1] == '\r'))
            return s;
        seen = 0;
    }
}

Status text_next(TextFile *f, const char **text, size_t *n) {
    *text = NULL;
    *n = 0;
    if (f->done)
        return STATUS_OK;
    if (!f->started)
        TRY(skip_mark(f));
    if (f->lines)
        return next_line(f, text, n);
    while (!f->ended)
        TRY(fill(f));
    f->done = true;
    *text = f->buffer + f->used;
    *n = f->filled - f->used;
    return check_utf8(f, text, n);
}

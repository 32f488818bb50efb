// Token files: see tokens.h. Ids are read by position and checked each time, so a file that changes or lies
// gives a message, never a wild row number.
#include "runtime/tokens.h"
#include "runtime/json_in.h"
#include <string.h>

enum { LLMC_HEADER = 1024, SAMPLE = 65536 };

bool tokens_suffix(const char *path) {
    return file_has_suffix(path, ".npy") || file_has_suffix(path, ".bin") || file_has_suffix(path, ".u16") ||
           file_has_suffix(path, ".u32");
}

static int32_t word_at(const uint8_t *p) {
    return (int32_t)((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
}

// A Megatron pair is two files of one name; either may be given.
static Status refuse_megatron(const char *path) {
    char index[FILE_PATH];
    if (!file_has_suffix(path, ".idx") && !file_has_suffix(path, ".bin"))
        return STATUS_OK;
    snprintf(index, sizeof index, "%.*s.idx", (int)strlen(path) - 4, path);
    if (!file_exists(index))
        return STATUS_OK;
    File f;
    uint8_t head[9];
    size_t got;
    TRY(file_open(index, &f));
    Status s = file_read_some(&f, 0, head, 9, &got);
    file_close(&f);
    TRY(s);
    if (got == 9 && memcmp(head, "MMIDIDX\0\0", 9) == 0)
        return status_make(EXIT_REQUEST,
                           "%s: Megatron token files are not read yet: write the ids as a raw or numpy array",
                           path);
    if (file_has_suffix(path, ".idx"))
        return status_make(EXIT_REQUEST, "%s: not an index file (it does not begin with MMIDIDX)", path);
    return STATUS_OK;
}

static Status refuse_relatives(const char *path, int32_t magic) {
    static const struct {
        int32_t magic;
        const char *what;
    } relatives[] = {
        {20240326, "model"}, {20240327, "debug state"}, {20240328, "tokenizer"}, {20240522, "evaluation"}};
    for (size_t i = 0; i < COUNT_OF(relatives); i++) {
        if (magic == relatives[i].magic)
            return status_make(EXIT_REQUEST, "%s: an llm.c %s file, not tokens", path, relatives[i].what);
    }
    return STATUS_OK;
}

Status tokens_find(const char *path, TokenKind *kind) {
    *kind = TOKENS_NONE;
    File f;
    uint8_t head[8] = {0};
    size_t got;
    TRY(file_open(path, &f));
    Status s = file_read_some(&f, 0, head, sizeof head, &got);
    file_close(&f);
    TRY(s);
    int32_t magic = got >= 4 ? word_at(head) : 0;
    if (npy_is(head, got)) {
        *kind = TOKENS_NUMPY;
    } else if (magic == 20240520 || magic == 20240801) {
        *kind = TOKENS_LLMC;
    } else if (tokens_suffix(path) || file_has_suffix(path, ".idx")) {
        TRY(refuse_megatron(path));
        TRY(refuse_relatives(path, magic));
        *kind = TOKENS_RAW;
    } else if (memcmp(head, "PAR1", 4) == 0) {
        return status_make(EXIT_REQUEST,
                           "%s: Parquet is not read; convert it: python -c \"import pandas; "
                           "pandas.read_parquet('X').to_json('X.jsonl', orient='records', lines=True)\"",
                           path);
    }
    return STATUS_OK;
}

static const char *layout_name(IdLayout l) {
    switch (l.width) {
    case 1:
        return "u8";
    case 2:
        return "u16";
    case 4:
        return l.is_signed ? "i32" : "u32";
    default:
        return l.is_signed ? "i64" : "u64";
    }
}

// NAME.meta.json beside a raw file: its dtype, and its number of tokens, which must agree with the length.
static Status read_meta(const TokenFile *f, int *width, int64_t *tokens) {
    static const struct {
        const char *name;
        int width;
    } dtypes[] = {{"uint8", 1}, {"uint16", 2}, {"uint32", 4}, {"uint64", 8},
                  {"u8", 1},    {"u16", 2},    {"u32", 4},    {"u64", 8}};
    char path[FILE_PATH + 16];
    const char *dot = strrchr(f->file.path, '.');
    size_t stem = dot ? (size_t)(dot - f->file.path) : strlen(f->file.path);
    snprintf(path, sizeof path, "%.*s.meta.json", (int)stem, f->file.path);
    *tokens = -1;
    if (!file_exists(path))
        return STATUS_OK;
    json_t *meta;
    TRY(jin_load(path, 1 << 20, &meta));
    const char *dtype = json_string_value(json_object_get(meta, "dtype"));
    for (size_t i = 0; dtype && !*width && i < COUNT_OF(dtypes); i++) {
        if (strcmp(dtype, dtypes[i].name) == 0)
            *width = dtypes[i].width;
    }
    const json_t *count = json_object_get(meta, "num_tokens");
    if (json_is_integer(count))
        *tokens = json_integer_value(count);
    json_decref(meta);
    return STATUS_OK;
}

static Status open_raw(TokenFile *f, int64_t vocab, int width) {
    const char *path = f->file.path;
    int64_t wanted;
    TRY(read_meta(f, &width, &wanted));
    if (!width)
        width = file_has_suffix(path, ".u16") ? 2 : file_has_suffix(path, ".u32") ? 4 : 0;
    if (!width)
        width = vocab <= 1 << 8 ? 1 : vocab <= 1 << 16 ? 2 : vocab <= (int64_t)1 << 32 ? 4 : 8;
    f->layout = (IdLayout){.width = (uint8_t)width};
    if (f->file.size % (uint64_t)width)
        return status_make(EXIT_REQUEST,
                           "%s: %llu bytes are not a multiple of %d, the width of an id (--token-dtype)",
                           path, (unsigned long long)f->file.size, width);
    f->count = (int64_t)(f->file.size / (uint64_t)width);
    if (wanted >= 0 && wanted != f->count)
        return status_make(EXIT_REQUEST, "%s: holds %lld ids of %d bytes, its .meta.json says %lld", path,
                           (long long)f->count, width, (long long)wanted);
    return STATUS_OK;
}

static Status open_llmc(TokenFile *f) {
    const char *path = f->file.path;
    uint8_t head[12];
    if (f->file.size < LLMC_HEADER)
        return status_make(EXIT_REQUEST, "%s: %llu bytes long, an llm.c header alone has %d", path,
                           (unsigned long long)f->file.size, LLMC_HEADER);
    TRY(file_read_at(&f->file, 0, head, sizeof head));
    bool llama = word_at(head) == 20240801;
    int32_t version = word_at(head + 4), count = word_at(head + 8);
    if (version != (llama ? 7 : 1))
        return status_make(EXIT_REQUEST, "%s: llm.c version %d of this kind of file is not known", path,
                           (int)version);
    f->layout = (IdLayout){.width = llama ? 4 : 2};
    f->data = LLMC_HEADER;
    f->count = count;
    if (count < 0 || f->file.size - LLMC_HEADER != (uint64_t)count * f->layout.width)
        return status_make(EXIT_REQUEST,
                           "%s: the header says %d ids of %d bytes, the file holds %llu bytes of them", path,
                           (int)count, f->layout.width, (unsigned long long)(f->file.size - LLMC_HEADER));
    return STATUS_OK;
}

static Status open_numpy(TokenFile *f) {
    NpyHeader h;
    TRY(npy_header(&f->file, &h));
    if (h.rank != 1)
        return status_make(EXIT_REQUEST, "%s: %d dimensions, a row of ids has one", f->file.path,
                           (int)h.rank);
    f->layout = h.layout;
    f->data = h.data;
    f->count = h.count;
    return STATUS_OK;
}

Status tokens_read(const TokenFile *f, int64_t at, int64_t n, int64_t vocab, int32_t *out) {
    enum { CHUNK = 4096 };
    uint8_t bytes[CHUNK * 8];
    size_t width = f->layout.width;
    for (int64_t done = 0; done < n;) {
        size_t part = (size_t)MIN_OF(n - done, (int64_t)CHUNK);
        int64_t bad;
        TRY(file_read_at(&f->file, f->data + (uint64_t)(at + done) * width, bytes, part * width));
        size_t good = ids_decode(f->layout, bytes, part, MIN_OF(vocab, INT32_MAX), out + done, &bad);
        if (good < part)
            return status_make(
                EXIT_REQUEST,
                "%s: id %lld at position %lld: the vocabulary has %lld ids (another tokenizer, or "
                "another --token-dtype?)",
                f->file.path, (long long)bad, (long long)(at + done + (int64_t)good), (long long)vocab);
        done += (int64_t)part;
    }
    return STATUS_OK;
}

// 16-bit words with zero at nearly every odd place are 32-bit ids.
static bool looks_wider(const TokenFile *f, const int32_t *ids, int64_t n) {
    int64_t zeros = 0, others = 0;
    for (int64_t i = 1; i < n; i += 2) {
        zeros += ids[i] == 0;
        others += ids[i - 1] != 0;
    }
    return f->layout.width == 2 && n >= 8 && zeros * 16 >= n / 2 * 15 && others * 2 > n / 2;
}

// Both ends and as many ids spread over the file.
static Status check_sample(const TokenFile *f, int64_t vocab, bool width_given) {
    enum { BLOCKS = 16 };
    int32_t *ids = mem_alloc(SAMPLE * sizeof *ids);
    if (!ids)
        return status_memory("a sample of ids", SAMPLE * sizeof *ids);
    int64_t n = MIN_OF(f->count, SAMPLE), part = MIN_OF(n, SAMPLE / BLOCKS);
    // Without the vocabulary first: 32-bit ids read as 16 bits may pass or fail it.
    Status s = tokens_read(f, 0, n, INT32_MAX, ids);
    if (!s.code && !width_given && looks_wider(f, ids, n))
        s = status_make(
            EXIT_REQUEST,
            "%s: read as 16-bit ids every second one is 0: it looks like u32, use --token-dtype u32",
            f->file.path);
    if (!s.code)
        s = tokens_read(f, 0, n, vocab, ids);
    if (!s.code)
        s = tokens_read(f, f->count - n, n, vocab, ids);
    for (int64_t k = 1; k < BLOCKS && !s.code; k++)
        s = tokens_read(f, (f->count - part) / BLOCKS * k, part, vocab, ids);
    mem_free(ids);
    return s;
}

Status tokens_open(const char *path, TokenKind kind, int64_t vocab, int width, TokenFile *out) {
    *out = (TokenFile){.file.fd = -1};
    Status s = file_open(path, &out->file);
    if (!s.code)
        s = kind == TOKENS_NUMPY  ? open_numpy(out)
            : kind == TOKENS_LLMC ? open_llmc(out)
                                  : open_raw(out, vocab, width);
    if (!s.code && out->count == 0)
        s = status_make(EXIT_REQUEST, "%s: holds no ids", path);
    if (!s.code)
        s = check_sample(out, vocab, width != 0);
    snprintf(out->form, sizeof out->form, "%s %s",
             kind == TOKENS_NUMPY  ? "numpy"
             : kind == TOKENS_LLMC ? "llm.c"
                                   : "raw",
             layout_name(out->layout));
    if (s.code)
        tokens_close(out);
    return s;
}

void tokens_close(TokenFile *f) {
    file_close(&f->file);
}

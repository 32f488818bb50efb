// Training data: see data.h. Texts become one row of ids in memory, token files stay on disk; both are cut
// into windows, numbered through, and read in the order of a counter-based permutation.
#include "runtime/data.h"
#include "runtime/init.h"
#include "runtime/tokens.h"
#include <string.h>
#include <xxhash.h>

enum { SAMPLE_IDS = 1 << 20, BLOCK_IDS = 1 << 14 };

typedef struct Part { // a row of ids: a token file, or all texts together
    TokenFile file;   // closed: ids in memory
    Ids ids;
    int64_t count, windows, first; // first: number of its first window
} Part;

struct Data {
    Part *parts;
    int n_parts;
    int64_t vocab, seq, windows; // windows: of the files
    int64_t held;                // windows held out by data_split; they come first in the order of `held_key`
    uint64_t seed;
    bool whole, is_split; // is_split: the held-out part of another Data, whose rows it reads
    int32_t *row;         // one window
    DataInfo info;
    XXH3_state_t *hash;
    char hash_text[33];
    DataOptions options; // while it is opened
    int32_t eos;
};

// ---- Order

uint64_t permute_index(uint64_t key, uint64_t n, uint64_t i) {
    int half = 1;
    while (half < 32 && (uint64_t)1 << 2 * half < n)
        half++;
    uint64_t mask = ((uint64_t)1 << half) - 1;
    do { // a Feistel network on 2*half bits, walked until the result is below n
        uint64_t left = i >> half, right = i & mask;
        for (uint64_t round = 0; round < 6; round++) {
            uint64_t next = left ^ (rng_mix64(key + round * 0x9E3779B97F4A7C15u + right) & mask);
            left = right;
            right = next;
        }
        i = left << half | right;
    } while (i >= n);
    return i;
}

static int64_t window_of(const Data *d, int64_t cursor) {
    uint64_t windows = (uint64_t)d->windows, at = (uint64_t)cursor;
    if (!d->whole) {
        uint64_t n = (uint64_t)(d->windows - d->held), epoch = (uint64_t)cursor / n;
        at = (uint64_t)d->held +
             permute_index(rng_mix64(rng_key(d->seed, "data.order") + epoch), n, (uint64_t)cursor % n);
    }
    // the held-out windows do not depend on the run's seed
    return (int64_t)(d->held || d->is_split ? permute_index(rng_key(0, "data.held"), windows, at) : at);
}

// ---- Opening

static void warn(const Data *d, const char *format, ...) PRINTF_LIKE(2, 3);
static void warn(const Data *d, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (d->options.warn)
        d->options.warn(d->options.ctx, text);
}

static Status add_part(Data *d, Part **out) {
    if ((d->n_parts & (d->n_parts - 1)) == 0) {
        Part *parts = mem_realloc(d->parts, (size_t)MAX_OF(1, d->n_parts * 2) * sizeof *parts);
        if (!parts)
            return status_memory("a list of data files", (size_t)d->n_parts * 2 * sizeof *parts);
        d->parts = parts;
    }
    *out = &d->parts[d->n_parts++];
    **out = (Part){.file.file.fd = -1};
    return STATUS_OK;
}

static Status add_document(Data *d, Ids *ids, const char *text, size_t n, Encode *e) {
    size_t before = ids->n;
    TRY(tokenizer_encode(d->options.tokenizer, text, n, e, ids));
    TRY(ids_reserve(ids, 1));
    if (ids->n == before || ids->at[ids->n - 1] != d->eos)
        ids->at[ids->n++] = d->eos;
    d->info.documents++;
    return STATUS_OK;
}

static Status add_text(Data *d, Part *texts, const char *path) {
    if (!d->options.tokenizer)
        return status_make(EXIT_REQUEST,
                           "%s: a text needs a tokenizer: --tokenizer tokenizer.json, or --tokenizer bytes",
                           path);
    TextFile *f;
    TRY(text_open(path, &d->options.text, &f));
    Encode e = {.literal_specials = d->options.literal_specials};
    Status s = STATUS_OK;
    while (!s.code) {
        const char *text;
        size_t n;
        s = text_next(f, &text, &n);
        if (s.code || !text)
            break;
        s = add_document(d, &texts->ids, text, n, &e);
    }
    d->info.specials += e.specials;
    d->info.replaced += text_replaced(f);
    text_close(f);
    texts->count = (int64_t)texts->ids.n;
    if (!s.code && d->options.progress)
        d->options.progress(d->options.ctx, path, texts->count);
    return s;
}

static Status unknown_form(const char *path) {
    return status_make(
        EXIT_REQUEST,
        "%s: not a known form of data: texts end in .txt .text .jsonl .json .ndjson (also .gz .zst), "
        "token files in .npy .bin .u16 .u32",
        path);
}

static Status add_file(Data *d, int *texts, const char *path) {
    TokenKind kind;
    TRY(tokens_find(path, &kind));
    d->info.files++;
    if (kind == TOKENS_NONE) {
        if (!text_is(path))
            return unknown_form(path);
        Part *part;
        if (*texts < 0) {
            TRY(add_part(d, &part));
            *texts = d->n_parts - 1;
        }
        return add_text(d, &d->parts[*texts], path);
    }
    Part *part;
    TRY(add_part(d, &part));
    TRY(tokens_open(path, kind, d->vocab, d->options.token_width, &part->file));
    part->count = part->file.count;
    if (d->options.progress)
        d->options.progress(d->options.ctx, path, part->count);
    return STATUS_OK;
}

static bool known_name(const char *name) {
    size_t n = strlen(name);
    bool meta = n > 10 && strcmp(name + n - 10, ".meta.json") == 0;
    return name[0] != '.' && !meta && (text_is(name) || tokens_suffix(name));
}

static Status add_path(Data *d, int *texts, const char *path) {
    if (!file_is_dir(path))
        return add_file(d, texts, path);
    FileNames names;
    TRY(file_list(path, &names));
    Status s = STATUS_OK;
    int found = 0;
    char child[FILE_PATH];
    for (size_t i = 0; i < names.n && !s.code; i++) {
        s = file_join(path, names.at[i], child);
        if (s.code || !known_name(names.at[i]) || file_is_dir(child))
            continue;
        found++;
        s = add_file(d, texts, child);
    }
    file_names_free(&names);
    if (!s.code && !found)
        s = status_make(EXIT_REQUEST, "%s: this folder holds no data files (.txt .jsonl .npy .bin ...)",
                        path);
    return s;
}

static Status read_ids(const Data *d, const Part *p, int64_t at, int64_t n, int32_t *out) {
    if (p->file.file.fd >= 0)
        return tokens_read(&p->file, at, n, d->vocab, out);
    memcpy(out, p->ids.at + at, (size_t)n * sizeof *out);
    return STATUS_OK;
}

static const char *part_name(const Part *p) {
    return p->file.file.fd >= 0 ? p->file.file.path : "the texts";
}

static Status count_windows(Data *d) {
    for (int i = 0; i < d->n_parts; i++) {
        Part *p = &d->parts[i];
        int64_t targets = p->count - 1;
        p->windows = targets <= 0 ? 0 : d->whole ? (targets + d->seq - 1) / d->seq : targets / d->seq;
        p->first = d->windows;
        d->windows += p->windows;
        d->info.ids += p->count;
        d->info.dropped += p->windows ? p->count - MIN_OF(p->count, p->windows * d->seq + 1) : p->count;
        if (p->windows == 0 && d->n_parts > 1)
            warn(d, "%s: %lld ids, fewer than one window of %lld: not used", part_name(p),
                 (long long)p->count, (long long)(d->whole ? 2 : d->seq + 1));
    }
    d->info.windows = d->windows;
    bool nothing = d->info.documents ? d->info.ids <= d->info.documents : d->info.ids == 0;
    if (d->windows == 0 && nothing) // end tokens alone
        return status_make(EXIT_REQUEST, "%s: empty: there is no text or token in the data",
                           d->options.paths[0]);
    if (d->windows == 0)
        return status_make(
            EXIT_REQUEST,
            "%s: %lld id%s in all, one window takes %lld (--seq %lld and the id after it): more "
            "data or a shorter --seq is needed",
            d->options.paths[0], (long long)d->info.ids, d->info.ids == 1 ? "" : "s",
            (long long)(d->whole ? 2 : d->seq + 1), (long long)d->seq);
    return STATUS_OK;
}

// ---- Looking at the ids: hash, most frequent one, end token

typedef struct Look {
    int32_t *count; // [vocab]
    int64_t n;
} Look;

static Status look_at(Data *d, const Part *p, int64_t share, Look *look) {
    int32_t block[BLOCK_IDS / 16];
    const int64_t size = COUNT_OF(block);
    int64_t blocks = MAX_OF(1, MIN_OF(share, p->count) / size), step = MAX_OF(size, p->count / blocks);
    for (int64_t at = 0; at < p->count; at += step) {
        int64_t n = MIN_OF(size, p->count - at);
        TRY(read_ids(d, p, at, n, block));
        if (p->file.file.fd >= 0)
            XXH3_128bits_update(d->hash, block, (size_t)n * sizeof *block);
        for (int64_t i = 0; i < n; i++)
            look->count[block[i]]++;
        look->n += n;
    }
    return STATUS_OK;
}

static void check_end_token(const Data *d, const Look *look) {
    static const int32_t candidates[] = {0, 50256, 50279, 100257, 128000};
    if (d->eos < 0 || d->eos >= d->vocab || look->count[d->eos])
        return;
    for (size_t i = 0; i < COUNT_OF(candidates); i++) {
        int32_t c = candidates[i];
        // a byte tokenizer's 0 and rare ids say nothing
        if (c < d->vocab && look->count[c] > 1 && look->count[c] * 50 < look->n) {
            warn(d,
                 "the end token %d does not occur in a sample of %lld ids, but %d does %d times: check --eos",
                 (int)d->eos, (long long)look->n, (int)c, (int)look->count[c]);
            return;
        }
    }
}

static Status inspect(Data *d) {
    Look look = {.count = mem_alloc((size_t)d->vocab * sizeof *look.count)};
    d->hash = fault_hit(FAULT_ALLOC) ? NULL : XXH3_createState();
    Status s = look.count && d->hash ? STATUS_OK : status_memory("counting ids", (size_t)d->vocab * 4);
    if (!s.code)
        XXH3_128bits_reset(d->hash);
    for (int i = 0; i < d->n_parts && !s.code; i++) {
        const Part *p = &d->parts[i];
        XXH3_128bits_update(d->hash, &p->count, sizeof p->count);
        if (p->file.file.fd < 0)
            XXH3_128bits_update(d->hash, p->ids.at, p->ids.n * sizeof *p->ids.at);
        s = look_at(d, p, SAMPLE_IDS / d->n_parts, &look);
    }
    for (int32_t id = 0; !s.code && id < (int32_t)MIN_OF(d->vocab, INT32_MAX); id++) {
        if (look.count[id] > look.count[d->info.top_id])
            d->info.top_id = id;
    }
    if (!s.code) {
        d->info.top_share = (double)look.count[d->info.top_id] / (double)MAX_OF(look.n, 1);
        check_end_token(d, &look);
        XXH128_hash_t h = XXH3_128bits_digest(d->hash);
        snprintf(d->hash_text, sizeof d->hash_text, "%016llx%016llx", (unsigned long long)h.high64,
                 (unsigned long long)h.low64);
    }
    if (!s.code && d->info.top_share > 0.5)
        warn(d, "%s: id %d makes up %.0f %% of a sample of the data", d->options.paths[0],
             (int)d->info.top_id, 100 * d->info.top_share);
    mem_free(look.count);
    XXH3_freeState(d->hash);
    d->hash = NULL;
    return s;
}

static Status open_all(Data *d, const DataOptions *o) {
    int texts = -1;
    if (o->vocab <= 0 || o->vocab > INT32_MAX || o->seq <= 0 || o->seq > INT32_MAX / 2)
        return status_make(EXIT_REQUEST, "--seq %lld with a vocabulary of %lld cannot be", (long long)o->seq,
                           (long long)o->vocab);
    d->row = mem_alloc((size_t)(o->seq + 1) * sizeof *d->row);
    if (!d->row)
        return status_memory("a window", (size_t)(o->seq + 1) * sizeof *d->row);
    if (o->tokenizer) {
        if (tokenizer_vocab(o->tokenizer) > o->vocab)
            return status_make(
                EXIT_REQUEST, "the tokenizer has %d ids, the model a vocabulary of %lld: set vocab=%d",
                (int)tokenizer_vocab(o->tokenizer), (long long)o->vocab, (int)tokenizer_vocab(o->tokenizer));
        TRY(tokenizer_eos(o->tokenizer, o->eos, &d->eos));
    }
    for (int i = 0; i < o->n_paths; i++)
        TRY(add_path(d, &texts, o->paths[i]));
    TRY(count_windows(d));
    return inspect(d);
}

Status data_open(const DataOptions *o, Data **out) {
    *out = NULL;
    CHECK(o->n_paths > 0, "data without files");
    Data *d = mem_alloc(sizeof *d);
    if (!d)
        return status_memory("a data reader", sizeof *d);
    d->vocab = o->vocab;
    d->seq = o->seq;
    d->seed = o->seed;
    d->whole = o->whole;
    d->options = *o;
    d->eos = (int32_t)MIN_OF(o->eos, INT32_MAX);
    Status s = open_all(d, o);
    d->options = (DataOptions){0};
    if (s.code)
        data_close(d);
    else
        *out = d;
    return s;
}

Status data_split(Data *d, double fraction, Data **val) {
    *val = NULL;
    CHECK(!d->whole && !d->held, "data split twice");
    int64_t held = (int64_t)(fraction * (double)d->windows + 0.5);
    if (!(fraction > 0 && fraction < 1) || held < 1 || held >= d->windows)
        return status_make(
            EXIT_REQUEST, "--val-fraction %g of %lld windows leaves %s: choose another, or use --val",
            fraction, (long long)d->windows, held < 1 ? "nothing to validate on" : "nothing to train on");
    Data *v = mem_alloc(sizeof *v);
    int32_t *row = mem_alloc((size_t)(d->seq + 1) * sizeof *row);
    if (!v || !row) {
        mem_free(v);
        mem_free(row);
        return status_memory("a data reader", sizeof *v + (size_t)(d->seq + 1) * sizeof *row);
    }
    *v = *d;
    v->row = row;
    v->whole = v->is_split = true;
    d->held = held;
    v->info.windows = held;
    v->info.ids = held * (d->seq + 1);
    v->info.dropped = 0;
    d->info.windows = d->windows - held;
    *val = v;
    return STATUS_OK;
}

void data_close(Data *d) {
    if (!d)
        return;
    for (int i = 0; i < d->n_parts && !d->is_split; i++) {
        tokens_close(&d->parts[i].file);
        mem_free(d->parts[i].ids.at);
    }
    if (!d->is_split)
        mem_free(d->parts);
    mem_free(d->row);
    mem_free(d);
}

DataInfo data_info(const Data *d) {
    return d->info;
}

const char *data_hash(const Data *d) {
    return d->hash_text;
}

// ---- Reading

static const Part *part_of(const Data *d, int64_t window) {
    int low = 0, high = d->n_parts - 1;
    while (low < high) { // last part whose first window is not beyond; empty parts share a first window
        int mid = (low + high + 1) / 2;
        if (d->parts[mid].first <= window)
            low = mid;
        else
            high = mid - 1;
    }
    while (d->parts[low].windows == 0)
        low--;
    return &d->parts[low];
}

static Status read_row(Data *d, int64_t window, int32_t *ids, int32_t *targets) {
    const Part *p = part_of(d, window);
    int64_t at = (window - p->first) * d->seq, n = MIN_OF(d->seq + 1, p->count - at);
    TRY(read_ids(d, p, at, n, d->row));
    for (int64_t i = 0; i < d->seq; i++) {
        ids[i] = i < n ? d->row[i] : 0;
        targets[i] = i + 1 < n ? d->row[i + 1] : -1;
    }
    return STATUS_OK;
}

Status data_read(Data *d, int64_t cursor, int64_t n, int32_t *ids, int32_t *targets) {
    for (int64_t r = 0; r < n; r++, ids += d->seq, targets += d->seq) {
        if (d->whole && cursor + r >= d->info.windows) {
            for (int64_t i = 0; i < d->seq; i++) {
                ids[i] = 0;
                targets[i] = -1;
            }
            continue;
        }
        TRY(read_row(d, window_of(d, cursor + r), ids, targets));
    }
    return STATUS_OK;
}

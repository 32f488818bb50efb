// Writer of safetensors files: see safetensors.h. The same content gives the same bytes: order is fixed by
// type width and name, the header is padded with spaces so that data begins at a multiple of 8.
#include "runtime/json_out.h"
#include "runtime/safetensors.h"
#include "runtime/sha256.h"
#include <stdlib.h>
#include <string.h>

typedef struct Item {
    const StEntry *entry;
    int32_t index;
    size_t bytes;
} Item;

struct StWriter {
    FileWriter file;
    Sha256 sum;
    Item *items; // in file order
    int32_t n, next;
};

static int compare_items(const void *a, const void *b) {
    const StEntry *x = ((const Item *)a)->entry, *y = ((const Item *)b)->entry;
    size_t wx = st_dtype_bytes(x->dtype), wy = st_dtype_bytes(y->dtype);
    return wx != wy ? (wx > wy ? -1 : 1) : strcmp(x->name, y->name);
}

static Status put(StWriter *w, const void *data, size_t n) {
    sha256_add(&w->sum, data, n);
    return file_write(&w->file, data, n);
}

static void header_text(const StWriter *w, const StMeta *meta, Text *out) {
    JsonOut json;
    jout_begin(&json, out);
    if (meta && meta->key) {
        jout_object(&json, "__metadata__");
        for (; meta->key; meta++)
            jout_string(&json, meta->key, meta->value);
        jout_close(&json);
    }
    uint64_t at = 0;
    for (int32_t i = 0; i < w->n; i++) {
        const StEntry *e = w->items[i].entry;
        jout_object(&json, e->name);
        jout_string(&json, "dtype", st_dtype_name(e->dtype));
        jout_array(&json, "shape");
        for (int32_t k = 0; k < e->rank; k++)
            jout_int(&json, NULL, e->shape[k]);
        jout_close(&json);
        jout_array(&json, "data_offsets");
        jout_int(&json, NULL, (int64_t)at);
        at += w->items[i].bytes;
        jout_int(&json, NULL, (int64_t)at);
        jout_close(&json);
        jout_close(&json);
    }
    jout_close(&json);
    while (out->n % 8)
        text_addn(out, " ", 1);
}

static Status write_header(StWriter *w, const StMeta *meta) {
    Arena arena;
    arena_init(&arena, 0);
    Text text = {.arena = &arena};
    volatile bool built = true;
    ARENA_CATCH(&arena, header_text(w, meta, &text), built = false);
    Status s = built ? STATUS_OK : status_memory("a safetensors header", text.n);
    uint8_t head[8];
    for (int i = 0; i < 8; i++)
        head[i] = (uint8_t)((uint64_t)text.n >> 8 * i);
    if (!s.code)
        s = put(w, head, 8);
    if (!s.code)
        s = put(w, text.at, text.n);
    arena_free(&arena);
    return s;
}

Status st_create(const char *path, const StEntry *entries, int32_t n, const StMeta *meta, StWriter **out) {
    *out = NULL;
    StWriter *w = mem_alloc(sizeof *w);
    if (!w)
        return status_memory("a safetensors writer", sizeof *w);
    w->file.fd = -1;
    sha256_init(&w->sum);
    w->n = n;
    w->items = mem_alloc((size_t)n * sizeof *w->items);
    if (!w->items) {
        st_abandon(&w);
        return status_memory("a list of tensors", (size_t)n * sizeof *w->items);
    }
    for (int32_t i = 0; i < n; i++) {
        size_t bytes = st_dtype_bytes(entries[i].dtype);
        bool fits = true;
        for (int32_t k = 0; k < entries[i].rank; k++)
            fits = fits && size_mul(bytes, (size_t)entries[i].shape[k], &bytes);
        CHECK(fits && entries[i].rank <= ST_MAX_RANK, "tensor %s cannot be written", entries[i].name);
        w->items[i] = (Item){&entries[i], i, bytes};
    }
    if (n)
        qsort(w->items, (size_t)n, sizeof *w->items, compare_items);
    Status s = file_create(path, &w->file);
    if (!s.code)
        s = write_header(w, meta);
    if (s.code)
        st_abandon(&w);
    *out = w;
    return s;
}

int32_t st_next(const StWriter *w) {
    return w->next < w->n ? w->items[w->next].index : -1;
}

Status st_write(StWriter *w, const void *data) {
    CHECK(w->next < w->n, "more tensors written than announced");
    return put(w, data, w->items[w->next++].bytes);
}

void st_digest(StWriter *w, char sha256[65], uint64_t *bytes) {
    sha256_hex(&w->sum, sha256);
    *bytes = w->sum.bytes;
}

Status st_commit(StWriter **w) {
    CHECK((*w)->next == (*w)->n, "%d of %d tensors written", (int)(*w)->next, (int)(*w)->n);
    Status s = file_commit(&(*w)->file);
    st_abandon(w);
    return s;
}

void st_abandon(StWriter **w) {
    if (!*w)
        return;
    file_abandon(&(*w)->file);
    mem_free((*w)->items);
    mem_free(*w);
    *w = NULL;
}

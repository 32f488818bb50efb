// Merging the bytes of a word into tokens: lowest rank first, leftmost first among equals.
//
// Short words are scanned again after each merge; long ones use a heap of (rank, place) over a linked list,
// so a word of a megabyte costs n log n. Both give the same ids. A heap entry is stale when the pair at its
// place has another rank by now; since rank and place name a pair of the present, checking that is enough.
#include "runtime/tokenizer_parts.h"
#include <string.h>

enum { SHORT_WORD = 48 };
#define NO_RANK UINT32_MAX
#define END     UINT32_MAX

static size_t place_of(const Bpe *b, uint64_t pair) {
    uint64_t h = pair * 0x9E3779B97F4A7C15u;
    return (size_t)(h ^ h >> 29) & b->mask;
}

Status bpe_init(Bpe *b, size_t n_merges) {
    size_t n = 16;
    while (n < n_merges * 2)
        n *= 2;
    *b = (Bpe){.mask = n - 1, .table = mem_alloc(n * sizeof *b->table)};
    if (!b->table)
        return status_memory("the tokenizer's merges", n * sizeof *b->table);
    for (size_t i = 0; i < n; i++)
        b->table[i].pair = UINT64_MAX;
    return STATUS_OK;
}

void bpe_free(Bpe *b) {
    mem_free(b->table);
    mem_free(b->ids);
    mem_free(b->next);
    mem_free(b->prev);
    mem_free(b->heap);
    *b = (Bpe){0};
}

bool bpe_add(Bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id) {
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t i = place_of(b, pair);
    for (; b->table[i].pair != UINT64_MAX; i = (i + 1) & b->mask) {
        if (b->table[i].pair == pair)
            return false;
    }
    b->table[i] = (Merge){pair, rank, id};
    return true;
}

static const Merge *find(const Bpe *b, int32_t left, int32_t right) {
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    for (size_t i = place_of(b, pair);; i = (i + 1) & b->mask) {
        if (b->table[i].pair == pair)
            return &b->table[i];
        if (b->table[i].pair == UINT64_MAX)
            return NULL;
    }
}

static size_t merge_short(const Bpe *b, int32_t *ids, size_t n) {
    const Merge *pair[SHORT_WORD];
    for (size_t i = 0; i + 1 < n; i++)
        pair[i] = find(b, ids[i], ids[i + 1]);
    while (n > 1) {
        const Merge *best = NULL;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            if (pair[i] && (!best || pair[i]->rank < best->rank)) {
                best = pair[i];
                at = i;
            }
        }
        if (!best)
            break;
        ids[at] = best->id;
        n--;
        memmove(ids + at + 1, ids + at + 2, (n - at - 1) * sizeof *ids);
        if (at + 1 < n)
            memmove(pair + at, pair + at + 1, (n - at - 1) * sizeof *pair);
        if (at + 1 < n)
            pair[at] = find(b, ids[at], ids[at + 1]);
        if (at > 0)
            pair[at - 1] = find(b, ids[at - 1], ids[at]);
    }
    return n;
}

static Status grow(Bpe *b, size_t n) {
    if (n <= b->cap)
        return STATUS_OK;
    if (n >= END / 4)
        return status_make(EXIT_REQUEST,
                           "a text holds a word of %zu bytes without a break, at most 1 GB is read", n);
    int32_t *ids = mem_realloc(b->ids, n * sizeof *ids);
    b->ids = ids ? ids : b->ids;
    uint32_t *next = mem_realloc(b->next, n * sizeof *next);
    b->next = next ? next : b->next;
    uint32_t *prev = mem_realloc(b->prev, n * sizeof *prev);
    b->prev = prev ? prev : b->prev;
    // Each merge pushes at most two entries and removes one symbol.
    uint64_t *heap = mem_realloc(b->heap, 3 * n * sizeof *heap);
    b->heap = heap ? heap : b->heap;
    if (!ids || !next || !prev || !heap)
        return status_memory("merging a long word", n * 36);
    b->cap = n;
    return STATUS_OK;
}

static void heap_push(uint64_t *heap, size_t *n, uint64_t key) {
    size_t i = (*n)++;
    for (size_t up; i && heap[up = (i - 1) / 2] > key; i = up)
        heap[i] = heap[up];
    heap[i] = key;
}

static uint64_t heap_pop(uint64_t *heap, size_t *n) {
    uint64_t top = heap[0], last = heap[--*n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < *n; i = child) {
        if (child + 1 < *n && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= last)
            break;
        heap[i] = heap[child];
    }
    heap[i] = last;
    return top;
}

static void push_pair(Bpe *b, size_t *n_heap, uint32_t at) {
    if (at == END || b->next[at] == END)
        return;
    const Merge *m = find(b, b->ids[at], b->ids[b->next[at]]);
    if (m)
        heap_push(b->heap, n_heap, (uint64_t)m->rank << 32 | at);
}

static void merge_long(Bpe *b, size_t n) {
    size_t n_heap = 0;
    for (size_t i = 0; i < n; i++) {
        b->next[i] = i + 1 < n ? (uint32_t)(i + 1) : END;
        b->prev[i] = i ? (uint32_t)(i - 1) : END;
    }
    for (size_t i = 0; i < n; i++)
        push_pair(b, &n_heap, (uint32_t)i);
    while (n_heap) {
        uint64_t key = heap_pop(b->heap, &n_heap);
        uint32_t at = (uint32_t)key, right = b->next[at];
        if (b->ids[at] < 0 || right == END)
            continue;
        const Merge *m = find(b, b->ids[at], b->ids[right]);
        if (!m || m->rank != (uint32_t)(key >> 32))
            continue;
        b->ids[at] = m->id;
        b->ids[right] = -1; // merged away
        b->next[at] = b->next[right];
        if (b->next[at] != END)
            b->prev[b->next[at]] = at;
        push_pair(b, &n_heap, b->prev[at]);
        push_pair(b, &n_heap, at);
    }
}

Status bpe_encode(Bpe *b, const uint8_t *word, size_t n, Ids *out) {
    TRY(ids_reserve(out, n));
    if (n <= SHORT_WORD) {
        for (size_t i = 0; i < n; i++)
            out->at[out->n + i] = b->byte_id[word[i]];
        out->n += merge_short(b, out->at + out->n, n);
        return STATUS_OK;
    }
    TRY(grow(b, n));
    for (size_t i = 0; i < n; i++)
        b->ids[i] = b->byte_id[word[i]];
    merge_long(b, n);
    for (uint32_t i = 0; i != END; i = b->next[i])
        out->at[out->n++] = b->ids[i];
    return STATUS_OK;
}

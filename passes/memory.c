// Offsets of the buffers of one program in the acts arena.
//
// A buffer lives from the first to the last step that names it. Buffers are placed one after the other, each
// at the lowest aligned offset where it meets no placed buffer that lives at the same time. Which order is
// best depends on the program, so a few orders are tried and the smallest result kept. No two buffers that
// live together overlap.
#include "passes/planner.h"
#include <stdlib.h>
#include <string.h>

typedef struct Item {
    int32_t buffer, first, last; // the first of the buffers that share its place
    size_t bytes, offset;
    double weight; // the order: largest first
} Item;

static size_t align_up(size_t bytes) {
    return (bytes + PLAN_ALIGN - 1) / PLAN_ALIGN * PLAN_ALIGN;
}

static int by_weight(const void *a, const void *b) {
    const Item *x = a, *y = b;
    if (x->weight != y->weight)
        return x->weight > y->weight ? -1 : 1;
    return x->buffer < y->buffer ? -1 : x->buffer > y->buffer;
}

// Places all items in their order; returns the bytes needed. `placed` lists the placed ones by offset, so the
// first gap between those that live together with x is found in one walk.
static size_t place_items(Item *items, uint32_t n, uint32_t *placed) {
    size_t peak = 0;
    for (uint32_t i = 0; i < n; i++) {
        Item *x = &items[i];
        uint32_t at = i;
        x->offset = 0;
        for (uint32_t k = 0; k < i; k++) {
            const Item *y = &items[placed[k]];
            if (y->first > x->last || x->first > y->last)
                continue;
            if (y->offset >= x->offset + x->bytes)
                break;
            x->offset = MAX_OF(x->offset, y->offset + y->bytes);
        }
        while (at > 0 && items[placed[at - 1]].offset > x->offset)
            at--;
        memmove(placed + at + 1, placed + at, (i - at) * sizeof *placed);
        placed[at] = i;
        peak = MAX_OF(peak, x->offset + x->bytes);
    }
    return peak;
}

static void find_lifetimes(Plan *plan, const PlanProgram *q) {
    for (int32_t i = q->step0; i < q->step0 + q->n_steps; i++) {
        const PlanStep *s = &plan->steps.at[i];
        for (int32_t j = 0; j < s->n_args; j++) {
            PlanBuffer *b = &plan->buffers.at[plan->views.at[s->arg0 + j].buffer];
            if (b->arena != ARENA_ACTS)
                continue;
            b->first = b->first < 0 ? i : b->first;
            b->last = i;
        }
    }
}

static size_t largest_live(const Item *items, uint32_t n, const PlanProgram *q, Arena *a) {
    size_t *begin = arena_alloc(a, ((size_t)q->n_steps + 1) * sizeof *begin), live = 0, most = 0;
    size_t *end = arena_alloc(a, ((size_t)q->n_steps + 1) * sizeof *end);
    for (uint32_t i = 0; i < n; i++) {
        begin[items[i].first - q->step0] += items[i].bytes;
        end[items[i].last - q->step0] += items[i].bytes;
    }
    for (int32_t i = 0; i < q->n_steps; i++) {
        live += begin[i];
        most = MAX_OF(most, live);
        live -= end[i];
    }
    return most;
}

static bool named_once(const Plan *plan, int32_t step, int32_t buffer) {
    const PlanStep *s = &plan->steps.at[step];
    int n = 0;
    for (int32_t j = 0; j < s->n_args; j++)
        n += plan->views.at[s->arg0 + j].buffer == buffer;
    return n == 1;
}

// root[b]: the buffer whose place b takes, itself when it has its own.
static int32_t *share_places(const Plan *plan, const InPlaceList *list) {
    uint32_t n = plan->buffers.n;
    int32_t *root = arena_alloc(plan->arena, n * sizeof *root);
    bool *taken = arena_alloc(plan->arena, n * sizeof *taken);
    for (uint32_t i = 0; i < n; i++)
        root[i] = (int32_t)i;
    for (uint32_t i = 0; i < list->n; i++) {
        const InPlace *x = &list->at[i];
        bool ends = plan->buffers.at[x->from].last == x->step && plan->buffers.at[x->to].first == x->step;
        if (!ends || taken[x->from] || root[x->to] != x->to || !named_once(plan, x->step, x->from))
            continue;
        taken[x->from] = true;
        root[x->to] = root[x->from];
    }
    return root;
}

static double order_weight(int order, const Item *x) {
    double bytes = (double)x->bytes, life = (double)(x->last - x->first + 1);
    switch (order) {
    case 0:
        return bytes;
    case 1:
        return bytes * life;
    case 2:
        return life;
    default:
        return -(double)x->first;
    }
}

// The items of a program, into items[]; item_of[buffer] is the item that a buffer belongs to, -1: none.
static uint32_t collect_items(const Plan *plan, int32_t program, const int32_t *root, Item *items,
                              int32_t *item_of) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < plan->buffers.n; i++) {
        const PlanBuffer *b = &plan->buffers.at[i];
        item_of[i] = -1;
        if (b->arena != ARENA_ACTS || b->program != program || b->first < 0)
            continue;
        if (root[i] != (int32_t)i)
            continue;
        item_of[i] = (int32_t)n;
        items[n++] =
            (Item){.buffer = (int32_t)i, .first = b->first, .last = b->last, .bytes = align_up(b->bytes)};
    }
    for (uint32_t i = 0; i < plan->buffers.n; i++)
        if (root[i] != (int32_t)i) {
            item_of[i] = item_of[root[i]];
            items[item_of[i]].last = MAX_OF(items[item_of[i]].last, plan->buffers.at[i].last);
        }
    return n;
}

void memory_place(Plan *plan, int32_t program, const InPlaceList *in_place) {
    enum { ORDERS = 4 };
    PlanProgram *q = &plan->programs.at[program];
    find_lifetimes(plan, q);
    int32_t *root = share_places(plan, in_place);
    int32_t *item_of = arena_alloc(plan->arena, plan->buffers.n * sizeof *item_of);
    Item *items = arena_alloc(plan->arena, plan->buffers.n * sizeof *items);
    uint32_t n = collect_items(plan, program, root, items, item_of);
    uint32_t *placed = arena_alloc(plan->arena, (n + 1) * sizeof *placed);
    q->acts_bound = largest_live(items, n, q, plan->arena);
    q->acts_peak = SIZE_MAX;
    for (int order = 0; order < ORDERS && q->acts_peak > q->acts_bound; order++) {
        for (uint32_t i = 0; i < n; i++)
            items[i].weight = order_weight(order, &items[i]);
        qsort(items, n, sizeof *items, by_weight);
        size_t peak = place_items(items, n, placed);
        if (peak >= q->acts_peak)
            continue;
        q->acts_peak = peak;
        for (uint32_t i = 0; i < n; i++)
            plan->buffers.at[items[i].buffer].offset = items[i].offset;
    }
    for (uint32_t i = 0; i < plan->buffers.n; i++)
        plan->buffers.at[i].offset = plan->buffers.at[root[i]].offset;
    plan->arena_bytes[ARENA_ACTS] = MAX_OF(plan->arena_bytes[ARENA_ACTS], q->acts_peak);
}

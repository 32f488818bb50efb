// Buffers and the table of kernels of a plan.
//
// A kernel's identity is its text printed under a neutral name, so layers share kernels whatever functions
// they came from. Its name is what the fusion called it and the first digits of the hash of that text.
#include "passes/planner.h"
#include <ctype.h>
#include <string.h>

int32_t buffer_new(Planner *p, const char *name, ArenaId arena, Dtype dtype, size_t offset, int64_t count) {
    PlanBuffer b = {.name = name, .arena = arena, .dtype = dtype, .offset = offset, .program = -1};
    bool fits = size_mul((size_t)count, dtype_bytes(dtype), &b.bytes);
    CHECK(count >= 0 && fits, "buffer %s of %lld elements", name, (long long)count);
    vec_push(p->plan->arena, &p->plan->buffers, b);
    return (int32_t)p->plan->buffers.n - 1;
}

int32_t buffer_acts(Planner *p, Ref r, const char *what, Dtype dtype, int64_t count) {
    const char *name = r ? arena_format(p->plan->arena, "%s.%s.%u", p->f->name, what, (unsigned)r)
                         : arena_format(p->plan->arena, "%s.%s", p->f->name, what);
    int32_t b = buffer_new(p, name, ARENA_ACTS, dtype, 0, count);
    p->plan->buffers.at[b].program = p->program;
    p->plan->buffers.at[b].first = p->plan->buffers.at[b].last = -1;
    return b;
}

// "layers.3 @backbone:12" of a node; "" when it has no place.
const char *origin_text(const Planner *p, const Node *n) {
    if (!n)
        return "";
    char layer[32] = "", place[128] = "";
    if (n->layer >= 0)
        snprintf(layer, sizeof layer, "layers.%d", n->layer);
    if (n->loc.line[0]) {
        const char *file = p->m->files.at[n->loc.file[0]], *slash = strrchr(file, '/');
        file = slash ? slash + 1 : file;
        snprintf(place, sizeof place, "@%.*s:%u", (int)strcspn(file, "."), file, n->loc.line[0]);
    }
    return arena_format(p->plan->arena, "%s%s%s", layer, *layer && *place ? " " : "", place);
}

// What a kernel is printed from.
typedef struct Recipe {
    KernelKind kind;
    const Func *f; // row
    int head_dim, group;
    Dtype dtype;
} Recipe;

static const char *print_kernel(const Planner *p, const Recipe *r, const char *name) {
    const KernelPrinter *k = &p->o->printer;
    switch (r->kind) {
    case KERNEL_ROW:
        return k->row(p->plan->arena, p->m, r->f, name);
    case KERNEL_FINISH:
        return k->finish(p->plan->arena, name);
    case KERNEL_SCATTER:
        return k->scatter(p->plan->arena, r->dtype, name);
    case KERNEL_ATTN:
    case KERNEL_ATTN_GRAD:
        return k->attention(p->plan->arena, r->head_dim, r->group, r->dtype, r->kind == KERNEL_ATTN_GRAD,
                            name);
    }
    return "";
}

static bool name_taken(const Planner *p, const char *name) {
    for (uint32_t i = 0; i < p->plan->kernels.n; i++)
        if (!strcmp(p->plan->kernels.at[i].name, name))
            return true;
    return false;
}

static int32_t kernel_intern(Planner *p, const Recipe *r, const char *base, PlanKernel k) {
    enum { DIGITS = 6 };
    Arena *a = p->plan->arena;
    char key[33], hash[33];
    const char *text = print_kernel(p, r, "kernel");
    hash_hex(text, strlen(text), key);
    for (uint32_t i = 0; i < p->kernel_key.n; i++)
        if (!strcmp(p->kernel_key.at[i], key))
            return (int32_t)i;
    char *name = arena_format(a, "%.*s.%.*s", (int)strcspn(base, "."), base, DIGITS, key);
    if (name_taken(p, name))
        name = arena_format(a, "%.*s.%s", (int)strcspn(base, "."), base, key);
    char *symbol = arena_string(a, name);
    for (char *c = symbol; *c; c++)
        *c = (char)(isalnum((unsigned char)*c) ? *c : '_');
    k.kind = r->kind;
    k.name = name;
    k.source = print_kernel(p, r, symbol);
    hash_hex(k.source, strlen(k.source), hash);
    k.hash = arena_string(a, hash);
    k.origin = origin_text(p, p->origin);
    vec_push(a, &p->plan->kernels, k);
    vec_push(a, &p->kernel_key, arena_string(a, key));
    return (int32_t)p->plan->kernels.n - 1;
}

Func *kernel_func(Planner *p, const char *name, int n_rows, const AxisId *rows) {
    Func *f = arena_alloc(p->m->arena, sizeof *f);
    f->name = name;
    f->is_kernel = true;
    f->n_row_axes = (uint8_t)n_rows;
    if (n_rows)
        memcpy(f->row_axes, rows, (size_t)n_rows);
    vec_push(p->m->arena, &f->nodes, ((Node){.op = OP_POISON, .n_out = 1, .layer = -1}));
    return f;
}

int32_t kernel_row(Planner *p, const Func *f) {
    KernelCost c = cost_kernel(p->m, f);
    PlanKernel k = {.bytes_per_item = c.read_bytes + c.write_bytes, .flops_per_item = c.flops};
    for (uint32_t i = 1; i < f->nodes.n; i++) {
        const Node *n = &f->nodes.at[i];
        int scalar = input_scalar(n);
        k.n_args += n->op == OP_input && scalar < 0;
        k.n_scalars = MAX_OF(k.n_scalars, scalar + 1);
    }
    k.n_args += (int32_t)f->outputs.n;
    return kernel_intern(p, &(Recipe){.kind = KERNEL_ROW, .f = f}, f->name, k);
}

int32_t kernel_finish(Planner *p) {
    return kernel_intern(p, &(Recipe){.kind = KERNEL_FINISH}, "finish", (PlanKernel){.n_args = 2});
}

int32_t kernel_scatter(Planner *p, Dtype x) {
    return kernel_intern(p, &(Recipe){.kind = KERNEL_SCATTER, .dtype = x}, "scatter",
                         (PlanKernel){.n_args = 4});
}

int32_t kernel_attention(Planner *p, int head_dim, int group, Dtype dtype, bool grad) {
    Recipe r = {
        .kind = grad ? KERNEL_ATTN_GRAD : KERNEL_ATTN, .head_dim = head_dim, .group = group, .dtype = dtype};
    return kernel_intern(p, &r, grad ? "attention_grad" : "attention",
                         (PlanKernel){.n_args = grad ? 9 : 5, .n_scalars = 1});
}

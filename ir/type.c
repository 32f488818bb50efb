// Axes, types and the tables of a module.
#include "ir/ir.h"
#include <string.h>

// clang-format off
const OpInfo op_info[N_OPS] = {
    [OP_POISON] = {"poison", CLASS_DATA, 0, NULL, 0, ""},
#define MATH_MAP(math) #math
#define MATH_REDUCE(math) #math
#define MATH_VIEW(math) NULL
#define MATH_DOT(math) NULL
#define MATH_ATTN(math) NULL
#define MATH_GATHER(math) NULL
#define MATH_HEAD(math) NULL
#define MATH_DATA(math) NULL
#define OP(name, cls, arity, math, grad, cost, test, doc) [OP_##name] = {#name, CLASS_##cls, arity, MATH_##cls(math), cost, doc},
#include "ir/ops.def"
};
static const char *const diag_hints[] = {
#define DIAG(id, format, hint) hint,
#include "ir/diag.def"
};
static const char *const diag_formats[] = {
#define DIAG(id, format, hint) format,
#include "ir/diag.def"
};
// clang-format on

const char *diag_hint(DiagKind kind) {
    return diag_hints[kind];
}

void diag_add(Diags *d, Loc loc, DiagKind kind, ...) {
    if (d->list.n >= MAX_DIAGS) {
        d->dropped++;
        return;
    }
    char text[1024];
    va_list args;
    va_start(args, kind);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    vsnprintf(text, sizeof text, diag_formats[kind], args);
#pragma GCC diagnostic pop
    va_end(args);
    vec_push(d->arena, &d->list, ((Diag){kind, loc, arena_string(d->arena, text)}));
}

Module *module_new(Arena *arena, const char *model) {
    Module *m = arena_alloc(arena, sizeof *m);
    m->arena = arena;
    m->model = arena_string(arena, model);
    vec_push(arena, &m->files, "");
    return m;
}

AxisId module_find_axis(const Module *m, const char *name) {
    for (uint32_t i = 0; i < m->axes.n; i++)
        if (!strcmp(m->axes.at[i].name, name))
            return (AxisId)i;
    return AXIS_NONE;
}

// A name that is taken by an axis of another kind or size is a new axis only under another name: callers
// check first.
AxisId module_axis(Module *m, const char *name, AxisKind kind, int32_t size) {
    AxisId id = module_find_axis(m, name);
    if (id != AXIS_NONE) {
        const Axis *a = &m->axes.at[id];
        CHECK(a->kind == kind && a->size == size, "axis %s declared twice: size %d and %d", name, a->size,
              size);
        return id;
    }
    CHECK(m->axes.n < MAX_AXES, "more than %d axes", MAX_AXES);
    vec_push(m->arena, &m->axes, ((Axis){arena_string(m->arena, name), kind, size}));
    return (AxisId)(m->axes.n - 1);
}

int32_t module_param(const Module *m, const char *name) {
    for (uint32_t i = 0; i < m->params.n; i++)
        if (!strcmp(m->params.at[i].name, name))
            return (int32_t)i;
    return -1;
}

Func *module_find_func(const Module *m, const char *name) {
    for (uint32_t i = 0; i < m->funcs.n; i++)
        if (!strcmp(m->funcs.at[i]->name, name))
            return m->funcs.at[i];
    return NULL;
}

Func *module_func(Module *m, const char *name) {
    Func *f = arena_alloc(m->arena, sizeof *f);
    f->name = arena_string(m->arena, name);
    vec_push(m->arena, &f->nodes, ((Node){.op = OP_POISON, .n_out = 1, .layer = -1}));
    vec_push(m->arena, &m->funcs, f);
    return f;
}

size_t dtype_bytes(Dtype dtype) {
    return dtype == DT_BF16 ? 2 : 4;
}

const char *dtype_name(Dtype dtype) {
    return dtype == DT_F32 ? "f32" : dtype == DT_BF16 ? "bf16" : "i32";
}

bool type_has(const Type *t, AxisId axis) {
    for (int i = 0; i < t->rank; i++)
        if (t->axis[i] == axis)
            return true;
    return false;
}

bool type_same(const Type *a, const Type *b) {
    return a->dtype == b->dtype && a->rank == b->rank && !memcmp(a->axis, b->axis, a->rank);
}

int64_t type_count(const Module *m, const Type *t) {
    const int64_t most = (int64_t)1 << 56; // more than the verifier lets through
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++) {
        int32_t size = m->axes.at[t->axis[i]].size;
        n = n > most / size ? most : n * size;
    }
    return n;
}

static bool axis_before(const Module *m, AxisId a, AxisId b) {
    AxisKind ka = m->axes.at[a].kind, kb = m->axes.at[b].kind;
    return ka != kb ? ka < kb : ka != AXIS_WIDE && a < b;
}

// Insertion sort: stable, so wide axes keep the order in which they came.
Type type_make(const Module *m, Dtype dtype, int rank, const AxisId *axes) {
    CHECK(rank <= MAX_RANK, "type of rank %d", rank);
    Type t = {.dtype = (uint8_t)dtype, .rank = (uint8_t)rank};
    for (int i = 0; i < rank; i++) {
        int at = i;
        for (; at > 0 && axis_before(m, axes[i], t.axis[at - 1]); at--)
            t.axis[at] = t.axis[at - 1];
        t.axis[at] = axes[i];
    }
    return t;
}

Type type_union(const Module *m, const Type *a, const Type *b) {
    AxisId axes[2 * MAX_RANK];
    int n = 0;
    for (int i = 0; i < a->rank; i++)
        axes[n++] = a->axis[i];
    for (int i = 0; i < b->rank; i++)
        if (!type_has(a, b->axis[i]))
            axes[n++] = b->axis[i];
    if (n > MAX_RANK)
        return (Type){.dtype = a->dtype, .rank = MAX_RANK + 1};
    return type_make(m, a->dtype, n, axes);
}

int type_rows(const Module *m, const Type *t, AxisId out[MAX_RANK]) {
    int n = 0;
    for (int i = 0; i < t->rank; i++)
        if (m->axes.at[t->axis[i]].kind == AXIS_ROW)
            out[n++] = t->axis[i];
    return n;
}

const char *type_text(const Module *m, const Type *t, char out[128]) {
    int n = snprintf(out, 128, "%s[", dtype_name(t->dtype));
    for (int i = 0; i < t->rank && n < 120; i++)
        n += snprintf(out + n, (size_t)(128 - n), "%s%s", i ? "," : "", m->axes.at[t->axis[i]].name);
    if (n > 126)
        n = 126;
    snprintf(out + n, (size_t)(128 - n), "]");
    return out;
}

// The ops as Lua sees them. MAP ops come from the table, as functions and as methods; the others have a line
// of their own.
#include "frontend/lua/script.h"
#include <math.h>
#include <string.h>

static int push(lua_State *L, Ref r) {
    value_push(L, r);
    return 1;
}

static int wide_axes(const Script *s, const Type *t, AxisId out[MAX_RANK]) {
    int n = 0;
    for (int i = 0; i < t->rank; i++)
        if (s->b.m->axes.at[t->axis[i]].kind == AXIS_WIDE)
            out[n++] = t->axis[i];
    return n;
}

// What no kernel can walk along is refused here, where its line is known: operands with wide axes share them.
static bool wide_fit(Script *s, Op op, int n, const Ref *in) {
    AxisId first[MAX_RANK], other[MAX_RANK];
    int n_first = 0, at = 0;
    char a[128], c[128];
    for (int i = 0; i < n; i++) {
        const Type *t = &node_at(s->b.f, in[i])->type;
        int n_other = in[i] ? wide_axes(s, t, other) : 0;
        if (!n_other)
            continue;
        if (n_first && (n_first != n_other || memcmp(first, other, (size_t)n_first))) {
            diag_add(&s->diags, s->b.loc, DIAG_wide_axes, op_info[op].name,
                     type_text(s->b.m, &node_at(s->b.f, in[at])->type, a), type_text(s->b.m, t, c));
            return false;
        }
        n_first = n_other;
        at = i;
        memcpy(first, other, sizeof first);
    }
    return true;
}

int build_map(lua_State *L, Op op) {
    Script *s = script_of(L);
    Ref in[3] = {0}, r = 0;
    loc_here(L);
    for (int i = 0; i < op_info[op].n_in; i++)
        in[i] = value_check(L, i + 1);
    GUARD(L, s, r = wide_fit(s, op, op_info[op].n_in, in) ? ir_map(&s->b, op, in) : 0);
    return push(L, r);
}

static int map_call(lua_State *L) {
    return build_map(L, (Op)lua_tointeger(L, lua_upvalueindex(1)));
}

static Ref reduce_fit(Script *s, Op op, Ref x, int n, const AxisId *axes) {
    AxisId kept[MAX_RANK];
    char text[128];
    Ref r = ir_reduce(&s->b, op, x, n, axes);
    if (!r)
        return 0;
    const Type *from = &node_at(s->b.f, x)->type, *to = &node_at(s->b.f, r)->type;
    int n_kept = wide_axes(s, to, kept);
    if (!n_kept || n_kept == wide_axes(s, from, (AxisId[MAX_RANK]){0}))
        return r;
    diag_add(&s->diags, s->b.loc, DIAG_wide_reduce, op_info[op].name, type_text(s->b.m, from, text),
             s->b.m->axes.at[kept[0]].name);
    return 0;
}

static int reduce(lua_State *L, const char *name, Op op, bool mean) {
    Script *s = script_of(L);
    AxisId axes[MAX_ATTR_AXES];
    Ref x = value_check(L, 1), r = 0;
    int n = axes_check(L, 2, axes);
    double count = 1;
    loc_here(L);
    if (!n)
        return luaL_error(L, "%s: which axis?", name);
    for (int i = 0; i < n; i++)
        count *= s->b.m->axes.at[axes[i]].size;
    GUARD(L, s, {
        r = reduce_fit(s, op, x, n, axes);
        if (mean && r)
            r = ir_mul(&s->b, r, ir_const(&s->b, 1 / count));
    });
    return push(L, r);
}

static int reduce_call(lua_State *L) {
    Op op = (Op)lua_tointeger(L, lua_upvalueindex(1));
    return reduce(L, op_info[op].name, op, false);
}

static int mean_call(lua_State *L) {
    return reduce(L, "mean", OP_sum, true);
}

static int dot_call(lua_State *L) {
    Script *s = script_of(L);
    Ref x = value_check(L, 1), y = value_check(L, 2), r = 0;
    loc_here(L);
    GUARD(L, s, r = ir_dot(&s->b, x, y));
    return push(L, r);
}

static int rename_call(lua_State *L) {
    Script *s = script_of(L);
    Ref x = value_check(L, 1), r = 0;
    AxisId from = axis_check(L, 2), to = axis_check(L, 3);
    loc_here(L);
    GUARD(L, s, r = ir_rename(&s->b, x, from, to));
    return push(L, r);
}

static int split_call(lua_State *L) {
    Script *s = script_of(L);
    AxisId to[MAX_ATTR_AXES];
    Ref x = value_check(L, 1), r = 0;
    AxisId from = axis_check(L, 2);
    int n = axes_check(L, 3, to);
    loc_here(L);
    if (n < 1 || n >= MAX_ATTR_AXES)
        return luaL_error(L, "split: into 1 to %d axes", MAX_ATTR_AXES - 1);
    GUARD(L, s, r = ir_split(&s->b, x, from, n, to));
    return push(L, r);
}

static int merge_call(lua_State *L) {
    Script *s = script_of(L);
    AxisId axes[MAX_ATTR_AXES];
    Ref x = value_check(L, 1), r = 0;
    int n = axes_check(L, 2, axes) - 1;
    loc_here(L);
    if (n < 1)
        return luaL_error(L, "merge: name the axes to merge, then the new one");
    GUARD(L, s, r = ir_merge(&s->b, x, n, axes, axes[n]));
    return push(L, r);
}

static int slice_call(lua_State *L) {
    Script *s = script_of(L);
    Ref x = value_check(L, 1), r = 0;
    AxisId axis = axis_check(L, 2), to = AXIS_NONE;
    lua_Integer from = luaL_checkinteger(L, 3);
    if (!lua_isnoneornil(L, 4))
        to = axis_check(L, 4);
    loc_here(L);
    if (from < 0 || from > INT32_MAX)
        return luaL_error(L, "slice: the start must not be negative");
    GUARD(L, s, r = ir_slice(&s->b, x, axis, to, (int32_t)from));
    return push(L, r);
}

// db.stack(axis, a, b, ..): values of size 1 end to end along a new axis.
static int stack_call(lua_State *L) {
    Script *s = script_of(L);
    Ref in[MAX_ATTR_AXES], r = 0;
    AxisId none[MAX_ATTR_AXES];
    AxisId axis = axis_check(L, 1);
    int n = lua_gettop(L) - 1;
    loc_here(L);
    if (n < 1 || n >= MAX_ATTR_AXES)
        return luaL_error(L, "stack: 1 to %d values", MAX_ATTR_AXES - 1);
    for (int i = 0; i < n; i++) {
        in[i] = value_check(L, i + 2);
        none[i] = AXIS_NONE;
    }
    GUARD(L, s, r = ir_concat(&s->b, axis, n, in, none));
    return push(L, r);
}

static int ones_call(lua_State *L) {
    Script *s = script_of(L);
    AxisId axes[MAX_ATTR_AXES];
    int n = axes_check(L, 1, axes);
    Ref r = 0;
    loc_here(L);
    GUARD(L, s, {
        r = n ? ir_fill(&s->b, 1, axes[0]) : ir_const(&s->b, 1);
        for (int i = 1; i < n; i++)
            r = ir_mul(&s->b, r, ir_fill(&s->b, 1, axes[i]));
    });
    return push(L, r);
}

static int iota_call(lua_State *L) {
    Script *s = script_of(L);
    AxisId axis = axis_check(L, 1);
    Ref r = 0;
    loc_here(L);
    GUARD(L, s, r = ir_iota(&s->b, axis));
    return push(L, r);
}

// Whether x depends on the named input; NULL: on any input or parameter.
static bool depends_on(Arena *arena, const Func *f, Ref x, const char *input) {
    bool *seen = arena_alloc(arena, (size_t)x + 1);
    seen[x] = true;
    for (; x; x--) { // inputs precede; no recursion: a graph can be as deep as it has nodes
        const Node *n = node_at(f, x);
        if (!seen[x])
            continue;
        if (input ? n->op == OP_input && !strcmp(n->name, input) : n->op == OP_input || n->op == OP_param)
            return true;
        if (n->op == OP_out)
            seen[x - 1] = true;
        for (int i = 0; i < n->n_in; i++)
            seen[node_in(f, x, i)] = true;
    }
    return false;
}

static int constant_call(lua_State *L) {
    Script *s = script_of(L);
    Ref x = value_check(L, 1), r = 0;
    loc_here(L);
    sandbox_charge(L, s->b.f->nodes.n / 16);
    GUARD(L, s, {
        if (x && depends_on(s->arena, s->b.f, x, NULL))
            diag_add(&s->diags, s->b.loc, DIAG_constant_input);
        else if (x)
            r = ir_constant(&s->b, x);
    });
    return push(L, r);
}

static int stop_grad_call(lua_State *L) {
    Script *s = script_of(L);
    Ref x = value_check(L, 1), r = 0;
    loc_here(L);
    GUARD(L, s, r = x ? ir_stop_grad(&s->b, x) : 0);
    return push(L, r);
}

// Ids and targets are below the vocabulary; rows beyond a table's end would be read without a check.
static bool covers_vocabulary(Script *s, const char *op, Ref table) {
    const Type *t = &node_at(s->b.f, table)->type;
    const Axis *a = t->rank ? &s->b.m->axes.at[t->axis[0]] : NULL;
    if (!a || a->size >= s->options->shape.vocab)
        return true;
    diag_add(&s->diags, s->b.loc, DIAG_vocabulary, op, a->name, a->size, s->options->shape.vocab);
    return false;
}

static Ref gather(Script *s, Ref table, Ref ids) {
    const Func *f = s->b.f;
    if (!table || !ids)
        return 0;
    if (node_at(f, ids)->type.dtype == DT_I32 &&
        depends_on(s->arena, f, ids, "targets")) { // -1: does not count
        diag_add(&s->diags, s->b.loc, DIAG_gather_shape, "the ids are targets, which may be negative");
        return 0;
    }
    Ref r = ir_gather(&s->b, table, ids);
    return r && covers_vocabulary(s, "gather", table) ? r : 0;
}

static int gather_call(lua_State *L) {
    Script *s = script_of(L);
    Ref table = value_check(L, 1), ids = value_check(L, 2), r = 0;
    loc_here(L);
    sandbox_charge(L, s->b.f->nodes.n / 16);
    GUARD(L, s, r = gather(s, table, ids));
    return push(L, r);
}

// Heads that were not split off would make positions of sequences: the rows are checked here, where b and s
// are known by name.
static bool has_heads(Script *s, Ref q) {
    AxisId rows[MAX_RANK];
    const Module *m = s->b.m;
    if (type_rows(m, &node_at(s->b.f, q)->type, rows) == 3 && rows[0] == module_find_axis(m, "b") &&
        rows[1] == module_find_axis(m, "s"))
        return true;
    diag_add(&s->diags, s->b.loc, DIAG_attention_shape, "q has the rows b,s and one axis of heads");
    return false;
}

// 1 / sqrt of the number of elements that one head of q has.
static double default_scale(Script *s, Ref q) {
    AxisId rows[MAX_RANK];
    const Type *t = &node_at(s->b.f, q)->type;
    int64_t width = type_count(s->b.m, t);
    for (int i = type_rows(s->b.m, t, rows); i-- > 0;)
        width /= s->b.m->axes.at[rows[i]].size;
    return 1 / sqrt((double)width);
}

// db.attention(q, k, v [, {scale = x}]): causal; scale defaults to 1 / sqrt(head_dim).
static int attention_call(lua_State *L) {
    Script *s = script_of(L);
    Ref q = value_check(L, 1), k = value_check(L, 2), v = value_check(L, 3), r = 0;
    double scale = q ? default_scale(s, q) : 1;
    loc_here(L);
    if (lua_istable(L, 4)) {
        if (lua_getfield(L, 4, "scale") != LUA_TNUMBER)
            return luaL_error(L, "attention: the option is scale = number");
        scale = lua_tonumber(L, -1);
    } else if (!lua_isnoneornil(L, 4))
        return luaL_typeerror(L, 4, "a table of options");
    bool heads = false;
    GUARD(L, s, {
        heads = q && k && v && has_heads(s, q);
        r = heads ? ir_attention(&s->b, q, k, v, scale) : 0;
    });
    return push(L, r);
}

static void mark(Script *s, const char *name, Ref ref) {
    Func *f = s->b.f;
    s->instructions += f->marks.n / 2;
    for (uint32_t i = 0; i < f->marks.n; i++)
        if (!strcmp(f->marks.at[i].name, name)) {
            f->marks.at[i].ref = ref;
            return;
        }
    vec_push(s->arena, &f->marks, ((NamedRef){arena_string(s->arena, name), ref}));
}

// db.head_loss(x, weight, targets): mean cross-entropy over the targets that count; also marks the logits.
static int head_loss_call(lua_State *L) {
    Script *s = script_of(L);
    Ref x = value_check(L, 1), w = value_check(L, 2), targets = value_check(L, 3), r = 0;
    loc_here(L);
    sandbox_charge(L, s->b.f->nodes.n / 4); // the search for the input
    GUARD(L, s, {
        Builder *b = &s->b;
        Ref inv = ir_input(b, "inv_tokens", (Type){.dtype = DT_F32});
        Ref loss = ir_head_loss(b, x, w, targets, inv);
        if (loss && !covers_vocabulary(s, "head_loss", w))
            loss = 0;
        if (loss) {
            AxisId rows[MAX_RANK];
            int n = type_rows(b->m, &node_at(b->f, loss)->type, rows);
            r = ir_reduce(b, OP_sum, loss, n, rows);
            mark(s, "logits", ir_dot(b, x, w));
        }
    });
    return push(L, r);
}

// db.hidden(k, x): depth state k. db.tap(name, x): any value, by name.
static int hidden_call(lua_State *L) {
    Script *s = script_of(L);
    lua_Integer k = luaL_checkinteger(L, 1);
    Ref x = value_check(L, 2);
    char name[32];
    snprintf(name, sizeof name, "hidden.%lld", (long long)k);
    if (x)
        GUARD(L, s, mark(s, name, x));
    return 0;
}

static int tap_call(lua_State *L) {
    Script *s = script_of(L);
    const char *name = luaL_checkstring(L, 1);
    Ref x = value_check(L, 2);
    if (strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.") != strlen(name) ||
        !*name)
        return luaL_error(L, "tap: a name has letters, digits, _ and . only");
    if (x)
        GUARD(L, s, mark(s, name, x));
    return 0;
}

static int print_call(lua_State *L) {
    for (int i = 1, n = lua_gettop(L); i <= n; i++) {
        fprintf(stderr, "%s%s", i > 1 ? "\t" : "", luaL_tolstring(L, i, NULL));
        lua_pop(L, 1);
    }
    fputc('\n', stderr);
    return 0;
}

// clang-format off
const LuaFunction build_functions[] = {
    {"mean",      mean_call,      true,  "x, axis, ..",            "mean over one or more axes"},
    {"dot",       dot_call,       true,  "x, y",                   "contracts every axis that x and y share"},
    {"rename",    rename_call,    true,  "x, from, to",            "another name for an axis of equal size and kind"},
    {"split",     split_call,     true,  "x, axis, a, b, ..",      "one axis as several, outermost first"},
    {"merge",     merge_call,     true,  "x, a, b, .., axis",      "neighbouring axes as one"},
    {"slice",     slice_call,     true,  "x, axis, i [, to]",      "index i of an axis, which disappears; with `to`: as many indices from i on as `to` is long"},
    {"stack",     stack_call,     false, "axis, a, b, ..",         "values end to end along a new axis, one for each of its indices"},
    {"ones",      ones_call,      false, "axis, ..",               "1 for every index of the axes; x * db.ones(n) repeats x along n"},
    {"iota",      iota_call,      false, "axis",                   "0, 1, 2, .. along an axis"},
    {"constant",  constant_call,  false, "x",                      "x, which depends on no input and no weight, evaluated once in float64"},
    {"gather",    gather_call,    false, "table, ids",             "row ids[..] of a table with two axes"},
    {"attention", attention_call, false, "q, k, v [, {scale = x}]", "causal softmax attention; q [b,s,h,..], k and v [b,s,g,..], h a multiple of g; scale defaults to 1/sqrt(head_dim)"},
    {"head_loss", head_loss_call, false, "x, weight, targets",     "mean cross-entropy of softmax(x . weight) over the targets that are not negative"},
    {"hidden",    hidden_call,    false, "k, x",                   "x is depth state k (db.layers and layer:block do this by themselves)"},
    {"tap",       tap_call,       false, "name, x",                "gives any value a name under which it can be asked for"},
    {"stop_grad", stop_grad_call, true,  "x",                      "x, through which no gradient passes"},
    {"print",     print_call,     false, "..",                     "prints its arguments; a value prints as its type"},
};
// clang-format on
const int n_build_functions = (int)COUNT_OF(build_functions);

// The table on top of the stack gets the functions; methods alone, or all.
static void add_functions(lua_State *L, bool methods) {
    for (int op = 1; op < N_OPS; op++) {
        bool reduce = op_info[op].cls == CLASS_REDUCE;
        if (op_info[op].cls != CLASS_MAP && !reduce)
            continue;
        lua_pushinteger(L, op);
        lua_pushcclosure(L, reduce ? reduce_call : map_call, 1);
        lua_setfield(L, -2, op_info[op].name);
    }
    for (int i = 0; i < n_build_functions; i++)
        if (!methods || build_functions[i].method) {
            lua_pushcfunction(L, build_functions[i].call);
            lua_setfield(L, -2, build_functions[i].name);
        }
}

void build_register(lua_State *L) {
    add_functions(L, false);
}

void build_methods(lua_State *L) {
    add_functions(L, true);
}

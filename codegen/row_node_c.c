// One node of a row kernel as C: a line an element, vectors inside of a loop, numbers outside.
//
// Outside, costly functions of several elements are computed as one vector: the bits are the same, because
// the scalar functions are the vector functions in one lane.
#include "codegen/row_c.h"
#include <string.h>

static const char *dtype_word(Dtype d) {
    return d == DT_BF16 ? "bf16" : "f32";
}

// ---- Memory.
void row_load(RowPrinter *p, Ref r) {
    const RowNode *x = &p->k->node[r];
    const Node *n = node_at(p->k->f, r);
    char name[NAME_BYTES], add[NAME_BYTES];
    for (int32_t i = 0; i < x->small; i++) {
        row_name(p, (Element){r, i}, name);
        if (!p->loop) {
            if (n->type.dtype == DT_I32)
                row_line(p, 0, "const int32_t %s = p%d[%d];", name, x->arg, i);
            else
                row_line(p, 0,
                         n->type.dtype == DT_BF16 ? "const float %s = bf16_s(p%d[%d]);"
                                                  : "const float %s = p%d[%d];",
                         name, x->arg, i);
            continue;
        }
        row_add(i * x->wide, add);
        const char *word = dtype_word((Dtype)n->type.dtype);
        if (p->part)
            row_line(p, 0, "V %s = load_%s_part(p%d + %sj, %d);", name, word, x->arg, add, p->part);
        else
            row_line(p, 0, "V %s = load_%s(p%d + %sj);", name, word, x->arg, add);
    }
}

static int32_t padded(const RowNode *x) {
    return (x->wide + PHASES_LANES - 1) / PHASES_LANES * PHASES_LANES;
}

void row_reload(RowPrinter *p, Ref r) {
    const RowNode *x = &p->k->node[r];
    const char *word = dtype_word((Dtype)node_at(p->k->f, r)->type.dtype);
    char name[NAME_BYTES], add[NAME_BYTES];
    for (int32_t i = 0; i < x->small; i++) {
        row_name(p, (Element){r, i}, name);
        if (x->hold == HOLD_SCRATCH)
            row_line(p, 0, "V %s = load_f32(kept + %d + j);", name, x->held_at + i * padded(x));
        else if (p->part)
            row_line(p, 0, "V %s = load_%s_part(q%d + %sj, %d);", name, word, x->held_at,
                     row_add(i * x->wide, add), p->part);
        else
            row_line(p, 0, "V %s = load_%s(q%d + %sj);", name, word, x->held_at, row_add(i * x->wide, add));
    }
}

void row_store(RowPrinter *p, Ref from, const char *pointer, Element e, Dtype dtype, int32_t offset) {
    char value[NAME_BYTES], add[NAME_BYTES];
    row_operand(p, e, value);
    const char *word = dtype_word(dtype);
    if (!p->loop)
        row_line(p, from, dtype == DT_BF16 ? "%s[%d] = to_bf16_s(%s);" : "%s[%d] = %s;", pointer, offset,
                 value);
    else if (p->part)
        row_line(p, from, "store_%s_part(%s + %sj, %s, %d);", word, pointer, row_add(offset, add), value,
                 p->part);
    else
        row_line(p, from, "store_%s(%s + %sj, %s);", word, pointer, row_add(offset, add), value);
}

// ---- Computation.
// "v_mul(x1, x2)" for element i of a map.
static const char *map_call(RowPrinter *p, Ref r, int32_t index) {
    const Node *n = node_at(p->k->f, r);
    Text t = {.arena = p->k->arena};
    char name[NAME_BYTES];
    text_add(&t, "%c_%s(", p->loop ? 'v' : 's', op_info[n->op].name);
    for (int i = 0; i < n->n_in; i++)
        text_add(&t, "%s%s", i ? ", " : "", row_operand(p, phases_operand(p->k, r, i, index), name));
    text_add(&t, ")");
    return t.at;
}

static void declare(RowPrinter *p, Ref r, int32_t index, const char *value) {
    char name[NAME_BYTES];
    row_line(p, r, p->loop ? "V %s = %s;" : "const float %s = %s;", row_name(p, (Element){r, index}, name),
             value);
}

// Elements [from, to) of a costly map as one vector, then one by one.
static void map_packed(RowPrinter *p, Ref r, int32_t from, int32_t to) {
    const Node *n = node_at(p->k->f, r);
    Text t = {.arena = p->k->arena};
    char name[NAME_BYTES];
    for (int i = 0; i < n->n_in; i++) {
        text_add(&t, "%s(V){", i ? ", " : "");
        for (int32_t e = from; e < to; e++)
            text_add(&t, "%s%s", e > from ? ", " : "", row_name(p, phases_operand(p->k, r, i, e), name));
        text_add(&t, "}");
    }
    row_line(p, r, "const V y%u_%d = v_%s(%s);", p->k->node[r].number, from, op_info[n->op].name, t.at);
    for (int32_t e = from; e < to; e++)
        row_line(p, 0, "const float %s = y%u_%d[%d];", row_name(p, (Element){r, e}, name),
                 p->k->node[r].number, from, e - from);
}

static bool is_costly(const Node *n) {
    return op_info[n->op].flops >= 8;
}

static void map_node(RowPrinter *p, Ref r) {
    int32_t small = p->k->node[r].small;
    if (!p->loop && small > 1 && is_costly(node_at(p->k->f, r))) {
        for (int32_t i = 0; i < small; i += PHASES_LANES)
            map_packed(p, r, i, MIN_OF(i + PHASES_LANES, small));
        return;
    }
    for (int32_t i = 0; i < small; i++)
        declare(p, r, i, map_call(p, r, i));
}

// The place along an axis as an integer expression: lanes of a wide axis, a number of a small one, the row.
static const char *axis_place(RowPrinter *p, Ref r, AxisId axis, int32_t index) {
    const RowKernel *k = p->k;
    const Node *n = node_at(k->f, r);
    AxisKind kind = k->m->axes.at[axis].kind;
    if (kind == AXIS_WIDE) {
        CHECK(k->node[r].wide == k->m->axes.at[axis].size, "kernel %s: node %u: %s beside another wide axis",
              k->f->name, r, op_info[n->op].name);
        return "LANE + j";
    }
    if (kind == AXIS_ROW) {
        for (int i = 0; i < k->f->n_row_axes; i++)
            if (k->f->row_axes[i] == axis)
                return arena_format(k->arena, "(int32_t)r%d", i);
        CHECK(false, "kernel %s: node %u: axis %s is not one of the rows", k->f->name, r,
              k->m->axes.at[axis].name);
    }
    int32_t at = 0;
    for (int i = n->type.rank - 1; i >= 0; i--)
        if (k->m->axes.at[n->type.axis[i]].kind == AXIS_SMALL) {
            int32_t size = k->m->axes.at[n->type.axis[i]].size;
            if (n->type.axis[i] == axis)
                at = index % size;
            index /= size;
        }
    return arena_format(k->arena, "%d", at);
}

static void iota_node(RowPrinter *p, Ref r) {
    AxisId axis = node_at(p->k->f, r)->ax[0];
    for (int32_t i = 0; i < p->k->node[r].small; i++)
        declare(
            p, r, i,
            arena_format(p->k->arena, p->loop ? "to_float(%s)" : "(float)(%s)", axis_place(p, r, axis, i)));
}

static void one_hot_node(RowPrinter *p, Ref r) {
    const Node *n = node_at(p->k->f, r);
    char id[NAME_BYTES];
    for (int32_t i = 0; i < p->k->node[r].small; i++) {
        const char *place = axis_place(p, r, n->ax[0], i);
        row_name(p, phases_operand(p->k, r, 0, i), id);
        if (p->loop)
            declare(p, r, i,
                    arena_format(p->k->arena, "pick((I){0} + (%s) == splat_i(%s), splat(1.0f), splat(0.0f))",
                                 place, id));
        else
            declare(p, r, i, arena_format(p->k->arena, "%s == %s ? 1.0f : 0.0f", id, place));
    }
}

static void cast_node(RowPrinter *p, Ref r) {
    const Node *n = node_at(p->k->f, r);
    Dtype from = (Dtype)node_at(p->k->f, node_in(p->k->f, r, 0))->type.dtype;
    char x[NAME_BYTES], name[NAME_BYTES];
    for (int32_t i = 0; i < p->k->node[r].small; i++) {
        row_operand(p, phases_operand(p->k, r, 0, i), x);
        if (n->type.dtype == DT_I32) {
            row_line(p, r, "const int32_t %s = (int32_t)%s;", row_name(p, (Element){r, i}, name), x);
            continue;
        }
        const char *value = from == DT_I32 ? arena_format(p->k->arena, "(float)%s", x) : x;
        if (n->type.dtype == DT_BF16)
            value = arena_format(p->k->arena, p->loop ? "round_bf16_v(%s)" : "round_bf16_s(%s)", value);
        declare(p, r, i, value);
    }
}

static void gather_node(RowPrinter *p, Ref r) {
    const Node *n = node_at(p->k->f, r);
    const char *word = dtype_word((Dtype)n->type.dtype);
    uint32_t number = p->k->node[r].number;
    CHECK(p->k->node[r].small == 1, "kernel %s: node %u: gather with a small axis", p->k->f->name, r);
    if (!p->loop) {
        char id[NAME_BYTES];
        Element ids = phases_operand(p->k, r, 1, 0), table = phases_operand(p->k, r, 0, 0);
        CHECK(node_at(p->k->f, table.ref)->op == OP_input, "kernel %s: node %u: the table is not in memory",
              p->k->f->name, r);
        row_line(p, r, "const %s *g%u = p%d + (int64_t)%s * %d;", n->type.dtype == DT_BF16 ? "bf16" : "float",
                 number, p->k->node[table.ref].arg, row_name(p, ids, id), p->k->node[r].wide);
    } else if (p->part) {
        declare(p, r, 0, arena_format(p->k->arena, "load_%s_part(g%u + j, %d)", word, number, p->part));
    } else {
        declare(p, r, 0, arena_format(p->k->arena, "load_%s(g%u + j)", word, number));
    }
}

static void reduce_node(RowPrinter *p, Ref r) {
    for (int32_t i = 0; i < p->k->node[r].small; i++) {
        Element *e;
        int n = phases_reduced(p->k, r, i, &e);
        declare(p, r, i, row_total(p, r, n, e));
    }
}

void row_node(RowPrinter *p, Ref r) {
    const Node *n = node_at(p->k->f, r);
    if (op_info[n->op].cls == CLASS_MAP)
        map_node(p, r);
    else if (op_info[n->op].cls == CLASS_REDUCE)
        reduce_node(p, r);
    else if (n->op == OP_iota)
        iota_node(p, r);
    else if (n->op == OP_one_hot)
        one_hot_node(p, r);
    else if (n->op == OP_cast)
        cast_node(p, r);
    else if (n->op == OP_gather)
        gather_node(p, r);
    else if (n->op == OP_input && input_scalar(n) >= 0)
        row_line(p, 0, "const float s%d = a->scalar[%d];", p->k->node[r].arg, p->k->node[r].arg);
    else if (n->op == OP_input)
        row_load(p, r);
}

// ---- Functions: the formulas of ops.def.
void row_functions(RowPrinter *p) {
    bool used[N_OPS] = {false};
    for (Ref r = 1; r < p->k->f->nodes.n; r++)
        used[node_at(p->k->f, r)->op] |= p->k->node[r].live;
    for (int op = 1; op < N_OPS; op++) {
        if (!used[op] || !op_info[op].math)
            continue;
        for (int v = 1; v >= 0; v--) {
            const char *type = v ? "V" : "float";
            text_add(p->out, "INLINE %s %c_%s(", type, v ? 'v' : 's', op_info[op].name);
            if (op_info[op].cls == CLASS_REDUCE)
                text_add(p->out, "%s acc, %s a", type, type);
            for (int i = 0; op_info[op].cls == CLASS_MAP && i < op_info[op].n_in; i++)
                text_add(p->out, "%s%s %c", i ? ", " : "", type, 'a' + i);
            text_add(p->out, ") { return %s; }\n", op_info[op].math);
        }
        if (op_info[op].cls == CLASS_REDUCE)
            text_add(p->out, "FOLD(fold_%s, v_%s)\n", op_info[op].name, op_info[op].name);
    }
}

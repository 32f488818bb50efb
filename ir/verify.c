// The rules that hold after every pass:
//   V1 ops are in the table, with its number of operands and attributes in their range
//   V2 operands come before their users; none is poison
//   V3 every type is what ir_infer says of the op, its attributes and operands
//   V4 axes stand in canonical order, none twice; small axes have at most MAX_SMALL elements, values 2^48
//   V5 results of a node with several are OP_out nodes right behind it
//   V6 row axes are in no trained parameter; a parameter is stored in the canonical order of its axes
//   V7 outputs name values of the function, no name twice; so do marks, and inputs
//   V8 a call's callee is a kernel, its operands have the types of the callee's inputs, in order
//   V9 a kernel's row space is of row axes in order, all row axes of its values are in it; it has an output
//   V10 an output "grad.NAME" has the type of parameter NAME
//   V11 the operand of a `constant` rests on no input and no parameter
#include "ir/verify.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_COUNT_BITS = 48 };

typedef struct Check {
    const Module *m;
    const Func *f;
    bool *varies;  // by node: rests on an input or a parameter
    Status status; // the first breach
    Ref where;     // its node
} Check;

static void breach(Check *c, Ref r, const char *rule, const char *text) {
    if (c->status.code)
        return;
    c->status = status_make(EXIT_REQUEST, "rule %s: %s", rule, text);
    c->where = r;
}

static void check_type(Check *c, Ref r, const Type *t) {
    if (t->rank > MAX_RANK || t->dtype >= N_DTYPES) {
        breach(c, r, "V4", "rank or dtype out of range");
        return;
    }
    for (int i = 0; i < t->rank; i++)
        if (t->axis[i] >= c->m->axes.n) {
            breach(c, r, "V4", "unknown axis");
            return;
        }
    for (int i = 0; i < t->rank; i++)
        for (int k = 0; k < i; k++)
            if (t->axis[i] == t->axis[k])
                breach(c, r, "V4", "an axis twice");
    Type canonical = type_make(c->m, (Dtype)t->dtype, t->rank, t->axis);
    if (!type_same(&canonical, t))
        breach(c, r, "V4", "axes are not in canonical order");
    if (type_count(c->m, t) >> MAX_COUNT_BITS)
        breach(c, r, "V4", "a value of more than 2^48 elements");
    for (int i = 0; c->f->is_kernel && i < t->rank; i++)
        if (c->m->axes.at[t->axis[i]].kind == AXIS_ROW &&
            !memchr(c->f->row_axes, t->axis[i], c->f->n_row_axes))
            breach(c, r, "V9", "a row axis outside of the kernel's rows");
}

static void check_call(Check *c, Ref r) {
    const Node *n = node_at(c->f, r);
    const Func *callee = c->m->funcs.at[n->k];
    int k = 0;
    if (!callee->is_kernel)
        breach(c, r, "V8", "the callee is not a kernel");
    for (uint32_t i = 1; i < callee->nodes.n; i++) {
        if (callee->nodes.at[i].op != OP_input)
            continue;
        if (k < n->n_in && !type_same(&callee->nodes.at[i].type, &node_at(c->f, node_in(c->f, r, k))->type))
            breach(c, r, "V8", "an operand does not have the type of the callee's input");
        k++;
    }
    if (k != n->n_in)
        breach(c, r, "V8", "the callee has another number of inputs");
}

bool ir_attributes_fit(const Module *m, const Func *f, const Node *n) {
    if (n->n_ax > MAX_ATTR_AXES)
        return false;
    for (int i = 0; i < n->n_ax; i++)
        if (n->ax[i] == AXIS_NONE ? n->op != OP_concat || !i : n->ax[i] >= m->axes.n)
            return false;
    if (n->op == OP_call)
        return n->k >= 0 && (uint32_t)n->k < m->funcs.n && m->funcs.at[n->k] != f;
    if (n->op == OP_param)
        return n->k >= 0 && (uint32_t)n->k < m->params.n;
    if (n->op == OP_cast)
        return n->k >= 0 && n->k < N_DTYPES;
    if (n->op == OP_dot)
        return n->k == DT_F32 || n->k == DT_BF16;
    if (n->op == OP_concat)
        return n->n_in >= 1 && n->n_ax == n->n_in + 1;
    static const struct {
        uint16_t op;
        uint8_t min, max;
    } counts[] = {{OP_sum, 1, MAX_ATTR_AXES},
                  {OP_rmax, 1, MAX_ATTR_AXES},
                  {OP_rename, 2, 2},
                  {OP_split, 2, MAX_ATTR_AXES},
                  {OP_merge, 2, MAX_ATTR_AXES},
                  {OP_slice, 1, 2},
                  {OP_one_hot, 1, 1},
                  {OP_iota, 1, 1},
                  {OP_scatter_sum, 1, 1}};
    for (size_t i = 0; i < COUNT_OF(counts); i++)
        if (counts[i].op == n->op)
            return n->n_ax >= counts[i].min && n->n_ax <= counts[i].max;
    return n->n_ax == 0;
}

static void check_node(Check *c, Ref r) {
    const Node *n = node_at(c->f, r);
    if (n->op == OP_POISON || n->op >= N_OPS ||
        (op_info[n->op].n_in >= 0 && n->n_in != op_info[n->op].n_in)) {
        breach(c, n->op < N_OPS ? r : 0, "V1", "unknown op or wrong number of operands");
        return;
    }
    if (n->op == OP_out)
        return;
    for (int i = 0; i < n->n_in; i++)
        if (node_in(c->f, r, i) >= r || !node_in(c->f, r, i)) {
            breach(c, r, "V2", "an operand does not come before its user");
            return;
        }
    if (!ir_attributes_fit(c->m, c->f, n)) {
        breach(c, r, "V1", "attributes out of range");
        return;
    }
    for (int i = 1; i < n->n_out; i++)
        if (r + (Ref)i >= c->f->nodes.n || node_at(c->f, r + (Ref)i)->op != OP_out ||
            node_at(c->f, r + (Ref)i)->k != i) {
            breach(c, r, "V5", "results are missing");
            return;
        }
    c->varies[r] = n->op == OP_input || n->op == OP_param;
    for (int i = 0; i < n->n_in; i++)
        c->varies[r] |= c->varies[node_in(c->f, r, i)];
    for (int i = 1; i < n->n_out; i++)
        c->varies[r + (Ref)i] = c->varies[r];
    if (n->op == OP_constant && c->varies[r])
        breach(c, r, "V11", "the operand of a constant rests on an input or a parameter");
    Type types[UINT8_MAX + 1];
    Ref in[UINT8_MAX + 1];
    for (int i = 0; i < n->n_in; i++)
        in[i] = node_in(c->f, r, i);
    Diags diags = {.arena = c->m->arena};
    Builder b = {.m = (Module *)(uintptr_t)c->m, .f = (Func *)(uintptr_t)c->f, .diags = &diags};
    if (!ir_infer(&b, n, in, types)) {
        breach(c, r, "V3", diags.list.n ? diags.list.at[0].text : "no type");
        return;
    }
    for (int i = 0; i < n->n_out; i++) {
        const Type *t = &node_at(c->f, r + (Ref)i)->type;
        check_type(c, r, t);
        if (!type_same(t, &types[i]))
            breach(c, r, "V3", "the type is not the inferred one");
    }
    if (n->op == OP_call)
        check_call(c, r);
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void check_distinct(Check *c, uint32_t n, const char **names) {
    if (n > 1)
        qsort(names, n, sizeof *names, compare_names);
    for (uint32_t i = 1; i < n; i++)
        if (!strcmp(names[i - 1], names[i]))
            breach(c, 0, "V7", "two outputs, marks or inputs have the same name");
}

static void check_named(Check *c, const NamedRef *at, uint32_t n) {
    const char **names = arena_alloc(c->m->arena, (n + 1) * sizeof *names);
    for (uint32_t i = 0; i < n; i++) {
        names[i] = at[i].name;
        if (!at[i].ref || at[i].ref >= c->f->nodes.n)
            breach(c, 0, "V7", at[i].name);
    }
    check_distinct(c, n, names);
    for (uint32_t i = 0; i < n && !c->status.code; i++) {
        if (strncmp(at[i].name, "grad.", 5))
            continue;
        int32_t p = module_param(c->m, at[i].name + 5);
        if (p < 0 || !type_same(&c->m->params.at[p].type, &node_at(c->f, at[i].ref)->type))
            breach(c, at[i].ref, "V10", at[i].name);
    }
}

static void check_inputs(Check *c) {
    uint32_t n = 0;
    for (uint32_t i = 1; i < c->f->nodes.n; i++)
        n += c->f->nodes.at[i].op == OP_input;
    const char **names = arena_alloc(c->m->arena, (n + 1) * sizeof *names);
    n = 0;
    for (uint32_t i = 1; i < c->f->nodes.n; i++)
        if (c->f->nodes.at[i].op == OP_input)
            names[n++] = c->f->nodes.at[i].name;
    check_distinct(c, n, names);
}

static void check_kernel(Check *c) {
    for (int i = 0; i < c->f->n_row_axes; i++)
        if (c->f->row_axes[i] >= c->m->axes.n || c->m->axes.at[c->f->row_axes[i]].kind != AXIS_ROW ||
            (i && c->f->row_axes[i] <= c->f->row_axes[i - 1])) {
            breach(c, 0, "V9", "the row space is not of row axes in order");
            return;
        }
    if (!c->f->outputs.n)
        breach(c, 0, "V9", "a kernel without outputs");
}

Status verify_axis(const Axis *a) {
    if (a->size < 1 || (a->kind == AXIS_SMALL && a->size > MAX_SMALL))
        return status_make(EXIT_REQUEST, "rule V4: axis %s: size %d is out of range", a->name, a->size);
    return STATUS_OK;
}

Status verify_param(const Module *m, const Param *p) {
    for (int i = 0; i < p->file.rank; i++) {
        for (int k = 0; k < i; k++)
            if (p->file.axis[i] == p->file.axis[k])
                return status_make(EXIT_REQUEST, "rule V4: parameter %s has an axis twice", p->name);
        if (p->trained && m->axes.at[p->file.axis[i]].kind == AXIS_ROW)
            return status_make(EXIT_REQUEST, "rule V6: parameter %s has a row axis", p->name);
    }
    Type canonical = type_make(m, (Dtype)p->file.dtype, p->file.rank, p->file.axis);
    if (!type_same(&canonical, &p->type))
        return status_make(EXIT_REQUEST, "rule V6: parameter %s is not stored in canonical order", p->name);
    if (type_count(m, &p->type) >> MAX_COUNT_BITS)
        return status_make(EXIT_REQUEST, "rule V4: parameter %s has more than 2^48 elements", p->name);
    return STATUS_OK;
}

Status verify_func(const Module *m, const Func *f, Ref *where) {
    Check c = {.m = m, .f = f, .varies = arena_alloc(m->arena, f->nodes.n)};
    if (f->is_kernel)
        check_kernel(&c);
    for (Ref r = 1; r < f->nodes.n && !c.status.code; r++)
        check_node(&c, r);
    if (!c.status.code)
        check_inputs(&c);
    if (!c.status.code)
        check_named(&c, f->outputs.at, f->outputs.n);
    if (!c.status.code)
        check_named(&c, f->marks.at, f->marks.n);
    *where = c.where;
    return c.status;
}

Status ir_verify_status(const Module *m) {
    for (uint32_t i = 0; i < m->axes.n; i++)
        TRY(verify_axis(&m->axes.at[i]));
    for (uint32_t i = 0; i < m->params.n; i++)
        TRY(verify_param(m, &m->params.at[i]));
    for (uint32_t i = 0; i < m->funcs.n; i++) {
        Ref where;
        const Func *f = m->funcs.at[i];
        Status s = verify_func(m, f, &where);
        if (s.code)
            return status_make(EXIT_REQUEST, "%s: node %u (%s): %s", f->name, where,
                               op_info[node_at(f, where)->op].name, s.text);
    }
    return STATUS_OK;
}

void ir_verify(const Module *m, const char *after_pass) {
    Status s = ir_verify_status(m);
    CHECK(!s.code, "after %s: %s", after_pass, s.text);
}

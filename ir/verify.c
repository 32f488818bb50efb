// The rules that hold after every pass:
//   V1 ops are in the table, with its number of operands (or any, where the table says -1)
//   V2 operands come before their users; none is poison
//   V3 every type is what ir_infer says of the op, its attributes and operands
//   V4 axes of computed values stand in canonical order; small axes have at most MAX_SMALL elements
//   V5 results of a node with several are OP_out nodes right behind it
//   V6 row axes are in no trained parameter
//   V7 outputs and marks name values of the function; no name twice
//   V8 a call's callee is a kernel, its operands have the types of the callee's inputs, in order
//   V9 in a kernel all row axes of all values are in its row space
//   V10 an output "grad.NAME" has the type of parameter NAME
#include "ir/ir.h"
#include <string.h>

typedef struct Check {
    const Module *m;
    const Func *f;
    Status status; // the first breach
} Check;

static void breach(Check *c, Ref r, const char *rule, const char *text) {
    if (!c->status.code)
        c->status = status_make(EXIT_REQUEST, "%s: node %u (%s): rule %s: %s", c->f->name, r,
                                op_info[node_at(c->f, r)->op].name, rule, text);
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
        if (k >= n->n_in ||
            !type_same(&callee->nodes.at[i].type, &node_at(c->f, node_in(c->f, r, k))->type)) {
            breach(c, r, "V8", "an operand does not have the type of the callee's input");
            return;
        }
        k++;
    }
    if (k != n->n_in)
        breach(c, r, "V8", "more operands than the callee has inputs");
}

bool ir_attributes_fit(const Module *m, const Func *f, const Node *n) {
    for (int i = 0; i < n->n_ax; i++)
        if (n->ax[i] != AXIS_NONE && n->ax[i] >= m->axes.n)
            return false;
    if (n->op == OP_call)
        return n->k >= 0 && (uint32_t)n->k < m->funcs.n && m->funcs.at[n->k] != f;
    if (n->op == OP_param)
        return n->k >= 0 && (uint32_t)n->k < m->params.n;
    if (n->op == OP_cast || n->op == OP_dot)
        return n->k >= 0 && n->k < N_DTYPES;
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
            return n->n_ax >= counts[i].min && n->n_ax <= counts[i].max && n->ax[0] != AXIS_NONE;
    return n->op != OP_concat || (n->n_in >= 1 && n->n_ax == n->n_in + 1 && n->ax[0] != AXIS_NONE);
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

static void check_named(Check *c, const NamedRef *at, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (!at[i].ref || at[i].ref >= c->f->nodes.n)
            breach(c, 0, "V7", at[i].name);
    for (uint32_t i = 0; i < n && !c->status.code; i++) {
        if (strncmp(at[i].name, "grad.", 5))
            continue;
        int32_t p = module_param(c->m, at[i].name + 5);
        if (p < 0 || !type_same(&c->m->params.at[p].type, &node_at(c->f, at[i].ref)->type))
            breach(c, at[i].ref, "V10", at[i].name);
    }
}

Status ir_verify_status(const Module *m) {
    Check c = {.m = m};
    for (uint32_t i = 0; i < m->axes.n; i++)
        if (m->axes.at[i].size < 1 || (m->axes.at[i].kind == AXIS_SMALL && m->axes.at[i].size > MAX_SMALL))
            return status_make(EXIT_REQUEST, "axis %s: size %d is out of range (V4)", m->axes.at[i].name,
                               m->axes.at[i].size);
    for (uint32_t i = 0; i < m->params.n; i++)
        for (int k = 0; m->params.at[i].trained && k < m->params.at[i].type.rank; k++)
            if (m->axes.at[m->params.at[i].type.axis[k]].kind == AXIS_ROW)
                return status_make(EXIT_REQUEST, "parameter %s has a row axis (V6)", m->params.at[i].name);
    for (uint32_t i = 0; i < m->funcs.n && !c.status.code; i++) {
        c.f = m->funcs.at[i];
        for (Ref r = 1; r < c.f->nodes.n && !c.status.code; r++)
            check_node(&c, r);
        if (!c.status.code)
            check_named(&c, c.f->outputs.at, c.f->outputs.n);
        if (!c.status.code)
            check_named(&c, c.f->marks.at, c.f->marks.n);
    }
    return c.status;
}

void ir_verify(const Module *m, const char *after_pass) {
    Status s = ir_verify_status(m);
    CHECK(!s.code, "after %s: %s", after_pass, s.text);
}

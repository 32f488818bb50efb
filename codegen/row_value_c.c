// Names and expressions in the C text of a row kernel: %57 is x57, its element n=0, t=1 is x57_n0t1.
// Inside of a loop over a wide axis everything is a vector; narrow values are splat there.
#include "codegen/row_c.h"
#include <math.h>
#include <string.h>

const char *row_suffix(const RowPrinter *p, const Type *t, int32_t index, char out[NAME_BYTES]) {
    const Module *m = p->k->m;
    int32_t at[MAX_RANK] = {0};
    for (int i = t->rank - 1; i >= 0; i--)
        if (m->axes.at[t->axis[i]].kind == AXIS_SMALL) {
            at[i] = index % m->axes.at[t->axis[i]].size;
            index /= m->axes.at[t->axis[i]].size;
        }
    size_t n = 0;
    out[0] = 0;
    for (int i = 0; i < t->rank; i++) {
        if (m->axes.at[t->axis[i]].kind != AXIS_SMALL)
            continue;
        n += (size_t)snprintf(out + n, NAME_BYTES - n, "%s%s%d", n ? "" : "_", m->axes.at[t->axis[i]].name,
                              at[i]);
        CHECK(n < NAME_BYTES, "axis names too long");
    }
    for (size_t i = 0; i < n; i++)
        if (out[i] == '.')
            out[i] = '_';
    return out;
}

static const char *literal(double value, char out[NAME_BYTES]) {
    float x = (float)value;
    if (isnan(x))
        return strcpy(out, "__builtin_nanf(\"\")");
    if (isinf(x))
        return strcpy(out, x < 0 ? "(-__builtin_inff())" : "__builtin_inff()");
    char digits[64];
    snprintf(digits, sizeof digits, "%.9g", (double)x);
    bool whole = !strpbrk(digits, ".e");
    snprintf(out, NAME_BYTES, signbit(x) ? "(%s%sf)" : "%s%sf", digits, whole ? ".0" : "");
    return out;
}

const char *row_name(RowPrinter *p, Element e, char out[NAME_BYTES]) {
    const Node *n = node_at(p->k->f, e.ref);
    if (n->op == OP_const)
        return literal(n->f, out);
    if (n->op == OP_input && input_scalar(n) >= 0) {
        snprintf(out, NAME_BYTES, "s%d", p->k->node[e.ref].arg);
        return out;
    }
    char suffix[NAME_BYTES];
    bool input = n->op == OP_input;
    int len = snprintf(out, NAME_BYTES, "%c%d%s", input ? 'v' : 'x',
                       input ? p->k->node[e.ref].arg : (int32_t)p->k->node[e.ref].number,
                       row_suffix(p, &n->type, e.index, suffix));
    CHECK(len < NAME_BYTES - 8, "axis names too long");
    return out;
}

const char *row_operand(RowPrinter *p, Element e, char out[NAME_BYTES]) {
    char name[NAME_BYTES];
    row_name(p, e, name);
    bool narrow = !p->k->node[e.ref].wide || node_at(p->k->f, e.ref)->op == OP_const;
    snprintf(out, NAME_BYTES, p->loop && narrow ? "splat(%.110s)" : "%.120s", name);
    return out;
}

const char *row_total(RowPrinter *p, Ref reduce, int n, const Element *e) {
    const char *op = op_info[node_at(p->k->f, reduce)->op].name;
    Text t = {.arena = p->k->arena};
    char name[NAME_BYTES];
    if (node_at(p->k->f, reduce)->op == OP_sum) {
        for (int i = 0; i < n; i++)
            text_add(&t, "%s%s", i ? " + " : "", row_operand(p, e[i], name));
        return t.at;
    }
    for (int i = 1; i < n; i++)
        text_add(&t, "%c_%s(", p->loop ? 'v' : 's', op);
    text_add(&t, "%s", row_operand(p, e[0], name));
    for (int i = 1; i < n; i++)
        text_add(&t, ", %s)", row_operand(p, e[i], name));
    return t.at;
}

const char *row_add(int32_t offset, char out[NAME_BYTES]) {
    out[0] = 0;
    if (offset)
        snprintf(out, NAME_BYTES, "%d + ", offset);
    return out;
}

// From the nodes of a row kernel to sections and loops (phases.h).
//
// Reductions and stores happen in the first phase that can; what they need is found from there, backwards. A
// wide value that a later loop needs again is kept (in the output it is stored to anyway, else in scratch)
// when computing it again costs more than a store and a load. Invariant: no loop loads an input after an
// earlier loop stored an output of the same type, so outputs may lie in the place of inputs.
#include "codegen/phases.h"
#include <string.h>

static AxisKind axis_kind(const RowKernel *k, AxisId a) {
    return k->m->axes.at[a].kind;
}

static int32_t elements(const RowKernel *k, const Type *t, AxisKind kind) {
    int64_t n = 1;
    bool any = false;
    for (int i = 0; i < t->rank; i++)
        if (axis_kind(k, t->axis[i]) == kind) {
            n *= k->m->axes.at[t->axis[i]].size;
            any = true;
        }
    CHECK(n < INT32_MAX, "kernel %s: a row of %lld elements", k->f->name, (long long)n);
    return any || kind != AXIS_WIDE ? (int32_t)n : 0;
}

bool phases_has_rows(const RowKernel *k, const Type *t) {
    return t->rank > 0 && axis_kind(k, t->axis[0]) == AXIS_ROW;
}

bool phases_is_view(const RowKernel *k, Ref r) {
    const Node *n = node_at(k->f, r);
    if (n->op == OP_cast) {
        Dtype from = (Dtype)node_at(k->f, node_in(k->f, r, 0))->type.dtype;
        return from == n->type.dtype || (from == DT_BF16 && n->type.dtype == DT_F32);
    }
    if (n->op == OP_stop_grad)
        return true;
    return op_info[n->op].cls == CLASS_VIEW && n->op != OP_iota && n->op != OP_one_hot;
}

// ---- Coordinates along small axes.
typedef struct Coords {
    int32_t at[MAX_AXES + 1];
} Coords;

static void coords_set(const RowKernel *k, const Type *t, int32_t index, Coords *c) {
    for (int i = t->rank - 1; i >= 0; i--)
        if (axis_kind(k, t->axis[i]) == AXIS_SMALL) {
            int32_t size = k->m->axes.at[t->axis[i]].size;
            c->at[t->axis[i]] = index % size;
            index /= size;
        }
}

static int32_t coords_index(const RowKernel *k, const Type *t, const Coords *c) {
    int32_t index = 0;
    for (int i = 0; i < t->rank; i++)
        if (axis_kind(k, t->axis[i]) == AXIS_SMALL)
            index = index * k->m->axes.at[t->axis[i]].size + c->at[t->axis[i]];
    return index;
}

// Turns coordinates of a view into those of its operand; returns the operand's number.
static int view_step(const RowKernel *k, const Node *n, Coords *c) {
    if (n->op == OP_rename) {
        c->at[n->ax[0]] = c->at[n->ax[1]];
    } else if (n->op == OP_slice) {
        c->at[n->ax[0]] = n->k + (n->n_ax > 1 ? c->at[n->ax[1]] : 0);
    } else if (n->op == OP_concat) {
        int32_t at = c->at[n->ax[0]];
        for (int i = 0; i < n->n_in; i++) {
            AxisId part = n->ax[1 + i];
            int32_t size = part == AXIS_NONE ? 1 : k->m->axes.at[part].size;
            if (at < size) {
                if (part != AXIS_NONE)
                    c->at[part] = at;
                return i;
            }
            at -= size;
        }
    } else if (n->op == OP_split) {
        int32_t at = 0;
        for (int i = 1; i < n->n_ax; i++)
            at = at * k->m->axes.at[n->ax[i]].size + c->at[n->ax[i]];
        c->at[n->ax[0]] = at;
    } else if (n->op == OP_merge) {
        int32_t at = c->at[n->ax[n->n_ax - 1]];
        for (int i = n->n_ax - 2; i >= 0; i--) {
            c->at[n->ax[i]] = at % k->m->axes.at[n->ax[i]].size;
            at /= k->m->axes.at[n->ax[i]].size;
        }
    }
    return 0;
}

static Element resolve_at(const RowKernel *k, Ref r, Coords *c) {
    while (phases_is_view(k, r))
        r = node_in(k->f, r, view_step(k, node_at(k->f, r), c));
    return (Element){r, coords_index(k, &node_at(k->f, r)->type, c)};
}

Element phases_resolve(const RowKernel *k, Ref r, int32_t index) {
    Coords c;
    coords_set(k, &node_at(k->f, r)->type, index, &c);
    return resolve_at(k, r, &c);
}

Element phases_operand(const RowKernel *k, Ref r, int i, int32_t index) {
    Coords c;
    coords_set(k, &node_at(k->f, r)->type, index, &c);
    return resolve_at(k, node_in(k->f, r, i), &c);
}

int phases_reduced(const RowKernel *k, Ref r, int32_t index, Element **out) {
    const Type *t = &node_at(k->f, r)->type;
    Ref x = node_in(k->f, r, 0);
    int n = 0;
    *out = arena_alloc(k->arena, (size_t)k->node[x].small * sizeof **out);
    for (int32_t i = 0; i < k->node[x].small; i++) {
        Coords c;
        coords_set(k, &node_at(k->f, x)->type, i, &c);
        if (coords_index(k, t, &c) == index)
            (*out)[n++] = resolve_at(k, x, &c);
    }
    return n;
}

bool phases_column(const RowKernel *k, uint32_t output) {
    return k->f->n_row_axes && !phases_has_rows(k, &node_at(k->f, k->f->outputs.at[output].ref)->type);
}

// ---- What each node is.
static bool same_wide(const RowKernel *k, const Type *a, const Type *b) {
    AxisId x[MAX_RANK], y[MAX_RANK];
    int nx = 0, ny = 0;
    for (int i = 0; i < a->rank; i++)
        if (axis_kind(k, a->axis[i]) == AXIS_WIDE)
            x[nx++] = a->axis[i];
    for (int i = 0; i < b->rank; i++)
        if (axis_kind(k, b->axis[i]) == AXIS_WIDE)
            y[ny++] = b->axis[i];
    return nx == ny && !memcmp(x, y, (size_t)nx);
}

static void check_axes_small(const RowKernel *k, Ref r) {
    const Node *n = node_at(k->f, r);
    for (int i = 0; i < n->n_ax; i++)
        CHECK(n->ax[i] == AXIS_NONE || axis_kind(k, n->ax[i]) == AXIS_SMALL ||
                  (n->op == OP_rename && axis_kind(k, n->ax[i]) == AXIS_WIDE),
              "kernel %s: node %u: %s of axis %s inside of a kernel", k->f->name, r, op_info[n->op].name,
              k->m->axes.at[n->ax[i]].name);
}

static void check_reduce(const RowKernel *k, Ref r) {
    const Node *n = node_at(k->f, r);
    const Type *in = &node_at(k->f, node_in(k->f, r, 0))->type;
    int rows = 0;
    for (int i = 0; i < n->n_ax; i++)
        rows += axis_kind(k, n->ax[i]) == AXIS_ROW;
    AxisId all[MAX_RANK];
    CHECK(!rows || (rows == k->f->n_row_axes && type_rows(k->m, in, all) == rows && n->op == OP_sum),
          "kernel %s: node %u: %s over some of the rows", k->f->name, r, op_info[n->op].name);
    CHECK(!elements(k, &n->type, AXIS_WIDE) || same_wide(k, in, &n->type),
          "kernel %s: node %u: %s over one of several wide axes", k->f->name, r, op_info[n->op].name);
}

static void classify_node(RowKernel *k, Ref r) {
    const Node *n = node_at(k->f, r);
    RowNode *x = &k->node[r];
    x->wide = elements(k, &n->type, AXIS_WIDE);
    x->small = elements(k, &n->type, AXIS_SMALL);
    x->made_in = -1;
    x->arg = -1;
    x->once = !x->wide && !phases_has_rows(k, &n->type);
    OpClass cls = op_info[n->op].cls;
    CHECK(cls == CLASS_MAP || cls == CLASS_REDUCE || cls == CLASS_VIEW || n->op == OP_gather ||
              n->op == OP_input || n->op == OP_const || n->op == OP_stop_grad,
          "kernel %s: node %u: %s inside of a kernel", k->f->name, r, op_info[n->op].name);
    CHECK(n->type.dtype != DT_I32 || !x->wide, "kernel %s: node %u: integers along a wide axis", k->f->name,
          r);
    int first = n->op == OP_gather; // the table is not a value of the row
    for (int i = first; i < n->n_in; i++) {
        Ref in = node_in(k->f, r, i);
        CHECK(!k->node[in].column, "kernel %s: node %u uses a sum over the rows", k->f->name, r);
        x->phase = MAX_OF(x->phase, k->node[in].phase);
        x->once &= k->node[in].once;
        CHECK(cls == CLASS_REDUCE || n->op == OP_gather || !k->node[in].wide ||
                  (phases_is_view(k, r) ? k->node[in].wide == x->wide
                                        : same_wide(k, &node_at(k->f, in)->type, &n->type)),
              "kernel %s: node %u: %s of values with different wide axes", k->f->name, r,
              op_info[n->op].name);
    }
    if (cls == CLASS_VIEW && phases_is_view(k, r))
        check_axes_small(k, r);
    if (cls == CLASS_REDUCE) {
        check_reduce(k, r);
        Ref in = node_in(k->f, r, 0);
        x->column = phases_has_rows(k, &node_at(k->f, in)->type) && axis_kind(k, n->ax[0]) == AXIS_ROW;
        for (int i = 1; i < n->n_ax; i++)
            x->column |= axis_kind(k, n->ax[i]) == AXIS_ROW;
        if (k->node[in].wide && !x->wide) {
            x->once = false;
            x->phase += !x->column;
        }
    }
}

static void classify(RowKernel *k) {
    uint32_t number = 0;
    for (Ref r = 1; r < k->f->nodes.n; r++) {
        const Node *n = node_at(k->f, r);
        classify_node(k, r);
        if (n->op != OP_param && n->op != OP_input && n->op != OP_const)
            k->node[r].number = ++number;
        if (n->op == OP_input)
            k->node[r].arg = input_scalar(n) >= 0 ? input_scalar(n) : k->n_inputs++;
    }
    for (uint32_t i = 0; i < k->f->outputs.n; i++)
        k->node[k->f->outputs.at[i].ref].live = true;
    for (Ref r = k->f->nodes.n; r-- > 1;)
        for (int i = 0; k->node[r].live && i < node_at(k->f, r)->n_in; i++)
            k->node[node_in(k->f, r, i)].live = true;
    for (Ref r = 1; r < k->f->nodes.n; r++)
        if (k->node[r].live)
            k->n_sections = MAX_OF(k->n_sections, k->node[r].phase + 1);
}

// ---- Loops.
static void loop_add(RowKernel *k, int32_t phase, int32_t wide) {
    uint32_t at = 0;
    for (; at < k->loops.n; at++) {
        const RowLoop *l = &k->loops.at[at];
        if (l->phase == phase && l->wide == wide)
            return;
        if (l->phase > phase || (l->phase == phase && l->wide > wide))
            break;
    }
    RowLoop l = {phase, wide, arena_alloc(k->arena, k->f->nodes.n)};
    vec_push(k->arena, &k->loops, l);
    memmove(k->loops.at + at + 1, k->loops.at + at, (k->loops.n - 1 - at) * sizeof l);
    k->loops.at[at] = l;
}

// Cost of computing r again, in vector operations; values in one stamp count once.
static double cost_again(RowKernel *k, Ref r) {
    const RowNode *x = &k->node[r];
    const Node *n = node_at(k->f, r);
    if (!x->wide || k->stamp[r] == k->stamps)
        return 0;
    k->stamp[r] = k->stamps;
    if (n->op == OP_input)
        return x->small * (n->type.dtype == DT_BF16 ? 1.5 : 1.0);
    if (x->hold || n->op == OP_gather)
        return x->small;
    double cost = 0;
    if (op_info[n->op].cls == CLASS_REDUCE)
        cost = k->node[node_in(k->f, r, 0)].small;
    else if (!phases_is_view(k, r))
        cost = (double)op_info[n->op].flops * x->small;
    for (int i = 0; i < n->n_in; i++)
        cost += cost_again(k, node_in(k->f, r, i));
    return cost;
}

static int output_of(const RowKernel *k, Ref r) {
    for (uint32_t i = 0; i < k->f->outputs.n; i++)
        if (k->f->outputs.at[i].ref == r && !phases_column(k, i))
            return (int)i;
    return -1;
}

static int32_t padded(const RowNode *x) {
    return x->small * ((x->wide + PHASES_LANES - 1) / PHASES_LANES * PHASES_LANES);
}

static bool hold_in_scratch(RowKernel *k, Ref r) {
    RowNode *x = &k->node[r];
    if (((int64_t)k->scratch + padded(x)) * 4 > PHASES_SCRATCH)
        return false;
    x->hold = HOLD_SCRATCH;
    x->held_at = k->scratch;
    k->scratch += padded(x);
    return true;
}

static bool hold(RowKernel *k, Ref r) {
    RowNode *x = &k->node[r];
    if (x->hold)
        return true;
    int output = output_of(k, r);
    k->stamps++;
    double again = cost_again(k, r), elements_of = x->small;
    if (output >= 0 && again > 1.5 * elements_of) {
        x->hold = HOLD_OUTPUT;
        x->held_at = output;
        return true;
    }
    return again > 4 * elements_of && hold_in_scratch(k, r);
}

static void need(RowKernel *k, int loop, Ref r) {
    RowNode *x = &k->node[r];
    uint8_t *action = &k->loops.at[loop].action[r];
    const Node *n = node_at(k->f, r);
    if (!x->wide || *action)
        return;
    if (phases_is_view(k, r)) {
        *action = ACT_ALIAS;
    } else if (n->op == OP_input) {
        *action = ACT_LOAD;
    } else if (x->made_in >= 0 && hold(k, r)) {
        *action = ACT_RELOAD;
        return;
    } else {
        *action = ACT_CODE;
    }
    if (x->made_in < 0)
        x->made_in = (int16_t)loop;
    for (int i = n->op == OP_gather; i < n->n_in; i++)
        need(k, loop, node_in(k->f, r, i));
}

// The wide values at which loops end: operands of wide reductions and of sums over rows, outputs.
typedef void Sink(RowKernel *k, Ref r);

static void sink_loop(RowKernel *k, Ref r) {
    if (k->node[r].wide)
        loop_add(k, k->node[r].phase, k->node[r].wide);
}

static void sink_need(RowKernel *k, Ref r) {
    for (uint32_t i = 0; i < k->loops.n; i++)
        if (k->loops.at[i].phase == k->node[r].phase && k->loops.at[i].wide == k->node[r].wide)
            need(k, (int)i, r);
}

static void each_sink(RowKernel *k, int32_t phase, Sink *sink) {
    for (Ref r = 1; r < k->f->nodes.n; r++) {
        if (!k->node[r].live || op_info[node_at(k->f, r)->op].cls != CLASS_REDUCE)
            continue;
        Ref in = node_in(k->f, r, 0);
        if ((k->node[r].column || !k->node[r].wide) && (phase < 0 || k->node[in].phase == phase))
            sink(k, in);
    }
    for (uint32_t i = 0; i < k->f->outputs.n; i++) {
        Ref r = k->f->outputs.at[i].ref;
        if (!phases_column(k, i) && (phase < 0 || k->node[r].phase == phase))
            sink(k, r);
    }
}

// Inputs that may have been overwritten before a loop loads them are loaded early and kept.
static void protect_inputs(RowKernel *k, uint32_t output) {
    Ref y = k->f->outputs.at[output].ref;
    uint32_t stored = 0;
    while (k->loops.at[stored].phase != k->node[y].phase || k->loops.at[stored].wide != k->node[y].wide)
        stored++;
    for (Ref r = 1; r < k->f->nodes.n; r++) {
        RowNode *x = &k->node[r];
        if (node_at(k->f, r)->op != OP_input || x->made_in < 0 ||
            !type_same(&node_at(k->f, r)->type, &node_at(k->f, y)->type))
            continue;
        bool late = false;
        for (uint32_t l = stored + 1; l < k->loops.n; l++)
            late |= k->loops.at[l].action[r] == ACT_LOAD;
        if (!late)
            continue;
        if (x->made_in > (int)stored) {
            x->made_in = (int16_t)stored;
            k->loops.at[stored].action[r] = ACT_LOAD;
        }
        CHECK(hold_in_scratch(k, r), "kernel %s: rows too long", k->f->name);
        for (uint32_t l = (uint32_t)x->made_in + 1; l < k->loops.n; l++)
            if (k->loops.at[l].action[r] == ACT_LOAD)
                k->loops.at[l].action[r] = ACT_RELOAD;
    }
}

static void count_facts(RowKernel *k) {
    for (Ref r = 1; r < k->f->nodes.n; r++) {
        const Node *n = node_at(k->f, r);
        const RowNode *x = &k->node[r];
        double all = (double)x->small * MAX_OF(x->wide, 1);
        if ((n->op == OP_input && x->live && phases_has_rows(k, &n->type)) || n->op == OP_gather)
            k->read_bytes += all * (double)dtype_bytes((Dtype)n->type.dtype);
        if (!x->wide || op_info[n->op].cls != CLASS_MAP)
            k->flops += op_info[n->op].cls == CLASS_MAP && x->live ? all * (double)op_info[n->op].flops : 0;
        for (uint32_t l = 0; x->wide && op_info[n->op].cls == CLASS_MAP && l < k->loops.n; l++)
            k->flops += k->loops.at[l].action[r] == ACT_CODE ? all * (double)op_info[n->op].flops : 0;
        if (op_info[n->op].cls == CLASS_REDUCE && x->live) {
            const RowNode *in = &k->node[node_in(k->f, r, 0)];
            k->flops += (double)in->small * MAX_OF(in->wide, 1);
        }
    }
    for (uint32_t i = 0; i < k->f->outputs.n; i++) {
        Ref r = k->f->outputs.at[i].ref;
        if (!phases_column(k, i))
            k->write_bytes += (double)k->node[r].small * MAX_OF(k->node[r].wide, 1) *
                              (double)dtype_bytes((Dtype)node_at(k->f, r)->type.dtype);
    }
}

RowKernel *phases_make(Arena *a, const Module *m, const Func *f) {
    RowKernel *k = arena_alloc(a, sizeof *k);
    k->arena = a;
    k->m = m;
    k->f = f;
    k->node = arena_alloc(a, f->nodes.n * sizeof *k->node);
    k->stamp = arena_alloc(a, f->nodes.n * sizeof *k->stamp);
    classify(k);
    each_sink(k, -1, sink_loop);
    for (int32_t phase = 0; phase < k->n_sections; phase++)
        each_sink(k, phase, sink_need);
    for (uint32_t i = 0; i < f->outputs.n; i++) {
        const Node *n = node_at(f, f->outputs.at[i].ref);
        CHECK(!phases_column(k, i) || k->node[phases_resolve(k, f->outputs.at[i].ref, 0).ref].column,
              "kernel %s: output %s is the same for each row", f->name, f->outputs.at[i].name);
        if (!phases_column(k, i) && k->node[f->outputs.at[i].ref].wide && n->type.dtype != DT_I32)
            protect_inputs(k, i);
    }
    count_facts(k);
    return k;
}

// "update": clipping and AdamW over the flat arenas, seen as rows of PLAN_ROW elements (docs: the recipe of
// the paper).
//
//   norm = root of the sum of squares of all gradients;  c = min(1, clip / (norm + 1e-6));  g = c grad
//   p = p (1 - lr wd);  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2
//   p = p - lr/(1-b1^k) m / (sqrt(v)/sqrt(1-b2^k) + eps)
// The runtime writes lr, bias1 = 1-b1^k, bias2 = 1-b2^k. Where the norm is not finite everything keeps its
// value and ok is 0.
#include "passes/passes.h"

typedef struct Part {
    const char *name; // "decay", "plain"
    const char *axis; // its row axis
    size_t elems;
    double weight_decay;
    Ref grads;
} Part;

typedef struct Update {
    Builder b;
    const PassOptions *o;
    Ref lr, bias1, bias2, scale, ok;
} Update;

static Type flat_type(Update *u, const Part *p) {
    AxisId axes[] = {module_axis(u->b.m, p->axis, AXIS_ROW, (int32_t)(p->elems / PLAN_ROW)),
                     module_axis(u->b.m, "_z", AXIS_WIDE, PLAN_ROW)};
    return type_make(u->b.m, DT_F32, 2, axes);
}

static Ref flat_input(Update *u, const Part *p, const char *arena) {
    return ir_input(&u->b, arena_format(u->b.m->arena, "%s.%s", arena, p->name), flat_type(u, p));
}

static void output(Update *u, const char *arena, const char *part, Ref r) {
    const char *name = part ? arena_format(u->b.m->arena, "%s.%s", arena, part) : arena;
    vec_push(u->b.m->arena, &u->b.f->outputs, ((NamedRef){name, r}));
}

static void adamw(Update *u, const Part *p) {
    Builder *b = &u->b;
    const PassOptions *o = u->o;
    Ref w = flat_input(u, p, "params"), m = flat_input(u, p, "exp_avg"), v = flat_input(u, p, "exp_avg_sq");
    Ref g = ir_mul(b, p->grads, u->scale);
    Ref m2 = ir_add(b, ir_mul(b, m, ir_const(b, o->beta1)), ir_mul(b, g, ir_const(b, 1 - o->beta1)));
    Ref v2 =
        ir_add(b, ir_mul(b, v, ir_const(b, o->beta2)), ir_mul(b, ir_mul(b, g, g), ir_const(b, 1 - o->beta2)));
    Ref keep = ir_sub(b, ir_const(b, 1), ir_mul(b, u->lr, ir_const(b, p->weight_decay)));
    Ref root = ir_add(b, ir_mul(b, ir_sqrt(b, v2), ir_rsqrt(b, u->bias2)), ir_const(b, o->eps));
    Ref step = ir_mul(b, ir_div(b, u->lr, u->bias1), ir_div(b, m2, root));
    Ref w2 = ir_select(b, u->ok, ir_sub(b, ir_mul(b, w, keep), step), w);
    output(u, "params", p->name, w2);
    output(u, "exp_avg", p->name, ir_select(b, u->ok, m2, m));
    output(u, "exp_avg_sq", p->name, ir_select(b, u->ok, v2, v));
    if (o->compute == DT_BF16)
        output(u, "copies", p->name, ir_cast(b, w2, DT_BF16));
}

void pass_optimizer(Module *m, const PassOptions *o) {
    if (!o->train)
        return;
    ParamLayout layout = param_layout(m);
    Part parts[] = {{"decay", "_decay", layout.decay_elems, o->weight_decay, 0},
                    {"plain", "_plain", layout.trained_elems - layout.decay_elems, 0, 0}};
    Update u = {.b = {.m = m, .f = module_func(m, "update"), .layer = -1}, .o = o};
    Builder *b = &u.b;
    Ref squares = 0;
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        if (!parts[i].elems)
            continue;
        Ref g = parts[i].grads = flat_input(&u, &parts[i], "grads");
        Type t = node_at(b->f, g)->type;
        Ref sum = ir_reduce(b, OP_sum, ir_mul(b, g, g), 1, t.axis + 1);
        sum = ir_reduce(b, OP_sum, sum, 1, t.axis);
        squares = squares ? ir_add(b, squares, sum) : sum;
    }
    u.lr = ir_input(b, "lr", (Type){.dtype = DT_F32});
    u.bias1 = ir_input(b, "bias1", (Type){.dtype = DT_F32});
    u.bias2 = ir_input(b, "bias2", (Type){.dtype = DT_F32});
    Ref norm = ir_sqrt(b, squares);
    u.ok = ir_lt(b, norm, ir_const(b, 3e38)); // false for infinities and for what is not a number
    u.scale = ir_min(b, ir_const(b, 1), ir_div(b, ir_const(b, o->clip), ir_add(b, norm, ir_const(b, 1e-6))));
    for (size_t i = 0; i < COUNT_OF(parts); i++)
        if (parts[i].elems)
            adamw(&u, &parts[i]);
    output(&u, "grad_norm", NULL, norm);
    output(&u, "ok", NULL, u.ok);
}

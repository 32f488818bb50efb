// The fused functions become programs: buffers, steps, parameters, inputs and outputs by name.
//
// Each program is one walk over its function in order: views are arithmetic on places, every other node emits
// its steps into the places that plan_pins.c decided or into new buffers of the acts arena, whose offsets
// memory.c finds at the end. Inputs, constants and parameters are shared by the programs.
#include "passes/planner.h"
#include <string.h>

// ---- Parameters.
static size_t param_elems(const Module *m, int32_t i) {
    return (size_t)type_count(m, &m->params.at[i].type);
}

static const char *param_loc(const Planner *p, const Param *q) {
    return q->loc.line[0]
               ? arena_format(p->plan->arena, "%s:%u", p->m->files.at[q->loc.file[0]], q->loc.line[0])
               : "";
}

static void plan_param(Planner *p, int32_t i) {
    const Param *q = &p->m->params.at[i];
    Arena *a = p->plan->arena;
    size_t at = p->layout.offset[i];
    int64_t n = (int64_t)param_elems(p->m, i);
    PlanParam out = {.name = q->name,
                     .rank = q->file.rank,
                     .init = q->init,
                     .decay = q->decay,
                     .trained = q->trained,
                     .owner = q->owner,
                     .role = q->role,
                     .loc = param_loc(p, q),
                     .copy_buffer = -1,
                     .grad_buffer = -1};
    out.buffer = buffer_new(p, q->name, ARENA_PARAMS, DT_F32, at * 4, n);
    if (p->plan->compute == DT_BF16)
        out.copy_buffer =
            buffer_new(p, arena_format(a, "%s:bf16", q->name), ARENA_COPIES, DT_BF16, at * 2, n);
    if (q->trained)
        out.grad_buffer = buffer_new(p, arena_format(a, "grad.%s", q->name), ARENA_GRADS, DT_F32, at * 4, n);
    for (int j = 0; j < q->file.rank; j++) {
        out.shape[j] = axis_size(p->m, q->file.axis[j]);
        out.axes[j] = p->m->axes.at[q->file.axis[j]].name;
        out.order[j] = (int8_t)type_axis(&q->file, q->type.axis[j]);
    }
    vec_push(a, &p->plan->params, out);
}

static void plan_params(Planner *p) {
    Plan *plan = p->plan;
    p->layout = param_layout(p->m);
    plan->decay_elems = p->layout.decay_elems;
    plan->trained_elems = p->layout.trained_elems;
    plan->arena_bytes[ARENA_PARAMS] = p->layout.total_elems * 4;
    if (plan->compute == DT_BF16)
        plan->arena_bytes[ARENA_COPIES] = p->layout.total_elems * 2;
    if (p->o->train || p->o->want_grads)
        plan->arena_bytes[ARENA_GRADS] = p->layout.trained_elems * 4;
    if (p->o->train)
        plan->arena_bytes[ARENA_EXP_AVG] = plan->arena_bytes[ARENA_EXP_AVG_SQ] = p->layout.trained_elems * 4;
    for (uint32_t i = 0; i < p->m->params.n; i++)
        plan_param(p, (int32_t)i);
}

// ---- Places that exist before a program runs.
static size_t arena_push(Plan *plan, ArenaId arena, size_t bytes) {
    size_t at = plan->arena_bytes[arena];
    plan->arena_bytes[arena] = (at + bytes + PLAN_ALIGN - 1) / PLAN_ALIGN * PLAN_ALIGN;
    return at;
}

// "exp_avg.decay" -> its arena and first element; false for other names.
static bool flat_name(const Planner *p, const char *name, ArenaId *arena, size_t *first) {
    static const struct {
        const char *name;
        ArenaId arena;
    } arenas[] = {{"params.", ARENA_PARAMS},
                  {"copies.", ARENA_COPIES},
                  {"grads.", ARENA_GRADS},
                  {"exp_avg.", ARENA_EXP_AVG},
                  {"exp_avg_sq.", ARENA_EXP_AVG_SQ}};
    if (strcmp(p->f->name, "update"))
        return false;
    for (size_t i = 0; i < COUNT_OF(arenas); i++) {
        size_t n = strlen(arenas[i].name);
        if (strncmp(name, arenas[i].name, n))
            continue;
        *arena = arenas[i].arena;
        *first = !strcmp(name + n, "plain") ? p->layout.decay_elems : 0;
        return !strcmp(name + n, "plain") || !strcmp(name + n, "decay");
    }
    return false;
}

static Place flat_place(Planner *p, const char *name, const Type *t, ArenaId arena, size_t first) {
    int64_t n = type_count(p->m, t);
    bool plain = strstr(name, ".plain") != NULL; // without decayed weights both parts begin at 0
    size_t part = plain ? p->layout.trained_elems - p->layout.decay_elems : p->layout.decay_elems;
    CHECK((size_t)n == part, "%s has %lld elements, the arena %zu", name, (long long)n, part);
    size_t at = first * dtype_bytes((Dtype)t->dtype);
    for (uint32_t i = 0; i < p->plan->buffers.n; i++) // input and output of one name are one place
        if (!strcmp(p->plan->buffers.at[i].name, name))
            return place_dense(p->m, t, (int32_t)i);
    return place_dense(p->m, t, buffer_new(p, name, arena, (Dtype)t->dtype, at, n));
}

static PlanIo *io_add(Planner *p, const char *name, const Type *t, bool output) {
    int64_t n = type_count(p->m, t);
    Dtype dtype = (Dtype)t->dtype;
    int32_t buffer = buffer_new(p, name, ARENA_IO, dtype, 0, n);
    p->plan->buffers.at[buffer].offset = arena_push(p->plan, ARENA_IO, (size_t)n * dtype_bytes(dtype));
    PlanIo io = {
        .name = name, .program = output ? p->program : -1, .dtype = dtype, .rank = t->rank, .output = output};
    Place at = place_dense(p->m, t, buffer);
    PlanView v = {.buffer = buffer};
    for (int i = 0; i < t->rank; i++) {
        io.shape[i] = axis_size(p->m, t->axis[i]);
        if (i < PLAN_MAX_ROWS)
            v.stride[i] = at.stride[i];
    }
    io.view = (int32_t)p->plan->views.n;
    vec_push(p->plan->arena, &p->plan->views, v);
    vec_push(p->plan->arena, &p->plan->io, io);
    return &p->plan->io.at[p->plan->io.n - 1];
}

static Place io_place(const Planner *p, const PlanIo *io, const Type *t) {
    return place_dense(p->m, t, p->plan->views.at[io->view].buffer);
}

static Place input_place(Planner *p, const Node *n) {
    ArenaId arena;
    size_t first;
    if (flat_name(p, n->name, &arena, &first))
        return flat_place(p, n->name, &n->type, arena, first);
    for (uint32_t i = 0; i < p->plan->io.n; i++) {
        const PlanIo *io = &p->plan->io.at[i];
        if (io->output || strcmp(io->name, n->name))
            continue;
        bool same = io->rank == n->type.rank && io->dtype == (Dtype)n->type.dtype;
        for (int j = 0; same && j < io->rank; j++)
            same = io->shape[j] == axis_size(p->m, n->type.axis[j]);
        CHECK(same, "input %s has two types", n->name);
        return io_place(p, io, &n->type);
    }
    return io_place(p, io_add(p, n->name, &n->type, false), &n->type);
}

// ---- Constants: evaluated once in double; equal tables are one.
static const double *no_param(void *ctx, int32_t param) {
    (void)ctx;
    (void)param;
    return NULL;
}

static const double *no_input(void *ctx, const char *name) {
    (void)ctx;
    (void)name;
    return NULL;
}

static Status constant_place(Planner *p, Ref r, Place *out) {
    Arena *a = p->m->arena;
    const Type *t = &node_at(p->f, r)->type;
    Func one = *p->f;
    memset(&one.outputs, 0, sizeof one.outputs);
    memset(&one.marks, 0, sizeof one.marks);
    vec_push(a, &one.outputs, ((NamedRef){"value", r}));
    Env env = {NULL, no_param, no_input};
    Tensor value;
    TRY(interp_run(a, p->m, func_clone_live(p->m, &one, false), &env, false, &value));
    CHECK(t->dtype != DT_I32, "a constant of integers");
    int64_t n = type_count(p->m, t);
    float *at = arena_alloc(a, (size_t)n * sizeof *at);
    for (int64_t i = 0; i < n; i++)
        at[i] = (float)value.at[i];
    for (uint32_t i = 0; i < p->plan->consts.n; i++) {
        const PlanConst *c = &p->plan->consts.at[i];
        if (c->n == n && p->plan->buffers.at[c->buffer].dtype == (Dtype)t->dtype &&
            !memcmp(c->at, at, (size_t)n * sizeof *at)) {
            *out = place_dense(p->m, t, c->buffer);
            return STATUS_OK;
        }
    }
    size_t bytes = (size_t)n * dtype_bytes((Dtype)t->dtype);
    int32_t b = buffer_new(p, arena_format(a, "const.%u", p->plan->consts.n), ARENA_CONST, (Dtype)t->dtype,
                           arena_push(p->plan, ARENA_CONST, bytes), n);
    vec_push(p->plan->arena, &p->plan->consts, ((PlanConst){b, at, n}));
    *out = place_dense(p->m, t, b);
    return STATUS_OK;
}

static void find_constants(Planner *p) {
    for (Ref r = 1; r < p->f->nodes.n; r++) {
        const Node *n = node_at(p->f, r);
        OpClass c = op_info[n->op].cls;
        bool leaf = n->op == OP_const || n->op == OP_iota;
        bool map = c == CLASS_MAP || c == CLASS_REDUCE || c == CLASS_VIEW || n->op == OP_constant ||
                   n->op == OP_stop_grad;
        p->constant[r] = leaf || (map && n->n_in);
        for (int i = 0; i < n->n_in && p->constant[r]; i++)
            p->constant[r] = p->constant[node_in(p->f, r, i)];
    }
}

// ---- Outputs.
static PlanTarget output_target(Planner *p, const NamedRef *out) {
    const Type *t = &node_at(p->f, out->ref)->type;
    ArenaId arena;
    size_t first;
    PlanTarget target = {.value = {*t, place_none()}, .acc = ACC_NO};
    if (!strncmp(out->name, "grad.", 5)) {
        int32_t i = module_param(p->m, out->name + 5);
        CHECK(i >= 0 && p->plan->params.at[i].grad_buffer >= 0, "output %s: no such trained parameter",
              out->name);
        target.value.at = place_dense(p->m, t, p->plan->params.at[i].grad_buffer);
        target.acc = ACC_MICRO;
    } else if (flat_name(p, out->name, &arena, &first)) {
        target.value.at = flat_place(p, out->name, t, arena, first);
    } else {
        target.value.at = io_place(p, io_add(p, out->name, t, true), t);
    }
    return target;
}

// An output that its producer could not write to its place.
static void emit_output(Planner *p, uint32_t i) {
    const PlanTarget *t = &p->target[i];
    Ref r = p->f->outputs.at[i].ref;
    if (place_same(p, &t->value.type, &p->at[r], &t->value.at))
        return;
    Value v = value_at(p, r);
    if (t->acc == ACC_NO) {
        emit_copy(p, &v, &t->value);
        return;
    }
    v = value_dense(p, &v);
    emit_finish(p, v.at.buffer, v.at.offset, 1, &t->value.at, type_count(p->m, &v.type), t->acc);
}

// ---- Nodes.
// The launch scalar that operand i of a call is for; -1: an argument in memory.
static int operand_scalar(const Planner *p, const Node *call, int i) {
    const Func *callee = p->m->funcs.at[call->k];
    for (Ref r = 1; r < callee->nodes.n; r++)
        if (callee->nodes.at[r].op == OP_input && i-- == 0)
            return input_scalar(&callee->nodes.at[r]);
    CHECK(false, "%s: more operands than %s has inputs", p->f->name, callee->name);
}

static void emit_call(Planner *p, Ref r) {
    const Node *n = node_at(p->f, r);
    const Func *callee = p->m->funcs.at[n->k];
    Value in[UINT8_MAX + 1], out[UINT8_MAX + 1];
    Accumulate acc[UINT8_MAX + 1];
    float scalars[UINT8_MAX + 1] = {0};
    LaunchSpec l = {.f = callee, .n_out = n->n_out, .in = in, .out = out, .acc = acc, .scalars = scalars};
    for (int i = 0; i < n->n_in; i++) {
        Ref x = node_in(p->f, r, i);
        int scalar = operand_scalar(p, n, i);
        if (scalar < 0) {
            in[l.n_in++] = value_at(p, x);
            continue;
        }
        CHECK(node_at(p->f, x)->op == OP_const && scalar <= UINT8_MAX, "%s: a launch scalar is no number",
              callee->name);
        scalars[scalar] = (float)node_at(p->f, x)->f;
        l.n_scalars = MAX_OF(l.n_scalars, scalar + 1);
    }
    for (int i = 0; i < n->n_out; i++) {
        out[i] = value_result(p, r + (Ref)i);
        acc[i] = p->acc[r + (Ref)i];
    }
    if (p->kernel_of[n->k] < 0)
        p->kernel_of[n->k] = kernel_row(p, callee);
    l.kernel = p->kernel_of[n->k];
    emit_launch(p, &l);
}

static void emit_concat(Planner *p, Ref r) {
    const Node *n = node_at(p->f, r);
    Place adjacent;
    if (p->at[r].buffer < 0 && concat_adjacent(p, r, &adjacent)) {
        p->at[r] = adjacent;
        return;
    }
    Value whole = value_result(p, r);
    for (int i = 0; i < n->n_in; i++) {
        Value part = value_at(p, node_in(p->f, r, i)), to = {part.type, concat_part(p, r, i, &whole.at)};
        if (!place_same(p, &part.type, &part.at, &to.at))
            emit_copy(p, &part, &to);
    }
}

// The bf16 copy of a parameter, or of parameters side by side, lies at the same element in another arena.
static bool cast_of_param(Planner *p, const Place *x, Dtype to, Place *out) {
    if (to != DT_BF16 || p->plan->buffers.at[x->buffer].arena != ARENA_PARAMS || p->plan->compute != DT_BF16)
        return false;
    for (uint32_t i = 0; i < p->plan->params.n; i++)
        if (p->plan->params.at[i].buffer == x->buffer) {
            *out = *x;
            out->buffer = p->plan->params.at[i].copy_buffer;
            return true;
        }
    return false;
}

static void emit_view(Planner *p, Ref r) {
    const Node *n = node_at(p->f, r);
    Value x = value_at(p, node_in(p->f, r, 0));
    if (n->op == OP_cast) {
        if (p->at[r].buffer < 0 && cast_of_param(p, &x.at, (Dtype)n->type.dtype, &p->at[r]))
            return;
        Value y = value_result(p, r);
        emit_copy(p, &x, &y);
        return;
    }
    if (!view_forward(p->m, n, &x.type, &x.at, &p->at[r])) {
        x = value_dense(p, &x);
        bool fits = view_forward(p->m, n, &x.type, &x.at, &p->at[r]);
        CHECK(fits, "%s: %s is no view", p->f->name, op_info[n->op].name);
    }
}

static Status emit_node(Planner *p, Ref r) {
    const Node *n = node_at(p->f, r);
    p->origin = n;
    if (p->constant[r])
        return p->at[r].buffer < 0 && p->uses[r] ? constant_place(p, r, &p->at[r]) : STATUS_OK;
    switch (n->op) {
    case OP_out:
        break;
    case OP_input:
        p->at[r] = input_place(p, n);
        break;
    case OP_param:
        p->at[r] = place_dense(p->m, &n->type, p->plan->params.at[n->k].buffer);
        break;
    case OP_call:
        emit_call(p, r);
        break;
    case OP_concat:
        emit_concat(p, r);
        break;
    case OP_dot: {
        Value x = value_at(p, node_in(p->f, r, 0)), y = value_at(p, node_in(p->f, r, 1)),
              out = value_result(p, r);
        emit_dot(p, &x, &y, &out, p->acc[r]);
        break;
    }
    case OP_attention:
    case OP_attention_grad:
        emit_attention(p, r);
        break;
    case OP_scatter_sum:
        emit_scatter(p, r);
        break;
    case OP_head_loss:
    case OP_head_loss_grad:
        emit_head(p, r);
        break;
    default:
        CHECK(op_info[n->op].cls == CLASS_VIEW || n->op == OP_stop_grad, "%s: %s is in no kernel", p->f->name,
              op_info[n->op].name);
        emit_view(p, r);
    }
    return STATUS_OK;
}

// Constants are evaluated where something that is none reads them: uses among constants do not count, nor
// launch scalars.
static void count_uses(Planner *p) {
    for (Ref r = 1; r < p->f->nodes.n; r++)
        for (int i = 0; !p->constant[r] && i < node_at(p->f, r)->n_in; i++)
            if (node_at(p->f, r)->op != OP_call || operand_scalar(p, node_at(p->f, r), i) < 0)
                p->uses[node_in(p->f, r, i)]++;
    for (uint32_t i = 0; i < p->f->outputs.n; i++)
        p->uses[p->f->outputs.at[i].ref]++;
}

// ---- Input ranges: ids are rows of a table.
static const Node *through_views(const Func *f, Ref r) {
    while (op_info[node_at(f, r)->op].cls == CLASS_VIEW && node_at(f, r)->n_in == 1)
        r = node_in(f, r, 0);
    return node_at(f, r);
}

static void limit_input(Planner *p, Ref ids, int64_t low, int64_t limit) {
    const Node *n = through_views(p->f, ids);
    for (uint32_t i = 0; n->op == OP_input && i < p->plan->io.n; i++) {
        PlanIo *io = &p->plan->io.at[i];
        if (io->output || strcmp(io->name, n->name))
            continue;
        io->low = io->limit ? MAX_OF(io->low, low) : low;
        io->limit = io->limit ? MIN_OF(io->limit, limit) : limit;
    }
}

static void limit_gathers(Planner *p, Ref call) {
    const Func *k = p->m->funcs.at[node_at(p->f, call)->k];
    for (Ref r = 1; r < k->nodes.n; r++) {
        if (k->nodes.at[r].op != OP_gather)
            continue;
        const Node *ids = through_views(k, node_in(k, r, 1));
        int64_t rows = axis_size(p->m, node_at(k, node_in(k, r, 0))->type.axis[0]);
        int at = 0;
        for (Ref q = 1; q < k->nodes.n && &k->nodes.at[q] != ids; q++)
            at += k->nodes.at[q].op == OP_input;
        if (ids->op == OP_input)
            limit_input(p, node_in(p->f, call, at), 0, rows);
    }
}

static void limit_inputs(Planner *p) {
    for (Ref r = 1; r < p->f->nodes.n; r++) {
        const Node *n = node_at(p->f, r);
        if (n->op == OP_call)
            limit_gathers(p, r);
        else if (n->op == OP_scatter_sum)
            limit_input(p, node_in(p->f, r, 1), 0, axis_size(p->m, n->type.axis[0]));
        else if (op_info[n->op].cls == CLASS_HEAD)
            limit_input(p, node_in(p->f, r, 2), INT32_MIN,
                        axis_size(p->m, node_at(p->f, node_in(p->f, r, 1))->type.axis[0]));
    }
}

// ---- Programs.
static Status plan_program_add(Planner *p, const Func *f) {
    Arena *a = p->m->arena;
    uint32_t n = f->nodes.n;
    p->f = f;
    p->program = (int32_t)p->plan->programs.n;
    p->at = arena_alloc(a, n * sizeof *p->at);
    p->acc = arena_alloc(a, n * sizeof *p->acc);
    p->uses = arena_alloc(a, n * sizeof *p->uses);
    p->constant = arena_alloc(a, n * sizeof *p->constant);
    p->target = arena_alloc(a, f->outputs.n * sizeof *p->target);
    p->sort_ids = p->sort_order = -1;
    p->in_place = (InPlaceList){0};
    for (uint32_t i = 0; i < n; i++)
        p->at[i] = place_none();
    find_constants(p);
    count_uses(p);
    PlanProgram program = {.name = f->name, .step0 = (int32_t)p->plan->steps.n};
    for (uint32_t i = 0; i < f->outputs.n; i++)
        p->target[i] = output_target(p, &f->outputs.at[i]);
    pins_decide(p);
    for (Ref r = 1; r < n; r++) {
        TRY(emit_node(p, r));
        for (uint32_t i = 0; i < f->outputs.n; i++) { // results of one node are ready together
            if (r == node_base(f, f->outputs.at[i].ref))
                emit_output(p, i);
        }
    }
    limit_inputs(p);
    program.n_steps = (int32_t)p->plan->steps.n - program.step0;
    vec_push(p->plan->arena, &p->plan->programs, program);
    memory_place(p->plan, p->program, &p->in_place);
    return STATUS_OK;
}

static int32_t named_axis(const Module *m, const char *name) {
    AxisId a = module_find_axis(m, name);
    return a == AXIS_NONE ? 1 : m->axes.at[a].size;
}

static void count_traffic(Plan *plan) {
    int32_t micro = plan_program(plan, "micro");
    const PlanProgram *q = micro < 0 ? NULL : &plan->programs.at[micro];
    double tokens = (double)(plan->batch * plan->seq);
    for (int32_t i = q ? q->step0 : 0; q && i < q->step0 + q->n_steps; i++) {
        const PlanStep *s = &plan->steps.at[i];
        if (s->kind == STEP_GEMM)
            plan->flops_per_token += s->flops / tokens;
        if (s->kind != STEP_LAUNCH)
            continue;
        KernelKind k = plan->kernels.at[s->kernel].kind;
        if (k == KERNEL_ATTN || k == KERNEL_ATTN_GRAD)
            plan->flops_per_token += s->flops / tokens;
        else
            plan->row_bytes_per_token += s->bytes / tokens;
    }
}

Status plan_build(Module *m, const PassOptions *o, Plan **out) {
    static const char *const names[] = {"micro", "update", "eval"};
    Plan *plan = arena_alloc(m->arena, sizeof *plan);
    Planner p = {.m = m, .o = o, .plan = plan};
    plan->arena = m->arena;
    plan->model = m->model;
    plan->compute = o->compute;
    plan->batch = named_axis(m, "b");
    plan->seq = named_axis(m, "s");
    plan->n_layer = m->n_layer;
    p.kernel_of = arena_alloc(m->arena, m->funcs.n * sizeof *p.kernel_of);
    for (uint32_t i = 0; i < m->funcs.n; i++)
        p.kernel_of[i] = -1;
    plan_params(&p);
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const Func *f = module_find_func(m, names[i]);
        if (f)
            TRY(plan_program_add(&p, f));
    }
    count_traffic(plan);
    *out = plan;
    return STATUS_OK;
}

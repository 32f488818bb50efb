// probe: one forward and backward on given parameters and tokens, then optimizer steps; every number into one
// file.
#include "frontend/cli/cli.h"
#include "runtime/checkpoint.h"
#include "runtime/npy.h"
#include "runtime/safetensors.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct Record { // one tensor of the output file
    StEntry entry;
    float *data;
} Record;

typedef struct Probe {
    const Options *o;
    Built built;
    const Plan *plan;
    Exec *exec;
    int32_t micro, update;
    int32_t *tokens; // [batch, seq+1]
    int64_t batch, seq;
    Record *records;
    int32_t n_records;
} Probe;

static bool wanted(const Options *o, const char *what) {
    if (!o->what)
        return true;
    size_t n = strlen(what);
    for (const char *at = o->what; (at = strstr(at, what)); at += n)
        if ((at == o->what || at[-1] == ',') && (!at[n] || at[n] == ','))
            return true;
    return false;
}

static Status check_what(const Options *o) {
    static const char *const known[] = {"loss", "logits", "hidden", "grad", "param"};
    char list[256], *save;
    snprintf(list, sizeof list, "%s", o->what ? o->what : "");
    if (o->what && !list[strspn(list, ",")])
        return status_make(EXIT_REQUEST, "--what is empty: choose from loss, logits, hidden, grad, param");
    for (char *w = strtok_r(list, ",", &save); w; w = strtok_r(NULL, ",", &save)) {
        size_t i = 0;
        while (i < COUNT_OF(known) && strcmp(known[i], w))
            i++;
        if (i == COUNT_OF(known))
            return status_make(EXIT_REQUEST, "--what %s: choose from loss, logits, hidden, grad, param", w);
    }
    return STATUS_OK;
}

static int64_t shape_count(int32_t rank, const int64_t *shape) {
    int64_t n = 1;
    for (int32_t i = 0; i < rank; i++)
        n *= shape[i];
    return n;
}

static Status record_new(Probe *p, const char *name, int32_t rank, const int64_t *shape, float **data) {
    int64_t n = shape_count(rank, shape);
    Record *grown = mem_realloc(p->records, (size_t)(p->n_records + 1) * sizeof *grown);
    if (!grown)
        return status_memory("the results", 0);
    p->records = grown;
    Record *r = &grown[p->n_records];
    *r = (Record){.entry = {.name = name, .dtype = ST_F32, .rank = rank}};
    memcpy(r->entry.shape, shape, (size_t)rank * sizeof *shape);
    r->data = mem_alloc((size_t)n * sizeof *r->data);
    if (!r->data)
        return status_memory(name, (size_t)n * 4);
    p->n_records++;
    *data = r->data;
    return STATUS_OK;
}

// ---- Run

static Status write_tokens(Probe *p) {
    int64_t n = p->batch * p->seq;
    int32_t *ids = mem_alloc((size_t)(2 * n) * sizeof *ids), *targets = ids + n;
    if (!ids)
        return status_memory("tokens", (size_t)n * 8);
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t t = 0; t < p->seq; t++) {
            ids[b * p->seq + t] = p->tokens[b * (p->seq + 1) + t];
            targets[b * p->seq + t] = p->tokens[b * (p->seq + 1) + t + 1];
        }
    float inv = 1.0f / (float)n;
    Status s = exec_write(p->exec, "ids", p->micro, ids, n);
    if (!s.code)
        s = exec_write(p->exec, "targets", p->micro, targets, n);
    if (!s.code)
        s = exec_write(p->exec, "inv_tokens", p->micro, &inv, 1);
    mem_free(ids);
    return s;
}

static Status forward_backward(Probe *p, float *loss) {
    char first[256];
    TRY(exec_run(p->exec, p->micro, 0));
    TRY(exec_read(p->exec, "loss", p->micro, loss, 1));
    if (isfinite(*loss))
        return STATUS_OK;
    TRY(exec_find_nonfinite(p->exec, p->micro, first, sizeof first));
    return status_make(EXIT_WORK, "the loss is not finite; the first tensor that is not: %s",
                       first[0] ? first : "not found among stored tensors");
}

// Outputs of the plan: logits, depth states. States of several streams are one row, stream outermost.
static Status read_outputs(Probe *p) {
    for (uint32_t i = 0; i < p->plan->io.n; i++) {
        const PlanIo *io = &p->plan->io.at[i];
        bool logits = !strcmp(io->name, "logits"), hidden = !strncmp(io->name, "hidden.", 7);
        if (!io->output || io->program != p->micro ||
            !((logits && wanted(p->o, "logits")) || (hidden && wanted(p->o, "hidden"))))
            continue;
        int64_t n = shape_count(io->rank, io->shape), shape[] = {p->batch, p->seq, n / (p->batch * p->seq)};
        float *data;
        TRY(record_new(p, io->name, 3, shape, &data));
        TRY(exec_read(p->exec, io->name, p->micro, data, n));
    }
    return STATUS_OK;
}

static Status read_params(Probe *p, const char *prefix, ParamPart part) {
    for (uint32_t i = 0; i < p->plan->params.n; i++) {
        const PlanParam *q = &p->plan->params.at[i];
        float *data;
        if (!q->trained)
            continue;
        TRY(record_new(p, arena_format(&p->built.arena, "%s%s", prefix, q->name), q->rank, q->shape, &data));
        TRY(exec_param_read(p->exec, (int32_t)i, part, data));
    }
    return STATUS_OK;
}

static Status adamw_steps(Probe *p, float loss) {
    const PassOptions *o = &p->built.passes;
    float lr = (float)(p->o->lr_given ? p->o->lr : 1e-3);
    for (int64_t k = 1; k <= p->o->adamw_steps; k++) {
        float bias1 = (float)(1 - pow(o->beta1, (double)k)), bias2 = (float)(1 - pow(o->beta2, (double)k)),
              norm;
        TRY(exec_write(p->exec, "lr", p->update, &lr, 1));
        TRY(exec_write(p->exec, "bias1", p->update, &bias1, 1));
        TRY(exec_write(p->exec, "bias2", p->update, &bias2, 1));
        TRY(exec_run(p->exec, p->update, 0));
        TRY(exec_read(p->exec, "grad_norm", p->update, &norm, 1));
        human(p->o, "step %lld  loss %.7g  grad_norm %.7g  lr %g\n", (long long)k, (double)loss, (double)norm,
              (double)lr);
        if (!isfinite(norm))
            return status_make(EXIT_WORK, "step %lld: the gradient's norm is not finite", (long long)k);
        if (p->o->json)
            emit_json(json_pack("{s:s,s:I,s:f,s:f,s:f}", "event", "step", "step", (json_int_t)k, "loss",
                                (double)loss, "grad_norm", (double)norm, "lr", (double)lr));
        if (k < p->o->adamw_steps)
            TRY(forward_backward(p, &loss));
    }
    return STATUS_OK;
}

static Status write_file(Probe *p) {
    StEntry *entries = arena_alloc(&p->built.arena, (size_t)(p->n_records + 1) * sizeof *entries);
    StWriter *w;
    int32_t i;
    for (i = 0; i < p->n_records; i++)
        entries[i] = p->records[i].entry;
    TRY(st_create(p->o->probe_out, entries, p->n_records, NULL, &w));
    while ((i = st_next(w)) >= 0) {
        Status s = st_write(w, p->records[i].data);
        if (s.code) {
            st_abandon(&w);
            return s;
        }
    }
    return st_commit(&w);
}

static void on_note(void *ctx, const char *text) {
    (void)ctx;
    fprintf(stderr, "depthbench: note: %s\n", text);
}

static Status run_probe(Probe *p) {
    float loss, *at;
    TRY(params_load(p->o->params, p->exec, p->plan, (Notes){on_note, NULL}));
    TRY(write_tokens(p));
    TRY(forward_backward(p, &loss));
    human(p->o, "loss %.9g\n", (double)loss);
    if (p->o->json)
        emit_json(json_pack("{s:s,s:f}", "event", "probe", "loss", (double)loss));
    if (wanted(p->o, "loss")) {
        TRY(record_new(p, "loss", 0, (int64_t[1]){0}, &at));
        *at = loss;
    }
    TRY(read_outputs(p));
    if (wanted(p->o, "grad"))
        TRY(read_params(p, "grad.", PART_GRAD));
    TRY(adamw_steps(p, loss));
    if (p->o->adamw_steps > 0 && wanted(p->o, "param"))
        TRY(read_params(p, "param.", PART_VALUE));
    return p->o->probe_out ? write_file(p) : STATUS_OK;
}

static Status open_and_run(Probe *p) {
    const Driver *driver;
    const char *why;
    char cache[4200];
    DriverOptions options;
    TRY(target_find(p->o, &driver, &why));
    TRY(driver_options(p->o, &options, cache, sizeof cache));
    TRY(exec_open(p->plan, driver, &options, &p->exec));
    Status s;
    ARENA_CATCH(&p->built.arena, s = run_probe(p), s = status_memory("the results", 0));
    for (int32_t i = 0; i < p->n_records; i++)
        mem_free(p->records[i].data);
    mem_free(p->records);
    exec_close(p->exec);
    return s;
}

static void print_list(const Options *o, const Plan *plan) {
    for (uint32_t i = 0; i < plan->params.n; i++) {
        const PlanParam *q = &plan->params.at[i];
        char shape[160], init[64];
        static const char *const kinds[] = {"constant", "normal", "table"};
        snprintf(init, sizeof init, q->init.kind == INIT_TABLE ? "%s" : "%s %g", kinds[q->init.kind],
                 q->init.value);
        human(o, "%-48s %-16s f32  init %-16s %s%s\n", q->name, st_shape_text(q->rank, q->shape, shape), init,
              q->trained ? "trained" : "fixed", q->decay ? "" : ", no weight decay");
        if (!o->json)
            continue;
        json_t *dims = json_array();
        for (int32_t k = 0; k < q->rank; k++)
            json_array_append_new(dims, json_integer(q->shape[k]));
        emit_json(json_pack("{s:s,s:s,s:o,s:s,s:s,s:f,s:b,s:b}", "event", "parameter", "name", q->name,
                            "shape", dims, "dtype", "f32", "init", kinds[q->init.kind], "value",
                            q->init.value, "decay", (int)q->decay, "trained", (int)q->trained));
    }
}

static Status probe_built(Probe *p) {
    p->plan = p->built.plan;
    if (p->o->list) {
        print_list(p->o, p->plan);
        return STATUS_OK;
    }
    int32_t *checked; // ids against the vocabulary, which the shape knows now
    int64_t rows, columns;
    if (p->built.shape.vocab) {
        TRY(npy_load_batch(p->o->token_file, p->built.shape.vocab, &checked, &rows, &columns));
        mem_free(checked);
    }
    p->micro = plan_program(p->plan, "micro");
    p->update = plan_program(p->plan, "update");
    return open_and_run(p);
}

Status cmd_probe(const Options *o) {
    Probe p = {.o = o, .batch = 1, .seq = 8};
    if (o->args.n != 1)
        return status_make(EXIT_REQUEST, "probe takes one MODEL, got %d", o->args.n);
    if (!o->list && (!o->params || !o->token_file || (!o->probe_out && !o->json)))
        return status_make(
            EXIT_REQUEST,
            "probe needs --params FILE.safetensors, --tokens FILE.npy and --out FILE.safetensors");
    TRY(check_what(o));
    if (!o->list) {
        int64_t columns;
        TRY(npy_load_batch(o->token_file, 0, &p.tokens, &p.batch, &columns));
        p.seq = columns - 1;
        if (p.seq < 1 || p.batch < 1) {
            mem_free(p.tokens);
            return status_make(EXIT_REQUEST, "%s: tokens must be [batch, seq+1] with at least two columns",
                               o->token_file);
        }
    }
    BuildRequest r = {.model = o->args.at[0],
                      .batch = p.batch,
                      .seq = p.seq,
                      .train = true,
                      .want_logits = wanted(o, "logits") && !o->list,
                      .want_hidden = wanted(o, "hidden") && !o->list,
                      .want_grads = true};
    Status s = build_model(o, &r, &p.built);
    if (!s.code) {
        s = probe_built(&p);
        build_free(&p.built);
    }
    mem_free(p.tokens);
    return s;
}

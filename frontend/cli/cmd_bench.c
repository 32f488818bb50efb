// bench: throughput and memory of a training step per model and shape, on random tokens; with --breakdown,
// per kernel.
#include "frontend/cli/cli.h"
#include "runtime/exec.h"
#include "runtime/init.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WARM_STEPS = 2, MAX_TIMED = 1000 };

typedef struct BenchRow {
    const char *model, *shape;
    double tokens_per_s, spread; // median; (slowest - fastest) / median
    double step_ms, roofline;    // share of what GEMM peak and copy bandwidth, measured before, allow
    size_t planned, measured;    // bytes: all arenas; peak resident set
    int launches, kernels, gemms;
    double open_ms;
} BenchRow;

static void reset_peak(void) {
    FILE *f = fopen("/proc/self/clear_refs", "w");
    if (f) {
        fputs("5", f);
        fclose(f);
    }
}

static Status fill_inputs(Exec *e, const Plan *p, int32_t vocab, int32_t micro, uint64_t seed) {
    int64_t n = p->batch * p->seq;
    int32_t *ids = mem_alloc((size_t)n * 2 * sizeof *ids);
    if (!ids)
        return status_memory("tokens", (size_t)n * 8);
    uint64_t key = rng_key(seed, "tokens");
    for (int64_t i = 0; i < n; i++) {
        ids[i] = (int32_t)(rng_word(key, (uint64_t)i) % (uint64_t)vocab);
        ids[n + i] = (int32_t)(rng_word(key, (uint64_t)(i + 1)) % (uint64_t)vocab);
    }
    float inv = 1.0f / (float)n;
    Status s = exec_write(e, "ids", micro, ids, n);
    if (!s.code)
        s = exec_write(e, "targets", micro, ids + n, n);
    if (!s.code)
        s = exec_write(e, "inv_tokens", micro, &inv, 1);
    mem_free(ids);
    return s;
}

static Status fill_params(Exec *e, const Plan *p, uint64_t seed) {
    for (uint32_t i = 0; i < p->params.n; i++) {
        const PlanParam *q = &p->params.at[i];
        int64_t n = 1;
        for (int r = 0; r < q->rank; r++)
            n *= q->shape[r];
        float *at = mem_alloc((size_t)n * sizeof *at);
        if (!at)
            return status_memory(q->name, (size_t)n * 4);
        init_fill(&q->init, seed, q->name, n, at);
        Status s = exec_param_write(e, (int32_t)i, PART_VALUE, at);
        mem_free(at);
        TRY(s);
    }
    return exec_refresh_copies(e);
}

static Status one_step(Exec *e, int32_t micro, int32_t update) {
    float lr = 1e-4f, bias1 = 0.1f, bias2 = 0.05f;
    TRY(exec_run(e, micro, 0));
    TRY(exec_write(e, "lr", update, &lr, 1));
    TRY(exec_write(e, "bias1", update, &bias1, 1));
    TRY(exec_write(e, "bias2", update, &bias2, 1));
    return exec_run(e, update, 0);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct KernelTime {
    const char *name;
    double ms, bytes, flops;
    int launches;
} KernelTime;

static int by_time(const void *a, const void *b) {
    double x = ((const KernelTime *)a)->ms, y = ((const KernelTime *)b)->ms;
    return (x < y) - (x > y);
}

// Measured once, before the first model: GEMM peak and copy bandwidth drift with the machine.
static Status measure(const Driver *driver, const Options *o, DeviceInfo *out) {
    DriverOptions options;
    char cache[4200];
    DriverState *state;
    TRY(driver_options(o, &options, cache, sizeof cache));
    TRY(driver->open(&options, &state));
    Status s = driver->measure(state, out);
    driver->close(state);
    return s;
}

// Seconds a token with every GEMM at its peak rate and every row kernel at full bandwidth, one after the
// other.
static double roofline_seconds(const Counts *c, const DeviceInfo *d, Dtype compute) {
    return 3 * (c->flops_proj + c->flops_attn + c->flops_head) / d->peak_flops[compute] +
           c->row_bytes / d->copy_bytes_per_s;
}

// Adds the step times up by kernel; GEMMs by shape.
static int group_times(const Plan *p, const int32_t *programs, int n_programs, const double *ms,
                       KernelTime *out, int max) {
    int n = 0;
    for (int g = 0; g < n_programs; g++) {
        const PlanProgram *pr = &p->programs.at[programs[g]];
        for (int32_t k = pr->step0; k < pr->step0 + pr->n_steps; k++) {
            const PlanStep *s = &p->steps.at[k];
            char name[96];
            if (s->kind == STEP_LAUNCH)
                snprintf(name, sizeof name, "%s", p->kernels.at[s->kernel].name);
            else if (s->kind == STEP_GEMM)
                snprintf(name, sizeof name, "gemm %lldx%lldx%lld %s%s", (long long)s->m, (long long)s->n,
                         (long long)s->k, s->trans_a ? "T" : "N", s->trans_b ? "T" : "N");
            else
                snprintf(name, sizeof name, "%s", s->kind == STEP_SORT ? "sort" : "fill");
            int i = 0;
            while (i < n && strcmp(out[i].name, name))
                i++;
            if (i == n) {
                if (n == max)
                    continue;
                out[n++] = (KernelTime){.name = arena_string(p->arena, name)};
            }
            out[i].ms += ms[k];
            out[i].bytes += s->bytes;
            out[i].flops += s->flops;
            out[i].launches++;
        }
    }
    qsort(out, (size_t)n, sizeof *out, by_time);
    return n;
}

static void print_breakdown(const Options *o, const Plan *p, const int32_t *programs, const double *ms) {
    enum { MAX = 256 };
    KernelTime times[MAX];
    int n = 0;
    Arena *a = p->arena;
    ARENA_CATCH(a, n = group_times(p, programs, 2, ms, times, MAX), n = 0);
    double total = 0;
    for (int i = 0; i < n; i++)
        total += times[i].ms;
    human(o, "  %-32s %8s %8s %6s %9s %9s\n", "kernel", "launches", "ms", "share", "GB/s", "GFLOP/s");
    for (int i = 0; i < n; i++) {
        const KernelTime *t = &times[i];
        human(o, "  %-32s %8d %8.3f %5.1f%% %9.2f %9.1f\n", t->name, t->launches, t->ms, 100 * t->ms / total,
              t->bytes / t->ms / 1e6, t->flops / t->ms / 1e6);
        if (o->json)
            emit_json(json_pack("{s:s,s:s,s:s,s:i,s:f,s:f,s:f}", "event", "bench_kernel", "model", p->model,
                                "kernel", t->name, "launches", t->launches, "ms", t->ms, "bytes", t->bytes,
                                "flops", t->flops));
    }
}

static Status timed(const Options *o, Exec *e, const Plan *p, const int32_t *programs, BenchRow *row) {
    static double ms[MAX_TIMED];
    int steps = o->steps_given ? (int)MIN_OF(o->steps, MAX_TIMED) : 10;
    for (int i = 0; i < WARM_STEPS; i++)
        TRY(one_step(e, programs[0], programs[1]));
    for (int i = 0; i < steps; i++) {
        double start = now_ms();
        TRY(one_step(e, programs[0], programs[1]));
        ms[i] = now_ms() - start;
    }
    qsort(ms, (size_t)steps, sizeof *ms, by_value);
    row->step_ms = ms[steps / 2];
    row->spread = (ms[steps - 1] - ms[0]) / row->step_ms;
    row->tokens_per_s = (double)(p->batch * p->seq) / row->step_ms * 1e3;
    return STATUS_OK;
}

static Status bench_built(const Options *o, const Driver *driver, Built *b, BenchRow *row) {
    DriverOptions options;
    char cache[4200];
    Exec *e;
    TRY(driver_options(o, &options, cache, sizeof cache));
    reset_peak();
    double start = now_ms();
    TRY(exec_open(b->plan, driver, &options, &e));
    row->open_ms = now_ms() - start;
    int32_t programs[] = {plan_program(b->plan, "micro"), plan_program(b->plan, "update")};
    uint64_t seed = o->seed_given ? (uint64_t)o->seed : 42;
    Status s = fill_params(e, b->plan, seed);
    if (!s.code)
        s = fill_inputs(e, b->plan, b->shape.vocab, programs[0], seed);
    if (!s.code)
        s = timed(o, e, b->plan, programs, row);
    row->measured = peak_resident();
    if (!s.code && o->breakdown) {
        exec_profile(e, true);
        s = one_step(e, programs[0], programs[1]);
        if (!s.code)
            print_breakdown(o, b->plan, programs, exec_step_ms(e));
    }
    exec_close(e);
    return s;
}

static Status bench_one(const Options *o, const Driver *driver, const char *model, const char *shape,
                        const DeviceInfo *device, BenchRow *row) {
    Built b;
    BuildRequest r = {
        .model = model, .shape = shape, .batch = o->batch_given ? o->batch : 8, .seq = o->seq, .train = true};
    TRY(build_model(o, &r, &b));
    Counts c = plan_counts(b.plan, &b.shape);
    *row = (BenchRow){.model = model, .shape = shape ? shape : b.shape.name};
    row->kernels = c.kernels;
    row->launches = c.launches;
    row->gemms = c.gemms;
    for (int i = 0; i < N_ARENAS; i++)
        row->planned += b.plan->arena_bytes[i];
    Status s = bench_built(o, driver, &b, row);
    row->roofline = row->tokens_per_s * roofline_seconds(&c, device, b.plan->compute);
    build_free(&b);
    return s;
}

static void print_row(const Options *o, const BenchRow *r, FILE *csv) {
    char t[3][32];
    human(o, "%-14s %-18s %10s %7.1f%% %9.1f %8.0f%% %10s %10s %8d %6d %6d\n", r->model, r->shape,
          count_text(r->tokens_per_s, t[0]), 100 * r->spread, r->step_ms, 100 * r->roofline,
          bytes_text((double)r->planned, t[1]), bytes_text((double)r->measured, t[2]), r->launches, r->gemms,
          r->kernels);
    if (csv)
        fprintf(csv, "%s,%s,%.6g,%.4g,%.6g,%zu,%zu,%d,%d,%d,%.4g\n", r->model, r->shape, r->tokens_per_s,
                r->spread, r->step_ms, r->planned, r->measured, r->launches, r->gemms, r->kernels,
                r->open_ms);
    if (o->json)
        emit_json(json_pack("{s:s,s:s,s:s,s:f,s:f,s:f,s:f,s:I,s:I,s:i,s:i,s:i,s:f}", "event", "bench",
                            "model", r->model, "shape", r->shape, "tokens_per_s", r->tokens_per_s, "spread",
                            r->spread, "step_ms", r->step_ms, "roofline_share", r->roofline, "peak_planned",
                            (json_int_t)r->planned, "peak_measured", (json_int_t)r->measured, "launches",
                            r->launches, "gemms", r->gemms, "kernels", r->kernels, "open_ms", r->open_ms));
}

static Status bench_all(const Options *o, const Driver *driver, FILE *csv) {
    DeviceInfo device;
    TRY(measure(driver, o, &device));
    human(o, "%-14s %-18s %10s %8s %9s %9s %10s %10s %8s %6s %6s\n", "model", "shape", "tokens/s", "spread",
          "ms/step", "roofline", "planned", "peak RSS", "launches", "GEMMs", "kernels");
    for (int m = 0; m < o->args.n; m++) {
        char list[2048], *save;
        snprintf(list, sizeof list, "%s", o->shapes ? o->shapes : "");
        BenchRow row;
        if (!o->shapes) {
            TRY(bench_one(o, driver, o->args.at[m], NULL, &device, &row));
            print_row(o, &row, csv);
        }
        for (char *w = strtok_r(list, ",", &save); w; w = strtok_r(NULL, ",", &save)) {
            TRY(bench_one(o, driver, o->args.at[m], w, &device, &row));
            print_row(o, &row, csv);
        }
    }
    return STATUS_OK;
}

Status cmd_bench(const Options *o) {
    if (!o->args.n)
        return status_make(EXIT_REQUEST,
                           "bench takes at least one MODEL: depthbench bench pre_ln hc --shapes tiny");
    if (o->shapes && !o->shapes[strspn(o->shapes, ",")])
        return status_make(EXIT_REQUEST, "--shapes is empty; `depthbench shapes` lists the names");
    if (o->steps_given && o->steps < 1)
        return status_make(EXIT_REQUEST, "--steps must be at least 1");
    const Driver *driver;
    const char *why;
    TRY(target_find(o, &driver, &why));
    FILE *csv = NULL;
    if (o->csv && !(csv = fopen(o->csv, "w")))
        return status_make(EXIT_WORK, "%s: cannot be written", o->csv);
    if (csv)
        fputs("model,shape,tokens_per_s,spread,step_ms,peak_planned,peak_measured,launches,gemms,kernels,"
              "open_ms\n",
              csv);
    Status s = bench_all(o, driver, csv);
    if (csv && fclose(csv) && !s.code)
        s = status_make(EXIT_WORK, "%s: cannot be written", o->csv);
    return s;
}

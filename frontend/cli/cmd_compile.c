// compile: lower, fuse, plan, compile; prints what came out, runs nothing.
#include "frontend/cli/cli.h"
#include <errno.h>
#include <fnmatch.h>
#include <string.h>
#include <sys/stat.h>

typedef enum Emit { EMIT_IR = 1, EMIT_GRAPH = 2, EMIT_FUSED = 4, EMIT_PLAN = 8, EMIT_KERNELS = 16 } Emit;
static const char *const emit_names[] = {"ir", "graph", "fused", "plan", "kernels"};

typedef struct Dumps { // what the passes showed on their way
    const Options *o;
    int emit;
    const char *kernel; // of --emit kernels=NAME
    Arena arena;
    Text ir, graph, fused, last;
    bool failed;
} Dumps;

static bool pass_matches(const char *want, const char *pass) {
    return want && (!strcmp(want, "all") || !fnmatch(want, pass, 0));
}

static void print_module(Dumps *d, Text *out, const Module *m) {
    *out = (Text){.arena = &d->arena};
    ir_print(out, m);
}

static void observe_in_arena(Dumps *d, const char *pass, bool before, const Module *m) {
    const Options *o = d->o;
    FILE *out = o->json ? stderr : stdout;
    Text now = {0};
    if (before && !strcmp(pass, pass_names[0]) && (d->emit & EMIT_IR))
        print_module(d, &d->ir, m);
    if (!before && !strcmp(pass, "autodiff") && (d->emit & EMIT_GRAPH))
        print_module(d, &d->graph, m);
    if (!before && !strcmp(pass, pass_names[n_passes - 1]) && (d->emit & EMIT_FUSED))
        print_module(d, &d->fused, m);
    bool show = pass_matches(before ? o->print_before : o->print_after, pass);
    if (!show && !(o->print_changed && !before))
        return;
    print_module(d, &now, m);
    bool changed = !d->last.at || strcmp(d->last.at, now.at);
    if (show || changed)
        fprintf(out, "# ---- %s %s ----\n%s\n", before ? "before" : "after", pass, now.at);
    d->last = now;
}

static void observe(void *ctx, const char *pass, bool before, const Module *m) {
    Dumps *d = ctx;
    ARENA_CATCH(&d->arena, observe_in_arena(d, pass, before, m), d->failed = true);
}

static Status check_pass(const char *option, const char *name) {
    if (!name || !strcmp(name, "all"))
        return STATUS_OK;
    for (int i = 0; i < n_passes; i++)
        if (pass_matches(name, pass_names[i]))
            return STATUS_OK;
    char list[512] = "all";
    for (int i = 0; i < n_passes; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), ", %s", pass_names[i]);
    const char *near = nearest_word(name, pass_names, n_passes);
    return status_make(EXIT_REQUEST, "%s: unknown pass %s%s%s%s %s, or a pattern as simpl*", option, name,
                       near ? "; did you mean " : "", near ? near : "",
                       near ? "? Choose from" : "; choose from", list);
}

static Status parse_emit(const Options *o, Dumps *d) {
    char list[512];
    if (!o->emit)
        return STATUS_OK;
    snprintf(list, sizeof list, "%s", o->emit);
    char *save, *word = strtok_r(list, ",", &save);
    for (; word; word = strtok_r(NULL, ",", &save)) {
        if (!strncmp(word, "kernels=", 8)) {
            d->emit |= EMIT_KERNELS;
            d->kernel = arena_string(&d->arena, word + 8);
            continue;
        }
        if (!strcmp(word, "cubin") || !strcmp(word, "sass") || !strcmp(word, "explorer"))
            return status_make(EXIT_REQUEST, "--emit %s is not built yet", word);
        size_t i = 0;
        while (i < COUNT_OF(emit_names) && strcmp(emit_names[i], word))
            i++;
        if (i == COUNT_OF(emit_names))
            return status_make(EXIT_REQUEST, "--emit %s: choose from ir, graph, fused, plan, kernels", word);
        d->emit |= 1 << i;
    }
    return STATUS_OK;
}

static Status write_text(const Options *o, const char *name, const char *text) {
    if (!o->output) {
        fputs(text, o->json ? stderr : stdout);
        return STATUS_OK;
    }
    if (mkdir(o->output, 0777) && errno != EEXIST)
        return status_make(EXIT_WORK, "%s: %s", o->output, strerror(errno));
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", o->output, name);
    FILE *f = fopen(path, "wb");
    bool wrote = f && fputs(text, f) != EOF;
    if ((f && fclose(f) == EOF) || !wrote)
        return status_make(EXIT_WORK, "%s: %s", path, strerror(errno));
    human(o, "wrote %s\n", path);
    return STATUS_OK;
}

static Status write_dumps(const Options *o, Dumps *d, const Plan *p) {
    if (d->failed)
        return status_make(EXIT_WORK, "out of memory while printing the IR");
    if (d->emit & EMIT_IR)
        TRY(write_text(o, "model.ir", d->ir.at));
    if (d->emit & EMIT_GRAPH)
        TRY(write_text(o, "graph.ir", d->graph.at));
    if (d->emit & EMIT_FUSED)
        TRY(write_text(o, "fused.ir", d->fused.at));
    if (d->emit & EMIT_PLAN) {
        Text t = {.arena = &d->arena};
        plan_print(&t, p);
        TRY(write_text(o, "plan.txt", t.at));
    }
    bool found = false;
    for (uint32_t i = 0; (d->emit & EMIT_KERNELS) && i < p->kernels.n; i++) {
        const PlanKernel *k = &p->kernels.at[i];
        if (d->kernel && strcmp(d->kernel, k->name))
            continue;
        found = true;
        TRY(write_text(o, arena_format(&d->arena, "%s.c", k->name), k->source));
    }
    if ((d->emit & EMIT_KERNELS) && d->kernel && !found) {
        const char *names[1024];
        int n = 0;
        for (uint32_t i = 0; i < p->kernels.n && n < 1024; i++)
            names[n++] = p->kernels.at[i].name;
        const char *near = nearest_word(d->kernel, names, n);
        return status_make(EXIT_REQUEST, "no kernel is named %s%s%s", d->kernel,
                           near ? "; did you mean " : "", near ? near : "");
    }
    return STATUS_OK;
}

static void print_table(const Options *o, const Built *b, const Counts *c, const CompileStats *s) {
    char t[4][32];
    const Shape *h = &b->shape;
    const Plan *p = b->plan;
    human(o, "model      %s  (%s)\n", p->model, b->script);
    if (h->d_model)
        human(o,
              "shape      d_model %d  n_layer %d  n_head %d  n_kv_head %d  head_dim %d  ff %d  vocab %d  "
              "batch %lld  seq %lld\n",
              h->d_model, h->n_layer, h->n_head, h->n_kv_head, h->head_dim, h->ff, h->vocab,
              (long long)p->batch, (long long)p->seq);
    human(o, "params     %s\n", count_text((double)c->params, t[0]));
    human(o, "kernels    %d distinct, %d launches and %d GEMMs a micro-batch\n", c->kernels, c->launches,
          c->gemms);
    human(o, "row bytes  %s a token", bytes_text(c->row_bytes, t[0]));
    if (c->row_bound > 0)
        human(o, ", lower bound %s: ratio %.3f", bytes_text(c->row_bound, t[1]), c->row_bytes / c->row_bound);
    human(o, "\nflops      %s a token (training step)\n", count_text(p->flops_per_token, t[0]));
    human(o,
          "memory     params %s, optimizer %s, gradients %s, activations %s (lower bound %s: ratio %.3f)\n",
          bytes_text((double)c->params_bytes, t[0]), bytes_text((double)c->state_bytes, t[1]),
          bytes_text((double)c->grads_bytes, t[2]), bytes_text((double)c->acts_bytes, t[3]),
          bytes_text((double)c->acts_bound, (char[32]){0}),
          c->acts_bound ? (double)c->acts_bytes / (double)c->acts_bound : 1.0);
    human(o, "time       trace %.0f ms, passes %.0f ms, kernels %.0f ms (%d compiled, %d from the cache)\n",
          b->trace_ms, b->passes_ms, s->ms, s->compiled, s->cached);
}

static Status compile_kernels(const Options *o, const Plan *p, CompileStats *stats) {
    const Driver *driver;
    const char *why;
    char cache[4200];
    DriverOptions options;
    TRY(target_find(o, &driver, &why));
    TRY(driver_options(o, &options, cache, sizeof cache));
    DriverState *state;
    TRY(driver->open(&options, &state));
    Status s = driver->compile(state, p, stats);
    driver->close(state);
    return s;
}

static Status compile_built(const Options *o, Dumps *d, Built *b) {
    TRY(write_dumps(o, d, b->plan));
    CompileStats stats = {0};
    TRY(compile_kernels(o, b->plan, &stats));
    Counts c = plan_counts(b->plan, &b->shape);
    if (!d->emit || o->output)
        print_table(o, b, &c, &stats);
    if (o->json)
        emit_json(json_pack("{s:s,s:s,s:i,s:i,s:i,s:f,s:f,s:f,s:I,s:I,s:f,s:f,s:f,s:i,s:i}", "event",
                            "compile", "model", b->plan->model, "kernels", c.kernels, "launches", c.launches,
                            "gemms", c.gemms, "row_bytes_per_token", c.row_bytes, "row_bytes_bound",
                            c.row_bound, "flops_per_token", b->plan->flops_per_token, "planned_bytes",
                            (json_int_t)c.acts_bytes, "planned_bound", (json_int_t)c.acts_bound, "trace_ms",
                            b->trace_ms, "passes_ms", b->passes_ms, "compile_ms", stats.ms, "compiled",
                            stats.compiled, "cached", stats.cached));
    return STATUS_OK;
}

Status cmd_compile(const Options *o) {
    if (o->args.n != 1)
        return status_make(EXIT_REQUEST, "compile takes one MODEL or FILE.ir, got %d", o->args.n);
    TRY(check_pass("--print-after", o->print_after));
    TRY(check_pass("--print-before", o->print_before));
    Dumps d = {.o = o};
    arena_init(&d.arena, 0);
    Status s;
    ARENA_CATCH(&d.arena, s = parse_emit(o, &d), s = status_memory("--emit", 0));
    Built b;
    BuildRequest r = {.model = o->args.at[0],
                      .batch = o->batch_given ? o->batch : 8,
                      .seq = o->seq,
                      .train = true,
                      .observe = observe,
                      .observe_ctx = &d};
    if (!s.code && (r.batch < 1 || (o->seq_given && o->seq < 1)))
        s = status_make(EXIT_REQUEST, "--batch and --seq must be at least 1");
    if (!s.code && !(s = build_model(o, &r, &b)).code) {
        ARENA_CATCH(&d.arena, s = compile_built(o, &d, &b), s = status_memory("the dump", 0));
        build_free(&b);
    }
    arena_free(&d.arena);
    return s;
}

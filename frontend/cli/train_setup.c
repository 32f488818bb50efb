// Settles everything that a training run rests on, cheapest checks first, so that a wrong request fails at
// once.
#include "frontend/cli/train_setup.h"
#include "runtime/json_out.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void warn(void *ctx, const char *text) {
    (void)ctx;
    fprintf(stderr, "depthbench: warning: %s\n", text);
}

static Status check_options(const Options *o) {
    if (!o->data.n)
        return status_make(EXIT_REQUEST, "train needs --data PATH");
    if (!o->out && !o->dry_run)
        return status_make(EXIT_REQUEST, "train needs --out RUN, the directory to write");
    if (o->val.n && o->val_fraction_given)
        return status_make(EXIT_REQUEST, "choose --val or --val-fraction, not both");
    if (o->steps_given + o->tokens_given + o->tokens_per_param_given > 1)
        return status_make(EXIT_REQUEST, "choose one of --steps, --tokens, --tokens-per-param");
    if (o->resume && o->overwrite)
        return status_make(EXIT_REQUEST, "choose --resume or --overwrite, not both");
    if (o->invalid && strcmp(o->invalid, "replace"))
        return status_make(EXIT_REQUEST, "--invalid %s: the only choice is replace", o->invalid);
    if ((o->batch_given && o->batch < 1) || (o->seq_given && o->seq < 1) ||
        (o->micro_batch_given && o->micro_batch < 1))
        return status_make(EXIT_REQUEST, "--batch, --micro-batch and --seq must be at least 1");
    if (o->micro_batch_given && (o->batch_given ? o->batch : 8) % o->micro_batch)
        return status_make(EXIT_REQUEST, "--batch %lld is not a multiple of --micro-batch %lld",
                           (long long)(o->batch_given ? o->batch : 8), (long long)o->micro_batch);
    if (o->keep_given && o->keep < 1)
        return status_make(EXIT_REQUEST, "--keep must be at least 1");
    return STATUS_OK;
}

static Status build_micro(Setup *s, int64_t micro, int32_t vocab, size_t limit) {
    BuildRequest r = {.model = s->o->args.at[0],
                      .batch = micro,
                      .seq = s->o->seq,
                      .vocab = vocab,
                      .train = true,
                      .memory_limit = limit};
    TRY(build_model(s->o, &r, &s->built));
    s->micro_batch = micro;
    return STATUS_OK;
}

// The largest divisor of the batch whose plan fits.
static Status build_fitting(Setup *s, int32_t vocab) {
    size_t limit = s->device.memory_free ? s->device.memory_free / 10 * 9 : SIZE_MAX, need = 0;
    if (s->o->memory)
        TRY(bytes_parse(s->o->memory, &limit));
    int64_t first = s->o->micro_batch_given ? s->o->micro_batch : s->batch;
    for (int64_t micro = first; micro >= 1; micro--) {
        if (s->batch % micro)
            continue;
        TRY(build_micro(s, micro, vocab, limit));
        need = plan_bytes(s->built.plan);
        if (need <= limit)
            return STATUS_OK;
        build_free(&s->built);
        if (s->o->micro_batch_given)
            break;
    }
    char a[32], b[32];
    return status_make(EXIT_WORK,
                       "the plan does not fit: a micro-batch of %lld needs %s, the limit is %s; try "
                       "--recompute full, a smaller --seq or --shape",
                       (long long)(s->o->micro_batch_given ? s->o->micro_batch : 1),
                       bytes_text((double)need, a), bytes_text((double)limit, b));
}

static Status open_data(Setup *s) {
    const Options *o = s->o;
    DataOptions d = {.paths = o->data.at,
                     .n_paths = o->data.n,
                     .tokenizer = s->tokenizer,
                     .vocab = s->built.shape.vocab,
                     .seq = s->seq,
                     .seed = s->seed,
                     .eos = o->eos_given ? o->eos : -1,
                     .text = {.field = o->text_field, .replace_invalid = o->invalid != NULL},
                     .literal_specials = o->literal_specials,
                     .warn = warn};
    static const char *const widths[] = {"u8", "u16", "", "u32", "", "", "", "u64"};
    for (int i = 0; o->token_dtype && i < (int)COUNT_OF(widths); i++)
        if (!strcmp(widths[i], o->token_dtype))
            d.token_width = i + 1;
    if (o->token_dtype && !d.token_width)
        return status_make(EXIT_REQUEST, "--token-dtype %s: choose u8, u16, u32 or u64", o->token_dtype);
    TRY(data_open(&d, &s->data));
    if (o->val.n) {
        d.paths = o->val.at;
        d.n_paths = o->val.n;
        d.whole = true;
        return data_open(&d, &s->val);
    }
    return o->val_fraction_given ? data_split(s->data, o->val_fraction, &s->val) : STATUS_OK;
}

static Status settle_schedule(Setup *s) {
    const Options *o = s->o;
    double tokens = o->tokens_given
                        ? (double)o->tokens
                        : (o->tokens_per_param_given ? o->tokens_per_param : 20) * (double)s->counts.params;
    int64_t steps = o->steps_given ? o->steps : (int64_t)ceil(tokens / (double)(s->batch * s->seq));
    s->schedule = (Schedule){.decay = DECAY_COSINE,
                             .warmup = o->warmup_given ? o->warmup : steps / 10,
                             .steps = steps,
                             .peak = o->lr_given ? o->lr : 2e-3,
                             .min_ratio = o->min_lr_ratio_given ? o->min_lr_ratio : 0.1};
    bool known = !o->decay;
    for (int i = 0; o->decay && i < N_DECAYS; i++)
        if (!strcmp(decay_names[i], o->decay)) {
            s->schedule.decay = (Decay)i;
            known = true;
        }
    if (!known)
        return status_make(EXIT_REQUEST, "--decay %s: choose cosine, linear or constant", o->decay);
    return schedule_check(&s->schedule);
}

// ---- Run directory

static void config_text(Setup *s, Text *t) {
    const Options *o = s->o;
    const Shape *h = &s->built.shape;
    const PassOptions *p = &s->built.passes;
    JsonOut j;
    jout_begin(&j, t);
    jout_int(&j, "format", 1);
    jout_string(&j, "model", o->args.at[0]);
    jout_object(&j, "shape");
    jout_int(&j, "d_model", h->d_model), jout_int(&j, "n_layer", h->n_layer),
        jout_int(&j, "n_head", h->n_head);
    jout_int(&j, "n_kv_head", h->n_kv_head), jout_int(&j, "head_dim", h->head_dim), jout_int(&j, "ff", h->ff);
    jout_int(&j, "vocab", h->vocab);
    jout_close(&j);
    jout_object(&j, "options");
    for (uint32_t i = 0; i < s->built.lua.params.n; i++)
        jout_string(&j, s->built.lua.params.at[i].key, s->built.lua.params.at[i].value);
    jout_close(&j);
    jout_string(&j, "dtype", dtype_name(p->compute));
    jout_int(&j, "seq", s->seq), jout_int(&j, "batch", s->batch), jout_int(&j, "micro_batch", s->micro_batch);
    jout_int(&j, "seed", (int64_t)s->seed);
    jout_array(&j, "data");
    for (int i = 0; i < o->data.n; i++)
        jout_string(&j, NULL, o->data.at[i]);
    jout_close(&j);
    jout_string(&j, "tokenizer", o->tokenizer);
    jout_string(&j, "tokenizer_sha256", s->tokenizer ? tokenizer_hash(s->tokenizer) : NULL);
    jout_int(&j, "steps", s->schedule.steps), jout_int(&j, "warmup", s->schedule.warmup);
    jout_string(&j, "decay", decay_names[s->schedule.decay]);
    jout_real(&j, "lr", s->schedule.peak), jout_real(&j, "min_lr_ratio", s->schedule.min_ratio);
    jout_real(&j, "weight_decay", p->weight_decay), jout_real(&j, "clip", p->clip);
    jout_real(&j, "beta1", p->beta1), jout_real(&j, "beta2", p->beta2);
    jout_bool(&j, "overfit", o->overfit);
    jout_close(&j);
}

// The scripts as used: the model's own as model.lua, what it required under its own name.
static Status scripts_read(Setup *s, const char *const **out) {
    Arena *a = &s->built.arena;
    uint32_t n = s->built.lua.files.n;
    const char **list = arena_alloc(a, (2 * n + 1) * sizeof *list);
    for (uint32_t i = 0; i < n; i++) {
        const char *path = s->built.lua.files.at[i], *slash = strrchr(path, '/');
        list[2 * i] = i ? (slash ? slash + 1 : path) : "model.lua";
        TRY(read_text(a, path, &list[2 * i + 1]));
    }
    *out = list;
    return STATUS_OK;
}

static RunMode run_mode(const Options *o) {
    return o->resume ? RUN_RESUME : o->overwrite ? RUN_OVERWRITE : RUN_NEW;
}

static Status open_run(Setup *s) {
    static const char *const free_keys[] = {"steps", "warmup", "micro_batch", "data", "tokenizer", NULL};
    Text config = {.arena = &s->built.arena};
    const char *const *scripts;
    if (!s->o->out || s->o->dry_run)
        return STATUS_OK;
    config_text(s, &config);
    TRY(scripts_read(s, &scripts));
    return run_open(s->o->out, run_mode(s->o), config.at, free_keys, scripts, &s->run);
}

static Status measure(Setup *s) {
    DriverState *state;
    TRY(s->driver->open(&s->driver_options, &state));
    Status status = s->driver->measure(state, &s->device);
    s->driver->close(state);
    return status;
}

static Status setup_parts(Setup *s) {
    const Options *o = s->o;
    int32_t vocab = 0;
    TRY(check_options(o));
    TRY(target_find(o, &s->driver, &s->why));
    TRY(driver_options(o, &s->driver_options, s->cache, sizeof s->cache));
    TRY(measure(s));
    if (o->tokenizer)
        TRY(tokenizer_open(o->tokenizer, &s->tokenizer));
    if (s->tokenizer && !strcmp(o->tokenizer, "bytes"))
        vocab = tokenizer_vocab(s->tokenizer);
    TRY(build_fitting(s, vocab));
    s->peak_flops = s->device.peak_flops[s->built.plan->compute];
    s->seq = s->built.plan->seq;
    s->counts = plan_counts(s->built.plan, &s->built.shape);
    s->flops_per_token = 3 * (s->counts.flops_proj + s->counts.flops_attn + s->counts.flops_head);
    TRY(open_data(s));
    TRY(settle_schedule(s));
    return o->out && !o->dry_run ? run_check(o->out, run_mode(o)) : STATUS_OK;
}

Status setup_open(const Options *o, Setup *out) {
    memset(out, 0, sizeof *out);
    out->o = o;
    out->batch = o->batch_given ? o->batch : 8;
    out->seed = o->seed_given ? (uint64_t)o->seed : 42;
    Status status;
    Arena scratch; // setup_parts allocates in the model's arena, once there is one
    arena_init(&scratch, 0);
    out->built.arena = scratch;
    jmp_buf out_of_memory;
    if (setjmp(out_of_memory) == 0) {
        out->built.arena.fail = &out_of_memory;
        status = setup_parts(out);
    } else
        status = status_memory("the run", 0);
    if (status.code)
        setup_close(out);
    return status;
}

Status setup_run(Setup *s) {
    Status status;
    ARENA_CATCH(&s->built.arena, status = open_run(s), status = status_memory("the run", 0));
    return status;
}

void setup_close(Setup *s) {
    if (s->run)
        run_close(s->run);
    if (s->val)
        data_close(s->val);
    if (s->data)
        data_close(s->data);
    if (s->built.plan)
        build_free(&s->built);
    if (s->tokenizer)
        tokenizer_close(s->tokenizer);
}

// ---- Start table

void setup_table(Setup *s) {
    const Options *o = s->o;
    const Shape *h = &s->built.shape;
    const Counts *c = &s->counts;
    char t[6][32];
    human(o, "run        %s\n", o->out ? o->out : "(dry run)");
    human(o, "model      %s  (%s)\n", s->built.plan->model, s->built.script);
    human(o, "shape      d_model %d  n_layer %d  n_head %d  n_kv_head %d  head_dim %d  ff %d  vocab %d\n",
          h->d_model, h->n_layer, h->n_head, h->n_kv_head, h->head_dim, h->ff, h->vocab);
    print_costs(o, c);
    DataInfo d = data_info(s->data);
    human(o,
          "data       %d files, %lld documents, %lld ids, %lld windows of %lld, %lld ids dropped, top id %d "
          "is %.1f%%\n",
          d.files, (long long)d.documents, (long long)d.ids, (long long)d.windows, (long long)s->seq,
          (long long)d.dropped, d.top_id, 100 * d.top_share);
    if (s->val) {
        d = data_info(s->val);
        human(o, "held out   %lld ids, %lld windows\n", (long long)d.ids, (long long)d.windows);
    }
    if (s->tokenizer)
        human(o, "tokenizer  %s  sha256 %.16s\n", o->tokenizer, tokenizer_hash(s->tokenizer));
    human(o, "batch      %lld sequences = %lld x %lld, %lld tokens a step\n", (long long)s->batch,
          (long long)(s->batch / s->micro_batch), (long long)s->micro_batch, (long long)(s->batch * s->seq));
    human(o, "schedule   %lld steps, warm-up %lld, %s, lr %g to %g\n", (long long)s->schedule.steps,
          (long long)s->schedule.warmup, decay_names[s->schedule.decay], s->schedule.peak,
          s->schedule.peak * s->schedule.min_ratio);
    human(o, "memory     planned %s: weights %s, optimizer %s, gradients %s, activations %s\n",
          bytes_text((double)plan_bytes(s->built.plan), t[0]), bytes_text((double)c->params_bytes, t[1]),
          bytes_text((double)c->state_bytes, t[2]), bytes_text((double)c->grads_bytes, t[3]),
          bytes_text((double)c->acts_bytes, t[4]));
    human(o, "kernels    %d distinct, %d launches, %d GEMMs a micro-batch\n", c->kernels, c->launches,
          c->gemms);
    human(o, "target     %s (%s): %s, %d threads (%s), %s, peak %.0f GF/s (measured)\n", s->driver->name,
          s->why, s->device.name, s->device.threads, s->device.threads_from,
          dtype_name(s->built.plan->compute), s->peak_flops / 1e9);
    human(o, "seed       %llu\n", (unsigned long long)s->seed);
    if (o->json)
        emit_json(json_pack("{s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:I}", "event", "start", "model",
                            s->built.plan->model, "params", (json_int_t)c->params, "steps",
                            (json_int_t)s->schedule.steps, "batch", (json_int_t)s->batch, "micro_batch",
                            (json_int_t)s->micro_batch, "seq", (json_int_t)s->seq, "planned_bytes",
                            (json_int_t)plan_bytes(s->built.plan)));
}

// From a model's name to its plan: finds the script or the IR text, settles the shape, traces, runs the
// pipeline.
#include "codegen/codegen.h"
#include "frontend/cli/cli.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const shape_keys[] = {"d_model",  "n_layer", "n_head", "n_kv_head",
                                         "head_dim", "ff",      "vocab"};

static int32_t *shape_field(Shape *s, const char *key, size_t n) {
    int32_t *const fields[] = {&s->d_model,  &s->n_layer, &s->n_head, &s->n_kv_head,
                               &s->head_dim, &s->ff,      &s->vocab};
    for (size_t i = 0; i < COUNT_OF(shape_keys); i++)
        if (strlen(shape_keys[i]) == n && !strncmp(shape_keys[i], key, n))
            return fields[i];
    return NULL;
}

Status models_dir(char *out, size_t bytes) {
    char exe[4096];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n < 0)
        return status_make(EXIT_WORK, "cannot find the program's own path: %s", strerror(errno));
    exe[n] = 0;
    *strrchr(exe, '/') = 0;
    static const char *const places[] = {"../models", "../share/depthbench/models", "../../models"};
    for (size_t i = 0; i < COUNT_OF(places); i++) {
        int len = snprintf(out, bytes, "%s/%s", exe, places[i]);
        char probe[4200];
        snprintf(probe, sizeof probe, "%s/backbone.lua", out);
        if (len <= 0 || (size_t)len >= bytes || access(probe, R_OK))
            continue;
        char *whole = realpath(out, NULL); // without "..", for messages
        if (whole && strlen(whole) < bytes)
            strcpy(out, whole);
        free(whole);
        return STATUS_OK;
    }
    return status_make(EXIT_REQUEST,
                       "the shipped models are missing: looked in %s/{../models,../share/depthbench/models}",
                       exe);
}

char script_messages[2048];

static bool has_suffix(const char *text, const char *suffix) {
    size_t n = strlen(text), k = strlen(suffix);
    return n >= k && !strcmp(text + n - k, suffix);
}

static Status find_script(const char *model, const char *models, char *path, size_t bytes) {
    if (strchr(model, '/') || has_suffix(model, ".lua") || has_suffix(model, ".ir")) {
        if (access(model, R_OK))
            return status_make(EXIT_REQUEST, "%s: %s", model, strerror(errno));
        snprintf(path, bytes, "%s", model);
        return STATUS_OK;
    }
    snprintf(path, bytes, "%s/%s.lua", models, model);
    if (!access(path, R_OK))
        return STATUS_OK;
    static const char *const names[] = {"pre_ln", "sandwich_ln", "lns",     "deepnorm",      "keel",
                                        "hc",     "mhc",         "attnres", "attnres_block", "moda"};
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (!strcmp(names[i], model))
            return status_make(EXIT_REQUEST,
                               "model %s is not built yet; a script of your own works: depthbench ... my.lua",
                               model);
    const char *near = nearest_word(model, names, (int)COUNT_OF(names));
    return status_make(EXIT_REQUEST, "unknown model %s%s%s%s", model, near ? "; did you mean " : "",
                       near ? near : "", near ? "?" : "; give a script's path or a name in models/");
}

// Shape columns of --set go into the shape (what depends on them and is not set follows anew); other keys are
// the script's.
static Status apply_set(const Options *o, Shape *s, KeyValue *set, int *n_set) {
    Shape given = {0};
    for (int i = 0; i < o->set.n; i++) {
        const char *text = o->set.at[i], *equals = strchr(text, '=');
        if (!equals || equals == text)
            return status_make(EXIT_REQUEST, "--set %s: write KEY=VALUE", text);
        int32_t *field = shape_field(&given, text, (size_t)(equals - text));
        if (!field) {
            set[(*n_set)++] = (KeyValue){text, equals + 1};
            continue;
        }
        char *end;
        long v = strtol(equals + 1, &end, 10);
        if (end == equals + 1 || *end || v < 1 || v > (1 << 24))
            return status_make(EXIT_REQUEST, "--set %s: the value must be a whole number from 1 to %d", text,
                               1 << 24);
        *field = (int32_t)v;
    }
    if (given.d_model || given.n_head)
        s->head_dim = s->ff = 0;
    if (given.n_head)
        s->n_kv_head = 0;
    for (size_t i = 0; i < COUNT_OF(shape_keys); i++) {
        const char *key = shape_keys[i];
        int32_t value = *shape_field(&given, key, strlen(key));
        if (value)
            *shape_field(s, key, strlen(key)) = value;
    }
    return STATUS_OK;
}

int64_t default_seq(const Shape *s) {
    return s->name && (!strcmp(s->name, "tiny") || !strcmp(s->name, "small")) ? 256 : 2048;
}

Status dtype_parse(const Options *o, Dtype *out) {
    *out = DT_F32;
    if (!o->dtype || !strcmp(o->dtype, "f32"))
        return STATUS_OK;
    *out = DT_BF16;
    return !strcmp(o->dtype, "bf16") ? STATUS_OK
                                     : status_make(EXIT_REQUEST, "--dtype %s: choose f32 or bf16", o->dtype);
}

static Status pass_options(const Options *o, const BuildRequest *r, PassOptions *p) {
    *p = (PassOptions){
        .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .clip = 1.0, .fuse = true};
    TRY(dtype_parse(o, &p->compute));
    if (o->weight_decay_given)
        p->weight_decay = o->weight_decay;
    if (o->clip_given)
        p->clip = o->clip;
    if (o->betas) {
        char rest;
        if (sscanf(o->betas, "%lf,%lf%c", &p->beta1, &p->beta2, &rest) != 2 || p->beta1 < 0 ||
            p->beta1 >= 1 || p->beta2 < 0 || p->beta2 >= 1)
            return status_make(EXIT_REQUEST, "--betas %s: write two numbers from 0 to below 1, as 0.9,0.95",
                               o->betas);
    }
    const char *recompute = o->recompute ? o->recompute : "none";
    static const char *const levels[] = {"none", "auto", "full"};
    for (int i = 0; i < 3; i++)
        if (!strcmp(recompute, levels[i]))
            p->recompute = (Recompute)i;
    if (strcmp(recompute, levels[p->recompute]))
        return status_make(EXIT_REQUEST, "--recompute %s: choose none, auto or full", recompute);
    if (o->memory)
        TRY(bytes_parse(o->memory, &p->memory_limit));
    if (r->memory_limit)
        p->memory_limit = r->memory_limit;
    p->train = r->train;
    p->want_logits = r->want_logits;
    p->want_hidden = r->want_hidden;
    p->want_grads = r->want_grads;
    p->limits = (Limits){.head_chunk_bytes = 64 << 20, .max_strips = 32};
    p->printer = (KernelPrinter){codegen_c_row, codegen_c_finish, codegen_c_scatter, codegen_c_attention};
    p->observe = r->observe;
    p->observe_ctx = r->observe_ctx;
    return STATUS_OK;
}

Status read_text(Arena *arena, const char *path, const char **out) {
    FILE *f = fopen(path, "rb");
    if (!f)
        return status_make(EXIT_REQUEST, "%s: %s", path, strerror(errno));
    Text t = {.arena = arena};
    char part[65536];
    size_t n;
    while ((n = fread(part, 1, sizeof part, f)))
        text_addn(&t, part, n);
    bool bad = ferror(f);
    fclose(f);
    if (bad)
        return status_make(EXIT_REQUEST, "%s: cannot be read", path);
    *out = t.at ? t.at : "";
    return STATUS_OK;
}

static Status trace(const Options *o, const BuildRequest *r, Built *b, const char *models, const char *path) {
    const char *name = r->shape ? r->shape : o->shape ? o->shape : "tiny";
    TRY(shape_find(name, &b->shape));
    if (r->vocab)
        b->shape.vocab = r->vocab;
    KeyValue set[MAX_LIST];
    LuaOptions lua = {
        .path = path, .models_dir = models, .set = set, .batch = (int32_t)r->batch, .skip_layer = -1};
    TRY(apply_set(o, &b->shape, set, &lua.n_set));
    TRY(shape_complete(&b->shape));
    lua.shape = b->shape;
    lua.seq = (int32_t)(r->seq ? r->seq : default_seq(&b->shape));
    Status s = lua_model(&b->arena, &lua, &b->lua);
    if (b->lua.messages.n)
        fputs(b->lua.messages.at, stderr);
    if (s.code && b->lua.messages.n && s.code == EXIT_REQUEST) {
        snprintf(script_messages, sizeof script_messages, "%s", b->lua.messages.at);
        s.text[0] = 0; // the messages have said it
    }
    b->module = b->lua.module;
    return s;
}

// Trained parameters that the loss does not depend on: a warning each, once a script.
static Status warn_dead(const Options *o, Built *b) {
    static char warned[4300];
    const Module *m = b->module;
    int32_t *dead = arena_alloc(&b->arena, (m->params.n + 1) * sizeof *dead);
    int n = autodiff_dead_params(m, dead);
    bool again = !strcmp(warned, b->script);
    snprintf(warned, sizeof warned, "%s", b->script);
    for (int i = 0; i < n && !again; i++) {
        const Param *p = &m->params.at[dead[i]];
        int outer = p->loc.line[1] ? 1 : 0; // the script's own line, where a library's function was called
        const char *file = p->loc.line[outer] ? m->files.at[p->loc.file[outer]] : b->script;
        fprintf(stderr, "%s:%d: %s: the loss does not depend on parameter %s\n", file, p->loc.line[outer],
                o->strict ? "error" : "warning", p->name);
    }
    if (!n || !o->strict)
        return STATUS_OK;
    return status_make(EXIT_REQUEST, "--strict: the loss does not depend on %d of %u parameters, first %s", n,
                       m->params.n, m->params.at[dead[0]].name);
}

static Status check_trained(const BuildRequest *r, const Built *b) {
    for (uint32_t i = 0; i < b->module->params.n; i++)
        if (b->module->params.at[i].trained)
            return STATUS_OK;
    if (!r->train)
        return STATUS_OK;
    return status_make(EXIT_REQUEST, "%s: the model has no trained parameter: make one with db.weight",
                       b->script);
}

static Status check_sizes(const Options *o) {
    const int64_t most = 1 << 24;
    if ((o->batch_given && (o->batch < 1 || o->batch > most)) ||
        (o->seq_given && (o->seq < 1 || o->seq > most)))
        return status_make(EXIT_REQUEST, "--batch and --seq must be whole numbers from 1 to %lld",
                           (long long)most);
    return STATUS_OK;
}

static Status build_in_arena(const Options *o, const BuildRequest *r, Built *b) {
    char models[4200], path[4300];
    TRY(models_dir(models, sizeof models));
    TRY(find_script(r->model, models, path, sizeof path));
    b->script = arena_string(&b->arena, path);
    TRY(check_sizes(o));
    TRY(pass_options(o, r, &b->passes));
    double start = now_ms();
    if (has_suffix(path, ".ir")) {
        const char *text = "";
        TRY(read_text(&b->arena, path, &text));
        TRY(ir_parse(&b->arena, text, path, &b->module));
        if (!module_find_func(b->module, "loss"))
            return status_make(EXIT_REQUEST, "%s: there is no function named loss; give what --emit ir wrote",
                               path);
    } else {
        TRY(trace(o, r, b, models, path));
    }
    b->trace_ms = now_ms() - start;
    TRY(check_trained(r, b));
    TRY(warn_dead(o, b));
    start = now_ms();
    Status s = pipeline_run(b->module, &b->passes, &b->plan);
    b->passes_ms = now_ms() - start;
    return s;
}

Status build_model(const Options *o, const BuildRequest *r, Built *out) {
    memset(out, 0, sizeof *out);
    arena_init(&out->arena, 0);
    Status s;
    ARENA_CATCH(&out->arena, s = build_in_arena(o, r, out),
                s = status_make(EXIT_WORK, "out of memory while compiling %s", r->model));
    if (s.code)
        arena_free(&out->arena);
    return s;
}

void build_free(Built *b) {
    arena_free(&b->arena);
}

Status target_find(const Options *o, const Driver **driver, const char **why) {
    const char *name = o->target ? o->target : "auto";
    *why = "--target host";
    if (!strcmp(name, "auto")) {
        *why = "auto: this program has no cuda target yet";
        name = "host";
    }
    *driver = driver_find(name);
    if (*driver)
        return STATUS_OK;
    if (!strcmp(name, "cuda") || !strcmp(name, "sim"))
        return status_make(EXIT_TARGET, "--target %s is not built yet; use --target host", name);
    return status_make(EXIT_REQUEST, "--target %s: choose auto or host", name);
}

Status driver_options(const Options *o, DriverOptions *out, char *cache, size_t cache_bytes) {
    if (o->threads > 1024)
        return status_make(EXIT_REQUEST, "--threads %lld: at most 1024", (long long)o->threads);
    *out = (DriverOptions){.threads = (int)o->threads, .verbose = o->verbose};
    if (o->no_cache)
        return STATUS_OK;
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME"), *own = getenv("DEPTHBENCH_CACHE");
    if (o->cache || (own && *own))
        snprintf(cache, cache_bytes, "%s", o->cache ? o->cache : own);
    else if (xdg && *xdg)
        snprintf(cache, cache_bytes, "%s/depthbench", xdg);
    else if (home && *home)
        snprintf(cache, cache_bytes, "%s/.cache/depthbench", home);
    else
        return STATUS_OK;
    out->cache_dir = cache;
    return STATUS_OK;
}

// Parameters and moments between the device and safetensors files: see checkpoint.h and params.h.
#include "runtime/params.h"
#include <math.h>
#include <string.h>

static const char *const suffixes[] = {
    [PART_VALUE] = "", [PART_GRAD] = ".grad", [PART_EXP_AVG] = ".exp_avg", [PART_EXP_AVG_SQ] = ".exp_avg_sq"};

int64_t params_count(const PlanParam *q) {
    int64_t n = 1;
    for (int32_t i = 0; i < q->rank; i++)
        n *= q->shape[i];
    return n;
}

static int64_t largest(const Plan *p) {
    int64_t most = 1;
    for (uint32_t i = 0; i < p->params.n; i++)
        most = MAX_OF(most, params_count(&p->params.at[i]));
    return most;
}

// Fixed parameters have a value only.
static bool has_part(const PlanParam *q, ParamPart part) {
    return part == PART_VALUE || q->trained;
}

// ---- Differences between a file and the model

typedef struct Differences {
    const char *path;
    Notes notes;
    int missing, unexpected, misshapen;
    char first[256];
} Differences;

static void differ(Differences *d, int *count, const char *format, ...) PRINTF_LIKE(3, 4);
static void differ(Differences *d, int *count, const char *format, ...) {
    char line[640];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    ++*count;
    size_t used = strlen(d->first);
    if (used + strlen(line) + 3 < sizeof d->first)
        snprintf(d->first + used, sizeof d->first - used, "%s%s", used ? "; " : "", line);
    if (d->notes.line)
        d->notes.line(d->notes.ctx, line);
}

static bool belongs(const Plan *p, const char *name, const ParamPart *parts, int n_parts) {
    for (int k = 0; k < n_parts; k++) {
        size_t n = strlen(name), s = strlen(suffixes[parts[k]]);
        if (n < s || strcmp(name + n - s, suffixes[parts[k]]) != 0)
            continue;
        for (uint32_t i = 0; i < p->params.n; i++) {
            const PlanParam *q = &p->params.at[i];
            if (has_part(q, parts[k]) && strlen(q->name) == n - s && strncmp(q->name, name, n - s) == 0)
                return true;
        }
    }
    return false;
}

static Status compare(const char *path, const StFile *f, const Plan *p, const ParamPart *parts, int n_parts,
                      Notes notes) {
    Differences d = {.path = path, .notes = notes};
    for (uint32_t i = 0; i < p->params.n; i++) {
        const PlanParam *q = &p->params.at[i];
        for (int k = 0; k < n_parts; k++) {
            char name[PARAM_NAME], a[160], b[160];
            if (!has_part(q, parts[k]))
                continue;
            snprintf(name, sizeof name, "%s%s", q->name, suffixes[parts[k]]);
            int32_t at = st_find(f, name);
            const StTensor *t = at < 0 ? NULL : st_tensor(f, at);
            if (!t)
                differ(&d, &d.missing, "missing %s", name);
            else if (t->rank != q->rank ||
                     memcmp(t->shape, q->shape, (size_t)q->rank * sizeof *q->shape) != 0)
                differ(&d, &d.misshapen, "%s is %s, the model has %s", name,
                       st_shape_text(t->rank, t->shape, a), st_shape_text(q->rank, q->shape, b));
            else if (t->dtype != ST_F32 && t->dtype != ST_F64 && t->dtype != ST_F16 && t->dtype != ST_BF16)
                differ(&d, &d.misshapen, "%s is of type %s", name, st_dtype_name(t->dtype));
        }
    }
    for (int32_t i = 0; i < st_count(f); i++) {
        if (!belongs(p, st_tensor(f, i)->name, parts, n_parts))
            differ(&d, &d.unexpected, "unexpected %.200s", st_tensor(f, i)->name);
    }
    if (d.missing + d.unexpected + d.misshapen == 0)
        return STATUS_OK;
    return status_make(EXIT_REQUEST,
                       "%.160s does not fit the model: %d missing, %d unexpected, %d of another shape or "
                       "type: %s",
                       path, d.missing, d.unexpected, d.misshapen, d.first);
}

static Status read_part(StFile *f, Exec *e, const Plan *p, int32_t i, ParamPart part, float *buffer) {
    char name[PARAM_NAME];
    snprintf(name, sizeof name, "%s%s", p->params.at[i].name, suffixes[part]);
    TRY(st_read_f32(f, st_find(f, name), buffer));
    return exec_param_write(e, i, part, buffer);
}

Status params_read(const char *path, Exec *e, const Plan *p, const ParamPart *parts, int n_parts,
                   Notes notes) {
    StFile *f;
    TRY(st_open(path, &f));
    Status s = compare(path, f, p, parts, n_parts, notes);
    float *buffer = s.code ? NULL : mem_alloc((size_t)largest(p) * sizeof *buffer);
    if (!s.code && !buffer)
        s = status_memory("reading parameters", (size_t)largest(p) * sizeof *buffer);
    for (uint32_t i = 0; i < p->params.n && !s.code; i++) {
        for (int k = 0; k < n_parts && !s.code; k++) {
            if (has_part(&p->params.at[i], parts[k]))
                s = read_part(f, e, p, (int32_t)i, parts[k], buffer);
        }
    }
    mem_free(buffer);
    st_close(f);
    return s;
}

Status params_load(const char *path, Exec *e, const Plan *p, Notes notes) {
    TRY(params_read(path, e, p, (ParamPart[]){PART_VALUE}, 1, notes));
    return exec_refresh_copies(e);
}

// ---- Writing

typedef struct Listing {
    StEntry *entries;
    char (*names)[PARAM_NAME];
    struct {
        int32_t param;
        ParamPart part;
    } * what;
    int32_t n;
} Listing;

static void listing_free(Listing *l) {
    mem_free(l->entries);
    mem_free(l->names);
    mem_free(l->what);
}

static Status listing_make(const Plan *p, const ParamPart *parts, int n_parts, Listing *l) {
    size_t most = (size_t)p->params.n * (size_t)n_parts;
    *l = (Listing){.entries = mem_alloc(most * sizeof *l->entries),
                   .names = mem_alloc(most * sizeof *l->names),
                   .what = mem_alloc(most * sizeof *l->what)};
    if (!l->entries || !l->names || !l->what)
        return status_memory("a list of tensors", most * (sizeof *l->entries + sizeof *l->names));
    for (uint32_t i = 0; i < p->params.n; i++) {
        const PlanParam *q = &p->params.at[i];
        for (int k = 0; k < n_parts; k++) {
            if (!has_part(q, parts[k]))
                continue;
            CHECK(q->rank <= ST_MAX_RANK && strlen(q->name) + 16 < PARAM_NAME, "parameter %s", q->name);
            snprintf(l->names[l->n], PARAM_NAME, "%s%s", q->name, suffixes[parts[k]]);
            StEntry *t = &l->entries[l->n];
            *t = (StEntry){.name = l->names[l->n], .dtype = ST_F32, .rank = q->rank};
            memcpy(t->shape, q->shape, (size_t)q->rank * sizeof *q->shape);
            l->what[l->n].param = (int32_t)i;
            l->what[l->n++].part = parts[k];
        }
    }
    return STATUS_OK;
}

// The last gate before storage: a state that is not finite is never written.
static Status check_finite(const Plan *p, const Listing *l, int32_t i, const float *values) {
    int64_t n = params_count(&p->params.at[l->what[i].param]), at = 0;
    while (at < n && isfinite(values[at]))
        at++;
    return at == n
               ? STATUS_OK
               : status_make(EXIT_WORK, "%s: element %lld is %g: no checkpoint is written, older ones stay",
                             l->names[i], (long long)at, (double)values[at]);
}

static Status write_all(StWriter *w, Exec *e, const Plan *p, const Listing *l, float *buffer) {
    for (int32_t i; (i = st_next(w)) >= 0;) {
        TRY(exec_param_read(e, l->what[i].param, l->what[i].part, buffer));
        TRY(check_finite(p, l, i, buffer));
        TRY(st_write(w, buffer));
    }
    return STATUS_OK;
}

Status params_write(const char *path, Exec *e, const Plan *p, const ParamPart *parts, int n_parts,
                    char sha256[65], uint64_t *bytes) {
    Listing l;
    StWriter *w = NULL;
    float *buffer = mem_alloc((size_t)largest(p) * sizeof *buffer);
    Status s = listing_make(p, parts, n_parts, &l);
    if (!s.code && !buffer)
        s = status_memory("saving parameters", (size_t)largest(p) * sizeof *buffer);
    if (!s.code)
        s = st_create(path, l.entries, l.n,
                      (StMeta[]){{"producer", "depthbench"}, {"model", p->model}, {NULL, NULL}}, &w);
    if (!s.code)
        s = write_all(w, e, p, &l, buffer);
    if (!s.code) {
        st_digest(w, sha256, bytes);
        s = st_commit(&w);
    }
    st_abandon(&w);
    listing_free(&l);
    mem_free(buffer);
    return s;
}

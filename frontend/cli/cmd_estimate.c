// estimate: what a model costs, from the plan alone. Nothing is compiled or run.
#include "frontend/cli/cli.h"
#include <string.h>

typedef struct Device {
    const char *name;
    double flops, bytes; // a second: peak of the compute type, memory
    const char *source;
} Device;

// Peak dense bf16 rate and memory bandwidth; the host's are measured when asked for.
static const Device devices[] = {
    {"h200", 989e12, 4.8e12, "H200 SXM data sheet"},
    {"h100", 989e12, 3.35e12, "H100 SXM data sheet"},
    {"a100", 312e12, 2.039e12, "A100 80GB SXM data sheet"},
};

// Seconds a token if every GEMM ran at the peak rate and every row kernel at full bandwidth, one after the
// other.
static double roofline(const Counts *c, double flops, double bytes) {
    return 3 * (c->flops_proj + c->flops_attn + c->flops_head) / flops + c->row_bytes / bytes;
}

static json_t *report_json(const Built *b, const Counts *c, const char *device, double tokens_per_s) {
    return json_pack(
        "{s:s,s:s,s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:f,s:f,s:f,s:f,s:f,s:I,s:I,s:I,s:I,s:I,s:f}",
        "event", "estimate", "model", b->plan->model, "shape", b->shape.name ? b->shape.name : "", "device",
        device, "params", (json_int_t)c->params, "params_embed", (json_int_t)c->embed, "params_head",
        (json_int_t)c->head, "params_final_norm", (json_int_t)c->final_norm, "params_backbone",
        (json_int_t)(c->matrices + c->norms), "params_norms", (json_int_t)c->norms, "params_matrices",
        (json_int_t)c->matrices, "params_scheme", (json_int_t)c->scheme, "flops_projections", c->flops_proj,
        "flops_attention", c->flops_attn, "flops_head", c->flops_head, "flops_scheme", c->flops_scheme,
        "row_bytes_per_token", c->row_bytes, "params_bytes", (json_int_t)c->params_bytes, "optimizer_bytes",
        (json_int_t)c->state_bytes, "gradient_bytes", (json_int_t)c->grads_bytes, "activation_bytes",
        (json_int_t)c->acts_bytes, "io_bytes", (json_int_t)c->io_bytes, "roofline_tokens_per_s",
        tokens_per_s);
}

static void print_memory(const Options *o, const Counts *c) {
    char t[5][32];
    human(o, "memory     weights %s, optimizer %s, gradients %s, activations %s, tables and inputs %s\n",
          bytes_text((double)c->params_bytes, t[0]), bytes_text((double)c->state_bytes, t[1]),
          bytes_text((double)c->grads_bytes, t[2]), bytes_text((double)c->acts_bytes, t[3]),
          bytes_text((double)c->io_bytes, t[4]));
}

static Status print_device(const Options *o, const Built *b, const Counts *c, const Device *d) {
    char t[2][32];
    double rate = d->flops > 0 && d->bytes > 0 ? 1 / roofline(c, d->flops, d->bytes) : 0;
    human(o, "roofline   %-5s %s tokens/s (%s; %sFLOP/s)\n", d->name, count_text(rate, t[0]), d->source,
          count_text(d->flops, t[1]));
    if (o->json)
        emit_json(report_json(b, c, d->name, rate));
    return STATUS_OK;
}

static Status host_device(const Options *o, Dtype compute, Device *out) {
    DriverOptions options;
    char cache[4200];
    DriverState *state;
    DeviceInfo info;
    TRY(driver_options(o, &options, cache, sizeof cache));
    TRY(driver_host.open(&options, &state));
    Status s = driver_host.measure(state, &info);
    driver_host.close(state);
    *out = (Device){"host", info.peak_flops[compute], info.copy_bytes_per_s, "measured now"};
    return s;
}

static Status estimate_shape(const Options *o, const char *model, const char *shape) {
    Built b;
    BuildRequest r = {
        .model = model, .shape = shape, .batch = o->batch_given ? o->batch : 8, .seq = o->seq, .train = true};
    TRY(build_model(o, &r, &b));
    Counts c = plan_counts(b.plan, &b.shape);
    char t[32];
    human(o, "%s at %s, batch %lld, seq %lld, %s\n", b.plan->model,
          b.shape.name ? b.shape.name : "its own shape", (long long)b.plan->batch, (long long)b.plan->seq,
          dtype_name(b.plan->compute));
    print_costs(o, &c);
    human(o, "row bytes  %s a token, training step\n", bytes_text(c.row_bytes, t));
    print_memory(o, &c);
    Status s = STATUS_OK;
    for (size_t i = 0; i < COUNT_OF(devices) && !s.code; i++)
        if (!o->device || !strcmp(o->device, devices[i].name))
            s = print_device(o, &b, &c, &devices[i]);
    if (!s.code && (!o->device || !strcmp(o->device, "host"))) {
        Device host;
        s = host_device(o, b.plan->compute, &host);
        if (!s.code)
            s = print_device(o, &b, &c, &host);
    }
    build_free(&b);
    return s;
}

Status cmd_estimate(const Options *o) {
    if (!o->args.n)
        return status_make(EXIT_REQUEST, "estimate takes a MODEL: depthbench estimate hc --shapes 400m-L16");
    if (o->shapes && !o->shapes[strspn(o->shapes, ",")])
        return status_make(EXIT_REQUEST, "--shapes is empty; `depthbench shapes` lists the names");
    if (o->device && strcmp(o->device, "host")) {
        size_t i = 0;
        while (i < COUNT_OF(devices) && strcmp(devices[i].name, o->device))
            i++;
        if (i == COUNT_OF(devices))
            return status_make(EXIT_REQUEST, "--device %s: choose h200, h100, a100 or host", o->device);
    }
    for (int m = 0; m < o->args.n; m++) {
        char list[2048], *save;
        snprintf(list, sizeof list, "%s", o->shapes ? o->shapes : "");
        if (!o->shapes)
            TRY(estimate_shape(o, o->args.at[m], NULL));
        for (char *w = strtok_r(list, ",", &save); w; w = strtok_r(NULL, ",", &save))
            TRY(estimate_shape(o, o->args.at[m], w));
    }
    return STATUS_OK;
}

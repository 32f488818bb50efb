// The shapes table and the command that prints it.
#include "frontend/cli/cli.h"
#include <string.h>

// clang-format off
const ShapeRow shape_rows[] = {
#define SHAPE(suite, name, d, l, h, hk, hd, ff, v, total, backbone, aspect, source) {suite, {name, d, l, h, hk, hd, ff, v}, total, backbone, aspect, source},
#include "frontend/cli/shapes.def"
};
// clang-format on
const int n_shape_rows = (int)COUNT_OF(shape_rows);

Status shape_find(const char *name, Shape *out) {
    const char *names[COUNT_OF(shape_rows)];
    for (int i = 0; i < n_shape_rows; i++) {
        names[i] = shape_rows[i].shape.name;
        if (!strcmp(names[i], name)) {
            *out = shape_rows[i].shape;
            return STATUS_OK;
        }
    }
    const char *near = nearest_word(name, names, n_shape_rows);
    return status_make(EXIT_REQUEST, "unknown shape %s%s%s%s", name, near ? "; did you mean " : "",
                       near ? near : "", near ? "?" : "; `depthbench shapes` lists them");
}

static void print_json(const ShapeRow *r) {
    const Shape *s = &r->shape;
    emit_json(json_pack("{s:s,s:s,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:I,s:I,s:f,s:s}", "suite", r->suite, "name",
                        s->name, "d_model", s->d_model, "n_layer", s->n_layer, "n_head", s->n_head,
                        "n_kv_head", s->n_kv_head, "head_dim", s->head_dim, "ff", s->ff, "vocab", s->vocab,
                        "params_total", (json_int_t)r->params_total, "params_backbone",
                        (json_int_t)r->params_backbone, "aspect", r->aspect, "source", r->source));
}

Status cmd_shapes(const Options *o) {
    if (o->args.n)
        return status_make(EXIT_REQUEST, "shapes takes no argument, got %s", o->args.at[0]);
    if (!o->json)
        printf("%-18s %-18s %7s %7s %6s %9s %8s %5s %6s %12s %12s %7s\n", "suite", "name", "d_model",
               "n_layer", "n_head", "n_kv_head", "head_dim", "ff", "vocab", "params", "backbone", "aspect");
    for (int i = 0; i < n_shape_rows; i++) {
        const ShapeRow *r = &shape_rows[i];
        const Shape *s = &r->shape;
        if (o->json)
            print_json(r);
        else
            printf("%-18s %-18s %7d %7d %6d %9d %8d %5d %6d %12lld %12lld %7.2f\n", r->suite, s->name,
                   s->d_model, s->n_layer, s->n_head, s->n_kv_head, s->head_dim, s->ff, s->vocab,
                   (long long)r->params_total, (long long)r->params_backbone, r->aspect);
    }
    return STATUS_OK;
}

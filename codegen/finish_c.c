// The fixed kernels beside row kernels: adding the strips of a sum over rows, and the gradient of an
// embedding.
#include "codegen/codegen.h"

static const char prelude[] =
#include "codegen/prelude_c.inc"
    ;

#define FINISH_TEXT                                                                                          \
    "// out[i] (+)= sum over the strips, in order. size[0]: elements, size[1]: strips; items: groups of "    \
    "256 elements.\n"                                                                                        \
    "void %s(const KernelArgs *a, int64_t item0, int64_t item1, int64_t strip) {\n"                          \
    "    const float *partial = a->arg[0].at;\n"                                                             \
    "    float *out = a->arg[1].at;\n"                                                                       \
    "    int64_t n = a->size[0], end = item1 * 256 < n ? item1 * 256 : n;\n"                                 \
    "    (void)strip;\n"                                                                                     \
    "    for (int64_t i = item0 * 256; i < end; i += 16) {\n"                                                \
    "        int lanes = end - i < 16 ? (int)(end - i) : 16;\n"                                              \
    "        V sum = a->acc ? load_f32_part(out + i, lanes) : splat(0.0f);\n"                                \
    "        for (int64_t s = 0; s < a->size[1]; s++)\n"                                                     \
    "            sum += load_f32_part(partial + s * n + i, lanes);\n"                                        \
    "        store_f32_part(out + i, sum, lanes);\n"                                                         \
    "    }\n"                                                                                                \
    "}\n"

// Ids come sorted through `order`, equal ones in the order of rows, so the sum does not depend on the number
// of threads.
#define SCATTER_TEXT                                                                                         \
    "// out[v] (+)= sum of the rows of x whose id is v, in row order. size[0]: rows, size[1]: d; items: "    \
    "vocabulary rows.\n"                                                                                     \
    "void %s(const KernelArgs *a, int64_t item0, int64_t item1, int64_t strip) {\n"                          \
    "    const %s *x = a->arg[0].at;\n"                                                                      \
    "    const int32_t *ids = a->arg[1].at, *order = a->arg[2].at;\n"                                        \
    "    int64_t n = a->size[0], d = a->size[1], low = 0, high = n;\n"                                       \
    "    (void)strip;\n"                                                                                     \
    "    while (low < high) { // the first row whose id is not below item0\n"                                \
    "        int64_t middle = (low + high) / 2;\n"                                                           \
    "        if (ids[order[middle]] < item0)\n"                                                              \
    "            low = middle + 1;\n"                                                                        \
    "        else\n"                                                                                         \
    "            high = middle;\n"                                                                           \
    "    }\n"                                                                                                \
    "    for (int64_t v = item0; v < item1; v++) {\n"                                                        \
    "        float *out = (float *)a->arg[3].at + v * d;\n"                                                  \
    "        for (int64_t j = 0; !a->acc && j < d; j++)\n"                                                   \
    "            out[j] = 0.0f;\n"                                                                           \
    "        for (; low < n && ids[order[low]] == v; low++) {\n"                                             \
    "            const %s *row = x + order[low] * a->arg[0].stride[0];\n"                                    \
    "            for (int64_t j = 0; j < d; j += 16) {\n"                                                    \
    "                int lanes = d - j < 16 ? (int)(d - j) : 16;\n"                                          \
    "                V sum = load_f32_part(out + j, lanes) + load_%s_part(row + j, lanes);\n"                \
    "                store_f32_part(out + j, sum, lanes);\n"                                                 \
    "            }\n"                                                                                        \
    "        }\n"                                                                                            \
    "    }\n"                                                                                                \
    "}\n"

const char *codegen_c_finish(Arena *a, const char *name) {
    return arena_format(a, "%s\n" FINISH_TEXT, prelude, name);
}

const char *codegen_c_scatter(Arena *a, Dtype x, const char *name) {
    const char *type = x == DT_BF16 ? "bf16" : "float", *load = x == DT_BF16 ? "bf16" : "f32";
    return arena_format(a, "%s\n" SCATTER_TEXT, prelude, name, type, type, load);
}

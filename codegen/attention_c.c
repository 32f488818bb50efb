// Causal attention with grouped heads for the host, forward and gradient: C text for one head_dim, group and
// storage type.
//
// Flash scheme: blocks of queries against blocks of keys, softmax with a running maximum, nothing of size seq
// x seq. All products are one microkernel, R rows times up to three vectors with the sums in
// registers: lanes are keys for q k^T and g v^T (k, v transposed into scratch), head_dim for the others
// (padded to 16 there). exp is a polynomial for 2^x; log2(e) and the scale are multiplied into q. Only blocks
// on the diagonal are masked, and they skip what lies above it in steps of 16 keys. Fused multiply-adds are
// written out, so that contraction can stay off.
#include "codegen/codegen.h"
#include "ir/plan.h"

enum { WIDE_ROWS = 8, NARROW_ROWS = 4, MAX_VECS = 3 }; // of the microkernel; rows are R of the text

static const char text_head[] =
    "#include <stdint.h>\n"
    "#define INLINE static inline __attribute__((always_inline))\n"
    "typedef struct KernelArg { void *at; int64_t stride[3]; } KernelArg; // strides of b, s, head\n"
    "typedef struct KernelArgs {\n"
    "    int64_t size[6]; // B, S, H, G, head_dim, 1: a gradient that is given D\n"
    "    const KernelArg *arg;\n"
    "    const float *scalar; // scale of q k^T\n"
    "    int64_t acc;\n"
    "    void *scratch;\n"
    "} KernelArgs;\n"
    "// W lanes a vector, R rows a microkernel: what the registers of the machine hold.\n"
    "#if defined __AVX512F__\n"
    "enum { W = 16, R = 8 };\n"
    "#define LANES {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}\n"
    "#elif defined __AVX2__\n"
    "enum { W = 8, R = 4 };\n"
    "#define LANES {0, 1, 2, 3, 4, 5, 6, 7}\n"
    "#else\n"
    "enum { W = 4, R = 4 };\n"
    "#define LANES {0, 1, 2, 3}\n"
    "#endif\n"
    "typedef float V __attribute__((vector_size(4 * W), may_alias));\n"
    "typedef int32_t I __attribute__((vector_size(4 * W), may_alias));\n"
    "typedef uint16_t S __attribute__((vector_size(2 * W), may_alias));\n"
    "typedef float VU __attribute__((vector_size(4 * W), aligned(4), may_alias)); // at any address\n"
    "typedef uint16_t SU __attribute__((vector_size(2 * W), aligned(2), may_alias));\n"
    "\n"
    "INLINE V splat(float x) { return x - (V){0}; }\n"
    "INLINE V pick(I mask, V a, V b) { return (V)((mask & (I)a) | (~mask & (I)b)); }\n"
    "// larger(a, b) is b where either is not a number. Builtins, because the header of the intrinsics takes "
    "longer to\n"
    "// compile than this file.\n"
    "#if defined __AVX512F__\n"
    "typedef float F __attribute__((vector_size(64)));\n"
    "INLINE V fmadd(V a, V b, V c) { return (V)__builtin_ia32_vfmaddps512_mask((F)a, (F)b, (F)c, "
    "(uint16_t)-1, 4); }\n"
    "#if defined __clang__\n"
    "INLINE V larger(V a, V b) { return (V)__builtin_ia32_maxps512((F)a, (F)b, 4); }\n"
    "#else\n"
    "INLINE V larger(V a, V b) { return (V)__builtin_ia32_maxps512_mask((F)a, (F)b, (F)b, (uint16_t)-1, 4); "
    "}\n"
    "#endif\n"
    "#elif defined __AVX2__ && defined __FMA__\n"
    "typedef float F __attribute__((vector_size(32)));\n"
    "INLINE V fmadd(V a, V b, V c) { return (V)__builtin_ia32_vfmaddps256((F)a, (F)b, (F)c); }\n"
    "INLINE V larger(V a, V b) { return (V)__builtin_ia32_maxps256((F)a, (F)b); }\n"
    "#else\n"
    "INLINE V fmadd(V a, V b, V c) { return a * b + c; }\n"
    "INLINE V larger(V a, V b) { return pick(a > b, a, b); }\n"
    "#endif\n"
    "// Lanes are joined by halves: i with i + 8, then i + 4 ...\n"
    "typedef float V4 __attribute__((vector_size(16), may_alias));\n"
    "typedef int32_t I4 __attribute__((vector_size(16), may_alias));\n"
    "typedef union Quarters { V v; V4 q[W / 4]; } Quarters;\n"
    "INLINE float sum_lanes(V x) {\n"
    "    Quarters u = {x};\n"
    "    for (int n = W / 8; n; n /= 2)\n"
    "        for (int i = 0; i < n; i++) u.q[i] = u.q[i] + u.q[i + n];\n"
    "    return (u.q[0][0] + u.q[0][2]) + (u.q[0][1] + u.q[0][3]);\n"
    "}\n"
    "INLINE float max_lanes(V x) {\n"
    "    Quarters u = {x};\n"
    "    for (int n = W / 8; n; n /= 2)\n"
    "        for (int i = 0; i < n; i++) {\n"
    "            I4 more = u.q[i] > u.q[i + n];\n"
    "            u.q[i] = (V4)((more & (I4)u.q[i]) | (~more & (I4)u.q[i + n]));\n"
    "        }\n"
    "    float m = u.q[0][0];\n"
    "    for (int i = 1; i < 4; i++) m = m > u.q[0][i] ? m : u.q[0][i];\n"
    "    return m;\n"
    "}\n"
    "#define LOG2E 1.44269504088896341f\n"
    "#define LN2 0.693147180559945309f\n"
    "#define NONE (-__builtin_inff())\n"
    "\n"
    "// 2^x, relative error 1e-7, exact for whole x; below -126 it is 2^-126; what is no number stays so.\n"
    "INLINE V exp2_v(V x) {\n"
    "    x = larger(splat(-126.0f), x);\n"
    "    V magic = splat(0x1.8p23f + 127.0f), t = x + magic, f = x - (t - magic);\n"
    "    V p = splat(0x1.5bba14p-10f);\n"
    "    p = fmadd(p, f, splat(0x1.3cea88p-7f));\n"
    "    p = fmadd(p, f, splat(0x1.c6b752p-5f));\n"
    "    p = fmadd(p, f, splat(0x1.ebf9bcp-3f));\n"
    "    p = fmadd(p, f, splat(0x1.62e42ap-1f));\n"
    "    p = fmadd(p, f, splat(1.0f));\n"
    "    return p * (V)((I)t << 23);\n"
    "}\n"
    "\n"
    "// Natural logarithm of a positive number.\n"
    "static float log_f(float x) {\n"
    "    union { float f; int32_t i; } u = {x};\n"
    "    int32_t e = (u.i - 0x3f3504f3) >> 23; // mantissa in [sqrt(1/2), sqrt(2))\n"
    "    u.i -= e * (1 << 23);\n"
    "    double r = ((double)u.f - 1.0) / ((double)u.f + 1.0), s = r * r, y = 0.0;\n"
    "    for (int k = 13; k > 0; k -= 2) y = y * s + 2.0 / k;\n"
    "    return (float)(e * 0.69314718055994531 + r * y);\n"
    "}\n"
    "\n";

static const char text_f32[] = "typedef float T;\n"
                               "INLINE V load_v(const T *p) { return (V)*(const VU *)p; }\n"
                               "INLINE void store_v(T *p, V x) { *(VU *)p = (VU)x; }\n";

static const char text_bf16[] =
    "typedef uint16_t T; // bf16\n"
    "INLINE V load_v(const T *p) { return (V)(__builtin_convertvector((S)*(const SU *)p, I) << 16); }\n"
    "INLINE void store_v(T *p, V x) { // to nearest even; what is no number stays so\n"
    "    I u = (I)x, r = u + 0x7fff + ((u >> 16) & 1);\n"
    "    r = (I)pick(x == x, (V)r, (V)(u | 0x7fc00000));\n"
    "    *(SU *)p = (SU)__builtin_convertvector((r >> 16) & 0xffff, S);\n"
    "}\n";

static const char text_rows[] =
    "// Rows of HD elements as NV vectors, the last one padded with zeros.\n"
    "INLINE V load_row(const T *p, int j) {\n"
    "    if (W * j + W <= HD) return load_v(p + W * j);\n"
    "    T t[W] = {0};\n"
    "    if (W * j < HD) __builtin_memcpy(t, p + W * j, HD % W * sizeof(T));\n"
    "    return load_v(t);\n"
    "}\n"
    "INLINE void store_row(T *p, int j, V x) {\n"
    "    T t[W];\n"
    "    if (W * j + W <= HD) { store_v(p + W * j, x); return; }\n"
    "    store_v(t, x);\n"
    "    if (W * j < HD) __builtin_memcpy(p + W * j, t, HD % W * sizeof(T));\n"
    "}\n"
    "// n rows times factor into out [rows, HDP]; rows beyond n are zero.\n"
    "static void pack_rows(const T *p, int64_t stride, int64_t n, int64_t rows, float factor, float *out) {\n"
    "    for (int64_t i = 0; i < rows; i++)\n"
    "        for (int j = 0; j < NV; j++) {\n"
    "            V x = splat(0.0f);\n"
    "            if (i < n) x = load_row(p + i * stride, j) * splat(factor);\n"
    "            *(V *)(out + i * HDP + W * j) = x;\n"
    "        }\n"
    "}\n"
    "// n rows transposed into out [HD, KB]; columns beyond n up to a multiple of 16 are zero.\n"
    "static void pack_columns(const T *p, int64_t stride, int64_t n, float *out) {\n"
    "    _Alignas(64) float t[16][HDP];\n"
    "    for (int64_t i0 = 0; i0 < n; i0 += 16) {\n"
    "        for (int64_t i = 0; i < 16; i++)\n"
    "            for (int j = 0; j < NV; j++) {\n"
    "                V x = splat(0.0f);\n"
    "                if (i0 + i < n) x = load_row(p + (i0 + i) * stride, j);\n"
    "                *(V *)(t[i] + W * j) = x;\n"
    "            }\n"
    "        for (int64_t d = 0; d < HD; d++)\n"
    "            for (int64_t i = 0; i < 16; i++) out[d * KB + i0 + i] = t[i][d];\n"
    "    }\n"
    "}\n"
    "static const I lane = LANES;\n"
    "INLINE int64_t min_i(int64_t a, int64_t b) { return a < b ? a : b; }\n"
    "\n";

// One microkernel: c[rows, W vecs] (+)= sum over l of a[row, l] * b[l, W vecs], everything in registers.
static void print_tile(Text *t, int rows, int vecs) {
    text_add(
        t,
        "INLINE void tile_%d(int64_t n, const float *a, int64_t ai, int64_t al, const float *b, int64_t ldb, "
        "float *c, int64_t ldc, int add) {\n",
        vecs);
    for (int i = 0; i < rows; i++) {
        text_add(t, "    V");
        for (int j = 0; j < vecs; j++)
            text_add(t, "%s x%d%d = splat(0.0f)", j ? "," : "", i, j);
        text_add(t, ";\n");
    }
    text_add(t, "    if (add) {\n");
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vecs; j++)
            text_add(t, "        x%d%d = *(const V *)(c + %d * ldc + %d * W);\n", i, j, i, j);
    text_add(t, "    }\n    for (int64_t l = 0; l < n; l++, a += al, b += ldb) {\n");
    for (int j = 0; j < vecs; j++)
        text_add(t, "        V b%d = *(const V *)(b + %d * W);\n", j, j);
    for (int i = 0; i < rows; i++) {
        text_add(t, "        V a%d = splat(a[%d * ai]);\n", i, i);
        for (int j = 0; j < vecs; j++)
            text_add(t, "        x%d%d = fmadd(a%d, b%d, x%d%d);\n", i, j, i, j, i, j);
    }
    text_add(t, "    }\n");
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vecs; j++)
            text_add(t, "    *(V *)(c + %d * ldc + %d * W) = x%d%d;\n", i, j, i, j);
    text_add(t, "}\n");
}

static const char text_product[] =
    "// c[R, W vecs] (+)= sum over l < n of a[i, l] * b[l, W vecs]; a[i, l] is at a + i * ai + l * al.\n"
    "INLINE void product(int vecs, int64_t n, const float *a, int64_t ai, int64_t al, const float *b, "
    "int64_t ldb,\n"
    "                    float *c, int64_t ldc, int add) {\n"
    "    int j = 0;\n"
    "    for (; vecs - j >= 3 && vecs - j != 4; j += 3) tile_3(n, a, ai, al, b + W * j, ldb, c + W * j, "
    "ldc, add);\n"
    "    for (; vecs - j >= 2; j += 2) tile_2(n, a, ai, al, b + W * j, ldb, c + W * j, ldc, add);\n"
    "    for (; j < vecs; j++) tile_1(n, a, ai, al, b + W * j, ldb, c + W * j, ldc, add);\n"
    "}\n"
    "\n";

static const char text_forward[] =
    "// R rows of scores sc [R, KB] into weights, with the running maximum m and sum l of each row; acc is "
    "what the rows\n"
    "// have summed so far. limit: the last key, counted in this block, that row 0 may see.\n"
    "INLINE void softmax(int vecs, int diagonal, int64_t limit, float *sc, float *m, float *l, float *acc) "
    "{\n"
    "    for (int64_t i = 0; i < R; i++, sc += KB, acc += HDP) {\n"
    "        V top = splat(NONE), sum = splat(0.0f);\n"
    "        for (int j = 0; j < vecs; j++) {\n"
    "            V s = *(V *)(sc + W * j);\n"
    "            if (diagonal) *(V *)(sc + W * j) = s = pick(lane + W * j <= (int32_t)(limit + i), s, "
    "splat(NONE));\n"
    "            top = larger(top, s);\n"
    "        }\n"
    "        float high = max_lanes(top), old = m[i];\n"
    "        high = high > old ? high : old;\n"
    "        V factor = exp2_v(splat(old - high));\n"
    "        for (int j = 0; j < vecs; j++) {\n"
    "            V s = *(V *)(sc + W * j), p = exp2_v(s - splat(high));\n"
    "            if (diagonal) p = pick(lane + W * j <= (int32_t)(limit + i), p, splat(0.0f));\n"
    "            *(V *)(sc + W * j) = p;\n"
    "            sum = sum + p;\n"
    "        }\n"
    "        l[i] = l[i] * factor[0] + sum_lanes(sum);\n"
    "        m[i] = high;\n"
    "        for (int j = 0; j < NV; j++) *(V *)(acc + W * j) = *(V *)(acc + W * j) * factor;\n"
    "    }\n"
    "}\n"
    "\n"
    "typedef struct Scratch {\n"
    "    _Alignas(64) float kt[HD][KB], v[KB][HDP], q[QB][HDP], acc[QB][HDP], sc[R][KB], m[QB], l[QB];\n"
    "} Scratch;\n"
    "\n"
    "static void finish(const Scratch *w, int64_t n, T *o, int64_t o_stride, float *lse, int64_t lse_stride) "
    "{\n"
    "    for (int64_t i = 0; i < n; i++) {\n"
    "        for (int j = 0; j < NV; j++) store_row(o + i * o_stride, j, *(V *)(w->acc[i] + W * j) / "
    "splat(w->l[i]));\n"
    "        lse[i * lse_stride] = w->m[i] * LN2 + log_f(w->l[i]);\n"
    "    }\n"
    "}\n"
    "\n"
    "// One query block of one head.\n"
    "static void forward(const KernelArgs *a, int64_t b, int64_t h, int64_t q0) {\n"
    "    Scratch *w = a->scratch;\n"
    "    const KernelArg *q = &a->arg[0], *k = &a->arg[1], *v = &a->arg[2], *o = &a->arg[3], *lse = "
    "&a->arg[4];\n"
    "    int64_t n = min_i(QB, a->size[1] - q0), g = h / GROUP;\n"
    "    const T *k_at = (const T *)k->at + b * k->stride[0] + g * k->stride[2];\n"
    "    const T *v_at = (const T *)v->at + b * v->stride[0] + g * v->stride[2];\n"
    "    pack_rows((const T *)q->at + b * q->stride[0] + q0 * q->stride[1] + h * q->stride[2], q->stride[1], "
    "n,\n"
    "              (n + R - 1) / R * R, a->scalar[0] * LOG2E, w->q[0]);\n"
    "    for (int64_t i = 0; i < QB; i++) {\n"
    "        w->m[i] = NONE;\n"
    "        w->l[i] = 0.0f;\n"
    "        for (int j = 0; j < NV; j++) *(V *)(w->acc[i] + W * j) = splat(0.0f);\n"
    "    }\n"
    "    for (int64_t k0 = 0; k0 < q0 + n; k0 += KB) {\n"
    "        int64_t n_keys = min_i(KB, q0 + n - k0);\n"
    "        pack_columns(k_at + k0 * k->stride[1], k->stride[1], n_keys, w->kt[0]);\n"
    "        pack_rows(v_at + k0 * v->stride[1], v->stride[1], n_keys, (n_keys + 15) / 16 * 16, 1.0f, "
    "w->v[0]);\n"
    "        for (int64_t i = k0 > q0 ? (k0 - q0) / R * R : 0; i < n; i += R) {\n"
    "            int64_t first = q0 + i - k0, last = min_i(first + R, q0 + n - k0) - 1; // as keys of this "
    "block\n"
    "            int vecs = (int)min_i(KB / W, last / W + 1);\n"
    "            product(vecs, HD, w->q[i], HDP, 1, w->kt[0], KB, w->sc[0], KB, 0);\n"
    "            if (W * vecs - 1 > first)\n"
    "                softmax(vecs, 1, first, w->sc[0], w->m + i, w->l + i, w->acc[i]);\n"
    "            else\n"
    "                softmax(vecs, 0, first, w->sc[0], w->m + i, w->l + i, w->acc[i]);\n"
    "            product(NV, W * vecs, w->sc[0], KB, 1, w->v[0], HDP, w->acc[i], HDP, 1);\n"
    "        }\n"
    "    }\n"
    "    finish(w, n, (T *)o->at + b * o->stride[0] + q0 * o->stride[1] + h * o->stride[2], o->stride[1],\n"
    "           (float *)lse->at + b * lse->stride[0] + q0 * lse->stride[1] + h * lse->stride[2], "
    "lse->stride[1]);\n"
    "}\n"
    "\n";

static const char text_gradient[] =
    "// Keys are taken in panels: all of them at once unless seq * head_dim is very large.\n"
    "typedef struct Block { // KB keys\n"
    "    _Alignas(64) float kt[HD][KB], vt[HD][KB], k[KB][HDP], dk[KB][HDP], dv[KB][HDP];\n"
    "} Block;\n"
    "typedef struct Scratch {\n"
    "    _Alignas(64) float q[QB][HDP], g[QB][HDP], dq[QB][HDP], p[QB][KB], ds[QB][KB], lse[QB], dot[QB];\n"
    "    Block block[];\n"
    "} Scratch;\n"
    "enum { PANEL = (SCRATCH - sizeof(Scratch)) / sizeof(Block) };\n"
    "\n"
    "typedef struct Row { T *at; int64_t stride; } Row;\n"
    "INLINE Row row_of(const KernelArg *x, int64_t b, int64_t s, int64_t head) {\n"
    "    return (Row){(T *)x->at + b * x->stride[0] + s * x->stride[1] + head * x->stride[2], "
    "x->stride[1]};\n"
    "}\n"
    "\n"
    "// Queries of a block: q, g, and for each row lse and D, which is o . g where it is not given.\n"
    "static void load_queries(const KernelArgs *a, Scratch *w, int64_t b, int64_t h, int64_t q0, int64_t n) "
    "{\n"
    "    Row q = row_of(&a->arg[0], b, q0, h), o = row_of(&a->arg[3], b, q0, h), g = row_of(&a->arg[5], b, "
    "q0, h);\n"
    "    const KernelArg *lse = &a->arg[4], *dot = &a->arg[3];\n"
    "    const float *l = (const float *)lse->at + b * lse->stride[0] + q0 * lse->stride[1] + h * "
    "lse->stride[2];\n"
    "    const float *d = (const float *)dot->at + b * dot->stride[0] + q0 * dot->stride[1] + h * "
    "dot->stride[2];\n"
    "    int given = a->size[5] != 0;\n"
    "    pack_rows(q.at, q.stride, n, QB, a->scalar[0] * LOG2E, w->q[0]);\n"
    "    pack_rows(g.at, g.stride, n, QB, 1.0f, w->g[0]);\n"
    "    for (int64_t i = 0; i < QB; i++) {\n"
    "        V sum = splat(0.0f);\n"
    "        for (int j = 0; j < NV; j++) {\n"
    "            if (i < n && !given) sum = fmadd(load_row(o.at + i * o.stride, j), *(V *)(w->g[i] + W * j), sum);\n"
    "            *(V *)(w->dq[i] + W * j) = splat(0.0f);\n"
    "        }\n"
    "        w->dot[i] = given && i < n ? d[i * dot->stride[1]] : sum_lanes(sum);\n"
    "        w->lse[i] = i < n ? l[i * lse->stride[1]] * LOG2E : 0.0f;\n"
    "    }\n"
    "}\n"
    "\n"
    "// R rows: weights p from scores, ds from the products g v^T. Behind the last vector both are zero on "
    "the diagonal.\n"
    "INLINE void weights(int vecs, int diagonal, int64_t first, Scratch *w, int64_t i0) {\n"
    "    for (int64_t i = i0; i < i0 + R; i++) {\n"
    "        V lse = splat(w->lse[i]), dot = splat(w->dot[i]);\n"
    "        for (int j = 0; j < vecs; j++) {\n"
    "            V p = exp2_v(*(V *)(w->p[i] + W * j) - lse);\n"
    "            V ds = p * (*(V *)(w->ds[i] + W * j) - dot);\n"
    "            if (diagonal) {\n"
    "                I keep = lane + W * j <= (int32_t)(first + i - i0);\n"
    "                p = pick(keep, p, splat(0.0f));\n"
    "                ds = pick(keep, ds, splat(0.0f));\n"
    "            }\n"
    "            *(V *)(w->p[i] + W * j) = p;\n"
    "            *(V *)(w->ds[i] + W * j) = ds;\n"
    "        }\n"
    "        for (int j = vecs; diagonal && j < KB / W; j++)\n"
    "            *(V *)(w->p[i] + W * j) = *(V *)(w->ds[i] + W * j) = splat(0.0f);\n"
    "    }\n"
    "}\n"
    "\n"
    "// One block of queries against one block of keys. first: query 0 of the block, counted in keys of the "
    "block; it is\n"
    "// 0 on the diagonal and a multiple of KB below.\n"
    "static void block(Scratch *w, Block *x, int64_t n, int64_t first) {\n"
    "    for (int64_t i = 0; i < n; i += R) {\n"
    "        int vecs = (int)min_i(KB / W, (first + min_i(i + R, n) - 1) / W + 1);\n"
    "        product(vecs, HD, w->q[i], HDP, 1, x->kt[0], KB, w->p[i], KB, 0);\n"
    "        product(vecs, HD, w->g[i], HDP, 1, x->vt[0], KB, w->ds[i], KB, 0);\n"
    "        if (first == 0)\n"
    "            weights(vecs, 1, first + i, w, i);\n"
    "        else\n"
    "            weights(vecs, 0, first + i, w, i);\n"
    "        product(NV, W * vecs, w->ds[i], KB, 1, x->k[0], HDP, w->dq[i], HDP, 1);\n"
    "    }\n"
    "    for (int64_t j = 0; j < KB; j += R) { // a key is seen by itself and by later queries\n"
    "        int64_t from = first ? 0 : j;\n"
    "        if (from >= n) break;\n"
    "        product(NV, n - from, w->p[from] + j, 1, KB, w->g[from], HDP, x->dv[j], HDP, 1);\n"
    "        product(NV, n - from, w->ds[from] + j, 1, KB, w->q[from], HDP, x->dk[j], HDP, 1);\n"
    "    }\n"
    "}\n"
    "\n"
    "static void load_keys(const KernelArgs *a, Block *x, int64_t b, int64_t g, int64_t k0, int64_t n) {\n"
    "    Row k = row_of(&a->arg[1], b, k0, g), v = row_of(&a->arg[2], b, k0, g);\n"
    "    pack_columns(k.at, k.stride, n, x->kt[0]);\n"
    "    pack_columns(v.at, v.stride, n, x->vt[0]);\n"
    "    pack_rows(k.at, k.stride, n, KB, 1.0f, x->k[0]);\n"
    "    for (int64_t i = 0; i < KB; i++)\n"
    "        for (int j = 0; j < NV; j++) *(V *)(x->dk[i] + W * j) = *(V *)(x->dv[i] + W * j) = "
    "splat(0.0f);\n"
    "}\n"
    "\n"
    "static void store_keys(const KernelArgs *a, const Block *x, int64_t b, int64_t g, int64_t k0, int64_t "
    "n) {\n"
    "    Row dk = row_of(&a->arg[7], b, k0, g), dv = row_of(&a->arg[8], b, k0, g);\n"
    "    for (int64_t i = 0; i < n; i++)\n"
    "        for (int j = 0; j < NV; j++) {\n"
    "            store_row(dk.at + i * dk.stride, j, *(const V *)(x->dk[i] + W * j) * splat(LN2)); // q "
    "holds log2(e)\n"
    "            store_row(dv.at + i * dv.stride, j, *(const V *)(x->dv[i] + W * j));\n"
    "        }\n"
    "}\n"
    "\n"
    "// All queries of one head that see the panel of keys [p0, p1).\n"
    "static void head(const KernelArgs *a, int64_t b, int64_t h, int64_t p0, int64_t p1) {\n"
    "    Scratch *w = a->scratch;\n"
    "    for (int64_t q0 = p0; q0 < a->size[1]; q0 += QB) {\n"
    "        int64_t n = min_i(QB, a->size[1] - q0);\n"
    "        load_queries(a, w, b, h, q0, n);\n"
    "        for (int64_t k0 = p0; k0 < p1 && k0 <= q0; k0 += KB) block(w, &w->block[(k0 - p0) / KB], n, q0 "
    "- k0);\n"
    "        Row dq = row_of(&a->arg[6], b, q0, h);\n"
    "        for (int64_t i = 0; i < n; i++)\n"
    "            for (int j = 0; j < NV; j++) {\n"
    "                T *at = dq.at + i * dq.stride;\n"
    "                V x = *(V *)(w->dq[i] + W * j) * splat(a->scalar[0]);\n"
    "                if (p0) x = x + load_row(at, j);\n"
    "                store_row(at, j, x);\n"
    "            }\n"
    "    }\n"
    "}\n"
    "\n"
    "// One key head: panels of keys; in each, the heads of its group in order.\n"
    "static void gradient(const KernelArgs *a, int64_t b, int64_t g) {\n"
    "    Scratch *w = a->scratch;\n"
    "    int64_t s = a->size[1];\n"
    "    for (int64_t p0 = 0, p1; p0 < s; p0 = p1) {\n"
    "        p1 = min_i(s, p0 + (int64_t)PANEL * KB);\n"
    "        for (int64_t k0 = p0; k0 < p1; k0 += KB) load_keys(a, &w->block[(k0 - p0) / KB], b, g, k0, "
    "min_i(KB, p1 - k0));\n"
    "        for (int64_t h = g * GROUP; h < (g + 1) * GROUP; h++) head(a, b, h, p0, p1);\n"
    "        for (int64_t k0 = p0; k0 < p1; k0 += KB) store_keys(a, &w->block[(k0 - p0) / KB], b, g, k0, "
    "min_i(KB, p1 - k0));\n"
    "    }\n"
    "}\n"
    "\n";

static void print_entry(Text *t, bool grad, const char *name) {
    char symbol[256];
    size_t n = 0;
    for (; name[n] && n + 1 < sizeof symbol; n++) {
        char c = name[n];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        symbol[n] = plain ? c : '_';
    }
    symbol[n] = 0;
    text_add(t, "void %s(const KernelArgs *a, int64_t item0, int64_t item1, int64_t strip) {\n", symbol);
    text_add(t, "    (void)strip;\n    for (int64_t i = item0; i < item1; i++)");
    if (grad) {
        text_add(t, " gradient(a, i / a->size[3], i %% a->size[3]);\n}\n");
    } else {
        text_add(t, " {\n        int64_t n = (a->size[1] + QB - 1) / QB, row = i / n;\n"
                    "        forward(a, row / a->size[2], row %% a->size[2], i %% n * QB);\n    }\n}\n");
    }
}

const char *codegen_c_attention(Arena *a, int head_dim, int group, Dtype dtype, bool grad, const char *name) {
    CHECK(head_dim >= 2 && head_dim <= 256 && head_dim % 2 == 0, "attention with head_dim %d", head_dim);
    Text t = {.arena = a};
    int padded = (head_dim + 15) / 16 * 16;
    text_add(&t, "// Causal attention%s: head_dim %d, %d query heads a key head, stored as %s.\n",
             grad ? ", gradient" : "", head_dim, group, dtype_name(dtype));
    text_add(&t, "%s", text_head);
    text_add(&t, "enum { HD = %d, HDP = %d, NV = HDP / W, GROUP = %d };\n", head_dim, padded, group);
    text_add(&t, "enum { QB = %d, KB = %d, SCRATCH = %d }; // queries and keys a block\n",
             grad ? 64 : PLAN_ATTN_QUERIES, grad ? 64 : 128, 16 << 20);
    text_add(&t, "%s%s", dtype == DT_BF16 ? text_bf16 : text_f32, text_rows);
    text_add(&t, "#if defined __AVX512F__\n");
    for (int vecs = 1; vecs <= MAX_VECS; vecs++)
        print_tile(&t, WIDE_ROWS, vecs);
    text_add(&t, "#else\n");
    for (int vecs = 1; vecs <= MAX_VECS; vecs++)
        print_tile(&t, NARROW_ROWS, vecs);
    text_add(&t, "#endif\n%s%s", text_product, grad ? text_gradient : text_forward);
    print_entry(&t, grad, name);
    return t.at;
}

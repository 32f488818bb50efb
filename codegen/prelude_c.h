// What stands before every row kernel: 16-lane vectors, loads and stores, functions, folds.
// Plain C with GNU vectors; the same bits from gcc and clang, at any -O level, on any instruction set:
// nothing is contracted or reassociated, and a scalar function is the vector function in one lane.
#include <stdint.h>

typedef struct KernelArg {
    void *at;
    int64_t stride[3]; // elements between neighbours along each row axis
} KernelArg;
typedef struct KernelArgs {
    int64_t size[6]; // of the row axes
    const KernelArg *arg;
    const float *scalar;
    int64_t acc;
    void *scratch; // of this thread
} KernelArgs;

#define INLINE static inline __attribute__((always_inline))
typedef uint16_t bf16;
typedef float V __attribute__((vector_size(64), may_alias));
typedef int32_t I __attribute__((vector_size(64), may_alias));
typedef uint32_t U __attribute__((vector_size(64), may_alias));
typedef uint16_t H __attribute__((vector_size(32), may_alias));
typedef float VU __attribute__((vector_size(64), aligned(4), may_alias)); // at any address
typedef uint16_t HU __attribute__((vector_size(32), aligned(2), may_alias));
static const I LANE = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

INLINE V splat(float x) {
    return (V){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}
INLINE I splat_i(int32_t x) {
    return (I){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}
INLINE V pick(I mask, V a, V b) {
    return (V)((mask & (I)a) | (~mask & (I)b));
}
INLINE V to_float(I x) {
    return __builtin_convertvector(x, V);
}

// ---- Memory. `part` variants touch n < 16 elements; the other lanes read zero.
INLINE V load_f32(const float *p) {
    return (V) * (const VU *)p;
}
INLINE V widen(H x) {
    return (V)(__builtin_convertvector(x, U) << 16);
}
INLINE H narrow(V x) { // x holds bf16 numbers
    return __builtin_convertvector((U)x >> 16, H);
}
INLINE V load_bf16(const bf16 *p) {
    return widen((H) * (const HU *)p);
}
INLINE void store_f32(float *p, V x) {
    *(VU *)p = (VU)x;
}
INLINE void store_bf16(bf16 *p, V x) {
    *(HU *)p = (HU)narrow(x);
}
INLINE V load_f32_part(const float *p, int n) {
    V x = splat(0.0f);
    __builtin_memcpy(&x, p, (unsigned)n * 4);
    return x;
}
INLINE V load_bf16_part(const bf16 *p, int n) {
    H x = {0};
    __builtin_memcpy(&x, p, (unsigned)n * 2);
    return widen(x);
}
INLINE void store_f32_part(float *p, V x, int n) {
    __builtin_memcpy(p, &x, (unsigned)n * 4);
}
INLINE void store_bf16_part(bf16 *p, V x, int n) {
    H h = narrow(x);
    __builtin_memcpy(p, &h, (unsigned)n * 2);
}
INLINE void add_f32(float *p, V x) {
    store_f32(p, load_f32(p) + x);
}
INLINE void add_f32_part(float *p, V x, int n) {
    store_f32_part(p, load_f32_part(p, n) + x, n);
}
INLINE V first_lanes(V x, int n, float rest) {
    return pick(LANE < n, x, splat(rest));
}
INLINE V round_bf16_v(V x) { // to nearest even; what is no number stays so
    U u = (U)x, r = u + 0x7fff + ((u >> 16) & 1);
    return (V)((U)pick(x == x, (V)r, (V)(u | 0x400000)) & 0xffff0000);
}
INLINE float round_bf16_s(float x) {
    return round_bf16_v(splat(x))[0];
}
INLINE float bf16_s(bf16 x) {
    union {
        uint32_t u;
        float f;
    } bits = {(uint32_t)x << 16};
    return bits.f;
}
INLINE bf16 to_bf16_s(float x) { // x holds a bf16 number
    union {
        float f;
        uint32_t u;
    } bits = {x};
    return (bf16)(bits.u >> 16);
}

// ---- Folds: always the same tree, 16 -> 8 -> 4 -> 2 -> 1.
#if defined __has_builtin
#if __has_builtin(__builtin_shufflevector)
#define HAS_SHUFFLE
#endif
#endif
#ifdef HAS_SHUFFLE
#define FOLD(name, step)                                                                                     \
    INLINE float name(V x) {                                                                                 \
        V y = __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);           \
        x = step(x, y);                                                                                      \
        y = __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);             \
        x = step(x, y);                                                                                      \
        y = __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);             \
        x = step(x, y);                                                                                      \
        y = __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);             \
        return step(x, y)[0];                                                                                \
    }
#else
#define FOLD(name, step)                                                                                     \
    INLINE float name(V x) {                                                                                 \
        for (int width = 8; width; width /= 2) {                                                             \
            V y = x;                                                                                         \
            for (int i = 0; i < width; i++)                                                                  \
                y[i] = x[i + width];                                                                         \
            x = step(x, y);                                                                                  \
        }                                                                                                    \
        return x[0];                                                                                         \
    }
#endif

// ---- Functions of f32, error below 2.5 units in the last place; NaN gives NaN.
INLINE V
exp_v(V x) { // e^r * 2^n, |r| <= ln(2)/2; the power in two steps, so that results below 2^-126 round once
    x = pick(x > splat(89.0f), splat(89.0f), x);
    x = pick(x < splat(-104.0f), splat(-104.0f), x);
    V t = x * 0x1.715476p+0f + 0x1.8p+23f, n = t - 0x1.8p+23f;
    V r = x - n * 0x1.63p-1f;
    r = r + n * 0x1.bd0106p-13f;
    V p = r * 0x1.a1bd5cp-13f + 0x1.6d9e3ep-10f;
    p = p * r + 0x1.11107ap-7f;
    p = p * r + 0x1.555478p-5f;
    p = p * r + 0x1.555556p-3f;
    p = p * r + 0x1p-1f;
    p = (p * (r * r) + r) + 1.0f;
    I whole = (I)((U)t - 0x4b400000u), half = whole >> 1;
    return p * (V)((U)(half + 127) << 23) * (V)((U)(whole - half + 127) << 23);
}
INLINE V log_v(V x) { // x = 2^e * (1 + f), 1 + f in [sqrt(1/2), sqrt(2))
    I tiny = x < splat(0x1p-126f);
    U u = (U)pick(tiny, x * 0x1p+23f, x);
    I e = (I)(u - 0x3f3504f3u) >> 23;
    V f = (V)(u - ((U)e << 23)) - 1.0f, z = f * f;
    V n = to_float(e - (tiny & 23));
    V p = f * 0x1.1c20e2p-4f - 0x1.e46430p-4f;
    p = p * f + 0x1.e6b706p-4f;
    p = p * f - 0x1.fb0d98p-4f;
    p = p * f + 0x1.2328ecp-3f;
    p = p * f - 0x1.556402p-3f;
    p = p * f + 0x1.99a5c2p-3f;
    p = p * f - 0x1.ffffeap-3f;
    p = p * f + 0x1.555546p-2f;
    V y = (p * f) * z - n * 0x1.bd0106p-13f;
    y = (f + (y - z * 0.5f)) + n * 0x1.63p-1f;
    y = pick(x == splat(0.0f), splat(-__builtin_inff()), y);
    y = pick(x == splat(__builtin_inff()), x, y);
    return pick((x < splat(0.0f)) | (x != x), splat(__builtin_nanf("")), y);
}
INLINE V copy_sign(V x, V sign) { // x is not negative
    return (V)((U)x | ((U)sign & 0x80000000u));
}
INLINE V abs_v(V x) {
    return (V)((U)x & 0x7fffffffu);
}
INLINE V tanh_v(V x) {
    V a = abs_v(x), z = a * a;
    V p = z * -0x1.76abf6p-8f + 0x1.5256cep-6f;
    p = p * z - 0x1.b84448p-5f;
    p = p * z + 0x1.110768p-3f;
    p = p * z - 0x1.555534p-2f;
    V near = a + (p * z) * a, far = 1.0f - 2.0f / (exp_v(a + a) + 1.0f);
    return copy_sign(pick(a < splat(0.625f), near, far), x);
}
INLINE V sigmoid_v(V x) { // no cancellation on either side
    V e = exp_v(-abs_v(x));
    return pick(x < splat(0.0f), e, splat(1.0f)) / (1.0f + e);
}
INLINE V sqrt_v(V x) {
    V y;
    for (int i = 0; i < 16; i++)
        y[i] = __builtin_sqrtf(x[i]);
    return y;
}
INLINE V rsqrt_v(V x) {
    return 1.0f / sqrt_v(x);
}
INLINE V floor_v(V x) {
    V big = copy_sign(splat(0x1p+23f), x), y = (x + big) - big;
    y = pick(y > x, y - 1.0f, y);
    y = (V)((U)y | ((U)x & 0x80000000u));
    return pick(abs_v(x) < splat(0x1p+23f), y, x);
}

// ---- Rarely used functions: in double, one lane after the other.
// x - quadrant * pi/2, within pi/4 of 0; the quadrant's last two bits in *quadrant. Exact product of the 24
// bits of x with those 96 bits of 2/pi that matter, modulo 4.
static double reduce_angle(float x, int *quadrant) {
    static const uint32_t bits[] = {0,          0,          0xa2f9836e, 0x4e441529, 0xfc2757d1, 0xf534ddc0,
                                    0xdb629599, 0x3c439041, 0xfe5163ab, 0xdebbc561, 0xb7246e3a, 0x424dd2e0};
    union {
        float f;
        uint32_t u;
    } v = {x};
    int e = (int)(v.u >> 23 & 255) - 150; // |x| = m * 2^e
    if (e < -60) {
        *quadrant = 0;
        return x;
    }
    uint64_t m = (v.u & 0x7fffff) | 0x800000;
    int first = 62 + e, word = first / 32,
        shift = first % 32; // the window begins at the bit of weight 2 in 2^e * 2/pi
    unsigned __int128 window = 0;
    for (int i = 0; i < 4; i++)
        window =
            window << 32 | (uint32_t)(((uint64_t)bits[word + i] << 32 | bits[word + i + 1]) >> (32 - shift));
    window *= m; // units of 2^-126, modulo 4
    uint64_t q = (uint64_t)(window >> 126), fraction = (uint64_t)(window >> 62);
    q += fraction >> 63; // from one half on, back from the next quadrant
    double r = (double)(int64_t)fraction * (0x1p-64 * 1.5707963267948966);
    *quadrant = (int)(v.u >> 31 ? -q : q) & 3;
    return v.u >> 31 ? -r : r;
}
static float sin_quadrant(float x, int shift) { // sin(x + shift * pi/2)
    if (!(x - x == 0))
        return x - x;
    int q;
    double r = reduce_angle(x, &q), z = r * r;
    q += shift;
    double s =
        r * (1 + z * (-1.0 / 6 + z * (1.0 / 120 + z * (-1.0 / 5040 + z * (1.0 / 362880 - z / 39916800)))));
    double c = 1 + z * (-0.5 + z * (1.0 / 24 + z * (-1.0 / 720 + z * (1.0 / 40320 - z * (1.0 / 3628800)))));
    double y = q & 1 ? c : s;
    return (float)(q & 2 ? -y : y);
}
static float sin_s(float x) {
    return x == 0 ? x : sin_quadrant(x, 0);
}
static float cos_s(float x) {
    return sin_quadrant(x, 1);
}
static float pow_s(float a, float b) {
    union {
        float f;
        uint32_t u;
    } v = {a};
    float whole = floor_v(splat(b))[0], halves = floor_v(splat(b * 0.5f))[0] * 2.0f;
    int flip = v.u >> 31 && whole == b && halves != b; // a negative, b odd
    v.u &= 0x7fffffff;
    if (b == 0 || a == 1)
        return 1.0f;
    if (a != a || b != b)
        return __builtin_nanf("");
    if (v.f == 0 || v.f == __builtin_inff()) {
        float y = (v.f == 0) == (b > 0) ? 0.0f : __builtin_inff();
        return flip ? -y : y;
    }
    if (a < 0 && whole != b)
        return __builtin_nanf("");
    int tiny = v.f < 0x1p-126f;
    if (tiny)
        v.f *= 0x1p+23f;
    int32_t e = (int32_t)(v.u - 0x3f3504f3u) >> 23;
    v.u -= (uint32_t)e << 23;
    double r = ((double)v.f - 1.0) / ((double)v.f + 1.0), z = r * r, y = 0;
    for (int k = 21; k > 0; k -= 2)
        y = y * z + 2.0 / k;
    double log2_a = r * y * 1.4426950408889634 + (e - (tiny ? 23 : 0));
    double t = log2_a == 0 ? 0 : (double)b * log2_a; // log2 of the result
    t = t > 200 ? 200 : t < -200 ? -200 : t;
    int n = (int)(t < 0 ? t - 0.5 : t + 0.5);
    r = (t - n) * 0.6931471805599453;
    y = 1;
    for (int k = 12; k > 0; k--)
        y = 1 + y * r / k;
    union {
        uint64_t u;
        double d;
    } scale = {(uint64_t)(n + 1023) << 52};
    y *= scale.d;
    return (float)(flip ? -y : y);
}
#define LANES_1(name)                                                                                        \
    INLINE V name##_v(V x) {                                                                                 \
        for (int i = 0; i < 16; i++)                                                                         \
            x[i] = name##_s(x[i]);                                                                           \
        return x;                                                                                            \
    }
LANES_1(sin)
LANES_1(cos)
INLINE V pow_v(V x, V y) {
    for (int i = 0; i < 16; i++)
        x[i] = pow_s(x[i], y[i]);
    return x;
}

// ---- Scalars: one lane of the vector.
INLINE float exp_s(float x) {
    return exp_v(splat(x))[0];
}
INLINE float log_s(float x) {
    return log_v(splat(x))[0];
}
INLINE float tanh_s(float x) {
    return tanh_v(splat(x))[0];
}
INLINE float sigmoid_s(float x) {
    return sigmoid_v(splat(x))[0];
}
INLINE float sqrt_s(float x) {
    return __builtin_sqrtf(x);
}
INLINE float rsqrt_s(float x) {
    return 1.0f / sqrt_s(x);
}
INLINE float floor_s(float x) {
    return floor_v(splat(x))[0];
}
INLINE float abs_s(float x) {
    return __builtin_fabsf(x);
}

// ---- The words of the formulas, for one number or for 16.
INLINE V min_v(V x, V y) {
    return pick(x < y, x, y);
}
INLINE V max_v(V x, V y) {
    return pick(x > y, x, y);
}
INLINE V lt_v(V x, V y) {
    return pick(x < y, splat(1.0f), splat(0.0f));
}
INLINE V eq_v(V x, V y) {
    return pick(x == y, splat(1.0f), splat(0.0f));
}
INLINE V select_v(V c, V x, V y) {
    return pick(c != splat(0.0f), x, y);
}
INLINE float min_s(float x, float y) {
    return x < y ? x : y;
}
INLINE float max_s(float x, float y) {
    return x > y ? x : y;
}
INLINE float lt_s(float x, float y) {
    return x < y ? 1.0f : 0.0f;
}
INLINE float eq_s(float x, float y) {
    return x == y ? 1.0f : 0.0f;
}
INLINE float select_s(float c, float x, float y) {
    return c != 0.0f ? x : y;
}
#define WORD(name, x)   _Generic((x), float : name##_s, default : name##_v)
#define K(x)            ((float)(x))
#define EXP(x)          WORD(exp, x)(x)
#define LOG(x)          WORD(log, x)(x)
#define TANH(x)         WORD(tanh, x)(x)
#define SIGMOID(x)      WORD(sigmoid, x)(x)
#define SQRT(x)         WORD(sqrt, x)(x)
#define RSQRT(x)        WORD(rsqrt, x)(x)
#define SIN(x)          WORD(sin, x)(x)
#define COS(x)          WORD(cos, x)(x)
#define FLOOR(x)        WORD(floor, x)(x)
#define POW(x, y)       WORD(pow, x)(x, y)
#define ABS(x)          WORD(abs, x)(x)
#define MIN(x, y)       WORD(min, x)(x, y)
#define MAX(x, y)       WORD(max, x)(x, y)
#define LT(x, y)        WORD(lt, x)(x, y)
#define EQ(x, y)        WORD(eq, x)(x, y)
#define SELECT(c, x, y) WORD(select, c)(c, x, y)

// The kernels beside row kernels: adding the strips of a sum over rows, and the gradient of an embedding.
#include "codegen/codegen.h"
#include "runtime/host.h"
#include "tests/support.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
// cmocka wants the headers above first
#include <cmocka.h>

enum { FINISH, SCATTER_F32, SCATTER_BF16, N_KERNELS };

typedef struct Fixture {
    Arena arena;
    DriverState *driver;
    Plan plan;
    PlanKernel kernel[N_KERNELS];
} Fixture;
static Fixture fixture;

static void must(Status s) {
    if (s.code)
        fail_msg("%d: %s", s.code, s.text);
}

static void print_texts(void) {
    fixture.kernel[FINISH].source = codegen_c_finish(&fixture.arena, "finish");
    fixture.kernel[SCATTER_F32].source = codegen_c_scatter(&fixture.arena, DT_F32, "scatter");
    fixture.kernel[SCATTER_BF16].source = codegen_c_scatter(&fixture.arena, DT_BF16, "scatter16");
}

static int set_up(void **state) {
    (void)state;
    fixture = (Fixture){.kernel = {{.name = "finish"}, {.name = "scatter"}, {.name = "scatter16"}}};
    arena_init(&fixture.arena, 0);
    ARENA_CATCH(&fixture.arena, print_texts(), fail_msg("out of memory"));
    fixture.plan.kernels.at = fixture.kernel;
    fixture.plan.kernels.n = N_KERNELS;
    CompileStats stats;
    must(driver_host.open(&(DriverOptions){.threads = 2, .cache_dir = "test-cache"}, &fixture.driver));
    must(driver_host.compile(fixture.driver, &fixture.plan, &stats));
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    driver_host.close(fixture.driver);
    arena_free(&fixture.arena);
    return 0;
}

static float *numbers(size_t n, uint64_t seed) {
    float *x = malloc(MAX_OF(n, 1) * sizeof *x); // not mem_alloc: sanitizers see its ends exactly
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)test_uniform(seed, i);
    return x;
}

static void test_finish(void **state) {
    (void)state;
    static const int64_t elements[] = {1, 15, 16, 255, 256, 257, 1000};
    for (size_t e = 0; e < COUNT_OF(elements); e++)
        for (int64_t strips = 1; strips < 66; strips += 32)
            for (int acc = 0; acc < 2; acc++) {
                int64_t n = elements[e];
                float *partial = numbers((size_t)(n * strips), 1), *out = numbers((size_t)n, 2),
                      *want = numbers((size_t)n, 2);
                for (int64_t i = 0; i < n; i++) {
                    float sum = acc ? want[i] : 0.0f;
                    for (int64_t s = 0; s < strips; s++)
                        sum += partial[s * n + i];
                    want[i] = sum;
                }
                KernelArg arg[] = {{.at = partial}, {.at = out}};
                int64_t items = (n + 255) / 256;
                Launch l = {.kernel = FINISH, .items = items, .n_strips = (int32_t)items};
                l.args = (KernelArgs){.size = {n, strips}, .arg = arg, .acc = acc};
                must(driver_host.launch(fixture.driver, &l));
                assert_memory_equal(out, want, (size_t)n * sizeof *out);
                free(partial);
                free(out);
                free(want);
            }
}

// One id often, one never, the last one; rows apart.
static void scatter(bool half, int64_t d, int64_t rows, int64_t vocab, int acc) {
    int64_t pitch = d + 3;
    float *x = numbers((size_t)(rows * pitch), 3), *out = numbers((size_t)(vocab * d), 4),
          *want = numbers((size_t)(vocab * d), 4);
    uint16_t *x16 = malloc((size_t)(rows * pitch) * sizeof *x16 + 1);
    int32_t *ids = malloc((size_t)rows * sizeof *ids + 1), *order = malloc((size_t)rows * sizeof *order + 1);
    assert_true(x16 && ids && order);
    for (int64_t i = 0; i < rows * pitch; i++) {
        float r = (float)round_bf16((double)x[i]);
        uint32_t u;
        memcpy(&u, &r, 4);
        x16[i] = (uint16_t)(u >> 16);
        x[i] = half ? r : x[i];
    }
    for (int64_t i = 0; i < rows; i++)
        ids[i] = i % 3 == 0 ? 1 % (int32_t)vocab : (int32_t)((i * 7 + 2) % vocab);
    int64_t n = 0;
    for (int32_t v = 0; v < vocab; v++)
        for (int32_t i = 0; i < rows; i++)
            if (ids[i] == v)
                order[n++] = i;
    for (int64_t i = 0; i < vocab * d; i++)
        want[i] = acc ? want[i] : 0.0f;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < d; j++)
            want[ids[i] * d + j] += x[i * pitch + j];
    KernelArg arg[] = {
        {.at = half ? (void *)x16 : x, .stride = {pitch}}, {.at = ids}, {.at = order}, {.at = out}};
    Launch l = {
        .kernel = half ? SCATTER_BF16 : SCATTER_F32, .items = vocab, .n_strips = (int32_t)MIN_OF(vocab, 5)};
    l.args = (KernelArgs){.size = {rows, d}, .arg = arg, .acc = acc};
    must(driver_host.launch(fixture.driver, &l));
    assert_memory_equal(out, want, (size_t)(vocab * d) * sizeof *out);
    free(x);
    free(x16);
    free(out);
    free(want);
    free(ids);
    free(order);
}

static void test_scatter(void **state) {
    (void)state;
    static const int64_t wide[] = {1, 16, 17, 100}, rows[] = {1, 2, 63, 200}, vocab[] = {1, 5, 97};
    for (size_t w = 0; w < COUNT_OF(wide); w++)
        for (size_t r = 0; r < COUNT_OF(rows); r++)
            for (size_t v = 0; v < COUNT_OF(vocab); v++)
                for (int k = 0; k < 4; k++)
                    scatter(k % 2, wide[w], rows[r], vocab[v], k / 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_finish), cmocka_unit_test(test_scatter)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

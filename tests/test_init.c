// The generator's known answers and the shapes of its distributions.
#include "runtime/init.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
// cmocka wants the headers above first
#include <cmocka.h>

static void test_words(void **state) {
    (void)state;
    uint64_t key = rng_key(1, "embed.weight");
    assert_true(rng_word(key, 0) == 0xb1ff4cf13919395fu);
    assert_true(rng_word(key, 1) == 0xb80f22f51a442bc8u);
    assert_true(rng_word(key, 2) == 0xf3589561283ab1cbu);
    const float want[] = {0.39060354232788086f, 0.4379618167877197f, 0.9011408090591431f};
    for (uint64_t i = 0; i < 3; i++)
        assert_true((float)(2 * rng_uniform(key, i) - 1) == want[i]);
    const uint64_t tokens[] = {34, 50, 44, 14, 14, 34, 63, 18};
    for (uint64_t i = 0; i < 8; i++)
        assert_true(rng_word(rng_key(1, "tokens"), i) % 97 == tokens[i]);
}

static void test_normal(void **state) {
    (void)state;
    enum { N = 20000 };
    Init init = {.kind = INIT_NORMAL, .value = 0.02};
    float *x = malloc(N * sizeof *x);
    init_fill(&init, 1, "embed.weight", N, x);
    const float want[] = {0.026114141568541527f, 0.002072458155453205f, -0.015503563918173313f};
    for (int i = 0; i < 3; i++)
        assert_true(x[i] == want[i]);
    double sum = 0, squares = 0;
    for (int i = 0; i < N; i++) {
        assert_true(fabsf(x[i]) <= 0.06f);
        sum += (double)x[i];
        squares += (double)x[i] * (double)x[i];
    }
    assert_true(fabs(sum / N) < 0.02 * 0.03);
    assert_true(fabs(sqrt(squares / N) / 0.02 - 0.99) < 0.02);
    free(x);
}

static void test_const_and_table(void **state) {
    (void)state;
    float x[4];
    init_fill(&(Init){.kind = INIT_CONST, .value = 0.1}, 5, "a", 4, x);
    assert_true(x[0] == 0.1f && x[3] == 0.1f);
    const double table[] = {1, 0.1, -3, 4e-3};
    init_fill(&(Init){.kind = INIT_TABLE, .table = table}, 5, "a", 4, x);
    for (int i = 0; i < 4; i++)
        assert_true(x[i] == (float)table[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_normal),
        cmocka_unit_test(test_const_and_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

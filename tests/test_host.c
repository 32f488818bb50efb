// The parts of the host target: pool, cgroup quota, GEMM against plain loops, kernel cache and compiler.
#include "runtime/cache.h"
#include "runtime/host.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
// cmocka wants the headers above first
#include <cmocka.h>

static void must(Status s) {
    if (s.code)
        fail_msg("%d: %s", s.code, s.text);
}

// ---- Pool.
static void count_task(void *ctx, int64_t i, int worker) {
    (void)worker;
    atomic_fetch_add_explicit(&((atomic_int *)ctx)[i], 1, memory_order_relaxed);
}

static void test_pool_runs_each_index_once(void **state) {
    (void)state;
    static atomic_int seen[300];
    for (int threads = 1; threads <= 5; threads++) {
        Pool *p;
        must(pool_open(threads, &p));
        for (int64_t n = 0; n < 300; n += n < 20 ? 1 : 37) {
            for (int i = 0; i < 300; i++)
                atomic_store(&seen[i], 0);
            pool_run(p, n, count_task, seen);
            for (int i = 0; i < 300; i++)
                assert_int_equal(atomic_load(&seen[i]), i < n);
        }
        pool_close(p);
    }
}

static void test_pool_refuses_absurd_sizes(void **state) {
    (void)state;
    Pool *p;
    assert_int_equal(pool_open(0, &p).code, EXIT_REQUEST);
    assert_int_equal(pool_open(-3, &p).code, EXIT_REQUEST);
    assert_null(p);
}

// ---- Facts about the machine.
static void write_file(const char *path, const char *text) {
    char folder[1024];
    for (const char *p = path + 1; (p = strchr(p, '/')); p++) {
        snprintf(folder, sizeof folder, "%.*s", (int)(p - path), path);
        mkdir(folder, 0777);
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void test_quota(void **state) {
    (void)state;
    static const struct {
        const char *self, *file1, *text1, *file2, *text2;
        int want;
    } cases[] = {
        {"0::/a/b\n", "a/b/cpu.max", "max 100000\n", "a/cpu.max", "250000 100000\n", 3},
        {"0::/a/b\n", "a/b/cpu.max", "50000 100000\n", "a/cpu.max", "250000 100000\n", 1},
        {"0::/\n", "cpu.max", "200000 100000\n", NULL, NULL, 2},
        {"0::/not/there\n", "cpu.max", "200000 100000\n", NULL, NULL, 2},
        {"3:cpu,cpuacct:/x\n0::/\n", "cpu/x/cpu.cfs_quota_us", "150000\n", "cpu/x/cpu.cfs_period_us",
         "100000\n", 2},
        {"3:cpu,cpuacct:/x\n0::/\n", "cpu/x/cpu.cfs_quota_us", "-1\n", "cpu/x/cpu.cfs_period_us", "100000\n",
         0},
        {"nonsense", NULL, NULL, NULL, NULL, 0},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char root[] = "/tmp/depthbench-test-XXXXXX", path[256];
        assert_non_null(mkdtemp(root));
        snprintf(path, sizeof path, "%s/self", root);
        write_file(path, cases[i].self);
        const char *files[2] = {cases[i].file1, cases[i].file2}, *texts[2] = {cases[i].text1, cases[i].text2};
        for (int j = 0; j < 2; j++)
            if (files[j]) {
                snprintf(path, sizeof path, "%s/fs/%s", root, files[j]);
                write_file(path, texts[j]);
            }
        char self[256], fs[256];
        snprintf(self, sizeof self, "%s/self", root);
        snprintf(fs, sizeof fs, "%s/fs", root);
        assert_int_equal(system_quota(self, fs), cases[i].want);
        snprintf(path, sizeof path, "rm -r %s", root);
        assert_int_equal(system(path), 0);
    }
    char from[64];
    assert_in_range(system_threads(from), 1, 4096);
    size_t total, available;
    system_memory(&total, &available);
    assert_true(total >= available && available > 0);
}

// ---- GEMM.
static uint32_t rng = 1;
static float random_value(void) {
    rng = rng * 1664525u + 1013904223u;
    return (float)(rng >> 8) * 0x1p-23f - 1.0f;
}

static float round16(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    u = (u + 0x7fffu + (u >> 16 & 1u)) & 0xffff0000u;
    memcpy(&x, &u, 4);
    return x;
}

static void put(void *at, Dtype dtype, int64_t i, float x) {
    if (dtype == DT_BF16) {
        uint32_t u;
        x = round16(x);
        memcpy(&u, &x, 4);
        ((uint16_t *)at)[i] = (uint16_t)(u >> 16);
    } else {
        ((float *)at)[i] = x;
    }
}

static float get(const void *at, Dtype dtype, int64_t i) {
    if (dtype == DT_BF16) {
        uint32_t u = (uint32_t)((const uint16_t *)at)[i] << 16;
        float x;
        memcpy(&x, &u, 4);
        return x;
    }
    return ((const float *)at)[i];
}

static double gemm_reference(const Gemm *g, int64_t i, int64_t j, double c) {
    double sum = g->add ? c : 0;
    for (int64_t l = 0; l < g->k; l++)
        sum += (double)get((void *)g->a, g->dtype_ab, g->trans_a ? l * g->lda + i : i * g->lda + l) *
               (double)get((void *)g->b, g->dtype_ab, g->trans_b ? j * g->ldb + l : l * g->ldb + j);
    return sum;
}

// Runs one GEMM on each pool, checks it against plain loops and the pools against each other.
static void check_gemm(Gemms **gemms, int n_gemms, Gemm g, int64_t pad) {
    g.lda = (g.trans_a ? g.m : g.k) + pad;
    g.ldb = (g.trans_b ? g.k : g.n) + pad;
    g.ldc = g.n + pad;
    int64_t na = (g.trans_a ? g.k : g.m) * g.lda, nb = (g.trans_b ? g.n : g.k) * g.ldb, nc = g.m * g.ldc;
    float *a = mem_aligned(64, (size_t)na * 4), *b = mem_aligned(64, (size_t)nb * 4);
    float *c0 = mem_aligned(64, (size_t)nc * 4), *c[4];
    for (int64_t i = 0; i < na; i++)
        put(a, g.dtype_ab, i, random_value());
    for (int64_t i = 0; i < nb; i++)
        put(b, g.dtype_ab, i, random_value());
    for (int64_t i = 0; i < nc; i++)
        put(c0, g.dtype_c, i, random_value());
    for (int t = 0; t < n_gemms; t++) {
        c[t] = mem_aligned(64, (size_t)nc * 4);
        memcpy(c[t], c0, (size_t)nc * dtype_bytes(g.dtype_c));
        g.a = (DevPtr)a;
        g.b = (DevPtr)b;
        g.c = (DevPtr)c[t];
        must(gemms_prepare(gemms[t], &g));
        must(gemms_run(gemms[t], &g));
        assert_memory_equal(c[0], c[t], (size_t)nc * dtype_bytes(g.dtype_c));
    }
    int64_t step = MAX_OF(g.m * g.n / 4000, 1);
    for (int64_t at = 0; at < g.m * g.n; at += step) {
        int64_t i = at / g.n, j = at % g.n, index = i * g.ldc + j;
        double want = gemm_reference(&g, i, j, (double)get(c0, g.dtype_c, index));
        double got = (double)get(c[0], g.dtype_c, index);
        double scale = sqrt((double)g.k) + 1, error = fabs(got - want);
        if (error > scale * (g.dtype_c == DT_BF16 ? 8e-3 : 2e-6))
            fail_msg("gemm %lldx%lldx%lld trans %d %d add %d dtype %d %d at %lld,%lld: %g, expected %g",
                     (long long)g.m, (long long)g.n, (long long)g.k, g.trans_a, g.trans_b, g.add,
                     (int)g.dtype_ab, (int)g.dtype_c, (long long)i, (long long)j, got, want);
    }
    for (int64_t i = 0; i < g.m; i++) // what lies between rows stays
        for (int64_t j = g.n; j < g.ldc; j++)
            assert_true(get(c[0], g.dtype_c, i * g.ldc + j) == get(c0, g.dtype_c, i * g.ldc + j));
    for (int t = 0; t < n_gemms; t++)
        mem_free(c[t]);
    mem_free(a);
    mem_free(b);
    mem_free(c0);
}

static void test_gemm(void **state) {
    (void)state;
    static const int sizes[][3] = {{1, 1, 1},       {1, 5, 1},      {3, 1, 7},    {2, 3, 1},
                                   {17, 33, 65},    {64, 64, 64},   {33, 97, 32}, {128, 6, 640},
                                   {256, 200, 300}, {6, 640, 256},  {1, 640, 40}, {640, 1, 100},
                                   {300, 260, 31},  {257, 513, 129}};
    static const int threads[] = {1, 2, 3, 5};
    Pool *pool[4];
    Gemms *gemms[4];
    for (int t = 0; t < 4; t++) {
        must(pool_open(threads[t], &pool[t]));
        must(gemms_open(pool[t], &gemms[t]));
    }
    for (size_t s = 0; s < COUNT_OF(sizes); s++)
        for (int mode = 0; mode < 24; mode++) {
            Gemm g = {.m = sizes[s][0], .n = sizes[s][1], .k = sizes[s][2]};
            g.trans_a = mode & 1;
            g.trans_b = mode & 2;
            g.add = mode & 4;
            int types = mode / 8;
            g.dtype_ab = types ? DT_BF16 : DT_F32;
            g.dtype_c = types == 1 ? DT_BF16 : DT_F32;
            check_gemm(gemms, 4, g, (int64_t)(s + (size_t)mode) % 3);
        }
    for (int t = 0; t < 4; t++) {
        gemms_close(gemms[t]);
        pool_close(pool[t]);
    }
}

// Shapes of training (d 64 .. 256), whole threads against each other.
static void test_gemm_large(void **state) {
    (void)state;
    static const int sizes[][3] = {{512, 768, 256}, {256, 688, 1024}, {1024, 256, 256}, {200, 4096, 64}};
    Pool *pool[3];
    Gemms *gemms[3];
    for (int t = 0; t < 3; t++) {
        must(pool_open(t == 2 ? 5 : t + 1, &pool[t]));
        must(gemms_open(pool[t], &gemms[t]));
    }
    for (size_t s = 0; s < COUNT_OF(sizes); s++)
        for (int mode = 0; mode < 4; mode++)
            check_gemm(gemms, 3,
                       (Gemm){.m = sizes[s][0],
                              .n = sizes[s][1],
                              .k = sizes[s][2],
                              .trans_a = mode & 1,
                              .trans_b = mode & 2,
                              .add = mode == 3,
                              .dtype_ab = s & 1 ? DT_BF16 : DT_F32,
                              .dtype_c = s == 1 ? DT_BF16 : DT_F32},
                       0);
    for (int t = 0; t < 3; t++) {
        gemms_close(gemms[t]);
        pool_close(pool[t]);
    }
}

// ---- Compiler and cache.
#define KERNEL_TEXT(name, value)                                                                             \
    "#include <stdint.h>\n"                                                                                  \
    "typedef struct { void *at; int64_t stride[3]; } Arg;\n"                                                 \
    "typedef struct { int64_t size[6]; const Arg *arg; const float *scalar; int64_t acc; void *scratch; } "  \
    "Args;\n"                                                                                                \
    "void " name "(const Args *a, int64_t item0, int64_t item1, int64_t strip);\n"                           \
    "void " name "(const Args *a, int64_t item0, int64_t item1, int64_t strip) {\n"                          \
    "    for (int64_t i = item0; i < item1; i++) ((float *)a->arg[0].at)[i] = (float)i * " value             \
    "f + (float)strip;\n"                                                                                    \
    "}\n"

static PlanKernel kernels[] = {{.name = "first.0a", .source = KERNEL_TEXT("first_0a", "2.0"), .n_args = 1},
                               {.name = "second", .source = KERNEL_TEXT("second", "3.0"), .n_args = 1}};

static Plan tiny_plan(void) {
    Plan p = {0};
    p.kernels.at = kernels;
    p.kernels.n = COUNT_OF(kernels);
    return p;
}

static CompileStats compile_in(const char *dir) {
    Plan plan = tiny_plan();
    DriverOptions o = {.threads = 2, .cache_dir = dir};
    DriverState *d;
    CompileStats stats;
    DevPtr at;
    must(driver_host.open(&o, &d));
    must(driver_host.compile(d, &plan, &stats));
    must(driver_host.alloc(d, 100 * sizeof(float), "test", &at));
    KernelArg arg = {.at = (void *)at};
    for (int32_t k = 0; k < 2; k++) {
        must(driver_host.launch(d,
                                &(Launch){.kernel = k, .items = 100, .n_strips = 3, .args = {.arg = &arg}}));
        for (int64_t i = 0; i < 100; i++) {
            int64_t strip = i < 33 ? 0 : i < 66 ? 1 : 2;
            assert_true(((float *)at)[i] == (float)(i * (2 + k) + strip));
        }
    }
    driver_host.free(d, at);
    driver_host.close(d);
    return stats;
}

static void make_dir(char dir[64]) {
    snprintf(dir, 64, "/tmp/depthbench-test-XXXXXX");
    assert_non_null(mkdtemp(dir));
}

static int shell(const char *before, const char *dir, const char *after) {
    char command[512];
    snprintf(command, sizeof command, "%s%s%s", before, dir, after);
    return system(command);
}

static void test_cache(void **state) {
    (void)state;
    char dir[64], deep[96];
    make_dir(dir);
    snprintf(deep, sizeof deep, "%s/with blank/cache", dir);
    CompileStats s = compile_in(deep);
    assert_int_equal(s.compiled, 2);
    s = compile_in(deep);
    assert_int_equal(s.compiled, 0);
    assert_int_equal(s.cached, 2);
    assert_int_equal(shell("test $(ls '", dir, "/with blank/cache' | wc -l) = 2"), 0);
    // Cut, emptied, changed, of another version: built again, and the entry is good afterwards.
    static const char *const damage[] = {
        "/with blank/cache' && for f in *; do truncate -s -1 $f; done",
        "/with blank/cache' && for f in *; do : > $f; done",
        "/with blank/cache' && for f in *; do printf XYZ | dd of=$f bs=1 seek=5000 conv=notrunc status=none; done",
        "/with blank/cache' && for f in *; do sed -i s/depthbench.1/depthbench.0/ $f; done",
    };
    for (size_t i = 0; i < COUNT_OF(damage); i++) {
        assert_int_equal(shell("cd '", dir, damage[i]), 0);
        assert_int_equal(compile_in(deep).compiled, 2);
        assert_int_equal(compile_in(deep).compiled, 0);
    }
    shell("rm -r ", dir, "");
}

static void test_no_cache(void **state) {
    (void)state;
    char dir[64];
    make_dir(dir);
    setenv("TMPDIR", dir, 1);
    assert_int_equal(compile_in(NULL).compiled, 2);
    assert_int_equal(compile_in(NULL).compiled, 2);
    unsetenv("TMPDIR");
    assert_int_equal(shell("rmdir ", dir, ""), 0); // nothing left in it
}

// A cache that can only be read serves what it holds; a path that is no folder is no reason to fail.
static void test_cache_not_writable(void **state) {
    (void)state;
    char dir[64], file[96];
    make_dir(dir);
    compile_in(dir);
    snprintf(file, sizeof file, "%s/file", dir);
    write_file(file, "x");
    assert_int_equal(compile_in(file).compiled, 2);
    if (geteuid() != 0) { // root writes anywhere
        assert_int_equal(chmod(dir, 0500), 0);
        assert_int_equal(compile_in(dir).cached, 2);
        assert_int_equal(chmod(dir, 0700), 0);
    }
    shell("rm -r ", dir, "");
}

static void test_no_compiler(void **state) {
    (void)state;
    char dir[64];
    make_dir(dir);
    char *path = strdup(getenv("PATH")), *cc = getenv("CC") ? strdup(getenv("CC")) : NULL;
    compile_in(dir);
    setenv("PATH", "/nonexistent", 1);
    setenv("CC", "no-such-compiler -O", 1);
    CompileStats s = compile_in(dir); // warm: no compiler needed
    assert_int_equal(s.cached, 2);
    Plan plan = tiny_plan();
    DriverOptions o = {.threads = 1};
    DriverState *d;
    must(driver_host.open(&o, &d));
    Status status = driver_host.compile(d, &plan, &s);
    assert_int_equal(status.code, EXIT_TARGET);
    const char *const words[] = {"no-such-compiler", "cc", "gcc", "clang", "apt-get install gcc"};
    for (size_t i = 0; i < COUNT_OF(words); i++)
        assert_non_null(strstr(status.text, words[i]));
    driver_host.close(d);
    setenv("PATH", path, 1);
    s = compile_in(dir); // a CC that is not there is passed over
    assert_int_equal(s.compiled, 0);
    if (cc)
        setenv("CC", cc, 1);
    else
        unsetenv("CC");
    free(path);
    free(cc);
    shell("rm -r ", dir, "");
}

static void test_bad_kernel_text(void **state) {
    (void)state;
    PlanKernel bad[] = {{.name = "bad", .source = "int x = ;\n", .origin = "layers.3 @hc:12"},
                        {.name = "lost", .source = "int y;\n", .origin = "layers.4"}};
    for (uint32_t i = 0; i < 2; i++) {
        Plan plan = {0};
        plan.kernels.at = &bad[i];
        plan.kernels.n = 1;
        DriverOptions o = {.threads = 1};
        DriverState *d;
        CompileStats stats;
        must(driver_host.open(&o, &d));
        Status s = driver_host.compile(d, &plan, &stats);
        assert_int_equal(s.code, EXIT_WORK);
        assert_non_null(strstr(s.text, bad[i].name));
        driver_host.close(d);
    }
}

// Processes that start on an empty cache at once all succeed and leave valid entries.
static void test_cache_race(void **state) {
    (void)state;
    char dir[64];
    enum { N = 6 };
    pid_t pid[N];
    make_dir(dir);
    for (int i = 0; i < N; i++) {
        pid[i] = fork();
        assert_true(pid[i] >= 0);
        if (pid[i] == 0) {
            Plan plan = tiny_plan();
            DriverOptions o = {.threads = 1, .cache_dir = dir};
            DriverState *d;
            CompileStats stats;
            bool ok = !driver_host.open(&o, &d).code && !driver_host.compile(d, &plan, &stats).code;
            _exit(ok ? 0 : 1);
        }
    }
    for (int i = 0; i < N; i++) {
        int status;
        assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
        assert_int_equal(status, 0);
    }
    assert_int_equal(compile_in(dir).cached, 2);
    assert_int_equal(shell("test $(ls '", dir, "' | wc -l) = 2"), 0);
    shell("rm -r ", dir, "");
}

static void test_cache_limit(void **state) {
    (void)state;
    char dir[64], aside[CACHE_PATH], path[CACHE_PATH], key[CACHE_KEY], text[1001] = {0};
    Cache *c;
    make_dir(dir);
    must(cache_open(dir, &c));
    cache_limit(c, 5000);
    for (int i = 0; i < 20; i++) {
        snprintf(key, sizeof key, "%032d", i);
        cache_aside(c, ".so", aside);
        memset(text, 'a' + i, 1000);
        write_file(aside, text);
        must(cache_put(c, key, "0123456789abcdef", aside, path));
        char command[CACHE_PATH + 64];
        snprintf(command, sizeof command, "touch -d @%d '%s'", 1000000 + i, path);
        assert_int_equal(system(command), 0);
    }
    assert_int_equal(cache_get(c, key, "0123456789abcdef", path), 1);
    snprintf(key, sizeof key, "%032d", 0);
    assert_int_equal(cache_get(c, key, "0123456789abcdef", path), 0);
    assert_int_equal(shell("test $(ls '", dir, "' | wc -l) = 4"), 0);
    cache_close(c);
    shell("rm -r ", dir, "");
}

static void test_driver(void **state) {
    (void)state;
    DriverOptions o = {.threads = 2};
    DriverState *d;
    DeviceInfo info;
    DevPtr at;
    assert_ptr_equal(driver_find("host"), &driver_host);
    assert_null(driver_find("abacus"));
    must(driver_host.open(&o, &d));
    must(driver_host.query(d, &info));
    assert_int_equal(info.threads, 2);
    assert_string_equal(info.threads_from, "--threads");
    must(driver_host.alloc(d, (size_t)3 << 20, "test", &at));
    unsigned char *bytes = (unsigned char *)at;
    for (size_t i = 0; i < (size_t)3 << 20; i += 4096)
        assert_int_equal(bytes[i], 0);
    memset(bytes, 7, (size_t)3 << 20);
    must(driver_host.fill(d, at, ((size_t)2 << 20) + 5));
    assert_int_equal(bytes[((size_t)2 << 20) + 4], 0);
    assert_int_equal(bytes[((size_t)2 << 20) + 5], 7);
    driver_host.free(d, at);
    Status s = driver_host.alloc(d, (size_t)1 << 50, "acts", &at);
    assert_int_equal(s.code, EXIT_WORK);
    assert_non_null(strstr(s.text, "acts"));
    driver_host.close(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool_runs_each_index_once),
        cmocka_unit_test(test_pool_refuses_absurd_sizes),
        cmocka_unit_test(test_quota),
        cmocka_unit_test(test_gemm),
        cmocka_unit_test(test_gemm_large),
        cmocka_unit_test(test_cache),
        cmocka_unit_test(test_no_cache),
        cmocka_unit_test(test_cache_not_writable),
        cmocka_unit_test(test_no_compiler),
        cmocka_unit_test(test_bad_kernel_text),
        cmocka_unit_test(test_cache_race),
        cmocka_unit_test(test_cache_limit),
        cmocka_unit_test(test_driver),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

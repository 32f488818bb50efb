// Text of the IR: printing what was parsed gives the same bytes; anything else is refused with its line.
#include "ir/ir.h"
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char sample[] =
    "module demo layers 2\n"
    "file 1 \"demo.lua\"\n"
    "axis b row 2\n"
    "axis s row 3\n"
    "axis h row 2\n"
    "axis g row 1\n"
    "axis p small 2\n"
    "axis n small 4\n"
    "axis d wide 8\n"
    "axis q wide 8\n"
    "axis e wide 2\n"
    "axis k wide 4\n"
    "axis v wide 5\n"
    "param embed.weight : f32[v,d] decay trained owner -1 role - init normal 0x1.47ae147ae147bp-6\n"
    "param wq : f32[q,d] decay trained owner 0 role wq init normal 0x1p-4 @1:3<1:9\n"
    "param a : f32[n] nodecay trained owner 0 role a init table 0x1p+0 0x0p+0 0x0p+0 0x0p+0\n"
    "\n"
    "kernel mix.1 rows b,s (%x: f32[b,s,d], %r: f32[b,s])\n"
    "  %1 = mul %x, %r : f32[b,s,d] @1:4\n"
    "  %2 = sum.d %1 : f32[b,s]\n"
    "  return y = %1\n"
    "  return z = %2\n"
    "end\n"
    "\n"
    "func loss (%ids: i32[b,s])\n"
    "  %1 = gather ^embed.weight, %ids : f32[b,s,d] @1:5 L0\n"
    "  %2 = mul %1, %1 : f32[b,s,d] @1:5<1:7 L1\n"
    "  %3 = sum.d %2 : f32[b,s]\n"
    "  %4 = rsqrt %3 : f32[b,s] late\n"
    "  (%5, %6) = call @mix.1 %1, %4 : f32[b,s,d], f32[b,s]\n"
    "  %7 = mul %5, 0x1p+0:n : f32[b,s,n,d]\n"
    "  %8 = mul %7, ^a : f32[b,s,n,d]\n"
    "  %9 = slice.n %8 {k=3} : f32[b,s,d]\n"
    "  %10 = dot %9, ^wq {k=0} : f32[b,s,q]\n"
    "  %11 = split.q.h.p.e %10 : f32[b,s,h,p,e]\n"
    "  %12 = add %6, 0x1.8p+1 : f32[b,s]\n"
    "  %13 = concat.p.1.1 %12, %6 : f32[b,s,p]\n"
    "  mark hidden.0 = %1\n"
    "  return loss = %13\n"
    "end\n";

static Status round_trip(const char *text, char **out) {
    Arena arena;
    Module *m;
    Status s = STATUS_OK;
    arena_init(&arena, 0);
    *out = NULL;
    ARENA_CATCH(
        &arena,
        {
            s = ir_parse(&arena, text, "t.ir", &m);
            if (!s.code) {
                Text t = {.arena = &arena};
                ir_print(&t, m);
                *out = strdup(t.at);
            }
        },
        s = status_memory("text", 0));
    arena_free(&arena);
    return s;
}

static void same_bytes(void **state) {
    (void)state;
    char *first, *second;
    Status s = round_trip(sample, &first);
    assert_string_equal(s.text, "");
    assert_string_equal(first, sample);
    s = round_trip(first, &second);
    assert_int_equal(s.code, 0);
    assert_string_equal(first, second);
    free(first);
    free(second);
}

static void errors_name_the_line(void **state) {
    (void)state;
    static const struct {
        const char *from, *to, *says;
    } cases[] = {
        {"%2 = mul %1, %1 :", "%2 = mull %1, %1 :", "t.ir:27: error: unknown op"},
        {"%3 = sum.d %2 : f32[b,s]", "%3 = sum.d %2 : f32[b]", "t.ir:28: error: the type is not the one"},
        {"^wq {k=0}", "^wqq {k=0}", "t.ir:34: error: unknown parameter"},
        {"dot %9, ^wq", "dot %12, ^wq", "t.ir:34: error:"},
        {"axis d wide 8", "axis d wide 0", "t.ir:9: error: a number is missing or out of range"},
        {"  %4 = rsqrt %3", "  %5 = rsqrt %3", "t.ir:29: error: results are numbered"},
        {"slice.n %8 {k=3}", "slice.n %8 {k=4}", "t.ir:33: error: slice: 4..4 is outside"},
        {"end\n\nfunc", "func", "t.ir:"},
        {"init normal 0x1p-4", "init normal", "t.ir:15: error: expected a number"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char text[4096], *out;
        const char *at = strstr(sample, cases[i].from);
        assert_non_null(at);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - sample), sample, cases[i].to,
                 at + strlen(cases[i].from));
        Status s = round_trip(text, &out);
        free(out);
        assert_int_equal(s.code, EXIT_REQUEST);
        if (!strstr(s.text, cases[i].says))
            fail_msg("'%s' does not say '%s'", s.text, cases[i].says);
    }
}

// ---- tests/bad/*.ir: modules one after the other, each with one line that is marked "# error: text"

static char *read_text(const char *path) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    char *text = calloc(1, 1 << 16);
    assert_non_null(text);
    size_t n = fread(text, 1, (1 << 16) - 1, f);
    assert_true(n > 0 && n < (1 << 16) - 1);
    fclose(f);
    return text;
}

// One module, with empty lines before it so that the lines count from the start of the file.
static int check_bad(const char *file, const char *module, size_t n, int line) {
    static const char mark[] = "# error: ";
    char *text = calloc(1, n + (size_t)line + 1), *out, want[256];
    assert_non_null(text);
    memset(text, '\n', (size_t)line - 1);
    memcpy(text + line - 1, module, n);
    const char *at = strstr(text, mark);
    if (!at)
        fail_msg("%s:%d: a module without a mark", file, line);
    int marked = 1;
    for (const char *c = text; c < at; c++)
        marked += *c == '\n';
    at += sizeof mark - 1;
    snprintf(want, sizeof want, "t.ir:%d: error: %.*s", marked, (int)strcspn(at, "\n"), at);
    Status s = round_trip(text, &out);
    int wrong = s.code != EXIT_REQUEST || strncmp(s.text, want, strlen(want));
    if (wrong)
        print_error("%s: wanted '%s', got %d '%s'\n", file, want, s.code, s.text);
    free(out);
    free(text);
    return wrong;
}

static void bad_modules(void **state) {
    (void)state;
    static const char *const files[] = {"header.ir", "nodes.ir", "functions.ir"};
    int wrong = 0;
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/tests/bad/%s", SOURCE_DIR, files[i]);
        char *text = read_text(path), *at = strstr(text, "\nmodule ");
        while (at) {
            char *next = strstr(++at, "\nmodule ");
            int line = 1;
            for (const char *c = text; c < at; c++)
                line += *c == '\n';
            wrong += check_bad(files[i], at, next ? (size_t)(next - at) : strlen(at), line);
            at = next;
        }
        free(text);
    }
    assert_int_equal(wrong, 0);
}

// Any bytes end in a message: the sample with random bytes changed, cut or repeated.
static void survives_damage(void **state) {
    (void)state;
    uint64_t x = 88172645463325252u;
    for (int round = 0; round < 3000; round++) {
        char text[4096], *out;
        size_t n = sizeof sample - 1;
        memcpy(text, sample, n + 1);
        for (int k = 0; k < 1 + round % 4; k++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            text[x % n] = "%^.,:@[]{}=-0123456789abdnsL \n"[(x >> 32) % 30];
        }
        if (round % 5 == 0)
            text[x % n] = 0;
        Status s = round_trip(text, &out);
        assert_true(s.code == 0 || s.code == EXIT_REQUEST);
        free(out);
    }
}

static void fails_when_memory_is_out(void **state) {
    (void)state;
    char *out;
    Status s = {.code = 1};
    for (long n = 1; s.code && n < 100; n++) {
        fault_set(FAULT_ALLOC, n, true);
        s = round_trip(sample, &out);
        fault_set(FAULT_ALLOC, 0, false);
        assert_true(s.code == 0 || s.code == EXIT_WORK);
        free(out);
    }
    assert_int_equal(s.code, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bytes),
        cmocka_unit_test(errors_name_the_line),
        cmocka_unit_test(bad_modules),
        cmocka_unit_test(survives_damage),
        cmocka_unit_test(fails_when_memory_is_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// Text of the IR: any bytes are refused with a line, or are a module that prints, parses and simplifies.
#include "passes/passes.h"
#include "tests/fuzz/fuzz.h"
#include <string.h>

static void run(Arena *arena, const char *text) {
    Module *m, *again;
    Status s = ir_parse(arena, text, "fuzz.ir", &m);
    if (s.code) {
        CHECK(s.code == EXIT_REQUEST && s.text[0], "refused without a word");
        return;
    }
    Text first = {.arena = arena}, second = {.arena = arena};
    ir_print(&first, m);
    s = ir_parse(arena, first.at, "again.ir", &again);
    CHECK(!s.code, "%s", s.text);
    ir_print(&second, again);
    CHECK(!strcmp(first.at, second.at), "the text changed");
    PassOptions o = {.train = true};
    pass_simplify(m, &o);
    ir_verify(m, "simplify");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    Arena arena;
    arena_init(&arena, (size_t)256 << 20);
    ARENA_TRY(&arena, (void)0, {
        char *text = arena_alloc(&arena, n + 1);
        memcpy(text, data, n);
        run(&arena, text);
    });
    arena_free(&arena);
    return 0;
}

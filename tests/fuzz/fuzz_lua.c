// Model scripts: any bytes are refused with a line, or are a model that prints, parses and has gradients.
#include "frontend/lua/lua.h"
#include "passes/passes.h"
#include "tests/fuzz/fuzz.h"
#include <string.h>

static void use(Arena *arena, Module *m) {
    Text first = {.arena = arena}, second = {.arena = arena};
    Module *again;
    PassOptions o = {.train = true};
    ir_verify(m, "the script");
    ir_print(&first, m);
    Status s = ir_parse(arena, first.at, "again.ir", &again);
    CHECK(!s.code, "%s", s.text);
    ir_print(&second, again);
    CHECK(!strcmp(first.at, second.at), "the text changed");
    pass_simplify(m, &o);
    ir_verify(m, "simplify");
    pass_autodiff(m, &o);
    ir_verify(m, "autodiff");
    pass_expand(m, &o);
    ir_verify(m, "expand");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    Arena arena;
    LuaResult r;
    LuaOptions o = {
        .path = fuzz_file(data, n),
        .models_dir = SOURCE_DIR "/models",
        .shape =
            {.d_model = 8, .n_layer = 2, .n_head = 2, .n_kv_head = 1, .head_dim = 4, .ff = 16, .vocab = 11},
        .batch = 2,
        .seq = 3,
        .skip_layer = -1};
    arena_init(&arena, 0);
    ARENA_TRY(&arena, (void)0, {
        Status s = lua_model(&arena, &o, &r);
        CHECK(s.code == 0 || s.code == EXIT_REQUEST, "code %d: %s", s.code, s.text);
        CHECK(s.code == 0 || r.messages.n, "refused without a message");
        if (!s.code)
            use(&arena, r.module);
    });
    arena_free(&arena);
    return 0;
}

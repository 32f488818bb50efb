// Model scripts: any bytes are refused with a line, or are a model that prints, parses, and becomes a plan
// with its kernels' texts.
#include "codegen/codegen.h"
#include "frontend/lua/lua.h"
#include "passes/passes.h"
#include "tests/fuzz/fuzz.h"
#include <string.h>

static void use(Arena *arena, Module *m) {
    Text first = {.arena = arena}, second = {.arena = arena};
    Module *again;
    PassOptions o = {.train = true,
                     .fuse = true,
                     .beta1 = 0.9,
                     .beta2 = 0.95,
                     .eps = 1e-8,
                     .clip = 1,
                     .limits = {.head_chunk_bytes = 1 << 20, .max_strips = 32},
                     .printer = {codegen_c_row, codegen_c_finish, codegen_c_scatter, codegen_c_attention}};
    ir_verify(m, "the script");
    ir_print(&first, m);
    Status s = ir_parse(arena, first.at, "again.ir", &again);
    CHECK(!s.code, "%s", s.text);
    ir_print(&second, again);
    CHECK(!strcmp(first.at, second.at), "the text changed");
    Plan *plan;
    s = pipeline_run(m, &o, &plan);
    CHECK(s.code == 0 || s.code == EXIT_REQUEST, "code %d: %s", s.code, s.text);
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

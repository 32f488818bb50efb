// What a script may use, and its limits: instructions, processor time, memory, nodes.
//
// Scripts get base, string, table and math without what reads files, runs code from text, catches errors (a
// caught limit would be no limit), draws random numbers, or loops long inside C. Invariant: after a limit was
// passed every further step raises its error again. Memory is refused inside Lua's allocator, where no
// message can be made: the place is kept aside and the message made by trace().
#include "frontend/lua/script.h"
#include <lualib.h>
#include <string.h>
#include <time.h>

enum {
    HOOK_STEP = 1000,
    MAX_INSTRUCTIONS = 50000000,
    MAX_MILLISECONDS = 1500, // of the processor; tracing the deepest model takes a tenth
    MAX_MEMORY = 256 << 20,
    MAX_STRING = 1 << 20,
    MAX_GRAPH = 1 << 30, // bytes of IR
    MAX_NODES = 500000
};

Script *script_of(lua_State *L) {
    return *(Script **)lua_getextraspace(L);
}

static int64_t processor_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void *refuse(Script *s, const char *limit) {
    s->limit = limit;
    if (s->lua)
        s->limit_place = loc_frame(s->lua, 0);
    return NULL;
}

void *sandbox_allocate(void *ctx, void *at, size_t old, size_t size) {
    Script *s = ctx;
    size_t kind = at ? 0 : old; // Lua says what a new block is for
    if (!at)
        old = 0;
    if (!size) {
        s->memory -= old;
        mem_free(at);
        return NULL;
    }
    if (kind == LUA_TSTRING && size > MAX_STRING)
        return refuse(s, "the script makes a text of more than 1 MB");
    if (size > old && s->memory + (size - old) > MAX_MEMORY)
        return refuse(s, "the script needs more than 256 MB of memory");
    s->instructions += (int64_t)(size / 64);
    void *p = mem_realloc(at, size);
    if (p)
        s->memory = s->memory - old + size;
    return p;
}

void sandbox_charge(lua_State *L, int64_t steps) {
    Script *s = script_of(L);
    s->instructions += steps;
    if (s->instructions > MAX_INSTRUCTIONS)
        lua_pushliteral(L, "the script runs too long");
    else if (s->b.f->nodes.n > MAX_NODES)
        lua_pushfstring(L, "the model has more than %d nodes", MAX_NODES);
    else if (s->arena->used > MAX_GRAPH)
        lua_pushliteral(L, "the model's graph needs more than 1 GB of memory");
    else
        return;
    lua_error(L); // without a place: luaL_error would name the caller of the function that a hook stopped
}

static void count_hook(lua_State *L, lua_Debug *frame) {
    (void)frame;
    Script *s = script_of(L);
    if (processor_ms() - s->started_ms > MAX_MILLISECONDS)
        s->instructions = MAX_INSTRUCTIONS;
    sandbox_charge(L, HOOK_STEP);
}

// A finalizer would run where no limit holds.
static int setmetatable_call(lua_State *L) {
    luaL_checktype(L, 1, LUA_TTABLE);
    luaL_argexpected(L, lua_isnil(L, 2) || lua_istable(L, 2), 2, "nil or table");
    if (luaL_getmetafield(L, 1, "__metatable") != LUA_TNIL)
        return luaL_error(L, "cannot change a protected metatable");
    if (lua_istable(L, 2)) {
        static const char *const refused[] = {"__gc", "__len", "__close"};
        for (size_t i = 0; i < COUNT_OF(refused); i++) {
            lua_pushstring(L, refused[i]);
            if (lua_rawget(L, 2) != LUA_TNIL)
                return luaL_error(L, "a script's metatables have no %s", refused[i]);
            lua_pop(L, 1);
        }
    }
    lua_settop(L, 2);
    lua_setmetatable(L, 1);
    return 1;
}

static void remove_fields(lua_State *L, const char *table, const char *const *names) {
    if (table)
        lua_getglobal(L, table);
    else
        lua_pushglobaltable(L);
    for (; *names; names++) {
        lua_pushnil(L);
        lua_setfield(L, -2, *names);
    }
    lua_pop(L, 1);
}

void sandbox_open(lua_State *L) {
    static const char *const base[] = {"load",           "loadfile", "dofile", "loadstring",
                                       "collectgarbage", "pcall",    "xpcall", "print",
                                       "rawset",         "warn",     NULL};
    static const char *const string[] = {"find", "match", "gmatch", "gsub", "dump", NULL};
    static const char *const math[] = {"random", "randomseed", NULL};
    Script *s = script_of(L);
    luaL_requiref(L, LUA_GNAME, luaopen_base, 1);
    luaL_requiref(L, LUA_STRLIBNAME, luaopen_string, 1);
    luaL_requiref(L, LUA_MATHLIBNAME, luaopen_math, 1);
    lua_settop(L, 0);
    remove_fields(L, NULL, base);
    remove_fields(L, LUA_STRLIBNAME, string);
    tables_open(L);
    remove_fields(L, LUA_MATHLIBNAME, math);
    lua_pushcfunction(L, setmetatable_call);
    lua_setglobal(L, "setmetatable");
    s->started_ms = processor_ms();
    lua_sethook(L, count_hook, LUA_MASKCOUNT, HOOK_STEP);
}

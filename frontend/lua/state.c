// One run of a script: the sandbox, its limits, require, and the only lua_pcall of the program.
//
// Scripts get base, string, table and math without what reads files, runs code from text, catches errors (a
// caught limit would be no limit), draws random numbers, or may run long inside C (pattern matching). Limits:
// instructions, memory, nodes. Invariant: after a limit was passed every further instruction raises its error
// again.
#include "frontend/lua/script.h"
#include <lualib.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HOOK_STEP = 10000, MAX_INSTRUCTIONS = 200000000, MEMORY_LIMIT = 256 << 20 };

Script *script_of(lua_State *L) {
    return *(Script **)lua_getextraspace(L);
}

static void *allocate(void *ctx, void *at, size_t old, size_t size) {
    Script *s = ctx;
    if (!at)
        old = 0;
    if (!size) {
        s->memory -= old;
        mem_free(at);
        return NULL;
    }
    if (size > old && s->memory + (size - old) > s->memory_limit) {
        s->limit = "memory";
        return NULL;
    }
    void *p = mem_realloc(at, size);
    if (p)
        s->memory = s->memory - old + size;
    return p;
}

static void count_hook(lua_State *L, lua_Debug *frame) {
    (void)frame;
    Script *s = script_of(L);
    s->instructions += HOOK_STEP;
    if (s->instructions > MAX_INSTRUCTIONS) {
        s->limit = "time";
        luaL_error(L, "the script runs too long (more than %d million instructions)",
                   MAX_INSTRUCTIONS / 1000000);
    }
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

static void open_sandbox(lua_State *L) {
    static const char *const base[] = {"load",           "loadfile", "dofile", "loadstring",
                                       "collectgarbage", "pcall",    "xpcall", "print",
                                       "rawset",         "warn",     NULL};
    static const char *const string[] = {"find", "match", "gmatch", "gsub", "dump", NULL};
    static const char *const math[] = {"random", "randomseed", NULL};
    luaL_requiref(L, LUA_GNAME, luaopen_base, 1);
    luaL_requiref(L, LUA_STRLIBNAME, luaopen_string, 1);
    luaL_requiref(L, LUA_TABLIBNAME, luaopen_table, 1);
    luaL_requiref(L, LUA_MATHLIBNAME, luaopen_math, 1);
    lua_settop(L, 0);
    remove_fields(L, NULL, base);
    remove_fields(L, LUA_STRLIBNAME, string);
    remove_fields(L, LUA_MATHLIBNAME, math);
}

// Loads a file as a chunk named by its path; pushes it, or raises the error.
static void load_file(lua_State *L, const char *path) {
    Script *s = script_of(L);
    if (luaL_loadfilex(L, path, "t") != LUA_OK) // text only: bytecode is not checked by Lua
        lua_error(L);
    GUARD(L, s, vec_push(s->arena, &s->result->files, arena_string(s->arena, path)));
}

// require "a.b": a/b.lua beside the script, then in the models' folder; nothing else.
static int require_call(lua_State *L) {
    Script *s = script_of(L);
    const char *name = luaL_checkstring(L, 1);
    char path[4200], file[256];
    lua_settop(L, 1);
    lua_getfield(L, LUA_REGISTRYINDEX, "depthbench.modules");
    if (lua_getfield(L, 2, name) != LUA_TNIL)
        return 1;
    if (strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.") != strlen(name) ||
        strstr(name, "..") || *name == '.' || strlen(name) > 200)
        return luaL_error(L, "require '%s': a module's name has letters, digits, _ and . only", name);
    snprintf(file, sizeof file, "%s", name);
    for (char *c = file; *c; c++)
        *c = *c == '.' ? '/' : *c;
    const char *slash = strrchr(s->options->path, '/');
    const char *folders[] = {slash ? lua_pushlstring(L, s->options->path, (size_t)(slash - s->options->path))
                                   : ".",
                             s->options->models_dir};
    for (size_t i = 0; i < COUNT_OF(folders); i++) {
        if (!folders[i])
            continue;
        snprintf(path, sizeof path, "%s/%s.lua", folders[i], file);
        if (access(path, R_OK))
            continue;
        load_file(L, path);
        lua_call(L, 0, 1);
        if (lua_isnil(L, -1)) {
            lua_pop(L, 1);
            lua_pushboolean(L, 1);
        }
        lua_pushvalue(L, -1);
        lua_setfield(L, 2, name);
        return 1;
    }
    return luaL_error(L, "module '%s' is neither beside the script nor among the shipped models", name);
}

static int unknown_function(lua_State *L) {
    const char *known[512];
    int n = 0;
    const char *key = luaL_checkstring(L, 2);
    for (lua_pushnil(L); lua_next(L, 1) && n < 512; lua_pop(L, 1))
        if (lua_type(L, -2) == LUA_TSTRING)
            known[n++] = lua_tostring(L, -2);
    const char *near = nearest_word(key, known, n);
    return luaL_error(L, "depthbench has no %s%s%s%s", key, near ? "; did you mean " : "", near ? near : "",
                      near ? "?" : "");
}

static void open_depthbench(lua_State *L) {
    lua_newtable(L);
    lua_setfield(L, LUA_REGISTRYINDEX, "depthbench.modules");
    value_register(L);
    lua_newtable(L);
    build_register(L);
    params_register(L);
    layers_register(L);
    lua_newtable(L);
    lua_pushcfunction(L, unknown_function);
    lua_setfield(L, -2, "__index");
    lua_setmetatable(L, -2);
    lua_getfield(L, LUA_REGISTRYINDEX, "depthbench.modules");
    lua_pushvalue(L, -2);
    lua_setfield(L, -2, "depthbench");
    lua_pop(L, 2);
    lua_pushcfunction(L, require_call);
    lua_setglobal(L, "require");
}

static void declare_rows(lua_State *L, Script *s) {
    const LuaOptions *o = s->options;
    GUARD(L, s, {
        module_axis(s->b.m, "b", AXIS_ROW, o->batch);
        module_axis(s->b.m, "s", AXIS_ROW, o->seq);
    });
}

// The whole run, protected: the script, then its model function on ids and targets.
static int run(lua_State *L) {
    Script *s = script_of(L);
    Ref ids = 0, targets = 0;
    open_sandbox(L);
    open_depthbench(L);
    declare_rows(L, s);
    lua_sethook(L, count_hook, LUA_MASKCOUNT, HOOK_STEP);
    load_file(L, s->options->path);
    lua_call(L, 0, 0);
    if (lua_getfield(L, LUA_REGISTRYINDEX, "depthbench.model") != LUA_TFUNCTION)
        luaL_error(L, "%s:1: the script defines no model: return db.model(function(ids, targets) ... end)",
                   s->options->path);
    GUARD(L, s, {
        AxisId rows[] = {module_find_axis(s->b.m, "b"), module_find_axis(s->b.m, "s")};
        Type t = type_make(s->b.m, DT_I32, 2, rows);
        ids = ir_input(&s->b, "ids", t);
        targets = ir_input(&s->b, "targets", t);
    });
    value_push(L, ids);
    value_push(L, targets);
    lua_call(L, 2, 1);
    if (!value_is(L, -1))
        luaL_error(L, "%s:1: the model function must return the loss", s->options->path);
    Ref loss = value_check(L, -1);
    if (loss && node_at(s->b.f, loss)->type.rank)
        luaL_error(L, "%s:1: the loss must be a single number, it is %s", s->options->path,
                   luaL_tolstring(L, -1, NULL));
    if (loss)
        GUARD(L, s, vec_push(s->arena, &s->b.f->outputs, ((NamedRef){"loss", loss})));
    return 0;
}

static const char *model_name(Arena *a, const char *path) {
    const char *slash = strrchr(path, '/');
    char *name = arena_string(a, slash ? slash + 1 : path);
    char *dot = strrchr(name, '.');
    if (dot)
        *dot = 0;
    for (char *c = name; *c; c++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-", *c))
            *c = '_';
    return *name ? name : "model";
}

static Status trace(Script *s, lua_State *L) {
    lua_pushcfunction(L, run);
    int code = lua_pcall(L, 0, 0, 0);
    loc_messages(s);
    if (code == LUA_ERRMEM && !s->limit)
        return status_make(EXIT_WORK, "out of memory while running %s", s->options->path);
    if (code == LUA_ERRMEM)
        loc_message(s, "the script needs more than 256 MB of memory");
    else if (code != LUA_OK)
        loc_message(s, lua_tostring(L, -1) ? lua_tostring(L, -1) : "an error that is not a text");
    if (code != LUA_OK || s->diags.list.n)
        return status_make(EXIT_REQUEST, "%s has errors", s->options->path);
    return params_unused(s);
}

static Status lua_model_in_arena(Script *s) {
    s->b.m = module_new(s->arena, model_name(s->arena, s->options->path));
    s->b.m->n_layer = s->options->shape.n_layer;
    s->b.f = module_func(s->b.m, "loss");
    s->set_used = arena_alloc(s->arena, (size_t)s->options->n_set + 1);
    lua_State *L = lua_newstate(allocate, s);
    if (!L)
        return status_memory("the Lua state", 0);
    *(Script **)lua_getextraspace(L) = s;
    Status status;
    ARENA_CATCH(s->arena, status = trace(s, L),
                status = status_make(EXIT_WORK, "out of memory in %s", s->options->path));
    lua_close(L);
    s->result->module = s->b.m;
    return status;
}

Status lua_model(Arena *arena, const LuaOptions *options, LuaResult *out) {
    Script s = {.arena = arena, .options = options, .result = out, .layer = -1, .memory_limit = MEMORY_LIMIT};
    *out = (LuaResult){.messages = {.arena = arena}};
    s.diags.arena = arena;
    s.b.diags = &s.diags;
    s.b.layer = -1;
    return lua_model_in_arena(&s);
}

// One run of a script: loading, require, tracing the model function, and the only lua_pcall of the program.
#include "frontend/lua/script.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct Reader {
    FILE *file;
    char part[4096];
} Reader;

static const char *read_part(lua_State *L, void *ctx, size_t *bytes) {
    (void)L;
    Reader *r = ctx;
    *bytes = fread(r->part, 1, sizeof r->part, r->file);
    return *bytes ? r->part : NULL;
}

// Loads a file as a chunk named by its number; pushes it, or raises the error.
static void load_file(lua_State *L, const char *path) {
    Script *s = script_of(L);
    char name[16];
    if (s->b.m->files.n >= UINT8_MAX)
        luaL_error(L, "require: more than %d files", UINT8_MAX - 1);
    GUARD(L, s, {
        vec_push(s->arena, &s->b.m->files, arena_string(s->arena, path));
        vec_push(s->arena, &s->result->files, arena_string(s->arena, path));
    });
    snprintf(name, sizeof name, "=%u", s->b.m->files.n - 1);
    Reader r = {.file = fopen(path, "rb")};
    if (!r.file)
        luaL_error(L, "%s: %s", path, strerror(errno));
    int code = lua_load(L, read_part, &r, name, "t"); // text only: bytecode is not checked by Lua
    bool bad = ferror(r.file);
    fclose(r.file);
    if (code != LUA_OK)
        lua_error(L);
    if (bad)
        luaL_error(L, "%s: cannot be read", path);
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

int unknown_function(lua_State *L) {
    const char *known[512];
    int n = 0;
    const char *key = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : luaL_typename(L, 2);
    for (lua_pushnil(L); lua_next(L, 1) && n < 512; lua_pop(L, 1))
        if (lua_type(L, -2) == LUA_TSTRING)
            known[n++] = lua_tostring(L, -2);
    const char *near = nearest_word(key, known, n);
    return luaL_error(L, "%s has no %s%s%s%s", lua_tostring(L, lua_upvalueindex(1)), key,
                      near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
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
    lua_pushstring(L, "depthbench");
    lua_pushcclosure(L, unknown_function, 1);
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

// Errors about the model function as a whole stand at the line where it begins.
static void model_error(lua_State *L, const char *text) {
    Script *s = script_of(L);
    lua_Debug info;
    lua_getfield(L, LUA_REGISTRYINDEX, "depthbench.model");
    lua_getinfo(L, ">S", &info);
    s->error_place = (Loc){.file = {(uint8_t)atoi(info.source + 1)},
                           .line = {(uint16_t)MIN_OF(MAX_OF(info.linedefined, 1), UINT16_MAX)}};
    lua_pushstring(L, text);
    lua_error(L);
}

static void check_loss(lua_State *L) {
    Script *s = script_of(L);
    char text[256], type[128];
    if (!value_is(L, -1))
        model_error(L, "the model function must return the loss");
    Ref loss = value_check(L, -1);
    if (!loss)
        return;
    const Type *t = &node_at(s->b.f, loss)->type;
    if (t->rank || t->dtype != DT_F32) {
        snprintf(text, sizeof text, "the loss must be a single number, f32[]; this one is %s",
                 type_text(s->b.m, t, type));
        model_error(L, text);
    }
    GUARD(L, s, vec_push(s->arena, &s->b.f->outputs, ((NamedRef){"loss", loss})));
}

// The whole run, protected: the script, then its model function on ids and targets.
static int run(lua_State *L) {
    Script *s = script_of(L);
    Ref ids = 0, targets = 0;
    sandbox_open(L);
    open_depthbench(L);
    declare_rows(L, s);
    load_file(L, s->options->path);
    lua_call(L, 0, 0);
    if (lua_getfield(L, LUA_REGISTRYINDEX, "depthbench.model") != LUA_TFUNCTION)
        return luaL_error(
            L, "1:1: the script defines no model: return db.model(function(ids, targets) ... end)");
    GUARD(L, s, {
        AxisId rows[] = {module_find_axis(s->b.m, "b"), module_find_axis(s->b.m, "s")};
        Type t = type_make(s->b.m, DT_I32, 2, rows);
        ids = ir_input(&s->b, "ids", t);
        targets = ir_input(&s->b, "targets", t);
    });
    value_push(L, ids);
    value_push(L, targets);
    lua_call(L, 2, 1);
    check_loss(L);
    return 0;
}

// The message handler: keeps the place of an error while its frames stand.
static int keep_place(lua_State *L) {
    Script *s = script_of(L);
    if (!s->error_place.line[0])
        s->error_place = loc_frame(L, 1);
    return 1;
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
    lua_pushcfunction(L, keep_place);
    lua_pushcfunction(L, run);
    int code = lua_pcall(L, 0, 0, 1);
    loc_messages(s);
    const char *text = code == LUA_OK                   ? ""
                       : lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1)
                                                        : "an error that is not a text";
    bool no_memory = code == LUA_ERRMEM || !strcmp(text, "not enough memory"); // the latter: buffers of texts
    if (s->out_of_memory || (no_memory && !s->limit))
        return status_make(EXIT_WORK, "out of memory while running %s", s->options->path);
    if (no_memory)
        loc_message(s, s->limit_place, s->limit);
    else if (code != LUA_OK)
        loc_message(s, s->error_place, text);
    if (code != LUA_OK || s->diags.list.n)
        return status_make(EXIT_REQUEST, "%s has errors", s->options->path);
    return params_unused(s);
}

static Status run_state(Script *s) {
    Status status;
    s->b.m = module_new(s->arena, model_name(s->arena, s->options->path));
    s->b.m->n_layer = s->options->shape.n_layer;
    s->b.f = module_func(s->b.m, "loss");
    s->set_used = arena_alloc(s->arena, (size_t)s->options->n_set + 1);
    s->result->module = s->b.m;
    lua_State *L = lua_newstate(sandbox_allocate, s);
    if (!L)
        return status_memory("the Lua state", 0);
    *(Script **)lua_getextraspace(L) = s;
    s->lua = L;
    ARENA_CATCH(s->arena, status = trace(s, L),
                status = status_make(EXIT_WORK, "out of memory in %s", s->options->path));
    s->lua = NULL;
    lua_close(L);
    return status;
}

Status lua_model(Arena *arena, const LuaOptions *options, LuaResult *out) {
    Script s = {.arena = arena, .options = options, .result = out, .layer = -1};
    Status status;
    *out = (LuaResult){.messages = {.arena = arena}};
    s.diags.arena = arena;
    s.b.diags = &s.diags;
    s.b.layer = -1;
    ARENA_CATCH(arena, status = run_state(&s),
                status = status_make(EXIT_WORK, "out of memory in %s", options->path));
    return status;
}

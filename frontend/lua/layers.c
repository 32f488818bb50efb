// db.model, db.layers and layer:block: the loop over layers, its scopes and depth states.
#include "frontend/lua/script.h"

static int model_call(lua_State *L) {
    luaL_checktype(L, 1, LUA_TFUNCTION);
    lua_pushvalue(L, 1);
    lua_setfield(L, LUA_REGISTRYINDEX, "depthbench.model");
    return 1;
}

// Calls db.hidden(k, state), with k the depth.
static void mark_hidden(lua_State *L, lua_Integer k, int state) {
    if (!value_is(L, state))
        return;
    lua_getfield(L, LUA_REGISTRYINDEX, "depthbench.hidden");
    lua_pushinteger(L, k);
    lua_pushvalue(L, state);
    lua_call(L, 2, 0);
}

// layer:block(state, fn): fn(state), or the state as it came where this layer is skipped.
static int block_call(lua_State *L) {
    luaL_checktype(L, 1, LUA_TTABLE);
    luaL_checkany(L, 2);
    luaL_checktype(L, 3, LUA_TFUNCTION);
    lua_settop(L, 3);
    lua_getfield(L, 1, "index");
    lua_getfield(L, 1, "skipped");
    lua_Integer index = lua_tointeger(L, 4);
    lua_pushvalue(L, 2);
    if (!lua_toboolean(L, 5)) {
        lua_pushvalue(L, 3);
        lua_replace(L, 6);
        lua_pushvalue(L, 2);
        lua_call(L, 1, 1);
    }
    mark_hidden(L, index + 1, lua_gettop(L));
    return 1;
}

static int next_layer(lua_State *L) {
    Script *s = script_of(L);
    if (++s->layer >= s->options->shape.n_layer) {
        s->layer = -1;
        return 0;
    }
    lua_newtable(L);
    lua_pushinteger(L, s->layer);
    lua_setfield(L, -2, "index");
    lua_pushboolean(L, s->layer == s->options->skip_layer);
    lua_setfield(L, -2, "skipped");
    lua_pushcfunction(L, block_call);
    lua_setfield(L, -2, "block");
    return 1;
}

// for layer in db.layers([state]): weights made inside get the prefix layers.K.; the state is depth state 0.
static int layers_call(lua_State *L) {
    Script *s = script_of(L);
    if (s->layer >= 0)
        return luaL_error(L, "db.layers inside of db.layers");
    if (lua_gettop(L) > 0)
        mark_hidden(L, 0, 1);
    lua_pushcfunction(L, next_layer);
    return 1;
}

// clang-format off
const LuaFunction layers_functions[] = {
    {"model",  model_call,  false, "function(ids, targets) .. end", "what the script is for: a function from ids and targets (i32[b,s]) to the loss (f32[])"},
    {"layers", layers_call, false, "[x]", "for layer in db.layers(x) do .. end: runs n_layer times; layer.index counts from 0; x is depth state 0"},
};
// clang-format on
const int n_layers_functions = (int)COUNT_OF(layers_functions);

void layers_register(lua_State *L) {
    for (int i = 0; i < n_layers_functions; i++) {
        lua_pushcfunction(L, layers_functions[i].call);
        lua_setfield(L, -2, layers_functions[i].name);
    }
    lua_getfield(L, -1, "hidden");
    lua_setfield(L, LUA_REGISTRYINDEX, "depthbench.hidden");
}

// db.model, db.layers and layer:block: the loop over layers, its scopes and depth states.
#include "frontend/lua/script.h"

#define LOOP_META "depthbench.loop"

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
    if (index != script_of(L)->layer)
        return luaL_error(L, "layer:block: the loop is not at this layer");
    lua_pushvalue(L, 2);
    if (!lua_toboolean(L, 5)) {
        lua_pushvalue(L, 3);
        lua_replace(L, 6);
        lua_pushvalue(L, 2);
        lua_call(L, 1, 1);
        if (lua_isnil(L, -1))
            return luaL_error(L, "layer:block: the function must return the layer's result");
    }
    mark_hidden(L, index + 1, lua_gettop(L));
    return 1;
}

// Upvalue 1: the layer that this loop made last.
static int next_layer(lua_State *L) {
    Script *s = script_of(L);
    lua_Integer last = lua_tointeger(L, lua_upvalueindex(1));
    if (last != s->layer)
        return luaL_error(L, "two loops over db.layers at once");
    lua_pushinteger(L, last + 1);
    lua_replace(L, lua_upvalueindex(1));
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
    lua_pushinteger(L, -1);
    lua_pushcclosure(L, next_layer, 1);
    lua_pushnil(L);
    lua_pushnil(L);
    lua_newuserdatauv(L, 1, 0); // the closing value of a generic for: break and return end the scope too
    luaL_setmetatable(L, LOOP_META);
    return 4;
}

static int end_loop(lua_State *L) {
    script_of(L)->layer = -1;
    return 0;
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
    luaL_newmetatable(L, LOOP_META);
    lua_pushcfunction(L, end_loop);
    lua_setfield(L, -2, "__close");
    lua_pop(L, 1);
    lua_getfield(L, -1, "hidden");
    lua_setfield(L, LUA_REGISTRYINDEX, "depthbench.hidden");
}

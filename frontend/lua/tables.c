// Lua's table functions with their work counted: they loop inside C, where the hook of the limits never runs.
//
// The originals stay where error messages look names up (package.loaded, which no script reaches); scripts
// get the functions of this file, which charge first and then call them. insert, remove, concat and sort take
// plain tables only: with metamethods the length, and so the work, could be anything.
#include "frontend/lua/script.h"
#include <lualib.h>

enum { COMPARE_STEPS = 4, BYTES_A_STEP = 64, MAX_CHARGE = 1 << 30 };

static int64_t plain_length(lua_State *L) {
    static const char *const refused[] = {"__index", "__newindex", "__len"};
    luaL_checktype(L, 1, LUA_TTABLE);
    for (size_t i = 0; i < COUNT_OF(refused); i++)
        if (luaL_getmetafield(L, 1, refused[i]) != LUA_TNIL)
            luaL_error(L, "the table functions take tables without %s", refused[i]);
    return (int64_t)lua_rawlen(L, 1);
}

// Elements from `from` to `to`, at most MAX_CHARGE; the difference alone could overflow.
static int64_t count_range(lua_Integer from, lua_Integer to) {
    double count = (double)to - (double)from + 1;
    return count < 0 ? 0 : count > MAX_CHARGE ? MAX_CHARGE : (int64_t)count;
}

static int call_original(lua_State *L) {
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_insert(L, 1);
    lua_call(L, lua_gettop(L) - 1, LUA_MULTRET);
    return lua_gettop(L);
}

// At the end: one step; elsewhere all elements behind the place move.
static int move_call(lua_State *L) {
    int place = (int)lua_tointeger(L, lua_upvalueindex(2)); // number of arguments when a place is given
    int64_t n = plain_length(L);
    sandbox_charge(L, lua_gettop(L) >= place ? count_range(lua_tointeger(L, 2), n) : 1);
    return call_original(L);
}

static int concat_call(lua_State *L) {
    int64_t n = plain_length(L);
    sandbox_charge(L, count_range(luaL_optinteger(L, 3, 1), luaL_optinteger(L, 4, n)));
    return call_original(L);
}

static int unpack_call(lua_State *L) {
    lua_Integer n = lua_isnoneornil(L, 3) ? luaL_len(L, 1) : luaL_checkinteger(L, 3);
    sandbox_charge(L, MIN_OF(count_range(luaL_optinteger(L, 2, 1), n), 1 << 20)); // it refuses more by itself
    return call_original(L);
}

static int64_t text_steps(lua_State *L, int arg) {
    return lua_type(L, arg) == LUA_TSTRING ? (int64_t)lua_rawlen(L, arg) / BYTES_A_STEP : 0;
}

// One comparison of a sort: upvalue 1 is the script's function or nil.
static int compare_elements(lua_State *L) {
    sandbox_charge(L, COMPARE_STEPS + text_steps(L, 1) + text_steps(L, 2));
    if (lua_isnil(L, lua_upvalueindex(1))) {
        lua_pushboolean(L, lua_compare(L, 1, 2, LUA_OPLT));
        return 1;
    }
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_insert(L, 1);
    lua_call(L, 2, 1);
    return 1;
}

static int sort_call(lua_State *L) {
    sandbox_charge(L, plain_length(L));
    lua_settop(L, 2); // plain_length leaves nothing for a plain table; an absent function is nil
    if (!lua_isnil(L, 2))
        luaL_checktype(L, 2, LUA_TFUNCTION);
    lua_pushcclosure(L, compare_elements, 1);
    return call_original(L);
}

void tables_open(lua_State *L) {
    static const struct {
        const char *name;
        lua_CFunction call;
        int place;
    } counted[] = {{"insert", move_call, 3},
                   {"remove", move_call, 2},
                   {"concat", concat_call, 0},
                   {"unpack", unpack_call, 0},
                   {"sort", sort_call, 0}};
    luaL_requiref(L, LUA_TABLIBNAME, luaopen_table, 0);
    lua_newtable(L);
    for (size_t i = 0; i < COUNT_OF(counted); i++) {
        lua_getfield(L, -2, counted[i].name);
        lua_pushinteger(L, counted[i].place);
        lua_pushcclosure(L, counted[i].call, 2);
        lua_setfield(L, -2, counted[i].name);
    }
    lua_getfield(L, -2, "pack");
    lua_setfield(L, -2, "pack");
    lua_setglobal(L, LUA_TABLIBNAME);
    lua_pop(L, 1);
}

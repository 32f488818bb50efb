// Values and axes as userdata: arithmetic by metamethods, methods made from the op table.
#include "frontend/lua/script.h"
#include <string.h>

void value_push(lua_State *L, Ref ref) {
    sandbox_charge(L, 16);
    Ref *at = lua_newuserdatauv(L, sizeof *at, 0);
    *at = ref;
    luaL_setmetatable(L, VALUE_META);
}

bool value_is(lua_State *L, int arg) {
    return luaL_testudata(L, arg, VALUE_META) != NULL;
}

Ref value_check(lua_State *L, int arg) {
    Script *s = script_of(L);
    if (lua_type(L, arg) == LUA_TNUMBER) {
        double number = lua_tonumber(L, arg);
        Ref r = 0;
        GUARD(L, s, r = ir_const(&s->b, number));
        return r;
    }
    if (!value_is(L, arg))
        luaL_typeerror(L, arg, "a value or a number");
    return *(Ref *)lua_touserdata(L, arg);
}

bool axis_is(lua_State *L, int arg) {
    return luaL_testudata(L, arg, AXIS_META) != NULL;
}

void axis_push(lua_State *L, AxisId axis) {
    AxisId *at = lua_newuserdatauv(L, sizeof *at, 0);
    *at = axis;
    luaL_setmetatable(L, AXIS_META);
}

AxisId axis_check(lua_State *L, int arg) {
    if (!axis_is(L, arg))
        luaL_typeerror(L, arg, "an axis");
    return *(AxisId *)lua_touserdata(L, arg);
}

int axes_check(lua_State *L, int first, AxisId *out) {
    int n = lua_gettop(L) - first + 1;
    if (n > MAX_ATTR_AXES)
        luaL_error(L, "at most %d axes", MAX_ATTR_AXES);
    for (int i = 0; i < n; i++)
        out[i] = axis_check(L, first + i);
    return n;
}

// The operators are named by their functions in the table; looked up once by name, so that no op is named
// here.
static Op op_by_name(const char *name) {
    for (int i = 1; i < N_OPS; i++)
        if (!strcmp(op_info[i].name, name))
            return (Op)i;
    return OP_POISON;
}

static int operator_call(lua_State *L) {
    return build_map(L, (Op)lua_tointeger(L, lua_upvalueindex(1)));
}

static int value_tostring(lua_State *L) {
    Script *s = script_of(L);
    char text[128];
    Ref r = *(Ref *)luaL_checkudata(L, 1, VALUE_META);
    lua_pushstring(L, r ? type_text(s->b.m, &node_at(s->b.f, r)->type, text) : "a value that has an error");
    return 1;
}

static int axis_index(lua_State *L) {
    Script *s = script_of(L);
    const Axis *a = &s->b.m->axes.at[axis_check(L, 1)];
    const char *key = luaL_checkstring(L, 2);
    if (!strcmp(key, "size"))
        lua_pushinteger(L, a->size);
    else if (!strcmp(key, "name"))
        lua_pushstring(L, a->name);
    else
        return luaL_error(L, "an axis has size and name, no %s", key);
    return 1;
}

static int axis_tostring(lua_State *L) {
    Script *s = script_of(L);
    const Axis *a = &s->b.m->axes.at[axis_check(L, 1)];
    lua_pushfstring(L, "axis %s of size %d", a->name, a->size);
    return 1;
}

static int axis_equal(lua_State *L) {
    lua_pushboolean(L, axis_is(L, 1) && axis_is(L, 2) && axis_check(L, 1) == axis_check(L, 2));
    return 1;
}

static int compare_call(lua_State *L) {
    return luaL_error(
        L, "values are compared by db.lt(a, b) and db.eq(a, b), which give 1 or 0 for each element");
}

static void set_function(lua_State *L, const char *name, lua_CFunction f) {
    lua_pushcfunction(L, f);
    lua_setfield(L, -2, name);
}

void value_register(lua_State *L) {
    static const char *const operators[][2] = {{"__add", "add"}, {"__sub", "sub"}, {"__mul", "mul"},
                                               {"__div", "div"}, {"__pow", "pow"}, {"__unm", "neg"}};
    luaL_newmetatable(L, VALUE_META);
    for (size_t i = 0; i < COUNT_OF(operators); i++) {
        lua_pushinteger(L, op_by_name(operators[i][1]));
        lua_pushcclosure(L, operator_call, 1);
        lua_setfield(L, -2, operators[i][0]);
    }
    set_function(L, "__tostring", value_tostring);
    set_function(L, "__lt", compare_call);
    set_function(L, "__le", compare_call);
    lua_newtable(L);
    build_methods(L);
    lua_newtable(L);
    lua_pushstring(L, "a value");
    lua_pushcclosure(L, unknown_function, 1);
    lua_setfield(L, -2, "__index");
    lua_setmetatable(L, -2);
    lua_setfield(L, -2, "__index");
    lua_pushstring(L, "value");
    lua_setfield(L, -2, "__metatable"); // scripts cannot change it
    lua_pop(L, 1);
    luaL_newmetatable(L, AXIS_META);
    set_function(L, "__index", axis_index);
    set_function(L, "__tostring", axis_tostring);
    set_function(L, "__eq", axis_equal);
    lua_pushstring(L, "axis");
    lua_setfield(L, -2, "__metatable");
    lua_pop(L, 1);
}

// db.axis, db.weight, db.fixed, db.normal, db.param, db.shape: what a script declares.
#include "frontend/lua/script.h"
#include <math.h>
#include <string.h>

#define NAME_LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"

// After a mistake the axis is what the hint says it should be, so that one mistake makes one message.
static AxisId declare_axis(Script *s, const char *name, AxisId known, AxisKind kind, int32_t size) {
    static const char *const kinds[] = {"row", "small", "wide"};
    if (known != AXIS_NONE) {
        const Axis *a = &s->b.m->axes.at[known];
        if (a->kind != kind)
            diag_add(&s->diags, s->b.loc, DIAG_axis_kind, "axis", name, kinds[kind], name, kinds[a->kind]);
        else if (a->size != size)
            diag_add(&s->diags, s->b.loc, DIAG_axis_size, name, a->size, size);
        return known;
    }
    if (kind == AXIS_SMALL && size > MAX_SMALL) {
        diag_add(&s->diags, s->b.loc, DIAG_small_size, name, MAX_SMALL, size);
        kind = AXIS_WIDE;
    }
    return module_axis(s->b.m, name, kind, size);
}

static int axis_call(lua_State *L) {
    Script *s = script_of(L);
    static const char *const kinds[] = {"row", "small", "wide", NULL};
    const char *name = luaL_checkstring(L, 1);
    AxisId known = module_find_axis(s->b.m, name);
    if (lua_gettop(L) == 1) {
        if (known == AXIS_NONE)
            return luaL_error(L, "axis %s is not declared: db.axis(\"%s\", \"wide\", size)", name, name);
        axis_push(L, known);
        return 1;
    }
    AxisKind kind = (AxisKind)luaL_checkoption(L, 2, NULL, kinds);
    lua_Number real = luaL_checknumber(L, 3);
    loc_here(L);
    if (!(real >= 1 && real <= INT32_MAX) || floor(real) != real)
        return luaL_error(L, "axis %s: the size must be a whole number of at least 1, not %f", name, real);
    if (strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") == 0 || // "_..": the passes' own
        strspn(name, NAME_LETTERS) != strlen(name) || strlen(name) > 24)
        return luaL_error(L, "axis '%s': a name begins with a letter and has letters, digits and _ only",
                          name);
    if (known == AXIS_NONE && s->b.m->axes.n >= MAX_AXES - 64)
        return luaL_error(L, "more than %d axes", MAX_AXES - 64);
    sandbox_charge(L, s->b.m->axes.n);
    GUARD(L, s, known = declare_axis(s, name, known, kind, (int32_t)real));
    axis_push(L, known);
    return 1;
}

// db.normal(std) is a table {normal = std}.
static int normal_call(lua_State *L) {
    lua_Number std = luaL_checknumber(L, 1);
    if (!(std >= 0 && std <= 1e6))
        return luaL_error(L, "normal: the deviation must be from 0 to 1e6, not %f", std);
    lua_newtable(L);
    lua_pushnumber(L, std);
    lua_setfield(L, -2, "normal");
    return 1;
}

static double finite_check(lua_State *L, double x) {
    if (!isfinite(x))
        luaL_error(L, "an initial value must be a finite number, not %f", x);
    return x;
}

// Calls the function at `arg` for every index of the type, row-major in file order.
static const double *init_table(lua_State *L, Script *s, int arg, const Type *t) {
    int64_t n = type_count(s->b.m, t), at[MAX_RANK] = {0};
    double *table = NULL;
    if (n > 1 << 20)
        luaL_error(L, "an initial value given by a function has at most 2^20 elements");
    sandbox_charge(L, 4 * n);
    GUARD(L, s, table = arena_alloc(s->arena, (size_t)n * sizeof *table));
    luaL_checkstack(L, MAX_RANK + 2, "init");
    for (int64_t i = 0; i < n; i++) {
        lua_pushvalue(L, arg);
        for (int k = 0; k < t->rank; k++)
            lua_pushinteger(L, at[k]);
        lua_call(L, t->rank, 1);
        if (lua_type(L, -1) != LUA_TNUMBER)
            luaL_error(L, "the initial value's function must return a number, not %s", luaL_typename(L, -1));
        table[i] = finite_check(L, lua_tonumber(L, -1));
        lua_pop(L, 1);
        for (int k = t->rank - 1; k >= 0; k--) {
            if (++at[k] < s->b.m->axes.at[t->axis[k]].size)
                break;
            at[k] = 0;
        }
    }
    return table;
}

static Init init_check(lua_State *L, Script *s, int arg, const Type *t) {
    if (lua_type(L, arg) == LUA_TNUMBER)
        return (Init){.kind = INIT_CONST, .value = finite_check(L, lua_tonumber(L, arg))};
    if (lua_isfunction(L, arg))
        return (Init){.kind = INIT_TABLE, .table = init_table(L, s, arg, t)};
    if (lua_istable(L, arg) && lua_getfield(L, arg, "normal") == LUA_TNUMBER) {
        double std = lua_tonumber(L, -1);
        lua_pop(L, 1);
        return (Init){.kind = INIT_NORMAL, .value = std};
    }
    luaL_argerror(L, arg, "an initial value is a number, db.normal(std), or a function of the indices");
    return (Init){0};
}

enum { MAX_FULL_NAME = 200 };
static const int64_t MAX_ELEMENTS = (int64_t)1 << 40;

static Type type_from_table(lua_State *L, int arg) {
    Type t = {.dtype = DT_F32};
    luaL_checktype(L, arg, LUA_TTABLE);
    lua_Integer n = (lua_Integer)lua_rawlen(L, arg);
    int64_t count = 1;
    if (n > MAX_RANK)
        luaL_error(L, "a weight has at most %d axes", MAX_RANK);
    for (lua_Integer i = 1; i <= n; i++) {
        lua_geti(L, arg, i);
        if (!axis_is(L, -1))
            luaL_error(L, "a weight's axes are a list as {d, f}; number %d is %s", (int)i,
                       luaL_typename(L, -1));
        t.axis[t.rank] = axis_check(L, lua_gettop(L));
        count *= script_of(L)->b.m->axes.at[t.axis[t.rank++]].size;
        lua_pop(L, 1);
        if (count > MAX_ELEMENTS)
            luaL_error(L, "a weight has more than 2^40 elements");
        for (int k = 0; k + 1 < t.rank; k++)
            if (t.axis[k] == t.axis[t.rank - 1])
                luaL_error(L, "a weight has the same axis twice");
    }
    return t;
}

// The value of option `key` of the table at `arg`, on top of the stack; false when it is not there.
static bool option(lua_State *L, int arg, const char *key, int type) {
    if (lua_getfield(L, arg, key) == LUA_TNIL)
        return false;
    if (lua_type(L, -1) != type)
        luaL_error(L, "weight: option %s is a %s, it must be a %s", key, luaL_typename(L, -1),
                   lua_typename(L, type));
    return true;
}

// The options table of a weight: decay, owner, role.
static void param_options(lua_State *L, Script *s, int arg, const char *name, Param *p) {
    static const char *const known[] = {"decay", "owner", "role"};
    const char *role = name;
    p->owner = (int16_t)s->layer;
    if (!lua_isnoneornil(L, arg)) {
        luaL_checktype(L, arg, LUA_TTABLE);
        for (lua_pushnil(L); lua_next(L, arg); lua_pop(L, 1)) {
            const char *key = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : luaL_typename(L, -2);
            bool found = false;
            for (size_t i = 0; i < COUNT_OF(known); i++)
                found |= !strcmp(key, known[i]);
            if (!found)
                luaL_error(L, "weight: no option %s; there are decay, owner and role", key);
        }
        if (option(L, arg, "decay", LUA_TBOOLEAN))
            p->decay = lua_toboolean(L, -1);
        if (option(L, arg, "owner", LUA_TNUMBER)) {
            lua_Number owner = lua_tonumber(L, -1);
            if (!(owner >= -1 && owner < s->options->shape.n_layer))
                luaL_error(L, "weight: owner %f is not a layer", owner);
            p->owner = (int16_t)owner;
        }
        if (option(L, arg, "role", LUA_TSTRING)) { // replaces the first word of the name
            const char *rest = strchr(name, '.');
            role = lua_pushfstring(L, "%s%s", lua_tostring(L, -1), rest ? rest : "");
            if (strlen(role) > MAX_FULL_NAME || !*role || strspn(role, NAME_LETTERS ".") != strlen(role))
                luaL_error(L, "weight '%s': a role has letters, digits, _ and . only", name);
        }
    }
    GUARD(L, s, p->role = p->owner < 0 ? "" : arena_string(s->arena, role));
}

static void declared_again(Script *s, int32_t k, const Param *p) {
    Param *old = &s->b.m->params.at[k];
    char there[128], here[128];
    if (!type_same(&old->file, &p->file))
        diag_add(&s->diags, s->b.loc, DIAG_param_again, old->name, type_text(s->b.m, &old->file, there),
                 s->b.m->files.at[old->loc.file[0]], old->loc.line[0], type_text(s->b.m, &p->file, here));
}

static bool has_row_axis(Script *s, const char *name, const Param *p) {
    for (int i = 0; p->trained && i < p->file.rank; i++) {
        const Axis *a = &s->b.m->axes.at[p->file.axis[i]];
        if (a->kind == AXIS_ROW) {
            diag_add(&s->diags, s->b.loc, DIAG_param_row_axis, name, a->name);
            return true;
        }
    }
    return false;
}

static int32_t add_param(Script *s, const char *name, Param p) {
    p.name = arena_string(s->arena, name);
    p.type = type_make(s->b.m, DT_F32, p.file.rank, p.file.axis);
    vec_push(s->arena, &s->b.m->params, p);
    return (int32_t)s->b.m->params.n - 1;
}

// Name, axes, initial value, options. The number of the parameter, new or known; -1 after a diag. Known names
// are looked up in a table of Lua's: module_param would make many weights quadratic.
static int32_t declare(lua_State *L, bool trained) {
    Script *s = script_of(L);
    const char *name = luaL_checkstring(L, 1);
    char full[MAX_FULL_NAME + 32];
    int32_t k = -1;
    lua_settop(L, 4);
    loc_here(L);
    Param p = {.decay = true, .trained = trained, .loc = s->b.loc, .file = type_from_table(L, 2)};
    if (strspn(name, NAME_LETTERS ".") != strlen(name) || !*name || strlen(name) > MAX_FULL_NAME)
        luaL_error(L, "weight '%s': a name has letters, digits, _ and . only, at most %d", name,
                   MAX_FULL_NAME);
    snprintf(full, sizeof full, s->layer >= 0 ? "layers.%d.%s" : "%.0d%s", s->layer >= 0 ? s->layer : 0,
             name);
    lua_getfield(L, LUA_REGISTRYINDEX, "depthbench.weights");
    if (lua_getfield(L, -1, full) == LUA_TNUMBER) {
        k = (int32_t)lua_tointeger(L, -1);
        GUARD(L, s, declared_again(s, k, &p));
        return type_same(&s->b.m->params.at[k].file, &p.file) ? k : -1;
    }
    bool row = false;
    GUARD(L, s, row = has_row_axis(s, full, &p));
    if (row)
        return -1;
    p.init = init_check(L, s, 3, &p.file);
    param_options(L, s, 4, name, &p);
    lua_getfield(L, LUA_REGISTRYINDEX, "depthbench.weights");
    if (lua_getfield(L, -1, full) != LUA_TNIL)
        luaL_error(L, "weight '%s': its own initial value declares it", full);
    lua_pop(L, 1);
    GUARD(L, s, k = add_param(s, full, p));
    lua_pushinteger(L, k);
    lua_setfield(L, -2, full);
    return k;
}

// Pushes the value of parameter k: one node, however often it is asked for.
static int param_value(lua_State *L, bool trained) {
    Script *s = script_of(L);
    int32_t k = declare(L, trained);
    Ref r = 0;
    if (k >= 0) {
        lua_getfield(L, LUA_REGISTRYINDEX, "depthbench.weights");
        lua_geti(L, -1, k + 1);
        r = (Ref)lua_tointeger(L, -1);
        lua_pop(L, 1);
        if (!r) {
            GUARD(L, s, r = ir_node(&s->b, (Node){.op = OP_param, .k = k}, 0, NULL));
            lua_pushinteger(L, r);
            lua_seti(L, -2, k + 1);
        }
    }
    value_push(L, r);
    return 1;
}

static int weight_call(lua_State *L) {
    return param_value(L, true);
}

static int fixed_call(lua_State *L) {
    return param_value(L, false);
}

static const char *find_set(Script *s, const char *key) {
    const char *found = NULL;
    for (int i = 0; i < s->options->n_set; i++) {
        const char *text = s->options->set[i].key;
        size_t n = strcspn(text, "=");
        if (strlen(key) == n && !strncmp(text, key, n)) {
            s->set_used[i] = true;
            found = s->options->set[i].value;
        }
    }
    return found;
}

// Pushes the text as a value of the default's kind.
static void push_set(lua_State *L, const char *key, const char *text) {
    if (lua_type(L, 2) == LUA_TBOOLEAN) {
        if (strcmp(text, "true") && strcmp(text, "false"))
            luaL_error(L, "--set %s=%s: choose true or false", key, text);
        lua_pushboolean(L, !strcmp(text, "true"));
    } else if (lua_type(L, 2) == LUA_TNUMBER) {
        if (!lua_stringtonumber(L, text))
            luaL_error(L, "--set %s=%s: not a number", key, text);
        if (lua_isinteger(L, 2) && !lua_isinteger(L, -1))
            luaL_error(L, "--set %s=%s: not a whole number", key, text);
    } else
        lua_pushstring(L, text);
}

enum { MAX_CHOICES = 64 };

// The value on top of the stack against {min =, max =} or a list of choices.
static void check_spec(lua_State *L, const char *key) {
    int value = lua_gettop(L);
    const char *shown = luaL_tolstring(L, value, NULL);
    if (lua_istable(L, 3)) {
        if (lua_getfield(L, 3, "min") == LUA_TNUMBER && lua_compare(L, value, -1, LUA_OPLT))
            luaL_error(L, "--set %s=%s: the smallest value is %s", key, shown, lua_tostring(L, -1));
        if (lua_getfield(L, 3, "max") == LUA_TNUMBER && lua_compare(L, -1, value, LUA_OPLT))
            luaL_error(L, "--set %s=%s: the largest value is %s", key, shown, lua_tostring(L, -1));
        lua_Integer n = (lua_Integer)lua_rawlen(L, 3);
        if (n > MAX_CHOICES)
            luaL_error(L, "param %s: more than %d choices", key, MAX_CHOICES);
        bool found = n == 0;
        luaL_Buffer list;
        luaL_buffinit(L, &list);
        for (lua_Integer i = 1; i <= n; i++) {
            lua_geti(L, 3, i);
            found |= lua_rawequal(L, value, -1);
            luaL_tolstring(L, -1, NULL);
            lua_remove(L, -2);
            luaL_addvalue(&list);
            luaL_addstring(&list, i < n ? ", " : "");
        }
        luaL_pushresult(&list);
        if (!found)
            luaL_error(L, "--set %s=%s: choose from %s", key, shown, lua_tostring(L, -1));
    }
    lua_settop(L, value);
}

// db.param(key, default [, {min = x} or {choices}]): the default, or what --set says.
static int param_call(lua_State *L) {
    Script *s = script_of(L);
    const char *key = luaL_checkstring(L, 1);
    luaL_checkany(L, 2);
    lua_settop(L, 3);
    const char *text = find_set(s, key);
    if (text)
        push_set(L, key, text);
    else
        lua_pushvalue(L, 2);
    check_spec(L, key);
    const char *shown = luaL_tolstring(L, -1, NULL);
    GUARD(L, s, {
        ScriptParam p = {.doc = ""};
        p.key = arena_string(s->arena, key);
        p.value = arena_string(s->arena, shown);
        vec_push(s->arena, &s->result->params, p);
    });
    lua_pop(L, 1);
    return 1;
}

static const char *const shape_keys[] = {"d_model",  "n_layer", "n_head", "n_kv_head",
                                         "head_dim", "ff",      "vocab"};

Status params_unused(Script *s) {
    for (int i = 0; i < s->options->n_set; i++) {
        if (s->set_used[i])
            continue;
        const char *names[64 + COUNT_OF(shape_keys)];
        char list[300] = "";
        int n = 0;
        for (uint32_t k = 0; k < s->result->params.n && n < 64; k++) {
            names[n++] = s->result->params.at[k].key;
            size_t len = strlen(list);
            snprintf(list + len, sizeof list - len, "%s%s", k ? ", " : "", names[n - 1]);
        }
        for (size_t k = 0; k < COUNT_OF(shape_keys); k++)
            names[n++] = shape_keys[k];
        char key[64];
        snprintf(key, sizeof key, "%.*s", (int)MIN_OF(strcspn(s->options->set[i].key, "="), (size_t)60),
                 s->options->set[i].key);
        const char *near = nearest_word(key, names, n);
        return status_make(EXIT_REQUEST,
                           "--set %s: %s has no such key%s%s%s; its keys: %s and the shape's columns", key,
                           s->b.m->model, near ? "; did you mean " : "", near ? near : "", near ? "?" : "",
                           *list ? list : "none");
    }
    return STATUS_OK;
}

static int shape_index(lua_State *L) {
    const char *near = nearest_word(luaL_checkstring(L, 2), shape_keys, (int)COUNT_OF(shape_keys));
    return luaL_error(L, "db.shape has no %s%s%s%s", lua_tostring(L, 2), near ? "; did you mean " : "",
                      near ? near : "", near ? "?" : "");
}

static int shape_newindex(lua_State *L) {
    return luaL_error(L, "db.shape is read-only; --set d_model=... changes a shape");
}

static void shape_push(lua_State *L, const Shape *s) {
    const struct {
        const char *key;
        int32_t value;
    } fields[] = {{"d_model", s->d_model},     {"n_layer", s->n_layer},   {"n_head", s->n_head},
                  {"n_kv_head", s->n_kv_head}, {"head_dim", s->head_dim}, {"ff", s->ff},
                  {"vocab", s->vocab}};
    lua_newtable(L); // empty, so that every access goes through the metatable
    lua_newtable(L);
    lua_newtable(L);
    for (size_t i = 0; i < COUNT_OF(fields); i++) {
        lua_pushinteger(L, fields[i].value);
        lua_setfield(L, -2, fields[i].key);
    }
    lua_newtable(L);
    lua_pushcfunction(L, shape_index);
    lua_setfield(L, -2, "__index");
    lua_setmetatable(L, -2);
    lua_setfield(L, -2, "__index");
    lua_pushcfunction(L, shape_newindex);
    lua_setfield(L, -2, "__newindex");
    lua_pushstring(L, "shape");
    lua_setfield(L, -2, "__metatable");
    lua_setmetatable(L, -2);
}

// clang-format off
const LuaFunction params_functions[] = {
    {"axis",   axis_call,   false, "name [, kind, size]", "declares an axis of kind \"row\", \"small\" (at most 32) or \"wide\"; with a name alone: the axis of that name (\"b\" and \"s\" exist)"},
    {"weight", weight_call, false, "name, {axis, ..}, init [, {decay = true, owner = layer, role = name}]", "a trained parameter; the same name and axes twice is the same parameter; inside db.layers the name begins with layers.K."},
    {"fixed",  fixed_call,  false, "name, {axis, ..}, init [, options]", "a parameter that is not trained but travels with its layer"},
    {"normal", normal_call, false, "deviation", "an initial value: normal numbers, cut at three deviations. Other initial values: a number, or a function of the indices (from 0)"},
    {"param",  param_call,  false, "key, default [, {min = x, max = y} or {choice, ..}]", "an option of the architecture, which --set key=value changes"},
};
// clang-format on
const int n_params_functions = (int)COUNT_OF(params_functions);

void params_register(lua_State *L) {
    for (int i = 0; i < n_params_functions; i++) {
        lua_pushcfunction(L, params_functions[i].call);
        lua_setfield(L, -2, params_functions[i].name);
    }
    lua_newtable(L);
    lua_setfield(L, LUA_REGISTRYINDEX, "depthbench.weights");
    shape_push(L, &script_of(L)->options->shape);
    lua_setfield(L, -2, "shape");
}

// Shared by the parts of the Lua frontend: the state of one run of a script, values and axes as Lua sees
// them.
//
// C functions never let an IR error escape as a Lua error: a mistake becomes a diag and a poison value, so
// that one run shows many. Lua errors (wrong kinds of argument, limits) end the run. Inside GUARD no Lua
// function may be called: the arena's way out must not cross Lua's.
#ifndef DEPTHBENCH_FRONTEND_LUA_SCRIPT_H
#define DEPTHBENCH_FRONTEND_LUA_SCRIPT_H
#include "frontend/lua/lua.h"
#include <lauxlib.h>
#include <lua.h>

typedef struct Script {
    Arena *arena;
    const LuaOptions *options;
    LuaResult *result;
    Builder b;
    Diags diags;
    bool *set_used; // one an entry of options->set
    int32_t layer;  // in a db.layers loop, else -1
    lua_State *lua;
    int64_t instructions, started_ms;
    size_t memory;
    const char *limit; // the last limit of memory that was passed, as a message; NULL: none
    Loc limit_place;
    bool out_of_memory; // of the machine: a GUARD failed
    Loc error_place;    // of the Lua error that ended the run
} Script;

#define VALUE_META "tensor"
#define AXIS_META  "axis"

// sandbox.c
Script *script_of(lua_State *L);
void *sandbox_allocate(void *ctx, void *at, size_t old, size_t size); // a lua_Alloc; ctx is the Script
void sandbox_open(lua_State *L);                  // the libraries, and the limits from now on
void sandbox_charge(lua_State *L, int64_t steps); // work done outside of Lua; raises an error past a limit

// tables.c
void tables_open(lua_State *L); // the global `table`

// Runs an IR-building statement; out of memory becomes a Lua error.
#define GUARD(L, script, ...)                                                                                \
    do {                                                                                                     \
        volatile bool guard_failed = false;                                                                  \
        ARENA_TRY((script)->arena, guard_failed = true, __VA_ARGS__);                                        \
        if (guard_failed) {                                                                                  \
            (script)->out_of_memory = true;                                                                  \
            luaL_error(L, "out of memory");                                                                  \
        }                                                                                                    \
    } while (0)

// value.c
void value_push(lua_State *L, Ref ref); // also checks the limit of nodes
Ref value_check(lua_State *L, int arg); // numbers become constants
bool value_is(lua_State *L, int arg);
AxisId axis_check(lua_State *L, int arg);
bool axis_is(lua_State *L, int arg);
void axis_push(lua_State *L, AxisId axis);
int axes_check(lua_State *L, int first, AxisId *out); // all arguments from `first` on; their number
void value_register(lua_State *L);

// state.c: the __index of tables of functions; upvalue 1 says whose ("depthbench", "a value")
int unknown_function(lua_State *L);

// loc.c
Loc loc_frame(lua_State *L, int level);                 // the two innermost places of Lua code
void loc_here(lua_State *L);                            // where the running C function was called, into s->b
void loc_messages(Script *s);                           // diags as lines of text
void loc_message(Script *s, Loc loc, const char *text); // a Lua error; a place in the text wins over loc

// A function of the table `db`, and its line in docs/lua.md.
typedef struct LuaFunction {
    const char *name;
    lua_CFunction call;
    bool method; // x:name(..) too
    const char *args, *doc;
} LuaFunction;
extern const LuaFunction build_functions[], params_functions[], layers_functions[];
extern const int n_build_functions, n_params_functions, n_layers_functions;

// build.c, params.c, layers.c: functions of the table `db` on top of the stack; methods of values
int build_map(lua_State *L, Op op); // a MAP op on the arguments from 1 on
void build_register(lua_State *L);
void build_methods(lua_State *L);
void params_register(lua_State *L);
void layers_register(lua_State *L);
Status params_unused(Script *s); // --set keys that no db.param asked for

#endif

// Reads the text that ir_print writes. Any bytes may come: every count is bounded, every name looked up, and
// the verifier has the last word on each line, so that nothing wrong reaches a pass. Errors are
// FILE:LINE: error: text, code 2.
#include "ir/verify.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_NODES = 4000000, WORD = 256 };

typedef struct Parse {
    Module *m;
    Func *f;
    const char *at, *file;
    int line;
    Ref *numbered; // node of each printed number
    uint32_t n_numbered, cap_numbered;
    VEC(int) lines; // of each node of the function; at 0: of its head
    Status status;
} Parse;

static bool fail(Parse *p, const char *text) {
    if (!p->status.code)
        p->status = status_make(EXIT_REQUEST, "%s:%d: error: %s", p->file, p->line, text);
    return false;
}

static bool lawful(Parse *p, Status s) {
    return !s.code || fail(p, s.text);
}

static void skip(Parse *p) {
    while (*p->at == ' ' || *p->at == '\t')
        p->at++;
    if (*p->at == '#')
        while (*p->at && *p->at != '\n')
            p->at++;
}

static bool take(Parse *p, const char *text) {
    skip(p);
    size_t n = strlen(text);
    if (strncmp(p->at, text, n))
        return false;
    p->at += n;
    return true;
}

static bool need(Parse *p, const char *text) {
    char message[64];
    if (take(p, text))
        return true;
    snprintf(message, sizeof message, "expected '%s'", text);
    return fail(p, message);
}

static bool name_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-';
}

// A word of name characters; axis names in attribute lists stop at dots (`dots` false).
static bool word(Parse *p, char out[WORD], bool dots) {
    skip(p);
    size_t n = 0;
    while (name_char(p->at[n]) && (dots || p->at[n] != '.') && n + 1 < WORD) {
        out[n] = p->at[n];
        n++;
    }
    out[n] = 0;
    p->at += n;
    return n ? true : fail(p, "expected a name");
}

// strtol and strtod skip white space, line ends too: they are not asked where the line ends.
static bool on_line(const Parse *p) {
    return *p->at > ' ';
}

static bool whole(Parse *p, int64_t low, int64_t high, int64_t *out) {
    skip(p);
    char *end = NULL;
    long long v = on_line(p) ? strtoll(p->at, &end, 10) : 0;
    if (!end || end == p->at || v < low || v > high)
        return fail(p, "a number is missing or out of range");
    p->at = end;
    *out = v;
    return true;
}

// Takes what ir_print writes (hexadecimal floats, inf, nan) and decimal numbers.
static bool real(Parse *p, double *out) {
    skip(p);
    char *end = NULL;
    *out = on_line(p) ? strtod(p->at, &end) : 0;
    if (!end || end == p->at)
        return fail(p, "expected a number");
    p->at = end;
    return true;
}

static bool find_axis(Parse *p, const char *name, AxisId *out) {
    *out = module_find_axis(p->m, name);
    return *out != AXIS_NONE || fail(p, "unknown axis");
}

static bool parse_type(Parse *p, bool canonical, Type *out) {
    char name[WORD];
    AxisId axes[MAX_RANK];
    int rank = 0;
    if (!word(p, name, false))
        return false;
    int dtype = 0;
    while (dtype < N_DTYPES && strcmp(name, dtype_name((Dtype)dtype)))
        dtype++;
    if (dtype == N_DTYPES)
        return fail(p, "unknown dtype");
    if (!need(p, "["))
        return false;
    while (!take(p, "]")) {
        if (rank == MAX_RANK)
            return fail(p, "too many axes");
        if ((rank && !need(p, ",")) || !word(p, name, true) || !find_axis(p, name, &axes[rank++]))
            return false;
    }
    Type t = {.dtype = (uint8_t)dtype, .rank = (uint8_t)rank};
    if (rank)
        memcpy(t.axis, axes, (size_t)rank);
    Type sorted = type_make(p->m, (Dtype)dtype, rank, axes);
    *out = t;
    return !canonical || type_same(&t, &sorted) ||
           fail(p, "axes are not in canonical order: rows, small, wide");
}

static bool parse_loc(Parse *p, Loc *loc) {
    int64_t file, line;
    *loc = (Loc){{0}, {0}};
    for (int i = 0; i < 2; i++) {
        if (!take(p, i ? "<" : "@"))
            continue;
        if (!whole(p, 0, p->m->files.n - 1, &file) || !need(p, ":") || !whole(p, 1, UINT16_MAX, &line))
            return false;
        loc->file[i] = (uint8_t)file;
        loc->line[i] = (uint16_t)line;
    }
    return true;
}

// ---- Header lines

static bool parse_file(Parse *p) {
    int64_t number;
    if (!whole(p, p->m->files.n, p->m->files.n, &number) || !need(p, "\""))
        return false;
    const char *end = p->at + strcspn(p->at, "\"\n");
    if (*end != '"' || p->m->files.n == UINT8_MAX)
        return fail(p, "a file name without its closing quote, or too many files");
    vec_push(p->m->arena, &p->m->files, arena_format(p->m->arena, "%.*s", (int)(end - p->at), p->at));
    p->at = end + 1;
    return true;
}

static bool parse_axis(Parse *p) {
    char name[WORD], kind[WORD];
    static const char *const kinds[] = {"row", "small", "wide"};
    int64_t size;
    if (!word(p, name, true) || !word(p, kind, false) || !whole(p, 1, INT32_MAX, &size))
        return false;
    int k = 0;
    while (k < 3 && strcmp(kinds[k], kind))
        k++;
    if (k == 3 || module_find_axis(p->m, name) != AXIS_NONE || p->m->axes.n == MAX_AXES)
        return fail(p, "unknown kind, axis declared twice, or too many axes");
    module_axis(p->m, name, (AxisKind)k, (int32_t)size);
    return lawful(p, verify_axis(&p->m->axes.at[p->m->axes.n - 1]));
}

static bool parse_init(Parse *p, Param *q) {
    if (take(p, "const")) {
        q->init.kind = INIT_CONST;
        return real(p, &q->init.value);
    }
    if (take(p, "normal")) {
        q->init.kind = INIT_NORMAL;
        return real(p, &q->init.value);
    }
    if (!need(p, "table"))
        return false;
    int64_t n = type_count(p->m, &q->file);
    if (n < 0 || n > 1 << 20)
        return fail(p, "a table of initial values has at most 2^20 elements");
    double *table = arena_alloc(p->m->arena, (size_t)n * sizeof *table);
    for (int64_t i = 0; i < n; i++)
        if (!real(p, &table[i]))
            return false;
    q->init = (Init){.kind = INIT_TABLE, .table = table};
    return true;
}

// One of two words.
static bool either(Parse *p, const char *yes, const char *no, bool *out) {
    char name[WORD];
    if (!word(p, name, false))
        return false;
    *out = !strcmp(name, yes);
    return *out || !strcmp(name, no) || fail(p, "expected decay or nodecay, then trained or fixed");
}

static bool parse_param(Parse *p) {
    Param q = {0};
    char name[WORD], role[WORD];
    int64_t owner;
    if (!word(p, name, true) || !need(p, ":") || !parse_type(p, false, &q.file) ||
        !either(p, "decay", "nodecay", &q.decay) || !either(p, "trained", "fixed", &q.trained))
        return false;
    if (!need(p, "owner") || !whole(p, -1, INT16_MAX, &owner) || !need(p, "role") || !word(p, role, true) ||
        !need(p, "init") || !parse_init(p, &q) || !parse_loc(p, &q.loc))
        return false;
    if (module_param(p->m, name) >= 0)
        return fail(p, "parameter declared twice");
    q.name = arena_string(p->m->arena, name);
    q.role = strcmp(role, "-") ? arena_string(p->m->arena, role) : "";
    q.owner = (int16_t)owner;
    q.type = type_make(p->m, (Dtype)q.file.dtype, q.file.rank, q.file.axis);
    vec_push(p->m->arena, &p->m->params, q);
    return lawful(p, verify_param(p->m, &q));
}

// ---- Functions

static Builder builder(Parse *p, Diags *diags) {
    *diags = (Diags){.arena = p->m->arena};
    return (Builder){.m = p->m, .f = p->f, .diags = diags, .layer = -1};
}

static bool parse_const(Parse *p, Ref *out) {
    Diags diags;
    Builder b = builder(p, &diags);
    Node n = {.op = OP_const, .type = {.dtype = DT_F32}};
    char name[WORD];
    if (!real(p, &n.f))
        return false;
    if (*p->at == ':') {
        p->at++;
        do {
            AxisId axis;
            if (n.type.rank == MAX_RANK || !word(p, name, false) || !find_axis(p, name, &axis))
                return fail(p, "axes of a constant");
            n.type.axis[n.type.rank++] = axis;
        } while (*p->at == '.' && p->at++);
    }
    *out = ir_node(&b, n, 0, NULL);
    return true;
}

static bool parse_operand(Parse *p, Ref *out) {
    char name[WORD];
    Diags diags;
    Builder b = builder(p, &diags);
    skip(p);
    if (*p->at == '^') {
        p->at++;
        int32_t k = word(p, name, true) ? module_param(p->m, name) : -1;
        if (k < 0)
            return fail(p, "unknown parameter");
        *out = ir_param(&b, k);
        return true;
    }
    if (*p->at != '%')
        return parse_const(p, out);
    p->at++;
    if (*p->at >= '0' && *p->at <= '9') {
        int64_t number;
        if (!whole(p, 1, (int64_t)p->n_numbered - 1, &number))
            return false;
        *out = p->numbered[number];
        return true;
    }
    if (!word(p, name, true))
        return false;
    for (uint32_t i = 1; i < p->f->nodes.n; i++)
        if (p->f->nodes.at[i].op == OP_input && !strcmp(p->f->nodes.at[i].name, name)) {
            *out = i;
            return true;
        }
    return fail(p, "unknown input");
}

static void number_node(Parse *p, Ref r) {
    if (p->n_numbered == p->cap_numbered)
        p->numbered =
            vec_grow(p->m->arena, p->numbered, p->n_numbered, &p->cap_numbered, sizeof *p->numbered);
    p->numbered[p->n_numbered++] = r;
}

// "(%7, %8) =" or "%7 =": results are numbered in order, so only their count is news.
static bool parse_results(Parse *p, int *count) {
    bool many = take(p, "(");
    int64_t number;
    *count = 0;
    while (!(many && take(p, ")"))) {
        if ((*count && !need(p, ",")) || !need(p, "%") || !whole(p, 0, UINT32_MAX, &number))
            return false;
        if (number != (int64_t)p->n_numbered + *count)
            return fail(p, "results are numbered one after the other");
        ++*count;
        if (!many)
            break;
    }
    return need(p, "=");
}

static bool parse_op(Parse *p, Node *n) {
    char name[WORD];
    if (!word(p, name, false))
        return false;
    int op = 1;
    while (op < N_OPS && strcmp(op_info[op].name, name))
        op++;
    if (op == N_OPS || op == OP_out || op == OP_input || op == OP_param || op == OP_const)
        return fail(p, "unknown op");
    n->op = (uint16_t)op;
    while (*p->at == '.') {
        p->at++;
        if (n->n_ax == MAX_ATTR_AXES)
            return fail(p, "too many axes");
        if (*p->at == '1' && !name_char(p->at[1]))
            p->at++, n->ax[n->n_ax++] = AXIS_NONE;
        else if (*p->at == '1' && p->at[1] == '.')
            p->at++, n->ax[n->n_ax++] = AXIS_NONE;
        else if (!word(p, name, false) || !find_axis(p, name, &n->ax[n->n_ax++]))
            return false;
    }
    if (op == OP_call) {
        if (!need(p, "@") || !word(p, name, true))
            return false;
        for (uint32_t i = 0; i < p->m->funcs.n; i++)
            if (!strcmp(p->m->funcs.at[i]->name, name) && p->m->funcs.at[i] != p->f) {
                n->k = (int32_t)i;
                uint32_t n_out = p->m->funcs.at[i]->outputs.n;
                return (n_out && n_out <= UINT8_MAX) || fail(p, "a call has 1 to 255 results");
            }
        return fail(p, "unknown kernel");
    }
    return true;
}

static bool parse_node(Parse *p) {
    Node n = {.layer = -1};
    Ref in[UINT8_MAX];
    int n_in = 0, n_out;
    int64_t k = 0;
    if (p->f->nodes.n > MAX_NODES)
        return fail(p, "too many nodes");
    if (!parse_results(p, &n_out) || !parse_op(p, &n))
        return false;
    for (skip(p); *p->at != ':' && *p->at != '{' && *p->at && *p->at != '\n'; skip(p)) {
        if (n_in == UINT8_MAX)
            return fail(p, "too many operands");
        if ((n_in && !need(p, ",")) || !parse_operand(p, &in[n_in++]))
            return false;
    }
    if (take(p, "{k=")) {
        if (!whole(p, 0, INT32_MAX, &k) || !need(p, "}"))
            return false;
        n.k = (int32_t)k;
    } else if (take(p, "{f=") && (!real(p, &n.f) || !need(p, "}")))
        return false;
    if (op_info[n.op].n_in >= 0 && op_info[n.op].n_in != n_in)
        return fail(p, "wrong number of operands");
    if (!need(p, ":"))
        return false;
    Type types[UINT8_MAX];
    for (int i = 0; i < n_out; i++)
        if (i >= UINT8_MAX || (i && !need(p, ",")) || !parse_type(p, true, &types[i]))
            return false;
    if (n.op == OP_cast && n_out == 1)
        n.k = types[0].dtype;
    Diags diags;
    Builder b = builder(p, &diags);
    if (!parse_loc(p, &b.loc))
        return false;
    if (take(p, "L")) {
        if (!whole(p, 0, INT16_MAX, &k))
            return false;
        b.layer = (int16_t)k;
    }
    n.late = take(p, "late");
    n.n_in = (uint8_t)n_in;
    if (!ir_attributes_fit(p->m, p->f, &n))
        return fail(p, "attributes do not fit the op");
    Ref r = ir_node(&b, n, n_in, in);
    if (!r)
        return fail(p, diags.list.n ? diags.list.at[0].text : "the operands do not fit the op");
    if (node_at(p->f, r)->n_out != n_out)
        return fail(p, "wrong number of results");
    for (int i = 0; i < n_out; i++) {
        if (!type_same(&node_at(p->f, r + (Ref)i)->type, &types[i]))
            return fail(p, "the type is not the one that follows from the operands");
        number_node(p, r + (Ref)i);
    }
    return true;
}

static bool parse_inputs(Parse *p) {
    Diags diags;
    Builder b = builder(p, &diags);
    char name[WORD];
    Type t;
    if (!need(p, "("))
        return false;
    for (int first = 1; !take(p, ")"); first = 0) {
        if ((!first && !need(p, ",")) || !need(p, "%") || !word(p, name, true) || !need(p, ":") ||
            !parse_type(p, true, &t))
            return false;
        for (uint32_t i = 1; i < p->f->nodes.n; i++)
            if (!strcmp(p->f->nodes.at[i].name, name))
                return fail(p, "input declared twice");
        ir_input(&b, name, t);
    }
    return true;
}

static bool parse_named(Parse *p, bool mark) {
    char name[WORD];
    NamedRef n;
    if (!word(p, name, true) || !need(p, "=") || !parse_operand(p, &n.ref))
        return false;
    n.name = arena_string(p->m->arena, name);
    if (mark)
        vec_push(p->m->arena, &p->f->marks, n);
    else
        vec_push(p->m->arena, &p->f->outputs, n);
    return true;
}

static bool next_line(Parse *p) {
    skip(p);
    if (*p->at && *p->at != '\n')
        return fail(p, "something is left over at the end of the line");
    while (*p->at == '\n') {
        p->at++;
        p->line++;
        skip(p);
    }
    return true;
}

static void note_line(Parse *p) {
    while (p->lines.n < p->f->nodes.n)
        vec_push(p->m->arena, &p->lines, p->line);
}

static bool finish_func(Parse *p) {
    Ref where;
    Status s = verify_func(p->m, p->f, &where);
    if (s.code)
        p->line = p->lines.at[where];
    return lawful(p, s);
}

static bool parse_func(Parse *p, bool kernel) {
    char name[WORD];
    if (!word(p, name, true))
        return false;
    if (module_find_func(p->m, name) || p->m->funcs.n > UINT16_MAX)
        return fail(p, "function defined twice, or too many functions");
    p->f = module_func(p->m, name);
    p->f->is_kernel = kernel;
    p->n_numbered = 0;
    number_node(p, 0);
    if (kernel && take(p, "rows")) {
        do {
            AxisId axis;
            if (p->f->n_row_axes == COUNT_OF(p->f->row_axes) || !word(p, name, true) ||
                !find_axis(p, name, &axis))
                return fail(p, "row axes");
            p->f->row_axes[p->f->n_row_axes++] = axis;
        } while (take(p, ","));
    }
    p->lines.n = 0;
    if (!parse_inputs(p))
        return false;
    note_line(p);
    if (!next_line(p))
        return false;
    while (!take(p, "end")) {
        if (!*p->at)
            return fail(p, "a function without its end");
        bool good = take(p, "return ") ? parse_named(p, false)
                    : take(p, "mark ") ? parse_named(p, true)
                                       : parse_node(p);
        if (!good)
            return false;
        note_line(p);
        if (!next_line(p))
            return false;
    }
    return finish_func(p);
}

static bool parse_module(Parse *p, Arena *arena) {
    char name[WORD];
    int64_t layers;
    p->line = 1;
    while (skip(p), *p->at == '\n')
        p->at++, p->line++;
    if (!need(p, "module ") || !word(p, name, true) || !need(p, "layers") || !whole(p, 0, INT16_MAX, &layers))
        return false;
    p->m = module_new(arena, name);
    p->m->n_layer = (int32_t)layers;
    while (next_line(p) && *p->at) {
        bool good = take(p, "file ")     ? parse_file(p)
                    : take(p, "axis ")   ? parse_axis(p)
                    : take(p, "param ")  ? parse_param(p)
                    : take(p, "kernel ") ? parse_func(p, true)
                    : take(p, "func ")   ? parse_func(p, false)
                                         : fail(p, "expected file, axis, param, kernel or func");
        if (!good)
            return false;
    }
    return !p->status.code;
}

Status ir_parse(Arena *arena, const char *text, const char *file, Module **out) {
    Parse p = {.at = text, .file = file};
    if (!parse_module(&p, arena))
        return p.status;
    *out = p.m;
    return STATUS_OK;
}

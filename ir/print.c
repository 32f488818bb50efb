// Text of a module. Only facts are printed, each once, so that parsing the text and printing it again gives
// the same bytes. Parameters, inputs and scalar constants stand where they are used; other nodes are numbered
// in their order.
#include "ir/ir.h"
#include <string.h>

static const char *const kind_names[] = {"row", "small", "wide"};

static void print_type(Text *out, const Module *m, const Type *t) {
    text_add(out, "%s[", dtype_name((Dtype)t->dtype));
    for (int i = 0; i < t->rank; i++)
        text_add(out, "%s%s", i ? "," : "", m->axes.at[t->axis[i]].name);
    text_add(out, "]");
}

// Paths are the person's: what would end the line or the quotes becomes '_'.
static void print_path(Text *out, const char *path) {
    for (const char *at = path; *at; at++)
        text_addn(out, *at == '\n' || *at == '"' ? "_" : at, 1);
}

static void print_loc(Text *out, const Node *n) {
    if (n->loc.line[0])
        text_add(out, " @%d:%d", n->loc.file[0], n->loc.line[0]);
    if (n->loc.line[1])
        text_add(out, "<%d:%d", n->loc.file[1], n->loc.line[1]);
    if (n->layer >= 0)
        text_add(out, " L%d", n->layer);
    if (n->late)
        text_add(out, " late");
}

static bool is_inline(const Node *n) {
    return n->op == OP_param || n->op == OP_input || n->op == OP_const;
}

static void print_operand(Text *out, const Module *m, const Func *f, Ref r, const uint32_t *number) {
    const Node *n = node_at(f, r);
    if (n->op == OP_param)
        text_add(out, "^%s", m->params.at[n->k].name);
    else if (n->op == OP_input)
        text_add(out, "%%%s", n->name);
    else if (n->op == OP_const) {
        text_add(out, "%a", n->f);
        if (n->type.rank)
            text_add(out, ":");
        for (int i = 0; i < n->type.rank; i++)
            text_add(out, "%s%s", i ? "." : "", m->axes.at[n->type.axis[i]].name);
    } else
        text_add(out, "%%%u", number[r]);
}

static void print_attributes(Text *out, const Module *m, const Node *n) {
    for (int i = 0; i < n->n_ax; i++)
        text_add(out, ".%s", n->ax[i] == AXIS_NONE ? "1" : m->axes.at[n->ax[i]].name);
    if (n->op == OP_call)
        text_add(out, " @%s", m->funcs.at[n->k]->name);
}

static void print_node(Text *out, const Module *m, const Func *f, Ref r, const uint32_t *number) {
    const Node *n = node_at(f, r);
    text_add(out, "  ");
    for (int i = 0; i < n->n_out; i++)
        text_add(out, "%s%%%u%s",
                 i              ? ", "
                 : n->n_out > 1 ? "("
                                : "",
                 number[r + (Ref)i], i + 1 == n->n_out && n->n_out > 1 ? ")" : "");
    text_add(out, "%s = %s", n->n_out ? "" : "()", op_info[n->op].name);
    print_attributes(out, m, n);
    for (int i = 0; i < n->n_in; i++) {
        text_add(out, i ? ", " : " ");
        print_operand(out, m, f, node_in(f, r, i), number);
    }
    if (n->op == OP_slice || n->op == OP_dot)
        text_add(out, " {k=%d}", n->k);
    if (n->op == OP_attention || n->op == OP_attention_grad)
        text_add(out, " {f=%a}", n->f);
    text_add(out, " : ");
    for (int i = 0; i < n->n_out; i++) {
        text_add(out, i ? ", " : "");
        print_type(out, m, &node_at(f, r + (Ref)i)->type);
    }
    print_loc(out, n);
    text_add(out, "\n");
}

// Numbers of printed nodes, from 1; inline ones have none.
static uint32_t *number_nodes(const Module *m, const Func *f) {
    uint32_t *number = arena_alloc(m->arena, (f->nodes.n + 1) * sizeof *number), next = 1;
    for (uint32_t i = 1; i < f->nodes.n; i++)
        if (!is_inline(&f->nodes.at[i]))
            number[i] = next++;
    return number;
}

static void print_named(Text *out, const Module *m, const Func *f, const char *word, const NamedRef *n,
                        const uint32_t *number) {
    text_add(out, "  %s %s = ", word, n->name);
    print_operand(out, m, f, n->ref, number);
    text_add(out, "\n");
}

void ir_print_func(Text *out, const Module *m, const Func *f) {
    uint32_t *number = number_nodes(m, f);
    text_add(out, "%s %s", f->is_kernel ? "kernel" : "func", f->name);
    for (int i = 0; f->is_kernel && i < f->n_row_axes; i++)
        text_add(out, "%s%s", i ? "," : " rows ", m->axes.at[f->row_axes[i]].name);
    text_add(out, " (");
    bool first = true;
    for (uint32_t i = 1; i < f->nodes.n; i++) {
        if (f->nodes.at[i].op != OP_input)
            continue;
        text_add(out, "%s%%%s: ", first ? "" : ", ", f->nodes.at[i].name);
        print_type(out, m, &f->nodes.at[i].type);
        first = false;
    }
    text_add(out, ")\n");
    for (uint32_t i = 1; i < f->nodes.n; i++)
        if (!is_inline(&f->nodes.at[i]) && f->nodes.at[i].op != OP_out)
            print_node(out, m, f, i, number);
    for (uint32_t i = 0; i < f->marks.n; i++)
        print_named(out, m, f, "mark", &f->marks.at[i], number);
    for (uint32_t i = 0; i < f->outputs.n; i++)
        print_named(out, m, f, "return", &f->outputs.at[i], number);
    text_add(out, "end\n");
}

static void print_init(Text *out, const Module *m, const Param *p) {
    if (p->init.kind == INIT_CONST)
        text_add(out, "const %a", p->init.value);
    else if (p->init.kind == INIT_NORMAL)
        text_add(out, "normal %a", p->init.value);
    else {
        text_add(out, "table");
        for (int64_t i = 0, n = type_count(m, &p->file); i < n; i++)
            text_add(out, " %a", p->init.table[i]);
    }
}

static void print_param(Text *out, const Module *m, const Param *p) {
    text_add(out, "param %s : ", p->name);
    print_type(out, m, &p->file);
    text_add(out, " %s %s owner %d role %s init ", p->decay ? "decay" : "nodecay",
             p->trained ? "trained" : "fixed", p->owner, p->role && *p->role ? p->role : "-");
    print_init(out, m, p);
    if (p->loc.line[0])
        text_add(out, " @%d:%d", p->loc.file[0], p->loc.line[0]);
    if (p->loc.line[1])
        text_add(out, "<%d:%d", p->loc.file[1], p->loc.line[1]);
    text_add(out, "\n");
}

void ir_print(Text *out, const Module *m) {
    text_add(out, "module %s layers %d\n", m->model, m->n_layer);
    for (uint32_t i = 1; i < m->files.n; i++) {
        text_add(out, "file %u \"", i);
        print_path(out, m->files.at[i]);
        text_add(out, "\"\n");
    }
    for (uint32_t i = 0; i < m->axes.n; i++)
        text_add(out, "axis %s %s %d\n", m->axes.at[i].name, kind_names[m->axes.at[i].kind],
                 m->axes.at[i].size);
    for (uint32_t i = 0; i < m->params.n; i++)
        print_param(out, m, &m->params.at[i]);
    for (int kernels = 1; kernels >= 0; kernels--) // callees first
        for (uint32_t i = 0; i < m->funcs.n; i++)
            if (m->funcs.at[i]->is_kernel == (kernels == 1)) {
                text_add(out, "\n");
                ir_print_func(out, m, m->funcs.at[i]);
            }
}

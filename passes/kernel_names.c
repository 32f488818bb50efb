// Names of kernels, their operands and results: for people, and no part of a kernel's identity. They are
// those of the first place where the kernel is called.
#include "passes/fusion.h"
#include <ctype.h>
#include <string.h>

// A kernel with sums over the rows that are more than a number makes gradients of parameters.
static bool makes_gradients(const Func *f) {
    for (uint32_t i = 0; f->n_row_axes && i < f->outputs.n; i++) {
        const Type *t = &node_at(f, f->outputs.at[i].ref)->type;
        if (t->rank && !type_has(t, f->row_axes[0]))
            return true;
    }
    return false;
}

const char *kernel_word(const Func *f) {
    static const char *const words[][3] = {
        {"gather", "embed", "embed_grad"}, {"silu_grad", "swiglu_grad", "swiglu_grad"},
        {"silu", "swiglu", "swiglu_grad"}, {"tanh", "mix", "mix_grad"},
        {"select", "adamw", "adamw"},      {"rsqrt", "norm", "norm_grad"},
        {"sigmoid", "sigmoid", "sigmoid"}, {"sqrt", "root", "root"}};
    bool grad = makes_gradients(f), pairs = false;
    for (size_t w = 0; w < COUNT_OF(words); w++)
        for (uint32_t i = 1; i < f->nodes.n; i++)
            if (!strcmp(op_info[f->nodes.at[i].op].name, words[w][0]))
                return words[w][grad ? 2 : 1];
    for (uint32_t i = 1; i < f->nodes.n; i++)
        pairs |= f->nodes.at[i].op == OP_concat;
    if (pairs)
        return f->n_row_axes > 2 ? "rope" : "mix_grad";
    if (f->nodes.n <= 4)
        return op_info[f->nodes.at[f->nodes.n - 1].op].name;
    return grad ? "norm_grad" : "row";
}

// "layers.3.attn_norm.weight" is a norm_weight, "layers.3.ffn_hc.static_alpha" a static_alpha.
static const char *param_word(Arena *a, const char *name) {
    const char *last = strrchr(name, '.');
    if (!last || strcmp(last, ".weight"))
        return last ? last + 1 : name;
    const char *first = last;
    while (first > name && first[-1] != '.')
        first--;
    const char *under = memchr(first, '_', (size_t)(last - first));
    first = under ? under + 1 : first;
    return arena_format(a, "%.*s_weight", (int)(last - first), first);
}

static const char *value_word(const Fusion *s, Ref r) {
    static const char *const attention[] = {"o", "lse"}, *const attention_grad[] = {"dq", "dk", "dv"},
                             *const head[] = {"loss", "dx", "dw"};
    while (s->role[r] == ROLE_ALIAS)
        r = node_in(s->f, r, 0);
    const Node *n = node_at(s->f, r), *base = node_at(s->f, node_base(s->f, r));
    int result = n->op == OP_out ? n->k : 0;
    switch (base->op) {
    case OP_input:
        return base->name;
    case OP_param:
        return param_word(s->m->arena, s->m->params.at[base->k].name);
    case OP_attention:
        return attention[result];
    case OP_attention_grad:
        return attention_grad[result];
    case OP_head_loss:
    case OP_head_loss_grad:
        return head[result];
    default:
        break;
    }
    if (s->role[r] != ROLE_ROW)
        return s->role[r] == ROLE_STATIC || base->op == OP_constant ? "table" : op_info[base->op].name;
    bool wide = n->type.rank && s->m->axes.at[n->type.axis[n->type.rank - 1]].kind == AXIS_WIDE;
    return s->column[r] ? "total" : wide ? "x" : "c";
}

static bool name_used(const Func *f, const char *name) {
    for (Ref r = 1; r < f->nodes.n; r++)
        if (f->nodes.at[r].op == OP_input && f->nodes.at[r].name && !strcmp(f->nodes.at[r].name, name))
            return true;
    for (uint32_t i = 0; i < f->outputs.n; i++)
        if (f->outputs.at[i].name && !strcmp(f->outputs.at[i].name, name))
            return true;
    return false;
}

// A name of its own in the kernel; s0, s1, .. are launch scalars, and digits alone are numbers of nodes.
static const char *new_name(Arena *a, const Func *f, const char *word) {
    char *name = arena_string(a, word);
    for (char *c = name; *c; c++)
        *c = (char)(isalnum((unsigned char)*c) || *c == '_' ? tolower((unsigned char)*c) : '_');
    if (isdigit((unsigned char)name[0]) || (name[0] == 's' && isdigit((unsigned char)name[1])))
        name = arena_format(a, "in_%s", name);
    const char *base = name;
    for (int i = 2; name_used(f, name); i++)
        name = arena_format(a, "%s_%d", base, i);
    return name;
}

void kernel_name_values(const Fusion *s, Func *f, const Ref *args, const Ref *outputs) {
    for (uint32_t i = 0; i < f->outputs.n; i++)
        f->outputs.at[i].name = NULL;
    for (Ref r = 1; r < f->nodes.n; r++)
        if (f->nodes.at[r].op == OP_input && input_scalar(&f->nodes.at[r]) < 0)
            f->nodes.at[r].name = NULL;
    for (Ref r = 1; r < f->nodes.n; r++)
        if (f->nodes.at[r].op == OP_input && !f->nodes.at[r].name)
            f->nodes.at[r].name = new_name(s->m->arena, f, value_word(s, *args++));
    for (uint32_t i = 0; i < f->outputs.n; i++)
        f->outputs.at[i].name = new_name(s->m->arena, f, value_word(s, outputs[i]));
}

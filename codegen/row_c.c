// A row kernel as C text (design: phases.h).
//
//   void NAME(args, item0, item1, strip)
//       what is the same in each row; sums over rows start at zero
//       for each run of rows along the last row axis, for each row of it
//           section 0, loops of phase 0, folds of their reductions, section 1, loops of phase 1, ...
//       sums over rows are written to row `strip` of their output
// Sizes of row axes are arguments; all others are numbers in the text. Inside of a vector all loads of values
// that an output may overlay stand before the first store.
#include "codegen/row_c.h"
#include "codegen/codegen.h"
#include <string.h>

static const char prelude[] =
#include "codegen/prelude_c.inc"
    ;

void row_line(RowPrinter *p, Ref r, const char *format, ...) {
    char text[256];
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    int n = vsnprintf(text, sizeof text, format, args);
    char *line = text;
    if (n >= (int)sizeof text) {
        line = arena_alloc(p->k->arena, (size_t)n + 1);
        vsnprintf(line, (size_t)n + 1, format, again);
    }
#pragma GCC diagnostic pop
    va_end(again);
    va_end(args);
    text_add(p->out, "%*s%s", p->indent, "", line);
    const Node *at = r ? node_at(p->k->f, r) : NULL;
    if (at && at->loc.line[0]) {
        const char *file = p->k->m->files.at[at->loc.file[0]], *slash = strrchr(file, '/');
        text_add(p->out, " // %s:%d", slash ? slash + 1 : file, at->loc.line[0]);
    }
    text_add(p->out, "\n");
}

static const Node *output_node(const RowPrinter *p, uint32_t i) {
    return node_at(p->k->f, p->k->f->outputs.at[i].ref);
}

static int32_t output_arg(const RowPrinter *p, uint32_t i) {
    return p->k->n_inputs + (int32_t)i;
}

static const char *c_type(Dtype d) {
    return d == DT_BF16 ? "bf16" : d == DT_I32 ? "int32_t" : "float";
}

// ---- Head: facts for people.
static void print_facts(RowPrinter *p, const char *name) {
    const RowKernel *k = p->k;
    char type[128];
    text_add(p->out, "// %s: rows [", name);
    for (int i = 0; i < k->f->n_row_axes; i++)
        text_add(p->out, "%s%s", i ? "," : "", k->m->axes.at[k->f->row_axes[i]].name);
    text_add(p->out, "], %u loop%s in %d section%s; a row reads %.0f bytes, writes %.0f, %.0f flops\n",
             k->loops.n, k->loops.n == 1 ? "" : "s", k->n_sections, k->n_sections == 1 ? "" : "s",
             k->read_bytes, k->write_bytes, k->flops);
    for (Ref r = 1; r < k->f->nodes.n; r++)
        if (node_at(k->f, r)->op == OP_input)
            text_add(p->out, "//   %c%d: %s\n", input_scalar(node_at(k->f, r)) >= 0 ? 's' : 'p',
                     k->node[r].arg, type_text(k->m, &node_at(k->f, r)->type, type));
    for (uint32_t i = 0; i < k->f->outputs.n; i++)
        text_add(p->out, "//   q%u: %s%s\n", i, type_text(k->m, &output_node(p, i)->type, type),
                 phases_column(k, i) ? ", a row a strip" : "");
}

// ---- Arguments.
static bool has_axis(const RowPrinter *p, const Type *t, int row_axis) {
    return type_has(t, p->k->f->row_axes[row_axis]);
}

// Pointer to the first element of the run's first row; strides along the last row axis.
static void declare_row_pointer(RowPrinter *p, const char *name, const char *qualifier, const Type *t,
                                int32_t arg) {
    int last = p->k->f->n_row_axes - 1;
    Text at = {.arena = p->k->arena};
    for (int i = 0; i <= last; i++)
        if (has_axis(p, t, i))
            text_add(&at, " + r%d * a->arg[%d].stride[%d]", i, arg, i);
    const char *type = c_type((Dtype)t->dtype);
    row_line(p, 0, "%s%s *%s = (%s%s *)a->arg[%d].at%s;", qualifier, type, name, qualifier, type, arg,
             at.n ? at.at : "");
}

static void declare_pointers(RowPrinter *p, bool once) {
    const RowKernel *k = p->k;
    int last = k->f->n_row_axes - 1;
    for (Ref r = 1; r < k->f->nodes.n; r++) {
        const Node *n = node_at(k->f, r);
        if (n->op != OP_input || input_scalar(n) >= 0 || !k->node[r].live)
            continue;
        bool moves = last >= 0 && has_axis(p, &n->type, last);
        if (once != phases_has_rows(k, &n->type))
            declare_row_pointer(p, arena_format(k->arena, "p%d", k->node[r].arg), "const ", &n->type,
                                k->node[r].arg);
        if (once && moves)
            row_line(p, 0, "const int64_t t%d = a->arg[%d].stride[%d];", k->node[r].arg, k->node[r].arg,
                     last);
    }
    for (uint32_t i = 0; i < k->f->outputs.n; i++) {
        const Type *t = &output_node(p, i)->type;
        if (phases_column(k, i))
            continue;
        if (once != phases_has_rows(k, t))
            declare_row_pointer(p, arena_format(k->arena, "q%u", i), "", t, output_arg(p, i));
        if (once && last >= 0 && has_axis(p, t, last))
            row_line(p, 0, "const int64_t u%u = a->arg[%d].stride[%d];", i, output_arg(p, i), last);
    }
}

static void advance_pointers(RowPrinter *p) {
    const RowKernel *k = p->k;
    int last = k->f->n_row_axes - 1;
    for (Ref r = 1; r < k->f->nodes.n; r++) {
        const Node *n = node_at(k->f, r);
        if (n->op == OP_input && k->node[r].live && has_axis(p, &n->type, last))
            row_line(p, 0, "p%d += t%d;", k->node[r].arg, k->node[r].arg);
    }
    for (uint32_t i = 0; i < k->f->outputs.n; i++)
        if (!phases_column(k, i) && has_axis(p, &output_node(p, i)->type, last))
            row_line(p, 0, "q%u += u%u;", i, i);
}

// ---- Sums over rows. Narrow ones are variables in double (vectors where a wide axis is summed too), since
// they cancel; wide ones lie in the output.
static Element column_source(const RowPrinter *p, uint32_t output, int32_t index, Ref *operand) {
    Element e = phases_resolve(p->k, p->k->f->outputs.at[output].ref, index);
    CHECK(p->k->node[e.ref].column, "kernel %s: output %s mixes sums over rows with others", p->k->f->name,
          p->k->f->outputs.at[output].name);
    *operand = node_in(p->k->f, e.ref, 0);
    return e;
}

static void columns_begin(RowPrinter *p) {
    const RowKernel *k = p->k;
    Ref operand;
    for (uint32_t i = 0; i < k->f->outputs.n; i++) {
        if (!phases_column(k, i))
            continue;
        const RowNode *x = &k->node[k->f->outputs.at[i].ref];
        int64_t count = (int64_t)x->small * MAX_OF(x->wide, 1);
        row_line(p, 0, "float *c%u = (float *)a->arg[%d].at + strip * %lld;", i, output_arg(p, i),
                 (long long)count);
        if (x->wide)
            row_line(p, 0, "for (int64_t i = 0; i < %lld; i++) c%u[i] = 0.0f;", (long long)count, i);
        for (int32_t e = 0; !x->wide && e < x->small; e++) {
            column_source(p, i, e, &operand);
            row_line(p, 0, k->node[operand].wide ? "V c%u_%d = splat(0.0f);" : "double c%u_%d = 0.0;", i, e);
        }
    }
}

static void columns_end(RowPrinter *p) {
    const RowKernel *k = p->k;
    Ref operand;
    for (uint32_t i = 0; i < k->f->outputs.n; i++) {
        const RowNode *x = &k->node[k->f->outputs.at[i].ref];
        for (int32_t e = 0; phases_column(k, i) && !x->wide && e < x->small; e++) {
            column_source(p, i, e, &operand);
            row_line(p, 0, k->node[operand].wide ? "c%u[%d] = fold_sum(c%u_%d);" : "c%u[%d] = (float)c%u_%d;",
                     i, e, i, e);
        }
    }
}

// What the row adds to its sums over rows, for operands computed here (`wide` elements, 0: scalar code) in
// this phase.
static void columns_add(RowPrinter *p, int32_t phase, int32_t wide) {
    const RowKernel *k = p->k;
    char add[NAME_BYTES];
    for (uint32_t i = 0; i < k->f->outputs.n; i++) {
        if (!phases_column(k, i))
            continue;
        const RowNode *x = &k->node[k->f->outputs.at[i].ref];
        for (int32_t e = 0; e < x->small; e++) {
            Ref operand;
            Element *parts, source = column_source(p, i, e, &operand);
            if (k->node[operand].phase != phase || k->node[operand].wide != wide)
                continue;
            int n = phases_reduced(k, source.ref, source.index, &parts);
            const char *total = row_total(p, source.ref, n, parts);
            if (x->wide && p->part)
                row_line(p, source.ref, "add_f32_part(c%u + %sj, %s, %d);", i, row_add(e * x->wide, add),
                         total, p->part);
            else if (x->wide)
                row_line(p, source.ref, "add_f32(c%u + %sj, %s);", i, row_add(e * x->wide, add), total);
            else if (p->part)
                row_line(p, source.ref, "c%u_%d += first_lanes(%s, %d, 0.0f);", i, e, total, p->part);
            else
                row_line(p, source.ref, "c%u_%d += %s%s;", i, e, wide ? "" : "(double)", total);
        }
    }
}

// ---- Loops.
static bool reduced_by(const RowPrinter *p, const RowLoop *l, Ref r) {
    const RowKernel *k = p->k;
    if (!k->node[r].live || op_info[node_at(k->f, r)->op].cls != CLASS_REDUCE || k->node[r].wide ||
        k->node[r].column)
        return false;
    const RowNode *in = &k->node[node_in(k->f, r, 0)];
    return in->wide == l->wide && in->phase == l->phase;
}

static const char *neutral(const RowPrinter *p, Ref r) {
    return node_at(p->k->f, r)->op == OP_sum ? "0.0f" : "-__builtin_inff()";
}

static void reductions_begin(RowPrinter *p, const RowLoop *l) {
    char suffix[NAME_BYTES];
    for (Ref r = 1; r < p->k->f->nodes.n; r++)
        for (int32_t i = 0; reduced_by(p, l, r) && i < p->k->node[r].small; i++)
            row_line(p, 0, "V a%u%s = splat(%s);", p->k->node[r].number,
                     row_suffix(p, &node_at(p->k->f, r)->type, i, suffix), neutral(p, r));
}

static void reductions_end(RowPrinter *p, const RowLoop *l) {
    char suffix[NAME_BYTES];
    for (Ref r = 1; r < p->k->f->nodes.n; r++)
        for (int32_t i = 0; reduced_by(p, l, r) && i < p->k->node[r].small; i++) {
            uint32_t number = p->k->node[r].number;
            row_suffix(p, &node_at(p->k->f, r)->type, i, suffix);
            row_line(p, r, "const float x%u%s = fold_%s(a%u%s);", number, suffix,
                     op_info[node_at(p->k->f, r)->op].name, number, suffix);
        }
}

// Adds one vector to the accumulators whose operand is x.
static void reductions_step(RowPrinter *p, Ref x) {
    const RowKernel *k = p->k;
    char suffix[NAME_BYTES];
    for (Ref r = x + 1; r < k->f->nodes.n; r++) {
        if (!reduced_by(p, p->loop, r) || node_in(k->f, r, 0) != x)
            continue;
        for (int32_t i = 0; i < k->node[r].small; i++) {
            Element *parts;
            int n_parts = phases_reduced(k, r, i, &parts);
            const char *total = row_total(p, r, n_parts, parts);
            uint32_t number = k->node[r].number;
            row_suffix(p, &node_at(k->f, r)->type, i, suffix);
            if (p->part)
                total = arena_format(k->arena, "first_lanes(%s, %d, %s)", total, p->part, neutral(p, r));
            row_line(p, r, "a%u%s = v_%s(a%u%s, %s);", number, suffix, op_info[node_at(k->f, r)->op].name,
                     number, suffix, total);
        }
    }
}

static void prefetch(RowPrinter *p, Ref r) {
    enum { MIN_BYTES = 512, ROWS_AHEAD = 2 };
    const RowKernel *k = p->k;
    const RowNode *x = &k->node[r];
    const Type *t = &node_at(k->f, r)->type;
    int last = k->f->n_row_axes - 1;
    char add[NAME_BYTES];
    if (p->part || x->made_in != p->loop_index || last < 0 || !has_axis(p, t, last) ||
        (int64_t)x->small * x->wide * (int64_t)dtype_bytes((Dtype)t->dtype) < MIN_BYTES)
        return;
    for (int32_t i = 0; i < x->small; i++)
        row_line(p, 0, "__builtin_prefetch(p%d + %d * t%d + %sj);", x->arg, ROWS_AHEAD, x->arg,
                 row_add(i * x->wide, add));
}

static void store_outputs(RowPrinter *p, Ref r) {
    const RowKernel *k = p->k;
    for (uint32_t o = 0; o < k->f->outputs.n; o++) {
        if (k->f->outputs.at[o].ref != r || phases_column(k, o) || k->node[r].phase != p->loop->phase)
            continue;
        for (int32_t i = 0; i < k->node[r].small; i++)
            row_store(p, r, arena_format(k->arena, "q%u", o), phases_resolve(k, r, i),
                      (Dtype)output_node(p, o)->type.dtype, i * k->node[r].wide);
    }
}

static void keep(RowPrinter *p, Ref r) {
    const RowNode *x = &p->k->node[r];
    char name[NAME_BYTES];
    int32_t vector = (x->wide + PHASES_LANES - 1) / PHASES_LANES * PHASES_LANES;
    for (int32_t i = 0; x->hold == HOLD_SCRATCH && x->made_in == p->loop_index && i < x->small; i++)
        row_line(p, 0, "store_f32(kept + %d + j, %s);", x->held_at + i * vector,
                 row_name(p, (Element){r, i}, name));
}

// One vector of the loop: values in order; stores wait for the last load of a value that a result may lie on:
// one that has rows, or any where the kernel has none.
static void loop_body(RowPrinter *p) {
    const RowKernel *k = p->k;
    Ref last_load = 0, stored = 1;
    for (Ref r = 1; r < k->f->nodes.n; r++)
        if (p->loop->action[r] == ACT_LOAD &&
            (!k->f->n_row_axes || phases_has_rows(k, &node_at(k->f, r)->type)))
            last_load = r;
    for (Ref r = 1; r < k->f->nodes.n; r++) {
        Action action = (Action)p->loop->action[r];
        if (action == ACT_LOAD) {
            prefetch(p, r);
            row_load(p, r);
            keep(p, r);
        } else if (action == ACT_RELOAD) {
            row_reload(p, r);
        } else if (action == ACT_CODE) {
            row_node(p, r);
            keep(p, r);
        }
        if (action != ACT_NONE)
            reductions_step(p, r);
        if (r >= last_load)
            for (; stored <= r; stored++)
                if (p->loop->action[stored] != ACT_NONE)
                    store_outputs(p, stored);
    }
    columns_add(p, p->loop->phase, p->loop->wide);
}

static void print_loop(RowPrinter *p, int index) {
    const RowLoop *l = &p->k->loops.at[index];
    int32_t part = l->wide % PHASES_LANES, whole = l->wide - part;
    reductions_begin(p, l);
    p->loop = l;
    p->loop_index = index;
    if (whole) {
        row_line(p, 0, "for (int32_t j = 0; j < %d; j += %d) {", whole, PHASES_LANES);
        p->indent += 4;
        loop_body(p);
        p->indent -= 4;
        row_line(p, 0, "}");
    }
    if (part) {
        row_line(p, 0, "{ // the last %d of %d", part, l->wide);
        p->indent += 4;
        row_line(p, 0, "const int32_t j = %d;", whole);
        p->part = part;
        loop_body(p);
        p->part = 0;
        p->indent -= 4;
        row_line(p, 0, "}");
    }
    p->loop = NULL;
    reductions_end(p, l);
}

// ---- Sections.
static void print_section(RowPrinter *p, int phase, bool once) {
    const RowKernel *k = p->k;
    for (Ref r = 1; r < k->f->nodes.n; r++) {
        const RowNode *x = &k->node[r];
        const Node *n = node_at(k->f, r);
        bool pointer = n->op == OP_gather;
        if (!x->live || x->once != once || (!once && x->phase != phase) || (x->wide && !pointer) ||
            x->column || phases_is_view(k, r))
            continue;
        if (op_info[n->op].cls == CLASS_REDUCE && k->node[node_in(k->f, r, 0)].wide)
            continue; // folded behind its loop
        row_node(p, r);
    }
    for (uint32_t o = 0; !once && o < k->f->outputs.n; o++) {
        Ref r = k->f->outputs.at[o].ref;
        const RowNode *x = &k->node[r];
        for (int32_t i = 0; !phases_column(k, o) && !x->wide && x->phase == phase && i < x->small; i++)
            row_store(p, r, arena_format(k->arena, "q%u", o), phases_resolve(k, r, i),
                      (Dtype)output_node(p, o)->type.dtype, i);
    }
    if (!once)
        columns_add(p, phase, 0);
}

static void print_row(RowPrinter *p) {
    int loop = 0;
    for (int phase = 0; phase < p->k->n_sections; phase++) {
        print_section(p, phase, false);
        for (; loop < (int)p->k->loops.n && p->k->loops.at[loop].phase == phase; loop++) {
            row_line(p, 0, "// phase %d, %d wide", phase, p->k->loops.at[loop].wide);
            print_loop(p, loop);
        }
    }
}

static void print_rows(RowPrinter *p) {
    int last = p->k->f->n_row_axes - 1;
    if (last < 0) {
        row_line(p, 0, "for (int64_t item = item0; item < item1; item++) {");
        p->indent += 4;
        print_row(p);
        p->indent -= 4;
        row_line(p, 0, "}");
        return;
    }
    row_line(p, 0,
             "for (int64_t item = item0, run; item < item1; item += run) { // rows along the last row axis");
    p->indent += 4;
    const char *rest = "item";
    for (int i = last; i > 0; i--) {
        row_line(p, 0, "int64_t r%d = %s %% a->size[%d], rest%d = %s / a->size[%d];", i, rest, i, i, rest, i);
        rest = arena_format(p->k->arena, "rest%d", i);
    }
    row_line(p, 0, "int64_t r0 = %s;", rest);
    row_line(p, 0, "run = a->size[%d] - r%d < item1 - item ? a->size[%d] - r%d : item1 - item;", last, last,
             last, last);
    declare_pointers(p, false);
    row_line(p, 0, "for (int64_t i = 0; i < run; i++, r%d++) {", last);
    p->indent += 4;
    print_row(p);
    advance_pointers(p);
    p->indent -= 4;
    row_line(p, 0, "}");
    p->indent -= 4;
    row_line(p, 0, "}");
}

const char *codegen_c_row(Arena *a, const Module *m, const Func *kernel, const char *name) {
    Text out = {.arena = a};
    RowPrinter p = {.k = phases_make(a, m, kernel), .out = &out};
    CHECK(kernel->n_row_axes <= 3, "kernel %s: %d row axes", kernel->name, kernel->n_row_axes);
    print_facts(&p, name);
    text_add(&out, "%s\n", prelude);
    row_functions(&p);
    text_add(&out, "\nvoid %s(const KernelArgs *a, int64_t item0, int64_t item1, int64_t strip) {\n", name);
    p.indent = 4;
    declare_pointers(&p, true);
    if (p.k->scratch)
        row_line(&p, 0, "float *kept = a->scratch; // %d values a row", p.k->scratch);
    print_section(&p, 0, true);
    columns_begin(&p);
    print_rows(&p);
    columns_end(&p);
    text_add(&out, "}\n");
    return out.at;
}

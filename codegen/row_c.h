// What the files that print a row kernel in C share.
#ifndef DEPTHBENCH_ROW_C_H
#define DEPTHBENCH_ROW_C_H
#include "codegen/phases.h"

enum { NAME_BYTES = 128 };

typedef struct RowPrinter {
    RowKernel *k;
    Text *out;
    const RowLoop *loop; // NULL: scalar code
    int loop_index;
    int32_t part; // of a wide axis' last, incomplete vector: its elements; 0: a whole vector
    int indent;
} RowPrinter;

// One line: blanks, text, the place in the person's script that it comes from (r; 0: none).
void row_line(RowPrinter *p, Ref r, const char *format, ...) PRINTF_LIKE(3, 4);
// ---- Expressions (row_value_c.c)
const char *row_name(RowPrinter *p, Element e, char out[NAME_BYTES]); // variable or literal
const char *row_operand(RowPrinter *p, Element e,
                        char out[NAME_BYTES]); // the same as a vector inside of a loop
const char *row_suffix(const RowPrinter *p, const Type *t, int32_t index, char out[NAME_BYTES]); // "_n0t1"
const char *row_total(RowPrinter *p, Ref reduce, int n, const Element *e); // their sum or maximum
const char *row_add(int32_t offset, char out[NAME_BYTES]);                 // "" or "640 + "
// ---- Nodes (row_node_c.c)
void row_node(RowPrinter *p, Ref r); // computes all its elements
void row_load(RowPrinter *p, Ref r);
void row_reload(RowPrinter *p, Ref r);
void row_store(RowPrinter *p, Ref from, const char *pointer, Element e, Dtype dtype, int32_t offset);
// The functions of the ops that the kernel uses.
void row_functions(RowPrinter *p);
#endif

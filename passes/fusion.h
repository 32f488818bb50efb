// What the files of the fusion pass share (stage.c, sink.c, outline.c, fuse.c); nobody else includes it.
#ifndef DEPTHBENCH_PASSES_FUSION_H
#define DEPTHBENCH_PASSES_FUSION_H
#include "passes/passes.h"

// What fusion may do with a node.
typedef enum Role {
    ROLE_LEAF,   // input, parameter, constant: an operand of whatever uses it
    ROLE_STATIC, // depends on no input and no parameter: a table, evaluated when compiled
    ROLE_ANCHOR, // a kernel of its own: GEMM, attention, head, scatter, constant
    ROLE_ALIAS,  // a view of storage: split, merge, wide slice, wide concat
    ROLE_ROW,    // may be in a row kernel
} Role;

typedef struct Group { // nodes of one row kernel
    uint32_t stage;
    uint8_t n_rows;
    AxisId rows[4];
    VEC(Ref) nodes;   // own nodes, in order
    VEC(Ref) outputs; // own nodes that somebody else reads from memory
    VEC(Ref) clones;  // nodes of other groups that it rebuilds
} Group;

typedef struct Fusion {
    Module *m;
    const PassOptions *o;
    const Func *f;
    Role *role;      // by node; results of OP_out have the role of their op
    uint32_t *stage; // longest path in kernels
    int32_t *group;  // by ROW node: its group
    bool *column;    // a sum over row axes: ends in its kernel, its result has no rows
    bool *reduces;   // a sum or maximum over a wide axis
    bool *stored;    // by ROW node: read from memory by somebody
    VEC(Group) groups;
} Fusion;

// No stop_grad; sums over all rows or none (normal.c).
Func *fusion_normal_form(Module *m, const Func *f);
// Fills role, stage, column, reduces, and the groups with their nodes (stage.c).
void fusion_stage(Fusion *s);
// Decides what each group reads and what it rebuilds; fills outputs and clones (sink.c).
void fusion_sink(Fusion *s);
// The function with every group as a call of a kernel; kernels are added to the module (outline.c).
Func *fusion_outline(Fusion *s);

// ---- Names (kernel_names.c)
const char *kernel_word(const Func *f); // the most telling op of a kernel
// Names inputs (launch scalars excepted) and outputs of a kernel after the values that they are in s->f, in
// order.
void kernel_name_values(const Fusion *s, Func *f, const Ref *args, const Ref *outputs);

// A number, or an iota over no row axis: every kernel that uses it has its own.
bool fusion_is_free(const Fusion *s, Ref r);
bool fusion_same_rows(const Fusion *s, const Group *g, Ref r);
// Bytes that one row of a value takes in memory; 0 for values without rows.
double fusion_row_bytes(const Fusion *s, Ref r);
#endif

// Where parameters lie in the flat arenas. Weights that one GEMM reads side by side (a concat) are
// neighbours.
#include "passes/passes.h"
#include <string.h>

enum { PARAM_ALIGN = 64 }; // elements: bf16 copies start at 128 bytes

static size_t round_up(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

static int part_of(const Param *p) {
    return !p->trained ? 2 : p->decay ? 0 : 1;
}

// For the first parameter of each concat of parameters alone: all of them, in order.
static void find_groups(const Module *m, int32_t (*group)[MAX_ATTR_AXES], int *size) {
    for (uint32_t i = 0; i < m->funcs.n; i++) {
        const Func *f = m->funcs.at[i];
        for (Ref r = 1; r < f->nodes.n; r++) {
            int32_t member[MAX_ATTR_AXES];
            const Node *n = node_at(f, r);
            bool params = n->op == OP_concat;
            for (int j = 0; params && j < n->n_in; j++) {
                const Node *p = node_at(f, node_in(f, r, j));
                params = p->op == OP_param;
                member[j] = p->k;
            }
            if (!params || size[member[0]])
                continue;
            size[member[0]] = n->n_in;
            memcpy(group[member[0]], member, sizeof member);
        }
    }
}

ParamLayout param_layout(Module *m) {
    ParamLayout l = {0};
    uint32_t n = m->params.n;
    int32_t(*group)[MAX_ATTR_AXES] = arena_alloc(m->arena, (n + 1) * sizeof *group);
    int *size = arena_alloc(m->arena, (n + 1) * sizeof *size);
    bool *placed = arena_alloc(m->arena, n + 1), *follower = arena_alloc(m->arena, n + 1);
    l.offset = arena_alloc(m->arena, (n + 1) * sizeof *l.offset);
    find_groups(m, group, size);
    for (uint32_t k = 0; k < n; k++)
        for (int j = 1; j < size[k]; j++)
            follower[group[k][j]] = true;
    size_t at = 0, *const ends[] = {&l.decay_elems, &l.trained_elems, &l.total_elems};
    for (int part = 0; part < 3; part++) {
        for (uint32_t k = 0; k < n; k++) {
            if (placed[k] || follower[k] || part_of(&m->params.at[k]) != part)
                continue;
            at = round_up(at, PARAM_ALIGN);
            for (int j = 0; j < (size[k] ? size[k] : 1); j++) {
                int32_t member = size[k] ? group[k][j] : (int32_t)k;
                l.offset[member] = at;
                placed[member] = true;
                at += (size_t)type_count(m, &m->params.at[member].type);
            }
        }
        at = round_up(at, PLAN_ROW);
        *ends[part] = at;
    }
    return l;
}

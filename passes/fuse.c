// Fusion: all nodes between two GEMMs become one row kernel. Normal form (normal.c), stages and groups
// (stage.c), what is read and what is rebuilt (sink.c), kernels and calls (outline.c).
#include "passes/fusion.h"

void pass_fuse(Module *m, const PassOptions *o) {
    uint32_t n = m->funcs.n; // kernels are appended behind
    for (uint32_t i = 0; i < n; i++) {
        if (m->funcs.at[i]->is_kernel)
            continue;
        Fusion s = {.m = m, .o = o, .f = fusion_normal_form(m, m->funcs.at[i])};
        fusion_stage(&s);
        fusion_sink(&s);
        Func *fused = fusion_outline(&s);
        m->funcs.at[i] = fused;
    }
}

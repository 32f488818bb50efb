// What backward rebuilds instead of keeping.
#include "passes/passes.h"

void pass_recompute(Module *m, const PassOptions *o) {
    (void)m;
    CHECK(o->recompute == RECOMPUTE_NONE, "recompute is not built yet");
}

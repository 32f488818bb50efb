// Checkpoints: RUN/checkpoints/step-N/{model,optim}.safetensors and state.json, written last: a folder
// without it is not a checkpoint. Saving needs one tensor's copy; old checkpoints go only when the new one is
// whole on storage.
#ifndef DEPTHBENCH_RUNTIME_CHECKPOINT_H
#define DEPTHBENCH_RUNTIME_CHECKPOINT_H
#include "runtime/exec.h"
#include "runtime/file.h"

// What a run is besides parameters and moments.
typedef struct Progress {
    int64_t step, tokens, cursor; // steps done; targets trained on; windows taken
    uint64_t seed;
    char config_hash[33], data_hash[33];
} Progress;

// Messages for people, one line each; line may be NULL.
typedef struct Notes {
    void (*line)(void *ctx, const char *text);
    void *ctx;
} Notes;

// folder: where it was written, FILE_PATH bytes. On failure nothing of the new checkpoint remains and all
// older ones do. keep: newest ones that stay, at least 1; keep_every: every N-th step's stays too (0: none).
Status checkpoint_save(const char *checkpoints, Exec *e, const Plan *p, const Progress *progress,
                       int64_t keep, int64_t keep_every, char folder[FILE_PATH]) MUST_USE;
// The newest complete checkpoint; folder is "" when there is none. Torn and damaged ones are skipped with a
// note.
Status checkpoint_find(const char *checkpoints, Notes notes, char folder[FILE_PATH], Progress *out) MUST_USE;
// Values and moments of a checkpoint that checkpoint_find has checked.
Status checkpoint_load(const char *folder, Exec *e, const Plan *p, Notes notes) MUST_USE;

// Parameter values of a safetensors file with our names. Every missing, unexpected and misshapen tensor is a
// note; the Status (code 2) counts them and names the first ones. Nothing is written to the device when there
// is any.
Status params_load(const char *path, Exec *e, const Plan *p, Notes notes) MUST_USE;
#endif

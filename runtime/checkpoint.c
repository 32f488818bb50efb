// Checkpoint folders: see checkpoint.h.
#include "runtime/checkpoint.h"
#include "runtime/json_in.h"
#include "runtime/json_out.h"
#include "runtime/params.h"
#include "runtime/sha256.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { CHECKPOINT_FORMAT = 1 };
static const ParamPart model_parts[] = {PART_VALUE}, optim_parts[] = {PART_EXP_AVG, PART_EXP_AVG_SQ};

typedef struct Part { // one of the two files as state.json describes it
    char sha256[65];
    uint64_t bytes;
} Part;

static void note(Notes notes, const char *format, ...) PRINTF_LIKE(2, 3);
static void note(Notes notes, const char *format, ...) {
    char line[640];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (notes.line)
        notes.line(notes.ctx, line);
}

// ---- Writing

static void state_text(Text *out, const Progress *p, const Part *model, const Part *optim) {
    JsonOut j;
    jout_begin(&j, out);
    jout_int(&j, "format", CHECKPOINT_FORMAT);
    jout_int(&j, "step", p->step);
    jout_int(&j, "seed", (int64_t)p->seed);
    jout_int(&j, "tokens", p->tokens);
    jout_int(&j, "cursor", p->cursor);
    jout_string(&j, "config_hash", p->config_hash);
    jout_string(&j, "data_hash", p->data_hash);
    const Part *parts[] = {model, optim};
    static const char *const names[] = {"model.safetensors", "optim.safetensors"};
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        jout_object(&j, names[i]);
        jout_string(&j, "sha256", parts[i]->sha256);
        jout_int(&j, "bytes", (int64_t)parts[i]->bytes);
        jout_close(&j);
    }
    jout_close(&j);
    text_add(out, "\n");
}

static Status write_state(const char *folder, const Progress *p, const Part *model, const Part *optim) {
    char path[FILE_PATH];
    TRY(file_join(folder, "state.json", path));
    Arena arena;
    arena_init(&arena, 0);
    Text text = {.arena = &arena};
    volatile bool built = true;
    ARENA_CATCH(&arena, state_text(&text, p, model, optim), built = false);
    Status s = built ? file_save(path, text.at, text.n) : status_memory("state.json", 1024);
    arena_free(&arena);
    return s;
}

static Status write_parts(const char *folder, Exec *e, const Plan *p, const Progress *progress) {
    char path[FILE_PATH];
    Part model, optim;
    TRY(file_make_dir(folder));
    TRY(file_join(folder, "model.safetensors", path));
    TRY(params_write(path, e, p, model_parts, COUNT_OF(model_parts), model.sha256, &model.bytes));
    TRY(file_join(folder, "optim.safetensors", path));
    TRY(params_write(path, e, p, optim_parts, COUNT_OF(optim_parts), optim.sha256, &optim.bytes));
    return write_state(folder, progress, &model, &optim);
}

// Step of a folder's name "step-N"; -1: another name.
static int64_t step_of(const char *name) {
    if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9' || strlen(name) > 5 + 18)
        return -1;
    char *end;
    long long step = strtoll(name + 5, &end, 10);
    return *end || (name[5] == '0' && name[6]) ? -1 : step;
}

static bool is_complete(const char *folder) {
    char path[FILE_PATH];
    return file_join(folder, "state.json", path).code == 0 && file_exists(path);
}

static int compare_steps(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

// Steps of the folders in `checkpoints`, newest first. *steps: mem_free.
static Status list_steps(const char *checkpoints, int64_t **steps, size_t *n) {
    FileNames names;
    *steps = NULL;
    *n = 0;
    if (!file_is_dir(checkpoints))
        return STATUS_OK;
    TRY(file_list(checkpoints, &names));
    *steps = mem_alloc(names.n * sizeof **steps);
    for (size_t i = 0; *steps && i < names.n; i++) {
        if (step_of(names.at[i]) >= 0)
            (*steps)[(*n)++] = step_of(names.at[i]);
    }
    Status s = *steps ? STATUS_OK : status_memory("a list of checkpoints", names.n * sizeof **steps);
    file_names_free(&names);
    if (*n)
        qsort(*steps, *n, sizeof **steps, compare_steps);
    return s;
}

static Status folder_name(const char *checkpoints, int64_t step, char folder[FILE_PATH]) {
    char name[32];
    snprintf(name, sizeof name, "step-%lld", (long long)step);
    return file_join(checkpoints, name, folder);
}

// Removes what is too old, and torn folders. state.json goes first, so a removal cut short leaves no half
// checkpoint.
static Status rotate(const char *checkpoints, int64_t newest, int64_t keep, int64_t keep_every) {
    int64_t *steps, complete = 0;
    size_t n;
    TRY(list_steps(checkpoints, &steps, &n));
    Status s = STATUS_OK;
    for (size_t i = 0; i < n && !s.code; i++) {
        char folder[FILE_PATH], state[FILE_PATH];
        s = folder_name(checkpoints, steps[i], folder);
        if (s.code || steps[i] > newest)
            continue;
        bool whole = is_complete(folder);
        complete += whole;
        if (whole && (complete <= keep || (keep_every > 0 && steps[i] % keep_every == 0)))
            continue;
        s = file_join(folder, "state.json", state);
        if (!s.code)
            s = file_remove(state);
        if (!s.code)
            s = file_remove_tree(folder);
    }
    mem_free(steps);
    return s;
}

Status checkpoint_save(const char *checkpoints, Exec *e, const Plan *p, const Progress *progress,
                       int64_t keep, int64_t keep_every, char folder[FILE_PATH]) {
    TRY(file_make_dir(checkpoints));
    TRY(folder_name(checkpoints, progress->step, folder));
    TRY(file_remove_tree(folder)); // left by a run that was cut short
    Status s = write_parts(folder, e, p, progress);
    if (!s.code)
        s = file_sync_dir(checkpoints);
    if (s.code) {
        // The first message is the one that counts; a folder that cannot be removed lacks state.json or is
        // whole.
        Status removed = file_remove_tree(folder);
        (void)removed.code;
        return s;
    }
    return rotate(checkpoints, progress->step, MAX_OF(keep, 1), keep_every);
}

// ---- Reading

static bool take_int(const json_t *object, const char *key, int64_t low, int64_t *out) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value) || json_integer_value(value) < low)
        return false;
    *out = json_integer_value(value);
    return true;
}

static bool take_text(const json_t *object, const char *key, char *out, size_t size) {
    const char *value = json_string_value(json_object_get(object, key));
    if (!value || strlen(value) >= size)
        return false;
    memcpy(out, value, strlen(value) + 1);
    return true;
}

static Status read_state(const char *folder, Progress *out, Part parts[2]) {
    char path[FILE_PATH];
    json_t *state;
    TRY(file_join(folder, "state.json", path));
    TRY(jin_load(path, 1 << 20, &state));
    int64_t format, seed, bytes[2];
    *out = (Progress){0};
    bool good = take_int(state, "format", 1, &format) && take_int(state, "step", 0, &out->step) &&
                take_int(state, "seed", INT64_MIN, &seed) && take_int(state, "tokens", 0, &out->tokens) &&
                take_int(state, "cursor", 0, &out->cursor) &&
                take_text(state, "config_hash", out->config_hash, sizeof out->config_hash) &&
                take_text(state, "data_hash", out->data_hash, sizeof out->data_hash);
    static const char *const names[] = {"model.safetensors", "optim.safetensors"};
    for (size_t i = 0; i < 2 && good; i++) {
        const json_t *part = json_object_get(state, names[i]);
        good = take_text(part, "sha256", parts[i].sha256, sizeof parts[i].sha256) &&
               take_int(part, "bytes", 0, &bytes[i]);
        if (good)
            parts[i].bytes = (uint64_t)bytes[i];
    }
    json_decref(state);
    if (!good || format != CHECKPOINT_FORMAT)
        return status_make(EXIT_REQUEST, "%s: not a checkpoint of format %d", path, CHECKPOINT_FORMAT);
    out->seed = (uint64_t)seed;
    return STATUS_OK;
}

static Status check_part(const char *folder, const char *name, const Part *part) {
    char path[FILE_PATH], sha256[65];
    uint64_t bytes;
    TRY(file_join(folder, name, path));
    TRY(sha256_file(path, sha256, &bytes));
    if (bytes != part->bytes || strcmp(sha256, part->sha256) != 0)
        return status_make(EXIT_REQUEST, "%s: damaged: its length or SHA-256 is not what state.json says",
                           path);
    return STATUS_OK;
}

static Status check_folder(const char *folder, Progress *out) {
    Part parts[2];
    TRY(read_state(folder, out, parts));
    TRY(check_part(folder, "model.safetensors", &parts[0]));
    return check_part(folder, "optim.safetensors", &parts[1]);
}

Status checkpoint_find(const char *checkpoints, Notes notes, char folder[FILE_PATH], Progress *out) {
    int64_t *steps;
    size_t n;
    folder[0] = 0;
    TRY(list_steps(checkpoints, &steps, &n));
    Status s = STATUS_OK;
    for (size_t i = 0; i < n; i++) {
        s = folder_name(checkpoints, steps[i], folder);
        if (s.code)
            break;
        if (!is_complete(folder)) {
            note(notes, "%s was not finished: skipped", folder);
        } else {
            s = check_folder(folder, out);
            if (s.code != EXIT_REQUEST)
                break; // good, or the storage fails
            note(notes, "%s: skipped", s.text);
            s = STATUS_OK;
        }
        folder[0] = 0;
    }
    mem_free(steps);
    return s;
}

Status checkpoint_load(const char *folder, Exec *e, const Plan *p, Notes notes) {
    char path[FILE_PATH];
    TRY(file_join(folder, "model.safetensors", path));
    TRY(params_load(path, e, p, notes));
    TRY(file_join(folder, "optim.safetensors", path));
    return params_read(path, e, p, optim_parts, COUNT_OF(optim_parts), notes);
}

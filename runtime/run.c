// The run directory: making, locking, and comparing its config.json. See train.h.
#include "runtime/run.h"
#include "runtime/json_in.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_CONFIG = 16 << 20 };

static bool is_free(const char *key, const char *const *free_keys) {
    for (; free_keys && *free_keys; free_keys++) {
        if (strcmp(key, *free_keys) == 0)
            return true;
    }
    return false;
}

static char *value_text(const json_t *value, size_t digits) {
    size_t flags = JSON_ENCODE_ANY | JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(digits);
    return value ? json_dumps(value, flags) : NULL;
}

static void add_difference(char *list, size_t size, const char *key, const json_t *was, const json_t *now) {
    char *a = value_text(was, 15), *b = value_text(now, 15);
    size_t used = strlen(list);
    if (used + 100 < size)
        snprintf(list + used, size - used, "%s%.40s was %.60s, is %.60s", used ? "; " : "", key,
                 a ? a : "not set", b ? b : "not set");
    free(a);
    free(b);
}

// Every key that may not change has the same value in both.
static Status compare(const char *path, json_t *was, json_t *now, const char *const *free_keys) {
    char list[400] = "";
    const char *key;
    json_t *value;
    json_object_foreach(now, key, value) {
        const json_t *old = json_object_get(was, key);
        if (!is_free(key, free_keys) && !(old && json_equal(old, value)))
            add_difference(list, sizeof list, key, old, value);
    }
    json_object_foreach(was, key, value) {
        if (!is_free(key, free_keys) && !json_object_get(now, key))
            add_difference(list, sizeof list, key, value, NULL);
    }
    if (!list[0])
        return STATUS_OK;
    return status_make(EXIT_REQUEST, "%.100s: a resumed run must keep its settings: %s", path, list);
}

static Status hash_config(Run *r, json_t *config, const char *const *free_keys) {
    json_t *fixed = json_object();
    const char *key;
    json_t *value;
    json_object_foreach(config, key, value) {
        if (!is_free(key, free_keys))
            json_object_set(fixed, key, value);
    }
    char *text = value_text(fixed, 17);
    json_decref(fixed);
    if (!text)
        return status_memory("config.json", 0);
    hash_hex(text, strlen(text), r->config_hash);
    free(text);
    return STATUS_OK;
}

Status run_config(const char *dir, char **json) {
    char path[FILE_PATH];
    FileBytes bytes;
    *json = NULL;
    TRY(file_join(dir, "config.json", path));
    TRY(file_load(path, MAX_CONFIG, &bytes));
    *json = bytes.at;
    return STATUS_OK;
}

// ---- Old content

static bool is_ours(const char *name) {
    static const char *const names[] = {"config.json", "metrics.jsonl", "checkpoints", "lock", "model.lua"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        if (strcmp(name, names[i]) == 0)
            return true;
    }
    return strncmp(name, "events.out.tfevents.", 20) == 0 || strstr(name, ".tmp.") != NULL;
}

static bool is_script(const char *name, const char *const *scripts) {
    for (; scripts && *scripts; scripts += 2) {
        if (strcmp(name, *scripts) == 0)
            return true;
    }
    return false;
}

// Removes what a run wrote, and nothing else. config.json goes last: without it a folder is no run.
static Status clear(const char *dir, const FileNames *names, const char *const *scripts) {
    char path[FILE_PATH];
    for (size_t i = 0; i < names->n; i++) {
        bool config = strcmp(names->at[i], "config.json") == 0, lock = strcmp(names->at[i], "lock") == 0;
        if (config || lock || !(is_ours(names->at[i]) || is_script(names->at[i], scripts)))
            continue;
        TRY(file_join(dir, names->at[i], path));
        TRY(file_remove_tree(path));
    }
    TRY(file_join(dir, "config.json", path));
    return file_remove(path);
}

static Status check_old(const char *dir, RunMode mode, const FileNames *names) {
    char config[FILE_PATH];
    TRY(file_join(dir, "config.json", config));
    bool is_run = file_exists(config);
    size_t others = 0;
    for (size_t i = 0; i < names->n; i++)
        others += strcmp(names->at[i], "lock") != 0;
    if (mode == RUN_RESUME && !is_run)
        return status_make(EXIT_REQUEST, "%s: nothing to resume: there is no config.json", dir);
    if (mode == RUN_NEW && is_run)
        return status_make(
            EXIT_REQUEST,
            "%s: a run is there already: use --resume to go on with it, --overwrite to replace "
            "it, or another --out",
            dir);
    if (mode != RUN_RESUME && others && !is_run)
        return status_make(EXIT_REQUEST,
                           "%s: this folder holds other things than a run: choose another --out", dir);
    return STATUS_OK;
}

Status run_check(const char *dir, RunMode mode) {
    FileNames names;
    if (mode == RUN_RESUME && !file_is_dir(dir))
        return status_make(EXIT_REQUEST, "%s: nothing to resume: there is no such folder", dir);
    if (!file_is_dir(dir))
        return STATUS_OK;
    TRY(file_list(dir, &names));
    Status s = check_old(dir, mode, &names);
    file_names_free(&names);
    return s;
}

// ---- Opening

static Status write_all(const Run *r, const char *config, const char *const *scripts) {
    char path[FILE_PATH];
    for (; scripts && *scripts; scripts += 2) {
        CHECK(!strchr(scripts[0], '/'), "script name %s", scripts[0]);
        TRY(file_join(r->dir, scripts[0], path));
        TRY(file_save(path, scripts[1], strlen(scripts[1])));
    }
    TRY(file_join(r->dir, "config.json", path));
    return file_save(path, config, strlen(config));
}

static Status check_config(Run *r, const char *config, const char *const *free_keys) {
    json_t *now, *was = NULL;
    char path[FILE_PATH];
    TRY(jin_parse("config.json", config, strlen(config), true, &now));
    Status s = hash_config(r, now, free_keys);
    if (!s.code && r->resume) {
        s = file_join(r->dir, "config.json", path);
        if (!s.code)
            s = jin_load(path, MAX_CONFIG, &was);
        if (!s.code)
            s = compare(path, was, now, free_keys);
    }
    json_decref(was);
    json_decref(now);
    return s;
}

static void take_back(const Run *r, const char *const *scripts) {
    FileNames names;
    char path[FILE_PATH];
    if (file_list(r->dir, &names).code)
        return;
    Status s = clear(r->dir, &names, scripts);
    file_names_free(&names);
    if (!s.code && !file_join(r->dir, "lock", path).code && !file_remove(path).code)
        rmdir(r->dir); // stays when it holds something else
}

static Status open_dir(Run *r, RunMode mode, const char *config, const char *const *free_keys,
                       const char *const *scripts) {
    char path[FILE_PATH];
    FileNames names;
    if (mode == RUN_RESUME && !file_is_dir(r->dir))
        return status_make(EXIT_REQUEST, "%s: nothing to resume: there is no such folder", r->dir);
    TRY(file_join(r->dir, "checkpoints", r->checkpoints));
    TRY(file_make_dir(r->dir));
    TRY(file_list(r->dir, &names));
    bool run = false, foreign = false;
    for (size_t i = 0; i < names.n; i++) {
        run = run || strcmp(names.at[i], "config.json") == 0;
        foreign = foreign || !(is_ours(names.at[i]) || is_script(names.at[i], scripts));
    }
    Status s = STATUS_OK;
    if (run || !foreign) { // nothing, not even a lock, is put into a folder of other things
        s = file_join(r->dir, "lock", path);
        if (!s.code)
            s = file_lock(path, &r->lock);
    }
    if (!s.code)
        s = check_old(r->dir, mode, &names);
    if (!s.code && run && mode == RUN_OVERWRITE)
        s = clear(r->dir, &names, scripts);
    file_names_free(&names);
    if (!s.code)
        s = check_config(r, config, free_keys);
    if (s.code)
        return s;
    s = write_all(r, config, scripts);
    if (s.code && !run) // a disk that is full: the folder is as before
        take_back(r, scripts);
    return s;
}

Status run_open(const char *dir, RunMode mode, const char *config, const char *const *free_keys,
                const char *const *scripts, Run **out) {
    *out = NULL;
    Run *r = mem_alloc(sizeof *r);
    if (!r)
        return status_memory("a run directory", sizeof *r);
    r->lock = -1;
    r->resume = mode == RUN_RESUME;
    Status s =
        strlen(dir) < sizeof r->dir ? STATUS_OK : status_make(EXIT_REQUEST, "%.60s...: name too long", dir);
    snprintf(r->dir, sizeof r->dir, "%s", dir);
    if (!s.code)
        s = open_dir(r, mode, config, free_keys, scripts);
    if (s.code)
        run_close(r);
    else
        *out = r;
    return s;
}

void run_close(Run *r) {
    if (!r)
        return;
    file_unlock(r->lock);
    mem_free(r);
}

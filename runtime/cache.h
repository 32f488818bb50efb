// A folder of compiled kernels by content key (cache.c). Safe for any number of processes at once, without
// locks.
#ifndef DEPTHBENCH_RUNTIME_CACHE_H
#define DEPTHBENCH_RUNTIME_CACHE_H
#include "ir/base.h"

typedef struct Cache Cache;
enum { CACHE_PATH = 4096, CACHE_KEY = 33 };
// dir NULL: a folder of its own for this run, removed by cache_close. Where dir cannot be written, its
// entries still serve and new ones are made in such a folder, with one warning.
Status cache_open(const char *dir, Cache **out) MUST_USE;
void cache_close(Cache *c);
const char *cache_dir(const Cache *c);
// Path of the valid entry of a key; false when there is none. maker: what made the entry (a hash of the
// compiler's version); NULL: any maker will do. A damaged entry counts as absent, with one warning a run.
bool cache_get(Cache *c, const char *key, const char *maker, char path[CACHE_PATH]);
// Drops an entry that turned out to be unusable after all, with the same warning.
void cache_drop(Cache *c, const char *path, const char *why);
// A path for a new file of this process in the cache's folder; suffix ".so", ".c".
void cache_aside(Cache *c, const char *suffix, char path[CACHE_PATH]);
// Makes a file written aside the entry of a key: appends length and hash, renames. Removes the oldest entries
// above the limit of the cache. path: where it is now. On failure the file aside is gone.
Status cache_put(Cache *c, const char *key, const char *maker, const char *aside,
                 char path[CACHE_PATH]) MUST_USE;
enum { CACHE_LIMIT_MB = 2048 };
void cache_limit(Cache *c, size_t bytes); // for tests
#endif

// Kernel cache: DIR/KEY-MAKER.so, each file an image followed by a trailer with its length and hash.
//
// Entries are written under another name and renamed, so that a reader sees a whole entry or none; two
// processes that race write the same content. A reader checks length and hash before it uses an entry: what
// is cut, changed or of another version is rebuilt. Loaders ignore bytes behind an image, so the file with
// its trailer is loaded as it is.
#include "runtime/cache.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { STALE_SECONDS = 3600, TOUCH_SECONDS = 86400 };
static const char trailer_magic[16] = "depthbench.1";
typedef struct Trailer {
    char magic[16];
    uint64_t bytes;
    char hash[32];
} Trailer;

struct Cache {
    char dir[CACHE_PATH - 512];  // where entries are looked up
    char work[CACHE_PATH - 512]; // where they are made: dir, or a folder of this run
    bool own;                    // work is removed at the end
    size_t limit;
    atomic_int serial, warned;
    atomic_size_t stored; // bytes put since the folder was last measured
};

// mkdir -p; false with errno.
static bool make_folders(const char *dir) {
    char path[CACHE_PATH];
    snprintf(path, sizeof path, "%s", dir);
    for (char *p = path + 1; *p; p++)
        if (*p == '/') {
            *p = 0;
            if (mkdir(path, 0777) && errno != EEXIST)
                return false;
            *p = '/';
        }
    return mkdir(path, 0777) == 0 || errno == EEXIST;
}

static bool folder_writable(Cache *c) {
    char path[CACHE_PATH];
    if (fault_hit(FAULT_FILE) || !make_folders(c->dir))
        return false;
    cache_aside(c, ".probe", path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return false;
    close(fd);
    unlink(path);
    return true;
}

static Status own_folder(Cache *c) {
    const char *base = getenv("TMPDIR");
    snprintf(c->work, sizeof c->work, "%s/depthbench-XXXXXX", base && *base ? base : "/tmp");
    if (fault_hit(FAULT_FILE) || !mkdtemp(c->work))
        return status_make(EXIT_WORK, "cannot make a folder for kernels, %.300s: %s", c->work,
                           strerror(errno));
    c->own = true;
    return STATUS_OK;
}

Status cache_open(const char *dir, Cache **out) {
    *out = NULL;
    if (dir && strlen(dir) > sizeof((Cache *)0)->dir - 1)
        return status_make(EXIT_REQUEST, "--cache: the path is too long");
    Cache *c = mem_alloc(sizeof *c);
    if (!c)
        return status_memory("kernel cache", sizeof *c);
    c->limit = (size_t)CACHE_LIMIT_MB << 20;
    snprintf(c->dir, sizeof c->dir, "%s", dir ? dir : "");
    snprintf(c->work, sizeof c->work, "%s", c->dir);
    if (dir && !folder_writable(c)) {
        // Entries that are there still serve; what is missing is made in a folder of this run.
        fprintf(stderr,
                "depthbench: warning: cannot write to the kernel cache %s (%s): new kernels are kept for "
                "this run only\n",
                dir, strerror(errno));
        dir = NULL;
    }
    Status s = dir ? STATUS_OK : own_folder(c);
    if (s.code) {
        mem_free(c);
        return s;
    }
    *out = c;
    return STATUS_OK;
}

const char *cache_dir(const Cache *c) {
    return c->dir;
}

void cache_limit(Cache *c, size_t bytes) {
    c->limit = bytes;
}

void cache_close(Cache *c) {
    if (!c)
        return;
    DIR *d = c->own ? opendir(c->work) : NULL;
    for (struct dirent *e; d && (e = readdir(d));)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
            (void)unlinkat(dirfd(d), e->d_name, 0);
    if (d) {
        closedir(d);
        rmdir(c->work);
    }
    mem_free(c);
}

void cache_aside(Cache *c, const char *suffix, char path[CACHE_PATH]) {
    snprintf(path, CACHE_PATH, "%s/aside.%ld.%p.%d%s", c->work, (long)getpid(), (void *)c,
             atomic_fetch_add(&c->serial, 1), suffix);
}

// Reads a whole file; NULL on any failure (errno 0: short read or no memory).
static unsigned char *read_whole(const char *path, size_t *bytes) {
    int fd = fault_hit(FAULT_FILE) ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0)
        return NULL;
    unsigned char *data =
        fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? mem_alloc((size_t)st.st_size + 1) : NULL;
    size_t n = 0;
    while (data && n < (size_t)st.st_size) {
        ssize_t got = read(fd, data + n, (size_t)st.st_size - n);
        if (got <= 0)
            break;
        n += (size_t)got;
    }
    close(fd);
    if (data && n != (size_t)st.st_size) {
        mem_free(data);
        data = NULL;
    }
    *bytes = n;
    return data;
}

static Trailer trailer_make(const void *data, size_t bytes) {
    char hex[33];
    Trailer t = {.bytes = bytes};
    hash_hex(data, bytes, hex);
    memcpy(t.magic, trailer_magic, sizeof t.magic);
    memcpy(t.hash, hex, sizeof t.hash);
    return t;
}

// What is wrong with an entry; NULL: nothing. unread: it could not be looked at, which says nothing about it.
static const char *entry_fault(const char *path, bool *unread) {
    size_t bytes = 0;
    unsigned char *data = read_whole(path, &bytes);
    *unread = !data;
    if (!data)
        return "cannot be read";
    const char *why = NULL;
    Trailer t;
    if (bytes < sizeof t) {
        why = "cut short";
    } else {
        memcpy(&t, data + bytes - sizeof t, sizeof t);
        Trailer good = trailer_make(data, bytes - sizeof t);
        if (memcmp(t.magic, good.magic, sizeof t.magic))
            why = "cut short or of another version";
        else if (memcmp(&t, &good, sizeof t))
            why = "changed since it was written";
    }
    mem_free(data);
    return why;
}

void cache_drop(Cache *c, const char *path, const char *why) {
    if (!atomic_exchange(&c->warned, 1))
        fprintf(stderr, "depthbench: warning: kernel cache entry %s is damaged (%s): it is built again\n",
                path, why);
    (void)unlink(path);
}

// Some maker's entry of a key.
static bool find_any(const Cache *c, const char *key, char path[CACHE_PATH]) {
    DIR *d = opendir(c->dir);
    bool found = false, unread;
    size_t n = strlen(key);
    for (struct dirent *e; d && !found && (e = readdir(d));)
        if (!strncmp(e->d_name, key, n) && e->d_name[n] == '-') {
            snprintf(path, CACHE_PATH, "%s/%s", c->dir, e->d_name);
            found = !entry_fault(path, &unread);
        }
    if (d)
        closedir(d);
    return found;
}

bool cache_get(Cache *c, const char *key, const char *maker, char path[CACHE_PATH]) {
    if (!maker)
        return find_any(c, key, path);
    struct stat st;
    snprintf(path, CACHE_PATH, "%s/%s-%.16s.so", c->dir, key, maker);
    if (stat(path, &st))
        return false;
    bool unread;
    const char *why = entry_fault(path, &unread);
    if (why) {
        if (!unread)
            cache_drop(c, path, why);
        return false;
    }
    if (time(NULL) - st.st_mtime > TOUCH_SECONDS) // used entries are not the oldest
        (void)utimensat(AT_FDCWD, path, NULL, 0);
    return true;
}

typedef struct Entry {
    char name[96];
    time_t when;
    size_t bytes;
} Entry;

static int by_age(const void *a, const void *b) {
    const Entry *x = a, *y = b;
    return x->when != y->when ? (x->when < y->when ? -1 : 1) : strcmp(x->name, y->name);
}

// Removes the oldest entries until the folder is below the limit, and files that a killed process left aside.
static void evict(Cache *c) {
    DIR *d = opendir(c->dir);
    Entry *list = NULL;
    size_t n = 0, cap = 0, total = 0;
    time_t now = time(NULL);
    for (struct dirent *e; d && (e = readdir(d));) {
        struct stat st;
        if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode) ||
            strlen(e->d_name) > 95)
            continue;
        if (!strncmp(e->d_name, "aside.", 6)) {
            if (now - st.st_mtime > STALE_SECONDS)
                (void)unlinkat(dirfd(d), e->d_name, 0);
            continue;
        }
        if (n == cap) {
            Entry *more = mem_realloc(list, (cap ? 2 * cap : 64) * sizeof *list);
            if (!more)
                break;
            cap = cap ? 2 * cap : 64;
            list = more;
        }
        list[n] = (Entry){.when = st.st_mtime, .bytes = (size_t)st.st_size};
        snprintf(list[n].name, sizeof list[n].name, "%s", e->d_name);
        total += list[n++].bytes;
    }
    if (d && total > c->limit) {
        qsort(list, n, sizeof *list, by_age);
        for (size_t i = 0; i < n && total > c->limit; total -= list[i++].bytes)
            (void)unlinkat(dirfd(d), list[i].name, 0);
    }
    if (d)
        closedir(d);
    mem_free(list);
}

static bool append_trailer(const char *aside, size_t *bytes) {
    unsigned char *data = read_whole(aside, bytes);
    if (!data)
        return false;
    Trailer t = trailer_make(data, *bytes);
    mem_free(data);
    int fd = fault_hit(FAULT_FILE) ? -1 : open(aside, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool ok = write(fd, &t, sizeof t) == (ssize_t)sizeof t;
    return (close(fd) == 0) && ok;
}

Status cache_put(Cache *c, const char *key, const char *maker, const char *aside, char path[CACHE_PATH]) {
    size_t bytes = 0;
    snprintf(path, CACHE_PATH, "%s/%s-%.16s.so", c->work, key, maker);
    errno = 0;
    if (!append_trailer(aside, &bytes) || fault_hit(FAULT_FILE) || rename(aside, path)) {
        Status s = status_make(EXIT_WORK, "cannot write the kernel cache entry %.300s: %s", path,
                               errno ? strerror(errno) : "short write");
        (void)unlink(aside);
        return s;
    }
    // Measuring the folder costs more than an entry: once at the first, then once every 64 MB.
    size_t before = atomic_fetch_add(&c->stored, bytes);
    if (!c->own && (before == 0 || (before >> 26) != ((before + bytes) >> 26) || c->limit < bytes * 16))
        evict(c);
    return STATUS_OK;
}

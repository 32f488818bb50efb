// Files in and out: see file.h.
#include "runtime/file.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WRITE_BUFFER = 1 << 20 };

// The person's mistakes (a wrong path) are code 2, the storage's failures code 1.
static int error_code(int error) {
    return error == ENOENT || error == ENOTDIR || error == EISDIR || error == EACCES || error == EPERM ||
                   error == EROFS || error == ENAMETOOLONG || error == ELOOP || error == EEXIST
               ? EXIT_REQUEST
               : EXIT_WORK;
}

Status file_error(const char *what, const char *path, int error) {
    return status_make(error_code(error), "%s: cannot %s: %s", path, what, strerror(error));
}

bool file_call_fails(void) {
    if (!fault_hit(FAULT_FILE))
        return false;
    errno = EIO;
    return true;
}

bool file_has_suffix(const char *path, const char *suffix) {
    size_t n = strlen(path), k = strlen(suffix);
    return n > k && strcmp(path + n - k, suffix) == 0;
}

static Status path_copy(const char *path, char out[FILE_PATH]) {
    size_t n = strlen(path);
    if (n == 0)
        return status_make(EXIT_REQUEST, "a file name is empty");
    if (n >= FILE_PATH)
        return status_make(EXIT_REQUEST, "%.60s...: file name longer than %d bytes", path, FILE_PATH - 1);
    memcpy(out, path, n + 1);
    return STATUS_OK;
}

Status file_join(const char *dir, const char *name, char out[FILE_PATH]) {
    size_t d = strlen(dir), n = strlen(name);
    bool slash = d > 0 && dir[d - 1] != '/';
    if (d + n + 2 > FILE_PATH)
        return status_make(EXIT_REQUEST, "%.60s...: file name longer than %d bytes", dir, FILE_PATH - 1);
    memcpy(out, dir, d);
    if (slash)
        out[d++] = '/';
    memcpy(out + d, name, n + 1);
    return STATUS_OK;
}

// ---- Reading

Status file_open(const char *path, File *out) {
    out->fd = -1;
    TRY(path_copy(path, out->path));
    // O_NONBLOCK: opening a pipe without a writer must not wait; it is refused below.
    int fd = file_call_fails() ? -1 : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return file_error("open it", path, errno);
    struct stat st;
    if (file_call_fails() || fstat(fd, &st) != 0) {
        int error = errno;
        close(fd);
        return file_error("look at it", path, error);
    }
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        return status_make(EXIT_REQUEST, "%s: is a %s, a file is needed", path,
                           S_ISDIR(st.st_mode) ? "folder" : "device or pipe");
    }
    out->fd = fd;
    out->size = (uint64_t)st.st_size;
    return STATUS_OK;
}

void file_close(File *f) {
    if (f->fd >= 0)
        close(f->fd);
    f->fd = -1;
}

Status file_read_some(const File *f, uint64_t offset, void *out, size_t n, size_t *got) {
    *got = 0;
    while (*got < n) {
        ssize_t r =
            file_call_fails() ? -1 : pread(f->fd, (char *)out + *got, n - *got, (off_t)(offset + *got));
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return file_error("read it", f->path, errno);
        if (r == 0)
            break;
        *got += (size_t)r;
    }
    return STATUS_OK;
}

Status file_read_at(const File *f, uint64_t offset, void *out, size_t n) {
    size_t got;
    TRY(file_read_some(f, offset, out, n, &got));
    if (got < n)
        return status_make(EXIT_WORK,
                           "%s: became shorter while in use: %zu bytes wanted at byte %llu, %zu are there",
                           f->path, n, (unsigned long long)offset, got);
    return STATUS_OK;
}

Status file_load(const char *path, size_t limit, FileBytes *out) {
    *out = (FileBytes){0};
    File f;
    TRY(file_open(path, &f));
    Status s = STATUS_OK;
    if (f.size > limit) {
        s = status_make(EXIT_REQUEST, "%s: %llu bytes long, at most %zu are read", path,
                        (unsigned long long)f.size, limit);
    } else if (!(out->at = mem_alloc((size_t)f.size + 1))) {
        s = status_memory(path, (size_t)f.size);
    } else {
        out->n = (size_t)f.size;
        s = file_read_at(&f, 0, out->at, out->n);
    }
    file_close(&f);
    if (s.code) {
        mem_free(out->at);
        *out = (FileBytes){0};
    }
    return s;
}

// ---- Writing

static Status write_all(int fd, const char *path, const void *data, size_t n) {
    for (size_t done = 0; done < n;) {
        ssize_t r = file_call_fails() ? -1 : write(fd, (const char *)data + done, n - done);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return file_error("write it", path, errno);
        done += (size_t)r;
    }
    return STATUS_OK;
}

Status file_create(const char *path, FileWriter *out) {
    out->fd = -1;
    out->buffer = NULL;
    out->used = 0;
    out->written = 0;
    TRY(path_copy(path, out->path));
    snprintf(out->aside, sizeof out->aside, "%s.tmp.%ld", path, (long)getpid());
    out->buffer = mem_alloc(WRITE_BUFFER);
    if (!out->buffer)
        return status_memory("a write buffer", WRITE_BUFFER);
    out->fd = file_call_fails() ? -1 : open(out->aside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (out->fd < 0) {
        Status s = file_error("create it", path, errno);
        mem_free(out->buffer);
        out->buffer = NULL;
        return s;
    }
    return STATUS_OK;
}

static Status writer_flush(FileWriter *w) {
    size_t n = w->used;
    w->used = 0;
    return write_all(w->fd, w->path, w->buffer, n);
}

Status file_write(FileWriter *w, const void *data, size_t n) {
    w->written += n;
    if (n >= WRITE_BUFFER) {
        TRY(writer_flush(w));
        return write_all(w->fd, w->path, data, n);
    }
    if (w->used + n > WRITE_BUFFER)
        TRY(writer_flush(w));
    if (n)
        memcpy(w->buffer + w->used, data, n);
    w->used += n;
    return STATUS_OK;
}

void file_abandon(FileWriter *w) {
    if (w->fd >= 0) {
        close(w->fd);
        unlink(w->aside);
    }
    w->fd = -1;
    mem_free(w->buffer);
    w->buffer = NULL;
}

static void folder_of(const char *path, char out[FILE_PATH]) {
    const char *slash = strrchr(path, '/');
    if (!slash) {
        memcpy(out, ".", 2);
        return;
    }
    size_t n = slash == path ? 1 : (size_t)(slash - path);
    memcpy(out, path, n);
    out[n] = 0;
}

static Status writer_finish(FileWriter *w) {
    TRY(writer_flush(w));
    if (file_call_fails() || fsync(w->fd) != 0)
        return file_error("write it to storage", w->path, errno);
    int fd = w->fd;
    // close may report a late write error (network file systems); the descriptor is gone either way.
    if (file_call_fails() || close(fd) != 0) {
        Status s = file_error("finish writing it", w->path, errno);
        w->fd = -1;
        unlink(w->aside);
        return s;
    }
    w->fd = -1;
    Status s = file_rename(w->aside, w->path);
    if (s.code)
        unlink(w->aside);
    return s;
}

Status file_commit(FileWriter *w) {
    Status s = writer_finish(w);
    file_abandon(w);
    if (s.code)
        return s;
    char dir[FILE_PATH];
    folder_of(w->path, dir);
    return file_sync_dir(dir);
}

Status file_save(const char *path, const void *data, size_t n) {
    FileWriter w;
    TRY(file_create(path, &w));
    Status s = file_write(&w, data, n);
    if (s.code) {
        file_abandon(&w);
        return s;
    }
    return file_commit(&w);
}

Status file_append_open(const char *path, int *fd) {
    *fd = file_call_fails() ? -1 : open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    return *fd < 0 ? file_error("open it for writing", path, errno) : STATUS_OK;
}

Status file_append(int fd, const char *path, const void *data, size_t n) {
    return write_all(fd, path, data, n);
}

void file_append_close(int fd) {
    if (fd >= 0)
        close(fd);
}

Status file_truncate(const char *path, uint64_t size) {
    if (file_call_fails() || truncate(path, (off_t)size) != 0)
        return file_error("cut it", path, errno);
    return STATUS_OK;
}

// ---- Locks

Status file_lock(const char *path, int *fd) {
    *fd = file_call_fails() ? -1 : open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (*fd < 0)
        return file_error("open it", path, errno);
    if (!file_call_fails() && flock(*fd, LOCK_EX | LOCK_NB) == 0)
        return STATUS_OK;
    int error = errno;
    close(*fd);
    *fd = -1;
    if (error == EWOULDBLOCK)
        return status_make(EXIT_REQUEST, "%s: another process is using this folder", path);
    return file_error("lock it", path, error);
}

void file_unlock(int fd) {
    if (fd >= 0)
        close(fd);
}

// Folders: making, listing, removing, syncing. See file.h.
#include "runtime/file.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool file_exists(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0;
}

bool file_is_dir(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static Status make_one(const char *path) {
    if (!file_call_fails() && mkdir(path, 0777) == 0)
        return STATUS_OK;
    int error = errno;
    if (error == EEXIST && file_is_dir(path))
        return STATUS_OK;
    return file_error("make this folder", path, error);
}

Status file_make_dir(const char *path) {
    char part[FILE_PATH];
    size_t n = strlen(path);
    if (n == 0 || n >= FILE_PATH)
        return status_make(EXIT_REQUEST, "a folder's name is empty or longer than %d bytes", FILE_PATH - 1);
    for (size_t i = 1; i < n; i++) {
        if (path[i] != '/')
            continue;
        memcpy(part, path, i);
        part[i] = 0;
        if (!file_is_dir(part))
            TRY(make_one(part));
    }
    return file_is_dir(path) ? STATUS_OK : make_one(path);
}

Status file_sync_dir(const char *path) {
    int fd = file_call_fails() ? -1 : open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return file_error("open this folder", path, errno);
    int r = file_call_fails() ? -1 : fsync(fd);
    int error = errno;
    close(fd);
    // Some file systems cannot sync folders and say so with EINVAL; there is nothing more to do there.
    if (r != 0 && error != EINVAL)
        return file_error("write this folder to storage", path, error);
    return STATUS_OK;
}

Status file_rename(const char *from, const char *to) {
    if (file_call_fails() || rename(from, to) != 0)
        return file_error("put the new file in place", to, errno);
    return STATUS_OK;
}

Status file_remove(const char *path) {
    if (file_call_fails() || (unlink(path) != 0 && errno != ENOENT))
        return file_error("remove it", path, errno);
    return STATUS_OK;
}

void file_names_free(FileNames *names) {
    for (size_t i = 0; i < names->n; i++)
        mem_free(names->at[i]);
    mem_free(names->at);
    *names = (FileNames){0};
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static Status names_add(FileNames *names, const char *name) {
    size_t n = strlen(name) + 1;
    if ((names->n & (names->n + 1)) == 0) {
        char **at = mem_realloc(names->at, (names->n + 1) * 2 * sizeof *at);
        if (!at)
            return status_memory("a list of file names", names->n * 2 * sizeof *at);
        names->at = at;
    }
    char *copy = mem_alloc(n);
    if (!copy)
        return status_memory("a file name", n);
    memcpy(copy, name, n);
    names->at[names->n++] = copy;
    return STATUS_OK;
}

Status file_list(const char *dir, FileNames *out) {
    *out = (FileNames){0};
    DIR *d = file_call_fails() ? NULL : opendir(dir);
    if (!d)
        return file_error("open this folder", dir, errno);
    Status s = STATUS_OK;
    while (!s.code) {
        errno = 0;
        struct dirent *e = file_call_fails() ? NULL : readdir(d);
        if (!e) {
            if (errno)
                s = file_error("list this folder", dir, errno);
            break;
        }
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            s = names_add(out, e->d_name);
    }
    closedir(d);
    if (s.code) {
        file_names_free(out);
        return s;
    }
    if (out->n)
        qsort(out->at, out->n, sizeof *out->at, compare_names);
    return STATUS_OK;
}

static Status remove_deep(const char *path, int depth) {
    struct stat st;
    if (lstat(path, &st) != 0)
        return errno == ENOENT ? STATUS_OK : file_error("remove it", path, errno);
    if (!S_ISDIR(st.st_mode))
        return file_remove(path);
    if (depth == 0)
        return status_make(EXIT_REQUEST, "%s: folders too deep to remove", path);
    FileNames names;
    TRY(file_list(path, &names));
    Status s = STATUS_OK;
    char child[FILE_PATH];
    for (size_t i = 0; i < names.n && !s.code; i++) {
        s = file_join(path, names.at[i], child);
        if (!s.code)
            s = remove_deep(child, depth - 1);
    }
    file_names_free(&names);
    if (!s.code && (file_call_fails() || rmdir(path) != 0))
        s = file_error("remove this folder", path, errno);
    return s;
}

Status file_remove_tree(const char *path) {
    return remove_deep(path, 8);
}

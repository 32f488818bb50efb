// Files in and out. Every system call goes through the fault counter (FAULT_FILE), so tests can fail each of
// them.
//
// Files are read by position, never mapped: a file that becomes shorter while it is used is then a Status
// with its name, not a signal. Files are written aside (NAME.tmp.PID), synced and renamed, so a reader sees
// the old content or the whole new one.
#ifndef DEPTHBENCH_RUNTIME_FILE_H
#define DEPTHBENCH_RUNTIME_FILE_H
#include "ir/base.h"

enum { FILE_PATH = 4096 };

// For file code: counts one call; true with errno EIO when a test wants it to fail.
bool file_call_fails(void);
// "PATH: cannot WHAT: REASON" with code 2 for wrong paths and missing rights, code 1 for failing storage.
Status file_error(const char *what, const char *path, int error) MUST_USE;
bool file_has_suffix(const char *path, const char *suffix); // and something before it

// A regular file open for reading.
typedef struct File {
    int fd; // -1: closed
    uint64_t size;
    char path[FILE_PATH];
} File;
// Missing, unreadable and not regular files: code 2; failing storage: code 1.
Status file_open(const char *path, File *out) MUST_USE;
void file_close(File *f);
// Exactly n bytes from offset; code 1 when the file has become shorter.
Status file_read_at(const File *f, uint64_t offset, void *out, size_t n) MUST_USE;
// At most n bytes from offset; *got is smaller only at the end of the file.
Status file_read_some(const File *f, uint64_t offset, void *out, size_t n, size_t *got) MUST_USE;

// A whole file in memory, with a NUL after its end. limit: more bytes than that are refused (code 2).
typedef struct FileBytes {
    char *at; // mem_free
    size_t n;
} FileBytes;
Status file_load(const char *path, size_t limit, FileBytes *out) MUST_USE;

// A file being written aside.
typedef struct FileWriter {
    int fd;
    char path[FILE_PATH], aside[FILE_PATH + 32];
    unsigned char *buffer;
    size_t used;
    uint64_t written; // bytes given so far
} FileWriter;
Status file_create(const char *path, FileWriter *out) MUST_USE;
Status file_write(FileWriter *w, const void *data, size_t n) MUST_USE;
Status file_commit(FileWriter *w) MUST_USE; // flush, fsync, rename, fsync the folder; abandons on failure
void file_abandon(FileWriter *w);           // removes what was written aside; fine when closed
Status file_save(const char *path, const void *data, size_t n) MUST_USE; // create, write, commit

// A file that grows line by line (metrics.jsonl): one write a call, never buffered.
Status file_append_open(const char *path, int *fd) MUST_USE;
Status file_append(int fd, const char *path, const void *data, size_t n) MUST_USE;
void file_append_close(int fd);
Status file_truncate(const char *path, uint64_t size) MUST_USE;

// Folders.
bool file_exists(const char *path);
bool file_is_dir(const char *path);
Status file_make_dir(const char *path) MUST_USE; // with its parents; fine when it is there
Status file_sync_dir(const char *path) MUST_USE;
Status file_rename(const char *from, const char *to) MUST_USE;
Status file_remove(const char *path) MUST_USE;      // fine when it is not there
Status file_remove_tree(const char *path) MUST_USE; // does not follow links; fine when it is not there
// Names in a folder in byte order, without "." and "..".
typedef struct FileNames {
    char **at;
    size_t n;
} FileNames;
Status file_list(const char *dir, FileNames *out) MUST_USE;
void file_names_free(FileNames *names);
// "dir/name" into a buffer of FILE_PATH bytes; code 2 when too long.
Status file_join(const char *dir, const char *name, char out[FILE_PATH]) MUST_USE;
// An exclusive lock of a file for the life of the process; code 2 when another process holds it.
Status file_lock(const char *path, int *fd) MUST_USE;
void file_unlock(int fd);
#endif

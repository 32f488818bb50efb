// The file that targets read which take a path.
#include "tests/fuzz/fuzz.h"
#include <stdlib.h>
#include <unistd.h>

static char path[64];

static void remove_file(void) {
    unlink(path);
}

const char *fuzz_file(const uint8_t *data, size_t n) {
    if (!*path) {
        snprintf(path, sizeof path, "/tmp/depthbench-fuzz-%ld.lua", (long)getpid());
        atexit(remove_file);
    }
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(data, 1, n, f) == n && fclose(f) == 0, "%s cannot be written", path);
    return path;
}

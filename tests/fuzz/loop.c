// Without libFuzzer: runs a target on files and on seeded changes of them.
//
// usage: fuzz_NAME ROUNDS FILE...   DEPTHBENCH_SEED=N starts elsewhere. The input of a crash is left in
// fuzz_crash.bin.
#include "tests/fuzz/fuzz.h"
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_INPUT = 1 << 20 };

static uint64_t state;

static uint32_t below(size_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 33) % (n ? n : 1));
}

static size_t load(const char *path, uint8_t *out) {
    FILE *f = fopen(path, "rb");
    CHECK(f, "%s cannot be read", path);
    size_t n = fread(out, 1, MAX_INPUT / 2, f);
    fclose(f);
    return n;
}

static bool letter(uint8_t c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '%';
}

// Bounds of the word at or after a random place; false when there is none.
static bool word(const uint8_t *at, size_t n, size_t *from, size_t *to) {
    size_t i = below(n);
    while (i < n && !letter(at[i]))
        i++;
    *to = i;
    while (i > 0 && i < n && letter(at[i - 1]))
        i--;
    *from = i;
    while (*to < n && letter(at[*to]))
        ++*to;
    return *to > *from && *to - *from < 64;
}

// One word becomes another of the file: most likely to leave a text that still means something.
static size_t change_word(uint8_t *at, size_t n) {
    size_t a, a_end, b, b_end;
    if (!word(at, n, &a, &a_end) || !word(at, n, &b, &b_end) || n + 64 > MAX_INPUT)
        return n;
    uint8_t copy[64];
    size_t len = a_end - a;
    memcpy(copy, at + a, len);
    memmove(at + b + len, at + b_end, n - b_end);
    memcpy(at + b, copy, len);
    return n - (b_end - b) + len;
}

// One change: a word, a byte, a cut, or a piece of the file copied over or between others.
static size_t change(uint8_t *at, size_t n) {
    size_t from = below(n), to = below(n), len = 1 + below(below(4) ? 8 : 200);
    len = MIN_OF(len, n - MAX_OF(from, to));
    switch (below(10)) {
    case 5:
    case 6:
    case 7:
    case 8:
    case 9:
        return change_word(at, n);
    case 0:
        at[to] = (uint8_t)below(256);
        return n;
    case 1:
        at[to] = (uint8_t) "0123456789(){}[],.:=+-*/^<>\"\n e"[below(31)];
        return n;
    case 2:
        memmove(at + to, at + to + len, n - to - len);
        return n - len;
    case 3:
        memmove(at + to, at + from, len);
        return n;
    default:
        if (n + len > MAX_INPUT)
            return n;
        uint8_t piece[256];
        memcpy(piece, at + from, len);
        memmove(at + to + len, at + to, n - to);
        memcpy(at + to, piece, len);
        return n + len;
    }
}

static uint8_t *input;
static volatile size_t input_n;

static void keep(int signal_number) {
    int f = open("fuzz_crash.bin", O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (f >= 0 && write(f, input, input_n) == (ssize_t)input_n)
        close(f);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

int main(int argc, char **argv) {
    CHECK(argc > 2, "usage: %s ROUNDS FILE...", argv[0]);
    const char *seed = getenv("DEPTHBENCH_SEED");
    uint8_t *at = input = malloc(MAX_INPUT);
    CHECK(at, "out of memory");
    signal(SIGABRT, keep);
    signal(SIGSEGV, keep);
    state = seed ? strtoull(seed, NULL, 10) : 1;
    printf("DEPTHBENCH_SEED=%llu\n", (unsigned long long)state);
    long rounds = strtol(argv[1], NULL, 10);
    for (long i = 0; i < rounds; i++) {
        size_t n = load(argv[2 + i % (argc - 2)], at);
        for (uint32_t k = i < argc - 2 ? 0 : 1 + below(3); k && n > 1; k--)
            n = change(at, n);
        input_n = n;
        LLVMFuzzerTestOneInput(at, n);
    }
    free(at);
    return 0;
}

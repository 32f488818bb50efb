// Damaged files: seeded changes of good ones must be read or refused with the file's name, never crash.
#include "runtime/data.h"
#include "runtime/file.h"
#include "runtime/init.h"
#include "runtime/npy.h"
#include "runtime/safetensors.h"
#include <setjmp.h>
#include <string.h>

#include <cmocka.h>

#define DATA SOURCE_DIR "/tests/data/"
#define OUT  BINARY_DIR "/test_damage.out"
enum { CHANGES = 150 };

static void need(Status s) {
    if (s.code)
        fail_msg("%d: %s", s.code, s.text);
}

static Status read_safetensors(const char *path) {
    StFile *f;
    TRY(st_open(path, &f));
    Status s = STATUS_OK;
    for (int32_t i = 0; i < st_count(f) && !s.code; i++) {
        const StTensor *t = st_tensor(f, i);
        void *data = mem_alloc((size_t)(t->end - t->begin));
        s = st_read(f, i, data);
        mem_free(data);
        assert_int_equal(st_find(f, t->name), i);
    }
    st_close(f);
    return s;
}

static Status read_data(const char *path) {
    Tokenizer *t;
    Data *d;
    int32_t ids[4], targets[4];
    need(tokenizer_open("bytes", &t));
    DataOptions o = {.paths = &path, .n_paths = 1, .vocab = 60000, .seq = 4, .eos = -1, .tokenizer = t};
    Status s = data_open(&o, &d);
    for (int64_t i = 0; !s.code && i < data_info(d).windows; i++)
        s = data_read(d, i, 1, ids, targets);
    data_close(d);
    tokenizer_close(t);
    return s;
}

static Status read_batch(const char *path) {
    int32_t *ids;
    int64_t rows, columns;
    TRY(npy_load_batch(path, 100, &ids, &rows, &columns));
    mem_free(ids);
    return STATUS_OK;
}

static Status read_tokenizer(const char *path) {
    static const char text[] = "Hello world, it's 12345 \xF0\x9F\x98\x80  <|endoftext|>\n\n x";
    Tokenizer *t;
    TRY(tokenizer_open(path, &t));
    Ids ids = {0};
    char *back;
    size_t n;
    Status s = tokenizer_encode(t, text, sizeof text - 1, NULL, &ids);
    if (!s.code) {
        s = tokenizer_decode(t, ids.at, ids.n, &back, &n);
        mem_free(back);
    }
    mem_free(ids.at);
    tokenizer_close(t);
    return s;
}

// One change: bytes overwritten, a part cut out or doubled, or the end cut off.
static size_t change(uint8_t *at, size_t n, uint64_t key) {
    uint64_t kind = rng_word(key, 0) % 6, where = rng_word(key, 1) % n, much = 1 + rng_word(key, 2) % 8;
    static const uint8_t odd[] = {0, 0xFF, 0x80, 0x7F, '"', '{', '9', '-'};
    if (kind <= 2) {
        for (uint64_t i = 0; i < (kind ? 1 : much) && where + i < n; i++)
            at[where + i] = kind == 2 ? odd[rng_word(key, 3) % sizeof odd] : (uint8_t)rng_word(key, 4 + i);
        return n;
    }
    if (kind == 3)
        return (size_t)where;
    much = MIN_OF(much, n - where);
    if (kind == 4) {
        memmove(at + where, at + where + much, n - where - much);
        return n - much;
    }
    memmove(at + where + much, at + where, n - where);
    return n + much;
}

static void damage(const char *name, const char *suffix, Status (*read)(const char *path)) {
    char source[512], path[512];
    FileBytes good;
    snprintf(source, sizeof source, DATA "%s", name);
    snprintf(path, sizeof path, OUT "/x%s", suffix);
    need(file_load(source, 1 << 20, &good));
    uint8_t *bytes = mem_alloc(good.n + 16);
    int refused = 0;
    for (int i = 0; i < CHANGES; i++) {
        memcpy(bytes, good.at, good.n);
        size_t n = change(bytes, good.n, rng_key((uint64_t)i, name));
        need(file_save(path, bytes, n));
        Status s = read(path);
        refused += s.code != 0;
        if (s.code && (s.code != EXIT_REQUEST || (!strstr(s.text, path) && !strstr(s.text, "end token"))))
            fail_msg("%s, change %d: code %d: %s", name, i, s.code, s.text);
    }
    assert_true(refused > 0);
    mem_free(bytes);
    mem_free(good.at);
}

static void test_safetensors(void **state) {
    (void)state;
    damage("formats/tiny.safetensors", ".safetensors", read_safetensors);
}

static void test_token_files(void **state) {
    (void)state;
    damage("formats/numpy_u16.npy", ".npy", read_data);
    damage("formats/numpy_u32_v2.npy", ".npy", read_data);
    damage("formats/llmc_gpt2.bin", ".bin", read_data);
    damage("formats/batch_2x5_i32.npy", ".npy", read_batch);
}

static void test_texts(void **state) {
    (void)state;
    damage("formats/docs.jsonl", ".jsonl", read_data);
    damage("formats/docs_two_members.jsonl.gz", ".jsonl.gz", read_data);
    damage("formats/docs_two_frames.jsonl.zst", ".jsonl.zst", read_data);
}

static void test_tokenizers(void **state) {
    (void)state;
    damage("gpt2.small.json", ".json", read_tokenizer);
    damage("dolma2.small.json", ".json", read_tokenizer);
}

static int setup(void **state) {
    (void)state;
    return file_remove_tree(OUT).code || file_make_dir(OUT).code;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_safetensors),
        cmocka_unit_test(test_token_files),
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_tokenizers),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}

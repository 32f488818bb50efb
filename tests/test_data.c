// Data: windows, order, every token file of tests/data/formats, damaged ones; learning rates.
#include "runtime/data.h"
#include "runtime/file.h"
#include "runtime/schedule.h"
#include "runtime/tokens.h"
#include <math.h>
#include <setjmp.h>
#include <string.h>

#include <cmocka.h>

#define FORMATS SOURCE_DIR "/tests/data/formats/"
#define OUT     BINARY_DIR "/test_data.out"

static void need(Status s) {
    if (s.code)
        fail_msg("%d: %s", s.code, s.text);
}

static void refused(Status s, const char *word) {
    if (s.code != EXIT_REQUEST || !strstr(s.text, word))
        fail_msg("code %d, text '%s', wanted '%s'", s.code, s.text, word);
}

// A raw u16 file of ids 0, 1, 2, ... (mod vocab).
static const char *write_ids(const char *name, int64_t n, int vocab) {
    static char path[512];
    snprintf(path, sizeof path, OUT "/%s", name);
    uint8_t *bytes = mem_alloc((size_t)n * 2);
    for (int64_t i = 0; i < n; i++) {
        bytes[2 * i] = (uint8_t)(i % vocab);
        bytes[2 * i + 1] = (uint8_t)(i % vocab >> 8);
    }
    need(file_save(path, bytes, (size_t)n * 2));
    mem_free(bytes);
    return path;
}

static Status open_one(const char *path, int64_t vocab, int64_t seq, bool whole, Data **d) {
    DataOptions o = {
        .paths = &path, .n_paths = 1, .vocab = vocab, .seq = seq, .seed = 7, .eos = -1, .whole = whole};
    return data_open(&o, d);
}

static void test_windows_are_counted(void **state) {
    (void)state;
    static const int64_t ids[] = {1, 32, 33, 64, 65, 66, 97}, windows[] = {0, 0, 1, 1, 2, 2, 3};
    for (size_t i = 0; i < COUNT_OF(ids); i++) {
        Data *d;
        Status s = open_one(write_ids("w.bin", ids[i], 1000), 1000, 32, false, &d);
        if (windows[i] == 0) {
            refused(s, "one window takes 33");
            continue;
        }
        need(s);
        assert_int_equal(data_info(d).windows, windows[i]);
        assert_int_equal(data_info(d).dropped, ids[i] - (windows[i] * 32 + 1));
        data_close(d);
        need(open_one(write_ids("w.bin", ids[i], 1000), 1000, 32, true, &d));
        assert_int_equal(data_info(d).windows, (ids[i] - 1 + 31) / 32);
        data_close(d);
    }
}

// Each epoch has each window once, in another order; the order depends on seed and epoch alone.
static void test_epochs(void **state) {
    (void)state;
    enum { SEQ = 16, WINDOWS = 61 };
    Data *d;
    need(open_one(write_ids("e.bin", WINDOWS * SEQ + 5, 1 << 15), 1 << 15, SEQ, false, &d));
    int32_t ids[WINDOWS][SEQ], targets[WINDOWS][SEQ], again[SEQ], unused[SEQ];
    int different = 0;
    for (int64_t epoch = 0; epoch < 3; epoch++) {
        bool seen[WINDOWS] = {false};
        need(data_read(d, epoch * WINDOWS, WINDOWS, ids[0], targets[0]));
        for (int w = 0; w < WINDOWS; w++) {
            int32_t first = ids[w][0];
            assert_int_equal(first % SEQ, 0);
            assert_false(seen[first / SEQ]);
            seen[first / SEQ] = true;
            different += first / SEQ != w;
            for (int i = 0; i < SEQ; i++) {
                assert_int_equal(ids[w][i], first + i);
                assert_int_equal(targets[w][i], first + i + 1);
            }
            need(data_read(d, epoch * WINDOWS + w, 1, again, unused));
            assert_memory_equal(again, ids[w], sizeof again);
        }
    }
    assert_true(different > WINDOWS);
    data_close(d);
}

static void test_permutation(void **state) {
    (void)state;
    for (uint64_t n = 1; n < 300; n++) {
        bool seen[300] = {false};
        for (uint64_t i = 0; i < n; i++) {
            uint64_t p = permute_index(n * 77, n, i);
            assert_true(p < n && !seen[p]);
            seen[p] = true;
        }
    }
    assert_true(permute_index(1, (uint64_t)1 << 45, 12345) < (uint64_t)1 << 45);
}

static void test_held_out(void **state) {
    (void)state;
    enum { SEQ = 8, WINDOWS = 40 };
    const char *path = write_ids("h.bin", WINDOWS * SEQ + 1, 1 << 15);
    int32_t ids[SEQ], targets[SEQ];
    bool held[WINDOWS] = {false};
    for (uint64_t seed = 1; seed <= 2; seed++) {
        DataOptions o = {.paths = &path, .n_paths = 1, .vocab = 1 << 15, .seq = SEQ, .seed = seed, .eos = -1};
        Data *d, *val;
        need(data_open(&o, &d));
        refused(data_split(d, 0.001, &val), "nothing to validate on");
        refused(data_split(d, 0.999, &val), "nothing to train on");
        need(data_split(d, 0.25, &val));
        assert_int_equal(data_info(val).windows, 10);
        assert_int_equal(data_info(d).windows, 30);
        int seen = 0;
        for (int64_t i = 0; i < 10; i++) {
            need(data_read(val, i, 1, ids, targets));
            assert_true(seed == 1 || held[ids[0] / SEQ]); // the same for every seed
            held[ids[0] / SEQ] = true;
        }
        need(data_read(val, 10, 1, ids, targets));
        assert_int_equal(targets[0], -1);
        for (int64_t i = 0; i < 30; i++) {
            need(data_read(d, i, 1, ids, targets));
            seen += held[ids[0] / SEQ];
        }
        assert_int_equal(seen, 0);
        data_close(val);
        data_close(d);
    }
}

static void test_last_window_is_padded(void **state) {
    (void)state;
    enum { SEQ = 8 };
    Data *d;
    int32_t ids[2][SEQ], targets[2][SEQ];
    need(open_one(write_ids("p.bin", 12, 1000), 1000, SEQ, true, &d));
    need(data_read(d, 0, 2, ids[0], targets[0]));
    assert_int_equal(ids[0][0], 0);
    assert_int_equal(targets[0][7], 8);
    assert_int_equal(targets[1][2], 11);
    for (int i = 3; i < SEQ; i++)
        assert_int_equal(targets[1][i], -1);
    data_close(d);
}

static void test_token_files(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int64_t vocab, tokens, sum;
        const char *form;
    } good[] = {{"olmo_u16.npy", 50280, 15, 305867, "raw u16"},
                {"olmo_u32.npy", 100278, 8, 536565, "raw u32"},
                {"nanogpt.bin", 50280, 15, 305867, "raw u16"},
                {"numpy_u16.npy", 50280, 15, 305867, "numpy u16"},
                {"numpy_u32_v2.npy", 100278, 8, 536565, "numpy u32"},
                {"numpy_i64.npy", 50280, 15, 305867, "numpy i64"},
                {"numpy_be_u16.npy", 50280, 15, 305867, "numpy u16"},
                {"llmc_gpt2.bin", 50257, 15, 305775, "llm.c u16"},
                {"llmc_llama3.bin", 128256, 8, 536565, "llm.c u32"}};
    for (size_t i = 0; i < COUNT_OF(good); i++) {
        char path[512];
        snprintf(path, sizeof path, FORMATS "%s", good[i].name);
        TokenKind kind;
        TokenFile f;
        int32_t ids[32];
        need(tokens_find(path, &kind));
        need(tokens_open(path, kind, good[i].vocab, 0, &f));
        assert_int_equal(f.count, good[i].tokens);
        assert_string_equal(f.form, good[i].form);
        need(tokens_read(&f, 0, f.count, good[i].vocab, ids));
        int64_t sum = 0;
        for (int64_t k = 0; k < f.count; k++)
            sum += ids[k];
        assert_int_equal(sum, good[i].sum);
        tokens_close(&f);
    }
}

static void test_bad_token_files(void **state) {
    (void)state;
    static const struct {
        const char *name, *word;
    } bad[] = {{"odd_bytes_u16.npy", "not a multiple of 2"},
               {"u32_read_as_u16.npy", "looks like u32"},
               {"id_beyond_vocab.npy", "id 60000 at position 2: the vocabulary has 50280"},
               {"object.npy", "pickled"},
               {"float.npy", "whole numbers"},
               {"fortran.npy", "column order"},
               {"negative_id.npy", "id -1 at position 1"},
               {"shape_longer_than_file.npy", "1000"},
               {"header_cut.npy", "numpy header"},
               {"empty.npy", "no ids"},
               {"llmc_count_too_large.bin", "says 4 ids"},
               {"llmc_count_negative.bin", "-1"},
               {"llmc_version.bin", "version 2"},
               {"llmc_header_cut.bin", "100 bytes long"},
               {"megatron_bad_magic.idx", "not an index"},
               {"megatron_pointer.bin", "Megatron"},
               {"empty.safetensors", "not a known form"},
               {"absent.npy", "No such file"},
               {"not_utf8.txt", "tokenizer"}};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        char path[512];
        snprintf(path, sizeof path, FORMATS "bad/%s", bad[i].name);
        Data *d;
        Status s = open_one(path, 50280, 4, false, &d);
        refused(s, bad[i].word);
        assert_non_null(strstr(s.text, bad[i].name));
        assert_null(d);
    }
}

static void test_id_in_the_middle(void **state) {
    (void)state;
    const char *path = write_ids("m.bin", 3 << 20, 1000);
    File f;
    need(file_open(path, &f));
    file_close(&f);
    FileBytes bytes;
    need(file_load(path, 1 << 24, &bytes));
    bytes.at[2 * 778777] = 0x60;
    bytes.at[2 * 778777 + 1] = (char)0xEA;
    need(file_save(path, bytes.at, bytes.n));
    mem_free(bytes.at);
    Data *d;
    int32_t ids[64], targets[64];
    need(open_one(path, 50280, 64, false, &d));
    Status s = STATUS_OK;
    for (int64_t i = 0; i < data_info(d).windows && !s.code; i++)
        s = data_read(d, i, 1, ids, targets);
    refused(s, "id 60000 at position 778777");
    // a file that becomes shorter is a message with its name, code 1
    need(file_truncate(path, 100));
    for (int64_t i = 0; i < 10; i++) {
        s = data_read(d, i, 1, ids, targets);
        assert_int_equal(s.code, EXIT_WORK);
        assert_non_null(strstr(s.text, "m.bin: became shorter"));
    }
    data_close(d);
}

static int n_warnings;
static void count_warning(void *ctx, const char *text) {
    (void)ctx;
    n_warnings += strstr(text, "makes up") != NULL || strstr(text, "check --eos") != NULL ||
                  strstr(text, "fewer than one window") != NULL;
}

static void test_texts(void **state) {
    (void)state;
    const char *paths[] = {FORMATS "docs.jsonl", FORMATS "docs.jsonl.gz", FORMATS "plain.txt"};
    Tokenizer *t;
    need(tokenizer_open("bytes", &t));
    DataOptions o = {
        .paths = paths, .n_paths = 3, .vocab = 257, .seq = 16, .seed = 1, .eos = -1, .tokenizer = t};
    Data *d, *again;
    need(data_open(&o, &d));
    assert_int_equal(data_info(d).documents, 9);
    assert_int_equal(data_info(d).files, 3);
    assert_int_equal(data_info(d).ids, 2 * (11 + 31 + 0 + 35) + 45 + 9);
    need(data_open(&o, &again));
    assert_string_equal(data_hash(d), data_hash(again));
    data_close(again);
    o.n_paths = 2;
    need(data_open(&o, &again));
    assert_string_not_equal(data_hash(d), data_hash(again));
    data_close(again);
    data_close(d);
    o.vocab = 256;
    refused(data_open(&o, &d), "257 ids, the model a vocabulary of 256");
    o.vocab = 257;
    o.seq = 4096;
    refused(data_open(&o, &d), "one window takes 4097");
    need(file_save(OUT "/empty.txt", "", 0));
    paths[0] = OUT "/empty.txt";
    o.n_paths = 1;
    refused(data_open(&o, &d), "empty");
    need(file_make_dir(OUT "/none"));
    paths[0] = OUT "/none";
    refused(data_open(&o, &d), "no data files");
    need(file_make_dir(OUT "/some"));
    need(file_save(OUT "/some/b.txt", "bbbbbbbbbb", 10));
    need(file_save(OUT "/some/a.txt", "aaaaaaaaaa", 10));
    need(file_save(OUT "/some/x.meta.json", "{", 1));
    need(file_save(OUT "/some/short.u16", "a\0b\0", 4));
    paths[0] = OUT "/some";
    o.seq = 21;
    o.warn = count_warning;
    need(data_open(&o, &d));
    assert_int_equal(n_warnings, 1);
    int32_t ids[21], targets[21];
    need(data_read(d, 0, 1, ids, targets));
    assert_true(ids[0] == 'a' && ids[10] == 256 && ids[11] == 'b' && targets[20] == 256);
    data_close(d);
    tokenizer_close(t);
}

static void test_warnings(void **state) {
    (void)state;
    const char *path = OUT "/same.u16";
    uint8_t bytes[4000] = {0};
    for (size_t i = 0; i < sizeof bytes; i += 2)
        bytes[i] = 5;
    bytes[0] = bytes[400] = 0;
    need(file_save(path, bytes, sizeof bytes));
    DataOptions o = {
        .paths = &path, .n_paths = 1, .vocab = 50280, .seq = 16, .eos = 50279, .warn = count_warning};
    Data *d;
    n_warnings = 0;
    need(data_open(&o, &d));
    assert_int_equal(n_warnings, 2);
    assert_int_equal(data_info(d).top_id, 5);
    data_close(d);
}

static void test_data_faults(void **state) {
    (void)state;
    const char *paths[] = {FORMATS "docs.jsonl.zst", FORMATS "numpy_i64.npy"};
    for (FaultKind kind = FAULT_ALLOC; kind <= FAULT_FILE; kind++) {
        for (long nth = 1;; nth++) {
            fault_set(kind, nth, false);
            Tokenizer *t = NULL;
            Data *d = NULL;
            Status s = tokenizer_open("bytes", &t);
            DataOptions o = {
                .paths = paths, .n_paths = 2, .vocab = 50280, .seq = 4, .eos = -1, .tokenizer = t};
            if (!s.code)
                s = data_open(&o, &d);
            bool hit = fault_count(kind) >= nth;
            fault_set(kind, 0, false);
            data_close(d);
            tokenizer_close(t);
            if (!hit) {
                need(s);
                break;
            }
            if (s.code != EXIT_WORK)
                fail_msg("fault %ld of kind %d: code %d, %s", nth, (int)kind, s.code, s.text);
        }
    }
}

// ---- Learning rates

static void test_schedules(void **state) {
    (void)state;
    static const int64_t steps[] = {1, 2, 10, 100}, warmups[] = {0, 1, 9, 10, 11, 100, 1000};
    for (int decay = 0; decay < N_DECAYS; decay++) {
        for (size_t a = 0; a < COUNT_OF(steps); a++) {
            for (size_t b = 0; b < COUNT_OF(warmups); b++) {
                Schedule s = {.decay = (Decay)decay,
                              .warmup = warmups[b],
                              .steps = steps[a],
                              .peak = 3e-4,
                              .min_ratio = 0.1};
                need(schedule_check(&s));
                double before = INFINITY;
                for (int64_t k = 1; k <= steps[a] + 2; k++) {
                    double rate = schedule_rate(&s, k);
                    assert_true(rate >= 0 && rate <= s.peak);
                    if (k >= s.warmup) {
                        assert_true(rate <= before);
                        before = rate;
                    }
                }
                double last = schedule_rate(&s, steps[a]);
                if (decay != DECAY_CONSTANT && s.warmup <= s.steps)
                    assert_true(fabs(last - 3e-5) <= 3e-5 * 1e-12);
            }
        }
    }
    Schedule s = {.decay = DECAY_COSINE, .warmup = 760, .steps = 7600, .peak = 2e-3, .min_ratio = 0.1};
    assert_true(fabs(schedule_rate(&s, 380) - 1e-3) < 1e-15);
    assert_true(fabs(schedule_rate(&s, 760) - 2e-3) < 1e-15);
    assert_true(fabs(schedule_rate(&s, 760 + 3420) - 1.1e-3) < 1e-15);
    s.peak = NAN;
    refused(schedule_check(&s), "--lr");
    s.peak = 1;
    s.min_ratio = 1.5;
    refused(schedule_check(&s), "--min-lr-ratio");
    s.min_ratio = 0;
    s.warmup = -1;
    refused(schedule_check(&s), "--warmup");
    s.warmup = 0;
    s.steps = 0;
    refused(schedule_check(&s), "--steps");
}

static int setup(void **state) {
    (void)state;
    return file_remove_tree(OUT).code || file_make_dir(OUT).code;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windows_are_counted),
        cmocka_unit_test(test_epochs),
        cmocka_unit_test(test_permutation),
        cmocka_unit_test(test_held_out),
        cmocka_unit_test(test_last_window_is_padded),
        cmocka_unit_test(test_token_files),
        cmocka_unit_test(test_bad_token_files),
        cmocka_unit_test(test_id_in_the_middle),
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_warnings),
        cmocka_unit_test(test_data_faults),
        cmocka_unit_test(test_schedules),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}

// Files in and out: every sample of tests/data/formats, every damaged file, every failing call.
#include "runtime/npy.h"
#include "runtime/safetensors.h"
#include "runtime/sha256.h"
#include <setjmp.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define FORMATS SOURCE_DIR "/tests/data/formats/"
#define OUT     BINARY_DIR "/test_files.out"

static void need(Status s) {
    if (s.code)
        fail_msg("%d: %s", s.code, s.text);
}

static void refused(const char *path, Status s, const char *word) {
    if (s.code != EXIT_REQUEST || strncmp(s.text, path, strlen(path)) != 0 || !strstr(s.text, word))
        fail_msg("%s: code %d, text %s, wanted '%s'", path, s.code, s.text, word);
}

static void test_sha256(void **state) {
    (void)state;
    static const struct {
        const char *text, *hex;
    } cases[] = {{"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
                 {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
                 {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                  "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        for (size_t cut = 0; cut <= strlen(cases[i].text); cut++) {
            Sha256 s, plain;
            char hex[65], hex_plain[65];
            sha256_init(&s);
            sha256_init(&plain);
            plain.plain = true;
            sha256_add(&plain, cases[i].text, strlen(cases[i].text));
            sha256_hex(&plain, hex_plain);
            assert_string_equal(hex_plain, cases[i].hex);
            sha256_add(&s, cases[i].text, cut);
            sha256_add(&s, cases[i].text + cut, strlen(cases[i].text) - cut);
            sha256_hex(&s, hex);
            assert_string_equal(hex, cases[i].hex);
        }
    }
}

static void test_safetensors_good(void **state) {
    (void)state;
    StFile *f;
    need(st_open(FORMATS "tiny.safetensors", &f));
    assert_int_equal(st_count(f), 7);
    assert_string_equal(st_metadata(f, "note"), "sample");
    assert_null(st_metadata(f, "absent"));
    assert_int_equal(st_find(f, "absent"), -1);
    float v[6];
    int32_t a = st_find(f, "a");
    need(st_read_f32(f, a, v));
    assert_true(v[2] == -2 && v[3] == 0.5f && v[5] == 1e-30f);
    assert_int_equal(st_tensor(f, a)->shape[1], 3);
    need(st_read_f32(f, st_find(f, "b.bf16"), v));
    assert_true(v[0] == 1 && v[1] == -1 && v[2] == 3.140625f);
    need(st_read_f32(f, st_find(f, "c.f16"), v));
    assert_true(v[0] == 0.5f && v[1] == 65504);
    need(st_read_f32(f, st_find(f, "d.scalar"), v));
    assert_true(v[0] == 7);
    assert_int_equal(st_tensor(f, st_find(f, "e.empty"))->count, 0);
    int64_t whole[2];
    need(st_read(f, st_find(f, "f.i64"), whole));
    assert_true(whole[0] == -1 && whole[1] == (int64_t)1 << 40);
    assert_true(st_find(f, "g \xc3\xa9 \xe5\x90\x8d") >= 0);
    refused(FORMATS "tiny.safetensors", st_read_f32(f, st_find(f, "f.i64"), v), "I64");
    st_close(f);
}

static void test_safetensors_bad(void **state) {
    (void)state;
    static const struct {
        const char *name, *word;
    } cases[] = {
        {"empty", "0 bytes"},
        {"short_length", "3 bytes"},
        {"header_longer_than_file", "ends after the file"},
        {"header_huge", "at most 100000000"},
        {"header_not_json", "JSON"},
        {"header_array", "not one JSON object"},
        {"header_nul_padded", "padded with spaces"},
        {"header_latin1", "JSON"},
        {"truncated_data", "tensor a"},
        {"trailing_bytes", "2 bytes after"},
        {"hole", "no tensor covers data bytes 8 to 12"},
        {"overlap", "overlap"},
        {"backwards", "end before they begin"},
        {"size_mismatch", "[3] of F32 needs 12 bytes"},
        {"shape_overflow", "overflows"},
        {"negative_shape", "whole number"},
        {"fraction_shape", "whole number"},
        {"unknown_dtype", "tensor a: dtype Q4"},
        {"duplicate_name", "duplicate"},
        {"metadata_not_strings", "not a string"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char path[512];
        snprintf(path, sizeof path, FORMATS "bad/%s.safetensors", cases[i].name);
        StFile *f;
        refused(path, st_open(path, &f), cases[i].word);
        assert_null(f);
    }
    StFile *f;
    refused(FORMATS "absent", st_open(FORMATS "absent", &f), "No such file");
    refused(FORMATS, st_open(FORMATS, &f), "folder");
    refused("/dev/zero", st_open("/dev/zero", &f), "device");
}

static Status write_sample(const char *path) {
    static const float a[6] = {1, 2, 3, 4, 5, 6}, s[1] = {7};
    static const uint8_t b[3] = {0, 127, 255};
    const StEntry entries[] = {
        {"z.bytes", ST_U8, 1, {3}}, {"b", ST_F32, 2, {2, 3}}, {"a \"q\" \xc3\xa9", ST_F32, 0, {0}}};
    const void *data[] = {b, a, s};
    StWriter *w;
    TRY(st_create(path, entries, 3, (StMeta[]){{"format", "pt"}, {NULL, NULL}}, &w));
    for (int32_t i; (i = st_next(w)) >= 0;) {
        Status status = st_write(w, data[i]);
        if (status.code) {
            st_abandon(&w);
            return status;
        }
    }
    return st_commit(&w);
}

static void test_safetensors_write(void **state) {
    (void)state;
    char path[] = OUT "/w.safetensors";
    need(write_sample(path));
    FileBytes bytes;
    need(file_load(path, 1 << 20, &bytes));
    assert_int_equal((uint8_t)bytes.at[0] % 8, 0);
    assert_int_equal(bytes.n, 8 + (uint8_t)bytes.at[0] + 4 + 24 + 3);
    assert_memory_equal(bytes.at + bytes.n - 3, "\0\x7f\xff", 3);
    mem_free(bytes.at);
    StFile *f;
    need(st_open(path, &f));
    assert_string_equal(st_tensor(f, 2)->name, "z.bytes"); // the narrow type comes last
    float v[6];
    need(st_read_f32(f, st_find(f, "b"), v));
    assert_true(v[5] == 6);
    assert_true(st_find(f, "a \"q\" \xc3\xa9") >= 0);
    st_close(f);
}

static int leftovers(void) {
    FileNames names;
    need(file_list(OUT, &names));
    int n = 0;
    for (size_t i = 0; i < names.n; i++)
        n += strstr(names.at[i], ".tmp.") != NULL;
    file_names_free(&names);
    return n;
}

// Every system call and allocation of a save fails once: an error each time, the old file whole, nothing left
// over.
static void test_faults(void **state) {
    (void)state;
    char path[] = OUT "/fault.safetensors";
    need(write_sample(path));
    FileBytes before, after;
    need(file_load(path, 1 << 20, &before));
    for (FaultKind kind = FAULT_ALLOC; kind <= FAULT_FILE; kind++) {
        for (long nth = 1;; nth++) {
            fault_set(kind, nth, nth % 2);
            Status s = write_sample(path);
            bool hit = fault_count(kind) >= nth;
            fault_set(kind, 0, false);
            if (!hit) {
                need(s);
                assert_true(nth > (kind == FAULT_FILE ? 6 : 3));
                break;
            }
            assert_int_equal(s.code, EXIT_WORK);
            assert_int_equal(leftovers(), 0);
            need(file_load(path, 1 << 20, &after));
            assert_int_equal(after.n, before.n);
            assert_memory_equal(after.at, before.at, before.n);
            mem_free(after.at);
            fault_set(kind, nth, false);
            StFile *f;
            s = st_open(path, &f);
            fault_set(kind, 0, false);
            assert_true(s.code == 0 || s.code == EXIT_WORK);
            st_close(f);
        }
    }
    mem_free(before.at);
}

static void test_npy(void **state) {
    (void)state;
    int32_t *ids;
    int64_t rows, columns;
    need(npy_load_batch(FORMATS "batch_2x5_i32.npy", 10, &ids, &rows, &columns));
    assert_true(rows == 2 && columns == 5);
    for (int32_t i = 0; i < 10; i++)
        assert_int_equal(ids[i], i);
    need(npy_save_i32(OUT "/b.npy", ids, 2, (int64_t[]){2, 5}));
    mem_free(ids);
    need(npy_load_batch(OUT "/b.npy", 10, &ids, &rows, &columns));
    assert_true(rows == 2 && columns == 5 && ids[9] == 9);
    mem_free(ids);
    refused(FORMATS, npy_load_batch(FORMATS "batch_2x5_i32.npy", 9, &ids, &rows, &columns),
            "id 9 at row 1, position 4");
    refused(FORMATS, npy_load_batch(FORMATS "numpy_u16.npy", 0, &ids, &rows, &columns), "[batch, seq+1]");
    refused(FORMATS, npy_load_batch(FORMATS "olmo_u16.npy", 0, &ids, &rows, &columns), "not a numpy file");
    refused(FORMATS, npy_load_batch(FORMATS "bad/fortran.npy", 0, &ids, &rows, &columns), "column order");
    refused(FORMATS, npy_load_batch(FORMATS "bad/float.npy", 0, &ids, &rows, &columns), "whole numbers");
    refused(FORMATS, npy_load_batch(FORMATS "bad/object.npy", 0, &ids, &rows, &columns), "pickled");
    refused(FORMATS, npy_load_batch(FORMATS "bad/header_cut.npy", 0, &ids, &rows, &columns), "numpy header");
    refused(FORMATS, npy_load_batch(FORMATS "bad/shape_longer_than_file.npy", 0, &ids, &rows, &columns),
            "1000");
    assert_null(ids);
}

static void test_folders(void **state) {
    (void)state;
    need(file_make_dir(OUT "/a/b/c"));
    need(file_make_dir(OUT "/a/b/c"));
    need(file_save(OUT "/a/b/c/x", "abc", 3));
    Status s = file_make_dir(OUT "/a/b/c/x/y");
    assert_int_equal(s.code, EXIT_REQUEST);
    int first, second;
    need(file_lock(OUT "/a/lock", &first));
    s = file_lock(OUT "/a/lock", &second);
    assert_int_equal(s.code, EXIT_REQUEST);
    file_unlock(first);
    need(file_lock(OUT "/a/lock", &second));
    file_unlock(second);
    need(file_remove_tree(OUT "/a"));
    assert_false(file_exists(OUT "/a"));
    File f;
    need(file_save(OUT "/short", "0123456789", 10));
    need(file_open(OUT "/short", &f));
    need(file_truncate(OUT "/short", 4));
    char buffer[10];
    s = file_read_at(&f, 0, buffer, 10);
    assert_int_equal(s.code, EXIT_WORK);
    assert_non_null(strstr(s.text, "shorter"));
    file_close(&f);
}

static int setup(void **state) {
    (void)state;
    return file_remove_tree(OUT).code || file_make_dir(OUT).code;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sha256),          cmocka_unit_test(test_safetensors_good),
        cmocka_unit_test(test_safetensors_bad), cmocka_unit_test(test_safetensors_write),
        cmocka_unit_test(test_faults),          cmocka_unit_test(test_npy),
        cmocka_unit_test(test_folders),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}

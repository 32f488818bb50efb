// Tokenizers against vectors of the Hugging Face library, whole texts against hashes, damaged files, long
// runs, and the text readers below.
#include "runtime/file.h"
#include "runtime/json_in.h"
#include "runtime/sha256.h"
#include "runtime/text.h"
#include "runtime/tokenizer.h"
#include <setjmp.h>
#include <string.h>

#include <cmocka.h>

#define DATA    SOURCE_DIR "/tests/data/"
#define FORMATS DATA "formats/"
#define NEOX    SOURCE_DIR "/data/gpt-neox-olmo-dolma-v1_5.json"
#define OUT     BINARY_DIR "/test_tokenizer.out"

static void need(Status s) {
    if (s.code)
        fail_msg("%d: %s", s.code, s.text);
}

static void refused(Status s, const char *word) {
    if (s.code != EXIT_REQUEST || !strstr(s.text, word))
        fail_msg("code %d, text '%s', wanted '%s'", s.code, s.text, word);
}

static void check_vectors(const char *tokenizer, const char *vectors, int64_t wanted) {
    Tokenizer *t;
    need(tokenizer_open(tokenizer, &t));
    FileBytes bytes;
    need(file_load(vectors, 1 << 22, &bytes));
    Ids ids = {0};
    int64_t count = 0;
    for (char *line = bytes.at, *end; (end = strchr(line, '\n')); line = end + 1, count++) {
        json_t *object;
        need(jin_parse(vectors, line, (size_t)(end - line), true, &object));
        json_t *text = json_object_get(object, "text"), *list = json_object_get(object, "ids");
        ids.n = 0;
        need(tokenizer_encode(t, json_string_value(text), json_string_length(text), NULL, &ids));
        bool same = ids.n == json_array_size(list);
        for (size_t i = 0; same && i < ids.n; i++)
            same = ids.at[i] == json_integer_value(json_array_get(list, i));
        if (!same)
            fail_msg("%s line %d: %.200s", vectors, (int)count + 1, line);
        json_decref(object);
    }
    assert_int_equal(count, wanted);
    mem_free(ids.at);
    mem_free(bytes.at);
    tokenizer_close(t);
}

static void test_vectors(void **state) {
    (void)state;
    check_vectors(NEOX, DATA "tokenizer_vectors.jsonl", 400);
    check_vectors(DATA "gpt2.small.json", DATA "gpt2.tokenizer_vectors.jsonl", 134);
    check_vectors(DATA "dolma2.small.json", DATA "dolma2.tokenizer_vectors.jsonl", 100);
}

// Ids of a whole file with end tokens, as SHA-256 of the 16-bit stream; decoding gives the text back.
static void check_corpus(Tokenizer *t, const char *path, size_t tokens, const char *sha256) {
    TextFile *f;
    need(text_open(path, &(TextOptions){0}, &f));
    Ids ids = {0};
    int32_t eos;
    need(tokenizer_eos(t, -1, &eos));
    assert_int_equal(eos, 50279);
    for (;;) {
        const char *text;
        size_t n, before = ids.n, n_back;
        need(text_next(f, &text, &n));
        if (!text)
            break;
        need(tokenizer_encode(t, text, n, NULL, &ids));
        char *back;
        need(tokenizer_decode(t, ids.at + before, ids.n - before, &back, &n_back));
        assert_int_equal(n_back, n);
        assert_memory_equal(back, text, n);
        mem_free(back);
        need(ids_reserve(&ids, 1));
        ids.at[ids.n++] = eos;
    }
    text_close(f);
    assert_int_equal(ids.n, tokens);
    Sha256 sum;
    char hex[65];
    sha256_init(&sum);
    for (size_t i = 0; i < ids.n; i++)
        sha256_add(&sum, (uint8_t[]){(uint8_t)ids.at[i], (uint8_t)(ids.at[i] >> 8)}, 2);
    sha256_hex(&sum, hex);
    assert_string_equal(hex, sha256);
    mem_free(ids.at);
}

static void test_corpus(void **state) {
    (void)state;
    Tokenizer *t;
    need(tokenizer_open(NEOX, &t));
    assert_int_equal(tokenizer_vocab(t), 50280);
    check_corpus(t, SOURCE_DIR "/data/sotu.train.jsonl.zst", 1976039,
                 "cd9d6dae10769747652d64272fa86af624cbe60b2f8a6170605238540459b70f");
    check_corpus(t, SOURCE_DIR "/data/sotu.val.jsonl.zst", 118024,
                 "0855d9fd6ccca024ed464c8efd20df528e05d310da3c0dbad547247862168d5c");
    tokenizer_close(t);
}

// A megabyte of one thing must not take quadratic time.
static void test_long_runs(void **state) {
    (void)state;
    static const char *const units[] = {"a",
                                        " ",
                                        "\xCC\x81",         // one combining mark
                                        "\xCC\x81\xCC\xA3", // two of unlike classes, to be sorted
                                        "\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x9A\x80",
                                        "\n",
                                        "'",
                                        "1"};
    static const char *const files[] = {NEOX, DATA "gpt2.small.json", DATA "dolma2.small.json"};
    size_t n = 1 << 20;
    char *text = mem_alloc(n);
    Ids ids = {0};
    for (size_t k = 0; k < COUNT_OF(files); k++) {
        Tokenizer *t;
        need(tokenizer_open(files[k], &t));
        for (size_t u = 0; u < COUNT_OF(units); u++) {
            size_t length = strlen(units[u]), used = 0, n_back;
            for (; used + length <= n; used += length)
                memcpy(text + used, units[u], length);
            ids.n = 0;
            double start = now_ms();
            need(tokenizer_encode(t, text, used, NULL, &ids));
            if (now_ms() - start > 10e3)
                fail_msg("%s: unit %zu took %.1f s", files[k], u, 1e-3 * (now_ms() - start));
            char *back;
            need(tokenizer_decode(t, ids.at, ids.n, &back, &n_back));
            assert_int_equal(n_back, used);
            mem_free(back);
        }
        tokenizer_close(t);
    }
    mem_free(ids.at);
    mem_free(text);
}

static void encode_is(Tokenizer *t, Encode *e, const char *text, size_t n, const int32_t *ids) {
    Ids out = {0};
    need(tokenizer_encode(t, text, strlen(text), e, &out));
    assert_int_equal(out.n, n);
    assert_memory_equal(out.at, ids, n * sizeof *ids);
    mem_free(out.at);
}

static void test_bytes(void **state) {
    (void)state;
    Tokenizer *t;
    int32_t eos;
    need(tokenizer_open("bytes", &t));
    assert_int_equal(tokenizer_vocab(t), 257);
    need(tokenizer_eos(t, -1, &eos));
    assert_int_equal(eos, 256);
    encode_is(t, NULL, "a\xC3\xA9", 3, (int32_t[]){97, 0xC3, 0xA9});
    char *back;
    size_t n;
    need(tokenizer_decode(t, (int32_t[]){97, 256, 0xC3, 98, 0xE3, 0x81}, 6, &back, &n));
    assert_string_equal(back, "a\xEF\xBF\xBD"
                              "b\xEF\xBF\xBD");
    mem_free(back);
    refused(tokenizer_decode(t, (int32_t[]){257}, 1, &back, &n), "257");
    refused(tokenizer_eos(t, 257, &eos), "257");
    tokenizer_close(t);
}

// A tokenizer of the 256 byte characters and what a test adds.
static const char *write_small(const char *added, const char *rest) {
    static char path[] = OUT "/small.json";
    char *text = mem_alloc(1 << 16);
    size_t n = (size_t)sprintf(
        text, "{\"added_tokens\":[%s],%s\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{", added, rest);
    for (int b = 0, next = 256; b < 256; b++) {
        bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        n += (size_t)sprintf(text + n, "%s\"\\u%04x\":%d", b ? "," : "", (unsigned)(itself ? b : next), b);
        next += !itself;
    }
    n += (size_t)sprintf(text + n, "}}}");
    need(file_save(path, text, n));
    mem_free(text);
    return path;
}

#define PRE "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"

static void test_added(void **state) {
    (void)state;
    Tokenizer *t;
    Encode e = {0};
    need(tokenizer_open(
        write_small("{\"id\":256,\"content\":\"il\xC3\x96veyou\",\"normalized\":false,\"special\":true},"
                    "{\"id\":257,\"content\":\"ab\",\"single_word\":true},"
                    "{\"id\":258,\"content\":\"<m>\",\"lstrip\":true,\"rstrip\":true},"
                    "{\"id\":300,\"content\":\"<m>x\"}",
                    PRE "\"normalizer\":null,"),
        &t));
    assert_int_equal(tokenizer_vocab(t), 301);
    encode_is(t, &e, "!il\xC3\x96veyou!", 3, (int32_t[]){'!', 256, '!'});
    assert_int_equal(e.specials, 1);
    char *back;
    size_t n;
    need(tokenizer_decode(t, (int32_t[]){256, 257}, 2, &back, &n));
    assert_string_equal(back, "il\xC3\x96veyouab");
    mem_free(back);
    encode_is(t, &e, "ab abc", 5, (int32_t[]){257, ' ', 'a', 'b', 'c'});
    encode_is(t, &e, "x  <m> y", 3, (int32_t[]){'x', 258, 'y'});
    encode_is(t, &e, "<m>x", 1, (int32_t[]){300});
    e.literal_specials = true;
    encode_is(t, &e, "il\xC3\x96", 4, (int32_t[]){'i', 'l', 0xC3, 0x96});
    encode_is(t, &e, "il\xC3\x96veyou", 9, (int32_t[]){'i', 'l', 0xC3, 0x96, 'v', 'e', 'y', 'o', 'u'});
    tokenizer_close(t);
}

static void test_refused(void **state) {
    (void)state;
    Tokenizer *t;
    refused(tokenizer_open(DATA "absent.json", &t), "absent.json");
    refused(tokenizer_open(FORMATS "plain.txt", &t), "JSON");
    refused(tokenizer_open(FORMATS "tiny_pre_ln/expect.json", &t), "no \"model\"");
    refused(tokenizer_open(write_small("", "\"pre_tokenizer\":{\"type\":\"Whitespace\"},"), &t),
            "Whitespace");
    refused(tokenizer_open(write_small("", ""), &t), "pre_tokenizer");
    refused(tokenizer_open(write_small("", PRE "\"normalizer\":{\"type\":\"Lowercase\"},"), &t), "Lowercase");
    refused(tokenizer_open(write_small("{\"id\":3,\"content\":\"new\"}", PRE), &t),
            "id 3 belongs to two tokens");
    refused(tokenizer_open(write_small("{\"id\":300,\"content\":\"a\"}", PRE), &t), "another id");
    refused(tokenizer_open(write_small("{\"id\":-1,\"content\":\"z\"}", PRE), &t), "whole number");
    refused(tokenizer_open(write_small("{\"id\":99999999,\"content\":\"zz\"}", PRE), &t), "whole number");
    refused(tokenizer_open(write_small("{\"id\":300}", PRE), &t), "added token");
    assert_null(t);
    int32_t eos;
    need(tokenizer_open(write_small("", PRE), &t));
    refused(tokenizer_eos(t, -1, &eos), "--eos");
    need(tokenizer_eos(t, 7, &eos));
    assert_int_equal(eos, 7);
    tokenizer_close(t);
}

// ---- Text files

static Status read_all(const char *path, const TextOptions *o, int *documents, char *joined, size_t cap) {
    TextFile *f;
    TRY(text_open(path, o, &f));
    Status s = STATUS_OK;
    size_t used = 0;
    for (*documents = 0; !s.code; (*documents)++) {
        const char *text;
        size_t n;
        s = text_next(f, &text, &n);
        if (!text)
            break;
        if (used + n + 1 < cap) {
            memcpy(joined + used, text, n);
            joined[used + n] = '|';
            used += n + 1;
        }
    }
    joined[used] = 0;
    text_close(f);
    return s;
}

static void test_texts(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int documents;
    } good[] = {{"plain.txt", 1},
                {"docs.jsonl", 4},
                {"docs_crlf_no_final_newline.jsonl", 4},
                {"docs_bom.jsonl", 4},
                {"docs.jsonl.gz", 4},
                {"docs_two_members.jsonl.gz", 8},
                {"docs.jsonl.zst", 4},
                {"docs_two_frames.jsonl.zst", 8}};
    char joined[4096], path[512];
    int n;
    for (size_t i = 0; i < COUNT_OF(good); i++) {
        snprintf(path, sizeof path, FORMATS "%s", good[i].name);
        assert_true(text_is(path));
        need(read_all(path, &(TextOptions){0}, &n, joined, sizeof joined));
        assert_int_equal(n, good[i].documents);
        assert_memory_equal(joined, "Depth pays.", 11);
        if (n > 1)
            assert_non_null(
                strstr(joined, "Depth pays.|Every layer\n  should matter. \xC3\xA9||\xE6\x97\xA5"));
    }
    assert_false(text_is("a.npy"));
    assert_false(text_is(".jsonl.bin"));
}

static void test_bad_texts(void **state) {
    (void)state;
    static const struct {
        const char *name, *word;
    } bad[] = {{"not_utf8.txt", "byte 5: not UTF-8"},
               {"bad_line.jsonl", "line 2"},
               {"no_text.jsonl", "line 2: field text is missing; the fields are: body"},
               {"text_not_string.jsonl", "line 1: field text is not a string"},
               {"cut.jsonl.gz", "ends early"},
               {"cut.jsonl.zst", "ends early"},
               {"not_gzip.jsonl.gz", "not"}};
    char joined[4096], path[512];
    int n;
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        snprintf(path, sizeof path, FORMATS "bad/%s", bad[i].name);
        Status s = read_all(path, &(TextOptions){0}, &n, joined, sizeof joined);
        refused(s, bad[i].word);
        assert_non_null(strstr(s.text, bad[i].name));
    }
}

static void test_invalid_replaced(void **state) {
    (void)state;
    const TextOptions o = {.field = "t", .replace_invalid = true};
    char joined[512];
    int n;
    need(read_all(FORMATS "bad/not_utf8.txt", &o, &n, joined, sizeof joined));
    assert_string_equal(joined, "good \xEF\xBF\xBD\xEF\xBF\xBD bad \xEF\xBF\xBD(|");
    static const char lines[] = "{\"t\":\"a\\ud800b\\ud83d\\ude00\\\\ud800\"}\r\n  "
                                "\n{\"t\":\"\xE3\x81\",\"t2\":1e3}\n{\"t\":\"\\u0000\"}";
    need(file_save(OUT "/x.jsonl", lines, sizeof lines - 1));
    need(read_all(OUT "/x.jsonl", &o, &n, joined, sizeof joined));
    assert_int_equal(n, 3);
    assert_memory_equal(joined,
                        "a\xEF\xBF\xBD"
                        "b\xF0\x9F\x98\x80\\ud800|\xEF\xBF\xBD|\0|",
                        22);
    refused(read_all(OUT "/x.jsonl", &(TextOptions){.field = "t"}, &n, joined, sizeof joined), "line 1");
}

static Status encode_file(const char *tokenizer, const char *path, Ids *ids) {
    Tokenizer *t;
    TextFile *f = NULL;
    TRY(tokenizer_open(tokenizer, &t));
    Status s = text_open(path, &(TextOptions){0}, &f);
    while (!s.code) {
        const char *text;
        size_t n;
        s = text_next(f, &text, &n);
        if (s.code || !text)
            break;
        s = tokenizer_encode(t, text, n, NULL, ids);
    }
    text_close(f);
    tokenizer_close(t);
    return s;
}

// Each allocation and file call fails once: code 1, nothing leaks.
static void test_faults(void **state) {
    (void)state;
    static const char *const paths[] = {FORMATS "docs.jsonl.gz", FORMATS "docs.jsonl.zst",
                                        FORMATS "plain.txt"};
    for (FaultKind kind = FAULT_ALLOC; kind <= FAULT_FILE; kind++) {
        for (size_t k = 0; k < COUNT_OF(paths); k++) {
            bool hit = true;
            for (long nth = 1; hit; nth++) {
                Ids ids = {0};
                fault_set(kind, nth, nth % 2);
                Status s = encode_file(DATA "gpt2.small.json", paths[k], &ids);
                hit = fault_count(kind) >= nth;
                fault_set(kind, 0, false);
                mem_free(ids.at);
                if (s.code != (hit ? EXIT_WORK : 0))
                    fail_msg("fault %ld of kind %d: code %d, %s", nth, (int)kind, s.code, s.text);
            }
        }
    }
}

static int setup(void **state) {
    (void)state;
    return file_remove_tree(OUT).code || file_make_dir(OUT).code;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_corpus),
        cmocka_unit_test(test_long_runs),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_added),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_bad_texts),
        cmocka_unit_test(test_invalid_replaced),
        cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}

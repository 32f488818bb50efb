// The training loop on a toy model: resume, signals, values that are not finite, micro-batches, metrics, run
// folders.
#include "runtime/checkpoint.h"
#include "runtime/metrics.h"
#include "runtime/train.h"
#include "tests/toy_model.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/resource.h>

#include <cmocka.h>

#define OUT BINARY_DIR "/test_train.out"

static void need(Status s) {
    if (s.code)
        fail_msg("%d: %s", s.code, s.text);
}

static void refused(Status s, const char *word) {
    if (s.code != EXIT_REQUEST || !strstr(s.text, word))
        fail_msg("code %d, text '%s', wanted '%s'", s.code, s.text, word);
}

typedef struct Toy {
    Arena arena;
    jmp_buf fail;
    Plan plan;
    Exec *exec;
    Data *data, *val;
    int notes, steps_seen;
    int64_t raise_at; // SIGTERM in this step's hook
    double last_norm;
} Toy;

static void toy_start(Toy *t, int64_t micro) {
    *t = (Toy){0};
    arena_init(&t->arena, 0);
    t->arena.fail = &t->fail;
    if (setjmp(t->fail))
        fail_msg("out of memory");
    toy_plan(&t->arena, micro, &t->plan);
    need(exec_open(&t->plan, &toy_driver, &(DriverOptions){0}, &t->exec));
    const char *train = OUT "/train.u16", *val = OUT "/val.u16";
    DataOptions o = {.paths = &train, .n_paths = 1, .vocab = 1000, .seq = TOY_SEQ, .seed = 5, .eos = -1};
    need(data_open(&o, &t->data));
    o.paths = &val;
    o.whole = true;
    need(data_open(&o, &t->val));
}

static void toy_stop(Toy *t) {
    data_close(t->val);
    data_close(t->data);
    exec_close(t->exec);
    arena_free(&t->arena);
}

static void count_note(void *ctx, const char *text) {
    (void)text;
    ((Toy *)ctx)->notes++;
}

static void see_step(void *ctx, const TrainStep *s) {
    Toy *t = ctx;
    t->steps_seen++;
    t->last_norm = s->grad_norm;
    if (s->step == t->raise_at)
        raise(SIGTERM);
}

static TrainOptions options(Toy *t, Run *run) {
    return (TrainOptions){
        .exec = t->exec,
        .plan = &t->plan,
        .data = t->data,
        .val = t->val,
        .run = run,
        .seed = 5,
        .schedule = {.decay = DECAY_COSINE, .warmup = 2, .steps = 6, .peak = 0.05, .min_ratio = 0.1},
        .batch = 8,
        .beta1 = 0.9,
        .beta2 = 0.95,
        .clip = 1,
        .val_every = 2,
        .keep = 2,
        .hooks = {.ctx = t, .step = see_step, .note = count_note}};
}

static const char *const free_keys[] = {"steps", NULL};
#define CONFIG "{\"model\":\"toy\",\"steps\":6,\"lr\":0.05}\n"

static Status run_once(const char *dir, RunMode mode, int64_t micro, int64_t stop_after, int64_t raise_at,
                       TrainResult *r) {
    Toy t;
    Run *run;
    TRY(run_open(dir, mode, CONFIG, free_keys, (const char *const[]){"model.lua", "return 1\n", NULL}, &run));
    toy_start(&t, micro);
    t.raise_at = raise_at;
    TrainOptions o = options(&t, run);
    o.stop_after = stop_after;
    Status s = train_run(&o, r);
    toy_stop(&t);
    run_close(run);
    return s;
}

static char *load(const char *dir, const char *name, size_t *n) {
    char path[FILE_PATH];
    FileBytes bytes;
    need(file_join(dir, name, path));
    need(file_load(path, 1 << 24, &bytes));
    *n = bytes.n;
    return bytes.at;
}

// The lines of metrics.jsonl without what depends on the clock.
static char *load_lines(const char *dir) {
    size_t n;
    char *text = load(dir, "metrics.jsonl", &n), *out = text;
    static const char *const timed[] = {"\"tokens_per_s\":", "\"step_ms\":", "\"data_ms\":"};
    for (char *in = text; *in;) {
        for (size_t k = 0; k < COUNT_OF(timed); k++) {
            if (strncmp(in, timed[k], strlen(timed[k])) == 0)
                in += strcspn(in, ",}");
        }
        *out++ = *in++;
    }
    *out = 0;
    return text;
}

static void same_file(const char *a, const char *b, const char *name) {
    size_t n_a, n_b;
    char *x = load(a, name, &n_a), *y = load(b, name, &n_b);
    assert_int_equal(n_a, n_b);
    assert_memory_equal(x, y, n_a);
    mem_free(x);
    mem_free(y);
}

static void same_runs(const char *a, const char *b) {
    char *x = load_lines(a), *y = load_lines(b);
    assert_string_equal(x, y);
    mem_free(x);
    mem_free(y);
    same_file(a, b, "checkpoints/step-6/model.safetensors");
    same_file(a, b, "checkpoints/step-6/optim.safetensors");
    same_file(a, b, "checkpoints/step-6/state.json");
}

static void test_resume_is_bitwise(void **state) {
    (void)state;
    TrainResult r;
    need(run_once(OUT "/whole", RUN_NEW, 4, 0, 0, &r));
    assert_true(r.first_step == 1 && r.last_step == 6 && r.tokens == 6 * 8 * TOY_SEQ && r.signal == 0);
    assert_true(isfinite(r.val_loss) && r.loss < 10);
    char *lines = load_lines(OUT "/whole");
    assert_memory_equal(lines, "{\"event\":\"val\",\"step\":0,", 24);
    mem_free(lines);
    for (int64_t stop = 1; stop <= 5; stop += 2) {
        need(run_once(OUT "/part", stop == 1 ? RUN_NEW : RUN_OVERWRITE, 4, stop, 0, &r));
        assert_true(r.last_step == stop);
        need(run_once(OUT "/part", RUN_RESUME, 4, 0, 0, &r));
        assert_true(r.first_step == stop + 1 && r.last_step == 6);
        same_runs(OUT "/whole", OUT "/part");
    }
    need(run_once(OUT "/part", RUN_OVERWRITE, 4, 0, 3, &r));
    assert_int_equal(r.signal, SIGTERM);
    assert_int_equal(r.last_step, 3);
    need(run_once(OUT "/part", RUN_RESUME, 4, 0, 0, &r));
    same_runs(OUT "/whole", OUT "/part");
    need(run_once(OUT "/part", RUN_RESUME, 4, 0, 0, &r));
    assert_true(r.first_step == 7 && r.last_step == 6);
    same_runs(OUT "/whole", OUT "/part");
}

// What a crash leaves: lines beyond the checkpoint and half a line.
static void test_torn_metrics(void **state) {
    (void)state;
    TrainResult r;
    need(run_once(OUT "/torn", RUN_NEW, 4, 4, 0, &r));
    size_t n;
    char *text = load(OUT "/torn", "metrics.jsonl", &n);
    static const char more[] = "{\"event\":\"step\",\"step\":5,\"loss\":1}\n{\"event\":\"st";
    char *longer = mem_alloc(n + sizeof more);
    memcpy(longer, text, n);
    memcpy(longer + n, more, sizeof more);
    need(file_save(OUT "/torn/metrics.jsonl", longer, n + sizeof more - 1));
    mem_free(longer);
    mem_free(text);
    need(file_make_dir(OUT "/torn/checkpoints/step-5"));
    need(file_save(OUT "/torn/checkpoints/step-5/model.safetensors", "x", 1));
    need(run_once(OUT "/torn", RUN_RESUME, 4, 0, 0, &r));
    assert_int_equal(r.first_step, 5);
    same_runs(OUT "/whole", OUT "/torn");
    assert_false(file_exists(OUT "/torn/checkpoints/step-5"));
}

static void test_micro_batches(void **state) {
    (void)state;
    double loss[4], norm[4];
    float values[4][6];
    int k = 0;
    for (int64_t micro = 1; micro <= 8; micro *= 2, k++) {
        Toy t;
        TrainResult r;
        toy_start(&t, micro);
        TrainOptions o = options(&t, NULL);
        need(train_run(&o, &r));
        loss[k] = r.loss;
        norm[k] = t.last_norm;
        assert_int_equal(t.steps_seen, 6);
        need(exec_param_read(t.exec, 0, PART_VALUE, values[k]));
        toy_stop(&t);
        assert_true(fabs(loss[k] - loss[0]) < 1e-6 * loss[0] && fabs(norm[k] - norm[0]) < 1e-5 * norm[0]);
        for (int i = 0; i < 6; i++)
            assert_true(fabsf(values[k][i] - values[0][i]) < 1e-5f);
    }
}

static void test_overfit(void **state) {
    (void)state;
    Toy t;
    TrainResult r, more;
    toy_start(&t, 8);
    TrainOptions o = options(&t, NULL);
    o.overfit = true;
    o.debug_nan = true;
    need(train_run(&o, &r));
    o.schedule.steps = 200;
    need(train_run(&o, &more));
    assert_true(more.loss < r.loss);
    toy_stop(&t);
}

static void test_not_finite(void **state) {
    (void)state;
    Toy t;
    Run *run;
    TrainResult r;
    need(run_open(OUT "/nan", RUN_NEW, CONFIG, free_keys, NULL, &run));
    toy_start(&t, 4);
    TrainOptions o = options(&t, run);
    o.schedule = (Schedule){.decay = DECAY_CONSTANT, .steps = 6, .peak = 1e30};
    o.save_every = 1;
    Status s = train_run(&o, &r);
    assert_int_equal(s.code, EXIT_WORK);
    assert_non_null(strstr(s.text, "step 2: the loss is inf"));
    assert_non_null(strstr(s.text, "loss (step 0, micro"));
    assert_true(file_exists(OUT "/nan/checkpoints/step-1/state.json"));
    assert_false(file_exists(OUT "/nan/checkpoints/step-2"));
    toy_stop(&t);
    run_close(run);
}

// Sum of losses over number of targets, whatever the batches: 46 targets in windows of 8, batches of 4.
static void test_validation(void **state) {
    (void)state;
    double losses[2];
    for (int k = 0; k < 2; k++) {
        Toy t;
        int64_t tokens;
        toy_start(&t, k ? 4 : 1);
        need(train_init(t.exec, &t.plan, 1));
        need(train_validate(t.exec, &t.plan, t.val, &losses[k], &tokens));
        assert_int_equal(tokens, 46);
        toy_stop(&t);
    }
    assert_true(fabs(losses[0] - losses[1]) < 1e-6 * losses[0]);
}

// ---- Checkpoints

static void add_line(void *ctx, const char *text) {
    strcat(strcat(ctx, text), "\n");
}

static void test_checkpoint_choice(void **state) {
    (void)state;
    Toy t;
    char folder[FILE_PATH], lines[2048] = "";
    const Notes notes = {add_line, lines};
    Progress found;
    toy_start(&t, 1);
    need(train_init(t.exec, &t.plan, 1));
    need(checkpoint_find(OUT "/ck", notes, folder, &found));
    assert_string_equal(folder, "");
    for (int64_t step = 1; step <= 12; step++) {
        Progress p = {.step = step, .tokens = step * 10, .cursor = step * 3, .seed = 9, .data_hash = "d"};
        need(checkpoint_save(OUT "/ck", t.exec, &t.plan, &p, 2, 5, folder));
    }
    FileNames names;
    need(file_list(OUT "/ck", &names));
    assert_int_equal(names.n, 4); // 5, 10 stay for ever, 11, 12 are the newest
    assert_string_equal(names.at[0], "step-10");
    assert_string_equal(names.at[3], "step-5");
    file_names_free(&names);
    need(checkpoint_find(OUT "/ck", notes, folder, &found));
    assert_true(found.step == 12 && found.tokens == 120 && found.cursor == 36 && found.seed == 9);
    FileBytes bytes;
    need(file_load(OUT "/ck/step-12/model.safetensors", 1 << 20, &bytes));
    bytes.at[bytes.n - 1] ^= 1;
    need(file_save(OUT "/ck/step-12/model.safetensors", bytes.at, bytes.n));
    mem_free(bytes.at);
    need(file_remove(OUT "/ck/step-11/state.json"));
    need(checkpoint_find(OUT "/ck", notes, folder, &found));
    assert_int_equal(found.step, 10);
    assert_non_null(strstr(lines, "step-12/model.safetensors: damaged"));
    assert_non_null(strstr(lines, "step-11 was not finished"));
    need(checkpoint_load(folder, t.exec, &t.plan, notes));
    toy_stop(&t);
}

// Each file call and allocation of a save fails: an error, the older checkpoint is found, nothing
// half-written counts.
static void test_checkpoint_faults(void **state) {
    (void)state;
    Toy t;
    char folder[FILE_PATH];
    Progress found, p = {.step = 1, .seed = 9};
    toy_start(&t, 1);
    need(train_init(t.exec, &t.plan, 1));
    need(checkpoint_save(OUT "/cf", t.exec, &t.plan, &p, 1, 0, folder));
    p.step = 2;
    for (FaultKind kind = FAULT_ALLOC; kind <= FAULT_FILE; kind++) {
        for (long nth = 1;; nth++) {
            fault_set(kind, nth, nth % 2);
            Status s = checkpoint_save(OUT "/cf", t.exec, &t.plan, &p, 2, 0, folder);
            bool hit = fault_count(kind) >= nth;
            fault_set(kind, 0, false);
            if (!hit) {
                need(s);
                break;
            }
            if (s.code && s.code != EXIT_WORK)
                fail_msg("fault %ld of kind %d: code %d, %s", nth, (int)kind, s.code, s.text);
            need(checkpoint_find(OUT "/cf", (Notes){0}, folder, &found));
            assert_true(folder[0] && found.step >= 1);
            if (s.code && found.step == 2) // all was written before the failure
                need(file_remove(OUT "/cf/step-2/state.json"));
        }
        need(file_remove_tree(OUT "/cf/step-2"));
    }
    toy_stop(&t);
}

// A full disk, by way of a limit on file sizes: code 1, the older checkpoint stays, the partial one goes.
static void test_full_disk(void **state) {
    (void)state;
    Toy t;
    TrainResult r;
    char folder[FILE_PATH];
    Progress found, p = {.step = 1, .seed = 9};
    struct rlimit old, small;
    toy_start(&t, 1);
    need(checkpoint_save(OUT "/cl", t.exec, &t.plan, &p, 1, 0, folder));
    need(run_once(OUT "/full", RUN_NEW, 4, 2, 0, &r));
    getrlimit(RLIMIT_FSIZE, &old);
    small = old;
    small.rlim_cur = 400;
    void (*was)(int) = signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    p.step = 2;
    Status s = checkpoint_save(OUT "/cl", t.exec, &t.plan, &p, 1, 0, folder);
    signal(SIGXFSZ, was);
    Status train = run_once(OUT "/full", RUN_RESUME, 4, 3, 0, &r);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(s.code, EXIT_WORK);
    assert_non_null(strstr(s.text, "File too large"));
    need(checkpoint_find(OUT "/cl", (Notes){0}, folder, &found));
    assert_int_equal(found.step, 1);
    assert_false(file_exists(OUT "/cl/step-2"));
    assert_int_equal(train.code, EXIT_WORK);
    assert_non_null(strstr(train.text, "cannot write it: File too large"));
    need(run_once(OUT "/full", RUN_RESUME, 4, 0, 0, &r));
    same_runs(OUT "/whole", OUT "/full");
    toy_stop(&t);
}

static void test_not_finite_never_lands(void **state) {
    (void)state;
    Toy t;
    char folder[FILE_PATH];
    float values[6] = {1, 2, 3, 4, INFINITY, 6};
    toy_start(&t, 1);
    need(exec_param_write(t.exec, 1, PART_EXP_AVG, values));
    Status s = checkpoint_save(OUT "/ci", t.exec, &t.plan, &(Progress){.step = 1}, 1, 0, folder);
    assert_int_equal(s.code, EXIT_WORK);
    assert_non_null(strstr(s.text, "b.weight.exp_avg: element 4 is inf"));
    assert_false(file_exists(OUT "/ci/step-1"));
    toy_stop(&t);
}

static void test_differences(void **state) {
    (void)state;
    Toy t;
    char lines[2048] = "", folder[FILE_PATH];
    toy_start(&t, 1);
    need(train_init(t.exec, &t.plan, 1));
    need(checkpoint_save(OUT "/cd", t.exec, &t.plan, &(Progress){.step = 1}, 1, 0, folder));
    t.plan.params.at[0].name = "other";
    t.plan.params.at[1].shape[0] = 2;
    t.plan.params.at[1].shape[1] = 3;
    Status s = params_load(OUT "/cd/step-1/model.safetensors", t.exec, &t.plan, (Notes){add_line, lines});
    refused(s, "1 missing, 1 unexpected, 1 of another shape or type: missing other");
    assert_string_equal(lines,
                        "missing other\nb.weight is [3,2], the model has [2,3]\nunexpected a.weight\n");
    refused(params_load(SOURCE_DIR "/tests/data/formats/bad/hole.safetensors", t.exec, &t.plan, (Notes){0}),
            "no tensor covers");
    toy_stop(&t);
}

// ---- Run folders and event files

static void test_run_folders(void **state) {
    (void)state;
    Run *run, *second;
    refused(run_open(OUT "/r", RUN_RESUME, CONFIG, free_keys, NULL, &run), "nothing to resume");
    need(run_open(OUT "/r", RUN_NEW, CONFIG, free_keys, NULL, &run));
    refused(run_open(OUT "/r", RUN_RESUME, CONFIG, free_keys, NULL, &second), "another process");
    run_close(run);
    refused(run_open(OUT "/r", RUN_NEW, CONFIG, free_keys, NULL, &run), "--overwrite");
    refused(run_open(OUT "/r", RUN_RESUME, "{\"model\":\"toy\",\"steps\":9,\"lr\":0.1,\"new\":1}", free_keys,
                     NULL, &run),
            "lr was 0.05, is 0.1; new was not set, is 1");
    need(
        run_open(OUT "/r", RUN_RESUME, "{\"model\":\"toy\",\"steps\":9,\"lr\":0.05}", free_keys, NULL, &run));
    run_close(run);
    need(file_save(OUT "/r/notes.txt", "mine", 4));
    need(run_open(OUT "/r", RUN_OVERWRITE, CONFIG, free_keys, NULL, &run));
    run_close(run);
    assert_true(file_exists(OUT "/r/notes.txt"));
    need(file_make_dir(OUT "/foreign"));
    need(file_save(OUT "/foreign/thesis.txt", "x", 1));
    refused(run_open(OUT "/foreign", RUN_NEW, CONFIG, free_keys, NULL, &run), "other things");
    refused(run_open(OUT "/foreign", RUN_OVERWRITE, CONFIG, free_keys, NULL, &run), "other things");
    assert_false(file_exists(OUT "/foreign/lock"));
    char *config;
    need(run_config(OUT "/r", &config));
    assert_string_equal(config, CONFIG);
    mem_free(config);
}

static uint64_t number_at(const uint8_t *p, int bytes) {
    uint64_t v = 0;
    for (int i = bytes - 1; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

static int check_events(const uint8_t *p, size_t n) {
    int records = 0;
    for (size_t at = 0; at < n; records++) {
        size_t length = (size_t)number_at(p + at, 8);
        uint32_t c = crc32c(p + at, 8), d = crc32c(p + at + 12, length);
        assert_int_equal(number_at(p + at + 8, 4), (uint32_t)((c >> 15 | c << 17) + 0xA282EAD8u));
        assert_int_equal(number_at(p + at + 12 + length, 4), (uint32_t)((d >> 15 | d << 17) + 0xA282EAD8u));
        at += 16 + length;
    }
    return records;
}

static void test_event_files(void **state) {
    (void)state;
    assert_int_equal(crc32c("123456789", 9), 0xE3069283u);
    FileNames names;
    size_t n;
    char *sample = load(SOURCE_DIR "/tests/data/formats", "events.out.tfevents.1700000000.host.1.0", &n);
    assert_int_equal(check_events((uint8_t *)sample, n), 4);
    Metrics *m;
    need(file_make_dir(OUT "/ev"));
    need(metrics_open(OUT "/ev", 0, false, &m));
    need(metrics_scalar(m, 1, "train/loss", 10.75f));
    metrics_close(m);
    need(file_list(OUT "/ev", &names));
    assert_int_equal(names.n, 2);
    size_t n_own;
    char *own = load(OUT "/ev", names.at[0], &n_own);
    assert_int_equal(check_events((uint8_t *)own, n_own), 2);
    // the same bytes as the sample but for times and check sums: version record, then the first scalar
    assert_memory_equal(own + 12 + 9, sample + 12 + 9, 15);
    size_t second = 16 + 9 + 15;
    assert_memory_equal(own + second + 12 + 9, sample + second + 12 + 9,
                        (size_t)number_at((uint8_t *)own + second, 8) - 9);
    mem_free(own);
    mem_free(sample);
    file_names_free(&names);
}

static int setup(void **state) {
    (void)state;
    uint8_t bytes[2 * 800];
    for (size_t i = 0; i < sizeof bytes; i += 2) {
        bytes[i] = (uint8_t)(i * 7 / 3);
        bytes[i + 1] = (uint8_t)(i % 3);
    }
    return file_remove_tree(OUT).code || file_make_dir(OUT).code ||
           file_save(OUT "/train.u16", bytes, sizeof bytes).code ||
           file_save(OUT "/val.u16", bytes, 2 * 47).code;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resume_is_bitwise), cmocka_unit_test(test_torn_metrics),
        cmocka_unit_test(test_micro_batches),     cmocka_unit_test(test_overfit),
        cmocka_unit_test(test_not_finite),        cmocka_unit_test(test_validation),
        cmocka_unit_test(test_checkpoint_choice), cmocka_unit_test(test_checkpoint_faults),
        cmocka_unit_test(test_full_disk),         cmocka_unit_test(test_not_finite_never_lands),
        cmocka_unit_test(test_differences),       cmocka_unit_test(test_run_folders),
        cmocka_unit_test(test_event_files),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}

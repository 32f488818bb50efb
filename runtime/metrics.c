// metrics.jsonl and event files: see metrics.h; the form of event files: docs/formats.md 5.
#include "runtime/metrics.h"
#include "runtime/file.h"
#include "runtime/json_in.h"
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RECORD = 512 };

struct Metrics {
    int lines, events;
    char lines_path[FILE_PATH], events_path[FILE_PATH];
};

// ---- Event files: records of protobuf messages, written by hand since five fields are all there is

uint32_t crc32c(const void *data, size_t n) {
    const uint8_t *p = data;
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int k = 0; k < 8; k++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
    }
    return ~crc;
}

static uint32_t masked(const void *data, size_t n) {
    uint32_t c = crc32c(data, n);
    return (c >> 15 | c << 17) + 0xA282EAD8u;
}

typedef struct Proto {
    uint8_t at[RECORD];
    size_t n;
} Proto;

static void put_bytes(Proto *p, const void *data, size_t n) {
    CHECK(p->n + n <= RECORD, "event record too long");
    memcpy(p->at + p->n, data, n);
    p->n += n;
}

static void put_varint(Proto *p, uint64_t v) {
    for (; v > 127; v >>= 7)
        put_bytes(p, &(uint8_t){(uint8_t)(v | 128)}, 1);
    put_bytes(p, &(uint8_t){(uint8_t)v}, 1);
}

static void put_fixed(Proto *p, uint64_t bits, int bytes) {
    for (int i = 0; i < bytes; i++)
        put_bytes(p, &(uint8_t){(uint8_t)(bits >> 8 * i)}, 1);
}

static void put_field(Proto *p, int field, const void *data, size_t n) {
    put_varint(p, (uint64_t)field << 3 | 2);
    put_varint(p, n);
    put_bytes(p, data, n);
}

static void put_event(Proto *p, int64_t step) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    double wall = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    uint64_t bits;
    memcpy(&bits, &wall, 8);
    put_varint(p, 1 << 3 | 1);
    put_fixed(p, bits, 8);
    if (step >= 0) {
        put_varint(p, 2 << 3);
        put_varint(p, (uint64_t)step);
    }
}

static Status write_record(Metrics *m, const Proto *event) {
    Proto r = {.n = 0};
    put_fixed(&r, event->n, 8);
    put_fixed(&r, masked(r.at, 8), 4);
    put_bytes(&r, event->at, event->n);
    put_fixed(&r, masked(event->at, event->n), 4);
    return file_append(m->events, m->events_path, r.at, r.n);
}

static Status open_events(Metrics *m, const char *run, int64_t from_step) {
    char host[128] = "host", name[FILE_PATH];
    gethostname(host, sizeof host - 1);
    for (char *c = host; *c; c++) {
        if (*c == '/')
            *c = '-';
    }
    snprintf(name, sizeof name, "events.out.tfevents.%lld.%s.%ld.0", (long long)time(NULL), host,
             (long)getpid());
    TRY(file_join(run, name, m->events_path));
    TRY(file_append_open(m->events_path, &m->events));
    Proto version = {.n = 0};
    put_event(&version, -1);
    put_field(&version, 3, "brain.Event:2", 13);
    TRY(write_record(m, &version));
    if (!from_step)
        return STATUS_OK;
    Proto start = {.n = 0};
    put_event(&start, from_step + 1);
    put_field(&start, 7, "\x08\x01", 2); // session_log {status: START}
    return write_record(m, &start);
}

Status metrics_scalar(Metrics *m, int64_t step, const char *tag, float value) {
    Proto scalar = {.n = 0}, summary = {.n = 0}, event = {.n = 0};
    uint32_t bits;
    memcpy(&bits, &value, 4);
    put_field(&scalar, 1, tag, strlen(tag));
    put_varint(&scalar, 2 << 3 | 5);
    put_fixed(&scalar, bits, 4);
    put_field(&summary, 1, scalar.at, scalar.n);
    put_event(&event, step);
    put_field(&event, 5, summary.at, summary.n);
    return write_record(m, &event);
}

// ---- metrics.jsonl

// Does this line belong to the part of the run that the checkpoint holds?
static bool keeps(const char *line, size_t n, int64_t from_step, bool keep_val) {
    json_t *object;
    if (jin_parse("metrics.jsonl", line, n, true, &object).code)
        return false;
    const json_t *step = json_object_get(object, "step");
    const char *event = json_string_value(json_object_get(object, "event"));
    int64_t at = json_integer_value(step);
    bool val = event && strcmp(event, "val") == 0;
    bool kept = json_is_integer(step) && at <= from_step && (!val || at < from_step || keep_val);
    json_decref(object);
    return kept;
}

static Status cut_lines(const Metrics *m, int64_t from_step, bool keep_val) {
    FileBytes bytes;
    if (!file_exists(m->lines_path))
        return STATUS_OK;
    TRY(file_load(m->lines_path, SIZE_MAX, &bytes));
    size_t at = 0;
    while (at < bytes.n) {
        const char *end = memchr(bytes.at + at, '\n', bytes.n - at);
        if (!end || !keeps(bytes.at + at, (size_t)(end - bytes.at) - at, from_step, keep_val))
            break;
        at = (size_t)(end - bytes.at) + 1;
    }
    Status s = at < bytes.n ? file_truncate(m->lines_path, at) : STATUS_OK;
    mem_free(bytes.at);
    return s;
}

Status metrics_open(const char *run, int64_t from_step, bool keep_val, Metrics **out) {
    *out = NULL;
    Metrics *m = mem_alloc(sizeof *m);
    if (!m)
        return status_memory("metrics", sizeof *m);
    m->lines = m->events = -1;
    Status s = file_join(run, "metrics.jsonl", m->lines_path);
    if (!s.code)
        s = from_step ? cut_lines(m, from_step, keep_val) : file_remove(m->lines_path);
    if (!s.code)
        s = file_append_open(m->lines_path, &m->lines);
    if (!s.code)
        s = open_events(m, run, from_step);
    if (s.code)
        metrics_close(m);
    else
        *out = m;
    return s;
}

void metrics_close(Metrics *m) {
    if (!m)
        return;
    file_append_close(m->lines);
    file_append_close(m->events);
    mem_free(m);
}

Status metrics_line(Metrics *m, const char *json, size_t n) {
    char *line = mem_alloc(n + 1);
    if (!line)
        return status_memory("a line of metrics", n);
    memcpy(line, json, n);
    line[n] = '\n';
    Status s = file_append(m->lines, m->lines_path, line, n + 1);
    mem_free(line);
    return s;
}

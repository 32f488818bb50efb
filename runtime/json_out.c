// JSON writer: see json_out.h.
#include "runtime/json_out.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

// printf and strtod follow the process's locale only after setlocale, which this program never calls.
static const char *shortest(double value, bool single, char out[32]) {
    for (int digits = single ? 6 : 15; digits <= 17; digits++) {
        snprintf(out, 32, "%.*g", digits, value);
        if (single ? strtof(out, NULL) == (float)value : strtod(out, NULL) == value)
            break;
    }
    return out;
}

const char *number_text(double value, char out[32]) {
    return shortest(value, false, out);
}

const char *number_text32(float value, char out[32]) {
    return shortest((double)value, true, out);
}

static void add_string(Text *out, const char *value) {
    text_addn(out, "\"", 1);
    const uint8_t *p = (const uint8_t *)value;
    size_t left = strlen(value);
    while (left) {
        utf8proc_int32_t c;
        utf8proc_ssize_t n = utf8proc_iterate(p, (utf8proc_ssize_t)left, &c);
        if (n <= 0) {
            text_add(out, "\\ufffd");
            n = 1;
        } else if (c == '"' || c == '\\') {
            text_add(out, "\\%c", (char)c);
        } else if (c == '\n') {
            text_add(out, "\\n");
        } else if (c < 0x20 || c == 0x7f) {
            text_add(out, "\\u%04x", (unsigned)c);
        } else {
            text_addn(out, (const char *)p, (size_t)n);
        }
        p += n;
        left -= (size_t)n;
    }
    text_addn(out, "\"", 1);
}

static void begin_item(JsonOut *j, const char *key) {
    CHECK(j->depth > 0 && j->list[j->depth - 1] == !key, "JSON: key %s at the wrong place",
          key ? key : "(none)");
    if (j->some[j->depth - 1])
        text_addn(j->out, ",", 1);
    j->some[j->depth - 1] = true;
    if (key) {
        add_string(j->out, key);
        text_addn(j->out, ":", 1);
    }
}

static void push(JsonOut *j, bool list) {
    CHECK(j->depth < JSON_DEPTH, "JSON: more than %d levels", JSON_DEPTH);
    j->list[j->depth] = list;
    j->some[j->depth] = false;
    j->nonfinite[j->depth] = false;
    j->depth++;
    text_addn(j->out, list ? "[" : "{", 1);
}

void jout_begin(JsonOut *j, Text *out) {
    *j = (JsonOut){.out = out};
    push(j, false);
}

void jout_object(JsonOut *j, const char *key) {
    begin_item(j, key);
    push(j, false);
}

void jout_array(JsonOut *j, const char *key) {
    begin_item(j, key);
    push(j, true);
}

void jout_close(JsonOut *j) {
    CHECK(j->depth > 0, "JSON: nothing to close");
    j->depth--;
    text_addn(j->out, j->list[j->depth] ? "]" : "}", 1);
}

void jout_string(JsonOut *j, const char *key, const char *value) {
    begin_item(j, key);
    if (value)
        add_string(j->out, value);
    else
        text_add(j->out, "null");
}

void jout_int(JsonOut *j, const char *key, int64_t value) {
    begin_item(j, key);
    text_add(j->out, "%lld", (long long)value);
}

static void add_number(JsonOut *j, const char *key, double value, bool single) {
    char text[32];
    begin_item(j, key);
    if (isfinite(value)) {
        text_add(j->out, "%s", shortest(value, single, text));
        return;
    }
    text_add(j->out, "null");
    if (!key)
        return;
    bool *first = &j->nonfinite[j->depth - 1];
    char beside[128];
    snprintf(beside, sizeof beside, "%s%snonfinite", *first ? key : "", *first ? "_" : "");
    *first = true;
    jout_string(j, beside, isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
}

void jout_real(JsonOut *j, const char *key, double value) {
    add_number(j, key, value, false);
}

void jout_real32(JsonOut *j, const char *key, float value) {
    add_number(j, key, (double)value, true);
}

void jout_bool(JsonOut *j, const char *key, bool value) {
    begin_item(j, key);
    text_add(j->out, value ? "true" : "false");
}

void jout_raw(JsonOut *j, const char *key, const char *json) {
    begin_item(j, key);
    text_add(j->out, "%s", json);
}

// Writes JSON: one object or list at a time into a Text, independent of the locale.
//
//     JsonOut j; jout_begin(&j, &text); jout_string(&j, "event", "step"); jout_int(&j, "step", 3);
//     jout_close(&j);
//
// gives {"event":"step","step":3}. Keys are NULL inside lists. Numbers that are not finite become null, with
// a second key "KEY_nonfinite" (just "nonfinite" for a first one) beside it, since JSON has none.
#ifndef DEPTHBENCH_RUNTIME_JSON_OUT_H
#define DEPTHBENCH_RUNTIME_JSON_OUT_H
#include "ir/base.h"

enum { JSON_DEPTH = 16 };
typedef struct JsonOut {
    Text *out;
    int depth;
    bool list[JSON_DEPTH], some[JSON_DEPTH]; // kind of each open level; has it an item
    bool nonfinite[JSON_DEPTH];
} JsonOut;

void jout_begin(JsonOut *j, Text *out); // opens the outer object
void jout_object(JsonOut *j, const char *key);
void jout_array(JsonOut *j, const char *key);
void jout_close(JsonOut *j);                                      // the innermost open object or list
void jout_string(JsonOut *j, const char *key, const char *value); // invalid UTF-8 becomes U+FFFD; NULL: null
void jout_int(JsonOut *j, const char *key, int64_t value);
void jout_real(JsonOut *j, const char *key, double value); // shortest form that reads back to the same double
void jout_real32(JsonOut *j, const char *key, float value); // shortest form that reads back to the same float
void jout_bool(JsonOut *j, const char *key, bool value);
void jout_raw(JsonOut *j, const char *key, const char *json); // text that is JSON already

// Shortest decimal text of a finite double that reads back to it, with '.', into a buffer of 32 bytes.
const char *number_text(double value, char out[32]);
const char *number_text32(float value, char out[32]);
#endif

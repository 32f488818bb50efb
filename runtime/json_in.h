// Reading JSON files with messages that name file, line and column.
#ifndef DEPTHBENCH_RUNTIME_JSON_IN_H
#define DEPTHBENCH_RUNTIME_JSON_IN_H
#include "ir/base.h"
#include <jansson.h>

// what: "FILE" or "FILE: header" for messages. Duplicate keys are refused. nul: strings may hold NUL. Errors:
// code 2, memory code 1. *out: json_decref.
Status jin_parse(const char *what, const char *text, size_t n, bool nul, json_t **out) MUST_USE;
Status jin_load(const char *path, size_t limit, json_t **out) MUST_USE;
#endif

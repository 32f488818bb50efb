// Reading JSON files: see json_in.h.
#include "runtime/json_in.h"
#include "runtime/file.h"

Status jin_parse(const char *what, const char *text, size_t n, bool nul, json_t **out) {
    *out = NULL;
    if (fault_hit(FAULT_ALLOC))
        return status_memory(what, n);
    json_error_t error;
    size_t flags = JSON_REJECT_DUPLICATES | (nul ? JSON_ALLOW_NUL : 0);
    *out = json_loadb(text, n, flags, &error);
    if (*out)
        return STATUS_OK;
    if (json_error_code(&error) == json_error_out_of_memory)
        return status_memory(what, n);
    return status_make(EXIT_REQUEST, "%s: line %d, column %d: not valid JSON: %s", what, error.line,
                       error.column, error.text);
}

Status jin_load(const char *path, size_t limit, json_t **out) {
    *out = NULL;
    FileBytes bytes;
    TRY(file_load(path, limit, &bytes));
    Status s = jin_parse(path, bytes.at, bytes.n, true, out);
    mem_free(bytes.at);
    return s;
}

// safetensors files: any bytes are refused, or every tensor can be read.
#include "runtime/safetensors.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    StFile *f;
    if (st_open(fuzz_file(data, n), &f).code)
        return 0;
    for (int32_t i = 0; i < st_count(f); i++) {
        const StTensor *t = st_tensor(f, i);
        CHECK(t->end - t->begin <= n, "%s is longer than its file", t->name);
        void *bytes = mem_alloc((size_t)(t->end - t->begin));
        Status s = bytes ? st_read(f, i, bytes) : STATUS_OK;
        CHECK(!s.code, "%s", s.text);
        CHECK(st_find(f, t->name) == i, "%s is not found", t->name);
        mem_free(bytes);
    }
    st_close(f);
    return 0;
}

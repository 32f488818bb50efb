// tokenizer.json: any bytes are refused, or are a tokenizer whose ids stay below its vocabulary.
#include "runtime/tokenizer.h"
#include "tests/fuzz/fuzz.h"
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static const char text[] = "Hello world, it's 12345 \xF0\x9F\x98\x80  <|endoftext|>\n\n x";
    Tokenizer *t;
    if (tokenizer_open(fuzz_file(data, n), &t).code)
        return 0;
    Encode e = {0};
    Ids ids = {0};
    Status s = tokenizer_encode(t, text, strlen(text), &e, &ids);
    for (size_t i = 0; !s.code && i < ids.n; i++)
        CHECK(ids.at[i] >= 0 && ids.at[i] < tokenizer_vocab(t), "id %d", ids.at[i]);
    char *back;
    size_t back_n;
    if (!s.code) {
        s = tokenizer_decode(t, ids.at, ids.n, &back, &back_n);
        if (!s.code)
            mem_free(back);
    }
    mem_free(ids.at);
    tokenizer_close(t);
    return 0;
}

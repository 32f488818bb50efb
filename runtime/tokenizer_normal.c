// Unicode normal forms of a text, by way of utf8proc's tables.
//
// utf8proc's own function sorts combining marks by exchanging neighbours, which is quadratic on long runs of
// them; here a run is sorted by merging. Only what can change is taken apart: text is cut before ASCII
// characters, which never combine with what stands before them.
#include "runtime/tokenizer_parts.h"
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

Status bytes_add(Bytes *b, const void *data, size_t n) {
    if (b->cap - b->n < n) {
        size_t cap = MAX_OF(b->cap * 2, b->n + n);
        uint8_t *at = mem_realloc(b->at, cap);
        if (!at)
            return status_memory("a text", cap);
        b->at = at;
        b->cap = cap;
    }
    if (n)
        memcpy(b->at + b->n, data, n);
    b->n += n;
    return STATUS_OK;
}

static int class_of(utf8proc_int32_t c) {
    return utf8proc_get_property(c)->combining_class;
}

// Stable: equal classes keep their order. work has room for n.
static void sort_marks(utf8proc_int32_t *at, size_t n, utf8proc_int32_t *work) {
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t low = 0; low < n; low += 2 * width) {
            size_t mid = MIN_OF(low + width, n), high = MIN_OF(low + 2 * width, n), i = low, j = mid;
            for (size_t k = low; k < high; k++)
                work[k] = i < mid && (j >= high || class_of(at[i]) <= class_of(at[j])) ? at[i++] : at[j++];
        }
        memcpy(at, work, n * sizeof *at);
    }
}

static void order_marks(utf8proc_int32_t *at, size_t n, utf8proc_int32_t *work) {
    for (size_t i = 0; i < n;) {
        size_t start = i;
        bool sorted = true;
        for (; i < n && class_of(at[i]); i++)
            sorted = sorted && (i == start || class_of(at[i - 1]) <= class_of(at[i]));
        if (!sorted)
            sort_marks(at + start, i - start, work);
        i += i == start;
    }
}

static Status add_chars(const utf8proc_int32_t *at, size_t n, Bytes *out) {
    for (size_t i = 0; i < n; i++) {
        uint8_t bytes[4];
        TRY(bytes_add(out, bytes, (size_t)utf8proc_encode_char(at[i], bytes)));
    }
    return STATUS_OK;
}

// Appends the normal form of a part that nothing outside of it can change.
static Status add_part(NormalForm form, const uint8_t *text, size_t n, Bytes *out) {
    enum { MOST = 18 }; // characters that one decomposes into
    bool compat = form == NORMAL_NFKC || form == NORMAL_NFKD;
    int options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compat ? UTF8PROC_COMPAT : 0);
    size_t cap = 0, used = 0;
    utf8proc_int32_t *chars = NULL;
    int boundary = 0;
    Status s = STATUS_OK;
    for (size_t at = 0, length; at < n && !s.code; at += length) {
        if (cap - used < MOST) {
            cap = MAX_OF(cap * 2, n / 2 + 4 * MOST);
            // the second half is work space for sorting
            utf8proc_int32_t *more = mem_realloc(chars, 2 * cap * sizeof *chars);
            if (!more) {
                s = status_memory("normalising a text", 2 * cap * sizeof *chars);
                break;
            }
            chars = more;
        }
        used += (size_t)utf8proc_decompose_char(split_char(text + at, &length), chars + used, MOST,
                                                (utf8proc_option_t)options, &boundary);
    }
    if (!s.code) {
        order_marks(chars, used, chars + cap);
        if (form == NORMAL_NFC || form == NORMAL_NFKC)
            used = (size_t)utf8proc_normalize_utf32(chars, (utf8proc_ssize_t)used,
                                                    (utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
        s = add_chars(chars, used, out);
    }
    mem_free(chars);
    return s;
}

Status normal_add(NormalForm form, const uint8_t *text, size_t n, Bytes *out) {
    // In NFC everything below U+0300 stays as it is.
    uint8_t first = form == NORMAL_NFC ? 0xCC : 0x80;
    size_t done = 0;
    for (size_t at = 0; at < n;) {
        if (text[at] < first || (text[at] & 0xC0) == 0x80) {
            at++;
            continue;
        }
        // back to the start of the character before, which may be the base of a mark
        size_t start = at;
        while (start > done && (text[--start] & 0xC0) == 0x80) {
        }
        TRY(bytes_add(out, text + done, start - done));
        while (at < n && text[at] >= 0x80)
            at++;
        TRY(add_part(form, text + start, at - start, out));
        done = at;
    }
    return bytes_add(out, text + done, n - done);
}

// Splitting a text into words: the two regular expressions of docs/formats.md 3.1 and 3.2, by hand.
//
// Each call looks at a run of white space at most twice, so a text costs linear time however long its runs
// are.
#include "runtime/tokenizer_parts.h"
#include <string.h>
#include <utf8proc.h>

const char *const split_pattern[3] = {
    NULL,
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
};

typedef enum CharKind { CHAR_OTHER, CHAR_LETTER, CHAR_NUMBER, CHAR_SPACE } CharKind;

int32_t split_char(const uint8_t *p, size_t *n) {
    if (p[0] < 0x80) {
        *n = 1;
        return p[0];
    }
    if (p[0] < 0xE0) {
        *n = 2;
        return (p[0] & 0x1F) << 6 | (p[1] & 0x3F);
    }
    if (p[0] < 0xF0) {
        *n = 3;
        return (p[0] & 0x0F) << 12 | (p[1] & 0x3F) << 6 | (p[2] & 0x3F);
    }
    *n = 4;
    return (p[0] & 0x07) << 18 | (p[1] & 0x3F) << 12 | (p[2] & 0x3F) << 6 | (p[3] & 0x3F);
}

bool split_is_space(int32_t c) {
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
           c == 0x3000;
}

static CharKind kind_of(int32_t c) {
    if (c < 0x80) {
        int32_t lower = c | 0x20;
        return lower >= 'a' && lower <= 'z' ? CHAR_LETTER
               : c >= '0' && c <= '9'       ? CHAR_NUMBER
               : split_is_space(c)          ? CHAR_SPACE
                                            : CHAR_OTHER;
    }
    if (split_is_space(c))
        return CHAR_SPACE;
    int category = (int)utf8proc_category(c);
    if (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO)
        return CHAR_LETTER;
    return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO ? CHAR_NUMBER : CHAR_OTHER;
}

bool split_is_word_char(int32_t c) {
    int category = (int)utf8proc_category(c);
    return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_ME) ||
           category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
           category == UTF8PROC_CATEGORY_PC;
}

static CharKind kind_at(const uint8_t *p, size_t *length) {
    return kind_of(split_char(p, length));
}

// End of the run of characters of a kind that starts at byte `at`; at most `most` characters.
static size_t run_end(const uint8_t *text, size_t n, size_t at, CharKind kind, size_t most) {
    size_t length;
    while (at < n && most-- && kind_at(text + at, &length) == kind)
        at += length;
    return at;
}

// 's 't 're 've 'm 'll 'd at text, after the apostrophe; 0: none. The long s folds to s.
static size_t contraction(const uint8_t *text, size_t n, bool fold) {
    if (n < 2 || text[0] != '\'')
        return 0;
    if (fold && n >= 3 && text[1] == 0xC5 && text[2] == 0xBF)
        return 3;
    uint8_t a = text[1], b = n > 2 ? text[2] : 0;
    if (fold) {
        a |= a >= 'A' && a <= 'Z' ? 0x20 : 0;
        b |= b >= 'A' && b <= 'Z' ? 0x20 : 0;
    }
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    bool two = (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l');
    return two ? 3 : 0;
}

// \s+(?!\S)|\s+ : a run of white space gives its last character back when a word follows.
static size_t space_word(const uint8_t *text, size_t n) {
    size_t at = 0, last = 0, length;
    while (at < n && kind_at(text + at, &length) == CHAR_SPACE) {
        last = at;
        at += length;
    }
    return at < n && last > 0 ? last : at;
}

static size_t word_gpt2(const uint8_t *text, size_t n) {
    size_t length = contraction(text, n, false);
    if (length)
        return length;
    CharKind kind = kind_at(text, &length);
    if (kind != CHAR_SPACE)
        return run_end(text, n, length, kind, SIZE_MAX);
    size_t second;
    if (text[0] == ' ' && n > 1 && (kind = kind_at(text + 1, &second)) != CHAR_SPACE)
        return run_end(text, n, 1 + second, kind, SIZE_MAX);
    return space_word(text, n);
}

static size_t newlines_end(const uint8_t *text, size_t n, size_t at) {
    while (at < n && (text[at] == '\r' || text[at] == '\n'))
        at++;
    return at;
}

static size_t word_cl100k(const uint8_t *text, size_t n) {
    size_t length = contraction(text, n, true), second;
    if (length)
        return length;
    CharKind kind = kind_at(text, &length);
    if (kind == CHAR_LETTER)
        return run_end(text, n, length, CHAR_LETTER, SIZE_MAX);
    if (kind == CHAR_NUMBER)
        return run_end(text, n, 0, CHAR_NUMBER, 3);
    CharKind after = length < n ? kind_at(text + length, &second) : CHAR_SPACE;
    if (after == CHAR_LETTER && text[0] != '\r' && text[0] != '\n')
        return run_end(text, n, length + second, CHAR_LETTER, SIZE_MAX);
    if (kind == CHAR_OTHER)
        return newlines_end(text, n, run_end(text, n, length, CHAR_OTHER, SIZE_MAX));
    if (text[0] == ' ' && length < n && after == CHAR_OTHER)
        return newlines_end(text, n, run_end(text, n, length + second, CHAR_OTHER, SIZE_MAX));
    // \s*[\r\n]+ : up to the last line end of the run of white space
    size_t last = 0;
    for (size_t at = 0; at < n && kind_at(text + at, &length) == CHAR_SPACE; at += length) {
        if (text[at] == '\r' || text[at] == '\n')
            last = at + 1;
    }
    return last ? last : space_word(text, n);
}

size_t split_word(SplitKind kind, const uint8_t *text, size_t n) {
    return kind == SPLIT_NONE ? n : kind == SPLIT_GPT2 ? word_gpt2(text, n) : word_cl100k(text, n);
}

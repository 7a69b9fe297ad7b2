#include "text/tokenizer/split/split_fast.h"

#include <stdint.h>
#include <string.h>

#include "base/utf8.h"
#include "text/tokenizer/split/unicode.h"

const char qn_gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const char qn_llama3_pattern[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
                                 "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const char qn_qwen2_pattern[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
                                "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

qn_split_kind qn_split_kind_of(const char *pattern, size_t n)
{
    static const struct {
        const char *pattern;
        qn_split_kind kind;
    } known[] = {
        {qn_gpt2_pattern, QN_SPLIT_GPT2},
        {qn_llama3_pattern, QN_SPLIT_LLAMA3},
        {qn_qwen2_pattern, QN_SPLIT_QWEN2},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strlen(known[i].pattern) == n && memcmp(known[i].pattern, pattern, n) == 0) return known[i].kind;
    return QN_SPLIT_NONE;
}

typedef enum { LETTER, NUMBER, SPACE, OTHER, END } char_class;

/* Class of the character at i and its length. */
static inline char_class class_at(const char *s, size_t n, size_t i, size_t *used)
{
    if (i >= n) {
        *used = 0;
        return END;
    }
    uint32_t cp = (uint8_t)s[i];
    *used = 1;
    if (cp >= 0x80 && !(*used = qn_utf8_decode(s + i, n - i, &cp))) {
        *used = 1;
        return OTHER;
    }
    if (qn_cp_is_letter(cp)) return LETTER;
    if (qn_cp_is_space(cp)) return SPACE;
    return qn_cp_is_number(cp) ? NUMBER : OTHER;
}

static size_t run_of(char_class class, const char *s, size_t n, size_t i, size_t most)
{
    size_t used;
    for (; most && class_at(s, n, i, &used) == class; most--) i += used;
    return i;
}

/* \s+(?!\S)|\s+ from i, which is white space: all of it at the end of the text, else all but its last
 * character, unless that is all there is. */
static size_t space_run(const char *s, size_t n, size_t i)
{
    size_t last = i, used, at = i;
    while (class_at(s, n, at, &used) == SPACE) {
        last = at;
        at += used;
    }
    return at == n || last == i ? at : last;
}

/* Length of 's 't 're 've 'm 'll 'd at i, which is an apostrophe; 0: none. */
static size_t contraction(const char *s, size_t n, size_t i, int any_case)
{
    char a = i + 1 < n ? s[i + 1] : 0, b = i + 2 < n ? s[i + 2] : 0;
    if (any_case) {
        /* U+017F, the long s, is an s when case does not matter. */
        if ((uint8_t)a == 0xc5 && (uint8_t)b == 0xbf) return 3;
        if (a >= 'A' && a <= 'Z') a = (char)(a | 32);
        if (b >= 'A' && b <= 'Z') b = (char)(b | 32);
    }
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

static size_t next_gpt2(const char *s, size_t n, size_t i)
{
    size_t used, length;
    if (s[i] == '\'' && (length = contraction(s, n, i, 0))) return i + length;
    char_class class = class_at(s, n, i, &used);
    size_t start = i;
    if (s[i] == ' ') {
        class = class_at(s, n, i + 1, &used);
        if (class == SPACE || class == END) return space_run(s, n, i);
        start = i + 1;
    }
    return class == SPACE ? space_run(s, n, i) : run_of(class, s, n, start, SIZE_MAX);
}

static size_t newlines(const char *s, size_t n, size_t i)
{
    while (i < n && (s[i] == '\r' || s[i] == '\n')) i++;
    return i;
}

static size_t next_llama3(const char *s, size_t n, size_t i, size_t digits)
{
    size_t used, used_next, length;
    if (s[i] == '\'' && (length = contraction(s, n, i, 1))) return i + length;
    char_class class = class_at(s, n, i, &used);
    if (class == LETTER) return run_of(LETTER, s, n, i, SIZE_MAX);
    if (class == NUMBER) return run_of(NUMBER, s, n, i, digits);
    char_class next = class_at(s, n, i + used, &used_next);
    if (s[i] != '\r' && s[i] != '\n' && next == LETTER) return run_of(LETTER, s, n, i + used, SIZE_MAX);
    if (class == OTHER || (s[i] == ' ' && next == OTHER))
        return newlines(s, n, run_of(OTHER, s, n, class == OTHER ? i : i + 1, SIZE_MAX));
    /* White space: through the last newline of the run, if there is one. */
    size_t at = i, after_newline = 0;
    while (class_at(s, n, at, &used) == SPACE) {
        if (s[at] == '\r' || s[at] == '\n') after_newline = at + 1;
        at += used;
    }
    return after_newline ? after_newline : space_run(s, n, i);
}

size_t qn_split_next(qn_split_kind kind, const char *text, size_t n, size_t at)
{
    return kind == QN_SPLIT_GPT2 ? next_gpt2(text, n, at)
                                 : next_llama3(text, n, at, kind == QN_SPLIT_LLAMA3 ? 3 : 1);
}

#include "base/json/partial_json.h"

#include <string.h>

typedef struct {
    char closers[QN_PARTIAL_JSON_DEPTH_MAX]; /* of what is open, the outermost first */
    size_t depth;
    int is_key;  /* in an object, before the colon */
    size_t safe; /* the text up to here has complete values only */
    char at_safe[QN_PARTIAL_JSON_DEPTH_MAX];
    size_t safe_depth;
} scan;

static void mark(scan *s, size_t end)
{
    s->safe = end;
    s->safe_depth = s->depth;
    memcpy(s->at_safe, s->closers, s->depth);
}

/* The place behind the string that begins at i; 0: it does not end. */
static size_t end_of_string(const char *text, size_t n, size_t i)
{
    for (i++; i < n; i++) {
        if (text[i] == '\\')
            i++;
        else if (text[i] == '"')
            return i + 1;
    }
    return 0;
}

/* The same of a number or a word: it ends where something else begins. */
static size_t end_of_word(const char *text, size_t n, size_t i)
{
    while (i < n && !strchr(",]} \t\r\n", text[i])) i++;
    return i < n ? i : 0;
}

static int is_word(const char *text, size_t n)
{
    static const char *const words[] = {"true", "false", "null"};
    for (size_t i = 0; i < 3; i++)
        if (strlen(words[i]) == n && memcmp(words[i], text, n) == 0) return 1;
    return 0;
}

static int is_in_object(const scan *s)
{
    return s->depth && s->closers[s->depth - 1] == '}';
}

/* Reads the value, key or mark at i. Returns the place behind it; 0: the text breaks off in it. */
static size_t step(scan *s, const char *text, size_t n, size_t i)
{
    const char c = text[i];
    size_t end = i + 1;
    if (c == '{' || c == '[') {
        if (s->depth == QN_PARTIAL_JSON_DEPTH_MAX) return 0;
        s->closers[s->depth++] = c == '{' ? '}' : ']';
        s->is_key = c == '{';
        mark(s, end);
    } else if (c == '}' || c == ']') {
        if (!s->depth || s->closers[s->depth - 1] != c) return 0;
        s->depth--;
        mark(s, end);
    } else if (c == ',') {
        s->is_key = is_in_object(s);
    } else if (c == ':') {
        s->is_key = 0;
    } else if (!strchr(" \t\r\n", c)) {
        end = c == '"' ? end_of_string(text, n, i) : end_of_word(text, n, i);
        if (!end && is_word(text + i, n - i)) end = n;
        if (end && !s->is_key) mark(s, end);
    }
    return end;
}

void qn_partial_json_close(const char *text, size_t n, qn_buf *out)
{
    scan s = {0};
    size_t i = 0;
    while (i < n && strchr(" \t\r\n", text[i])) i++;
    const int begins = i < n && (text[i] == '{' || text[i] == '[');
    while (begins && i < n && (s.depth || !s.safe)) {
        i = step(&s, text, n, i);
        if (!i) break;
    }
    if (!s.safe) {
        qn_buf_puts(out, "{}");
        return;
    }
    qn_buf_append(out, text, s.safe);
    while (s.safe_depth) qn_buf_putc(out, s.at_safe[--s.safe_depth]);
}

#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/tokenizer/split/regex.h"

#include <pcre2.h>
#include <stdint.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"

enum {
    PATTERN_MAX = 64 << 10,
    /* Steps of one match; a sane expression needs a few per character of a word. */
    MATCH_LIMIT = 10000,
    MATCH_LIMIT_PER_BYTE = 64, /* of the text it sees */
    WINDOW = 256,              /* bytes of text that a match sees at first */
    /* Of a text of n bytes, LOOK_SPARE + n * LOOK_PER_BYTE bytes may be seen through wider windows. */
    LOOK_PER_BYTE = 32,
    LOOK_SPARE = 32 << 20,
    HEAP_LIMIT_KIB = 64 << 10,
    JIT_STACK_MAX = 4 << 20,
    CLASS_DEPTH_MAX = 16,
};

/* The word characters of Oniguruma; PCRE2 leaves marks out. */
#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"

struct qn_regex {
    pcre2_code *code;
    char *pattern;
    size_t n;
    int jit;
};

struct qn_regex_match {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

typedef struct {
    const char *s;
    size_t n, at;
    qn_buf out;
} translation;

static qn_status class_set(translation *t, int depth);

/* One escape, on its backslash: copied, with \s, \w, \b and \h spelt as the properties they are in Oniguruma.
 */
static qn_status escape(translation *t, int in_class)
{
    char c = t->at + 1 < t->n ? t->s[t->at + 1] : 0;
    if (c == 's' || c == 'S') {
        qn_buf_puts(&t->out, c == 's' ? "\\p{White_Space}" : "\\P{White_Space}");
        t->at += 2;
    } else if (c == 'h' || c == 'H') {
        qn_buf_puts(&t->out, c == 'h' ? "\\p{ASCII_Hex_Digit}" : "\\P{ASCII_Hex_Digit}");
        t->at += 2;
    } else if ((c == 'b' || c == 'B') && !in_class) {
        qn_buf_puts(&t->out, c == 'b' ? "(?:(?<=[" WORD "])(?![" WORD "])|(?<![" WORD "])(?=[" WORD "]))"
                                      : "(?:(?<=[" WORD "])(?=[" WORD "])|(?<![" WORD "])(?![" WORD "]))");
        t->at += 2;
    } else if (c == 'w' || (c == 'W' && !in_class)) {
        if (!in_class) qn_buf_puts(&t->out, c == 'w' ? "[" : "[^");
        qn_buf_puts(&t->out, WORD);
        if (!in_class) qn_buf_putc(&t->out, ']');
        t->at += 2;
    } else if (c == 'G' && !in_class) {
        return qn_fail(QN_E_UNSUPPORTED, "\\G in a regular expression");
    } else {
        size_t used = t->n - t->at < 2 ? t->n - t->at : 2;
        qn_buf_append(&t->out, t->s + t->at, used);
        t->at += used;
    }
    return QN_OK;
}

/* Does the class that starts at t->at use nesting or &&, which PCRE2 reads as plain characters? */
static int class_is_nested(const translation *t)
{
    size_t i = t->at + 1;
    if (i < t->n && t->s[i] == '^') i++;
    if (i < t->n && t->s[i] == ']') i++;
    for (; i < t->n && t->s[i] != ']'; i++) {
        if (t->s[i] == '\\') {
            i++;
        } else if (t->s[i] == '[') {
            if (i + 1 < t->n && t->s[i + 1] == ':') {
                while (i + 1 < t->n && !(t->s[i] == ':' && t->s[i + 1] == ']')) i++;
                i++;
            } else {
                return 1;
            }
        } else if (t->s[i] == '&' && i + 1 < t->n && t->s[i + 1] == '&') {
            return 1;
        }
    }
    return 0;
}

/* A plain class is copied. */
static qn_status plain_class(translation *t)
{
    size_t first = t->at + 1;
    if (first < t->n && t->s[first] == '^') first++;
    while (t->at < t->n) {
        char c = t->s[t->at];
        if (c == '\\') {
            QN_TRY(escape(t, 1));
            continue;
        }
        if (c == '[' && t->at + 1 < t->n && t->s[t->at + 1] == ':' && t->at >= first) {
            do {
                qn_buf_putc(&t->out, t->s[t->at++]);
            } while (t->at + 1 < t->n && !(t->s[t->at] == ':' && t->s[t->at + 1] == ']'));
            continue;
        }
        int last = c == ']' && t->at > first;
        if (c == ']' && t->at == first) qn_buf_putc(&t->out, '\\');
        qn_buf_putc(&t->out, c);
        t->at++;
        if (last) return QN_OK;
    }
    return QN_OK;
}

/* [A[B]&&C] as an expression for one character: each part of an intersection but the last is a look-ahead, a
 * union of plain items and nested sets is an alternation. Starts on the bracket. */
static qn_status class_set(translation *t, int depth)
{
    if (depth > CLASS_DEPTH_MAX)
        return qn_fail(QN_E_UNSUPPORTED, "a character class is nested deeper than %d", CLASS_DEPTH_MAX);
    if (!class_is_nested(t)) return plain_class(t);
    t->at++;
    int negated = t->at < t->n && t->s[t->at] == '^';
    t->at += (size_t)negated;
    qn_buf_puts(&t->out, negated ? "(?:(?!" : "(?:");
    qn_buf_puts(&t->out, "(?=(?:");
    int plain = 0, items = 0;
    for (;;) {
        if (t->at >= t->n) return qn_fail(QN_E_FORMAT, "a character class has no end");
        char c = t->s[t->at];
        int both = c == '&' && t->at + 1 < t->n && t->s[t->at + 1] == '&';
        if (plain && (c == '[' || c == ']' || both)) {
            qn_buf_putc(&t->out, ']');
            plain = 0;
        }
        if (c == ']') {
            t->at++;
            break;
        }
        if (both) {
            if (!items)
                return qn_fail(QN_E_UNSUPPORTED, "an intersection of character classes has an empty part");
            qn_buf_puts(&t->out, "))(?=(?:");
            t->at += 2;
            items = 0;
            continue;
        }
        if (!plain && items) qn_buf_putc(&t->out, '|');
        if (c == '[') {
            QN_TRY(class_set(t, depth + 1));
            items++;
            continue;
        }
        if (!plain) {
            qn_buf_putc(&t->out, '[');
            items++;
        }
        if (!plain && c == '^') qn_buf_putc(&t->out, '\\');
        plain = 1;
        if (c == '\\') {
            QN_TRY(escape(t, 1));
        } else {
            qn_buf_putc(&t->out, c);
            t->at++;
        }
    }
    if (!items) return qn_fail(QN_E_UNSUPPORTED, "a character class has an empty part");
    qn_buf_puts(&t->out, negated ? ")))(?s:.))" : "))(?s:.))");
    return QN_OK;
}

static qn_status translate(translation *t)
{
    while (t->at < t->n) {
        char c = t->s[t->at];
        if (c == '\\') {
            QN_TRY(escape(t, 0));
        } else if (c == '[') {
            QN_TRY(class_set(t, 0));
        } else if (c == '(' && t->at + 1 < t->n && t->s[t->at + 1] == '*') {
            return qn_fail(QN_E_UNSUPPORTED, "control verbs in a regular expression");
        } else {
            qn_buf_putc(&t->out, c);
            t->at++;
        }
    }
    return t->out.status;
}

/* ---- PCRE2's memory ------------------------------------------------------------------------------------ */

/* PCRE2 does not always say that memory ran out: an expression may stay without machine code. */
static _Thread_local int ran_out;

static void *pcre2_take(size_t size_bytes, void *user)
{
    void *p = qn_alloc(size_bytes);
    if (!p) ran_out = 1;
    return p;
}

static void pcre2_give(void *p, void *user)
{
    qn_free(p);
}

/* NULL: memory is out. What is made with it keeps the two functions, so it may be freed at once. */
static pcre2_general_context *memory_context(void)
{
    ran_out = 0;
    return pcre2_general_context_create(pcre2_take, pcre2_give, NULL);
}

/* Compiles text into r->code and, where the machine allows, into machine code. *error is PCRE2's. */
static qn_status compile(qn_regex *r, const qn_buf *text, int *error)
{
    /* Oniguruma's ^ and $ are those of lines. */
    const uint32_t flags =
        PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT;
    PCRE2_SIZE offset;
    pcre2_general_context *memory = memory_context();
    pcre2_compile_context *context = memory ? pcre2_compile_context_create(memory) : NULL;
    if (context)
        r->code = pcre2_compile((PCRE2_SPTR)text->data, text->length, flags, error, &offset, context);
    if (r->code) r->jit = pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD) == 0;
    pcre2_compile_context_free(context);
    pcre2_general_context_free(memory);
    if (ran_out) return QN_E_NOMEM;
    return r->code ? QN_OK : QN_E_FORMAT;
}

qn_status qn_regex_new(const char *pattern, size_t n, qn_regex **out)
{
    if (n > PATTERN_MAX)
        return qn_fail(QN_E_UNSUPPORTED, "a regular expression of %zu bytes (the limit is %d)", n,
                       PATTERN_MAX);
    qn_status status = QN_OK;
    translation t = {.s = pattern, .n = n};
    qn_regex *r = qn_calloc(1, sizeof *r);
    if (!r) return QN_E_NOMEM;
    r->pattern = qn_strndup(pattern, n);
    r->n = n;
    if (!r->pattern) {
        status = QN_E_NOMEM;
        goto out;
    }
    qn_buf_append(&t.out, "", 0);
    if ((status = translate(&t)) != QN_OK) goto out;
    int error = 0;
    status = compile(r, &t.out, &error);
    if (status == QN_E_FORMAT) {
        PCRE2_UCHAR text[128];
        pcre2_get_error_message(error, text, sizeof text);
        status = qn_fail(QN_E_FORMAT, "bad regular expression '%.*s': %s", (int)(n < 120 ? n : 120), pattern,
                         (const char *)text);
    }
    if (status != QN_OK) goto out;
    *out = r;
    r = NULL;
out:
    qn_regex_free(r);
    qn_buf_free(&t.out);
    return status;
}

void qn_regex_free(qn_regex *r)
{
    if (!r) return;
    pcre2_code_free(r->code);
    qn_free(r->pattern);
    qn_free(r);
}

const char *qn_regex_pattern(const qn_regex *r, size_t *n)
{
    *n = r->n;
    return r->pattern;
}

qn_regex_match *qn_regex_match_new(void)
{
    qn_regex_match *m = qn_calloc(1, sizeof *m);
    if (!m) return NULL;
    pcre2_general_context *memory = memory_context();
    if (memory) {
        m->data = pcre2_match_data_create(1, memory); /* only where the match lies, no groups */
        m->context = pcre2_match_context_create(memory);
    }
    pcre2_general_context_free(memory);
    if (!m->data || !m->context) {
        qn_regex_match_free(m);
        return NULL;
    }
    pcre2_set_heap_limit(m->context, HEAP_LIMIT_KIB);
    return m;
}

void qn_regex_match_free(qn_regex_match *m)
{
    if (!m) return;
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->context);
    pcre2_jit_stack_free(m->stack);
    qn_free(m);
}

/* PCRE2's answer for a match that begins in text[from..end) and sees nothing behind end. */
static int match_in(const qn_regex *r, qn_regex_match *m, const char *text, size_t end, size_t from,
                    uint32_t options)
{
    size_t seen = end - from, most = (UINT32_MAX - MATCH_LIMIT) / MATCH_LIMIT_PER_BYTE;
    options |= PCRE2_NO_UTF_CHECK;
    pcre2_set_match_limit(m->context,
                          MATCH_LIMIT + MATCH_LIMIT_PER_BYTE * (uint32_t)(seen < most ? seen : most));
    int rc = pcre2_match(r->code, (PCRE2_SPTR)text, end, from, options, m->data, m->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT && !m->stack) {
        /* The 32 KiB that PCRE2 takes from the machine's stack do not do for every expression. */
        pcre2_general_context *memory = memory_context();
        if (memory) m->stack = pcre2_jit_stack_create(32 << 10, JIT_STACK_MAX, memory);
        pcre2_general_context_free(memory);
        if (!m->stack) return PCRE2_ERROR_NOMEMORY;
        pcre2_jit_stack_assign(m->context, NULL, m->stack);
        rc = pcre2_match(r->code, (PCRE2_SPTR)text, end, from, options, m->data, m->context);
    }
    return rc;
}

static size_t next_char(const char *text, size_t n, size_t at)
{
    do at++;
    while (at < n && ((uint8_t)text[at] & 0xc0) == 0x80);
    return at;
}

/* The next match at or behind w->from. It sees a window of the text. Where one might begin that wants to look
 * behind the window, this place alone is tried with windows of twice the size, and what they show is counted:
 * an expression that looks far ahead from everywhere would take time by the square of the text. */
static qn_status find(const qn_regex *r, qn_regex_match *m, const char *text, size_t n, qn_regex_walk *w,
                      int *found, size_t *start, size_t *end)
{
    size_t from = w->from, reach = WINDOW;
    int here = 0, rc; /* here: it must begin at from */
    *found = 0;
    for (;;) {
        int whole = n - from <= reach;
        size_t seen_to = whole ? n : from + reach;
        while (seen_to < n && ((uint8_t)text[seen_to] & 0xc0) == 0x80) seen_to--;
        pcre2_set_offset_limit(m->context, here ? from : PCRE2_UNSET);
        rc = match_in(r, m, text, seen_to, from, whole ? 0 : PCRE2_PARTIAL_HARD);
        if (rc == PCRE2_ERROR_NOMATCH) {
            if ((whole && !here) || from >= n) return QN_OK;
            from = here ? next_char(text, n, from) : seen_to;
            reach = WINDOW;
            here = 0;
            continue;
        }
        if (rc != PCRE2_ERROR_PARTIAL) break;
        from = pcre2_get_ovector_pointer(m->data)[0];
        w->seen += seen_to - from;
        if (w->seen / LOOK_PER_BYTE > n + LOOK_SPARE / LOOK_PER_BYTE)
            return qn_fail(QN_E_UNSUPPORTED,
                           "regular expression '%.*s' looks too far ahead in a text of %zu bytes",
                           (int)(r->n < 120 ? r->n : 120), r->pattern, n);
        reach *= 2;
        here = 1;
    }
    if (rc == PCRE2_ERROR_NOMEMORY) return qn_fail_nomem(0);
    if (rc < 0) {
        PCRE2_UCHAR message[128];
        pcre2_get_error_message(rc, message, sizeof message);
        return qn_fail(QN_E_UNSUPPORTED, "regular expression '%.*s': %s", (int)(r->n < 120 ? r->n : 120),
                       r->pattern, (const char *)message);
    }
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(m->data);
    if (at[0] > at[1]) return QN_OK; /* \K in a look-ahead may do this */
    *found = 1;
    *start = at[0];
    *end = at[1];
    return QN_OK;
}

qn_status qn_regex_next(const qn_regex *r, qn_regex_match *m, const char *text, size_t n, qn_regex_walk *w,
                        int *found, size_t *start, size_t *end)
{
    while (w->from <= n) {
        QN_TRY(find(r, m, text, n, w, found, start, end));
        if (!*found) return QN_OK;
        int repeats = *start == *end && w->matched && w->last_end == *end;
        w->from = *start == *end ? next_char(text, n, *end) : *end;
        w->matched = 1;
        w->last_end = *end;
        if (!repeats) return QN_OK;
    }
    *found = 0;
    return QN_OK;
}

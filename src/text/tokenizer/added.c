#include "text/tokenizer/added.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "text/tokenizer/split/unicode.h"

/* Steps that a text of n bytes may take: STEPS_SPARE + n * STEPS_PER_BYTE. Text takes one or two a byte. */
enum { STEPS_PER_BYTE = 16, STEPS_SPARE = 16 << 20 };

qn_status qn_added_add(qn_added *a, const qn_added_token *token)
{
    /* Texts are UTF-8: what is not, as in GGUF files, could stand across two characters of one alone, and
     * what reads the rest of the text relies on whole ones. */
    if (!token->n || qn_utf8_valid_prefix(token->text, token->n) != token->n) return QN_OK;
    if (token->n > QN_ADDED_MAX_BYTES)
        return qn_fail(QN_E_UNSUPPORTED, "added token %d has %u bytes of text (the limit is %d)", token->id,
                       token->n, QN_ADDED_MAX_BYTES);
    if (a->n == a->capacity) {
        size_t capacity = a->capacity ? a->capacity * 2 : 64, total;
        qn_added_token *tokens =
            qn_mul_size(capacity, sizeof *tokens, &total) ? qn_realloc(a->tokens, total) : NULL;
        if (!tokens) return QN_E_NOMEM;
        a->tokens = tokens;
        a->capacity = capacity;
    }
    char *text = qn_arena_strndup(&a->arena, token->text, token->n);
    if (!text) return QN_E_NOMEM;
    a->tokens[a->n] = *token;
    a->tokens[a->n++].text = text;
    return QN_OK;
}

static int by_text(const void *x, const void *y)
{
    const qn_added_token *a = x, *b = y;
    int c = memcmp(a->text, b->text, a->n < b->n ? a->n : b->n);
    if (c) return c;
    if (a->n != b->n) return a->n < b->n ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

void qn_added_finish(qn_added *a)
{
    if (a->n) qsort(a->tokens, a->n, sizeof *a->tokens, by_text);
    uint32_t at = 0;
    for (int b = 0; b < 256; b++) {
        a->first[b] = at;
        while (at < a->n && (uint8_t)a->tokens[at].text[0] == b) at++;
    }
    a->first[256] = at;
}

void qn_added_free(qn_added *a)
{
    qn_free(a->tokens);
    qn_arena_clear(&a->arena);
    *a = (qn_added){0};
}

/* Is all of [start, end) trusted? Calls come with rising start. */
static int is_trusted(qn_added_walk *w, size_t start, size_t end)
{
    if (!w->runs) return w->trusted;
    while (w->i_run < w->n_runs && w->runs[w->i_run].end <= start) w->i_run++;
    for (size_t i = w->i_run; i < w->n_runs; i++) {
        if (!w->runs[i].trusted) return 0;
        if (w->runs[i].end >= end) return 1;
    }
    return 0;
}

/* The longest enabled token whose text starts at at. */
static const qn_added_token *longest(const qn_added *a, qn_added_walk *w, size_t at)
{
    const qn_added_token *best = NULL;
    uint8_t first = (uint8_t)w->text[at];
    size_t low = a->first[first], high = a->first[first + 1];
    for (size_t depth = 1; low < high; depth++) {
        w->steps++;
        /* Here tokens [low, high) agree with the text in depth bytes; those that end here come first. */
        for (; low < high && a->tokens[low].n == depth; low++)
            if (!a->tokens[low].special || is_trusted(w, at, at + depth)) best = &a->tokens[low];
        if (low == high || at + depth >= w->n) break;
        uint8_t byte = (uint8_t)w->text[at + depth];
        size_t from = low, to = high;
        while (from < to) {
            size_t middle = from + (to - from) / 2;
            if ((uint8_t)a->tokens[middle].text[depth] < byte)
                from = middle + 1;
            else
                to = middle;
        }
        low = from;
        to = high;
        while (from < to) {
            size_t middle = from + (to - from) / 2;
            if ((uint8_t)a->tokens[middle].text[depth] <= byte)
                from = middle + 1;
            else
                to = middle;
        }
        high = from;
    }
    return best;
}

static size_t char_before(const char *s, size_t at, uint32_t *cp)
{
    size_t start = at - 1;
    while (start > 0 && ((uint8_t)s[start] & 0xc0) == 0x80) start--;
    return qn_utf8_decode(s + start, at - start, cp) ? at - start : 0;
}

int qn_added_next(const qn_added *a, qn_added_walk *w, qn_added_match *match)
{
    if (!a->n) return 0;
    while (w->at < w->n) {
        w->spent = w->steps / STEPS_PER_BYTE > w->n + STEPS_SPARE / STEPS_PER_BYTE;
        if (w->spent) return 0;
        uint8_t byte = (uint8_t)w->text[w->at];
        const qn_added_token *t = a->first[byte] == a->first[byte + 1] ? NULL : longest(a, w, w->at);
        if (!t) {
            w->at++;
            continue;
        }
        size_t start = w->at, end = start + t->n, used;
        uint32_t cp;
        w->at = end;
        if (t->single_word) {
            if (start && char_before(w->text, start, &cp) && qn_cp_is_word(cp)) continue;
            if (end < w->n && qn_utf8_decode(w->text + end, w->n - end, &cp) && qn_cp_is_word(cp)) continue;
        }
        /* White space that the token before took is not taken again. */
        if (t->lstrip) {
            while (start > w->done && (used = char_before(w->text, start, &cp)) && qn_cp_is_space(cp))
                start -= used;
            if (start < w->done) start = w->done;
        }
        const size_t most = w->n_beyond ? w->n_beyond : w->n;
        while (t->rstrip && end < most && (used = qn_utf8_decode(w->text + end, most - end, &cp)) &&
               qn_cp_is_space(cp))
            end += used;
        if (start >= end)
            continue; /* nothing is left of it: so does the library that these files come from */
        *match = (qn_added_match){start, end, t->id};
        w->done = end;
        return 1;
    }
    return 0;
}

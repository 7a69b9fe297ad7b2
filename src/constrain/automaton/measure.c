/* What an automaton's language holds: whether it is finite, how long its texts are, how many they are. A
 * language is infinite if and only if a cycle can be reached, since no state but 0 is dead. */
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "constrain/automaton/dfa.h"
#include "constrain/automaton/work.h"

/* States such that edges lead from later to earlier ones. *is_finite: there is no cycle (else order is not
 * complete). Depth first, with an explicit stack instead of recursion. */
static qn_status order_states(qn_dfa_work *w, const qn_dfa *d, int32_t *order, int32_t *n_order,
                              int *is_finite)
{
    size_t n = (size_t)d->n_states;
    int32_t *stack = qn_arena_alloc(&w->arena, sizeof *stack * (n + 1));
    int32_t *at = qn_arena_calloc(&w->arena, n, sizeof *at); /* the class that comes next */
    uint8_t *state = qn_arena_calloc(&w->arena, n, 1);       /* 1: on the stack; 2: done */
    if (!stack || !at || !state) return QN_E_NOMEM;
    size_t depth = 0;
    *n_order = 0;
    *is_finite = 1;
    if (d->start) stack[depth++] = d->start, state[d->start] = 1;
    while (depth) {
        int32_t s = stack[depth - 1];
        if (at[s] == d->n_classes) {
            state[s] = 2;
            order[(*n_order)++] = s;
            depth--;
            continue;
        }
        int32_t t = d->next[(size_t)s * (size_t)d->n_classes + (size_t)at[s]++];
        if (!t || state[t] == 2) continue;
        if (state[t] == 1) {
            *is_finite = 0;
            return QN_OK;
        }
        state[t] = 1;
        stack[depth++] = t;
    }
    return QN_OK;
}

int qn_dfa_is_finite(const qn_dfa *d)
{
    qn_dfa_work w;
    qn_dfa_work_begin(&w, NULL);
    int32_t *order = qn_arena_alloc(&w.arena, sizeof *order * ((size_t)d->n_states + 1)), n;
    int is_finite = 0;
    if (!order || order_states(&w, d, order, &n, &is_finite) != QN_OK) is_finite = 0;
    qn_dfa_work_end(&w);
    return is_finite;
}

static int is_continuation(int byte)
{
    return (byte & 0xc0) == 0x80;
}

/* The shortest way to an end, where a byte costs 1, or 0 if it continues a character. */
static qn_status shortest(qn_dfa_work *w, const qn_dfa *d, const uint8_t *cost, int64_t *out)
{
    size_t n = (size_t)d->n_states, k = (size_t)d->n_classes;
    int64_t *distance = qn_arena_alloc(&w->arena, sizeof *distance * n);
    int32_t *now = qn_arena_alloc(&w->arena, sizeof *now * (n + 1) * 2), *later = now + n + 1;
    if (!distance || !now) return QN_E_NOMEM;
    for (size_t i = 0; i < n; i++) distance[i] = -1;
    size_t n_now = 0, n_later = 0;
    *out = -1;
    if (!d->start) return QN_OK;
    uint8_t *is_done = qn_arena_calloc(&w->arena, n, 1);
    if (!is_done) return QN_E_NOMEM;
    now[n_now++] = d->start;
    distance[d->start] = 0;
    for (int64_t length = 0; n_now; length++) {
        for (size_t i = 0; i < n_now; i++) { /* grows by what costs nothing */
            int32_t s = now[i];
            if (is_done[s]) continue;
            is_done[s] = 1;
            if (d->flags[s] & QN_DFA_ACCEPTS) {
                *out = length;
                return QN_OK;
            }
            for (size_t c = 0; c < k; c++) {
                int32_t t = d->next[(size_t)s * k + c];
                if (!t || is_done[t]) continue;
                if (cost[c] == 0 && distance[t] != length) {
                    distance[t] = length;
                    if (n_now < n + 1) now[n_now++] = t;
                } else if (cost[c] && distance[t] < 0) {
                    distance[t] = length + 1;
                    later[n_later++] = t;
                }
            }
        }
        int32_t *swap = now;
        now = later;
        later = swap;
        n_now = n_later;
        n_later = 0;
    }
    return QN_OK;
}

static void longest(const qn_dfa *d, const int32_t *order, int32_t n_order, const uint8_t *cost,
                    int64_t *length, int64_t *out)
{
    size_t k = (size_t)d->n_classes;
    for (int32_t i = 0; i < n_order; i++) {
        int32_t s = order[i];
        length[s] = 0;
        for (size_t c = 0; c < k; c++) {
            int32_t t = d->next[(size_t)s * k + c];
            if (t && length[t] + cost[c] > length[s]) length[s] = length[t] + cost[c];
        }
    }
    *out = length[d->start];
}

static qn_status measure(qn_dfa_work *w, const qn_dfa *d, qn_dfa_lengths *out)
{
    qn_dfa_lengths r = {-1, -1, -1, -1};
    if (d->start) {
        uint8_t of_byte[256], of_char[256];
        memset(of_byte, 1, sizeof of_byte);
        /* Bytes of one class that is alive are all continuations or none is, as the language is UTF-8's. */
        for (int b = 0; b < 256; b++) of_char[d->class_of[b]] = !is_continuation(b);
        int32_t *order = qn_arena_alloc(&w->arena, sizeof *order * ((size_t)d->n_states + 1)), n;
        int64_t *length = qn_arena_calloc(&w->arena, (size_t)d->n_states, sizeof *length);
        if (!order || !length) return QN_E_NOMEM;
        int is_finite;
        QN_TRY(order_states(w, d, order, &n, &is_finite));
        QN_TRY(shortest(w, d, of_byte, &r.min_bytes));
        QN_TRY(shortest(w, d, of_char, &r.min_chars));
        if (is_finite) {
            longest(d, order, n, of_byte, length, &r.max_bytes);
            longest(d, order, n, of_char, length, &r.max_chars);
        }
    }
    *out = r;
    return QN_OK;
}

qn_status qn_dfa_measure(const qn_dfa *d, qn_dfa_lengths *out)
{
    qn_dfa_work w;
    qn_dfa_work_begin(&w, NULL);
    qn_status s = measure(&w, d, out);
    qn_dfa_work_end(&w);
    return s;
}

static qn_status count_texts(qn_dfa_work *w, const qn_dfa *d, int64_t *out)
{
    int32_t *order = qn_arena_alloc(&w->arena, sizeof *order * ((size_t)d->n_states + 1)), n;
    int64_t *count = qn_arena_calloc(&w->arena, (size_t)d->n_states, sizeof *count);
    if (!order || !count) return QN_E_NOMEM;
    int is_finite;
    QN_TRY(order_states(w, d, order, &n, &is_finite));
    if (!is_finite) {
        *out = -1;
        return QN_OK;
    }
    int32_t n_bytes[256] = {0};
    for (int b = 0; b < 256; b++) n_bytes[d->class_of[b]]++;
    for (int32_t i = 0; i < n; i++) {
        int32_t s = order[i];
        int64_t sum = d->flags[s] & QN_DFA_ACCEPTS ? 1 : 0, more;
        for (int32_t c = 0; c < d->n_classes; c++) {
            int32_t t = d->next[(size_t)s * (size_t)d->n_classes + (size_t)c];
            if (!t) continue;
            if (__builtin_mul_overflow(count[t], (int64_t)n_bytes[c], &more)) more = INT64_MAX;
            if (__builtin_add_overflow(sum, more, &sum)) sum = INT64_MAX;
        }
        count[s] = sum;
    }
    *out = d->start ? count[d->start] : 0;
    return QN_OK;
}

qn_status qn_dfa_count(const qn_dfa *d, int64_t *out)
{
    qn_dfa_work w;
    qn_dfa_work_begin(&w, NULL);
    qn_status s = count_texts(&w, d, out);
    qn_dfa_work_end(&w);
    return s;
}

qn_status qn_dfa_list(const qn_dfa *d, size_t n_max, qn_dfa_visit *visit, void *context)
{
    int64_t n_texts;
    QN_TRY(qn_dfa_count(d, &n_texts));
    if (n_texts < 0) return qn_fail(QN_E_ARG, "the language is infinite");
    if (n_texts == 0) return QN_OK;
    qn_dfa_lengths lengths;
    QN_TRY(qn_dfa_measure(d, &lengths));
    size_t longest_text = (size_t)lengths.max_bytes, depth = 0, n = 0;
    qn_status status = QN_OK;
    char *text = qn_alloc(longest_text + 1);
    int32_t *states = qn_alloc_array(longest_text + 1, sizeof *states);
    int *bytes = qn_alloc_array(longest_text + 1, sizeof *bytes); /* the byte that is tried next */
    if (!text || !states || !bytes) {
        status = QN_E_NOMEM;
        goto out;
    }
    states[0] = d->start;
    bytes[0] = -1;
    for (;;) {
        int32_t s = states[depth];
        if (bytes[depth] < 0) {
            bytes[depth] = 0;
            if (d->flags[s] & QN_DFA_ACCEPTS) {
                if (n++ == n_max) {
                    status = qn_fail(QN_E_FULL, "the language has more than %zu texts", n_max);
                    goto out;
                }
                if ((status = visit(context, text, depth)) != QN_OK) goto out;
            }
        }
        int b = bytes[depth];
        while (b < 256 && !qn_dfa_step(d, s, (uint8_t)b)) b++;
        if (b == 256) {
            if (depth-- == 0) break;
            continue;
        }
        bytes[depth] = b + 1;
        text[depth++] = (char)b;
        states[depth] = qn_dfa_step(d, s, (uint8_t)b);
        bytes[depth] = -1;
    }
out:
    qn_free(bytes);
    qn_free(states);
    qn_free(text);
    return status;
}

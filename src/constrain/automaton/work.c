#include "constrain/automaton/work.h"

#include <string.h>

#include "base/checked.h"
#include "base/mem.h"

void qn_dfa_work_begin(qn_dfa_work *w, const qn_dfa_limits *limits)
{
    qn_dfa_limits l = {0};
    if (limits) l = *limits;
    *w = (qn_dfa_work){
        .arena = {.limit_bytes = QN_DFA_BYTES_MAX},
        .pattern_bytes_max = l.pattern_bytes_max ? l.pattern_bytes_max : 16 << 10,
        .depth_max = l.depth_max > 0 ? l.depth_max : 64,
        .states_max = l.states_max > 0 ? l.states_max : 50000,
        .steps_max = l.steps_max > 0 ? l.steps_max : 20000000,
    };
    if (w->depth_max > 1000) w->depth_max = 1000; /* the parser recurses this deep */
    if (w->states_max > 1 << 24) w->states_max = 1 << 24;
}

void qn_dfa_work_end(qn_dfa_work *w)
{
    qn_arena_clear(&w->arena);
}

qn_status qn_dfa_work_steps(qn_dfa_work *w, int64_t n)
{
    w->steps += n;
    if (w->steps <= w->steps_max) return QN_OK;
    return qn_fail(QN_E_UNSUPPORTED, "too much work: the limit steps_max is %lld", (long long)w->steps_max);
}

qn_status qn_dfa_work_states(const qn_dfa_work *w, int64_t n)
{
    if (n <= w->states_max) return QN_OK;
    return qn_fail(QN_E_UNSUPPORTED, "too many states: the limit states_max is %d", w->states_max);
}

qn_dfa_limits qn_dfa_work_limits(const qn_dfa_work *w)
{
    int64_t left = w->steps_max - w->steps;
    return (qn_dfa_limits){w->pattern_bytes_max, w->depth_max, w->states_max, left > 0 ? left : 1};
}

qn_status qn_dfa_array_room(qn_dfa_work *w, qn_dfa_array *a, size_t n, size_t size_bytes)
{
    if (a->capacity - a->n >= n) return QN_OK;
    size_t capacity = a->capacity ? a->capacity : 32, bytes;
    while (capacity - a->n < n) {
        if (!qn_mul_size(capacity, 2, &capacity)) return qn_fail_nomem(SIZE_MAX);
    }
    if (!qn_mul_size(capacity, size_bytes, &bytes)) return qn_fail_nomem(SIZE_MAX);
    void *at = qn_arena_alloc(&w->arena, bytes);
    if (!at) return QN_E_NOMEM;
    if (a->n) memcpy(at, a->at, a->n * size_bytes);
    a->at = at;
    a->capacity = capacity;
    return QN_OK;
}

static uint64_t hash_row(const uint32_t *row, size_t n)
{
    uint64_t h = 0x9e3779b97f4a7c15u ^ n;
    for (size_t i = 0; i < n; i++) {
        h = (h ^ row[i]) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    return h;
}

static qn_status grow_slots(qn_dfa_work *w, qn_dfa_rows *r)
{
    size_t n_slots = r->n_slots ? r->n_slots * 2 : 64;
    uint32_t *slots = qn_arena_calloc(&w->arena, n_slots, sizeof *slots);
    if (!slots) return QN_E_NOMEM;
    for (int32_t id = 0; id < qn_dfa_rows_count(r); id++) {
        size_t n;
        const uint32_t *row = qn_dfa_rows_get(r, id, &n);
        size_t at = (size_t)hash_row(row, n) & (n_slots - 1);
        while (slots[at]) at = (at + 1) & (n_slots - 1);
        slots[at] = (uint32_t)id + 1;
    }
    r->slots = slots;
    r->n_slots = n_slots;
    return QN_OK;
}

qn_status qn_dfa_rows_add(qn_dfa_work *w, qn_dfa_rows *r, const uint32_t *row, size_t n, int32_t *id,
                          int *is_new)
{
    if (r->begins.n == 0) {
        QN_TRY(qn_dfa_array_room(w, &r->begins, 1, sizeof(size_t)));
        ((size_t *)r->begins.at)[r->begins.n++] = 0;
    }
    if ((size_t)qn_dfa_rows_count(r) * 2 >= r->n_slots) QN_TRY(grow_slots(w, r));
    QN_TRY(qn_dfa_work_steps(w, 1 + (int64_t)(n >> 3)));
    size_t at = (size_t)hash_row(row, n) & (r->n_slots - 1);
    for (; r->slots[at]; at = (at + 1) & (r->n_slots - 1)) {
        size_t m;
        const uint32_t *other = qn_dfa_rows_get(r, (int32_t)(r->slots[at] - 1), &m);
        if (m != n || (n && memcmp(other, row, n * sizeof *row) != 0)) continue;
        *id = (int32_t)(r->slots[at] - 1);
        if (is_new) *is_new = 0;
        return QN_OK;
    }
    int32_t fresh = qn_dfa_rows_count(r);
    if (fresh >= 1 << 26) return qn_fail(QN_E_UNSUPPORTED, "too many states");
    QN_TRY(qn_dfa_array_room(w, &r->words, n + 1, sizeof *row)); /* never NULL, even if all rows are empty */
    QN_TRY(qn_dfa_array_room(w, &r->begins, 1, sizeof(size_t)));
    if (n) memcpy((uint32_t *)r->words.at + r->words.n, row, n * sizeof *row);
    r->words.n += n;
    ((size_t *)r->begins.at)[r->begins.n++] = r->words.n;
    r->slots[at] = (uint32_t)fresh + 1;
    *id = fresh;
    if (is_new) *is_new = 1;
    return QN_OK;
}

#include "engine/schedule/draft.h"

#include <string.h>

#include "base/mem.h"

enum {
    N_LENGTHS = 2,
    TABLE = 2 * QN_DRAFT_WINDOW /* entries; a power of two */
};

static const int lengths[N_LENGTHS] = {4, 2}; /* of what is looked for, the surest first */

struct qn_draft {
    int64_t n; /* ids so far; the last QN_DRAFT_WINDOW of them are in the ring */
    int32_t ring[QN_DRAFT_WINDOW];
    int32_t after[N_LENGTHS][TABLE]; /* by hash: the position behind the last such ids; 0: none */
    /* The guess that is being compared, and how many of its ids came true. */
    int32_t guess[QN_DRAFT_MAX];
    int64_t n_guess, n_right;
    /* Shares of guessed ids that came true: the first of a guess, and those behind a right one. */
    double first_right, next_right;
};

int64_t qn_draft_choose(const qn_step_costs *c, const qn_draft_odds *odds, int64_t n_rows, int64_t n)
{
    const double least_gain = 1.03;
    double plain = qn_step_costs_get(c, n_rows), right = 1, tokens = (double)n_rows;
    int64_t worth = 0;
    if (plain <= 0) return 0;
    double best = least_gain * tokens / plain;
    for (int64_t i = 1; i <= n && n_rows + i <= QN_STEP_ROWS; i++) {
        right *= i == 1 ? odds->first_right : odds->next_right;
        tokens += right;
        double rate = tokens / (qn_step_costs_get(c, n_rows + i) + (double)i * odds->ns_a_guess);
        if (rate <= best) continue;
        best = rate;
        worth = i;
    }
    return worth;
}

/* ---- the sequence ---- */

qn_status qn_draft_new(qn_draft **out)
{
    qn_draft *d = qn_calloc(1, sizeof *d);
    if (!d) return QN_E_NOMEM;
    d->first_right = d->next_right = 0.5;
    *out = d;
    return QN_OK;
}

void qn_draft_free(qn_draft *d)
{
    qn_free(d);
}

static int32_t id_at(const qn_draft *d, int64_t position)
{
    return d->ring[position % QN_DRAFT_WINDOW];
}

static size_t hash_before(const qn_draft *d, int64_t end, int length)
{
    uint64_t h = (uint64_t)length;
    for (int64_t i = end - length; i < end; i++) h = (h ^ (uint32_t)id_at(d, i)) * 0x9e3779b97f4a7c15u;
    return (size_t)(h >> 32) & (TABLE - 1);
}

static void compare(qn_draft *d, int32_t id)
{
    const double rate = 1.0 / 24;
    if (d->n_right >= d->n_guess) return;
    int right = d->guess[d->n_right] == id;
    double *share = d->n_right ? &d->next_right : &d->first_right;
    *share += rate * (right - *share);
    if (right)
        d->n_right++;
    else
        d->n_guess = d->n_right = 0;
}

void qn_draft_add(qn_draft *d, int32_t id)
{
    compare(d, id);
    for (int i = 0; i < N_LENGTHS; i++)
        if (d->n >= lengths[i]) d->after[i][hash_before(d, d->n, lengths[i])] = (int32_t)d->n;
    d->ring[d->n % QN_DRAFT_WINDOW] = id;
    d->n++;
}

/* Where the last ids stood before; the position behind them, 0: nowhere. */
static int64_t find(const qn_draft *d)
{
    for (int i = 0; i < N_LENGTHS; i++) {
        if (d->n < lengths[i]) continue;
        int64_t at = d->after[i][hash_before(d, d->n, lengths[i])], same = 0;
        if (at == 0 || d->n - (at - lengths[i]) > QN_DRAFT_WINDOW) continue;
        while (same < lengths[i] && id_at(d, at - 1 - same) == id_at(d, d->n - 1 - same)) same++;
        if (same == lengths[i]) return at;
    }
    return 0;
}

int64_t qn_draft_guess(qn_draft *d, int64_t n_max, int32_t *ids)
{
    if (d->n_right >= d->n_guess) {
        int64_t at = find(d);
        d->n_guess = d->n_right = 0;
        /* Behind the end the guess goes on with itself: a text that repeats is guessed as repeating. */
        for (int64_t i = 0; at && i < QN_DRAFT_MAX; i++, d->n_guess++)
            d->guess[i] = at + i < d->n ? id_at(d, at + i) : d->guess[at + i - d->n];
    }
    int64_t n = d->n_guess - d->n_right;
    if (n > n_max) n = n_max;
    for (int64_t i = 0; i < n; i++) ids[i] = d->guess[d->n_right + i];
    return n;
}

int64_t qn_draft_worth(const qn_draft *d, const qn_step_costs *c, int64_t n_rows, int64_t n)
{
    const qn_draft_odds odds = {d->n_right ? d->next_right : d->first_right, d->next_right, 0};
    return qn_draft_choose(c, &odds, n_rows, n);
}

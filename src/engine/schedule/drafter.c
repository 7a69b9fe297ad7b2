#include "engine/schedule/drafter.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/machine/prefixes.h"

enum {
    FIRST_GUESS = 3, /* ids of a guess while nothing was measured */
    PAUSE_MIN = 32,  /* ids without a guess after it did not pay; twice as many each time */
    PAUSE_MAX = 1024
};
static const double RIGHT_AT_FIRST = 0.6; /* what is hoped for, until it is known better */

struct qn_drafter {
    qn_engine *engine;
    qn_sequence *sequence; /* NULL: none yet */
    /* The last guess: n_guess ids behind the first n_before. */
    int32_t guess[QN_DRAFT_MAX];
    int64_t n_guess, n_before;
    double right;             /* share of guessed ids that came true, behind right ones */
    double ns_a_guess;        /* 0: not measured */
    int64_t pause, resume_at; /* in ids */
    int is_remembered;        /* the prompt, for others that begin with it */
};

qn_status qn_drafter_new(qn_engine *engine, qn_drafter **out)
{
    qn_drafter *d = qn_calloc(1, sizeof *d);
    if (!d) return QN_E_NOMEM;
    d->engine = engine;
    d->right = RIGHT_AT_FIRST;
    d->pause = PAUSE_MIN;
    *out = d;
    return QN_OK;
}

void qn_drafter_release(qn_drafter *d)
{
    if (!d) return;
    qn_sequence_free(d->sequence);
    d->sequence = NULL;
    d->n_guess = 0;
}

void qn_drafter_free(qn_drafter *d)
{
    qn_drafter_release(d);
    qn_free(d);
}

/* What became of the last guess; the sequence goes back to what is certain. */
static void learn(qn_drafter *d, const int32_t *ids, int64_t n_ids)
{
    const double rate = 1.0 / 12, good = 0.75;
    int64_t same = 0;
    while (same < d->n_guess && d->n_before + same < n_ids && ids[d->n_before + same] == d->guess[same]) {
        d->right += rate * (1 - d->right);
        same++;
    }
    if (same < d->n_guess && d->n_before + same < n_ids) d->right -= rate * d->right;
    if (d->sequence && d->n_guess && qn_sequence_length(d->sequence) > d->n_before + same)
        qn_sequence_truncate(d->sequence, d->n_before + same);
    if (d->right > good) d->pause = PAUSE_MIN;
    d->n_guess = 0;
}

typedef struct {
    int64_t n_vocab;
    int32_t best;
} pick;

static qn_status pick_best(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    pick *p = user;
    (void)feed;
    (void)first;
    const float *row = logits + (n - 1) * p->n_vocab;
    int64_t best = 0;
    for (int64_t i = 1; i < p->n_vocab; i++)
        if (row[i] > row[best]) best = i;
    p->best = (int32_t)best;
    return QN_OK;
}

/* Feeds ids of which the last n_tentative may be taken back. out: the likeliest next one; NULL: not wanted.
 */
static qn_status feed(qn_drafter *d, const int32_t *ids, int64_t n, int64_t n_tentative, int32_t *out)
{
    pick p = {qn_engine_config(d->engine)->vocab_size, 0};
    qn_feed f = {d->sequence, ids, n, out ? QN_LOGITS_LAST : QN_LOGITS_NONE};
    qn_sequence_set_tentative(d->sequence, n_tentative);
    QN_TRY(qn_engine_step(d->engine, 1, &f, pick_best, NULL, &p));
    if (out) *out = p.best;
    return QN_OK;
}

/* The sequence gets ids[0..n_ids), a chunk at a time. *is_there: it has them, and *next is the likeliest. */
static qn_status catch_up(qn_drafter *d, const int32_t *ids, int64_t n_ids, int *is_there, int32_t *next)
{
    const int64_t most = qn_engine_get_info(d->engine)->max_rows;
    if (!d->sequence) {
        QN_TRY(qn_sequence_new(d->engine, &d->sequence));
        qn_sequence_attach(d->sequence, NULL, ids, n_ids - 1);
    }
    int64_t from = qn_sequence_length(d->sequence), rest = n_ids - from;
    *is_there = rest <= most;
    QN_TRY(feed(d, ids + from, *is_there ? rest : most, 0, *is_there ? next : NULL));
    if (!*is_there || d->is_remembered) return QN_OK;
    qn_sequence_remember(d->sequence, NULL, ids, 0, 0);
    d->is_remembered = 1;
    return QN_OK;
}

/* At most n ids into d->guess; none while the sequence is behind. */
static qn_status guess(qn_drafter *d, const int32_t *ids, int64_t n_ids, int64_t n)
{
    int64_t start = qn_clock_ns(), most;
    int is_there, is_late = !d->sequence || n_ids - qn_sequence_length(d->sequence) > 2;
    QN_TRY(catch_up(d, ids, n_ids, &is_there, &d->guess[0]));
    if (!is_there) return QN_OK;
    most = qn_sequence_get_tentative_max(d->sequence) + 1;
    if (n > most) n = most;
    d->n_before = n_ids;
    for (d->n_guess = 1; d->n_guess < n; d->n_guess++)
        QN_TRY(feed(d, &d->guess[d->n_guess - 1], 1, d->n_guess, &d->guess[d->n_guess]));
    if (is_late) return QN_OK; /* prompts are not what a guess costs */
    double now = (double)(qn_clock_ns() - start) / (double)n;
    d->ns_a_guess += (d->ns_a_guess > 0 ? 0.25 : 1) * (now - d->ns_a_guess);
    return QN_OK;
}

static int64_t choose(const qn_drafter *d, const qn_step_costs *c, int64_t n_rows, int64_t n_max)
{
    const qn_draft_odds odds = {d->right, d->right, d->ns_a_guess};
    if (d->ns_a_guess <= 0) return n_max < FIRST_GUESS ? n_max : FIRST_GUESS;
    return qn_draft_choose(c, &odds, n_rows, n_max);
}

int64_t qn_drafter_guess(qn_drafter *d, const int32_t *ids, int64_t n_ids, const qn_step_costs *costs,
                         int64_t n_rows, int64_t n_max, int32_t *out)
{
    learn(d, ids, n_ids);
    if (n_ids < d->resume_at || n_max <= 0 || qn_step_costs_get(costs, n_rows) <= 0) return 0;
    int64_t n = choose(d, costs, n_rows, n_max);
    if (n == 0) {
        d->resume_at = n_ids + d->pause;
        d->right = RIGHT_AT_FIRST;
        if (d->pause < PAUSE_MAX) d->pause *= 2;
        return 0;
    }
    qn_status status = guess(d, ids, n_ids, n);
    if (status != QN_OK) {
        qn_drafter_release(d);
        d->resume_at = n_ids + PAUSE_MAX;
        return 0;
    }
    memcpy(out, d->guess, (size_t)d->n_guess * sizeof *out);
    return d->n_guess;
}

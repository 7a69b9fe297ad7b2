#include "engine/schedule/form.h"

#include <string.h>

#include "base/mem.h"

enum { ALTERNATIVES = 2 };

struct qn_form {
    qn_matcher *matchers[ALTERNATIVES];       /* [n] that are left; behind the queue */
    qn_constraint *constraints[ALTERNATIVES]; /* of these, which hold them */
    int n;
    qn_sampler *sampler;
    qn_form_ends ends;
    uint32_t *bits; /* [n_words], of the place behind the queue */
    uint32_t *more; /* the same of an alternative; NULL: there is none */
    size_t n_words;
    int has_bits;
    int32_t forced[QN_FORCED_MAX];
    int64_t n_forced, i_forced; /* [i_forced, n_forced) wait */
    int is_full;                /* there may be more behind these */
};

static void set_bit(uint32_t *bits, int32_t id)
{
    bits[id / 32] |= UINT32_C(1) << (id % 32);
}

static void clear_bit(uint32_t *bits, int32_t id)
{
    bits[id / 32] &= ~(UINT32_C(1) << (id % 32));
}

static int is_done(const qn_form *f)
{
    for (int i = 0; i < f->n; i++)
        if (!qn_matcher_is_done(f->matchers[i])) return 0;
    return 1;
}

static int may_end(const qn_form *f)
{
    for (int i = 0; i < f->n; i++)
        if (qn_matcher_may_end(f->matchers[i])) return 1;
    return 0;
}

/* Goes on with those that take the token. QN_E_ARG: none does, and nothing is changed. */
static qn_status accept(qn_form *f, int32_t id)
{
    int takes[ALTERNATIVES], n = 0;
    for (int i = 0; i < f->n; i++) {
        const qn_status status = qn_matcher_accept(f->matchers[i], id);
        takes[i] = status == QN_OK;
        if (status != QN_OK && status != QN_E_ARG) return status;
        n += takes[i];
    }
    if (!n) return QN_E_ARG;
    n = 0;
    for (int i = 0; i < f->n; i++) {
        if (takes[i]) {
            f->constraints[n] = f->constraints[i];
            f->matchers[n++] = f->matchers[i];
        } else {
            qn_matcher_free(f->matchers[i]);
        }
    }
    for (int i = n; i < f->n; i++) f->matchers[i] = NULL;
    f->n = n;
    return QN_OK;
}

/* Fills the queue with what is forced now: nothing while there are two ways. */
static qn_status look(qn_form *f)
{
    size_t n = 0;
    f->has_bits = 0;
    f->is_full = 0;
    f->n_forced = f->i_forced = 0;
    if (f->n > 1) return QN_OK;
    QN_TRY(qn_matcher_forced(f->matchers[0], f->forced, QN_FORCED_MAX, &n));
    for (size_t i = 0; i < n; i++) {
        if (f->forced[i] < 0 || f->forced[i] >= f->ends.n_vocab)
            break; /* a token without a logit; the same text comes in others */
        QN_TRY(accept(f, f->forced[i]));
        QN_TRY(qn_sampler_accept_forced(f->sampler, f->forced[i]));
        f->n_forced++;
    }
    f->is_full = f->n_forced == QN_FORCED_MAX && !is_done(f);
    return QN_OK;
}

static qn_status begin(qn_form *f, qn_constraint *c, qn_constraint *alternative)
{
    f->bits = qn_calloc(f->n_words, sizeof *f->bits);
    if (!f->bits) return QN_E_NOMEM;
    QN_TRY(qn_matcher_new(c, &f->matchers[f->n]));
    f->constraints[f->n++] = c;
    if (alternative) {
        f->more = qn_calloc(f->n_words, sizeof *f->more);
        if (!f->more) return QN_E_NOMEM;
        QN_TRY(qn_matcher_new(alternative, &f->matchers[f->n]));
        f->constraints[f->n++] = alternative;
    }
    QN_TRY(qn_sampler_allow_masks(f->sampler));
    return look(f);
}

qn_status qn_form_new(qn_constraint *c, qn_constraint *alternative, const qn_form_ends *ends,
                      qn_sampler *sampler, qn_form **out)
{
    const size_t n_words = qn_vocabulary_mask_words(qn_constraint_get_vocabulary(c));
    const size_t n_needed = ((size_t)ends->n_vocab + 31) / 32;
    qn_form *f = qn_calloc(1, sizeof *f);
    if (!f) return QN_E_NOMEM;
    f->n_words =
        n_words > n_needed ? n_words : n_needed; /* ids without a token have no bit, and never come */
    f->sampler = sampler;
    f->ends = *ends;
    qn_status status = begin(f, c, alternative);
    if (status != QN_OK) {
        qn_form_free(f);
        return status;
    }
    *out = f;
    return QN_OK;
}

void qn_form_free(qn_form *f)
{
    if (!f) return;
    for (int i = 0; i < f->n; i++) qn_matcher_free(f->matchers[i]);
    qn_free(f->bits);
    qn_free(f->more);
    qn_free(f);
}

qn_constraint *qn_form_get_constraint(const qn_form *f)
{
    return f->n == 1 ? f->constraints[0] : NULL;
}

static int64_t count_forced(const qn_form *f)
{
    return f->n_forced - f->i_forced;
}

int qn_form_is_over(const qn_form *f)
{
    return count_forced(f) == 0 && is_done(f);
}

int qn_form_is_forced(const qn_form *f)
{
    return count_forced(f) > 0;
}

int qn_form_is_ending(const qn_form *f)
{
    return is_done(f);
}

int64_t qn_form_count_followed(const qn_form *f)
{
    const int64_t n = count_forced(f);
    return n && (f->is_full || is_done(f)) ? n - 1 : n;
}

const int32_t *qn_form_get_forced(const qn_form *f, int64_t *n)
{
    *n = count_forced(f);
    return f->forced + f->i_forced;
}

void qn_form_take(qn_form *f, int64_t n)
{
    f->i_forced += n;
}

qn_status qn_form_refill(qn_form *f)
{
    return f->is_full && count_forced(f) == 0 ? look(f) : QN_OK;
}

static qn_status make_bits(qn_form *f)
{
    if (f->has_bits) return QN_OK;
    memset(f->bits, 0, f->n_words * sizeof *f->bits);
    QN_TRY(qn_matcher_mask(f->matchers[0], f->bits));
    if (f->n > 1) {
        QN_TRY(qn_matcher_mask(f->matchers[1], f->more));
        for (size_t i = 0; i < f->n_words; i++) f->bits[i] |= f->more[i];
    }
    if (may_end(f))
        for (int64_t i = 0; i < f->ends.n_stop_ids; i++) set_bit(f->bits, f->ends.stop_ids[i]);
    for (int64_t i = 0; i < f->ends.n_end_ids; i++) clear_bit(f->bits, f->ends.end_ids[i]);
    f->has_bits = 1;
    return QN_OK;
}

void qn_form_prepare(qn_form *f)
{
    if (count_forced(f) == 0 && !is_done(f)) make_bits(f);
}

qn_status qn_form_set_mask(qn_form *f)
{
    QN_TRY(make_bits(f));
    qn_sampler_set_mask(f->sampler, f->bits);
    return QN_OK;
}

int qn_form_allows(qn_form *f, int32_t id)
{
    return make_bits(f) == QN_OK && (f->bits[id / 32] >> (id % 32) & 1);
}

qn_status qn_form_accept(qn_form *f, int32_t id)
{
    qn_status status = accept(f, id);
    if (status == QN_E_ARG) /* its mask said otherwise */
        return qn_fail(QN_E_INTERNAL, "the constraint refuses token id %d, which its mask allowed", (int)id);
    QN_TRY(status);
    return look(f);
}

int64_t qn_form_fit_guess(qn_form *f, int32_t *ids, int64_t n)
{
    qn_matcher *m = NULL;
    int64_t n_fit = 0;
    if (n <= 0 || f->n > 1 || qn_matcher_copy(f->matchers[0], &m) != QN_OK) return 0;
    while (n_fit < n && ids[n_fit] < f->ends.n_vocab && qn_matcher_accept(m, ids[n_fit]) == QN_OK) {
        size_t n_forced = 0;
        n_fit++;
        if (qn_matcher_is_done(m) ||
            qn_matcher_forced(m, ids + n_fit, (size_t)(n - n_fit), &n_forced) != QN_OK)
            break;
        for (size_t i = 0; i < n_forced && qn_matcher_accept(m, ids[n_fit]) == QN_OK; i++) n_fit++;
    }
    qn_matcher_free(m);
    return n_fit;
}

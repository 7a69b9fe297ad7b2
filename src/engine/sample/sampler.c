#include "engine/sample/sampler.h"

#include <math.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/random.h"
#include "engine/sample/candidates.h"
#include "engine/sample/dry.h"
#include "engine/sample/filters.h"
#include "engine/sample/history.h"
#include "engine/sample/mirostat.h"

struct qn_sampler {
    int64_t n_vocab;
    float temperature, top_p, min_p_log, repeat_penalty;
    int32_t top_k;
    uint64_t seed;
    qn_sampler_step order[QN_SAMPLER_COUNT];
    size_t n_order;
    qn_candidates *candidates;
    float typical_p, top_n_sigma, xtc_probability, xtc_threshold, dynatemp_range, dynatemp_exponent;
    qn_mirostat mirostat;
    qn_dry *dry; /* NULL: off */
    float presence_penalty, frequency_penalty;
    qn_logit_bias *bias; /* [n_bias] */
    size_t n_bias;
    int has_banned;       /* a bias of -inf */
    int32_t *n_drawn;     /* [n_vocab] how often each token came in the window; NULL: no penalty asks */
    const int32_t *early; /* [n_early] not drawn before early_end */
    int64_t n_early, early_end;
    const qn_words *words;
    qn_history *history;        /* NULL: no step looks back */
    int64_t window, dry_window; /* of the penalties: 0: all tokens; of DRY */
    int32_t *n_seen;     /* [n_vocab] how often each token is in the window; NULL: it is of all tokens */
    int64_t first_drawn; /* how many tokens came before the first that was drawn; -1: none was */
    int is_adjusted;     /* the chain begins with changed logits, which lie in the space */
    int takes_masks;
    int is_best; /* a mask has not changed which token was the last */
    const qn_logits_kernels *kernels;
    const uint32_t *mask; /* NULL: none is set */
    float *space;         /* [n_vocab] NULL: nothing changes logits and no step edits */
};

/* What few candidates a mask leaves are listed at once. */
enum { FEW = 4096 };

/* Draws of XTC are others than those of tokens. */
static const uint64_t XTC_SEED = UINT64_C(0x7874632d64726177);

/* Takes the steps that do something, in their order. */
static void take_order(qn_sampler *s, const qn_generate_options *o)
{
    size_t n = o->sampler_order ? o->n_sampler_order : QN_SAMPLER_COUNT;
    for (size_t i = 0; i < n; i++) {
        qn_sampler_step step = o->sampler_order ? o->sampler_order[i] : (qn_sampler_step)i;
        int on = 0;
        switch (step) {
        case QN_SAMPLER_REPEAT_PENALTY:
            on = o->repeat_penalty != 0 && o->repeat_penalty != 1;
            break;
        case QN_SAMPLER_TOP_P:
            on = o->top_p > 0 && o->top_p < 1;
            break;
        case QN_SAMPLER_MIN_P:
            on = o->min_p > 0;
            break;
        case QN_SAMPLER_TOP_K:
            on = o->top_k > 0 && o->top_k < s->n_vocab;
            break;
        case QN_SAMPLER_TEMPERATURE:
            on = o->temperature != 1 || o->dynatemp_range > 0;
            break;
        case QN_SAMPLER_DRY:
            on = o->dry_multiplier > 0;
            break;
        case QN_SAMPLER_TOP_N_SIGMA:
            on = o->top_n_sigma > 0;
            break;
        case QN_SAMPLER_TYPICAL_P:
            on = o->typical_p > 0 && o->typical_p < 1;
            break;
        case QN_SAMPLER_XTC:
            on = o->xtc_probability > 0;
            break;
        case QN_SAMPLER_MIROSTAT:
            on = o->mirostat != 0;
            break;
        case QN_SAMPLER_COUNT:
            break;
        }
        /* Greedy takes the best of the logits; no filter has a part in it. */
        if (s->temperature == 0 && step != QN_SAMPLER_REPEAT_PENALTY && step != QN_SAMPLER_DRY) on = 0;
        if (on) s->order[s->n_order++] = step;
    }
}

static int has_step(const qn_sampler *s, qn_sampler_step step)
{
    for (size_t i = 0; i < s->n_order; i++)
        if (s->order[i] == step) return 1;
    return 0;
}

int qn_sampler_takes_best(const qn_sampler *s)
{
    return s->temperature == 0 && !s->n_order && !s->is_adjusted && (!s->takes_masks || s->is_best);
}

static qn_status take_additions(qn_sampler *s, const qn_generate_options *o)
{
    const size_t n_vocab = (size_t)s->n_vocab;
    const int counts = o->presence_penalty != 0 || o->frequency_penalty != 0;
    s->presence_penalty = o->presence_penalty;
    s->frequency_penalty = o->frequency_penalty;
    s->is_adjusted = o->n_logit_bias || counts || (s->words && qn_words_ban(s->words));
    if (counts && !(s->n_drawn = qn_calloc(n_vocab, sizeof *s->n_drawn))) return QN_E_NOMEM;
    if (!o->n_logit_bias) return QN_OK;
    if (!(s->bias = qn_alloc_array(o->n_logit_bias, sizeof *s->bias))) return QN_E_NOMEM;
    memcpy(s->bias, o->logit_bias, o->n_logit_bias * sizeof *s->bias);
    s->n_bias = o->n_logit_bias;
    for (size_t i = 0; i < s->n_bias; i++) s->has_banned |= s->bias[i].bias == -INFINITY;
    return QN_OK;
}

/* Chains that look back keep the last tokens, as many as the step that looks furthest. */
static qn_status take_history(qn_sampler *s, const qn_generate_options *o)
{
    int64_t longest = s->words ? qn_words_longest(s->words) - 1 : 0;
    if (o->repeat_last_n > 0 && (s->n_drawn || has_step(s, QN_SAMPLER_REPEAT_PENALTY))) {
        s->window = qn_words_window(s->words, o->repeat_last_n);
        if (s->window >= longest) longest = s->window + 1; /* and the one that leaves */
        if (!(s->n_seen = qn_calloc((size_t)s->n_vocab, sizeof *s->n_seen))) return QN_E_NOMEM;
    }
    if (has_step(s, QN_SAMPLER_DRY)) {
        const qn_dry_options dry = {
            .multiplier = o->dry_multiplier,
            .base = o->dry_base > 0 ? o->dry_base : 1.75f,
            .allowed_length = o->dry_allowed_length > 0 ? o->dry_allowed_length : 2,
            .window = qn_words_window(s->words, o->dry_penalty_last_n),
            .breakers = qn_words_breakers(s->words),
        };
        s->dry_window = dry.window;
        if (dry.window > longest) longest = dry.window;
        QN_TRY(qn_dry_new(&dry, &s->dry));
    }
    return longest > 0 ? qn_history_new(longest, &s->history) : QN_OK;
}

static qn_status make_space(qn_sampler *s)
{
    if (s->space) return QN_OK;
    if (!(s->space = qn_alloc_array((size_t)s->n_vocab, sizeof *s->space))) return QN_E_NOMEM;
    qn_candidates_set_space(s->candidates, s->space);
    return QN_OK;
}

static qn_status take_space(qn_sampler *s)
{
    if (!s->is_adjusted && !s->dry && !has_step(s, QN_SAMPLER_TYPICAL_P) && !has_step(s, QN_SAMPLER_XTC))
        return QN_OK;
    return make_space(s);
}

qn_status qn_sampler_allow_masks(qn_sampler *s)
{
    QN_TRY(make_space(s));
    s->takes_masks = 1;
    return QN_OK;
}

void qn_sampler_set_mask(qn_sampler *s, const uint32_t *bits)
{
    s->mask = bits;
}

qn_status qn_sampler_ban_before(qn_sampler *s, const int32_t *ids, int64_t n, int64_t position)
{
    s->early = ids;
    s->n_early = n;
    s->early_end = position;
    if (n) s->is_adjusted = 1;
    return take_space(s);
}

qn_status qn_sampler_new(const qn_logits_kernels *kernels, const qn_generate_options *o, int64_t n_vocab,
                         const qn_words *words, qn_sampler **out)
{
    QN_TRY(qn_sampler_check(o));
    if (!kernels) QN_TRY(qn_device_get_logits_kernels(NULL, &kernels));
    if (n_vocab < 1 || n_vocab > INT32_MAX)
        return qn_fail(QN_E_ARG, "a vocabulary of %lld tokens", (long long)n_vocab);
    for (size_t i = 0; i < o->n_logit_bias; i++)
        if (o->logit_bias[i].id >= n_vocab)
            return qn_fail(QN_E_ARG, "logit_bias: token id %d is outside the vocabulary of %lld",
                           (int)o->logit_bias[i].id, (long long)n_vocab);
    if (!words && qn_words_are_needed(o))
        return qn_fail(QN_E_INTERNAL, "a sampler whose options have words was given none");
    qn_sampler *s = qn_calloc(1, sizeof *s);
    if (!s) return QN_E_NOMEM;
    s->n_vocab = n_vocab;
    s->words = words;
    s->kernels = kernels;
    s->is_best = 1;
    s->first_drawn = -1;
    s->temperature = o->temperature;
    s->top_p = o->top_p;
    s->min_p_log = o->min_p > 0 ? logf(o->min_p) : -INFINITY;
    s->top_k = o->top_k;
    s->repeat_penalty = o->repeat_penalty;
    s->typical_p = o->typical_p;
    s->top_n_sigma = o->top_n_sigma;
    s->xtc_probability = o->xtc_probability;
    s->xtc_threshold = o->xtc_threshold > 0 ? o->xtc_threshold : 0.1f;
    s->dynatemp_range = o->dynatemp_range;
    s->dynatemp_exponent = o->dynatemp_exponent > 0 ? o->dynatemp_exponent : 1;
    s->seed = o->seed;
    take_order(s, o);
    if (has_step(s, QN_SAMPLER_MIROSTAT))
        qn_mirostat_begin(&s->mirostat, o->mirostat, o->mirostat_tau, o->mirostat_eta);
    qn_status status = qn_candidates_new(kernels, n_vocab, has_step(s, QN_SAMPLER_REPEAT_PENALTY),
                                         s->temperature == 0, &s->candidates);
    if (status == QN_OK) status = take_additions(s, o);
    if (status == QN_OK) status = take_history(s, o);
    if (status == QN_OK) status = take_space(s);
    if (status != QN_OK) {
        qn_sampler_free(s);
        return status;
    }
    *out = s;
    return QN_OK;
}

size_t qn_sampler_bytes(int64_t n_vocab)
{
    return sizeof(qn_sampler) + qn_candidates_bytes(n_vocab);
}

void qn_sampler_free(qn_sampler *s)
{
    if (!s) return;
    qn_candidates_free(s->candidates);
    qn_free(s->bias);
    qn_free(s->n_drawn);
    qn_free(s->n_seen);
    qn_dry_free(s->dry);
    qn_history_free(s->history);
    qn_free(s->space);
    qn_free(s);
}

/* Takes the token that leaves the window of the penalties out of the history and the counts, because `id`
 * came. A token that is in the window once more stays in the history. */
static void move_window(qn_sampler *s, int32_t id)
{
    int64_t n, first = qn_history_count(s->history) - s->window - 1;
    const int32_t *last = qn_history_last(s->history, s->window + 1, &n);
    s->n_seen[id]++;
    if (n <= s->window) return;
    id = last[0];
    if (s->n_drawn && s->first_drawn >= 0 && first >= s->first_drawn && s->n_drawn[id]) s->n_drawn[id]--;
    if (--s->n_seen[id] == 0) qn_candidates_unmark(s->candidates, id);
}

qn_status qn_sampler_accept(qn_sampler *s, const int32_t *ids, int64_t n_ids)
{
    for (int64_t i = 0; i < n_ids; i++) {
        if (ids[i] < 0 || ids[i] >= s->n_vocab)
            return qn_fail(QN_E_ARG, "token id %d is outside the vocabulary of %lld tokens", (int)ids[i],
                           (long long)s->n_vocab);
        qn_candidates_mark(s->candidates, ids[i]);
        if (s->history) qn_history_add(s->history, ids[i]);
        if (s->window) move_window(s, ids[i]);
    }
    return QN_OK;
}

qn_status qn_sampler_accept_forced(qn_sampler *s, int32_t id)
{
    if (s->history && s->first_drawn < 0) s->first_drawn = qn_history_count(s->history);
    QN_TRY(qn_sampler_accept(s, &id, 1));
    if (s->n_drawn && s->n_drawn[id] < INT32_MAX) s->n_drawn[id]++;
    return QN_OK;
}

qn_status qn_sampler_accept_drawn(qn_sampler *s, int32_t id)
{
    QN_TRY(qn_sampler_accept_forced(s, id));
    if (s->mirostat.version) qn_mirostat_accept(&s->mirostat);
    return QN_OK;
}

/* Copies the logits whose bit is 1, and -inf for the others. from and to may be the same. */
static void copy_masked(const uint32_t *mask, const float *from, int64_t n, float *to)
{
    for (int64_t first = 0; first < n; first += 32) {
        const uint32_t bits = mask[first / 32];
        const int64_t rest = n - first, end = first + (rest < 32 ? rest : 32);
        if (bits == 0)
            for (int64_t i = first; i < end; i++) to[i] = -INFINITY;
        else
            for (int64_t i = first; i < end; i++) to[i] = bits >> (i - first) & 1 ? from[i] : -INFINITY;
    }
}

/* The logits that the chain begins with. */
static const float *adjust(qn_sampler *s, const float *logits, int64_t position)
{
    float *x = s->space;
    int64_t n_last = 0;
    if (!s->is_adjusted) {
        if (!s->mask) return logits;
        copy_masked(s->mask, logits, s->n_vocab, x);
        return x;
    }
    memcpy(x, logits, (size_t)s->n_vocab * sizeof *x);
    for (int64_t i = 0; s->n_drawn && i < s->n_vocab; i++)
        if (s->n_drawn[i]) x[i] -= (float)s->n_drawn[i] * s->frequency_penalty + s->presence_penalty;
    for (size_t i = 0; i < s->n_bias; i++) x[s->bias[i].id] += s->bias[i].bias;
    for (int64_t i = 0; position < s->early_end && i < s->n_early; i++) x[s->early[i]] = -INFINITY;
    if (s->words && qn_words_ban(s->words)) {
        const int32_t *last = s->history ? qn_history_last(s->history, INT64_MAX, &n_last) : NULL;
        qn_words_mask(s->words, last, n_last, x);
    }
    if (s->mask) copy_masked(s->mask, x, s->n_vocab, x);
    return x;
}

/* Logits that are numbers, of which the bans leave none, are no fault of the model. */
static qn_status begin(qn_sampler *s, const float *logits, const float *adjusted)
{
    const char *bans =
        s->has_banned ? "logit_bias, allowed_ids and the bad words" : "allowed_ids and the bad words";
    const int has_bans = s->has_banned || (s->words && qn_words_ban(s->words));
    qn_status status = qn_candidates_begin(s->candidates, adjusted);
    if (status == QN_OK && s->mask && s->temperature == 0 && !s->is_adjusted)
        s->is_best = s->kernels->max(logits, s->n_vocab) == qn_candidates_best_logit(s->candidates);
    if (status != QN_E_INTERNAL || (!has_bans && !s->mask)) return status;
    QN_TRY(qn_candidates_begin(s->candidates, logits));
    if (!s->mask) return qn_fail(QN_E_ARG, "%s leave no token that could come next", bans);
    return qn_fail(QN_E_ARG, "%s leave no token that the constraint allows next",
                   has_bans ? bans : "the model's logits");
}

/* Do bans or the mask leave so few tokens that passes over all logits would be long? */
static int leaves_few(const qn_sampler *s)
{
    int64_t n = 0;
    if (s->words && qn_words_allow_few(s->words)) return 1;
    if (!s->mask) return 0;
    for (int64_t i = 0; i < (s->n_vocab + 31) / 32 && n <= FEW; i++) n += __builtin_popcount(s->mask[i]);
    return n <= FEW;
}

/* Bounded, so that the best's distance 0 stays 0: a tiny temperature is its own limit. */
static float scale_of(float temperature)
{
    return temperature > 1e-30f ? 1 / temperature : 1e30f;
}

static float find_dynamic_scale(qn_sampler *s)
{
    const float low = fmaxf(s->temperature - s->dynatemp_range, 0), high = s->temperature + s->dynatemp_range;
    const double share = pow(qn_filter_entropy_share(s->candidates), (double)s->dynatemp_exponent);
    return scale_of((float)((double)low + ((double)high - (double)low) * share));
}

/* What steps [i, n_order) leave at most; scale: the one before them. It looks as far as the first step that
 * needs all candidates before it or takes the best out: penalties, a later top_p, and the steps of filters.h. */
static qn_candidates_rest look_ahead(const qn_sampler *s, size_t i, float scale)
{
    qn_candidates_rest rest = {INFINITY, INT64_MAX};
    for (size_t j = i; j < s->n_order; j++) {
        qn_sampler_step step = s->order[j];
        if (step == QN_SAMPLER_TEMPERATURE && s->dynatemp_range == 0)
            scale = scale_of(s->temperature);
        else if (step == QN_SAMPLER_MIN_P)
            rest.distance = -(double)s->min_p_log / (double)scale;
        else if (step == QN_SAMPLER_TOP_K)
            rest.count = s->top_k;
        else if (step != QN_SAMPLER_TOP_P || j > i)
            break;
    }
    return rest;
}

static qn_status subtract_dry(qn_sampler *s)
{
    const int32_t *ids;
    const float *amounts;
    int64_t n;
    const int32_t *last = qn_history_last(s->history, s->dry_window, &n);
    n = qn_dry_find(s->dry, last, n, &ids, &amounts);
    return qn_candidates_subtract(s->candidates, ids, amounts, n);
}

static qn_status run_chain(qn_sampler *s, const float *logits, int64_t position)
{
    qn_candidates *c = s->candidates;
    float scale = 1;
    QN_TRY(begin(s, logits, adjust(s, logits, position)));
    if (s->temperature != 0 && leaves_few(s)) qn_candidates_list(c, -INFINITY);
    for (size_t i = 0; i < s->n_order; i++) {
        switch (s->order[i]) {
        case QN_SAMPLER_REPEAT_PENALTY:
            QN_TRY(qn_candidates_penalise(c, s->repeat_penalty));
            break;
        case QN_SAMPLER_TOP_P:
            qn_candidates_keep_top_p(c, s->top_p, look_ahead(s, i, scale));
            break;
        case QN_SAMPLER_MIN_P:
            qn_candidates_keep_min_p(c, s->min_p_log, look_ahead(s, i, scale));
            break;
        case QN_SAMPLER_TOP_K:
            qn_candidates_keep_top_k(c, s->top_k, look_ahead(s, i, scale));
            break;
        case QN_SAMPLER_TEMPERATURE:
            scale = s->dynatemp_range > 0 ? find_dynamic_scale(s) : scale_of(s->temperature);
            qn_candidates_set_scale(c, scale);
            break;
        case QN_SAMPLER_DRY:
            QN_TRY(subtract_dry(s));
            break;
        case QN_SAMPLER_TOP_N_SIGMA:
            qn_filter_top_n_sigma(c, s->top_n_sigma);
            break;
        case QN_SAMPLER_TYPICAL_P:
            qn_filter_typical_p(c, s->typical_p);
            break;
        case QN_SAMPLER_XTC:
            if (qn_random_unit(s->seed ^ XTC_SEED, (uint64_t)position) < (double)s->xtc_probability)
                qn_filter_xtc(c, s->xtc_threshold);
            break;
        case QN_SAMPLER_MIROSTAT:
            qn_mirostat_filter(&s->mirostat, c);
            break;
        case QN_SAMPLER_COUNT:
            break;
        }
    }
    return QN_OK;
}

qn_status qn_sampler_draw(qn_sampler *s, const float *logits, int64_t position, int32_t *id)
{
    QN_TRY(run_chain(s, logits, position));
    *id = s->temperature == 0
              ? qn_candidates_best(s->candidates)
              : qn_candidates_pick(s->candidates, qn_random_unit(s->seed, (uint64_t)position));
    if (s->mirostat.version) qn_mirostat_look(&s->mirostat, s->candidates, *id);
    return QN_OK;
}

qn_status qn_sampler_distribution(qn_sampler *s, const float *logits, int64_t position, float *probabilities)
{
    QN_TRY(run_chain(s, logits, position));
    if (s->temperature != 0) {
        qn_candidates_distribution(s->candidates, probabilities);
        return QN_OK;
    }
    memset(probabilities, 0, (size_t)s->n_vocab * sizeof *probabilities);
    probabilities[qn_candidates_best(s->candidates)] = 1;
    return QN_OK;
}

/* Puts a token into a falling list of n, which has at most n_top. Returns how many there are. */
static int32_t insert(qn_top_logprob *top, int32_t n, int32_t n_top, int32_t id, float weight)
{
    int32_t k = n;
    while (k && (top[k - 1].logprob < weight || (top[k - 1].logprob == weight && top[k - 1].id > id))) k--;
    if (k == n_top) return n;
    if (n < n_top) n++;
    memmove(top + k + 1, top + k, (size_t)(n - k - 1) * sizeof *top);
    top[k] = (qn_top_logprob){.id = id, .logprob = weight};
    return n;
}

void qn_sampler_explain(qn_sampler *s, int32_t id, int32_t n_top, float *logprob, qn_top_logprob *top,
                        int32_t *n)
{
    qn_candidates *c = s->candidates;
    float buffer[QN_ROW_BLOCK], weight[QN_ROW_BLOCK], own = 0;
    *n = 0;
    *logprob = 0;
    if (s->temperature == 0) {
        if (n_top) top[(*n)++] = (qn_top_logprob){.id = id};
        return;
    }
    const double total = log(qn_candidates_sum(c));
    const int64_t n_parts = qn_candidates_count_parts(c);
    /* The list has weights first, of which few need a logarithm. */
    for (int64_t p = 0; p < n_parts; p++) {
        const qn_candidates_part part = qn_candidates_get_part(c, p, buffer);
        qn_candidates_weigh(c, part.logit, part.n, weight);
        for (int64_t i = 0; i < part.n; i++) {
            const int32_t each = part.id ? part.id[i] : part.first + (int32_t)i;
            if (each == id) own = weight[i];
            if (weight[i] > 0) *n = insert(top, *n, n_top, each, weight[i]);
        }
    }
    *logprob = (float)fmin(log((double)own) - total, 0);
    for (int32_t i = 0; i < *n; i++) top[i].logprob = (float)fmin(log((double)top[i].logprob) - total, 0);
}

double qn_sampler_mirostat_mu(const qn_sampler *s)
{
    return s->mirostat.mu;
}

uint64_t qn_sampler_fresh_seed(void)
{
    uint64_t seed = 0;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed)
        seed = qn_random_bits((uint64_t)qn_clock_ns(), 0);
    return seed ? seed : 1;
}

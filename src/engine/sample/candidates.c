#include "engine/sample/candidates.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "engine/sample/candidates_parts.h"

/* Order inside a list is found through bins: a token whose distance to the best (in units of the exponent) is
 * d falls into bin d * BINS_PER_UNIT, the last bin takes the rest. Only the bin in which the limit is crossed
 * is put in order. */
enum { N_BINS = 1024, BINS_PER_UNIT = 16, WORDS = QN_CANDIDATES_WORDS, LIST_MAX = 8192, BATCH = 16 };

typedef qn_candidates_cut cut;

static int64_t count_blocks(int64_t n_vocab)
{
    return (n_vocab + QN_ROW_BLOCK - 1) / QN_ROW_BLOCK;
}

/* A block is looked at after it was listed: there is room for one beyond the limit. */
static int64_t list_size(int64_t n_vocab)
{
    return n_vocab < LIST_MAX + QN_ROW_BLOCK ? n_vocab : LIST_MAX + QN_ROW_BLOCK;
}

qn_status qn_candidates_new(const qn_logits_kernels *kernels, int64_t n_vocab, int with_history,
                            int only_best, qn_candidates **out)
{
    qn_candidates *c = qn_calloc(1, sizeof *c);
    if (!c) return QN_E_NOMEM;
    c->kernels = kernels;
    c->n_vocab = n_vocab;
    c->n_blocks = count_blocks(n_vocab);
    size_t n_blocks = (size_t)c->n_blocks, n_list = (size_t)list_size(n_vocab);
    c->block_max = qn_alloc_array(n_blocks, sizeof *c->block_max);
    if (!c->block_max) goto fail;
    if (with_history) {
        c->seen = qn_calloc(n_blocks, WORDS * sizeof *c->seen);
        if (!c->seen) goto fail;
    }
    if (!only_best) {
        c->block_sum = qn_alloc_array(n_blocks, sizeof *c->block_sum);
        c->logit = qn_alloc_array(n_list, sizeof *c->logit);
        c->weight = qn_alloc_array(n_list, sizeof *c->weight);
        c->id = qn_alloc_array(n_list, sizeof *c->id);
        if (!c->block_sum || !c->logit || !c->weight || !c->id) goto fail;
    }
    *out = c;
    return QN_OK;
fail:
    qn_candidates_free(c);
    return QN_E_NOMEM;
}

void qn_candidates_free(qn_candidates *c)
{
    if (!c) return;
    qn_free(c->seen);
    qn_free(c->block_max);
    qn_free(c->block_sum);
    qn_free(c->logit);
    qn_free(c->weight);
    qn_free(c->id);
    qn_free(c);
}

size_t qn_candidates_bytes(int64_t n_vocab)
{
    const qn_candidates *c = NULL;
    size_t n_blocks = (size_t)count_blocks(n_vocab);
    return sizeof *c + n_blocks * (WORDS * sizeof *c->seen + sizeof *c->block_max + sizeof *c->block_sum) +
           (size_t)list_size(n_vocab) * (sizeof *c->logit + sizeof *c->weight + sizeof *c->id);
}

void qn_candidates_mark(qn_candidates *c, int32_t id)
{
    if (c->seen) c->seen[id / 64] |= UINT64_C(1) << (id % 64);
}

static inline float penalised(float v, float penalty)
{
    return v < 0 ? v * penalty : v / penalty;
}

/* ---- whole: blocks of logits as they are now ---- */

int64_t qn_candidates_block_length(const qn_candidates *c, int64_t b)
{
    int64_t n = c->n_vocab - b * QN_ROW_BLOCK;
    return n < QN_ROW_BLOCK ? n : QN_ROW_BLOCK;
}

static int is_changed(const qn_candidates *c, int64_t b)
{
    if (c->before.logit > -INFINITY || c->after.logit > -INFINITY) return 1;
    if (!c->is_penalised) return 0;
    uint64_t any = 0;
    for (int w = 0; w < WORDS; w++) any |= c->seen[b * WORDS + w];
    return any != 0;
}

static void drop_behind(float *x, int64_t n, int32_t first, cut end)
{
    if (end.logit == -INFINITY) return;
    for (int32_t i = 0; i < n; i++) {
        int stays = (x[i] > end.logit) | ((x[i] == end.logit) & (first + i <= end.id));
        x[i] = stays ? x[i] : -INFINITY;
    }
}

const float *qn_candidates_view(const qn_candidates *c, int64_t b, float *buffer)
{
    const float *x = c->logits + b * QN_ROW_BLOCK;
    if (!is_changed(c, b)) return x;
    int64_t n = qn_candidates_block_length(c, b);
    int32_t first = (int32_t)(b * QN_ROW_BLOCK);
    memcpy(buffer, x, (size_t)n * sizeof *x);
    drop_behind(buffer, n, first, c->before);
    for (int w = 0; c->is_penalised && w < WORDS; w++) {
        for (uint64_t bits = c->seen[b * WORDS + w]; bits; bits &= bits - 1) {
            float *v = buffer + w * 64 + __builtin_ctzll(bits);
            *v = penalised(*v, c->penalty);
        }
    }
    drop_behind(buffer, n, first, c->after);
    return buffer;
}

/* The largest of values is NaN if one is. */
qn_status qn_candidates_take_best(qn_candidates *c, const float *values, int64_t n)
{
    c->best = c->kernels->max(values, n);
    if (c->best >= -FLT_MAX && c->best <= FLT_MAX) return QN_OK;
    return qn_fail(QN_E_INTERNAL, "the model gave logits that are not finite numbers");
}

/* Changed blocks from *b on, one behind the other: several at once, because what was just written in pieces
 * is slow to read in one. Returns how many, at most BATCH; *b: where to go on. */
static int64_t take_changed(const qn_candidates *c, int64_t *b, float *buffer, int64_t *block)
{
    int64_t n = 0;
    for (; *b < c->n_blocks && n < BATCH; ++*b) {
        if (!is_changed(c, *b)) continue;
        qn_candidates_view(c, *b, buffer + n * QN_ROW_BLOCK);
        block[n++] = *b;
    }
    return n;
}

/* After a change: the largest of each block that the change may concern. */
static void find_maxima(qn_candidates *c)
{
    float buffer[BATCH * QN_ROW_BLOCK], largest[BATCH];
    int64_t block[BATCH], n;
    for (int64_t b = 0; (n = take_changed(c, &b, buffer, block));) {
        c->kernels->max_blocks(buffer, (n - 1) * QN_ROW_BLOCK + qn_candidates_block_length(c, block[n - 1]),
                               largest);
        for (int64_t i = 0; i < n; i++) c->block_max[block[i]] = largest[i];
    }
}

qn_status qn_candidates_begin(qn_candidates *c, const float *logits)
{
    c->logits = logits;
    c->is_penalised = c->is_listed = 0;
    c->scale = 1;
    c->before = c->after = QN_CANDIDATES_NO_CUT;
    c->kernels->max_blocks(logits, c->n_vocab, c->block_max);
    return qn_candidates_take_best(c, c->block_max, c->n_blocks);
}

qn_status qn_candidates_penalise(qn_candidates *c, float penalty)
{
    if (!c->is_listed) {
        c->is_penalised = 1;
        c->penalty = penalty;
        c->before = c->after;
        c->after = QN_CANDIDATES_NO_CUT;
        find_maxima(c);
        return qn_candidates_take_best(c, c->block_max, c->n_blocks);
    }
    for (int64_t i = 0; i < c->n; i++)
        if (c->seen[c->id[i] / 64] >> (c->id[i] % 64) & 1) c->logit[i] = penalised(c->logit[i], penalty);
    return qn_candidates_take_best(c, c->logit, c->n);
}

void qn_candidates_set_scale(qn_candidates *c, float scale)
{
    c->scale = scale;
}

int32_t qn_candidates_best(const qn_candidates *c)
{
    float buffer[QN_ROW_BLOCK];
    int64_t b = 0, i = 0;
    while (c->block_max[b] != c->best) b++;
    const float *x = qn_candidates_view(c, b, buffer);
    while (x[i] != c->best) i++;
    return (int32_t)(b * QN_ROW_BLOCK + i);
}

/* ---- weights ---- */

void qn_candidates_weigh(const qn_candidates *c, const float *x, int64_t n, float *weight)
{
    c->kernels->exp_scaled(x, n, c->best, c->scale, weight);
}

/* Fills the weights of the list, or of the blocks. */
double qn_candidates_sum(qn_candidates *c)
{
    double sum = 0;
    if (c->is_listed) {
        qn_candidates_weigh(c, c->logit, c->n, c->weight);
        for (int64_t i = 0; i < c->n; i += QN_ROW_BLOCK)
            sum += (double)c->kernels->sum(c->weight + i, c->n - i < QN_ROW_BLOCK ? c->n - i : QN_ROW_BLOCK);
        return sum;
    }
    float buffer[BATCH * QN_ROW_BLOCK], sums[BATCH];
    int64_t block[BATCH], n;
    for (int64_t b = 0, end; b < c->n_blocks; b = end) {
        end = b + 1;
        if (is_changed(c, b)) continue;
        while (end < c->n_blocks && !is_changed(c, end)) end++;
        n = (end - 1 - b) * QN_ROW_BLOCK + qn_candidates_block_length(c, end - 1);
        c->kernels->sum_exp_blocks(c->logits + b * QN_ROW_BLOCK, n, c->best, c->scale, c->block_sum + b);
    }
    for (int64_t b = 0; (n = take_changed(c, &b, buffer, block));) {
        c->kernels->sum_exp_blocks(buffer,
                                   (n - 1) * QN_ROW_BLOCK + qn_candidates_block_length(c, block[n - 1]),
                                   c->best, c->scale, sums);
        for (int64_t i = 0; i < n; i++) c->block_sum[block[i]] = sums[i];
    }
    for (int64_t b = 0; b < c->n_blocks; b++) sum += (double)c->block_sum[b];
    return sum;
}

/* ---- from whole to listed ---- */

/* Lists the candidates whose logit is at least `least`; 0: they are too many. */
static int list_above(qn_candidates *c, double least)
{
    float buffer[QN_ROW_BLOCK];
    float limit = least > -FLT_MAX ? fmaxf(nextafterf((float)least, -INFINITY), -FLT_MAX) : -FLT_MAX;
    c->n = 0;
    for (int64_t b = 0; b < c->n_blocks; b++) {
        if (!(c->block_max[b] >= limit)) continue;
        c->n += c->kernels->collect(qn_candidates_view(c, b, buffer), qn_candidates_block_length(c, b), limit,
                                    (int32_t)(b * QN_ROW_BLOCK), c->id + c->n, c->logit + c->n);
        if (c->n > LIST_MAX) return 0;
    }
    c->is_listed = 1;
    return 1;
}

/* The k-th largest of the blocks' maxima, through a heap of the k largest, the least of them first. */
static float find_largest(qn_candidates *c, int64_t k)
{
    float *heap = c->block_sum;
    for (int64_t b = 0; b < c->n_blocks; b++) {
        float v = c->block_max[b];
        int64_t node = b;
        if (b < k) { /* up from the end */
            for (; node && heap[(node - 1) / 2] > v; node = (node - 1) / 2) heap[node] = heap[(node - 1) / 2];
            heap[node] = v;
            continue;
        }
        if (v <= heap[0]) continue;
        node = 0; /* down from the root, which leaves */
        for (int64_t child; (child = 2 * node + 1) < k; node = child) {
            if (child + 1 < k && heap[child + 1] < heap[child]) child++;
            if (heap[child] >= v) break;
            heap[node] = heap[child];
        }
        heap[node] = v;
    }
    return heap[0];
}

int qn_candidates_list(qn_candidates *c, double least)
{
    return !c->is_listed && list_above(c, least);
}

void qn_candidates_unlist(qn_candidates *c)
{
    c->is_listed = 0;
}

/* Lists what the steps to come can leave, and what is up to `margin` below. At least k candidates reach the
 * k-th largest of the blocks' maxima. Filters round the distance: what is a little further may stay. */
static int list_rest(qn_candidates *c, qn_candidates_rest rest, double margin)
{
    double least = (double)c->best - rest.distance * (1 + 1e-6);
    if (rest.count <= c->n_blocks) least = fmax(least, (double)find_largest(c, rest.count));
    return least >= -FLT_MAX && list_above(c, least - margin);
}

/* Lists the k largest where they are more than the blocks: likely not far below the least of the maxima. */
static int list_count(qn_candidates *c, int64_t k)
{
    float least = INFINITY;
    for (int64_t b = 0; b < c->n_blocks; b++) least = fminf(least, c->block_max[b]);
    double distance = (double)c->best - (double)least;
    for (int i = 0; i < 6 && distance < INFINITY; i++, distance *= 1.3) {
        if (!list_above(c, (double)c->best - distance)) return 0;
        if (c->n >= k) return 1;
        c->is_listed = 0;
    }
    return list_above(c, -INFINITY);
}

/* Lists those near the best whose mass reaches the limit by far, so that no other can stay. */
static int list_mass(qn_candidates *c, double limit)
{
    static const double distances[] = {4, 6, 8, 10, 12, 14, INFINITY};
    for (size_t i = 0;; i++) {
        if (!list_above(c, (double)c->best - distances[i] / (double)c->scale)) return 0;
        if (qn_candidates_sum(c) >= limit * 1.001 || isinf(distances[i])) return 1;
        c->is_listed = 0;
    }
}

/* ---- order in a list ---- */

static void swap_candidates(qn_candidates *c, int64_t a, int64_t b)
{
    float logit = c->logit[a], weight = c->weight[a];
    int32_t id = c->id[a];
    c->logit[a] = c->logit[b], c->weight[a] = c->weight[b], c->id[a] = c->id[b];
    c->logit[b] = logit, c->weight[b] = weight, c->id[b] = id;
}

static int comes_before(const qn_candidates *c, int64_t a, int64_t b)
{
    return c->logit[a] > c->logit[b] || (c->logit[a] == c->logit[b] && c->id[a] < c->id[b]);
}

/* Restores the heap over candidates [begin, end) whose root (the first in falling order) lies at the END of
 * the range, so that roots taken off leave the order of what stays: node j is candidate end - 1 - j. */
static void sift_down(qn_candidates *c, int64_t begin, int64_t end, int64_t node)
{
    for (;;) {
        int64_t first = node, n = end - begin;
        for (int64_t child = 2 * node + 1; child <= 2 * node + 2 && child < n; child++)
            if (comes_before(c, end - 1 - child, end - 1 - first)) first = child;
        if (first == node) return;
        swap_candidates(c, end - 1 - node, end - 1 - first);
        node = first;
    }
}

/* Which bin the candidate falls into; falls monotonically with its logit. */
static inline int bin_of(const qn_candidates *c, int64_t i)
{
    float d = (c->best - c->logit[i]) * c->scale * BINS_PER_UNIT;
    return d < (float)(N_BINS - 1) ? (int)d : N_BINS - 1;
}

/* Keeps the candidates for which the sum of measures above them, in falling order, is less than limit; the
 * measure is the weight, or 1 for each (by_count: then also all that equal the last one kept). */
static void keep_best(qn_candidates *c, double limit, int by_count)
{
    double mass[N_BINS] = {0}, above = 0;
    for (int64_t i = 0; i < c->n; i++) mass[bin_of(c, i)] += by_count ? 1 : (double)c->weight[i];
    int crossing = 0;
    while (crossing < N_BINS - 1 && above + mass[crossing] < limit) above += mass[crossing++];

    /* Bins below the crossing one move to the front, the crossing bin behind them. */
    int64_t kept = 0, end = 0;
    for (int64_t i = 0; i < c->n; i++) {
        int bin = bin_of(c, i);
        if (bin > crossing) continue;
        if (i != end) swap_candidates(c, i, end);
        if (bin < crossing) {
            if (kept != end) swap_candidates(c, kept, end);
            kept++;
        }
        end++;
    }
    /* Takes candidates out of the crossing bin, best first. */
    float last = INFINITY;
    int any = 0;
    for (int64_t node = (end - kept) / 2 - 1; node >= 0; node--) sift_down(c, kept, end, node);
    while (kept < end) {
        int64_t root = end - 1;
        if (above >= limit && !(by_count && any && c->logit[root] == last)) break;
        any = 1;
        last = c->logit[root];
        above += by_count ? 1 : (double)c->weight[root];
        swap_candidates(c, kept, root);
        kept++;
        sift_down(c, kept, end, 0);
    }
    c->n = kept;
}

/* ---- cuts of the whole ---- */

/* Rises with x; equal for equal numbers. */
static uint32_t key_of(float x)
{
    uint32_t bits;
    x += 0.0f; /* -0 is 0 */
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static float value_of(uint32_t key)
{
    uint32_t bits = key & 0x80000000u ? key & 0x7fffffffu : ~key;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* A cut that is there and comes earlier stays: what an earlier filter took is gone. */
static void cut_behind(qn_candidates *c, float logit, int32_t id)
{
    if (logit < c->after.logit || (logit == c->after.logit && id >= c->after.id)) return;
    c->after = (cut){logit, id};
    find_maxima(c);
}

/* The last of those that equal `logit` in order of ids for which the sum of weights before it, from `above`
 * on, is less than limit. */
static int32_t find_last_equal(const qn_candidates *c, float logit, double above, double limit)
{
    float buffer[QN_ROW_BLOCK], weight;
    int32_t last = -1;
    qn_candidates_weigh(c, &logit, 1, &weight);
    for (int64_t b = 0; b < c->n_blocks; b++) {
        if (!(c->block_max[b] >= logit)) continue;
        const float *x = qn_candidates_view(c, b, buffer);
        for (int64_t i = 0; i < qn_candidates_block_length(c, b); i++) {
            if (x[i] != logit) continue;
            if (above >= limit && last >= 0) return last;
            last = (int32_t)(b * QN_ROW_BLOCK + i);
            above += (double)weight;
        }
    }
    return last;
}

/* What keep_best does, for any number of candidates: the digits of the last logit that stays are found from
 * the highest on, each with one look at all that share the digits before. */
static void cut_best(qn_candidates *c, double limit, int by_count)
{
    enum { DIGIT_BITS = 11 };
    float buffer[QN_ROW_BLOCK], weight[QN_ROW_BLOCK];
    uint32_t prefix = 0;
    double above = 0;
    for (int rest = 32; rest;) {
        double mass[1 << DIGIT_BITS] = {0};
        int bits = rest < DIGIT_BITS ? rest : DIGIT_BITS, shift = rest - bits, lowest = 1 << DIGIT_BITS;
        for (int64_t b = 0; b < c->n_blocks; b++) {
            if ((uint64_t)key_of(c->block_max[b]) >> rest < prefix) continue;
            int64_t n = qn_candidates_block_length(c, b);
            const float *x = qn_candidates_view(c, b, buffer);
            if (!by_count) qn_candidates_weigh(c, x, n, weight);
            for (int64_t i = 0; i < n; i++) {
                uint64_t key = key_of(x[i]);
                if (key >> rest != prefix || x[i] == -INFINITY) continue;
                int digit = (int)(key >> shift & ((1u << bits) - 1));
                mass[digit] += by_count ? 1 : (double)weight[i];
                lowest = digit < lowest ? digit : lowest;
            }
        }
        int digit = (1 << bits) - 1;
        for (; digit > lowest && above + mass[digit] < limit; digit--) above += mass[digit];
        prefix = prefix << bits | (uint32_t)digit;
        rest = shift;
    }
    float last = value_of(prefix);
    cut_behind(c, last, by_count ? INT32_MAX : find_last_equal(c, last, above, limit));
}

/* ---- filters ---- */

void qn_candidates_keep_top_p(qn_candidates *c, float p, qn_candidates_rest rest)
{
    double limit = (double)p * qn_candidates_sum(c);
    /* The bins of keep_best in which something stays are complete with a margin of two, if there is room. */
    double margin = 2.0 / BINS_PER_UNIT / (double)c->scale;
    int was_whole = !c->is_listed;
    if (was_whole && !list_rest(c, rest, margin) && !list_rest(c, rest, 0) && !list_mass(c, limit)) {
        cut_best(c, limit, 0);
        return;
    }
    if (was_whole) qn_candidates_sum(c);
    keep_best(c, limit, 0);
}

void qn_candidates_keep_min_p(qn_candidates *c, float log_p, qn_candidates_rest rest)
{
    if (!c->is_listed && !list_rest(c, rest, 0)) {
        uint32_t out = key_of(-INFINITY), in = key_of(c->best); /* the least that stays, by halving */
        while (in - out > 1) {
            uint32_t middle = out + (in - out) / 2;
            if ((value_of(middle) - c->best) * c->scale < log_p)
                out = middle;
            else
                in = middle;
        }
        cut_behind(c, value_of(in), INT32_MAX);
        return;
    }
    int64_t kept = 0;
    for (int64_t i = 0; i < c->n; i++) {
        if ((c->logit[i] - c->best) * c->scale < log_p) continue;
        c->logit[kept] = c->logit[i];
        c->id[kept] = c->id[i];
        kept++;
    }
    c->n = kept;
}

void qn_candidates_keep_top_k(qn_candidates *c, int64_t k, qn_candidates_rest rest)
{
    int was_whole = !c->is_listed;
    if (was_whole && !list_rest(c, rest, 0) && !list_count(c, k)) {
        cut_best(c, (double)k, 1);
        return;
    }
    /* It also decides the order in which a draw walks, which is not to depend on how many were listed. */
    if (was_whole || c->n > k) keep_best(c, (double)k, 1);
}

/* ---- what comes out ---- */

/* The first of weight [n] at which the sum from *sum on passes target; the last with a weight, should
 * rounding keep the sum below it. -1: none has a weight. */
static int64_t walk(const float *weight, int64_t n, double target, double *sum)
{
    int64_t chosen = -1;
    for (int64_t i = 0; i < n; i++) {
        if (weight[i] <= 0) continue;
        chosen = i;
        *sum += (double)weight[i];
        if (target < *sum) break;
    }
    return chosen;
}

int32_t qn_candidates_pick(qn_candidates *c, double unit)
{
    double target = qn_candidates_sum(c) * unit, sum = 0;
    if (c->is_listed) return c->id[walk(c->weight, c->n, target, &sum)];
    float buffer[QN_ROW_BLOCK], weight[QN_ROW_BLOCK];
    int64_t b = walk(c->block_sum, c->n_blocks, target, &sum), n = qn_candidates_block_length(c, b);
    sum -= (double)c->block_sum[b];
    qn_candidates_weigh(c, qn_candidates_view(c, b, buffer), n, weight);
    return (int32_t)(b * QN_ROW_BLOCK + walk(weight, n, target, &sum));
}

void qn_candidates_distribution(qn_candidates *c, float *probabilities)
{
    double total = qn_candidates_sum(c);
    float buffer[QN_ROW_BLOCK];
    if (c->is_listed) {
        memset(probabilities, 0, (size_t)c->n_vocab * sizeof *probabilities);
        for (int64_t i = 0; i < c->n; i++) probabilities[c->id[i]] = (float)((double)c->weight[i] / total);
        return;
    }
    for (int64_t b = 0; b < c->n_blocks; b++) {
        float *out = probabilities + b * QN_ROW_BLOCK;
        int64_t n = qn_candidates_block_length(c, b);
        qn_candidates_weigh(c, qn_candidates_view(c, b, buffer), n, out);
        for (int64_t i = 0; i < n; i++) out[i] = (float)((double)out[i] / total);
    }
}

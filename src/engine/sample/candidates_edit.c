/* Functions for steps that keep no front of the falling order. They change single logits, cut at the upper
 * end, and look at all candidates. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "engine/sample/candidates_parts.h"

void qn_candidates_set_space(qn_candidates *c, float *space)
{
    c->space = space;
}

void qn_candidates_unmark(qn_candidates *c, int32_t id)
{
    if (c->seen) c->seen[id / 64] &= ~(UINT64_C(1) << (id % 64));
}

/* ---- looking ---- */

int64_t qn_candidates_count_parts(const qn_candidates *c)
{
    return c->is_listed ? (c->n + QN_ROW_BLOCK - 1) / QN_ROW_BLOCK : c->n_blocks;
}

qn_candidates_part qn_candidates_get_part(const qn_candidates *c, int64_t i, float *buffer)
{
    int64_t first = i * QN_ROW_BLOCK, n = c->n - first;
    if (c->is_listed)
        return (qn_candidates_part){c->logit + first, c->id + first, 0, n < QN_ROW_BLOCK ? n : QN_ROW_BLOCK};
    return (qn_candidates_part){qn_candidates_view(c, i, buffer), NULL, (int32_t)first,
                                qn_candidates_block_length(c, i)};
}

float qn_candidates_best_logit(const qn_candidates *c)
{
    return c->best;
}

float qn_candidates_scale(const qn_candidates *c)
{
    return c->scale;
}

float qn_candidates_logit(const qn_candidates *c, int32_t id)
{
    float buffer[QN_ROW_BLOCK];
    if (!c->is_listed) return qn_candidates_view(c, id / QN_ROW_BLOCK, buffer)[id % QN_ROW_BLOCK];
    for (int64_t i = 0; i < c->n; i++)
        if (c->id[i] == id) return c->logit[i];
    return -INFINITY;
}

/* ---- editing ---- */

/* Copies all candidates to the space, with their logits as they are now. */
static void flatten(qn_candidates *c)
{
    float buffer[QN_ROW_BLOCK];
    for (int64_t b = 0; b < c->n_blocks; b++) {
        const float *x = qn_candidates_view(c, b, buffer);
        float *to = c->space + b * QN_ROW_BLOCK;
        if (x != to) memcpy(to, x, (size_t)qn_candidates_block_length(c, b) * sizeof *to);
    }
    c->logits = c->space;
    c->is_penalised = 0;
    c->before = c->after = QN_CANDIDATES_NO_CUT;
}

/* After a change in the space. */
static void find_maximum(qn_candidates *c, int64_t b)
{
    c->kernels->max_blocks(c->space + b * QN_ROW_BLOCK, qn_candidates_block_length(c, b), c->block_max + b);
}

static float amount_of(const int32_t *ids, const float *amount, int64_t n, int32_t id)
{
    int64_t low = 0, high = n;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (ids[middle] < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < n && ids[low] == id ? amount[low] : 0;
}

qn_status qn_candidates_subtract(qn_candidates *c, const int32_t *ids, const float *amount, int64_t n)
{
    if (!n) return QN_OK;
    if (c->is_listed) {
        for (int64_t i = 0; i < c->n; i++) c->logit[i] -= amount_of(ids, amount, n, c->id[i]);
        return qn_candidates_take_best(c, c->logit, c->n);
    }
    flatten(c);
    for (int64_t i = 0; i < n; i++) {
        int64_t b = ids[i] / QN_ROW_BLOCK;
        c->space[ids[i]] -= amount[i];
        if (i + 1 == n || ids[i + 1] / QN_ROW_BLOCK != b) find_maximum(c, b);
    }
    return qn_candidates_take_best(c, c->block_max, c->n_blocks);
}

/* Keeps logits in [low, high], and of those that equal high the ids from `first` on. */
static void keep(qn_candidates *c, float low, float high, int32_t first)
{
    float most = -INFINITY;
    if (c->is_listed) {
        int64_t kept = 0;
        for (int64_t i = 0; i < c->n; i++) {
            float v = c->logit[i];
            if (v < low || v > high || (v == high && c->id[i] < first)) continue;
            c->logit[kept] = v;
            c->id[kept++] = c->id[i];
            if (v > most) most = v;
        }
        c->n = kept;
        c->best = most;
        return;
    }
    flatten(c);
    for (int64_t b = 0; b < c->n_blocks; b++) {
        const int64_t n = qn_candidates_block_length(c, b);
        const int32_t id = (int32_t)(b * QN_ROW_BLOCK);
        float *x = c->space + id;
        if (c->block_max[b] == -INFINITY) continue;
        for (int32_t i = 0; i < n; i++) {
            int stays = (x[i] >= low) & ((x[i] < high) | ((x[i] == high) & (id + i >= first)));
            x[i] = stays ? x[i] : -INFINITY;
        }
        find_maximum(c, b);
        if (c->block_max[b] > most) most = c->block_max[b];
    }
    c->best = most;
}

void qn_candidates_keep_between(qn_candidates *c, float low, float high)
{
    keep(c, low, high, 0);
}

void qn_candidates_keep_from(qn_candidates *c, float logit, int32_t id)
{
    keep(c, -FLT_MAX, logit, id);
}

#include "engine/sample/logprobs.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/status.h"

enum { BATCH = 16 /* blocks at a time */ };

static int64_t batch_length(const qn_logprobs *l, int64_t begin)
{
    int64_t n = l->n_vocab - begin;
    return n < BATCH * QN_ROW_BLOCK ? n : BATCH * QN_ROW_BLOCK;
}

static int64_t count_blocks(int64_t n)
{
    return (n + QN_ROW_BLOCK - 1) / QN_ROW_BLOCK;
}

static float find_best(const qn_logprobs *l)
{
    float most[BATCH], best = -INFINITY;
    for (int64_t i = 0, n; i < l->n_vocab; i += n) {
        n = batch_length(l, i);
        l->kernels->max_blocks(l->logits + i, n, most);
        for (int64_t b = 0; b < count_blocks(n); b++) {
            if (isnan(most[b])) return most[b];
            if (most[b] > best) best = most[b];
        }
    }
    return best;
}

qn_status qn_logprobs_read(const qn_logits_kernels *kernels, const float *logits, int64_t n_vocab,
                           qn_logprobs *out)
{
    if (!kernels) QN_TRY(qn_device_get_logits_kernels(NULL, &kernels));
    qn_logprobs l = {.kernels = kernels, .logits = logits, .n_vocab = n_vocab};
    float sums[BATCH];
    double sum = 0;
    float best = find_best(&l);
    if (!(best >= -FLT_MAX && best <= FLT_MAX))
        return qn_fail(QN_E_INTERNAL, "the model gave logits that are not finite numbers");
    for (int64_t i = 0, n; i < n_vocab; i += n) {
        n = batch_length(&l, i);
        l.kernels->sum_exp_blocks(logits + i, n, best, 1, sums);
        for (int64_t b = 0; b < count_blocks(n); b++) sum += (double)sums[b];
    }
    l.log_sum = (double)best + log(sum);
    *out = l;
    return QN_OK;
}

double qn_logprobs_of(const qn_logprobs *l, int32_t id)
{
    return (double)l->logits[id] - l->log_sum;
}

int32_t qn_logprobs_top(const qn_logprobs *l, int32_t n_top, qn_top_logprob *top)
{
    float logit[QN_TOP_LOGPROBS_MAX], most[BATCH];
    int32_t n = 0;
    for (int64_t i = 0, length; n_top > 0 && i < l->n_vocab; i += length) {
        length = batch_length(l, i);
        l->kernels->max_blocks(l->logits + i, length, most);
        for (int64_t j = 0; j < length; j++) {
            float x = l->logits[i + j], least = n == n_top ? logit[n - 1] : -INFINITY;
            if (j % QN_ROW_BLOCK == 0 && !(most[j / QN_ROW_BLOCK] > least)) {
                j += QN_ROW_BLOCK - 1; /* nothing in the block belongs to the top */
                continue;
            }
            if (!(x > least)) continue;
            int32_t at = n < n_top ? n++ : n - 1;
            for (; at > 0 && logit[at - 1] < x; at--) {
                logit[at] = logit[at - 1];
                top[at].id = top[at - 1].id;
            }
            logit[at] = x;
            top[at].id = (int32_t)(i + j);
        }
    }
    for (int32_t k = 0; k < n; k++) top[k].logprob = (float)qn_logprobs_of(l, top[k].id);
    return n;
}

/* Attention. Over pages: rows are written to their pages, then all workers share tiles of rows x groups of
 * heads. Ragged (no state): the plain definition over k and v, which training differentiates and tests
 * compare with. */
#include <math.h>
#include <string.h>

#include "device/cpu/cpu.h"

/* ---- over pages --------------------------------------------------------------------------------------- */

static void write_rows(const qn_cpu_run *run, const qn_cpu_step *s, const qn_kv_layout *kv)
{
    const qn_operand *k = &s->plan.in[1], *v = &s->plan.in[2], *table = &s->plan.in[5];
    const int32_t *positions = (const int32_t *)s->in[3], *row_begin = (const int32_t *)s->in[4],
                  *blocks = (const int32_t *)s->in[5];
    int64_t begin, end, sequence = 0;
    qn_cpu_share(run, qn_cpu_rows(run, &s->plan.out), &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        while (row_begin[sequence + 1] <= r) sequence++;
        const int32_t *row = blocks + sequence * table->stride[0];
        int32_t page = row[1 + positions[r] / QN_PAGE_TOKENS - row[0]];
        run->kernels->kv_write(kv, page, positions[r] % QN_PAGE_TOKENS,
                               (const float *)s->in[1] + r * k->stride[0],
                               (const float *)s->in[2] + r * v->stride[0]);
    }
}

static void attend_pages(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_params_attend *p = &s->plan.params.attend;
    const qn_operand *q = &s->plan.in[0], *table = &s->plan.in[5];
    const int32_t *positions = (const int32_t *)s->in[3], *row_begin = (const int32_t *)s->in[4],
                  *blocks = (const int32_t *)s->in[5];
    qn_kv_layout kv = qn_cpu_state_pages(p->state, p->layer);
    write_rows(run, s, &kv);
    qn_pool_barrier(run->pool);
    int64_t n_heads = q->shape.dim[1], shared = n_heads / kv.kv_heads, n_sequences = run->sizes.v[QN_SYM_S],
            tiles = 0;
    for (int64_t i = 0; i < n_sequences; i++)
        tiles += (row_begin[i + 1] - row_begin[i] + QN_ATTN_ROWS - 1) / QN_ATTN_ROWS;
    /* Few tiles: heads that share keys are split too, so that all workers have something to do. */
    int64_t per_unit = tiles * kv.kv_heads >= 4 * run->n_threads ? shared : 1;
    qn_attend_args a = {.kv = kv,
                        .n_heads = n_heads,
                        .q_stride = q->stride[0],
                        .out_stride = n_heads * kv.v_dim,
                        .window = p->window,
                        .scale = p->scale,
                        .softcap = p->softcap,
                        .sinks = p->has_sinks ? (const float *)s->in[6] : NULL};
    /* Heads outside, tiles inside: one head's keys and values stay in cache while its tiles go by. */
    int64_t unit = 0;
    for (int64_t h = 0; h < n_heads; h += per_unit) {
        for (int64_t i = 0; i < n_sequences; i++) {
            const int32_t *row = blocks + i * table->stride[0];
            a.blocks = row + 1;
            for (int64_t r = row_begin[i]; r < row_begin[i + 1]; r += QN_ATTN_ROWS, unit++) {
                if (unit % run->n_threads != run->thread) continue;
                int64_t n = row_begin[i + 1] - r < QN_ATTN_ROWS ? row_begin[i + 1] - r : QN_ATTN_ROWS;
                a.q = (const float *)s->in[0] + r * a.q_stride;
                a.out = (float *)s->out + r * a.out_stride;
                a.position = positions[r] - (int64_t)row[0] * QN_PAGE_TOKENS;
                run->kernels->attend(&a, n, h, per_unit, run->scratch);
            }
        }
    }
}

/* ---- ragged ------------------------------------------------------------------------------------------- */

typedef struct {
    const float *q, *k, *v, *sinks;
    int64_t q_stride, k_stride, v_stride, heads, shared, dim, v_dim;
    const int32_t *row_begin;
    const qn_params_attend *p;
} ragged;

static ragged ragged_of(const qn_cpu_step *s, int sinks)
{
    const qn_operand *q = &s->plan.in[0], *k = &s->plan.in[1], *v = &s->plan.in[2];
    return (ragged){.q = (const float *)s->in[0],
                    .k = (const float *)s->in[1],
                    .v = (const float *)s->in[2],
                    .sinks = sinks ? (const float *)s->in[5] : NULL,
                    .q_stride = q->stride[0],
                    .k_stride = k->stride[0],
                    .v_stride = v->stride[0],
                    .heads = q->shape.dim[1],
                    .shared = q->shape.dim[1] / k->shape.dim[1],
                    .dim = q->shape.dim[2],
                    .v_dim = v->shape.dim[2],
                    .row_begin = (const int32_t *)s->in[4],
                    .p = &s->plan.params.attend};
}

/* Probabilities of row r over rows [*from, r] of its sequence (which begins at `first`), head h, into prob.
 * dcap, when not NULL, gets the derivative of the soft cap at each score. */
static void probabilities(const qn_cpu_run *run, const ragged *a, int64_t first, int64_t r, int64_t h,
                          float *prob, float *dcap, int64_t *from)
{
    int64_t lo = a->p->window && r - a->p->window + 1 > first ? r - a->p->window + 1 : first, n = r - lo + 1;
    const float *q = a->q + r * a->q_stride + h * a->dim;
    for (int64_t j = 0; j < n; j++) {
        float score = a->p->scale *
                      run->kernels->dot(q, a->k + (lo + j) * a->k_stride + h / a->shared * a->dim, a->dim);
        if (a->p->softcap > 0) {
            float t = score / a->p->softcap;
            run->kernels->ew[QN_EW_TANH](&t, &t, 1, &t, 1, 1);
            score = a->p->softcap * t;
            if (dcap) dcap[j] = 1 - t * t;
        } else if (dcap) {
            dcap[j] = 1;
        }
        prob[j] = score;
    }
    if (a->sinks) prob[n] = a->sinks[h]; /* one more logit that takes its share and reads no value */
    run->kernels->softmax(prob, prob, n + (a->sinks != NULL));
    *from = lo;
}

static void attend_ragged(const qn_cpu_run *run, const qn_cpu_step *s)
{
    ragged a = ragged_of(s, s->plan.params.attend.has_sinks);
    int64_t begin, end, sequence = 0, from;
    float *prob = (float *)run->scratch;
    qn_cpu_share(run, qn_cpu_rows(run, &s->plan.out), &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        while (a.row_begin[sequence + 1] <= r) sequence++;
        for (int64_t h = 0; h < a.heads; h++) {
            float *out = (float *)s->out + (r * a.heads + h) * a.v_dim;
            probabilities(run, &a, a.row_begin[sequence], r, h, prob, NULL, &from);
            memset(out, 0, (size_t)a.v_dim * sizeof *out);
            for (int64_t j = from; j <= r; j++) {
                const float *v = a.v + j * a.v_stride + h / a.shared * a.v_dim;
                for (int64_t d = 0; d < a.v_dim; d++) out[d] += prob[j - from] * v[d];
            }
        }
    }
}

static void attend_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    if (s->plan.params.attend.state)
        attend_pages(run, s);
    else
        attend_ragged(run, s);
}

static qn_status attend_prepare(qn_cpu *d, const qn_plan *plan, qn_cpu_step *step, size_t *scratch_bytes,
                                size_t *shared_bytes)
{
    const qn_operand *q = &step->plan.in[0], *v = &step->plan.in[2];
    size_t need = step->plan.params.attend.state
                      ? qn_attend_scratch_bytes(q->shape.dim[2], v->shape.dim[2])
                      : 3 * ((size_t)qn_shape_dim(&q->shape, 0, &plan->max) + 1) * sizeof(float);
    if (*scratch_bytes < need) *scratch_bytes = need;
    return QN_OK;
}

const qn_cpu_prim qn_cpu_ATTEND = {attend_run, attend_prepare};

/* Gradient of the ragged form. For each row and head: dp = dout . v, ds = p (dp - dout . out) dcap scale; dq
 * += ds k, dk += ds q, dv += p dout. Workers take key heads (dk, dv) or rows (dq), so that every sum has one
 * owner and one order. */
static void attend_grad_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    ragged a = ragged_of(s, 0);
    int which = s->plan.params.attend.which;
    const float *out = (const float *)s->in[5], *d_out = (const float *)s->in[6];
    int64_t out_stride = s->plan.in[5].stride[0], d_stride = s->plan.in[6].stride[0];
    int64_t rows = qn_cpu_rows(run, &s->plan.in[0]), row_from = 0, row_to = rows, head_from = 0,
            head_to = a.heads, from;
    int64_t dim = which == 2 ? a.v_dim : a.dim, width = (which ? a.heads / a.shared : a.heads) * dim;
    float *prob = (float *)run->scratch, *dcap = prob + rows + 1, *result = (float *)s->out;
    if (which == 0) {
        qn_cpu_share(run, rows, &row_from, &row_to);
        memset(result + row_from * width, 0, (size_t)((row_to - row_from) * width) * sizeof *result);
    } else {
        qn_cpu_share(run, a.heads / a.shared, &head_from, &head_to);
        for (int64_t r = 0; r < rows; r++)
            memset(result + r * width + head_from * dim, 0,
                   (size_t)((head_to - head_from) * dim) * sizeof *result);
        head_from *= a.shared;
        head_to *= a.shared;
    }
    int64_t sequence = 0;
    for (int64_t r = row_from; r < row_to; r++) {
        while (a.row_begin[sequence + 1] <= r) sequence++;
        for (int64_t h = head_from; h < head_to; h++) {
            const float *g = d_out + r * d_stride + h * a.v_dim;
            probabilities(run, &a, a.row_begin[sequence], r, h, prob, dcap, &from);
            float mean = run->kernels->dot(g, out + r * out_stride + h * a.v_dim, a.v_dim);
            for (int64_t j = from; j <= r; j++) {
                int64_t kv = h / a.shared;
                if (which == 2) {
                    float *dv = result + j * width + kv * dim;
                    for (int64_t d = 0; d < dim; d++) dv[d] += prob[j - from] * g[d];
                    continue;
                }
                float dp = run->kernels->dot(g, a.v + j * a.v_stride + kv * a.v_dim, a.v_dim);
                float ds = prob[j - from] * (dp - mean) * dcap[j - from] * a.p->scale;
                const float *other = which ? a.q + r * a.q_stride + h * dim : a.k + j * a.k_stride + kv * dim;
                float *to = which ? result + j * width + kv * dim : result + r * width + h * dim;
                for (int64_t d = 0; d < dim; d++) to[d] += ds * other[d];
            }
        }
    }
}

const qn_cpu_prim qn_cpu_ATTEND_GRAD = {attend_grad_run, attend_prepare};

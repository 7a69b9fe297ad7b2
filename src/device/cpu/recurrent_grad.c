/* Gradients of the recurrent primitives over whole sequences that start from zero. Workers take channels, or
 * the heads of a sequence that share a key head, so that every sum has one owner and one order. */
#include <string.h>

#include "device/cpu/cpu.h"

/* ---- the short convolution ---------------------------------------------------------------------------- */

/* out[r] = sum over t of w[t] x[r + t - kept], kept = kernel - 1, so dx[r] = sum over t of w[t] d_out[r - t +
 * kept] and dw[t] = sum over r of d_out[r] x[r + t - kept], of rows of the same sequence. */
static void conv_grad_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_operand *x = &s->plan.in[0], *g = &s->plan.in[3];
    const int which = s->plan.params.recurrent.which;
    const int64_t channels = x->shape.dim[1], kernel = s->plan.in[1].shape.dim[0], kept = kernel - 1,
                  n_sequences = qn_cpu_sequences(&run->sizes, &s->plan.in[2]);
    const float *w = (const float *)s->in[1], *in = (const float *)s->in[0], *d_out = (const float *)s->in[3];
    const int32_t *row_begin = (const int32_t *)s->in[2];
    float *out = (float *)s->out;
    int64_t from, to;
    qn_cpu_share(run, channels, &from, &to);
    if (from >= to) return;
    const int64_t n_out = which ? kernel : qn_cpu_rows(run, x);
    for (int64_t r = 0; r < n_out; r++)
        memset(out + r * channels + from, 0, (size_t)(to - from) * sizeof *out);
    for (int64_t i = 0; i < n_sequences; i++)
        for (int64_t r = row_begin[i]; r < row_begin[i + 1]; r++)
            for (int64_t t = 0; t < kernel; t++) {
                const int64_t at = which ? r + t - kept : r - t + kept;
                if (at < row_begin[i] || at >= row_begin[i + 1]) continue;
                const float *a = which ? d_out + r * g->stride[0] : w + t * channels;
                const float *b = which ? in + at * x->stride[0] : d_out + at * g->stride[0];
                float *sum = out + (which ? t : r) * channels;
                for (int64_t c = from; c < to; c++) sum[c] += a[c] * b[c];
            }
}

const qn_cpu_prim qn_cpu_SHORT_CONV_GRAD = {conv_grad_run, NULL};

/* ---- the gated delta rule ----------------------------------------------------------------------------- */

/* States are kept for so many rows, and at the beginning of each such piece; the rest is computed again. */
enum { CHUNK = 32 };

/* One head of one sequence. */
typedef struct {
    const qn_kernels *kernels;
    int64_t dk, dv, n_rows;
    const float *q, *k, *v, *g, *beta, *d_out;
    int64_t q_stride, k_stride, v_stride, g_stride, beta_stride, d_stride, out_stride;
    int by_channel, additive; /* as in qn_delta_args */
    float *dq, *dk_out, *dv_out, *dg, *dbeta;
    float *states; /* [CHUNK + 1][dk][dv] */
    float *begins; /* [chunks][dk][dv] */
    float *d_state, *u, *delta, *d_delta;
} head;

/* The decay of all of the state of row r; 1 where each of its rows has its own. */
static float decay_of(const head *h, int64_t r)
{
    float decay;
    if (h->by_channel) return 1;
    h->kernels->ew[QN_EW_EXP](&decay, h->g + r * h->g_stride, 1, h->g, 1, 1);
    return decay;
}

/* That of row i of the state alone. */
static float own_decay(const head *h, int64_t r, int64_t i)
{
    return h->by_channel ? h->g[r * h->g_stride + i] : 1;
}

/* u = S^T k, delta = beta (v - exp(g) u) of row r; S is the state before it. Additive: u = 0. */
static void errors(const head *h, int64_t r, const float *state)
{
    const float *k = h->k + r * h->k_stride, *v = h->v + r * h->v_stride;
    const float decay = decay_of(h, r), beta = h->beta[r * h->beta_stride];
    memset(h->u, 0, (size_t)h->dv * sizeof *h->u);
    for (int64_t i = 0; i < h->dk && !h->additive; i++) {
        const float ki = k[i] * own_decay(h, r, i);
        for (int64_t j = 0; j < h->dv; j++) h->u[j] += ki * state[i * h->dv + j];
    }
    for (int64_t j = 0; j < h->dv; j++) h->delta[j] = beta * (v[j] - decay * h->u[j]);
}

/* next = exp(g) S + k delta^T */
static void advance(const head *h, int64_t r, const float *state, float *next)
{
    const float *k = h->k + r * h->k_stride, decay = decay_of(h, r);
    errors(h, r, state);
    for (int64_t i = 0; i < h->dk; i++) {
        const float fade = decay * own_decay(h, r, i);
        for (int64_t j = 0; j < h->dv; j++)
            next[i * h->dv + j] = fade * state[i * h->dv + j] + k[i] * h->delta[j];
    }
}

/* Row r, going back: d_state is the gradient of the state after it, and becomes that of the state before. */
static void step_back(const head *h, int64_t r, const float *state, const float *next)
{
    const int64_t n = h->dv;
    const float *q = h->q + r * h->q_stride, *k = h->k + r * h->k_stride, *v = h->v + r * h->v_stride,
                *d_out = h->d_out + r * h->d_stride;
    float *dq = h->dq + r * h->out_stride, *dk = h->dk_out + r * h->out_stride,
          *dv = h->dv_out + r * h->out_stride, *dg = h->dg + r * h->out_stride;
    const float decay = decay_of(h, r), beta = h->beta[r * h->beta_stride],
                taken = h->additive ? 0 : beta; /* of what the state held */
    double by_decay = 0, by_beta = 0;
    errors(h, r, state);
    memset(h->d_delta, 0, (size_t)n * sizeof *h->d_delta);
    for (int64_t i = 0; i < h->dk; i++) {
        float *d = h->d_state + i * n, sum_q = 0, sum_k = 0;
        for (int64_t j = 0; j < n; j++) sum_q += next[i * n + j] * d_out[j];
        for (int64_t j = 0; j < n; j++) d[j] += q[i] * d_out[j];
        for (int64_t j = 0; j < n; j++) sum_k += d[j] * h->delta[j];
        for (int64_t j = 0; j < n; j++) h->d_delta[j] += d[j] * k[i];
        dq[i] += sum_q;
        dk[i] += sum_k;
    }
    for (int64_t j = 0; j < n; j++) {
        by_beta += (double)h->d_delta[j] * (v[j] - decay * h->u[j]);
        dv[j] = beta * h->d_delta[j];
        by_decay -= (double)taken * h->d_delta[j] * h->u[j];
    }
    for (int64_t i = 0; i < h->dk; i++) {
        float *d = h->d_state + i * n, sum_k = 0;
        const float fade = decay * own_decay(h, r, i);
        double sum = 0;
        for (int64_t j = 0; j < n; j++) sum += (double)d[j] * state[i * n + j];
        for (int64_t j = 0; j < n; j++) sum_k += state[i * n + j] * h->d_delta[j];
        for (int64_t j = 0; j < n; j++) d[j] = fade * (d[j] - taken * k[i] * h->d_delta[j]);
        dk[i] -= taken * fade * sum_k;
        by_decay += sum;
        if (h->by_channel) dg[i] = (float)(sum - (double)taken * k[i] * sum_k);
    }
    if (!h->by_channel) *dg = (float)(by_decay * decay);
    h->dbeta[r * h->out_stride] = (float)by_beta;
}

static void head_back(const head *h)
{
    const size_t n = (size_t)(h->dk * h->dv), bytes = n * sizeof(float);
    const int64_t chunks = (h->n_rows + CHUNK - 1) / CHUNK;
    memset(h->begins, 0, bytes);
    for (int64_t c = 0; c + 1 < chunks; c++) {
        float *from = h->begins + (size_t)c * n, *state = h->begins + (size_t)(c + 1) * n;
        memcpy(state, from, bytes);
        for (int64_t r = c * CHUNK; r < (c + 1) * CHUNK; r++) advance(h, r, state, state);
    }
    memset(h->d_state, 0, bytes);
    for (int64_t c = chunks - 1; c >= 0; c--) {
        const int64_t first = c * CHUNK, end = h->n_rows < first + CHUNK ? h->n_rows : first + CHUNK;
        memcpy(h->states, h->begins + (size_t)c * n, bytes);
        for (int64_t r = first; r < end; r++)
            advance(h, r, h->states + (size_t)(r - first) * n, h->states + (size_t)(r - first + 1) * n);
        for (int64_t r = end - 1; r >= first; r--)
            step_back(h, r, h->states + (size_t)(r - first) * n, h->states + (size_t)(r - first + 1) * n);
    }
}

/* A row of the output: dq and dk [key heads, dk], dv [heads, dv], dg [heads] or [heads, dk], dbeta [heads]. */
static void delta_grad_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_operand *in = s->plan.in;
    const int64_t key_heads = in[0].shape.dim[1], heads = in[2].shape.dim[1], shared = heads / key_heads,
                  dk = in[0].shape.dim[2], dv = in[2].shape.dim[2], width = s->plan.out.shape.dim[1],
                  decays = in[3].shape.n == 3 ? dk : 1, n_sequences = qn_cpu_sequences(&run->sizes, &in[5]);
    const int32_t *row_begin = (const int32_t *)s->in[5];
    const size_t n = (size_t)(dk * dv);
    float *scratch = (float *)run->scratch;
    head h = {.kernels = run->kernels,
              .dk = dk,
              .dv = dv,
              .q_stride = in[0].stride[0],
              .k_stride = in[1].stride[0],
              .v_stride = in[2].stride[0],
              .g_stride = in[3].stride[0],
              .beta_stride = in[4].stride[0],
              .d_stride = in[6].stride[0],
              .by_channel = in[3].shape.n == 3,
              .additive = s->plan.params.recurrent.additive,
              .out_stride = width,
              .d_state = scratch,
              .u = scratch + n,
              .delta = scratch + n + dv,
              .d_delta = scratch + n + 2 * dv,
              .states = scratch + n + 3 * dv,
              .begins = scratch + n + 3 * dv + (CHUNK + 1) * n};
    int64_t begin, end;
    while (qn_cpu_claim(run, n_sequences * key_heads, &begin, &end))
        for (int64_t at = begin; at < end; at++) {
            const int64_t i = at / key_heads, key = at % key_heads, row = row_begin[i];
            float *out = (float *)s->out + row * width;
            h.n_rows = row_begin[i + 1] - row;
            h.q = (const float *)s->in[0] + row * h.q_stride + key * dk;
            h.k = (const float *)s->in[1] + row * h.k_stride + key * dk;
            h.dq = out + key * dk;
            h.dk_out = out + (key_heads + key) * dk;
            for (int64_t r = 0; r < h.n_rows; r++) {
                memset(h.dq + r * width, 0, (size_t)dk * sizeof *out);
                memset(h.dk_out + r * width, 0, (size_t)dk * sizeof *out);
            }
            for (int64_t j = key * shared; j < (key + 1) * shared; j++) {
                h.v = (const float *)s->in[2] + row * h.v_stride + j * dv;
                h.g = (const float *)s->in[3] + row * h.g_stride + j * decays;
                h.beta = (const float *)s->in[4] + row * h.beta_stride + j;
                h.d_out = (const float *)s->in[6] + row * h.d_stride + j * dv;
                h.dv_out = out + 2 * key_heads * dk + j * dv;
                h.dg = out + 2 * key_heads * dk + heads * dv + j * decays;
                h.dbeta = out + 2 * key_heads * dk + heads * (dv + decays) + j;
                head_back(&h);
            }
        }
}

static qn_status delta_grad_prepare(qn_cpu *d, const qn_plan *plan, qn_cpu_step *step, size_t *scratch_bytes,
                                    size_t *shared_bytes)
{
    const qn_operand *q = &step->plan.in[0], *v = &step->plan.in[2];
    const int64_t dk = q->shape.dim[2], dv = v->shape.dim[2],
                  chunks = (qn_shape_dim(&q->shape, 0, &plan->max) + CHUNK - 1) / CHUNK;
    size_t need = (size_t)((CHUNK + 2 + chunks) * dk * dv + 3 * dv) * sizeof(float);
    if (*scratch_bytes < need) *scratch_bytes = need;
    return QN_OK;
}

const qn_cpu_prim qn_cpu_GATED_DELTA_GRAD = {delta_grad_run, delta_grad_prepare};

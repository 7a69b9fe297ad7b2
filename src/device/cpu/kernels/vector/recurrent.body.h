/* What recurrent layers carry from row to row: a short causal convolution and the gated delta rule. Included
 * by vector.body.h, of which it takes get, put and tail.
 *
 * A lane is a channel of the convolution, or a column of the delta rule's state: no sum crosses lanes, so any
 * split over channels or columns gives the same bits, and rows follow one another, so any split over rows
 * does. */
#ifndef QN_DEVICE_CPU_KERNELS_VECTOR_RECURRENT_BODY_H
#define QN_DEVICE_CPU_KERNELS_VECTOR_RECURRENT_BODY_H

/* Vectors of a row of the state that go together: as many sums and outputs as the registers hold. */
enum { DELTA_VECS = V_TILE_ROWS > 6 ? 4 : 2 };

static void short_conv(const qn_conv_args *a, int64_t begin, int64_t end)
{
    const int64_t kept = a->kernel - 1;
    for (int64_t c = begin; c < end; c += 16) {
        const int m = tail(end, c);
        const float *x = a->x + c, *w = a->w + c;
        float *state = a->state + c;
        for (int64_t r = 0; r < a->n_rows; r++) {
            vf sum = v_set1(0);
            for (int64_t t = 0; t < a->kernel; t++) {
                int64_t at = r + t - kept; /* a row; those below 0 are in the state */
                const float *in = at < 0 ? state + (at + kept) * a->channels : x + at * a->x_stride;
                sum = v_fma(get(in, m), get(w + t * a->channels, m), sum);
            }
            put(a->out + r * a->out_stride + c, sum, m);
        }
        for (int64_t t = 0; t < kept; t++) {
            int64_t at = a->n_rows + t - kept;
            const float *in = at < 0 ? state + (at + kept) * a->channels : x + at * a->x_stride;
            put(state + t * a->channels, get(in, m), m);
        }
    }
}

/* Columns [at, at + 16 n) of all rows, m of them in the last vector. The state of these columns is read twice
 * and written once a row, from L1. by_channel: as a says, a constant where this is inlined. */
static inline void delta_columns(const qn_delta_args *a, int64_t at, int n, int m, const int by_channel)
{
    for (int64_t r = 0; r < a->n_rows; r++) {
        const float *q = a->q + r * a->q_stride, *k = a->k + r * a->k_stride,
                    *v = a->v + r * a->v_stride + at, *g = a->g + r * a->g_stride;
        const vf decay = by_channel ? v_set1(1) : v_exp(v_set1(*g)),
                 beta = v_set1(a->beta[r * a->beta_stride]);
        float *out = a->out + r * a->out_stride + at;
        vf delta[DELTA_VECS], sum[DELTA_VECS];
        for (int j = 0; j < n; j++) sum[j] = v_set1(0);
        for (int64_t i = 0; i < a->dk && !a->additive; i++) {
            const float *s = a->state + i * a->dv + at;
            const vf ki = v_set1(by_channel ? k[i] * g[i] : k[i]);
            for (int j = 0; j < n; j++) sum[j] = v_fma(ki, get(s + 16 * j, j + 1 < n ? 16 : m), sum[j]);
        }
        for (int j = 0; j < n; j++) {
            delta[j] = v_mul(beta, v_fnma(decay, sum[j], get(v + 16 * j, j + 1 < n ? 16 : m)));
            sum[j] = v_set1(0);
        }
        for (int64_t i = 0; i < a->dk; i++) {
            float *s = a->state + i * a->dv + at;
            const vf ki = v_set1(k[i]), qi = v_set1(q[i]), fade = by_channel ? v_set1(g[i]) : decay;
            for (int j = 0; j < n; j++) {
                const int lanes = j + 1 < n ? 16 : m;
                vf next = v_fma(ki, delta[j], v_mul(fade, get(s + 16 * j, lanes)));
                put(s + 16 * j, next, lanes);
                sum[j] = v_fma(qi, next, sum[j]);
            }
        }
        for (int j = 0; j < n; j++) put(out + 16 * j, sum[j], j + 1 < n ? 16 : m);
    }
}

static void gated_delta(const qn_delta_args *a, int64_t begin, int64_t end)
{
    int64_t at = begin;
    for (; at + 16 * DELTA_VECS <= end; at += 16 * DELTA_VECS) {
        if (a->by_channel)
            delta_columns(a, at, DELTA_VECS, 16, 1);
        else
            delta_columns(a, at, DELTA_VECS, 16, 0);
    }
    for (; at < end; at += 16) {
        if (a->by_channel)
            delta_columns(a, at, 1, tail(end, at), 1);
        else
            delta_columns(a, at, 1, tail(end, at), 0);
    }
}

#endif

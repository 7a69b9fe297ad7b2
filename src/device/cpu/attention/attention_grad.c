/* Gradients of attention over k and v of the same rows (attention.c: without a state).
 *
 * 64 rows of one head at a time: their scores against all that any of them sees are one product, so is what
 * they gather. What a row does not see counts as 0 there. Tiles begin at fixed rows of a sequence, so sums
 * over rows (dk, dv) have one order; those over positions rise. */
#include "device/cpu/cpu.h"

#include <math.h>
#include <string.h>

#include "prim/chosen.h"

enum { TILE_ROWS = 64 };

typedef struct {
    const qn_cpu_run *run;
    const float *q, *k, *v, *sinks;
    const int32_t *chosen; /* [R][top]; NULL: rows see all */
    int64_t top, chosen_stride;
    int64_t q_stride, k_stride, v_stride, heads, shared, dim, v_dim;
    const int32_t *positions, *row_begin;
    int64_t n_sequences;
    const qn_params_attend *p;
    int64_t row; /* from one row of scores to the next */
    float *scores, *slopes,
        *tangents; /* [TILE_ROWS][row]; tangents: under a soft cap, which slopes go with */
} ragged;

/* Rows [row, row + n) of a sequence, which see positions [low, high) among them. */
typedef struct {
    int64_t begin, end; /* of the sequence */
    int64_t row, n, low, high;
} tile;

static int64_t row_elements(const qn_operand *q, const qn_sizes *sizes)
{
    return qn_shape_dim(&q->shape, 0, sizes) + 1; /* and a sink */
}

/* extra: which input sinks are, where there are any, and behind them chosen. */
static ragged ragged_of(const qn_cpu_run *run, const qn_cpu_step *s, int extra)
{
    const qn_params_attend *p = &s->plan.params.attend;
    const int chosen = extra + (p->has_sinks != 0);
    const qn_operand *q = &s->plan.in[0], *k = &s->plan.in[1], *v = &s->plan.in[2];
    ragged a = {.run = run,
                .q = (const float *)s->in[0],
                .k = (const float *)s->in[1],
                .v = (const float *)s->in[2],
                .sinks = p->has_sinks ? (const float *)s->in[extra] : NULL,
                .chosen = p->block ? (const int32_t *)s->in[chosen] : NULL,
                .top = p->block ? s->plan.in[chosen].shape.dim[1] : 0,
                .chosen_stride = p->block ? s->plan.in[chosen].stride[0] : 0,
                .q_stride = q->stride[0],
                .k_stride = k->stride[0],
                .v_stride = v->stride[0],
                .heads = q->shape.dim[1],
                .shared = q->shape.dim[1] / k->shape.dim[1],
                .dim = q->shape.dim[2],
                .v_dim = v->shape.dim[2],
                .positions = (const int32_t *)s->in[3],
                .row_begin = (const int32_t *)s->in[4],
                .n_sequences = qn_cpu_sequences(&run->sizes, &s->plan.in[4]),
                .p = p,
                .row = row_elements(q, &run->sizes),
                .scores = (float *)(void *)run->scratch};
    a.slopes = a.scores + TILE_ROWS * a.row;
    a.tangents = a.slopes + TILE_ROWS * a.row;
    return a;
}

static int64_t first_seen(const ragged *a, const tile *t, int64_t r)
{
    const int64_t chunk = a->p->chunk, at = r - t->begin;
    return t->begin + qn_attend_first(a->p->window, chunk, chunk ? a->positions[t->begin] % chunk : 0, at);
}

static int64_t end_of_seen(const ragged *a, const tile *t, int64_t r)
{
    if (!a->p->whole) return r + 1;
    return a->p->window && r + a->p->window < t->end ? r + a->p->window : t->end;
}

static tile tile_at(const ragged *a, int64_t sequence, int64_t i)
{
    tile t = {.begin = a->row_begin[sequence], .end = a->row_begin[sequence + 1]};
    t.row = t.begin + i * TILE_ROWS;
    t.n = t.end - t.row < TILE_ROWS ? t.end - t.row : TILE_ROWS;
    t.low = first_seen(a, &t, t.row);
    t.high = end_of_seen(a, &t, t.row + t.n - 1);
    return t;
}

static int64_t tiles_of(const ragged *a, int64_t sequence)
{
    return (a->row_begin[sequence + 1] - a->row_begin[sequence] + TILE_ROWS - 1) / TILE_ROWS;
}

/* Scores of a tile with what its rows see: q . k, for each row beside the others. */
static void against(const ragged *a, const tile *t, const float *x, int64_t x_stride, const float *y,
                    int64_t y_stride, int64_t dim, float *out)
{
    a->run->kernels->gemm_f32(out, a->row, x + t->row * x_stride, x_stride, 1, y + t->low * y_stride, 1,
                              y_stride, t->high - t->low, dim, 0, t->n, 0);
}

/* Of scores of row r with what lies in [from, to) of the tile's: -inf where it does not see it. 0: it sees nothing. */
static int hide(const ragged *a, const tile *t, int64_t r, int64_t from, int64_t to, float *all)
{
    qn_chosen_runs runs = {.chosen = a->chosen + r * a->chosen_stride,
                           .top = a->top,
                           .block = a->p->block,
                           .first = t->low + from - t->begin,
                           .position = r - t->begin,
                           .no_tail = a->p->no_tail};
    int64_t begin, end, at = from;
    while (qn_chosen_next(&runs, &begin, &end)) {
        for (; at < begin + t->begin - t->low; at++) all[at] = -INFINITY;
        at = end + t->begin - t->low;
    }
    for (; at < to; at++) all[at] = -INFINITY;
    return runs.end > 0;
}

/* Probabilities into scores, 0 where a row does not look; tanh under a cap into tangents, for gradients. */
static void probabilities(const ragged *a, const tile *t, int64_t h, int with_tangents)
{
    const qn_kernels *k = a->run->kernels;
    const float cap = a->p->softcap, inverse = cap > 0 ? 1 / cap : 0;
    against(a, t, a->q + h * a->dim, a->q_stride, a->k + h / a->shared * a->dim, a->k_stride, a->dim,
            a->scores);
    for (int64_t i = 0; i < t->n; i++) {
        const int64_t from = first_seen(a, t, t->row + i) - t->low,
                      to = end_of_seen(a, t, t->row + i) - t->low, n = to - from;
        float *all = a->scores + i * a->row, *x = all + from;
        k->ew[QN_EW_MUL](x, x, 1, &a->p->scale, 0, n);
        if (cap > 0) {
            k->ew[QN_EW_MUL](x, x, 1, &inverse, 0, n);
            k->ew[QN_EW_TANH](x, x, 1, x, 1, n);
            if (with_tangents) memcpy(a->tangents + i * a->row + from, x, (size_t)n * sizeof *x);
            k->ew[QN_EW_MUL](x, x, 1, &cap, 0, n);
        }
        const int sees = !a->chosen || hide(a, t, t->row + i, from, to, all);
        if (a->sinks) x[n] = a->sinks[h]; /* one more logit that takes its share and reads no value */
        if (sees)
            k->softmax(x, x, n + (a->sinks != NULL));
        else
            memset(x, 0, (size_t)n * sizeof *x);
        memset(all, 0, (size_t)from * sizeof *all);
        memset(all + to, 0, (size_t)(t->high - t->low - to) * sizeof *all);
    }
}

/* ---- gradients ---------------------------------------------------------------------------------------- */

typedef struct {
    const float *out, *d_out;
    int64_t out_stride, d_stride;
    float *result;                /* rows of dq, dk, dv, `stride` apart */
    int64_t stride, keys, values; /* where dk and dv begin in a row */
} gradient;

/* slopes: the gradient by q . k, p (dp - dout . out) times what the cap and the scale make of it, where dp =
 * dout . v. */
static void slopes(const ragged *a, const gradient *g, const tile *t, int64_t h)
{
    const qn_kernels *k = a->run->kernels;
    probabilities(a, t, h, 1);
    against(a, t, g->d_out + h * a->v_dim, g->d_stride, a->v + h / a->shared * a->v_dim, a->v_stride,
            a->v_dim, a->slopes);
    for (int64_t i = 0; i < t->n; i++) {
        const int64_t r = t->row + i, from = first_seen(a, t, r) - t->low, to = end_of_seen(a, t, r) - t->low,
                      n = to - from;
        const float *p = a->scores + i * a->row + from;
        const float mean = k->dot(g->d_out + r * g->d_stride + h * a->v_dim,
                                  g->out + r * g->out_stride + h * a->v_dim, a->v_dim);
        float *all = a->slopes + i * a->row, *x = all + from;
        k->ew[QN_EW_SUB](x, x, 1, &mean, 0, n);
        k->ew[QN_EW_MUL](x, x, 1, p, 1, n);
        if (a->p->softcap > 0) { /* times 1 - tanh^2 */
            float *tangent = a->tangents + i * a->row + from;
            k->ew[QN_EW_SQUARE](tangent, tangent, 1, tangent, 1, n);
            k->ew[QN_EW_MUL](tangent, tangent, 1, x, 1, n);
            k->ew[QN_EW_SUB](x, x, 1, tangent, 1, n);
        }
        k->ew[QN_EW_MUL](x, x, 1, &a->p->scale, 0, n);
        memset(all, 0, (size_t)from * sizeof *all);
        memset(all + to, 0, (size_t)(t->high - t->low - to) * sizeof *all);
    }
}

/* A tile's rows of head h: their dq, and what they give to dk and dv of its key head. */
static void gradients(const ragged *a, const gradient *g, const tile *t, int64_t h)
{
    const qn_kernels *k = a->run->kernels;
    const int64_t kv = h / a->shared, seen = t->high - t->low;
    float *own = g->result + t->row * g->stride + h * a->dim, *first = g->result + t->low * g->stride;
    slopes(a, g, t, h);
    k->gemm_f32(own, g->stride, a->slopes, a->row, 1, a->k + t->low * a->k_stride + kv * a->dim, a->k_stride,
                1, a->dim, seen, 0, t->n, 0);
    k->gemm_f32(first + g->keys + kv * a->dim, g->stride, a->slopes, 1, a->row,
                a->q + t->row * a->q_stride + h * a->dim, a->q_stride, 1, a->dim, t->n, 0, seen, 1);
    k->gemm_f32(first + g->values + kv * a->v_dim, g->stride, a->scores, 1, a->row,
                g->d_out + t->row * g->d_stride + h * a->v_dim, g->d_stride, 1, a->v_dim, t->n, 0, seen, 1);
}

/* ---- shares ------------------------------------------------------------------------------------------- */

/* Workers claim key heads of sequences, so that each sum over rows has one owner. */
static void attend_grad_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const ragged a = ragged_of(run, s, 7);
    const int64_t kv_heads = a.heads / a.shared;
    const gradient g = {.out = (const float *)s->in[5],
                        .d_out = (const float *)s->in[6],
                        .out_stride = s->plan.in[5].stride[0],
                        .d_stride = s->plan.in[6].stride[0],
                        .result = (float *)(void *)s->out,
                        .stride = s->plan.out.shape.dim[1],
                        .keys = a.heads * a.dim,
                        .values = (a.heads + kv_heads) * a.dim};
    int64_t begin, end;
    while (qn_cpu_claim(run, a.n_sequences * kv_heads, &begin, &end))
        for (int64_t at = begin; at < end; at++) {
            const int64_t sequence = at / kv_heads, kv = at % kv_heads;
            for (int64_t r = a.row_begin[sequence]; r < a.row_begin[sequence + 1]; r++) {
                float *row = g.result + r * g.stride;
                memset(row + g.keys + kv * a.dim, 0, (size_t)a.dim * sizeof *row);
                memset(row + g.values + kv * a.v_dim, 0, (size_t)a.v_dim * sizeof *row);
            }
            for (int64_t i = 0; i < tiles_of(&a, sequence); i++) {
                const tile t = tile_at(&a, sequence, i);
                for (int64_t h = kv * a.shared; h < (kv + 1) * a.shared; h++) gradients(&a, &g, &t, h);
            }
        }
}

static qn_status attend_grad_prepare(qn_cpu *d, const qn_plan *plan, qn_cpu_step *step, size_t *scratch_bytes,
                                     size_t *shared_bytes)
{
    const int arrays = step->plan.params.attend.softcap > 0 ? 3 : 2;
    const size_t need =
        (size_t)(arrays * TILE_ROWS * row_elements(&step->plan.in[0], &plan->max)) * sizeof(float);
    if (*scratch_bytes < need) *scratch_bytes = need;
    return QN_OK;
}

const qn_cpu_prim qn_cpu_ATTEND_GRAD = {attend_grad_run, attend_grad_prepare};

/* Recurrent layers: the sequential recurrence over the rows of each sequence, with state carried in slots.
 * Workers take pieces of channels or of columns, all rows of a sequence in one go, so the order over rows
 * never changes. */
#include <string.h>

#include "device/cpu/cpu.h"

/* Channels, or columns of a head's state, that are handed out at once: a cache line's multiple, and a piece
 * of a usual state (128 rows) that stays in L1. */
enum { PIECE = 64 };

static int64_t pieces_of(int64_t n)
{
    return (n + PIECE - 1) / PIECE;
}

static int64_t end_of(int64_t piece, int64_t n)
{
    return (piece + 1) * PIECE < n ? (piece + 1) * PIECE : n;
}

/* Columns [begin, end) of n_rows rows of a state. */
static void clear(float *state, int64_t n_rows, int64_t stride, int64_t begin, int64_t end)
{
    for (int64_t i = 0; i < n_rows; i++)
        memset(state + i * stride + begin, 0, (size_t)(end - begin) * sizeof *state);
}

static float *state_of(const qn_params_recurrent *p, int64_t slot)
{
    return qn_cpu_state_slot(p->state, p->layer, slot) + p->offset;
}

/* Without a state the worker's scratch is one that starts from zero. */
static void conv_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_params_recurrent *p = &s->plan.params.recurrent;
    const qn_operand *x = &s->plan.in[0];
    const int64_t channels = x->shape.dim[1], pieces = pieces_of(channels),
                  n_sequences = qn_cpu_sequences(&run->sizes, &s->plan.in[2]);
    const int32_t *row_begin = (const int32_t *)s->in[2], *slots = (const int32_t *)s->in[3],
                  *reset = (const int32_t *)s->in[4]; /* with a state */
    qn_conv_args a = {.channels = channels,
                      .kernel = s->plan.in[1].shape.dim[0],
                      .x_stride = x->stride[0],
                      .w = (const float *)s->in[1],
                      .out_stride = channels};
    int64_t begin, end;
    while (qn_cpu_claim(run, n_sequences * pieces, &begin, &end))
        for (int64_t at = begin; at < end; at++) {
            const int64_t i = at / pieces, from = at % pieces * PIECE, to = end_of(at % pieces, channels);
            a.n_rows = row_begin[i + 1] - row_begin[i];
            a.x = (const float *)s->in[0] + row_begin[i] * a.x_stride;
            a.out = (float *)s->out + row_begin[i] * channels;
            a.state = p->state ? state_of(p, slots[i]) : (float *)run->scratch;
            if (!p->state || reset[i]) clear(a.state, a.kernel - 1, channels, from, to);
            run->kernels->short_conv(&a, from, to);
        }
}

static qn_status conv_prepare(qn_cpu *d, const qn_plan *plan, qn_cpu_step *step, size_t *scratch_bytes,
                              size_t *shared_bytes)
{
    const qn_shape *w = &step->plan.in[1].shape;
    size_t need = (size_t)(w->dim[0] * w->dim[1]) * sizeof(float);
    if (!step->plan.params.recurrent.state && *scratch_bytes < need) *scratch_bytes = need;
    return QN_OK;
}

const qn_cpu_prim qn_cpu_SHORT_CONV = {conv_run, conv_prepare};

/* state: [heads][dk][dv]. */
static void delta_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_params_recurrent *p = &s->plan.params.recurrent;
    const qn_operand *in = s->plan.in;
    const int64_t heads = in[2].shape.dim[1], shared = heads / in[0].shape.dim[1], dk = in[0].shape.dim[2],
                  dv = in[2].shape.dim[2], pieces = pieces_of(dv),
                  n_sequences = qn_cpu_sequences(&run->sizes, &in[5]);
    const int32_t *row_begin = (const int32_t *)s->in[5], *slots = (const int32_t *)s->in[6],
                  *reset = (const int32_t *)s->in[7]; /* with a state */
    qn_delta_args a = {.dk = dk,
                       .dv = dv,
                       .q_stride = in[0].stride[0],
                       .k_stride = in[1].stride[0],
                       .v_stride = in[2].stride[0],
                       .g_stride = in[3].stride[0],
                       .beta_stride = in[4].stride[0],
                       .by_channel = in[3].shape.n == 3,
                       .additive = p->additive,
                       .out_stride = heads * dv};
    const int64_t decays = a.by_channel ? dk : 1;
    int64_t begin, end;
    while (qn_cpu_claim(run, n_sequences * heads * pieces, &begin, &end))
        for (int64_t at = begin; at < end; at++) {
            const int64_t i = at / pieces / heads, h = at / pieces % heads, from = at % pieces * PIECE,
                          to = end_of(at % pieces, dv), row = row_begin[i];
            a.n_rows = row_begin[i + 1] - row;
            a.q = (const float *)s->in[0] + row * a.q_stride + h / shared * dk;
            a.k = (const float *)s->in[1] + row * a.k_stride + h / shared * dk;
            a.v = (const float *)s->in[2] + row * a.v_stride + h * dv;
            a.g = (const float *)s->in[3] + row * a.g_stride + h * decays;
            a.beta = (const float *)s->in[4] + row * a.beta_stride + h;
            a.out = (float *)s->out + row * a.out_stride + h * dv;
            a.state = p->state ? state_of(p, slots[i]) + h * dk * dv : (float *)run->scratch;
            if (!p->state || reset[i]) clear(a.state, dk, dv, from, to);
            run->kernels->gated_delta(&a, from, to);
        }
}

static qn_status delta_prepare(qn_cpu *d, const qn_plan *plan, qn_cpu_step *step, size_t *scratch_bytes,
                               size_t *shared_bytes)
{
    size_t need = (size_t)(step->plan.in[0].shape.dim[2] * step->plan.in[2].shape.dim[2]) * sizeof(float);
    if (!step->plan.params.recurrent.state && *scratch_bytes < need) *scratch_bytes = need;
    return QN_OK;
}

const qn_cpu_prim qn_cpu_GATED_DELTA = {delta_run, delta_prepare};

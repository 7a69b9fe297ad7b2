/* Recurrent layers: the sequential recurrence over the rows of each sequence, with state carried in slots. A
 * worker takes channels or heads, so the order over rows never changes. */
#include <string.h>

#include "device/cpu/cpu.h"

/* state: the last kernel - 1 inputs of each channel, [kernel - 1][channels]. */
static void conv_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_params_recurrent *p = &s->plan.params.recurrent;
    const qn_operand *x = &s->plan.in[0];
    int64_t channels = x->shape.dim[1], kernel = s->plan.in[1].shape.dim[1], begin, end;
    int64_t w_stride = s->plan.in[1].stride[0];
    const int32_t *row_begin = (const int32_t *)s->in[2], *slots = (const int32_t *)s->in[3],
                  *reset = (const int32_t *)s->in[4];
    qn_cpu_share(run, channels, &begin, &end);
    for (int64_t i = 0; i < run->sizes.v[QN_SYM_S]; i++) {
        float *state = qn_cpu_state_slot(p->state, p->layer, slots[i]);
        for (int64_t c = begin; c < end; c++) {
            const float *w = (const float *)s->in[1] + c * w_stride;
            if (reset[i])
                for (int64_t t = 0; t < kernel - 1; t++) state[t * channels + c] = 0;
            for (int64_t r = row_begin[i]; r < row_begin[i + 1]; r++) {
                float in = ((const float *)s->in[0])[r * x->stride[0] + c], sum = 0;
                for (int64_t t = 0; t < kernel - 1; t++) sum += state[t * channels + c] * w[t];
                sum += in * w[kernel - 1];
                for (int64_t t = 0; t + 1 < kernel - 1; t++)
                    state[t * channels + c] = state[(t + 1) * channels + c];
                if (kernel > 1) state[(kernel - 2) * channels + c] = in;
                ((float *)s->out)[r * channels + c] = sum;
            }
        }
    }
}

const qn_cpu_prim qn_cpu_SHORT_CONV = {conv_run, NULL};

/* state: [heads][dk][dv]. */
static void delta_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_params_recurrent *p = &s->plan.params.recurrent;
    const qn_operand *q = &s->plan.in[0], *v = &s->plan.in[2];
    int64_t heads = q->shape.dim[1], dk = q->shape.dim[2], dv = v->shape.dim[2], begin, end;
    const int32_t *row_begin = (const int32_t *)s->in[5], *slots = (const int32_t *)s->in[6],
                  *reset = (const int32_t *)s->in[7];
    float *delta = (float *)run->scratch;
    qn_cpu_share(run, heads, &begin, &end);
    for (int64_t i = 0; i < run->sizes.v[QN_SYM_S]; i++) {
        for (int64_t h = begin; h < end; h++) {
            float *state = qn_cpu_state_slot(p->state, p->layer, slots[i]) + h * dk * dv;
            if (reset[i]) memset(state, 0, (size_t)(dk * dv) * sizeof *state);
            for (int64_t r = row_begin[i]; r < row_begin[i + 1]; r++) {
                const float *qr = (const float *)s->in[0] + r * q->stride[0] + h * dk;
                const float *kr = (const float *)s->in[1] + r * s->plan.in[1].stride[0] + h * dk;
                const float *vr = (const float *)s->in[2] + r * v->stride[0] + h * dv;
                float decay = ((const float *)s->in[3])[r * s->plan.in[3].stride[0] + h];
                float beta = ((const float *)s->in[4])[r * s->plan.in[4].stride[0] + h];
                float *out = (float *)s->out + (r * heads + h) * dv;
                run->kernels->ew[QN_EW_EXP](&decay, &decay, 1, &decay, 1, 1);
                memset(delta, 0, (size_t)dv * sizeof *delta);
                for (int64_t a = 0; a < dk; a++)
                    for (int64_t b = 0; b < dv; b++) {
                        state[a * dv + b] *= decay;
                        delta[b] += kr[a] * state[a * dv + b];
                    }
                for (int64_t b = 0; b < dv; b++) delta[b] = beta * (vr[b] - delta[b]);
                memset(out, 0, (size_t)dv * sizeof *out);
                for (int64_t a = 0; a < dk; a++)
                    for (int64_t b = 0; b < dv; b++) {
                        state[a * dv + b] += kr[a] * delta[b];
                        out[b] += qr[a] * state[a * dv + b];
                    }
            }
        }
    }
}

static qn_status delta_prepare(qn_cpu *d, const qn_plan *plan, qn_cpu_step *step, size_t *scratch_bytes,
                               size_t *shared_bytes)
{
    size_t need = (size_t)step->plan.in[2].shape.dim[2] * sizeof(float);
    if (*scratch_bytes < need) *scratch_bytes = need;
    return QN_OK;
}

const qn_cpu_prim qn_cpu_GATED_DELTA = {delta_run, delta_prepare};

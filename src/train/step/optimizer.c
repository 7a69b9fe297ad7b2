#include "train/step/optimizer.h"

#include <math.h>

int qn_optimizer_states(const qn_optimizer *o)
{
    return o->kind == QN_OPTIMIZER_ADAMW ? 2 : o->momentum != 0 ? 1 : 0;
}

static void adamw(const qn_optimizer *o, int64_t step, double rate, double g_scale, int64_t n, float *w,
                  const float *g, float *m, float *v)
{
    const double b1 = o->beta1, b2 = o->beta2, kept = 1 - rate * o->weight_decay;
    const double m_part = o->no_bias_correction ? 1 : 1 - pow(b1, (double)step);
    const double v_part = o->no_bias_correction ? 1 : 1 - pow(b2, (double)step);
    for (int64_t i = 0; i < n; i++) {
        const double gi = g[i] * g_scale;
        m[i] = (float)(b1 * m[i] + (1 - b1) * gi);
        v[i] = (float)(b2 * v[i] + (1 - b2) * gi * gi);
        w[i] = (float)(w[i] * kept - rate * (m[i] / m_part) / (sqrt(v[i] / v_part) + o->eps));
    }
}

static void sgd(const qn_optimizer *o, double rate, double g_scale, int64_t n, float *w, const float *g,
                float *m)
{
    const double kept = 1 - rate * o->weight_decay;
    for (int64_t i = 0; i < n; i++) {
        double by = g[i] * g_scale;
        if (m) by = m[i] = (float)(o->momentum * m[i] + by);
        w[i] = (float)(w[i] * kept - rate * by);
    }
}

void qn_optimizer_step(const qn_optimizer *o, int64_t step, double rate, double g_scale, int64_t n, float *w,
                       const float *g, float *m, float *v)
{
    if (o->kind == QN_OPTIMIZER_ADAMW)
        adamw(o, step, rate, g_scale, n, w, g, m, v);
    else
        sgd(o, rate, g_scale, n, w, g, o->momentum != 0 ? m : NULL);
}

/* The gradient of a product with chosen experts by what they read: out[r, j] = g[r, j] w[ids[r, j]]. Workers
 * take experts, panel by panel, so that a panel is unpacked once for all rows that chose its expert. */
#include <string.h>

#include "device/cpu/cpu.h"

static void one_expert(const qn_cpu_run *run, const qn_cpu_step *s, int64_t expert)
{
    const qn_operand *g = &s->plan.in[0], *w = &s->plan.in[1], *ids = &s->plan.in[2];
    const int64_t rows = qn_cpu_rows(run, g), top = ids->shape.dim[1], n = w->shape.dim[1],
                  k = w->shape.dim[2], n_panels = (n + QN_PANEL - 1) / QN_PANEL;
    const char *panels =
        (const char *)s->weight->data + (size_t)(expert * n_panels) * qn_pack_panel_bytes(w->dtype, k);
    float *panel = (float *)run->scratch;
    char *warm = run->scratch + s->kernel_at;
    for (int64_t p = 0; p < n_panels; p++) {
        const int64_t first = p * QN_PANEL, wide = n - first < QN_PANEL ? n - first : QN_PANEL;
        int unpacked = 0;
        for (int64_t r = 0; r < rows; r++)
            for (int64_t j = 0; j < top; j++) {
                if (((const int32_t *)s->in[2])[r * ids->stride[0] + j] != expert) continue;
                if (!unpacked) {
                    qn_cpu_warm(run->kernels, s->weight, expert, p, p + 1, warm);
                    run->kernels->unpack_panel(w->dtype, k, panels, p, panel);
                    unpacked = 1;
                }
                run->kernels->gemm_f32((float *)s->out + (r * top + j) * k, k,
                                       (const float *)s->in[0] + r * g->stride[0] + j * n + first, n, 1,
                                       panel, 1, QN_PANEL, k, wide, 0, 1, p > 0);
            }
        if (!unpacked) return; /* nobody chose it */
    }
}

static void experts_grad_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    int64_t begin, end;
    while (qn_cpu_claim(run, s->plan.in[1].shape.dim[0], &begin, &end))
        for (int64_t e = begin; e < end; e++) one_expert(run, s, e);
}

static qn_status experts_grad_prepare(qn_cpu *d, const qn_plan *plan, qn_cpu_step *step,
                                      size_t *scratch_bytes, size_t *shared_bytes)
{
    const qn_operand *w = &step->plan.in[1];
    const qn_plan_slot *slot = &plan->slots[w->slot];
    if (!slot->buffer || slot->buffer->layout != QN_CPU_LAYOUT_PANELS || w->offset ||
        w->stride[0] != w->shape.dim[1] * w->shape.dim[2])
        return qn_fail(QN_E_UNSUPPORTED, "experts need packed weights, and all of them");
    step->weight = slot->buffer;
    step->act = QN_ACT_COUNT; /* shares its activations with nobody */
    step->kernel_at = (size_t)w->shape.dim[2] * QN_PANEL * sizeof(float);
    size_t need = step->kernel_at + qn_cpu_warm_scratch_bytes(step->weight);
    if (*scratch_bytes < need) *scratch_bytes = need;
    return QN_OK;
}

const qn_cpu_prim qn_cpu_EXPERTS_GRAD = {experts_grad_run, experts_grad_prepare};

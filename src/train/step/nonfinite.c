#include "train/step/nonfinite.h"

#include <stdio.h>
#include <string.h>

/* A walk through the steps of a batch, in their order. */
typedef struct {
    const qn_trainer *t;
    const qn_trainable *what;
    int64_t layer;             /* that is computed; -1: none yet, the number of layers: all are done */
    int backward;              /* the loss was computed */
    int found, behind_loss;    /* a number that is not finite; and whether that was behind the loss */
    char place[64], step[160]; /* of the first */
    char label[64];            /* of the last step that has one */
    int64_t array;             /* the first whose gradient comes behind it; -1: none */
} walk;

static int is_finite(qn_dtype dtype, const void *data, int64_t n)
{
    const uint32_t *words = data;
    const uint16_t *halves = data;
    const uint16_t exponent = dtype == QN_DTYPE_F16 ? 0x7c00 : 0x7f80;
    if (dtype != QN_DTYPE_F32 && dtype != QN_DTYPE_BF16 && dtype != QN_DTYPE_F16) return 1;
    for (int64_t i = 0; i < n; i++)
        if (dtype == QN_DTYPE_F32 ? (words[i] & 0x7f800000) == 0x7f800000
                                  : (halves[i] & exponent) == exponent)
            return 0;
    return 1;
}

static void note(walk *w, const qn_plan_step *step)
{
    const int64_t n_layers = qn_trainer_base(w->t)->config.num_hidden_layers;
    w->found = 1;
    w->behind_loss = w->backward;
    if (*step->label)
        snprintf(w->step, sizeof w->step, "%s", step->label);
    else
        snprintf(w->step, sizeof w->step, "%s%s%s", qn_prim_get(step->prim)->name,
                 *w->label ? " behind " : "", w->label);
    if (w->layer < 0)
        snprintf(w->place, sizeof w->place, "the embedding");
    else if (w->layer < n_layers)
        snprintf(w->place, sizeof w->place, "layer %lld", (long long)w->layer);
    else
        snprintf(w->place, sizeof w->place, "the head");
}

/* Gradients are computed behind the loss, those of the last layer first. */
static void look_backward(walk *w, const qn_probe_view *v)
{
    for (int64_t i = 0; w->behind_loss && w->array < 0 && i < w->what->n; i++)
        if (v->out == qn_trainer_output(w->t, 1 + i)) w->array = i;
}

static void look(void *user, const qn_probe_view *v)
{
    walk *w = user;
    const qn_plan_step *step = v->step;
    long long done;
    if (!w->found && !is_finite(step->out.dtype, v->out, qn_shape_elements(&step->out.shape, v->sizes)))
        note(w, step);
    if (*step->label) snprintf(w->label, sizeof w->label, "%s", step->label);
    if (w->backward) look_backward(w, v);
    if (!w->backward && strncmp(step->label, "hidden.", 7) == 0 &&
        sscanf(step->label + 7, "%lld", &done) == 1)
        w->layer = done;
    if (v->out == qn_trainer_output(w->t, 0)) w->backward = 1;
}

qn_status qn_nonfinite_find(qn_trainer *t, const qn_train_batch *batch, qn_buf *where)
{
    walk w = {.t = t, .what = qn_trainer_trainable(t), .layer = -1, .array = -1};
    QN_TRY(qn_trainer_watch(t, batch, look, &w));
    if (!w.found) return QN_OK;
    if (w.behind_loss && w.array >= 0)
        qn_buf_printf(where, "the gradients, while that with respect to %s is computed (step %s)",
                      w.what->arrays[w.array].name, w.step);
    else
        qn_buf_printf(where, "%s (step %s)", w.place, w.step);
    return where->status;
}

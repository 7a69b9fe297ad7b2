#include "train/step/trainer.h"

#include <math.h>
#include <string.h>

#include "array/program.h"
#include "base/mem.h"
#include "base/random.h"
#include "train/step/batch_graph.h"
#include "train/step/update.h"

struct qn_trainer {
    const qn_train_base *base;
    qn_trainer_options options;
    qn_scope *scope; /* owns the graph's arrays over the trained numbers */
    qn_trainable trainable;
    qn_program *train, *loss; /* loss alone is made when it is first asked for */
    qn_array *loss_array;
    float **sums; /* [n] of gradients since the last update */
    float **m, **v;
    size_t held_bytes;     /* of these and the sums, in the ledger */
    int64_t n_added, step; /* targets, updates */
    uint32_t n_batches;    /* since the last update */
    double loss_sum;
};

/* ---- the graph ---------------------------------------------------------------------------------------- */

/* Sum over the targets of -log softmax(logits)[target]. */
static qn_array *build_loss(qn_trainer *t)
{
    qn_scope *s = t->scope;
    const qn_train_base *base = t->base;
    qn_array *rows, *targets;
    qn_forward f = {.config = &base->config,
                    .parameters = base->parameters,
                    .groups = &base->groups,
                    .trained = t->trainable.trained,
                    .checkpoint_layers = t->options.checkpoint_layers};
    qn_batch_graph_inputs(s, &f, &rows, &targets);
    return qn_sum(s, qn_forward_losses(s, &f, qn_forward_body(s, &f), rows, targets), 0);
}

static qn_status make_train_program(qn_trainer *t)
{
    const int64_t n = t->trainable.n;
    qn_program_options o = {.name = "train",
                            .max = {{t->options.max_rows, t->options.max_sequences, t->options.max_targets}},
                            .precision = t->options.precision};
    qn_array **wrt = qn_calloc((size_t)n, sizeof *wrt), **outputs = qn_calloc((size_t)n + 1, sizeof *outputs);
    qn_status status = wrt && outputs ? QN_OK : QN_E_NOMEM;
    if (status == QN_OK) {
        for (int64_t i = 0; i < n; i++) wrt[i] = t->trainable.arrays[i].array;
        outputs[0] = t->loss_array;
        status = qn_vjp(t->scope, t->loss_array, NULL, (int)n, wrt, outputs + 1);
    }
    for (int64_t i = 0; i < n && status == QN_OK; i++)
        if (!outputs[i + 1])
            status =
                qn_fail(QN_E_UNSUPPORTED, "%s: the loss does not depend on it", t->trainable.arrays[i].name);
    if (status == QN_OK) status = qn_program_new(t->scope, &o, (int)n + 1, outputs, &t->train);
    qn_free(wrt);
    qn_free(outputs);
    return status;
}

/* ---- life --------------------------------------------------------------------------------------------- */

static qn_status new_numbers(qn_trainer *t, float ***out)
{
    const int64_t n = t->trainable.n;
    *out = qn_calloc((size_t)n, sizeof **out);
    if (!*out) return QN_E_NOMEM;
    for (int64_t i = 0; i < n; i++)
        if (!((*out)[i] = qn_calloc((size_t)t->trainable.arrays[i].n, sizeof(float)))) return QN_E_NOMEM;
    return QN_OK;
}

static qn_status make(qn_trainer *t)
{
    const int states = qn_optimizer_states(&t->options.optimizer);
    size_t bytes;
    QN_TRY(qn_trainable_new(t->base, t->scope, &t->options.trainable, &t->trainable));
    bytes = (size_t)t->trainable.n_elements * sizeof(float) * (size_t)(1 + states);
    QN_TRY(qn_ledger_reserve(t->base->device->host_ledger, QN_LEDGER_OTHER, bytes));
    t->held_bytes = bytes;
    QN_TRY(new_numbers(t, &t->sums));
    if (states > 0) QN_TRY(new_numbers(t, &t->m));
    if (states > 1) QN_TRY(new_numbers(t, &t->v));
    t->loss_array = build_loss(t);
    QN_TRY(qn_scope_status(t->scope));
    return make_train_program(t);
}

qn_status qn_trainer_new(const qn_train_base *base, const qn_trainer_options *options, qn_trainer **out)
{
    qn_trainer *t = qn_calloc(1, sizeof *t);
    if (!t) return QN_E_NOMEM;
    t->base = base;
    t->options = *options;
    if (!t->options.max_targets) t->options.max_targets = t->options.max_rows;
    qn_status status = (t->scope = qn_scope_new(base->device)) ? make(t) : QN_E_NOMEM;
    t->options.trainable.targets = NULL;
    if (status == QN_OK)
        *out = t;
    else
        qn_trainer_free(t);
    return status;
}

static void free_numbers(qn_trainer *t, float **numbers)
{
    for (int64_t i = 0; numbers && i < t->trainable.n; i++) qn_free(numbers[i]);
    qn_free(numbers);
}

void qn_trainer_free(qn_trainer *t)
{
    if (!t) return;
    qn_program_free(t->train);
    qn_program_free(t->loss);
    free_numbers(t, t->sums);
    free_numbers(t, t->m);
    free_numbers(t, t->v);
    qn_ledger_release(t->base->device->host_ledger, QN_LEDGER_OTHER, t->held_bytes);
    qn_trainable_free(&t->trainable);
    qn_scope_free(t->scope);
    qn_free(t);
}

qn_trainable *qn_trainer_trainable(qn_trainer *t)
{
    return &t->trainable;
}

const qn_trainer_options *qn_trainer_get_options(const qn_trainer *t)
{
    return &t->options;
}

const qn_train_base *qn_trainer_base(const qn_trainer *t)
{
    return t->base;
}

int64_t qn_trainer_steps(const qn_trainer *t)
{
    return t->step;
}

float *qn_trainer_moment(qn_trainer *t, int64_t i, int which)
{
    float **numbers = which ? t->v : t->m;
    return numbers ? numbers[i] : NULL;
}

void qn_trainer_resume(qn_trainer *t, int64_t steps)
{
    t->step = steps;
    t->n_added = 0;
    t->n_batches = 0;
}

/* ---- batches ------------------------------------------------------------------------------------------ */

/* What is dropped depends on the seed, the step and the batch within it. */
static void set_key(qn_trainer *t, int drops)
{
    int32_t *key = t->trainable.key;
    if (!key) return;
    const uint64_t bits = qn_random_bits(t->trainable.options.seed, (uint64_t)t->step << 24 | t->n_batches);
    key[0] = (int32_t)(uint32_t)(bits >> 32);
    key[1] = (int32_t)(uint32_t)bits;
    key[2] = drops;
}

static qn_status run(qn_trainer *t, qn_program *p, const qn_train_batch *b, double *sum)
{
    const qn_trainer_options *o = &t->options;
    const qn_batch_sizes max = {o->max_rows, o->max_sequences, o->max_targets};
    QN_TRY(qn_batch_graph_fill(p, &t->base->config, &max, b));
    set_key(t, p == t->train);
    const qn_sizes sizes = {{b->n_rows, b->n_sequences, b->n_targets}};
    QN_TRY(qn_program_run(p, &sizes));
    const void *loss;
    QN_TRY(qn_program_read(p, 0, &loss));
    *sum = *(const float *)loss;
    return isfinite(*sum) ? QN_OK
                          : qn_fail(QN_E_DEVICE, "the loss is %g after %lld steps", *sum, (long long)t->step);
}

qn_status qn_trainer_add(qn_trainer *t, const qn_train_batch *b, double *loss)
{
    double sum = 0;
    QN_TRY(run(t, t->train, b, &sum));
    for (int64_t i = 0; i < t->trainable.n; i++) {
        const void *output;
        QN_TRY(qn_program_read(t->train, (int)i + 1, &output));
        const float *g = output;
        float *to = t->sums[i];
        if (!t->n_added)
            memcpy(to, g, (size_t)t->trainable.arrays[i].n * sizeof *to);
        else
            for (int64_t k = 0; k < t->trainable.arrays[i].n; k++) to[k] += g[k];
    }
    t->loss_sum = t->n_added ? t->loss_sum + sum : sum;
    t->n_added += b->n_targets;
    t->n_batches++;
    if (loss) *loss = sum / (double)b->n_targets;
    return QN_OK;
}

qn_status qn_trainer_watch(qn_trainer *t, const qn_train_batch *b, qn_probe_fn *probe, void *user)
{
    double sum;
    qn_program_set_probe(t->train, probe, NULL, user);
    const qn_status status = run(t, t->train, b, &sum);
    qn_program_set_probe(t->train, NULL, NULL, NULL);
    return status == QN_E_DEVICE ? QN_OK : status;
}

const void *qn_trainer_output(const qn_trainer *t, int64_t i)
{
    return qn_program_output(t->train, (int)i);
}

const float *qn_trainer_gradient(const qn_trainer *t, int64_t i)
{
    return t->sums[i];
}

size_t qn_trainer_program_bytes(const qn_trainer *t)
{
    return qn_program_bytes(t->train);
}

/* ---- updates ------------------------------------------------------------------------------------------ */

static void update_array(qn_trainer *t, int64_t i, double rate, double scale)
{
    const qn_update u = {.optimizer = &t->options.optimizer, .step = t->step, .rate = rate, .g_scale = scale};
    qn_trainable_update(&t->trainable, i, &u, t->sums[i], t->m ? t->m[i] : NULL, t->v ? t->v[i] : NULL);
}

qn_status qn_trainer_update(qn_trainer *t, double rate, qn_trainer_report *out)
{
    const qn_trainer_options *o = &t->options;
    if (!t->n_added) return qn_fail(QN_E_ARG, "a training step needs a batch");
    double squares = 0;
    for (int64_t i = 0; i < t->trainable.n; i++) {
        double own = 0;
        for (int64_t k = 0; k < t->trainable.arrays[i].n; k++) own += (double)t->sums[i][k] * t->sums[i][k];
        if (!isfinite(own)) {
            t->n_added = 0;
            t->n_batches = 0;
            return qn_fail(QN_E_DEVICE, "the gradient with respect to %s is not finite after %lld steps",
                           t->trainable.arrays[i].name, (long long)t->step);
        }
        squares += own;
    }
    const double mean = 1.0 / (double)t->n_added, norm = sqrt(squares) * mean;
    double scale = mean;
    if (o->clip_norm > 0 && norm > o->clip_norm) scale *= o->clip_norm / (norm + 1e-6);
    t->step++;
    for (int64_t i = 0; i < t->trainable.n; i++) update_array(t, i, rate, scale);
    if (out)
        *out = (qn_trainer_report){.step = t->step,
                                   .n_targets = t->n_added,
                                   .loss = t->loss_sum * mean,
                                   .grad_norm = norm,
                                   .rate = rate};
    t->n_added = 0;
    t->n_batches = 0;
    return QN_OK;
}

qn_status qn_trainer_evaluate(qn_trainer *t, const qn_train_batch *b, double *loss)
{
    double sum = 0;
    if (!t->loss) {
        qn_program_options o = {
            .name = "loss",
            .max = {{t->options.max_rows, t->options.max_sequences, t->options.max_targets}},
            .precision = t->options.precision};
        QN_TRY(qn_program_new(t->scope, &o, 1, &t->loss_array, &t->loss));
    }
    QN_TRY(run(t, t->loss, b, &sum));
    *loss = sum / (double)b->n_targets;
    return QN_OK;
}

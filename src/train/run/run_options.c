#include "train/run/run_options.h"

#include <inttypes.h>
#include <math.h>

#include "base/mem.h"
#include "model/config/rope_change.h"

/* Enough for any use, and no product of two of them overflows. */
enum { COUNT_MAX = 1 << 26, EPOCHS_MAX = 10000, MAX_LENGTH = 2048, SAVE_EVERY = 100 };
static const int64_t steps_max = (int64_t)1 << 40;

/* ---- bounds ------------------------------------------------------------------------------------------- */

static qn_status check_count(const char *name, int64_t value, int64_t most)
{
    if (value >= 0 && value <= most) return QN_OK;
    return qn_fail(QN_E_ARG, "%s %" PRId64 ": it must be 0 to %" PRId64, name, value, most);
}

static qn_status check_choice(const char *name, int value, int n)
{
    return value >= 0 && value < n ? QN_OK : qn_fail(QN_E_ARG, "there is no %s %d", name, value);
}

static qn_status check_real(const char *name, double value, double least, double most)
{
    if (isfinite(value) && value >= least && value <= most) return QN_OK;
    return qn_fail(QN_E_ARG, "%s %g: it must be %g to %g", name, value, least, most);
}

static qn_status check_choices(const qn_train_options *o)
{
    QN_TRY(check_choice("method", (int)o->method, QN_TRAIN_FULL + 1));
    QN_TRY(check_choice("init", (int)o->init, QN_TRAIN_KAIMING_NORMAL + 1));
    QN_TRY(check_choice("layout", (int)o->layout, QN_ADAPTER_MLX + 1));
    QN_TRY(check_choice("optimiser", (int)o->optimizer, QN_OPTIMIZER_SGD + 1));
    QN_TRY(check_choice("schedule", (int)o->schedule, QN_SCHEDULE_COSINE + 1));
    QN_TRY(check_choice("precision", (int)o->precision, QN_PRECISION_EXACT + 1));
    return check_choice("mask", (int)o->mask, QN_MASK_ALL + 1);
}

static qn_status check_counts(const qn_train_options *o)
{
    QN_TRY(check_count("warm-up steps", o->warmup_steps, steps_max));
    QN_TRY(check_count("accumulated batches", o->accumulate, COUNT_MAX));
    QN_TRY(check_count("steps", o->n_steps, steps_max));
    QN_TRY(check_count("epochs", o->n_epochs, EPOCHS_MAX));
    QN_TRY(check_count("tokens of a line", o->max_length, COUNT_MAX));
    QN_TRY(check_count("tokens of a batch", o->batch_tokens, COUNT_MAX));
    QN_TRY(check_count("lines of a batch", o->batch_sequences, COUNT_MAX));
    QN_TRY(check_count("steps between validations", o->validate_every, steps_max));
    QN_TRY(check_count("batches of a validation", o->validate_batches, steps_max));
    QN_TRY(check_count("steps between checkpoints", o->save_every, steps_max));
    return check_count("threads", o->n_threads, COUNT_MAX);
}

static qn_status check_reals(const qn_train_options *o)
{
    QN_TRY(check_real("learning rate", o->learning_rate, 0, INFINITY));
    QN_TRY(check_real("beta1", o->beta1, 0, 1));
    QN_TRY(check_real("beta2", o->beta2, 0, 1));
    if (o->beta1 == 1 || o->beta2 == 1) return qn_fail(QN_E_ARG, "a beta of 1 ignores every gradient");
    QN_TRY(check_real("eps", o->eps, 0, INFINITY));
    QN_TRY(check_real("weight decay", o->weight_decay, -INFINITY, INFINITY));
    QN_TRY(check_real("momentum", o->momentum, 0, 1));
    QN_TRY(check_real("end rate", o->end_rate, 0, INFINITY));
    QN_TRY(check_real("clip norm", o->clip_norm, -INFINITY, INFINITY));
    QN_TRY(check_real("alpha", (double)o->alpha, 0, INFINITY));
    return check_real("dropout", (double)o->dropout, 0, 1);
}

static qn_status check_files(const qn_train_options *o)
{
    if (!o->model && (!o->model_path || !*o->model_path)) return qn_fail(QN_E_ARG, "no model is given");
    if (o->model && (o->model_path || o->device))
        return qn_fail(QN_E_ARG, "both an open model and a path or device are given");
    if (o->model && qn_rope_change_asked(&o->rope))
        return qn_fail(QN_E_ARG, "an open model has its rotary positions: rope cannot be given with it");
    if (!o->data_path || !*o->data_path) return qn_fail(QN_E_ARG, "no data is given");
    if (o->out_path && !*o->out_path) return qn_fail(QN_E_ARG, "the name of the folder to write is empty");
    if (o->resume && !o->out_path) return qn_fail(QN_E_ARG, "no folder is given to resume from");
    if (o->resume && o->overwrite)
        return qn_fail(QN_E_ARG, "a training is resumed or begun anew, not both at once");
    return QN_OK;
}

static qn_status check_values(const qn_train_options *o)
{
    if (o->start_path && o->method == QN_TRAIN_FULL)
        return qn_fail(QN_E_ARG, "a training of all weights cannot start from an adapter");
    QN_TRY(check_choices(o));
    QN_TRY(check_counts(o));
    QN_TRY(qn_rope_change_check(&o->rope));
    return check_reals(o);
}

/* ---- defaults ----------------------------------------------------------------------------------------- */

static void fill_batch(qn_train_options *o)
{
    if (!o->max_length)
        o->max_length = o->batch_tokens && o->batch_tokens < MAX_LENGTH ? o->batch_tokens + 1 : MAX_LENGTH;
    if (!o->batch_tokens)
        o->batch_tokens = o->batch_sequences ? o->batch_sequences * (o->max_length - 1) : o->max_length;
}

static void fill(qn_train_options *o)
{
    if (!o->rank && !o->start_path) o->rank = 8;
    if (o->alpha == 0 && !o->start_path) o->alpha = 16;
    if (o->learning_rate == 0) o->learning_rate = 1e-5;
    if (o->beta1 == 0) o->beta1 = 0.9;
    if (o->beta2 == 0) o->beta2 = 0.999;
    if (o->eps == 0) o->eps = 1e-8;
    if (o->weight_decay == 0 && o->optimizer == QN_OPTIMIZER_ADAMW) o->weight_decay = 0.01;
    if (o->weight_decay < 0) o->weight_decay = 0;
    if (o->clip_norm == 0) o->clip_norm = 1;
    if (o->clip_norm < 0) o->clip_norm = 0;
    if (!o->accumulate) o->accumulate = 1;
    if (o->n_steps)
        o->n_epochs = 0;
    else if (!o->n_epochs)
        o->n_epochs = 1;
    if (!o->save_every) o->save_every = SAVE_EVERY;
    fill_batch(o);
}

static qn_status own(const char **text)
{
    const char *from = *text;
    if (!from) return QN_OK;
    *text = qn_strdup(from);
    return *text ? QN_OK : QN_E_NOMEM;
}

qn_status qn_run_options_make(const qn_train_options *given, qn_run_options *out)
{
    QN_TRY(check_files(given));
    return qn_run_options_make_without_files(given, out);
}

qn_status qn_run_options_make_without_files(const qn_train_options *given, qn_run_options *out)
{
    qn_run_options r = {.o = *given};
    const char **const texts[] = {&r.o.model_path, &r.o.data_path, &r.o.out_path, &r.o.targets,
                                  &r.o.start_path, &r.o.save_type, &r.o.device};
    enum { N_TEXTS = sizeof texts / sizeof *texts };
    QN_TRY(check_values(given));
    fill(&r.o);
    qn_status status = QN_OK;
    for (int i = 0; i < N_TEXTS; i++) {
        if (status == QN_OK)
            status = own(texts[i]);
        else
            *texts[i] = NULL;
    }
    if (status == QN_OK)
        *out = r;
    else
        qn_run_options_free(&r);
    return status;
}

void qn_run_options_free(qn_run_options *r)
{
    qn_free((char *)r->o.model_path);
    qn_free((char *)r->o.data_path);
    qn_free((char *)r->o.out_path);
    qn_free((char *)r->o.targets);
    qn_free((char *)r->o.start_path);
    qn_free((char *)r->o.save_type);
    qn_free((char *)r->o.device);
    *r = (qn_run_options){0};
}

/* ---- what is of no use ----------------------------------------------------------------------------- */

void qn_run_options_note_unused(const qn_train_options *o, qn_buf *notes)
{
    const int is_full = o->method == QN_TRAIN_FULL, is_sgd = o->optimizer == QN_OPTIMIZER_SGD;
    const struct {
        int is_unused;
        const char *name, *owner;
    } settings[] = {
        {is_full && o->targets, "targets", "LoRA and DoRA"},
        {is_full && o->rank, "rank", "LoRA and DoRA"},
        {is_full && o->alpha > 0, "alpha", "LoRA and DoRA"},
        {is_full && o->rslora, "rslora", "LoRA and DoRA"},
        {is_full && o->dropout > 0, "dropout", "LoRA and DoRA"},
        {is_full && o->init != QN_TRAIN_UNIFORM, "init", "LoRA and DoRA"},
        {is_full && o->layout != QN_ADAPTER_PEFT, "layout", "LoRA and DoRA"},
        {!is_full && o->save_type, "save-type", "the training of all weights"},
        {is_sgd && o->beta1 > 0, "beta1", "AdamW"},
        {is_sgd && o->beta2 > 0, "beta2", "AdamW"},
        {is_sgd && o->eps > 0, "eps", "AdamW"},
        {is_sgd && o->no_bias_correction, "no-bias-correction", "AdamW"},
        {!is_sgd && o->momentum > 0, "momentum", "SGD"},
        {o->schedule == QN_SCHEDULE_CONSTANT && o->end_rate > 0, "end-rate",
         "the linear and cosine schedules"},
        {o->n_steps && o->n_epochs, "epochs", "a training without a number of steps"},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        if (settings[i].is_unused)
            qn_buf_printf(notes, "%s has no effect: it belongs to %s\n", settings[i].name, settings[i].owner);
}

/* ---- parts -------------------------------------------------------------------------------------------- */

qn_dataset_options qn_run_options_data(const qn_run_options *r, int64_t vocab_size)
{
    const qn_train_options *o = &r->o;
    return (qn_dataset_options){.mask = o->mask,
                                .max_length = o->max_length,
                                .batch_tokens = o->batch_tokens,
                                .max_sequences = o->batch_sequences,
                                .in_order = o->in_order,
                                .seed = o->seed,
                                .strict = o->strict,
                                .vocab_size = vocab_size};
}

qn_trainer_options qn_run_options_trainer(const qn_run_options *r)
{
    const qn_train_options *o = &r->o;
    return (qn_trainer_options){.trainable = {.method = o->method,
                                              .targets = o->targets,
                                              .rank = o->rank,
                                              .alpha = o->alpha,
                                              .rslora = o->rslora,
                                              .bf16 = o->bf16_adapter,
                                              .dropout = o->dropout,
                                              .init = o->init,
                                              .seed = o->seed,
                                              .layer_begin = o->layer_begin,
                                              .layer_end = o->layer_end},
                                .optimizer = {.kind = o->optimizer,
                                              .beta1 = o->beta1,
                                              .beta2 = o->beta2,
                                              .eps = o->eps,
                                              .weight_decay = o->weight_decay,
                                              .momentum = o->momentum,
                                              .no_bias_correction = o->no_bias_correction},
                                .clip_norm = o->clip_norm,
                                .checkpoint_layers = o->checkpoint_layers,
                                .precision = o->precision};
}

qn_schedule qn_run_options_schedule(const qn_run_options *r, int64_t n_steps)
{
    return (qn_schedule){.kind = r->o.schedule,
                         .rate = r->o.learning_rate,
                         .end_rate = r->o.learning_rate * r->o.end_rate,
                         .warmup_steps = r->o.warmup_steps,
                         .n_steps = n_steps};
}

/* A constant rate does not depend on the end, so that such a training may be made longer. */
void qn_run_options_describe(const qn_run_options *r, int64_t n_steps, uint64_t data,
                             const qn_dataset_summary *summary, qn_buf *out)
{
    static const char *const schedules[] = {[QN_SCHEDULE_CONSTANT] = "constant",
                                            [QN_SCHEDULE_LINEAR] = "linear",
                                            [QN_SCHEDULE_COSINE] = "cosine"};
    static const char *const masks[] = {
        [QN_MASK_ANSWERS] = "answers", [QN_MASK_LAST] = "last", [QN_MASK_ALL] = "all"};
    const qn_train_options *o = &r->o;
    qn_buf_printf(out, "learning_rate=%.17g\nschedule=%s\nwarmup_steps=%" PRId64 "\n", o->learning_rate,
                  schedules[o->schedule], o->warmup_steps);
    if (o->schedule != QN_SCHEDULE_CONSTANT)
        qn_buf_printf(out, "end_rate=%.17g\nsteps=%" PRId64 "\n", o->end_rate, n_steps);
    qn_buf_printf(out,
                  "accumulate=%" PRId64 "\nmask=%s\nmax_length=%" PRId64 "\nbatch_tokens=%" PRId64
                  "\nbatch_sequences=%" PRId64 "\norder=%s\nseed=%" PRIu64 "\n",
                  o->accumulate, masks[o->mask], o->max_length, o->batch_tokens, o->batch_sequences,
                  o->in_order ? "file" : "shuffled", o->seed);
    qn_buf_printf(out, "data=%016" PRIx64 "\ndata_tokens=%" PRId64 "\ndata_counted=%" PRId64 "\n", data,
                  summary->n_tokens, summary->n_counted);
}

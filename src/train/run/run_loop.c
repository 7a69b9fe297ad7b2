/* The loop of a training: steps, and what happens between them. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "train/run/run.h"

static const char *const event_names[] = {
    [QN_TRAIN_EVENT_START] = "start",     [QN_TRAIN_EVENT_NOTE] = "note",
    [QN_TRAIN_EVENT_WARNING] = "warning", [QN_TRAIN_EVENT_STEP] = "step",
    [QN_TRAIN_EVENT_VALID] = "valid",     [QN_TRAIN_EVENT_SAVED] = "saved",
    [QN_TRAIN_EVENT_STOPPED] = "stopped", [QN_TRAIN_EVENT_FAILED] = "failed",
    [QN_TRAIN_EVENT_DONE] = "done"};

const char *qn_train_event_name(qn_train_event_kind kind)
{
    return event_names[kind];
}

typedef struct {
    qn_training *t;
    qn_train_notify_fn *notify; /* NULL: nobody */
    void *user;
} loop;

/* ---- telling ------------------------------------------------------------------------------------------ */

static qn_status tell(const loop *l, qn_train_event e)
{
    qn_training *t = l->t;
    e.step = qn_trainer_steps(t->trainer);
    qn_status status = QN_OK;
    if (t->log) status = qn_run_log_put(t->log, &e, e.kind == QN_TRAIN_EVENT_START ? t->settings.data : NULL);
    if (l->notify && l->notify(l->user, &e)) qn_training_stop(t);
    return status;
}

static qn_status tell_notes(const loop *l)
{
    const char *notes = l->t->notes.data ? l->t->notes.data : "";
    while (*notes) {
        const size_t n = strcspn(notes, "\n");
        char *line = qn_strndup(notes, n);
        if (!line) return QN_E_NOMEM;
        const qn_status status = tell(l, (qn_train_event){.kind = QN_TRAIN_EVENT_NOTE, .text = line});
        qn_free(line);
        QN_TRY(status);
        notes += n + (notes[n] == '\n');
    }
    return QN_OK;
}

/* Takes path. */
static qn_status tell_saved(const loop *l, char *path)
{
    const qn_status status = tell(l, (qn_train_event){.kind = QN_TRAIN_EVENT_SAVED, .path = path});
    qn_free(path);
    return status;
}

static qn_status tell_end(const loop *l, qn_train_event_kind kind, const char *text)
{
    const qn_training *t = l->t;
    return tell(l, (qn_train_event){.kind = kind,
                                    .valid_loss = t->valid_loss,
                                    .best_loss = isfinite(t->best_loss) ? t->best_loss : NAN,
                                    .seconds = (double)(qn_clock_ns() - t->run_ns) * 1e-9,
                                    .text = text});
}

/* Who guesses evenly has a loss of ln(vocabulary): far above it something does not belong together. */
static qn_status judge_first(const loop *l, double loss)
{
    const double even = log((double)l->t->base.config.vocab_size);
    char text[256];
    snprintf(text, sizeof text,
             "the first loss is %.4f; a uniform guess among %lld tokens has a loss of %.4f", loss,
             (long long)l->t->base.config.vocab_size, even);
    if (loss <= even + 0.5) return tell(l, (qn_train_event){.kind = QN_TRAIN_EVENT_NOTE, .text = text});
    snprintf(text + strlen(text), sizeof text - strlen(text),
             ": the model is worse than that. It may be damaged, or the data may not fit its tokenizer");
    return tell(l, (qn_train_event){.kind = QN_TRAIN_EVENT_WARNING, .text = text});
}

/* ---- between steps ------------------------------------------------------------------------------------ */

/* Behind this step, and not done yet: a run that stopped before it does it when it is resumed. */
static int wants_validation(const qn_training *t)
{
    const int64_t step = qn_trainer_steps(t->trainer), every = t->options.o.validate_every;
    if (!t->valid || !step || t->validated == step) return 0;
    if (step == t->n_steps) return 1;
    return every ? step % every == 0 : qn_dataset_at_end(t->train);
}

static qn_status validate(const loop *l)
{
    qn_training *t = l->t;
    const int64_t began_ns = qn_clock_ns();
    char *path = NULL;
    QN_TRY(qn_training_take_validation(t, 1));
    const int is_best = t->valid_loss < t->best_loss;
    if (is_best && t->log) QN_TRY(qn_run_files_save_best(t, &path));
    if (is_best) t->best_loss = t->valid_loss;
    t->validated = qn_trainer_steps(t->trainer);
    const qn_status status = tell(l, (qn_train_event){.kind = QN_TRAIN_EVENT_VALID,
                                                      .valid_loss = t->valid_loss,
                                                      .best_loss = t->best_loss,
                                                      .seconds = (double)(qn_clock_ns() - began_ns) * 1e-9});
    if (status != QN_OK || !path) {
        qn_free(path);
        return status;
    }
    return tell_saved(l, path);
}

static qn_status save(const loop *l)
{
    char *path = NULL;
    if (!l->t->log) return QN_OK;
    QN_TRY(qn_run_files_save_state(l->t));
    QN_TRY(qn_run_files_save_last(l->t, &path));
    return tell_saved(l, path);
}

/* ---- the loop ----------------------------------------------------------------------------------------- */

static qn_status take_steps(const loop *l)
{
    qn_training *t = l->t;
    for (;;) {
        const int64_t step = qn_trainer_steps(t->trainer);
        qn_train_step_report report;
        if (wants_validation(t)) QN_TRY(validate(l));
        if (step == t->n_steps) return QN_OK;
        if (step > t->run_from && step % t->options.o.save_every == 0) QN_TRY(save(l));
        if (atomic_load(&t->stop)) return QN_E_CANCELLED;
        QN_TRY(qn_training_take_step(t, 1, &report));
        QN_TRY(tell(l, (qn_train_event){.kind = QN_TRAIN_EVENT_STEP, .report = &report}));
        if (!step) QN_TRY(judge_first(l, report.loss));
    }
}

static qn_status begin(const loop *l)
{
    QN_TRY(qn_run_files_begin(l->t));
    QN_TRY(tell(l, (qn_train_event){.kind = QN_TRAIN_EVENT_START}));
    return tell_notes(l);
}

/* Whatever it was, the first failure is what is told. */
static qn_status fail(const loop *l, qn_status status)
{
    char message[1024];
    snprintf(message, sizeof message, "%s", qn_last_error());
    if (status != QN_E_DEVICE && l->t->log) (void)qn_run_files_save_state(l->t);
    (void)tell_end(l, QN_TRAIN_EVENT_FAILED, message);
    return qn_fail_copy(status, message);
}

qn_status qn_training_run(qn_training *t, qn_train_notify_fn *notify, void *user)
{
    const loop l = {t, notify, user};
    t->run_ns = qn_clock_ns();
    t->run_from = qn_trainer_steps(t->trainer);
    qn_status status = begin(&l);
    if (status == QN_OK) status = take_steps(&l);
    const int stopped = status == QN_E_CANCELLED;
    if (status == QN_OK || stopped) status = save(&l);
    if (status == QN_OK) status = tell_end(&l, stopped ? QN_TRAIN_EVENT_STOPPED : QN_TRAIN_EVENT_DONE, NULL);
    if (status != QN_OK) status = fail(&l, status);
    t->run_ns = 0;
    t->run_from = 0;
    atomic_store(&t->stop, 0);
    return status;
}

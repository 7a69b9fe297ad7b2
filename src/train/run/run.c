/* Opening a training, its steps and validations, and what it tells; run_loop.c has the loop. */
#include "train/run/run.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "model/config/rope_change.h"
#include "train/files/model_file.h"
#include "train/files/trainable_file.h"
#include "train/run/run_start.h"
#include "train/step/nonfinite.h"

enum { MESSAGE_BYTES = 512 };

/* ---- data --------------------------------------------------------------------------------------------- */

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

static void note_data(qn_training *t, const qn_dataset *d, const char *name)
{
    const qn_dataset_summary s = qn_dataset_summarize(d);
    qn_buf *b = &t->notes;
    for (int64_t i = 0; i < s.n_bad_kept; i++)
        qn_buf_printf(b, "%s:%lld: left out: %s\n", name, (long long)s.bad[i].line, s.bad[i].reason);
    if (s.n_bad > s.n_bad_kept)
        qn_buf_printf(b, "%s: %lld more bad lines are left out\n", name, (long long)(s.n_bad - s.n_bad_kept));
    if (s.n_cut)
        qn_buf_printf(b, "%s: %lld of %lld lines are longer than %lld tokens and were cut\n", name,
                      (long long)s.n_cut, (long long)s.n_lines, (long long)t->options.o.max_length);
    const struct {
        int64_t n, line;
        const char *one, *many, *says;
    } rows[] = {
        {s.n_lost_answers, s.line_lost_answers, "answer does", "answers do",
         "not count, because the chat template's text does not show where"},
        {s.n_empty_answers, s.line_empty_answers, "answer does", "answers do",
         "not count, because the chat template does not write what is said"},
        {s.n_hidden_calls, s.line_hidden_calls, "answer has", "answers have",
         "tool calls that the chat template does not write"},
        {s.n_hidden_tools, s.line_hidden_tools, "line has", "lines have",
         "tools that the chat template does not show"},
        {s.n_endless, s.line_endless, "answer ends", "answers end",
         "without a token that ends a turn: the trained model may not stop. Check the chat template, or the "
         "eos_token of tokenizer_config.json"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].n)
            qn_buf_printf(b, "%s:%lld: %lld %s %s%s\n", name, (long long)rows[i].line, (long long)rows[i].n,
                          rows[i].n == 1 ? rows[i].one : rows[i].many, rows[i].says,
                          rows[i].n == 1 ? "" : " (the first is in this line)");
    for (int64_t i = 0; i < s.n_other_keys; i++)
        qn_buf_printf(b, "%s:%lld: the key \"%s\" %s\n", name, (long long)s.other_keys[i].line,
                      s.other_keys[i].name,
                      strstr(s.other_keys[i].name, "[].") ? "changes nothing in the chat template's text"
                                                          : "has no meaning and is ignored");
}

static qn_status open_split(qn_training *t, qn_dataset_split split, qn_dataset_options *o, qn_dataset **out)
{
    char *file = NULL;
    qn_dataset *d = NULL;
    QN_TRY(qn_dataset_find(t->options.o.data_path, split, &file));
    if (!file) return QN_OK;
    qn_status status = qn_dataset_open(file, t->text, o, &d);
    if (status == QN_OK) status = qn_dataset_check(d);
    if (status == QN_OK) note_data(t, d, last_part(file));
    qn_free(file);
    if (status == QN_OK)
        *out = d;
    else
        qn_dataset_close(d);
    return status;
}

/* Tokenizer and data, before weights are touched: what is wrong with them shows at once. */
static qn_status open_data(qn_training *t, qn_source *source, int64_t vocab_size)
{
    qn_dataset_options data = qn_run_options_data(&t->options, vocab_size);
    QN_TRY(qn_chat_text_open(source, NULL, &t->text));
    QN_TRY(open_split(t, QN_SPLIT_TRAIN, &data, &t->train));
    data.in_order = 1;
    QN_TRY(open_split(t, QN_SPLIT_VALID, &data, &t->valid));
    return t->notes.status;
}

/* Bad data is told before a model is loaded. */
static qn_status open_data_and_base(qn_training *t)
{
    const qn_train_options *o = &t->options.o;
    qn_source *source = NULL;
    qn_model_config config = {0};
    if (o->model) {
        QN_TRY(qn_train_base_borrow(o->model, o->n_threads, o->memory_limit_bytes, &t->base));
        return open_data(t, t->base.source, t->base.config.vocab_size);
    }
    QN_TRY(qn_source_open(o->model_path, NULL, &source));
    qn_status status = qn_config_read_changed(source, &o->rope, NULL, &config);
    if (status == QN_OK) status = open_data(t, source, config.vocab_size);
    qn_config_free(&config);
    qn_source_close(source);
    QN_TRY(status);
    const qn_device_options device = {.n_threads = o->n_threads,
                                      .memory_limit_bytes = o->memory_limit_bytes,
                                      .device_memory_limit_bytes = o->device_memory_limit_bytes};
    QN_TRY(qn_run_files_take_device(t));
    return qn_train_base_open_with(o->model_path, o->device, &device, &o->rope, &t->notes, &t->base);
}

/* Room for every batch, and no more. */
static void find_maxima(qn_training *t)
{
    const qn_train_options *o = &t->options.o;
    int64_t longest = 0, tokens = 0, lines = 0;
    for (int i = 0; i < 2; i++) {
        const qn_dataset *d = i ? t->valid : t->train;
        if (!d) continue;
        const qn_dataset_summary s = qn_dataset_summarize(d);
        const int64_t good = s.n_lines - s.n_bad, rows = s.n_tokens - good;
        if (s.n_longest > longest) longest = s.n_longest;
        if (rows > tokens) tokens = rows;
        if (good > lines) lines = good;
    }
    t->max_rows = tokens < o->batch_tokens ? tokens : o->batch_tokens;
    t->max_sequences = lines < t->max_rows ? lines : t->max_rows;
    if (o->batch_sequences && o->batch_sequences < t->max_sequences) t->max_sequences = o->batch_sequences;
    if (o->batch_sequences && t->max_sequences * (longest - 1) < t->max_rows)
        t->max_rows = t->max_sequences * (longest - 1);
}

static int64_t count_steps(const qn_training *t)
{
    const qn_train_options *o = &t->options.o;
    int64_t n = 0;
    if (o->n_steps) return o->n_steps;
    for (int64_t epoch = 0; epoch < o->n_epochs; epoch++) {
        if (epoch && o->in_order) return n * o->n_epochs;
        n += (qn_dataset_count_batches(t->train, epoch) + o->accumulate - 1) / o->accumulate;
    }
    return n;
}

/* Positions that the model may never have seen. */
static void note_context(qn_training *t)
{
    const int64_t own = t->base.config.max_position_embeddings;
    int64_t longest = qn_dataset_summarize(t->train).n_longest;
    if (t->valid && qn_dataset_summarize(t->valid).n_longest > longest)
        longest = qn_dataset_summarize(t->valid).n_longest;
    if (own > 0 && longest > own)
        qn_buf_printf(&t->notes,
                      "the longest line has %lld tokens, but the model's own context is %lld: quality may "
                      "suffer\n",
                      (long long)longest, (long long)own);
}

static void note_warmup(const qn_schedule *schedule, qn_buf *notes)
{
    if (schedule->warmup_steps > schedule->n_steps)
        qn_buf_printf(notes, "the learning rate rises until the end: %lld warm-up steps, %lld steps in all\n",
                      (long long)schedule->warmup_steps, (long long)schedule->n_steps);
}

/* ---- life --------------------------------------------------------------------------------------------- */

static qn_status make_trainer(qn_training *t)
{
    const qn_train_options *o = &t->options.o;
    qn_trainer_options trainer = qn_run_options_trainer(&t->options);
    trainer.max_rows = t->max_rows;
    trainer.max_sequences = t->max_sequences;
    QN_TRY(qn_trainer_new(&t->base, &trainer, &t->trainer));
    if (!o->start_path || o->resume) return QN_OK;
    return qn_trainable_load(qn_trainer_trainable(t->trainer), &t->base, o->start_path, &t->notes);
}

static qn_status open_all(qn_training *t)
{
    const qn_train_options *o = &t->options.o;
    QN_TRY(qn_run_files_check(t));
    QN_TRY(open_data_and_base(t));
    if (o->method == QN_TRAIN_FULL) QN_TRY(qn_trainable_check_model(&t->base));
    QN_TRY(qn_run_start_fill(&t->options, &t->base));
    note_context(t);
    find_maxima(t);
    t->n_steps = count_steps(t);
    t->schedule = qn_run_options_schedule(&t->options, t->n_steps);
    note_warmup(&t->schedule, &t->notes);
    const qn_dataset_summary data = qn_dataset_summarize(t->train);
    qn_run_options_describe(&t->options, t->n_steps, qn_dataset_hash(t->train), &data, &t->settings);
    if (t->base.config.rope_changed)
        qn_buf_printf(&t->settings, "rotary_positions=%016" PRIx64 "\n",
                      qn_rope_change_hash(&t->base.config));
    QN_TRY(t->settings.status);
    QN_TRY(make_trainer(t));
    if (o->resume) QN_TRY(qn_run_files_restore(t));
    return t->notes.status;
}

/* why: that the CPU computes, "" at first. It is written if the CPU is worth a trial. */
static qn_status open_on(const qn_train_options *options, char why[QN_ERROR_TEXT_MAX], qn_training **out)
{
    qn_training *t = qn_calloc(1, sizeof *t);
    if (!t) return QN_E_NOMEM;
    atomic_init(&t->stop, 0);
    t->validated = -1;
    t->valid_loss = NAN;
    t->best_loss = INFINITY;
    qn_status status = qn_run_options_make(options, &t->options);
    if (*why) qn_buf_printf(&t->notes, "%s\n", why);
    *why = 0;
    if (status == QN_OK) qn_run_options_note_unused(options, &t->notes);
    if (status == QN_OK) status = open_all(t);
    if (qn_device_gives_way(t->base.device, status)) qn_device_give_way_text(why, QN_ERROR_TEXT_MAX);
    if (status == QN_OK)
        *out = t;
    else
        qn_training_close(t);
    return status;
}

qn_status qn_training_open(const qn_train_options *options, qn_training **out)
{
    char why[QN_ERROR_TEXT_MAX] = "";
    const qn_status status = open_on(options, why, out);
    if (status == QN_OK || !*why) return status;
    qn_train_options on_cpu = *options;
    on_cpu.device = "cpu";
    return open_on(&on_cpu, why, out);
}

void qn_training_close(qn_training *t)
{
    if (!t) return;
    qn_run_log_close(t->log);
    qn_trainer_free(t->trainer);
    qn_dataset_close(t->train);
    qn_dataset_close(t->valid);
    qn_chat_text_close(t->text);
    qn_train_base_close(&t->base);
    qn_run_options_free(&t->options);
    qn_buf_free(&t->notes);
    qn_buf_free(&t->settings);
    qn_free(t);
}

void qn_training_stop(qn_training *t)
{
    atomic_store(&t->stop, 1);
}

/* ---- what it tells ------------------------------------------------------------------------------------ */

/* All zeros: the device has no memory of its own. */
static qn_ledger_figures card_memory(const qn_training *t)
{
    const qn_device *d = t->base.device;
    return qn_device_has_memory(d) ? qn_ledger_get(d->ledger) : (qn_ledger_figures){.total = 0};
}

qn_status qn_training_get_info(const qn_training *t, qn_train_info *out)
{
    const qn_trainable *what = qn_trainer_trainable(t->trainer);
    const qn_dataset_summary data = qn_dataset_summarize(t->train);
    const qn_ledger_figures memory = qn_ledger_get(t->base.device->host_ledger);
    const qn_device_description device = t->base.device->ops->describe(t->base.device);
    *out = (qn_train_info){.architecture = t->base.config.architecture,
                           .device = t->base.device->ops->name,
                           .device_name = device.chip ? device.chip : "",
                           .cpu_set = device.set,
                           .n_threads = device.n_threads,
                           .vocab_size = t->base.config.vocab_size,
                           .uniform_loss = log((double)t->base.config.vocab_size),
                           .n_model_parameters = qn_parameters_count(t->base.parameters),
                           .n_arrays = what->n,
                           .n_trained = what->n_elements,
                           .n_lines = data.n_lines,
                           .n_bad_lines = data.n_bad,
                           .n_cut_lines = data.n_cut,
                           .n_tokens = data.n_tokens,
                           .n_counted = data.n_counted,
                           .batch_tokens = t->max_rows,
                           .batch_sequences = t->max_sequences,
                           .n_steps = t->n_steps,
                           .n_epochs = t->options.o.n_epochs,
                           .step = qn_trainer_steps(t->trainer),
                           .best_loss = t->best_loss,
                           .memory_bytes = memory.total,
                           .peak_memory_bytes = memory.peak,
                           .device_memory_bytes = card_memory(t).total,
                           .device_peak_memory_bytes = card_memory(t).peak,
                           .notes = t->notes.data ? t->notes.data : ""};
    if (t->valid) {
        const qn_dataset_summary valid = qn_dataset_summarize(t->valid);
        out->n_valid_lines = valid.n_lines - valid.n_bad;
    }
    return QN_OK;
}

qn_status qn_training_get_array(const qn_training *t, int64_t i, qn_train_array *out)
{
    return qn_trainable_describe(qn_trainer_trainable(t->trainer), i, out);
}

qn_status qn_training_read_array(const qn_training *t, int64_t i, float *numbers, float *gradient)
{
    qn_train_array a;
    QN_TRY(qn_training_get_array(t, i, &a));
    if (gradient && !t->n_step_counted)
        return qn_fail(QN_E_ARG, "%s: it has no gradient, because no step was taken", a.name);
    const float *sums = qn_trainer_gradient(t->trainer, i);
    if (numbers) qn_trainable_read(&qn_trainer_trainable(t->trainer)->arrays[i], 0, a.n, numbers);
    for (int64_t k = 0; gradient && k < a.n; k++)
        gradient[k] = (float)((double)sums[k] / (double)t->n_step_counted);
    return QN_OK;
}

static qn_status show(qn_training *t, int colours, qn_buf *out)
{
    for (int64_t i = 0; i < t->options.o.accumulate; i++) {
        qn_train_batch b;
        QN_TRY(qn_dataset_next(t->train, &b));
        if (!b.n_sequences && i) return QN_OK;
        if (!b.n_sequences) QN_TRY(qn_dataset_next(t->train, &b));
        QN_TRY(qn_dataset_show(qn_chat_text_tokenizer(t->text), &b, qn_dataset_batch_lines(t->train), colours,
                               out));
    }
    return QN_OK;
}

qn_status qn_training_show_batch(qn_training *t, int colours, char **out)
{
    qn_buf text = {0};
    qn_dataset_position before;
    qn_dataset_tell(t->train, &before);
    qn_status status = show(t, colours, &text);
    qn_dataset_seek(t->train, &before);
    char *taken = status == QN_OK ? qn_buf_take(&text, NULL) : NULL;
    if (status == QN_OK && !taken) status = QN_E_NOMEM;
    qn_buf_free(&text);
    if (status == QN_OK) *out = taken;
    return status;
}

qn_status qn_training_save(qn_training *t, const char *path, qn_adapter_layout layout)
{
    const qn_trainable_save_options o = {.layout = layout, .bf16 = t->options.o.bf16_adapter};
    const qn_trainable *what = qn_trainer_trainable(t->trainer);
    if (t->options.o.method == QN_TRAIN_FULL)
        return qn_trainable_save_model(what, &t->base, path, t->options.o.save_type);
    return qn_trainable_save(what, &t->base, path, &o);
}

/* ---- steps -------------------------------------------------------------------------------------------- */

/* The next batch, over the end of an epoch at the step's beginning alone; without sequences: the epoch ended.
 */
static qn_status next_batch(qn_training *t, int64_t i, qn_train_batch *out)
{
    QN_TRY(qn_dataset_next(t->train, out));
    return i || out->n_sequences ? QN_OK : qn_dataset_next(t->train, out);
}

static qn_status add_batches(qn_training *t, int watch, qn_train_step_report *r)
{
    qn_dataset_position at;
    for (int64_t i = 0; i < t->options.o.accumulate; i++) {
        qn_train_batch b;
        if (watch && atomic_load(&t->stop)) return QN_E_CANCELLED;
        QN_TRY(next_batch(t, i, &b));
        if (!b.n_sequences) return QN_OK;
        if (!i) {
            qn_dataset_tell(t->train, &at);
            r->epoch = at.epoch;
        }
        QN_TRY(qn_trainer_add(t->trainer, &b, NULL));
        r->n_tokens += b.n_rows;
        r->n_sequences += b.n_sequences;
        if (qn_dataset_at_end(t->train)) return QN_OK;
    }
    return QN_OK;
}

/* The batches of a step that failed, once more, until one of them shows where. */
static qn_status find_place(qn_training *t, const qn_dataset_position *before, qn_buf *where)
{
    QN_TRY(qn_dataset_seek(t->train, before));
    qn_trainer_resume(t->trainer, qn_trainer_steps(t->trainer));
    for (int64_t i = 0; i < t->options.o.accumulate && !where->length; i++) {
        qn_train_batch b;
        QN_TRY(next_batch(t, i, &b));
        if (!b.n_sequences) return QN_OK;
        QN_TRY(qn_nonfinite_find(t->trainer, &b, where));
        if (where->length) return QN_OK;
        QN_TRY(qn_trainer_add(t->trainer, &b, NULL));
        if (qn_dataset_at_end(t->train)) return QN_OK;
    }
    return QN_OK;
}

/* The failure with where it comes from. when: "step" or "validation after step". */
static qn_status explain(qn_status found, const char *when, int64_t step, const char *message, qn_buf *where)
{
    const qn_status status =
        found == QN_OK && where->length
            ? qn_fail(QN_E_DEVICE, "%s %lld: %s; the first value that is not finite appears in %s", when,
                      (long long)step, message, where->data)
            : qn_fail(QN_E_DEVICE, "%s %lld: %s", when, (long long)step, message);
    qn_buf_free(where);
    return status;
}

static qn_status explain_step(qn_training *t, const qn_dataset_position *before)
{
    char message[MESSAGE_BYTES];
    qn_buf where = {0};
    snprintf(message, sizeof message, "%s", qn_last_error());
    const qn_status found = find_place(t, before, &where);
    return explain(found, "step", qn_trainer_steps(t->trainer) + 1, message, &where);
}

static qn_status explain_validation(qn_training *t, const qn_train_batch *b)
{
    char message[MESSAGE_BYTES];
    qn_buf where = {0};
    snprintf(message, sizeof message, "%s", qn_last_error());
    const qn_status found = qn_nonfinite_find(t->trainer, b, &where);
    return explain(found, "validation after step", qn_trainer_steps(t->trainer), message, &where);
}

static void finish_report(qn_training *t, const qn_trainer_report *update, int64_t began_ns,
                          qn_train_step_report *r)
{
    const qn_ledger_figures memory = qn_ledger_get(t->base.device->host_ledger);
    const int64_t now = qn_clock_ns(), done = update->step - t->run_from;
    t->n_tokens += r->n_tokens;
    t->n_step_counted = update->n_targets;
    r->step = update->step;
    r->n_steps = t->n_steps;
    r->loss = update->loss;
    r->rate = update->rate;
    r->grad_norm = update->grad_norm;
    r->n_counted = update->n_targets;
    r->n_tokens_total = t->n_tokens;
    r->seconds = (double)(now - began_ns) * 1e-9;
    r->tokens_per_s = r->seconds > 0 ? (double)r->n_tokens / r->seconds : 0;
    r->eta_s = r->seconds * (double)(t->n_steps - r->step);
    if (t->run_ns)
        r->eta_s = (double)(now - t->run_ns) * 1e-9 / (double)done * (double)(t->n_steps - r->step);
    r->memory_bytes = memory.total;
    r->peak_memory_bytes = memory.peak;
    r->device_memory_bytes = card_memory(t).total;
    r->device_peak_memory_bytes = card_memory(t).peak;
}

qn_status qn_training_take_step(qn_training *t, int watch, qn_train_step_report *out)
{
    const int64_t began_ns = qn_clock_ns(), steps = qn_trainer_steps(t->trainer);
    qn_train_step_report r = {0};
    qn_trainer_report update;
    qn_dataset_position before;
    if (steps >= t->n_steps) return qn_fail(QN_E_CLOSED, "all %lld steps were taken", (long long)t->n_steps);
    qn_dataset_tell(t->train, &before);
    qn_status status = add_batches(t, watch, &r);
    if (status == QN_OK)
        status = qn_trainer_update(t->trainer, qn_schedule_rate(&t->schedule, steps), &update);
    if (status == QN_E_DEVICE) status = explain_step(t, &before);
    if (status != QN_OK) {
        qn_dataset_seek(t->train, &before);
        qn_trainer_resume(t->trainer, steps);
        return status;
    }
    finish_report(t, &update, began_ns, &r);
    if (out) *out = r;
    return QN_OK;
}

qn_status qn_training_step(qn_training *t, qn_train_step_report *out)
{
    return qn_training_take_step(t, 0, out);
}

/* ---- validation --------------------------------------------------------------------------------------- */

qn_status qn_training_take_validation(qn_training *t, int watch)
{
    const int64_t most = t->options.o.validate_batches;
    double sum = 0;
    int64_t n = 0;
    if (!t->valid)
        return qn_fail(QN_E_NOT_FOUND, "%s: there is no valid.jsonl in this folder", t->options.o.data_path);
    QN_TRY(qn_dataset_seek(t->valid, &(qn_dataset_position){0}));
    for (int64_t i = 0; !most || i < most; i++) {
        qn_train_batch b;
        double loss;
        if (watch && atomic_load(&t->stop)) return QN_E_CANCELLED;
        QN_TRY(qn_dataset_next(t->valid, &b));
        if (!b.n_sequences) break;
        const qn_status status = qn_trainer_evaluate(t->trainer, &b, &loss);
        if (status != QN_OK) return status == QN_E_DEVICE ? explain_validation(t, &b) : status;
        sum += loss * (double)b.n_targets;
        n += b.n_targets;
    }
    t->valid_loss = sum / (double)n;
    return QN_OK;
}

qn_status qn_training_validate(qn_training *t, double *loss)
{
    QN_TRY(qn_training_take_validation(t, 0));
    *loss = t->valid_loss;
    return QN_OK;
}

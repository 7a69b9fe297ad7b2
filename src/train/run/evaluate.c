/* Losses of a model over a data set: lines in the order of the file, as many together as a batch holds. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "train/data/dataset.h"
#include "train/data/line_index.h"
#include "train/step/base.h"
#include "train/step/batch_graph.h"

enum { MAX_LENGTH = 2048, COUNT_MAX = 1 << 26 };

typedef struct {
    qn_evaluate_options o; /* with defaults */
    char *file;
    qn_chat_text *text;
    qn_line_options line_options;
    qn_line_index *lines;
    int64_t n_lines; /* that are looked at */
    int64_t context; /* the model's own; 0: it names none */
    qn_buf line;
    qn_train_base base;
    qn_adapters *adapters; /* NULL: none */
    qn_program *program;   /* gives the losses of all targets */
    qn_batch_sizes max;
    /* The batch, and what is known of its lines. */
    int32_t *ids, *row_begin, *rows, *targets;
    qn_evaluate_line *batch_lines;
    qn_train_batch batch;
    double sum;
    qn_evaluate_result out;
} evaluation;

/* ---- lines -------------------------------------------------------------------------------------------- */

static qn_status find_file(const char *data, const char *split, char **out)
{
    static const char *const names[] = {
        [QN_SPLIT_TRAIN] = "train", [QN_SPLIT_VALID] = "valid", [QN_SPLIT_TEST] = "test"};
    char *file = NULL;
    for (int i = QN_SPLIT_TEST; i >= QN_SPLIT_TRAIN && !file; i--)
        if (!split || strcmp(split, names[i]) == 0) QN_TRY(qn_dataset_find(data, (qn_dataset_split)i, &file));
    for (int i = 0; split && i <= QN_SPLIT_TEST && !file; i++)
        if (strcmp(split, names[i]) == 0)
            return qn_fail(QN_E_NOT_FOUND, "%s: the folder has no split %s", data, split);
    if (!file)
        return qn_fail(QN_E_ARG, "there is no split \"%.40s\"; there are train, valid and test", split);
    *out = file;
    return QN_OK;
}

/* *s with n 0: the line is bad. */
static qn_status read_line(evaluation *e, int64_t i, qn_train_sequence *s)
{
    *s = (qn_train_sequence){0};
    qn_status status = qn_line_index_read(e->lines, i, &e->line);
    if (status == QN_OK)
        status = qn_train_sequence_read(&e->line_options, e->line.data, e->line.length, s, NULL);
    if (status == QN_OK || (qn_line_is_bad(status) && !e->o.strict)) return QN_OK;
    return qn_fail_prefix(status, "%s:%lld", e->file, (long long)qn_line_index_number(e->lines, i));
}

/* As a training notes it. */
static void warn(const evaluation *e, int64_t n_lost, int64_t n_empty, int64_t n_hidden, int64_t longest)
{
    if (n_lost)
        qn_log(QN_LOG_WARNING,
               "%s: %lld answers do not count, because the chat template's text does not show them", e->file,
               (long long)n_lost);
    if (n_empty)
        qn_log(QN_LOG_WARNING,
               "%s: %lld answers do not count, because the chat template writes nothing of them", e->file,
               (long long)n_empty);
    if (n_hidden)
        qn_log(QN_LOG_WARNING, "%s: %lld lines have tools that the chat template does not show", e->file,
               (long long)n_hidden);
    if (e->context > 0 && longest > e->context)
        qn_log(QN_LOG_WARNING,
               "%s: the longest line has %lld tokens, but the model's own context is %lld: quality may "
               "suffer",
               e->file, (long long)longest, (long long)e->context);
}

/* How large the batches become. */
static qn_status look_at_lines(evaluation *e)
{
    int64_t n_good = 0, n_rows = 0, n_lost = 0, n_empty = 0, n_hidden = 0, longest = 0;
    e->n_lines = qn_line_index_count(e->lines);
    if (!e->n_lines) return qn_fail(QN_E_FORMAT, "%s: the file has no lines", e->file);
    if (e->o.max_lines && e->o.max_lines < e->n_lines) e->n_lines = e->o.max_lines;
    for (int64_t i = 0; i < e->n_lines; i++) {
        qn_train_sequence s;
        QN_TRY(read_line(e, i, &s));
        if (s.n) {
            n_good++;
            n_rows += s.n - 1;
            n_lost += s.n_lost;
            n_empty += s.n_empty;
            n_hidden += s.hides_tools;
            if (s.n > longest) longest = s.n;
            e->out.n_tokens += s.n;
            e->out.n_cut_lines += s.n_whole > e->o.max_length;
        }
        qn_train_sequence_free(&s);
    }
    if (!n_good)
        return qn_fail(QN_E_ARG, "%s: no line can be evaluated; the last one failed with: %s", e->file,
                       qn_last_error());
    warn(e, n_lost, n_empty, n_hidden, longest);
    e->out.n_lines = e->n_lines;
    e->out.n_bad_lines = e->n_lines - n_good;
    e->max.n_rows = n_rows < e->o.batch_tokens ? n_rows : e->o.batch_tokens;
    e->max.n_sequences = n_good < e->max.n_rows ? n_good : e->max.n_rows;
    e->max.n_targets = e->max.n_rows;
    return QN_OK;
}

/* ---- the program -------------------------------------------------------------------------------------- */

static void fill(qn_program *p, int input, int64_t n, int32_t value)
{
    int32_t *to = qn_program_input(p, input);
    for (int64_t i = 0; to && i < n; i++) to[i] = value;
}

static qn_status make_program(evaluation *e, qn_scope *s, int32_t adapter)
{
    const qn_program_options options = {.name = "evaluate",
                                        .max = {{e->max.n_rows, e->max.n_sequences, e->max.n_targets}},
                                        .precision = e->o.precision};
    qn_forward f = {.config = &e->base.config,
                    .parameters = e->base.parameters,
                    .groups = &e->base.groups,
                    .adapters = e->adapters};
    qn_array *rows, *targets, *of_targets = NULL;
    const int n = qn_batch_graph_inputs(s, &f, &rows, &targets);
    if (e->adapters) {
        f.row_adapters = qn_input(s, QN_DTYPE_I32, *qn_array_shape(f.ids));
        of_targets = qn_input(s, QN_DTYPE_I32, *qn_array_shape(rows));
        qn_adapters_begin_programs(e->adapters);
    }
    qn_array *hidden = qn_forward_body(s, &f);
    f.row_adapters = of_targets;
    qn_array *losses = qn_forward_losses(s, &f, hidden, rows, targets);
    QN_TRY(qn_program_new(s, &options, 1, &losses, &e->program));
    if (!e->adapters) return QN_OK;
    fill(e->program, n, e->max.n_rows, adapter);
    fill(e->program, n + 1, e->max.n_targets, adapter);
    return qn_adapters_check_programs(e->adapters);
}

static qn_status open_model(evaluation *e)
{
    qn_train_base *b = &e->base;
    const float scale = e->o.adapter_scale;
    qn_buf notes = {0};
    int32_t adapter = -1;
    const qn_device_options device = {.n_threads = e->o.n_threads,
                                      .memory_limit_bytes = e->o.memory_limit_bytes,
                                      .device_memory_limit_bytes = e->o.device_memory_limit_bytes};
    qn_status opened = qn_train_base_open_with(e->o.model_path, e->o.device, &device, &e->o.rope, &notes, b);
    if (notes.length) qn_log_lines(QN_LOG_WARNING, notes.data);
    qn_buf_free(&notes);
    QN_TRY(opened);
    if (e->o.adapter_path) {
        QN_TRY(qn_adapters_new(b->device, &b->config, b->parameters, &e->adapters));
        qn_status status = qn_adapters_load(e->adapters, "evaluated", e->o.adapter_path,
                                            scale == 0 ? 1 : scale, &notes, &adapter);
        if (status == QN_OK && notes.length) qn_log_lines(QN_LOG_WARNING, notes.data);
        qn_buf_free(&notes);
        QN_TRY(status);
        qn_adapters_show(e->adapters, adapter, 0);
    }
    qn_scope *s = qn_scope_new(b->device);
    if (!s) return QN_E_NOMEM;
    const qn_status status = make_program(e, s, adapter);
    qn_scope_free(s);
    return status;
}

static void close_model(evaluation *e)
{
    qn_program_free(e->program);
    qn_adapters_free(e->adapters);
    qn_train_base_close(&e->base);
    e->program = NULL;
    e->adapters = NULL;
}

static qn_status open_model_where_it_fits(evaluation *e)
{
    const qn_status status = open_model(e);
    if (!qn_device_gives_way(e->base.device, status)) return status;
    char why[QN_ERROR_TEXT_MAX];
    qn_device_give_way_text(why, sizeof why);
    qn_log(QN_LOG_WARNING, "%s", why);
    close_model(e);
    e->o.device = "cpu";
    return open_model(e);
}

/* ---- batches ------------------------------------------------------------------------------------------ */

static qn_status make_room(evaluation *e)
{
    const size_t rows = (size_t)e->max.n_rows, sequences = (size_t)e->max.n_sequences;
    e->ids = qn_alloc_array(rows, sizeof *e->ids);
    e->rows = qn_alloc_array(rows, sizeof *e->rows);
    e->targets = qn_alloc_array(rows, sizeof *e->targets);
    e->row_begin = qn_calloc(sequences + 1, sizeof *e->row_begin);
    e->batch_lines = qn_alloc_array(sequences, sizeof *e->batch_lines);
    e->batch =
        (qn_train_batch){.ids = e->ids, .row_begin = e->row_begin, .rows = e->rows, .targets = e->targets};
    return e->ids && e->rows && e->targets && e->row_begin && e->batch_lines ? QN_OK : QN_E_NOMEM;
}

static qn_status tell(const evaluation *e, const qn_evaluate_line *line)
{
    return e->o.notify ? e->o.notify(e->o.user, line) : QN_OK;
}

static qn_status run_batch(evaluation *e)
{
    const qn_sizes sizes = {{e->batch.n_rows, e->batch.n_sequences, e->batch.n_targets}};
    int64_t target = 0;
    if (!e->batch.n_sequences) return QN_OK;
    QN_TRY(qn_batch_graph_fill(e->program, &e->base.config, &e->max, &e->batch));
    QN_TRY(qn_program_run(e->program, &sizes));
    const void *output;
    QN_TRY(qn_program_read(e->program, 0, &output));
    const float *losses = output;
    for (int64_t i = 0; i < e->batch.n_sequences; i++) {
        qn_evaluate_line *line = &e->batch_lines[i];
        double sum = 0;
        for (int64_t k = 0; k < line->n_counted; k++) sum += (double)losses[target++];
        line->loss = sum / (double)line->n_counted;
        e->sum += sum;
        e->out.n_counted += line->n_counted;
        QN_TRY(tell(e, line));
    }
    e->batch.n_rows = e->batch.n_sequences = e->batch.n_targets = 0;
    return QN_OK;
}

static void take(evaluation *e, const qn_train_sequence *s, int64_t number)
{
    qn_train_batch *b = &e->batch;
    for (int64_t k = 0; k + 1 < s->n; k++) {
        e->ids[b->n_rows + k] = s->ids[k];
        if (!s->counts[k + 1]) continue;
        e->rows[b->n_targets] = (int32_t)(b->n_rows + k);
        e->targets[b->n_targets++] = s->ids[k + 1];
    }
    e->batch_lines[b->n_sequences++] =
        (qn_evaluate_line){.line = number, .n_tokens = s->n, .n_counted = s->n_counted};
    b->n_rows += s->n - 1;
    e->row_begin[b->n_sequences] = (int32_t)b->n_rows;
}

static qn_status add_line(evaluation *e, int64_t i)
{
    const int64_t number = qn_line_index_number(e->lines, i);
    qn_train_sequence s;
    QN_TRY(read_line(e, i, &s));
    qn_status status = QN_OK;
    if (!s.n) {
        char *bad = qn_strdup(qn_last_error());
        status = bad ? run_batch(e) : QN_E_NOMEM;
        if (status == QN_OK) status = tell(e, &(qn_evaluate_line){.line = number, .bad = bad});
        qn_free(bad);
        return status;
    }
    if (e->batch.n_rows + s.n - 1 > e->max.n_rows || e->batch.n_sequences == e->max.n_sequences)
        status = run_batch(e);
    if (status == QN_OK) take(e, &s, number);
    qn_train_sequence_free(&s);
    return status;
}

/* ---- the whole ---------------------------------------------------------------------------------------- */

static qn_status check_options(qn_evaluate_options *o)
{
    if (!o->model_path || !*o->model_path) return qn_fail(QN_E_ARG, "no model is given");
    if (!o->data_path || !*o->data_path) return qn_fail(QN_E_ARG, "no data is given");
    if (!o->max_length)
        o->max_length =
            o->batch_tokens > 0 && o->batch_tokens < MAX_LENGTH ? o->batch_tokens + 1 : MAX_LENGTH;
    if (!o->batch_tokens) o->batch_tokens = o->max_length;
    if (o->max_length < 2 || o->max_length > COUNT_MAX)
        return qn_fail(QN_E_ARG, "lines of %lld tokens: 2 to %d are allowed", (long long)o->max_length,
                       COUNT_MAX);
    if (o->batch_tokens < o->max_length - 1 || o->batch_tokens > COUNT_MAX)
        return qn_fail(QN_E_ARG,
                       "batches of %lld tokens: a batch must have at least the %lld tokens of a line, and at "
                       "most %d",
                       (long long)o->batch_tokens, (long long)o->max_length - 1, COUNT_MAX);
    if (o->max_lines < 0)
        return qn_fail(QN_E_ARG, "the number of lines to evaluate is %lld", (long long)o->max_lines);
    if ((int)o->mask < 0 || o->mask > QN_MASK_ALL)
        return qn_fail(QN_E_ARG, "there is no mask %d", (int)o->mask);
    if ((int)o->precision < 0 || o->precision > QN_PRECISION_EXACT)
        return qn_fail(QN_E_ARG, "there is no precision %d", (int)o->precision);
    if (!isfinite(o->adapter_scale))
        return qn_fail(QN_E_ARG, "an adapter cannot have the scale %g", (double)o->adapter_scale);
    return o->n_threads >= 0 ? QN_OK : qn_fail(QN_E_ARG, "%d threads", (int)o->n_threads);
}

static qn_status open_data(evaluation *e)
{
    qn_source *source = NULL;
    qn_model_config config = {0};
    QN_TRY(find_file(e->o.data_path, e->o.split, &e->file));
    QN_TRY(qn_line_index_open(e->file, &e->lines));
    QN_TRY(qn_source_open(e->o.model_path, NULL, &source));
    qn_status status = qn_config_read_changed(source, &e->o.rope, NULL, &config);
    if (status == QN_OK) status = qn_chat_text_open(source, NULL, &e->text);
    e->context = config.max_position_embeddings;
    e->line_options = (qn_line_options){.text = e->text,
                                        .mask = e->o.mask,
                                        .max_length = e->o.max_length,
                                        .vocab_size = config.vocab_size,
                                        .now = QN_DATASET_NOW};
    qn_config_free(&config);
    qn_source_close(source);
    return status == QN_OK ? look_at_lines(e) : status;
}

static qn_status evaluate(evaluation *e)
{
    const int64_t began_ns = qn_clock_ns();
    QN_TRY(check_options(&e->o));
    QN_TRY(open_data(e));
    QN_TRY(open_model_where_it_fits(e));
    QN_TRY(make_room(e));
    for (int64_t i = 0; i < e->n_lines; i++) QN_TRY(add_line(e, i));
    QN_TRY(run_batch(e));
    e->out.loss = e->sum / (double)e->out.n_counted;
    e->out.perplexity = exp(e->out.loss);
    e->out.seconds = (double)(qn_clock_ns() - began_ns) * 1e-9;
    const qn_device *d = e->base.device;
    e->out.peak_memory_bytes = qn_ledger_peak(d->host_ledger);
    e->out.device_peak_memory_bytes = qn_device_has_memory(d) ? qn_ledger_peak(d->ledger) : 0;
    return QN_OK;
}

qn_status qn_evaluate_data(const qn_evaluate_options *options, qn_evaluate_result *out)
{
    evaluation e = {.o = *options};
    const qn_status status = evaluate(&e);
    if (status == QN_OK) *out = e.out;
    close_model(&e);
    qn_line_index_close(e.lines);
    qn_chat_text_close(e.text);
    qn_buf_free(&e.line);
    qn_free(e.file);
    qn_free(e.ids);
    qn_free(e.row_begin);
    qn_free(e.rows);
    qn_free(e.targets);
    qn_free(e.batch_lines);
    return status;
}

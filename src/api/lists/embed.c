/* qn_embed: vectors for texts, out of the hidden states behind the final norm. */
#include <math.h>
#include <quern/quern.h>
#include <stdio.h>
#include <string.h>

#include "api/handles.h"
#include "api/lists/list_parts.h"
#include "base/mem.h"
#include "base/status.h"

/* The vectors of several poolings stand one behind the other in this order. */
static const qn_pooling order[] = {QN_POOLING_CLS,       QN_POOLING_MAX,           QN_POOLING_MEAN,
                                   QN_POOLING_MEAN_SQRT, QN_POOLING_WEIGHTED_MEAN, QN_POOLING_LAST};
enum { POOLINGS = sizeof order / sizeof *order };

typedef struct {
    qn_prompt_row row;
    double *sum; /* [n_parts, n_hidden] of the states so far, in rising positions */
    int64_t n_cut;
} item;

typedef struct {
    qn_model *model;
    const qn_prompt *prompts;
    const qn_embed_options *o;
    qn_embed_fn *fn;
    void *user; /* of fn */
    qn_embedding_info info;
    qn_pooling parts[POOLINGS];
    int n_parts;
    int64_t n_hidden, n_values, limit;
    const char *prefix;     /* of texts; NULL: none */
    float *pooled, *vector; /* [n_parts * n_hidden], [what the model gives] */
} job;

const char *qn_pooling_name(qn_pooling pooling)
{
    static const char *const names[] = {
#define NAME(name, text) text,
        QN_POOLING_LIST(NAME)
#undef NAME
    };
    return (size_t)pooling < QN_POOLING_COUNT ? names[pooling] : "unknown pooling";
}

qn_status qn_model_get_embedding_info(qn_model *model, qn_embedding_info *out)
{
    if (!model || !out) return qn_fail(QN_E_ARG, "qn_model_get_embedding_info: an argument is NULL");
    *out = (qn_embedding_info){0};
    if (!model->backend->get_embedding_info) return QN_OK;
    return model->backend->get_embedding_info(model->object, out);
}

/* ---- texts to ids ------------------------------------------------------------------------------------- */

/* The row of a text with the prompt before it; others stay as they are. No length is too much here. */
static qn_status make_row(const job *j, const qn_prompt *prompt, qn_prompt_row *row)
{
    qn_prompt own = *prompt;
    char *text = NULL;
    if (j->prefix && prompt->text) {
        const size_t n = strlen(j->prefix),
                     rest = prompt->text_bytes ? prompt->text_bytes : strlen(prompt->text);
        text = qn_alloc(n + rest + 1);
        if (!text) return QN_E_NOMEM;
        memcpy(text, j->prefix, n);
        memcpy(text + n, prompt->text, rest);
        text[n + rest] = '\0';
        own.text = text;
        own.text_bytes = n + rest;
    }
    qn_prompt_row_make(j->model, &own, 0, row);
    qn_free(text);
    return row->status;
}

/* How many tokens the tokenizer puts behind a text: the end that the text's ids share with those of an empty one. */
static int64_t count_tail(const job *j, const qn_prompt *prompt, const qn_prompt_row *row)
{
    qn_prompt_row empty = {0};
    qn_prompt none = *prompt;
    int64_t tail = 0, head = 0;
    if (!prompt->text) return 0;
    none.text = "";
    none.text_bytes = 0;
    qn_prompt_row_make(j->model, &none, 0, &empty);
    while (head < empty.n_ids && empty.ids[head] == row->ids[head]) head++;
    while (tail < empty.n_ids - head && empty.ids[empty.n_ids - 1 - tail] == row->ids[row->n_ids - 1 - tail])
        tail++;
    qn_prompt_row_end(&empty);
    return tail;
}

static qn_status keep_limit(const job *j, const qn_prompt *prompt, item *t)
{
    qn_prompt_row *row = &t->row;
    if (!j->limit || row->n_ids <= j->limit) return QN_OK;
    if (!j->o->truncate) {
        const char *whose = j->info.max_tokens == j->limit ? "the model takes" : "the context holds";
        return qn_fail(QN_E_ARG, "the prompt has %lld tokens, %s %lld", (long long)row->n_ids, whose,
                       (long long)j->limit);
    }
    const int64_t tail = count_tail(j, prompt, row);
    if (tail < j->limit)
        memmove(row->ids + j->limit - tail, row->ids + row->n_ids - tail, (size_t)tail * sizeof *row->ids);
    t->n_cut = row->n_ids - j->limit;
    row->n_ids = j->limit;
    return QN_OK;
}

static qn_status prepare(void *user, size_t i_prompt, void *made)
{
    const job *j = user;
    item *t = made;
    QN_TRY(make_row(j, &j->prompts[i_prompt], &t->row));
    QN_TRY(keep_limit(j, &j->prompts[i_prompt], t));
    t->sum = qn_calloc((size_t)(j->n_parts * j->n_hidden), sizeof *t->sum);
    return t->sum ? QN_OK : QN_E_NOMEM;
}

static int64_t add_rows(void *user, int pass, void *made, qn_wanted_row *rows)
{
    item *t = made;
    if (rows) *rows = (qn_wanted_row){.ids = {t->row.ids, t->row.n_ids}, .owner = &t->row};
    return 1;
}

/* ---- states to vectors -------------------------------------------------------------------------------- */

/* The state at a position joins what a pooling has so far. */
static void add_state(qn_pooling pooling, const float *state, int64_t n, int64_t position,
                      int64_t n_positions, double *sum)
{
    switch (pooling) {
    case QN_POOLING_CLS:
        for (int64_t k = 0; k < n && position == 0; k++) sum[k] = (double)state[k];
        break;
    case QN_POOLING_LAST:
        for (int64_t k = 0; k < n && position == n_positions - 1; k++) sum[k] = (double)state[k];
        break;
    case QN_POOLING_MAX:
        for (int64_t k = 0; k < n; k++)
            if (position == 0 || (double)state[k] > sum[k] || isnan(state[k])) sum[k] = (double)state[k];
        break;
    case QN_POOLING_WEIGHTED_MEAN:
        for (int64_t k = 0; k < n; k++) sum[k] += (double)(position + 1) * (double)state[k];
        break;
    default:
        for (int64_t k = 0; k < n; k++) sum[k] += (double)state[k];
    }
}

static qn_status take(void *user, const qn_wanted_row *row, int64_t position, int64_t n, const float *hidden)
{
    const job *j = user;
    item *t = (item *)row->owner;
    const int64_t width = j->n_hidden;
    if (position == 0) memset(t->sum, 0, (size_t)(j->n_parts * width) * sizeof *t->sum);
    for (int64_t i = 0; i < n; i++, position++, hidden += width)
        for (int p = 0; p < j->n_parts; p++)
            add_state(j->parts[p], hidden, width, position, t->row.n_ids, t->sum + p * width);
    return QN_OK;
}

/* What a pooling's sums are divided by. */
static double divisor(qn_pooling pooling, int64_t n)
{
    if (pooling == QN_POOLING_MEAN) return (double)n;
    if (pooling == QN_POOLING_MEAN_SQRT) return sqrt((double)n);
    return pooling == QN_POOLING_WEIGHTED_MEAN ? (double)n * (double)(n + 1) / 2 : 1;
}

static qn_status make_vector(const job *j, const item *t)
{
    double squares = 0, scale;
    for (int p = 0; p < j->n_parts; p++) {
        const double by = divisor(j->parts[p], t->row.n_ids);
        for (int64_t k = 0; k < j->n_hidden; k++)
            j->pooled[p * j->n_hidden + k] = (float)(t->sum[p * j->n_hidden + k] / by);
    }
    if (j->info.n_values)
        QN_TRY(j->model->backend->embedding_project(j->model->object, j->pooled, j->vector));
    else
        memcpy(j->vector, j->pooled, (size_t)(j->n_parts * j->n_hidden) * sizeof *j->vector);
    for (int64_t k = 0; k < j->n_values; k++) squares += (double)j->vector[k] * (double)j->vector[k];
    if (!isfinite(squares))
        return qn_fail(QN_E_INTERNAL, "the model gave hidden states that are not finite numbers");
    scale = (j->o->normalise || j->info.normalises) && squares > 0 ? 1 / sqrt(squares) : 1;
    for (int64_t k = 0; k < j->n_values && scale != 1; k++)
        j->vector[k] = (float)((double)j->vector[k] * scale);
    return QN_OK;
}

static qn_status give(void *user, size_t i_prompt, void *made)
{
    const job *j = user;
    item *t = made;
    qn_status status = t->row.status == QN_OK ? make_vector(j, t) : QN_OK;
    if (status != QN_OK) qn_prompt_row_fail(&t->row, status);
    const qn_embed_result r = {.i_prompt = i_prompt,
                               .status = t->row.status,
                               .message = qn_prompt_row_message(&t->row),
                               .n_tokens = t->row.n_ids,
                               .vector = t->row.status == QN_OK ? j->vector : NULL,
                               .n_values = j->n_values,
                               .n_cut = t->n_cut};
    return j->fn(j->user, &r);
}

static void end(void *made)
{
    qn_free(((item *)made)->sum);
}

/* ---- the whole ---------------------------------------------------------------------------------------- */

static qn_status choose_prefix(job *j)
{
    const char *name = j->o->prompt_name ? j->o->prompt_name : j->info.default_prompt_name;
    char known[512] = "";
    size_t used = 0;
    if (!name || !*name) return QN_OK;
    for (size_t i = 0; i < j->info.n_prompts; i++) {
        if (strcmp(j->info.prompt_names[i], name) == 0) j->prefix = j->info.prompts[i];
        if (used < sizeof known)
            used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "",
                                     j->info.prompt_names[i]);
    }
    if (!j->prefix)
        return qn_fail(QN_E_NOT_FOUND, "prompt_name: the model has no prompt \"%.80s\" (it has: %s)", name,
                       *known ? known : "none");
    if (j->info.leaves_prompt_out && *j->prefix)
        return qn_fail(
            QN_E_UNSUPPORTED,
            "prompt_name: the model leaves a prompt's tokens out of its pooling (include_prompt), which "
            "is not supported");
    return QN_OK;
}

static qn_status choose_poolings(job *j)
{
    const qn_pooling wish = j->o->pooling;
    const uint32_t bits = wish != QN_POOLING_OWN ? 1u << wish
                          : j->info.poolings     ? j->info.poolings
                                                 : 1u << QN_POOLING_MEAN;
    for (int i = 0; i < POOLINGS; i++)
        if (bits >> order[i] & 1) j->parts[j->n_parts++] = order[i];
    if (!j->info.n_values || j->info.n_pooled == j->n_parts * j->n_hidden) return QN_OK;
    return qn_fail(QN_E_ARG, "pooling: %s gives %lld numbers, but the model's linear layers read %lld",
                   qn_pooling_name(wish), (long long)(j->n_parts * j->n_hidden), (long long)j->info.n_pooled);
}

/* What the model's files, the options and the model itself make of the job. */
static qn_status plan(job *j)
{
    qn_model_info info;
    QN_TRY(qn_model_get_info(j->model, &info));
    QN_TRY(qn_model_get_embedding_info(j->model, &j->info));
    j->n_hidden = info.encoded_size;
    j->limit = info.context_size;
    if (j->info.max_tokens && (!j->limit || j->info.max_tokens < j->limit)) j->limit = j->info.max_tokens;
    QN_TRY(choose_prefix(j));
    QN_TRY(choose_poolings(j));
    const int64_t all = j->info.n_values ? j->info.n_values : j->n_parts * j->n_hidden;
    if (j->o->dimensions < 0 || j->o->dimensions > all)
        return qn_fail(QN_E_ARG, "dimensions is %lld, but the model gives %lld numbers",
                       (long long)j->o->dimensions, (long long)all);
    j->n_values = j->o->dimensions ? j->o->dimensions : all;
    j->pooled = qn_alloc_array((size_t)(j->n_parts * j->n_hidden), sizeof *j->pooled);
    j->vector = qn_alloc_array((size_t)all, sizeof *j->vector);
    return j->pooled && j->vector ? QN_OK : QN_E_NOMEM;
}

static qn_status run(job *j, size_t n_prompts)
{
    const qn_logits_options logits = {.hidden = 1,
                                      .adapter = j->o->adapter,
                                      .no_prefix_cache = 1,
                                      .tenant = j->o->tenant,
                                      .priority = j->o->priority,
                                      .cancel = j->o->cancel};
    const qn_list_work work = {.model = j->model,
                               .logits = &logits,
                               .item_bytes = sizeof(item),
                               .n_passes = 1,
                               .user = j,
                               .prepare = prepare,
                               .add_rows = add_rows,
                               .take = take,
                               .give = give,
                               .end = end};
    return qn_list_work_run(&work, n_prompts);
}

qn_status qn_embed(qn_model *model, const qn_prompt *prompts, size_t n_prompts,
                   const qn_embed_options *options, qn_embed_fn *fn, void *user)
{
    const qn_embed_options defaults = {0};
    job j = {.model = model, .prompts = prompts, .o = options ? options : &defaults, .fn = fn, .user = user};
    if (!model || !prompts || !fn) return qn_fail(QN_E_ARG, "qn_embed: an argument is NULL");
    if (!n_prompts) return qn_fail(QN_E_ARG, "qn_embed: no texts");
    if ((unsigned)j.o->pooling >= QN_POOLING_COUNT)
        return qn_fail(QN_E_ARG, "pooling: %d is not a pooling", (int)j.o->pooling);
    qn_status status = plan(&j);
    if (status == QN_OK) status = run(&j, n_prompts);
    qn_free(j.pooled);
    qn_free(j.vector);
    return status;
}

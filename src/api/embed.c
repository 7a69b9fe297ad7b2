/* qn_embed: vectors for texts, out of the hidden states behind the final norm. */
#include <math.h>
#include <quern/quern.h>
#include <string.h>

#include "api/handles.h"
#include "api/prompt_rows.h"
#include "base/mem.h"
#include "base/status.h"

typedef struct {
    qn_prompt_row row;
    double *sum; /* [n_values] of the states that count, in rising positions */
} item;

typedef struct {
    qn_model *model;
    const qn_embed_options *o;
    int64_t n_values, context;
    item *items; /* of the part of the list at hand */
    size_t n_items;
    qn_wanted_row *rows;
    size_t *targets; /* the item of each row */
    float *vector;   /* [n_values] */
    size_t part;     /* texts at a time: fewer where memory is short */
    qn_list_memory memory;
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

static qn_status take(void *user, int64_t row, int64_t position, int64_t n, const float *hidden)
{
    const job *j = user;
    item *t = &j->items[j->targets[row]];
    if (position == 0) memset(t->sum, 0, (size_t)j->n_values * sizeof *t->sum);
    for (int64_t i = 0; i < n; i++, position++, hidden += j->n_values) {
        if (j->o->pooling == QN_POOLING_LAST && position != t->row.n_ids - 1) continue;
        if (j->o->pooling == QN_POOLING_CLS && position != 0) continue;
        for (int64_t k = 0; k < j->n_values; k++) t->sum[k] += (double)hidden[k];
    }
    return QN_OK;
}

static void end_part(job *j)
{
    for (size_t i = 0; i < j->n_items; i++) {
        qn_prompt_row_end(&j->items[i].row);
        qn_free(j->items[i].sum);
    }
    qn_free(j->items);
    qn_free(j->rows);
    qn_free(j->targets);
    j->items = NULL;
    j->rows = NULL;
    j->targets = NULL;
    j->n_items = 0;
    qn_list_memory_release(&j->memory);
}

static void prepare_item(const job *j, const qn_prompt *prompt, item *t)
{
    qn_prompt_row_make(j->model, prompt, j->context, &t->row);
    if (t->row.status != QN_OK) return;
    t->sum = qn_calloc((size_t)j->n_values, sizeof *t->sum);
    if (!t->sum) qn_prompt_row_fail(&t->row, QN_E_NOMEM);
}

static qn_status make_vector(const job *j, const item *t)
{
    double n = j->o->pooling == QN_POOLING_MEAN ? (double)t->row.n_ids : 1, squares = 0, scale = 1;
    for (int64_t k = 0; k < j->n_values; k++) squares += t->sum[k] / n * (t->sum[k] / n);
    if (!isfinite(squares))
        return qn_fail(QN_E_INTERNAL, "the model gave hidden states that are not finite numbers");
    if (j->o->normalise && squares > 0) scale = 1 / sqrt(squares);
    for (int64_t k = 0; k < j->n_values; k++) j->vector[k] = (float)(t->sum[k] / n * scale);
    return QN_OK;
}

static qn_status give(job *j, size_t first, qn_embed_fn *fn, void *user)
{
    for (size_t i = 0; i < j->n_items; i++) {
        item *t = &j->items[i];
        qn_status status = t->row.status == QN_OK ? make_vector(j, t) : QN_OK;
        if (status != QN_OK) qn_prompt_row_fail(&t->row, status);
        qn_embed_result r = {.i_prompt = first + i,
                             .status = t->row.status,
                             .message = qn_prompt_row_message(&t->row),
                             .n_tokens = t->row.n_ids,
                             .vector = t->row.status == QN_OK ? j->vector : NULL,
                             .n_values = j->n_values};
        QN_TRY(fn(user, &r));
    }
    return QN_OK;
}

/* The next texts; *n_done is how many. 0: memory did not suffice for so many. */
static qn_status run_part(job *j, const qn_prompt *prompts, size_t n_left, size_t first, qn_embed_fn *fn,
                          void *user, size_t *n_done)
{
    const int64_t mark = qn_mem_thread_bytes();
    const size_t n_prompts = n_left < j->part ? n_left : j->part;
    *n_done = 0;
    j->items = qn_calloc(n_prompts, sizeof *j->items);
    j->rows = qn_alloc_array(n_prompts, sizeof *j->rows);
    j->targets = qn_alloc_array(n_prompts, sizeof *j->targets);
    if (!j->items || !j->rows || !j->targets) return QN_E_NOMEM;
    int64_t n_rows = 0;
    for (; j->n_items < n_prompts; j->n_items++) {
        item *t = &j->items[j->n_items];
        prepare_item(j, &prompts[j->n_items], t);
        if (t->row.status != QN_OK) continue;
        j->targets[n_rows] = j->n_items;
        j->rows[n_rows++] = (qn_wanted_row){{t->row.ids, t->row.n_ids}, 0, &t->row};
    }
    const qn_logits_options o = {.hidden = 1,
                                 .adapter = j->o->adapter,
                                 .no_prefix_cache = 1,
                                 .tenant = j->o->tenant,
                                 .priority = j->o->priority,
                                 .cancel = j->o->cancel};
    qn_status held = qn_list_memory_hold(&j->memory, mark);
    if (held != QN_OK) qn_prompt_row_fail(&j->items[0].row, held);
    if (n_rows && held == QN_OK) QN_TRY(qn_wanted_rows_evaluate(j->model, j->rows, n_rows, &o, take, j));
    if (qn_prompt_rows_lack_memory(&j->items->row, sizeof *j->items, j->n_items)) {
        j->part = n_prompts / 2;
        return QN_OK;
    }
    *n_done = n_prompts;
    return give(j, first, fn, user);
}

qn_status qn_embed(qn_model *model, const qn_prompt *prompts, size_t n_prompts,
                   const qn_embed_options *options, qn_embed_fn *fn, void *user)
{
    const qn_embed_options defaults = {0};
    qn_model_info info;
    job j = {.model = model,
             .o = options ? options : &defaults,
             .part = QN_PROMPT_WINDOW,
             .memory = {.model = model}};
    if (!model || !prompts || !fn) return qn_fail(QN_E_ARG, "qn_embed: an argument is NULL");
    if (!n_prompts) return qn_fail(QN_E_ARG, "qn_embed: no texts");
    if ((unsigned)j.o->pooling >= QN_POOLING_COUNT)
        return qn_fail(QN_E_ARG, "pooling: %d is none", (int)j.o->pooling);
    QN_TRY(qn_model_get_info(model, &info));
    j.n_values = info.hidden_size;
    j.context = info.context_size;
    j.vector = qn_alloc_array((size_t)j.n_values, sizeof *j.vector);
    qn_status status = j.vector ? QN_OK : QN_E_NOMEM;
    for (size_t i = 0, n; status == QN_OK && i < n_prompts; i += n) {
        status = run_part(&j, prompts + i, n_prompts - i, i, fn, user, &n);
        end_part(&j);
    }
    qn_free(j.vector);
    return status;
}

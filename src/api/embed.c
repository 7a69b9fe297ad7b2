/* qn_embed: vectors for texts, out of the hidden states behind the final norm. */
#include <math.h>
#include <quern/quern.h>
#include <string.h>

#include "api/handles.h"
#include "api/list_parts.h"
#include "base/mem.h"
#include "base/status.h"

typedef struct {
    qn_prompt_row row;
    double *sum; /* [n_values] of the states that count, in rising positions */
} item;

typedef struct {
    qn_model *model;
    const qn_prompt *prompts;
    const qn_embed_options *o;
    qn_embed_fn *fn;
    void *user; /* of fn */
    int64_t n_values, context;
    float *vector; /* [n_values] */
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

static qn_status prepare(void *user, size_t i_prompt, void *made)
{
    const job *j = user;
    item *t = made;
    qn_prompt_row_make(j->model, &j->prompts[i_prompt], j->context, &t->row);
    QN_TRY(t->row.status);
    t->sum = qn_calloc((size_t)j->n_values, sizeof *t->sum);
    return t->sum ? QN_OK : QN_E_NOMEM;
}

static int64_t add_rows(void *user, int pass, void *made, qn_wanted_row *rows)
{
    item *t = made;
    if (rows) *rows = (qn_wanted_row){.ids = {t->row.ids, t->row.n_ids}, .owner = &t->row};
    return 1;
}

static qn_status take(void *user, const qn_wanted_row *row, int64_t position, int64_t n, const float *hidden)
{
    const job *j = user;
    item *t = (item *)row->owner;
    if (position == 0) memset(t->sum, 0, (size_t)j->n_values * sizeof *t->sum);
    for (int64_t i = 0; i < n; i++, position++, hidden += j->n_values) {
        if (j->o->pooling == QN_POOLING_LAST && position != t->row.n_ids - 1) continue;
        if (j->o->pooling == QN_POOLING_CLS && position != 0) continue;
        for (int64_t k = 0; k < j->n_values; k++) t->sum[k] += (double)hidden[k];
    }
    return QN_OK;
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
                               .n_values = j->n_values};
    return j->fn(j->user, &r);
}

static void end(void *made)
{
    qn_free(((item *)made)->sum);
}

qn_status qn_embed(qn_model *model, const qn_prompt *prompts, size_t n_prompts,
                   const qn_embed_options *options, qn_embed_fn *fn, void *user)
{
    const qn_embed_options defaults = {0};
    qn_model_info info;
    job j = {.model = model, .prompts = prompts, .o = options ? options : &defaults, .fn = fn, .user = user};
    if (!model || !prompts || !fn) return qn_fail(QN_E_ARG, "qn_embed: an argument is NULL");
    if (!n_prompts) return qn_fail(QN_E_ARG, "qn_embed: no texts");
    if ((unsigned)j.o->pooling >= QN_POOLING_COUNT)
        return qn_fail(QN_E_ARG, "pooling: %d is not a pooling", (int)j.o->pooling);
    QN_TRY(qn_model_get_info(model, &info));
    j.n_values = info.encoded_size;
    j.context = info.context_size;
    j.vector = qn_alloc_array((size_t)j.n_values, sizeof *j.vector);
    if (!j.vector) return QN_E_NOMEM;
    const qn_logits_options logits = {.hidden = 1,
                                      .adapter = j.o->adapter,
                                      .no_prefix_cache = 1,
                                      .tenant = j.o->tenant,
                                      .priority = j.o->priority,
                                      .cancel = j.o->cancel};
    const qn_list_work work = {.model = model,
                               .logits = &logits,
                               .item_bytes = sizeof(item),
                               .n_passes = 1,
                               .user = &j,
                               .prepare = prepare,
                               .add_rows = add_rows,
                               .take = take,
                               .give = give,
                               .end = end};
    qn_status status = qn_list_work_run(&work, n_prompts);
    qn_free(j.vector);
    return status;
}

#include "api/lists/prompt_rows.h"

#include <string.h>

#include "api/handles.h"
#include "backend/registry.h"
#include "base/buf.h"
#include "base/mem.h"
#include "base/status.h"

/* ---- prompts to ids ---- */

static qn_status check_ids(const qn_prompt_row *row, int64_t limit, int64_t n_vocab)
{
    if (row->n_ids < 1) return qn_fail(QN_E_ARG, "the prompt has no tokens");
    if (limit && row->n_ids > limit)
        return qn_fail(QN_E_ARG, "the prompt has %lld tokens, the context holds %lld", (long long)row->n_ids,
                       (long long)limit);
    for (int64_t i = 0; i < row->n_ids; i++)
        if (row->ids[i] < 0 || row->ids[i] >= n_vocab)
            return qn_fail(QN_E_ARG, "token id %d at position %lld is outside the vocabulary of %lld",
                           (int)row->ids[i], (long long)i, (long long)n_vocab);
    return QN_OK;
}

static qn_status copy_ids(const qn_prompt *prompt, qn_prompt_row *out)
{
    if (prompt->n_rows != 1)
        return qn_fail(QN_E_ARG, "n_rows: a prompt of a list has one row, not %lld",
                       (long long)prompt->n_rows);
    const qn_ids *row = prompt->rows;
    out->ids = qn_alloc_array((size_t)row->n_ids, sizeof *out->ids);
    if (!out->ids) return QN_E_NOMEM;
    memcpy(out->ids, row->ids, (size_t)row->n_ids * sizeof *out->ids);
    out->n_ids = row->n_ids;
    return QN_OK;
}

static qn_status make_ids(qn_model *model, const qn_prompt *prompt, qn_prompt_row *out)
{
    qn_conversation *own = NULL;
    qn_prompt normal;
    if (prompt->n_images) return qn_fail(QN_E_ARG, "images: a list of prompts cannot have images");
    if (prompt->constraint) return qn_fail(QN_E_ARG, "constraint: nothing is generated from this prompt");
    qn_status status = qn_prompt_normalise(prompt, &normal, &own);
    if (status == QN_OK) {
        if (normal.rows)
            status = copy_ids(&normal, out);
        else if (!model->backend->prompt_ids)
            status = qn_backend_fail_missing(model->backend, "token ids of prompts");
        else
            status = model->backend->prompt_ids(model->object, &normal, &out->ids, &out->n_ids);
    }
    qn_conversation_free(own);
    return status;
}

void qn_prompt_row_make(qn_model *model, const qn_prompt *prompt, int64_t limit, qn_prompt_row *out)
{
    qn_model_info info;
    *out = (qn_prompt_row){0};
    qn_status status = qn_model_get_info(model, &info);
    if (status == QN_OK) status = make_ids(model, prompt, out);
    if (status == QN_OK) status = check_ids(out, limit, info.vocab_size);
    if (status != QN_OK) qn_prompt_row_fail(out, status);
}

void qn_prompt_row_fail(qn_prompt_row *row, qn_status status)
{
    if (row->status != QN_OK) return;
    row->status = status;
    row->message = qn_strdup(qn_last_error());
}

const char *qn_prompt_row_message(const qn_prompt_row *row)
{
    if (row->status == QN_OK) return NULL;
    return row->message ? row->message : qn_status_text(row->status);
}

void qn_prompt_row_end(qn_prompt_row *row)
{
    qn_free(row->ids);
    qn_free(row->message);
    *row = (qn_prompt_row){0};
}

/* ---- memory ---- */

qn_status qn_list_memory_hold(qn_list_memory *m, int64_t mark)
{
    const size_t size_bytes = (size_t)(qn_mem_thread_bytes() - mark);
    if (!m->model->backend->memory_hold) return QN_OK;
    QN_TRY(m->model->backend->memory_hold(m->model->object, size_bytes));
    m->held_bytes += size_bytes;
    return QN_OK;
}

void qn_list_memory_release(qn_list_memory *m)
{
    if (m->held_bytes) m->model->backend->memory_release(m->model->object, m->held_bytes);
    m->held_bytes = 0;
}

/* ---- evaluation ---- */

/* A row whose last block has come is done; one that failed on the way is not computed again either. */
typedef struct {
    const qn_wanted_row *rows;
    qn_logits_fn *fn;
    void *user;
    qn_status stopped; /* what fn returned */
    int64_t offset;    /* of the call that is made, in what follows */
    int64_t *index;    /* [n] of rows, that are computed */
    qn_ids *ids;
    int64_t *first;
    qn_ids *types; /* NULL: no scores are wanted */
    char *is_done;
    int64_t n, n_done;
} evaluator;

static qn_status pass_on(void *user, int64_t row, int64_t position, int64_t n, const float *values)
{
    evaluator *e = user;
    int64_t i = e->offset + row;
    qn_status status = e->fn(e->user, e->index[i], position, n, values);
    if (status != QN_OK) e->stopped = status;
    if (e->types || position + n == e->ids[i].n_ids) {
        e->is_done[i] = 1;
        e->n_done++;
    }
    return status;
}

static qn_status call(evaluator *e, qn_model *model, int64_t from, int64_t n, const qn_logits_options *o)
{
    qn_logits_options own = *o;
    own.row_first = e->first + from;
    e->offset = from;
    if (!e->types) return qn_model_logits(model, e->ids + from, n, &own, pass_on, e);
    return model->backend->sequence_scores(model->object, e->ids + from, e->types + from, n, &own, pass_on,
                                           e);
}

static qn_status evaluate(evaluator *e, qn_model *model, const qn_logits_options *o)
{
    qn_status status = call(e, model, 0, e->n, o);
    if (status == QN_OK || status == QN_E_CANCELLED || e->stopped != QN_OK) return status;
    if (e->n_done == 0 && (status == QN_E_ARG || status == QN_E_NOT_FOUND || status == QN_E_UNSUPPORTED))
        return status;
    for (int64_t i = 0; i < e->n; i++) {
        if (e->is_done[i]) continue;
        status = call(e, model, i, 1, o);
        if (status == QN_E_CANCELLED || e->stopped != QN_OK) return status;
        if (status != QN_OK) qn_prompt_row_fail(e->rows[e->index[i]].owner, status);
    }
    return QN_OK;
}

qn_status qn_wanted_rows_evaluate(qn_model *model, const qn_wanted_row *rows, int64_t n_rows,
                                  const qn_logits_options *o, int scores, qn_logits_fn *fn, void *user)
{
    const size_t n = (size_t)n_rows;
    const int64_t mark = qn_mem_thread_bytes();
    evaluator e = {.rows = rows, .fn = fn, .user = user};
    qn_list_memory memory = {.model = model};
    qn_status status = QN_OK;
    e.index = qn_alloc_array(n, sizeof *e.index);
    e.ids = qn_alloc_array(n, sizeof *e.ids);
    e.first = qn_alloc_array(n, sizeof *e.first);
    e.is_done = qn_calloc(n, 1);
    if (scores) e.types = qn_alloc_array(n, sizeof *e.types);
    if (!e.index || !e.ids || !e.first || !e.is_done || (scores && !e.types)) status = QN_E_NOMEM;
    for (int64_t i = 0; status == QN_OK && i < n_rows; i++) {
        if (rows[i].owner->status != QN_OK) continue;
        e.index[e.n] = i;
        e.ids[e.n] = rows[i].ids;
        if (scores) e.types[e.n] = (qn_ids){rows[i].types, rows[i].ids.n_ids};
        e.first[e.n++] = rows[i].first;
    }
    if (status == QN_OK && e.n) {
        qn_status held = qn_list_memory_hold(&memory, mark);
        for (int64_t i = 0; held != QN_OK && i < e.n; i++) qn_prompt_row_fail(rows[e.index[i]].owner, held);
        if (held == QN_OK) status = evaluate(&e, model, o);
    }
    qn_list_memory_release(&memory);
    qn_free(e.index);
    qn_free(e.ids);
    qn_free(e.first);
    qn_free(e.types);
    qn_free(e.is_done);
    return status;
}

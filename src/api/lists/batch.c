/* qn_batch: a list of prompts in parts, each part one generation whose rows are prompts. */
#include <quern/quern.h>
#include <stdatomic.h>
#include <string.h>

#include "api/handles.h"
#include "api/lists/prompt_rows.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/status.h"
#include "engine/sample/sampler.h"

enum { PART_MIN = 64, PART_MAX = 256 /* prompts of one generation */ };

typedef struct {
    qn_prompt_row row;
    qn_constraint *constraint;  /* of its answer; NULL: none */
    qn_buf ids, logprobs, text; /* int32_t, float, char */
    qn_end end;                 /* QN_END_NONE: not yet */
} item;

struct qn_batch {
    qn_model *model;
    const qn_prompt *prompts;
    size_t n_prompts, i_next;
    qn_generate_options options;
    int64_t context, part, deadline_ns; /* deadline 0: none */
    item *items;                        /* prompts [first, first + n_items): the part at hand */
    size_t first, n_items;
    int is_single;                       /* the part is tried prompt by prompt */
    _Atomic(qn_generation *) generation; /* of the part; NULL: none */
    atomic_int n_inside;                 /* cancels that may hold the generation */
    atomic_int is_cancelled;
    qn_ids *rows;                /* of the generation */
    qn_constraint **constraints; /* [rows] */
    size_t *row_items;           /* [rows] whose they are */
    qn_generation_stats stats;   /* of the generations that were closed; rates unused */
    double n_decoded;
    qn_list_memory memory; /* of the part */
    qn_status failure;
    char *message;
};

/* ---- parts ---- */

static void add_stats(qn_batch *b)
{
    qn_generation_stats s;
    if (qn_generation_get_stats(b->generation, &s) != QN_OK) return;
    b->stats.n_prompt_tokens += s.n_prompt_tokens;
    b->stats.n_generated_tokens += s.n_generated_tokens;
    b->stats.n_cached_tokens += s.n_cached_tokens;
    b->stats.n_drafted_tokens += s.n_drafted_tokens;
    b->stats.n_accepted_tokens += s.n_accepted_tokens;
    if (b->stats.first_token_ms == 0) {
        b->stats.queue_ms = s.queue_ms;
        b->stats.first_token_ms = s.first_token_ms;
    }
    b->stats.prefill_ms += s.prefill_ms;
    b->stats.decode_ms += s.decode_ms;
    b->n_decoded += s.decode_tokens_per_sec * s.decode_ms * 1e-3;
}

static void close_generation(qn_batch *b)
{
    qn_generation *g = b->generation;
    if (!g) return;
    add_stats(b);
    atomic_store(&b->generation, NULL);
    while (atomic_load(&b->n_inside)) { /* one may still hold it */
    }
    qn_generation_close(g);
}

static void end_part(qn_batch *b)
{
    close_generation(b);
    for (size_t i = 0; i < b->n_items; i++) {
        item *t = &b->items[i];
        qn_prompt_row_end(&t->row);
        qn_constraint_close(t->constraint);
        qn_buf_free(&t->ids);
        qn_buf_free(&t->logprobs);
        qn_buf_free(&t->text);
    }
    qn_free(b->items);
    qn_free(b->rows);
    qn_free(b->constraints);
    qn_free(b->row_items);
    b->items = NULL;
    b->rows = NULL;
    b->constraints = NULL;
    b->row_items = NULL;
    b->n_items = 0;
    qn_list_memory_release(&b->memory);
}

static void fail_item(item *t, qn_status status)
{
    qn_prompt_row_fail(&t->row, status);
    t->end = QN_END_ERROR;
}

/* The reason for which nothing is computed any more. */
static qn_end why_over(const qn_batch *b)
{
    if (atomic_load(&b->is_cancelled)) return QN_END_CANCELLED;
    if (b->deadline_ns && qn_clock_ns() >= b->deadline_ns) return QN_END_DEADLINE;
    return QN_END_NONE;
}

/* A generation of the rows of items [from, to) that have not ended. */
static qn_status open_generation(qn_batch *b, size_t from, size_t to)
{
    int64_t n = 0;
    qn_generation *g = NULL;
    qn_generate_options o = b->options;
    qn_end why = why_over(b);
    for (size_t i = from; i < to; i++) {
        item *t = &b->items[i];
        if (t->end == QN_END_NONE) t->end = why;
        if (t->end != QN_END_NONE) continue;
        b->row_items[n] = i;
        b->constraints[n] = t->constraint;
        b->rows[n++] = (qn_ids){t->row.ids, t->row.n_ids};
    }
    if (!n) return QN_OK;
    o.constraint = NULL; /* the rows have theirs */
    o.row_constraints = b->constraints;
    if (b->deadline_ns) {
        int64_t left = (b->deadline_ns - qn_clock_ns()) / 1000000;
        o.deadline_ms = left > 1 ? left : 1;
    }
    QN_TRY(qn_generation_open(b->model, &(qn_prompt){.rows = b->rows, .n_rows = n}, &o, &g));
    atomic_store(&b->generation, g);
    if (atomic_load(&b->is_cancelled)) qn_generation_cancel(g);
    return QN_OK;
}

/* Makes the ids of a prompt, and the constraint of its answer. */
static void make_item(qn_batch *b, const qn_prompt *prompt, item *t)
{
    qn_prompt plain = *prompt, normal;
    qn_conversation *own = NULL;
    plain.constraint = NULL;
    qn_prompt_row_make(b->model, &plain, b->context, &t->row);
    if (t->row.status == QN_OK && (prompt->constraint || b->options.constraint)) {
        qn_status status = qn_prompt_normalise(prompt, &normal, &own);
        if (status == QN_OK) status = qn_constraint_choose(b->model, &normal, &b->options, &t->constraint);
        if (status != QN_OK) qn_prompt_row_fail(&t->row, status);
        qn_conversation_free(own);
    }
    if (t->row.status != QN_OK) t->end = QN_END_ERROR;
}

/* The items of the list's next n prompts. */
static qn_status make_items(qn_batch *b, size_t n)
{
    end_part(b);
    const int64_t mark = qn_mem_thread_bytes();
    b->is_single = 0;
    b->first = b->i_next;
    b->items = qn_calloc(n, sizeof *b->items);
    b->rows = qn_alloc_array(n, sizeof *b->rows);
    b->row_items = qn_alloc_array(n, sizeof *b->row_items);
    b->constraints = qn_alloc_array(n, sizeof *b->constraints);
    if (!b->items || !b->rows || !b->row_items || !b->constraints) return QN_E_NOMEM;
    for (; b->n_items < n; b->n_items++)
        make_item(b, &b->prompts[b->first + b->n_items], &b->items[b->n_items]);
    return qn_list_memory_hold(&b->memory, mark);
}

/* The list's next part, and what computes it. Where memory is too small it has fewer prompts; where that, or
 * the queue, does not help, its prompts are tried one by one. */
static qn_status begin_part(qn_batch *b)
{
    size_t n = b->n_prompts - b->i_next;
    if (n > (size_t)b->part) n = (size_t)b->part;
    qn_status status;
    for (;; n = (size_t)(b->part = (int64_t)n / 2)) {
        status = make_items(b, n);
        if (status == QN_OK) status = open_generation(b, 0, n);
        if (status != QN_E_NOMEM || n == 1) break;
    }
    b->is_single = status == QN_E_FULL || (status == QN_E_NOMEM && b->n_items);
    return b->is_single ? QN_OK : status;
}

/* ---- answers ---- */

static qn_status keep(qn_batch *b, item *t, const qn_token *token)
{
    const int64_t mark = qn_mem_thread_bytes();
    if (token->id >= 0) {
        qn_buf_append(&t->ids, &token->id, sizeof token->id);
        if (b->options.logprobs) qn_buf_append(&t->logprobs, &token->logprob, sizeof token->logprob);
    }
    qn_buf_append(&t->text, token->text, token->text_bytes);
    qn_status status = qn_list_memory_hold(&b->memory, mark);
    if (t->ids.status != QN_OK) return t->ids.status;
    if (t->logprobs.status != QN_OK) return t->logprobs.status;
    return t->text.status != QN_OK ? t->text.status : status;
}

/* One event of the generation, of whichever prompt; waited for is one of them. */
static void take_event(qn_batch *b, item *waited_for)
{
    qn_token token;
    qn_status status = qn_generation_next(b->generation, &token);
    item *t = status == QN_E_CLOSED ? waited_for : &b->items[b->row_items[token.row]];
    if (t->end != QN_END_NONE) return; /* it could not be kept before */
    if (status == QN_OK) status = keep(b, t, &token);
    if (status != QN_OK)
        fail_item(t, status);
    else
        t->end = token.end;
}

/* Brings item i to its end. */
static void finish_item(qn_batch *b, size_t i)
{
    item *t = &b->items[i];
    if (b->is_single && t->end == QN_END_NONE) {
        close_generation(b);
        qn_status status = open_generation(b, i, i + 1);
        if (status != QN_OK) fail_item(t, status);
    }
    while (t->end == QN_END_NONE) take_event(b, t);
}

static void show(const qn_batch *b, const item *t, qn_batch_result *out)
{
    *out = (qn_batch_result){
        .i_prompt = b->i_next,
        .status = t->row.status,
        .message = qn_prompt_row_message(&t->row),
        .n_prompt_tokens = t->row.n_ids,
        .ids = (const int32_t *)(const void *)t->ids.data,
        .n_ids = (int64_t)(t->ids.length / sizeof(int32_t)),
        .logprobs = (const float *)(const void *)t->logprobs.data,
        .text = t->text.length ? t->text.data : "",
        .text_bytes = t->text.length,
        .end = t->end,
    };
}

/* ---- the batch ---- */

qn_status qn_batch_open(qn_model *model, const qn_prompt *prompts, size_t n_prompts,
                        const qn_generate_options *options, qn_batch **out)
{
    qn_model_info info;
    if (!model || !prompts || !out) return qn_fail(QN_E_ARG, "qn_batch_open: an argument is NULL");
    if (!n_prompts) return qn_fail(QN_E_ARG, "qn_batch_open: no prompts");
    if (options && options->row_adapters)
        return qn_fail(QN_E_ARG, "row_adapters: all prompts of a batch must have the same adapter");
    if (options && options->alternative) return qn_fail(QN_E_ARG, "alternative: a batch has none");
    if (options && options->row_constraints)
        return qn_fail(QN_E_ARG, "row_constraints: each prompt of a batch has its own constraint");
    if (options && options->n_top_logprobs)
        return qn_fail(QN_E_ARG, "n_top_logprobs: a batch gives only the logprobs of its own tokens");
    if (options && options->deadline_ms < 0)
        return qn_fail(QN_E_ARG, "deadline_ms: %lld is negative", (long long)options->deadline_ms);
    if (options) QN_TRY(qn_sampler_check(options));
    QN_TRY(qn_model_get_info(model, &info));
    qn_batch *b = qn_calloc(1, sizeof *b);
    if (!b) return QN_E_NOMEM;
    b->model = b->memory.model = model;
    b->prompts = prompts;
    b->n_prompts = n_prompts;
    if (options) b->options = *options;
    if (!b->options.seed) b->options.seed = qn_sampler_fresh_seed();
    b->context = info.context_size;
    b->part = 4 * info.parallel_slots;
    b->part = b->part < PART_MIN ? PART_MIN : b->part > PART_MAX ? PART_MAX : b->part;
    int64_t now = qn_clock_ns(), most = (INT64_MAX - now) / 1000000;
    if (b->options.deadline_ms && b->options.deadline_ms <= most)
        b->deadline_ns = now + b->options.deadline_ms * 1000000;
    *out = b;
    return QN_OK;
}

qn_status qn_batch_next(qn_batch *b, qn_batch_result *out, int *is_there)
{
    if (!b || !out || !is_there) return qn_fail(QN_E_ARG, "qn_batch_next: an argument is NULL");
    if (b->failure != QN_OK)
        return qn_fail_copy(b->failure, b->message ? b->message : qn_status_text(b->failure));
    *is_there = b->i_next < b->n_prompts;
    if (!*is_there) return QN_OK;
    qn_status status = b->i_next == b->first + b->n_items ? begin_part(b) : QN_OK;
    while (status == QN_OK) {
        finish_item(b, b->i_next - b->first);
        if (b->items[b->i_next - b->first].row.status != QN_E_NOMEM || b->n_items == 1) break;
        b->part = (int64_t)b->n_items / 2; /* what the part itself takes may be what is missing */
        status = begin_part(b);
    }
    if (status != QN_OK) {
        b->failure = status;
        b->message = qn_strdup(qn_last_error());
        return status;
    }
    show(b, &b->items[b->i_next - b->first], out);
    b->i_next++;
    return QN_OK;
}

void qn_batch_cancel(qn_batch *b)
{
    if (!b) return;
    atomic_store(&b->is_cancelled, 1);
    atomic_fetch_add(&b->n_inside, 1);
    qn_generation_cancel(atomic_load(&b->generation));
    atomic_fetch_sub(&b->n_inside, 1);
}

qn_status qn_batch_get_stats(const qn_batch *batch, qn_generation_stats *out)
{
    if (!batch || !out) return qn_fail(QN_E_ARG, "qn_batch_get_stats: an argument is NULL");
    qn_batch sum = {.stats = batch->stats, .n_decoded = batch->n_decoded};
    atomic_store(&sum.generation, atomic_load(&batch->generation));
    if (atomic_load(&sum.generation)) add_stats(&sum);
    *out = sum.stats;
    out->seed = batch->options.seed;
    if (out->prefill_ms > 0)
        out->prefill_tokens_per_sec =
            (double)(out->n_prompt_tokens - out->n_cached_tokens) / (out->prefill_ms * 1e-3);
    if (out->decode_ms > 0) out->decode_tokens_per_sec = sum.n_decoded / (out->decode_ms * 1e-3);
    return QN_OK;
}

void qn_batch_close(qn_batch *b)
{
    if (!b) return;
    end_part(b);
    qn_free(b->message);
    qn_free(b);
}

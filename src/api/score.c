/* qn_score: how probable texts are. Each window of a text is a row that is evaluated without its last token,
 * which nothing follows. */
#include <math.h>
#include <quern/quern.h>
#include <string.h>

#include "api/handles.h"
#include "api/prompt_rows.h"
#include "base/mem.h"
#include "base/status.h"
#include "engine/sample/logprobs.h"

typedef struct {
    qn_prompt_row row;
    double *logprobs; /* [row.n_ids] */
} item;

typedef struct {
    item *item;
    int64_t begin; /* of the window in the text */
} target;

typedef struct {
    qn_model *model;
    const qn_score_options *o;
    int64_t n_vocab, window;
    item *items; /* of the part of the list at hand */
    size_t n_items;
    qn_wanted_row *rows;
    target *targets; /* of each row */
    size_t part;     /* texts at a time: fewer where memory is short */
    qn_list_memory memory;
} job;

/* Tokens [begin, end), of which those from `from` on are predicted in this window. */
typedef struct {
    int64_t begin, end, from;
} window;

/* The window behind w; the first is behind {0}. Returns 0 when w was the last. */
static int next_window(const job *j, int64_t n_ids, window *w)
{
    if (w->end == n_ids) return 0;
    int64_t begin = w->end ? w->begin + j->o->stride : 0;
    *w = (window){begin, begin < n_ids - j->window ? begin + j->window : n_ids, w->end};
    return 1;
}

static qn_status take(void *user, int64_t row, int64_t position, int64_t n, const float *logits)
{
    const job *j = user;
    const target *to = &j->targets[row];
    for (int64_t i = 0; i < n; i++, logits += j->n_vocab) {
        int64_t next = to->begin + position + i + 1; /* the token that this position predicts */
        qn_logprobs l;
        qn_status status = qn_logprobs_read(NULL, logits, j->n_vocab, &l);
        if (status == QN_OK)
            to->item->logprobs[next] = qn_logprobs_of(&l, to->item->row.ids[next]);
        else
            qn_prompt_row_fail(&to->item->row, status);
    }
    return QN_OK;
}

static void end_part(job *j)
{
    for (size_t i = 0; i < j->n_items; i++) {
        qn_prompt_row_end(&j->items[i].row);
        qn_free(j->items[i].logprobs);
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

static qn_status prepare_item(const job *j, const qn_prompt *prompt, item *t)
{
    qn_prompt_row_make(j->model, prompt, 0, &t->row);
    QN_TRY(t->row.status);
    if (t->row.n_ids < 2) return qn_fail(QN_E_ARG, "a text of one token has nothing to predict");
    if (t->row.n_ids > j->window && !j->o->stride)
        return qn_fail(QN_E_ARG,
                       "the text has %lld tokens, the window holds %lld: a stride would score it in "
                       "windows",
                       (long long)t->row.n_ids, (long long)j->window);
    t->logprobs = qn_alloc_array((size_t)t->row.n_ids, sizeof *t->logprobs);
    if (!t->logprobs) return QN_E_NOMEM;
    for (int64_t i = 0; i < t->row.n_ids; i++) t->logprobs[i] = NAN;
    return QN_OK;
}

static int64_t count_windows(const job *j, const item *t)
{
    int64_t n = 0;
    window w = {0};
    while (t->row.status == QN_OK && next_window(j, t->row.n_ids, &w)) n++;
    return n;
}

static qn_status evaluate_part(job *j)
{
    int64_t n_rows = 0;
    for (size_t i = 0; i < j->n_items; i++) {
        item *t = &j->items[i];
        window w = {0};
        while (t->row.status == QN_OK && next_window(j, t->row.n_ids, &w)) {
            int64_t first = w.from > w.begin ? w.from - w.begin - 1 : 0, n = w.end - w.begin - 1;
            if (n < 1) continue; /* its only token has none before it */
            j->targets[n_rows] = (target){t, w.begin};
            j->rows[n_rows++] = (qn_wanted_row){{t->row.ids + w.begin, n}, first, &t->row};
        }
    }
    const qn_logits_options o = {.adapter = j->o->adapter,
                                 .no_prefix_cache = 1,
                                 .tenant = j->o->tenant,
                                 .priority = j->o->priority,
                                 .cancel = j->o->cancel};
    return qn_wanted_rows_evaluate(j->model, j->rows, n_rows, &o, take, j);
}

static qn_status give(job *j, size_t first, qn_score_fn *fn, void *user)
{
    for (size_t i = 0; i < j->n_items; i++) {
        const item *t = &j->items[i];
        qn_score_result r = {.i_prompt = first + i,
                             .status = t->row.status,
                             .message = qn_prompt_row_message(&t->row),
                             .n_tokens = t->row.n_ids};
        for (int64_t k = 0; r.status == QN_OK && k < t->row.n_ids; k++) {
            if (isnan(t->logprobs[k])) continue;
            r.logprob += t->logprobs[k];
            r.n_scored++;
        }
        if (r.status == QN_OK) r.perplexity = exp(-r.logprob / (double)r.n_scored);
        if (r.status == QN_OK && j->o->tokens) {
            r.ids = t->row.ids;
            r.logprobs = t->logprobs;
        }
        QN_TRY(fn(user, &r));
    }
    return QN_OK;
}

/* Texts [first, ...) as long as their windows are not too many; *n_done is how many. 0: memory did not
 * suffice for so many. */
static qn_status run_part(job *j, const qn_prompt *prompts, size_t n_prompts, size_t first, qn_score_fn *fn,
                          void *user, size_t *n_done)
{
    const int64_t mark = qn_mem_thread_bytes();
    size_t most = n_prompts - first < j->part ? n_prompts - first : j->part;
    int64_t n_rows = 0;
    *n_done = 0;
    j->items = qn_calloc(most, sizeof *j->items);
    if (!j->items) return QN_E_NOMEM;
    for (; j->n_items < most && n_rows < QN_PROMPT_WINDOW; j->n_items++) {
        item *t = &j->items[j->n_items];
        qn_status status = prepare_item(j, &prompts[first + j->n_items], t);
        if (status != QN_OK) qn_prompt_row_fail(&t->row, status);
        n_rows += count_windows(j, t);
    }
    j->rows = qn_alloc_array((size_t)(n_rows ? n_rows : 1), sizeof *j->rows);
    j->targets = qn_alloc_array((size_t)(n_rows ? n_rows : 1), sizeof *j->targets);
    if (!j->rows || !j->targets) return QN_E_NOMEM;
    qn_status held = qn_list_memory_hold(&j->memory, mark);
    if (held != QN_OK) qn_prompt_row_fail(&j->items[0].row, held);
    if (held == QN_OK) QN_TRY(evaluate_part(j));
    if (qn_prompt_rows_lack_memory(&j->items->row, sizeof *j->items, j->n_items)) {
        j->part = j->n_items / 2;
        return QN_OK;
    }
    *n_done = j->n_items;
    return give(j, first, fn, user);
}

qn_status qn_score(qn_model *model, const qn_prompt *prompts, size_t n_prompts,
                   const qn_score_options *options, qn_score_fn *fn, void *user)
{
    const qn_score_options defaults = {0};
    qn_model_info info;
    job j = {.model = model,
             .o = options ? options : &defaults,
             .part = QN_PROMPT_WINDOW,
             .memory = {.model = model}};
    if (!model || !prompts || !fn) return qn_fail(QN_E_ARG, "qn_score: an argument is NULL");
    if (!n_prompts) return qn_fail(QN_E_ARG, "qn_score: no texts");
    QN_TRY(qn_model_get_info(model, &info));
    j.n_vocab = info.vocab_size;
    j.window = j.o->window ? j.o->window : info.context_size;
    if (j.window < 2 || j.window > info.context_size)
        return qn_fail(QN_E_ARG, "window: %lld is not in the range 2 to %lld, the context",
                       (long long)j.o->window, (long long)info.context_size);
    if (j.o->stride < 0 || j.o->stride > j.window)
        return qn_fail(QN_E_ARG, "stride: %lld is not in the range 0 to %lld, the window",
                       (long long)j.o->stride, (long long)j.window);
    qn_status status = QN_OK;
    for (size_t i = 0, n = 0; status == QN_OK && i < n_prompts; i += n) {
        status = run_part(&j, prompts, n_prompts, i, fn, user, &n);
        end_part(&j);
    }
    return status;
}

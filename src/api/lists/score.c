/* qn_score: how probable texts are. Each window of a text is a row that is evaluated without its last token,
 * which nothing follows. */
#include <math.h>
#include <quern/quern.h>
#include <string.h>

#include "api/handles.h"
#include "api/lists/list_parts.h"
#include "base/mem.h"
#include "base/status.h"
#include "engine/sample/logprobs.h"

typedef struct {
    qn_prompt_row row;
    double *logprobs; /* [row.n_ids] */
} item;

typedef struct {
    qn_model *model;
    const qn_prompt *prompts;
    const qn_score_options *o;
    qn_score_fn *fn;
    void *user; /* of fn */
    int64_t n_vocab, window;
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

static qn_status prepare(void *user, size_t i_prompt, void *made)
{
    const job *j = user;
    item *t = made;
    qn_prompt_row_make(j->model, &j->prompts[i_prompt], 0, &t->row);
    QN_TRY(t->row.status);
    if (t->row.n_ids < 2) return qn_fail(QN_E_ARG, "a text of one token has nothing to predict");
    if (t->row.n_ids > j->window && !j->o->stride)
        return qn_fail(QN_E_ARG,
                       "the text has %lld tokens, but the window holds %lld: give a stride to score it in "
                       "windows",
                       (long long)t->row.n_ids, (long long)j->window);
    t->logprobs = qn_alloc_array((size_t)t->row.n_ids, sizeof *t->logprobs);
    if (!t->logprobs) return QN_E_NOMEM;
    for (int64_t i = 0; i < t->row.n_ids; i++) t->logprobs[i] = NAN;
    return QN_OK;
}

/* A row for each window, without its last token. */
static int64_t add_rows(void *user, int pass, void *made, qn_wanted_row *rows)
{
    item *t = made;
    int64_t n_rows = 0;
    window w = {0};
    while (next_window(user, t->row.n_ids, &w)) {
        int64_t first = w.from > w.begin ? w.from - w.begin - 1 : 0, n = w.end - w.begin - 1;
        if (n < 1) continue; /* its only token has none before it */
        if (rows) rows[n_rows] = (qn_wanted_row){{t->row.ids + w.begin, n}, first, &t->row, w.begin, NULL};
        n_rows++;
    }
    return n_rows;
}

/* The row's tag is where its window begins. */
static qn_status take(void *user, const qn_wanted_row *row, int64_t position, int64_t n, const float *logits)
{
    const job *j = user;
    item *t = (item *)row->owner;
    for (int64_t i = 0; i < n; i++, logits += j->n_vocab) {
        int64_t next = row->tag + position + i + 1; /* the token that this position predicts */
        qn_logprobs l;
        qn_status status = qn_logprobs_read(NULL, logits, j->n_vocab, &l);
        if (status == QN_OK)
            t->logprobs[next] = qn_logprobs_of(&l, t->row.ids[next]);
        else
            qn_prompt_row_fail(&t->row, status);
    }
    return QN_OK;
}

static qn_status give(void *user, size_t i_prompt, void *made)
{
    const job *j = user;
    const item *t = made;
    qn_score_result r = {.i_prompt = i_prompt,
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
    return j->fn(j->user, &r);
}

static void end(void *made)
{
    qn_free(((item *)made)->logprobs);
}

qn_status qn_score(qn_model *model, const qn_prompt *prompts, size_t n_prompts,
                   const qn_score_options *options, qn_score_fn *fn, void *user)
{
    const qn_score_options defaults = {0};
    qn_model_info info;
    job j = {.model = model, .prompts = prompts, .o = options ? options : &defaults, .fn = fn, .user = user};
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
    const qn_logits_options logits = {.adapter = j.o->adapter,
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
    return qn_list_work_run(&work, n_prompts);
}

/* POST /v1/rerank and /v1/score. */
#include <stdlib.h>
#include <time.h>

#include "base/json/json_write.h"
#include "base/mem.h"
#include "server/core/completion.h"
#include "server/core/tasks/task.h"
#include "server/core/write.h"
#include "server/rerank/request.h"
#include "server/rerank/rerank.h"

typedef struct {
    double score, probability;
    size_t i_pair;
} relevance;

/* What a worker needs while it computes. */
typedef struct {
    qn_task *task;
    const char *model;
    qn_pair *pairs;
    relevance *found; /* [n] in the order of the pairs */
    size_t n;
    int64_t n_tokens; /* of all pairs */
} ranking;

static qn_status take(void *user, const qn_rerank_result *result)
{
    ranking *k = user;
    qn_task *t = k->task;
    const qn_server *s = t->ex->server;
    k->n_tokens += result->n_tokens;
    k->found[result->i_pair] = (relevance){result->score, result->probability, result->i_pair};
    if (result->status == QN_OK) return QN_OK;
    qn_fail_copy(result->status, result->message);
    qn_api_fail_status(&t->error, result->status);
    if (result->n_tokens > s->info.context_size)
        qn_api_request_fail_length("documents", result->n_tokens, s->info.context_size, &t->error);
    return result->status;
}

/* The most relevant first, the first of equal ones before. */
static int by_score(const void *a, const void *b)
{
    const relevance *x = a, *y = b;
    if (x->score != y->score) return x->score < y->score ? 1 : -1;
    return x->i_pair < y->i_pair ? -1 : 1;
}

static void write_usage(const ranking *k, qn_buf *out)
{
    qn_json_put_text(out, "model", k->model);
    qn_json_key(out, "usage");
    qn_json_open(out, '{');
    qn_json_put_int(out, "prompt_tokens", k->n_tokens);
    qn_json_put_int(out, "total_tokens", k->n_tokens);
    qn_json_close(out, '}');
    qn_write_warnings(&k->task->request, out);
}

static void write_document(const qn_pair *p, qn_buf *out)
{
    qn_json_key(out, "document");
    qn_json_open(out, '{');
    qn_json_key(out, "text");
    qn_json_text(out, p->document, p->document_bytes);
    qn_json_close(out, '}');
}

static void write_ranking(const ranking *k, size_t n, qn_buf *out)
{
    const qn_api_request *r = &k->task->request;
    qn_json_open(out, '{');
    qn_json_put_text(out, "id", k->task->ex->id);
    qn_json_put_text(out, "object", "list");
    qn_json_key(out, "results");
    qn_json_open(out, '[');
    for (size_t i = 0; i < n; i++) {
        const relevance *f = &k->found[i];
        qn_json_open(out, '{');
        qn_json_put_int(out, "index", (int64_t)f->i_pair);
        qn_json_put_exact(out, "relevance_score", r->raw_scores ? f->score : f->probability);
        if (r->returns_texts) write_document(&k->pairs[f->i_pair], out);
        qn_json_close(out, '}');
    }
    qn_json_close(out, ']');
    write_usage(k, out);
    qn_json_close(out, '}');
}

/* The form of Text Embeddings Inference: a bare array, which has no place for warnings. */
static void write_texts(const ranking *k, size_t n, qn_buf *out)
{
    const qn_api_request *r = &k->task->request;
    qn_json_open(out, '[');
    for (size_t i = 0; i < n; i++) {
        const relevance *f = &k->found[i];
        qn_json_open(out, '{');
        qn_json_put_int(out, "index", (int64_t)f->i_pair);
        qn_json_put_exact(out, "score", r->raw_scores ? f->score : f->probability);
        if (r->returns_texts) {
            qn_json_key(out, "text");
            qn_json_text(out, k->pairs[f->i_pair].document, k->pairs[f->i_pair].document_bytes);
        }
        qn_json_close(out, '}');
    }
    qn_json_close(out, ']');
}

static void write_scores(const ranking *k, qn_buf *out)
{
    qn_json_open(out, '{');
    qn_json_put_text(out, "id", k->task->ex->id);
    qn_json_put_text(out, "object", "list");
    qn_json_put_int(out, "created", (int64_t)time(NULL));
    qn_json_key(out, "data");
    qn_json_open(out, '[');
    for (size_t i = 0; i < k->n; i++) {
        qn_json_open(out, '{');
        qn_json_put_int(out, "index", (int64_t)i);
        qn_json_put_text(out, "object", "score");
        qn_json_put_exact(out, "score", k->found[i].probability);
        qn_json_close(out, '}');
    }
    qn_json_close(out, ']');
    write_usage(k, out);
    qn_json_close(out, '}');
}

static void write_answer(ranking *k)
{
    const qn_api_request *r = &k->task->request;
    size_t n = r->top_n && (size_t)r->top_n < k->n ? (size_t)r->top_n : k->n;
    if (r->route == QN_SCORE_ROUTE) {
        write_scores(k, &k->task->answer);
        return;
    }
    qsort(k->found, k->n, sizeof *k->found, by_score);
    if (r->texts)
        write_texts(k, n, &k->task->answer);
    else
        write_ranking(k, n, &k->task->answer);
}

static int compute(ranking *k, const char *adapter)
{
    qn_task *t = k->task;
    const qn_rerank_options options = {.instruction = t->request.instruction,
                                       .adapter = adapter,
                                       .cancel = t->cancel,
                                       .priority = t->ex->is_idle ? QN_PRIORITY_IDLE : 0};
    int refused = qn_rerank_make_pairs(&t->request, &k->pairs, &k->n, &t->error);
    if (refused) return refused;
    k->found = qn_calloc(k->n, sizeof *k->found);
    if (!k->found) return qn_api_fail_status(&t->error, QN_E_NOMEM);
    const qn_status status = qn_rerank(t->ex->server->model, k->pairs, k->n, &options, take, k);
    if (t->error.status) return t->error.status;
    return status == QN_OK ? 0 : qn_api_fail_status(&t->error, status);
}

static void run(qn_task *t)
{
    const qn_server *s = t->ex->server;
    const qn_api_request_limits limits = qn_server_request_limits(s);
    const unsigned *route = t->dialect;
    const char *adapter = NULL;
    ranking k = {.task = t};
    int refused =
        qn_rerank_read(t->ex->body.data, t->ex->body.length, *route, &limits, &t->request, &t->error);
    if (!refused) refused = qn_completion_choose_model(s, &t->request, &k.model, &adapter, &t->error);
    if (!refused) refused = qn_api_request_hold_texts(&t->request, t->request.body, &t->error);
    if (!refused) refused = compute(&k, adapter);
    if (!refused) write_answer(&k);
    t->n_prompt_tokens = k.n_tokens;
    qn_free(k.pairs);
    qn_free(k.found);
}

void qn_route_rerank(qn_exchange *ex)
{
    static const unsigned route = QN_RERANK_ROUTE;
    qn_task_begin(ex, run, &route, 1);
}

void qn_route_score(qn_exchange *ex)
{
    static const unsigned route = QN_SCORE_ROUTE;
    qn_task_begin(ex, run, &route, 1);
}

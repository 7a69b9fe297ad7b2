/* POST /v1/embeddings: a worker reads the body and computes the vectors, several texts at a time. */
#include <quern/classify.h>
#include <string.h>

#include "base/json/json_write.h"
#include "base/mem.h"
#include "server/core/completion.h"
#include "server/openai/openai.h"
#include "server/openai/request.h"

enum { INPUTS_MAX = 2048 };

typedef struct {
    qn_job job;
    qn_exchange *ex;
    qn_api_request request;
    qn_api_error error;
    qn_cancel *cancel; /* set when the client has gone */
    qn_api_request_prompt *prompts;
    size_t n_prompts;
    int64_t n_tokens;
    qn_buf answer;
} embedding;

static void put_base64(qn_buf *b, const void *bytes, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *p = bytes;
    qn_buf_putc(b, '"');
    for (size_t i = 0; i < n; i += 3) {
        unsigned v =
            (unsigned)p[i] << 16 | (i + 1 < n ? (unsigned)p[i + 1] << 8 : 0) | (i + 2 < n ? p[i + 2] : 0);
        char four[4] = {digits[v >> 18], digits[v >> 12 & 63], i + 1 < n ? digits[v >> 6 & 63] : '=',
                        i + 2 < n ? digits[v & 63] : '='};
        qn_buf_append(b, four, 4);
    }
    qn_buf_putc(b, '"');
}

static qn_status take_vector(void *user, const qn_embed_result *result)
{
    embedding *e = user;
    const qn_server *s = e->ex->server;
    qn_buf *b = &e->answer;
    if (result->status != QN_OK) {
        qn_fail_copy(result->status, result->message);
        qn_api_fail_status(&e->error, result->status);
        if (result->n_tokens > s->info.context_size)
            qn_api_request_fail_length("input", result->n_tokens, s->info.context_size, &e->error);
        return result->status;
    }
    if (e->request.dimensions && e->request.dimensions != result->n_values) {
        qn_api_fail(&e->error, 400, "unsupported_parameter", "dimensions",
                    "dimensions supports only the model's own size: %lld", (long long)result->n_values);
        return QN_E_ARG;
    }
    e->n_tokens += result->n_tokens;
    qn_json_open(b, '{');
    qn_json_put_text(b, "object", "embedding");
    qn_json_put_int(b, "index", (int64_t)result->i_prompt);
    qn_json_key(b, "embedding");
    if (e->request.base64) {
        put_base64(b, result->vector, (size_t)result->n_values * sizeof *result->vector);
    } else {
        for (int64_t i = 0; i < result->n_values; i++)
            qn_buf_printf(b, "%c%.9g", i ? ',' : '[', (double)result->vector[i]);
        qn_buf_putc(b, ']');
    }
    qn_json_close(b, '}');
    return b->status;
}

static int read_prompts(embedding *e)
{
    const json_t *input = e->request.input;
    e->n_prompts = qn_api_request_count_prompts(input);
    if (e->n_prompts > INPUTS_MAX)
        return qn_api_fail(&e->error, 400, "invalid_value", "input",
                           "input has %zu texts, at most %d are allowed", e->n_prompts, (int)INPUTS_MAX);
    e->prompts = qn_calloc(e->n_prompts, sizeof *e->prompts);
    if (!e->prompts) return qn_api_fail_status(&e->error, QN_E_NOMEM);
    for (size_t i = 0; i < e->n_prompts; i++) {
        int refused = qn_api_request_get_prompt(input, i, "input", e->ex->server->info.vocab_size,
                                                &e->prompts[i], &e->error);
        if (refused) return refused;
    }
    return 0;
}

static void compute(embedding *e)
{
    const qn_server *s = e->ex->server;
    qn_embed_options options = {.pooling = s->options->pooling, .normalise = 1, .cancel = e->cancel};
    const qn_api_request_limits limits = qn_server_request_limits(s);
    const char *name = NULL;
    qn_prompt *prompts = NULL;
    qn_status status = QN_E_NOMEM;
    if (qn_api_request_read(e->ex->body.data, e->ex->body.length, QN_REQUEST_EMBEDDINGS, &limits, &e->request,
                            &e->error) ||
        qn_completion_choose_model(s, &e->request, &name, &options.adapter, &e->error) || read_prompts(e))
        return;
    prompts = qn_calloc(e->n_prompts, sizeof *prompts);
    for (size_t i = 0; prompts && i < e->n_prompts; i++) prompts[i] = e->prompts[i].prompt;
    qn_buf_puts(&e->answer, "{\"object\":\"list\",\"data\":[");
    if (prompts) status = qn_embed(s->model, prompts, e->n_prompts, &options, take_vector, e);
    qn_free(prompts);
    if (e->error.status) return;
    if (status != QN_OK) {
        qn_api_fail_status(&e->error, status);
        return;
    }
    qn_json_close(&e->answer, ']');
    qn_json_put_text(&e->answer, "model", name);
    qn_json_key(&e->answer, "usage");
    qn_json_open(&e->answer, '{');
    qn_json_put_int(&e->answer, "prompt_tokens", e->n_tokens);
    qn_json_put_int(&e->answer, "total_tokens", e->n_tokens);
    qn_json_close(&e->answer, '}');
    if (e->request.warnings.length) qn_buf_printf(&e->answer, ",\"warnings\":[%s]", e->request.warnings.data);
    qn_json_close(&e->answer, '}');
    if (e->answer.status != QN_OK) qn_api_fail_status(&e->error, e->answer.status);
}

static void run(qn_job *job)
{
    compute((embedding *)(void *)job);
}

static void done(qn_job *job)
{
    embedding *e = (embedding *)(void *)job;
    if (e->error.status) {
        qn_exchange_fail(e->ex, &e->error);
    } else {
        e->ex->server->metrics.n_prompt_tokens += e->n_tokens;
        qn_exchange_reply(e->ex, 200, "application/json", NULL, e->answer.data, e->answer.length);
    }
    qn_exchange_release(e->ex);
}

static void client_gone(qn_exchange *ex)
{
    embedding *e = ex->state;
    qn_cancel_set(e->cancel);
}

static void free_embedding(qn_exchange *ex)
{
    embedding *e = ex->state;
    for (size_t i = 0; e->prompts && i < e->n_prompts; i++) qn_buf_free(&e->prompts[i].ids);
    qn_free(e->prompts);
    qn_cancel_free(e->cancel);
    qn_api_request_free(&e->request);
    qn_buf_free(&e->answer);
    qn_free(e);
}

void qn_route_embeddings(qn_exchange *ex)
{
    qn_api_error error;
    embedding *e = qn_calloc(1, sizeof *e);
    if (!e || qn_cancel_new(&e->cancel) != QN_OK) {
        qn_free(e);
        qn_api_fail_status(&error, QN_E_NOMEM);
        qn_exchange_fail(ex, &error);
        return;
    }
    e->ex = ex;
    e->job = (qn_job){run, done, NULL};
    ex->state = e;
    ex->gone = client_gone;
    ex->free_state = free_embedding;
    qn_exchange_hold(ex);
    qn_workers_push(ex->server->slow_workers, &e->job);
}

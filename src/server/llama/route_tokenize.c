/* POST /tokenize: llama.cpp's `content`, and vLLM's `prompt`. The piece of a token that is a part of a character is
 * U+FFFD. */
#include <quern/tokenizer.h>
#include <string.h>

#include "base/json/json_write.h"
#include "server/core/completion.h"
#include "server/core/tasks/task.h"
#include "server/core/write.h"
#include "server/llama/llama.h"
#include "server/llama/request.h"

static void put_token(const qn_model *model, int32_t id, qn_buf *out)
{
    char *text;
    size_t n;
    qn_write_token_text(model, id, &text, &n);
    qn_json_open(out, '{');
    qn_json_put_int(out, "id", id);
    qn_json_key(out, "piece");
    qn_json_text(out, text ? text : "", n);
    qn_json_close(out, '}');
    qn_buffer_free(text);
}

/* {"tokens": [...]}, with pieces. */
static void put_own(const qn_task *t, const int32_t *ids, int64_t n, qn_buf *out)
{
    const qn_model *model = t->ex->server->model;
    qn_json_key(out, "tokens");
    qn_json_open(out, '[');
    for (int64_t i = 0; i < n; i++) {
        if (t->request.wants_pieces)
            put_token(model, ids[i], out);
        else
            qn_json_int(out, ids[i]);
    }
    qn_json_close(out, ']');
}

/* {"count":, "max_model_len":, "tokens":, "token_strs":} */
static void put_vllm(const qn_task *t, const int32_t *ids, int64_t n, qn_buf *out)
{
    const qn_server *s = t->ex->server;
    qn_json_put_int(out, "count", n);
    qn_json_put_int(out, "max_model_len", s->info.context_size);
    qn_json_key(out, "tokens");
    qn_json_open(out, '[');
    for (int64_t i = 0; i < n; i++) qn_json_int(out, ids[i]);
    qn_json_close(out, ']');
    qn_json_key(out, "token_strs");
    if (!t->request.wants_pieces) {
        qn_buf_puts(out, "null");
        return;
    }
    qn_json_open(out, '[');
    for (int64_t i = 0; i < n; i++) {
        char *text;
        size_t n_bytes;
        qn_write_token_text(s->model, ids[i], &text, &n_bytes);
        qn_json_text(out, text ? text : "", n_bytes);
        qn_buffer_free(text);
    }
    qn_json_close(out, ']');
}

/* *ids: owned by the caller. */
static int encode(qn_task *t, const json_t *content, const char *param, int32_t **ids, int64_t *n)
{
    qn_api_request *r = &t->request;
    const qn_encode_options options = {.special = r->special, .bos = r->adds_special};
    const qn_model *model = t->ex->server->model;
    if (!json_is_string(content))
        return qn_api_fail(&t->error, 400, "invalid_type", param, "%s must be a string", param);
    const int refused = qn_api_request_hold_texts(r, content, &t->error);
    if (refused) return refused;
    const qn_status status =
        qn_model_encode(model, json_string_value(content), json_string_length(content), &options, ids, n);
    return status == QN_OK ? 0 : qn_api_fail_status(&t->error, status);
}

static void run(qn_task *t)
{
    const qn_server *s = t->ex->server;
    const qn_api_request *r = &t->request;
    const qn_api_request_limits limits = qn_server_request_limits(s);
    const char *name, *adapter;
    int32_t *ids = NULL;
    int64_t n = 0;
    if (qn_llama_read(t->ex->body.data, t->ex->body.length, QN_LLAMA_TOKENIZE, &limits, &t->request,
                      &t->error) ||
        qn_completion_choose_model(s, &t->request, &name, &adapter, &t->error))
        return;
    /* Without a text there are no tokens, as with llama.cpp. */
    if ((r->prompt && encode(t, r->prompt, "prompt", &ids, &n)) ||
        (r->content && encode(t, r->content, "content", &ids, &n)))
        return;
    qn_json_open(&t->answer, '{');
    if (r->prompt)
        put_vllm(t, ids, n, &t->answer);
    else
        put_own(t, ids, n, &t->answer);
    qn_write_warnings(r, &t->answer);
    qn_json_close(&t->answer, '}');
    qn_buffer_free(ids);
}

void qn_route_llama_tokenize(qn_exchange *ex)
{
    qn_task_begin(ex, run, NULL, 0);
}

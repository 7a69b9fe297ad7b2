/* POST /detokenize: llama.cpp's answer has `content`, vLLM's `prompt`; the request is the same, so both are there. */
#include <quern/tokenizer.h>

#include "base/json/json_write.h"
#include "server/core/completion.h"
#include "server/core/tasks/task.h"
#include "server/core/write.h"
#include "server/llama/llama.h"
#include "server/llama/request.h"

static void decode(qn_task *t, qn_api_request_prompt *ids)
{
    const qn_server *s = t->ex->server;
    char *text = NULL;
    size_t n = 0;
    if (json_array_size(t->request.tokens)) {
        if (!json_is_integer(json_array_get(t->request.tokens, 0))) {
            qn_api_fail(&t->error, 400, "invalid_value", "tokens", "tokens must be an array of token ids");
            return;
        }
        if (qn_api_request_get_prompt(t->request.tokens, 0, "tokens", s->info.vocab_size, ids, &t->error))
            return;
        const qn_status status = qn_model_decode(s->model, ids->row.ids, ids->row.n_ids, NULL, &text, &n);
        if (status != QN_OK) {
            qn_api_fail_status(&t->error, status);
            return;
        }
    }
    qn_json_open(&t->answer, '{');
    qn_json_key(&t->answer, "content");
    qn_json_text(&t->answer, text ? text : "", n);
    qn_json_key(&t->answer, "prompt");
    qn_json_text(&t->answer, text ? text : "", n);
    qn_write_warnings(&t->request, &t->answer);
    qn_json_close(&t->answer, '}');
    qn_buffer_free(text);
}

static void run(qn_task *t)
{
    const qn_server *s = t->ex->server;
    const qn_api_request_limits limits = qn_server_request_limits(s);
    const char *name, *adapter;
    qn_api_request_prompt ids = {0};
    if (qn_llama_read(t->ex->body.data, t->ex->body.length, QN_LLAMA_DETOKENIZE, &limits, &t->request,
                      &t->error) ||
        qn_completion_choose_model(s, &t->request, &name, &adapter, &t->error))
        return;
    decode(t, &ids);
    qn_buf_free(&ids.ids);
}

void qn_route_llama_detokenize(qn_exchange *ex)
{
    qn_task_begin(ex, run, NULL, 0);
}

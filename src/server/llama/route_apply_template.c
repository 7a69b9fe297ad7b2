/* POST /apply-template: the text that a chat becomes. The body is that of a chat of OpenAI's API. */
#include <quern/tokenizer.h>
#include <string.h>

#include "base/json/json_write.h"
#include "server/core/completion.h"
#include "server/core/conversation.h"
#include "server/core/tasks/task.h"
#include "server/core/write.h"
#include "server/llama/llama.h"
#include "server/openai/request.h"

/* The text behind what the tokenizer itself puts before a text: /completion would put it there once more. */
static const char *without_bos(const qn_model *model, const char *text)
{
    int32_t *ids = NULL;
    int64_t n = 0;
    char *bos = NULL;
    size_t n_bos = 0;
    const qn_encode_options options = {.bos = 1};
    if (qn_model_encode(model, "", 0, &options, &ids, &n) == QN_OK && n == 1 &&
        qn_model_decode(model, ids, 1, NULL, &bos, &n_bos) == QN_OK && n_bos &&
        strncmp(text, bos, n_bos) == 0)
        text += n_bos;
    qn_buffer_free(ids);
    qn_buffer_free(bos);
    return text;
}

static void run(qn_task *t)
{
    const qn_server *s = t->ex->server;
    const qn_api_request_limits limits = qn_server_request_limits(s);
    const char *name, *adapter;
    qn_chat_prompt chat = {0};
    char *text = NULL;
    int refused = qn_api_request_read(t->ex->body.data, t->ex->body.length, QN_REQUEST_CHAT, &limits,
                                      &t->request, &t->error);
    if (!refused) refused = qn_completion_choose_model(s, &t->request, &name, &adapter, &t->error);
    if (!refused && !s->info.has_chat_template)
        refused = qn_api_fail(&t->error, 400, "unsupported", "messages", "the model has no chat template");
    t->request.is_only_shown = 1;
    if (!refused) refused = qn_api_request_read_messages(&t->request, &t->error);
    if (!refused) refused = qn_chat_prompt_write(s, &t->request, &chat, &t->error);
    if (!refused) {
        const qn_status status = qn_chat_render(s->model, &chat.prompt, &text, NULL, NULL);
        if (status != QN_OK) refused = qn_api_fail_status(&t->error, status);
    }
    if (!refused) {
        qn_json_open(&t->answer, '{');
        qn_json_put_text(&t->answer, "prompt", without_bos(s->model, text));
        qn_write_warnings(&t->request, &t->answer);
        qn_json_close(&t->answer, '}');
    }
    qn_buffer_free(text);
    qn_chat_prompt_free(&chat);
}

void qn_route_llama_apply_template(qn_exchange *ex)
{
    qn_task_begin(ex, run, NULL, 0);
}

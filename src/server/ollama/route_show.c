/* POST /api/show: what the model is, and what it can do. */
#include <string.h>

#include "base/json/json_write.h"
#include "server/core/completion.h"
#include "server/core/infill.h"
#include "server/core/tasks/task.h"
#include "server/core/write.h"
#include "server/ollama/model.h"
#include "server/ollama/ollama.h"
#include "server/ollama/request.h"

static int has_tools(const qn_server *s)
{
    return s->info.has_chat_template && s->info.call_format && *s->info.call_format;
}

static void put_text(qn_buf *out, const char *text)
{
    qn_json_text(out, text, strlen(text));
}

static void put_capabilities(const qn_server *s, qn_buf *out)
{
    qn_json_key(out, "capabilities");
    qn_json_open(out, '[');
    put_text(out, "completion");
    if (has_tools(s)) put_text(out, "tools");
    if (s->info.takes_images) put_text(out, "vision");
    if (s->info.reasoning_mark && *s->info.reasoning_mark) put_text(out, "thinking");
    if (qn_infill_is_known(s->model)) put_text(out, "insert");
    qn_json_close(out, ']');
}

/* The defaults of sampling, a line each. */
static void put_parameters(const qn_server *s, qn_buf *out)
{
    qn_buf text = {0};
    if (s->info.default_temperature >= 0)
        qn_buf_printf(&text, "temperature %g\n", (double)s->info.default_temperature);
    if (s->info.default_top_p >= 0) qn_buf_printf(&text, "top_p %g\n", (double)s->info.default_top_p);
    if (s->info.default_top_k >= 0) qn_buf_printf(&text, "top_k %d\n", (int)s->info.default_top_k);
    qn_json_key(out, "parameters");
    qn_json_text(out, text.data ? text.data : "", text.length);
    if (text.status != QN_OK) out->status = text.status;
    qn_buf_free(&text);
}

/* A key of the model's family: "llama.context_length". */
static void put_own(const qn_server *s, qn_buf *out, const char *key, int64_t value)
{
    qn_buf name = {0};
    qn_buf_printf(&name, "%s.%s", s->info.architecture, key);
    if (name.status == QN_OK)
        qn_json_put_int(out, name.data, value);
    else
        out->status = name.status;
    qn_buf_free(&name);
}

static void put_model_info(const qn_server *s, qn_buf *out)
{
    const qn_model_info *info = &s->info;
    qn_json_key(out, "model_info");
    qn_json_open(out, '{');
    qn_json_put_text(out, "general.architecture", info->architecture);
    qn_json_put_text(out, "general.basename", s->options->model_name);
    qn_json_put_int(out, "general.parameter_count", info->num_parameters);
    put_own(s, out, "context_length", info->context_size);
    put_own(s, out, "embedding_length", info->hidden_size);
    put_own(s, out, "block_count", info->num_layers);
    put_own(s, out, "vocab_size", info->vocab_size);
    qn_json_close(out, '}');
}

static void run(qn_task *t)
{
    const qn_server *s = t->ex->server;
    const qn_api_request_limits limits = qn_server_request_limits(s);
    const char *name, *adapter;
    qn_buf *out = &t->answer;
    if (qn_ollama_read(t->ex->body.data, t->ex->body.length, QN_OLLAMA_SHOW, &limits, &t->request,
                       &t->error) ||
        qn_completion_choose_model(s, &t->request, &name, &adapter, &t->error))
        return;
    qn_json_open(out, '{');
    qn_json_put_text(out, "license", "");
    qn_json_put_text(out, "modelfile", "");
    put_parameters(s, out);
    /* Programs look for names of variables in it. What is used is the model's own template, in another language. */
    qn_json_put_text(out, "template",
                     !s->info.has_chat_template ? "{{ .Prompt }}"
                     : has_tools(s)             ? "{{ .System }}{{ .Tools }}{{ .Prompt }}"
                                                : "{{ .System }}{{ .Prompt }}");
    qn_ollama_write_details(s, out);
    put_model_info(s, out);
    put_capabilities(s, out);
    qn_write_time(out, "modified_at", s->created_s, 0);
    qn_write_warnings(&t->request, out);
    qn_json_close(out, '}');
}

void qn_route_ollama_show(qn_exchange *ex)
{
    qn_task_begin(ex, run, NULL, 0);
}

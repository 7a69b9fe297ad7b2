#include "server/core/conversation.h"

#include <stdio.h>
#include <string.h>

#include "base/json/json.h"
#include "base/mem.h"

/* ---- rendering ----------------------------------------------------------------------------------------- */

typedef struct {
    const qn_model *model;
    json_t *tools, *variables; /* borrowed; NULL: none */
} rendering;

static qn_status render(void *user, const json_t *messages, int continue_final, qn_buf *text)
{
    const rendering *r = user;
    char *made = NULL;
    const qn_conversation chat = {(json_t *)messages, r->tools, r->variables}; /* nothing is changed */
    const qn_prompt prompt = {.conversation = &chat, .continue_final = continue_final};
    qn_status status = qn_chat_render(r->model, &prompt, &made, NULL, NULL);
    if (status == QN_OK) {
        qn_buf_puts(text, made);
        status = text->status;
    }
    qn_buffer_free(made);
    return status;
}

qn_status qn_conversation_find_traits(const qn_model *model, const qn_model_info *info, qn_chat_traits *out)
{
    /* mlx_lm renders in Python, which knows no bytes but those of texts. */
    const int is_native = info->backend && strcmp(info->backend, "native") == 0;
    const qn_answer_format format =
        is_native ? qn_answer_format_find(info->call_format, NULL) : (qn_answer_format){0};
    rendering plain = {.model = model}, with_tools = {.model = model};
    const qn_chat_renderer renderers[2] = {{render, &plain}, {render, &with_tools}};
    QN_TRY(qn_json_parse("tools", qn_chat_probe_tools, strlen(qn_chat_probe_tools), &with_tools.tools));
    const qn_status status = qn_chat_traits_find(&renderers[0], &renderers[1], format, out);
    json_decref(with_tools.tools);
    return status;
}

/* ---- what a prompt is made of -------------------------------------------------------------------------- */

/* *out: an object, or NULL where the request has none. */
static qn_status make_variables(const qn_api_request *r, json_t **out)
{
    /* Two names are common: that of Qwen and GLM, and that of DeepSeek and Granite. */
    static const char *const switches[] = {"enable_thinking", "thinking"};
    if (!r->reasoning_effort && !r->template_kwargs && r->thinking < 0) return QN_OK;
    json_t *variables = *out = json_object();
    if (!variables || (r->template_kwargs && json_object_update(variables, (json_t *)r->template_kwargs)))
        return qn_fail_nomem(sizeof(json_t *));
    for (size_t i = 0; r->thinking >= 0 && i < sizeof switches / sizeof *switches; i++)
        if (!json_object_get(variables, switches[i]) &&
            json_object_set_new(variables, switches[i], json_boolean(r->thinking)))
            return qn_fail_nomem(0);
    if (!r->reasoning_effort || json_object_get(variables, "reasoning_effort")) return QN_OK;
    return json_object_set_new(variables, "reasoning_effort", json_string(r->reasoning_effort)) == 0
               ? QN_OK
               : qn_fail_nomem(strlen(r->reasoning_effort));
}

/* Does the answer go on from the last message? Said by a field; where none says so, a conversation that ends
 * with an answer is one that the client has begun. */
static int find_end(const qn_api_request *r, int *continue_final, qn_api_error *error)
{
    const size_t last = json_array_size(r->chat) - 1;
    const json_t *message = json_array_get(r->chat, last);
    const char *role = json_string_value(json_object_get(message, "role"));
    const int is_answer = role && strcmp(role, "assistant") == 0;
    char param[64];
    *continue_final = r->continue_final >= 0         ? r->continue_final
                      : r->add_generation_prompt > 0 ? 0
                                                     : is_answer;
    if (!*continue_final && r->add_generation_prompt == 0 && !r->is_only_shown)
        return qn_api_fail(error, 400, "unsupported_parameter", "add_generation_prompt",
                           "add_generation_prompt must be true unless the last message is continued");
    if (!*continue_final || !json_array_size(json_object_get(message, "tool_calls"))) return 0;
    snprintf(param, sizeof param, "messages[%zu].tool_calls", last);
    return qn_api_fail(error, 400, "invalid_value", param,
                       "%s: a message with tool calls cannot be continued; add their results, or set "
                       "continue_final_message to false",
                       param);
}

/* Takes the messages that fit. */
static int fit(const qn_server *s, qn_api_request *r, int continue_final, qn_chat_prompt *out,
               qn_api_error *error)
{
    rendering with = {s->model, out->chat.tools, out->chat.variables};
    const qn_chat_renderer renderer = {render, &with};
    qn_chat_fitted fitted = {0};
    int refused = 0;
    qn_status status = qn_chat_fit(r->chat, &s->traits, continue_final, &renderer, &fitted);
    if (status == QN_OK) {
        out->chat.messages = json_incref(fitted.messages);
        for (size_t i = 0; i < fitted.n_notes; i++)
            qn_api_request_warn(r, fitted.notes[i].param, fitted.notes[i].message);
        status = r->warnings.status;
    }
    if (status != QN_OK) {
        refused = qn_api_fail_status(error, status);
        snprintf(error->param, sizeof error->param, "%s", fitted.param);
    }
    qn_chat_fitted_free(&fitted);
    return refused;
}

/* The text of the chat ends behind its last message. */
static int leave_open(qn_chat_prompt *out, qn_api_error *error)
{
    if (!out->chat.variables) out->chat.variables = json_object();
    return json_object_set_new(out->chat.variables, "add_generation_prompt", json_false()) == 0
               ? 0
               : qn_api_fail_status(error, qn_fail_nomem(0));
}

int qn_chat_prompt_write(const qn_server *s, qn_api_request *r, qn_chat_prompt *out, qn_api_error *error)
{
    int continue_final = 0, refused = find_end(r, &continue_final, error);
    if (refused) return refused;
    out->chat.tools = json_incref((json_t *)r->tools);
    if (make_variables(r, &out->chat.variables) != QN_OK) return qn_api_fail_status(error, QN_E_NOMEM);
    if (s->info.has_chat_template &&
        qn_chat_fit_is_needed(r->chat, &s->traits, r->tools != NULL, continue_final))
        refused = fit(s, r, continue_final, out, error);
    else if (!(out->chat.messages = json_array()) || json_array_extend(out->chat.messages, r->chat))
        refused = qn_api_fail_status(error, qn_fail_nomem(0));
    out->prompt = (qn_prompt){.conversation = &out->chat,
                              .continue_final = continue_final,
                              .images = r->pictures,
                              .n_images = r->n_pictures};
    if (!refused && r->is_only_shown && r->add_generation_prompt == 0 && !continue_final)
        refused = leave_open(out, error);
    return refused;
}

void qn_chat_prompt_free(qn_chat_prompt *p)
{
    json_decref(p->chat.messages);
    json_decref(p->chat.tools);
    json_decref(p->chat.variables);
    p->chat = (qn_conversation){0};
}

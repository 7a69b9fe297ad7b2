#include "server/core/conversation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json/json_write.h"
#include "base/mem.h"

/* ---- rendering ----------------------------------------------------------------------------------------- */

typedef struct {
    const qn_model *model;
    const char *tools_json, *variables_json;
} rendering;

static qn_status dump(const json_t *value, qn_buf *out)
{
    char *text = json_dumps(value, JSON_COMPACT);
    if (!text) return qn_fail_nomem(0);
    qn_buf_puts(out, text);
    free(text); /* foreign: jansson's */
    return out->status;
}

static qn_status render(void *user, const json_t *messages, int continue_final, qn_buf *text)
{
    const rendering *r = user;
    qn_buf json = {0};
    char *made = NULL;
    qn_status status = dump(messages, &json);
    if (status == QN_OK) {
        const qn_prompt prompt = {.messages_json = json.data,
                                  .tools_json = r->tools_json,
                                  .variables_json = r->variables_json,
                                  .continue_final = continue_final};
        status = qn_chat_render(r->model, &prompt, &made, NULL, NULL);
    }
    if (status == QN_OK) {
        qn_buf_puts(text, made);
        status = text->status;
    }
    qn_buffer_free(made);
    qn_buf_free(&json);
    return status;
}

qn_status qn_conversation_find_traits(const qn_model *model, qn_chat_traits *out)
{
    rendering plain = {.model = model}, with_tools = {.model = model, .tools_json = qn_chat_probe_tools};
    const qn_chat_renderer renderers[2] = {{render, &plain}, {render, &with_tools}};
    return qn_chat_traits_find(&renderers[0], &renderers[1], out);
}

/* ---- what a prompt is made of -------------------------------------------------------------------------- */

static int write_variables(const qn_api_request *r, qn_buf *out)
{
    const char *key;
    json_t *value;
    if (!r->reasoning_effort && !r->template_kwargs) return 0;
    qn_json_open(out, '{');
    if (r->reasoning_effort && !json_object_get(r->template_kwargs, "reasoning_effort"))
        qn_json_put_text(out, "reasoning_effort", r->reasoning_effort);
    json_object_foreach((json_t *)r->template_kwargs, key, value)
    {
        char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
        if (!text) return -1;
        qn_json_key(out, key);
        qn_buf_puts(out, text);
        free(text); /* foreign: jansson's */
    }
    qn_json_close(out, '}');
    return out->status == QN_OK ? 0 : -1;
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
    if (!*continue_final && r->add_generation_prompt == 0)
        return qn_api_fail(error, 400, "unsupported_parameter", "add_generation_prompt",
                           "add_generation_prompt must be true unless the last message is continued");
    if (!*continue_final || !json_array_size(json_object_get(message, "tool_calls"))) return 0;
    snprintf(param, sizeof param, "messages[%zu].tool_calls", last);
    return qn_api_fail(error, 400, "invalid_value", param,
                       "%s: a message with tool calls cannot be continued; add their results, or set "
                       "continue_final_message to false",
                       param);
}

/* Writes the messages that fit. */
static int fit(const qn_server *s, qn_api_request *r, int continue_final, qn_chat_prompt *out,
               qn_api_error *error)
{
    rendering with = {s->model, out->tools, out->variables.data};
    const qn_chat_renderer renderer = {render, &with};
    qn_chat_fitted fitted = {0};
    int refused = 0;
    qn_status status = qn_chat_fit(r->chat, &s->traits, continue_final, &renderer, &fitted);
    if (status == QN_OK) {
        status = dump(fitted.messages, &out->messages);
        for (size_t i = 0; i < fitted.n_notes; i++)
            qn_api_request_warn(r, fitted.notes[i].param, fitted.notes[i].message);
        if (r->warnings.status != QN_OK) status = r->warnings.status;
    }
    if (status != QN_OK) {
        refused = qn_api_fail_status(error, status);
        snprintf(error->param, sizeof error->param, "%s", fitted.param);
    }
    qn_chat_fitted_free(&fitted);
    return refused;
}

int qn_chat_prompt_write(const qn_server *s, qn_api_request *r, qn_chat_prompt *out, qn_api_error *error)
{
    int continue_final = 0, refused = find_end(r, &continue_final, error);
    if (refused) return refused;
    if (r->tools && !(out->tools = json_dumps(r->tools, JSON_COMPACT)))
        return qn_api_fail_status(error, qn_fail_nomem(0));
    if (write_variables(r, &out->variables)) return qn_api_fail_status(error, QN_E_NOMEM);
    if (s->info.has_chat_template &&
        qn_chat_fit_is_needed(r->chat, &s->traits, r->tools != NULL, continue_final))
        refused = fit(s, r, continue_final, out, error);
    else if (dump(r->chat, &out->messages) != QN_OK)
        refused = qn_api_fail_status(error, QN_E_NOMEM);
    out->prompt = (qn_prompt){.messages_json = out->messages.data,
                              .tools_json = out->tools,
                              .variables_json = out->variables.data,
                              .continue_final = continue_final};
    return refused;
}

void qn_chat_prompt_free(qn_chat_prompt *p)
{
    qn_buf_free(&p->messages);
    qn_buf_free(&p->variables);
    free(p->tools); /* foreign: jansson's */
    p->tools = NULL;
}

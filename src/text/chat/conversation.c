#include "text/chat/conversation.h"

#include <stdlib.h>
#include <string.h>

#include "base/json/json.h"
#include "base/json/json_value.h"
#include "base/mem.h"
#include "base/utf8.h"

/* ---- reading ------------------------------------------------------------------------------------------ */

static qn_status parse(const char *name, const char *text, json_t **out)
{
    return text ? qn_json_parse_exact(name, text, strlen(text), out) : QN_OK;
}

static qn_status parse_rest(const char *tools_json, const char *variables_json, qn_conversation *c)
{
    QN_TRY(parse("variables_json", variables_json, &c->variables));
    if (c->variables && !json_is_object(c->variables))
        return qn_fail(QN_E_ARG, "variables_json is not an object");
    QN_TRY(parse("tools_json", tools_json, &c->tools));
    if (c->tools && !json_is_array(c->tools)) return qn_fail(QN_E_ARG, "tools_json is not an array");
    return QN_OK;
}

static qn_status parse_messages(const char *text, qn_conversation *c)
{
    QN_TRY(parse("messages_json", text, &c->messages));
    return json_is_array(c->messages) ? QN_OK : qn_fail(QN_E_ARG, "messages_json is not an array");
}

/* Ends a constructor. */
static qn_status give(qn_status status, qn_conversation *c, qn_conversation **out)
{
    if (status == QN_OK)
        *out = c;
    else
        qn_conversation_drop(c);
    return status;
}

qn_status qn_conversation_parse(const char *messages_json, const char *tools_json, const char *variables_json,
                                qn_conversation **out)
{
    qn_conversation *c = qn_calloc(1, sizeof *c);
    if (!c) return QN_E_NOMEM;
    qn_status status = parse_messages(messages_json, c);
    if (status == QN_OK) status = parse_rest(tools_json, variables_json, c);
    return give(status, c, out);
}

/* ---- messages of plain text --------------------------------------------------------------------------- */

static qn_status check_utf8(const char *what, const char *text)
{
    const size_t n = strlen(text), valid = qn_utf8_valid_prefix(text, n);
    return valid == n ? QN_OK : qn_fail(QN_E_FORMAT, "%s: not valid UTF-8 at byte %zu", what, valid);
}

/* Images, then the text. */
static json_t *make_parts(const char *content, size_t n_images)
{
    json_t *parts = json_array();
    int failed = !parts;
    for (size_t i = 0; i < n_images && !failed; i++)
        failed = json_array_append_new(parts, json_pack("{s:s}", "type", "image"));
    if (!failed)
        failed = json_array_append_new(parts, json_pack("{s:s, s:s}", "type", "text", "text", content));
    if (!failed) return parts;
    json_decref(parts);
    return NULL;
}

static qn_status add_message(json_t *messages, const qn_message *m, size_t n_images)
{
    const size_t i = json_array_size(messages);
    if (!m->role || !m->content) return qn_fail(QN_E_ARG, "message %zu has no role or no content", i);
    QN_TRY(check_utf8("a message's role", m->role));
    QN_TRY(check_utf8("a message's content", m->content));
    json_t *message = json_pack("{s:s}", "role", m->role);
    json_t *content = n_images ? make_parts(m->content, n_images) : json_string(m->content);
    const int failed = json_object_set_new(message, "content", content) != 0;
    return json_array_append_new(messages, message) != 0 || failed ? qn_fail_nomem(strlen(m->content))
                                                                   : QN_OK;
}

qn_status qn_conversation_of(const qn_message *messages, size_t n_messages, size_t n_images,
                             const size_t *message_images, const char *tools_json, const char *variables_json,
                             qn_conversation **out)
{
    qn_conversation *c = qn_calloc(1, sizeof *c);
    if (!c) return QN_E_NOMEM;
    c->messages = json_array();
    qn_status status = c->messages ? QN_OK : qn_fail_nomem(sizeof(json_t *));
    for (size_t i = 0; i < n_messages && status == QN_OK; i++)
        status = add_message(c->messages, &messages[i],
                             message_images       ? message_images[i]
                             : i + 1 < n_messages ? 0
                                                  : n_images);
    if (status == QN_OK) status = parse_rest(tools_json, variables_json, c);
    return give(status, c, out);
}

/* ---- use ---------------------------------------------------------------------------------------------- */

qn_status qn_conversation_request(const qn_conversation *c, int continue_final, json_t **out)
{
    json_t *request = json_object(); /* json_copy would leave out what it has no memory for */
    int failed = !request || (c->variables && json_object_update(request, c->variables)) ||
                 json_object_set(request, "messages", c->messages) ||
                 (c->tools && json_object_set(request, "tools", c->tools));
    if (!failed && continue_final)
        failed = json_object_set_new(request, "continue_final_message", json_true()) ||
                 json_object_set_new(request, "add_generation_prompt", json_false());
    if (!failed && !json_object_get(request, "add_generation_prompt"))
        failed = json_object_set_new(request, "add_generation_prompt", json_true());
    if (!failed) {
        *out = request;
        return QN_OK;
    }
    json_decref(request);
    return qn_fail_nomem(sizeof(json_t *));
}

qn_status qn_conversation_write(const qn_conversation *c, qn_buf *out)
{
    qn_json_write_value(out, c->messages);
    return out->status;
}

void qn_conversation_drop(qn_conversation *c)
{
    if (!c) return;
    json_decref(c->messages);
    json_decref(c->tools);
    json_decref(c->variables);
    qn_free(c);
}

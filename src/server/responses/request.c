#include "server/responses/request.h"

#include <stdio.h>
#include <string.h>

#include "server/core/fields/tools.h"

static int invalid(qn_api_error *error, const char *param, const char *sentence)
{
    return qn_api_fail(error, 400, "invalid_value", param, "%s %s", param, sentence);
}

static int is_given(const json_t *value)
{
    return value && !json_is_null(value);
}

static const char *text_of(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

static int is_text(const json_t *value, const char *text)
{
    const char *is = json_string_value(value);
    return is && strcmp(is, text) == 0;
}

/* Is each key one of known, a list that ends with NULL? Else refuses. */
static int check_keys(const json_t *object, const char *place, const char *const *known, qn_api_error *error)
{
    const char *key;
    json_t *value;
    char param[128];
    if (!json_is_object(object)) return invalid(error, place, "must be an object");
    json_object_foreach((json_t *)object, key, value)
    {
        size_t k = 0;
        while (known[k] && strcmp(known[k], key) != 0) k++;
        if (known[k] || json_is_null(value)) continue;
        snprintf(param, sizeof param, "%s.%.64s", place, key);
        return qn_api_fail(error, 400, "unknown_parameter", param, "unknown parameter: %s", param);
    }
    return 0;
}

/* ---- fields -------------------------------------------------------------------------------------------- */

int qn_responses_read_tool_choice(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                                  qn_api_error *error)
{
    const char *type = text_of(value, "type"), *name = text_of(value, "name");
    (void)limits;
    if (is_text(value, "auto") || is_text(value, "none")) return 0;
    if (is_text(value, "required")) {
        qn_tool_force(r, NULL);
        return 0;
    }
    if (!json_is_object(value) || !type)
        return invalid(error, "tool_choice",
                       "must be \"auto\", \"none\", \"required\" or an object with a type");
    if (strcmp(type, "function") == 0 && name) {
        qn_tool_force(r, name);
        return 0;
    }
    if (strcmp(type, "allowed_tools") == 0) {
        const json_t *mode = json_object_get(value, "mode");
        r->allowed_tools = json_object_get(value, "tools");
        if (is_text(mode, "required")) qn_tool_force(r, NULL);
        if ((is_text(mode, "required") || is_text(mode, "auto")) && json_is_array(r->allowed_tools)) return 0;
        return invalid(error, "tool_choice",
                       "of allowed_tools must have a mode, \"auto\" or \"required\", and tools");
    }
    return qn_api_fail(error, 400, "unsupported_parameter", "tool_choice.type",
                       "tool_choice.type: '%.64s' is not supported; \"function\" with a name and "
                       "\"allowed_tools\" are",
                       type);
}

int qn_responses_read_text(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                           qn_api_error *error)
{
    static const char *const known[] = {"format", "verbosity", NULL};
    const json_t *format = json_object_get(value, "format"), *verbosity = json_object_get(value, "verbosity");
    (void)r, (void)limits;
    int refused = check_keys(value, "text", known, error);
    if (refused) return refused;
    if (is_given(format)) {
        const json_t *type = json_object_get(format, "type");
        if (is_text(type, "json_schema"))
            refused = qn_form_set_schema(r, "text.format", json_object_get(format, "schema"), error);
        else if (is_text(type, "json_object"))
            refused = qn_form_set_object(r, "text.format", error);
        else if (!is_text(type, "text"))
            refused = invalid(error, "text.format",
                              "must be of the type \"text\", \"json_schema\" or \"json_object\"");
        if (refused) return refused;
    }
    if (is_given(verbosity) && !is_text(verbosity, "medium"))
        return qn_api_fail(error, 400, "unsupported_parameter", "text.verbosity",
                           "text.verbosity is not supported: ask for it in a message");
    return 0;
}

int qn_responses_read_reasoning(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                                qn_api_error *error)
{
    static const char *const known[] = {"effort", "summary", "generate_summary", "context", "mode", NULL};
    const json_t *effort = json_object_get(value, "effort");
    int refused = check_keys(value, "reasoning", known, error);
    if (refused) return refused;
    for (size_t i = 1; known[i]; i++) {
        char param[64];
        if (!is_given(json_object_get(value, known[i]))) continue;
        snprintf(param, sizeof param, "reasoning.%s", known[i]);
        qn_api_request_warn(r, param, "has no effect: reasoning items have the whole text");
    }
    if (!is_given(effort)) return 0;
    if (is_text(effort, "none")) r->thinking = 0;
    return qn_field_read_effort(r, effort, limits, error);
}

int qn_responses_read_include(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                              qn_api_error *error)
{
    (void)limits;
    if (!json_is_array(value)) return invalid(error, "include", "must be an array of strings");
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *each = json_array_get(value, i);
        if (!json_is_string(each)) return invalid(error, "include", "must be an array of strings");
        if (is_text(each, "message.output_text.logprobs"))
            return qn_api_fail(error, 400, "unsupported_parameter", "include",
                               "include: log-probabilities are a part of /v1/chat/completions alone");
    }
    if (json_array_size(value))
        qn_api_request_warn(r, "include",
                            "has no effect: reasoning items have their text, unencrypted, and the "
                            "server runs no tools");
    return 0;
}

int qn_responses_read_metadata(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                               qn_api_error *error)
{
    const char *key;
    json_t *each;
    (void)r, (void)limits;
    if (!json_is_object(value) || json_object_size(value) > 16)
        return invalid(error, "metadata", "must be an object of at most 16 strings");
    json_object_foreach((json_t *)value, key, each) if (!json_is_string(each)) return invalid(
        error, "metadata", "must be an object of at most 16 strings");
    return 0;
}

int qn_responses_read_store(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                            qn_api_error *error)
{
    if (!json_is_boolean(value)) return invalid(error, "store", "must be a boolean");
    r->store = json_is_true(value);
    if (r->store && !limits->has_store)
        qn_api_request_warn(r, "store", "is answered false: the server stores no responses without --store");
    return 0;
}

/* ---- tools --------------------------------------------------------------------------------------------- */

static int read_tool(qn_api_request *r, const json_t *tool, size_t i, qn_api_error *error)
{
    static const char *const known[] = {"type", "name", "description", "parameters", "strict", NULL};
    const char *type = text_of(tool, "type");
    char place[64], param[80];
    snprintf(place, sizeof place, "tools[%zu]", i);
    snprintf(param, sizeof param, "%s.type", place);
    if (!type) return invalid(error, place, "must be an object with a type");
    if (strcmp(type, "function") != 0)
        return qn_api_fail(
            error, 400, "unsupported_parameter", param,
            "%s: tools of the type '%.64s' are not supported; the server runs no tools, and only "
            "those of the type \"function\" are the client's",
            param, type);
    int refused = check_keys(tool, place, known, error);
    if (refused) return refused;
    return qn_tool_add(r,
                       &(qn_tool_sent){json_object_get(tool, "name"), json_object_get(tool, "description"),
                                       json_object_get(tool, "parameters"), json_object_get(tool, "strict")},
                       place, "parameters", error);
}

/* They are to be checked also if they are not to be used. */
static int read_tools(qn_api_request *r, qn_api_error *error)
{
    const json_t *sent = r->tools;
    r->tools = NULL;
    if (!sent) return 0;
    if (!json_is_array(sent)) return invalid(error, "tools", "must be an array");
    if (json_array_size(sent) > QN_REQUEST_TOOLS_MAX) return invalid(error, "tools", "has too many tools");
    for (size_t i = 0; i < json_array_size(sent); i++) {
        int refused = read_tool(r, json_array_get(sent, i), i, error);
        if (refused) return refused;
    }
    if (!is_text(json_object_get(r->body, "tool_choice"), "none")) r->tools = r->own_tools;
    return 0;
}

/* ---- the body ------------------------------------------------------------------------------------------ */

/* Responses are stored unless the request says otherwise, as OpenAI does it. */
static int finish_store(qn_api_request *r, const qn_api_request_limits *limits, qn_api_error *error)
{
    static const char *const needs[] = {"previous_response_id", "background"};
    const int is_asked[] = {r->previous_id != NULL, r->background};
    for (int i = 0; i < 2 && !limits->has_store; i++)
        if (is_asked[i])
            return qn_api_fail(
                error, 400, "unsupported_parameter", needs[i],
                "%s is not supported: the server stores no responses; start it with --store DIR, or send "
                "the whole conversation as input",
                needs[i]);
    if (r->background && !r->store)
        return invalid(error, "background", "needs store: nobody could ask for the response later");
    if (r->background && r->stream)
        return qn_api_fail(error, 400, "unsupported_parameter", "stream",
                           "stream is not supported with background: ask for the response by its id");
    r->store = limits->has_store && r->store && r->route == QN_RESPONSES_CREATE;
    return 0;
}

/* What depends on two fields. */
static int finish(qn_api_request *r, const qn_api_request_limits *limits, qn_api_error *error)
{
    if (!r->input) return qn_api_fail(error, 400, "missing_parameter", "input", "input is missing");
    if (r->system && !json_is_string(r->system)) return invalid(error, "instructions", "must be a string");
    if (is_given(json_object_get(r->body, "stream_options")) && !r->stream)
        return invalid(error, "stream_options", "needs stream");
    int refused = finish_store(r, limits, error);
    if (!refused) refused = read_tools(r, error);
    return refused ? refused : qn_api_request_finish_tools(r, error);
}

int qn_responses_read(const char *text, size_t n, unsigned route, const qn_api_request_limits *limits,
                      qn_api_request *out, qn_api_error *error)
{
    int refused = qn_api_request_read_fields(text, n, qn_responses_fields, route, limits, out, error);
    if (!refused) refused = finish(out, limits, error);
    if (refused) return refused;
    qn_api_request_set_options(out, limits);
    return out->warnings.status == QN_OK ? 0 : qn_api_fail_status(error, out->warnings.status);
}

#include "server/anthropic/request.h"

#include <stdio.h>
#include <string.h>

#include "server/core/fields/cache_marks.h"
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

/* Is each key one of known[0..n)? Else refuses. */
static int check_keys(const json_t *object, const char *place, const char *const *known, size_t n,
                      qn_api_error *error)
{
    const char *key;
    json_t *value;
    char param[128];
    json_object_foreach((json_t *)object, key, value)
    {
        size_t k = 0;
        while (k < n && strcmp(known[k], key) != 0) k++;
        if (k < n || json_is_null(value)) continue;
        snprintf(param, sizeof param, "%s.%.64s", place, key);
        return qn_api_fail(error, 400, "unknown_parameter", param, "unknown parameter: %s", param);
    }
    return 0;
}

/* ---- fields -------------------------------------------------------------------------------------------- */

int qn_anthropic_read_stop(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                           qn_api_error *error)
{
    static const char own[] = "stop_sequences", other[] = "stop";
    char message[sizeof error->message];
    if (!json_is_array(value)) return invalid(error, own, "must be an array of strings");
    const int refused = qn_field_read_stop(r, value, limits, error);
    if (!refused) return 0;
    const size_t n = strncmp(error->message, other, sizeof other - 1) == 0 ? sizeof other - 1 : 0;
    memcpy(message, error->message, sizeof message);
    return qn_api_fail(error, refused, error->code, own, "%s%s", n ? own : "", message + n);
}

int qn_anthropic_read_tool_choice(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                                  qn_api_error *error)
{
    static const char *const known[] = {"type", "name", "disable_parallel_tool_use"};
    const char *type = text_of(value, "type"), *name = text_of(value, "name");
    const json_t *is_single = json_object_get(value, "disable_parallel_tool_use");
    (void)limits;
    if (!json_is_object(value)) return invalid(error, "tool_choice", "must be an object with a type");
    int refused = check_keys(value, "tool_choice", known, 3, error);
    if (refused) return refused;
    if (is_given(is_single) && !json_is_boolean(is_single))
        return invalid(error, "tool_choice.disable_parallel_tool_use", "must be a boolean");
    r->one_tool_call = json_is_true(is_single);
    if (type && (strcmp(type, "auto") == 0 || strcmp(type, "none") == 0)) return 0;
    if (type && strcmp(type, "any") == 0) {
        qn_tool_force(r, NULL);
        return 0;
    }
    if (!type || strcmp(type, "tool") != 0)
        return invalid(error, "tool_choice.type", "must be \"auto\", \"any\", \"tool\" or \"none\"");
    if (!name) return invalid(error, "tool_choice.name", "must be the name of a tool");
    qn_tool_force(r, name);
    return 0;
}

int qn_anthropic_read_thinking(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                               qn_api_error *error)
{
    static const char *const known[] = {"type", "budget_tokens", "display"};
    const char *type = text_of(value, "type"), *display = text_of(value, "display");
    const json_t *budget = json_object_get(value, "budget_tokens");
    if (!json_is_object(value)) return invalid(error, "thinking", "must be an object with a type");
    int refused = check_keys(value, "thinking", known, 3, error);
    if (refused) return refused;
    if (!type ||
        (strcmp(type, "enabled") != 0 && strcmp(type, "disabled") != 0 && strcmp(type, "adaptive") != 0))
        return invalid(error, "thinking.type", "must be \"enabled\", \"disabled\" or \"adaptive\"");
    if (is_given(budget) && (!json_is_integer(budget) || json_integer_value(budget) < 1))
        return invalid(error, "thinking.budget_tokens", "must be an integer of 1 or more");
    if (display && strcmp(display, "summarized") != 0)
        qn_api_request_warn(r, "thinking.display", "has no effect: thinking is always sent");
    r->thinking = strcmp(type, "disabled") != 0;
    if (r->thinking && !limits->has_reasoning)
        qn_api_request_warn(r, "thinking", "has no effect: the model's chat template has no reasoning");
    return is_given(budget) && r->thinking ? qn_field_set_budget(r, "thinking.budget_tokens", budget, error)
                                           : 0;
}

int qn_anthropic_read_output_config(qn_api_request *r, const json_t *value,
                                    const qn_api_request_limits *limits, qn_api_error *error)
{
    static const char *const known[] = {"effort", "format"};
    const json_t *effort = json_object_get(value, "effort"), *format = json_object_get(value, "format");
    if (!json_is_object(value)) return invalid(error, "output_config", "must be an object");
    int refused = check_keys(value, "output_config", known, 2, error);
    if (refused) return refused;
    if (is_given(format)) {
        const char *type = text_of(format, "type");
        if (!type || strcmp(type, "json_schema") != 0)
            return invalid(error, "output_config.format", "must be an object of the type \"json_schema\"");
        refused = qn_form_set_schema(r, "output_config.format", json_object_get(format, "schema"), error);
        if (refused) return refused;
    }
    return is_given(effort) ? qn_field_read_effort(r, effort, limits, error) : 0;
}

/* Anthropic's client sends the whole conversation once it has seen this code. */
int qn_anthropic_read_thread(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                             qn_api_error *error)
{
    (void)r, (void)limits;
    if (json_is_false(value)) return 0;
    return qn_api_fail(error, 400, "thread_unsupported_request", "thread",
                       "thread is not supported: the server stores no conversations; send all messages");
}

/* ---- tools --------------------------------------------------------------------------------------------- */

static int read_tool(qn_api_request *r, const json_t *tool, size_t i, qn_api_error *error)
{
    static const char *const known[] = {
        "type",   "name",          "description",    "input_schema",          "cache_control",
        "strict", "defer_loading", "input_examples", "eager_input_streaming", "allowed_callers"};
    static const char *const reported[] = {"defer_loading", "input_examples", "allowed_callers"};
    const char *type = text_of(tool, "type");
    char place[64], param[128];
    snprintf(place, sizeof place, "tools[%zu]", i);
    if (!json_is_object(tool)) return invalid(error, place, "must be an object");
    snprintf(param, sizeof param, "%s.type", place);
    if (is_given(json_object_get(tool, "type")) && (!type || strcmp(type, "custom") != 0))
        return qn_api_fail(
            error, 400, "unsupported_parameter", param,
            "%s: '%.64s' is a tool that Anthropic defines, and this server has none; only tools "
            "with an input_schema are supported",
            param, type ? type : "");
    int refused = check_keys(tool, place, known, sizeof known / sizeof *known, error);
    if (refused) return refused;
    snprintf(param, sizeof param, "%s.input_schema", place);
    if (!json_is_object(json_object_get(tool, "input_schema")))
        return invalid(error, param, "must be an object");
    for (size_t k = 0; k < sizeof reported / sizeof *reported; k++) {
        const json_t *value = json_object_get(tool, reported[k]);
        if (!is_given(value) || json_is_false(value) || (json_is_array(value) && !json_array_size(value)))
            continue;
        snprintf(param, sizeof param, "%s.%s", place, reported[k]);
        qn_api_request_warn(r, param, "has no effect: chat templates do not know it");
    }
    refused = qn_cache_mark_read(r, tool, place, 0, 0, error);
    if (refused) return refused;
    return qn_tool_add(r,
                       &(qn_tool_sent){json_object_get(tool, "name"), json_object_get(tool, "description"),
                                       json_object_get(tool, "input_schema"),
                                       json_object_get(tool, "strict")},
                       place, "input_schema", error);
}

/* They are to be checked also if they are not to be used. */
static int read_tools(qn_api_request *r, qn_api_error *error)
{
    const json_t *sent = r->tools;
    const char *choice = text_of(json_object_get(r->body, "tool_choice"), "type");
    r->tools = NULL;
    if (!sent) return 0;
    if (!json_is_array(sent)) return invalid(error, "tools", "must be an array");
    if (json_array_size(sent) > QN_REQUEST_TOOLS_MAX) return invalid(error, "tools", "has too many tools");
    for (size_t i = 0; i < json_array_size(sent); i++) {
        int refused = read_tool(r, json_array_get(sent, i), i, error);
        if (refused) return refused;
    }
    if (!choice || strcmp(choice, "none") != 0) r->tools = r->own_tools;
    return 0;
}

/* ---- the body ------------------------------------------------------------------------------------------ */

/* What depends on two fields. */
static int finish(qn_api_request *r, qn_api_error *error)
{
    const json_t *budget = json_object_get(json_object_get(r->body, "thinking"), "budget_tokens");
    if (!r->messages) return qn_api_fail(error, 400, "missing_parameter", "messages", "messages is missing");
    if (r->route == QN_ANTHROPIC_MESSAGES && !r->max_tokens)
        return qn_api_fail(error, 400, "missing_parameter", "max_tokens", "max_tokens is missing");
    if (r->max_tokens && json_is_integer(budget) && json_integer_value(budget) >= r->max_tokens)
        return invalid(error, "thinking.budget_tokens", "must be less than max_tokens");
    /* In this API a model thinks only if it is asked to. */
    if (r->thinking < 0) r->thinking = 0;
    const int refused = read_tools(r, error);
    return refused ? refused : qn_api_request_finish_tools(r, error);
}

int qn_anthropic_read(const char *text, size_t n, unsigned route, const qn_api_request_limits *limits,
                      qn_api_request *out, qn_api_error *error)
{
    int refused = qn_api_request_read_fields(text, n, qn_anthropic_fields, route, limits, out, error);
    if (!refused) refused = finish(out, error);
    if (refused) return refused;
    qn_api_request_set_options(out, limits);
    return out->warnings.status == QN_OK ? 0 : qn_api_fail_status(error, out->warnings.status);
}

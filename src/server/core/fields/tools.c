#include "server/core/fields/tools.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "server/core/message.h"

static int invalid(qn_api_error *error, const char *place, const char *member, const char *sentence)
{
    char param[128];
    snprintf(param, sizeof param, "%s.%s", place, member);
    return qn_api_fail(error, 400, "invalid_value", param, "%s %s", param, sentence);
}

static int is_given(const json_t *value)
{
    return value && !json_is_null(value);
}

static int check(const qn_tool_sent *t, const char *place, const char *parameters_key, qn_api_error *error)
{
    if (!json_string_length(t->name) || json_string_length(t->name) > 256)
        return invalid(error, place, "name", "must be a string of 1 to 256 bytes");
    if (is_given(t->description) && !json_is_string(t->description))
        return invalid(error, place, "description", "must be a string");
    if (is_given(t->parameters) && !json_is_object(t->parameters))
        return invalid(error, place, parameters_key, "must be an object");
    if (is_given(t->strict) && !json_is_boolean(t->strict))
        return invalid(error, place, "strict", "must be a boolean");
    return 0;
}

static int add_member(json_t *function, const char *key, const json_t *value)
{
    return is_given(value) ? qn_message_set(function, key, json_incref((json_t *)value)) : 0;
}

int qn_tool_add(qn_api_request *r, const qn_tool_sent *sent, const char *place, const char *parameters_key,
                qn_api_error *error)
{
    int refused = check(sent, place, parameters_key, error);
    if (refused) return refused;
    if (!r->own_tools) r->own_tools = json_array();
    json_t *tool = json_object(), *function = json_object();
    int failed = qn_message_set(tool, "type", json_string("function"));
    failed |= add_member(function, "name", sent->name);
    failed |= add_member(function, "description", sent->description);
    failed |= add_member(function, "parameters", sent->parameters);
    if (json_is_true(sent->strict)) failed |= add_member(function, "strict", sent->strict);
    failed |= qn_message_set(tool, "function", function);
    failed |= json_array_append_new(r->own_tools, tool);
    if (failed) return qn_api_fail_status(error, qn_fail_nomem(0));
    return 0;
}

void qn_tool_force(qn_api_request *r, const char *name)
{
    r->tool_calls = name ? QN_TOOL_CALLS_NAMED : QN_TOOL_CALLS_REQUIRED;
    r->tool_name = name;
}

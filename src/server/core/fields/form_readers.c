/* Fields that say what form an answer has: OpenAI's response_format, the names that llama.cpp, vLLM and SGLang have
 * for the same, and which calls of tools may come. */
#include <stdio.h>
#include <string.h>

#include "base/json/json_value.h"
#include "server/core/fields/field_readers.h"

static int invalid(qn_api_error *error, const char *param, const char *sentence)
{
    return qn_api_fail(error, 400, "invalid_value", param, "%s %s", param, sentence);
}

/* ---- forms --------------------------------------------------------------------------------------------- */

/* An answer has one form. The text is put behind. */
static int begin(qn_api_request *r, const char *param, qn_constraint_kind kind, qn_api_error *error)
{
    if (r->form.param)
        return qn_api_fail(error, 400, "invalid_value", param,
                           "%s and %s exclude each other: an answer has one form", r->form.param, param);
    r->form.param = param;
    r->form.kind = kind;
    return 0;
}

static int end(qn_api_request *r, qn_api_error *error)
{
    return r->form.text.status == QN_OK ? 0 : qn_api_fail_status(error, r->form.text.status);
}

static int put_text(qn_api_request *r, const char *param, qn_constraint_kind kind, const json_t *value,
                    qn_api_error *error)
{
    if (!json_is_string(value)) return invalid(error, param, "must be a string");
    if (!json_string_length(value)) return 0; /* as clients leave a field out */
    int refused = begin(r, param, kind, error);
    if (refused) return refused;
    qn_buf_append(&r->form.text, json_string_value(value), json_string_length(value));
    return end(r, error);
}

/* A schema, or its text. */
int qn_form_set_schema(qn_api_request *r, const char *param, const json_t *value, qn_api_error *error)
{
    if (json_is_string(value)) return put_text(r, param, QN_CONSTRAIN_JSON_SCHEMA, value, error);
    if (!json_is_object(value) && !json_is_boolean(value))
        return invalid(error, param, "must be a JSON schema: an object, a boolean, or the text of one");
    int refused = begin(r, param, QN_CONSTRAIN_JSON_SCHEMA, error);
    if (refused) return refused;
    qn_json_write_value(&r->form.text, value);
    return end(r, error);
}

int qn_form_set_object(qn_api_request *r, const char *param, qn_api_error *error)
{
    return begin(r, param, QN_CONSTRAIN_JSON_OBJECT, error);
}

static int put_choice(qn_api_request *r, const char *param, const json_t *value, qn_api_error *error)
{
    if (!json_is_array(value) || !json_array_size(value))
        return invalid(error, param, "must be an array of strings that is not empty");
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!json_is_string(json_array_get(value, i))) return invalid(error, param, "must have strings only");
    int refused = begin(r, param, QN_CONSTRAIN_CHOICES, error);
    if (refused) return refused;
    qn_json_write_value(&r->form.text, value);
    return end(r, error);
}

static int put_grammar(qn_api_request *r, const char *param, const json_t *value, qn_api_error *error)
{
    qn_constraint_kind kind = QN_CONSTRAIN_GBNF;
    if (json_string_length(value) &&
        !qn_constraint_grammar_kind(json_string_value(value), json_string_length(value), &kind))
        return invalid(error, param, "has neither \"::=\" (GBNF or EBNF) nor \":\" (Lark)");
    return put_text(r, param, kind, value, error);
}

static int put_ebnf(qn_api_request *r, const char *param, const json_t *value, qn_api_error *error)
{
    if (json_string_length(value) && !strstr(json_string_value(value), "::="))
        return invalid(error, param, "has no rule with \"::=\"");
    return put_text(r, param, QN_CONSTRAIN_EBNF, value, error);
}

/* ---- response_format ----------------------------------------------------------------------------------- */

static int fail_unknown(qn_api_error *error, const char *where, const char *key)
{
    char param[128];
    snprintf(param, sizeof param, "%s.%s", where, key);
    return qn_api_fail(error, 400, "unknown_parameter", param, "unknown parameter: %s", param);
}

/* {"name", "description", "schema", "strict"}: the schema is enforced, strict or not. */
static int read_named_schema(const json_t *value, const json_t **schema, qn_api_error *error)
{
    static const char where[] = "response_format.json_schema";
    const char *key;
    json_t *each;
    if (!json_is_object(value)) return invalid(error, where, "must be an object");
    json_object_foreach((json_t *)value, key, each)
    {
        const int is_text = strcmp(key, "name") == 0 || strcmp(key, "description") == 0;
        char param[128];
        snprintf(param, sizeof param, "%s.%s", where, key);
        if (strcmp(key, "schema") == 0)
            *schema = json_is_null(each) ? NULL : each;
        else if (is_text && !json_is_string(each) && !json_is_null(each))
            return invalid(error, param, "must be a string");
        else if (strcmp(key, "strict") == 0 && !json_is_boolean(each) && !json_is_null(each))
            return invalid(error, param, "must be a boolean");
        else if (!is_text && strcmp(key, "strict") != 0)
            return fail_unknown(error, where, key);
    }
    return 0;
}

int qn_field_read_response_format(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                                  qn_api_error *error)
{
    static const char name[] = "response_format";
    const char *type = json_string_value(json_object_get(value, "type")), *key;
    const json_t *schema = NULL;
    json_t *each;
    int refused = 0;
    (void)limits;
    if (!json_is_object(value)) return invalid(error, name, "must be an object");
    if (!type ||
        (strcmp(type, "text") != 0 && strcmp(type, "json_object") != 0 && strcmp(type, "json_schema") != 0))
        return invalid(error, "response_format.type", "must be \"text\", \"json_object\" or \"json_schema\"");
    json_object_foreach((json_t *)value, key, each)
    {
        if (strcmp(key, "type") == 0 || json_is_null(each)) continue;
        if (strcmp(key, "json_schema") == 0 && strcmp(type, "json_schema") == 0)
            refused = read_named_schema(each, &schema, error);
        else if (strcmp(key, "schema") == 0 && strcmp(type, "text") != 0) /* llama.cpp's */
            schema = each;
        else
            refused = fail_unknown(error, name, key);
        if (refused) return refused;
    }
    if (strcmp(type, "text") == 0) return 0;
    if (schema) return qn_form_set_schema(r, name, schema, error);
    if (strcmp(type, "json_schema") == 0)
        return qn_api_fail(error, 400, "missing_parameter", "response_format.json_schema",
                           "response_format.json_schema.schema is missing");
    return begin(r, name, QN_CONSTRAIN_JSON_OBJECT, error);
}

/* ---- other names --------------------------------------------------------------------------------------- */

typedef int put_fn(qn_api_request *r, const char *param, const json_t *value, qn_api_error *error);

static int put_regex(qn_api_request *r, const char *param, const json_t *value, qn_api_error *error)
{
    return put_text(r, param, QN_CONSTRAIN_REGEX, value, error);
}

static int put_object(qn_api_request *r, const char *param, const json_t *value, qn_api_error *error)
{
    if (!json_is_boolean(value)) return invalid(error, param, "must be a boolean");
    return json_is_true(value) ? begin(r, param, QN_CONSTRAIN_JSON_OBJECT, error) : 0;
}

int qn_field_read_json_schema(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                              qn_api_error *error)
{
    (void)limits;
    return qn_form_set_schema(r, "json_schema", value, error);
}

int qn_field_read_regex(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                        qn_api_error *error)
{
    (void)limits;
    return put_regex(r, "regex", value, error);
}

int qn_field_read_ebnf(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                       qn_api_error *error)
{
    (void)limits;
    return put_ebnf(r, "ebnf", value, error);
}

int qn_field_read_grammar(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                          qn_api_error *error)
{
    (void)limits;
    return put_grammar(r, "grammar", value, error);
}

int qn_field_read_choice(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                         qn_api_error *error)
{
    (void)limits;
    return put_choice(r, "choice", value, error);
}

int qn_field_read_guided_json(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                              qn_api_error *error)
{
    (void)limits;
    return qn_form_set_schema(r, "guided_json", value, error);
}

int qn_field_read_guided_regex(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                               qn_api_error *error)
{
    (void)limits;
    return put_regex(r, "guided_regex", value, error);
}

int qn_field_read_guided_choice(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                                qn_api_error *error)
{
    (void)limits;
    return put_choice(r, "guided_choice", value, error);
}

int qn_field_read_guided_grammar(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                                 qn_api_error *error)
{
    (void)limits;
    return put_grammar(r, "guided_grammar", value, error);
}

/* vLLM's: an object with one of these. */
int qn_field_read_structured_outputs(qn_api_request *r, const json_t *value,
                                     const qn_api_request_limits *limits, qn_api_error *error)
{
    static const struct {
        const char *key, *param;
        put_fn *put;
    } known[] = {{"json", "structured_outputs.json", qn_form_set_schema},
                 {"json_object", "structured_outputs.json_object", put_object},
                 {"regex", "structured_outputs.regex", put_regex},
                 {"choice", "structured_outputs.choice", put_choice},
                 {"grammar", "structured_outputs.grammar", put_grammar}};
    enum { N = sizeof known / sizeof *known };
    const char *key;
    json_t *each;
    (void)limits;
    if (!json_is_object(value)) return invalid(error, "structured_outputs", "must be an object");
    json_object_foreach((json_t *)value, key, each)
    {
        size_t i = 0;
        if (json_is_null(each)) continue;
        while (i < N && strcmp(known[i].key, key) != 0) i++;
        if (i == N) return fail_unknown(error, "structured_outputs", key);
        int refused = known[i].put(r, known[i].param, each, error);
        if (refused) return refused;
    }
    return 0;
}

/* ---- calls of tools ------------------------------------------------------------------------------------ */

static int is_text(const json_t *value, const char *text)
{
    return json_is_string(value) && strcmp(json_string_value(value), text) == 0;
}

/* {"type": "function", "function": {"name": NAME}}, or {"type": "function", "name": NAME} of Responses; NULL: it is
 * neither. */
static const char *name_of(const json_t *value)
{
    const json_t *function = json_object_get(value, "function");
    if (!json_is_object(value) || !is_text(json_object_get(value, "type"), "function")) return NULL;
    return json_string_value(json_object_get(function ? function : value, "name"));
}

int qn_field_read_tool_choice(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                              qn_api_error *error)
{
    (void)limits;
    if (is_text(value, "auto") || is_text(value, "none")) return 0;
    if (is_text(value, "required")) {
        r->tool_calls = QN_TOOL_CALLS_REQUIRED;
        return 0;
    }
    if (is_text(json_object_get(value, "type"), "allowed_tools")) {
        const json_t *allowed = json_object_get(value, "allowed_tools"),
                     *mode = json_object_get(allowed, "mode");
        r->allowed_tools = json_object_get(allowed, "tools");
        if (is_text(mode, "required")) r->tool_calls = QN_TOOL_CALLS_REQUIRED;
        if ((is_text(mode, "required") || is_text(mode, "auto")) && json_is_array(r->allowed_tools)) return 0;
        return invalid(error, "tool_choice.allowed_tools",
                       "must have a mode, \"auto\" or \"required\", and tools");
    }
    r->tool_name = name_of(value);
    if (!r->tool_name)
        return invalid(error, "tool_choice",
                       "must be \"none\", \"auto\", \"required\", or name a function or allowed_tools");
    r->tool_calls = QN_TOOL_CALLS_NAMED;
    return 0;
}

static const json_t *find_tool(const json_t *tools, const char *name)
{
    for (size_t i = 0; name && i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        if (is_text(json_object_get(json_object_get(tool, "function"), "name"), name)) return tool;
    }
    return NULL;
}

/* Writes the tools that may be called. */
static int write_tools(qn_api_request *r, qn_api_error *error)
{
    if (!r->allowed_tools) {
        qn_json_write_value(&r->callable, r->tools);
        return 0;
    }
    qn_buf_putc(&r->callable, '[');
    for (size_t i = 0; i < json_array_size(r->allowed_tools); i++) {
        const json_t *tool = find_tool(r->tools, name_of(json_array_get(r->allowed_tools, i)));
        if (!tool)
            return invalid(error, "tool_choice.allowed_tools", "has something that is none of the tools");
        if (i) qn_buf_putc(&r->callable, ',');
        qn_json_write_value(&r->callable, tool);
    }
    qn_buf_putc(&r->callable, ']');
    if (!json_array_size(r->allowed_tools))
        return invalid(error, "tool_choice.allowed_tools", "has no tools");
    return 0;
}

int qn_api_request_finish_tools(qn_api_request *r, qn_api_error *error)
{
    int refused = 0;
    if (!r->tools && (r->tool_calls != QN_TOOL_CALLS_AUTO || r->allowed_tools))
        return invalid(error, "tool_choice", "asks for a call, and there are no tools");
    if (r->tool_name && !find_tool(r->tools, r->tool_name))
        return qn_api_fail(error, 400, "invalid_value", "tool_choice",
                           "tool_choice names the function %.200s, which is none of the tools", r->tool_name);
    if (r->tools) refused = write_tools(r, error);
    if (!refused && r->callable.status != QN_OK) refused = qn_api_fail_status(error, r->callable.status);
    return refused;
}

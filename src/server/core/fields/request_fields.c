#include "server/core/fields/request_fields.h"

#include <stdio.h>
#include <string.h>

#include "base/json/json.h"
#include "base/utf8.h"

static const qn_field *find(const qn_field *table, const char *name, unsigned route)
{
    for (const qn_field *f = table; f->name; f++)
        if ((f->routes & route) && strcmp(f->name, name) == 0) return f;
    return NULL;
}

static const char *type_name(const json_t *value)
{
    static const char *const names[] = {"an object", "an array",  "a string",  "an integer",
                                        "a number",  "a boolean", "a boolean", "null"};
    return qn_json_digits(value) ? "an integer beyond 64 bits" : names[json_typeof(value)];
}

static int fail_type(qn_api_error *error, const char *name, const char *wanted, const json_t *value)
{
    return qn_api_fail(error, 400, "invalid_type", name, "%s must be %s, not %s", name, wanted,
                       type_name(value));
}

/* Is value one of those that ask for nothing? */
static int is_harmless(const qn_field *f, const json_t *value)
{
    json_t *list = NULL;
    int found = 0;
    if (!f->harmless || qn_json_parse(f->name, f->harmless, strlen(f->harmless), &list) != QN_OK) return 0;
    for (size_t i = 0; i < json_array_size(list) && !found; i++)
        found = json_equal(json_array_get(list, i), value);
    json_decref(list);
    return found;
}

static int read_number(const qn_field *f, const json_t *value, qn_api_request *r, qn_api_error *error)
{
    char *at = (char *)r + f->offset;
    double number = json_number_value(value);
    if (f->kind == QN_FIELD_INT && !json_is_integer(value))
        return fail_type(error, f->name, "an integer", value);
    if (!json_is_number(value)) return fail_type(error, f->name, "a number", value);
    if (!(number >= f->low && number <= f->high))
        return qn_api_fail(error, 400, "invalid_value", f->name,
                           "%s is %.17g; it must be from %.15g to %.15g", f->name, number, f->low, f->high);
    if (f->kind == QN_FIELD_INT)
        *(int64_t *)(void *)at = json_integer_value(value);
    else
        *(double *)(void *)at = number;
    return 0;
}

static int read_field(const qn_field *f, const json_t *value, const qn_api_request_limits *limits,
                      qn_api_request *r, qn_api_error *error)
{
    char *at = (char *)r + f->offset;
    if (qn_json_digits(value) && f->kind != QN_FIELD_REFUSED)
        return qn_api_fail(error, 400, "invalid_type", f->name, "%s must not be an integer beyond 64 bits",
                           f->name);
    switch (f->kind) {
    case QN_FIELD_BOOL:
        if (!json_is_boolean(value)) return fail_type(error, f->name, "a boolean", value);
        *(int *)(void *)at = json_is_true(value);
        return 0;
    case QN_FIELD_INT:
    case QN_FIELD_REAL:
        return read_number(f, value, r, error);
    case QN_FIELD_TEXT:
        if (!json_is_string(value)) return fail_type(error, f->name, "a string", value);
        if (strlen(json_string_value(value)) != json_string_length(value))
            return qn_api_fail(error, 400, "invalid_value", f->name, "%s has a NUL character", f->name);
        *(const char **)(void *)at = json_string_value(value);
        return 0;
    case QN_FIELD_JSON:
        *(const json_t **)(void *)at = value;
        return 0;
    case QN_FIELD_OWN:
        return f->read(r, value, limits, error);
    case QN_FIELD_REPORTED: /* read_members does that */
    case QN_FIELD_REFUSED:
        break;
    }
    if (is_harmless(f, value)) return 0;
    return qn_api_fail(error, 400, "unsupported_parameter", f->name, "%s is not supported: %s", f->name,
                       f->note);
}

/* An unknown field. Returns 0 if it is reported. */
static int take_unknown(const char *name, const qn_api_request_limits *limits, qn_api_request *r,
                        qn_api_error *error)
{
    char param[sizeof error->param];
    if (!limits->lenient)
        return qn_api_fail(error, 400, "unknown_parameter", name, "unknown parameter: %s", name);
    snprintf(param, sizeof param, "%s", name);
    param[qn_utf8_valid_prefix(param, strlen(param))] = 0;
    qn_api_request_warn(r, param, "is unknown and has no effect");
    return r->warnings.status == QN_OK ? 0 : qn_api_fail_status(error, r->warnings.status);
}

/* Readers name a member as if it stood in the body. */
static void add_prefix(const char *prefix, qn_api_error *error)
{
    qn_api_error e = *error;
    const size_t n = strlen(error->param);
    const int is_begun = n && strncmp(error->message, error->param, n) == 0;
    if (!prefix[0] || !n) return;
    qn_api_fail(error, e.status, e.code, NULL, "%s%s", is_begun ? prefix : "", e.message);
    snprintf(error->param, sizeof error->param, "%s%.*s", prefix, (int)(sizeof e.param - strlen(prefix) - 1),
             e.param);
    error->param[qn_utf8_valid_prefix(error->param, strlen(error->param))] = 0;
}

int qn_api_request_read_members(const json_t *object, const char *prefix, const qn_field *table,
                                unsigned route, const qn_api_request_limits *limits, qn_api_request *out,
                                qn_api_error *error)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        const qn_field *f = find(table, key, route);
        int refused = 0;
        if (!f) {
            char name[sizeof error->param];
            snprintf(name, sizeof name, "%s%s", prefix, key);
            refused = take_unknown(name, limits, out, error);
        } else if (f->kind == QN_FIELD_REPORTED && !json_is_null(value)) {
            char name[sizeof error->param];
            snprintf(name, sizeof name, "%s%s", prefix, key);
            qn_api_request_warn(out, name, f->note);
        } else if (!json_is_null(value)) {
            refused = read_field(f, value, limits, out, error);
            if (refused) add_prefix(prefix, error);
        }
        if (refused) return refused;
    }
    return 0;
}

int qn_api_request_read_fields(const char *text, size_t n, const qn_field *table, unsigned route,
                               const qn_api_request_limits *limits, qn_api_request *out, qn_api_error *error)
{
    qn_api_request_start(out, route);
    out->held = limits->held;
    /* Beside the values: copies of their texts in a chat, in its prompt, and as ids. */
    const size_t cost = qn_json_cost(text ? text : "", n) + 3 * n;
    const int refused =
        text && qn_json_depth_ok(text, n, QN_JSON_DEPTH_MAX) ? qn_api_request_hold(out, cost, error) : 0;
    if (refused) return refused;
    qn_status status = qn_json_parse_exact("the body", text ? text : "", n, &out->body);
    if (status != QN_OK) {
        qn_api_fail_status(error, status);
        if (status == QN_E_FORMAT) error->code = "invalid_json";
        return error->status;
    }
    if (!json_is_object(out->body))
        return qn_api_fail(error, 400, "invalid_json", NULL, "the body must be a JSON object, not %s",
                           type_name(out->body));
    return qn_api_request_read_members(out->body, "", table, route, limits, out, error);
}

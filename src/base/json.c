#include "base/json.h"

#include <string.h>

int qn_json_depth_ok(const char *text, size_t n, int depth_max)
{
    int depth = 0;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (c == '"') {
            for (i++; i < n && text[i] != '"'; i++)
                if (text[i] == '\\') i++;
        } else if (c == '{' || c == '[') {
            if (++depth > depth_max) return 0;
        } else if (c == '}' || c == ']') {
            if (depth > 0) depth--;
        }
    }
    return 1;
}

qn_status qn_json_parse(const char *what, const char *text, size_t n, json_t **out)
{
    if (!qn_json_depth_ok(text, n, QN_JSON_DEPTH_MAX))
        return qn_fail(QN_E_FORMAT, "%s: JSON nested deeper than %d", what, QN_JSON_DEPTH_MAX);
    /* jansson overlooks a NUL behind a number or a word ("2\0", "[true\0]"). A raw one is never JSON. */
    const char *nul = n ? memchr(text, 0, n) : NULL;
    if (nul) return qn_fail(QN_E_FORMAT, "%s: NUL byte at offset %zu", what, (size_t)(nul - text));
    json_error_t error;
    json_t *value = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
    if (!value) {
        if (json_error_code(&error) == json_error_out_of_memory)
            return qn_fail(QN_E_NOMEM, "%s: out of memory", what);
        return qn_fail(QN_E_FORMAT, "%s: line %d column %d: %s", what, error.line, error.column, error.text);
    }
    *out = value;
    return QN_OK;
}

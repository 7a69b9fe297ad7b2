/* Any bytes as JSON: what is accepted is within our limits, has no raw NUL and survives being written and
 * read again; and any bytes written as a string are read back as their lossy text. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/json/json.h"
#include "base/json/json_value.h"
#include "base/utf8.h"

static int get_depth(const json_t *value)
{
    int depth = 0, d;
    size_t i;
    const char *key;
    json_t *v;
    if (json_is_array(value)) {
        json_array_foreach(value, i, v) depth = (d = get_depth(v)) > depth ? d : depth;
    } else if (json_is_object(value)) {
        json_object_foreach((json_t *)value, key, v) depth = (d = get_depth(v)) > depth ? d : depth;
    } else {
        return 0;
    }
    return depth + 1;
}

static void parse(const char *text, size_t n)
{
    json_t *value = NULL, *again = NULL;
    int shallow = qn_json_depth_ok(text, n, QN_JSON_DEPTH_MAX);
    if (qn_json_depth_ok(text, n, 3) && !shallow) abort();
    if (qn_json_parse("fuzz", text, n, &value) != QN_OK) {
        if (value || !qn_last_error()[0] || strpbrk(qn_last_error(), "\n\r\x1b")) abort();
        return;
    }
    int depth = get_depth(value);
    if (!shallow || depth > QN_JSON_DEPTH_MAX || !qn_json_depth_ok(text, n, depth)) abort();
    if (depth && qn_json_depth_ok(text, n, depth - 1)) abort();
    if (memchr(text, 0, n) || qn_utf8_valid_prefix(text, n) != n) abort();
    char *dump = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    if (!dump || qn_json_parse("again", dump, strlen(dump), &again) != QN_OK || !json_equal(value, again))
        abort();
    free(dump); /* foreign: jansson's */
    json_decref(again);
    json_decref(value);
}

/* Exact integers: as much is accepted, but for numbers too large for a double, and what is written is what was read. */
static void parse_exact(const char *text, size_t n)
{
    json_t *value = NULL, *again = NULL, *rounded = NULL;
    const qn_status status = qn_json_parse_exact("fuzz", text, n, &value);
    if (qn_json_parse("fuzz", text, n, &rounded) == QN_OK && status != QN_OK) abort();
    json_decref(rounded);
    if (status != QN_OK) return;
    qn_buf written = {0};
    qn_json_write_value(&written, value);
    if (written.status != QN_OK ||
        qn_json_parse_exact("again", written.data, written.length, &again) != QN_OK ||
        !json_equal(value, again))
        abort();
    json_decref(again);
    json_decref(value);
    qn_buf_free(&written);
}

static void write_string(const char *text, size_t n)
{
    qn_buf quoted = {0};
    json_t *value = NULL;
    qn_buf_json_string(&quoted, text, n);
    if (quoted.status != QN_OK || qn_json_parse("string", quoted.data, quoted.length, &value) != QN_OK)
        abort();
    if (qn_utf8_valid_prefix(text, n) == n &&
        (json_string_length(value) != n || (n && memcmp(json_string_value(value), text, n))))
        abort();
    json_decref(value);
    qn_buf_free(&quoted);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    parse((const char *)data, size);
    parse_exact((const char *)data, size);
    write_string((const char *)data, size);
    return 0;
}

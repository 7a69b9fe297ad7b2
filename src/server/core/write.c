#include "server/core/write.h"

#include <string.h>

#include "base/json/json.h"
#include "base/json/json_write.h"
#include "base/mem.h"
#include "server/core/partial_json.h"

void qn_write_null(qn_buf *out, const char *key)
{
    qn_json_key(out, key);
    qn_buf_puts(out, "null");
}

void qn_write_said(qn_buf *out, const char *key, const qn_said *said, qn_answer_kind kind, int32_t index)
{
    qn_buf text = {0};
    qn_said_join(said, kind, index, &text);
    qn_json_key(out, key);
    qn_json_text(out, text.data ? text.data : "", text.length);
    if (text.status != QN_OK) out->status = text.status;
    qn_buf_free(&text);
}

void qn_write_warnings(const qn_completion *c, qn_buf *out)
{
    const qn_buf *warnings = &c->request.warnings;
    if (!warnings->length) return;
    qn_json_key(out, "warnings");
    qn_json_open(out, '[');
    qn_buf_append(out, warnings->data, warnings->length);
    qn_json_close(out, ']');
    if (warnings->status != QN_OK) out->status = warnings->status;
}

static int put_piece(const char *piece, size_t n, void *user)
{
    qn_buf *out = user;
    qn_buf_append(out, piece, n);
    return out->status == QN_OK ? 0 : -1;
}

void qn_write_value(qn_buf *out, const char *key, const json_t *value)
{
    qn_json_key(out, key);
    if (!value)
        qn_buf_puts(out, "null");
    else if (json_dump_callback(value, put_piece, out, JSON_COMPACT | JSON_ENCODE_ANY) &&
             out->status == QN_OK)
        out->status = qn_fail_nomem(0);
}

void qn_write_arguments(qn_buf *out, const char *key, const qn_said *said, int32_t index)
{
    qn_buf text = {0}, whole = {0};
    json_t *value = NULL;
    qn_said_join(said, QN_ANSWER_CALL_ARGUMENTS, index, &text);
    qn_partial_json_close(text.data ? text.data : "", text.length, &whole);
    qn_status status = text.status != QN_OK ? text.status : whole.status;
    /* What a model writes may be no JSON at all: then the call has no arguments. */
    if (status == QN_OK) status = qn_json_parse_lenient("arguments", whole.data, whole.length, &value);
    if (status == QN_E_NOMEM)
        out->status = status;
    else if (json_is_object(value))
        qn_write_value(out, key, value);
    else {
        qn_json_key(out, key);
        qn_buf_puts(out, "{}");
    }
    json_decref(value);
    qn_buf_free(&text);
    qn_buf_free(&whole);
}

#include "server/http/api_error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/json/json_write.h"
#include "base/utf8.h"

/* Text that was cut may end within a character. */
static void mend(char *text)
{
    text[qn_utf8_valid_prefix(text, strlen(text))] = 0;
}

int qn_api_fail(qn_api_error *e, int status, const char *code, const char *param, const char *fmt, ...)
{
    va_list args;
    memset(e, 0, sizeof *e);
    e->status = status;
    e->code = code;
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    va_start(args, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, args);
    va_end(args);
    mend(e->param);
    mend(e->message);
    if (status == 429 || status == 503) e->retry_after_s = 1;
    return status;
}

int qn_api_fail_status(qn_api_error *e, qn_status status)
{
    static const struct {
        qn_status status;
        int http;
        const char *code;
    } known[] = {{QN_E_ARG, 400, "invalid_value"},       {QN_E_FORMAT, 400, "invalid_value"},
                 {QN_E_UNSUPPORTED, 400, "unsupported"}, {QN_E_NOT_FOUND, 404, "not_found"},
                 {QN_E_FULL, 429, "queue_full"},         {QN_E_NOMEM, 503, "out_of_memory"},
                 {QN_E_DEADLINE, 503, "deadline"},       {QN_E_CANCELLED, 503, "cancelled"},
                 {QN_E_CLOSED, 503, "shutting_down"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].status == status)
            return qn_api_fail(e, known[i].http, known[i].code, NULL, "%s", qn_last_error());
    return qn_api_fail(e, 500, "internal_error", NULL, "%s", qn_last_error());
}

static const char *type_of(int status)
{
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 429:
        return "rate_limit_error";
    default:
        return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

static void put_optional(qn_buf *b, const char *key, const char *text)
{
    qn_json_key(b, key);
    if (text && text[0])
        qn_json_text(b, text, strlen(text));
    else
        qn_buf_puts(b, "null");
}

void qn_api_error_write(const qn_api_error *e, const char *request_id, qn_buf *out)
{
    qn_json_open(out, '{');
    qn_json_key(out, "error");
    qn_json_open(out, '{');
    qn_json_put_text(out, "message", e->message);
    qn_json_put_text(out, "type", type_of(e->status));
    put_optional(out, "param", e->param);
    put_optional(out, "code", e->code);
    qn_json_put_text(out, "request_id", request_id);
    qn_json_close(out, '}');
    qn_json_close(out, '}');
}

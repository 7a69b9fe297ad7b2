#include "server/http/api_error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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

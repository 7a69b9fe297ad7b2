#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/c_locale.h"
#include "base/utf8.h"

static _Thread_local char message[QN_ERROR_TEXT_MAX];

const char *qn_status_name(qn_status status)
{
    switch (status) {
#define NAME(name, text) \
    case QN_##name:      \
        return "QN_" #name;
        QN_STATUS_LIST(NAME)
#undef NAME
    }
    return "unknown status";
}

const char *qn_status_text(qn_status status)
{
    switch (status) {
#define TEXT(name, text) \
    case QN_##name:      \
        return text;
        QN_STATUS_LIST(TEXT)
#undef TEXT
    }
    return "unknown status";
}

const char *qn_last_error(void)
{
    return message;
}

qn_status qn_fail(qn_status status, const char *fmt, ...)
{
    char text[QN_ERROR_TEXT_MAX];
    va_list args;
    locale_t before = qn_c_locale_enter();
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    qn_c_locale_leave(before);
    qn_utf8_clean(text);
    memcpy(message, text, sizeof text);
    return status;
}

qn_status qn_fail_prefix(qn_status status, const char *fmt, ...)
{
    char text[QN_ERROR_TEXT_MAX];
    va_list args;
    locale_t before = qn_c_locale_enter();
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    qn_c_locale_leave(before);
    size_t at = n < 0 ? 0 : (size_t)n < sizeof text ? (size_t)n : sizeof text - 1;
    size_t had = strlen(message), room = sizeof text - at - 1;
    if (room > 2) {
        memcpy(text + at, ": ", 2);
        if (had > room - 2) had = room - 2;
        memcpy(text + at + 2, message, had);
        text[at + 2 + had] = 0;
    }
    qn_utf8_clean(text);
    memcpy(message, text, sizeof text);
    return status;
}

qn_status qn_fail_copy(qn_status status, const char *text)
{
    return qn_fail(status, "%s", text);
}

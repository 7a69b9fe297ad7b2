#include "hub/net/session.h"

#include <stdarg.h>
#include <stdio.h>

void qn_hub_note(const qn_hub_session *s, const char *fmt, ...)
{
    char text[QN_ERROR_TEXT_MAX];
    va_list args;
    if (!s->note) return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    s->note(s->user, text);
}

qn_status qn_hub_check_cancel(const qn_hub_session *s)
{
    if (!s->is_cancelled || !s->is_cancelled(s->user)) return QN_OK;
    return qn_fail(QN_E_CANCELLED, "interrupted; what came is kept, and pulling again goes on from there");
}

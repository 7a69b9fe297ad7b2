#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/c_locale.h"
#include "base/utf8.h"

static qn_log_fn *sink;
static void *sink_user;
static atomic_int max_level = QN_LOG_WARNING;

void qn_log_set_sink(qn_log_fn *fn, void *user)
{
    sink = fn;
    sink_user = user;
}

void qn_log_set_level(qn_log_level level)
{
    atomic_store(&max_level, level);
}

void qn_log(qn_log_level level, const char *fmt, ...)
{
    if ((int)level > atomic_load_explicit(&max_level, memory_order_relaxed)) return;
    char line[1024];
    va_list args;
    va_start(args, fmt);
    locale_t before = qn_c_locale_enter();
    vsnprintf(line, sizeof line, fmt, args);
    qn_c_locale_leave(before);
    va_end(args);
    qn_utf8_clean(line);
    if (sink) {
        sink(sink_user, level, line);
        return;
    }
    static const char *const name[] = {"error", "warning", "info", "debug"};
    fprintf(stderr, "quern: %s: %s\n", name[level], line);
}

void qn_log_lines(qn_log_level level, const char *text)
{
    while (*text) {
        size_t n = strcspn(text, "\n");
        qn_log(level, "%.*s", (int)n, text);
        text += n + (text[n] == '\n');
    }
}

/* quern trace: what QUERN_TRACE=FILE wrote. `diff` names the first step whose bits differ, `sum` adds the
 * time up by kernel. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "cli/command.h"
#include "cli/options/args.h"
#include "cli/term/out.h"

enum { LINE_MAX_BYTES = 4096, KERNELS_MAX = 128 };

typedef struct {
    const char *path;
    FILE *file;
    int64_t line;
} trace;

static qn_status trace_open(const char *path, trace *out)
{
    FILE *f = fopen(path, "r");
    if (!f) return qn_fail(QN_E_IO, "%s: %s", path, strerror(errno));
    *out = (trace){path, f, 0};
    return QN_OK;
}

/* The next step as JSON; *step NULL at the end. */
static qn_status trace_next(trace *t, json_t **step)
{
    char text[LINE_MAX_BYTES], what[512];
    *step = NULL;
    errno = 0;
    if (!fgets(text, sizeof text, t->file))
        return ferror(t->file) ? qn_fail(QN_E_IO, "%s: %s", t->path, strerror(errno)) : QN_OK;
    snprintf(what, sizeof what, "%s: line %lld", t->path, (long long)++t->line);
    QN_TRY(qn_json_parse(what, text, strlen(text), step));
    if (json_is_string(json_object_get(*step, "hash")) && json_is_string(json_object_get(*step, "kernel")) &&
        json_is_string(json_object_get(*step, "name")) && json_is_string(json_object_get(*step, "program")) &&
        json_is_integer(json_object_get(*step, "ns")) && json_is_integer(json_object_get(*step, "step")))
        return QN_OK;
    json_decref(*step);
    *step = NULL;
    return qn_fail(QN_E_FORMAT, "%s: not a line of a trace", what);
}

static const char *text_of(const json_t *step, const char *key)
{
    return json_string_value(json_object_get(step, key));
}

static long long number_of(const json_t *step, const char *key)
{
    return (long long)json_integer_value(json_object_get(step, key));
}

/* Prints a line; what files say in it is shown without control characters. */
static qn_status say(const char *fmt, ...) QN_PRINTF(1, 2);
static qn_status say(const char *fmt, ...)
{
    char text[2 * LINE_MAX_BYTES];
    qn_buf b = {0};
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    qn_out_put_shown(&b, text, strlen(text), 0);
    return qn_out_line(&b);
}

/* *differs: 1 when a difference was found and printed. */
static qn_status diff(trace *a, trace *b, int *differs)
{
    *differs = 0;
    for (;;) {
        json_t *x = NULL, *y = NULL;
        qn_status status = trace_next(a, &x);
        if (status == QN_OK) status = trace_next(b, &y);
        if (status != QN_OK || (!x && !y)) {
            json_decref(x);
            json_decref(y);
            return status != QN_OK
                       ? status
                       : say("%lld step%s, equal bits", (long long)a->line, qn_out_plural(a->line));
        }
        if (!x || !y) {
            status = say("%s ends after %lld steps, the other continues", x ? b->path : a->path,
                         (long long)(x ? b->line : a->line));
            *differs = 1;
        } else if (strcmp(text_of(x, "program"), text_of(y, "program")) != 0 ||
                   number_of(x, "step") != number_of(y, "step")) {
            status =
                say("line %lld: the programs differ: %s step %lld, %s step %lld", (long long)a->line,
                    text_of(x, "program"), number_of(x, "step"), text_of(y, "program"), number_of(y, "step"));
            *differs = 1;
        } else if (strcmp(text_of(x, "hash"), text_of(y, "hash")) != 0) {
            status = say("line %lld: program %s, step %lld %s (%s): bits differ: %s, %s", (long long)a->line,
                         text_of(x, "program"), number_of(x, "step"), text_of(x, "name"),
                         text_of(x, "kernel"), text_of(x, "hash"), text_of(y, "hash"));
            *differs = 1;
        }
        json_decref(x);
        json_decref(y);
        if (*differs) return status;
    }
}

typedef struct {
    char name[64];
    long long ns, steps;
} kernel_time;

static int by_time(const void *a, const void *b)
{
    const kernel_time *x = a, *y = b;
    return (x->ns < y->ns) - (x->ns > y->ns);
}

static qn_status sum(trace *t)
{
    kernel_time kernels[KERNELS_MAX];
    int n = 0;
    long long total = 0;
    for (;;) {
        json_t *step;
        QN_TRY(trace_next(t, &step));
        if (!step) break;
        int i = 0;
        while (i < n && strncmp(kernels[i].name, text_of(step, "kernel"), sizeof kernels[i].name - 1) != 0)
            i++;
        if (i == n && n < KERNELS_MAX) {
            kernels[n] = (kernel_time){.ns = 0};
            snprintf(kernels[n++].name, sizeof kernels[0].name, "%s", text_of(step, "kernel"));
        }
        if (i < n) {
            kernels[i].ns += number_of(step, "ns");
            kernels[i].steps++;
        }
        total += number_of(step, "ns");
        json_decref(step);
    }
    qsort(kernels, (size_t)n, sizeof *kernels, by_time);
    for (int i = 0; i < n; i++)
        QN_TRY(say("%-28s %10lld steps %12.3f ms %6.2f%%", kernels[i].name, kernels[i].steps,
                   (double)kernels[i].ns * 1e-6, total ? 100.0 * (double)kernels[i].ns / (double)total : 0));
    return QN_OK;
}

static const qn_arg_group trace_groups[] = {{0}};
const qn_arg_spec qn_trace_spec = {
    .usage = "quern trace diff A B | quern trace sum A",
    .about = "Reads traces: files that any command writes if QUERN_TRACE=FILE is set. A trace has one line "
             "per\nstep, with a hash of the step's output. diff prints the first step whose bits differ and "
             "exits with\nstatus 1. sum adds up the time per kernel.",
    .groups = trace_groups,
    .n_positional_min = 2,
    .n_positional_max = 3,
    .words = "diff|sum"};

int qn_cmd_trace(int argc, char **argv)
{
    const char *word[QN_POSITIONAL_MAX];
    int n, code, differs = 0;
    if (qn_args_parse(&qn_trace_spec, NULL, argc, argv, word, &n, &code)) return code;
    int is_diff = strcmp(word[0], "diff") == 0 && n == 3, is_sum = strcmp(word[0], "sum") == 0 && n == 2;
    if (!is_diff && !is_sum) return qn_args_fail("trace", "expected `diff A B` or `sum A`");
    trace a = {0}, b = {0};
    qn_status status = trace_open(word[1], &a);
    if (status == QN_OK && is_diff) status = trace_open(word[2], &b);
    if (status == QN_OK) status = is_diff ? diff(&a, &b, &differs) : sum(&a);
    if (a.file) fclose(a.file);
    if (b.file) fclose(b.file);
    if (status != QN_OK) return qn_out_fail();
    return differs ? QN_EXIT_ERROR : QN_EXIT_OK;
}

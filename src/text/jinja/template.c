#include "text/jinja/template.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "text/jinja/run.h"

struct qn_template {
    qn_jheap heap; /* of the program */
    qn_jprogram program;
    char *what;
};

const char *const qn_template_trusted_names[] = {"bos_token", "eos_token", "unk_token",  "pad_token",
                                                 "sep_token", "cls_token", "mask_token", NULL};

enum {
    PROGRAM_BYTES_MAX = 256 << 20,
    STEPS_MAX = 1000000,
    OUTPUT_MAX = 8 << 20,
    MEMORY_MAX = 32 << 20,
    DEPTH_MAX = 1000
};

qn_status qn_template_parse(const char *what, const char *text, size_t n, qn_template **out)
{
    qn_template *t = qn_calloc(1, sizeof *t);
    if (!t) return QN_E_NOMEM;
    t->heap.arena.limit_bytes = PROGRAM_BYTES_MAX;
    t->heap.steps_max = UINT64_MAX;
    t->what = qn_strdup(what);
    qn_status status = t->what ? qn_jparse(&t->heap, text, n, &t->program) : QN_E_NOMEM;
    if (status != QN_OK) {
        qn_fail_prefix(status, "%s", what);
        qn_template_free(t);
        return status;
    }
    *out = t;
    return QN_OK;
}

void qn_template_free(qn_template *t)
{
    if (!t) return;
    qn_arena_clear(&t->heap.arena);
    qn_free(t->what);
    qn_free(t);
}

static int leap_year(int year)
{
    return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
}

/* "YYYY-MM-DDTHH:MM:SS", more behind it is ignored. */
static qn_status parse_now(const char *text, struct tm *out)
{
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int year, month, day, hour = 0, minute = 0, second = 0;
    int n = sscanf(text, "%4d-%2d-%2d%*1[T ]%2d:%2d:%2d", &year, &month, &day, &hour, &minute, &second);
    int ok = n >= 3 && year >= 1 && month >= 1 && month <= 12 && day >= 1;
    ok = ok && day <= days[month - 1] + (month == 2 && leap_year(year));
    ok = ok && hour >= 0 && hour < 24 && minute >= 0 && minute < 60 && second >= 0 && second < 60;
    if (!ok) return qn_fail(QN_E_ARG, "now: '%s' is not a time such as 2026-03-14T15:09:26", text);
    struct tm t = {.tm_year = year - 1900, .tm_mon = month - 1, .tm_mday = day};
    t.tm_hour = hour;
    t.tm_min = minute;
    t.tm_sec = second;
    /* Day of the year and of the week (1 January of year 1 is a Monday). */
    for (int m = 0; m < month - 1; m++) t.tm_yday += days[m] + (m == 1 && leap_year(year));
    t.tm_yday += day - 1;
    int before = year - 1;
    t.tm_wday = (before * 365 + before / 4 - before / 100 + before / 400 + t.tm_yday + 1) % 7;
    *out = t;
    return QN_OK;
}

static qn_status set_clock(const qn_render_options *o, struct tm *out)
{
    if (o->now) return parse_now(o->now, out);
    time_t seconds = time(NULL);
    if (!localtime_r(&seconds, out)) return qn_fail(QN_E_IO, "the local time is not known");
    return QN_OK;
}

static qn_status open_run(qn_jrun *r, const qn_template *t, const json_t *context, const qn_render_options *o)
{
    memset(r, 0, sizeof *r);
    r->heap.arena.limit_bytes = o->memory_max ? o->memory_max : (size_t)MEMORY_MAX;
    r->heap.steps_max = o->steps_max ? o->steps_max : (uint64_t)STEPS_MAX;
    r->heap.depth_max = o->depth_max ? o->depth_max : (uint32_t)DEPTH_MAX;
    r->heap.seed = (uint64_t)qn_clock_ns() * 0x9E3779B97F4A7C15u ^ (uint64_t)(uintptr_t)r;
    r->output_max = o->output_max ? o->output_max : (size_t)OUTPUT_MAX;
    r->program = &t->program;
    r->context = context;
    r->trusted = o->trusted ? o->trusted : qn_template_trusted_names;
    r->n_trusted = o->n_trusted;
    if (!o->trusted)
        for (r->n_trusted = 0; qn_template_trusted_names[r->n_trusted];) r->n_trusted++;
    qn_jbuild_init(&r->main_out, &r->heap);
    r->main_out.limit_bytes = r->output_max;
    r->out = &r->main_out;
    r->line = 1;
    QN_TRY(set_clock(o, &r->now));
    r->root = qn_jheap_alloc(&r->heap, t->program.n_names, sizeof *r->root);
    if (!r->root) return r->heap.status;
    memset(r->root, 0, t->program.n_names * sizeof *r->root); /* MISSING */
    return QN_OK;
}

static qn_status collect_segments(const qn_jbuild *b, qn_rendered *out)
{
    size_t n = b->n != 0;
    for (size_t i = 1; b->mask && i < b->n; i++) n += b->mask[i] != b->mask[i - 1];
    out->segments = qn_calloc(n, sizeof *out->segments);
    if (!out->segments) return QN_E_NOMEM;
    out->n_segments = n;
    for (size_t i = 0, k = 0; i < b->n; k++) {
        size_t from = i;
        int user = b->mask ? b->mask[i] : b->user;
        for (i = b->mask ? i + 1 : b->n; i < b->n && b->mask[i] == user;) i++;
        out->segments[k] = (qn_rendered_segment){.offset = from, .n = i - from, .trusted = !user};
    }
    return QN_OK;
}

static qn_status collect(const qn_jrun *r, qn_rendered *out)
{
    const qn_jbuild *b = &r->main_out;
    if (b->status != QN_OK) return b->status;
    out->text = qn_strndup(b->data ? b->data : "", b->n);
    if (!out->text) return QN_E_NOMEM;
    out->n = b->n;
    out->generations = qn_calloc(r->n_spans, sizeof *out->generations);
    if (!out->generations) return QN_E_NOMEM;
    out->n_generations = r->n_spans;
    for (size_t i = 0; i < r->n_spans; i++)
        out->generations[i] = (qn_rendered_span){.offset = r->spans[i].offset, .n = r->spans[i].n};
    return collect_segments(b, out);
}

qn_status qn_template_render(const qn_template *t, const json_t *context, const qn_render_options *o,
                             qn_rendered *out)
{
    static const qn_render_options defaults = {0};
    qn_jrun r;
    *out = (qn_rendered){0};
    if (!json_is_object(context)) return qn_fail(QN_E_ARG, "%s: the context must be an object", t->what);
    qn_status status = open_run(&r, t, context, o ? o : &defaults);
    if (status == QN_OK) {
        status = qn_jexec(&r, t->program.body, t->program.n_body);
        if (status != QN_OK) qn_fail_prefix(status, "line %u", r.line);
    }
    if (status == QN_OK) status = collect(&r, out);
    if (status != QN_OK) {
        qn_fail_prefix(status, "%s", t->what);
        qn_rendered_free(out);
        if (r.raised) out->raised = qn_strndup(r.raised->data, r.raised->n);
        if (r.raised && !out->raised) status = QN_E_NOMEM;
    }
    qn_arena_clear(&r.heap.arena);
    return status;
}

void qn_rendered_free(qn_rendered *r)
{
    qn_free(r->text);
    qn_free(r->segments);
    qn_free(r->generations);
    qn_free(r->raised);
    *r = (qn_rendered){0};
}

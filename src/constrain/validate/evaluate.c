/* Schemas applied to the value itself: references, alternatives, conditions; and the report. */
#include "constrain/validate/evaluate.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

/* ---- the run ------------------------------------------------------------------------------------------- */

int qn_run_stop(qn_run *r, qn_status status)
{
    if (r->status == QN_OK) r->status = status;
    return 0;
}

int qn_run_step(qn_run *r, int64_t n)
{
    if (r->status != QN_OK) return 0;
    r->steps -= n;
    if (r->steps >= 0) return 1;
    return qn_run_stop(r, qn_fail(QN_E_UNSUPPORTED, "validation takes more than %lld steps",
                                  (long long)r->schema->limits.steps_max));
}

int qn_run_is_over(const qn_run *r)
{
    return r->status != QN_OK || !r->report || r->report->is_cut ||
           r->report->n_failures >= r->report->failures_max;
}

void qn_run_mark(qn_run *r, size_t marks, uint32_t child)
{
    if (marks != QN_NO_MARKS && r->marks.status == QN_OK) r->marks.data[marks + child] = 1;
}

void qn_run_mark_all(qn_run *r, size_t marks, uint32_t first, uint32_t n)
{
    if (marks != QN_NO_MARKS && r->marks.status == QN_OK && first < n)
        memset(r->marks.data + marks + first, 1, n - first);
}

/* n zero bytes on the stack of marks. */
static size_t push_marks(qn_run *r, uint32_t n)
{
    size_t at = r->marks.length;
    qn_buf_reserve(&r->marks, (size_t)n + 1);
    if (r->marks.status != QN_OK || !qn_run_step(r, n / 64)) {
        qn_run_stop(r, r->marks.status);
        return QN_NO_MARKS;
    }
    memset(r->marks.data + at, 0, n);
    r->marks.length += n;
    return at;
}

static char *pointer_of(const qn_value *v)
{
    qn_buf b = {0};
    qn_buf_puts(&b, "");
    qn_value_pointer(v, &b);
    char *text = b.status == QN_OK ? qn_buf_take(&b, NULL) : NULL;
    qn_buf_free(&b);
    return text;
}

static void free_failure(qn_schema_failure *f)
{
    qn_free(f->instance);
    qn_free(f->schema);
    qn_free(f->keyword);
    qn_free(f->message);
}

void qn_schema_report_clear(qn_schema_report *report)
{
    for (size_t i = 0; i < report->n_failures; i++) free_failure(&report->failures[i]);
    qn_free(report->failures);
    *report = (qn_schema_report){.failures_max = report->failures_max};
}

int qn_run_fail(qn_run *r, const qn_keyword_use *u, const qn_value *v, const char *fmt, ...)
{
    qn_schema_report *report = r->report;
    if (!report || r->status != QN_OK) return 0;
    if (report->n_failures >= report->failures_max) {
        report->is_cut = 1;
        return 0;
    }
    va_list arguments;
    char text[600];
    va_start(arguments, fmt);
    vsnprintf(text, sizeof text, fmt, arguments);
    va_end(arguments);
    qn_schema_failure *all = qn_realloc(report->failures, (report->n_failures + 1) * sizeof *all);
    if (!all) return qn_run_stop(r, QN_E_NOMEM);
    report->failures = all;
    qn_schema_failure f = {pointer_of(v), pointer_of(u->value),
                           qn_strdup(u->kind < QN_KEYWORD_COUNT ? qn_keyword_name(u->kind) : "false"),
                           qn_strdup(text)};
    if (!f.instance || !f.schema || !f.keyword || !f.message) {
        free_failure(&f);
        return qn_run_stop(r, QN_E_NOMEM);
    }
    all[report->n_failures++] = f;
    return 0;
}

/* ---- alternatives -------------------------------------------------------------------------------------- */

/* Applies a schema without a report. */
static int is_valid(qn_run *r, const qn_subschema *s, const qn_value *v, size_t marks)
{
    qn_schema_report *report = r->report;
    r->report = NULL;
    int valid = qn_run_apply(r, s, v, marks);
    r->report = report;
    return valid;
}

static int count_slashes(const char *pointer)
{
    int n = 0;
    for (; *pointer; pointer++) n += *pointer == '/';
    return n;
}

/* Reports that v is valid by none of the schemas of u, with the failure of the one that came furthest. */
static int fail_all(qn_run *r, const qn_keyword_use *u, const qn_value *v)
{
    if (!r->report || r->is_probe)
        return qn_run_fail(r, u, v, "is valid by none of the %u schemas", u->value->n);
    qn_schema_report *report = r->report, best = {0};
    uint32_t i_best = 0;
    r->is_probe = 1;
    for (uint32_t i = 0; i < u->value->n && r->status == QN_OK; i++) {
        qn_schema_report probe = {.failures_max = 1};
        r->report = &probe;
        qn_run_apply(r, u->many[i], v, QN_NO_MARKS);
        if (probe.n_failures && (!best.n_failures || count_slashes(probe.failures->instance) >
                                                         count_slashes(best.failures->instance))) {
            qn_schema_report_clear(&best);
            best = probe;
            i_best = i;
        } else {
            qn_schema_report_clear(&probe);
        }
    }
    r->is_probe = 0;
    r->report = report;
    if (best.n_failures)
        qn_run_fail(r, u, v, "is valid by none of the %u schemas; of number %u: %s%s%.200s", u->value->n,
                    i_best, best.failures->instance, *best.failures->instance ? " " : "",
                    best.failures->message);
    qn_schema_report_clear(&best);
    return 0;
}

static int apply_all_of(qn_run *r, const qn_keyword_use *u, const qn_value *v, size_t marks)
{
    int valid = 1;
    for (uint32_t i = 0; i < u->value->n && (valid || !qn_run_is_over(r)); i++)
        valid &= qn_run_apply(r, u->many[i], v, marks);
    return valid;
}

static int apply_any_of(qn_run *r, const qn_keyword_use *u, const qn_value *v, size_t marks)
{
    int any = 0;
    for (uint32_t i = 0; i < u->value->n && r->status == QN_OK && (!any || marks != QN_NO_MARKS); i++)
        any |= is_valid(r, u->many[i], v, marks);
    return any && r->status == QN_OK ? 1 : fail_all(r, u, v);
}

static int apply_one_of(qn_run *r, const qn_keyword_use *u, const qn_value *v, size_t marks)
{
    uint32_t first = UINT32_MAX;
    for (uint32_t i = 0; i < u->value->n && r->status == QN_OK; i++) {
        if (!is_valid(r, u->many[i], v, marks)) continue;
        if (first != UINT32_MAX)
            return qn_run_fail(r, u, v, "is valid by number %u and number %u of the schemas", first, i);
        first = i;
    }
    return first != UINT32_MAX && r->status == QN_OK ? 1 : fail_all(r, u, v);
}

static int apply_if(qn_run *r, const qn_subschema *s, const qn_keyword_use *u, const qn_value *v,
                    size_t marks)
{
    int holds = is_valid(r, u->one, v, marks);
    const qn_keyword_use *then = qn_subschema_get(s, holds ? QN_KEYWORD_THEN : QN_KEYWORD_ELSE);
    if (r->status != QN_OK) return 0;
    return !then || qn_run_apply(r, then->one, v, marks);
}

static int apply_dependents(qn_run *r, const qn_keyword_use *u, const qn_value *v, size_t marks)
{
    int valid = 1;
    for (uint32_t i = 0; i < u->value->n && v->kind == QN_VALUE_OBJECT; i++) {
        const qn_value *name = &u->value->children[i];
        if (!qn_run_step(r, 1)) return 0;
        if (u->many[i] && qn_value_get(v, name->key, name->key_bytes))
            valid &= qn_run_apply(r, u->many[i], v, marks);
        if (!valid && qn_run_is_over(r)) return 0;
    }
    return valid;
}

/* ---- references ---------------------------------------------------------------------------------------- */

static const qn_subschema *find_target(qn_run *r, const qn_keyword_use *u)
{
    if (u->kind == QN_KEYWORD_DYNAMIC_REF && u->dynamic_name) {
        size_t n = strlen(u->dynamic_name);
        for (int32_t i = 0; i < r->n_scope; i++)
            for (const qn_anchor *a = r->scope[i]->anchors; a; a = a->next)
                if (qn_run_step(r, 1) && a->is_dynamic && a->n == n && !memcmp(a->name, u->dynamic_name, n))
                    return a->schema;
    }
    if (u->kind == QN_KEYWORD_RECURSIVE_REF && u->target == u->target->resource->root &&
        u->target->resource->is_recursive)
        for (int32_t i = 0; i < r->n_scope; i++)
            if (r->scope[i]->is_recursive) return r->scope[i]->root;
    return u->target;
}

/* ---- one schema ---------------------------------------------------------------------------------------- */

static int apply_keyword(qn_run *r, const qn_subschema *s, const qn_keyword_use *u, const qn_value *v,
                         size_t marks)
{
    switch ((qn_keyword)u->kind) {
    case QN_KEYWORD_REF:
    case QN_KEYWORD_DYNAMIC_REF:
    case QN_KEYWORD_RECURSIVE_REF:
        return qn_run_apply(r, find_target(r, u), v, marks);
    case QN_KEYWORD_ALL_OF:
        return apply_all_of(r, u, v, marks);
    case QN_KEYWORD_ANY_OF:
        return apply_any_of(r, u, v, marks);
    case QN_KEYWORD_ONE_OF:
        return apply_one_of(r, u, v, marks);
    case QN_KEYWORD_NOT:
        return !is_valid(r, u->one, v, QN_NO_MARKS) && r->status == QN_OK
                   ? 1
                   : qn_run_fail(r, u, v, "is valid by the schema that it must not be");
    case QN_KEYWORD_IF:
        return apply_if(r, s, u, v, marks);
    case QN_KEYWORD_DEPENDENT_SCHEMAS:
        return apply_dependents(r, u, v, marks);
    case QN_KEYWORD_DEPENDENCIES: {
        int valid = qn_run_children(r, s, u, v, marks);
        return (valid || !qn_run_is_over(r)) && apply_dependents(r, u, v, marks) && valid;
    }
    case QN_KEYWORD_THEN:
    case QN_KEYWORD_ELSE:
    case QN_KEYWORD_DEFS:
    case QN_KEYWORD_DEFINITIONS:
    case QN_KEYWORD_CONTENT_SCHEMA:
    case QN_KEYWORD_MIN_CONTAINS:
    case QN_KEYWORD_MAX_CONTAINS:
        return 1;
    default:
        return u->kind < QN_KEYWORD_MAX_ITEMS ? qn_run_plain(r, s, u, v) : qn_run_children(r, s, u, v, marks);
    }
}

/* A schema `false` is no keyword: its place is named instead. */
static int fail_false(qn_run *r, const qn_subschema *s, const qn_value *v)
{
    qn_keyword_use u = {.kind = QN_KEYWORD_COUNT, .value = s->node};
    return qn_run_fail(r, &u, v, "nothing is allowed here: the schema is false");
}

static int apply_here(qn_run *r, const qn_subschema *s, const qn_value *v, size_t marks)
{
    int valid = 1, wants = s->wants_marks || marks != QN_NO_MARKS;
    size_t own = wants ? push_marks(r, v->kind >= QN_VALUE_ARRAY ? v->n : 0) : QN_NO_MARKS;
    for (uint32_t i = 0; i < s->n_uses && r->status == QN_OK; i++) {
        if (!qn_run_step(r, 1)) break;
        valid &= apply_keyword(r, s, &s->uses[i], v, own);
        if (!valid && qn_run_is_over(r)) break;
    }
    valid = valid && r->status == QN_OK;
    if (own == QN_NO_MARKS) return valid;
    uint32_t n = v->kind >= QN_VALUE_ARRAY ? v->n : 0;
    if (valid && marks != QN_NO_MARKS)
        for (uint32_t i = 0; i < n; i++) r->marks.data[marks + i] |= r->marks.data[own + i];
    r->marks.length = own;
    return valid;
}

int qn_run_apply(qn_run *r, const qn_subschema *s, const qn_value *v, size_t marks)
{
    if (!qn_run_step(r, 1)) return 0;
    if (s->is_boolean) return s->accepts ? 1 : fail_false(r, s, v);
    if (r->depth == r->schema->limits.depth_max)
        return qn_run_stop(
            r, qn_fail(QN_E_UNSUPPORTED,
                       "more than %d schemas apply inside one another: references may have no end",
                       r->schema->limits.depth_max));
    r->depth++;
    int enters = !r->n_scope || r->scope[r->n_scope - 1] != s->resource;
    if (enters) r->scope[r->n_scope++] = s->resource;
    int valid = apply_here(r, s, v, marks);
    r->n_scope -= enters;
    r->depth--;
    return valid;
}

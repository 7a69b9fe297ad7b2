/* Global functions of templates. */
#include <stdio.h>
#include <string.h>

#include "text/jinja/run.h"

enum { RANGE_MAX = 100000 }; /* the sandbox's own limit */

static qn_status global_range(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    qn_jvalue bound[3];
    int64_t from = 0, to, step, count = 0;
    QN_TRY(qn_jargs_bind(r, "range", a, "start stop step", 1, bound));
    for (int i = 0; i < 3; i++) {
        if (bound[i].kind == QN_J_UNDEFINED) return qn_jfail_undefined(bound[i]);
        if (bound[i].kind == QN_J_BIG)
            return qn_fail(QN_E_ARG, "Python int too large to convert to C ssize_t");
        if (bound[i].kind != QN_J_MISSING && !qn_jis_whole(bound[i]))
            return qn_fail(QN_E_ARG, "range: '%s' object cannot be interpreted as an integer",
                           qn_jvalue_type(bound[i]));
    }
    to = bound[0].i;
    if (bound[1].kind != QN_J_MISSING) {
        from = bound[0].i;
        to = bound[1].i;
    }
    QN_TRY(qn_jarg_int(bound[2], "range: step", 1, &step));
    if (!step) return qn_fail(QN_E_ARG, "range() arg 3 must not be zero");
    uint64_t distance = step > 0 ? (uint64_t)to - (uint64_t)from : (uint64_t)from - (uint64_t)to;
    uint64_t stride = step > 0 ? (uint64_t)step : 0 - (uint64_t)step;
    if (step > 0 ? to > from : to < from) {
        uint64_t n = (distance - 1) / stride + 1;
        if (n > RANGE_MAX) return qn_fail(QN_E_FULL, "a range has more than %d numbers", RANGE_MAX);
        count = (int64_t)n;
    }
    QN_TRY(qn_jheap_step(&r->heap, (uint64_t)count));
    QN_TRY(qn_jlist_new(&r->heap, QN_JSHAPE_RANGE, count, 0, out));
    /* Each number lies between the two, but i * step alone may be beyond 64 bits. */
    for (int64_t i = 0; i < count; i++)
        out->l->items[i] = qn_jint((int64_t)((uint64_t)from + (uint64_t)i * (uint64_t)step), 0);
    out->l->n = count;
    out->l->stop = to;
    return QN_OK;
}

/* dict(x, a=1) and namespace(x, a=1). */
static qn_status make_dict(qn_jrun *r, const qn_jargs *a, qn_jvalue *out)
{
    QN_TRY(qn_jdict_new(&r->heap, a->n_named, 0, out));
    if (a->n > 1) return qn_fail(QN_E_ARG, "dict expected at most 1 argument, got %u", a->n);
    if (a->n && a->items[0].kind == QN_J_DICT) {
        const qn_jdict *d = a->items[0].d;
        for (uint32_t i = 0; i < d->n; i++) QN_TRY(qn_jdict_set(&r->heap, out->d, d->keys[i], d->values[i]));
    } else if (a->n) {
        qn_jvalue *pairs, *pair;
        int64_t n, n_pair;
        QN_TRY(qn_jvalue_items(&r->heap, a->items[0], &pairs, &n));
        for (int64_t i = 0; i < n; i++) {
            QN_TRY(qn_jvalue_items(&r->heap, pairs[i], &pair, &n_pair));
            if (n_pair != 2) return qn_fail(QN_E_ARG, "dict: an item is not a pair");
            QN_TRY(qn_jdict_set(&r->heap, out->d, pair[0], pair[1]));
        }
    }
    for (uint32_t i = 0; i < a->n_named; i++)
        QN_TRY(qn_jdict_set(&r->heap, out->d, a->names[i], a->named[i]));
    return QN_OK;
}

static qn_status global_dict(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    return make_dict(r, a, out);
}

static qn_status global_namespace(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    QN_TRY(make_dict(r, a, out));
    out->kind = QN_J_NAMESPACE;
    return QN_OK;
}

static qn_status global_cycler(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    if (!a->n || a->n_named) return qn_fail(QN_E_ARG, "at least one item has to be provided");
    qn_jobject *o = qn_jheap_alloc(&r->heap, 1, sizeof *o);
    if (!o) return r->heap.status;
    o->cycler.items = a->items;
    o->cycler.n = a->n;
    o->cycler.next = 0;
    *out = (qn_jvalue){.kind = QN_J_CYCLER, .o = o};
    return QN_OK;
}

static qn_status global_joiner(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    qn_jvalue bound[1];
    QN_TRY(qn_jargs_bind(r, "joiner", a, "sep", 0, bound));
    if (bound[0].kind == QN_J_MISSING) QN_TRY(qn_jstring_borrow(&r->heap, ", ", 2, NULL, 0, &bound[0]));
    qn_jobject *o = qn_jheap_alloc(&r->heap, 1, sizeof *o);
    if (!o) return r->heap.status;
    o->joiner.separator = bound[0];
    o->joiner.used = 0;
    *out = (qn_jvalue){.kind = QN_J_JOINER, .o = o};
    return QN_OK;
}

static qn_status global_raise(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    qn_jvalue bound[1];
    QN_TRY(qn_jargs_bind(r, "raise_exception", a, "message", 1, bound));
    QN_TRY(qn_jstr(r, bound[0], &bound[0]));
    r->raised = bound[0].s;
    return qn_fail(QN_E_ARG, "%.*s", bound[0].s->n > 800 ? 800 : (int)bound[0].s->n, bound[0].s->data);
}

/* One directive of strftime. Only those of Python's table are passed on, one at a time and with a bound. */
static qn_status write_time(qn_jrun *r, qn_jbuild *b, char flag, char directive, int user)
{
    char format[4] = {'%', flag ? flag : directive, flag ? directive : 0, 0}, text[128];
    if (directive == 'f') {
        qn_jbuild_text(b, "000000", user);
        return b->status;
    }
    if (directive == 'z' || directive == 'Z') return QN_OK; /* the clock has no zone */
    if (!strchr("aAbBcdDeFgGhHIjklmMnpPrRStTuUVwWxXyYC", directive))
        return qn_fail(QN_E_ARG, "strftime_now: unknown directive '%%%c'", directive);
    size_t n = strftime(text, sizeof text, format, &r->now);
    qn_jbuild_bytes(b, text, n, user);
    return b->status;
}

static qn_status global_strftime_now(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    qn_jvalue bound[1];
    qn_jstring *s;
    qn_jbuild b;
    QN_TRY(qn_jargs_bind(r, "strftime_now", a, "format", 1, bound));
    QN_TRY(qn_jarg_string(bound[0], "strftime_now: the format", &s));
    qn_jbuild_init(&b, &r->heap);
    for (size_t i = 0; i < s->n && b.status == QN_OK; i++) {
        if (s->data[i] != '%' || i + 1 == s->n) {
            qn_jbuild_part(&b, s, i, i + 1);
            continue;
        }
        QN_TRY(qn_jheap_step(&r->heap, 1));
        char flag = s->data[i + 1] && strchr("-_0^#", s->data[i + 1]) ? s->data[i + 1] : 0;
        i += flag ? 2 : 1;
        if (i == s->n) return qn_fail(QN_E_ARG, "strftime_now: the format ends in a directive");
        if (s->data[i] == '%')
            qn_jbuild_part(&b, s, i, i + 1);
        else if (s->data[i])
            QN_TRY(write_time(r, &b, flag, s->data[i], qn_jstring_user_at(s, i)));
    }
    return qn_jbuild_take(&b, out);
}

static const qn_jfunction_row globals[] = {
    {"range", global_range},
    {"dict", global_dict},
    {"namespace", global_namespace},
    {"cycler", global_cycler},
    {"joiner", global_joiner},
    {"raise_exception", global_raise},
    {"strftime_now", global_strftime_now},
};

int qn_jglobal_find(const qn_jstring *name, qn_jvalue *out)
{
    const qn_jfunction_row *row = qn_jrow_find(globals, sizeof globals / sizeof *globals, name);
    if (!row) return 0;
    *out = (qn_jvalue){.kind = QN_J_FUNCTION, .fn = row->fn};
    return 1;
}

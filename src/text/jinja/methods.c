/* Methods of dict, list and the small objects; those of str are in methods_string.c. */
#include <string.h>

#include "text/jinja/run.h"

/* dict */

static qn_status dict_view(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jshape shape, qn_jvalue *out)
{
    const qn_jdict *d = self.d;
    QN_TRY(qn_jargs_bind(r, "the view of a dict", a, "", 0, NULL));
    QN_TRY(qn_jheap_step(&r->heap, d->n));
    QN_TRY(qn_jlist_new(&r->heap, shape, d->n, self.user, out));
    for (uint32_t i = 0; i < d->n; i++) {
        qn_jvalue *item = &out->l->items[i];
        *item = shape == QN_JSHAPE_KEYS ? d->keys[i] : d->values[i];
        if (shape != QN_JSHAPE_ITEMS) continue;
        QN_TRY(qn_jlist_new(&r->heap, QN_JSHAPE_TUPLE, 2, self.user, item));
        item->l->n = 2;
        item->l->items[0] = d->keys[i];
        item->l->items[1] = d->values[i];
    }
    out->l->n = d->n;
    return QN_OK;
}

static qn_status method_items(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    return dict_view(r, self, a, QN_JSHAPE_ITEMS, out);
}

static qn_status method_keys(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    return dict_view(r, self, a, QN_JSHAPE_KEYS, out);
}

static qn_status method_values(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    return dict_view(r, self, a, QN_JSHAPE_VALUES, out);
}

static qn_status method_get(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    qn_jvalue bound[2], *value;
    QN_TRY(qn_jargs_bind(r, "get", a, "key default", 1, bound));
    QN_TRY(qn_jdict_get(&r->heap, self.d, bound[0], &value));
    *out = value ? *value : bound[1].kind == QN_J_MISSING ? qn_jnone() : bound[1];
    return QN_OK;
}

static qn_status method_copy(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    *out = self; /* nothing can change it */
    return qn_jargs_bind(r, "copy", a, "", 0, NULL);
}

static const qn_jfunction_row dict_methods[] = {
    {"get", method_get},       {"items", method_items}, {"keys", method_keys},
    {"values", method_values}, {"copy", method_copy},
};

/* list and tuple */

static qn_status method_list_index(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    qn_jvalue bound[1];
    QN_TRY(qn_jargs_bind(r, "index", a, "value", 1, bound));
    for (int64_t i = 0; i < self.l->n; i++) {
        int equal;
        QN_TRY(qn_jvalue_equal(&r->heap, self.l->items[i], bound[0], &equal));
        if (!equal) continue;
        *out = qn_jint(i, 0);
        return QN_OK;
    }
    return qn_fail(QN_E_ARG, "the value is not in the list");
}

static qn_status method_list_count(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    qn_jvalue bound[1];
    int64_t count = 0;
    QN_TRY(qn_jargs_bind(r, "count", a, "value", 1, bound));
    for (int64_t i = 0; i < self.l->n; i++) {
        int equal;
        QN_TRY(qn_jvalue_equal(&r->heap, self.l->items[i], bound[0], &equal));
        count += equal;
    }
    *out = qn_jint(count, 0);
    return QN_OK;
}

static const qn_jfunction_row list_methods[] = {
    {"index", method_list_index}, {"count", method_list_count}, {"copy", method_copy}};

/* loop, cycler */

static qn_status method_cycle(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    if (!a->n || a->n_named) return qn_fail(QN_E_ARG, "no items for cycling given");
    *out = a->items[self.o->loop.index0 % a->n];
    return QN_OK;
}

static qn_status method_changed(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    qn_jvalue now;
    int equal = 0;
    QN_TRY(qn_jlist_new(&r->heap, QN_JSHAPE_TUPLE, a->n, 0, &now));
    if (a->n) memcpy(now.l->items, a->items, a->n * sizeof now);
    now.l->n = a->n;
    if (self.o->loop.changed.kind != QN_J_MISSING)
        QN_TRY(qn_jvalue_equal(&r->heap, self.o->loop.changed, now, &equal));
    self.o->loop.changed = now;
    *out = qn_jbool(!equal, 0);
    return QN_OK;
}

static qn_status method_next(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    *out = self.o->cycler.items[self.o->cycler.next];
    self.o->cycler.next = (self.o->cycler.next + 1) % self.o->cycler.n;
    return qn_jargs_bind(r, "next", a, "", 0, NULL);
}

static qn_status method_reset(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out)
{
    self.o->cycler.next = 0;
    *out = qn_jnone();
    return qn_jargs_bind(r, "reset", a, "", 0, NULL);
}

static const qn_jfunction_row loop_methods[] = {{"cycle", method_cycle}, {"changed", method_changed}};
static const qn_jfunction_row cycler_methods[] = {{"next", method_next}, {"reset", method_reset}};

qn_jfunction qn_jmethod_find(qn_jvalue self, const qn_jstring *name)
{
    const qn_jfunction_row *row = NULL;
    if (self.kind == QN_J_STRING) row = qn_jstring_method_find(name);
    if (self.kind == QN_J_DICT)
        row = qn_jrow_find(dict_methods, sizeof dict_methods / sizeof *dict_methods, name);
    if (self.kind == QN_J_LIST && self.l->shape <= QN_JSHAPE_RANGE)
        row = qn_jrow_find(list_methods, sizeof list_methods / sizeof *list_methods, name);
    if (self.kind == QN_J_LOOP)
        row = qn_jrow_find(loop_methods, sizeof loop_methods / sizeof *loop_methods, name);
    if (self.kind == QN_J_CYCLER)
        row = qn_jrow_find(cycler_methods, sizeof cycler_methods / sizeof *cycler_methods, name);
    return row ? row->fn : NULL;
}

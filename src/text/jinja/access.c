/* Attributes and subscripts: object.name prefers Python's attributes, object[key] prefers items, as Jinja
 * does. Only the methods of methods.c exist; attributes that would reach into Python are refused. */
#include <string.h>

#include "text/jinja/run.h"

/* Methods that a template must not have: they change a value or leave the text. Kept apart from unknown
 * names, which are undefined, because a key of that name does not win over them. */
static int is_withheld(qn_jvalue v, const qn_jstring *name)
{
    static const char *const of_list[] = {"append", "clear",  "extend",  "insert",
                                          "pop",    "remove", "reverse", "sort"};
    static const char *const of_dict[] = {"clear", "pop", "popitem", "setdefault", "update", "fromkeys"};
    static const char *const of_string[] = {"encode", "translate", "maketrans"};
    const char *const *names = of_string;
    size_t n = sizeof of_string / sizeof *of_string;
    if (v.kind == QN_J_DICT) {
        names = of_dict;
        n = sizeof of_dict / sizeof *of_dict;
    } else if (v.kind == QN_J_LIST && v.l->shape == QN_JSHAPE_LIST) {
        names = of_list;
        n = sizeof of_list / sizeof *of_list;
    } else if (v.kind != QN_J_STRING) {
        return 0;
    }
    for (size_t i = 0; i < n; i++)
        if (qn_jstring_is(name, names[i])) return 1;
    return 0;
}

static qn_status new_method(qn_jrun *r, qn_jvalue self, qn_jfunction fn, qn_jvalue *out)
{
    qn_jobject *o = qn_jheap_alloc(&r->heap, 1, sizeof *o);
    if (!o) return r->heap.status;
    o->method.self = self;
    o->method.fn = fn;
    *out = (qn_jvalue){.kind = QN_J_METHOD, .o = o};
    return QN_OK;
}

static qn_status undefined_attribute(qn_jrun *r, qn_jvalue v, const qn_jstring *name, qn_jvalue *out)
{
    return qn_jundefined(&r->heap, qn_jvalue_type(v), name->data, name->n, 0, out);
}

static qn_status loop_attribute(qn_jrun *r, qn_jvalue v, const qn_jstring *name, qn_jvalue *out, int *found)
{
    const qn_jobject *o = v.o;
    int64_t i = o->loop.index0, n = o->loop.n;
    *found = 1;
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {
        {"index0", i}, {"index", i + 1},           {"revindex0", n - i - 1},     {"revindex", n - i},
        {"length", n}, {"depth0", o->loop.depth0}, {"depth", o->loop.depth0 + 1}};
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++) {
        if (!qn_jstring_is(name, numbers[k].name)) continue;
        *out = qn_jint(numbers[k].value, 0);
        return QN_OK;
    }
    if (qn_jstring_is(name, "first") || qn_jstring_is(name, "last")) {
        *out = qn_jbool(name->data[0] == 'f' ? i == 0 : i == n - 1, 0);
        return QN_OK;
    }
    int next = qn_jstring_is(name, "nextitem");
    if (next || qn_jstring_is(name, "previtem")) {
        int64_t place = next ? i + 1 : i - 1;
        if (place < 0 || place >= n) return undefined_attribute(r, v, name, out);
        *out = o->loop.items[place];
        return QN_OK;
    }
    *found = 0;
    return QN_OK;
}

static qn_status macro_attribute(qn_jrun *r, qn_jvalue v, const qn_jstring *name, qn_jvalue *out, int *found)
{
    const qn_jnode *n = v.o->macro.node;
    *found = 1;
    if (qn_jstring_is(name, "name")) {
        *out = n->name < 0 ? qn_jnone() : r->program->names[n->name];
        return QN_OK;
    }
    if (qn_jstring_is(name, "arguments")) {
        QN_TRY(qn_jlist_new(&r->heap, QN_JSHAPE_TUPLE, n->params->n, 0, out));
        for (uint32_t i = 0; i < n->params->n; i++) out->l->items[i] = r->program->names[n->params->names[i]];
        out->l->n = n->params->n;
        return QN_OK;
    }
    *found = 0;
    return QN_OK;
}

/* What Python's getattr would give, without falling back to items. */
static qn_status own_attribute(qn_jrun *r, qn_jvalue v, const qn_jstring *name, qn_jvalue *out, int *found)
{
    *found = 0;
    if (v.kind == QN_J_UNDEFINED) return qn_jfail_undefined(v);
    if (name->n >= 2 && memcmp(name->data, "__", 2) == 0)
        return qn_fail(QN_E_ARG, "access to attribute '%.*s' of '%s' object is unsafe",
                       name->n > 60 ? 60 : (int)name->n, name->data, qn_jvalue_type(v));
    if (is_withheld(v, name)) {
        *found = 1;
        return qn_jundefined(&r->heap, qn_jvalue_type(v), name->data, name->n, 1, out);
    }
    qn_jfunction method = qn_jmethod_find(v, name);
    if (method) {
        *found = 1;
        return new_method(r, v, method, out);
    }
    if (v.kind == QN_J_LOOP) return loop_attribute(r, v, name, out, found);
    if (v.kind == QN_J_MACRO) return macro_attribute(r, v, name, out, found);
    if (v.kind == QN_J_NAMESPACE) {
        qn_jvalue key = {.kind = QN_J_STRING, .s = (qn_jstring *)name}, *value;
        QN_TRY(qn_jdict_get(&r->heap, v.d, key, &value));
        *found = value != NULL;
        if (value) *out = *value;
    } else if (v.kind == QN_J_CYCLER && qn_jstring_is(name, "current")) {
        *found = 1;
        *out = v.o->cycler.items[v.o->cycler.next];
    } else if (v.kind == QN_J_LIST && v.l->shape == QN_JSHAPE_GROUP) {
        *found = qn_jstring_is(name, "grouper") || qn_jstring_is(name, "list");
        if (*found) *out = v.l->items[name->data[0] == 'l'];
    }
    return QN_OK;
}

qn_status qn_jgetattr(qn_jrun *r, qn_jvalue v, const qn_jstring *name, qn_jvalue *out)
{
    int found;
    QN_TRY(own_attribute(r, v, name, out, &found));
    if (found) return QN_OK;
    if (v.kind == QN_J_DICT) {
        qn_jvalue key = {.kind = QN_J_STRING, .s = (qn_jstring *)name}, *value;
        QN_TRY(qn_jdict_get(&r->heap, v.d, key, &value));
        if (value) {
            *out = *value;
            return QN_OK;
        }
    }
    return undefined_attribute(r, v, name, out);
}

/* The item at a position that may count from the end; 0: out of range. */
static int position(int64_t i, int64_t n, int64_t *at)
{
    if (i < 0) i += n;
    *at = i;
    return i >= 0 && i < n;
}

static qn_status key_undefined(qn_jrun *r, qn_jvalue v, qn_jvalue key, qn_jvalue *out)
{
    if (key.kind == QN_J_STRING) return undefined_attribute(r, v, key.s, out);
    qn_jbuild b;
    qn_jvalue text;
    qn_jbuild_init(&b, &r->heap);
    QN_TRY(qn_jwrite_repr(r, &b, key));
    QN_TRY(qn_jbuild_take(&b, &text));
    QN_TRY(qn_jundefined(&r->heap, qn_jvalue_type(v), text.s->data, text.s->n, 0, out));
    ((qn_jhint *)(uintptr_t)out->hint)->is_element = 1;
    return QN_OK;
}

qn_status qn_jgetitem(qn_jrun *r, qn_jvalue v, qn_jvalue key, qn_jvalue *out)
{
    int64_t at;
    if (v.kind == QN_J_UNDEFINED) return qn_jfail_undefined(v);
    if (v.kind == QN_J_DICT) {
        qn_jvalue *value;
        if (key.kind == QN_J_LIST || key.kind == QN_J_DICT) return key_undefined(r, v, key, out);
        QN_TRY(qn_jdict_get(&r->heap, v.d, key, &value));
        if (value) {
            *out = *value;
            return QN_OK;
        }
    } else if (qn_jis_whole(key) && v.kind == QN_J_LIST && v.l->shape <= QN_JSHAPE_RANGE) {
        if (!position(key.i, v.l->n, &at)) return key_undefined(r, v, key, out);
        *out = v.l->items[at];
        return QN_OK;
    } else if (qn_jis_whole(key) && v.kind == QN_J_STRING) {
        if (!position(key.i, qn_jstring_length(v.s), &at)) return key_undefined(r, v, key, out);
        QN_TRY(qn_jheap_scan(&r->heap, v.s->n));
        size_t from = qn_jstring_offset(v.s, at);
        uint32_t c;
        return qn_jstring_bytes(&r->heap, v.s, from, from + qn_jdecode(v.s->data + from, v.s->n - from, &c),
                                out);
    }
    if (key.kind != QN_J_STRING) return key_undefined(r, v, key, out);
    int found;
    QN_TRY(own_attribute(r, v, key.s, out, &found));
    return found ? QN_OK : undefined_attribute(r, v, key.s, out);
}

/* One bound as Python's slice.indices() makes it. */
static qn_status clip(qn_jvalue bound, int64_t n, int64_t step, int64_t otherwise, int64_t *out)
{
    if (bound.kind == QN_J_MISSING || bound.kind == QN_J_NONE) {
        *out = otherwise;
        return QN_OK;
    }
    if (bound.kind == QN_J_UNDEFINED) return qn_jfail_undefined(bound);
    if (!qn_jis_whole(bound))
        return qn_fail(QN_E_ARG, "slice indices must be integers, not %s", qn_jvalue_type(bound));
    int64_t i = bound.i, low = step < 0 ? -1 : 0, high = step < 0 ? n - 1 : n;
    if (i < 0) i += n;
    *out = i < low ? low : i > high ? high : i;
    return QN_OK;
}

static qn_status slice_string(qn_jrun *r, qn_jstring *s, int64_t from, int64_t step, int64_t count,
                              qn_jvalue *out)
{
    QN_TRY(qn_jheap_scan(&r->heap, s->n));
    if (step == 1) {
        size_t start = qn_jstring_offset(s, from), end = qn_jstring_offset(s, from + count);
        return qn_jstring_bytes(&r->heap, s, start, count ? end : start, out);
    }
    qn_jvalue whole = {.kind = QN_J_STRING, .s = s}, *chars;
    int64_t n;
    qn_jbuild b;
    QN_TRY(qn_jvalue_items(&r->heap, whole, &chars, &n));
    qn_jbuild_init(&b, &r->heap);
    for (int64_t i = 0; i < count; i++) qn_jbuild_string(&b, chars[from + i * step].s);
    return qn_jbuild_take(&b, out);
}

qn_status qn_jgetslice(qn_jrun *r, qn_jvalue v, const qn_jvalue bounds[3], qn_jvalue *out)
{
    if (v.kind == QN_J_UNDEFINED) return qn_jfail_undefined(v);
    int is_list = v.kind == QN_J_LIST && v.l->shape <= QN_JSHAPE_RANGE;
    if (!is_list && v.kind != QN_J_STRING)
        return qn_fail(QN_E_ARG, "a '%s' object cannot be sliced", qn_jvalue_type(v));
    int64_t n = is_list ? v.l->n : qn_jstring_length(v.s), step = 1, from = 0, to = 0;
    if (bounds[2].kind != QN_J_MISSING && bounds[2].kind != QN_J_NONE) {
        if (!qn_jis_whole(bounds[2])) return qn_fail(QN_E_ARG, "slice indices must be integers");
        step = bounds[2].i;
        if (!step) return qn_fail(QN_E_ARG, "slice step cannot be zero");
        step = step > n + 1 ? n + 1 : step < -n - 1 ? -n - 1 : step; /* farther makes no difference */
    }
    QN_TRY(clip(bounds[0], n, step, step < 0 ? n - 1 : 0, &from));
    QN_TRY(clip(bounds[1], n, step, step < 0 ? -1 : n, &to));
    int64_t count = 0;
    if (step > 0 && to > from) count = (to - from - 1) / step + 1;
    if (step < 0 && to < from) count = (from - to - 1) / -step + 1;
    if (!is_list) return slice_string(r, v.s, from, step, count, out);
    QN_TRY(qn_jheap_step(&r->heap, (uint64_t)count));
    QN_TRY(qn_jlist_new(&r->heap, v.l->shape == QN_JSHAPE_GROUP ? QN_JSHAPE_TUPLE : v.l->shape, count, v.user,
                        out));
    for (int64_t i = 0; i < count; i++) out->l->items[i] = v.l->items[from + i * step];
    out->l->n = count;
    if (v.l->shape == QN_JSHAPE_RANGE && n) { /* where range(...)[from:to:step] ends for repr() */
        const __int128 first = v.l->items[0].i, stride = n > 1 ? v.l->items[1].i - first : 1,
                       stop = first + to * stride;
        if (stop < INT64_MIN || stop > INT64_MAX)
            return qn_fail(QN_E_ARG, "an integer does not fit into 64 bits");
        out->l->stop = (int64_t)stop;
    }
    return QN_OK;
}

/* One part of a path: digits are a position. */
static qn_status get_part(qn_jrun *r, qn_jvalue v, const qn_jstring *path, size_t from, size_t to,
                          qn_jvalue *out)
{
    int64_t number = 0;
    int digits = to > from && to - from < 18;
    for (size_t i = from; i < to && digits; i++) {
        digits = path->data[i] >= '0' && path->data[i] <= '9';
        number = number * 10 + (path->data[i] - '0');
    }
    if (digits) return qn_jgetitem(r, v, qn_jint(number, 0), out);
    qn_jvalue key;
    QN_TRY(qn_jstring_bytes(&r->heap, path, from, to, &key));
    return qn_jgetitem(r, v, key, out);
}

qn_status qn_jgetpath(qn_jrun *r, qn_jvalue v, qn_jvalue path, qn_jvalue default_value, qn_jvalue *out)
{
    int has_default = default_value.kind != QN_J_MISSING && default_value.kind != QN_J_NONE;
    *out = v;
    if (path.kind == QN_J_MISSING || path.kind == QN_J_NONE) return QN_OK;
    if (path.kind != QN_J_STRING) {
        QN_TRY(qn_jgetitem(r, v, path, out));
        if (has_default && out->kind == QN_J_UNDEFINED) *out = default_value;
        return QN_OK;
    }
    for (size_t from = 0, to; from <= path.s->n; from = to + 1) {
        for (to = from; to < path.s->n && path.s->data[to] != '.';) to++;
        QN_TRY(get_part(r, *out, path.s, from, to, out));
        if (has_default && out->kind == QN_J_UNDEFINED) *out = default_value;
    }
    return QN_OK;
}

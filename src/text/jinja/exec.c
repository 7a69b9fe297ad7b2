/* Statements: scopes, loops, macros and output. */
#include <string.h>

#include "text/jinja/run.h"

/* Scopes. */

static qn_status scope_put(qn_jrun *r, qn_jscope *scope, int32_t name, qn_jvalue value)
{
    QN_TRY(qn_jheap_step(&r->heap, scope->n / 16));
    for (uint32_t i = 0; i < scope->n; i++) {
        if (scope->names[i] != name) continue;
        scope->values[i] = value;
        return QN_OK;
    }
    if (scope->n == scope->capacity) {
        uint32_t capacity = scope->capacity ? scope->capacity * 2 : 4;
        int32_t *names = qn_jheap_alloc(&r->heap, capacity, sizeof *names);
        qn_jvalue *values = names ? qn_jheap_alloc(&r->heap, capacity, sizeof *values) : NULL;
        if (!values) return r->heap.status;
        if (scope->n) memcpy(names, scope->names, scope->n * sizeof *names);
        if (scope->n) memcpy(values, scope->values, scope->n * sizeof *values);
        scope->names = names;
        scope->values = values;
        scope->capacity = capacity;
    }
    scope->names[scope->n] = name;
    scope->values[scope->n++] = value;
    return QN_OK;
}

static qn_status set_name(qn_jrun *r, int32_t name, qn_jvalue value)
{
    if (r->scope) return scope_put(r, r->scope, name, value);
    r->root[name] = value;
    return QN_OK;
}

static qn_status open_scope(qn_jrun *r, qn_jscope *outer)
{
    qn_jscope *scope = qn_jheap_alloc(&r->heap, 1, sizeof *scope);
    if (!scope) return r->heap.status;
    *scope = (qn_jscope){.outer = outer};
    r->scope = scope;
    return QN_OK;
}

/* The blocks of the template by name, each a macro without parameters that sees the outermost names. */
static qn_status make_self(qn_jrun *r, qn_jvalue *out)
{
    QN_TRY(qn_jdict_new(&r->heap, r->program->n_blocks, 0, out));
    for (uint32_t i = 0; i < r->program->n_blocks; i++) {
        qn_jobject *o = qn_jheap_alloc(&r->heap, 1, sizeof *o);
        if (!o) return r->heap.status;
        o->macro.node = r->program->blocks[i];
        o->macro.scope = NULL;
        QN_TRY(qn_jdict_set(&r->heap, out->d, r->program->names[o->macro.node->name],
                            (qn_jvalue){.kind = QN_J_MACRO, .o = o}));
    }
    out->kind = QN_J_NAMESPACE;
    return QN_OK;
}

/* The blocks, a variable of the context, else a global, else undefined. */
static qn_status resolve(qn_jrun *r, int32_t name, qn_jvalue *out)
{
    const qn_jstring *s = r->program->names[name].s;
    if (name == r->program->place_self) return make_self(r, out);
    const json_t *json = json_object_getn(r->context, s->data, s->n);
    if (json) {
        int user = 1;
        for (size_t i = 0; i < r->n_trusted; i++)
            if (qn_jstring_is(s, r->trusted[i])) user = 0;
        return qn_jfrom_json(r, json, user, out);
    }
    if (qn_jglobal_find(s, out)) return QN_OK;
    return qn_jundefined(&r->heap, NULL, s->data, s->n, 0, out);
}

qn_status qn_jname_value(qn_jrun *r, int32_t name, qn_jvalue *out)
{
    for (const qn_jscope *scope = r->scope; scope; scope = scope->outer) {
        for (uint32_t i = 0; i < scope->n; i++) {
            if (scope->names[i] != name) continue;
            *out = scope->values[i];
            return QN_OK;
        }
        QN_TRY(qn_jheap_step(&r->heap, scope->n / 16));
    }
    if (r->root[name].kind == QN_J_MISSING) QN_TRY(resolve(r, name, &r->root[name]));
    *out = r->root[name];
    return QN_OK;
}

static qn_status assign(qn_jrun *r, const qn_jnode *target, qn_jvalue value);

static qn_status assign_tuple(qn_jrun *r, const qn_jnode *target, qn_jvalue value)
{
    qn_jvalue *items;
    int64_t n;
    if (value.kind == QN_J_UNDEFINED) return qn_jfail_undefined(value);
    QN_TRY(qn_jvalue_items(&r->heap, value, &items, &n));
    if (n != target->n_items)
        return qn_fail(QN_E_ARG, "cannot unpack %lld values into %u names", (long long)n, target->n_items);
    for (uint32_t i = 0; i < target->n_items; i++) QN_TRY(assign(r, target->items[i], items[i]));
    return QN_OK;
}

static qn_status assign(qn_jrun *r, const qn_jnode *target, qn_jvalue value)
{
    if (target->kind == QN_JNODE_NAME) return set_name(r, target->name, value);
    if (target->kind == QN_JNODE_TUPLE) return assign_tuple(r, target, value);
    qn_jvalue object;
    QN_TRY(qn_jname_value(r, target->name, &object));
    if (object.kind != QN_J_NAMESPACE)
        return qn_fail(QN_E_ARG, "cannot assign attribute on non-namespace object");
    return qn_jdict_set(&r->heap, object.d, target->value, value);
}

/* Runs a body with its output caught. */
static qn_status capture(qn_jrun *r, qn_jnode *const *body, uint32_t n, qn_jvalue *out)
{
    qn_jbuild *outer = r->out, inner;
    qn_jbuild_init(&inner, &r->heap);
    inner.limit_bytes = r->output_max;
    r->out = &inner;
    qn_status status = qn_jexec(r, body, n);
    r->out = outer;
    if (status != QN_OK) return status;
    return qn_jbuild_take(&inner, out);
}

/* The same in a scope of its own. */
static qn_status capture_scoped(qn_jrun *r, const qn_jnode *n, qn_jvalue *out)
{
    qn_jscope *scope = r->scope;
    QN_TRY(open_scope(r, scope));
    QN_TRY(capture(r, n->items, n->n_items, out));
    r->scope = scope;
    return QN_OK;
}

/* Macros. */

/* place < 0: no expression of the template reads that name. */
static qn_status set_place(qn_jrun *r, int32_t place, qn_jvalue value)
{
    return place < 0 ? QN_OK : set_name(r, place, value);
}

static qn_status named_argument(qn_jrun *r, const qn_jargs *a, const qn_jstring *name, uint8_t *used,
                                qn_jvalue *out)
{
    QN_TRY(qn_jheap_step(&r->heap, a->n_named / 16));
    out->kind = QN_J_MISSING;
    for (uint32_t i = 0; i < a->n_named; i++) {
        const qn_jstring *s = a->names[i].s;
        if (used[i] || s->n != name->n || memcmp(s->data, name->data, s->n)) continue;
        used[i] = 1;
        *out = a->named[i];
    }
    return QN_OK;
}

/* What no parameter took: caller, varargs, kwargs, or an error. */
static qn_status bind_rest(qn_jrun *r, const qn_jnode *n, const qn_jargs *a, const uint8_t *used)
{
    const qn_jparams *params = n->params;
    qn_jvalue rest;
    if (a->n > params->n || params->uses_varargs) {
        uint32_t extra = a->n > params->n ? a->n - params->n : 0;
        if (extra && !params->uses_varargs)
            return qn_fail(QN_E_ARG, "a macro takes at most %u argument(s), %u were given", params->n, a->n);
        QN_TRY(qn_jlist_new(&r->heap, QN_JSHAPE_TUPLE, extra, 0, &rest));
        for (uint32_t i = 0; i < extra; i++) rest.l->items[i] = a->items[params->n + i];
        rest.l->n = extra;
        QN_TRY(set_place(r, r->program->place_varargs, rest));
    }
    if (params->uses_kwargs) QN_TRY(qn_jdict_new(&r->heap, 0, 0, &rest));
    for (uint32_t i = 0; i < a->n_named; i++) {
        if (used[i]) continue;
        if (qn_jstring_is(a->names[i].s, "caller")) {
            QN_TRY(set_place(r, r->program->place_caller, a->named[i]));
            continue;
        }
        int shown = a->names[i].s->n > 60 ? 60 : (int)a->names[i].s->n;
        if (!params->uses_kwargs)
            return qn_fail(QN_E_ARG, "a macro has no keyword argument '%.*s'", shown, a->names[i].s->data);
        QN_TRY(qn_jdict_set(&r->heap, rest.d, a->names[i], a->named[i]));
    }
    return params->uses_kwargs ? set_place(r, r->program->place_kwargs, rest) : QN_OK;
}

static qn_status bind_parameters(qn_jrun *r, const qn_jnode *n, const qn_jargs *a)
{
    const qn_jparams *params = n->params;
    uint8_t *used = qn_jheap_alloc(&r->heap, a->n_named, 1);
    if (!used) return r->heap.status;
    memset(used, 0, a->n_named);
    for (uint32_t i = 0; i < params->n; i++) {
        const qn_jstring *name = r->program->names[params->names[i]].s;
        qn_jvalue value;
        if (i < a->n)
            value = a->items[i];
        else
            QN_TRY(named_argument(r, a, name, used, &value));
        if (value.kind == QN_J_MISSING && params->defaults[i])
            QN_TRY(qn_jeval(r, params->defaults[i], &value));
        if (value.kind == QN_J_MISSING) QN_TRY(qn_jundefined(&r->heap, NULL, name->data, name->n, 0, &value));
        QN_TRY(set_name(r, params->names[i], value));
    }
    return bind_rest(r, n, a, used);
}

qn_status qn_jcall_macro(qn_jrun *r, const qn_jobject *macro, const qn_jargs *a, qn_jvalue *out)
{
    const qn_jnode *n = macro->macro.node;
    qn_jscope *scope = r->scope;
    qn_jflow flow = r->flow;
    QN_TRY(qn_jheap_enter(&r->heap));
    QN_TRY(open_scope(r, macro->macro.scope));
    QN_TRY(bind_parameters(r, n, a));
    QN_TRY(capture(r, n->items, n->n_items, out));
    r->scope = scope;
    r->flow = flow;
    qn_jheap_leave(&r->heap);
    return QN_OK;
}

static qn_status new_macro(qn_jrun *r, const qn_jnode *n, qn_jvalue *out)
{
    qn_jobject *o = qn_jheap_alloc(&r->heap, 1, sizeof *o);
    if (!o) return r->heap.status;
    o->macro.node = n;
    o->macro.scope = r->scope;
    *out = (qn_jvalue){.kind = QN_J_MACRO, .o = o};
    return QN_OK;
}

/* {% call f(x) %}body{% endcall %}: f gets one more named argument, the body as a macro. */
static qn_status exec_call_body(qn_jrun *r, const qn_jnode *n)
{
    qn_jvalue caller, result;
    QN_TRY(new_macro(r, n, &caller));
    QN_TRY(qn_jeval_call_with(r, n->a, caller, &result));
    return qn_jwrite_str(r, r->out, result);
}

/* Loops. */

/* The items that the loop's own `if` lets through. */
static qn_status filter_items(qn_jrun *r, const qn_jnode *n, qn_jvalue **items, int64_t *count)
{
    qn_jscope *scope = r->scope;
    qn_jvalue *kept = qn_jheap_alloc(&r->heap, (size_t)*count, sizeof *kept);
    int64_t n_kept = 0;
    if (!kept) return r->heap.status;
    QN_TRY(open_scope(r, scope));
    for (int64_t i = 0; i < *count; i++) {
        qn_jvalue truth;
        r->scope->n = 0;
        QN_TRY(assign(r, n->a, (*items)[i]));
        QN_TRY(qn_jeval(r, n->c, &truth));
        if (qn_jvalue_truth(truth)) kept[n_kept++] = (*items)[i];
    }
    r->scope = scope;
    *items = kept;
    *count = n_kept;
    return QN_OK;
}

static qn_status new_loop(qn_jrun *r, const qn_jnode *n, int depth0, qn_jvalue *out)
{
    qn_jobject *o = qn_jheap_alloc(&r->heap, 1, sizeof *o);
    if (!o) return r->heap.status;
    memset(o, 0, sizeof *o);
    o->loop.node = n;
    o->loop.scope = r->scope;
    o->loop.depth0 = depth0;
    *out = (qn_jvalue){.kind = QN_J_LOOP, .o = o};
    return QN_OK;
}

static qn_status run_loop(qn_jrun *r, const qn_jnode *n, qn_jvalue iterable, int depth0)
{
    qn_jscope *scope = r->scope;
    qn_jvalue loop, *items;
    int64_t count;
    QN_TRY(qn_jvalue_items(&r->heap, iterable, &items, &count));
    if (n->c) QN_TRY(filter_items(r, n, &items, &count));
    QN_TRY(new_loop(r, n, depth0, &loop));
    loop.o->loop.items = items;
    loop.o->loop.n = count;
    QN_TRY(open_scope(r, scope));
    for (int64_t i = 0; i < count; i++) {
        loop.o->loop.index0 = i;
        QN_TRY(qn_jheap_step(&r->heap, 1));
        r->scope->n = 0;
        QN_TRY(set_place(r, r->program->place_loop, loop));
        QN_TRY(assign(r, n->a, items[i]));
        QN_TRY(qn_jexec(r, n->items, n->n_items));
        qn_jflow flow = r->flow;
        r->flow = QN_JFLOW_ON;
        if (flow == QN_JFLOW_BREAK) break;
    }
    if (!count) QN_TRY(qn_jexec(r, n->else_items, n->n_else));
    r->scope = scope;
    return QN_OK;
}

qn_status qn_jcall_loop(qn_jrun *r, const qn_jobject *loop, const qn_jargs *a, qn_jvalue *out)
{
    if (!loop->loop.node->op)
        return qn_fail(QN_E_ARG, "the loop must have the 'recursive' marker to be called recursively");
    if (a->n != 1 || a->n_named) return qn_fail(QN_E_ARG, "loop() takes one argument");
    qn_jscope *scope = r->scope;
    qn_jbuild *outer = r->out, inner;
    qn_jbuild_init(&inner, &r->heap);
    inner.limit_bytes = r->output_max;
    r->out = &inner;
    r->scope = loop->loop.scope;
    QN_TRY(qn_jheap_enter(&r->heap));
    qn_status status = run_loop(r, loop->loop.node, a->items[0], loop->loop.depth0 + 1);
    r->out = outer;
    r->scope = scope;
    if (status != QN_OK) return status;
    qn_jheap_leave(&r->heap);
    return qn_jbuild_take(&inner, out);
}

static qn_status exec_for(qn_jrun *r, const qn_jnode *n)
{
    qn_jvalue iterable;
    QN_TRY(qn_jeval(r, n->b, &iterable));
    return run_loop(r, n, iterable, 0);
}

/* The rest. */

static qn_status exec_print(qn_jrun *r, const qn_jnode *n)
{
    qn_jvalue v;
    QN_TRY(qn_jeval(r, n->a, &v));
    QN_TRY(qn_jwrite_str(r, r->out, v));
    return r->out->status;
}

static qn_status exec_if(qn_jrun *r, const qn_jnode *n)
{
    for (uint32_t i = 0; i < n->n_items; i += 2) {
        qn_jvalue condition = qn_jbool(1, 0);
        if (n->items[i]) QN_TRY(qn_jeval(r, n->items[i], &condition));
        if (qn_jvalue_truth(condition)) return qn_jexec(r, n->items[i + 1]->items, n->items[i + 1]->n_items);
    }
    return QN_OK;
}

static qn_status exec_set(qn_jrun *r, const qn_jnode *n)
{
    qn_jvalue v;
    if (n->kind == QN_JNODE_SET) {
        QN_TRY(qn_jeval(r, n->b, &v));
    } else {
        QN_TRY(capture_scoped(r, n, &v));
        if (n->b) QN_TRY(qn_japply_filter(r, n->b, v, &v));
    }
    return assign(r, n->a, v);
}

static qn_status exec_filter_body(qn_jrun *r, const qn_jnode *n)
{
    qn_jvalue v;
    QN_TRY(capture_scoped(r, n, &v));
    QN_TRY(qn_japply_filter(r, n->b, v, &v));
    return qn_jwrite_str(r, r->out, v);
}

static qn_status exec_scope(qn_jrun *r, const qn_jnode *n)
{
    qn_jscope *scope = r->scope;
    QN_TRY(open_scope(r, scope));
    QN_TRY(qn_jexec(r, n->items, n->n_items));
    r->scope = scope;
    return QN_OK;
}

static qn_status exec_with(qn_jrun *r, const qn_jnode *n)
{
    qn_jscope *scope = r->scope;
    qn_jvalue v;
    uint32_t n_pairs = n->args->n / 2;
    qn_jvalue *values = qn_jheap_alloc(&r->heap, n_pairs, sizeof *values);
    if (!values) return r->heap.status;
    for (uint32_t i = 0; i < n_pairs; i++) { /* the values see the outside, not each other */
        QN_TRY(qn_jeval(r, n->args->items[i * 2 + 1], &v));
        values[i] = v;
    }
    QN_TRY(open_scope(r, scope));
    for (uint32_t i = 0; i < n_pairs; i++) QN_TRY(assign(r, n->args->items[i * 2], values[i]));
    QN_TRY(qn_jexec(r, n->items, n->n_items));
    r->scope = scope;
    return QN_OK;
}

static qn_status exec_generation(qn_jrun *r, const qn_jnode *n)
{
    size_t from = r->out->n;
    QN_TRY(exec_scope(r, n));
    if (r->out != &r->main_out) return QN_OK; /* caught output has no place yet */
    if (r->n_spans == r->spans_capacity) {
        size_t capacity = r->spans_capacity ? r->spans_capacity * 2 : 16;
        qn_jspan *spans = qn_jheap_alloc(&r->heap, capacity, sizeof *spans);
        if (!spans) return r->heap.status;
        if (r->n_spans) memcpy(spans, r->spans, r->n_spans * sizeof *spans);
        r->spans = spans;
        r->spans_capacity = capacity;
    }
    r->spans[r->n_spans++] = (qn_jspan){.offset = from, .n = r->out->n - from};
    return QN_OK;
}

static qn_status exec_macro(qn_jrun *r, const qn_jnode *n)
{
    qn_jvalue macro;
    QN_TRY(new_macro(r, n, &macro));
    return set_name(r, n->name, macro);
}

static qn_status exec_node(qn_jrun *r, const qn_jnode *n)
{
    qn_jvalue v;
    switch ((qn_jnode_kind)n->kind) {
    case QN_JNODE_DATA:
        qn_jbuild_string(r->out, n->value.s);
        return r->out->status;
    case QN_JNODE_PRINT:
        return exec_print(r, n);
    case QN_JNODE_IF:
        return exec_if(r, n);
    case QN_JNODE_FOR:
        return exec_for(r, n);
    case QN_JNODE_SET:
    case QN_JNODE_SET_BODY:
        return exec_set(r, n);
    case QN_JNODE_MACRO:
        return exec_macro(r, n);
    case QN_JNODE_CALL_BODY:
        return exec_call_body(r, n);
    case QN_JNODE_FILTER_BODY:
        return exec_filter_body(r, n);
    case QN_JNODE_WITH:
        return exec_with(r, n);
    case QN_JNODE_SCOPE:
        return exec_scope(r, n);
    case QN_JNODE_GENERATION:
        return exec_generation(r, n);
    case QN_JNODE_BODY:
        return qn_jexec(r, n->items, n->n_items);
    case QN_JNODE_BREAK:
        r->flow = QN_JFLOW_BREAK;
        return QN_OK;
    case QN_JNODE_CONTINUE:
        r->flow = QN_JFLOW_CONTINUE;
        return QN_OK;
    default:
        return qn_jeval(r, n->a, &v); /* do */
    }
}

qn_status qn_jexec(qn_jrun *r, qn_jnode *const *body, uint32_t n)
{
    QN_TRY(qn_jheap_enter(&r->heap));
    for (uint32_t i = 0; i < n && r->flow == QN_JFLOW_ON; i++) {
        QN_TRY(qn_jheap_step(&r->heap, 1));
        r->line = body[i]->line;
        QN_TRY(exec_node(r, body[i]));
    }
    qn_jheap_leave(&r->heap);
    return QN_OK;
}

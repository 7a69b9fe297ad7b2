/* Expressions. */
#include <string.h>

#include "text/jinja/run.h"

static qn_status eval_items(qn_jrun *r, qn_jnode *const *items, uint32_t n, qn_jvalue *out)
{
    for (uint32_t i = 0; i < n; i++) QN_TRY(qn_jeval(r, items[i], &out[i]));
    return QN_OK;
}

static qn_status eval_list(qn_jrun *r, const qn_jnode *n, qn_jvalue *out)
{
    QN_TRY(qn_jlist_new(&r->heap, n->kind == QN_JNODE_LIST ? QN_JSHAPE_LIST : QN_JSHAPE_TUPLE, n->n_items, 0,
                        out));
    QN_TRY(eval_items(r, n->items, n->n_items, out->l->items));
    out->l->n = n->n_items;
    return QN_OK;
}

static qn_status eval_dict(qn_jrun *r, const qn_jnode *n, qn_jvalue *out)
{
    qn_jvalue dict, key, value;
    QN_TRY(qn_jdict_new(&r->heap, n->n_items / 2, 0, &dict));
    for (uint32_t i = 0; i < n->n_items; i += 2) {
        QN_TRY(qn_jeval(r, n->items[i], &key));
        QN_TRY(qn_jeval(r, n->items[i + 1], &value));
        QN_TRY(qn_jdict_set(&r->heap, dict.d, key, value));
    }
    *out = dict;
    return QN_OK;
}

static qn_status eval_slice(qn_jrun *r, const qn_jnode *n, qn_jvalue *out)
{
    const qn_jnode *parts[3] = {n->b->a, n->b->b, n->b->c};
    qn_jvalue object, bounds[3];
    QN_TRY(qn_jeval(r, n->a, &object));
    for (int i = 0; i < 3; i++) {
        bounds[i] = (qn_jvalue){.kind = QN_J_MISSING};
        if (parts[i]) QN_TRY(qn_jeval(r, parts[i], &bounds[i]));
    }
    return qn_jgetslice(r, object, bounds, out);
}

static qn_status eval_getitem(qn_jrun *r, const qn_jnode *n, qn_jvalue *out)
{
    if (n->b->kind == QN_JNODE_SLICE) return eval_slice(r, n, out);
    qn_jvalue object, key;
    QN_TRY(qn_jeval(r, n->a, &object));
    QN_TRY(qn_jeval(r, n->b, &key));
    return qn_jgetitem(r, object, key, out);
}

static qn_status eval_getattr(qn_jrun *r, const qn_jnode *n, qn_jvalue *out)
{
    qn_jvalue object;
    QN_TRY(qn_jeval(r, n->a, &object));
    return qn_jgetattr(r, object, n->value.s, out);
}

/* *args and **kwargs behind the written arguments. */
static qn_status spread(qn_jrun *r, const qn_jcall *call, qn_jargs *a)
{
    qn_jvalue v, *items;
    int64_t n;
    if (call->star) {
        QN_TRY(qn_jeval(r, call->star, &v));
        QN_TRY(qn_jvalue_items(&r->heap, v, &items, &n));
        qn_jvalue *all = qn_jheap_alloc(&r->heap, a->n + (size_t)n, sizeof *all);
        if (!all) return r->heap.status;
        if (a->n) memcpy(all, a->items, a->n * sizeof *all);
        if (n) memcpy(all + a->n, items, (size_t)n * sizeof *all);
        a->items = all;
        a->n += (uint32_t)n;
    }
    if (!call->star_star) return QN_OK;
    QN_TRY(qn_jeval(r, call->star_star, &v));
    if (v.kind != QN_J_DICT)
        return qn_fail(QN_E_ARG, "argument after ** must be a mapping, not %s", qn_jvalue_type(v));
    size_t total = (size_t)a->n_named + v.d->n;
    qn_jvalue *names = qn_jheap_alloc(&r->heap, total, sizeof *names);
    qn_jvalue *named = names ? qn_jheap_alloc(&r->heap, total, sizeof *named) : NULL;
    if (!named) return r->heap.status;
    if (a->n_named) memcpy(names, a->names, a->n_named * sizeof *names);
    if (a->n_named) memcpy(named, a->named, a->n_named * sizeof *named);
    for (uint32_t i = 0; i < v.d->n; i++) {
        if (v.d->keys[i].kind != QN_J_STRING) return qn_fail(QN_E_ARG, "keywords must be strings");
        names[a->n_named + i] = v.d->keys[i];
        named[a->n_named + i] = v.d->values[i];
    }
    a->names = names;
    a->named = named;
    a->n_named = (uint32_t)total;
    return QN_OK;
}

static qn_status eval_arguments(qn_jrun *r, const qn_jcall *call, qn_jargs *a)
{
    *a = (qn_jargs){0};
    if (!call) return QN_OK;
    a->n = call->n;
    a->n_named = call->n_named;
    a->names = call->names;
    if (call->n + call->n_named) {
        a->items = qn_jheap_alloc(&r->heap, (size_t)call->n + call->n_named, sizeof *a->items);
        if (!a->items) return r->heap.status;
        a->named = a->items + call->n;
    }
    QN_TRY(eval_items(r, call->items, call->n, a->items));
    QN_TRY(eval_items(r, call->named, call->n_named, a->named));
    return call->star || call->star_star ? spread(r, call, a) : QN_OK;
}

static qn_status call_joiner(qn_jheap *h, qn_jobject *joiner, qn_jvalue *out)
{
    if (joiner->joiner.used) {
        *out = joiner->joiner.separator;
        return QN_OK;
    }
    joiner->joiner.used = 1;
    return qn_jstring_borrow(h, "", 0, NULL, 0, out);
}

qn_status qn_jcall_value(qn_jrun *r, qn_jvalue callee, const qn_jargs *a, qn_jvalue *out)
{
    QN_TRY(qn_jheap_step(&r->heap, 1));
    switch ((qn_jkind)callee.kind) {
    case QN_J_FUNCTION:
        return callee.fn(r, qn_jnone(), a, out);
    case QN_J_METHOD:
        return callee.o->method.fn(r, callee.o->method.self, a, out);
    case QN_J_MACRO:
        return qn_jcall_macro(r, callee.o, a, out);
    case QN_J_LOOP:
        return qn_jcall_loop(r, callee.o, a, out);
    case QN_J_JOINER:
        return call_joiner(&r->heap, callee.o, out);
    case QN_J_UNDEFINED:
        return qn_jfail_undefined(callee);
    default:
        return qn_fail(QN_E_ARG, "'%s' object is not callable", qn_jvalue_type(callee));
    }
}

static qn_status eval_call(qn_jrun *r, const qn_jnode *n, qn_jvalue *out)
{
    qn_jvalue callee;
    qn_jargs a;
    QN_TRY(qn_jeval(r, n->a, &callee));
    QN_TRY(eval_arguments(r, n->args, &a));
    r->line = n->line;
    QN_TRY(qn_jcall_value(r, callee, &a, out));
    r->line = n->line;
    return QN_OK;
}

qn_status qn_jeval_call_with(qn_jrun *r, const qn_jnode *n, qn_jvalue caller, qn_jvalue *out)
{
    qn_jvalue callee;
    qn_jargs a;
    QN_TRY(qn_jeval(r, n->a, &callee));
    QN_TRY(eval_arguments(r, n->args, &a));
    qn_jvalue *names = qn_jheap_alloc(&r->heap, (size_t)a.n_named + 1, sizeof *names);
    qn_jvalue *named = names ? qn_jheap_alloc(&r->heap, (size_t)a.n_named + 1, sizeof *named) : NULL;
    if (!named) return r->heap.status;
    if (a.n_named) memcpy(names, a.names, a.n_named * sizeof *names);
    if (a.n_named) memcpy(named, a.named, a.n_named * sizeof *named);
    QN_TRY(qn_jstring_borrow(&r->heap, "caller", 6, NULL, 0, &names[a.n_named]));
    named[a.n_named++] = caller;
    a.names = names;
    a.named = named;
    return qn_jcall_value(r, callee, &a, out);
}

static qn_status fail_unknown(const char *what, const qn_jstring *name)
{
    return qn_fail(QN_E_ARG, "no %s named '%.*s'", what, name->n > 60 ? 60 : (int)name->n, name->data);
}

qn_status qn_japply_filter(qn_jrun *r, const qn_jnode *n, qn_jvalue v, qn_jvalue *out)
{
    if (n->a) QN_TRY(qn_japply_filter(r, n->a, v, &v));
    qn_jargs a;
    QN_TRY(eval_arguments(r, n->args, &a));
    r->line = n->line;
    QN_TRY(qn_jheap_step(&r->heap, 1));
    if (!n->callee) return fail_unknown("filter", n->value.s);
    return qn_jfilter_call(r, n->callee, v, &a, out);
}

static qn_status eval_filter(qn_jrun *r, const qn_jnode *n, qn_jvalue *out)
{
    qn_jvalue v;
    qn_jargs a;
    QN_TRY(qn_jeval(r, n->a, &v));
    QN_TRY(eval_arguments(r, n->args, &a));
    r->line = n->line;
    if (!n->callee) return fail_unknown("filter", n->value.s);
    return qn_jfilter_call(r, n->callee, v, &a, out);
}

static qn_status eval_test(qn_jrun *r, const qn_jnode *n, qn_jvalue *out)
{
    qn_jvalue v;
    qn_jargs a;
    int truth;
    QN_TRY(qn_jeval(r, n->a, &v));
    QN_TRY(eval_arguments(r, n->args, &a));
    r->line = n->line;
    if (!n->callee) return fail_unknown("test", n->value.s);
    QN_TRY(qn_jtest_call(r, n->callee, v, &a, &truth));
    *out = qn_jbool(truth, 0);
    return QN_OK;
}

static qn_status eval_concat(qn_jrun *r, const qn_jnode *n, qn_jvalue *out)
{
    qn_jbuild b;
    size_t total = 0;
    qn_jvalue *parts = qn_jheap_alloc(&r->heap, n->n_items, sizeof *parts);
    if (!parts) return r->heap.status;
    for (uint32_t i = 0; i < n->n_items; i++) {
        QN_TRY(qn_jeval(r, n->items[i], &parts[i]));
        QN_TRY(qn_jstr(r, parts[i], &parts[i]));
        total += parts[i].s->n; /* all of them are in memory, their sum fits */
    }
    QN_TRY(qn_jbuild_exact(&b, &r->heap, total));
    for (uint32_t i = 0; i < n->n_items; i++) qn_jbuild_string(&b, parts[i].s);
    return qn_jbuild_take(&b, out);
}

static qn_status compare(qn_jrun *r, int op, qn_jvalue a, qn_jvalue b, int *truth)
{
    if (op == QN_JOP_EQ || op == QN_JOP_NE) {
        QN_TRY(qn_jvalue_equal(&r->heap, a, b, truth));
        *truth ^= op == QN_JOP_NE;
        return QN_OK;
    }
    if (op == QN_JOP_IN || op == QN_JOP_NOT_IN) {
        QN_TRY(qn_jvalue_contains(&r->heap, b, a, truth));
        *truth ^= op == QN_JOP_NOT_IN;
        return QN_OK;
    }
    int order;
    QN_TRY(qn_jvalue_compare(&r->heap, a, b, &order));
    if (op == '<') *truth = order < 0;
    if (op == '>') *truth = order == 1;
    if (op == QN_JOP_LE) *truth = order <= 0;
    if (op == QN_JOP_GE) *truth = order == 0 || order == 1;
    return QN_OK;
}

static qn_status eval_compare(qn_jrun *r, const qn_jnode *n, qn_jvalue *out)
{
    qn_jvalue left, right;
    int truth = 0;
    QN_TRY(qn_jeval(r, n->items[0], &left));
    for (uint32_t i = 1; i < n->n_items; i++) {
        QN_TRY(qn_jeval(r, n->items[i], &right));
        r->line = n->line;
        QN_TRY(compare(r, n->ops[i - 1], left, right, &truth));
        if (!truth) break;
        left = right;
    }
    *out = qn_jbool(truth, 0);
    return QN_OK;
}

static qn_status eval_binary(qn_jrun *r, const qn_jnode *n, qn_jvalue *out)
{
    qn_jvalue a, b;
    QN_TRY(qn_jeval(r, n->a, &a));
    QN_TRY(qn_jeval(r, n->b, &b));
    r->line = n->line;
    return qn_jbinary(r, n->op, a, b, out);
}

static qn_status eval_unary(qn_jrun *r, const qn_jnode *n, qn_jvalue *out)
{
    qn_jvalue v;
    QN_TRY(qn_jeval(r, n->a, &v));
    if (n->op == '-') return qn_jnegate(r, v, out);
    if (v.kind == QN_J_UNDEFINED) return qn_jfail_undefined(v);
    if (!qn_jis_number(v)) return qn_fail(QN_E_ARG, "bad operand type for unary +: '%s'", qn_jvalue_type(v));
    *out = v.kind == QN_J_FLOAT ? v : qn_jint(v.i, v.user);
    return QN_OK;
}

static qn_status eval_condition(qn_jrun *r, const qn_jnode *n, qn_jvalue *out)
{
    qn_jvalue condition;
    QN_TRY(qn_jeval(r, n->b, &condition));
    if (qn_jvalue_truth(condition)) return qn_jeval(r, n->a, out);
    if (n->c) return qn_jeval(r, n->c, out);
    static const char why[] = "the inline if-expression has no else";
    return qn_jundefined(&r->heap, NULL, why, sizeof why - 1, 0, out);
}

static qn_status eval_logic(qn_jrun *r, const qn_jnode *n, qn_jvalue *out)
{
    qn_jvalue left;
    QN_TRY(qn_jeval(r, n->a, &left));
    if (qn_jvalue_truth(left) == (n->kind == QN_JNODE_OR)) {
        *out = left;
        return QN_OK;
    }
    return qn_jeval(r, n->b, out);
}

static qn_status eval_not(qn_jrun *r, const qn_jnode *n, qn_jvalue *out)
{
    qn_jvalue v;
    QN_TRY(qn_jeval(r, n->a, &v));
    *out = qn_jbool(!qn_jvalue_truth(v), 0);
    return QN_OK;
}

/* Kept thin: this and one eval_* are the stack of one level. */
static qn_status eval_node(qn_jrun *r, const qn_jnode *n, qn_jvalue *out)
{
    switch ((qn_jnode_kind)n->kind) {
    case QN_JNODE_CONST:
        *out = n->value;
        return QN_OK;
    case QN_JNODE_NAME:
        return qn_jname_value(r, n->name, out);
    case QN_JNODE_TUPLE:
    case QN_JNODE_LIST:
        return eval_list(r, n, out);
    case QN_JNODE_DICT:
        return eval_dict(r, n, out);
    case QN_JNODE_GETATTR:
        return eval_getattr(r, n, out);
    case QN_JNODE_GETITEM:
        return eval_getitem(r, n, out);
    case QN_JNODE_CALL:
        return eval_call(r, n, out);
    case QN_JNODE_FILTER:
        return eval_filter(r, n, out);
    case QN_JNODE_TEST:
        return eval_test(r, n, out);
    case QN_JNODE_UNARY:
        return eval_unary(r, n, out);
    case QN_JNODE_NOT:
        return eval_not(r, n, out);
    case QN_JNODE_BINARY:
        return eval_binary(r, n, out);
    case QN_JNODE_CONCAT:
        return eval_concat(r, n, out);
    case QN_JNODE_COMPARE:
        return eval_compare(r, n, out);
    case QN_JNODE_AND:
    case QN_JNODE_OR:
        return eval_logic(r, n, out);
    case QN_JNODE_COND:
        return eval_condition(r, n, out);
    default:
        return qn_fail(QN_E_ARG, "a slice is only allowed as a subscript");
    }
}

qn_status qn_jeval(qn_jrun *r, const qn_jnode *n, qn_jvalue *out)
{
    QN_TRY(qn_jheap_step(&r->heap, 1));
    QN_TRY(qn_jheap_enter(&r->heap));
    r->line = n->line;
    QN_TRY(eval_node(r, n, out));
    qn_jheap_leave(&r->heap);
    return QN_OK;
}

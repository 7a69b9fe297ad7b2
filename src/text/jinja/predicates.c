/* Tests: what may stand after `is`, and the names that select and reject take. */
#include "text/jinja/case.h"

typedef qn_status (*predicate)(qn_jrun *r, qn_jvalue v, qn_jvalue other, int *truth);

typedef struct {
    const char *name;
    int takes_other;
    predicate fn;
} row;

static qn_status test_defined(qn_jrun *r, qn_jvalue v, qn_jvalue other, int *truth)
{
    *truth = v.kind != QN_J_UNDEFINED;
    return QN_OK;
}

static qn_status test_undefined(qn_jrun *r, qn_jvalue v, qn_jvalue other, int *truth)
{
    *truth = v.kind == QN_J_UNDEFINED;
    return QN_OK;
}

static qn_status test_none(qn_jrun *r, qn_jvalue v, qn_jvalue other, int *truth)
{
    *truth = v.kind == QN_J_NONE;
    return QN_OK;
}

static qn_status test_string(qn_jrun *r, qn_jvalue v, qn_jvalue other, int *truth)
{
    *truth = v.kind == QN_J_STRING;
    return QN_OK;
}

static qn_status test_number(qn_jrun *r, qn_jvalue v, qn_jvalue other, int *truth)
{
    *truth = qn_jis_number(v);
    return QN_OK;
}

static qn_status test_integer(qn_jrun *r, qn_jvalue v, qn_jvalue other, int *truth)
{
    *truth = v.kind == QN_J_INT || v.kind == QN_J_BIG;
    return QN_OK;
}

static qn_status test_float(qn_jrun *r, qn_jvalue v, qn_jvalue other, int *truth)
{
    *truth = v.kind == QN_J_FLOAT;
    return QN_OK;
}

static qn_status test_boolean(qn_jrun *r, qn_jvalue v, qn_jvalue other, int *truth)
{
    *truth = v.kind == QN_J_BOOL;
    return QN_OK;
}

static qn_status test_true(qn_jrun *r, qn_jvalue v, qn_jvalue other, int *truth)
{
    *truth = v.kind == QN_J_BOOL && v.i;
    return QN_OK;
}

static qn_status test_false(qn_jrun *r, qn_jvalue v, qn_jvalue other, int *truth)
{
    *truth = v.kind == QN_J_BOOL && !v.i;
    return QN_OK;
}

static qn_status test_mapping(qn_jrun *r, qn_jvalue v, qn_jvalue other, int *truth)
{
    *truth = v.kind == QN_J_DICT;
    return QN_OK;
}

static qn_status test_iterable(qn_jrun *r, qn_jvalue v, qn_jvalue other, int *truth)
{
    *truth = v.kind == QN_J_STRING || v.kind == QN_J_LIST || v.kind == QN_J_DICT ||
             v.kind == QN_J_UNDEFINED || v.kind == QN_J_LOOP;
    return QN_OK;
}

/* It has a length and items by position or key. */
static qn_status test_sequence(qn_jrun *r, qn_jvalue v, qn_jvalue other, int *truth)
{
    *truth = v.kind == QN_J_STRING || v.kind == QN_J_DICT || v.kind == QN_J_UNDEFINED ||
             (v.kind == QN_J_LIST && v.l->shape <= QN_JSHAPE_RANGE);
    return QN_OK;
}

static qn_status test_callable(qn_jrun *r, qn_jvalue v, qn_jvalue other, int *truth)
{
    *truth = v.kind == QN_J_FUNCTION || v.kind == QN_J_METHOD || v.kind == QN_J_MACRO ||
             v.kind == QN_J_LOOP || v.kind == QN_J_JOINER || v.kind == QN_J_UNDEFINED;
    return QN_OK;
}

static qn_status test_divisibleby(qn_jrun *r, qn_jvalue v, qn_jvalue other, int *truth)
{
    qn_jvalue rest;
    if (v.kind == QN_J_STRING) return qn_fail(QN_E_ARG, "expected a number, not str");
    QN_TRY(qn_jbinary(r, '%', v, other, &rest));
    *truth = !qn_jvalue_truth(rest);
    return QN_OK;
}

static qn_status test_even(qn_jrun *r, qn_jvalue v, qn_jvalue other, int *truth)
{
    return test_divisibleby(r, v, qn_jint(2, 0), truth);
}

static qn_status test_odd(qn_jrun *r, qn_jvalue v, qn_jvalue other, int *truth)
{
    QN_TRY(test_divisibleby(r, v, qn_jint(2, 0), truth));
    *truth = !*truth;
    return QN_OK;
}

static qn_status test_eq(qn_jrun *r, qn_jvalue v, qn_jvalue other, int *truth)
{
    return qn_jvalue_equal(&r->heap, v, other, truth);
}

static qn_status test_ne(qn_jrun *r, qn_jvalue v, qn_jvalue other, int *truth)
{
    QN_TRY(qn_jvalue_equal(&r->heap, v, other, truth));
    *truth = !*truth;
    return QN_OK;
}

static qn_status test_lt(qn_jrun *r, qn_jvalue v, qn_jvalue other, int *truth)
{
    int order;
    QN_TRY(qn_jvalue_compare(&r->heap, v, other, &order));
    *truth = order < 0;
    return QN_OK;
}

static qn_status test_le(qn_jrun *r, qn_jvalue v, qn_jvalue other, int *truth)
{
    int order;
    QN_TRY(qn_jvalue_compare(&r->heap, v, other, &order));
    *truth = order <= 0;
    return QN_OK;
}

static qn_status test_gt(qn_jrun *r, qn_jvalue v, qn_jvalue other, int *truth)
{
    return test_lt(r, other, v, truth);
}

static qn_status test_ge(qn_jrun *r, qn_jvalue v, qn_jvalue other, int *truth)
{
    return test_le(r, other, v, truth);
}

static qn_status test_in(qn_jrun *r, qn_jvalue v, qn_jvalue other, int *truth)
{
    return qn_jvalue_contains(&r->heap, other, v, truth);
}

static qn_status test_sameas(qn_jrun *r, qn_jvalue v, qn_jvalue other, int *truth)
{
    *truth = v.kind == other.kind;
    if (!*truth || v.kind == QN_J_NONE) return QN_OK;
    if (v.kind == QN_J_LIST || v.kind == QN_J_DICT || v.kind == QN_J_NAMESPACE)
        *truth = v.l == other.l;
    else
        QN_TRY(qn_jvalue_equal(&r->heap, v, other, truth));
    return QN_OK;
}

static qn_status text_case(qn_jrun *r, qn_jvalue v, int upper, int *truth)
{
    QN_TRY(qn_jstr(r, v, &v));
    *truth = qn_jcase_is(v.s, upper);
    return qn_jheap_walk(&r->heap, v.s->n);
}

static qn_status test_upper(qn_jrun *r, qn_jvalue v, qn_jvalue other, int *truth)
{
    return text_case(r, v, 1, truth);
}

static qn_status test_lower(qn_jrun *r, qn_jvalue v, qn_jvalue other, int *truth)
{
    return text_case(r, v, 0, truth);
}

static qn_status test_escaped(qn_jrun *r, qn_jvalue v, qn_jvalue other, int *truth)
{
    *truth = v.kind == QN_J_STRING && v.s->safe;
    return QN_OK;
}

static qn_status test_filter(qn_jrun *r, qn_jvalue v, qn_jvalue other, int *truth)
{
    *truth = v.kind == QN_J_STRING && qn_jfilter_find(v.s) != NULL;
    return QN_OK;
}

static qn_status test_test(qn_jrun *r, qn_jvalue v, qn_jvalue other, int *truth)
{
    *truth = v.kind == QN_J_STRING && qn_jtest_find(v.s) != NULL;
    return QN_OK;
}

static const row rows[] = {
    {"defined", 0, test_defined},
    {"undefined", 0, test_undefined},
    {"none", 0, test_none},
    {"string", 0, test_string},
    {"mapping", 0, test_mapping},
    {"iterable", 0, test_iterable},
    {"sequence", 0, test_sequence},
    {"number", 0, test_number},
    {"integer", 0, test_integer},
    {"float", 0, test_float},
    {"boolean", 0, test_boolean},
    {"true", 0, test_true},
    {"false", 0, test_false},
    {"callable", 0, test_callable},
    {"even", 0, test_even},
    {"odd", 0, test_odd},
    {"upper", 0, test_upper},
    {"lower", 0, test_lower},
    {"escaped", 0, test_escaped},
    {"filter", 0, test_filter},
    {"test", 0, test_test},
    {"divisibleby", 1, test_divisibleby},
    {"eq", 1, test_eq},
    {"equalto", 1, test_eq},
    {"==", 1, test_eq},
    {"ne", 1, test_ne},
    {"!=", 1, test_ne},
    {"lt", 1, test_lt},
    {"lessthan", 1, test_lt},
    {"<", 1, test_lt},
    {"le", 1, test_le},
    {"<=", 1, test_le},
    {"gt", 1, test_gt},
    {"greaterthan", 1, test_gt},
    {">", 1, test_gt},
    {"ge", 1, test_ge},
    {">=", 1, test_ge},
    {"in", 1, test_in},
    {"sameas", 1, test_sameas},
};

const void *qn_jtest_find(const qn_jstring *name)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (qn_jstring_is(name, rows[i].name)) return &rows[i];
    return NULL;
}

qn_status qn_jtest_call(qn_jrun *r, const void *test, qn_jvalue v, const qn_jargs *a, int *truth)
{
    const row *t = test;
    qn_jvalue bound[1] = {{.kind = QN_J_MISSING}};
    QN_TRY(qn_jheap_step(&r->heap, 1));
    QN_TRY(qn_jargs_bind(r, t->name, a, t->takes_other ? "other" : "", t->takes_other, bound));
    return t->fn(r, v, bound[0], truth);
}

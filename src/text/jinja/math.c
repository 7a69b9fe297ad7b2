/* Arithmetic as Python does it: integers of 64 bits, and big.h for what does not fit. */
#include <math.h>

#include "base/checked.h"
#include "text/jinja/big.h"
#include "text/jinja/run.h"

static const char *op_text(int op)
{
    static const char *const texts[] = {"+", "-", "*", "/", "%", "//", "**"};
    static const int ops[] = {'+', '-', '*', '/', '%', QN_JOP_FLOORDIV, QN_JOP_POW};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (ops[i] == op) return texts[i];
    return "?";
}

static qn_status fail_types(int op, qn_jvalue a, qn_jvalue b)
{
    if (a.kind == QN_J_UNDEFINED) return qn_jfail_undefined(a);
    if (b.kind == QN_J_UNDEFINED) return qn_jfail_undefined(b);
    return qn_fail(QN_E_ARG, "unsupported operand types for %s: '%s' and '%s'", op_text(op),
                   qn_jvalue_type(a), qn_jvalue_type(b));
}

static qn_status int_power(int64_t base, int64_t exponent, int user, qn_jvalue *out, int *fits)
{
    if (exponent < 0) {
        if (!base) return qn_fail(QN_E_ARG, "0 cannot be raised to a negative power");
        *out = qn_jfloat(pow((double)base, (double)exponent), user);
        return QN_OK;
    }
    int64_t result = 1;
    while (exponent) {
        if ((exponent & 1) && __builtin_mul_overflow(result, base, &result)) *fits = 0;
        exponent >>= 1;
        if (exponent && __builtin_mul_overflow(base, base, &base)) *fits = 0;
        if (!*fits) return QN_OK;
    }
    *out = qn_jint(result, user);
    return QN_OK;
}

/* Quotient and rest as in Python: the rest has the divisor's sign. */
static qn_status int_divide(int64_t a, int64_t b, int want_rest, int64_t *out, int *bad)
{
    if (!b)
        return qn_fail(QN_E_ARG, "%s",
                       want_rest ? "integer modulo by zero" : "integer division or modulo by zero");
    if (b == -1) {
        if (!want_rest) *bad = __builtin_sub_overflow(0, a, out);
        if (want_rest) *out = 0;
        return QN_OK;
    }
    int64_t quotient = a / b, rest = a % b;
    if (rest && (rest < 0) != (b < 0)) {
        quotient--;
        rest += b;
    }
    *out = want_rest ? rest : quotient;
    return QN_OK;
}

/* *fits 0: the result needs more than 64 bits. */
static qn_status int_binary(int op, int64_t a, int64_t b, int user, qn_jvalue *out, int *fits)
{
    int64_t result = 0;
    int bad = 0;
    switch (op) {
    case '+':
        bad = __builtin_add_overflow(a, b, &result);
        break;
    case '-':
        bad = __builtin_sub_overflow(a, b, &result);
        break;
    case '*':
        bad = __builtin_mul_overflow(a, b, &result);
        break;
    case '%':
        QN_TRY(int_divide(a, b, 1, &result, &bad));
        break;
    case QN_JOP_FLOORDIV:
        QN_TRY(int_divide(a, b, 0, &result, &bad));
        break;
    case QN_JOP_POW:
        return int_power(a, b, user, out, fits);
    default:
        if (!b) return qn_fail(QN_E_ARG, "division by zero");
        *out = qn_jfloat((double)a / (double)b, user);
        return QN_OK;
    }
    *fits = !bad;
    *out = qn_jint(result, user);
    return QN_OK;
}

static qn_status float_binary(int op, double a, double b, int user, qn_jvalue *out)
{
    double result = 0;
    if ((op == '/' || op == '%' || op == QN_JOP_FLOORDIV) && b == 0)
        return qn_fail(QN_E_ARG, "division by zero");
    switch (op) {
    case '+':
        result = a + b;
        break;
    case '-':
        result = a - b;
        break;
    case '*':
        result = a * b;
        break;
    case '/':
        result = a / b;
        break;
    case QN_JOP_POW:
        if (a == 0 && b < 0) return qn_fail(QN_E_ARG, "0.0 cannot be raised to a negative power");
        if (a < 0 && b != floor(b))
            return qn_fail(QN_E_ARG, "a negative number to a fractional power is complex");
        result = pow(a, b);
        if (isinf(result) && !isinf(a) && !isinf(b)) return qn_fail(QN_E_ARG, "a float is out of range");
        break;
    default: {
        double rest = fmod(a, b);
        if (rest && (rest < 0) != (b < 0)) rest += b;
        double quotient = (a - rest) / b, whole = floor(quotient);
        if (quotient - whole > 0.5) whole += 1;
        result = op == '%' ? (rest ? rest : copysign(0.0, b)) : quotient ? whole : copysign(0.0, a / b);
    }
    }
    *out = qn_jfloat(result, user);
    return QN_OK;
}

static qn_status repeat_string(qn_jrun *r, const qn_jstring *s, int64_t times, qn_jvalue *out)
{
    qn_jbuild b;
    qn_jbuild_init(&b, &r->heap);
    if (times > 0 && s->n) {
        size_t total;
        if (!qn_mul_size(s->n, (size_t)times, &total) || total > r->output_max)
            return qn_fail(QN_E_FULL, "more than %zu bytes of output", r->output_max);
        QN_TRY(qn_jheap_step(&r->heap, (uint64_t)times / 8));
        QN_TRY(qn_jbuild_exact(&b, &r->heap, total));
        for (int64_t i = 0; i < times && b.status == QN_OK; i++) qn_jbuild_string(&b, s);
    }
    return qn_jbuild_take(&b, out);
}

static qn_status repeat_list(qn_jrun *r, qn_jvalue v, int64_t times, qn_jvalue *out)
{
    int64_t total;
    if (times < 0) times = 0;
    if (!qn_mul_i64(v.l->n, times, &total)) return qn_fail(QN_E_FULL, "a list has more than 2^63 items");
    QN_TRY(qn_jheap_step(&r->heap, (uint64_t)total));
    QN_TRY(qn_jlist_new(&r->heap, v.l->shape, total, v.user, out));
    for (int64_t i = 0; i < total; i++) out->l->items[i] = v.l->items[i % v.l->n];
    out->l->n = total;
    return QN_OK;
}

static int is_plain_list(qn_jvalue v)
{
    return v.kind == QN_J_LIST && v.l->shape <= QN_JSHAPE_GROUP;
}

static qn_status join_lists(qn_jrun *r, qn_jvalue a, qn_jvalue b, qn_jvalue *out)
{
    int64_t n = a.l->n + b.l->n;
    QN_TRY(qn_jheap_step(&r->heap, (uint64_t)n));
    QN_TRY(qn_jlist_new(&r->heap, a.l->shape == QN_JSHAPE_LIST ? QN_JSHAPE_LIST : QN_JSHAPE_TUPLE, n,
                        a.user | b.user, out));
    for (int64_t i = 0; i < n; i++) out->l->items[i] = i < a.l->n ? a.l->items[i] : b.l->items[i - a.l->n];
    out->l->n = n;
    return QN_OK;
}

static qn_status concat_strings(qn_jrun *r, qn_jvalue a, qn_jvalue b, qn_jvalue *out)
{
    qn_jbuild joined;
    int safe = a.s->safe | b.s->safe;
    if (safe && !a.s->safe) QN_TRY(qn_jescape(r, a.s, &a));
    if (safe && !b.s->safe) QN_TRY(qn_jescape(r, b.s, &b));
    QN_TRY(qn_jbuild_exact(&joined, &r->heap, a.s->n + b.s->n));
    qn_jbuild_string(&joined, a.s);
    qn_jbuild_string(&joined, b.s);
    QN_TRY(qn_jbuild_take(&joined, out));
    out->s->safe = (uint8_t)safe;
    return QN_OK;
}

static int is_integer(qn_jvalue v)
{
    return qn_jis_whole(v) || v.kind == QN_J_BIG;
}

/* An integer beyond the range of floats. */
static int is_huge(qn_jvalue v)
{
    return v.kind == QN_J_BIG && isinf(qn_jvalue_double(v));
}

/* One of the two at least is beyond 64 bits. */
static qn_status big_binary(qn_jrun *r, int op, qn_jvalue a, qn_jvalue b, qn_jvalue *out)
{
    const int is_negative = b.kind == QN_J_BIG ? b.big->negative : b.i < 0;
    if (op != '/' && !(op == QN_JOP_POW && is_negative)) return qn_jbig_binary(&r->heap, op, a, b, out);
    const double x = qn_jvalue_double(a), y = qn_jvalue_double(b);
    if (op == '/' && y == 0) return qn_fail(QN_E_ARG, "division by zero");
    if (isinf(x) || isinf(y)) return qn_fail(QN_E_ARG, "integer division result too large for a float");
    *out = qn_jfloat(op == '/' ? x / y : pow(x, y), a.user | b.user);
    return QN_OK;
}

qn_status qn_jbinary(qn_jrun *r, int op, qn_jvalue a, qn_jvalue b, qn_jvalue *out)
{
    int user = a.user | b.user;
    if (qn_jis_whole(a) && qn_jis_whole(b)) {
        int fits = 1;
        QN_TRY(int_binary(op, a.i, b.i, user, out, &fits));
        return fits ? QN_OK : qn_jbig_binary(&r->heap, op, a, b, out);
    }
    if (is_integer(a) && is_integer(b)) return big_binary(r, op, a, b, out);
    if (qn_jis_number(a) && qn_jis_number(b) && (is_huge(a) || is_huge(b)))
        return qn_fail(QN_E_ARG, "int too large to convert to float");
    if (qn_jis_number(a) && qn_jis_number(b))
        return float_binary(op, qn_jvalue_double(a), qn_jvalue_double(b), user, out);
    if (op == '%' && a.kind == QN_J_STRING) return qn_jformat_percent(r, a.s, b, out);
    if (op == '+') {
        if (a.kind == QN_J_STRING && b.kind == QN_J_STRING) return concat_strings(r, a, b, out);
        if (is_plain_list(a) && is_plain_list(b) &&
            (a.l->shape == QN_JSHAPE_LIST) == (b.l->shape == QN_JSHAPE_LIST))
            return join_lists(r, a, b, out);
    }
    if (op == '*') {
        if (a.kind == QN_J_STRING && qn_jis_whole(b)) return repeat_string(r, a.s, b.i, out);
        if (b.kind == QN_J_STRING && qn_jis_whole(a)) return repeat_string(r, b.s, a.i, out);
        if (is_plain_list(a) && qn_jis_whole(b)) return repeat_list(r, a, b.i, out);
        if (is_plain_list(b) && qn_jis_whole(a)) return repeat_list(r, b, a.i, out);
        if ((a.kind == QN_J_BIG && (b.kind == QN_J_STRING || is_plain_list(b))) ||
            (b.kind == QN_J_BIG && (a.kind == QN_J_STRING || is_plain_list(a))))
            return qn_fail(QN_E_ARG, "cannot fit 'int' into an index-sized integer");
    }
    return fail_types(op, a, b);
}

qn_status qn_jnegate(qn_jrun *r, qn_jvalue v, qn_jvalue *out)
{
    if (v.kind == QN_J_UNDEFINED) return qn_jfail_undefined(v);
    if (v.kind == QN_J_FLOAT) {
        *out = qn_jfloat(-v.f, v.user);
        return QN_OK;
    }
    if (!is_integer(v)) return qn_fail(QN_E_ARG, "bad operand type for unary -: '%s'", qn_jvalue_type(v));
    return qn_jbinary(r, '-', qn_jint(0, v.user), v, out);
}

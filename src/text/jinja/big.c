#include "text/jinja/big.h"

#include <stdio.h>
#include <string.h>

#include "base/c_locale.h"
#include "text/jinja/lex.h"

enum {
    BASE = 1000000000,
    BASE_DIGITS = 9,
    LIMBS_MAX = QN_JBIG_DIGITS_MAX / BASE_DIGITS + 2,
    SMALL_LIMBS = 3
};

typedef struct qn_jbig big;

/* An operand, with room for what fits 64 bits. */
typedef struct {
    big value;
    uint32_t limbs[SMALL_LIMBS];
} operand;

static const big *view(qn_jvalue v, operand *room)
{
    if (v.kind == QN_J_BIG) return v.big;
    uint64_t rest = v.i < 0 ? 0 - (uint64_t)v.i : (uint64_t)v.i;
    room->value = (big){.negative = v.i < 0, .limbs = room->limbs};
    for (; rest; rest /= BASE) room->limbs[room->value.n++] = (uint32_t)(rest % BASE);
    return &room->value;
}

static qn_status make(qn_jheap *h, uint32_t n, big *out)
{
    if (n > LIMBS_MAX) return qn_fail(QN_E_FULL, "an integer has more than %d digits", QN_JBIG_DIGITS_MAX);
    *out = (big){.n = n, .limbs = qn_jheap_alloc(h, (size_t)n + 1, sizeof *out->limbs)};
    if (!out->limbs) return h->status;
    memset(out->limbs, 0, ((size_t)n + 1) * sizeof *out->limbs);
    return qn_jheap_step(h, n / 8 + 1);
}

static void trim(big *a)
{
    while (a->n && !a->limbs[a->n - 1]) a->n--;
    if (!a->n) a->negative = 0;
}

/* The value in its form. */
static qn_status give(qn_jheap *h, big *a, int user, qn_jvalue *out)
{
    trim(a);
    unsigned __int128 whole = 0;
    for (uint32_t i = a->n; a->n <= SMALL_LIMBS && i-- > 0;) whole = whole * BASE + a->limbs[i];
    const unsigned __int128 most = (unsigned __int128)INT64_MAX + (a->negative ? 1 : 0);
    if (a->n <= SMALL_LIMBS && whole <= most) {
        *out = qn_jint(a->negative ? (int64_t)(0 - (uint64_t)whole) : (int64_t)whole, user);
        return QN_OK;
    }
    big *kept = qn_jheap_alloc(h, 1, sizeof *kept);
    if (!kept) return h->status;
    *kept = *a;
    *out = (qn_jvalue){.kind = QN_J_BIG, .user = user != 0, .big = kept};
    return QN_OK;
}

static int compare_sizes(const big *a, const big *b)
{
    if (a->n != b->n) return a->n < b->n ? -1 : 1;
    for (uint32_t i = a->n; i-- > 0;)
        if (a->limbs[i] != b->limbs[i]) return a->limbs[i] < b->limbs[i] ? -1 : 1;
    return 0;
}

int qn_jbig_compare(qn_jvalue x, qn_jvalue y)
{
    operand room_a, room_b;
    const big *a = view(x, &room_a), *b = view(y, &room_b);
    if (a->negative != b->negative) return a->negative ? -1 : 1;
    return a->negative ? compare_sizes(b, a) : compare_sizes(a, b);
}

static qn_status add_sizes(qn_jheap *h, const big *a, const big *b, big *out)
{
    const uint32_t n = a->n > b->n ? a->n : b->n;
    uint32_t carry = 0;
    QN_TRY(make(h, n + 1, out));
    for (uint32_t i = 0; i <= n; i++) {
        const uint32_t sum = carry + (i < a->n ? a->limbs[i] : 0) + (i < b->n ? b->limbs[i] : 0);
        out->limbs[i] = sum % BASE;
        carry = sum / BASE;
    }
    return QN_OK;
}

/* |a| - |b|, where |a| >= |b|. */
static qn_status subtract_sizes(qn_jheap *h, const big *a, const big *b, big *out)
{
    int64_t borrow = 0;
    QN_TRY(make(h, a->n, out));
    for (uint32_t i = 0; i < a->n; i++) {
        int64_t d = (int64_t)a->limbs[i] - (i < b->n ? b->limbs[i] : 0) - borrow;
        borrow = d < 0;
        out->limbs[i] = (uint32_t)(d + borrow * BASE);
    }
    return QN_OK;
}

static qn_status add(qn_jheap *h, const big *a, const big *b, int minus, big *out)
{
    const int b_negative = minus ? !b->negative : b->negative;
    if (a->negative == b_negative) {
        QN_TRY(add_sizes(h, a, b, out));
        out->negative = a->negative;
        return QN_OK;
    }
    const int order = compare_sizes(a, b);
    QN_TRY(order >= 0 ? subtract_sizes(h, a, b, out) : subtract_sizes(h, b, a, out));
    out->negative = order >= 0 ? a->negative : b_negative;
    return QN_OK;
}

static qn_status multiply(qn_jheap *h, const big *a, const big *b, big *out)
{
    QN_TRY(make(h, a->n + b->n, out));
    QN_TRY(qn_jheap_step(h, (uint64_t)a->n * b->n / 16));
    for (uint32_t i = 0; i < a->n; i++) {
        uint64_t carry = 0;
        for (uint32_t j = 0; j < b->n || carry; j++) {
            const uint64_t at =
                out->limbs[i + j] + carry + (j < b->n ? (uint64_t)a->limbs[i] * b->limbs[j] : 0);
            out->limbs[i + j] = (uint32_t)(at % BASE);
            carry = at / BASE;
        }
    }
    out->negative = a->negative != b->negative;
    return QN_OK;
}

/* rest -= b * q at limb `at`; 1: it would be negative, then rest is as it was. */
static int take_times(big *rest, const big *b, uint32_t q, uint32_t at, int test)
{
    int64_t carry = 0;
    for (uint32_t i = 0; i <= b->n; i++) {
        const uint32_t place = at + i;
        const int64_t have = place <= rest->n ? rest->limbs[place] : 0;
        int64_t d = have - carry - (i < b->n ? (int64_t)((uint64_t)b->limbs[i] * q % BASE) : 0);
        carry = i < b->n ? (int64_t)((uint64_t)b->limbs[i] * q / BASE) : 0;
        while (d < 0) {
            d += BASE;
            carry++;
        }
        if (!test) rest->limbs[place] = (uint32_t)d;
    }
    return carry > 0;
}

/* Schoolbook division of sizes: each limb of the quotient by halving. */
static qn_status divide_sizes(qn_jheap *h, const big *a, const big *b, big *quotient, big *rest)
{
    QN_TRY(make(h, a->n, quotient));
    QN_TRY(make(h, a->n, rest));
    memcpy(rest->limbs, a->limbs, a->n * sizeof *a->limbs);
    QN_TRY(qn_jheap_step(h, (uint64_t)a->n * b->n * 2));
    for (uint32_t at = a->n >= b->n ? a->n - b->n + 1 : 0; at-- > 0;) {
        uint32_t low = 0, high = BASE - 1;
        while (low < high) {
            const uint32_t middle = low + (high - low + 1) / 2;
            if (take_times(rest, b, middle, at, 1))
                high = middle - 1;
            else
                low = middle;
        }
        take_times(rest, b, low, at, 0);
        quotient->limbs[at] = low;
    }
    trim(quotient);
    trim(rest);
    return QN_OK;
}

/* As in Python: the rest has the divisor's sign. */
static qn_status divide(qn_jheap *h, const big *a, const big *b, int want_rest, big *out)
{
    static uint32_t one_limb[] = {1};
    const big one = {.n = 1, .limbs = one_limb};
    big quotient, rest, moved;
    if (!b->n)
        return qn_fail(QN_E_ARG, "%s",
                       want_rest ? "integer modulo by zero" : "integer division or modulo by zero");
    QN_TRY(divide_sizes(h, a, b, &quotient, &rest));
    const int differ = a->negative != b->negative, moves = differ && rest.n;
    if (moves) {
        QN_TRY(add_sizes(h, &quotient, &one, &moved));
        quotient = moved;
        QN_TRY(subtract_sizes(h, b, &rest, &moved));
        rest = moved;
    }
    quotient.negative = differ;
    rest.negative = b->negative;
    *out = want_rest ? rest : quotient;
    return QN_OK;
}

static qn_status power(qn_jheap *h, const big *base, qn_jvalue exponent, big *out)
{
    static uint32_t one_limb[] = {1};
    big result = {.n = 1, .limbs = one_limb}, square = *base, next;
    int is_unit = base->n == 0 || (base->n == 1 && base->limbs[0] == 1);
    if (exponent.kind == QN_J_BIG && !is_unit)
        return qn_fail(QN_E_FULL, "an integer has more than %d digits", QN_JBIG_DIGITS_MAX);
    uint64_t rest = exponent.kind == QN_J_BIG ? 2 + exponent.big->limbs[0] % 2 : (uint64_t)exponent.i;
    while (rest) {
        if (rest & 1) {
            QN_TRY(multiply(h, &result, &square, &next));
            trim(&next);
            result = next;
        }
        rest >>= 1;
        if (!rest) break;
        QN_TRY(multiply(h, &square, &square, &next));
        trim(&next);
        square = next;
    }
    *out = result;
    return QN_OK;
}

qn_status qn_jbig_binary(qn_jheap *h, int op, qn_jvalue x, qn_jvalue y, qn_jvalue *out)
{
    operand room_a, room_b;
    const big *a = view(x, &room_a), *b = view(y, &room_b);
    big result;
    switch (op) {
    case '+':
    case '-':
        QN_TRY(add(h, a, b, op == '-', &result));
        break;
    case '*':
        QN_TRY(multiply(h, a, b, &result));
        break;
    case QN_JOP_POW:
        QN_TRY(power(h, a, y, &result));
        break;
    default:
        QN_TRY(divide(h, a, b, op == '%', &result));
        break;
    }
    return give(h, &result, x.user | y.user, out);
}

qn_status qn_jbig_parse(qn_jheap *h, const char *digits, size_t n, int base, int user, qn_jvalue *out)
{
    big result;
    if (n > 4 * (size_t)QN_JBIG_DIGITS_MAX)
        return qn_fail(QN_E_FULL, "an integer has more than %d digits", QN_JBIG_DIGITS_MAX);
    QN_TRY(make(h, (uint32_t)(n / (base == 16 ? 7 : BASE_DIGITS) + 1), &result));
    QN_TRY(qn_jheap_step(h, (uint64_t)n * result.n / 16));
    for (size_t i = 0; i < n; i++) {
        if (digits[i] == '_') continue;
        const char c = digits[i] | 0x20;
        uint64_t carry = (uint64_t)(digits[i] <= '9' ? digits[i] - '0' : c - 'a' + 10);
        for (uint32_t k = 0; k < result.n; k++) {
            carry += (uint64_t)result.limbs[k] * (uint32_t)base;
            result.limbs[k] = (uint32_t)(carry % BASE);
            carry /= BASE;
        }
    }
    return give(h, &result, user, out);
}

static size_t put_digits(const big *a, char *text)
{
    size_t n = 0;
    if (a->negative) text[n++] = '-';
    n += (size_t)snprintf(text + n, 16, "%u", (unsigned)a->limbs[a->n - 1]);
    for (uint32_t i = a->n - 1; i-- > 0;) n += (size_t)snprintf(text + n, 16, "%09u", (unsigned)a->limbs[i]);
    return n;
}

double qn_jbig_double(const big *a)
{
    char text[LIMBS_MAX * BASE_DIGITS + 32];
    text[put_digits(a, text)] = 0;
    return qn_parse_real(text, NULL);
}

void qn_jbig_write(qn_jbuild *b, const big *a, int user)
{
    char text[LIMBS_MAX * BASE_DIGITS + 32];
    const size_t n = put_digits(a, text);
    qn_jbuild_bytes(b, text, n, user);
}

qn_status qn_jbig_digits(qn_jheap *h, const big *a, int base, char **out)
{
    const size_t size = (size_t)a->n * (base == 2 ? 30 : BASE_DIGITS + 1) + 2; /* a limb has 30 bits */
    big rest = {0};
    char *digits = qn_jheap_alloc(h, size, 1);
    size_t n = 0;
    if (!digits) return h->status;
    QN_TRY(make(h, a->n, &rest));
    QN_TRY(qn_jheap_step(h, (uint64_t)a->n * size / 32));
    memcpy(rest.limbs, a->limbs, a->n * sizeof *a->limbs);
    do {
        uint64_t digit = 0;
        for (uint32_t i = rest.n; i-- > 0;) {
            digit = digit * BASE + rest.limbs[i];
            rest.limbs[i] = (uint32_t)(digit / (uint32_t)base);
            digit %= (uint32_t)base;
        }
        digits[n++] = "0123456789abcdef"[digit];
        trim(&rest);
    } while (rest.n);
    for (size_t i = 0; i < n / 2; i++) {
        const char c = digits[i];
        digits[i] = digits[n - 1 - i];
        digits[n - 1 - i] = c;
    }
    digits[n] = 0;
    *out = digits;
    return QN_OK;
}

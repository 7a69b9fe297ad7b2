#include "constrain/validate/decimal.h"

#include <string.h>

static const int64_t EXPONENT_MAX = 1000000000000000;

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

size_t qn_decimal_length(const char *text, size_t n)
{
    size_t i = n && *text == '-' ? 1 : 0, begin = i;
    while (i < n && is_digit(text[i])) i++;
    if (i == begin || (text[begin] == '0' && i > begin + 1)) return 0;
    if (i + 1 < n && text[i] == '.' && is_digit(text[i + 1]))
        for (i++; i < n && is_digit(text[i]);) i++;
    if (i + 1 < n && (text[i] == 'e' || text[i] == 'E')) {
        size_t j = i + 1;
        if (text[j] == '+' || text[j] == '-') j++;
        if (j < n && is_digit(text[j]))
            for (i = j; i < n && is_digit(text[i]);) i++;
    }
    return i;
}

qn_decimal qn_decimal_read(const char *text, size_t n)
{
    qn_decimal d = {.text = text, .n_text = (uint32_t)n};
    size_t i = n && *text == '-' ? 1 : 0, first = n, last = n, point = n, end = i;
    d.is_negative = (uint8_t)i;
    for (; end < n && text[end] != 'e' && text[end] != 'E'; end++) {
        if (text[end] == '.') {
            point = end;
        } else if (text[end] != '0') {
            if (first == n) first = end;
            last = end;
        }
    }
    if (first == n) {
        d.is_negative = 0; /* -0 is 0 */
        return d;
    }
    int64_t exponent = 0;
    if (end < n) {
        int negative = text[end + 1] == '-';
        for (i = end + 1; i < n; i++)
            if (is_digit(text[i]) && exponent < EXPONENT_MAX) exponent = exponent * 10 + (text[i] - '0');
        if (exponent > EXPONENT_MAX) exponent = EXPONENT_MAX;
        if (negative) exponent = -exponent;
    }
    if (point == n) point = end;
    d.digits = text + first;
    d.n_bytes = (uint32_t)(last - first + 1);
    d.n_digits = d.n_bytes - (first < point && point < last);
    /* The last digit stands so many places behind the point, or before it. */
    d.exponent = exponent + (last < point ? (int64_t)(point - last - 1) : -(int64_t)(last - point));
    return d;
}

/* Digit i of the digits, past the end 0. *at walks over the bytes. */
static int next_digit(const qn_decimal *d, uint32_t *at)
{
    if (*at < d->n_bytes && d->digits[*at] == '.') ++*at;
    return *at < d->n_bytes ? d->digits[(*at)++] - '0' : 0;
}

int qn_decimal_compare(const qn_decimal *a, const qn_decimal *b)
{
    if (!a->n_digits && !b->n_digits) return 0;
    if (!a->n_digits) return b->is_negative ? 1 : -1;
    if (!b->n_digits) return a->is_negative ? -1 : 1;
    int sign = a->is_negative ? -1 : 1;
    if (a->is_negative != b->is_negative) return sign;
    /* The place of the first digit decides, then the digits. */
    int64_t top_a = a->exponent + a->n_digits, top_b = b->exponent + b->n_digits;
    if (top_a != top_b) return top_a > top_b ? sign : -sign;
    uint32_t n = a->n_digits > b->n_digits ? a->n_digits : b->n_digits, at_a = 0, at_b = 0;
    for (uint32_t i = 0; i < n; i++) {
        int x = next_digit(a, &at_a), y = next_digit(b, &at_b);
        if (x != y) return x > y ? sign : -sign;
    }
    return 0;
}

int qn_decimal_is_integer(const qn_decimal *a)
{
    return !a->n_digits || a->exponent >= 0;
}

/* ---- division ------------------------------------------------------------------------------------------ */

/* The remainder of long division, in base 10^9, the lowest word first. */
enum { BASE = 1000000000, WORDS = QN_DECIMAL_DIVISOR_MAX / 9 + 3 };
typedef struct {
    uint32_t words[WORDS];
    int n;
} big;

static void big_of(const qn_decimal *d, big *out)
{
    *out = (big){.n = 0};
    uint32_t at = 0;
    for (uint32_t i = 0; i < d->n_digits; i++) {
        uint64_t carry = (uint64_t)next_digit(d, &at);
        for (int k = 0; k < out->n; k++) {
            carry += (uint64_t)out->words[k] * 10;
            out->words[k] = (uint32_t)(carry % BASE);
            carry /= BASE;
        }
        if (carry) out->words[out->n++] = (uint32_t)carry;
    }
}

static int big_less(const big *a, const big *b)
{
    if (a->n != b->n) return a->n < b->n;
    for (int k = a->n; k-- > 0;)
        if (a->words[k] != b->words[k]) return a->words[k] < b->words[k];
    return 0;
}

/* r = (r * 10 + digit) mod b */
static void big_push(big *r, int digit, const big *b)
{
    uint64_t carry = (uint64_t)digit;
    for (int k = 0; k < r->n; k++) {
        carry += (uint64_t)r->words[k] * 10;
        r->words[k] = (uint32_t)(carry % BASE);
        carry /= BASE;
    }
    if (carry) r->words[r->n++] = (uint32_t)carry;
    while (!big_less(r, b)) {
        int64_t borrow = 0;
        for (int k = 0; k < r->n; k++) {
            int64_t v = (int64_t)r->words[k] - (k < b->n ? b->words[k] : 0) - borrow;
            borrow = v < 0;
            r->words[k] = (uint32_t)(v + (borrow ? BASE : 0));
        }
        while (r->n && !r->words[r->n - 1]) r->n--;
    }
}

int qn_decimal_is_multiple(const qn_decimal *a, const qn_decimal *b, int64_t *steps)
{
    if (!a->n_digits) return 1;
    int64_t shift = a->exponent - b->exponent;
    /* a's digits end in no 0, so 10 does not divide them, and neither does anything that 10 divides. */
    if (shift < 0) return 0;
    /* b's digits have fewer factors 2 and 5 than this; more zeros change nothing. */
    if (shift > 4 * (int64_t)b->n_digits) shift = 4 * (int64_t)b->n_digits;
    uint32_t at = 0;
    if (b->n_digits <= 18) {
        uint64_t divisor = 0, r = 0;
        for (uint32_t i = 0; i < b->n_digits; i++) divisor = divisor * 10 + (uint64_t)next_digit(b, &at);
        at = 0;
        for (uint32_t i = 0; i < a->n_digits; i++)
            r = (uint64_t)(((unsigned __int128)r * 10 + (unsigned)next_digit(a, &at)) % divisor);
        for (int64_t i = 0; i < shift && r; i++) r = (uint64_t)((unsigned __int128)r * 10 % divisor);
        *steps += a->n_digits;
        return !r;
    }
    big divisor, r = {.n = 0};
    big_of(b, &divisor);
    for (uint32_t i = 0; i < a->n_digits; i++) big_push(&r, next_digit(a, &at), &divisor);
    for (int64_t i = 0; i < shift && r.n; i++) big_push(&r, 0, &divisor);
    *steps += ((int64_t)a->n_digits + shift) * divisor.n;
    return !r.n;
}

int64_t qn_decimal_to_int64(const qn_decimal *a)
{
    int64_t bound = a->is_negative ? INT64_MIN : INT64_MAX, value = 0;
    if (!a->n_digits) return 0;
    if (a->exponent + a->n_digits > 19) return bound;
    uint32_t at = 0;
    for (int64_t i = 0; i < a->n_digits + a->exponent; i++) {
        int digit = i < a->n_digits ? next_digit(a, &at) : 0;
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, a->is_negative ? -digit : digit, &value))
            return bound;
    }
    return value;
}

uint64_t qn_decimal_hash(const qn_decimal *a)
{
    uint64_t h = 0x9e3779b97f4a7c15u ^ (uint64_t)a->exponent ^ ((uint64_t)a->is_negative << 63);
    uint32_t at = 0;
    if (!a->n_digits) return 1;
    for (uint32_t i = 0; i < a->n_digits; i++) h = (h ^ (uint64_t)next_digit(a, &at)) * 0x100000001b3u;
    return h;
}

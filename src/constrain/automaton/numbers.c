/* Each demand (a bound, a divisor) is an automaton over spellings; the result is what all accept. A spelling is
 * followed digit by digit, so nothing is rounded.
 *
 * Spellings without an exponent are compared and divided as they stand. Those with one are taken if they have
 * one digit, not 0, before the point, since then the exponent alone says how large the number is; zero may have
 * any exponent. */
#include "constrain/automaton/numbers.h"

#include <string.h>

#include "constrain/automaton/explore.h"
#include "constrain/automaton/work.h"

enum {
    DIGITS_MAX = 1200,   /* of a bound */
    EXPONENT_MAX = 2000, /* of a bound and of what is compared with it */
    FRACTION_MAX = 16,   /* digits behind the point if an exponent comes and the number is divided */
    DIVISOR_MAX = 4096,  /* a divisor without its factors of 10 */
};

/* --- Decimal texts --- */

/* sign * 0.d1 d2 ... dn * 10^exponent with d1 and dn not 0; n 0: zero. */
typedef struct {
    int is_negative;
    int32_t n, exponent;
    uint8_t digits[DIGITS_MAX];
} decimal;

static int is_digit(int c)
{
    return c >= '0' && c <= '9';
}

static qn_status parse_decimal(const char *text, const char *what, decimal *out)
{
    const char *p = text;
    int n_before = 0, n_behind = 0;
    int64_t exponent = 0, shift = 0;
    memset(out, 0, sizeof *out);
    if (*p == '-') out->is_negative = 1, p++;
    if (*p == '0' && is_digit(p[1])) goto wrong;
    int32_t n_zeros = 0; /* that stand behind the last digit and count only if another one comes */
    for (int is_behind = 0;; p++) {
        if (*p == '.' && !is_behind && n_before) {
            is_behind = 1;
            continue;
        }
        if (!is_digit(*p)) break;
        if (is_behind) {
            n_behind++;
        } else {
            n_before++;
        }
        if (*p == '0') {
            if (out->n == 0) {
                shift -= is_behind;
            } else {
                n_zeros++;
                shift += !is_behind;
            }
            continue;
        }
        if (out->n + n_zeros + 1 > DIGITS_MAX)
            return qn_fail(QN_E_UNSUPPORTED, "%s: more than %d digits", what, DIGITS_MAX);
        out->n += n_zeros;
        n_zeros = 0;
        out->digits[out->n++] = (uint8_t)(*p - '0');
        shift += !is_behind;
    }
    if (!n_before || (p[-1] == '.')) goto wrong;
    if (*p == 'e' || *p == 'E') {
        int sign = p[1] == '-' ? -1 : 1;
        p += p[1] == '-' || p[1] == '+' ? 2 : 1;
        if (!is_digit(*p)) goto wrong;
        for (; is_digit(*p); p++) exponent = exponent < 1000000 ? exponent * 10 + (*p - '0') : exponent;
        exponent *= sign;
    }
    if (*p) goto wrong;
    if (out->n == 0) {
        out->is_negative = 0;
        return QN_OK;
    }
    exponent += shift;
    if (exponent > EXPONENT_MAX || exponent < -EXPONENT_MAX)
        return qn_fail(QN_E_UNSUPPORTED, "%s: the exponent is beyond %d", what, EXPONENT_MAX);
    out->exponent = (int32_t)exponent;
    return QN_OK;
wrong:
    return qn_fail(QN_E_FORMAT, "%s: \"%.40s\" is not a number", what, text);
}

/* --- The syntax, which all demands share --- */

typedef enum { BEGIN, SIGN, ZERO, WHOLE, POINT, FRACTION, E, E_SIGN, E_DIGITS } phase;

/* The next phase; -1: no number begins so. */
static int next_phase(uint32_t at, uint8_t byte)
{
    switch ((phase)at) {
    case BEGIN:
        if (byte == '-') return SIGN;
        /* fall through */
    case SIGN:
        return byte == '0' ? ZERO : is_digit(byte) ? WHOLE : -1;
    case WHOLE:
        if (is_digit(byte)) return WHOLE;
        /* fall through */
    case ZERO:
        return byte == '.' ? POINT : (byte | 32) == 'e' ? E : -1;
    case POINT:
        return is_digit(byte) ? FRACTION : -1;
    case FRACTION:
        return is_digit(byte) ? FRACTION : (byte | 32) == 'e' ? E : -1;
    case E:
        if (byte == '+' || byte == '-') return E_SIGN;
        /* fall through */
    case E_SIGN:
    case E_DIGITS:
        return is_digit(byte) ? E_DIGITS : -1;
    }
    return -1;
}

static int can_end(uint32_t at)
{
    return at == ZERO || at == WHOLE || at == FRACTION || at == E_DIGITS;
}

static int32_t larger(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

enum { LESS, EQUAL, MORE };

/* An exponent as it is spelled, digit by digit, beside a number: the digits behind leading zeros, cut behind the
 * number's, and how they compare. */
typedef struct {
    uint8_t n, order;
} exponent_state;

static int digits_of(uint32_t number, uint8_t digits[10])
{
    int n = 0;
    for (uint32_t m = number; m; m /= 10) n++;
    for (int i = n; i-- > 0; number /= 10) digits[i] = (uint8_t)(number % 10);
    return n;
}

static uint32_t compare_digit(int digit, int with)
{
    return digit < with ? LESS : digit > with ? MORE : EQUAL;
}

static void move_exponent(exponent_state *e, uint8_t byte, int32_t with)
{
    uint8_t digits[10];
    int n = digits_of((uint32_t)(with < 0 ? -with : with), digits);
    if (e->n == 0 && byte == '0') return;
    if (e->n == 0) e->order = EQUAL;
    if ((int)e->n >= n) {
        e->n = (uint8_t)(n + 1);
        e->order = MORE;
        return;
    }
    if (e->order == EQUAL) e->order = (uint8_t)compare_digit(byte - '0', digits[e->n]);
    e->n++;
}

/* The exponent, with its sign, beside the number. */
static uint32_t compare_exponent(const exponent_state *e, int is_minus, int32_t with)
{
    uint8_t digits[10];
    int n = digits_of((uint32_t)(with < 0 ? -with : with), digits);
    if (e->n == 0) return with > 0 ? LESS : with < 0 ? MORE : EQUAL;
    if (with == 0 || is_minus != (with < 0)) return is_minus ? LESS : MORE;
    uint32_t order = (int)e->n < n ? LESS : (int)e->n > n ? MORE : e->order;
    return is_minus ? MORE - order : order;
}

/* Digits that what is demanded does not tell apart are one class: told[d] is not 0 if digit d has its own. */
static void number_classes(qn_explorer *e, const uint8_t told[10])
{
    qn_explorer_classes(e, "+-.e0", "");
    e->class_of['E'] = e->class_of['e'];
    for (int d = 1; d < 10; d++) {
        if (d == 1 || told[d] || told[d - 1]) e->n_classes++;
        e->class_of['0' + d] = (uint8_t)(e->n_classes - 1);
    }
}

static void tell_exponent(uint8_t told[10], int32_t exponent)
{
    uint8_t digits[10];
    int n = digits_of((uint32_t)(exponent < 0 ? -exponent : exponent), digits);
    for (int i = 0; i < n; i++) told[digits[i]] = 1;
}

/* --- Any number --- */

static int move_any(const void *context, uint32_t *s, uint8_t byte)
{
    int to = next_phase(s[0], byte);
    s[0] = (uint32_t)to;
    return to >= 0;
}

static int accepts_any(const void *context, const uint32_t *s)
{
    return can_end(s[0]);
}

/* --- Bounds --- */

typedef struct {
    decimal limit;
    int is_upper, is_exclusive;
} bound;

typedef struct {       /* small, since states are compared and hashed */
    uint16_t n_whole;  /* digits before the point, cut behind the limit's */
    uint16_t n_behind; /* digits behind the point while they are compared */
    uint16_t n_scaled;
    uint8_t phase, is_negative, is_zero; /* is_zero: no digit but 0 yet */
    uint8_t plain;    /* LESS, EQUAL, MORE: the digits so far, beside the limit's at that place */
    uint8_t scaled;   /* the same for digits with an exponent: place by place from the first */
    uint8_t is_odd;   /* no exponent may come: several digits before the point, or 0.1 */
    uint8_t is_minus; /* of the exponent */
    exponent_state exponent;
    uint8_t unused;
} bound_state;

/* Digit of the limit at 10^-(i+1) * 10^exponent. */
static int limit_digit(const decimal *d, int64_t i)
{
    return i >= 0 && i < d->n ? d->digits[i] : 0;
}

static int move_bound(const void *context, uint32_t *words, uint8_t byte)
{
    const bound *b = context;
    const decimal *d = &b->limit;
    bound_state s;
    memcpy(&s, words, sizeof s);
    int to = next_phase(s.phase, byte);
    if (to < 0) return 0;
    int32_t n_limit_whole = larger(d->exponent, 0); /* digits of the limit before its point */
    if (to == SIGN) s.is_negative = 1;
    if (to == ZERO || to == WHOLE || to == FRACTION) {
        int digit = byte - '0';
        if (digit) s.is_zero = 0;
        if (to == WHOLE) {
            /* With as many digits before the point, the i-th stands beside the limit's i-th. */
            if (s.plain == EQUAL && (int32_t)s.n_whole < n_limit_whole)
                s.plain = compare_digit(digit, limit_digit(d, s.n_whole));
            if ((int32_t)s.n_whole <= n_limit_whole) s.n_whole++;
            if (s.phase == WHOLE) s.is_odd = 1;
        }
        if (to == FRACTION) {
            int32_t n_limit_behind = larger(d->n - d->exponent, 0);
            if (s.phase == POINT && (int32_t)s.n_whole != n_limit_whole)
                s.plain = (int32_t)s.n_whole < n_limit_whole ? LESS : MORE;
            if (s.plain == EQUAL) {
                s.plain = compare_digit(digit, limit_digit(d, (int64_t)d->exponent + s.n_behind));
                if ((int32_t)s.n_behind < n_limit_behind) s.n_behind++;
                if (s.plain != EQUAL) s.n_behind = 0;
            }
            if (s.plain != EQUAL) s.n_behind = 0;
            if (s.n_whole == 0 && digit) s.is_odd = 1; /* 0.1e5 */
        }
        if (!s.is_odd && s.n_whole == 1 && d->n) { /* d.ddd */
            if (s.scaled == EQUAL) {
                s.scaled = compare_digit(digit, limit_digit(d, s.n_scaled));
                if ((int32_t)s.n_scaled < d->n) s.n_scaled++;
            }
            if (s.scaled != EQUAL) s.n_scaled = 0;
        }
        if (s.is_odd) s.scaled = s.n_scaled = 0;
    }
    if (to == E) {
        if (s.is_odd) return 0;
        s.n_whole = s.plain = s.n_behind = 0;
        if (s.scaled == EQUAL && (int32_t)s.n_scaled < d->n) s.scaled = LESS;
        s.n_scaled = 0;
    }
    if (to == E_SIGN) s.is_minus = byte == '-';
    if (to == E_DIGITS && !s.is_zero) move_exponent(&s.exponent, byte, d->exponent - 1);
    s.phase = (uint8_t)to;
    memcpy(words, &s, sizeof s);
    return 1;
}

/* The spelled number's absolute value beside the limit's. */
static uint32_t compare_absolute(const decimal *d, const bound_state *s)
{
    if (s->is_zero) return d->n ? LESS : EQUAL;
    if (d->n == 0) return MORE;
    if (s->phase == E_DIGITS) {
        uint32_t order = compare_exponent(&s->exponent, (int)s->is_minus, d->exponent - 1);
        return order == EQUAL ? s->scaled : order;
    }
    int32_t n_limit_whole = larger(d->exponent, 0), n_limit_behind = larger(d->n - d->exponent, 0);
    if (s->phase != FRACTION && (int32_t)s->n_whole != n_limit_whole)
        return (int32_t)s->n_whole < n_limit_whole ? LESS : MORE;
    if (s->plain != EQUAL) return s->plain;
    return (int32_t)s->n_behind < n_limit_behind ? LESS : EQUAL;
}

static int accepts_bound(const void *context, const uint32_t *words)
{
    const bound *b = context;
    bound_state s;
    memcpy(&s, words, sizeof s);
    if (!can_end(s.phase)) return 0;
    int is_negative = s.is_negative && !s.is_zero;
    uint32_t order = compare_absolute(&b->limit, &s);
    if (is_negative != b->limit.is_negative) {
        order = is_negative ? LESS : s.is_zero && b->limit.n == 0 ? EQUAL : MORE;
    } else if (is_negative) {
        order = MORE - order;
    }
    if (order == EQUAL) return !b->is_exclusive;
    return b->is_upper ? order == LESS : order == MORE;
}

/* --- Bounds of 0: the sign says it, whatever the exponent. --- */

typedef struct {
    uint8_t phase, is_negative, is_zero, unused;
} sign_state;

static int move_sign(const void *context, uint32_t *words, uint8_t byte)
{
    sign_state s;
    memcpy(&s, words, sizeof s);
    int to = next_phase(s.phase, byte);
    if (to < 0) return 0;
    if (to == SIGN) s.is_negative = 1;
    if ((to == WHOLE || to == FRACTION) && byte != '0') s.is_zero = 0;
    s.phase = (uint8_t)to;
    memcpy(words, &s, sizeof s);
    return 1;
}

static int accepts_sign(const void *context, const uint32_t *words)
{
    const bound *b = context;
    sign_state s;
    memcpy(&s, words, sizeof s);
    if (!can_end(s.phase)) return 0;
    if (s.is_zero) return !b->is_exclusive;
    return (int)s.is_negative == b->is_upper;
}

static qn_status bound_automaton(qn_dfa_work *w, const char *text, const char *what, int is_upper,
                                 int is_exclusive, qn_dfa **out)
{
    bound b = {.is_upper = is_upper, .is_exclusive = is_exclusive};
    QN_TRY(parse_decimal(text, what, &b.limit));
    qn_explorer e = {.context = &b};
    uint8_t told[10] = {0};
    for (int32_t i = 0; i < b.limit.n; i++) told[b.limit.digits[i]] = 1;
    if (b.limit.n) tell_exponent(told, b.limit.exponent - 1);
    number_classes(&e, told);
    if (b.limit.n == 0) {
        sign_state start = {.phase = BEGIN, .is_zero = 1};
        e.n_words = sizeof start / sizeof(uint32_t);
        e.move = move_sign;
        e.accepts = accepts_sign;
        return qn_dfa_explore(w, &e, &start, out);
    }
    bound_state start = {.phase = BEGIN, .is_zero = 1, .plain = EQUAL, .scaled = EQUAL};
    e.n_words = sizeof start / sizeof(uint32_t);
    e.move = move_bound;
    e.accepts = accepts_bound;
    return qn_dfa_explore(w, &e, &start, out);
}

/* --- Multiples --- */

/* The divisor is part * 10^zeros / 10^places, where one of zeros and places is 0 and 10 does not divide part. */
typedef struct {
    uint32_t part;
    int32_t zeros, places;
    int32_t n_scaled_max; /* digits behind the point of spellings with an exponent */
    int is_one;           /* the divisor is 1 */
    uint8_t *powers;      /* [part] the least power of 10 that makes a remainder 0; NEVER: none does */
} divisor;

enum { NEVER = 255, OFFSET = 2 * EXPONENT_MAX };

typedef struct {
    /* As it stands: what the digits up to the last place leave, the zeros behind a prefix that is a multiple (cut
     * at `zeros`), the digits behind the point (cut at `places`), whether one behind the last place is not 0. */
    uint16_t rest, n_zeros, n_behind;
    /* With an exponent: what all digits leave, the digits behind the point; is_odd: no exponent may come. */
    uint16_t scaled_rest;
    uint16_t threshold; /* OFFSET + the least exponent that will do */
    uint8_t phase, is_zero, is_broken, n_scaled, is_odd, is_minus;
    exponent_state exponent;
    uint16_t unused;
} divisor_state;

static uint32_t add_digit(const divisor *d, uint32_t rest, int digit)
{
    return d->part == 1 ? 0 : (rest * 10 + (uint32_t)digit) % d->part;
}

static void divide_digit(const divisor *d, divisor_state *s, int is_behind, int digit)
{
    if (is_behind && (int32_t)s->n_behind == d->places) {
        if (digit) s->is_broken = 1, s->rest = s->n_zeros = s->n_behind = 0;
    } else if (!s->is_broken) {
        s->n_zeros = digit || s->rest ? 0 : (int32_t)s->n_zeros < d->zeros ? s->n_zeros + 1 : s->n_zeros;
        s->rest = (uint16_t)add_digit(d, s->rest, digit);
        s->n_behind += (uint32_t)is_behind;
    }
    if (s->is_odd) return;
    s->scaled_rest = (uint16_t)add_digit(d, s->scaled_rest, digit);
    s->n_scaled += (uint32_t)is_behind;
    if ((int32_t)s->n_scaled > d->n_scaled_max) s->is_odd = 1;
}

static int move_divisor(const void *context, uint32_t *words, uint8_t byte)
{
    const divisor *d = context;
    divisor_state s;
    memcpy(&s, words, sizeof s);
    int to = next_phase(s.phase, byte);
    if (to < 0) return 0;
    if (to == WHOLE || to == FRACTION) {
        int was_zero = s.is_zero;
        if (byte != '0') s.is_zero = 0;
        if (to == WHOLE && s.phase == WHOLE) s.is_odd = 1;
        if (to == FRACTION && was_zero) s.is_odd = !s.is_zero; /* 0.1 takes no exponent, 0.0 does */
        if (s.is_broken && s.is_odd) {
            s.n_scaled = s.scaled_rest = 0;
        } else if (!s.is_zero) {
            divide_digit(d, &s, to == FRACTION, byte - '0');
        } else if (to == FRACTION && (int32_t)s.n_behind < d->places) {
            s.n_behind++;
        }
        if (s.is_odd) s.n_scaled = s.scaled_rest = 0;
    }
    if (to == E) {
        uint32_t power = s.is_zero ? 0 : d->powers[s.scaled_rest];
        if (!s.is_zero && (s.is_odd || power == NEVER)) return 0;
        /* For whole numbers, all with a point need the exponent that Python writes at least. The others are rare, and
         * states stay few. */
        int32_t n = d->is_one && s.n_scaled ? d->n_scaled_max : (int32_t)s.n_scaled;
        int32_t least = n - d->places + d->zeros + (int32_t)power;
        divisor_state fresh = {.is_zero = s.is_zero, .threshold = s.is_zero ? 0 : (uint32_t)(OFFSET + least)};
        s = fresh;
    }
    if (to == E_SIGN) s.is_minus = byte == '-';
    if (to == E_DIGITS && !s.is_zero) move_exponent(&s.exponent, byte, (int32_t)s.threshold - OFFSET);
    s.phase = (uint8_t)to;
    memcpy(words, &s, sizeof s);
    return 1;
}

static int accepts_divisor(const void *context, const uint32_t *words)
{
    const divisor *d = context;
    divisor_state s;
    memcpy(&s, words, sizeof s);
    if (!can_end(s.phase)) return 0;
    if (s.is_zero) return 1;
    if (s.phase == E_DIGITS) {
        return compare_exponent(&s.exponent, (int)s.is_minus, (int32_t)s.threshold - OFFSET) != LESS;
    }
    if (s.is_broken || (int32_t)s.n_zeros < d->zeros) return 0;
    uint64_t rest = s.rest;
    for (int32_t i = (int32_t)s.n_behind; i < d->places && rest; i++) rest = rest * 10 % d->part;
    return rest == 0;
}

static qn_status divisor_automaton(qn_dfa_work *w, const char *text, const char *what, qn_dfa **out)
{
    decimal by;
    QN_TRY(parse_decimal(text, what, &by));
    if (by.n == 0 || by.is_negative) return qn_fail(QN_E_FORMAT, "%s: %.40s is not above 0", what, text);
    divisor d = {.zeros = larger(by.exponent - by.n, 0), .places = larger(by.n - by.exponent, 0)};
    uint64_t part = 0;
    for (int32_t i = 0; i < by.n && part <= DIVISOR_MAX; i++) part = part * 10 + by.digits[i];
    if (part > DIVISOR_MAX)
        return qn_fail(QN_E_UNSUPPORTED, "%s: %.40s has too many digits: the limit is %d", what, text,
                       DIVISOR_MAX);
    d.part = (uint32_t)part;
    d.n_scaled_max = (int32_t)(8192 / part);
    if (d.n_scaled_max > FRACTION_MAX) d.n_scaled_max = FRACTION_MAX;
    d.is_one = part == 1 && d.places == 0 && d.zeros == 0;
    d.powers = qn_arena_alloc(&w->arena, part);
    if (!d.powers) return QN_E_NOMEM;
    for (uint32_t r = 0; r < part; r++) {
        uint64_t rest = r;
        int p = 0;
        for (; rest && p < 32; p++) rest = rest * 10 % part;
        d.powers[r] = (uint8_t)(rest ? NEVER : p);
    }
    QN_TRY(qn_dfa_work_steps(w, (int64_t)part * 16));
    qn_explorer e = {.context = &d, .move = move_divisor, .accepts = accepts_divisor};
    uint8_t told[10] = {0};
    if (d.is_one) {
        tell_exponent(told, d.n_scaled_max);
    } else {
        memset(told, 1, sizeof told);
    }
    number_classes(&e, told);
    divisor_state start = {.phase = BEGIN, .is_zero = 1};
    e.n_words = sizeof start / sizeof(uint32_t);
    return qn_dfa_explore(w, &e, &start, out);
}

static qn_status any_number(qn_dfa_work *w, qn_dfa **out)
{
    qn_explorer e = {.n_words = 1, .move = move_any, .accepts = accepts_any};
    number_classes(&e, (const uint8_t[10]){0});
    return qn_dfa_explore(w, &e, &(uint32_t){BEGIN}, out);
}

/* *all becomes what it accepts and d too; d is released. */
static qn_status narrow(const qn_dfa_work *w, qn_dfa **all, qn_dfa *d)
{
    if (!*all) {
        *all = d;
        return QN_OK;
    }
    qn_dfa_limits limits = qn_dfa_work_limits(w);
    qn_dfa *both;
    qn_status s = qn_dfa_intersect(*all, d, &limits, &both);
    qn_dfa_release(d);
    if (s != QN_OK) return s;
    qn_dfa_release(*all);
    *all = both;
    return QN_OK;
}

qn_status qn_dfa_number(const qn_number_bounds *b, const qn_dfa_limits *limits, qn_dfa **out)
{
    const struct {
        const char *text, *name;
        int is_upper, is_exclusive;
    } bounds[] = {
        {b->minimum, "minimum", 0, 0},
        {b->exclusive_minimum, "exclusiveMinimum", 0, 1},
        {b->maximum, "maximum", 1, 0},
        {b->exclusive_maximum, "exclusiveMaximum", 1, 1},
    };
    const char *divisors[] = {b->integer ? "1" : NULL, b->multiple_of};
    qn_dfa_work w;
    qn_dfa_work_begin(&w, limits);
    qn_dfa *all = NULL, *d = NULL;
    qn_status s = QN_OK;
    for (size_t i = 0; i < 2 && s == QN_OK; i++) {
        if (!divisors[i]) continue;
        s = divisor_automaton(&w, divisors[i], "multipleOf", &d);
        if (s == QN_OK) s = narrow(&w, &all, d);
    }
    for (size_t i = 0; i < 4 && s == QN_OK; i++) {
        if (!bounds[i].text) continue;
        s = bound_automaton(&w, bounds[i].text, bounds[i].name, bounds[i].is_upper, bounds[i].is_exclusive,
                            &d);
        if (s == QN_OK) s = narrow(&w, &all, d);
    }
    if (s == QN_OK && !all) s = any_number(&w, &all);
    if (s == QN_OK) {
        *out = all;
    } else {
        qn_dfa_release(all);
    }
    qn_dfa_work_end(&w);
    return s;
}

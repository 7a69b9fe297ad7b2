#include "constrain/machine/escape.h"

#include "base/utf8.h"

/* The kinds of places inside an escape, in the top byte; below them what was read. */
enum {
    SLASH = 0x01000000,     /* \ */
    UNIT = 0x02000000,      /* \u and digits: their number << 16, their value */
    LOW_SLASH = 0x03000000, /* a high surrogate: its 10 bits << 4 */
    LOW_U = 0x04000000,     /* the same and \ */
};
/* A high surrogate (10 bits << 18), \u and digits: number << 16, value. */
static const uint32_t low_unit = UINT32_C(0x80000000);
static const uint32_t kind_mask = UINT32_C(0x7f000000);

static int digit_of(uint8_t byte)
{
    if (byte >= '0' && byte <= '9') return byte - '0';
    if (byte >= 'a' && byte <= 'f') return byte - 'a' + 10;
    if (byte >= 'A' && byte <= 'F') return byte - 'A' + 10;
    return -1;
}

static int encode(uint32_t c, uint8_t text[4])
{
    if (c < 0x80) {
        text[0] = (uint8_t)c;
        return 1;
    }
    if (c < 0x800) {
        text[0] = (uint8_t)(0xc0 | c >> 6);
        text[1] = (uint8_t)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        text[0] = (uint8_t)(0xe0 | c >> 12);
        text[1] = (uint8_t)(0x80 | (c >> 6 & 0x3f));
        text[2] = (uint8_t)(0x80 | (c & 0x3f));
        return 3;
    }
    text[0] = (uint8_t)(0xf0 | c >> 18);
    text[1] = (uint8_t)(0x80 | (c >> 12 & 0x3f));
    text[2] = (uint8_t)(0x80 | (c >> 6 & 0x3f));
    text[3] = (uint8_t)(0x80 | (c & 0x3f));
    return 4;
}

static qn_escape_result whole(uint32_t *escape, uint32_t c, uint8_t text[4], int *n_text)
{
    *escape = 0;
    *n_text = encode(c, text);
    return QN_ESCAPE_CHAR;
}

static qn_escape_result read_digit(uint32_t *escape, uint8_t byte, uint8_t text[4], int *n_text)
{
    uint32_t e = *escape;
    int digit = digit_of(byte);
    if (digit < 0) return QN_ESCAPE_DEAD;
    uint32_t n = (e >> 16 & 3) + 1, value = (e & 0xffff) << 4 | (uint32_t)digit;
    int is_low = (e & low_unit) != 0;
    /* A surrogate shows in its second digit: a low one must follow a high one, and only there. */
    if (is_low && n == 1 && digit != 0xd) return QN_ESCAPE_DEAD;
    if (n == 2 && value >> 4 == 0xd) {
        if (is_low ? value < 0xdc : value >= 0xdc) return QN_ESCAPE_DEAD;
    }
    if (n < 4) {
        *escape = (is_low ? (e & ~UINT32_C(0x3ffff)) : (uint32_t)UNIT) | n << 16 | value;
        return QN_ESCAPE_IN;
    }
    if (is_low) return whole(escape, 0x10000 + ((e >> 18 & 0x3ff) << 10) + (value - 0xdc00), text, n_text);
    if (value >= 0xd800 && value < 0xdc00) {
        *escape = LOW_SLASH | (value - 0xd800) << 4;
        return QN_ESCAPE_IN;
    }
    return whole(escape, value, text, n_text);
}

qn_escape_result qn_escape_decode(uint32_t *escape, uint8_t byte, uint8_t text[4], int *n_text)
{
    uint32_t e = *escape;
    *n_text = 0;
    if (e == 0) {
        if (byte == '"') return QN_ESCAPE_CLOSE;
        if (byte < 0x20) return QN_ESCAPE_DEAD;
        if (byte == '\\') {
            *escape = SLASH;
            return QN_ESCAPE_IN;
        }
        text[0] = byte;
        *n_text = 1;
        if (byte >= 0x80) *escape = byte >= 0xf0 ? 3 : byte >= 0xe0 ? 2 : 1;
        return QN_ESCAPE_BEGUN;
    }
    if (e <= 3) {
        if (byte < 0x80 || byte >= 0xc0) return QN_ESCAPE_DEAD;
        text[0] = byte;
        *n_text = 1;
        *escape = e - 1;
        return QN_ESCAPE_IN;
    }
    if (e & low_unit) return read_digit(escape, byte, text, n_text);
    switch (e & kind_mask) {
    case SLASH:
        switch (byte) {
        case '"':
        case '\\':
        case '/':
            return whole(escape, byte, text, n_text);
        case 'b':
            return whole(escape, '\b', text, n_text);
        case 'f':
            return whole(escape, '\f', text, n_text);
        case 'n':
            return whole(escape, '\n', text, n_text);
        case 'r':
            return whole(escape, '\r', text, n_text);
        case 't':
            return whole(escape, '\t', text, n_text);
        case 'u':
            *escape = UNIT;
            return QN_ESCAPE_IN;
        default:
            return QN_ESCAPE_DEAD;
        }
    case UNIT:
        return read_digit(escape, byte, text, n_text);
    case LOW_SLASH:
        if (byte != '\\') return QN_ESCAPE_DEAD;
        *escape = LOW_U | (e & 0xffff);
        return QN_ESCAPE_IN;
    default: /* LOW_U */
        if (byte != 'u') return QN_ESCAPE_DEAD;
        *escape = low_unit | (e >> 4 & 0x3ff) << 18;
        return QN_ESCAPE_IN;
    }
}

/* Digits that are due stand for a range; high surrogates in it for characters above 0xffff. */
static int unit_ranges(uint32_t begin, uint32_t end, qn_escape_range out[2])
{
    int n = 0;
    if (begin < 0xd800) out[n++] = (qn_escape_range){begin, end < 0xd800 ? end : 0xd7ff};
    if (end > 0xdfff) {
        if (n && begin < 0xd800)
            out[n - 1].end = end; /* the gap holds no characters, and a walk skips it */
        else
            out[n++] = (qn_escape_range){begin > 0xdfff ? begin : 0xe000, end};
    }
    uint32_t high = begin > 0xd800 ? begin : 0xd800, high_end = end < 0xdbff ? end : 0xdbff;
    if (high <= high_end)
        out[n++] = (qn_escape_range){0x10000 + ((high - 0xd800) << 10),
                                     0x10000 + ((high_end - 0xd800) << 10) + 0x3ff};
    return n;
}

int qn_escape_ranges(uint32_t escape, qn_escape_range out[2])
{
    uint32_t n = escape >> 16 & 3, value = escape & 0xffff;
    uint32_t begin = value << 4 * (4 - n), end = begin + (UINT32_C(1) << 4 * (4 - n)) - 1;
    if (escape & low_unit) {
        uint32_t high = 0x10000 + ((escape >> 18 & 0x3ff) << 10);
        if (begin < 0xdc00) begin = 0xdc00;
        if (end > 0xdfff) end = 0xdfff;
        out[0] = (qn_escape_range){high + begin - 0xdc00, high + end - 0xdc00};
        return 1;
    }
    switch (escape & kind_mask) {
    case SLASH:
        out[0] = (qn_escape_range){0, 0x10ffff};
        return 1;
    case UNIT:
        return unit_ranges(begin, end, out);
    default: { /* a high surrogate alone */
        uint32_t high = 0x10000 + ((escape >> 4 & 0x3ff) << 10);
        out[0] = (qn_escape_range){high, high + 0x3ff};
        return 1;
    }
    }
}

static int32_t walk(const qn_dfa *d, int32_t state, const uint8_t *text, int n)
{
    for (int i = 0; i < n && state; i++) state = qn_dfa_step(d, state, text[i]);
    return state;
}

static int takes_some(const qn_dfa *d, int32_t state, uint32_t begin, uint32_t end)
{
    if (d->flags[state] & QN_DFA_ALL) return 1;
    if (begin == 0 && end == 0x10ffff) {
        for (int32_t k = 0; k < d->n_classes; k++)
            if (d->next[(size_t)state * (size_t)d->n_classes + (size_t)k]) return 1;
        return 0;
    }
    uint8_t text[4];
    for (uint32_t c = begin; c <= end;) {
        int n = encode(c, text);
        if (n == 1) {
            if (qn_dfa_step(d, state, (uint8_t)c)) return 1;
            c++;
            continue;
        }
        /* Characters that share all bytes but the last are left out at once where those lead nowhere. */
        int32_t before = walk(d, state, text, n - 1);
        uint32_t last = c | 0x3f;
        if (before)
            for (uint32_t k = c; k <= end && k <= last; k++)
                if (qn_dfa_step(d, before, (uint8_t)(0x80 | (k & 0x3f)))) return 1;
        c = last + 1;
    }
    return 0;
}

int qn_escape_leaves_more(const qn_dfa *d, const uint32_t *counts, int32_t state, uint32_t escape, uint32_t n)
{
    qn_escape_range ranges[2];
    int n_ranges = qn_escape_ranges(escape, ranges);
    uint64_t found = 0;
    uint8_t text[4];
    for (int i = 0; i < n_ranges; i++) {
        for (uint32_t c = ranges[i].begin; c <= ranges[i].end;) {
            const int length = encode(c, text);
            uint32_t last = length == 1 ? c : c | 0x3f;
            if (last > ranges[i].end) last = ranges[i].end;
            const int32_t before = walk(d, state, text, length - 1);
            for (uint32_t k = c; before && k <= last; k++) {
                const uint8_t byte = length == 1 ? text[0] : (uint8_t)(0x80 | (k & 0x3f));
                found += counts[qn_dfa_step(d, before, byte)];
                if (found > n) return 1;
            }
            c = last + 1;
        }
    }
    return 0;
}

int qn_escape_may_begin(uint32_t escape, const char *text, size_t n)
{
    qn_escape_range ranges[2];
    uint32_t c;
    if (!qn_utf8_decode(text, n, &c)) return 0;
    int n_ranges = qn_escape_ranges(escape, ranges), holds = 0;
    for (int i = 0; i < n_ranges; i++) holds |= c >= ranges[i].begin && c <= ranges[i].end;
    return holds;
}

qn_escape_result qn_escape_step_slow(const qn_dfa *d, int32_t *state, uint32_t *escape, uint8_t byte)
{
    uint8_t text[4];
    int n;
    uint32_t e = *escape;
    if (e >= 1 && e <= 3) return QN_ESCAPE_DEAD;
    qn_escape_result r = qn_escape_decode(&e, byte, text, &n);
    if (r == QN_ESCAPE_DEAD || r == QN_ESCAPE_CLOSE) return r;
    int32_t to = walk(d, *state, text, n);
    if (to == 0) return QN_ESCAPE_DEAD;
    if (r == QN_ESCAPE_IN) {
        qn_escape_range ranges[2];
        int n_ranges = qn_escape_ranges(e, ranges), alive = 0;
        for (int i = 0; i < n_ranges && !alive; i++)
            alive = takes_some(d, to, ranges[i].begin, ranges[i].end);
        if (!alive) return QN_ESCAPE_DEAD;
    }
    *state = to;
    *escape = e;
    return r;
}

#include "constrain/automaton/dates.h"

#include <string.h>

#include "constrain/automaton/explore.h"

/* Places in 0000-00-00T00:00:00.0+00:00. */
enum {
    YEAR = 0,
    MONTH = 5,
    DAY = 8,
    AFTER_DAY = 10,
    HOUR = 11,
    MINUTE = 14,
    SECOND = 17,
    AFTER_SECOND = 19,
    FRACTION,
    MORE_FRACTION,
    OFFSET_HOUR,
    OFFSET_MINUTE = OFFSET_HOUR + 3,
    AFTER_OFFSET = OFFSET_MINUTE + 2,
};
enum { MINUTES_A_DAY = 24 * 60, LAST_MINUTE = MINUTES_A_DAY - 1 };

typedef struct {
    uint32_t at;
    uint32_t digit; /* the one before, of a pair */
    uint32_t
        value; /* the century modulo 4; whether the year is a leap year; the days of the month; the hour */
    uint32_t need; /* 1 + the local minute, or the offset, that a leap second needs; 0: no leap second */
} date_state;

static int is_digit(int c)
{
    return c >= '0' && c <= '9';
}

/* A digit at one of two places: *pair is the number after the second. */
static int move_pair(date_state *s, int digit, uint32_t first, uint32_t *pair)
{
    *pair = UINT32_MAX;
    if (s->at == first) {
        s->digit = (uint32_t)digit;
    } else {
        *pair = s->digit * 10 + (uint32_t)digit;
        s->digit = 0;
    }
    s->at++;
    return 1;
}

static int move_year(date_state *s, int digit)
{
    uint32_t pair;
    int is_first_pair = s->at < YEAR + 2;
    move_pair(s, digit, is_first_pair ? YEAR : YEAR + 2, &pair);
    if (pair == UINT32_MAX) return 1;
    if (is_first_pair) {
        s->value = pair % 4;
    } else {
        s->value = pair == 0 ? s->value == 0 : pair % 4 == 0;
    }
    return 1;
}

static int move_month(date_state *s, int digit)
{
    static const uint8_t days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    uint32_t month;
    if (s->at == MONTH && digit > 1) return 0;
    move_pair(s, digit, MONTH, &month);
    if (month == UINT32_MAX) return 1;
    if (month < 1 || month > 12) return 0;
    s->value = month == 2 ? 28 + s->value : days[month - 1];
    return 1;
}

static int move_day(date_state *s, int digit)
{
    uint32_t day;
    if (s->at == DAY && digit > 3) return 0;
    move_pair(s, digit, DAY, &day);
    if (day == UINT32_MAX) return 1;
    if (day < 1 || day > s->value) return 0;
    s->value = 0;
    return 1;
}

static int move_clock(date_state *s, int digit)
{
    uint32_t pair, first = s->at < MINUTE ? HOUR : s->at < SECOND ? MINUTE : SECOND;
    if (s->at == HOUR && digit > 2) return 0;
    if (s->at == MINUTE && digit > 5) return 0;
    if (s->at == SECOND && (digit > 6 || (digit == 6 && !s->need))) return 0;
    if (s->at == SECOND && digit != 6) s->need = 0;
    move_pair(s, digit, first, &pair);
    if (pair == UINT32_MAX) return 1;
    if (first == HOUR) {
        if (pair > 23) return 0;
        s->value = pair;
    } else if (first == MINUTE) {
        s->need = pair % 15 == 14 ? 1 + s->value * 60 + pair : 0;
        s->value = 0;
    } else if (pair > 60) {
        return 0;
    }
    return 1;
}

/* What may follow a second or its fraction. */
static int move_zone(date_state *s, uint8_t byte)
{
    if ((byte | 32) == 'z') {
        if (s->need && s->need - 1 != LAST_MINUTE) return 0;
        s->need = 0;
        s->at = AFTER_OFFSET;
        return 1;
    }
    if (byte != '+' && byte != '-') return 0;
    if (s->need) {
        uint32_t ahead = (s->need - 1 + MINUTES_A_DAY - LAST_MINUTE) % MINUTES_A_DAY;
        s->need = 1 + (byte == '+' ? ahead : (MINUTES_A_DAY - ahead) % MINUTES_A_DAY);
    }
    s->at = OFFSET_HOUR;
    return 1;
}

static int move_offset(date_state *s, int digit)
{
    int is_hour = s->at < OFFSET_MINUTE;
    uint32_t pair, first = is_hour ? OFFSET_HOUR : OFFSET_MINUTE;
    if (s->at == first && digit > (is_hour ? 2 : 5)) return 0;
    move_pair(s, digit, first, &pair);
    uint32_t want = is_hour ? (s->need - 1) / 60 : (s->need - 1) % 60;
    if (pair == UINT32_MAX) return !s->need || s->digit == want / 10;
    if ((is_hour && pair > 23) || (s->need && pair != want)) return 0;
    if (is_hour && s->need) s->need = 1 + (s->need - 1) % 60;
    if (!is_hour) s->need = 0;
    return 1;
}

static int move_date(const void *context, uint32_t *words, uint8_t byte)
{
    const int *parts = context;
    date_state s;
    memcpy(&s, words, sizeof s);
    int digit = is_digit(byte) ? byte - '0' : -1, ok = 0;
    switch (s.at) {
    case MONTH - 1:
    case DAY - 1:
        ok = byte == '-', s.at++;
        break;
    case MINUTE - 1:
    case SECOND - 1:
    case OFFSET_MINUTE - 1:
        ok = byte == ':', s.at++;
        break;
    case AFTER_DAY:
        ok = *parts & QN_TIME && (byte | 32) == 't', s.at++;
        break;
    case AFTER_SECOND:
        if (byte == '.') {
            s.at = FRACTION;
            ok = 1;
        } else {
            ok = move_zone(&s, byte);
        }
        break;
    case FRACTION:
    case MORE_FRACTION:
        if (digit >= 0) {
            s.at = MORE_FRACTION;
            ok = 1;
        } else if (s.at == MORE_FRACTION) {
            ok = move_zone(&s, byte);
        }
        break;
    case AFTER_OFFSET:
        return 0;
    default:
        if (digit < 0) return 0;
        ok = s.at < MONTH       ? move_year(&s, digit)
             : s.at < DAY       ? move_month(&s, digit)
             : s.at < AFTER_DAY ? move_day(&s, digit)
             : s.at < FRACTION  ? move_clock(&s, digit)
                                : move_offset(&s, digit);
    }
    memcpy(words, &s, sizeof s);
    return ok;
}

static int accepts_date(const void *context, const uint32_t *words)
{
    const int *parts = context;
    return words[0] == (*parts & QN_TIME ? (uint32_t)AFTER_OFFSET : (uint32_t)AFTER_DAY);
}

qn_status qn_dfa_dates(qn_dfa_work *w, int parts, qn_dfa **out)
{
    qn_explorer e = {.context = &parts,
                     .n_words = sizeof(date_state) / sizeof(uint32_t),
                     .move = move_date,
                     .accepts = accepts_date};
    qn_explorer_classes(&e, "0123456789-+:.TtZz", "");
    date_state start = {.at = parts & QN_DATE ? YEAR : HOUR};
    return qn_dfa_explore(w, &e, &start, out);
}

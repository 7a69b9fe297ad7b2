#include "base/json/json_steps.h"

enum {
    VALUE, /* white space, then a value */
    FIRST, /* behind '[' or '{': a value or key, or the end */
    KEY,   /* behind a comma in an object */
    COLON,
    AFTER, /* behind a value in an array or object */
    STRING,
    ESCAPE,
    HEX,
    LOW, /* behind a high surrogate: a backslash */
    WORD,
    MINUS,
    ZERO,
    INTEGER,
    POINT,
    FRACTION,
    EXPONENT, /* behind 'e' */
    EXPONENT_SIGN,
    EXPONENT_DIGITS
};

static int is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static int in_array(const qn_json_steps *s)
{
    return s->is_array[(s->depth - 1) / 32] >> (s->depth - 1) % 32 & 1;
}

static qn_json_step_result go(qn_json_steps *s, uint8_t state)
{
    s->state = state;
    return QN_JSON_MORE;
}

static qn_json_step_result open_bracket(qn_json_steps *s, int is_array)
{
    if (s->depth == QN_JSON_DEPTH_MAX) return QN_JSON_BAD;
    uint32_t bit = 1u << s->depth % 32;
    if (is_array)
        s->is_array[s->depth / 32] |= bit;
    else
        s->is_array[s->depth / 32] &= ~bit;
    s->depth++;
    return go(s, FIRST);
}

/* A value ended with this byte. */
static qn_json_step_result end_value(qn_json_steps *s)
{
    if (!s->depth) return QN_JSON_LAST;
    return go(s, AFTER);
}

static qn_json_step_result begin_string(qn_json_steps *s, int is_key)
{
    s->is_key = (uint8_t)is_key;
    return go(s, STRING);
}

static qn_json_step_result begin_word(qn_json_steps *s, const char *rest)
{
    s->word = rest;
    return go(s, WORD);
}

static qn_json_step_result begin_value(qn_json_steps *s, char c)
{
    switch (c) {
    case '{':
    case '[':
        return open_bracket(s, c == '[');
    case '"':
        return begin_string(s, 0);
    case 't':
        return begin_word(s, "rue");
    case 'f':
        return begin_word(s, "alse");
    case 'n':
        return begin_word(s, "ull");
    case '-':
        return go(s, MINUS);
    case '0':
        return go(s, ZERO);
    default:
        return is_digit(c) ? go(s, INTEGER) : QN_JSON_BAD;
    }
}

static qn_json_step_result close_bracket(qn_json_steps *s, char c)
{
    if (c != (in_array(s) ? ']' : '}')) return QN_JSON_BAD;
    s->depth--;
    return end_value(s);
}

static qn_json_step_result step_after(qn_json_steps *s, char c)
{
    if (c == ',') return go(s, in_array(s) ? VALUE : KEY);
    return close_bracket(s, c);
}

static qn_json_step_result step_first(qn_json_steps *s, char c)
{
    if (c == (in_array(s) ? ']' : '}')) return close_bracket(s, c);
    if (in_array(s)) return begin_value(s, c);
    return c == '"' ? begin_string(s, 1) : QN_JSON_BAD;
}

static qn_json_step_result step_string(qn_json_steps *s, char c)
{
    if (c == '\\') return go(s, ESCAPE);
    if ((unsigned char)c < 0x20) return QN_JSON_BAD;
    if (c != '"') return QN_JSON_MORE;
    return s->is_key ? go(s, COLON) : end_value(s);
}

static qn_json_step_result step_escape(qn_json_steps *s, char c)
{
    if (s->is_low_due && c != 'u') return QN_JSON_BAD;
    switch (c) {
    case 'u':
        s->left = 4;
        s->unit = 0;
        return go(s, HEX);
    case '"':
    case '\\':
    case '/':
    case 'b':
    case 'f':
    case 'n':
    case 'r':
    case 't':
        return go(s, STRING);
    default:
        return QN_JSON_BAD;
    }
}

static qn_json_step_result step_hex(qn_json_steps *s, char c)
{
    char low = (char)(c | 0x20);
    if (!is_digit(c) && !(low >= 'a' && low <= 'f')) return QN_JSON_BAD;
    s->unit = (uint16_t)(s->unit * 16 + (is_digit(c) ? c - '0' : low - 'a' + 10));
    if (--s->left) return QN_JSON_MORE;
    int is_high = s->unit >= 0xd800 && s->unit < 0xdc00, is_low = s->unit >= 0xdc00 && s->unit < 0xe000;
    if (is_low != s->is_low_due) return QN_JSON_BAD;
    s->is_low_due = (uint8_t)is_high;
    return go(s, is_high ? LOW : STRING);
}

/* A number's end shows by the byte behind it. */
static qn_json_step_result end_number(qn_json_steps *s, char c)
{
    if (!s->depth) return QN_JSON_PAST;
    s->state = AFTER;
    return is_space(c) ? QN_JSON_MORE : step_after(s, c);
}

static qn_json_step_result step_number(qn_json_steps *s, char c)
{
    switch (s->state) {
    case MINUS:
        return c == '0' ? go(s, ZERO) : is_digit(c) ? go(s, INTEGER) : QN_JSON_BAD;
    case POINT:
        return is_digit(c) ? go(s, FRACTION) : QN_JSON_BAD;
    case EXPONENT:
        if (c == '+' || c == '-') return go(s, EXPONENT_SIGN);
        return is_digit(c) ? go(s, EXPONENT_DIGITS) : QN_JSON_BAD;
    case EXPONENT_SIGN:
        return is_digit(c) ? go(s, EXPONENT_DIGITS) : QN_JSON_BAD;
    default:
        break;
    }
    if (is_digit(c) && s->state == ZERO) return QN_JSON_BAD;
    if (is_digit(c)) return QN_JSON_MORE;
    if (c == '.' && (s->state == ZERO || s->state == INTEGER)) return go(s, POINT);
    if ((c == 'e' || c == 'E') && s->state != EXPONENT_DIGITS) return go(s, EXPONENT);
    return end_number(s, c);
}

qn_json_step_result qn_json_step(qn_json_steps *s, char c)
{
    if (s->state <= AFTER && is_space(c)) return QN_JSON_MORE;
    switch (s->state) {
    case VALUE:
        return begin_value(s, c);
    case FIRST:
        return step_first(s, c);
    case KEY:
        return c == '"' ? begin_string(s, 1) : QN_JSON_BAD;
    case COLON:
        return c == ':' ? go(s, VALUE) : QN_JSON_BAD;
    case AFTER:
        return step_after(s, c);
    case STRING:
        return step_string(s, c);
    case ESCAPE:
        return step_escape(s, c);
    case HEX:
        return step_hex(s, c);
    case LOW:
        return c == '\\' ? go(s, ESCAPE) : QN_JSON_BAD;
    case WORD:
        if (c != *s->word) return QN_JSON_BAD;
        return *++s->word ? QN_JSON_MORE : end_value(s);
    default:
        return step_number(s, c);
    }
}

int qn_json_is_in_string(const qn_json_steps *s)
{
    return s->state == STRING;
}

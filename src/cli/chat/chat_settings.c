#include "cli/chat/chat_settings.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/options/args.h"

#define AT(field) offsetof(qn_chat_settings, field)
const qn_chat_setting qn_chat_setting_table[] = {
    {"temp", "temperature", QN_CHAT_FLOAT, AT(o.temperature), 0, 1000, NULL, "0 takes the most likely token"},
    {"top-p", "top_p", QN_CHAT_FLOAT, AT(o.top_p), 0, 1, "off", "nucleus sampling"},
    {"top-k", "top_k", QN_CHAT_INT32, AT(o.top_k), 0, INT32_MAX, "off", "keep only the K most likely tokens"},
    {"min-p", "min_p", QN_CHAT_FLOAT, AT(o.min_p), 0, 1, "off",
     "keep only tokens at least P times as probable as the most likely one"},
    {"repeat-penalty", "repeat_penalty", QN_CHAT_FLOAT, AT(o.repeat_penalty), 0.01, 100, "off",
     "above 1: make tokens that have already occurred less likely"},
    {"seed", "seed", QN_CHAT_UINT64, AT(o.seed), 0, 0, "random", "random seed for sampling"},
    {"max-tokens", "max_tokens", QN_CHAT_INT64, AT(o.max_tokens), 0, INT32_MAX, "off",
     "maximum tokens of an answer"},
    {0},
};

static const char think_key[] = "chat_template_kwargs";
static const char *const think_names[] = {"enable_thinking", "thinking"};

const qn_chat_setting *qn_chat_setting_find(const char *name)
{
    for (const qn_chat_setting *s = qn_chat_setting_table; s->name; s++)
        if (strcmp(s->name, name) == 0 || strcmp(s->key, name) == 0) return s;
    return NULL;
}

/* ---- numbers, whatever their type: a real for the range, an integer that holds all bits ---- */

typedef struct {
    double real;
    uint64_t integer; /* of the integer kinds */
} number;

static number get(const qn_chat_setting *setting, const qn_chat_settings *s)
{
    const void *at = (const char *)s + setting->offset;
    number n = {0};
    switch (setting->kind) {
    case QN_CHAT_INT32:
        n.real = *(const int32_t *)at;
        n.integer = (uint64_t)n.real;
        break;
    case QN_CHAT_INT64:
    case QN_CHAT_UINT64:
        n.integer = *(const uint64_t *)at;
        n.real = (double)n.integer;
        break;
    case QN_CHAT_FLOAT:
        n.real = *(const float *)at;
        break;
    }
    return n;
}

static void put(const qn_chat_setting *setting, number n, qn_chat_settings *s)
{
    void *at = (char *)s + setting->offset;
    switch (setting->kind) {
    case QN_CHAT_INT32:
        *(int32_t *)at = (int32_t)n.integer;
        break;
    case QN_CHAT_INT64:
    case QN_CHAT_UINT64:
        *(uint64_t *)at = n.integer;
        break;
    case QN_CHAT_FLOAT:
        *(float *)at = (float)n.real;
        break;
    }
}

static int is_in_range(const qn_chat_setting *setting, double value)
{
    return setting->kind == QN_CHAT_UINT64 || (setting->zero && value == 0) ||
           (value >= setting->low && value <= setting->high);
}

void qn_chat_setting_show_range(const qn_chat_setting *setting, qn_buf *out)
{
    if (setting->kind == QN_CHAT_UINT64)
        qn_buf_puts(out, "0 to 18446744073709551615");
    else
        qn_buf_printf(out, "%.10g to %.10g", setting->low, setting->high);
    if (setting->zero) qn_buf_printf(out, ", or %s", setting->zero);
}

static qn_status fail_range(const char *prefix, const char *name, const qn_chat_setting *setting,
                            const char *value, int is_number)
{
    qn_buf range = {0};
    qn_chat_setting_show_range(setting, &range);
    qn_status status = range.status;
    if (status == QN_OK && is_number)
        status = qn_fail(QN_E_ARG, "%s%s: %.60s is not in the range %s", prefix, name, value, range.data);
    else if (status == QN_OK)
        status = qn_fail(QN_E_ARG, "%s%s: '%.60s' is not a%s number (%s)", prefix, name, value,
                         setting->kind == QN_CHAT_FLOAT ? "" : " whole", range.data);
    qn_buf_free(&range);
    return status;
}

qn_status qn_chat_setting_set(const qn_chat_setting *setting, const char *value, qn_chat_settings *s)
{
    number n = {0};
    int64_t integer = 0;
    int is_number;
    if (setting->zero && strcmp(value, setting->zero) == 0) {
        put(setting, n, s);
        return QN_OK;
    }
    if (setting->kind == QN_CHAT_FLOAT) {
        is_number = qn_args_read_real(value, &n.real);
    } else if (setting->kind == QN_CHAT_UINT64) {
        is_number = qn_args_read_uint(value, &n.integer);
    } else {
        is_number = qn_args_read_int(value, &integer);
        n = (number){(double)integer, (uint64_t)integer};
    }
    if (!is_number || !is_in_range(setting, n.real))
        return fail_range("", setting->name, setting, value, is_number);
    put(setting, n, s);
    return QN_OK;
}

static void put_number(const qn_chat_setting *setting, number n, qn_buf *out)
{
    if (setting->kind != QN_CHAT_FLOAT) {
        qn_buf_printf(out, "%" PRIu64, n.integer);
        return;
    }
    char text[32];
    int digits = 6;
    do {
        snprintf(text, sizeof text, "%.*g", digits, n.real);
    } while (++digits <= 9 && strtof(text, NULL) != (float)n.real);
    qn_buf_puts(out, text);
}

void qn_chat_setting_show(const qn_chat_setting *setting, const qn_chat_settings *s, qn_buf *out)
{
    number n = get(setting, s);
    if (setting->zero && n.real == 0)
        qn_buf_puts(out, setting->zero);
    else
        put_number(setting, n, out);
}

/* ---- the saved form ---- */

const char *qn_chat_think_variables(qn_chat_think think)
{
    static const char *const texts[] = {NULL, "{\"enable_thinking\": true, \"thinking\": true}",
                                        "{\"enable_thinking\": false, \"thinking\": false}"};
    return texts[think];
}

void qn_chat_settings_write(const qn_chat_settings *s, const char *indent, qn_buf *out)
{
    for (const qn_chat_setting *setting = qn_chat_setting_table; setting->name; setting++) {
        number n = get(setting, s);
        qn_buf_printf(out, "%s\"%s\": ", indent, setting->key);
        /* A JSON integer has 63 bits where it is read: a larger seed is written as text. */
        int quoted = setting->kind == QN_CHAT_UINT64 && n.integer > INT64_MAX;
        if (setting->zero && n.real == 0) {
            qn_buf_puts(out, "null");
        } else {
            if (quoted) qn_buf_putc(out, '"');
            put_number(setting, n, out);
            if (quoted) qn_buf_putc(out, '"');
        }
        qn_buf_puts(out, ",\n");
    }
    const char *variables = qn_chat_think_variables(s->think);
    qn_buf_printf(out, "%s\"%s\": %s\n", indent, think_key, variables ? variables : "null");
}

/* {"enable_thinking": false, "thinking": false}: either or both. */
static qn_status take_think(const char *what, const json_t *value, qn_chat_settings *s)
{
    qn_chat_think think = QN_CHAT_THINK_UNSET;
    const char *key;
    json_t *member;
    if (!json_is_object(value) && !json_is_null(value))
        return qn_fail(QN_E_FORMAT, "%s: %s: not an object", what, think_key);
    json_object_foreach((json_t *)value, key, member)
    {
        if (strcmp(key, think_names[0]) != 0 && strcmp(key, think_names[1]) != 0)
            return qn_fail(QN_E_FORMAT, "%s: %s: unknown field %.60s: only %s and %s are allowed", what,
                           think_key, key, think_names[0], think_names[1]);
        if (!json_is_boolean(member))
            return qn_fail(QN_E_FORMAT, "%s: %s: %s: not true or false", what, think_key, key);
        qn_chat_think told = json_is_true(member) ? QN_CHAT_THINK_ON : QN_CHAT_THINK_OFF;
        if (think != QN_CHAT_THINK_UNSET && think != told)
            return qn_fail(QN_E_FORMAT, "%s: %s: %s and %s differ", what, think_key, think_names[0],
                           think_names[1]);
        think = told;
    }
    s->think = think;
    return QN_OK;
}

static qn_status take_number(const char *what, const qn_chat_setting *setting, const json_t *value,
                             qn_chat_settings *s)
{
    char prefix[256], text[64];
    number n = {0};
    int is_whole = json_is_integer(value), fits = 1;
    snprintf(prefix, sizeof prefix, "%.200s: ", what);
    if (json_is_null(value) && setting->zero) {
        put(setting, n, s);
        return QN_OK;
    }
    if (setting->kind == QN_CHAT_UINT64 && json_is_string(value)) {
        if (!qn_args_read_uint(json_string_value(value), &n.integer))
            return fail_range(prefix, setting->key, setting, json_string_value(value), 0);
        put(setting, n, s);
        return QN_OK;
    }
    if (!is_whole && !(json_is_real(value) && setting->kind == QN_CHAT_FLOAT))
        return qn_fail(QN_E_FORMAT, "%s%s: not a%s number", prefix, setting->key,
                       setting->kind == QN_CHAT_FLOAT ? "" : " whole");
    n.real = json_number_value(value);
    if (is_whole) {
        n.integer = (uint64_t)json_integer_value(value);
        fits = setting->kind != QN_CHAT_UINT64 || json_integer_value(value) >= 0;
    }
    if (!fits || !is_in_range(setting, n.real)) {
        snprintf(text, sizeof text, "%.10g", n.real);
        QN_TRY(fail_range(prefix, setting->key, setting, text, 1));
    }
    put(setting, n, s);
    return QN_OK;
}

qn_status qn_chat_settings_take(const char *what, const char *key, const json_t *value, qn_chat_settings *s,
                                int *known)
{
    *known = 1;
    if (strcmp(key, think_key) == 0) return take_think(what, value, s);
    for (const qn_chat_setting *setting = qn_chat_setting_table; setting->name; setting++)
        if (strcmp(setting->key, key) == 0) return take_number(what, setting, value, s);
    *known = 0;
    return QN_OK;
}

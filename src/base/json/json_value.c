#include "base/json/json_value.h"

#include <stdio.h>
#include <string.h>

#include "base/c_locale.h"
#include "base/json/json.h"
#include "base/json/json_write.h"

/* The shortest decimal that reads as the number, spelled as one that is no integer. */
static void put_real(qn_buf *b, double x)
{
    char text[40];
    const locale_t before = qn_c_locale_enter();
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (qn_parse_real(text, NULL) == x) break;
    }
    qn_c_locale_leave(before);
    qn_buf_puts(b, text);
    if (!strpbrk(text, ".e")) qn_buf_puts(b, ".0");
}

static void put(qn_buf *b, const json_t *value)
{
    const char *key;
    const json_t *each;
    size_t i;
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        qn_buf_putc(b, '{');
        i = 0;
        json_object_foreach((json_t *)value, key, each)
        {
            if (i++) qn_buf_putc(b, ',');
            qn_buf_json_string(b, key, strlen(key));
            qn_buf_putc(b, ':');
            put(b, each);
        }
        qn_buf_putc(b, '}');
        return;
    case JSON_ARRAY:
        if (qn_json_digits(value)) {
            qn_buf_puts(b, qn_json_digits(value));
            return;
        }
        qn_buf_putc(b, '[');
        json_array_foreach(value, i, each)
        {
            if (i) qn_buf_putc(b, ',');
            put(b, each);
        }
        qn_buf_putc(b, ']');
        return;
    case JSON_STRING:
        qn_buf_json_string(b, json_string_value(value), json_string_length(value));
        return;
    case JSON_INTEGER:
        qn_buf_printf(b, "%lld", (long long)json_integer_value(value));
        return;
    case JSON_REAL:
        put_real(b, json_real_value(value));
        return;
    default:
        qn_buf_puts(b, json_is_null(value) ? "null" : json_is_true(value) ? "true" : "false");
    }
}

void qn_json_write_value(qn_buf *b, const json_t *value)
{
    put(b, value);
}

/* Any bytes as a schema and a value: up to the first NUL a schema, behind it a value. Nothing crashes, limits
 * hold, and what is said fits: a refusal has a sentence, a value that is not valid has a failure with places in
 * both documents. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "constrain/validate/validate.h"
#include "constrain/validate/value.h"

static void check_place(const char *document, size_t n, const char *pointer)
{
    qn_arena arena = {0};
    const qn_value *root = NULL;
    if (qn_value_read(&arena, "fuzz", document, n, &root) != QN_OK ||
        !qn_value_at(root, pointer, strlen(pointer)))
        abort();
    qn_arena_clear(&arena);
}

static void check_report(const qn_schema_report *r, const char *schema, size_t n_schema, const char *value,
                         size_t n)
{
    if (r->is_valid != !r->n_failures) abort();
    for (size_t i = 0; i < r->n_failures; i++) {
        if (!*r->failures[i].keyword || !*r->failures[i].message) abort();
        check_place(schema, n_schema, r->failures[i].schema);
        check_place(value, n, r->failures[i].instance);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data, *nul = size ? memchr(text, 0, size) : NULL;
    size_t n_schema = nul ? (size_t)(nul - text) : size, n = nul ? size - n_schema - 1 : 0;
    const char *value = nul ? nul + 1 : "null";
    if (!nul) n = 4;
    qn_schema *s = NULL;
    qn_schema_limits limits = {.steps_max = 200000, .pattern_steps_max = 1000000};
    if (qn_schema_open(text, n_schema, &limits, &s) != QN_OK) {
        if (s || !*qn_last_error()) abort();
        return 0;
    }
    qn_schema_report one = {0}, many = {.failures_max = 20};
    qn_status status = qn_schema_validate_text(s, value, n, &one);
    if (status == QN_OK) {
        check_report(&one, text, n_schema, value, n);
        qn_status again = qn_schema_validate_text(s, value, n, &many);
        if (again == QN_OK) check_report(&many, text, n_schema, value, n);
        if (again == QN_OK && one.is_valid != many.is_valid) abort();
    } else if (status != QN_E_FORMAT && status != QN_E_UNSUPPORTED) {
        abort();
    }
    qn_schema_report_clear(&one);
    qn_schema_report_clear(&many);
    qn_schema_close(s);
    return 0;
}

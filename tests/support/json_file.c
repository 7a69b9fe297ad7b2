#include "tests/support/json_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

json_t *qn_test_json(const char *path)
{
    json_error_t error;
    json_t *j = json_load_file(path, 0, &error);
    if (!j) fail_msg("%s: %s", path, error.text);
    return j;
}

double qn_test_json_number(const json_t *from, const char *key)
{
    const json_t *j = json_object_get(from, key);
    if (!json_is_number(j)) fail_msg("no number %s", key);
    return json_number_value(j);
}

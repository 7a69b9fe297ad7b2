/* The comparison of keys. Hosts, keys and origins are tested through the server
 * (tests/server/test_server_http.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
/* cmocka wants these before it */
#include <cmocka.h>

#include "server/http/guard.h"

static void test_same(void **state)
{
    (void)state;
    assert_true(qn_guard_same("key", "key"));
    assert_true(qn_guard_same("", ""));
    assert_false(qn_guard_same("", "key"));
    assert_false(qn_guard_same("ke", "key"));
    assert_false(qn_guard_same("keykey", "key"));
    assert_false(qn_guard_same("kez", "key"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Which set there is where the system refuses the tiles of AMX: Linux does in a process with a stack for
 * signals that has no room for them. A process of its own, for what was granted once stays so. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "device/cpu/kernels/kernels.h"

static void the_next_best_without_tiles(void **state)
{
    static char small[8192];
    const stack_t stack = {.ss_sp = small, .ss_size = sizeof small};
    const qn_kernels *k;
    assert_int_equal(sigaltstack(&stack, NULL), 0);
    unsetenv("QUERN_CPU");
    if (qn_kernels_get(&k) != QN_OK) fail_msg("%s", qn_last_error());
    assert_string_not_equal(k->name, "avx512_amx");
    assert_null(qn_kernels_by_name("avx512_amx"));
    setenv("QUERN_CPU", "avx512_amx", 1);
    const qn_kernels *none;
    assert_int_equal(qn_kernels_get(&none), QN_E_UNSUPPORTED);
    int listed = 0;
    for (const char *const *set = qn_kernels_names(); *set; set++) listed |= strcmp(*set, "avx512_amx") == 0;
    assert_non_null(strstr(qn_last_error(), listed ? "Linux refuses the AMX tiles" : "it has: scalar"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_next_best_without_tiles)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

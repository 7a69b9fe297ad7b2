/* Training on the device mlx: losses, gradients, ten steps of AdamW and the weights after them against peft
 * and torch (fixtures/lora), and gradients through all layers of every kind of model against the CPU's. Left
 * out where the device is not. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <dirent.h>
#include <stdio.h>

#include "device/mlx/mlx.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/kinds.h"
#include "tests/support/lora_sets.h"

enum { SETS_MAX = 32, NAME_BYTES = 64 };

static void need_device(void)
{
    const qn_mlx_shim *shim;
    if (qn_mlx_load(&shim) != QN_OK) qn_test_leave_out(qn_last_error());
}

static void one_set(void **state)
{
    need_device();
    qn_lora_check_set(*state, &(qn_lora_bounds){"mlx", 1e-4, 1e-3, 5e-4});
}

static void one_kind(void **state)
{
    need_device();
    qn_lora_compare_kind(*state, "mlx", 1e-3);
}

/* An argument picks tests by name: '*phi3*'. */
int main(int argc, char **argv)
{
    static struct CMUnitTest tests[SETS_MAX + QN_TEST_KINDS_MAX];
    static char titles[SETS_MAX][2 * NAME_BYTES], sets[SETS_MAX][NAME_BYTES];
    static const qn_test_kind_row row = {"gradients through ", one_kind};
    const char *path = qn_test_fixture("lora");
    DIR *folder = path ? opendir(path) : NULL;
    int n = 0;
    for (struct dirent *e; folder && (e = readdir(folder)) && n < SETS_MAX;) {
        if (e->d_name[0] == '.') continue;
        snprintf(sets[n], sizeof sets[n], "%.63s", e->d_name);
        snprintf(titles[n], sizeof titles[n], "%s learns as with peft", sets[n]);
        tests[n] = (struct CMUnitTest){titles[n], one_set, NULL, NULL, sets[n]};
        n++;
    }
    if (folder) closedir(folder);
    n += qn_test_kind_rows(1, &row, tests + n);
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return _cmocka_run_group_tests("mlx_train", tests, (size_t)n, NULL, NULL);
}

/* Training on another device: losses, gradients, ten steps of AdamW and the weights after them against peft
 * and torch (fixtures/lora), and gradients through all layers of every kind of model against the CPU's. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <dirent.h>
#include <stdio.h>

#include "tests/devices/other_compare.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/kinds.h"
#include "tests/support/models/lora_sets.h"

enum { SETS_MAX = 32, NAME_BYTES = 64 };

static void one_set(void **state)
{
    const qn_test_expectations *e = qn_test_other();
    qn_lora_check_set(*state,
                      &(qn_lora_bounds){e->name, e->tolerance[QN_TEST_LOSS], e->tolerance[QN_TEST_GRADIENT],
                                        e->tolerance[QN_TEST_WEIGHT]});
}

static void one_kind(void **state)
{
    qn_lora_compare_kind(*state, qn_test_other()->name, qn_test_bound_of(QN_TEST_GRADIENT));
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
    return qn_test_run_others("train", tests, (size_t)n, NULL, NULL);
}

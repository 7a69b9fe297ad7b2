/* Families whose GGUF files have conventions of their own, as files made of the fixtures: golden logits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/gguf_model.h"
#include "tests/support/golden_states.h"
#include "tests/support/scratch.h"

static void golden(void **state)
{
    const char *kind = *state, *folder = qn_test_scratch();
    char path[128];
    qn_safetensors *st;
    double worst = 0;
    snprintf(path, sizeof path, "models/%s/expected.safetensors", kind);
    qn_test_ok(qn_safetensors_open(qn_test_need_fixture(path), &st));
    snprintf(path, sizeof path, "models/%s", kind);
    qn_engine *e = qn_test_engine(qn_test_gguf_model(folder, qn_test_need_fixture(path)), NULL,
                                  (qn_engine_options){.precision = QN_PRECISION_EXACT, .n_threads = 1});
    for (int i = 0; i < 5; i++) {
        double d = qn_golden_logits(e, st, i, NULL);
        if (!(d <= worst)) worst = d;
    }
    print_message("%s: logits %.1e\n", kind, worst);
    assert_true(worst <= qn_golden_tolerance(kind));
    qn_engine_close(e);
    qn_safetensors_close(st);
    qn_test_remove(folder);
}

int main(void)
{
    static const char *const kinds[] = {"phi3", "phi3_longrope", "smollm3", "olmo2", "granite"};
    enum { N = sizeof kinds / sizeof *kinds };
    static struct CMUnitTest tests[N];
    for (int i = 0; i < N; i++)
        tests[i] = (struct CMUnitTest){kinds[i], golden, NULL, NULL, (void *)(uintptr_t)kinds[i]};
    return _cmocka_run_group_tests("gguf families", tests, N, NULL, NULL);
}

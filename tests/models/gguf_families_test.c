/* Families whose GGUF files have conventions of their own, as files made of the fixtures, here or by llama.cpp's
 * converter: golden logits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/gguf_model.h"
#include "tests/support/models/golden_states.h"
#include "tests/support/scratch.h"

static void check(const char *kind, const char *file)
{
    char path[128];
    qn_safetensors *st;
    double worst = 0;
    snprintf(path, sizeof path, "models/%s/expected.safetensors", kind);
    qn_test_ok(qn_safetensors_open(qn_test_need_fixture(path), &st));
    qn_engine *e =
        qn_test_engine(file, NULL, (qn_engine_options){.precision = QN_PRECISION_EXACT, .n_threads = 1});
    for (int i = 0; i < 5; i++) {
        double d = qn_golden_logits(e, st, i, NULL);
        if (!(d <= worst)) worst = d;
    }
    print_message("%s: logits %.1e\n", kind, worst);
    assert_true(worst <= qn_golden_tolerance(kind));
    qn_engine_close(e);
    qn_safetensors_close(st);
}

static void golden(void **state)
{
    const char *folder = qn_test_scratch();
    char path[128];
    snprintf(path, sizeof path, "models/%s", (const char *)*state);
    check(*state, qn_test_gguf_model(folder, qn_test_need_fixture(path)));
    qn_test_remove(folder);
}

static void converted(void **state)
{
    char path[128];
    snprintf(path, sizeof path, "gguf/%s.gguf", (const char *)*state);
    check(*state, qn_test_need_fixture(path));
}

int main(void)
{
    static const char *const kinds[] = {"phi3", "phi3_longrope", "smollm3", "olmo2", "granite"};
    static const char *const files[] = {"deepseek_v2", "glm4_moe_lite"};
    enum { N = sizeof kinds / sizeof *kinds, N_FILES = sizeof files / sizeof *files };
    static struct CMUnitTest tests[N + N_FILES];
    for (int i = 0; i < N + N_FILES; i++) {
        const char *kind = i < N ? kinds[i] : files[i - N];
        tests[i] = (struct CMUnitTest){kind, i < N ? golden : converted, NULL, NULL, (void *)(uintptr_t)kind};
    }
    return _cmocka_run_group_tests("gguf families", tests, N + N_FILES, NULL, NULL);
}

/* Whole models against golden values of the reference: logits, greedy ids, hidden states, keys and attention,
 * for every fixture of a known family, with the largest difference of each; and the promise that a sequence's
 * bits do not depend on its company, on chunks or on threads. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <stdio.h>
#include <string.h>

#include "device/cpu/kernels/kernels.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/golden_states.h"
#include "tests/support/models/kinds.h"
#include "tests/support/models/model_dir.h"

/* ---- golden values ------------------------------------------------------------------------------------ */

/* dir: the model, beside whose fixture the golden values lie. */
static void check_golden(const char *kind, const char *dir)
{
    char path[128];
    double logits = 0;
    qn_golden_errors errors = {0};
    snprintf(path, sizeof path, "models/%s/expected.safetensors", kind);
    qn_safetensors *st;
    qn_test_ok(qn_safetensors_open(qn_test_need_fixture(path), &st));
    qn_engine *e = qn_test_engine(
        dir, NULL, (qn_engine_options){.precision = QN_PRECISION_EXACT, .max_rows = 64, .n_threads = 2});
    for (int i = 0; i < 5; i++) {
        double worst = qn_golden_logits(e, st, i, i == 3 ? &errors : NULL);
        if (!(worst <= logits)) logits = worst;
    }
    print_message("%s: largest differences: logits %.1e, hidden states %.1e, keys %.1e, attention %.1e\n",
                  kind, logits, errors.hidden, errors.keys, errors.attention);
    assert_true(errors.n_hidden >= 2); /* a layer at least */
    if (errors.first[0]) fail_msg("%s is the first to leave the tolerance", errors.first);
    assert_true(logits <= qn_golden_tolerance(kind));
    for (int i = 0; i < 5; i++) qn_golden_greedy(e, st, i, 0, kind);
    qn_engine_close(e);
    qn_safetensors_close(st);
}

static void golden(void **state)
{
    char path[128];
    snprintf(path, sizeof path, "models/%s", (const char *)*state);
    check_golden(*state, qn_test_need_fixture(path));
}

/* The further families have a second config.json, in the spelling of older files. */
static void older_config(void **state)
{
    char path[128], from[QN_TEST_DIR_MAX], dir[QN_TEST_DIR_MAX], config[QN_TEST_DIR_MAX + 16];
    snprintf(path, sizeof path, "models/%s/config.hub.json", (const char *)*state);
    const char *older = qn_test_fixture(path);
    if (!older) return;
    snprintf(from, sizeof from, "%.*s", (int)(strrchr(older, '/') - older), older);
    qn_test_model_copy(from, NULL, NULL, dir);
    json_t *object = json_load_file(older, 0, NULL);
    assert_non_null(object);
    snprintf(config, sizeof config, "%s/config.json", dir);
    assert_int_equal(json_dump_file(object, config, 0), 0);
    json_decref(object);
    check_golden(*state, dir);
    qn_test_model_remove(dir);
}

/* What is listed as not supported is refused: a model that opens and computes something else would pass for one
 * that works. */
static void waiting_kinds(void **state)
{
    (void)state;
    for (const qn_test_waiting_kind *w = qn_test_waiting_kinds; w->name; w++) {
        char path[128];
        qn_engine *e = NULL;
        snprintf(path, sizeof path, "models/%s", w->name);
        if (!qn_test_fixture(path)) continue;
        qn_status status = qn_test_engine_try(
            qn_test_fixture(path), &(qn_engine_options){.precision = QN_PRECISION_EXACT, .n_threads = 1}, &e);
        qn_engine_close(e);
        if (status == QN_OK)
            fail_msg("%s (%s) opens: take it out of the list in kinds.c", w->name, w->missing);
    }
}

/* Long enough that windows of 16 and 20 leave pages of 32 behind; on the slower sets just so. */
static void same_bits(void **state)
{
    char path[128];
    snprintf(path, sizeof path, "models/%s", (const char *)*state);
    const char *dir = qn_test_need_fixture(path);
    for (const char *const *set = qn_kernels_names(); *set; set++)
        for (int p = 0; p < 3; p++)
            qn_test_same_bits(&(qn_test_bits){*state, dir, *set, (qn_precision)p, set[1] ? 54 : 70, 400,
                                              set[1] != NULL, QN_KV_AUTO});
}

/* An argument picks tests by name: '*phi3*'. */
int main(int argc, char **argv)
{
    static struct CMUnitTest tests[3 * QN_TEST_KINDS_MAX + 1];
    static const qn_test_kind_row rows[] = {
        {"golden_", golden}, {"older_config_", older_config}, {"same_bits_", same_bits}};
    int n = qn_test_kind_rows(3, rows, tests);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(waiting_kinds);
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return _cmocka_run_group_tests("models", tests, (size_t)n, NULL, NULL);
}

/* Whole encoders against golden values of the reference: hidden states, attention and scores of every fixture, with
 * either spelling of config.json; and the promise that a sequence's bits do not depend on its company. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <stdio.h>
#include <string.h>

#include "device/cpu/kernels/kernels.h"
#include "engine/machine/encode.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/golden_states.h"
#include "tests/support/kinds.h"
#include "tests/support/model_dir.h"

enum { PROMPTS_MAX = 12 };
static const double tolerance = 1e-4; /* of the fixtures' README */

static qn_safetensors *open_expected(const char *kind)
{
    char path[128];
    qn_safetensors *st;
    snprintf(path, sizeof path, "models/%s/expected.safetensors", kind);
    qn_test_ok(qn_safetensors_open(qn_test_need_fixture(path), &st));
    return st;
}

/* "prompt2" or "pair2"; 0: there are fewer. */
static int name_prompt(const qn_safetensors *st, int i, char name[16])
{
    char ids[24];
    const char *begin = qn_safetensors_find(st, "pair0.ids") ? "pair" : "prompt";
    snprintf(name, 16, "%s%d", begin, i);
    snprintf(ids, sizeof ids, "%s.ids", name);
    return qn_safetensors_find(st, ids) != NULL;
}

/* dir: the model, beside whose fixture the golden values lie. */
static void check_golden(const char *kind, const char *dir)
{
    char name[16];
    double worst = 0;
    qn_golden_errors errors = {0};
    qn_safetensors *st = open_expected(kind);
    const int has_pairs = qn_safetensors_find(st, "pair0.ids") != NULL;
    const int inspected = has_pairs ? 0 : 2;
    qn_engine *e =
        qn_test_engine(dir, NULL, (qn_engine_options){.precision = QN_PRECISION_EXACT, .n_threads = 2});
    int n = 0;
    for (; name_prompt(st, n, name); n++) {
        double own = qn_golden_encoded(e, st, name, has_pairs ? "score" : "last_hidden",
                                       n == inspected ? &errors : NULL);
        if (!(own <= worst)) worst = own;
    }
    print_message("%s: largest differences: results %.1e, hidden states %.1e, attention %.1e\n", kind, worst,
                  errors.hidden, errors.attention);
    assert_true(n > inspected && errors.n_hidden >= 2);
    if (errors.first[0]) fail_msg("%s is the first to leave the tolerance", errors.first);
    assert_true(worst <= tolerance);
    qn_engine_close(e);
    qn_safetensors_close(st);
}

static void golden(void **state)
{
    char path[128];
    snprintf(path, sizeof path, "models/%s", (const char *)*state);
    check_golden(*state, qn_test_need_fixture(path));
}

static void older_config(void **state)
{
    char path[128], from[QN_TEST_DIR_MAX], dir[QN_TEST_DIR_MAX], config[QN_TEST_DIR_MAX + 16];
    snprintf(path, sizeof path, "models/%s/config.hub.json", (const char *)*state);
    const char *older = qn_test_need_fixture(path);
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

/* The results of all prompts, one after the other, of as many floats in all. */
static size_t encode(qn_engine *e, int64_t n, const qn_encode_row *rows, float *out)
{
    const float *got;
    int64_t total = 0;
    for (int64_t i = 0; i < n; i++) total += rows[i].n_ids;
    qn_test_ok(qn_engine_encode(e, n, rows, &got));
    const size_t n_floats = (size_t)(total * qn_engine_encoded_size(e));
    memcpy(out, got, n_floats * sizeof *out);
    return n_floats;
}

/* Alone on one thread, and all in one step on three. */
static void same_bits(void **state)
{
    enum { FLOATS_MAX = 1 << 16 };
    static float alone[FLOATS_MAX], together[FLOATS_MAX];
    char path[128], name[16];
    qn_safetensors *st = open_expected(*state);
    qn_encode_row rows[PROMPTS_MAX];
    int n = 0;
    for (; n < PROMPTS_MAX && name_prompt(st, n, name); n++) {
        const qn_tensor_view *ids = qn_golden_tensor(st, name, "ids");
        rows[n] = (qn_encode_row){ids->data, NULL, ids->n_elements, -1};
    }
    snprintf(path, sizeof path, "models/%s", (const char *)*state);
    const char *dir = qn_test_need_fixture(path);
    for (const char *const *set = qn_kernels_names(); *set; set++)
        for (int p = 0; p < 3; p++) {
            qn_engine *e =
                qn_test_engine(dir, *set, (qn_engine_options){.precision = (qn_precision)p, .n_threads = 1});
            size_t at = 0;
            for (int i = 0; i < n; i++) at += encode(e, 1, &rows[i], alone + at);
            assert_true(at <= FLOATS_MAX);
            qn_engine_close(e);
            e = qn_test_engine(dir, *set, (qn_engine_options){.precision = (qn_precision)p, .n_threads = 3});
            assert_int_equal(encode(e, n, rows, together), at);
            if (memcmp(alone, together, at * sizeof *alone) != 0)
                fail_msg("%s, %s: other bits in company", *set, qn_precision_name((qn_precision)p));
            qn_engine_close(e);
        }
    qn_safetensors_close(st);
}

/* An argument picks tests by name: '*bert*'. */
int main(int argc, char **argv)
{
    static struct CMUnitTest tests[3 * QN_TEST_KINDS_MAX];
    static qn_test_kind_list kinds;
    static const qn_test_kind_row rows[] = {
        {"golden_", golden}, {"older_config_", older_config}, {"same_bits_", same_bits}};
    qn_test_encoder_kinds(&kinds);
    int n = qn_test_rows_of(&kinds, 3, rows, tests);
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return _cmocka_run_group_tests("encoders", tests, (size_t)n, NULL, NULL);
}

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
#include "tests/support/models/golden_states.h"
#include "tests/support/models/kinds.h"
#include "tests/support/models/model_dir.h"

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

/* Changes of config.json that must move the results. */
static const struct {
    const char *kind, *patch;
} moving[] = {{"bert_mean", "{\"layer_norm_eps\": 0.1}"},
              {"bert_mean", "{\"hidden_act\": \"silu\"}"},
              {"bert_mean", "{\"num_attention_heads\": 2}"},
              {"xlm_roberta", "{\"pad_token_id\": 3}"},
              {"nomic_bert", "{\"rope_parameters\": {\"rope_theta\": 77.0}}"},
              {"nomic_bert", "{\"hidden_act\": \"gelu\"}"},
              {"modernbert", "{\"norm_eps\": 0.1}"},
              {"modernbert", "{\"local_attention\": 10}"},
              {"modernbert", "{\"rope_parameters\": {\"sliding_attention\": {\"rope_theta\": 50.0}}}"},
              {"modernbert", "{\"rope_parameters\": {\"full_attention\": {\"rope_theta\": 50.0}}}"},
              {"modernbert", "{\"layer_types\": null, \"global_attn_every_n_layers\": 2}"},
              {"embeddinggemma", "{\"sliding_window\": 10}"},
              {"embeddinggemma", "{\"use_bidirectional_attention\": false}"},
              {"embeddinggemma", "{\"query_pre_attn_scalar\": 90}"},
              {"embedding_gemma2", "{\"text_config\": {\"sliding_window\": 10}}"},
              {"embedding_gemma2", "{\"text_config\": {\"rms_norm_eps\": 0.1}}"}};
/* And such that must be refused. */
static const struct {
    const char *kind, *patch, *words;
} refused[] = {{"bert_mean", "{\"is_decoder\": true}", "is_decoder"},
               {"bert_mean", "{\"position_embedding_type\": \"relative_key\"}", "relative_key"},
               {"bert_mean", "{\"type_vocab_size\": 3}", "token_type_embeddings"},
               {"bert_mean", "{\"max_position_embeddings\": 100}", "position_embeddings"},
               {"bert_reranker", "{\"id2label\": {\"0\": \"a\", \"1\": \"b\"}}", "classifier"},
               {"xlm_roberta", "{\"pad_token_id\": 400}", "leaves no positions"},
               {"nomic_bert", "{\"prenorm\": true}", "prenorm"},
               {"nomic_bert", "{\"rotary_emb_fraction\": 0.5}", "rotary_emb_fraction"},
               {"modernbert", "{\"norm_bias\": true}", "bias"},
               {"embedding_gemma2", "{\"text_config\": {\"embedding_dim\": 41}}", "embedding_projection"}};

/* 0: the fixture is not in this clone. */
static int patch_kind(const char *kind, const char *patch, char dir[QN_TEST_DIR_MAX])
{
    char path[128];
    snprintf(path, sizeof path, "models/%s", kind);
    const char *from = qn_test_fixture(path);
    if (from) qn_test_model_copy(from, patch, NULL, dir);
    return from != NULL;
}

static void mutations(void **state)
{
    char dir[QN_TEST_DIR_MAX];
    (void)state;
    for (size_t i = 0; i < sizeof moving / sizeof *moving; i++) {
        if (!patch_kind(moving[i].kind, moving[i].patch, dir)) continue;
        qn_engine *e = NULL;
        const qn_engine_options o = {.precision = QN_PRECISION_EXACT, .n_threads = 2};
        qn_test_ok(qn_test_engine_try(dir, &o, &e));
        qn_safetensors *st = open_expected(moving[i].kind);
        if (qn_engine_encodes(e) && qn_golden_encoded(e, st, "prompt2", "last_hidden", NULL) < 1e-3)
            fail_msg("%s: %s moves nothing", moving[i].kind, moving[i].patch);
        qn_engine_close(e);
        qn_safetensors_close(st);
        qn_test_model_remove(dir);
    }
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (!patch_kind(refused[i].kind, refused[i].patch, dir)) continue;
        qn_engine *e = NULL;
        const qn_engine_options o = {.precision = QN_PRECISION_EXACT, .n_threads = 1};
        if (qn_test_engine_try(dir, &o, &e) == QN_OK || !strstr(qn_last_error(), refused[i].words))
            fail_msg("%s: %s: %s", refused[i].kind, refused[i].patch, qn_last_error());
        qn_engine_close(e);
        qn_test_model_remove(dir);
    }
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

/* A sequence that is longer than the steps so far: the programs grow, and all bits stay. */
static void longer_steps(void **state)
{
    enum { LONG = 1100, SHORT = 7, FLOATS_MAX = (LONG + SHORT) * 64 };
    static float first[FLOATS_MAX], again[FLOATS_MAX];
    static int32_t ids[LONG];
    const char *dir = qn_test_fixture("models/modernbert"); /* its positions are not learned */
    (void)state;
    if (!dir) {
        qn_test_leave_out("the fixture modernbert is not there");
        return;
    }
    for (int i = 0; i < LONG; i++) ids[i] = 5 + i * 7 % 500;
    const qn_encode_row rows[] = {{ids, NULL, SHORT, -1}, {ids, NULL, LONG, -1}};
    qn_engine *e = qn_test_engine(dir, NULL, (qn_engine_options){.n_threads = 2, .context_size = LONG});
    assert_true(qn_engine_encode_rows(e) < LONG);
    size_t n = encode(e, 1, &rows[0], first);
    n += encode(e, 1, &rows[1], first + n);
    assert_true(n <= FLOATS_MAX && qn_engine_encode_rows(e) >= LONG);
    assert_int_equal(encode(e, 2, rows, again), n);
    assert_memory_equal(first, again, n * sizeof *first);
    const float *out;
    const qn_encode_row beyond = {ids, NULL, LONG + 1, -1};
    assert_int_equal(qn_engine_encode(e, 1, &beyond, &out), QN_E_ARG);
    qn_engine_close(e);
}

/* An argument picks tests by name: '*bert*'. */
int main(int argc, char **argv)
{
    static struct CMUnitTest tests[3 * QN_TEST_KINDS_MAX + 2];
    static qn_test_kind_list kinds;
    static const qn_test_kind_row rows[] = {
        {"golden_", golden}, {"older_config_", older_config}, {"same_bits_", same_bits}};
    qn_test_encoder_kinds(&kinds);
    int n = qn_test_rows_of(&kinds, 3, rows, tests);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(mutations);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(longer_steps);
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return _cmocka_run_group_tests("encoders", tests, (size_t)n, NULL, NULL);
}

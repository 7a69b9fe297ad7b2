/* Vectors of texts as the fixtures' own files make them: pooling, linear layers, length, prompts by name, from ids and
 * from texts; fewer dimensions; texts that are too long. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <jansson.h>
#include <math.h>
#include <quern/quern.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/fixtures.h"
#include "tests/support/models/golden_states.h"
#include "tests/support/models/kinds.h"
#include "tests/support/models/model_dir.h"

enum { WIDTH_MAX = 1024 };
static const double tolerance = 1e-4; /* of the fixtures' README */
static const double fast_tolerance = 2e-2;

typedef struct {
    float vector[WIDTH_MAX];
    int64_t n, n_tokens, n_cut;
    qn_status status;
    char message[256];
} taken;

static qn_status take(void *user, const qn_embed_result *r)
{
    taken *t = user;
    t->status = r->status;
    t->n = r->n_values;
    t->n_tokens = r->n_tokens;
    t->n_cut = r->n_cut;
    assert_true(r->n_values <= WIDTH_MAX);
    if (r->vector) memcpy(t->vector, r->vector, (size_t)r->n_values * sizeof *r->vector);
    if (r->message) snprintf(t->message, sizeof t->message, "%s", r->message);
    return QN_OK;
}

static qn_model *open_with(const char *kind, qn_precision precision)
{
    char path[128];
    qn_model *model = NULL;
    snprintf(path, sizeof path, "models/%s", kind);
    const qn_model_options o = {.precision = precision, .n_threads = 2};
    if (qn_model_open(qn_test_need_fixture(path), &o, &model) != QN_OK) fail_msg("%s", qn_last_error());
    return model;
}

static qn_model *open_kind(const char *kind)
{
    return open_with(kind, QN_PRECISION_EXACT);
}

static void embed(qn_model *model, const qn_prompt *prompt, const qn_embed_options *o, taken *out)
{
    *out = (taken){.n = 0};
    if (qn_embed(model, prompt, 1, o, take, out) != QN_OK) fail_msg("%s", qn_last_error());
}

static double difference(const taken *t, const qn_tensor_view *want)
{
    double worst = 0;
    const float *x = want->data;
    assert_int_equal(t->status, QN_OK);
    assert_int_equal(t->n, want->n_elements);
    for (int64_t i = 0; i < t->n; i++) worst = fmax(worst, fabs((double)t->vector[i] - (double)x[i]));
    return worst;
}

static json_t *read_expected(const char *kind)
{
    char path[128];
    snprintf(path, sizeof path, "models/%s/expected.json", kind);
    json_t *all = json_load_file(qn_test_need_fixture(path), 0, NULL);
    assert_non_null(all);
    return all;
}

static void golden(void **state)
{
    char path[128], name[16];
    const char *kind = *state;
    double worst = 0;
    static taken t;
    qn_safetensors *st;
    snprintf(path, sizeof path, "models/%s/expected.safetensors", kind);
    assert_int_equal(qn_safetensors_open(qn_test_need_fixture(path), &st), QN_OK);
    json_t *all = read_expected(kind), *prompts = json_object_get(all, "prompts");
    qn_model *model = open_kind(kind);
    for (size_t i = 0; i < json_array_size(prompts); i++) {
        const json_t *p = json_array_get(prompts, i);
        const char *task = json_string_value(json_object_get(p, "task"));
        const qn_embed_options o = {.prompt_name = task ? task : ""};
        snprintf(name, sizeof name, "prompt%zu", i);
        const qn_tensor_view *ids = qn_golden_tensor(st, name, "ids"),
                             *want = qn_golden_tensor(st, name, "embedding");
        const qn_ids row = {ids->data, ids->n_elements};
        embed(model, &(qn_prompt){.rows = &row, .n_rows = 1}, &o, &t);
        worst = fmax(worst, difference(&t, want));
        embed(model, &(qn_prompt){.text = json_string_value(json_object_get(p, "text"))}, &o, &t);
        assert_int_equal(t.n_tokens, ids->n_elements);
        worst = fmax(worst, difference(&t, want));
    }
    print_message("%s: largest difference of vectors %.1e\n", kind, worst);
    assert_true(worst <= tolerance);
    qn_model_close(&model);
    qn_safetensors_close(st);
    json_decref(all);
}

/* In `fast` weights of floats are rounded to bf16: vectors move, but not far. */
static void fast(void **state)
{
    char path[128], name[16];
    double worst = 0;
    static taken t;
    qn_safetensors *st;
    snprintf(path, sizeof path, "models/%s/expected.safetensors", (const char *)*state);
    assert_int_equal(qn_safetensors_open(qn_test_need_fixture(path), &st), QN_OK);
    qn_model *model = open_with(*state, QN_PRECISION_FAST);
    for (int i = 0; i < 5; i++) {
        snprintf(name, sizeof name, "prompt%d", i);
        const qn_tensor_view *ids = qn_golden_tensor(st, name, "ids");
        const qn_ids row = {ids->data, ids->n_elements};
        embed(model, &(qn_prompt){.rows = &row, .n_rows = 1}, NULL, &t);
        worst = fmax(worst, difference(&t, qn_golden_tensor(st, name, "embedding")));
    }
    print_message("%s: largest difference of vectors in fast %.1e\n", (const char *)*state, worst);
    assert_true(worst > tolerance && worst <= fast_tolerance);
    qn_model_close(&model);
    qn_safetensors_close(st);
}

/* Fewer dimensions are the first ones, as long as 1 again. */
static void dimensions(void **state)
{
    static taken whole, part;
    static const int32_t ids[] = {5, 9, 12, 7, 30};
    const qn_ids row = {ids, 5};
    const qn_prompt prompt = {.rows = &row, .n_rows = 1};
    qn_model *model = open_kind(*state);
    embed(model, &prompt, NULL, &whole);
    embed(model, &prompt, &(qn_embed_options){.dimensions = whole.n / 2}, &part);
    double squares = 0, length = 0;
    assert_int_equal(part.n, whole.n / 2);
    for (int64_t i = 0; i < part.n; i++) length += (double)whole.vector[i] * (double)whole.vector[i];
    for (int64_t i = 0; i < part.n; i++) {
        squares += (double)part.vector[i] * (double)part.vector[i];
        assert_true(fabs((double)part.vector[i] - (double)whole.vector[i] / sqrt(length)) < 1e-5);
    }
    assert_true(fabs(squares - 1) < 1e-5);
    assert_int_equal(qn_embed(model, &prompt, 1, &(qn_embed_options){.dimensions = whole.n + 1}, take, &part),
                     QN_E_ARG);
    assert_non_null(strstr(qn_last_error(), "dimensions is"));
    assert_int_equal(qn_embed(model, &prompt, 1, &(qn_embed_options){.prompt_name = "no such"}, take, &part),
                     QN_E_NOT_FOUND);
    qn_model_close(&model);
}

/* A text that is too long is refused, or loses tokens at its end but none that the tokenizer puts there. */
static void too_long(void **state)
{
    static taken t, want;
    static char text[40000];
    qn_model_info info;
    qn_model *model = open_kind(*state);
    assert_int_equal(qn_model_get_info(model, &info), QN_OK);
    for (size_t i = 0; i + 3 < sizeof text; i += 2) memcpy(text + i, "a ", 3);
    embed(model, &(qn_prompt){.text = text}, NULL, &t);
    assert_int_equal(t.status, QN_E_ARG);
    char limit[32];
    snprintf(limit, sizeof limit, "%lld", (long long)info.context_size);
    assert_non_null(strstr(t.message, limit));
    embed(model, &(qn_prompt){.text = text}, &(qn_embed_options){.truncate = 1}, &t);
    assert_int_equal(t.status, QN_OK);
    assert_int_equal(t.n_tokens, info.context_size);
    assert_true(t.n_cut > 0);
    int32_t *ids, *around;
    int64_t n, n_around;
    const qn_encode_options bos = {.bos = 1};
    assert_int_equal(qn_model_encode(model, text, strlen(text), &bos, &ids, &n), QN_OK);
    assert_int_equal(qn_model_encode(model, "", 0, &bos, &around, &n_around), QN_OK);
    int64_t head = 0;
    while (head < n_around && around[head] == ids[head]) head++;
    for (int64_t i = head; i < n_around; i++) ids[info.context_size - n_around + i] = around[i];
    const qn_ids row = {ids, info.context_size};
    embed(model, &(qn_prompt){.rows = &row, .n_rows = 1}, NULL, &want);
    assert_memory_equal(t.vector, want.vector, (size_t)t.n * sizeof *t.vector);
    qn_buffer_free(ids);
    qn_buffer_free(around);
    qn_model_close(&model);
}

/* What is wrong with these files is said when a vector is wanted, and not before. */
static void broken_files(void **state)
{
    static taken t;
    static const int32_t ids[] = {5, 9};
    const qn_ids row = {ids, 2};
    const qn_prompt prompt = {.rows = &row, .n_rows = 1};
    char path[128], dir[QN_TEST_DIR_MAX], modules[QN_TEST_DIR_MAX + 32];
    qn_model *model = NULL;
    snprintf(path, sizeof path, "models/%s", (const char *)*state);
    qn_test_model_copy(qn_test_need_fixture(path), NULL, NULL, dir);
    snprintf(modules, sizeof modules, "%s/modules.json", dir);
    remove(modules);
    FILE *f = fopen(modules, "w");
    assert_non_null(f);
    fputs("[{\"path\": \"\", \"type\": \"x.LSTM\"}]", f);
    fclose(f);
    if (qn_model_open(dir, NULL, &model) != QN_OK) fail_msg("%s", qn_last_error());
    assert_int_equal(qn_embed(model, &prompt, 1, NULL, take, &t), QN_E_UNSUPPORTED);
    assert_non_null(strstr(qn_last_error(), "LSTM"));
    qn_model_close(&model);
    qn_test_model_remove(dir);
}

/* What generates is refused by a sentence. */
static void refusals(void **state)
{
    static const int32_t ids[] = {5, 9};
    const qn_ids row = {ids, 2};
    qn_generation *g = NULL;
    qn_model *model = open_kind(*state);
    const qn_prompt prompt = {.rows = &row, .n_rows = 1};
    assert_int_equal(qn_generation_open(model, &prompt, NULL, &g), QN_E_UNSUPPORTED);
    assert_non_null(strstr(qn_last_error(), "is an encoder"));
    qn_model_close(&model);
}

/* An argument picks tests by name: '*bert*'. */
/* Without fixtures there are no kinds, and the whole is left out. */
static void needs_fixtures(void **state)
{
    (void)state;
    qn_test_need_fixture("families2");
}

int main(int argc, char **argv)
{
    static struct CMUnitTest tests[4 * QN_TEST_KINDS_MAX + 1];
    static qn_test_kind_list all, kinds, encoders;
    static const qn_test_kind_row rows[] = {{"golden_", golden}, {"dimensions_", dimensions}},
                                  of_encoders[] = {{"too_long_", too_long},
                                                   {"fast_", fast},
                                                   {"refusals_", refusals},
                                                   {"broken_files_", broken_files}};
    qn_test_encoder_kinds(&all);
    for (int i = 0; i < all.n; i++) /* rerankers have no vectors */
        if (!strstr(all.names[i], "reranker")) {
            memcpy(kinds.names[kinds.n++], all.names[i], sizeof all.names[i]);
            memcpy(encoders.names[encoders.n++], all.names[i], sizeof all.names[i]);
        }
    if (qn_test_fixture("models/qwen3_embedding/config.json"))
        snprintf(kinds.names[kinds.n++], sizeof kinds.names[0], "qwen3_embedding");
    int n = qn_test_rows_of(&kinds, 2, rows, tests);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(needs_fixtures);
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    int failed = _cmocka_run_group_tests("embeddings", tests, (size_t)n, NULL, NULL);
    n = qn_test_rows_of(&encoders, 4, of_encoders, tests);
    return failed + _cmocka_run_group_tests("embeddings of encoders", tests, (size_t)n, NULL, NULL);
}

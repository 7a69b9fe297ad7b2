/* qn_model_logits beyond plain logits: the hidden states behind the final norm against the reference, of
 * every fixture, and logits from a position on, which have the same bits as all of them. */
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

#include "base/mem.h"
#include "format/safetensors/safetensors.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/golden_states.h"
#include "tests/support/models/kinds.h"

/* Rows of values that came, one behind the other for each row of ids. */
typedef struct {
    float *values; /* [rows][length][width] */
    int64_t width, length, next[3], n;
} sink;

static qn_status take(void *user, int64_t row, int64_t position, int64_t n, const float *values)
{
    sink *s = user;
    assert_int_equal(position, s->next[row]);
    assert_true(position + n <= s->length);
    memcpy(s->values + (row * s->length + position) * s->width, values,
           (size_t)(n * s->width) * sizeof *values);
    s->next[row] += n;
    s->n += n;
    return QN_OK;
}

static qn_model *open_model(const char *path, qn_model_options o)
{
    qn_model *model = NULL;
    o.n_threads = 2;
    qn_test_ok(qn_model_open(path, &o, &model));
    return model;
}

/* The golden values of a kind, NULL where it has none, and the model. */
static qn_safetensors *open_kind(const char *kind, qn_model **model)
{
    char path[160];
    qn_safetensors *st = NULL;
    snprintf(path, sizeof path, "models/%.100s/expected.safetensors", kind);
    const char *file = qn_test_fixture(path);
    if (!file || qn_safetensors_open(file, &st) != QN_OK) return NULL;
    snprintf(path, sizeof path, "models/%.100s", kind);
    *model = open_model(qn_test_need_fixture(path), (qn_model_options){.precision = QN_PRECISION_EXACT});
    return st;
}

/* want [length, hidden_size]: behind the final norm, of ids. */
static void check_hidden(const char *kind, qn_model *model, const qn_tensor_view *ids,
                         const qn_tensor_view *want)
{
    qn_model_info info;
    const float *expected = want->data;
    qn_test_ok(qn_model_get_info(model, &info));
    const qn_ids row = {ids->data, ids->n_elements};
    sink s = {.width = info.hidden_size, .length = row.n_ids};
    assert_int_equal(want->n_elements, row.n_ids * info.hidden_size);
    s.values = qn_alloc_array((size_t)want->n_elements, sizeof *s.values);
    assert_non_null(s.values);
    qn_test_ok(qn_model_logits(model, &row, 1, &(qn_logits_options){.hidden = 1}, take, &s));
    double worst = 0, largest = 0;
    for (int64_t i = 0; i < want->n_elements; i++) {
        worst = fmax(worst, fabs((double)s.values[i] - (double)expected[i]));
        largest = fmax(largest, fabs((double)expected[i]));
    }
    if (!(worst <= qn_golden_states_tolerance * largest))
        fail_msg("%s: the hidden states differ by %g of the largest value", kind, worst / largest);
    qn_free(s.values);
}

static int compare(const char *kind)
{
    qn_model_info info;
    qn_model *model = NULL;
    qn_safetensors *st = open_kind(kind, &model);
    if (!st) return 0;
    qn_test_ok(qn_model_get_info(model, &info));
    const qn_tensor_view *last = qn_test_tensor(st, "hidden.%d", (int)info.num_layers);
    if (last->n_dims == 4) /* what is behind the final norm is not stored */
        print_message("%s: models_test compares the streams before the final norm\n", kind);
    else
        check_hidden(kind, model, qn_test_tensor(st, "prompt%d.ids", 3), last);
    qn_model_close(&model);
    qn_safetensors_close(st);
    return 1;
}

/* Texts of a model that is published for embeddings. */
static void test_texts(void **state)
{
    static const char kind[] = "qwen3_embedding";
    qn_model *model = NULL;
    qn_safetensors *st = open_kind(kind, &model);
    if (!st) qn_test_leave_out("models/qwen3_embedding is not in this clone (QUERN_FIXTURES)");
    int n = 0;
    for (char name[32]; snprintf(name, sizeof name, "prompt%d.ids", n), qn_safetensors_find(st, name); n++)
        check_hidden(kind, model, qn_test_tensor(st, "prompt%d.ids", n),
                     qn_test_tensor(st, "prompt%d.last_hidden", n));
    assert_true(n > 0);
    qn_model_close(&model);
    qn_safetensors_close(st);
}

static qn_status take_last(void *user, int64_t row, int64_t position, int64_t n, const float *values)
{
    const sink *s = user;
    memcpy(s->values, values + (n - 1) * s->width, (size_t)s->width * sizeof *values);
    return QN_OK;
}

/* Queries with documents, of a model that is published for ranking them: the logits of its two answers. */
static void test_pairs(void **state)
{
    static const char *const answers[] = {"no_id", "yes_id"};
    qn_model_info info;
    qn_model *model = NULL;
    qn_safetensors *st = open_kind("qwen3_reranker", &model);
    if (!st) qn_test_leave_out("models/qwen3_reranker is not in this clone (QUERN_FIXTURES)");
    json_t *about = json_load_file(qn_test_need_fixture("models/qwen3_reranker/expected.json"), 0, NULL);
    qn_test_ok(qn_model_get_info(model, &info));
    sink s = {.width = info.vocab_size};
    s.values = qn_alloc_array((size_t)s.width, sizeof *s.values);
    assert_true(about && s.values);
    int n = 0;
    for (char name[32]; snprintf(name, sizeof name, "pair%d.ids", n), qn_safetensors_find(st, name); n++) {
        const qn_tensor_view *ids = qn_test_tensor(st, "pair%d.ids", n);
        const float *want = qn_test_tensor(st, "pair%d.logits", n)->data;
        const qn_ids row = {ids->data, ids->n_elements};
        qn_test_ok(qn_model_logits(model, &row, 1, &(qn_logits_options){0}, take_last, &s));
        for (int i = 0; i < 2; i++) {
            const json_int_t id = json_integer_value(json_object_get(about, answers[i]));
            assert_true(id > 0 && id < s.width);
            assert_true(fabs((double)s.values[id] - (double)want[i]) <= 2e-4);
        }
    }
    assert_true(n > 0);
    json_decref(about);
    qn_free(s.values);
    qn_model_close(&model);
    qn_safetensors_close(st);
}

static void test_hidden(void **state)
{
    static qn_test_kind_list kinds;
    int n = 0;
    qn_test_kinds(&kinds);
    for (int i = 0; i < kinds.n; i++) n += compare(kinds.names[i]);
    print_message("%d models\n", n);
    assert_true(n > 0);
}

enum { LENGTH = 70, WIDTH_MAX = 1024 };

static void run(const char *path, qn_model_options o, const qn_ids *rows, const int64_t *first, int hidden,
                float *values, int64_t *n)
{
    qn_model_info info;
    qn_model *model = open_model(path, o);
    qn_test_ok(qn_model_get_info(model, &info));
    sink s = {.values = values, .width = hidden ? info.hidden_size : info.vocab_size, .length = LENGTH};
    assert_true(s.width <= WIDTH_MAX);
    for (int i = 0; first && i < 3; i++) s.next[i] = first[i];
    qn_logits_options lo = {.row_first = first, .hidden = hidden};
    qn_test_ok(qn_model_logits(model, rows, 3, &lo, take, &s));
    *n = s.n;
    qn_model_close(&model);
}

/* Whatever the chunks, the company and the first position. */
static void test_from_a_position(void **state)
{
    static const char *const kinds[] = {"llama", "gemma3_text", "qwen3_next", "phi3_longrope"};
    static const int64_t firsts[][3] = {{0, 3, 1}, {31, 32, 69}, {64, 69, 0}};
    static float whole[3 * LENGTH * WIDTH_MAX], part[3 * LENGTH * WIDTH_MAX];
    int32_t ids[LENGTH + 2];
    for (int i = 0; i < LENGTH + 2; i++) ids[i] = 1 + i * 7 % 250;
    const qn_ids rows[] = {{ids, LENGTH}, {ids + 1, LENGTH}, {ids + 2, LENGTH}};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        char path[64];
        snprintf(path, sizeof path, "models/%s", kinds[k]);
        for (int hidden = 0; hidden < 2; hidden++) {
            int64_t n;
            memset(whole, 0, sizeof whole);
            run(qn_test_need_fixture(path), (qn_model_options){.parallel_slots = 3}, rows, NULL, hidden,
                whole, &n);
            assert_int_equal(n, 3 * LENGTH);
            for (size_t f = 0; f < sizeof firsts / sizeof *firsts; f++) {
                memcpy(part, whole, sizeof whole);
                run(qn_test_need_fixture(path),
                    (qn_model_options){.parallel_slots = f == 1 ? 3 : 1, .prefill_chunk = f == 2 ? 7 : 0},
                    rows, firsts[f], hidden, part, &n);
                assert_int_equal(n, 3 * LENGTH - firsts[f][0] - firsts[f][1] - firsts[f][2]);
                assert_memory_equal(part, whole, sizeof whole);
            }
        }
    }
}

static void test_refused(void **state)
{
    qn_model *model = open_model(qn_test_need_fixture("models/llama"), (qn_model_options){0});
    const qn_ids row = {(int32_t[]){5, 6, 7}, 3};
    const int64_t bad[] = {-1, 3};
    sink s = {0};
    for (int i = 0; i < 2; i++) {
        qn_logits_options o = {.row_first = &bad[i]};
        assert_int_equal(qn_model_logits(model, &row, 1, &o, take, &s), QN_E_ARG);
        assert_non_null(strstr(qn_last_error(), "row_first: row 0 has 3 tokens"));
    }
    qn_model_close(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hidden),          cmocka_unit_test(test_texts),   cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_from_a_position), cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

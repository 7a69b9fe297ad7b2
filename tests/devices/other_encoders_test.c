/* Encoders on another device: hidden states, attention and scores of every fixture against golden values; each precision
 * beside the CPU's; sequences in company; attention to both sides of rows; adapters; vectors and scores of the public API;
 * what does not fit. */
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
#include <stdlib.h>
#include <string.h>

#include "array/program.h"
#include "base/mem.h"
#include "base/random.h"
#include "engine/machine/encode.h"
#include "tests/devices/other_compare.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/formula.h"
#include "tests/support/models/golden_states.h"
#include "tests/support/models/kinds.h"
#include "tests/support/scratch.h"

enum { PROMPTS_MAX = 12, FLOATS_MAX = 1 << 16 };

/* Its name, or the test ends here. */
static const char *other(void)
{
    return qn_test_other()->name;
}

static const char *folder_of(const char *kind)
{
    char path[128];
    snprintf(path, sizeof path, "models/%s", kind);
    return qn_test_need_fixture(path);
}

static qn_safetensors *open_expected(const char *kind)
{
    char path[128];
    qn_safetensors *st;
    snprintf(path, sizeof path, "models/%s/expected.safetensors", kind);
    qn_test_ok(qn_safetensors_open(qn_test_need_fixture(path), &st));
    return st;
}

static qn_engine *open_engine(const char *kind, const char *device, qn_precision precision)
{
    return qn_test_engine(folder_of(kind), NULL,
                          (qn_engine_options){.device = device, .precision = precision, .n_threads = 2});
}

static int has_pairs(const qn_safetensors *st)
{
    return qn_safetensors_find(st, "pair0.ids") != NULL;
}

/* "prompt2" or "pair2"; 0: there are fewer. */
static int name_prompt(const qn_safetensors *st, int i, char name[16])
{
    char ids[24];
    snprintf(name, 16, "%s%d", has_pairs(st) ? "pair" : "prompt", i);
    snprintf(ids, sizeof ids, "%s.ids", name);
    return qn_safetensors_find(st, ids) != NULL;
}

/* ---- golden values ------------------------------------------------------------------------------------ */

static void golden(void **state)
{
    const char *kind = *state;
    char name[16];
    double worst = 0;
    qn_golden_errors errors = {0};
    qn_engine *e = open_engine(kind, other(), QN_PRECISION_EXACT);
    qn_safetensors *st = open_expected(kind);
    const int inspected = has_pairs(st) ? 0 : 2;
    assert_string_equal(qn_engine_get_info(e)->device, other());
    int n = 0;
    for (; name_prompt(st, n, name); n++) {
        const char *want = has_pairs(st) ? "score" : "last_hidden";
        const double own = qn_golden_encoded(e, st, name, want, n == inspected ? &errors : NULL);
        if (!(own <= worst)) worst = own;
    }
    print_message("%s: largest differences: results %.1e, hidden states %.1e, attention %.1e\n", kind, worst,
                  errors.hidden, errors.attention);
    assert_true(n > inspected && errors.n_hidden >= 2);
    if (errors.first[0]) fail_msg("%s is the first to leave the tolerance", errors.first);
    assert_true(worst <= qn_test_bound_of(QN_TEST_LOGITS));
    qn_engine_close(e);
    qn_safetensors_close(st);
}

/* ---- precisions and company --------------------------------------------------------------------------- */

static int read_rows(const qn_safetensors *st, qn_encode_row rows[PROMPTS_MAX])
{
    char name[16], types[24];
    int n = 0;
    for (; n < PROMPTS_MAX && name_prompt(st, n, name); n++) {
        const qn_tensor_view *ids = qn_golden_tensor(st, name, "ids");
        snprintf(types, sizeof types, "%s.types", name);
        const qn_tensor_view *t = qn_safetensors_find(st, types);
        rows[n] = (qn_encode_row){ids->data, t ? t->data : NULL, ids->n_elements, -1};
    }
    return n;
}

/* Vectors of n sequences in one step, one after the other; returns how many floats. */
static size_t encode(qn_engine *e, int n, const qn_encode_row *rows, float *out)
{
    const float *got;
    size_t total = 0;
    for (int i = 0; i < n; i++) total += (size_t)rows[i].n_ids;
    total *= (size_t)qn_engine_encoded_size(e);
    assert_true(total <= FLOATS_MAX);
    qn_test_ok(qn_engine_encode(e, n, rows, &got));
    memcpy(out, got, total * sizeof *out);
    return total;
}

/* Root of the mean square of a - b, as a share of that of b. */
static double distance(const float *a, const float *b, size_t n)
{
    double off = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        const double d = (double)a[i] - (double)b[i];
        off += d * d;
        all += (double)b[i] * (double)b[i];
    }
    return sqrt(off / all);
}

/* Alone, together, and together in the other order: the same numbers, and the same bits if the device promises them.
 * Sizes that come again are computed in other ways than the first time. */
static void check_company(const char *kind, qn_precision precision, const qn_encode_row *rows, int n,
                          const float *want)
{
    static float alone[FLOATS_MAX], got[FLOATS_MAX];
    static const double most[] = {
        [QN_PRECISION_EXACT] = 1e-5, [QN_PRECISION_HIGH] = 5e-3, [QN_PRECISION_FAST] = 5e-2};
    const int same_bits = !qn_test_other()->sums_by_batch;
    qn_engine *e = open_engine(kind, other(), precision);
    size_t size = 0;
    for (int i = 0; i < n; i++) size += encode(e, 1, &rows[i], alone + size);
    const double far = distance(alone, want, size);
    print_message("%s %s: %.1e from the CPU's\n", kind, qn_precision_name(precision), far);
    assert_true(far <= most[precision]);
    for (int again = 0; again < 3; again++) {
        assert_int_equal(encode(e, n, rows, got), size);
        if (same_bits) assert_memory_equal(got, alone, size * sizeof *got);
        assert_true(distance(got, alone, size) <= most[precision]);
    }
    qn_encode_row turned[PROMPTS_MAX];
    for (int i = 0; i < n; i++) turned[i] = rows[n - 1 - i];
    encode(e, n, turned, got);
    for (size_t i = 0, at = size, from = 0; i < (size_t)n; i++) {
        const size_t own = (size_t)(rows[i].n_ids * qn_engine_encoded_size(e));
        at -= own;
        if (same_bits) assert_memory_equal(got + at, alone + from, own * sizeof *got);
        assert_true(distance(got + at, alone + from, own) <= most[precision]);
        from += own;
    }
    for (int i = 0; i < n; i++) /* the shortest three times, beside itself */
        if (rows[i].n_ids <= 8) {
            const qn_encode_row three[] = {rows[i], rows[i], rows[i]};
            const size_t own = encode(e, 3, three, got) / 3;
            if (same_bits) assert_memory_equal(got, got + 2 * own, own * sizeof *got);
        }
    qn_engine_close(e);
}

static void company(void **state)
{
    static float want[FLOATS_MAX];
    qn_encode_row rows[PROMPTS_MAX];
    other();
    qn_safetensors *st = open_expected(*state);
    const int n = read_rows(st, rows);
    for (int p = 0; p < 3; p++) {
        qn_engine *e = open_engine(*state, "cpu", (qn_precision)p);
        size_t at = 0;
        for (int i = 0; i < n; i++) at += encode(e, 1, &rows[i], want + at);
        qn_engine_close(e);
        check_company(*state, (qn_precision)p, rows, n, want);
    }
    qn_safetensors_close(st);
}

/* A sequence that is longer than the steps so far: the programs grow. */
static void longer_steps(void **state)
{
    enum { LONG = 600, SHORT = 7 };
    static float got[FLOATS_MAX], want[FLOATS_MAX];
    static int32_t ids[LONG];
    const char *dir = folder_of("modernbert"); /* its positions are not learned */
    size_t total = 0;
    (void)state;
    for (int i = 0; i < LONG; i++) ids[i] = 5 + i * 7 % 500;
    for (int d = 0; d < 2; d++) {
        qn_engine *e = qn_test_engine(dir, NULL,
                                      (qn_engine_options){.device = d ? other() : "cpu",
                                                          .precision = QN_PRECISION_EXACT,
                                                          .n_threads = 2,
                                                          .max_rows = 64,
                                                          .context_size = LONG});
        const qn_encode_row rows[] = {{ids, NULL, SHORT, -1}, {ids, NULL, LONG, -1}};
        const float *out;
        total = (size_t)(SHORT + LONG) * (size_t)qn_engine_encoded_size(e);
        assert_true(total <= FLOATS_MAX && qn_engine_encode_rows(e) < LONG);
        qn_test_ok(qn_engine_encode(e, 2, rows, &out));
        assert_true(qn_engine_encode_rows(e) >= LONG);
        memcpy(d ? got : want, out, total * sizeof *out);
        qn_engine_close(e);
    }
    print_message("%d rows in a step: %.1e from the CPU's\n", LONG + SHORT, distance(got, want, total));
    assert_true(distance(got, want, total) <= 1e-5);
}

/* ---- attention to both sides -------------------------------------------------------------------------- */

enum { HEADS = 4, KV_HEADS = 2, DIM = 20, V_DIM = 12, SEQUENCES = 3 };

/* Queries, keys, values and what the result's gradient is made of, of rows of some sequences. */
typedef struct {
    int64_t n, begin[SEQUENCES + 1], window;
    float softcap;
} whole_case;

/* The result and the gradients by queries, keys and values, one after the other. */
static void attend_whole(qn_device *d, const whole_case *w, const float *numbers, float *out)
{
    const int64_t width[] = {HEADS * DIM, KV_HEADS * DIM, KV_HEADS * V_DIM, HEADS * V_DIM},
                  heads[] = {HEADS, KV_HEADS, KV_HEADS, HEADS}, ends = SEQUENCES + 1;
    qn_scope *s = qn_scope_new(d);
    qn_array *in[4], *results[4];
    int32_t begin[SEQUENCES + 1];
    int32_t *at = qn_alloc_array((size_t)w->n, sizeof *at);
    for (int i = 0; i < 4; i++) {
        in[i] = qn_from_data(s, QN_DTYPE_F32, 3, (int64_t[]){w->n, heads[i], width[i] / heads[i]}, numbers);
        numbers += w->n * width[i];
    }
    for (int i = 0; i <= SEQUENCES; i++) begin[i] = (int32_t)w->begin[i];
    for (int i = 0; i < SEQUENCES; i++)
        for (int64_t r = w->begin[i]; r < w->begin[i + 1]; r++) at[r] = (int32_t)(r - w->begin[i]);
    const qn_params_attend p = {.whole = 1, .window = w->window, .scale = 0.4f, .softcap = w->softcap};
    results[0] = qn_attend(s, &p, in[0], in[1], in[2], qn_from_data(s, QN_DTYPE_I32, 1, &w->n, at),
                           qn_from_data(s, QN_DTYPE_I32, 1, &ends, begin), NULL, NULL);
    qn_test_ok(qn_vjp(s, results[0], in[3], 3, in, results + 1));
    qn_test_ok(qn_eval(s, 4, results));
    for (int i = 0; i < 4; i++) {
        const size_t n = (size_t)(w->n * (i ? width[i - 1] : width[3]));
        memcpy(out, qn_array_data(results[i]), n * sizeof *out);
        out += n;
    }
    qn_free(at);
    qn_scope_free(s);
}

static void both_sides(void **state)
{
    static const int64_t lengths[][SEQUENCES] = {{1, 5, 33}, {256, 257, 0}, {64, 600, 65}, {31, 32, 320}},
                         windows[] = {0, 1, 9, 33, 64, 300};
    enum { N_LENGTHS = sizeof lengths / sizeof *lengths, N_WINDOWS = sizeof windows / sizeof *windows };
    qn_test_pair pair = qn_test_pair_open(0);
    (void)state;
    for (int i = 0; i < N_LENGTHS * N_WINDOWS; i++) {
        whole_case w = {.window = windows[i / N_LENGTHS], .softcap = i % 3 ? 0 : 2};
        for (int k = 0; k < SEQUENCES; k++) w.begin[k + 1] = w.begin[k] + lengths[i % N_LENGTHS][k];
        w.n = w.begin[SEQUENCES];
        const size_t n = (size_t)(w.n * (HEADS * (DIM + V_DIM) + KV_HEADS * (DIM + V_DIM)));
        float *numbers = qn_alloc_array(n, sizeof *numbers), *got = qn_alloc_array(n, sizeof *got),
              *want = qn_alloc_array(n, sizeof *want);
        for (size_t k = 0; k < n; k++) numbers[k] = (float)(2 * qn_random_unit(7, k) - 1);
        attend_whole(pair.cpu, &w, numbers, want);
        attend_whole(pair.other, &w, numbers, got);
        for (size_t k = 0; k < n; k++)
            if (!(fabsf(got[k] - want[k]) < 1e-5f))
                fail_msg("%lld rows, window %lld: value %zu is %.9g, the CPU's %.9g", (long long)w.n,
                         (long long)w.window, k, (double)got[k], (double)want[k]);
        qn_free(numbers);
        qn_free(got);
        qn_free(want);
    }
    qn_test_pair_close(&pair);
}

/* ---- adapters ----------------------------------------------------------------------------------------- */

enum { IDS_MAX = 16 };

/* A row with the adapter between two without it. */
static void expect_form(const char *path, const int32_t *ids, int64_t n, const json_t *form)
{
    const json_t *want = json_object_get(form, "values");
    const char *adapter = qn_test_formula_adapter(form);
    qn_buf notes = {0};
    int32_t id;
    const float *got;
    const qn_engine_options o = {.device = other(), .precision = QN_PRECISION_EXACT, .n_threads = 1};
    qn_engine *e = qn_test_engine(path, NULL, o);
    const int64_t width = qn_engine_encoded_size(e), labels = qn_engine_config(e)->encoder.num_labels;
    qn_test_ok(qn_engine_adapter_load(e, "it", adapter, 1, &notes));
    qn_test_ok(qn_adapters_hold(qn_engine_adapters(e), "it", &id));
    const qn_encode_row rows[] = {{ids, NULL, n, -1}, {ids, NULL, n, id}, {ids, NULL, n - 1, -1}};
    qn_test_ok(labels ? qn_engine_classify(e, 3, rows, &got) : qn_engine_encode(e, 3, rows, &got));
    got += labels ? labels : (2 * n - 1) * width;
    for (size_t i = 0; i < json_array_size(want); i++) {
        const double expected = json_number_value(json_array_get(want, i));
        if (!(fabs((double)got[i] - expected) <= qn_test_bound_of(QN_TEST_LOGITS)))
            fail_msg("%s, %s: value %zu is %g, expected %g", path,
                     json_string_value(json_object_get(form, "name")), i, (double)got[i], expected);
    }
    qn_adapters_release(qn_engine_adapters(e), id);
    qn_buf_free(&notes);
    qn_engine_close(e);
    qn_test_remove(adapter);
}

static void adapters(void **state)
{
    json_t *all = json_load_file(qn_test_need_fixture("adapter_encoders.json"), 0, NULL), *form;
    const json_t *ids = json_object_get(all, "ids");
    int32_t own[IDS_MAX];
    size_t i;
    int n = 0;
    (void)state;
    other();
    assert_true(json_array_size(ids) <= IDS_MAX);
    for (i = 0; i < json_array_size(ids); i++) own[i] = (int32_t)json_integer_value(json_array_get(ids, i));
    json_array_foreach(json_object_get(all, "forms"), i, form)
    {
        char path[128];
        snprintf(path, sizeof path, "models/%s", json_string_value(json_object_get(form, "model")));
        const char *found = qn_test_fixture(path);
        if (!found) continue;
        expect_form(found, own, (int64_t)json_array_size(ids), form);
        n++;
    }
    json_decref(all);
    if (!n) qn_test_leave_out("the encoders are not in this clone");
}

/* ---- the public API ----------------------------------------------------------------------------------- */

static qn_model *open_model(const char *kind, const char *device)
{
    qn_model *m = NULL;
    const qn_model_options o = {.device = device, .precision = QN_PRECISION_EXACT};
    qn_test_ok(qn_model_open(folder_of(kind), &o, &m));
    return m;
}

enum { TEXTS = 5, NUMBERS_MAX = TEXTS * 256 };
static const char *const texts[TEXTS] = {"A cat.", "The quick brown fox jumps over the lazy dog, twice.",
                                         "no", "An encoder reads a sentence as a whole.", "A cat."};

typedef struct {
    float x[NUMBERS_MAX];
    size_t n;
} numbers;

static qn_status take_vector(void *user, const qn_embed_result *r)
{
    numbers *to = user;
    if (r->status != QN_OK) fail_msg("%s", r->message);
    assert_true(to->n + (size_t)r->n_values <= NUMBERS_MAX);
    memcpy(to->x + to->n, r->vector, (size_t)r->n_values * sizeof *to->x);
    to->n += (size_t)r->n_values;
    return QN_OK;
}

static qn_status take_score(void *user, const qn_rerank_result *r)
{
    numbers *to = user;
    if (r->status != QN_OK) fail_msg("%s", r->message);
    to->x[to->n++] = (float)r->score;
    return QN_OK;
}

static void vectors(void **state)
{
    static numbers got[2];
    other();
    for (int d = 0; d < 2; d++) {
        qn_model *m = open_model(*state, d ? other() : "cpu");
        qn_prompt prompts[TEXTS];
        for (int i = 0; i < TEXTS; i++) prompts[i] = (qn_prompt){.text = texts[i]};
        got[d].n = 0;
        qn_test_ok(qn_embed(m, prompts, TEXTS, NULL, take_vector, &got[d]));
        qn_model_close(&m);
    }
    assert_int_equal(got[0].n, got[1].n);
    assert_true(got[0].n > 0 && distance(got[1].x, got[0].x, got[0].n) <= 1e-5);
    const size_t each = got[1].n / TEXTS;
    if (!qn_test_other()->sums_by_batch)
        assert_memory_equal(got[1].x, got[1].x + (TEXTS - 1) * each, each * sizeof *got[1].x);
}

static void scores(void **state)
{
    static numbers got[2];
    other();
    for (int d = 0; d < 2; d++) {
        qn_model *m = open_model(*state, d ? other() : "cpu");
        qn_pair pairs[TEXTS];
        for (int i = 0; i < TEXTS; i++) pairs[i] = (qn_pair){.query = "Which animal?", .document = texts[i]};
        got[d].n = 0;
        qn_test_ok(qn_rerank(m, pairs, TEXTS, NULL, take_score, &got[d]));
        qn_model_close(&m);
    }
    assert_true(got[0].n == TEXTS && got[1].n == TEXTS);
    assert_true(distance(got[1].x, got[0].x, TEXTS) <= 1e-5);
}

/* ---- what does not fit -------------------------------------------------------------------------------- */

static void refusals(void **state)
{
    const char *dir = folder_of("bert_mean");
    qn_model *m = NULL;
    qn_device_memory card = {0};
    (void)state;
    qn_model_options o = {.device = other(), .memory_limit_bytes = 30000};
    assert_int_equal(qn_model_open(dir, &o, &m), QN_E_NOMEM);
    o = (qn_model_options){.device = other()};
    qn_test_ok(qn_model_open(dir, &o, &m));
    qn_test_ok(qn_model_get_device_memory(m, &card));
    qn_model_close(&m);
    if (!card.peak_memory_bytes) return;
    o.device_memory_limit_bytes = 30000;
    assert_int_equal(qn_model_open(dir, &o, &m), QN_E_NOMEM);
    assert_non_null(strstr(qn_last_error(), "What fits: the device cpu"));
    o = (qn_model_options){.device = other(), .gpu_layers = 1};
    assert_int_equal(qn_model_open(dir, &o, &m), QN_E_UNSUPPORTED);
    assert_non_null(strstr(qn_last_error(), "an encoder is computed by one device"));
}

static qn_status open_and_encode(const char *path)
{
    static const int32_t ids[] = {5, 9, 2, 77, 31, 8};
    qn_engine *e = NULL;
    const float *out;
    const qn_engine_options o = {.device = other(), .n_threads = 1, .context_size = 64};
    const qn_encode_row rows[] = {{ids, NULL, 6, -1}, {ids, NULL, 2, -1}};
    qn_status status = qn_test_engine_try(path, &o, &e);
    if (status == QN_OK) status = qn_engine_classify(e, 2, rows, &out);
    qn_engine_close(e);
    return status;
}

/* Some of the allocations of quern's own fail, one at a time. */
static void out_of_memory(void **state)
{
    const char *dir = folder_of("bert_reranker");
    (void)state;
    qn_test_ok(open_and_encode(dir));
    const int64_t live = qn_mem_live_blocks();
    int64_t n = 1;
    for (;; n += n < 20 ? 1 : 31) {
        const int64_t made = qn_mem_allocations();
        qn_mem_fail_nth(n);
        const qn_status status = open_and_encode(dir);
        qn_mem_fail_nth(0);
        const int reached = qn_mem_allocations() - made >= n;
        if (status != (reached ? QN_E_NOMEM : QN_OK))
            fail_msg("allocation %d: %s, %s", (int)n, qn_status_name(status), qn_last_error());
        assert_int_equal(qn_mem_live_blocks(), live);
        if (!reached) break;
    }
    assert_true(n > 300);
}

/* An argument picks tests by name: '*bert*'. */
int main(int argc, char **argv)
{
    static struct CMUnitTest tests[2 * QN_TEST_KINDS_MAX + 16];
    static qn_test_kind_list kinds;
    static const qn_test_kind_row rows[] = {{"golden_", golden}, {"company_", company}};
    static const struct CMUnitTest others[] = {
        {"longer_steps", longer_steps, NULL, NULL, NULL},
        {"both_sides", both_sides, NULL, NULL, NULL},
        {"adapters", adapters, NULL, NULL, NULL},
        {"vectors_bert_mean", vectors, NULL, NULL, "bert_mean"},
        {"vectors_embedding_gemma2", vectors, NULL, NULL, "embedding_gemma2"},
        {"vectors_modernbert", vectors, NULL, NULL, "modernbert"},
        {"scores_bert_reranker", scores, NULL, NULL, "bert_reranker"},
        {"scores_xlm_roberta_reranker", scores, NULL, NULL, "xlm_roberta_reranker"},
        {"refusals", refusals, NULL, NULL, NULL},
        {"out_of_memory", out_of_memory, NULL, NULL, NULL}};
    qn_test_encoder_kinds(&kinds);
    int n = qn_test_rows_of(&kinds, 2, rows, tests);
    memcpy(tests + n, others, sizeof others);
    n += (int)(sizeof others / sizeof others[0]);
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return qn_test_run_others("encoders", tests, (size_t)n, NULL, NULL);
}

/* Encoders as files that llama.cpp's converter makes of the fixtures: the same hidden states, vectors and scores; forms
 * that other converters write; what is refused. The files are too large for tests/golden: make
 * test-encoders-gguf makes them and runs this. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <quern/quern.h>
#include <stdio.h>
#include <string.h>

#include "quant/types.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/gguf_file.h"
#include "tests/support/models/golden_states.h"
#include "tests/support/models/model_dir.h"
#include "tests/support/scratch.h"

enum { WIDTH_MAX = 256, GGUF_BOOL = 7 };
static const double tolerance = 1e-4; /* of the fixtures' README */
static const qn_engine_options exact = {.precision = QN_PRECISION_EXACT, .n_threads = 2};

typedef struct {
    float vector[WIDTH_MAX];
    int64_t n;
} taken;

static qn_status take(void *user, const qn_embed_result *r)
{
    taken *t = user;
    assert_int_equal(r->status, QN_OK);
    t->n = r->n_values;
    assert_true(t->n <= WIDTH_MAX);
    memcpy(t->vector, r->vector, (size_t)t->n * sizeof *t->vector);
    return QN_OK;
}

static qn_model *open_model(const char *path)
{
    qn_model *model = NULL;
    const qn_model_options o = {.precision = QN_PRECISION_EXACT, .n_threads = 2};
    if (qn_model_open(path, &o, &model) != QN_OK) fail_msg("%s", qn_last_error());
    return model;
}

/* Normalised, with the file's own pooling and linear layers. */
static void embed(qn_model *model, const int32_t *ids, int64_t n, taken *out)
{
    const qn_ids row = {ids, n};
    const qn_prompt prompt = {.rows = &row, .n_rows = 1};
    if (qn_embed(model, &prompt, 1, &(qn_embed_options){.normalise = 1}, take, out) != QN_OK)
        fail_msg("%s", qn_last_error());
}

static double difference(const float *a, const float *b, int64_t n)
{
    double worst = 0;
    for (int64_t i = 0; i < n; i++) worst = fmax(worst, fabs((double)a[i] - (double)b[i]));
    return worst;
}

static const char *file_of(const char *kind)
{
    char path[128];
    snprintf(path, sizeof path, "gguf/%s.gguf", kind);
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

/* "prompt2" or "pair2"; 0: there are fewer. */
static int name_prompt(const qn_safetensors *st, int is_pair, int i, char name[16])
{
    char ids[24];
    snprintf(name, 16, "%s%d", is_pair ? "pair" : "prompt", i);
    snprintf(ids, sizeof ids, "%s.ids", name);
    return qn_safetensors_find(st, ids) != NULL;
}

static void golden(void **state)
{
    static taken t;
    char name[16];
    double states = 0, vectors = 0;
    qn_safetensors *st = open_expected(*state);
    const int is_pair = name_prompt(st, 1, 0, name);
    qn_engine *e = qn_test_engine(file_of(*state), NULL, exact);
    qn_model *model = open_model(file_of(*state));
    for (int i = 0; name_prompt(st, is_pair, i, name); i++) {
        states = fmax(states, qn_golden_encoded(e, st, name, is_pair ? "score" : "last_hidden", NULL));
        if (is_pair) continue;
        const qn_tensor_view *ids = qn_golden_tensor(st, name, "ids"),
                             *want = qn_golden_tensor(st, name, "embedding");
        embed(model, ids->data, ids->n_elements, &t);
        assert_int_equal(t.n, want->n_elements);
        vectors = fmax(vectors, difference(t.vector, want->data, t.n));
    }
    print_message("%s: largest differences: results %.1e, vectors %.1e\n", (const char *)*state, states,
                  vectors);
    assert_true(states <= tolerance && vectors <= tolerance);
    qn_model_close(&model);
    qn_engine_close(e);
    qn_safetensors_close(st);
}

/* Of EmbeddingGemma the files say neither which layers slide nor the scale: all but each sixth, and the head's size. */
static void linear_layers(void **state)
{
    enum { N = 17 };
    static const int32_t ids[N] = {2,   528, 435, 355, 619, 454, 599, 767, 447,
                                   563, 353, 566, 455, 496, 917, 824, 288};
    static const char slides[] = "\"sliding_attention\"";
    static taken a, b;
    char dir[QN_TEST_DIR_MAX], patch[512];
    (void)state;
    snprintf(patch, sizeof patch, "{\"layer_types\": [%s, %s, %s, %s, %s], \"query_pre_attn_scalar\": 24}",
             slides, slides, slides, slides, slides);
    qn_test_model_copy(qn_test_need_fixture("models/embeddinggemma"), patch, NULL, dir);
    qn_model *from = open_model(dir), *file = open_model(file_of("embeddinggemma"));
    embed(from, ids, N, &a);
    embed(file, ids, N, &b);
    assert_int_equal(a.n, b.n);
    assert_true(difference(a.vector, b.vector, a.n) <= tolerance);
    qn_model_close(&from);
    qn_model_close(&file);
    qn_test_model_remove(dir);
}

/* ---- files that are bent ------------------------------------------------------------------------------ */

/* Rows of q, k and v one below the other, as some converters write them. */
static void join_qkv(qn_test_gguf *f, const char *layer, const char *what, char *data)
{
    char name[QN_TEST_GGUF_KEY_MAX];
    qn_test_gguf_tensor joined = {.data = data};
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s.attn_%c.%s", layer, "qkv"[i], what);
        const qn_test_gguf_tensor *t = qn_test_gguf_tensor_get(f, name);
        const uint64_t rows = joined.dims[1] + t->dims[1], all = joined.dims[0] + t->dims[0];
        memcpy(data + joined.size_bytes, t->data, t->size_bytes);
        const size_t size_bytes = joined.size_bytes + t->size_bytes;
        joined = *t;
        joined.dims[t->n_dims - 1] = t->n_dims == 2 ? rows : all;
        joined.data = data;
        joined.size_bytes = size_bytes;
        qn_test_gguf_tensor_drop(f, name);
    }
    snprintf(joined.name, sizeof joined.name, "%s.attn_qkv.%s", layer, what);
    assert_true(f->n_tensors < QN_TEST_GGUF_TENSORS_MAX);
    f->tensors[f->n_tensors++] = joined;
}

static void joined_projections(void **state)
{
    static char data[3][2][64 << 10];
    static taken a, b;
    static const int32_t ids[] = {2, 50, 60, 70, 3};
    const char *folder = qn_test_scratch();
    qn_test_gguf *f = qn_test_gguf_read(file_of("bert_cls"));
    (void)state;
    for (int i = 0; i < 3; i++) {
        char layer[16];
        snprintf(layer, sizeof layer, "blk.%d", i);
        join_qkv(f, layer, "weight", data[i][0]);
        join_qkv(f, layer, "bias", data[i][1]);
    }
    qn_test_gguf_place(f);
    qn_model *apart = open_model(file_of("bert_cls")),
             *joined = open_model(qn_test_gguf_write(f, folder, "joined.gguf"));
    embed(apart, ids, 5, &a);
    embed(joined, ids, 5, &b);
    assert_memory_equal(a.vector, b.vector, (size_t)a.n * sizeof *a.vector);
    qn_model_close(&apart);
    qn_model_close(&joined);
    qn_test_gguf_free(f);
    qn_test_remove(folder);
}

/* As the converter writes a BertForSequenceClassification: the score is a product of the first row. */
static void head_without_dense(void **state)
{
    static const int32_t ids[] = {0, 50, 60, 70, 2};
    const char *folder = qn_test_scratch();
    qn_test_gguf *f = qn_test_gguf_read(file_of("xlm_roberta_reranker"));
    const float *got, *weight = qn_test_gguf_tensor_get(f, "cls.output.weight")->data,
                      *bias = qn_test_gguf_tensor_get(f, "cls.output.bias")->data;
    float row[WIDTH_MAX], weights[WIDTH_MAX];
    (void)state;
    qn_test_gguf_tensor_drop(f, "cls.weight");
    qn_test_gguf_tensor_drop(f, "cls.bias");
    qn_test_gguf_place(f);
    qn_engine *e = qn_test_engine(qn_test_gguf_write(f, folder, "head.gguf"), NULL, exact);
    const int64_t n = qn_engine_encoded_size(e);
    const qn_encode_row one = {ids, NULL, 5, -1};
    assert_int_equal(qn_engine_config(e)->encoder.classify_dense, 0);
    qn_type_get(QN_DTYPE_F16)->decode(qn_type_get(QN_DTYPE_F16), weight, n, weights);
    qn_test_ok(qn_engine_encode(e, 1, &one, &got));
    memcpy(row, got, (size_t)n * sizeof *row);
    double want = (double)*bias;
    for (int64_t i = 0; i < n; i++) want += (double)row[i] * (double)weights[i];
    qn_test_ok(qn_engine_classify(e, 1, &one, &got));
    assert_true(fabs((double)*got - want) <= 1e-5);
    qn_engine_close(e);
    qn_test_gguf_free(f);
    qn_test_remove(folder);
}

/* One type is counted where there is no table of types. */
static void no_types(void **state)
{
    const char *folder = qn_test_scratch();
    qn_model_config c;
    qn_test_gguf *f = qn_test_gguf_read(file_of("bert_cls"));
    (void)state;
    qn_test_gguf_tensor_drop(f, "token_types.weight");
    qn_test_gguf_place(f);
    qn_test_ok(qn_test_config(qn_test_gguf_write(f, folder, "types.gguf"), &c));
    assert_int_equal(c.encoder.type_vocab_size, 0);
    qn_config_free(&c);
    qn_test_gguf_free(f);
    qn_test_remove(folder);
}

static void set_causal(qn_test_gguf *f, const char *key, char causal)
{
    qn_test_gguf_set(f, key, GGUF_BOOL, &causal, 1);
}

static void expect_refused(qn_test_gguf *f, const char *words)
{
    const char *folder = qn_test_scratch(), *path = qn_test_gguf_write(f, folder, "bent.gguf");
    qn_embedding_info info;
    qn_model *model = NULL;
    const qn_model_options o = {.n_threads = 1};
    qn_status status = qn_model_open(path, &o, &model);
    if (status == QN_OK) status = qn_model_get_embedding_info(model, &info);
    if (status == QN_OK || !strstr(qn_last_error(), words))
        fail_msg("expected %s: %s", words, qn_last_error());
    qn_model_close(&model);
    qn_test_gguf_free(f);
    qn_test_remove(folder);
}

static void refused(void **state)
{
    (void)state;
    qn_test_gguf *f = qn_test_gguf_read(file_of("bert_cls"));
    set_causal(f, "bert.attention.causal", 1);
    expect_refused(f, "bert.attention.causal is true");
    f = qn_test_gguf_new();
    set_causal(f, "llama.attention.causal", 0);
    expect_refused(f, "llama.attention.causal is false");
    f = qn_test_gguf_read(file_of("bert_cls"));
    qn_test_gguf_set_u32(f, "bert.pooling_type", 9);
    expect_refused(f, "bert.pooling_type is 9");
    f = qn_test_gguf_read(file_of("bert_cls"));
    qn_test_gguf_set_u32(f, "tokenizer.ggml.token_type_count", 3);
    expect_refused(f, "token_types.weight");
    f = qn_test_gguf_read(file_of("bert_cls"));
    qn_test_gguf_set_u32(f, "tokenizer.ggml.token_type_count", 1u << 30);
    expect_refused(f, "tokenizer.ggml.token_type_count is 1073741824");
    f = qn_test_gguf_read(file_of("modernbert"));
    qn_test_gguf_set_text(f, "modern-bert.hidden_activation", "cosine");
    expect_refused(f, "modern-bert.hidden_activation is \"cosine\"");
    f = qn_test_gguf_read(file_of("embeddinggemma"));
    qn_test_gguf_tensor_drop(f, "dense_2.weight");
    qn_test_gguf_place(f);
    expect_refused(f, "dense_3.weight");
}

int main(void)
{
    static char *kinds[] = {"bert_cls", "nomic_bert", "modernbert", "xlm_roberta_reranker"};
    static const struct CMUnitTest others[] = {
        cmocka_unit_test(linear_layers), cmocka_unit_test(joined_projections),
        cmocka_unit_test(head_without_dense), cmocka_unit_test(no_types), cmocka_unit_test(refused)};
    enum { N = sizeof kinds / sizeof *kinds, N_OTHERS = sizeof others / sizeof *others };
    struct CMUnitTest tests[N + N_OTHERS];
    for (int i = 0; i < N; i++) tests[i] = (struct CMUnitTest){kinds[i], golden, NULL, NULL, kinds[i]};
    memcpy(tests + N, others, sizeof others);
    return _cmocka_run_group_tests("encoders in GGUF", tests, N + N_OTHERS, NULL, NULL);
}

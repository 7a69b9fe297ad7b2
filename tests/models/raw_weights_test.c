/* Models as bin_weights directories, made from fixtures: the same bits as from safetensors, golden logits in
 * other types, and one clear message for what is missing, of the wrong size, or of no known type. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <quern/quern.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/machine/pack.h"
#include "quant/types.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/golden_states.h"
#include "tests/support/models/model_dir.h"
#include "tests/support/scratch.h"

enum { N_IDS = 40 };

static const struct {
    const char *safetensors,
        *raw; /* behind "model.layers.N." and "layerN."; without '.': of the whole model */
} names[] = {
    {"self_attn.q_proj.weight", "attn.q_proj"},    {"self_attn.k_proj.weight", "attn.k_proj"},
    {"self_attn.v_proj.weight", "attn.v_proj"},    {"self_attn.o_proj.weight", "attn.o_proj"},
    {"self_attn.q_proj.bias", "attn.q_proj.bias"}, {"self_attn.k_proj.bias", "attn.k_proj.bias"},
    {"self_attn.v_proj.bias", "attn.v_proj.bias"}, {"mlp.gate_proj.weight", "mlp.gate_proj"},
    {"mlp.up_proj.weight", "mlp.up_proj"},         {"mlp.down_proj.weight", "mlp.down_proj"},
    {"input_layernorm.weight", "input_norm"},      {"post_attention_layernorm.weight", "post_attn_norm"},
};

/* "visual.blocks.3.attn.qkv.weight" -> "visual.block3.attn.qkv". */
static int raw_vision_name(const char *tensor, char *out, size_t size)
{
    static const char weight[] = ".weight";
    long layer;
    int n = 0;
    if (sscanf(tensor, "visual.blocks.%ld.%n", &layer, &n) == 1 && n)
        snprintf(out, size, "visual.block%ld.%s", layer, tensor + n);
    else
        snprintf(out, size, "%s", tensor);
    char *end = strstr(out, weight);
    if (end) *end = 0;
    return (int)strlen(out);
}

/* NAME of NAME.bin; 0: the tensor has none. */
static int raw_name(const char *tensor, char *out, size_t size)
{
    long layer;
    int n = 0;
    if (strncmp(tensor, "visual.", strlen("visual.")) == 0) return raw_vision_name(tensor, out, size);
    if (strcmp(tensor, "model.embed_tokens.weight") == 0) return snprintf(out, size, "embed_tokens");
    if (strcmp(tensor, "model.norm.weight") == 0) return snprintf(out, size, "final_norm");
    if (strcmp(tensor, "lm_head.weight") == 0) return snprintf(out, size, "lm_head");
    if (sscanf(tensor, "model.layers.%ld.%n", &layer, &n) != 1 || !n) return 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i].safetensors, tensor + n) == 0)
            return snprintf(out, size, "layer%ld.%s", layer, names[i].raw);
    return 0;
}

/* Writes the tensor as elements of dtype. */
static void write_bin(const char *folder, const char *name, const qn_tensor_view *v, qn_dtype dtype)
{
    char file[96];
    snprintf(file, sizeof file, "%s.bin", name);
    if (v->dtype == dtype) {
        qn_test_write(folder, file, v->data, v->size_bytes);
        return;
    }
    float *values = test_calloc((size_t)v->n_elements, sizeof *values);
    const qn_type *type = qn_type_get(v->dtype);
    type->decode(type, v->data, v->n_elements, values);
    assert_int_equal(dtype, QN_DTYPE_F32);
    qn_test_write(folder, file, values, (size_t)v->n_elements * sizeof *values);
    test_free(values);
}

/* A directory with bin_weights of a fixture; patch: of config.json. */
static const char *make(const char *from, const char *patch, qn_dtype dtype)
{
    static char folder[QN_TEST_DIR_MAX];
    char name[64];
    char linked[QN_TEST_DIR_MAX];
    snprintf(folder, sizeof folder, "%s", qn_test_scratch());
    qn_test_model_copy(from, patch, NULL, linked);
    qn_test_copy(folder, "config.json", qn_test_path(linked, "config.json"));
    static const char processor[] = "preprocessor_config.json";
    if (access(qn_test_path(linked, processor), R_OK) == 0)
        qn_test_copy(folder, processor, qn_test_path(linked, processor));
    qn_test_model_remove(linked);
    static char bin[QN_TEST_DIR_MAX]; /* qn_test_path gives its buffers again */
    snprintf(bin, sizeof bin, "%s", qn_test_path(folder, "bin_weights"));
    assert_int_equal(mkdir(bin, 0700), 0);
    qn_source *src;
    qn_test_ok(qn_source_open(from, NULL, &src));
    for (int64_t i = 0; i < qn_source_count(src); i++) {
        const qn_tensor_view *v = qn_source_get(src, i);
        if (raw_name(v->name, name, sizeof name)) write_bin(bin, name, v, dtype);
    }
    qn_source_close(src);
    return folder;
}

static uint64_t hash(const char *dir)
{
    int32_t ids[N_IDS];
    for (int i = 0; i < N_IDS; i++) ids[i] = 3 + (i * 37) % 300;
    qn_engine *e = qn_test_engine(dir, NULL, (qn_engine_options){.n_threads = 1});
    uint64_t h = qn_test_last_hash(e, ids, N_IDS, N_IDS);
    qn_engine_close(e);
    return h;
}

static void same_bits(void **state)
{
    static const char *const kinds[] = {"models/qwen2_vl", "models/qwen2_yarn", "models/llama"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const char *from = qn_test_need_fixture(kinds[i]), *dir = make(from, NULL, QN_DTYPE_BF16);
        if (hash(from) != hash(dir)) fail_msg("%s: the bits are others", kinds[i]);
        qn_test_remove(dir);
    }
}

static void float32(void **state)
{
    qn_safetensors *st;
    const char *dir =
        make(qn_test_need_fixture("models/qwen2_vl"), "{\"torch_dtype\": \"float32\"}", QN_DTYPE_F32);
    qn_test_ok(qn_safetensors_open(qn_test_need_fixture("models/qwen2_vl/expected.safetensors"), &st));
    qn_engine *e =
        qn_test_engine(dir, NULL, (qn_engine_options){.precision = QN_PRECISION_EXACT, .n_threads = 1});
    for (int i = 0; i < 3; i++)
        assert_true(qn_golden_logits(e, st, i, NULL) <= qn_golden_tolerance("qwen2_vl"));
    qn_engine_close(e);
    qn_safetensors_close(st);
    qn_test_remove(dir);
}

/* The tokens behind a picture, with the tower from files of bin_weights. */
static void sees(void **state)
{
    enum { N_GREEDY_MAX = 64 };
    qn_safetensors *st;
    qn_model *model;
    qn_generation *g;
    qn_token t;
    int32_t got[N_GREEDY_MAX];
    int64_t n = 0;
    const char *dir = make(qn_test_need_fixture("models/qwen2_vl"), NULL, QN_DTYPE_BF16);
    qn_test_ok(qn_safetensors_open(qn_test_need_fixture("models/qwen2_vl/expected.safetensors"), &st));
    const qn_tensor_view *rgb = qn_safetensors_find(st, "image.rgb"),
                         *ids = qn_safetensors_find(st, "image.ids"),
                         *greedy = qn_safetensors_find(st, "image.greedy");
    const qn_image image = {rgb->data, rgb->shape[1], rgb->shape[0], 0};
    const qn_ids row = {ids->data, ids->n_elements};
    const qn_prompt prompt = {.rows = &row, .n_rows = 1, .images = &image, .n_images = 1};
    assert_true(greedy->n_elements <= N_GREEDY_MAX);
    qn_test_ok(
        qn_model_open(dir, &(qn_model_options){.precision = QN_PRECISION_EXACT, .n_threads = 2}, &model));
    qn_test_ok(qn_generation_open(
        model, &prompt, &(qn_generate_options){.max_tokens = greedy->n_elements, .ignore_eos = 1}, &g));
    for (;;) {
        qn_test_ok(qn_generation_next(g, &t));
        if (t.end != QN_END_NONE) break;
        got[n++] = t.id;
    }
    assert_int_equal(n, greedy->n_elements);
    assert_memory_equal(got, greedy->data, (size_t)n * sizeof *got);
    qn_generation_close(g);
    qn_test_ok(qn_model_close(&model));
    qn_safetensors_close(st);
    qn_test_remove(dir);
}

/* A packed file lies beside the weights, and fits. */
static void packed(void **state)
{
    const char *dir = make(qn_test_need_fixture("models/qwen2_vl"), NULL, QN_DTYPE_BF16);
    qn_pack_options o = {.n_threads = 1};
    qn_pack_result made;
    qn_source *source;
    qn_model_config config = {0};
    uint64_t before = hash(dir);
    qn_test_ok(qn_source_open(dir, NULL, &source));
    qn_test_ok(qn_config_read(source, &config));
    qn_test_ok(qn_engine_pack(source, &config, &o, &made));
    qn_config_free(&config);
    qn_source_close(source);
    assert_true(hash(dir) == before);
    qn_test_remove(dir);
}

/* ---- what is refused ---------------------------------------------------------------------------------- */

static void refused(const char *dir, qn_status status, const char *words)
{
    qn_test_weights m;
    qn_status got = qn_test_weights_open(dir, &m);
    if (got == QN_OK) qn_test_weights_close(&m);
    if (got != status || !strstr(qn_last_error(), words))
        fail_msg("%s: %s, expected: %s", qn_status_name(got), qn_last_error(), words);
}

static const char *bin_file(const char *dir, const char *name)
{
    return qn_test_path(qn_test_path(dir, "bin_weights"), name);
}

static void damaged_files(void **state)
{
    const char *dir = make(qn_test_need_fixture("models/qwen2_vl"), NULL, QN_DTYPE_BF16);
    qn_test_weights m;
    struct stat st;
    char words[256], zeros[64] = {0};
    qn_test_ok(qn_test_weights_open(dir, &m));
    long long hidden = m.config.hidden_size, queries = m.config.num_attention_heads * m.config.head_dim;
    qn_test_weights_close(&m);

    const char *file = bin_file(dir, "layer1.attn.q_proj.bin");
    assert_int_equal(stat(file, &st), 0);
    assert_int_equal(st.st_size, 2 * hidden * queries);
    assert_int_equal(truncate(file, st.st_size - 2), 0);
    snprintf(words, sizeof words,
             "layer1.attn.q_proj.bin: %lld bytes, expected %lld: [%lld, %lld] elements of type BF16",
             2 * hidden * queries - 2, 2 * hidden * queries, queries, hidden);
    refused(dir, QN_E_FORMAT, words);
    assert_int_equal(truncate(file, st.st_size + 1), 0); /* not even whole elements */
    snprintf(words, sizeof words, "layer1.attn.q_proj.bin: %lld bytes, expected %lld",
             2 * hidden * queries + 1, 2 * hidden * queries);
    refused(dir, QN_E_FORMAT, words);
    assert_int_equal(truncate(file, 0), 0);
    refused(dir, QN_E_FORMAT, "layer1.attn.q_proj.bin");
    assert_int_equal(unlink(file), 0);
    snprintf(words, sizeof words,
             "/bin_weights/layer1.attn.q_proj.bin is missing, expected with %lld bytes: [%lld, %lld]",
             2 * hidden * queries, queries, hidden);
    refused(dir, QN_E_FORMAT, words);
    assert_int_equal(symlink("nowhere", file), 0);
    refused(dir, QN_E_IO, "layer1.attn.q_proj.bin");
    assert_int_equal(unlink(file), 0);
    assert_int_equal(mkdir(file, 0700), 0);
    refused(dir, QN_E_FORMAT, "layer1.attn.q_proj.bin is missing");
    qn_test_remove(dir);

    dir = make(qn_test_need_fixture("models/qwen2_vl"), NULL, QN_DTYPE_BF16);
    qn_test_write(qn_test_path(dir, "bin_weights"), "layer0.attn.r_proj.bin", zeros, sizeof zeros);
    refused(dir, QN_E_UNSUPPORTED, "layer0.attn.r_proj.bin does not belong");
    assert_int_equal(unlink(bin_file(dir, "layer0.attn.r_proj.bin")), 0);
    assert_int_equal(unlink(bin_file(dir, "visual.block0.attn.qkv.bin")), 0);
    refused(dir, QN_E_FORMAT, "/bin_weights/visual.block0.attn.qkv.bin is missing, expected with");
    qn_test_remove(dir);
}

static void damaged_configs(void **state)
{
    static const struct {
        const char *patch;
        qn_status status;
        const char *words;
    } cases[] = {
        {"{\"torch_dtype\": null}", QN_E_FORMAT, "config.json: torch_dtype is missing"},
        {"{\"torch_dtype\": 16}", QN_E_FORMAT, "torch_dtype is missing"},
        {"{\"torch_dtype\": \"int8\"}", QN_E_UNSUPPORTED, "torch_dtype is \"int8\", which is not supported"},
        {"{\"torch_dtype\": \"float32\"}", QN_E_FORMAT, "embed_tokens.bin"},
        {"{\"num_hidden_layers\": 1}", QN_E_FORMAT, "belongs to layer 1, but num_hidden_layers is 1"},
        {"{\"num_hidden_layers\": 4096}", QN_E_FORMAT, "is missing, expected with"},
        {"{\"vocab_size\": 16777216}", QN_E_FORMAT, "embed_tokens.bin"},
        {"{\"intermediate_size\": 1048576}", QN_E_FORMAT, "layer0.mlp.gate_proj.bin"},
        {"{\"tie_word_embeddings\": false}", QN_E_FORMAT,
         "/bin_weights/lm_head.bin is missing, expected with"},
        {"{\"model_type\": \"olmo2\"}", QN_E_UNSUPPORTED,
         "bin_weights has no files for all tensors of the family olmo2"},
        {"[]", QN_E_FORMAT, "config.json"},
    };
    const char *from = qn_test_need_fixture("models/qwen2_vl");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int is_text = cases[i].patch[0] != '{';
        const char *dir = make(from, is_text ? NULL : cases[i].patch, QN_DTYPE_BF16);
        if (is_text) qn_test_write_text(dir, "config.json", cases[i].patch);
        if (strstr(cases[i].words, "lm_head")) unlink(bin_file(dir, "lm_head.bin"));
        refused(dir, cases[i].status, cases[i].words);
        qn_test_remove(dir);
    }
    const char *dir = make(from, NULL, QN_DTYPE_BF16);
    assert_int_equal(unlink(qn_test_path(dir, "config.json")), 0);
    refused(dir, QN_E_NOT_FOUND, "there is no config.json");
    qn_test_remove(dir);
    dir = make(from, "{\"torch_dtype\": null, \"dtype\": \"bfloat16\"}", QN_DTYPE_BF16);
    qn_test_weights m;
    qn_test_ok(qn_test_weights_open(dir, &m));
    qn_test_weights_close(&m);
    qn_test_remove(dir);
    /* An empty folder. */
    dir = qn_test_scratch();
    assert_int_equal(mkdir(qn_test_path(dir, "bin_weights"), 0700), 0);
    refused(dir, QN_E_NOT_FOUND, "there are no .bin files in this folder");
    qn_test_remove(dir);
}

static void memory_runs_out(void **state)
{
    const char *dir = make(qn_test_need_fixture("models/qwen2_vl"), NULL, QN_DTYPE_BF16);
    qn_test_weights_run_out(dir);
    qn_test_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits),       cmocka_unit_test(float32),       cmocka_unit_test(sees),
        cmocka_unit_test(packed),          cmocka_unit_test(damaged_files), cmocka_unit_test(damaged_configs),
        cmocka_unit_test(memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

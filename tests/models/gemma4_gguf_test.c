/* Gemma 4 in GGUF, whose metadata says layer by layer what config.json says of kinds of layers: the fixtures
 * written as llama.cpp's converter does give the directory's bits; what does not go together is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "model/config/families.h"
#include "model/weights/weight_experts.h"
#include "model/weights/weights.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/gguf_file.h"
#include "tests/support/models/model_dir.h"
#include "tests/support/scratch.h"

enum { N_IDS = 40, LAYERS_MAX = 16, HALF_MAX = 64 };

static void set(qn_test_gguf *f, const char *name, int64_t value)
{
    char key[QN_TEST_GGUF_KEY_MAX];
    snprintf(key, sizeof key, "gemma4.%s", name);
    qn_test_gguf_set_u32(f, key, (uint32_t)value);
}

static void set_float(qn_test_gguf *f, const char *name, double value)
{
    char key[QN_TEST_GGUF_KEY_MAX];
    snprintf(key, sizeof key, "gemma4.%s", name);
    qn_test_gguf_set_f32(f, key, (float)value);
}

static void set_list(qn_test_gguf *f, const char *name, const uint32_t *values, int64_t n)
{
    char key[QN_TEST_GGUF_KEY_MAX];
    snprintf(key, sizeof key, "gemma4.%s", name);
    qn_test_gguf_set_array(f, key, QN_GGUF_U32, (uint64_t)n, values, (size_t)n * sizeof *values);
}

static void set_layers(qn_test_gguf *f, const qn_model_config *c)
{
    uint32_t kv_heads[LAYERS_MAX], wide[LAYERS_MAX];
    uint8_t slides[LAYERS_MAX];
    int64_t n = c->num_hidden_layers, shared = 0;
    assert_true(n <= LAYERS_MAX);
    for (int64_t i = 0; i < n; i++) {
        const qn_layer_config *l = &c->layers[i];
        kv_heads[i] = (uint32_t)l->num_key_value_heads;
        wide[i] = (uint32_t)l->intermediate_size;
        slides[i] = l->kind == QN_LAYER_SLIDING;
        shared += l->kv_layer != i;
        if (slides[i]) {
            set(f, "attention.sliding_window", l->window);
        } else {
            set(f, "attention.key_length", l->head_dim);
            set(f, "attention.value_length", l->head_dim);
            set(f, "rope.dimension_count", l->head_dim);
        }
    }
    set_list(f, "attention.head_count_kv", kv_heads, n);
    set_list(f, "feed_forward_length", wide, n);
    qn_test_gguf_set_array(f, "gemma4.attention.sliding_window_pattern", QN_GGUF_BOOL, (uint64_t)n, slides,
                           (size_t)n);
    set(f, "attention.shared_kv_layers", shared);
    set(f, "attention.key_length_swa", c->head_dim);
    set(f, "attention.value_length_swa", c->head_dim);
    set(f, "rope.dimension_count_swa", c->head_dim);
}

/* Factors of the pairs that stand still: so large that nothing is left of their frequency. */
static void add_rope_factors(qn_test_gguf *f, const qn_model_config *c)
{
    static float factors[HALF_MAX];
    int64_t half = c->rope[0].rotary_dim / 2;
    assert_true(half <= HALF_MAX);
    for (int64_t i = 0; i < half; i++) factors[i] = c->rope[0].inv_freq[i] > 0 ? 1.0f : 1e30f;
    qn_test_gguf_tensor_add(f, "rope_freqs.weight", QN_DTYPE_F32, 0, half, factors);
}

/* The matrices of all experts, gate and up in one, as they are in the directory. */
static void add_experts(qn_test_gguf *f, const qn_test_weights *m, qn_weight_role role, int64_t layer)
{
    char from[QN_TENSOR_NAME_MAX], name[QN_TENSOR_NAME_MAX];
    int down = role == QN_WEIGHT_EXPERT_DOWN;
    snprintf(from, sizeof from, "model.layers.%d.experts.%s", (int)layer,
             down ? "down_proj" : "gate_up_proj");
    snprintf(name, sizeof name, "blk.%d.%s.weight", (int)layer, down ? "ffn_down_exps" : "ffn_gate_up_exps");
    const qn_tensor_view *v = qn_source_find(m->src, from);
    assert_non_null(v);
    qn_test_gguf_tensor_add(f, name, v->dtype, v->shape[0] * v->shape[1], v->shape[2], v->data);
    qn_test_gguf_tensor *t = qn_test_gguf_tensor_get(f, name);
    t->n_dims = 3;
    t->dims[1] = (uint64_t)v->shape[1];
    t->dims[2] = (uint64_t)v->shape[0];
}

static void add_tensors(qn_test_gguf *f, const qn_test_weights *m)
{
    for (int role = 0; role < QN_WEIGHT_ROLE_COUNT; role++) {
        int64_t n = role < QN_WEIGHT_MODEL_COUNT ? 1 : m->config.num_hidden_layers;
        for (int64_t l = 0; l < n; l++) {
            char name[QN_TENSOR_NAME_MAX];
            const qn_tensor_view *v = qn_weights_get(m->weights, (qn_weight_role)role, l);
            if (qn_weight_experts_has_role((qn_weight_role)role)) {
                if (v && role != QN_WEIGHT_EXPERT_UP) add_experts(f, m, (qn_weight_role)role, l);
                continue;
            }
            if (!v || (role == QN_WEIGHT_LM_HEAD && qn_weights_tied(m->weights))) continue;
            assert_true(
                qn_family_weight_name(m->config.family, QN_SOURCE_GGUF, "", (qn_weight_role)role, l, name));
            int64_t rows = v->n_dims == 2 ? v->shape[0] : 0;
            qn_test_gguf_tensor_add(f, name, v->dtype, rows, v->shape[v->n_dims - 1], v->data);
        }
    }
}

/* The directory as one file; borrows from m. */
static qn_test_gguf *as_gguf(const qn_test_weights *m)
{
    const qn_model_config *c = &m->config;
    qn_test_gguf *f = qn_test_gguf_empty();
    qn_test_gguf_set_text(f, "general.architecture", "gemma4");
    set(f, "block_count", c->num_hidden_layers);
    set(f, "context_length", c->max_position_embeddings);
    set(f, "embedding_length", c->hidden_size);
    set(f, "embedding_length_per_layer_input", c->hidden_size_per_layer_input);
    set(f, "attention.head_count", c->num_attention_heads);
    set_float(f, "attention.layer_norm_rms_epsilon", c->rms_norm_eps);
    set_float(f, "rope.freq_base", c->rope[0].theta);
    set_float(f, "rope.freq_base_swa", c->rope[1].theta);
    set_float(f, "final_logit_softcapping", c->final_logit_softcapping);
    set_layers(f, c);
    if (c->experts.num_experts) {
        set(f, "expert_count", c->experts.num_experts);
        set(f, "expert_used_count", c->experts.num_experts_per_tok);
        set(f, "expert_feed_forward_length", c->experts.moe_intermediate_size);
    }
    add_tensors(f, m);
    add_rope_factors(f, c);
    qn_test_gguf_place(f);
    return f;
}

static uint64_t hash_of(const char *path, qn_precision precision)
{
    int32_t ids[N_IDS];
    for (int i = 0; i < N_IDS; i++) ids[i] = 3 + (i * 37) % 300;
    qn_engine *e = qn_test_engine(
        path, NULL, (qn_engine_options){.precision = precision, .max_rows = 64, .n_threads = 1});
    uint64_t hash = qn_test_last_hash(e, ids, N_IDS, N_IDS);
    qn_engine_close(e);
    return hash;
}

static void test_same_bits(void **state)
{
    static const char *const fixtures[] = {"models/gemma4_text", "models/gemma4", "models/gemma4_k_eq_v",
                                           "models/gemma4_moe"};
    const char *folder = qn_test_scratch();
    for (size_t i = 0; i < sizeof fixtures / sizeof fixtures[0]; i++) {
        const char *from = qn_test_need_fixture(fixtures[i]);
        qn_test_weights m;
        qn_test_ok(qn_test_weights_open(from, &m));
        qn_test_gguf *f = as_gguf(&m);
        const char *path = qn_test_gguf_write(f, folder, "model.gguf");
        for (int p = 0; p < 3; p++)
            if (hash_of(path, (qn_precision)p) != hash_of(from, (qn_precision)p))
                fail_msg("%s as GGUF, %s: the logits are others", fixtures[i],
                         qn_test_precision_name((qn_precision)p));
        qn_test_gguf_free(f);
        qn_test_weights_close(&m);
    }
    qn_test_remove(folder);
}

static qn_status read_config(const char *path, qn_model_config *c)
{
    qn_source *src = NULL;
    QN_TRY(qn_source_open(path, NULL, &src));
    qn_status status = qn_config_read(src, c);
    qn_source_close(src);
    return status;
}

static void expect(const qn_test_gguf *f, const char *folder, qn_status expected, const char *words)
{
    qn_model_config c;
    qn_status status = read_config(qn_test_gguf_write(f, folder, "bent.gguf"), &c);
    if (status != expected || !strstr(qn_last_error(), words))
        fail_msg("%s: %s: %s", words, qn_status_name(status), qn_last_error());
}

static void test_refusals(void **state)
{
    static const struct {
        const char *key;
        int64_t value;
        qn_status status;
        const char *words;
    } numbers[] = {
        {"attention.value_length", 16, QN_E_UNSUPPORTED, "values of another size than keys"},
        {"attention.value_length_swa", 8, QN_E_UNSUPPORTED, "values of another size than keys"},
        {"attention.key_length_swa", 0, QN_E_UNSUPPORTED, "keys of 32 and 0"},
        {"attention.shared_kv_layers", 2, QN_E_UNSUPPORTED, "gemma4.feed_forward_length differs"},
        {"attention.shared_kv_layers", 7, QN_E_UNSUPPORTED, "gemma4.feed_forward_length differs"},
        {"attention.head_count_kv", 3, QN_E_FORMAT, "is not a multiple of gemma4.attention.head_count_kv 3"},
        {"embedding_length_per_layer_input", 1 << 30, QN_E_FORMAT,
         "gemma4.embedding_length_per_layer_input is 1073741824"},
        {"rope.dimension_count", 34, QN_E_FORMAT, "gemma4.rope.dimension_count is 34, expected 2 to 32"},
        {"rope.dimension_count_swa", 3, QN_E_FORMAT, "3 of 16 head dimensions"},
        {"rope.dimension_count_swa", 18, QN_E_FORMAT, "gemma4.rope.dimension_count_swa is 18"},
    };
    static const uint32_t mixed[] = {2, 1, 2, 2, 2, 2, 2}, by_kind[] = {2, 2, 4, 2, 2, 4, 4},
                          few[] = {2, 2, 4, 2}, odd[] = {2, 2, 3, 2, 2, 3, 3};
    qn_test_weights m;
    qn_model_config c;
    qn_test_ok(qn_test_weights_open(qn_test_need_fixture("models/gemma4_text"), &m));
    const char *folder = qn_test_scratch();
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        qn_test_gguf *f = as_gguf(&m);
        set(f, numbers[i].key, numbers[i].value);
        expect(f, folder, numbers[i].status, numbers[i].words);
        qn_test_gguf_free(f);
    }
    qn_test_gguf *f = as_gguf(&m);
    set_list(f, "attention.head_count_kv", mixed, 7);
    expect(f, folder, QN_E_UNSUPPORTED, "gemma4.attention.head_count_kv differs between layers");
    set_list(f, "attention.head_count_kv", few, 4);
    expect(f, folder, QN_E_UNSUPPORTED, "gemma4.attention.head_count_kv differs between layers");
    set_list(f, "attention.head_count_kv", odd, 7);
    expect(f, folder, QN_E_FORMAT, "is not a multiple of gemma4.attention.head_count_kv 3");
    set_list(f, "attention.head_count_kv", by_kind, 7);
    qn_test_ok(read_config(qn_test_gguf_write(f, folder, "bent.gguf"), &c));
    assert_int_equal(c.layers[1].num_key_value_heads, 2);
    assert_int_equal(c.layers[2].num_key_value_heads, 4);
    qn_config_free(&c);
    qn_test_gguf_drop(f, "gemma4.attention.key_length");
    expect(f, folder, QN_E_FORMAT, "gemma4.attention.key_length is missing");
    qn_test_gguf_free(f);
    qn_test_weights_close(&m);
    qn_test_remove(folder);
}

static void test_allocation_failures(void **state)
{
    qn_test_weights m;
    qn_test_ok(qn_test_weights_open(qn_test_need_fixture("models/gemma4_text"), &m));
    const char *folder = qn_test_scratch();
    qn_test_gguf *f = as_gguf(&m);
    const char *path = qn_test_gguf_write(f, folder, "whole.gguf");
    int64_t before = qn_mem_live_blocks();
    for (int64_t n = 1;; n++) {
        qn_model_config c;
        assert_true(n < 2000);
        qn_mem_fail_nth(n);
        qn_status status = read_config(path, &c);
        qn_mem_fail_nth(0);
        if (status == QN_OK) qn_config_free(&c);
        assert_int_equal(qn_mem_live_blocks(), before);
        if (status == QN_OK) break;
        assert_int_equal(status, QN_E_NOMEM);
    }
    qn_test_gguf_free(f);
    qn_test_weights_close(&m);
    qn_test_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

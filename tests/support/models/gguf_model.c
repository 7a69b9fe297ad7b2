#include "tests/support/models/gguf_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "model/config/config.h"
#include "model/weights/weights.h"
#include "tests/support/engine_help.h"
#include "tests/support/models/gguf_file.h"

enum { TENSORS_MAX = 128, PAIRS_MAX = 256 };

/* Of layers; what a family does not have is left out. */
static const struct {
    const char *safetensors, *gguf;
} names[] = {{"input_layernorm.weight", "attn_norm.weight"},
             {"self_attn.q_proj.weight", "attn_q.weight"},
             {"self_attn.k_proj.weight", "attn_k.weight"},
             {"self_attn.v_proj.weight", "attn_v.weight"},
             {"self_attn.qkv_proj.weight", "attn_qkv.weight"},
             {"self_attn.q_norm.weight", "attn_q_norm.weight"},
             {"self_attn.k_norm.weight", "attn_k_norm.weight"},
             {"self_attn.o_proj.weight", "attn_output.weight"},
             {"post_feedforward_layernorm.weight", "post_ffw_norm.weight"},
             {"mlp.gate_proj.weight", "ffn_gate.weight"},
             {"mlp.up_proj.weight", "ffn_up.weight"},
             {"mlp.gate_up_proj.weight", "ffn_up.weight"},
             {"mlp.down_proj.weight", "ffn_down.weight"}};

/* What is written, and what was made anew for it: vectors, rows in another order. */
typedef struct {
    qn_test_gguf *f;
    qn_source *src;
    qn_model_config config;
    json_t *json; /* config.json */
    void *moved[TENSORS_MAX];
    int n_moved;
    float factors[2 * PAIRS_MAX];
} writing;

static void set_u32(writing *w, const char *key, int64_t value)
{
    char name[QN_TEST_GGUF_KEY_MAX];
    snprintf(name, sizeof name, "%s.%s", w->config.architecture, key);
    qn_test_gguf_set_u32(w->f, name, (uint32_t)value);
}

static void set_f32(writing *w, const char *key, double value)
{
    char name[QN_TEST_GGUF_KEY_MAX];
    snprintf(name, sizeof name, "%s.%s", w->config.architecture, key);
    qn_test_gguf_set_f32(w->f, name, (float)value);
}

static void *keep(writing *w, size_t size_bytes)
{
    assert_true(w->n_moved < TENSORS_MAX);
    return w->moved[w->n_moved++] = test_calloc(size_bytes, 1);
}

/* Vectors are F32 there. */
static void add(writing *w, const qn_tensor_view *v, const char *name, const void *data)
{
    if (v->n_dims == 2) {
        qn_test_gguf_tensor_add(w->f, name, v->dtype, v->shape[0], v->shape[1], data);
        return;
    }
    float *values = keep(w, (size_t)v->n_elements * sizeof *values);
    qn_test_ok(qn_weights_vector(v, values));
    qn_test_gguf_tensor_add(w->f, name, QN_DTYPE_F32, 0, v->n_elements, values);
}

/* Rows of each head from halves to pairs: row (head, j, half) is what was (head, half, j). */
static const void *paired(writing *w, const qn_tensor_view *v)
{
    int64_t dim = w->config.head_dim, heads = v->shape[0] / dim;
    size_t row = v->size_bytes / (size_t)v->shape[0];
    char *out = keep(w, v->size_bytes);
    for (int64_t h = 0; h < heads; h++)
        for (int64_t i = 0; i < dim; i++) {
            int64_t from = h * dim + i % 2 * (dim / 2) + i / 2;
            memcpy(out + (size_t)(h * dim + i) * row, (const char *)v->data + (size_t)from * row, row);
        }
    return out;
}

static void add_layer(writing *w, int64_t layer)
{
    char from[96], to[64];
    int is_llama =
        strcmp(w->config.architecture, "smollm3") == 0 || strcmp(w->config.architecture, "granite") == 0;
    int has_post = strcmp(w->config.architecture, "olmo2") == 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(from, sizeof from, "model.layers.%lld.%s", (long long)layer, names[i].safetensors);
        snprintf(to, sizeof to, "blk.%lld.%s", (long long)layer, names[i].gguf);
        const qn_tensor_view *v = qn_source_find(w->src, from);
        int turns = strstr(from, "q_proj") || strstr(from, "k_proj");
        if (v) add(w, v, to, is_llama && turns ? paired(w, v) : v->data);
    }
    snprintf(from, sizeof from, "model.layers.%lld.post_attention_layernorm.weight", (long long)layer);
    snprintf(to, sizeof to, "blk.%lld.%s.weight", (long long)layer,
             has_post ? "post_attention_norm" : "ffn_norm");
    add(w, qn_source_find(w->src, from), to, qn_source_find(w->src, from)->data);
}

static void add_tensors(writing *w)
{
    static const struct {
        const char *safetensors, *gguf;
    } of_model[] = {{"model.embed_tokens.weight", "token_embd.weight"},
                    {"model.norm.weight", "output_norm.weight"},
                    {"lm_head.weight", "output.weight"}};
    for (size_t i = 0; i < sizeof of_model / sizeof *of_model; i++) {
        const qn_tensor_view *v = qn_source_find(w->src, of_model[i].safetensors);
        if (v) add(w, v, of_model[i].gguf, v->data);
    }
    for (int64_t i = 0; i < w->config.num_hidden_layers; i++) add_layer(w, i);
}

static void set_sizes(writing *w)
{
    const qn_model_config *c = &w->config;
    qn_test_gguf_set_text(w->f, "general.architecture", c->architecture);
    set_u32(w, "vocab_size", c->vocab_size);
    set_u32(w, "block_count", c->num_hidden_layers);
    set_u32(w, "embedding_length", c->hidden_size);
    set_u32(w, "feed_forward_length", c->intermediate_size);
    set_u32(w, "attention.head_count", c->num_attention_heads);
    set_u32(w, "attention.head_count_kv", c->num_key_value_heads);
    set_u32(w, "context_length", c->max_position_embeddings);
    set_u32(w, "rope.dimension_count", c->rope[0].rotary_dim);
    set_f32(w, "rope.freq_base", c->rope[0].theta);
    set_f32(w, "attention.layer_norm_rms_epsilon", (double)c->rms_norm_eps);
    if (strcmp(c->architecture, "phi3") == 0) set_u32(w, "attention.sliding_window", c->layers[0].window);
}

static void set_multipliers(writing *w)
{
    static const char *const keys[][2] = {{"attention.scale", "attention_multiplier"},
                                          {"embedding_scale", "embedding_multiplier"},
                                          {"residual_scale", "residual_multiplier"},
                                          {"logit_scale", "logits_scaling"}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *value = json_object_get(w->json, keys[i][1]);
        if (value) set_f32(w, keys[i][0], json_number_value(value));
    }
}

static void set_factors(writing *w)
{
    static const char *const lists[] = {"short_factor", "long_factor"};
    const json_t *scaling = json_object_get(w->json, "rope_scaling");
    int64_t half = w->config.rope[0].rotary_dim / 2;
    assert_true(half <= PAIRS_MAX);
    for (int64_t i = 0; i < 2 * half; i++)
        w->factors[i] = (float)json_number_value(
            json_array_get(json_object_get(scaling, lists[i / half]), (size_t)(i % half)));
    qn_test_gguf_tensor_add(w->f, "rope_factors_short.weight", QN_DTYPE_F32, 0, half, w->factors);
    qn_test_gguf_tensor_add(w->f, "rope_factors_long.weight", QN_DTYPE_F32, 0, half, w->factors + half);
    set_u32(w, "rope.scaling.original_context_length", w->config.rope_short_positions);
    set_f32(w, "rope.scaling.attn_factor", (double)w->config.rope[0].attention_factor);
}

const char *qn_test_gguf_model(const char *folder, const char *from)
{
    static writing w;
    const char *text;
    char file[64];
    w = (writing){.f = qn_test_gguf_empty()};
    qn_test_ok(qn_source_open(from, NULL, &w.src));
    qn_test_ok(qn_config_read(w.src, &w.config));
    qn_test_ok(qn_source_side_text(w.src, QN_SIDE_CONFIG, &text, NULL));
    w.json = json_loads(text, 0, NULL);
    set_sizes(&w);
    set_multipliers(&w);
    add_tensors(&w);
    if (w.config.rope_short_positions) set_factors(&w);
    qn_test_gguf_place(w.f);
    snprintf(file, sizeof file, "%s.gguf", w.config.architecture);
    const char *path = qn_test_gguf_write(w.f, folder, file);
    qn_test_gguf_free(w.f);
    for (int i = 0; i < w.n_moved; i++) test_free(w.moved[i]);
    json_decref(w.json);
    qn_config_free(&w.config);
    qn_source_close(w.src);
    return path;
}

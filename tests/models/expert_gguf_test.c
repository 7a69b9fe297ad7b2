/* Experts in GGUF files: the fixtures' models, written as llama.cpp's converter does, against the fixtures.
 */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <stdio.h>
#include <string.h>

#include "quant/types.h"
#include "tests/support/engine_help.h"
#include "tests/support/models/gguf_file.h"
#include "tests/support/models/rewritten.h"
#include "tests/support/scratch.h"

enum { HELD_MAX = 256 };

/* A file in the making; its tensors' data are held until it is written. */
typedef struct {
    qn_test_rewritten *m;
    qn_test_gguf *f;
    const char *architecture;
    void *held[HELD_MAX];
    int n_held;
} making;

static void *hold(making *x, void *data)
{
    assert_true(x->n_held < HELD_MAX);
    return x->held[x->n_held++] = data;
}

static making begin(const char *kind, const char *architecture)
{
    making x = {qn_test_rewritten_read(kind), qn_test_gguf_empty(), architecture, {NULL}, 0};
    qn_test_gguf_set_text(x.f, "general.architecture", architecture);
    return x;
}

static void set(making *x, const char *key, int64_t value)
{
    char full[QN_TEST_GGUF_KEY_MAX];
    snprintf(full, sizeof full, "%s.%s", x->architecture, key);
    qn_test_gguf_set_u32(x->f, full, (uint32_t)value);
}

static void set_number(making *x, const char *key, double value)
{
    char full[QN_TEST_GGUF_KEY_MAX];
    snprintf(full, sizeof full, "%s.%s", x->architecture, key);
    qn_test_gguf_set_f32(x->f, full, (float)value);
}

/* The keys that all have. */
static void set_all(making *x)
{
    const qn_model_config *c = &x->m->config;
    set(x, "context_length", c->max_position_embeddings);
    set(x, "embedding_length", c->hidden_size);
    set(x, "block_count", c->num_hidden_layers);
    set(x, "feed_forward_length", c->intermediate_size);
    set(x, "vocab_size", c->vocab_size);
    set(x, "attention.head_count", c->num_attention_heads);
    set(x, "attention.head_count_kv", c->num_key_value_heads);
    set(x, "attention.key_length", c->head_dim);
    set(x, "attention.value_length", c->head_dim);
    set(x, "expert_count", c->experts.num_experts);
    set(x, "expert_used_count", c->experts.num_experts_per_tok);
    set_number(x, "attention.layer_norm_rms_epsilon", (double)c->rms_norm_eps);
    set_number(x, "rope.freq_base", c->rope[0].theta);
}

/* A tensor of the fixture under another name: matrices as they are, vectors in f32. */
static void copy(making *x, const char *from, const char *to, int layer)
{
    char name[QN_TEST_GGUF_KEY_MAX];
    const qn_test_copy_of *t = qn_test_rewritten_find(x->m, from, layer, 0);
    snprintf(name, sizeof name, to, layer);
    if (t->n_dims == 1)
        qn_test_gguf_tensor_add(x->f, name, QN_DTYPE_F32, 0, t->shape[0], hold(x, qn_test_copy_floats(t)));
    else
        qn_test_gguf_tensor_add(x->f, name, t->dtype, t->shape[0], t->shape[1], t->data);
}

/* [n_experts, rows, columns], or vectors with rows 0. */
static void add_experts(making *x, const char *to, int layer, qn_dtype dtype, int64_t rows, int64_t columns,
                        const void *data)
{
    char name[QN_TEST_GGUF_KEY_MAX];
    int64_t n = x->m->config.experts.num_experts;
    snprintf(name, sizeof name, to, layer);
    qn_test_gguf_tensor_add(x->f, name, dtype, rows ? n * rows : n, columns, data);
    if (!rows) return;
    qn_test_gguf_tensor *t = qn_test_gguf_tensor_get(x->f, name);
    t->n_dims = 3;
    t->dims[1] = (uint64_t)rows;
    t->dims[2] = (uint64_t)n;
}

/* The matrices of all experts, which have tensors of their own, behind each other. */
static void stack(making *x, const char *from, const char *to, int layer)
{
    const qn_test_copy_of *t = qn_test_rewritten_find(x->m, from, layer, 0);
    int64_t n = x->m->config.experts.num_experts;
    char *all = hold(x, test_calloc((size_t)n, t->size_bytes));
    for (int e = 0; e < n; e++)
        memcpy(all + (size_t)e * t->size_bytes, qn_test_rewritten_find(x->m, from, layer, e)->data,
               t->size_bytes);
    add_experts(x, to, layer, t->dtype, t->shape[0], t->shape[1], all);
}

/* Rows of q and k as llama's GGUF files have them: pairs (i, i + half) of a head become (2 i, 2 i + 1). */
static void interleave(making *x, const char *from, const char *to, int layer, int64_t heads)
{
    char name[QN_TEST_GGUF_KEY_MAX];
    const qn_test_copy_of *t = qn_test_rewritten_find(x->m, from, layer, 0);
    int64_t dim = x->m->config.head_dim;
    size_t row = t->size_bytes / (size_t)t->shape[0];
    char *turned = hold(x, test_calloc(1, t->size_bytes));
    for (int64_t h = 0; h < heads; h++)
        for (int64_t i = 0; i < dim; i++)
            memcpy(turned + (size_t)(h * dim + i) * row,
                   t->data + (size_t)(h * dim + i / 2 + i % 2 * dim / 2) * row, row);
    snprintf(name, sizeof name, to, layer);
    qn_test_gguf_tensor_add(x->f, name, t->dtype, t->shape[0], t->shape[1], turned);
}

static void copy_all(making *x, int turns)
{
    const qn_model_config *c = &x->m->config;
    copy(x, "model.embed_tokens.weight", "token_embd.weight", 0);
    copy(x, "model.norm.weight", "output_norm.weight", 0);
    copy(x, "lm_head.weight", "output.weight", 0);
    for (int l = 0; l < c->num_hidden_layers; l++) {
        copy(x, "model.layers.%d.input_layernorm.weight", "blk.%d.attn_norm.weight", l);
        if (turns) {
            interleave(x, "model.layers.%d.self_attn.q_proj.weight", "blk.%d.attn_q.weight", l,
                       c->num_attention_heads);
            interleave(x, "model.layers.%d.self_attn.k_proj.weight", "blk.%d.attn_k.weight", l,
                       c->num_key_value_heads);
        } else {
            copy(x, "model.layers.%d.self_attn.q_proj.weight", "blk.%d.attn_q.weight", l);
            copy(x, "model.layers.%d.self_attn.k_proj.weight", "blk.%d.attn_k.weight", l);
        }
        copy(x, "model.layers.%d.self_attn.v_proj.weight", "blk.%d.attn_v.weight", l);
        copy(x, "model.layers.%d.self_attn.o_proj.weight", "blk.%d.attn_output.weight", l);
    }
}

/* Logits as the fixture's, of whose matrices each lies here in the same type. */
static void check(making *x)
{
    const char *folder = qn_test_scratch();
    qn_test_gguf_place(x->f);
    const char *path = qn_test_gguf_write(x->f, folder, "model.gguf");
    double d = qn_test_rewritten_difference(x->m, x->m->fixture, path, QN_PRECISION_EXACT);
    print_message("%s in GGUF: logits differ by %.1e\n", x->architecture, d);
    assert_true(d <= 1e-4);
    qn_test_remove(folder);
    while (x->n_held) test_free(x->held[--x->n_held]);
    qn_test_gguf_free(x->f);
    qn_test_rewritten_free(x->m);
}

static void qwen3moe(void **state)
{
    making x = begin("qwen3_moe", "qwen3moe");
    set_all(&x);
    set(&x, "expert_feed_forward_length", x.m->config.experts.moe_intermediate_size);
    copy_all(&x, 0);
    for (int l = 0; l < x.m->config.num_hidden_layers; l++) {
        copy(&x, "model.layers.%d.self_attn.q_norm.weight", "blk.%d.attn_q_norm.weight", l);
        copy(&x, "model.layers.%d.self_attn.k_norm.weight", "blk.%d.attn_k_norm.weight", l);
        copy(&x, "model.layers.%d.post_attention_layernorm.weight", "blk.%d.ffn_norm.weight", l);
        copy(&x, "model.layers.%d.mlp.gate.weight", "blk.%d.ffn_gate_inp.weight", l);
        stack(&x, "model.layers.%d.mlp.experts.%d.gate_proj.weight", "blk.%d.ffn_gate_exps.weight", l);
        stack(&x, "model.layers.%d.mlp.experts.%d.up_proj.weight", "blk.%d.ffn_up_exps.weight", l);
        stack(&x, "model.layers.%d.mlp.experts.%d.down_proj.weight", "blk.%d.ffn_down_exps.weight", l);
    }
    check(&x);
}

/* The architecture is llama's, with experts: together, and each in a tensor of its own, as older files have
 * them. */
static void mixtral(void **state)
{
    for (int old = 0; old < 2; old++) {
        making x = begin("mixtral", "llama");
        set_all(&x);
        copy_all(&x, 1);
        for (int l = 0; l < x.m->config.num_hidden_layers; l++) {
            copy(&x, "model.layers.%d.post_attention_layernorm.weight", "blk.%d.ffn_norm.weight", l);
            copy(&x, "model.layers.%d.block_sparse_moe.gate.weight", "blk.%d.ffn_gate_inp.weight", l);
            static const char *const names[3][3] = {
                {"model.layers.%d.block_sparse_moe.experts.%d.w1.weight", "blk.%d.ffn_gate_exps.weight",
                 "blk.%d.ffn_gate.%d.weight"},
                {"model.layers.%d.block_sparse_moe.experts.%d.w3.weight", "blk.%d.ffn_up_exps.weight",
                 "blk.%d.ffn_up.%d.weight"},
                {"model.layers.%d.block_sparse_moe.experts.%d.w2.weight", "blk.%d.ffn_down_exps.weight",
                 "blk.%d.ffn_down.%d.weight"}};
            for (int i = 0; i < 3; i++) {
                if (!old) stack(&x, names[i][0], names[i][1], l);
                for (int e = 0; old && e < x.m->config.experts.num_experts; e++) {
                    char to[QN_TEST_GGUF_KEY_MAX];
                    const qn_test_copy_of *t = qn_test_rewritten_find(x.m, names[i][0], l, e);
                    snprintf(to, sizeof to, names[i][2], l, e);
                    qn_test_gguf_tensor_add(x.f, to, t->dtype, t->shape[0], t->shape[1], t->data);
                }
            }
        }
        check(&x);
    }
}

/* gpt_oss's experts, [in, out] in the fixture with gate and up turn by turn, as [out, in]; which: 0 gate, 1
 * up, 2 down. A bias has `in` of 1. */
static void turned(making *x, const char *from, const char *to, int layer, int which)
{
    const qn_test_copy_of *t = qn_test_rewritten_find(x->m, from, layer, 0);
    int bias = t->n_dims == 2;
    int64_t step = which == 2 ? 1 : 2, stored = t->shape[t->n_dims - 1], n_out = stored / step,
            n_in = bias ? 1 : t->shape[1], n = t->shape[0];
    float *values = qn_test_copy_floats(t),
          *out = hold(x, test_calloc((size_t)(n * n_out * n_in), sizeof *out));
    for (int64_t e = 0; e < n; e++)
        for (int64_t r = 0; r < n_out; r++)
            for (int64_t k = 0; k < n_in; k++)
                out[(e * n_out + r) * n_in + k] = values[(e * n_in + k) * stored + r * step + (which == 1)];
    test_free(values);
    add_experts(x, to, layer, QN_DTYPE_F32, bias ? 0 : n_out, bias ? n_out : n_in, out);
}

static void gpt_oss(void **state)
{
    making x = begin("gpt_oss", "gpt-oss");
    const qn_model_config *c = &x.m->config;
    set_all(&x);
    set(&x, "expert_feed_forward_length", c->experts.moe_intermediate_size);
    set(&x, "attention.sliding_window", c->layers[0].window);
    qn_test_gguf_set_text(x.f, "gpt-oss.rope.scaling.type", "yarn");
    set_number(&x, "rope.scaling.factor", c->rope[0].factor);
    set(&x, "rope.scaling.original_context_length", 64);
    copy_all(&x, 0);
    for (int l = 0; l < c->num_hidden_layers; l++) {
        copy(&x, "model.layers.%d.self_attn.q_proj.bias", "blk.%d.attn_q.bias", l);
        copy(&x, "model.layers.%d.self_attn.k_proj.bias", "blk.%d.attn_k.bias", l);
        copy(&x, "model.layers.%d.self_attn.v_proj.bias", "blk.%d.attn_v.bias", l);
        copy(&x, "model.layers.%d.self_attn.o_proj.bias", "blk.%d.attn_output.bias", l);
        copy(&x, "model.layers.%d.self_attn.sinks", "blk.%d.attn_sinks.weight", l);
        copy(&x, "model.layers.%d.post_attention_layernorm.weight", "blk.%d.post_attention_norm.weight", l);
        copy(&x, "model.layers.%d.mlp.router.weight", "blk.%d.ffn_gate_inp.weight", l);
        copy(&x, "model.layers.%d.mlp.router.bias", "blk.%d.ffn_gate_inp.bias", l);
        static const char *const matrices[3] = {"blk.%d.ffn_gate_exps.weight", "blk.%d.ffn_up_exps.weight",
                                                "blk.%d.ffn_down_exps.weight"},
                                 *const biases[3] = {"blk.%d.ffn_gate_exps.bias", "blk.%d.ffn_up_exps.bias",
                                                     "blk.%d.ffn_down_exps.bias"};
        for (int i = 0; i < 3; i++) {
            turned(&x,
                   i == 2 ? "model.layers.%d.mlp.experts.down_proj"
                          : "model.layers.%d.mlp.experts.gate_up_proj",
                   matrices[i], l, i);
            turned(&x,
                   i == 2 ? "model.layers.%d.mlp.experts.down_proj_bias"
                          : "model.layers.%d.mlp.experts.gate_up_proj_bias",
                   biases[i], l, i);
        }
    }
    check(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(qwen3moe), cmocka_unit_test(mixtral),
                                       cmocka_unit_test(gpt_oss)};
    return cmocka_run_group_tests_name("expert gguf", tests, NULL, NULL);
}

/* Families with layers that recur or several streams, as GGUF files made here of the fixtures in the form that llama.cpp's converter gives
 * them: rates in place of their logarithms, value heads in another order, multipliers within the weights, vectors as
 * matrices. Golden logits. The names of tensors are quern's own: families_gguf_test.c holds them against the converter. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/adapter/modules.h"
#include "model/config/families.h"
#include "model/weights/weight_roles.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/gguf_file.h"
#include "tests/support/models/golden_states.h"
#include "tests/support/models/model_dir.h"
#include "tests/support/scratch.h"

enum { TENSORS_MAX = 256 };

typedef struct {
    qn_test_weights from;
    const qn_model_config *c;
    qn_test_gguf *f;
    const char *architecture;
    float *data[TENSORS_MAX];
    int n, is_old;
} writing;

static const char *key_of(const writing *w, const char *key)
{
    static char name[QN_TEST_GGUF_KEY_MAX];
    snprintf(name, sizeof name, "%s.%s", w->architecture, key);
    return name;
}

static void set(writing *w, const char *key, int64_t value)
{
    qn_test_gguf_set_u32(w->f, key_of(w, key), (uint32_t)value);
}

static void set_number(writing *w, const char *key, double value)
{
    qn_test_gguf_set_f32(w->f, key_of(w, key), (float)value);
}

static void set_flag(writing *w, const char *key, int value)
{
    const uint8_t byte = value != 0;
    qn_test_gguf_set(w->f, key_of(w, key), QN_GGUF_BOOL, &byte, 1);
}

/* heads of keys, or the width of an MLP: 0 in layers that have none. */
static void set_layers(writing *w, const char *key, int is_width)
{
    int32_t list[64];
    const int64_t n = w->c->num_hidden_layers, mlp = w->c->experts.num_experts
                                                         ? w->c->experts.moe_intermediate_size
                                                         : w->c->intermediate_size;
    assert_true(n <= 64);
    for (int64_t i = 0; i < n; i++) {
        const qn_layer_config *l = &w->c->layers[i];
        const int is_there =
            is_width ? l->has_experts || (l->has_mlp && !w->c->experts.num_experts) : qn_layer_attends(l);
        list[i] = (int32_t)(!is_there ? 0 : is_width ? mlp : l->num_key_value_heads);
    }
    qn_test_gguf_set_array(w->f, key_of(w, key), QN_GGUF_I32, (uint64_t)n, list, (size_t)n * sizeof *list);
}

/* Of Kimi delta attention. */
static void set_channel_delta(writing *w)
{
    const qn_delta_config *d = &w->c->delta;
    set(w, "ssm.conv_kernel", d->linear_conv_kernel_dim);
    set(w, "kda.head_dim", d->linear_key_head_dim);
    if (d->lower_bound != 0) set_number(w, "kda.gate_lower_bound", (double)d->lower_bound);
}

static void set_recurrence(writing *w)
{
    const qn_model_config *c = w->c;
    const qn_state_space_config *s = &c->state_space;
    const qn_delta_config *d = &c->delta;
    if (c->short_conv.conv_L_cache) set(w, "shortconv.l_cache", c->short_conv.conv_L_cache);
    if (s->mamba_n_heads) {
        set(w, "ssm.conv_kernel", s->mamba_d_conv);
        set(w, "ssm.state_size", s->mamba_d_state);
        set(w, "ssm.group_count", s->mamba_n_groups);
        set(w, "ssm.time_step_rank", s->mamba_n_heads);
        set(w, "ssm.inner_size", s->mamba_n_heads * s->mamba_d_head);
    }
    if (w->c->family->recurrent == QN_MIXER_CHANNEL_DELTA) {
        set_channel_delta(w);
    } else if (d->linear_num_value_heads) {
        set(w, "ssm.conv_kernel", d->linear_conv_kernel_dim);
        set(w, "ssm.state_size", d->linear_key_head_dim);
        set(w, "ssm.group_count", d->linear_num_key_heads);
        set(w, "ssm.time_step_rank", d->linear_num_value_heads);
        set(w, "ssm.inner_size", d->linear_num_value_heads * d->linear_value_head_dim);
        set(w, "full_attention_interval", 4);
    }
}

/* An index that chooses blocks, several streams, a limit of gates. */
static void set_index(writing *w)
{
    const qn_model_config *c = w->c;
    const qn_index_config *x = &c->index;
    int32_t sizes[64] = {0};
    uint8_t own[64] = {0};
    float limits[64] = {0};
    const size_t n = (size_t)c->num_hidden_layers;
    assert_true(n <= 64);
    for (size_t i = 0; i < n; i++) {
        const qn_layer_config *l = &c->layers[i];
        own[i] = !l->indexed || l->index_layer == (int64_t)i;
        if (l->indexed) sizes[i] = (int32_t)x->index_kpool;
        limits[i] = c->mlp_limit;
    }
    if (x->pool) {
        set(w, "attention.indexer.head_count", x->index_n_heads);
        set(w, "attention.indexer.key_length", x->index_head_dim);
        set(w, "attention.indexer.top_k", x->index_topk);
    }
    if (x->pool == QN_INDEX_MEAN)
        qn_test_gguf_set_array(w->f, key_of(w, "attention.compress_ratios"), QN_GGUF_I32, n, sizes,
                               n * sizeof *sizes);
    if (x->pool == QN_INDEX_GATED) {
        set(w, "attention.indexer.kpool", x->index_kpool);
        set_flag(w, "attention.indexer.kpool_select_tail", !x->no_tail);
        set_number(w, "attention.layer_norm_epsilon", 1e-6);
        qn_test_gguf_set_array(w->f, key_of(w, "attention.indexer.types"), QN_GGUF_BOOL, n, own, n);
    }
    if (c->hyper.hc_count) set(w, "hyper_connection.count", c->hyper.hc_count);
    if (c->hyper.hc_lowrank) set(w, "hyper_connection.low_rank", c->hyper.hc_lowrank);
    if (c->hyper.hc_sinkhorn_iters) {
        set(w, "hyper_connection.sinkhorn_iterations", c->hyper.hc_sinkhorn_iters);
        set_number(w, "hyper_connection.epsilon", (double)c->hyper.hc_eps);
    }
    if (c->mlp_limit == 0) return;
    qn_test_gguf_set_array(w->f, key_of(w, "swiglu_clamp_exp"), QN_GGUF_F32, n, limits, n * sizeof *limits);
    qn_test_gguf_set_array(w->f, key_of(w, "swiglu_clamp_shexp"), QN_GGUF_F32, n, limits, n * sizeof *limits);
}

/* Attention over latents. */
static void set_latents(writing *w)
{
    const qn_latent_config *l = &w->c->latent;
    if (!l->kv_lora_rank) return;
    if (l->q_lora_rank) set(w, "attention.q_lora_rank", l->q_lora_rank);
    set(w, "attention.kv_lora_rank", l->kv_lora_rank);
    set(w, "attention.key_length", l->kv_lora_rank + l->qk_rope_head_dim);
    set(w, "attention.value_length", l->kv_lora_rank);
    set(w, "attention.key_length_mla", l->qk_nope_head_dim + l->qk_rope_head_dim);
    set(w, "attention.value_length_mla", l->v_head_dim);
    set(w, "rope.dimension_count", l->qk_rope_head_dim);
}

/* Embeddings of n-grams, of one layer. */
static void set_ngrams(writing *w)
{
    const qn_ngram_config *n = &w->c->ngram;
    uint64_t lists[2][QN_NGRAM_HEADS_MAX];
    uint32_t layer = 0;
    const size_t heads = (size_t)n->n_heads;
    if (!n->n_hashes) return;
    assert_int_equal(n->n_hashes, 1);
    while (!w->c->layers[layer].ngrams) layer++;
    for (size_t i = 0; i < heads; i++) {
        lists[0][i] = (uint64_t)n->hashes[0].size[i];
        lists[1][i] = (uint64_t)n->hashes[0].offset[i];
    }
    set(w, "ple.ngram_size", n->ngram_size);
    set(w, "ple.heads_per_ngram", n->heads_per_ngram);
    set(w, "ple.conv_kernel", n->ple_conv_kernel_size);
    set(w, "ple.eos_token_id", n->eos_token_id);
    set(w, "embedding_length_per_layer_input", n->ple_embed_dim / n->n_heads);
    qn_test_gguf_set_array(w->f, key_of(w, "ple.layers"), QN_GGUF_I32, 1, &layer, sizeof layer);
    qn_test_gguf_set_array(w->f, key_of(w, "ple.layer_multipliers"), QN_GGUF_U64, (uint64_t)n->ngram_size,
                           n->hashes[0].multiplier, (size_t)n->ngram_size * sizeof(uint64_t));
    qn_test_gguf_set_array(w->f, key_of(w, "ple.head_vocab_sizes"), QN_GGUF_U64, heads, lists[0],
                           heads * sizeof **lists);
    qn_test_gguf_set_array(w->f, key_of(w, "ple.head_offsets"), QN_GGUF_U64, heads, lists[1],
                           heads * sizeof **lists);
}

static void set_keys(writing *w)
{
    const qn_model_config *c = w->c;
    const int32_t sections[] = {(int32_t)c->rope[0].mrope_section[0], (int32_t)c->rope[0].mrope_section[1],
                                (int32_t)c->rope[0].mrope_section[2], 0};
    qn_test_gguf_set_text(w->f, "general.architecture", w->architecture);
    set(w, "vocab_size", c->vocab_size);
    set(w, "block_count", c->num_hidden_layers);
    set(w, "embedding_length", c->hidden_size);
    set(w, "context_length", c->max_position_embeddings);
    set(w, "attention.head_count", c->num_attention_heads);
    set(w, "attention.key_length", c->head_dim);
    set(w, "rope.dimension_count", c->rope[0].rotary_dim);
    set_number(w, "rope.freq_base", c->rope[0].theta);
    set_number(w, "attention.layer_norm_rms_epsilon", (double)c->rms_norm_eps);
    if (sections[0])
        qn_test_gguf_set_array(w->f, key_of(w, "rope.dimension_sections"), QN_GGUF_I32, 4, sections,
                               sizeof sections);
    if (c->family->single_blocks)
        set_layers(w, "feed_forward_length", 1);
    else
        set(w, "feed_forward_length", c->intermediate_size);
    if (c->altup_num_inputs || c->family->recurrent == QN_MIXER_DELTA || c->family->recur == QN_RECUR_BESIDE)
        set(w, "attention.head_count_kv", c->num_key_value_heads);
    else
        set_layers(w, "attention.head_count_kv", 0);
    set_recurrence(w);
    set_latents(w);
    set_index(w);
    set_ngrams(w);
    if (c->family->multiplied) {
        set_number(w, "attention.scale", (double)c->attention_scale);
        set_number(w, "embedding_scale", (double)c->embedding_scale);
        set_number(w, "residual_scale", (double)c->residual_scale);
        set_number(w, "logit_scale", 1 / (double)c->logits_scale);
        set_flag(w, "rope.scaling.finetuned", 1);
    }
    if (!c->experts.num_experts) return;
    set(w, "expert_count", c->experts.num_experts);
    set(w, "expert_used_count", c->experts.num_experts_per_tok);
    set(w, "expert_feed_forward_length", c->experts.moe_intermediate_size);
    set(w, "expert_shared_feed_forward_length", c->experts.shared_intermediate_size);
    for (int64_t i = 0; i < c->num_hidden_layers && c->layers[i].has_mlp; i++)
        if (!c->layers[i].has_experts) set(w, "leading_dense_block_count", i + 1);
    set_number(w, "expert_weights_scale", (double)c->experts.routed_scaling_factor);
    set_flag(w, "expert_weights_norm", c->experts.norm_topk_prob);
}

/* ---- tensors ------------------------------------------------------------------------------------------ */

static void scale(float *x, int64_t n, float by)
{
    for (int64_t i = 0; i < n; i++) x[i] *= by;
}

/* What config.json says beside the weights. */
static void fold(const writing *w, qn_weight_role role, float *x, int64_t n, int64_t n_cols)
{
    const qn_model_config *c = w->c;
    const qn_state_space_config *s = &c->state_space;
    const int64_t inner = s->mamba_n_heads * s->mamba_d_head, shared = s->mamba_n_groups * s->mamba_d_state;
    const int64_t parts[QN_SSM_PARTS] = {inner, inner, shared, shared, s->mamba_n_heads};
    if (role == QN_WEIGHT_EMBED) scale(x, n, c->embedding_scale);
    if (role == QN_WEIGHT_LM_HEAD) scale(x, n, c->logits_scale);
    if (role == QN_WEIGHT_Q || role == QN_WEIGHT_K || role == QN_WEIGHT_V)
        scale(x, n, c->attention_in_scale * (role == QN_WEIGHT_K ? c->key_scale : 1));
    if (role == QN_WEIGHT_O) scale(x, n, c->attention_out_scale);
    if (role == QN_WEIGHT_GATE) scale(x, n, c->gate_scale);
    if (role == QN_WEIGHT_DOWN) scale(x, n, c->mlp_out_scale);
    if (role == QN_WEIGHT_SSM_OUT) scale(x, n, s->out_scale);
    for (int i = 0; role == QN_WEIGHT_SSM_IN && i < QN_SSM_PARTS; x += parts[i] * n_cols, i++)
        scale(x, parts[i] * n_cols, s->in_scale * s->part_scale[i]);
}

/* Groups of `size` numbers, value head by value head, n_before groups behind the beginning of x stay: from those of a
 * key head side by side to one of each key head in turn. */
static void tile(const qn_delta_config *d, float *x, int64_t size)
{
    const int64_t nk = d->linear_num_key_heads, nv = d->linear_num_value_heads, each = nv / nk;
    float *old = test_malloc((size_t)(nv * size) * sizeof *old);
    memcpy(old, x, (size_t)(nv * size) * sizeof *old);
    for (int64_t k = 0; k < nk; k++)
        for (int64_t e = 0; e < each; e++)
            memcpy(x + (e * nk + k) * size, old + (k * each + e) * size, (size_t)size * sizeof *x);
    test_free(old);
}

static void tile_role(const qn_delta_config *d, qn_weight_role role, float *x, int64_t n_cols)
{
    const int64_t keys = 2 * d->linear_num_key_heads * d->linear_key_head_dim, dv = d->linear_value_head_dim;
    if (role == QN_WEIGHT_DELTA_QKV) tile(d, x + keys * n_cols, dv * n_cols);
    if (role == QN_WEIGHT_CONV) tile(d, x + keys * d->linear_conv_kernel_dim, dv * d->linear_conv_kernel_dim);
    if (role == QN_WEIGHT_DELTA_Z) tile(d, x, dv * n_cols);
    if (role == QN_WEIGHT_DELTA_A || role == QN_WEIGHT_DELTA_B) tile(d, x, n_cols);
    if (role == QN_WEIGHT_DELTA_A_LOG || role == QN_WEIGHT_DELTA_DT_BIAS) tile(d, x, 1);
}

/* Rows of a head whose halves turn together become neighbours. */
static void pair(const qn_model_config *c, float *x, int64_t n_rows, int64_t n_cols)
{
    float *old = test_malloc((size_t)(n_rows * n_cols) * sizeof *old);
    memcpy(old, x, (size_t)(n_rows * n_cols) * sizeof *old);
    for (int64_t r = 0; r < n_rows; r++) {
        const int64_t i = r % c->head_dim, from = r - i + i / 2 + i % 2 * (c->head_dim / 2);
        memcpy(x + r * n_cols, old + from * n_cols, (size_t)n_cols * sizeof *x);
    }
    test_free(old);
}

/* Of each key head's q, k, v and z, from `from` on those that go to one tensor, part by part. */
static void add_parts(writing *w, const char *name, int64_t layer, const float *x, int from, int to)
{
    const qn_delta_config *d = &w->c->delta;
    const int64_t nk = d->linear_num_key_heads, h = w->c->hidden_size, dk = d->linear_key_head_dim,
                  dv = d->linear_num_value_heads / nk * d->linear_value_head_dim;
    const int64_t rows[] = {dk, dk, dv, dv}, each = 2 * dk + 2 * dv;
    char full[QN_TENSOR_NAME_MAX];
    int64_t n_rows = 0, first = 0;
    assert_true(w->n < TENSORS_MAX);
    float *y = w->data[w->n++] = test_calloc((size_t)(nk * each * h), sizeof *y);
    for (int part = 0; part < to; first += rows[part++])
        for (int64_t k = 0; part >= from && k < nk; k++, n_rows += rows[part])
            memcpy(y + n_rows * h, x + (k * each + first) * h, (size_t)(rows[part] * h) * sizeof *y);
    snprintf(full, sizeof full, "blk.%lld.%s.weight", (long long)layer, name);
    qn_test_gguf_tensor_add(w->f, full, QN_DTYPE_F32, n_rows, h, y);
}

/* The matrices of all heads, which may lie apart and transposed. */
static void read_heads(const qn_tensor_view *v, float *x)
{
    const int64_t n_rows = v->shape[1], n_cols = v->shape[2], n = n_rows * n_cols;
    float *stored = test_malloc((size_t)n * sizeof *stored);
    for (int64_t h = 0; h < v->shape[0]; h++, x += n) {
        qn_tensor_view one = *v;
        one.data = (const char *)v->data + (size_t)h * v->matrix_bytes;
        one.n_elements = n;
        qn_test_ok(qn_view_floats(&one, 0, n, stored));
        for (int64_t i = 0; i < n; i++) x[i] = stored[v->transposed ? i % n_cols * n_rows + i / n_cols : i];
    }
    test_free(stored);
}

static void add(writing *w, qn_weight_role role, int64_t layer)
{
    const qn_model_config *c = w->c;
    const qn_tensor_view *v = qn_weights_get(w->from.weights, role, layer);
    char name[QN_TENSOR_NAME_MAX];
    if (role >= QN_WEIGHT_ALTUP_IN && role < QN_WEIGHT_HYPER_END_NORM) return; /* add_streams */
    if (!v || (role == QN_WEIGHT_LM_HEAD && qn_weights_tied(w->from.weights))) return;
    const int64_t n = v->n_elements, taps = qn_weight_taps(c, layer, role);
    int64_t n_cols = taps                             ? taps
                     : role == QN_WEIGHT_INDEX_PLACES ? c->index.index_head_dim
                     : v->n_dims > 1                  ? v->shape[v->n_dims - 1]
                                                      : n;
    assert_true(w->n < TENSORS_MAX);
    /* The converter gives the second embedding as many rows as the first has. */
    const int64_t n_rows = role == QN_WEIGHT_LAYER_INPUT_EMBED ? c->vocab_size : n / n_cols;
    float *x = w->data[w->n++] = test_calloc((size_t)(n_rows * n_cols), sizeof *x);
    if (v->matrix_bytes)
        read_heads(v, x);
    else if (v->n_dims > 1)
        qn_test_ok(qn_weights_rows(v, n_cols, 0, n / n_cols, x));
    else
        qn_test_ok(qn_weights_floats(v, x));
    for (int64_t i = 0; i < n; i++) {
        if (role == QN_WEIGHT_SSM_A_LOG || role == QN_WEIGHT_DELTA_A_LOG) x[i] = -expf(x[i]);
        if (qn_weight_has_offset(role)) x[i] += c->norm_offset;
    }
    if (c->family->many_multipliers) fold(w, role, x, n, n_cols);
    if (c->family->delta == QN_DELTA_SPLIT) tile_role(&c->delta, role, x, n_cols);
    for (int64_t r = 0; c->family->delta == QN_DELTA_SPLIT && role == QN_WEIGHT_DELTA_OUT && r < n / n_cols;
         r++)
        tile(&c->delta, x + r * n_cols, c->delta.linear_value_head_dim);
    if (c->family->gguf_rope_interleaved && (role == QN_WEIGHT_Q || role == QN_WEIGHT_K))
        pair(c, x, n / n_cols, n_cols);
    if (role == QN_WEIGHT_DELTA_QKVZ && !w->is_old) {
        add_parts(w, "attn_qkv", layer, x, 0, 3);
        add_parts(w, "attn_gate", layer, x, 3, 4);
        return;
    }
    if (role == QN_WEIGHT_SSM_NORM) n_cols /= c->state_space.mamba_n_groups;
    if (role == QN_WEIGHT_SSM_A_LOG || role == QN_WEIGHT_SSM_D) n_cols = 1;
    if (v->experts)
        snprintf(name, sizeof name, "blk.%lld.ffn_%s_exps.weight", (long long)layer,
                 role == QN_WEIGHT_EXPERT_GATE ? "gate"
                 : role == QN_WEIGHT_EXPERT_UP ? "up"
                                               : "down");
    else
        assert_true(qn_family_weight_name(c->family, QN_SOURCE_GGUF, "", role, layer, name));
    const int is_matrix = v->n_dims > 1 || n_cols < n || role == QN_WEIGHT_SSM_NORM;
    qn_test_gguf_tensor_add(w->f, name, QN_DTYPE_F32,
                            !is_matrix                            ? 0
                            : role == QN_WEIGHT_LAYER_INPUT_EMBED ? n_rows
                                                                  : n / n_cols,
                            n_cols, x);
    if (v->n_dims < 3) return;
    qn_test_gguf_tensor *t = qn_test_gguf_tensor_get(w->f, name);
    t->n_dims = 3;
    t->dims[1] = (uint64_t)v->shape[1];
    t->dims[2] = (uint64_t)v->shape[0];
}

/* The matrices of all streams but the first in one tensor. */
static void add_streams(writing *w, qn_weight_role first, const char *name)
{
    const int64_t n = w->c->altup_num_inputs - 1, h = w->c->hidden_size;
    assert_true(w->n < TENSORS_MAX);
    float *x = w->data[w->n++] = test_malloc((size_t)(n * h * h) * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        qn_test_ok(qn_weights_rows(qn_weights_get(w->from.weights, first + (qn_weight_role)i, 0), h, 0, h,
                                   x + i * h * h));
    qn_test_gguf_tensor_add(w->f, name, QN_DTYPE_F32, n * h, h, x);
    qn_test_gguf_tensor *t = qn_test_gguf_tensor_get(w->f, name);
    t->n_dims = 3;
    t->dims[1] = (uint64_t)h;
    t->dims[2] = (uint64_t)n;
}

static void set_streams(writing *w)
{
    const qn_model_config *c = w->c;
    uint8_t slides[64];
    float cutoffs[64];
    int64_t shared = 0;
    const size_t n = (size_t)c->num_hidden_layers;
    assert_true(n <= 64);
    for (size_t i = 0; i < n; i++) {
        const qn_layer_config *l = &c->layers[i];
        shared += l->kv_layer != (int64_t)i;
        slides[i] = l->kind == QN_LAYER_SLIDING;
        cutoffs[i] = l->gate_sparsity > 0 ? l->gate_cutoff : -(float)INFINITY;
        if (slides[i]) set(w, "attention.sliding_window", l->window);
    }
    set(w, "altup.num_inputs", c->altup_num_inputs);
    set(w, "altup.active_idx", c->altup_active_idx);
    set(w, "embedding_length_per_layer_input", c->hidden_size_per_layer_input);
    set(w, "attention.shared_kv_layers", shared);
    set_number(w, "final_logit_softcapping", (double)c->final_logit_softcapping);
    set_number(w, "rope.freq_base_swa", c->rope[1].theta);
    qn_test_gguf_set_array(w->f, key_of(w, "activation_sparsity_scale"), QN_GGUF_F32, n, cutoffs,
                           n * sizeof *cutoffs);
    qn_test_gguf_set_array(w->f, key_of(w, "attention.sliding_window_pattern"), QN_GGUF_BOOL, n, slides, n);
    add_streams(w, QN_WEIGHT_ALTUP_IN, "altup_proj.weight");
    add_streams(w, QN_WEIGHT_ALTUP_OUT, "altup_unembd_proj.weight");
}

/* is_old: as older converters wrote it. */
typedef struct {
    const char *kind, *architecture;
    int is_old;
} written;

static void fill(writing *w, const written *k)
{
    char path[128];
    snprintf(path, sizeof path, "models/%s", k->kind);
    const char *from = qn_test_need_fixture(path);
    *w = (writing){.f = qn_test_gguf_empty(), .architecture = k->architecture, .is_old = k->is_old};
    qn_test_ok(qn_test_weights_open(from, &w->from));
    w->c = &w->from.config;
    set_keys(w);
    if (w->c->altup_num_inputs) set_streams(w);
    for (int role = 0; role < QN_WEIGHT_MODEL_COUNT; role++) add(w, (qn_weight_role)role, 0);
    for (int64_t i = 0; i < w->c->num_hidden_layers; i++)
        for (int role = QN_WEIGHT_MODEL_COUNT; role < QN_WEIGHT_ROLE_COUNT; role++)
            add(w, (qn_weight_role)role, i);
    qn_test_gguf_place(w->f);
}

static void empty(writing *w)
{
    qn_test_gguf_free(w->f);
    for (int i = 0; i < w->n; i++) test_free(w->data[i]);
    qn_test_weights_close(&w->from);
}

static void golden(void **state)
{
    const written *k = *state;
    static writing w;
    qn_safetensors *st;
    char path[128];
    double worst = 0;
    const char *folder = qn_test_scratch();
    fill(&w, k);
    const char *file = qn_test_gguf_write(w.f, folder, "made.gguf");
    snprintf(path, sizeof path, "models/%s/expected.safetensors", k->kind);
    qn_test_ok(qn_safetensors_open(qn_test_need_fixture(path), &st));
    qn_engine *e = qn_test_engine(file, NULL, (qn_engine_options){.precision = QN_PRECISION_EXACT});
    for (int i = 0; i < 5; i++) {
        const double d = qn_golden_logits(e, st, i, NULL);
        if (!(d <= worst)) worst = d;
    }
    print_message("%s: logits %.1e\n", k->kind, worst);
    assert_true(worst <= qn_golden_tolerance(k->kind));
    qn_engine_close(e);
    qn_test_weights_run_out(file);
    qn_safetensors_close(st);
    empty(&w);
    qn_test_remove(folder);
}

/* Adapters of published files fit a matrix of the file or are refused: of matrices with other orders of rows, or with multipliers in them. */
static void adapters_fit(void **state)
{
    static const struct {
        written of;
        qn_weight_role role;
        int64_t layer;
        int fits;
    } rows[] = {{{"qwen3_5_vision", "qwen35", 0}, QN_WEIGHT_DELTA_Z, 0, 0},
                {{"qwen3_5_vision", "qwen35", 0}, QN_WEIGHT_DELTA_OUT, 0, 0},
                {{"qwen3_5_vision", "qwen35", 0}, QN_WEIGHT_Q, 3, 1},
                {{"falcon_h1", "falcon-h1", 0}, QN_WEIGHT_K, 0, 0},
                {{"falcon_h1", "falcon-h1", 0}, QN_WEIGHT_UP, 0, 1},
                {{"granitemoehybrid", "granitehybrid", 0}, QN_WEIGHT_SSM_IN, 0, 1},
                {{"qwen3_next", "qwen3next", 0}, QN_WEIGHT_DELTA_QKVZ, 0, 0},
                {{"qwen3_next", "qwen3next", 1}, QN_WEIGHT_DELTA_QKVZ, 0, 1},
                {{"qwen3_next", "qwen3next", 0}, QN_WEIGHT_DELTA_BA, 0, 1},
                {{"qwen3_next", "qwen3next", 0}, QN_WEIGHT_DELTA_OUT, 0, 1}};
    const char *folder = qn_test_scratch();
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        static writing w;
        qn_test_weights opened;
        int64_t shape[QN_WEIGHT_DIMS_MAX];
        fill(&w, &rows[i].of);
        qn_test_ok(qn_test_weights_open(qn_test_gguf_write(w.f, folder, "made.gguf"), &opened));
        assert_int_equal(qn_module_has_role(&opened.config, rows[i].role, rows[i].layer, shape),
                         rows[i].fits);
        assert_true(qn_module_has_role(w.c, rows[i].role, rows[i].layer, shape));
        qn_test_weights_close(&opened);
        empty(&w);
    }
    qn_test_remove(folder);
}

/* Keys that are bent: the message has these words. */
static void refuses(void **state)
{
    static const struct {
        written of;
        const char *key;
        int n; /* of a list; 0: a number */
        int32_t values[4];
        const char *words;
    } rows[] = {
        {{"qwen3_5_vision", "qwen35", 0}, "ssm.group_count", 0, {0}, "qwen35.ssm.group_count"},
        {{"qwen3_5_vision", "qwen35", 0},
         "ssm.group_count",
         0,
         {3},
         "is not a multiple of qwen35.ssm.group_count 3"},
        {{"qwen3_5_vision", "qwen35", 0}, "ssm.inner_size", 0, {47}, "qwen35.ssm.inner_size is missing"},
        {{"qwen3_5_vision", "qwen35", 0}, "ssm.inner_size", 0, {64}, "shape"},
        {{"qwen3_5_vision", "qwen35", 0}, "rope.dimension_sections", 4, {2, 1, 1, 1}, "a fourth section (1)"},
        {{"lfm2", "lfm2", 0},
         "attention.head_count_kv",
         4,
         {0, 0, 2, 0},
         "expected one for each of the 5 layers"},
        {{"lfm2", "lfm2", 0}, "shortconv.l_cache", 0, {4}, "shortconv.conv.weight: shape"},
        {{"granitemoehybrid", "granitehybrid", 0}, "ssm.time_step_rank", 0, {5}, "is not the inner width"},
        {{"granitemoehybrid", "granitehybrid", 0},
         "attention.head_count_kv",
         4,
         {0, 2, 0, 1},
         "differs between layers"},
        {{"qwen3_next", "qwen3next", 0}, "ssm.group_count", 0, {1}, "attn_qkv.weight: shape"},
        {{"glm5_next", "glm5-next", 0}, "rope.dimension_count", 0, {2}, "glm5-next.rope.dimension_count"},
        {{"glm5_next", "glm5-next", 0}, "attention.indexer.types", 2, {1, 1}, "each of the 4 layers"},
        {{"glm5_next", "glm5-next", 0}, "attention.indexer.types", 4, {1, 1, 1, 0}, "but none has one"},
        {{"glm5_next", "glm5-next", 0},
         "attention.layer_norm_epsilon",
         0,
         {1},
         "is 1, which is not supported"},
        {{"glm5_next", "glm5-next", 0}, "swiglu_clamp_shexp", 0, {9}, "swiglu_clamp_shexp differ (1.5, 9)"},
        {{"glm5_next", "glm5-next", 0}, "hyper_connection.count", 0, {2}, "hc_attn_fn.weight: shape"},
        {{"qwen4_exp", "qwen4exp", 0}, "hyper_connection.count", 0, {1}, "qwen4exp.hyper_connection.count"},
        {{"qwen4_exp", "qwen4exp", 0},
         "attention.compress_ratios",
         4,
         {0, 2, 0, 4},
         "differs between layers (2, 4)"},
        {{"qwen4_exp", "qwen4exp", 0}, "attention.compress_ratios", 2, {0, 4}, "each of the 4 layers"},
        {{"qwen4_exp", "qwen4exp", 0}, "ple.layers", 1, {4}, "is not a layer from 0 to 3"},
        {{"qwen4_exp", "qwen4exp", 0}, "ple.layers", 1, {3}, "is not one of linear_attention"},
        {{"qwen4_exp", "qwen4exp", 0}, "ple.layers", 2, {0, 1}, "has 2 layers, but one table"},
        {{"qwen4_exp", "qwen4exp", 0}, "ple.layer_multipliers", 2, {3, 5}, "has 2 elements, expected 3"},
        {{"qwen4_exp", "qwen4exp", 0}, "ple.head_offsets", 4, {0, 97, 198, 400}, "head_offsets[3] is 400"},
        {{"qwen4_exp", "qwen4exp", 0}, "ple.head_vocab_sizes", 4, {97, 0, 3, 4}, "head_vocab_sizes[1] is 0"},
        {{"qwen4_exp", "qwen4exp", 0}, "ple.heads_per_ngram", 0, {3}, "elements, expected 6"},
        {{"qwen4_exp", "qwen4exp", 0}, "ple.eos_token_id", 0, {512}, "qwen4exp.ple.eos_token_id"},
        {{"qwen4_exp", "qwen4exp", 0},
         "embedding_length_per_layer_input",
         0,
         {5},
         "per_layer_token_embd.weight"},
        {{"lfm2", "clip", 0}, "vision.block_count", 0, {1}, "only the tower"},
        {{"nemotron_h", "nemotron_h_moe", 0}, "moe_latent_size", 0, {8}, "experts over latents"},
    };
    const char *folder = qn_test_scratch();
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        static writing w;
        qn_test_weights opened;
        fill(&w, &rows[i].of);
        if (rows[i].n)
            qn_test_gguf_set_array(w.f, key_of(&w, rows[i].key), QN_GGUF_I32, (uint64_t)rows[i].n,
                                   rows[i].values, (size_t)rows[i].n * sizeof *rows[i].values);
        else
            set(&w, rows[i].key, rows[i].values[0]);
        const qn_status status = qn_test_weights_open(qn_test_gguf_write(w.f, folder, "bent.gguf"), &opened);
        if (status == QN_OK || !strstr(qn_last_error(), rows[i].words))
            fail_msg("%s %d: %s: %s", rows[i].key, rows[i].values[0], qn_status_name(status),
                     qn_last_error());
        empty(&w);
    }
    qn_test_remove(folder);
}

/* Blocks of no size: an index is not used, and rows of one token, or of as many as it would choose, have the same logits. */
static void without_index(void **state)
{
    static writing w;
    qn_safetensors *st;
    const written k = {"qwen4_exp", "qwen4exp", 0};
    const int32_t none[4] = {0};
    const char *folder = qn_test_scratch();
    (void)state;
    fill(&w, &k);
    qn_test_gguf_set_array(w.f, key_of(&w, "attention.compress_ratios"), QN_GGUF_I32, 4, none, sizeof none);
    const char *file = qn_test_gguf_write(w.f, folder, "made.gguf");
    qn_test_ok(qn_safetensors_open(qn_test_need_fixture("models/qwen4_exp/expected.safetensors"), &st));
    qn_engine *e = qn_test_engine(file, NULL, (qn_engine_options){.precision = QN_PRECISION_EXACT});
    assert_int_equal(qn_engine_config(e)->layers[3].indexed, 0);
    assert_true(qn_golden_logits(e, st, 4, NULL) <= qn_golden_tolerance("qwen4_exp"));
    assert_true(qn_golden_logits(e, st, 2, NULL) > qn_golden_tolerance("qwen4_exp"));
    qn_engine_close(e);
    qn_safetensors_close(st);
    empty(&w);
    qn_test_remove(folder);
}

/* A layer for drafts behind the others, in every list too: it is left out. */
static void with_drafts(void **state)
{
    static const written kinds[] = {{"qwen3_next", "qwen3next", 0}, {"glm5_next", "glm5-next", 0}};
    static float some[64 * 128];
    const uint8_t recurs[5] = {1, 1, 1, 0, 0};
    const int32_t heads[5] = {0, 0, 0, 1, 1};
    const float limits[5] = {1.5f, 1.5f, 1.5f, 1.5f, 1.5f};
    const char *folder = qn_test_scratch();
    (void)state;
    for (int i = 0; i < 2; i++) {
        static writing w;
        qn_safetensors *st;
        char path[128];
        fill(&w, &kinds[i]);
        const int64_t h = w.c->hidden_size;
        set(&w, "block_count", 5);
        set(&w, "nextn_predict_layers", 1);
        qn_test_gguf_tensor_add(w.f, "blk.4.nextn.eh_proj.weight", QN_DTYPE_F32, h, 2 * h, some);
        qn_test_gguf_tensor_add(w.f, "blk.4.attn_norm.weight", QN_DTYPE_F32, 0, h, some);
        if (i == 0)
            qn_test_gguf_set_array(w.f, key_of(&w, "attention.recurrent_layers"), QN_GGUF_BOOL, 5, recurs, 5);
        if (i == 1) {
            qn_test_gguf_set_array(w.f, key_of(&w, "attention.head_count_kv"), QN_GGUF_I32, 5, heads,
                                   sizeof heads);
            qn_test_gguf_set_array(w.f, key_of(&w, "swiglu_clamp_exp"), QN_GGUF_F32, 5, limits,
                                   sizeof limits);
            qn_test_gguf_set_array(w.f, key_of(&w, "swiglu_clamp_shexp"), QN_GGUF_F32, 5, limits,
                                   sizeof limits);
        }
        qn_test_gguf_place(w.f);
        const char *file = qn_test_gguf_write(w.f, folder, "made.gguf");
        snprintf(path, sizeof path, "models/%s/expected.safetensors", kinds[i].kind);
        qn_test_ok(qn_safetensors_open(qn_test_need_fixture(path), &st));
        qn_engine *e = qn_test_engine(file, NULL, (qn_engine_options){.precision = QN_PRECISION_EXACT});
        assert_int_equal(qn_engine_config(e)->num_hidden_layers, 4);
        assert_true(qn_golden_logits(e, st, 1, NULL) <= qn_golden_tolerance(kinds[i].kind));
        qn_engine_close(e);
        qn_safetensors_close(st);
        empty(&w);
    }
    qn_test_remove(folder);
}

int main(void)
{
    static written kinds[] = {{"lfm2", "lfm2", 0},
                              {"granitemoehybrid", "granitehybrid", 0},
                              {"nemotron_h", "nemotron_h_moe", 0},
                              {"falcon_h1", "falcon-h1", 0},
                              {"gemma3n", "gemma3n", 0},
                              {"qwen3_5_vision", "qwen35", 0},
                              {"qwen3_5_moe_vision", "qwen35moe", 0},
                              {"glm5_next", "glm5-next", 0},
                              {"qwen4_exp", "qwen4exp", 0},
                              {"qwen3_next", "qwen3next", 0},
                              {"qwen3_next", "qwen3next", 1}};
    enum { N = sizeof kinds / sizeof *kinds };
    static struct CMUnitTest tests[N + 4] = {[N] = {"refuses", refuses, NULL, NULL, NULL},
                                             [N + 1] = {"adapters fit", adapters_fit, NULL, NULL, NULL},
                                             [N + 2] = {"without index", without_index, NULL, NULL, NULL},
                                             [N + 3] = {"with drafts", with_drafts, NULL, NULL, NULL}};
    for (int i = 0; i < N; i++) tests[i] = (struct CMUnitTest){kinds[i].kind, golden, NULL, NULL, &kinds[i]};
    return _cmocka_run_group_tests("recurrent gguf", tests, N + 4, NULL, NULL);
}

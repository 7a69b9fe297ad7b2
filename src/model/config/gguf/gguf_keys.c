#include "model/config/gguf/gguf_keys.h"

#include <math.h>
#include <string.h>

#include "model/config/families.h"

/* ---- what is written ----------------------------------------------------------------------------------- */

/* What the family takes a field for that a GGUF file does not give. */
static int assumed(const qn_model_config *c, const char *name, double *out)
{
    for (const qn_field_default *d = c->family->defaults; d && d->name; d++)
        if (d->also_gguf && strcmp(d->name, name) == 0) {
            *out = d->value;
            return 1;
        }
    return 0;
}

static int give(double value, double *out)
{
    *out = value;
    return 1;
}

static int give_unless(int is_default, double value, double *out)
{
    *out = value;
    return !is_default;
}

static int vocab_size(const qn_model_config *c, int64_t layer, double *out)
{
    return give((double)c->vocab_size, out);
}

static int hidden_size(const qn_model_config *c, int64_t layer, double *out)
{
    return give((double)c->hidden_size, out);
}

static int layers(const qn_model_config *c, int64_t layer, double *out)
{
    return give((double)c->num_hidden_layers, out);
}

static int positions(const qn_model_config *c, int64_t layer, double *out)
{
    return give((double)c->max_position_embeddings, out);
}

static int intermediate(const qn_model_config *c, int64_t layer, double *out)
{
    const qn_layer_config *l = &c->layers[layer];
    if (!c->family->single_blocks) return give((double)l->intermediate_size, out);
    /* Files of models with experts say of plain MLPs that they are nothing. */
    if (c->experts.num_experts)
        return give(l->has_experts ? (double)c->experts.moe_intermediate_size : 0, out);
    return give(l->has_mlp ? (double)l->intermediate_size : 0, out);
}

static int heads(const qn_model_config *c, int64_t layer, double *out)
{
    return give((double)c->num_attention_heads, out);
}

static int kv_heads(const qn_model_config *c, int64_t layer, double *out)
{
    const qn_layer_config *l = &c->layers[layer];
    if (c->family->recurrent == QN_MIXER_DELTA) return give((double)c->num_key_value_heads, out);
    return give(qn_layer_attends(l) ? (double)l->num_key_value_heads : 0, out);
}

static int experts(const qn_model_config *c, int64_t layer, double *out)
{
    return give_unless(!c->experts.num_experts, (double)c->experts.num_experts, out);
}

static int experts_used(const qn_model_config *c, int64_t layer, double *out)
{
    return give_unless(!c->experts.num_experts, (double)c->experts.num_experts_per_tok, out);
}

static int expert_size(const qn_model_config *c, int64_t layer, double *out)
{
    return give_unless(!c->experts.num_experts, (double)c->experts.moe_intermediate_size, out);
}

static int shared_size(const qn_model_config *c, int64_t layer, double *out)
{
    return give_unless(!c->experts.shared_intermediate_size, (double)c->experts.shared_intermediate_size,
                       out);
}

static int shared_count(const qn_model_config *c, int64_t layer, double *out)
{
    const qn_experts_config *e = &c->experts;
    const int64_t n = e->num_experts ? e->shared_intermediate_size / e->moe_intermediate_size : 0;
    return give_unless(!n || n * e->moe_intermediate_size != e->shared_intermediate_size, (double)n, out);
}

static int groups(const qn_model_config *c, int64_t layer, double *out)
{
    return give_unless(c->experts.n_group <= 1, (double)c->experts.n_group, out);
}

static int groups_used(const qn_model_config *c, int64_t layer, double *out)
{
    return give_unless(c->experts.n_group <= 1, (double)c->experts.topk_group, out);
}

static int routed_scale(const qn_model_config *c, int64_t layer, double *out)
{
    return give_unless(!c->experts.num_experts || c->experts.routed_scaling_factor == 1,
                       (double)c->experts.routed_scaling_factor, out);
}

static int dense_layers(const qn_model_config *c, int64_t layer, double *out)
{
    int64_t n = 0;
    while (n < c->num_hidden_layers && !c->layers[n].has_experts) n++;
    return give_unless(!c->experts.num_experts || !n || c->family->single_blocks, (double)n, out);
}

/* Of families whose files must say it. */
static int sparse_step(const qn_model_config *c, int64_t layer, double *out)
{
    double step;
    int64_t first = 0;
    while (first < c->num_hidden_layers && !c->layers[first].has_experts) first++;
    return give_unless(!c->experts.num_experts || !assumed(c, "decoder_sparse_step", &step),
                       (double)(first + 1), out);
}

/* The first layer that slides, or that does not; NULL: there is none. */
static const qn_layer_config *layer_of(const qn_model_config *c, qn_layer_kind kind)
{
    for (int64_t i = 0; i < c->num_hidden_layers; i++)
        if (c->layers[i].kind == kind) return &c->layers[i];
    return NULL;
}

static int head_size(const qn_model_config *c, int64_t layer, double *out)
{
    const qn_latent_config *latent = &c->latent;
    if (latent->kv_lora_rank) return give((double)(latent->kv_lora_rank + latent->qk_rope_head_dim), out);
    const qn_layer_config *full = layer_of(c, QN_LAYER_FULL);
    return give((double)(full ? full->head_dim : c->head_dim), out);
}

static int value_size(const qn_model_config *c, int64_t layer, double *out)
{
    return c->latent.kv_lora_rank ? give((double)c->latent.kv_lora_rank, out) : head_size(c, layer, out);
}

static int sliding_head_size(const qn_model_config *c, int64_t layer, double *out)
{
    const qn_layer_config *full = layer_of(c, QN_LAYER_FULL), *sliding = layer_of(c, QN_LAYER_SLIDING);
    return give_unless(!full || !sliding || full->head_dim == sliding->head_dim,
                       sliding ? (double)sliding->head_dim : 0, out);
}

static int q_rank(const qn_model_config *c, int64_t layer, double *out)
{
    return give_unless(!c->latent.q_lora_rank, (double)c->latent.q_lora_rank, out);
}

static int kv_rank(const qn_model_config *c, int64_t layer, double *out)
{
    return give_unless(!c->latent.kv_lora_rank, (double)c->latent.kv_lora_rank, out);
}

static int latent_head_size(const qn_model_config *c, int64_t layer, double *out)
{
    return give_unless(!c->latent.kv_lora_rank,
                       (double)(c->latent.qk_nope_head_dim + c->latent.qk_rope_head_dim), out);
}

static int latent_value_size(const qn_model_config *c, int64_t layer, double *out)
{
    return give_unless(!c->latent.kv_lora_rank, (double)c->latent.v_head_dim, out);
}

static int shared_kv_layers(const qn_model_config *c, int64_t layer, double *out)
{
    int64_t n = 0;
    for (int64_t i = 0; i < c->num_hidden_layers; i++) n += c->layers[i].kv_layer != i;
    return give_unless(!n, (double)n, out);
}

/* Families that may have such numbers say so in any case. */
static int layer_input(const qn_model_config *c, int64_t layer, double *out)
{
    int may = 0;
    for (const qn_field_default *d = c->family->defaults; d && d->name; d++)
        may |= strcmp(d->name, "hidden_size_per_layer_input") == 0;
    return give_unless(!may && !c->hidden_size_per_layer_input, (double)c->hidden_size_per_layer_input, out);
}

static int norm_eps(const qn_model_config *c, int64_t layer, double *out)
{
    return give_unless(c->layer_norm, (double)c->rms_norm_eps, out);
}

static int layer_norm_eps(const qn_model_config *c, int64_t layer, double *out)
{
    /* Files of layers of one block each have it for their RMS norms. */
    return give_unless(!c->layer_norm && !c->family->single_blocks, (double)c->rms_norm_eps, out);
}

/* Where a file may say it at all. */
static int normed_shares(const qn_model_config *c, int64_t layer, double *out)
{
    const qn_family_experts *e = c->family->experts;
    return give_unless(!c->experts.num_experts || !e || e->norm_topk_prob || e->gguf_norm_topk_prob,
                       c->experts.norm_topk_prob, out);
}

/* As llama.cpp numbers them. */
static int gating(const qn_model_config *c, int64_t layer, double *out)
{
    return give_unless(!c->experts.num_experts || c->experts.score == QN_SCORE_SOFTMAX_CHOSEN,
                       c->experts.score == QN_SCORE_SIGMOID ? 2 : 1, out);
}

/* What makes score_mscale of the factor; MLA's files have a tenth of it. */
static int log_multiplier(const qn_model_config *c, int64_t layer, double *out)
{
    const qn_rope_config *r = &c->rope[0];
    const double log_factor = r->type == QN_ROPE_YARN && r->factor > 1 ? 0.1 * log(r->factor) : 0;
    if (log_factor == 0 || r->score_mscale == 1) return 0;
    const double all = ((double)r->score_mscale - 1) / log_factor;
    return give(c->family->latent ? all / 10 : all, out);
}

static int query_scale(const qn_model_config *c, int64_t layer, double *out)
{
    return give_unless(c->query_scale_beta == 0, (double)c->query_scale_beta, out);
}

/* Where every layer may slide 0 says that none does. */
static int window(const qn_model_config *c, int64_t layer, double *out)
{
    const qn_layer_config *sliding = layer_of(c, QN_LAYER_SLIDING);
    return give_unless(!sliding && c->family->slide != QN_SLIDE_EVERY, sliding ? (double)sliding->window : 0,
                       out);
}

static int slides(const qn_model_config *c, int64_t layer, double *out)
{
    double period = 0;
    int as_assumed = c->family->slide != QN_SLIDE_PERIOD || assumed(c, "sliding_window_pattern", &period);
    if (c->family->gguf_slides) as_assumed = 0;
    if (!layer_of(c, QN_LAYER_SLIDING)) return 0;
    for (int64_t i = 0; i < c->num_hidden_layers && period > 0; i++)
        as_assumed &= (c->layers[i].kind == QN_LAYER_SLIDING) == ((i + 1) % (int64_t)period != 0);
    return give_unless(as_assumed, c->layers[layer].kind == QN_LAYER_SLIDING, out);
}

static int attention_scale(const qn_model_config *c, int64_t layer, double *out)
{
    double scale = 0, scalar = (double)c->head_dim;
    if (c->family->gguf_wide_scale_layers == c->num_hidden_layers)
        scalar = (double)c->hidden_size / (double)c->num_attention_heads;
    (void)assumed(c, "attention_scale", &scale);
    if (scale == 0) scale = 1 / sqrt(scalar);
    return give_unless(!c->family->multiplied && c->attention_scale == (float)scale,
                       (double)c->attention_scale, out);
}

static int embedding_scale(const qn_model_config *c, int64_t layer, double *out)
{
    return give_unless(!c->family->multiplied, (double)c->embedding_scale, out);
}

static int residual_scale(const qn_model_config *c, int64_t layer, double *out)
{
    return give_unless(!c->family->multiplied, (double)c->residual_scale, out);
}

static int logit_scale(const qn_model_config *c, int64_t layer, double *out)
{
    if (c->family->logit_scale) return give((double)c->logits_scale, out);
    return give_unless(!c->family->multiplied, 1 / (double)c->logits_scale, out);
}

static int attention_cap(const qn_model_config *c, int64_t layer, double *out)
{
    double cap = 0;
    (void)assumed(c, "attn_logit_softcapping", &cap);
    return give_unless(c->attn_logit_softcapping == 0 && cap == 0, (double)c->attn_logit_softcapping, out);
}

static int final_cap(const qn_model_config *c, int64_t layer, double *out)
{
    double cap = 0;
    (void)assumed(c, "final_logit_softcapping", &cap);
    return give_unless(c->final_logit_softcapping == 0 && cap == 0, (double)c->final_logit_softcapping, out);
}

static int rotary_dim(const qn_model_config *c, int64_t layer, double *out)
{
    return give((double)c->rope[0].rotary_dim, out);
}

static int sliding_rotary_dim(const qn_model_config *c, int64_t layer, double *out)
{
    return give_unless(c->n_rope < 2 || c->rope[1].rotary_dim == c->rope[0].rotary_dim,
                       (double)c->rope[1].rotary_dim, out);
}

static int theta(const qn_model_config *c, int64_t layer, double *out)
{
    return give(c->rope[0].theta, out);
}

static int sliding_theta(const qn_model_config *c, int64_t layer, double *out)
{
    return give_unless(c->n_rope < 2, c->rope[1].theta, out);
}

static int is_stretched(const qn_model_config *c)
{
    return c->rope[0].type == QN_ROPE_LINEAR || c->rope[0].type == QN_ROPE_YARN;
}

static int rope_factor(const qn_model_config *c, int64_t layer, double *out)
{
    return give_unless(!is_stretched(c), c->rope[0].factor, out);
}

static int original_positions(const qn_model_config *c, int64_t layer, double *out)
{
    if (c->rope[0].type == QN_ROPE_LONG) return give((double)c->rope[0].short_positions, out);
    return give_unless(c->rope[0].type != QN_ROPE_YARN, c->rope[0].original_positions, out);
}

/* Beside what the factor alone makes of it. */
static int rope_attention(const qn_model_config *c, int64_t layer, double *out)
{
    const qn_rope_config *r = &c->rope[0];
    double log_scale;
    const int is_own = r->type == QN_ROPE_YARN && r->factor > 1 && r->ext_factor > 0 &&
                       !log_multiplier(c, layer, &log_scale);
    const double own = is_own ? 0.1 * log(r->factor) + 1 : 1;
    return give_unless(r->type != QN_ROPE_LONG && r->type != QN_ROPE_YARN, (double)r->attention_factor / own,
                       out);
}

static int ext_factor(const qn_model_config *c, int64_t layer, double *out)
{
    return give_unless(c->rope[0].type != QN_ROPE_YARN || c->rope[0].ext_factor == 1, c->rope[0].ext_factor,
                       out);
}

static int beta_fast(const qn_model_config *c, int64_t layer, double *out)
{
    return give_unless(c->rope[0].type != QN_ROPE_YARN, c->rope[0].beta_fast, out);
}

static int beta_slow(const qn_model_config *c, int64_t layer, double *out)
{
    return give_unless(c->rope[0].type != QN_ROPE_YARN, c->rope[0].beta_slow, out);
}

/* ---- layers that recur --------------------------------------------------------------------------------- */

static int has_rope(const qn_model_config *c, int64_t layer, double *out)
{
    int turns = 0;
    for (int64_t i = 0; i < c->num_hidden_layers; i++) turns |= c->layers[i].rope != QN_ROPE_NONE;
    return give_unless(!c->family->said_rope, turns, out);
}

static int recurs(const qn_model_config *c, int64_t layer, double *out)
{
    return give_unless(c->family->recurrent != QN_MIXER_DELTA, qn_layer_recurs(&c->layers[layer]), out);
}

static int short_conv(const qn_model_config *c, int64_t layer, double *out)
{
    return give_unless(!c->short_conv.conv_L_cache, (double)c->short_conv.conv_L_cache, out);
}

/* Of a state space, or of a delta net by key and value heads. */
static int ssm(const qn_model_config *c, int64_t of_space, int64_t of_net, double *out)
{
    if (c->state_space.mamba_n_heads) return give((double)of_space, out);
    return give_unless(c->family->recurrent != QN_MIXER_DELTA, (double)of_net, out);
}

static int kda_head(const qn_model_config *c, int64_t layer, double *out)
{
    return give_unless(c->family->recurrent != QN_MIXER_CHANNEL_DELTA, (double)c->delta.linear_key_head_dim,
                       out);
}

static int ssm_kernel(const qn_model_config *c, int64_t layer, double *out)
{
    if (c->family->recurrent == QN_MIXER_CHANNEL_DELTA)
        return give((double)c->delta.linear_conv_kernel_dim, out);
    return ssm(c, c->state_space.mamba_d_conv, c->delta.linear_conv_kernel_dim, out);
}

static int ssm_state(const qn_model_config *c, int64_t layer, double *out)
{
    return ssm(c, c->state_space.mamba_d_state, c->delta.linear_key_head_dim, out);
}

static int ssm_groups(const qn_model_config *c, int64_t layer, double *out)
{
    return ssm(c, c->state_space.mamba_n_groups, c->delta.linear_num_key_heads, out);
}

static int ssm_heads(const qn_model_config *c, int64_t layer, double *out)
{
    return ssm(c, c->state_space.mamba_n_heads, c->delta.linear_num_value_heads, out);
}

static int ssm_inner(const qn_model_config *c, int64_t layer, double *out)
{
    return ssm(c, c->state_space.mamba_n_heads * c->state_space.mamba_d_head,
               c->delta.linear_num_value_heads * c->delta.linear_value_head_dim, out);
}

/* ---- the table ----------------------------------------------------------------------------------------- */

const qn_gguf_key qn_gguf_keys[] = {
    {"vocab_size", "vocab_size", QN_GGUF_KEY_INTEGER, vocab_size},
    {"embedding_length", "hidden_size", QN_GGUF_KEY_INTEGER, hidden_size},
    {"block_count", "num_hidden_layers", QN_GGUF_KEY_INTEGER, layers},
    {"context_length", "max_position_embeddings", QN_GGUF_KEY_INTEGER, positions},
    {"feed_forward_length", "intermediate_size", QN_GGUF_KEY_PER_LAYER, intermediate},
    {"expert_count", "num_experts", QN_GGUF_KEY_INTEGER, experts},
    {"expert_used_count", "num_experts_per_tok", QN_GGUF_KEY_INTEGER, experts_used},
    {"expert_feed_forward_length", "moe_intermediate_size", QN_GGUF_KEY_INTEGER, expert_size},
    {"expert_shared_count", "n_shared_experts", QN_GGUF_KEY_INTEGER, shared_count},
    {"expert_shared_feed_forward_length", "shared_expert_intermediate_size", QN_GGUF_KEY_INTEGER,
     shared_size},
    {"expert_group_count", "n_group", QN_GGUF_KEY_INTEGER, groups},
    {"expert_group_used_count", "topk_group", QN_GGUF_KEY_INTEGER, groups_used},
    {"expert_weights_scale", "routed_scaling_factor", QN_GGUF_KEY_NUMBER, routed_scale},
    {"expert_weights_norm", "norm_topk_prob", QN_GGUF_KEY_BOOL, normed_shares},
    {"expert_gating_func", "expert_gating_func", QN_GGUF_KEY_INTEGER, gating},
    {"moe_latent_size", "moe_latent_size", QN_GGUF_KEY_INTEGER, NULL},
    {"nextn_predict_layers", "num_nextn_predict_layers", QN_GGUF_KEY_INTEGER, NULL},
    {"interleave_moe_layer_step", "decoder_sparse_step", QN_GGUF_KEY_INTEGER, sparse_step},
    {"leading_dense_block_count", "first_k_dense_replace", QN_GGUF_KEY_INTEGER, dense_layers},
    {"attention.head_count", "num_attention_heads", QN_GGUF_KEY_INTEGER, heads},
    {"attention.head_count_kv", "num_key_value_heads", QN_GGUF_KEY_PER_LAYER, kv_heads},
    {"attention.key_length", "head_dim", QN_GGUF_KEY_INTEGER, head_size},
    {"attention.value_length", "v_head_dim", QN_GGUF_KEY_INTEGER, value_size},
    {"attention.key_length_swa", "swa_head_dim", QN_GGUF_KEY_INTEGER, sliding_head_size},
    {"attention.value_length_swa", "swa_v_head_dim", QN_GGUF_KEY_INTEGER, sliding_head_size},
    {"attention.shared_kv_layers", "num_kv_shared_layers", QN_GGUF_KEY_INTEGER, shared_kv_layers},
    {"altup.num_inputs", "altup_num_inputs", QN_GGUF_KEY_INTEGER, NULL},
    {"altup.active_idx", "altup_active_idx", QN_GGUF_KEY_INTEGER, NULL},
    {"activation_sparsity_scale", "activation_sparsity_scale", QN_GGUF_KEY_NUMBERS, NULL},
    {"embedding_length_per_layer_input", "hidden_size_per_layer_input", QN_GGUF_KEY_INTEGER, layer_input},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps", QN_GGUF_KEY_NUMBER, norm_eps},
    {"attention.layer_norm_epsilon", "rms_norm_eps", QN_GGUF_KEY_NUMBER, layer_norm_eps},
    {"attention.q_lora_rank", "q_lora_rank", QN_GGUF_KEY_INTEGER, q_rank},
    {"attention.kv_lora_rank", "kv_lora_rank", QN_GGUF_KEY_INTEGER, kv_rank},
    {"attention.key_length_mla", "mla_head_dim", QN_GGUF_KEY_INTEGER, latent_head_size},
    {"attention.value_length_mla", "mla_v_head_dim", QN_GGUF_KEY_INTEGER, latent_value_size},
    {"attention.temperature_scale", "rope_scaling.llama_4_scaling_beta", QN_GGUF_KEY_NUMBER, query_scale},
    {"attention.sliding_window", "sliding_window", QN_GGUF_KEY_INTEGER, window},
    {"attention.sliding_window_pattern", "sliding_window_pattern", QN_GGUF_KEY_PATTERN, slides},
    {"attention.causal", "causal_attention", QN_GGUF_KEY_BOOL, NULL},
    {"attention.recurrent_layers", "recurrent_layers", QN_GGUF_KEY_FLAGS, recurs},
    {"full_attention_interval", "full_attention_interval", QN_GGUF_KEY_INTEGER, NULL},
    {"shortconv.l_cache", "conv_L_cache", QN_GGUF_KEY_INTEGER, short_conv},
    {"kda.head_dim", "linear_head_dim", QN_GGUF_KEY_INTEGER, kda_head},
    /* One key for state spaces and for delta nets. */
    {"ssm.conv_kernel", "mamba_d_conv", QN_GGUF_KEY_INTEGER, ssm_kernel},
    {"ssm.conv_kernel", "linear_conv_kernel_dim", QN_GGUF_KEY_INTEGER, NULL},
    {"ssm.state_size", "mamba_d_state", QN_GGUF_KEY_INTEGER, ssm_state},
    {"ssm.state_size", "linear_key_head_dim", QN_GGUF_KEY_INTEGER, NULL},
    {"ssm.group_count", "mamba_n_groups", QN_GGUF_KEY_INTEGER, ssm_groups},
    {"ssm.group_count", "linear_num_key_heads", QN_GGUF_KEY_INTEGER, NULL},
    {"ssm.time_step_rank", "mamba_n_heads", QN_GGUF_KEY_INTEGER, ssm_heads},
    {"ssm.time_step_rank", "linear_num_value_heads", QN_GGUF_KEY_INTEGER, NULL},
    {"ssm.inner_size", "mamba_d_ssm", QN_GGUF_KEY_INTEGER, ssm_inner},
    {"kda.gate_lower_bound", "linear_lower_bound", QN_GGUF_KEY_NUMBER, NULL},
    {"attention.indexer.head_count", "index_n_heads", QN_GGUF_KEY_INTEGER, NULL},
    {"attention.indexer.key_length", "index_head_dim", QN_GGUF_KEY_INTEGER, NULL},
    {"attention.indexer.top_k", "index_topk", QN_GGUF_KEY_INTEGER, NULL},
    {"attention.indexer.kpool", "index_kpool", QN_GGUF_KEY_INTEGER, NULL},
    {"attention.indexer.kpool_select_tail", "index_kpool_always_select_tail", QN_GGUF_KEY_BOOL, NULL},
    {"attention.indexer.types", "indexer_types", QN_GGUF_KEY_FLAGS, NULL},
    {"attention.compress_ratios", "compress_ratios", QN_GGUF_KEY_PER_LAYER, NULL},
    {"attention.layer_norm_epsilon", "index_norm_eps", QN_GGUF_KEY_NUMBER, NULL},
    {"hyper_connection.count", "hc_mult", QN_GGUF_KEY_INTEGER, NULL},
    {"hyper_connection.count", "hc_count", QN_GGUF_KEY_INTEGER, NULL},
    {"hyper_connection.low_rank", "hc_lowrank", QN_GGUF_KEY_INTEGER, NULL},
    {"hyper_connection.sinkhorn_iterations", "hc_sinkhorn_iters", QN_GGUF_KEY_INTEGER, NULL},
    {"hyper_connection.epsilon", "hc_eps", QN_GGUF_KEY_NUMBER, NULL},
    {"swiglu_clamp_exp", "swiglu_limit", QN_GGUF_KEY_EQUAL_NUMBERS, NULL},
    {"swiglu_clamp_shexp", "shared_swiglu_limit", QN_GGUF_KEY_EQUAL_NUMBERS, NULL},
    {"ple.layers", "ple_layers", QN_GGUF_KEY_INTEGERS, NULL},
    {"ple.ngram_size", "ngram_size", QN_GGUF_KEY_INTEGER, NULL},
    {"ple.heads_per_ngram", "heads_per_ngram", QN_GGUF_KEY_INTEGER, NULL},
    {"ple.conv_kernel", "ple_conv_kernel_size", QN_GGUF_KEY_INTEGER, NULL},
    {"ple.eos_token_id", "ple_eos_token_id", QN_GGUF_KEY_INTEGER, NULL},
    {"ple.layer_multipliers", "layer_multipliers", QN_GGUF_KEY_INTEGERS, NULL},
    {"ple.head_vocab_sizes", "ngram_heads_vocab_sizes", QN_GGUF_KEY_INTEGERS, NULL},
    {"ple.head_offsets", "ngram_heads_offsets", QN_GGUF_KEY_INTEGERS, NULL},
    {"tokenizer.ggml.token_type_count", "type_vocab_size", QN_GGUF_KEY_INTEGER, NULL},
    {"classifier.pooling_type", "classifier_pooling_type", QN_GGUF_KEY_INTEGER, NULL},
    {"hidden_activation", "hidden_activation", QN_GGUF_KEY_STRING, NULL},
    {"attention.scale", "attention_scale", QN_GGUF_KEY_NUMBER, attention_scale},
    {"embedding_scale", "embedding_multiplier", QN_GGUF_KEY_NUMBER, embedding_scale},
    {"residual_scale", "residual_multiplier", QN_GGUF_KEY_NUMBER, residual_scale},
    {"logit_scale", "logits_scaling", QN_GGUF_KEY_NUMBER, logit_scale},
    {"attn_logit_softcapping", "attn_logit_softcapping", QN_GGUF_KEY_NUMBER, attention_cap},
    {"final_logit_softcapping", "final_logit_softcapping", QN_GGUF_KEY_NUMBER, final_cap},
    {"rope.dimension_count", "rotary_dim", QN_GGUF_KEY_INTEGER, rotary_dim},
    {"rope.dimension_count_swa", "swa_rotary_dim", QN_GGUF_KEY_INTEGER, sliding_rotary_dim},
    {"rope.freq_base", "rope_theta", QN_GGUF_KEY_NUMBER, theta},
    {"rope.freq_base_swa", "rope_local_base_freq", QN_GGUF_KEY_NUMBER, sliding_theta},
    {"rope.dimension_sections", "rope_scaling.mrope_section", QN_GGUF_KEY_SECTIONS, NULL},
    {"rope.scaling.finetuned", "rope_finetuned", QN_GGUF_KEY_BOOL, has_rope},
    {"rope.scaling.type", "rope_scaling.rope_type", QN_GGUF_KEY_STRING, NULL},
    {"rope.scaling.factor", "rope_scaling.factor", QN_GGUF_KEY_NUMBER, rope_factor},
    {"rope.scaling.original_context_length", "rope_scaling.original_max_position_embeddings",
     QN_GGUF_KEY_INTEGER, original_positions},
    {"rope.scaling.attn_factor", "rope_scaling.yarn_attn_factor", QN_GGUF_KEY_NUMBER, rope_attention},
    {"rope.scaling.yarn_log_multiplier", "rope_scaling.yarn_log_multiplier", QN_GGUF_KEY_NUMBER,
     log_multiplier},
    {"rope.scaling.yarn_ext_factor", "rope_scaling.yarn_ext_factor", QN_GGUF_KEY_NUMBER, ext_factor},
    {"rope.scaling.yarn_beta_fast", "rope_scaling.beta_fast", QN_GGUF_KEY_NUMBER, beta_fast},
    {"rope.scaling.yarn_beta_slow", "rope_scaling.beta_slow", QN_GGUF_KEY_NUMBER, beta_slow},
};
const int qn_gguf_key_count = sizeof qn_gguf_keys / sizeof qn_gguf_keys[0];

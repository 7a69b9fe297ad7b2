#include <math.h>
#include <string.h>

#include "convert/export_gguf.h"
#include "model/config/families.h"

/* Numbers of f32 that went through a division and back. */
static int near(double a, double b)
{
    return fabs(a - b) <= 2e-6 * fmax(fabs(a), fabs(b)) + 1e-24;
}

static const char *sizes_differ(const qn_model_config *a, const qn_model_config *b)
{
    if (a->vocab_size != b->vocab_size) return "vocab_size";
    if (a->hidden_size != b->hidden_size) return "hidden_size";
    if (a->num_hidden_layers != b->num_hidden_layers) return "num_hidden_layers";
    if (a->num_attention_heads != b->num_attention_heads) return "num_attention_heads";
    if (a->max_position_embeddings != b->max_position_embeddings) return "max_position_embeddings";
    if (a->hidden_size_per_layer_input != b->hidden_size_per_layer_input)
        return "hidden_size_per_layer_input";
    if (a->vocab_size_per_layer_input != b->vocab_size_per_layer_input) return "vocab_size_per_layer_input";
    return NULL;
}

static const char *layer_differs(const qn_layer_config *a, const qn_layer_config *b)
{
    if (a->mixer != b->mixer || a->kind != b->kind) return "layer_types";
    if (a->window != b->window) return "sliding_window";
    if (a->chunk != b->chunk) return "attention_chunk_size";
    if ((a->rope == QN_ROPE_NONE) != (b->rope == QN_ROPE_NONE)) return "no_rope_layers";
    if (a->kv_layer != b->kv_layer) return "num_kv_shared_layers";
    if (a->num_key_value_heads != b->num_key_value_heads) return "num_key_value_heads";
    if (a->head_dim != b->head_dim || a->v_head_dim != b->v_head_dim) return "head_dim";
    if (a->value_is_key != b->value_is_key) return "attention_k_eq_v";
    if (a->intermediate_size != b->intermediate_size) return "intermediate_size";
    if (memcmp(&a->xielu, &b->xielu, sizeof a->xielu) != 0) return "hidden_act";
    if (a->beside_state_space != b->beside_state_space) return "layer_types";
    if (a->has_mlp != b->has_mlp || a->has_experts != b->has_experts) return "mlp_only_layers";
    return NULL;
}

static const char *rope_differs(const qn_rope_config *a, const qn_rope_config *b)
{
    if (a->rotary_dim != b->rotary_dim) return "rope_parameters (rotary_dim)";
    if (!near((double)a->attention_factor, (double)b->attention_factor) ||
        !near((double)a->score_mscale, (double)b->score_mscale))
        return "rope_parameters (attention_factor)";
    if (a->short_positions != b->short_positions) return "rope_parameters (original_max_position_embeddings)";
    if (!a->long_inv_freq != !b->long_inv_freq) return "rope_parameters (rope_type)";
    for (int64_t i = 0; i < a->rotary_dim / 2; i++) {
        if (!near((double)a->inv_freq[i], (double)b->inv_freq[i])) return "rope_parameters";
        if (a->long_inv_freq && !near((double)a->long_inv_freq[i], (double)b->long_inv_freq[i]))
            return "rope_parameters (long_factor)";
    }
    return NULL;
}

static const char *numbers_differ(const qn_model_config *a, const qn_model_config *b)
{
    if (a->rms_norm_eps != b->rms_norm_eps || a->post_norm_eps != b->post_norm_eps) return "rms_norm_eps";
    if (a->plain_embed_norm != b->plain_embed_norm || a->attn_channel_gate != b->attn_channel_gate)
        return "model_type";
    if (a->norms != b->norms || a->qk_norm != b->qk_norm || a->value_norm != b->value_norm)
        return "model_type";
    if (a->qk_norm_after_rope != b->qk_norm_after_rope || a->qk_norm_with_rope != b->qk_norm_with_rope)
        return "model_type";
    if (!near((double)a->query_scale_beta, (double)b->query_scale_beta) ||
        (a->query_scale_beta != 0 && a->query_scale_positions != b->query_scale_positions))
        return "llama_4_scaling_beta";
    if (a->query_scale_beta != 0 &&
        (a->query_scale_first != b->query_scale_first || a->query_scale_no_rope != b->query_scale_no_rope))
        return "attn_temperature_tuning";
    if (a->attn_output_gate != b->attn_output_gate || a->layer_scale != b->layer_scale) return "model_type";
    if (a->attention_sinks != b->attention_sinks) return "model_type";
    if (!near((double)a->residual_scale, (double)b->residual_scale)) return "residual_multiplier";
    if (!near((double)a->logits_scale, (double)b->logits_scale)) return "logits_scaling";
    if (!near((double)a->embedding_scale, (double)b->embedding_scale)) return "embedding_multiplier";
    if (!near((double)a->attention_scale, (double)b->attention_scale)) return "the scale of attention";
    if (!near((double)a->attention_in_scale, (double)b->attention_in_scale) ||
        !near((double)a->key_scale, (double)b->key_scale) ||
        !near((double)a->attention_out_scale, (double)b->attention_out_scale))
        return "attention_in_multiplier";
    if (!near((double)a->gate_scale, (double)b->gate_scale) ||
        !near((double)a->mlp_out_scale, (double)b->mlp_out_scale))
        return "mlp_multipliers";
    if (a->attn_logit_softcapping != b->attn_logit_softcapping) return "attn_logit_softcapping";
    if (a->final_logit_softcapping != b->final_logit_softcapping) return "final_logit_softcapping";
    if (a->hidden_act != b->hidden_act) return "hidden_act";
    if (a->encoder.both_ways != b->encoder.both_ways) return "use_bidirectional_attention";
    if (a->layer_norm != b->layer_norm || a->norm_bias != b->norm_bias || a->plain_mlp != b->plain_mlp ||
        a->parallel_blocks != b->parallel_blocks)
        return "model_type";
    return NULL;
}

static const char *latents_differ(const qn_model_config *a, const qn_model_config *b)
{
    const qn_latent_config *l = &a->latent, *m = &b->latent;
    if (l->q_lora_rank != m->q_lora_rank) return "q_lora_rank";
    if (l->kv_lora_rank != m->kv_lora_rank) return "kv_lora_rank";
    if (l->qk_nope_head_dim != m->qk_nope_head_dim || l->qk_rope_head_dim != m->qk_rope_head_dim)
        return "qk_nope_head_dim";
    if (l->v_head_dim != m->v_head_dim) return "v_head_dim";
    if (l->norm_eps != m->norm_eps) return "the epsilon of latents' norms";
    return l->kv_lora_rank && a->rope_interleaved != b->rope_interleaved ? "rope_interleave" : NULL;
}

static const char *mixers_differ(const qn_model_config *a, const qn_model_config *b)
{
    const qn_delta_config *d = &a->delta, *e = &b->delta;
    const qn_state_space_config *s = &a->state_space, *t = &b->state_space;
    if (a->short_conv.conv_L_cache != b->short_conv.conv_L_cache) return "conv_L_cache";
    if (a->short_conv.conv_bias != b->short_conv.conv_bias) return "conv_bias";
    if (d->linear_num_key_heads != e->linear_num_key_heads ||
        d->linear_num_value_heads != e->linear_num_value_heads)
        return "linear_num_value_heads";
    if (d->linear_key_head_dim != e->linear_key_head_dim ||
        d->linear_value_head_dim != e->linear_value_head_dim)
        return "linear_value_head_dim";
    if (d->linear_conv_kernel_dim != e->linear_conv_kernel_dim) return "linear_conv_kernel_dim";
    if (d->gate_sigmoid != e->gate_sigmoid || d->lower_bound != e->lower_bound) return "output_gate_type";
    if (s->mamba_n_heads != t->mamba_n_heads || s->mamba_d_head != t->mamba_d_head ||
        s->mamba_d_state != t->mamba_d_state || s->mamba_n_groups != t->mamba_n_groups ||
        s->mamba_d_conv != t->mamba_d_conv)
        return "mamba_n_heads";
    if (s->conv_bias != t->conv_bias) return "mamba_conv_bias";
    if (s->in_bias != t->in_bias || s->out_bias != t->out_bias) return "mamba_proj_bias";
    if (s->norm != t->norm) return "mamba_rms_norm";
    if ((s->step_min != t->step_min && !a->family->step_floor) || s->step_max != t->step_max)
        return "time_step_limit";
    if (s->in_scale != t->in_scale || s->out_scale != t->out_scale ||
        memcmp(s->part_scale, t->part_scale, sizeof s->part_scale) != 0)
        return "ssm_multipliers";
    return NULL;
}

static const char *experts_differ(const qn_experts_config *a, const qn_experts_config *b)
{
    if (a->num_experts != b->num_experts) return "num_experts";
    if (!a->num_experts) return NULL;
    if (a->num_experts_per_tok != b->num_experts_per_tok) return "num_experts_per_tok";
    if (a->moe_intermediate_size != b->moe_intermediate_size) return "moe_intermediate_size";
    if (a->score != b->score || a->correction_bias != b->correction_bias) return "scoring_func";
    if (a->norm_topk_prob != b->norm_topk_prob) return "norm_topk_prob";
    if (!near((double)a->routed_scaling_factor, (double)b->routed_scaling_factor))
        return "routed_scaling_factor";
    if (a->n_group != b->n_group || a->topk_group != b->topk_group ||
        (a->n_group > 1 && a->group_scores != b->group_scores))
        return "n_group";
    if (a->scales_input != b->scales_input || a->bias != b->bias || a->router_norm != b->router_norm ||
        a->expert_scale != b->expert_scale)
        return "model_type";
    if (!near((double)a->swiglu_alpha, (double)b->swiglu_alpha) ||
        !near((double)a->swiglu_limit, (double)b->swiglu_limit))
        return "swiglu_limit";
    if (a->shared_intermediate_size != b->shared_intermediate_size || a->shared_gate != b->shared_gate)
        return "shared_expert_intermediate_size";
    return NULL;
}

const char *qn_export_difference(const qn_model_config *a, const qn_model_config *b)
{
    const char *what = sizes_differ(a, b);
    if (!what) what = numbers_differ(a, b);
    if (!what) what = latents_differ(a, b);
    if (!what) what = mixers_differ(a, b);
    if (!what) what = experts_differ(&a->experts, &b->experts);
    for (int64_t i = 0; i < a->num_hidden_layers && !what; i++) {
        const qn_layer_config *x = &a->layers[i], *y = &b->layers[i];
        what = layer_differs(x, y);
        if (!what && x->rope != QN_ROPE_NONE) what = rope_differs(&a->rope[x->rope], &b->rope[y->rope]);
    }
    return what;
}

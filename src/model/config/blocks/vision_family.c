#include "model/config/blocks/vision_family.h"

#include <string.h>

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})

/* ---- Qwen's -------------------------------------------------------------------------------------------- */

static const qn_vision_name qwen2_vl_names[] = {{QN_VISION_PATCH, "visual.patch_embed.proj.weight"},
                                                {QN_VISION_MERGER_NORM, "visual.merger.ln_q.weight"},
                                                {QN_VISION_MERGER_NORM_BIAS, "visual.merger.ln_q.bias"},
                                                {QN_VISION_MERGER_UP, "visual.merger.mlp.0.weight"},
                                                {QN_VISION_MERGER_UP_BIAS, "visual.merger.mlp.0.bias"},
                                                {QN_VISION_MERGER_DOWN, "visual.merger.mlp.2.weight"},
                                                {QN_VISION_MERGER_DOWN_BIAS, "visual.merger.mlp.2.bias"},
                                                {QN_VISION_NORM1, "visual.blocks.#.norm1.weight"},
                                                {QN_VISION_NORM1_BIAS, "visual.blocks.#.norm1.bias"},
                                                {QN_VISION_QKV, "visual.blocks.#.attn.qkv.weight"},
                                                {QN_VISION_QKV_BIAS, "visual.blocks.#.attn.qkv.bias"},
                                                {QN_VISION_PROJ, "visual.blocks.#.attn.proj.weight"},
                                                {QN_VISION_PROJ_BIAS, "visual.blocks.#.attn.proj.bias"},
                                                {QN_VISION_NORM2, "visual.blocks.#.norm2.weight"},
                                                {QN_VISION_NORM2_BIAS, "visual.blocks.#.norm2.bias"},
                                                {QN_VISION_FC1, "visual.blocks.#.mlp.fc1.weight"},
                                                {QN_VISION_FC1_BIAS, "visual.blocks.#.mlp.fc1.bias"},
                                                {QN_VISION_FC2, "visual.blocks.#.mlp.fc2.weight"},
                                                {QN_VISION_FC2_BIAS, "visual.blocks.#.mlp.fc2.bias"},
                                                {QN_VISION_ROLE_COUNT, NULL}};
static const qn_vision_name qwen2_5_vl_names[] = {{QN_VISION_PATCH, "visual.patch_embed.proj.weight"},
                                                  {QN_VISION_MERGER_NORM, "visual.merger.ln_q.weight"},
                                                  {QN_VISION_MERGER_UP, "visual.merger.mlp.0.weight"},
                                                  {QN_VISION_MERGER_UP_BIAS, "visual.merger.mlp.0.bias"},
                                                  {QN_VISION_MERGER_DOWN, "visual.merger.mlp.2.weight"},
                                                  {QN_VISION_MERGER_DOWN_BIAS, "visual.merger.mlp.2.bias"},
                                                  {QN_VISION_NORM1, "visual.blocks.#.norm1.weight"},
                                                  {QN_VISION_QKV, "visual.blocks.#.attn.qkv.weight"},
                                                  {QN_VISION_QKV_BIAS, "visual.blocks.#.attn.qkv.bias"},
                                                  {QN_VISION_PROJ, "visual.blocks.#.attn.proj.weight"},
                                                  {QN_VISION_PROJ_BIAS, "visual.blocks.#.attn.proj.bias"},
                                                  {QN_VISION_NORM2, "visual.blocks.#.norm2.weight"},
                                                  {QN_VISION_GATE, "visual.blocks.#.mlp.gate_proj.weight"},
                                                  {QN_VISION_GATE_BIAS, "visual.blocks.#.mlp.gate_proj.bias"},
                                                  {QN_VISION_FC1, "visual.blocks.#.mlp.up_proj.weight"},
                                                  {QN_VISION_FC1_BIAS, "visual.blocks.#.mlp.up_proj.bias"},
                                                  {QN_VISION_FC2, "visual.blocks.#.mlp.down_proj.weight"},
                                                  {QN_VISION_FC2_BIAS, "visual.blocks.#.mlp.down_proj.bias"},
                                                  {QN_VISION_ROLE_COUNT, NULL}};
static const qn_vision_name qwen3_vl_names[] = {
    {QN_VISION_PATCH, "visual.patch_embed.proj.weight"},
    {QN_VISION_PATCH_BIAS, "visual.patch_embed.proj.bias"},
    {QN_VISION_POSITIONS, "visual.pos_embed.weight"},
    {QN_VISION_MERGER_NORM, "visual.merger.norm.weight"},
    {QN_VISION_MERGER_NORM_BIAS, "visual.merger.norm.bias"},
    {QN_VISION_MERGER_UP, "visual.merger.linear_fc1.weight"},
    {QN_VISION_MERGER_UP_BIAS, "visual.merger.linear_fc1.bias"},
    {QN_VISION_MERGER_DOWN, "visual.merger.linear_fc2.weight"},
    {QN_VISION_MERGER_DOWN_BIAS, "visual.merger.linear_fc2.bias"},
    {QN_VISION_NORM1, "visual.blocks.#.norm1.weight"},
    {QN_VISION_NORM1_BIAS, "visual.blocks.#.norm1.bias"},
    {QN_VISION_QKV, "visual.blocks.#.attn.qkv.weight"},
    {QN_VISION_QKV_BIAS, "visual.blocks.#.attn.qkv.bias"},
    {QN_VISION_PROJ, "visual.blocks.#.attn.proj.weight"},
    {QN_VISION_PROJ_BIAS, "visual.blocks.#.attn.proj.bias"},
    {QN_VISION_NORM2, "visual.blocks.#.norm2.weight"},
    {QN_VISION_NORM2_BIAS, "visual.blocks.#.norm2.bias"},
    {QN_VISION_FC1, "visual.blocks.#.mlp.linear_fc1.weight"},
    {QN_VISION_FC1_BIAS, "visual.blocks.#.mlp.linear_fc1.bias"},
    {QN_VISION_FC2, "visual.blocks.#.mlp.linear_fc2.weight"},
    {QN_VISION_FC2_BIAS, "visual.blocks.#.mlp.linear_fc2.bias"},
    {QN_VISION_DEEP_NORM, "visual.deepstack_merger_list.#.norm.weight"},
    {QN_VISION_DEEP_NORM_BIAS, "visual.deepstack_merger_list.#.norm.bias"},
    {QN_VISION_DEEP_UP, "visual.deepstack_merger_list.#.linear_fc1.weight"},
    {QN_VISION_DEEP_UP_BIAS, "visual.deepstack_merger_list.#.linear_fc1.bias"},
    {QN_VISION_DEEP_DOWN, "visual.deepstack_merger_list.#.linear_fc2.weight"},
    {QN_VISION_DEEP_DOWN_BIAS, "visual.deepstack_merger_list.#.linear_fc2.bias"},
    {QN_VISION_ROLE_COUNT, NULL}};

/* Defaults are those of transformers' configuration classes. */
static const qn_field_default qwen2_vl_defaults[] = {
    {"depth", 32, 0},      {"embed_dim", 1280, 0},       {"num_heads", 16, 0},          {"mlp_ratio", 4, 0},
    {"patch_size", 14, 0}, {"spatial_merge_size", 2, 0}, {"temporal_patch_size", 2, 0}, {NULL, 0, 0}};
static const qn_field_default qwen2_5_vl_defaults[] = {{"depth", 32, 0},
                                                       {"embed_dim", 3584, 0},
                                                       {"num_heads", 16, 0},
                                                       {"intermediate_size", 3420, 0},
                                                       {"patch_size", 14, 0},
                                                       {"spatial_merge_size", 2, 0},
                                                       {"temporal_patch_size", 2, 0},
                                                       {"window_size", 112, 0},
                                                       {NULL, 0, 0}};
static const qn_field_default qwen3_vl_defaults[] = {{"depth", 27, 0},
                                                     {"embed_dim", 1152, 0},
                                                     {"num_heads", 16, 0},
                                                     {"intermediate_size", 4304, 0},
                                                     {"patch_size", 16, 0},
                                                     {"spatial_merge_size", 2, 0},
                                                     {"temporal_patch_size", 2, 0},
                                                     {"num_position_embeddings", 2304, 0},
                                                     {NULL, 0, 0}};
static const qn_field_default qwen2_vl_root[] = {{"image_token_id", 151655, 0}, {NULL, 0, 0}};
static const qn_field_default qwen3_5_root[] = {{"image_token_id", 248056, 0}, {NULL, 0, 0}};

static const qn_field_spelling qwen2_vl_spelled[] = {{"out_hidden_size", "hidden_size"}, {NULL, NULL}};
static const qn_field_spelling qwen2_5_vl_spelled[] = {{"embed_dim", "hidden_size"}, {NULL, NULL}};

/* ---- SigLIP and its kin --------------------------------------------------------------------------------- */

/* Names of a SigLIP under a prefix. */
#define SIGLIP_NAMES(at)                                                      \
    {QN_VISION_PATCH, at "embeddings.patch_embedding.weight"},                \
        {QN_VISION_PATCH_BIAS, at "embeddings.patch_embedding.bias"},         \
        {QN_VISION_POSITIONS, at "embeddings.position_embedding.weight"},     \
        {QN_VISION_POST_NORM, at "post_layernorm.weight"},                    \
        {QN_VISION_POST_NORM_BIAS, at "post_layernorm.bias"},                 \
        {QN_VISION_NORM1, at "encoder.layers.#.layer_norm1.weight"},          \
        {QN_VISION_NORM1_BIAS, at "encoder.layers.#.layer_norm1.bias"},       \
        {QN_VISION_Q, at "encoder.layers.#.self_attn.q_proj.weight"},         \
        {QN_VISION_Q_BIAS, at "encoder.layers.#.self_attn.q_proj.bias"},      \
        {QN_VISION_K, at "encoder.layers.#.self_attn.k_proj.weight"},         \
        {QN_VISION_K_BIAS, at "encoder.layers.#.self_attn.k_proj.bias"},      \
        {QN_VISION_V, at "encoder.layers.#.self_attn.v_proj.weight"},         \
        {QN_VISION_V_BIAS, at "encoder.layers.#.self_attn.v_proj.bias"},      \
        {QN_VISION_PROJ, at "encoder.layers.#.self_attn.out_proj.weight"},    \
        {QN_VISION_PROJ_BIAS, at "encoder.layers.#.self_attn.out_proj.bias"}, \
        {QN_VISION_NORM2, at "encoder.layers.#.layer_norm2.weight"},          \
        {QN_VISION_NORM2_BIAS, at "encoder.layers.#.layer_norm2.bias"},       \
        {QN_VISION_FC1, at "encoder.layers.#.mlp.fc1.weight"},                \
        {QN_VISION_FC1_BIAS, at "encoder.layers.#.mlp.fc1.bias"},             \
        {QN_VISION_FC2, at "encoder.layers.#.mlp.fc2.weight"},                \
    {                                                                         \
        QN_VISION_FC2_BIAS, at "encoder.layers.#.mlp.fc2.bias"                \
    }

static const qn_vision_name gemma3_names[] = {
    SIGLIP_NAMES("vision_tower.vision_model."),
    {QN_VISION_MERGER_NORM, "multi_modal_projector.mm_soft_emb_norm.weight"},
    {QN_VISION_TURNED_PROJECTION, "multi_modal_projector.mm_input_projection_weight"},
    {QN_VISION_ROLE_COUNT, NULL}};
static const qn_vision_name smolvlm_names[] = {
    SIGLIP_NAMES("vision_model."),
    {QN_VISION_MERGER_DOWN, "connector.modality_projection.proj.weight"},
    {QN_VISION_ROLE_COUNT, NULL}};
static const qn_vision_name lfm2_vl_names[] = {
    SIGLIP_NAMES("vision_tower.vision_model."),
    {QN_VISION_MERGER_NORM, "multi_modal_projector.layer_norm.weight"},
    {QN_VISION_MERGER_NORM_BIAS, "multi_modal_projector.layer_norm.bias"},
    {QN_VISION_MERGER_UP, "multi_modal_projector.linear_1.weight"},
    {QN_VISION_MERGER_UP_BIAS, "multi_modal_projector.linear_1.bias"},
    {QN_VISION_MERGER_DOWN, "multi_modal_projector.linear_2.weight"},
    {QN_VISION_MERGER_DOWN_BIAS, "multi_modal_projector.linear_2.bias"},
    {QN_VISION_ROLE_COUNT, NULL}};

static const qn_field_default siglip_defaults[] = {
    {"depth", 12, 0},       {"embed_dim", 768, 0}, {"num_heads", 12, 0},  {"intermediate_size", 3072, 0},
    {"image_size", 224, 0}, {"patch_size", 16, 0}, {"norm_eps", 1e-6, 0}, {NULL, 0, 0}};
static const qn_field_default smolvlm_defaults[] = {
    {"depth", 12, 0},       {"embed_dim", 1152, 0}, {"num_heads", 16, 0},  {"intermediate_size", 3072, 0},
    {"image_size", 224, 0}, {"patch_size", 32, 0},  {"norm_eps", 1e-6, 0}, {NULL, 0, 0}};
static const qn_field_default siglip2_defaults[] = {
    {"depth", 12, 0},        {"embed_dim", 768, 0}, {"num_heads", 12, 0},  {"intermediate_size", 3072, 0},
    {"num_patches", 256, 0}, {"patch_size", 16, 0}, {"norm_eps", 1e-6, 0}, {NULL, 0, 0}};
static const qn_field_default gemma3_root[] = {
    {"image_token_id", 262144, 0}, {"mm_tokens_per_image", 256, 0}, {NULL, 0, 0}};
static const qn_field_default smolvlm_root[] = {
    {"image_token_id", 128257, 0}, {"scale_factor", 2, 0}, {NULL, 0, 0}};
static const qn_field_default lfm2_vl_root[] = {
    {"image_token_id", 396, 0}, {"downsample_factor", 2, 0},       {"projector_hidden_size", 2560, 0},
    {"projector_bias", 1, 0},   {"projector_use_layernorm", 1, 0}, {NULL, 0, 0}};
static const qn_field_spelling siglip_spelled[] = {{"depth", "num_hidden_layers"},
                                                   {"embed_dim", "hidden_size"},
                                                   {"num_heads", "num_attention_heads"},
                                                   {"norm_eps", "layer_norm_eps"},
                                                   {NULL, NULL}};
static const qn_field_spelling index_spelled[] = {{"image_token_id", "image_token_index"}, {NULL, NULL}};

/* ---- InternVL, Pixtral, Llama 4 -------------------------------------------------------------------------- */

static const qn_vision_name internvl_names[] = {
    {QN_VISION_PATCH, "vision_tower.embeddings.patch_embeddings.projection.weight"},
    {QN_VISION_PATCH_BIAS, "vision_tower.embeddings.patch_embeddings.projection.bias"},
    {QN_VISION_CLASS, "vision_tower.embeddings.cls_token"},
    {QN_VISION_POSITIONS, "vision_tower.embeddings.position_embeddings"},
    {QN_VISION_POST_NORM, "vision_tower.layernorm.weight"},
    {QN_VISION_POST_NORM_BIAS, "vision_tower.layernorm.bias"},
    {QN_VISION_NORM1, "vision_tower.encoder.layer.#.layernorm_before.weight"},
    {QN_VISION_NORM1_BIAS, "vision_tower.encoder.layer.#.layernorm_before.bias"},
    {QN_VISION_Q, "vision_tower.encoder.layer.#.attention.q_proj.weight"},
    {QN_VISION_Q_BIAS, "vision_tower.encoder.layer.#.attention.q_proj.bias"},
    {QN_VISION_K, "vision_tower.encoder.layer.#.attention.k_proj.weight"},
    {QN_VISION_K_BIAS, "vision_tower.encoder.layer.#.attention.k_proj.bias"},
    {QN_VISION_V, "vision_tower.encoder.layer.#.attention.v_proj.weight"},
    {QN_VISION_V_BIAS, "vision_tower.encoder.layer.#.attention.v_proj.bias"},
    {QN_VISION_Q_NORM, "vision_tower.encoder.layer.#.attention.q_norm.weight"},
    {QN_VISION_K_NORM, "vision_tower.encoder.layer.#.attention.k_norm.weight"},
    {QN_VISION_PROJ, "vision_tower.encoder.layer.#.attention.projection_layer.weight"},
    {QN_VISION_PROJ_BIAS, "vision_tower.encoder.layer.#.attention.projection_layer.bias"},
    {QN_VISION_SCALE1, "vision_tower.encoder.layer.#.lambda_1"},
    {QN_VISION_NORM2, "vision_tower.encoder.layer.#.layernorm_after.weight"},
    {QN_VISION_NORM2_BIAS, "vision_tower.encoder.layer.#.layernorm_after.bias"},
    {QN_VISION_FC1, "vision_tower.encoder.layer.#.mlp.fc1.weight"},
    {QN_VISION_FC1_BIAS, "vision_tower.encoder.layer.#.mlp.fc1.bias"},
    {QN_VISION_FC2, "vision_tower.encoder.layer.#.mlp.fc2.weight"},
    {QN_VISION_FC2_BIAS, "vision_tower.encoder.layer.#.mlp.fc2.bias"},
    {QN_VISION_SCALE2, "vision_tower.encoder.layer.#.lambda_2"},
    {QN_VISION_MERGER_NORM, "multi_modal_projector.layer_norm.weight"},
    {QN_VISION_MERGER_NORM_BIAS, "multi_modal_projector.layer_norm.bias"},
    {QN_VISION_MERGER_UP, "multi_modal_projector.linear_1.weight"},
    {QN_VISION_MERGER_UP_BIAS, "multi_modal_projector.linear_1.bias"},
    {QN_VISION_MERGER_DOWN, "multi_modal_projector.linear_2.weight"},
    {QN_VISION_MERGER_DOWN_BIAS, "multi_modal_projector.linear_2.bias"},
    {QN_VISION_ROLE_COUNT, NULL}};
static const qn_vision_name mistral3_names[] = {
    {QN_VISION_PATCH, "vision_tower.patch_conv.weight"},
    {QN_VISION_EMBED_NORM, "vision_tower.ln_pre.weight"},
    {QN_VISION_NORM1, "vision_tower.transformer.layers.#.attention_norm.weight"},
    {QN_VISION_Q, "vision_tower.transformer.layers.#.attention.q_proj.weight"},
    {QN_VISION_K, "vision_tower.transformer.layers.#.attention.k_proj.weight"},
    {QN_VISION_V, "vision_tower.transformer.layers.#.attention.v_proj.weight"},
    {QN_VISION_PROJ, "vision_tower.transformer.layers.#.attention.o_proj.weight"},
    {QN_VISION_NORM2, "vision_tower.transformer.layers.#.ffn_norm.weight"},
    {QN_VISION_GATE, "vision_tower.transformer.layers.#.feed_forward.gate_proj.weight"},
    {QN_VISION_FC1, "vision_tower.transformer.layers.#.feed_forward.up_proj.weight"},
    {QN_VISION_FC2, "vision_tower.transformer.layers.#.feed_forward.down_proj.weight"},
    {QN_VISION_MERGER_NORM, "multi_modal_projector.norm.weight"},
    {QN_VISION_MERGER, "multi_modal_projector.patch_merger.merging_layer.weight"},
    {QN_VISION_MERGER_UP, "multi_modal_projector.linear_1.weight"},
    {QN_VISION_MERGER_UP_BIAS, "multi_modal_projector.linear_1.bias"},
    {QN_VISION_MERGER_DOWN, "multi_modal_projector.linear_2.weight"},
    {QN_VISION_MERGER_DOWN_BIAS, "multi_modal_projector.linear_2.bias"},
    {QN_VISION_ROLE_COUNT, NULL}};
static const qn_vision_name llama4_names[] = {
    {QN_VISION_PATCH, "vision_model.patch_embedding.linear.weight"},
    {QN_VISION_CLASS, "vision_model.class_embedding"},
    {QN_VISION_POSITIONS, "vision_model.positional_embedding_vlm"},
    {QN_VISION_PRE_NORM, "vision_model.layernorm_pre.weight"},
    {QN_VISION_PRE_NORM_BIAS, "vision_model.layernorm_pre.bias"},
    {QN_VISION_POST_NORM, "vision_model.layernorm_post.weight"},
    {QN_VISION_POST_NORM_BIAS, "vision_model.layernorm_post.bias"},
    {QN_VISION_NORM1, "vision_model.model.layers.#.input_layernorm.weight"},
    {QN_VISION_NORM1_BIAS, "vision_model.model.layers.#.input_layernorm.bias"},
    {QN_VISION_Q, "vision_model.model.layers.#.self_attn.q_proj.weight"},
    {QN_VISION_Q_BIAS, "vision_model.model.layers.#.self_attn.q_proj.bias"},
    {QN_VISION_K, "vision_model.model.layers.#.self_attn.k_proj.weight"},
    {QN_VISION_K_BIAS, "vision_model.model.layers.#.self_attn.k_proj.bias"},
    {QN_VISION_V, "vision_model.model.layers.#.self_attn.v_proj.weight"},
    {QN_VISION_V_BIAS, "vision_model.model.layers.#.self_attn.v_proj.bias"},
    {QN_VISION_PROJ, "vision_model.model.layers.#.self_attn.o_proj.weight"},
    {QN_VISION_PROJ_BIAS, "vision_model.model.layers.#.self_attn.o_proj.bias"},
    {QN_VISION_NORM2, "vision_model.model.layers.#.post_attention_layernorm.weight"},
    {QN_VISION_NORM2_BIAS, "vision_model.model.layers.#.post_attention_layernorm.bias"},
    {QN_VISION_FC1, "vision_model.model.layers.#.mlp.fc1.weight"},
    {QN_VISION_FC1_BIAS, "vision_model.model.layers.#.mlp.fc1.bias"},
    {QN_VISION_FC2, "vision_model.model.layers.#.mlp.fc2.weight"},
    {QN_VISION_FC2_BIAS, "vision_model.model.layers.#.mlp.fc2.bias"},
    {QN_VISION_MERGER_UP, "vision_model.vision_adapter.mlp.fc1.weight"},
    {QN_VISION_MERGER_DOWN, "vision_model.vision_adapter.mlp.fc2.weight"},
    {QN_VISION_PROJECTION, "multi_modal_projector.linear_1.weight"},
    {QN_VISION_ROLE_COUNT, NULL}};

static const qn_field_default internvl_defaults[] = {
    {"depth", 24, 0},       {"embed_dim", 1024, 0}, {"num_heads", 16, 0},  {"intermediate_size", 4096, 0},
    {"image_size", 448, 0}, {"patch_size", 14, 0},  {"norm_eps", 1e-6, 0}, {NULL, 0, 0}};
static const qn_field_default mistral3_defaults[] = {
    {"depth", 24, 0},        {"embed_dim", 1024, 0}, {"num_heads", 16, 0}, {"intermediate_size", 4096, 0},
    {"image_size", 1024, 0}, {"patch_size", 16, 0},  {NULL, 0, 0}};
static const qn_field_default llama4_defaults[] = {{"depth", 34, 0},
                                                   {"embed_dim", 768, 0},
                                                   {"num_heads", 16, 0},
                                                   {"intermediate_size", 5632, 0},
                                                   {"image_size", 448, 0},
                                                   {"patch_size", 14, 0},
                                                   {"pixel_shuffle_ratio", 0.5, 0},
                                                   {"projector_input_dim", 4096, 0},
                                                   {"projector_output_dim", 4096, 0},
                                                   {NULL, 0, 0}};
static const qn_field_spelling llama4_spelled[] = {{"depth", "num_hidden_layers"},
                                                   {"embed_dim", "hidden_size"},
                                                   {"num_heads", "num_attention_heads"},
                                                   {NULL, NULL}};
static const qn_field_default internvl_root[] = {
    {"image_token_id", 151667, 0}, {"downsample_ratio", 0.5, 0}, {NULL, 0, 0}};
static const qn_field_default mistral3_root[] = {
    {"image_token_id", 10, 0}, {"spatial_merge_size", 2, 0}, {NULL, 0, 0}};
static const qn_field_default llama4_root[] = {{"image_token_id", 200092, 0}, {NULL, 0, 0}};

/* ---- GLM 5.3 --------------------------------------------------------------------------------------------- */

static const qn_vision_name glm5_next_names[] = {
    {QN_VISION_PATCH, "visual.patch_embed.proj.weight"},
    {QN_VISION_PATCH_BIAS, "visual.patch_embed.proj.bias"},
    {QN_VISION_POST_NORM, "visual.post_layernorm.weight"},
    {QN_VISION_DOWNSAMPLE, "visual.downsample.weight"},
    {QN_VISION_DOWNSAMPLE_BIAS, "visual.downsample.bias"},
    {QN_VISION_MERGER_PROJ, "visual.merger.proj.weight"},
    {QN_VISION_MERGER_NORM, "visual.merger.post_projection_norm.weight"},
    {QN_VISION_MERGER_NORM_BIAS, "visual.merger.post_projection_norm.bias"},
    {QN_VISION_MERGER_GATE, "visual.merger.gate_proj.weight"},
    {QN_VISION_MERGER_UP, "visual.merger.up_proj.weight"},
    {QN_VISION_MERGER_DOWN, "visual.merger.down_proj.weight"},
    {QN_VISION_NORM1, "visual.blocks.#.norm1.weight"},
    {QN_VISION_QKV, "visual.blocks.#.attn.qkv.weight"},
    {QN_VISION_QKV_BIAS, "visual.blocks.#.attn.qkv.bias"},
    {QN_VISION_Q_NORM, "visual.blocks.#.attn.q_norm.weight"},
    {QN_VISION_K_NORM, "visual.blocks.#.attn.k_norm.weight"},
    {QN_VISION_PROJ, "visual.blocks.#.attn.proj.weight"},
    {QN_VISION_PROJ_BIAS, "visual.blocks.#.attn.proj.bias"},
    {QN_VISION_NORM2, "visual.blocks.#.norm2.weight"},
    {QN_VISION_GATE, "visual.blocks.#.mlp.gate_proj.weight"},
    {QN_VISION_GATE_BIAS, "visual.blocks.#.mlp.gate_proj.bias"},
    {QN_VISION_FC1, "visual.blocks.#.mlp.up_proj.weight"},
    {QN_VISION_FC1_BIAS, "visual.blocks.#.mlp.up_proj.bias"},
    {QN_VISION_FC2, "visual.blocks.#.mlp.down_proj.weight"},
    {QN_VISION_FC2_BIAS, "visual.blocks.#.mlp.down_proj.bias"},
    {QN_VISION_ROLE_COUNT, NULL}};
static const qn_field_default glm5_next_defaults[] = {{"depth", 24, 0},
                                                      {"embed_dim", 1024, 0},
                                                      {"num_heads", 16, 0},
                                                      {"intermediate_size", 4096, 0},
                                                      {"patch_size", 14, 0},
                                                      {"spatial_merge_size", 2, 0},
                                                      {"temporal_patch_size", 2, 0},
                                                      {"norm_eps", 1e-5, 0},
                                                      {"projection_intermediate_size", 10240, 0},
                                                      {NULL, 0, 0}};
static const qn_field_default glm5_next_root[] = {{"image_token_id", 154854, 0}, {NULL, 0, 0}};
static const qn_field_spelling glm5_next_spelled[] = {
    {"embed_dim", "hidden_size"}, {"norm_eps", "rms_norm_eps"}, {NULL, NULL}};

/* ---- Muse Glimmer ---------------------------------------------------------------------------------------- */

static const qn_vision_name muse_glimmer_names[] = {
    {QN_VISION_PATCH, "vision_tower.patch_embedder.patch_embedding.weight"},
    {QN_VISION_POSITIONS, "vision_tower.patch_embedder.position_embedding_table.weight"},
    {QN_VISION_PRE_NORM, "vision_tower.ln_pre.weight"},
    {QN_VISION_PRE_NORM_BIAS, "vision_tower.ln_pre.bias"},
    {QN_VISION_POST_NORM, "vision_tower.ln_post.weight"},
    {QN_VISION_POST_NORM_BIAS, "vision_tower.ln_post.bias"},
    {QN_VISION_NORM1, "vision_tower.layers.#.norm1.weight"},
    {QN_VISION_NORM1_BIAS, "vision_tower.layers.#.norm1.bias"},
    {QN_VISION_Q, "vision_tower.layers.#.attn.q_proj.weight"},
    {QN_VISION_Q_BIAS, "vision_tower.layers.#.attn.q_proj.bias"},
    {QN_VISION_K, "vision_tower.layers.#.attn.k_proj.weight"},
    {QN_VISION_K_BIAS, "vision_tower.layers.#.attn.k_proj.bias"},
    {QN_VISION_V, "vision_tower.layers.#.attn.v_proj.weight"},
    {QN_VISION_V_BIAS, "vision_tower.layers.#.attn.v_proj.bias"},
    {QN_VISION_PROJ, "vision_tower.layers.#.attn.proj.weight"},
    {QN_VISION_PROJ_BIAS, "vision_tower.layers.#.attn.proj.bias"},
    {QN_VISION_NORM2, "vision_tower.layers.#.norm2.weight"},
    {QN_VISION_NORM2_BIAS, "vision_tower.layers.#.norm2.bias"},
    {QN_VISION_FC1, "vision_tower.layers.#.mlp.fc1.weight"},
    {QN_VISION_FC1_BIAS, "vision_tower.layers.#.mlp.fc1.bias"},
    {QN_VISION_FC2, "vision_tower.layers.#.mlp.fc2.weight"},
    {QN_VISION_FC2_BIAS, "vision_tower.layers.#.mlp.fc2.bias"},
    {QN_VISION_MERGER_UP, "vision_adapter.fc1.weight"},
    {QN_VISION_MERGER_DOWN, "vision_adapter.fc2.weight"},
    {QN_VISION_PROJECTION, "vision_projection.weight"},
    {QN_VISION_ROLE_COUNT, NULL}};
static const qn_field_default muse_glimmer_defaults[] = {
    {"depth", 50, 0},      {"embed_dim", 1536, 0},
    {"num_heads", 16, 0},  {"intermediate_size", 8960, 0},
    {"patch_size", 14, 0}, {"temporal_patch_size", 2, 0},
    {"merge_size", 2, 0},  {"places_side", 32, 0},
    {"norm_eps", 1e-5, 0}, {NULL, 0, 0}};
static const qn_field_spelling muse_glimmer_spelled[] = {{"depth", "num_hidden_layers"},
                                                         {"embed_dim", "hidden_size"},
                                                         {"num_heads", "num_attention_heads"},
                                                         {"temporal_patch_size", "patch_temporal"},
                                                         {"places_side", "pos_emb_height"},
                                                         {"norm_eps", "layer_norm_eps"},
                                                         {NULL, NULL}};
static const qn_field_default muse_glimmer_root[] = {
    {"image_token_id", 200092, 0}, {"projector_hidden_size", 4096, 0}, {NULL, 0, 0}};

/* ---- Gemma 4 --------------------------------------------------------------------------------------------- */

static const qn_vision_name gemma4_names[] = {
    {QN_VISION_PATCH, "vision_tower.patch_embedder.input_proj.weight"},
    {QN_VISION_POSITIONS, "vision_tower.patch_embedder.position_embedding_table"},
    {QN_VISION_SHIFT, "vision_tower.std_bias"},
    {QN_VISION_SPREAD, "vision_tower.std_scale"},
    {QN_VISION_NORM1, "vision_tower.encoder.layers.#.input_layernorm.weight"},
    {QN_VISION_Q, "vision_tower.encoder.layers.#.self_attn.q_proj.linear.weight"},
    {QN_VISION_K, "vision_tower.encoder.layers.#.self_attn.k_proj.linear.weight"},
    {QN_VISION_V, "vision_tower.encoder.layers.#.self_attn.v_proj.linear.weight"},
    {QN_VISION_Q_NORM, "vision_tower.encoder.layers.#.self_attn.q_norm.weight"},
    {QN_VISION_K_NORM, "vision_tower.encoder.layers.#.self_attn.k_norm.weight"},
    {QN_VISION_PROJ, "vision_tower.encoder.layers.#.self_attn.o_proj.linear.weight"},
    {QN_VISION_POST_NORM1, "vision_tower.encoder.layers.#.post_attention_layernorm.weight"},
    {QN_VISION_NORM2, "vision_tower.encoder.layers.#.pre_feedforward_layernorm.weight"},
    {QN_VISION_GATE, "vision_tower.encoder.layers.#.mlp.gate_proj.linear.weight"},
    {QN_VISION_FC1, "vision_tower.encoder.layers.#.mlp.up_proj.linear.weight"},
    {QN_VISION_FC2, "vision_tower.encoder.layers.#.mlp.down_proj.linear.weight"},
    {QN_VISION_POST_NORM2, "vision_tower.encoder.layers.#.post_feedforward_layernorm.weight"},
    {QN_VISION_MERGER_DOWN, "embed_vision.embedding_projection.weight"},
    {QN_VISION_ROLE_COUNT, NULL}};
static const qn_vision_name gemma4_unified_names[] = {
    {QN_VISION_PATCH_NORM, "vision_embedder.patch_ln1.weight"},
    {QN_VISION_PATCH_NORM_BIAS, "vision_embedder.patch_ln1.bias"},
    {QN_VISION_PATCH, "vision_embedder.patch_dense.weight"},
    {QN_VISION_PATCH_BIAS, "vision_embedder.patch_dense.bias"},
    {QN_VISION_EMBED_NORM, "vision_embedder.patch_ln2.weight"},
    {QN_VISION_EMBED_NORM_BIAS, "vision_embedder.patch_ln2.bias"},
    {QN_VISION_POSITIONS, "vision_embedder.pos_embedding"},
    {QN_VISION_PRE_NORM, "vision_embedder.pos_norm.weight"},
    {QN_VISION_PRE_NORM_BIAS, "vision_embedder.pos_norm.bias"},
    {QN_VISION_MERGER_DOWN, "embed_vision.embedding_projection.weight"},
    {QN_VISION_ROLE_COUNT, NULL}};
static const qn_field_default gemma4_defaults[] = {{"depth", 16, 0},
                                                   {"embed_dim", 768, 0},
                                                   {"num_heads", 12, 0},
                                                   {"head_dim", 64, 0},
                                                   {"intermediate_size", 3072, 0},
                                                   {"patch_size", 16, 0},
                                                   {"pooling_kernel_size", 3, 0},
                                                   {"places_side", 10240, 0},
                                                   {"norm_eps", 1e-6, 0},
                                                   {NULL, 0, 0}};
static const qn_field_default gemma4_unified_defaults[] = {
    {"embed_dim", 3840, 0},   {"patch_size", 16, 0}, {"pooling_kernel_size", 3, 0},
    {"places_side", 1120, 0}, {"norm_eps", 1e-6, 0}, {NULL, 0, 0}};
static const qn_field_default gemma4_root[] = {{"image_token_id", 258880, 0}, {NULL, 0, 0}};
static const qn_field_spelling gemma4_spelled[] = {{"depth", "num_hidden_layers"},
                                                   {"embed_dim", "hidden_size"},
                                                   {"num_heads", "num_attention_heads"},
                                                   {"hidden_act", "hidden_activation"},
                                                   {"places_side", "position_embedding_size"},
                                                   {"norm_eps", "rms_norm_eps"},
                                                   {NULL, NULL}};
static const qn_field_spelling gemma4_unified_spelled[] = {{"embed_dim", "mm_embed_dim"},
                                                           {"places_side", "mm_posemb_size"},
                                                           {"norm_eps", "rms_norm_eps"},
                                                           {NULL, NULL}};

/* ---- the rows ------------------------------------------------------------------------------------------ */

static const qn_vision_family rows[] = {
    {
        .model_types = LIST("qwen2_vl"),
        .prefixes = LIST("", "model."),
        .names = qwen2_vl_names,
        .defaults = qwen2_vl_defaults,
        .spelled = qwen2_vl_spelled,
        .root_defaults = qwen2_vl_root,
        .merged_by = "spatial_merge_size",
        .patch_dims = 5,
        .up = QN_VISION_UP_MERGED,
        .fixed = {.hidden_act = QN_VISION_QUICK_GELU,
                  .norm_eps = 1e-6f,
                  .merge_norm = 1,
                  .merge_norm_eps = 1e-6f,
                  .rope = QN_VISION_ROPE_HALVES,
                  .qkv_bias = 1,
                  .proj_bias = 1,
                  .mlp_bias = 1,
                  .merge_bias = 1,
                  .merge_act = QN_VISION_GELU},
    },
    {
        .model_types = LIST("qwen2_5_vl"),
        .prefixes = LIST("", "model."),
        .names = qwen2_5_vl_names,
        .defaults = qwen2_5_vl_defaults,
        .spelled = qwen2_5_vl_spelled,
        .root_defaults = qwen2_vl_root,
        .merged_by = "spatial_merge_size",
        .patch_dims = 5,
        .up = QN_VISION_UP_MERGED,
        .fixed = {.hidden_act = QN_VISION_SILU,
                  .rms_norm = 1,
                  .norm_eps = 1e-6f,
                  .gated_mlp = 1,
                  .full_layers = {1u << 7 | 1u << 15 | 1u << 23 | 1u << 31},
                  .merge_rms = 1,
                  .merge_norm = 1,
                  .merge_norm_eps = 1e-6f,
                  .rope = QN_VISION_ROPE_HALVES,
                  .qkv_bias = 1,
                  .proj_bias = 1,
                  .mlp_bias = 1,
                  .merge_bias = 1,
                  .merge_act = QN_VISION_GELU},
    },
    {
        .model_types = LIST("qwen3_vl", "qwen3_vl_moe"),
        .prefixes = LIST("model.", ""),
        .names = qwen3_vl_names,
        .defaults = qwen3_vl_defaults,
        .spelled = qwen2_5_vl_spelled,
        .root_defaults = qwen2_vl_root,
        .merged_by = "spatial_merge_size",
        .patch_dims = 5,
        .up = QN_VISION_UP_MERGED,
        .fixed = {.hidden_act = QN_VISION_GELU_TANH,
                  .norm_eps = 1e-6f,
                  .merge_norm = 1,
                  .merge_norm_eps = 1e-6f,
                  .places = QN_VISION_PLACES_CORNERS,
                  .rope = QN_VISION_ROPE_HALVES,
                  .qkv_bias = 1,
                  .proj_bias = 1,
                  .mlp_bias = 1,
                  .merge_bias = 1,
                  .merge_act = QN_VISION_GELU,
                  .n_deepstack = 3,
                  .deepstack_layers = {8, 16, 24}},
    },
    {
        .model_types = LIST("qwen3_5", "qwen3_5_moe", "qwen4_exp"),
        .prefixes = LIST("model.", ""),
        .names = qwen3_vl_names,
        .defaults = qwen3_vl_defaults,
        .spelled = qwen2_5_vl_spelled,
        .root_defaults = qwen3_5_root,
        .merged_by = "spatial_merge_size",
        .patch_dims = 5,
        .up = QN_VISION_UP_MERGED,
        .fixed = {.hidden_act = QN_VISION_GELU_TANH,
                  .norm_eps = 1e-6f,
                  .merge_norm = 1,
                  .merge_norm_eps = 1e-6f,
                  .places = QN_VISION_PLACES_CORNERS,
                  .rope = QN_VISION_ROPE_HALVES,
                  .qkv_bias = 1,
                  .proj_bias = 1,
                  .mlp_bias = 1,
                  .merge_bias = 1,
                  .merge_act = QN_VISION_GELU},
    },
    {
        .model_types = LIST("gemma3"),
        .prefixes = LIST("", "model."),
        .names = gemma3_names,
        .defaults = siglip_defaults,
        .spelled = siglip_spelled,
        .root_defaults = gemma3_root,
        .root_spelled = index_spelled,
        .patch_dims = 4,
        .merged_by = "mm_tokens_per_image",
        .merged = QN_VISION_MERGED_TOKENS,
        .fixed = {.hidden_act = QN_VISION_GELU_TANH,
                  .places = QN_VISION_PLACES_PLAIN,
                  .qkv_bias = 1,
                  .proj_bias = 1,
                  .mlp_bias = 1,
                  .post_norm = 1,
                  .merge = QN_VISION_MERGE_MEAN,
                  .merge_norm = 2,
                  .merge_rms = 1,
                  .merge_norm_offset = 1,
                  .seen = QN_VISION_SEEN_WHOLE},
    },
    {
        .model_types = LIST("smolvlm", "idefics3"),
        .prefixes = LIST("model.", ""),
        .names = smolvlm_names,
        .defaults = smolvlm_defaults,
        .spelled = siglip_spelled,
        .root_defaults = smolvlm_root,
        .patch_dims = 4,
        .merged_by = "scale_factor",
        .fixed = {.hidden_act = QN_VISION_GELU_TANH,
                  .places = QN_VISION_PLACES_SHARES,
                  .qkv_bias = 1,
                  .proj_bias = 1,
                  .mlp_bias = 1,
                  .post_norm = 1},
    },
    {
        .model_types = LIST("lfm2_vl"),
        .prefixes = LIST("model.", ""),
        .names = lfm2_vl_names,
        .defaults = siglip2_defaults,
        .spelled = siglip_spelled,
        .root_defaults = lfm2_vl_root,
        .patch_dims = 2,
        .merged_by = "downsample_factor",
        .up = QN_VISION_UP_SAID,
        .up_by = "projector_hidden_size",
        .norm_by = "projector_use_layernorm",
        .bias_by = "projector_bias",
        .fixed = {.hidden_act = QN_VISION_GELU_TANH,
                  .places = QN_VISION_PLACES_RESIZED,
                  .qkv_bias = 1,
                  .proj_bias = 1,
                  .mlp_bias = 1,
                  .post_norm = 1,
                  .merge_norm = 2,
                  .merge_norm_eps = 1e-5f,
                  .merge_act = QN_VISION_GELU},
    },
    {
        .model_types = LIST("internvl"),
        .prefixes = LIST("", "model."),
        .names = internvl_names,
        .defaults = internvl_defaults,
        .spelled = siglip_spelled,
        .root_defaults = internvl_root,
        .patch_dims = 4,
        .batched = 1,
        .merged_by = "downsample_ratio",
        .merged = QN_VISION_MERGED_SHARE,
        .up = QN_VISION_UP_TEXT,
        .switched = 1,
        .fixed = {.hidden_act = QN_VISION_GELU,
                  .places = QN_VISION_PLACES_PLAIN,
                  .class_row = QN_VISION_CLASS_FIRST,
                  .qk_norm_eps = 1e-6f,
                  .proj_bias = 1,
                  .mlp_bias = 1,
                  .merge_norm = 2,
                  .merge_norm_eps = 1e-5f,
                  .merge_bias = 1,
                  .merge_act = QN_VISION_GELU},
    },
    {
        .model_types = LIST("mistral3"),
        .prefixes = LIST("", "model."),
        .names = mistral3_names,
        .defaults = mistral3_defaults,
        .spelled = siglip_spelled,
        .root_defaults = mistral3_root,
        .root_spelled = index_spelled,
        .patch_dims = 4,
        .merged_by = "spatial_merge_size",
        .up = QN_VISION_UP_TEXT,
        .bias_by = "multimodal_projector_bias",
        .fixed = {.hidden_act = QN_VISION_GELU,
                  .rms_norm = 1,
                  .norm_eps = 1e-5f,
                  .gated_mlp = 1,
                  .rope = QN_VISION_ROPE_IN_TURN,
                  .merge = QN_VISION_MERGE_CHANNELS,
                  .merge_norm = 1,
                  .merge_rms = 1,
                  .merge_act = QN_VISION_GELU},
    },
    {
        .model_types = LIST("glm5_next"),
        .prefixes = LIST("model.", ""),
        .names = glm5_next_names,
        .defaults = glm5_next_defaults,
        .spelled = glm5_next_spelled,
        .root_defaults = glm5_next_root,
        .merged_by = "spatial_merge_size",
        .patch_dims = 5,
        .up = QN_VISION_UP_SAID,
        .up_by = "projection_intermediate_size",
        .layer_bias_by = "attention_bias",
        .fixed = {.hidden_act = QN_VISION_SILU,
                  .rms_norm = 1,
                  .gated_mlp = 1,
                  .mlp_limit = 10,
                  .rope = QN_VISION_ROPE_HALVES,
                  .qk_norm = 2,
                  .qkv_bias = 1,
                  .proj_bias = 1,
                  .mlp_bias = 1,
                  .post_norm = 1,
                  .merge = QN_VISION_MERGE_CHANNELS,
                  .merge_norm = 2,
                  .merge_norm_eps = 1e-5f,
                  .merge_norm_gelu = 1},
    },
    {
        .model_types = LIST("muse_glimmer"),
        .prefixes = LIST("model.", ""),
        .names = muse_glimmer_names,
        .defaults = muse_glimmer_defaults,
        .spelled = muse_glimmer_spelled,
        .root_defaults = muse_glimmer_root,
        .patch_dims = 2,
        .merged_by = "merge_size",
        .up = QN_VISION_UP_SAID,
        .up_by = "projector_hidden_size",
        .down_by = "projector_hidden_size",
        .fixed = {.hidden_act = QN_VISION_GELU,
                  .norm_eps = 1e-5f,
                  .end_norm_eps = 1e-5f,
                  .places = QN_VISION_PLACES_CENTERS,
                  .rope = QN_VISION_ROPE_COLUMN_FIRST,
                  .patch_windows = 1,
                  .qkv_bias = 1,
                  .proj_bias = 1,
                  .mlp_bias = 1,
                  .post_norm = 1,
                  .merge = QN_VISION_MERGE_CHANNELS,
                  .merge_act = QN_VISION_GELU,
                  .merge_act_after = 1,
                  .feature_norm = 1},
    },
    {
        .model_types = LIST("llama4"),
        .prefixes = LIST("", "model."),
        .names = llama4_names,
        .defaults = llama4_defaults,
        .spelled = llama4_spelled,
        .root_defaults = llama4_root,
        .root_spelled = index_spelled,
        .patch_dims = 2,
        .merged_by = "pixel_shuffle_ratio",
        .merged = QN_VISION_MERGED_SHARE,
        .up = QN_VISION_UP_SAID,
        .up_by = "projector_input_dim",
        .down_by = "projector_output_dim",
        .fixed = {.hidden_act = QN_VISION_GELU,
                  .norm_eps = 1e-5f,
                  .places = QN_VISION_PLACES_PLAIN,
                  .rope = QN_VISION_ROPE_NEIGHBOURS,
                  .class_row = QN_VISION_CLASS_LAST,
                  .qkv_bias = 1,
                  .proj_bias = 1,
                  .mlp_bias = 1,
                  .post_norm = 1,
                  .merge_act = QN_VISION_GELU,
                  .merge_act_after = 1},
    },
    {
        .model_types = LIST("gemma4"),
        .prefixes = LIST("model.", ""),
        .names = gemma4_names,
        .defaults = gemma4_defaults,
        .spelled = gemma4_spelled,
        .root_defaults = gemma4_root,
        .patch_dims = 2,
        .merged_by = "pooling_kernel_size",
        .text_says_seen = 1,
        .fixed = {.hidden_act = QN_VISION_GELU_TANH,
                  .rms_norm = 1,
                  .rope_theta = 100,
                  .attention_scale = 1,
                  .gated_mlp = 1,
                  .qk_norm = 2,
                  .value_norm = 1,
                  .patch_factor = 2,
                  .patch_offset = -1,
                  .places = QN_VISION_PLACES_AXES,
                  .rope = QN_VISION_ROPE_APART,
                  .merge = QN_VISION_MERGE_MEAN,
                  .merge_norm = 2,
                  .merge_rms = 1,
                  .merge_scale_root = 1,
                  .seen = QN_VISION_SEEN_WHOLE_SLIDING},
    },
    {
        .model_types = LIST("gemma4_unified"),
        .prefixes = LIST("model.", ""),
        .names = gemma4_unified_names,
        .defaults = gemma4_unified_defaults,
        .spelled = gemma4_unified_spelled,
        .root_defaults = gemma4_root,
        .patch_dims = 2,
        .merged_by = "pooling_kernel_size",
        .layerless = 1,
        .text_says_seen = 1,
        .windows_reach_back = 1,
        .fixed = {.norm_eps = 1e-5f,
                  .places = QN_VISION_PLACES_AXES_IN_TURN,
                  .merge_norm = 2,
                  .merge_rms = 1,
                  .seen = QN_VISION_SEEN_WHOLE},
    },
};

const qn_vision_family *qn_vision_family_find(const char *model_type)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (const char *const *name = rows[i].model_types; *name; name++)
            if (strcmp(*name, model_type) == 0) return &rows[i];
    return NULL;
}

const char *qn_vision_family_name(const qn_vision_family *family, qn_vision_role role)
{
    for (const qn_vision_name *n = family->names; n->name; n++)
        if (n->role == role) return n->name;
    return NULL;
}

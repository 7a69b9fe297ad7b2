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
        .model_types = LIST("qwen3_5", "qwen3_5_moe"),
        .prefixes = LIST("model.", ""),
        .names = qwen3_vl_names,
        .defaults = qwen3_vl_defaults,
        .spelled = qwen2_5_vl_spelled,
        .root_defaults = qwen3_5_root,
        .merged_by = "spatial_merge_size",
        .patch_dims = 5,
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

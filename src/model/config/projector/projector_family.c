#include "model/config/projector/projector_family.h"

#include <string.h>

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})

/* ---- names --------------------------------------------------------------------------------------------- */

#define LAYERS                                                                                       \
    {QN_VISION_NORM1, "v.blk.#.ln1.weight"}, {QN_VISION_NORM1_BIAS, "v.blk.#.ln1.bias"},             \
        {QN_VISION_PROJ, "v.blk.#.attn_out.weight"}, {QN_VISION_PROJ_BIAS, "v.blk.#.attn_out.bias"}, \
        {QN_VISION_NORM2, "v.blk.#.ln2.weight"}, {QN_VISION_NORM2_BIAS, "v.blk.#.ln2.bias"},         \
        {QN_VISION_FC1, "v.blk.#.ffn_up.weight"}, {QN_VISION_FC1_BIAS, "v.blk.#.ffn_up.bias"},       \
        {QN_VISION_FC2, "v.blk.#.ffn_down.weight"},                                                  \
    {                                                                                                \
        QN_VISION_FC2_BIAS, "v.blk.#.ffn_down.bias"                                                  \
    }
#define QKV                                         \
    {QN_VISION_QKV, "v.blk.#.attn_qkv.weight"},     \
    {                                               \
        QN_VISION_QKV_BIAS, "v.blk.#.attn_qkv.bias" \
    }
#define Q_K_V                                                                              \
    {QN_VISION_Q, "v.blk.#.attn_q.weight"}, {QN_VISION_Q_BIAS, "v.blk.#.attn_q.bias"},     \
        {QN_VISION_K, "v.blk.#.attn_k.weight"}, {QN_VISION_K_BIAS, "v.blk.#.attn_k.bias"}, \
        {QN_VISION_V, "v.blk.#.attn_v.weight"},                                            \
    {                                                                                      \
        QN_VISION_V_BIAS, "v.blk.#.attn_v.bias"                                            \
    }
#define TIMES                                          \
    {QN_VISION_PATCH, "v.patch_embd.weight"},          \
    {                                                  \
        QN_VISION_PATCH_LATER, "v.patch_embd.weight.1" \
    }
#define PATCHES                                                                            \
    {QN_VISION_PATCH, "v.patch_embd.weight"}, {QN_VISION_PATCH_BIAS, "v.patch_embd.bias"}, \
    {                                                                                      \
        QN_VISION_POSITIONS, "v.position_embd.weight"                                      \
    }
#define POST_NORM                                  \
    {QN_VISION_POST_NORM, "v.post_ln.weight"},     \
    {                                              \
        QN_VISION_POST_NORM_BIAS, "v.post_ln.bias" \
    }
#define GATED                                                                              \
    {QN_VISION_GATE, "v.blk.#.ffn_gate.weight"}, {QN_VISION_FC1, "v.blk.#.ffn_up.weight"}, \
    {                                                                                      \
        QN_VISION_FC2, "v.blk.#.ffn_down.weight"                                           \
    }
#define END                        \
    {                              \
        QN_VISION_ROLE_COUNT, NULL \
    }

static const qn_vision_name qwen3_vl_names[] = {TIMES,
                                                {QN_VISION_PATCH_BIAS, "v.patch_embd.bias"},
                                                {QN_VISION_POSITIONS, "v.position_embd.weight"},
                                                LAYERS,
                                                QKV,
                                                {QN_VISION_MERGER_NORM, "v.post_ln.weight"},
                                                {QN_VISION_MERGER_NORM_BIAS, "v.post_ln.bias"},
                                                {QN_VISION_MERGER_UP, "mm.0.weight"},
                                                {QN_VISION_MERGER_UP_BIAS, "mm.0.bias"},
                                                {QN_VISION_MERGER_DOWN, "mm.2.weight"},
                                                {QN_VISION_MERGER_DOWN_BIAS, "mm.2.bias"},
                                                {QN_VISION_DEEP_NORM, "v.deepstack.#.norm.weight"},
                                                {QN_VISION_DEEP_NORM_BIAS, "v.deepstack.#.norm.bias"},
                                                {QN_VISION_DEEP_UP, "v.deepstack.#.fc1.weight"},
                                                {QN_VISION_DEEP_UP_BIAS, "v.deepstack.#.fc1.bias"},
                                                {QN_VISION_DEEP_DOWN, "v.deepstack.#.fc2.weight"},
                                                {QN_VISION_DEEP_DOWN_BIAS, "v.deepstack.#.fc2.bias"},
                                                END};

static const qn_vision_name qwen2_vl_names[] = {TIMES,
                                                LAYERS,
                                                Q_K_V,
                                                {QN_VISION_MERGER_NORM, "v.post_ln.weight"},
                                                {QN_VISION_MERGER_NORM_BIAS, "v.post_ln.bias"},
                                                {QN_VISION_MERGER_UP, "mm.0.weight"},
                                                {QN_VISION_MERGER_UP_BIAS, "mm.0.bias"},
                                                {QN_VISION_MERGER_DOWN, "mm.2.weight"},
                                                {QN_VISION_MERGER_DOWN_BIAS, "mm.2.bias"},
                                                END};
static const qn_vision_name qwen2_5_vl_names[] = {TIMES,
                                                  {QN_VISION_NORM1, "v.blk.#.ln1.weight"},
                                                  {QN_VISION_PROJ, "v.blk.#.attn_out.weight"},
                                                  {QN_VISION_PROJ_BIAS, "v.blk.#.attn_out.bias"},
                                                  {QN_VISION_NORM2, "v.blk.#.ln2.weight"},
                                                  GATED,
                                                  {QN_VISION_GATE_BIAS, "v.blk.#.ffn_gate.bias"},
                                                  {QN_VISION_FC1_BIAS, "v.blk.#.ffn_up.bias"},
                                                  {QN_VISION_FC2_BIAS, "v.blk.#.ffn_down.bias"},
                                                  Q_K_V,
                                                  {QN_VISION_MERGER_NORM, "v.post_ln.weight"},
                                                  {QN_VISION_MERGER_UP, "mm.0.weight"},
                                                  {QN_VISION_MERGER_UP_BIAS, "mm.0.bias"},
                                                  {QN_VISION_MERGER_DOWN, "mm.2.weight"},
                                                  {QN_VISION_MERGER_DOWN_BIAS, "mm.2.bias"},
                                                  END};
static const qn_vision_name gemma3_names[] = {PATCHES,
                                              LAYERS,
                                              Q_K_V,
                                              POST_NORM,
                                              {QN_VISION_MERGER_NORM, "mm.soft_emb_norm.weight"},
                                              {QN_VISION_TURNED_PROJECTION, "mm.input_projection.weight"},
                                              END};
static const qn_vision_name smolvlm_names[] = {
    PATCHES, LAYERS, Q_K_V, POST_NORM, {QN_VISION_MERGER_DOWN, "mm.model.fc.weight"}, END};
static const qn_vision_name lfm2_vl_names[] = {PATCHES,
                                               LAYERS,
                                               Q_K_V,
                                               POST_NORM,
                                               {QN_VISION_MERGER_NORM, "mm.input_norm.weight"},
                                               {QN_VISION_MERGER_NORM_BIAS, "mm.input_norm.bias"},
                                               {QN_VISION_MERGER_UP, "mm.1.weight"},
                                               {QN_VISION_MERGER_UP_BIAS, "mm.1.bias"},
                                               {QN_VISION_MERGER_DOWN, "mm.2.weight"},
                                               {QN_VISION_MERGER_DOWN_BIAS, "mm.2.bias"},
                                               END};
static const qn_vision_name internvl_names[] = {PATCHES,
                                                {QN_VISION_CLASS, "v.class_embd"},
                                                LAYERS,
                                                Q_K_V,
                                                POST_NORM,
                                                {QN_VISION_Q_NORM, "v.blk.#.attn_q_norm.weight"},
                                                {QN_VISION_K_NORM, "v.blk.#.attn_k_norm.weight"},
                                                {QN_VISION_SCALE1, "v.blk.#.ls1.weight"},
                                                {QN_VISION_SCALE2, "v.blk.#.ls2.weight"},
                                                {QN_VISION_MERGER_NORM, "mm.model.mlp.0.weight"},
                                                {QN_VISION_MERGER_NORM_BIAS, "mm.model.mlp.0.bias"},
                                                {QN_VISION_MERGER_UP, "mm.model.mlp.1.weight"},
                                                {QN_VISION_MERGER_UP_BIAS, "mm.model.mlp.1.bias"},
                                                {QN_VISION_MERGER_DOWN, "mm.model.mlp.3.weight"},
                                                {QN_VISION_MERGER_DOWN_BIAS, "mm.model.mlp.3.bias"},
                                                END};
static const qn_vision_name pixtral_names[] = {{QN_VISION_PATCH, "v.patch_embd.weight"},
                                               {QN_VISION_EMBED_NORM, "v.pre_ln.weight"},
                                               {QN_VISION_NORM1, "v.blk.#.ln1.weight"},
                                               {QN_VISION_Q, "v.blk.#.attn_q.weight"},
                                               {QN_VISION_K, "v.blk.#.attn_k.weight"},
                                               {QN_VISION_V, "v.blk.#.attn_v.weight"},
                                               {QN_VISION_PROJ, "v.blk.#.attn_out.weight"},
                                               {QN_VISION_NORM2, "v.blk.#.ln2.weight"},
                                               GATED,
                                               {QN_VISION_MERGER_NORM, "mm.input_norm.weight"},
                                               {QN_VISION_MERGER, "mm.patch_merger.weight"},
                                               {QN_VISION_MERGER_UP, "mm.1.weight"},
                                               {QN_VISION_MERGER_UP_BIAS, "mm.1.bias"},
                                               {QN_VISION_MERGER_DOWN, "mm.2.weight"},
                                               {QN_VISION_MERGER_DOWN_BIAS, "mm.2.bias"},
                                               END};
#define LLAMA4                                                                                      \
    {QN_VISION_PATCH, "v.patch_embd.weight"}, {QN_VISION_CLASS, "v.class_embd"},                    \
        {QN_VISION_POSITIONS, "v.position_embd.weight"}, {QN_VISION_PRE_NORM, "v.pre_ln.weight"},   \
        {QN_VISION_PRE_NORM_BIAS, "v.pre_ln.bias"}, {QN_VISION_MERGER_UP, "mm.model.mlp.1.weight"}, \
        {QN_VISION_MERGER_DOWN, "mm.model.mlp.2.weight"},                                           \
    {                                                                                               \
        QN_VISION_PROJECTION, "mm.model.fc.weight"                                                  \
    }
static const qn_vision_name llama4_older_names[] = {LLAMA4, LAYERS, Q_K_V, POST_NORM, END};
/* The first name of a role counts. Today's converter calls the norm before the MLP as it calls that of Gemma 4 behind attention. */
static const qn_vision_name llama4_names[] = {{QN_VISION_NORM2, "v.blk.#.attn_post_norm.weight"},
                                              {QN_VISION_NORM2_BIAS, "v.blk.#.attn_post_norm.bias"},
                                              LLAMA4,
                                              LAYERS,
                                              Q_K_V,
                                              POST_NORM,
                                              END};
static const qn_vision_name glm5_next_names[] = {TIMES,
                                                 {QN_VISION_PATCH_BIAS, "v.patch_embd.bias"},
                                                 {QN_VISION_POST_NORM, "v.post_ln.weight"},
                                                 {QN_VISION_DOWNSAMPLE, "mm.patch_merger.weight"},
                                                 {QN_VISION_DOWNSAMPLE_BIAS, "mm.patch_merger.bias"},
                                                 {QN_VISION_MERGER_PROJ, "mm.model.fc.weight"},
                                                 {QN_VISION_MERGER_NORM, "mm.post_norm.weight"},
                                                 {QN_VISION_MERGER_NORM_BIAS, "mm.post_norm.bias"},
                                                 {QN_VISION_MERGER_GATE, "mm.gate.weight"},
                                                 {QN_VISION_MERGER_UP, "mm.up.weight"},
                                                 {QN_VISION_MERGER_DOWN, "mm.down.weight"},
                                                 {QN_VISION_NORM1, "v.blk.#.ln1.weight"},
                                                 QKV,
                                                 {QN_VISION_Q_NORM, "v.blk.#.attn_q_norm.weight"},
                                                 {QN_VISION_K_NORM, "v.blk.#.attn_k_norm.weight"},
                                                 {QN_VISION_PROJ, "v.blk.#.attn_out.weight"},
                                                 {QN_VISION_PROJ_BIAS, "v.blk.#.attn_out.bias"},
                                                 {QN_VISION_NORM2, "v.blk.#.ln2.weight"},
                                                 GATED,
                                                 {QN_VISION_GATE_BIAS, "v.blk.#.ffn_gate.bias"},
                                                 {QN_VISION_FC1_BIAS, "v.blk.#.ffn_up.bias"},
                                                 {QN_VISION_FC2_BIAS, "v.blk.#.ffn_down.bias"},
                                                 END};
static const qn_vision_name muse_glimmer_names[] = {{QN_VISION_PATCH, "v.patch_embd.weight"},
                                                    {QN_VISION_POSITIONS, "v.position_embd.weight"},
                                                    {QN_VISION_PRE_NORM, "v.pre_ln.weight"},
                                                    {QN_VISION_PRE_NORM_BIAS, "v.pre_ln.bias"},
                                                    LAYERS,
                                                    Q_K_V,
                                                    POST_NORM,
                                                    {QN_VISION_MERGER_UP, "mm.0.weight"},
                                                    {QN_VISION_MERGER_DOWN, "mm.1.weight"},
                                                    {QN_VISION_PROJECTION, "mm.2.weight"},
                                                    END};
static const qn_vision_name gemma4_names[] = {{QN_VISION_PATCH, "v.patch_embd.weight"},
                                              {QN_VISION_POSITIONS, "v.position_embd.weight"},
                                              {QN_VISION_SHIFT, "v.std_bias"},
                                              {QN_VISION_SPREAD, "v.std_scale"},
                                              {QN_VISION_NORM1, "v.blk.#.ln1.weight"},
                                              {QN_VISION_Q, "v.blk.#.attn_q.weight"},
                                              {QN_VISION_K, "v.blk.#.attn_k.weight"},
                                              {QN_VISION_V, "v.blk.#.attn_v.weight"},
                                              {QN_VISION_Q_NORM, "v.blk.#.attn_q_norm.weight"},
                                              {QN_VISION_K_NORM, "v.blk.#.attn_k_norm.weight"},
                                              {QN_VISION_PROJ, "v.blk.#.attn_out.weight"},
                                              {QN_VISION_POST_NORM1, "v.blk.#.attn_post_norm.weight"},
                                              {QN_VISION_NORM2, "v.blk.#.ln2.weight"},
                                              GATED,
                                              {QN_VISION_POST_NORM2, "v.blk.#.ffn_post_norm.weight"},
                                              {QN_VISION_MERGER_DOWN, "mm.input_projection.weight"},
                                              END};
static const qn_vision_name gemma4_unified_names[] = {{QN_VISION_PATCH_NORM, "v.patch_norm.1.weight"},
                                                      {QN_VISION_PATCH_NORM_BIAS, "v.patch_norm.1.bias"},
                                                      {QN_VISION_PATCH, "v.patch_embd.weight"},
                                                      {QN_VISION_PATCH_BIAS, "v.patch_embd.bias"},
                                                      {QN_VISION_EMBED_NORM, "v.patch_norm.2.weight"},
                                                      {QN_VISION_EMBED_NORM_BIAS, "v.patch_norm.2.bias"},
                                                      {QN_VISION_POSITIONS, "v.position_embd.weight"},
                                                      {QN_VISION_PRE_NORM, "v.patch_norm.3.weight"},
                                                      {QN_VISION_PRE_NORM_BIAS, "v.patch_norm.3.bias"},
                                                      {QN_VISION_MERGER_DOWN, "mm.input_projection.weight"},
                                                      END};

/* ---- fields -------------------------------------------------------------------------------------------- */

#define VISION QN_PROJECTOR_VISION
#define ROOT QN_PROJECTOR_ROOT
#define IMAGES QN_PROJECTOR_IMAGES

/* Pixels of a picture: at least those of published processors, at most what llama.cpp takes. */
#define PIXELS(least)                                                          \
    {IMAGES, "min_pixels", QN_PROJECTOR_TOKENS, NULL, least, NULL},            \
        {IMAGES, "max_pixels", QN_PROJECTOR_TOKENS, NULL, 4096, NULL},         \
        {IMAGES, "min_pixels", QN_PROJECTOR_KEY, "image_min_pixels", 0, NULL}, \
    {                                                                          \
        IMAGES, "max_pixels", QN_PROJECTOR_KEY, "image_max_pixels", 0, NULL    \
    }

static const qn_projector_value qwen3_vl_values[] = {
    {VISION, "temporal_patch_size", QN_PROJECTOR_GIVEN, NULL, 1, NULL},
    {VISION, "num_position_embeddings", QN_PROJECTOR_ROWS, "v.position_embd.weight", 0, NULL},
    {VISION, "deepstack_visual_indexes", QN_PROJECTOR_FLAGGED, "is_deepstack_layers", 0, NULL},
    PIXELS(64),
    {0}};

static const qn_projector_value qwen2_vl_values[] = {
    {VISION, "temporal_patch_size", QN_PROJECTOR_GIVEN, NULL, 1, NULL}, PIXELS(4), {0}};
static const qn_projector_value qwen2_5_vl_values[] = {
    {VISION, "temporal_patch_size", QN_PROJECTOR_GIVEN, NULL, 1, NULL},
    {VISION, "fullatt_block_indexes", QN_PROJECTOR_PERIOD, "n_wa_pattern", 0, NULL},
    PIXELS(4),
    {0}};
/* A picture is one view of the size that the tower is made for. */
#define ONE_SIZE                                                      \
    {IMAGES, "size.height", QN_PROJECTOR_KEY, "image_size", 0, NULL}, \
    {                                                                 \
        IMAGES, "size.width", QN_PROJECTOR_KEY, "image_size", 0, NULL \
    }
static const qn_projector_value gemma3_values[] = {
    {ROOT, "mm_tokens_per_image", QN_PROJECTOR_SHRUNK, "projector.scale_factor", 4, NULL}, ONE_SIZE, {0}};
static const qn_projector_value smolvlm_values[] = {
    {ROOT, "scale_factor", QN_PROJECTOR_KEY, "projector.scale_factor", 0, NULL},
    {IMAGES, "max_image_size.longest_edge", QN_PROJECTOR_KEY, "image_size", 0, NULL},
    {IMAGES, "size.longest_edge", QN_PROJECTOR_KEY, "image_size", 4, NULL},
    {IMAGES, "size.longest_edge", QN_PROJECTOR_KEY, "preproc_image_size", 0, NULL},
    {0}};
static const qn_projector_value lfm2_vl_values[] = {
    {VISION, "num_patches", QN_PROJECTOR_ROWS, "v.position_embd.weight", 0, NULL},
    {ROOT, "downsample_factor", QN_PROJECTOR_KEY, "projector.scale_factor", 0, NULL},
    {ROOT, "projector_hidden_size", QN_PROJECTOR_ROWS, "mm.1.weight", 0, NULL},
    {ROOT, "projector_bias", QN_PROJECTOR_HAS, "mm.1.bias", 0, NULL},
    {ROOT, "projector_use_layernorm", QN_PROJECTOR_HAS, "mm.input_norm.weight", 0, NULL},
    {0}};
static const qn_projector_value internvl_values[] = {
    {ROOT, "downsample_ratio", QN_PROJECTOR_INVERSE, "projector.scale_factor", 0, NULL},
    {VISION, "norm_type", QN_PROJECTOR_WORD, "v.blk.0.ln1.bias", 0, "rms_norm"},
    {VISION, "use_qk_norm", QN_PROJECTOR_HAS, "v.blk.0.attn_q_norm.weight", 0, NULL},
    {VISION, "attention_bias", QN_PROJECTOR_HAS, "v.blk.0.attn_q.bias", 0, NULL},
    {VISION, "use_mean_pooling", QN_PROJECTOR_LACKS, "v.post_ln.weight", 0, NULL},
    {VISION, "use_absolute_position_embeddings", QN_PROJECTOR_HAS, "v.position_embd.weight", 0, NULL},
    ONE_SIZE,
    {IMAGES, "min_patches", QN_PROJECTOR_KEY, "preproc_min_tiles", 0, NULL},
    {IMAGES, "max_patches", QN_PROJECTOR_KEY, "preproc_max_tiles", 0, NULL},
    {0}};
static const qn_projector_value pixtral_values[] = {
    {ROOT, "spatial_merge_size", QN_PROJECTOR_KEY, "spatial_merge_size", 0, NULL},
    {ROOT, "multimodal_projector_bias", QN_PROJECTOR_HAS, "mm.1.bias", 0, NULL},
    {IMAGES, "size.longest_edge", QN_PROJECTOR_KEY, "image_size", 0, NULL},
    {0}};
static const qn_projector_value llama4_values[] = {
    {VISION, "pixel_shuffle_ratio", QN_PROJECTOR_INVERSE, "projector.scale_factor", 0, NULL},
    {VISION, "projector_input_dim", QN_PROJECTOR_ROWS, "mm.model.mlp.1.weight", 0, NULL},
    {VISION, "projector_output_dim", QN_PROJECTOR_ROWS, "mm.model.mlp.2.weight", 0, NULL},
    ONE_SIZE,
    {0}};
static const qn_projector_value glm5_next_values[] = {
    {VISION, "temporal_patch_size", QN_PROJECTOR_GIVEN, NULL, 1, NULL},
    {VISION, "attention_bias", QN_PROJECTOR_HAS, "v.blk.0.attn_qkv.bias", 0, NULL},
    {VISION, "projection_intermediate_size", QN_PROJECTOR_ROWS, "mm.up.weight", 0, NULL},
    {IMAGES, "min_image_tokens", QN_PROJECTOR_UNITS, "image_min_pixels", 0, NULL},
    {IMAGES, "max_image_tokens", QN_PROJECTOR_UNITS, "image_max_pixels", 0, NULL},
    {0}};
static const qn_projector_value muse_glimmer_values[] = {
    {VISION, "temporal_patch_size", QN_PROJECTOR_GIVEN, NULL, 1, NULL},
    {VISION, "places_side", QN_PROJECTOR_SIDE, "v.position_embd.weight", 0, NULL},
    {ROOT, "projector_hidden_size", QN_PROJECTOR_ROWS, "mm.0.weight", 0, NULL},
    {0}};
static const qn_projector_value gemma4_values[] = {
    {VISION, "head_dim", QN_PROJECTOR_SHARE, "v.blk.0.attn_q.weight", 0, NULL},
    {VISION, "places_side", QN_PROJECTOR_COLUMNS, "v.position_embd.weight", 0, NULL},
    {VISION, "pooling_kernel_size", QN_PROJECTOR_KEY, "projector.scale_factor", 0, NULL},
    {VISION, "use_clipped_linears", QN_PROJECTOR_HAS, "v.blk.0.attn_q.input_min", 0, NULL},
    {VISION, "standardize", QN_PROJECTOR_HAS, "v.std_bias", 0, NULL},
    {0}};

/* ---- the rows ------------------------------------------------------------------------------------------ */

static const qn_projector rows[] = {
    {.name = "qwen3vl_merger",
     .model_type = "qwen3_vl",
     .image_tokens = LIST("<|image_pad|>"),
     .names = qwen3_vl_names,
     .values = qwen3_vl_values,
     .patch_dims = 4},
    {.name = "qwen2vl_merger",
     .model_type = "qwen2_vl",
     .image_tokens = LIST("<|image_pad|>"),
     .names = qwen2_vl_names,
     .values = qwen2_vl_values,
     .patch_dims = 4},
    {.name = "qwen2.5vl_merger",
     .model_type = "qwen2_5_vl",
     .image_tokens = LIST("<|image_pad|>"),
     .names = qwen2_5_vl_names,
     .values = qwen2_5_vl_values,
     .patch_dims = 4},
    {.name = "gemma3",
     .model_type = "gemma3",
     .image_tokens = LIST("<image_soft_token>"),
     .names = gemma3_names,
     .values = gemma3_values,
     .patch_dims = 4,
     .whole_norms = 1},
    {.name = "pixtral",
     .model_type = "mistral3",
     .image_tokens = LIST("[IMG]"),
     .names = pixtral_names,
     .values = pixtral_values,
     .patch_dims = 4,
     .pairs_beside = 1},
    {.name = "idefics3",
     .model_type = "smolvlm",
     .image_tokens = LIST("<image>"),
     .names = smolvlm_names,
     .values = smolvlm_values,
     .patch_dims = 4},
    {.name = "internvl",
     .model_type = "internvl",
     .image_tokens = LIST("<IMG_CONTEXT>"),
     .names = internvl_names,
     .values = internvl_values,
     .patch_dims = 4},
    {.name = "lfm2",
     .model_type = "lfm2_vl",
     .image_tokens = LIST("<image>"),
     .names = lfm2_vl_names,
     .values = lfm2_vl_values,
     .patch_dims = 4,
     .planes = 1},
    {.name = "llama4",
     .told_by = "v.blk.0.ln2.weight",
     .model_type = "llama4",
     .image_tokens = LIST("<|patch|>"),
     .names = llama4_older_names,
     .values = llama4_values,
     .patch_dims = 2},
    {.name = "llama4",
     .model_type = "llama4",
     .image_tokens = LIST("<|patch|>"),
     .names = llama4_names,
     .values = llama4_values,
     .patch_dims = 2},
    {.name = "gemma4v",
     .model_type = "gemma4",
     .image_tokens = LIST("<|image|>", "<image_soft_token>"),
     .names = gemma4_names,
     .values = gemma4_values,
     .patch_dims = 4,
     .planes = 1,
     .inputs_deny_seen = 1},
    {.name = "gemma4uv",
     .model_type = "gemma4_unified",
     .image_tokens = LIST("<|image|>", "<image_soft_token>"),
     .names = gemma4_unified_names,
     .values = gemma4_values,
     .patch_dims = 2,
     .planes = 1,
     .axes_apart = 1,
     .inputs_deny_seen = 1},
    {.name = "glm5v",
     .model_type = "glm5_next",
     .image_tokens = LIST("<|image|>", "<|image_pad|>"),
     .names = glm5_next_names,
     .values = glm5_next_values,
     .patch_dims = 4},
    {.name = "muse-glimmer",
     .model_type = "muse_glimmer",
     .image_tokens = LIST("<|patch|>"),
     .names = muse_glimmer_names,
     .values = muse_glimmer_values,
     .patch_dims = 4,
     .pairs_beside = 1},
};
enum { N_ROWS = sizeof rows / sizeof *rows };

const qn_projector *qn_projector_row(int i)
{
    return i < N_ROWS ? &rows[i] : NULL;
}

const char *qn_projector_name(const qn_projector *projector, qn_vision_role role)
{
    for (const qn_vision_name *n = projector->names; n->name; n++)
        if (n->role == role) return n->name;
    return NULL;
}

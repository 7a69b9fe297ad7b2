#include "model/families.h"

#include <stdio.h>
#include <string.h>

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})

enum {
    NORMS_PRE = QN_NORM_PRE_ATTN | QN_NORM_PRE_FFN,
    NORMS_BOTH = QN_NORM_PRE_ATTN | QN_NORM_POST_ATTN | QN_NORM_PRE_FFN | QN_NORM_POST_FFN
};

/* Defaults are those of transformers' configuration classes; for GGUF, llama.cpp's. */
static const qn_field_default llama_defaults[] = {
    {"rms_norm_eps", 1e-6, 0}, {"rope_theta", 10000, 1}, {"max_position_embeddings", 2048, 0}, {NULL, 0, 0}};
static const qn_field_default mistral_defaults[] = {{"rms_norm_eps", 1e-6, 0},
                                                    {"rope_theta", 10000, 1},
                                                    {"max_position_embeddings", 131072, 0},
                                                    {"sliding_window", 4096, 0},
                                                    {NULL, 0, 0}};
static const qn_field_default qwen_defaults[] = {{"rms_norm_eps", 1e-6, 0},
                                                 {"rope_theta", 10000, 1},
                                                 {"max_position_embeddings", 32768, 0},
                                                 {"sliding_window", 4096, 0},
                                                 {"max_window_layers", 28, 0},
                                                 {"use_sliding_window", 0, 1},
                                                 {NULL, 0, 0}};
static const qn_field_default qwen3_defaults[] = {{"rms_norm_eps", 1e-6, 0},
                                                  {"rope_theta", 10000, 1},
                                                  {"max_position_embeddings", 32768, 0},
                                                  {"sliding_window", 4096, 0},
                                                  {"max_window_layers", 28, 0},
                                                  {"use_sliding_window", 0, 1},
                                                  {"head_dim", 128, 0},
                                                  {NULL, 0, 0}};
static const qn_field_default gemma_defaults[] = {{"rms_norm_eps", 1e-6, 0},
                                                  {"rope_theta", 10000, 1},
                                                  {"max_position_embeddings", 8192, 0},
                                                  {"head_dim", 256, 0},
                                                  {NULL, 0, 0}};
static const qn_field_default gemma2_defaults[] = {{"rms_norm_eps", 1e-6, 0},
                                                   {"rope_theta", 10000, 1},
                                                   {"max_position_embeddings", 8192, 0},
                                                   {"head_dim", 256, 0},
                                                   {"query_pre_attn_scalar", 256, 0},
                                                   {"sliding_window", 4096, 1},
                                                   {"sliding_window_pattern", 2, 1},
                                                   {"attn_logit_softcapping", 50, 1},
                                                   {"final_logit_softcapping", 30, 1},
                                                   {NULL, 0, 0}};
static const qn_field_default gemma3_defaults[] = {{"vocab_size", 262208, 0},
                                                   {"hidden_size", 2304, 0},
                                                   {"intermediate_size", 9216, 0},
                                                   {"num_hidden_layers", 26, 0},
                                                   {"num_attention_heads", 8, 0},
                                                   {"num_key_value_heads", 4, 0},
                                                   {"head_dim", 256, 0},
                                                   {"rms_norm_eps", 1e-6, 0},
                                                   {"max_position_embeddings", 131072, 0},
                                                   {"query_pre_attn_scalar", 256, 0},
                                                   {"rope_theta", 1000000, 1},
                                                   {"rope_local_base_freq", 10000, 1},
                                                   {"sliding_window", 4096, 0},
                                                   {"sliding_window_pattern", 6, 1},
                                                   {NULL, 0, 0}};

/* What is neither: Qwen 3 norms queries, Gemma 2 and 3 norm what the blocks give. Without biases too the
 * blocks are llama's, which qwen2 computes as well. */
static const qn_known_by qwen2_known_by[] = {
    {"self_attn.q_proj.bias",
     LIST("self_attn.q_norm.weight", "self_attn.k_norm.weight", "pre_feedforward_layernorm.weight"),
     "self_attn.q_proj.bias is there, self_attn.q_norm is not"},
    {"self_attn.q_proj.weight",
     LIST("self_attn.q_norm.weight", "self_attn.k_norm.weight", "pre_feedforward_layernorm.weight"),
     "neither self_attn.q_norm nor biases are there"},
    {NULL, NULL, NULL}};
static const qn_known_by qwen3_known_by[] = {
    {"self_attn.q_norm.weight", LIST("pre_feedforward_layernorm.weight"), "self_attn.q_norm is there"},
    {NULL, NULL, NULL}};

static const qn_renamed_weight gemma2_names[] = {
    {QN_WEIGHT_FFN_NORM, "layers.#.pre_feedforward_layernorm.weight"}, {QN_WEIGHT_ROLE_COUNT, NULL}};

static const qn_family families[] = {
    {
        .model_types = LIST("llama"),
        .architectures = LIST("LlamaForCausalLM"),
        .gguf_architecture = "llama",
        .defaults = llama_defaults,
        .stop_tokens = LIST("<|eot_id|>", "<|eom_id|>", "<|im_end|>"),
        .hidden_act_keys = LIST("hidden_act"),
        .norms = NORMS_PRE,
        .gguf_rope_interleaved = 1,
    },
    {
        .model_types = LIST("mistral"),
        .architectures = LIST("MistralForCausalLM"),
        .defaults = mistral_defaults,
        .stop_tokens = LIST("<|im_end|>"),
        .hidden_act_keys = LIST("hidden_act"),
        .norms = NORMS_PRE,
        .slide = QN_SLIDE_EVERY,
    },
    {
        .model_types = LIST("qwen2"),
        .architectures = LIST("Qwen2ForCausalLM"),
        .gguf_architecture = "qwen2",
        .known_by = qwen2_known_by,
        .defaults = qwen_defaults,
        .stop_tokens = LIST("<|im_end|>", "<|endoftext|>"),
        .hidden_act_keys = LIST("hidden_act"),
        .norms = NORMS_PRE,
        .slide = QN_SLIDE_FROM,
        .biased_qkv = 1,
    },
    {
        .model_types = LIST("qwen3"),
        .architectures = LIST("Qwen3ForCausalLM"),
        .gguf_architecture = "qwen3",
        .known_by = qwen3_known_by,
        .defaults = qwen3_defaults,
        .stop_tokens = LIST("<|im_end|>", "<|endoftext|>"),
        .hidden_act_keys = LIST("hidden_act"),
        .norms = NORMS_PRE,
        .qk_norm = QN_QK_NORM_HEAD,
        .slide = QN_SLIDE_FROM,
    },
    {
        .model_types = LIST("gemma"),
        .architectures = LIST("GemmaForCausalLM"),
        .gguf_architecture = "gemma",
        .defaults = gemma_defaults,
        .stop_tokens = LIST("<end_of_turn>"),
        .hidden_act_keys = LIST("hidden_act", "hidden_activation"),
        .gelu_is_tanh = 1,
        .hidden_act = QN_HIDDEN_GELU_TANH,
        .norms = NORMS_PRE,
        .norm_offset = 1,
        .scaled_embedding = 1,
    },
    {
        .model_types = LIST("gemma2"),
        .architectures = LIST("Gemma2ForCausalLM"),
        .gguf_architecture = "gemma2",
        .defaults = gemma2_defaults,
        .renamed = gemma2_names,
        .stop_tokens = LIST("<end_of_turn>"),
        .hidden_act_keys = LIST("hidden_activation"),
        .hidden_act = QN_HIDDEN_GELU_TANH,
        .norms = NORMS_BOTH,
        .slide = QN_SLIDE_PERIOD,
        .norm_offset = 1,
        .scaled_embedding = 1,
        .gguf_wide_scale_layers = 46,
    },
    {
        .model_types = LIST("gemma3_text", "gemma3"),
        .architectures = LIST("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
        .gguf_architecture = "gemma3",
        .defaults = gemma3_defaults,
        .renamed = gemma2_names,
        .stop_tokens = LIST("<end_of_turn>"),
        .hidden_act_keys = LIST("hidden_activation"),
        .hidden_act = QN_HIDDEN_GELU_TANH,
        .norms = NORMS_BOTH,
        .qk_norm = QN_QK_NORM_HEAD,
        .slide = QN_SLIDE_PERIOD,
        .norm_offset = 1,
        .scaled_embedding = 1,
        .gguf_wide_scale_layers = 62,
    },
};
enum { N_FAMILIES = sizeof families / sizeof families[0] };

static const char *in_list(const char *const *list, const char *name)
{
    for (; *list; list++)
        if (strcmp(*list, name) == 0) return *list;
    return NULL;
}

const qn_family *qn_family_by_model_type(const char *model_type, const char **name)
{
    for (int i = 0; i < N_FAMILIES; i++) {
        const char *own = in_list(families[i].model_types, model_type);
        if (own) {
            *name = own;
            return &families[i];
        }
    }
    return NULL;
}

const qn_family *qn_family_by_architecture(const char *architecture)
{
    for (int i = 0; i < N_FAMILIES; i++)
        if (in_list(families[i].architectures, architecture)) return &families[i];
    return NULL;
}

const qn_family *qn_family_by_gguf(const char *architecture, size_t length)
{
    for (int i = 0; i < N_FAMILIES; i++) {
        const char *own = families[i].gguf_architecture;
        if (own && strlen(own) == length && memcmp(own, architecture, length) == 0) return &families[i];
    }
    return NULL;
}

static int has_tensor(const qn_source *src, const char *name)
{
    char full[QN_TENSOR_NAME_MAX];
    for (const char *const *prefix = qn_decoder_prefixes; *prefix; prefix++) {
        snprintf(full, sizeof full, "%slayers.0.%s", *prefix, name);
        if (qn_source_find(src, full)) return 1;
    }
    return 0;
}

const qn_family *qn_family_by_tensors(const qn_source *src, const char **words)
{
    for (int i = 0; i < N_FAMILIES; i++)
        for (const qn_known_by *k = families[i].known_by; k && k->tensor; k++) {
            int fits = has_tensor(src, k->tensor);
            for (const char *const *other = k->without; fits && *other; other++)
                fits = !has_tensor(src, *other);
            if (!fits) continue;
            *words = k->words;
            return &families[i];
        }
    return NULL;
}

const char *qn_families_known(int gguf, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < N_FAMILIES; i++) {
        const char *const own[] = {families[i].gguf_architecture, NULL};
        for (const char *const *name = gguf ? own : families[i].model_types; *name && used < size; name++)
            used += (size_t)snprintf(text + used, size - used, "%s%s", used ? ", " : "", *name);
    }
    return text;
}

const char *const qn_decoder_prefixes[] = {
    "model.", "language_model.model.", "model.language_model.", "language_model.", "", NULL};

/* The head lies beside the decoder, not in it: "lm_head." after the first part of these, by the decoder's
 * prefix. */
static const struct {
    const char *decoder, *head;
} head_prefixes[] = {{"model.", ""},
                     {"language_model.model.", "language_model."},
                     {"model.language_model.", ""},
                     {"language_model.", "language_model."},
                     {"", ""}};

/* '#' is the layer. */
static const struct {
    const char *safetensors, *gguf;
} names[QN_WEIGHT_ROLE_COUNT] = {
    [QN_WEIGHT_EMBED] = {"embed_tokens.weight", "token_embd.weight"},
    [QN_WEIGHT_FINAL_NORM] = {"norm.weight", "output_norm.weight"},
    [QN_WEIGHT_LM_HEAD] = {"lm_head.weight", "output.weight"},
    [QN_WEIGHT_ATTN_NORM] = {"layers.#.input_layernorm.weight", "blk.#.attn_norm.weight"},
    [QN_WEIGHT_Q] = {"layers.#.self_attn.q_proj.weight", "blk.#.attn_q.weight"},
    [QN_WEIGHT_K] = {"layers.#.self_attn.k_proj.weight", "blk.#.attn_k.weight"},
    [QN_WEIGHT_V] = {"layers.#.self_attn.v_proj.weight", "blk.#.attn_v.weight"},
    [QN_WEIGHT_O] = {"layers.#.self_attn.o_proj.weight", "blk.#.attn_output.weight"},
    [QN_WEIGHT_Q_BIAS] = {"layers.#.self_attn.q_proj.bias", "blk.#.attn_q.bias"},
    [QN_WEIGHT_K_BIAS] = {"layers.#.self_attn.k_proj.bias", "blk.#.attn_k.bias"},
    [QN_WEIGHT_V_BIAS] = {"layers.#.self_attn.v_proj.bias", "blk.#.attn_v.bias"},
    [QN_WEIGHT_O_BIAS] = {"layers.#.self_attn.o_proj.bias", "blk.#.attn_output.bias"},
    [QN_WEIGHT_Q_NORM] = {"layers.#.self_attn.q_norm.weight", "blk.#.attn_q_norm.weight"},
    [QN_WEIGHT_K_NORM] = {"layers.#.self_attn.k_norm.weight", "blk.#.attn_k_norm.weight"},
    [QN_WEIGHT_POST_ATTN_NORM] = {"layers.#.post_attention_layernorm.weight",
                                  "blk.#.post_attention_norm.weight"},
    [QN_WEIGHT_FFN_NORM] = {"layers.#.post_attention_layernorm.weight", "blk.#.ffn_norm.weight"},
    [QN_WEIGHT_GATE] = {"layers.#.mlp.gate_proj.weight", "blk.#.ffn_gate.weight"},
    [QN_WEIGHT_UP] = {"layers.#.mlp.up_proj.weight", "blk.#.ffn_up.weight"},
    [QN_WEIGHT_DOWN] = {"layers.#.mlp.down_proj.weight", "blk.#.ffn_down.weight"},
    [QN_WEIGHT_GATE_BIAS] = {"layers.#.mlp.gate_proj.bias", "blk.#.ffn_gate.bias"},
    [QN_WEIGHT_UP_BIAS] = {"layers.#.mlp.up_proj.bias", "blk.#.ffn_up.bias"},
    [QN_WEIGHT_DOWN_BIAS] = {"layers.#.mlp.down_proj.bias", "blk.#.ffn_down.bias"},
    [QN_WEIGHT_POST_FFN_NORM] = {"layers.#.post_feedforward_layernorm.weight", "blk.#.post_ffw_norm.weight"},
};

int qn_family_weight_name(const qn_family *family, qn_source_kind kind, const char *prefix,
                          qn_weight_role role, int64_t layer, char *text)
{
    const char *name = names[role].gguf;
    if (kind == QN_SOURCE_SAFETENSORS) {
        name = names[role].safetensors;
        for (const qn_renamed_weight *r = family->renamed; r && r->role != QN_WEIGHT_ROLE_COUNT; r++)
            if (r->role == role) name = r->name;
        for (size_t i = 0; role == QN_WEIGHT_LM_HEAD && i < sizeof head_prefixes / sizeof head_prefixes[0];
             i++)
            if (strcmp(head_prefixes[i].decoder, prefix) == 0) {
                prefix = head_prefixes[i].head;
                break;
            }
    } else {
        prefix = "";
    }
    if (!name) return 0;
    const char *hash = strchr(name, '#');
    if (hash)
        snprintf(text, QN_TENSOR_NAME_MAX, "%s%.*s%lld%s", prefix, (int)(hash - name), name, (long long)layer,
                 hash + 1);
    else
        snprintf(text, QN_TENSOR_NAME_MAX, "%s%s", prefix, name);
    return 1;
}

const qn_tensor_view *qn_family_find_weight(const qn_family *family, const qn_source *src,
                                            qn_weight_role role, int64_t layer, const char **prefix)
{
    char name[QN_TENSOR_NAME_MAX];
    for (const char *const *p = qn_decoder_prefixes; *p; p++) {
        const qn_tensor_view *v =
            qn_family_weight_name(family, qn_source_get_kind(src), *p, role, layer, name)
                ? qn_source_find(src, name)
                : NULL;
        if (!v) continue;
        if (prefix) *prefix = *p;
        return v;
    }
    return NULL;
}

/* config.json, and GGUF metadata, with any key at any value: the model opens and computes, or is refused by a
 * message that names the file and the key, or the tensor that does not fit what the key says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/buf.h"
#include "base/mem.h"
#include "model/config/config.h"
#include "model/weights/weights.h"
#include "tests/hostile/hostile.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/gguf_file.h"
#include "tests/support/models/model_dir.h"
#include "tests/support/scratch.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* ---- said in full ------------------------------------------------------------------------------------- */

/* The golden llama with this merge patch. */
static void refused(const char *patch, qn_status status, const char *pattern)
{
    char dir[QN_TEST_DIR_MAX];
    qn_test_model_copy(qn_test_need_fixture("models/llama"), patch, NULL, dir);
    qn_test_refused(dir, "", status, pattern);
    qn_test_model_remove(dir);
}

static void test_absurd(void **state)
{
    static const struct {
        const char *patch, *says;
    } cases[] = {
        {"{\"num_hidden_layers\": 1000000000}", "num_hidden_layers is 1000000000, expected 1 to 4096"},
        {"{\"num_hidden_layers\": 0}", "num_hidden_layers is 0, expected 1 to 4096"},
        {"{\"num_hidden_layers\": -2}", "num_hidden_layers is -2, expected 1 to 4096"},
        {"{\"num_hidden_layers\": 9223372036854775807}",
         "num_hidden_layers is 9223372036854775807, expected 1 to 4096"},
        {"{\"num_hidden_layers\": 2.5}", "num_hidden_layers is 2.5, expected an integer"},
        {"{\"num_hidden_layers\": 1e308}", "num_hidden_layers is 1e+308, expected an integer"},
        {"{\"num_hidden_layers\": \"2\"}", "num_hidden_layers is a string, expected an integer"},
        {"{\"num_hidden_layers\": [2]}", "num_hidden_layers is an array, expected an integer"},
        {"{\"num_hidden_layers\": true}", "num_hidden_layers is a boolean, expected an integer"},
        {"{\"num_hidden_layers\": \"null\"}", "num_hidden_layers is missing"},
        {"{\"num_hidden_layers\": null}", "num_hidden_layers is missing"},
        {"{\"head_dim\": 0}", "head_dim is 0, expected 1 to 65536"},
        {"{\"head_dim\": -16}", "head_dim is -16, expected 1 to 65536"},
        {"{\"hidden_size\": 0}", "hidden_size is 0, expected 1 to 1048576"},
        {"{\"hidden_size\": {\"a\": 1}}", "hidden_size is *, expected an integer"},
        {"{\"num_attention_heads\": 0}", "num_attention_heads is 0, expected 1 to 65536"},
        {"{\"num_key_value_heads\": 0}", "num_key_value_heads is 0, expected 1 to 65536"},
        {"{\"num_key_value_heads\": 3}", "num_attention_heads * is not a multiple of num_key_value_heads 3"},
        {"{\"vocab_size\": 0}", "vocab_size is 0, expected 1 to 16777216"},
        {"{\"vocab_size\": 1000000000000}", "vocab_size is 1000000000000, expected 1 to 16777216"},
        {"{\"max_position_embeddings\": 0}", "max_position_embeddings is 0, expected 1 to 2147483647"},
        {"{\"rms_norm_eps\": -1}", "rms_norm_eps is -1, expected 0 to 1"},
        {"{\"rms_norm_eps\": 1e300}", "rms_norm_eps is 1e+300, expected 0 to 1"},
        {"{\"rope_theta\": 0}", "rope_theta is 0, expected 0.001 to 1e+30"},
        {"{\"rope_theta\": [1]}", "rope_theta is an array, expected a number"},
        {"{\"tie_word_embeddings\": \"yes\"}", "tie_word_embeddings is a string, expected true or false"},
        {"{\"attention_bias\": 1}", "attention_bias is a number, expected true or false"},
        {"{\"model_type\": 3}", "model_type is a number, expected a string"},
        {"{\"eos_token_id\": -2}", "eos_token_id: -2 is not a token id"},
        {"{\"eos_token_id\": 4294967296}", "eos_token_id: 4294967296 is not a token id"},
        {"{\"eos_token_id\": {\"a\": 1}}", "eos_token_id: expected a token id or a list of them"},
        {"{\"eos_token_id\": [[1]]}", "eos_token_id: expected a token id or a list of them"},
        {"{\"bos_token_id\": \"<s>\"}", "bos_token_id: expected a token id"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char says[256];
        snprintf(says, sizeof says, "config.json: %s", cases[i].says);
        refused(cases[i].patch, QN_E_FORMAT, says);
    }
    /* In range, but not what the tensors are. */
    refused("{\"vocab_size\": 639}", QN_E_FORMAT,
            "model.safetensors: tensor model.embed_tokens.weight: shape [640, 64], expected [639, 64]");
    refused("{\"vocab_size\": 16777216}", QN_E_FORMAT,
            "model.safetensors: tensor model.embed_tokens.weight: shape [640, 64], expected [16777216, 64]");
    refused("{\"num_hidden_layers\": 4096}", QN_E_FORMAT,
            "model.safetensors: tensor model.layers.*.input_layernorm.weight is missing, expected with shape "
            "[64]");
    refused("{\"num_hidden_layers\": 1}", QN_E_FORMAT,
            "model.safetensors: tensor model.layers.1.* belongs to layer 1, but num_hidden_layers is 1");
    refused("{\"head_dim\": 65536}", QN_E_FORMAT,
            "model.safetensors: tensor model.layers.0.self_attn.q_proj.weight: shape *, expected [*, 64]");
}

static void test_garbage_in_objects(void **state)
{
    static const struct {
        const char *patch, *says;
    } cases[] = {
        {"{\"rope_scaling\": 3}", "rope_scaling is a number, expected an object"},
        {"{\"rope_scaling\": []}", "rope_scaling is an array, expected an object"},
        {"{\"rope_scaling\": \"linear\"}", "rope_scaling is a string, expected an object"},
        {"{\"rope_scaling\": {\"rope_type\": 3}}", "rope_scaling.rope_type is a number, expected a string"},
        {"{\"rope_scaling\": {\"rope_type\": \"linear\"}}", "rope_scaling.factor is missing"},
        {"{\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 0}}",
         "rope_scaling.factor is 0, expected 0.001 to 1000000"},
        {"{\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": -8}}",
         "rope_scaling.factor is -8, expected 0.001 to 1000000"},
        {"{\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": \"eight\"}}",
         "rope_scaling.factor is \"eight\", expected a number from 0.001 to 1000000"},
        {"{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, "
         "\"high_freq_factor\": 1, \"original_max_position_embeddings\": 64}}",
         "rope_scaling.high_freq_factor is 1, expected more than low_freq_factor (4)"},
        {"{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 0, "
         "\"high_freq_factor\": 4, \"original_max_position_embeddings\": 64}}",
         "rope_scaling.low_freq_factor is 0, expected *"},
        {"{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, \"original_max_position_embeddings\": "
         "-1}}",
         "rope_scaling.original_max_position_embeddings is -1, expected *"},
        {"{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, \"beta_fast\": \"x\"}}",
         "rope_scaling.beta_fast is a string, expected a number"},
        {"{\"rope_parameters\": 3}", "rope_parameters is a number, expected an object"},
        {"{\"rope_parameters\": {\"full_attention\": 3}}",
         "rope_parameters.full_attention is a number, expected an object"},
        {"{\"rope_parameters\": {\"rope_theta\": -1}}", "rope_parameters.rope_theta is -1, expected *"},
        {"{\"partial_rotary_factor\": 0.01}",
         "partial_rotary_factor: 0 of 16 head dimensions are rotated, expected an even number"},
        {"{\"rope_parameters\": {\"partial_rotary_factor\": 0.2}}",
         "rope_parameters.partial_rotary_factor: 3 of 16 head dimensions are rotated, expected an even "
         "number"},
        {"{\"text_config\": 3}", "text_config is a number, expected an object"},
        {"{\"layer_types\": 3}", "layer_types: expected an array of num_hidden_layers (*) names"},
        {"{\"layer_types\": []}", "layer_types: expected an array of num_hidden_layers (*) names"},
        {"{\"layer_types\": [1, 2, 3, 4]}", "layer_types[0] is not a string"},
        {"{\"quantization\": 3}", "quantization is a number, expected an object"},
        {"{\"quantization\": {\"bits\": 0}}", "quantization.bits is 0, expected *"},
        {"{\"quantization\": {\"bits\": \"4\"}}", "quantization.bits is a string, expected an integer"},
        {"{\"quantization_config\": []}", "quantization_config is an array, expected an object"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char says[256];
        snprintf(says, sizeof says, "config.json: %s", cases[i].says);
        refused(cases[i].patch, QN_E_FORMAT, says);
    }
    static const struct {
        const char *patch, *says;
    } unsupported[] = {
        {"{\"rope_scaling\": {\"rope_type\": \"spiral\", \"factor\": 8}}",
         "rope_scaling.rope_type is \"spiral\", which is not supported (known: *)"},
        {"{\"model_type\": \"\"}", "model_type is \"\", which is not supported; known: *"},
        {"{\"hidden_act\": \"tan\"}", "hidden_act is \"tan\", which is not supported (known: *)"},
        {"{\"quantization_config\": {\"quant_method\": \"gptq\"}}",
         "quantization_config.quant_method is \"gptq\", which is not supported*"},
    };
    for (size_t i = 0; i < COUNT(unsupported); i++) {
        char says[256];
        snprintf(says, sizeof says, "config.json: %s", unsupported[i].says);
        refused(unsupported[i].patch, QN_E_UNSUPPORTED, says);
    }
}

/* ---- any key, any value ------------------------------------------------------------------------------- */

/* JSON texts that stand in place of a value; '#' is the key, for keys that come twice. */
static const char *const texts[] = {
    "null",
    "true",
    "\"\"",
    "\"x\"",
    "\"8\"",
    "\"\\ud83d\\ude00\"",
    "[]",
    "[1]",
    "[[]]",
    "{}",
    "{\"a\": {\"b\": []}}",
    "0",
    "-1",
    "1",
    "3",
    "64.5",
    "4096",
    "1000000000",
    "2147483648",
    "9223372036854775807",
    "-9223372036854775808",
    "1e15",
    "1e308",
    "-1e308",
    "1e-308",
    "-0.0",
    "1e400",
    "9223372036854775808",
    "NaN",
    "-Infinity",
    "1, \"#\": 1",
    "[\"sliding_attention\"]",
    "\"yarn\"",
    "\"\\u0000\"",
    "",
    "[",
};
static const char mark[] = "@hostile@";
enum { PATHS_MAX = 96, PATH_BYTES = 160, OPENED_PER_KEY = 1 };

static char paths[PATHS_MAX][PATH_BYTES];
static int n_paths;

/* Names of all keys, "rope_scaling/factor", and of the first element of each array, "layer_types/0". */
static void list_paths(const char *prefix, const json_t *object)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "%.80s%s%.70s", prefix, *prefix ? "/" : "", key);
        assert_true(n_paths + 1 < PATHS_MAX);
        memcpy(paths[n_paths++], path, sizeof path);
        if (json_is_object(value)) list_paths(path, value);
        if (json_array_size(value)) snprintf(paths[n_paths++], PATH_BYTES, "%.150s/0", path);
    }
}

/* Puts the mark where path leads. */
static void marked(json_t *config, const char *path)
{
    char key[PATH_BYTES];
    const char *slash = strchr(path, '/');
    snprintf(key, sizeof key, "%.*s", slash ? (int)(slash - path) : (int)strlen(path), path);
    json_t *value = json_object_get(config, key);
    if (slash && json_is_object(value)) {
        marked(value, slash + 1);
        return;
    }
    if (slash)
        json_array_set_new(value, 0, json_string(mark));
    else
        json_object_set_new(config, key, json_string(mark));
}

/* The text of config with `instead` in place of the mark. */
static void write_bent(const char *dir, const json_t *config, const char *instead, const char *key)
{
    qn_buf b = {0};
    char *text = json_dumps(config, 0);
    char *at = strstr(text, mark);
    assert_non_null(at);
    qn_buf_append(&b, text, (size_t)(at - text) - 1);
    for (const char *p = instead; *p; p++)
        if (*p == '#')
            qn_buf_puts(&b, key);
        else
            qn_buf_putc(&b, *p);
    qn_buf_puts(&b, at + sizeof mark);
    qn_test_write(dir, "config.json", b.data, b.length);
    qn_buf_free(&b);
    void (*release)(void *);
    void *(*ignored)(size_t);
    json_get_alloc_funcs(&ignored, &release);
    release(text);
}

/* As far as config.json is looked at: without the tokenizer and the programs this takes a twentieth of the
 * time. */
static qn_status read_only(const char *dir)
{
    qn_source *src = NULL;
    qn_model_config c = {0};
    qn_weights *w = NULL;
    qn_status status = qn_source_open(dir, NULL, &src);
    if (status == QN_OK) status = qn_config_read(src, &c);
    if (status == QN_OK) status = qn_weights_open(src, &c, &w);
    qn_weights_close(w);
    qn_config_free(&c);
    qn_source_close(src);
    return status;
}

/* Does the message name the key, an object that it is in, or the tensor that is at odds with it? */
static int names_it(const char *message, const char *path)
{
    char names[PATH_BYTES], *rest = names;
    const char *config = strstr(message, "config.json: ");
    if (!config) return strstr(message, "model") && strstr(message, ": tensor ");
    if (strstr(config, "config.json: line ")) return 1; /* it is not JSON any more */
    memcpy(names, path, sizeof names);
    for (char *name; (name = strsep(&rest, "/"));)
        if (strcmp(name, "0") != 0 && strstr(config, name)) return 1;
    return 0;
}

/* A third of the pairs of key and value; with the next `turn` another third. All were tried when this was
 * written. */
static void bend(const char *name, size_t turn)
{
    char dir[QN_TEST_DIR_MAX];
    const char *path = qn_test_fixture(name);
    if (!path) return;
    json_t *config = json_load_file(qn_test_path(path, "config.json"), 0, NULL);
    assert_non_null(config);
    n_paths = 0;
    list_paths("", config);
    qn_test_model_copy(path, NULL, NULL, dir);
    qn_test_accepted(dir, "");
    for (int i = 0; i < n_paths; i++) {
        json_t *bent = json_deep_copy(config);
        const char *slash = strrchr(paths[i], '/'), *key = slash ? slash + 1 : paths[i];
        int element = strcmp(key, "0") == 0, opened = 0;
        marked(bent, paths[i]);
        for (size_t t = (turn + (size_t)i) % 3; t < COUNT(texts); t += 3) {
            write_bent(dir, bent, texts[t], element ? "0" : key);
            int64_t blocks = qn_mem_live_blocks();
            size_t before = qn_mem_reset_peak();
            qn_status status = read_only(dir);
            if (qn_mem_live_blocks() != blocks || qn_mem_peak_bytes() - before > 1 << 20)
                fail_msg("%s: %s %s: %zu bytes", name, paths[i], texts[t], qn_mem_peak_bytes() - before);
            if (status != QN_OK && !names_it(qn_last_error(), paths[i]))
                fail_msg("%s: %s %s: %s", name, paths[i], texts[t], qn_last_error());
            if (status != QN_OK || opened == OPENED_PER_KEY) continue;
            qn_test_opening o;
            qn_test_open(dir, "", &o);
            opened++;
            if (o.status != QN_OK) fail_msg("%s: %s %s: %s", name, paths[i], texts[t], o.message);
        }
        json_decref(bent);
    }
    json_decref(config);
    qn_test_model_remove(dir);
}

static void test_any_value(void **state)
{
    static const char *const names[] = {"models/llama_rope3_tied",
                                        "models/qwen2_yarn",
                                        "models/gemma2",
                                        "models/gemma3_text",
                                        "models/qwen3_tied",
                                        "models/qwen3_5",
                                        "models/qwen3_next",
                                        "models/deepseek_v3",
                                        "models/gemma4",
                                        "models/gemma4_moe",
                                        "models/smollm3",
                                        "models/phi3_longrope",
                                        "models/granite",
                                        "models/qwen2_vl",
                                        "models/gpt_oss",
                                        "quant/mlx_models/llama-mixed",
                                        "quant/mlx_models/qwen2-mxfp4"};
    for (size_t i = 0; i < COUNT(names); i++) bend(names[i], i);
}

/* ---- GGUF --------------------------------------------------------------------------------------------- */

/* Values of all types; of an array also its element type and count. */
static const struct {
    uint32_t type;
    size_t n;
    const char *bytes;
} values[] = {
    {QN_GGUF_U32, 4, "\0\0\0"},
    {QN_GGUF_U32, 4, "\3\0\0"},
    {QN_GGUF_U32, 4, "\xff\xff\xff\xff"},
    {QN_GGUF_I32, 4, "\xff\xff\xff\xff"},
    {QN_GGUF_I64, 8, "\0\0\0\0\0\0\0\x80"},
    {QN_GGUF_U64, 8, "\xff\xff\xff\xff\xff\xff\xff\xff"},
    {QN_GGUF_U8, 1, "\1"},
    {QN_GGUF_BOOL, 1, "\1"},
    {QN_GGUF_F32, 4, "\0\0\xc0\x7f"}, /* NaN */
    {QN_GGUF_F32, 4, "\0\0\x80\x7f"}, /* infinity */
    {QN_GGUF_F32, 4, "\0\0\0\x80"},   /* -0 */
    {QN_GGUF_F64, 8, "\xff\xff\xff\xff\xff\xff\xef\x7f"},
    {QN_GGUF_STRING, 8, "\0\0\0\0\0\0\0"},
    {QN_GGUF_STRING, 12, "\4\0\0\0\0\0\0\0yarn"},
    {QN_GGUF_STRING, 9, "\1\0\0\0\0\0\0\0\xff"},
    {QN_GGUF_ARRAY, 12, "\4\0\0\0\0\0\0\0\0\0\0"},                    /* of no u32 */
    {QN_GGUF_ARRAY, 16, "\5\0\0\0\1\0\0\0\0\0\0\0\xfe\xff\xff\xff"},  /* of an i32 */
    {QN_GGUF_ARRAY, 14, "\7\0\0\0\2\0\0\0\0\0\0\0\0\1"},              /* of bools */
    {QN_GGUF_ARRAY, 20, "\10\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"}, /* of an empty string */
};

/* Keys that the made-up files leave out; '#' is the architecture. */
static const char *const more_keys[] = {
    "#.rope.scaling.type",
    "#.rope.scaling.factor",
    "#.rope.scaling.original_context_length",
    "#.rope.scaling.attn_factor",
    "#.rope.dimension_count",
    "#.rope.freq_base_swa",
    "#.attention.key_length",
    "#.attention.value_length",
    "#.attention.scale",
    "#.attention.sliding_window",
    "#.attention.sliding_window_pattern",
    "#.attn_logit_softcapping",
    "#.final_logit_softcapping",
    "#.expert_count",
    "#.expert_used_count",
    "#.expert_feed_forward_length",
    "#.expert_group_count",
    "#.expert_group_used_count",
    "#.expert_shared_count",
    "#.expert_shared_feed_forward_length",
    "#.expert_weights_scale",
    "#.leading_dense_block_count",
    "general.file_type",
    "general.name",
    "split.count",
    "tokenizer.ggml.pre",
    "tokenizer.ggml.merges",
    "tokenizer.ggml.add_bos_token",
    "tokenizer.ggml.add_space_prefix",
    "tokenizer.chat_template",
};

static void bend_gguf(const char *architecture, size_t turn)
{
    static char keys[QN_TEST_GGUF_VALUES_MAX + COUNT(more_keys)][QN_TEST_GGUF_KEY_MAX];
    const char *folder = qn_test_scratch();
    qn_test_gguf *f = qn_test_gguf_new();
    qn_test_gguf_become(f, architecture);
    size_t n = 0;
    for (size_t i = 0; i < f->n_values; i++) memcpy(keys[n++], f->values[i].key, sizeof keys[0]);
    for (size_t i = 0; i < COUNT(more_keys); i++) {
        const char *key = more_keys[i];
        snprintf(keys[n++], sizeof keys[0], "%s%s", *key == '#' ? architecture : "", key + (*key == '#'));
    }
    qn_test_gguf_free(f);
    for (size_t i = 0; i < n; i++)
        for (size_t v = (turn + i) % 2; v < COUNT(values); v += 2) {
            qn_test_opening o;
            f = qn_test_gguf_new();
            qn_test_gguf_become(f, architecture);
            qn_test_gguf_set(f, keys[i], values[v].type, values[v].bytes, values[v].n);
            qn_test_gguf_write(f, folder, "t.gguf");
            qn_test_gguf_free(f);
            qn_test_open(folder, "t.gguf", &o);
            /* The key, its neighbour, the tensor or the tokenizer that is at odds with it. */
            const char *last = strrchr(keys[i], '.') + 1;
            char parent[QN_TEST_GGUF_KEY_MAX];
            snprintf(parent, sizeof parent, "%.*s", (int)(last - keys[i]), keys[i]);
            int named = strstr(o.message, last) ||
                        (strcmp(parent, "general.") != 0 && strstr(o.message, parent)) ||
                        strstr(o.message, ": tensor ") || strstr(o.message, "tokenizer.") ||
                        strstr(o.message, "rows of the model's embedding");
            if (o.status != QN_OK && (strncmp(o.message, "t.gguf: ", 8) != 0 || !named))
                fail_msg("%s, value %zu: %s", keys[i], v, o.message);
        }
    qn_test_remove(folder);
}

static void test_gguf_any_value(void **state)
{
    static const char *const architectures[] = {"llama", "qwen2", "gemma3", "phi3"};
    for (size_t i = 0; i < COUNT(architectures); i++) bend_gguf(architectures[i], i);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_absurd),
        cmocka_unit_test(test_garbage_in_objects),
        cmocka_unit_test(test_any_value),
        cmocka_unit_test(test_gguf_any_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

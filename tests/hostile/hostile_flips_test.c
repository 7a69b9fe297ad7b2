/* Small models with a few bytes changed at random, the same ones every time: each opens and computes, or is
 * refused by a message that names the file; never is there a crash, a loop without end or memory beyond what
 * the files justify. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/random.h"
#include "tests/hostile/hostile.h"
#include "tests/support/models/gguf_file.h"
#include "tests/support/scratch.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* ---- changes ------------------------------------------------------------------------------------------ */

/* Random numbers of one case. */
typedef struct {
    uint64_t seed, at;
} dice;

static uint64_t below(dice *d, uint64_t n)
{
    return qn_random_bits(d->seed, d->at++) % n;
}

/* Numbers that are at the edge of something. */
static uint64_t edge(dice *d)
{
    static const uint64_t edges[] = {0, 1, 2, 31, 127, 128, 255, 256, 65535, INT32_MAX, 1u << 31, UINT32_MAX};
    uint64_t n = below(d, COUNT(edges) + 4);
    if (n < COUNT(edges)) return edges[n];
    return (uint64_t[]){INT64_MAX, UINT64_C(1) << 63, UINT64_MAX, UINT64_MAX - 31}[n - COUNT(edges)];
}

/* One change to bytes[0..limit) of bytes[0..n); returns the new n. There is room for 64 bytes more. */
static size_t change(dice *d, uint8_t *bytes, size_t limit, size_t n)
{
    if (!limit) return n; /* cut off by the change before */
    size_t at = below(d, limit), run = 1 + below(d, 16);
    uint64_t number = edge(d);
    if (run > limit - at) run = limit - at;
    switch (below(d, 8)) {
    case 0: /* leave some out */
        memmove(bytes + at, bytes + at + run, n - at - run);
        return n - run;
    case 1: /* some twice */
        memmove(bytes + at + run, bytes + at, n - at);
        return n + run;
    case 2: /* a number of 4 or 8 bytes, at a place where there may be one */
        run = below(d, 2) ? 4 : 8;
        memcpy(bytes + at, &number, run < n - at ? run : n - at);
        return n;
    case 3: /* what stands elsewhere */
        memmove(bytes + at, bytes + below(d, limit - run + 1), run);
        return n;
    case 4: /* a character that means something to JSON */
        bytes[at] = (uint8_t) "{}[]\",:0-e.\\n"[below(d, 13)];
        return n;
    case 5: /* an end */
        return below(d, 16) == 0 && at > 0 ? at : n;
    case 6:
        bytes[at] = (uint8_t)number;
        return n;
    default:
        bytes[at] ^= (uint8_t)(1u << below(d, 8));
        return n;
    }
}

/* Changes the first `limit` bytes of folder/name n_cases times and opens folder/what each time. */
static void change_file(const char *folder, const char *name, const char *what, const qn_buf *sound,
                        size_t limit, int n_cases)
{
    uint8_t *bytes = qn_alloc(sound->length + 256);
    int n_opened = 0;
    for (int i = 0; i < n_cases; i++) {
        dice d = {0x9e3779b9u * (uint64_t)(i + 1), 0};
        size_t n = sound->length;
        qn_test_opening o;
        memcpy(bytes, sound->data, n);
        for (uint64_t k = 1 + below(&d, 3); k > 0; k--) n = change(&d, bytes, limit < n ? limit : n, n);
        qn_test_write(folder, name, bytes, n);
        qn_test_open(folder, what, &o);
        n_opened += o.status == QN_OK;
        if (o.status == QN_OK) continue;
        if (o.status != QN_E_FORMAT && o.status != QN_E_UNSUPPORTED && o.status != QN_E_NOT_FOUND &&
            o.status != QN_E_IO)
            fail_msg("case %d of %s: %s: %s", i, name, qn_status_name(o.status), o.message);
        if (!strstr(o.message, ".gguf") && !strstr(o.message, ".json") && !strstr(o.message, ".safetensors"))
            fail_msg("case %d of %s names no file: %s", i, name, o.message);
    }
    if (n_opened == 0 || n_opened == n_cases) fail_msg("%s: %d of %d opened", name, n_opened, n_cases);
    qn_test_write(folder, name, sound->data, sound->length);
    qn_free(bytes);
}

/* ---- models ------------------------------------------------------------------------------------------- */

static void test_gguf(void **state)
{
    qn_test_gguf *f = qn_test_gguf_new();
    qn_buf b = {0};
    qn_test_gguf_bytes(f, &b);
    size_t data = f->tensors[f->n_tensors - 1].offset + f->tensors[f->n_tensors - 1].size_bytes;
    qn_test_gguf_free(f);
    change_file(qn_test_folder, "t.gguf", "t.gguf", &b, b.length - data, 2000);
    qn_buf_free(&b);
}

/* The same model as a directory. The head is tied; the index names the one file. */
static const char config_text[] = "{\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": \"qwen3\", "
                                  "\"hidden_size\": 32, \"head_dim\": 16,\n"
                                  " \"intermediate_size\": 32, \"num_hidden_layers\": 1, "
                                  "\"num_attention_heads\": 2, \"num_key_value_heads\": 1,\n"
                                  " \"vocab_size\": 8, \"max_position_embeddings\": 256, \"rms_norm_eps\": "
                                  "1e-05, \"rope_theta\": 10000.0,\n"
                                  " \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0, "
                                  "\"original_max_position_embeddings\": 64},\n"
                                  " \"sliding_window\": 16, \"use_sliding_window\": true, "
                                  "\"max_window_layers\": 0, \"hidden_act\": \"silu\",\n"
                                  " \"tie_word_embeddings\": true, \"bos_token_id\": 0, \"eos_token_id\": "
                                  "[1, 2], \"torch_dtype\": \"float32\"}\n";
static const char tokenizer_text[] =
    "{\"version\": \"1.0\", \"added_tokens\": [{\"id\": 7, \"content\": \"<s>\", \"special\": true}],\n"
    " \"normalizer\": {\"type\": \"NFC\"}, \"pre_tokenizer\": {\"type\": \"ByteLevel\", "
    "\"add_prefix_space\": false},\n"
    " \"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, "
    "\"c\": 2,\n"
    " \"ab\": 3, \"abc\": 4, \"d\": 5, \"e\": 6}, \"merges\": [\"a b\", [\"ab\", \"c\"]]}}\n";

static void put_weights(qn_buf *b)
{
    static const struct {
        const char *name;
        int rows, cols;
    } tensors[] = {{"embed_tokens.weight", 8, 32},
                   {"norm.weight", 0, 32},
                   {"layers.0.input_layernorm.weight", 0, 32},
                   {"layers.0.self_attn.q_proj.weight", 32, 32},
                   {"layers.0.self_attn.k_proj.weight", 16, 32},
                   {"layers.0.self_attn.v_proj.weight", 16, 32},
                   {"layers.0.self_attn.o_proj.weight", 32, 32},
                   {"layers.0.self_attn.q_norm.weight", 0, 16},
                   {"layers.0.self_attn.k_norm.weight", 0, 16},
                   {"layers.0.post_attention_layernorm.weight", 0, 32},
                   {"layers.0.mlp.gate_proj.weight", 32, 32},
                   {"layers.0.mlp.up_proj.weight", 32, 32},
                   {"layers.0.mlp.down_proj.weight", 32, 32}};
    qn_buf header = {0};
    size_t end = 0;
    for (size_t i = 0; i < COUNT(tensors); i++) {
        size_t begin = end;
        end += (size_t)(tensors[i].rows ? tensors[i].rows : 1) * (size_t)tensors[i].cols * sizeof(float);
        qn_buf_printf(&header, "%s\"model.%s\":{\"dtype\":\"F32\",\"shape\":[", i ? "," : "{",
                      tensors[i].name);
        if (tensors[i].rows) qn_buf_printf(&header, "%d,", tensors[i].rows);
        qn_buf_printf(&header, "%d],\"data_offsets\":[%zu,%zu]}", tensors[i].cols, begin, end);
    }
    qn_buf_putc(&header, '}');
    uint64_t length = header.length;
    qn_buf_append(b, &length, sizeof length);
    qn_buf_append(b, header.data, header.length);
    qn_buf_free(&header);
    for (size_t i = 0; i < end / sizeof(float); i++) {
        float value = (float)qn_random_unit(3, i) - 0.5f;
        qn_buf_append(b, &value, sizeof value);
    }
}

static void test_folder(void **state)
{
    static const char index_name[] = "model.safetensors.index.json";
    qn_buf weights = {0}, config = {0}, tokenizer = {0}, index = {0}, tokenizer_config = {0};
    put_weights(&weights);
    qn_buf_puts(&config, config_text);
    qn_buf_puts(&tokenizer, tokenizer_text);
    qn_buf_puts(&index, "{\"metadata\": {\"total_size\": [1, {\"a\": null}]}, \"weight_map\": "
                        "{\"model.norm.weight\": \"model.safetensors\", "
                        "\"model.embed_tokens.weight\": \"model.safetensors\"}}");
    qn_buf_puts(&tokenizer_config,
                "{\"bos_token\": {\"content\": \"<s>\"}, \"add_bos_token\": true, \"eos_token\": "
                "\"a\", \"chat_template\": \"{% for m in messages %}{{ m.content }}{% endfor %}\"}");
    qn_test_write(qn_test_folder, "model.safetensors", weights.data, weights.length);
    qn_test_write(qn_test_folder, "config.json", config.data, config.length);
    qn_test_write(qn_test_folder, "tokenizer.json", tokenizer.data, tokenizer.length);
    qn_test_write(qn_test_folder, index_name, index.data, index.length);
    qn_test_accepted(qn_test_folder, "");
    uint64_t header = 0;
    memcpy(&header, weights.data, sizeof header);
    change_file(qn_test_folder, "model.safetensors", "", &weights, (size_t)header + sizeof header, 1000);
    change_file(qn_test_folder, "config.json", "", &config, config.length, 1000);
    change_file(qn_test_folder, index_name, "", &index, index.length, 400);
    change_file(qn_test_folder, "tokenizer.json", "", &tokenizer, tokenizer.length, 400);
    change_file(qn_test_folder, "tokenizer_config.json", "", &tokenizer_config, tokenizer_config.length, 300);
    qn_buf_free(&weights);
    qn_buf_free(&config);
    qn_buf_free(&tokenizer);
    qn_buf_free(&index);
    qn_buf_free(&tokenizer_config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {QN_TEST_IN_FOLDER(test_gguf), QN_TEST_IN_FOLDER(test_folder)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

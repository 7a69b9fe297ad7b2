#include "backend/mock/mock_file.h"

#include <string.h>

#include "base/random.h"
#include "text/tokenizer/split/byte_level.h"

/* A step is fast, and heads hold a block of every type of keys and values. */
enum {
    VOCAB = -1 /* rows: as many as the vocabulary has */,
    HIDDEN = 32,
    FFN = 64,
    LAYERS = 2,
    HEADS = 2,
    KV_HEADS = 1,
    HEAD_DIM = 32
};
enum { Q = HEADS * HEAD_DIM, KV = KV_HEADS * HEAD_DIM };
enum { CONTEXT = 131072, ALIGNMENT = 32 };
enum { BYTES = 256, BEGIN = BYTES, END, FIRST_WORD = BYTES + 6 };

/* GGUF's numbers of types. */
enum { U32 = 4, I32 = 5, F32 = 6, STRING = 8, ARRAY = 9, TENSOR_F32 = 0, TENSOR_BF16 = 30 };
enum { NORMAL = 1, CONTROL = 3 };

static const char *const specials[FIRST_WORD - BYTES] = {"<|begin|>", "<|end|>",       "<|system|>",
                                                         "<|user|>",  "<|assistant|>", "<|tool|>"};

static const char chat_template[] =
    "{{ bos_token }}"
    "{% if tools %}<|system|>Tools: {{ tools | tojson }}<|end|>{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.content is string %}{{ m.content }}"
    "{% elif m.content %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}"
    "{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}"
    "<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}";

/* Uniform in [-scale, scale]. The scales were found by trying: attention looks at few tokens and adds as much
 * as the embedding, so that text depends on all of its past and greedy text does not go in circles soon. */
static const struct {
    const char *name; /* "#": the number of the layer */
    int64_t rows, columns;
    float scale; /* 0: a norm of ones */
} tensors[] = {
    {"token_embd.weight", VOCAB, HIDDEN, 1},    {"blk.#.attn_norm.weight", 0, HIDDEN, 0},
    {"blk.#.attn_q.weight", Q, HIDDEN, 0.5f},   {"blk.#.attn_k.weight", KV, HIDDEN, 0.5f},
    {"blk.#.attn_v.weight", KV, HIDDEN, 0.5f},  {"blk.#.attn_output.weight", HIDDEN, Q, 0.3f},
    {"blk.#.ffn_norm.weight", 0, HIDDEN, 0},    {"blk.#.ffn_gate.weight", FFN, HIDDEN, 0.5f},
    {"blk.#.ffn_up.weight", FFN, HIDDEN, 0.5f}, {"blk.#.ffn_down.weight", HIDDEN, FFN, 0.3f},
    {"output_norm.weight", 0, HIDDEN, 0},       {"output.weight", VOCAB, HIDDEN, 1},
};
enum { N_TENSORS = sizeof tensors / sizeof tensors[0] };
static const float end_scale = 2.4f;

/* ---- metadata ---- */

static void put_u32(qn_buf *b, uint32_t v)
{
    qn_buf_append(b, &v, sizeof v);
}

static void put_u64(qn_buf *b, uint64_t v)
{
    qn_buf_append(b, &v, sizeof v);
}

static void put_text(qn_buf *b, const char *text, size_t n)
{
    put_u64(b, n);
    qn_buf_append(b, text, n);
}

static void put_key(qn_buf *b, const char *key, uint32_t type)
{
    put_text(b, key, strlen(key));
    put_u32(b, type);
}

static void put_array(qn_buf *b, const char *key, uint32_t type, uint64_t n)
{
    put_key(b, key, ARRAY);
    put_u32(b, type);
    put_u64(b, n);
}

/* The i-th word, the space before it in the byte-level alphabet. */
static size_t make_word(int i, char *out)
{
    static const char consonants[] = "bdfghjklmnprstvwyzcx", vowels[] = "aeiou";
    size_t n = 2;
    memcpy(out, "\xc4\xa0", n);
    for (int part = 0, left = i; part < 2 || (part == 2 && left); part++, left /= 100) {
        out[n++] = consonants[left % 100 / 5];
        out[n++] = vowels[left % 5];
    }
    return n;
}

static void put_tokens(qn_buf *b, int n_vocab)
{
    char text[16];
    put_array(b, "tokenizer.ggml.tokens", STRING, (uint64_t)n_vocab);
    for (int i = 0; i < BYTES; i++) {
        qn_buf character = {0};
        qn_byte_level_encode((const char[]){(char)i}, 1, &character);
        if (character.status != QN_OK) b->status = character.status;
        put_text(b, character.data ? character.data : "", character.length);
        qn_buf_free(&character);
    }
    for (int i = BYTES; i < FIRST_WORD; i++) put_text(b, specials[i - BYTES], strlen(specials[i - BYTES]));
    for (int i = FIRST_WORD; i < n_vocab; i++) put_text(b, text, make_word(i - FIRST_WORD, text));
    put_array(b, "tokenizer.ggml.token_type", I32, (uint64_t)n_vocab);
    for (int i = 0; i < n_vocab; i++) put_u32(b, i >= BYTES && i < FIRST_WORD ? CONTROL : NORMAL);
    put_array(b, "tokenizer.ggml.merges", STRING, 0);
}

/* Returns how many values it wrote. */
static uint64_t put_metadata(qn_buf *b, int n_vocab)
{
    static const struct {
        const char *key, *text;
    } texts[] = {{"general.architecture", "llama"},
                 {"tokenizer.ggml.model", "gpt2"},
                 {"tokenizer.ggml.pre", "llama-bpe"}, /* whole words that are tokens need no merges */
                 {"tokenizer.chat_template", chat_template}};
    const struct {
        const char *key;
        uint32_t value;
    } numbers[] = {{"general.alignment", ALIGNMENT},
                   {"llama.vocab_size", (uint32_t)n_vocab},
                   {"llama.context_length", CONTEXT},
                   {"llama.embedding_length", HIDDEN},
                   {"llama.block_count", LAYERS},
                   {"llama.feed_forward_length", FFN},
                   {"llama.attention.head_count", HEADS},
                   {"llama.attention.head_count_kv", KV_HEADS},
                   {"llama.attention.key_length", HEAD_DIM},
                   {"llama.attention.value_length", HEAD_DIM},
                   {"tokenizer.ggml.bos_token_id", BEGIN},
                   {"tokenizer.ggml.eos_token_id", END}};
    static const struct {
        const char *key;
        float value;
    } reals[] = {{"llama.attention.layer_norm_rms_epsilon", 1e-5f}, {"llama.rope.freq_base", 10000}};
    uint64_t n = 3; /* put_tokens */
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++, n++) {
        put_key(b, texts[i].key, STRING);
        put_text(b, texts[i].text, strlen(texts[i].text));
    }
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++, n++) {
        put_key(b, numbers[i].key, U32);
        put_u32(b, numbers[i].value);
    }
    for (size_t i = 0; i < sizeof reals / sizeof reals[0]; i++, n++) {
        put_key(b, reals[i].key, F32);
        qn_buf_append(b, &reals[i].value, sizeof reals[i].value);
    }
    put_tokens(b, n_vocab);
    return n;
}

/* ---- tensors ---- */

static int is_per_layer(size_t i)
{
    return strchr(tensors[i].name, '#') != NULL;
}

static int64_t rows_of(size_t i, int n_vocab)
{
    return tensors[i].rows == VOCAB ? n_vocab : tensors[i].rows;
}

static size_t tensor_bytes(size_t i, int n_vocab)
{
    return (size_t)(tensors[i].scale > 0 ? rows_of(i, n_vocab) * tensors[i].columns * 2
                                         : tensors[i].columns * 4);
}

static void put_tensor_info(qn_buf *b, size_t i, int layer, int n_vocab, uint64_t *offset)
{
    const char *name = tensors[i].name, *mark = strchr(name, '#');
    put_u64(b, strlen(name));
    if (mark) { /* one digit */
        qn_buf_append(b, name, (size_t)(mark - name));
        qn_buf_printf(b, "%d%s", layer, mark + 1);
    } else {
        qn_buf_puts(b, name);
    }
    put_u32(b, tensors[i].rows ? 2 : 1);
    put_u64(b, (uint64_t)tensors[i].columns); /* the fastest first */
    if (tensors[i].rows) put_u64(b, (uint64_t)rows_of(i, n_vocab));
    put_u32(b, tensors[i].scale > 0 ? TENSOR_BF16 : TENSOR_F32);
    put_u64(b, *offset);
    *offset += tensor_bytes(i, n_vocab); /* all of them multiples of the alignment */
}

static uint16_t to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

/* Rows of random numbers, four to a draw. */
static void put_rows(qn_buf *b, uint64_t key, int64_t first, int64_t n_rows, int64_t columns, float scale)
{
    for (int64_t at = first * columns; at < (first + n_rows) * columns; at += 4) {
        uint64_t bits = qn_random_bits(key, (uint64_t)at);
        uint16_t four[4];
        for (int j = 0; j < 4; j++)
            four[j] = to_bf16(scale * ((float)(bits >> 16 * j & 0xffff) / 32768.0f - 1));
        qn_buf_append(b, four, sizeof four);
    }
}

static void put_tensor(qn_buf *b, size_t i, int layer, const qn_mock_spec *m)
{
    uint64_t key = qn_random_bits(m->seed, i * LAYERS + (uint64_t)layer);
    const float one = 1;
    if (tensors[i].scale == 0) {
        for (int64_t j = 0; j < tensors[i].columns; j++) qn_buf_append(b, &one, sizeof one);
    } else if (i + 1 < N_TENSORS) {
        put_rows(b, key, 0, rows_of(i, m->vocab_size), tensors[i].columns, tensors[i].scale);
    } else { /* nothing speaks for bytes and special tokens */
        put_rows(b, key, 0, END, HIDDEN, 0);
        put_rows(b, key, END, 1, HIDDEN, m->ends ? end_scale : 0);
        put_rows(b, key, END + 1, FIRST_WORD - END - 1, HIDDEN, 0);
        put_rows(b, key, FIRST_WORD, m->vocab_size - FIRST_WORD, HIDDEN, tensors[i].scale);
    }
}

void qn_mock_file_write(const qn_mock_spec *m, qn_buf *out)
{
    qn_buf metadata = {0};
    uint64_t n_values = put_metadata(&metadata, m->vocab_size), n_tensors = 0, offset = 0;
    for (size_t i = 0; i < N_TENSORS; i++) n_tensors += is_per_layer(i) ? LAYERS : 1;
    qn_buf_append(out, "GGUF", 4);
    put_u32(out, 3);
    put_u64(out, n_tensors);
    put_u64(out, n_values);
    qn_buf_append(out, metadata.data, metadata.length);
    if (metadata.status != QN_OK) out->status = metadata.status;
    qn_buf_free(&metadata);
    for (size_t i = 0; i < N_TENSORS; i++)
        for (int layer = 0; layer < (is_per_layer(i) ? LAYERS : 1); layer++)
            put_tensor_info(out, i, layer, m->vocab_size, &offset);
    while (out->status == QN_OK && out->length % ALIGNMENT) qn_buf_putc(out, 0);
    qn_buf_reserve(out, (size_t)offset);
    for (size_t i = 0; i < N_TENSORS; i++)
        for (int layer = 0; layer < (is_per_layer(i) ? LAYERS : 1); layer++) put_tensor(out, i, layer, m);
}

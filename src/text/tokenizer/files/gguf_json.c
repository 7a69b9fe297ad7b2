#include "text/tokenizer/files/gguf_json.h"

#include <string.h>

#include "base/bytes/base64.h"
#include "base/json/json_write.h"
#include "base/mem.h"

enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4, BYTE = 6 };
enum { BEGIN, END, UNK, PAD };

static const char mark[] = "\xe2\x96\x81";
#define TOKENS "tokenizer.ggml.tokens"

typedef struct {
    const qn_gguf *g;
    int is_bert;
    int64_t n;
    int64_t *types;         /* [n] */
    qn_gguf_string *tokens; /* [n], as tokenizer.json has them; borrowed but for continuing ones */
    int *goes_on;           /* [n] 1: "##" is to stand in front */
    int32_t *ids;
} reader;

static int is_model(const qn_gguf *g, const char *name)
{
    qn_gguf_string s;
    return qn_gguf_value_find(g, "tokenizer.ggml.model") &&
           qn_gguf_get_string(g, "tokenizer.ggml.model", &s) == QN_OK && s.length == strlen(name) &&
           memcmp(s.data, name, s.length) == 0;
}

int qn_gguf_json_has(const qn_gguf *g)
{
    return is_model(g, "bert") || is_model(g, "t5");
}

/* ---- reading ------------------------------------------------------------------------------------------- */

static int is_bracketed(const qn_gguf_string *s)
{
    return s->length > 2 && s->data[0] == '[' && s->data[s->length - 1] == ']';
}

/* From the phantom space to tokenizer.json's spelling. */
static void respell(const reader *r, int64_t i)
{
    qn_gguf_string *s = &r->tokens[i];
    if (!r->is_bert || r->types[i] == CONTROL || r->types[i] == UNKNOWN) return;
    if (s->length > 3 && memcmp(s->data, mark, 3) == 0) { /* alone it was U+2581 that goes on */
        s->data += 3;
        s->length -= 3;
    } else if (!is_bracketed(s) && r->types[i] == NORMAL) {
        r->goes_on[i] = 1;
    }
}

static qn_status read_tokens(reader *r)
{
    static const char types[] = "tokenizer.ggml.token_type";
    qn_gguf_strings it;
    int64_t count;
    QN_TRY(qn_gguf_get_strings(r->g, TOKENS, &it));
    r->n = it.left;
    if (r->n < 1 || r->n > INT32_MAX - 1)
        return qn_fail(QN_E_FORMAT, "%s: " TOKENS " has %lld entries", qn_gguf_path(r->g), (long long)r->n);
    r->types = qn_alloc_array((size_t)r->n, sizeof *r->types);
    r->tokens = qn_alloc_array((size_t)r->n, sizeof *r->tokens);
    r->goes_on = qn_calloc((size_t)r->n, sizeof *r->goes_on);
    if (!r->types || !r->tokens || !r->goes_on) return QN_E_NOMEM;
    for (int64_t i = 0; i < r->n; i++) r->types[i] = NORMAL;
    if (qn_gguf_value_find(r->g, types)) {
        QN_TRY(qn_gguf_get_array_count(r->g, types, &count));
        if (count != r->n)
            return qn_fail(QN_E_FORMAT, "%s: %s has %lld entries for %lld tokens", qn_gguf_path(r->g), types,
                           (long long)count, (long long)r->n);
        QN_TRY(qn_gguf_get_i64s(r->g, types, NORMAL, BYTE, r->n, r->types));
    }
    for (int64_t i = 0; i < r->n && qn_gguf_strings_next(&it, &r->tokens[i]); i++) respell(r, i);
    return QN_OK;
}

/* The first of the keys that names a token, else the token with that text. */
static qn_status read_id(const reader *r, const char *const *keys, const char *text, int32_t *out)
{
    *out = -1;
    for (; *keys && *out < 0; keys++) {
        int64_t id = -1;
        QN_TRY(qn_gguf_optional(qn_gguf_get_i64(r->g, *keys, -1, UINT32_MAX, &id)));
        if (id < 0 || id == UINT32_MAX) continue;
        if (id >= r->n)
            return qn_fail(QN_E_FORMAT, "%s: %s is %lld, the vocabulary has %lld tokens", qn_gguf_path(r->g),
                           *keys, (long long)id, (long long)r->n);
        *out = (int32_t)id;
    }
    for (int64_t i = 0; *out < 0 && i < r->n; i++)
        if (!r->goes_on[i] && r->tokens[i].length == strlen(text) &&
            memcmp(r->tokens[i].data, text, r->tokens[i].length) == 0)
            *out = (int32_t)i;
    return QN_OK;
}

static qn_status read_ids(reader *r)
{
    static const char bos[] = "tokenizer.ggml.bos_token_id", eos[] = "tokenizer.ggml.eos_token_id";
    static const char *const
        begins[] = {"tokenizer.ggml.cls_token_id", bos, NULL},
        *const starts[] = {bos, NULL},
        *const ends[] = {"tokenizer.ggml.seperator_token_id", "tokenizer.ggml.separator_token_id", eos, NULL},
        *const stops[] = {eos, NULL}, *const unks[] = {"tokenizer.ggml.unknown_token_id", NULL},
        *const pads[] = {"tokenizer.ggml.padding_token_id", NULL};
    QN_TRY(read_id(r, r->is_bert ? begins : starts, r->is_bert ? "[CLS]" : "<s>", &r->ids[BEGIN]));
    QN_TRY(read_id(r, r->is_bert ? ends : stops, r->is_bert ? "[SEP]" : "</s>", &r->ids[END]));
    QN_TRY(read_id(r, unks, r->is_bert ? "[UNK]" : "<unk>", &r->ids[UNK]));
    QN_TRY(read_id(r, pads, r->is_bert ? "[PAD]" : "<pad>", &r->ids[PAD]));
    if (r->ids[UNK] >= 0 && (!r->is_bert || (r->ids[BEGIN] >= 0 && r->ids[END] >= 0))) return QN_OK;
    return qn_fail(QN_E_FORMAT, "%s: tokenizer.ggml.model \"%s\" needs %s", qn_gguf_path(r->g),
                   r->is_bert ? "bert" : "t5",
                   r->ids[UNK] < 0 ? "tokenizer.ggml.unknown_token_id" : "tokens for [CLS] and [SEP]");
}

/* ---- writing ------------------------------------------------------------------------------------------- */

static void put_token(const reader *r, int64_t i, qn_buf *out)
{
    qn_buf text = {0};
    if (!r->goes_on[i]) {
        qn_json_text(out, r->tokens[i].data, r->tokens[i].length);
        return;
    }
    qn_buf_puts(&text, "##");
    qn_buf_append(&text, r->tokens[i].data, r->tokens[i].length);
    if (text.status == QN_OK) qn_json_text(out, text.data, text.length);
    if (text.status != QN_OK && out->status == QN_OK) out->status = text.status;
    qn_buf_free(&text);
}

static void put_added(const reader *r, qn_buf *out)
{
    qn_json_key(out, "added_tokens");
    qn_json_open(out, '[');
    for (int64_t i = 0; i < r->n; i++) {
        const int64_t type = r->types[i];
        if (type != CONTROL && type != UNKNOWN && type != USER_DEFINED) continue;
        const int strips = r->tokens[i].length == 6 && memcmp(r->tokens[i].data, "<mask>", 6) == 0;
        qn_json_open(out, '{');
        qn_json_put_int(out, "id", i);
        qn_json_key(out, "content");
        put_token(r, i, out);
        qn_json_put_bool(out, "single_word", 0);
        qn_json_put_bool(out, "lstrip", strips);
        qn_json_put_bool(out, "rstrip", 0);
        qn_json_put_bool(out, "normalized", 0);
        qn_json_put_bool(out, "special", type != USER_DEFINED);
        qn_json_close(out, '}');
    }
    qn_json_close(out, ']');
}

static void put_special(const reader *r, int32_t id, int type, qn_buf *out)
{
    if (id < 0) return;
    qn_json_open(out, '{');
    qn_json_key(out, "SpecialToken");
    qn_json_open(out, '{');
    qn_json_key(out, "id");
    put_token(r, id, out);
    qn_json_put_int(out, "type_id", type);
    qn_json_close(out, '}');
    qn_json_close(out, '}');
}

static void put_sequence(const char *name, int type, qn_buf *out)
{
    qn_json_open(out, '{');
    qn_json_key(out, "Sequence");
    qn_json_open(out, '{');
    qn_json_put_text(out, "id", name);
    qn_json_put_int(out, "type_id", type);
    qn_json_close(out, '}');
    qn_json_close(out, '}');
}

/* cls A sep B sep as BERT has it; of a pair of XLM-R the second text has a begin of its own, which is </s>. */
static void put_around(const reader *r, int32_t begin, int32_t end, qn_buf *out)
{
    const int type = r->is_bert;
    qn_json_key(out, "post_processor");
    qn_json_open(out, '{');
    qn_json_put_text(out, "type", "TemplateProcessing");
    for (int pair = 0; pair < 2; pair++) {
        qn_json_key(out, pair ? "pair" : "single");
        qn_json_open(out, '[');
        put_special(r, begin, 0, out);
        put_sequence("A", 0, out);
        put_special(r, end, 0, out);
        if (pair && !r->is_bert && begin >= 0) put_special(r, end, 0, out);
        if (pair) put_sequence("B", type, out);
        if (pair) put_special(r, end, type, out);
        qn_json_close(out, ']');
    }
    qn_json_key(out, "special_tokens");
    qn_json_open(out, '{');
    for (int i = 0; i < 2; i++) {
        const int32_t id = i ? end : begin;
        if (id < 0 || (i && end == begin)) continue;
        put_token(r, id, out);
        qn_buf_puts(out, ":{\"id\":");
        put_token(r, id, out);
        qn_buf_printf(out, ",\"ids\":[%d],\"tokens\":[", id);
        put_token(r, id, out);
        qn_buf_puts(out, "]}");
    }
    qn_buf_puts(out, "}}");
}

static int has_capitals(const reader *r)
{
    for (int64_t i = 0; i < r->n; i++) {
        if (r->types[i] != NORMAL || is_bracketed(&r->tokens[i])) continue;
        for (size_t k = 0; k < r->tokens[i].length; k++)
            if (r->tokens[i].data[k] >= 'A' && r->tokens[i].data[k] <= 'Z') return 1;
    }
    return 0;
}

static qn_status put_bert(const reader *r, qn_buf *out)
{
    put_around(r, r->ids[BEGIN], r->ids[END], out);
    qn_buf_printf(out,
                  ",\"normalizer\":{\"type\":\"BertNormalizer\",\"clean_text\":true,"
                  "\"handle_chinese_chars\":true,\"strip_accents\":null,\"lowercase\":%s},"
                  "\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},"
                  "\"decoder\":{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true},"
                  "\"model\":{\"type\":\"WordPiece\",\"continuing_subword_prefix\":\"##\","
                  "\"max_input_chars_per_word\":100,\"unk_token\":",
                  has_capitals(r) ? "false" : "true");
    put_token(r, r->ids[UNK], out);
    qn_buf_puts(out, ",\"vocab\":{");
    for (int64_t i = 0; i < r->n; i++) {
        put_token(r, i, out);
        qn_buf_printf(out, ":%lld", (long long)i);
    }
    qn_buf_puts(out, "}}");
    return out->status;
}

/* Nothing where the file has no map. */
static qn_status put_charsmap(const reader *r, qn_buf *out)
{
    static const char key[] = "tokenizer.ggml.precompiled_charsmap";
    const qn_gguf_value *v = qn_gguf_value_find(r->g, key);
    if (!v) return QN_OK;
    if (v->type != QN_GGUF_ARRAY || (v->element_type != QN_GGUF_U8 && v->element_type != QN_GGUF_I8))
        return qn_fail(QN_E_FORMAT, "%s: %s is not an array of bytes", qn_gguf_path(r->g), key);
    qn_buf_puts(out, "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"");
    qn_base64_encode(v->data, v->size_bytes, out);
    qn_buf_puts(out, "\"}");
    return out->status;
}

static qn_status put_scores(const reader *r, qn_buf *out)
{
    static const char key[] = "tokenizer.ggml.scores";
    int64_t count;
    QN_TRY(qn_gguf_get_array_count(r->g, key, &count));
    if (count != r->n)
        return qn_fail(QN_E_FORMAT, "%s: %s has %lld entries for %lld tokens", qn_gguf_path(r->g), key,
                       (long long)count, (long long)r->n);
    float *scores = qn_alloc_array((size_t)r->n, sizeof *scores);
    if (!scores) return QN_E_NOMEM;
    const qn_status status = qn_gguf_get_f32s(r->g, key, r->n, scores);
    for (int64_t i = 0; i < r->n && status == QN_OK; i++) {
        qn_buf_puts(out, i ? ",[" : "[");
        put_token(r, i, out);
        qn_buf_printf(out, ",%.9g]", (double)scores[i]);
    }
    qn_free(scores);
    return status == QN_OK ? out->status : status;
}

static qn_status put_t5(const reader *r, qn_buf *out)
{
    int add_begin = 0, add_end = 1, prefix = 1, squeeze = 1, has_bytes = 0;
    QN_TRY(qn_gguf_optional(qn_gguf_get_bool(r->g, "tokenizer.ggml.add_bos_token", &add_begin)));
    QN_TRY(qn_gguf_optional(qn_gguf_get_bool(r->g, "tokenizer.ggml.add_eos_token", &add_end)));
    QN_TRY(qn_gguf_optional(qn_gguf_get_bool(r->g, "tokenizer.ggml.add_space_prefix", &prefix)));
    QN_TRY(qn_gguf_optional(qn_gguf_get_bool(r->g, "tokenizer.ggml.remove_extra_whitespaces", &squeeze)));
    for (int64_t i = 0; i < r->n; i++) has_bytes |= r->types[i] == BYTE;
    put_around(r, add_begin ? r->ids[BEGIN] : -1, add_end ? r->ids[END] : -1, out);
    qn_buf_puts(out, ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[");
    QN_TRY(put_charsmap(r, out));
    const char *scheme = prefix ? "always" : "never";
    qn_buf_printf(out,
                  "]},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[%s{\"type\":\"Metaspace\","
                  "\"replacement\":\"%s\",\"prepend_scheme\":\"%s\",\"split\":true}]},"
                  "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[%s{\"type\":\"Metaspace\","
                  "\"replacement\":\"%s\",\"prepend_scheme\":\"%s\",\"split\":true}]},"
                  "\"model\":{\"type\":\"Unigram\",\"unk_id\":%d,\"byte_fallback\":%s,\"vocab\":[",
                  squeeze ? "{\"type\":\"WhitespaceSplit\"}," : "", mark, scheme,
                  has_bytes ? "{\"type\":\"ByteFallback\"}," : "", mark, scheme, r->ids[UNK],
                  has_bytes ? "true" : "false");
    QN_TRY(put_scores(r, out));
    qn_buf_puts(out, "]}");
    return out->status;
}

static qn_status write_all(reader *r, qn_buf *out)
{
    QN_TRY(read_tokens(r));
    QN_TRY(read_ids(r));
    qn_json_open(out, '{');
    put_added(r, out);
    QN_TRY(r->is_bert ? put_bert(r, out) : put_t5(r, out));
    qn_buf_puts(out, "}");
    return out->status;
}

qn_status qn_gguf_json_write(const qn_gguf *g, int32_t ids[4], qn_buf *out)
{
    reader r = {.g = g, .is_bert = is_model(g, "bert"), .ids = ids};
    const qn_status status = write_all(&r, out);
    qn_free(r.types);
    qn_free(r.tokens);
    qn_free(r.goes_on);
    return status;
}

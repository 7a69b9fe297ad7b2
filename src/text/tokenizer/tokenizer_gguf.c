/* A tokenizer from the metadata of a GGUF file: models "gpt2" (byte-level BPE with merges), "llama"
 * (SentencePiece: merges by score) and "gemma4" (BPE with merges over text whose spaces are U+2581).
 * Components are described in tokenizer.json's words; "bert" and "t5" become the text of one (files/gguf_json.h). */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/json/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "text/tokenizer/files/gguf_json.h"
#include "text/tokenizer/merges.h"
#include "text/tokenizer/split/gguf_pre.h"
#include "text/tokenizer/tokenizer_build.h"

enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5, BYTE = 6 };
typedef enum { GPT2, LLAMA, GEMMA4 } model_kind;

typedef struct {
    const qn_gguf *g;
    const char *path;
    qn_tokenizer *t;
    model_kind kind;
    const qn_gguf_pre *pre; /* NULL: none, or overridden */
    size_t n_tokens;
    int64_t *types; /* [n_tokens] */
    int phi3;       /* special tokens take the white space behind them; the file does not say so */
    int space_prefix;
} reader;

static qn_status read_types(reader *r)
{
    static const char key[] = "tokenizer.ggml.token_type";
    int64_t count;
    r->types = qn_alloc_array(r->n_tokens, sizeof *r->types);
    if (!r->types) return QN_E_NOMEM;
    if (!qn_gguf_value_find(r->g, key)) {
        for (size_t i = 0; i < r->n_tokens; i++) r->types[i] = NORMAL;
        return QN_OK;
    }
    QN_TRY(qn_gguf_get_array_count(r->g, key, &count));
    if (count != (int64_t)r->n_tokens)
        return qn_fail(QN_E_FORMAT, "%s: %s has %lld entries for %zu tokens", r->path, key, (long long)count,
                       r->n_tokens);
    return qn_gguf_get_i64s(r->g, key, NORMAL, BYTE, count, r->types);
}

static uint8_t flags_of(int64_t type)
{
    switch (type) {
    case UNKNOWN:
    case CONTROL:
        return QN_TOKEN_SPECIAL | QN_TOKEN_ADDED | QN_TOKEN_HIDDEN;
    case USER_DEFINED:
        return QN_TOKEN_ADDED;
    case BYTE:
        return QN_TOKEN_BYTE | QN_TOKEN_HIDDEN;
    default:
        return 0;
    }
}

static qn_status read_tokens(reader *r)
{
    static const char key[] = "tokenizer.ggml.tokens";
    qn_gguf_strings it;
    qn_gguf_string s;
    const qn_gguf_value *value = qn_gguf_value_find(r->g, key);
    QN_TRY(qn_gguf_get_strings(r->g, key, &it));
    if (it.left < 1 || it.left > INT32_MAX - 1)
        return qn_fail(QN_E_FORMAT, "%s: %s has %lld entries", r->path, key, (long long)it.left);
    r->n_tokens = (size_t)it.left;
    QN_TRY(read_types(r));
    QN_TRY(qn_vocab_init(&r->t->vocab, r->n_tokens, value->size_bytes));
    for (int32_t id = 0; qn_gguf_strings_next(&it, &s); id++) {
        uint8_t flags = flags_of(r->types[id]);
        if (r->types[id] == BYTE && qn_byte_token_value(s.data, s.length) < 0)
            return qn_fail(QN_E_FORMAT, "%s: token %d is a byte, but '%.*s' is not of the form <0x41>",
                           r->path, id, (int)(s.length < 100 ? s.length : 100), s.data);
        if (!s.length) { /* several tokens may be without text; none is ever found by it */
            QN_TRY(qn_vocab_add_text(&r->t->vocab, id, s.data, 0, flags));
            continue;
        }
        int32_t twin = qn_vocab_find(&r->t->vocab, s.data, s.length);
        if (twin >= 0)
            return qn_fail(QN_E_FORMAT, "%s: tokens %d and %d are both '%.*s'", r->path, twin, id,
                           (int)(s.length < 100 ? s.length : 100), s.data);
        QN_TRY(qn_vocab_add(&r->t->vocab, id, s.data, s.length, flags));
    }
    return QN_OK;
}

static qn_status read_merges(reader *r)
{
    static const char key[] = "tokenizer.ggml.merges";
    qn_merges merges = {.what = r->path, .vocab = &r->t->vocab, .bpe = r->t->bpe};
    qn_gguf_strings it;
    qn_gguf_string s;
    qn_status status = qn_gguf_get_strings(r->g, key, &it);
    for (uint32_t i = 0; status == QN_OK && qn_gguf_strings_next(&it, &s); i++) {
        const char *space = s.length > 1 ? memchr(s.data + 1, ' ', s.length - 1) : NULL;
        size_t n_left = space ? (size_t)(space - s.data) : 0;
        status = space ? qn_merges_add(&merges, s.data, n_left, space + 1, s.length - n_left - 1)
                       : qn_fail(QN_E_FORMAT, "%s: %s: entry %u is not two tokens with a space between them",
                                 r->path, key, i);
    }
    if (status == QN_OK) status = qn_merges_finish(&merges);
    qn_merges_free(&merges);
    return status;
}

static qn_status read_scores(reader *r)
{
    static const char key[] = "tokenizer.ggml.scores";
    int64_t count;
    QN_TRY(qn_gguf_get_array_count(r->g, key, &count));
    if (count != (int64_t)r->n_tokens)
        return qn_fail(QN_E_FORMAT, "%s: %s has %lld entries for %zu tokens", r->path, key, (long long)count,
                       r->n_tokens);
    float *scores = qn_alloc_array(r->n_tokens, sizeof *scores);
    if (!scores) return QN_E_NOMEM;
    qn_status status = qn_gguf_get_f32s(r->g, key, count, scores);
    if (status == QN_OK) status = qn_bpe_set_scores(r->t->bpe, scores, r->n_tokens);
    qn_free(scores);
    return status;
}

/* *id stays as it is when the key is missing or holds the "none" that some writers use. */
static qn_status read_id(const reader *r, const char *key, int32_t *id)
{
    int64_t value;
    qn_status status = qn_gguf_get_i64(r->g, key, -1, UINT32_MAX, &value);
    if (status == QN_E_NOT_FOUND) return QN_OK;
    QN_TRY(status);
    if (value < 0 || value == UINT32_MAX) return QN_OK;
    if (value >= (int64_t)r->n_tokens)
        return qn_fail(QN_E_FORMAT, "%s: %s is %lld, the vocabulary has %zu tokens", r->path, key,
                       (long long)value, r->n_tokens);
    *id = (int32_t)value;
    return QN_OK;
}

static qn_status read_special_ids(reader *r)
{
    qn_tokenizer *t = r->t;
    int32_t eot = -1, eom = -1;
    int known_bos = 0, add_bos = r->kind != GPT2 || (r->pre && r->pre->add_bos), add_eos = 0;
    if (r->kind == LLAMA && r->n_tokens > 2) { /* SentencePiece's own order */
        t->unk_id = 0;
        t->bos_id = 1;
        t->eos_id = 2;
    }
    QN_TRY(read_id(r, "tokenizer.ggml.bos_token_id", &t->bos_id));
    QN_TRY(read_id(r, "tokenizer.ggml.eos_token_id", &t->eos_id));
    QN_TRY(read_id(r, "tokenizer.ggml.unknown_token_id", &t->unk_id));
    QN_TRY(read_id(r, "tokenizer.ggml.padding_token_id", &t->pad_id));
    QN_TRY(read_id(r, "tokenizer.ggml.eot_token_id", &eot));
    QN_TRY(read_id(r, "tokenizer.ggml.eom_token_id", &eom));
    if (qn_gguf_value_find(r->g, "tokenizer.ggml.add_bos_token")) {
        QN_TRY(qn_gguf_get_bool(r->g, "tokenizer.ggml.add_bos_token", &add_bos));
        known_bos = add_bos;
    }
    if (r->kind == GEMMA4)
        add_bos = 1; /* files were written with false by mistake; the model does not work without */
    QN_TRY(qn_gguf_optional(qn_gguf_get_bool(r->g, "tokenizer.ggml.add_eos_token", &add_eos)));
    if ((known_bos && t->bos_id < 0) || (add_eos && t->eos_id < 0))
        return qn_fail(QN_E_FORMAT, "%s: tokenizer.ggml.add_%s_token is true, but there is no %s_token_id",
                       r->path, add_eos && t->eos_id < 0 ? "eos" : "bos",
                       add_eos && t->eos_id < 0 ? "eos" : "bos");
    if (add_bos && t->bos_id >= 0) qn_id_list_push(&t->prefix, t->bos_id);
    if (add_eos) qn_id_list_push(&t->suffix, t->eos_id);
    const int32_t ends[] = {t->eos_id, eot, eom};
    for (int i = 0; i < 3; i++) QN_TRY(qn_tokenizer_set_ids(t, -1, ends[i], -1, -1));
    t->eos_id = ends[0]; /* the last one set would stay */
    return t->prefix.status != QN_OK ? t->prefix.status : t->suffix.status;
}

static int name_has(const char *text, size_t n, const char *word)
{
    size_t length = strlen(word);
    for (size_t i = 0; i + length <= n; i++)
        if (strncasecmp(text + i, word, length) == 0) return 1;
    return 0;
}

static qn_status read_added(reader *r)
{
    static const char *const no_strip[] = {"<unk>", "<s>", "<|endoftext|>"};
    qn_gguf_string name;
    qn_status status = qn_gguf_get_string(r->g, "general.name", &name);
    if (status == QN_OK)
        r->phi3 = name_has(name.data, name.length, "phi-3") || name_has(name.data, name.length, "phi3");
    for (size_t i = 0; i < r->n_tokens; i++) {
        size_t n = 0;
        if (!(r->t->vocab.flags[i] & QN_TOKEN_ADDED)) continue;
        const char *text = qn_vocab_text(&r->t->vocab, (int32_t)i, &n);
        qn_added_token token = {.text = text, .n = (uint32_t)n, .id = (int32_t)i};
        token.special = (r->t->vocab.flags[i] & QN_TOKEN_SPECIAL) != 0;
        token.rstrip = (uint8_t)r->phi3;
        for (size_t j = 0; j < sizeof no_strip / sizeof no_strip[0]; j++)
            if (strlen(no_strip[j]) == n && memcmp(no_strip[j], text, n) == 0) token.rstrip = 0;
        QN_TRY(qn_tokenizer_add_token(r->t, &token, 0));
    }
    return QN_OK;
}

/* Names the pre-tokenizer of a byte-level vocabulary. */
static qn_status read_pre(reader *r, const qn_tokenizer_options *options)
{
    qn_gguf_string name = {"default", 7};
    if (r->kind != GPT2 || (options && options->pre_regexes)) return QN_OK;
    qn_status status = qn_gguf_get_string(r->g, "tokenizer.ggml.pre", &name);
    if (status == QN_E_NOT_FOUND || (status == QN_OK && !name.length)) {
        name = (qn_gguf_string){"default", 7};
        qn_log(QN_LOG_WARNING,
               "%s: tokenizer.ggml.pre is missing: the way to split words is not known, and answers may be "
               "worse",
               r->path);
    } else {
        QN_TRY(status);
    }
    r->pre = qn_gguf_pre_find(name.data, name.length);
    if (r->pre) return QN_OK;
    return qn_fail(QN_E_UNSUPPORTED,
                   "%s: tokenizer.ggml.pre \"%.*s\" is not known (put a tokenizer.json beside the file, or "
                   "give the split expression by --pre)",
                   r->path, (int)(name.length < 100 ? name.length : 100), name.data);
}

static qn_status build_pretokenizer(reader *r, const qn_tokenizer_options *options)
{
    if (r->kind != GPT2) return qn_pretokenizer_from_json(r->path, NULL, &r->t->pretokenizer);
    const char *const *regexes = r->pre ? r->pre->regexes : options->pre_regexes;
    json_t *value = qn_gguf_pre_json(regexes, r->pre ? QN_GGUF_PRE_REGEXES_MAX : options->n_pre_regexes);
    qn_status status =
        value ? qn_pretokenizer_from_json(r->path, value, &r->t->pretokenizer) : qn_fail_nomem(0);
    json_decref(value);
    return status;
}

static qn_status build_normalizer(reader *r)
{
    static const char mark[] = "\xe2\x96\x81";
    if (r->kind == GPT2) return qn_normalizer_from_json(r->path, NULL, &r->t->normalizer);
    json_t *replace =
        json_pack("{s:s,s:{s:s},s:s}", "type", "Replace", "pattern", "String", " ", "content", mark);
    json_t *value = r->space_prefix ? json_pack("{s:s,s:[{s:s,s:s},o]}", "type", "Sequence", "normalizers",
                                                "type", "Prepend", "prepend", mark, replace)
                                    : replace;
    qn_status status = value ? qn_normalizer_from_json(r->path, value, &r->t->normalizer) : qn_fail_nomem(0);
    json_decref(value);
    return status;
}

static qn_status read_kind(reader *r)
{
    static const struct {
        const char *name;
        model_kind kind;
    } kinds[] = {{"gpt2", GPT2}, {"llama", LLAMA}, {"gemma4", GEMMA4}};
    qn_gguf_string model;
    QN_TRY(qn_gguf_get_string(r->g, "tokenizer.ggml.model", &model));
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strlen(kinds[i].name) == model.length && memcmp(kinds[i].name, model.data, model.length) == 0) {
            r->kind = kinds[i].kind;
            return QN_OK;
        }
    return qn_fail(
        QN_E_UNSUPPORTED,
        "%s: tokenizer.ggml.model \"%.*s\" is not supported (known: gpt2, llama, gemma4, bert, t5)", r->path,
        (int)(model.length < 100 ? model.length : 100), model.data);
}

static qn_status build(reader *r, const qn_tokenizer_options *options)
{
    qn_tokenizer *t = r->t;
    QN_TRY(read_kind(r));
    QN_TRY(read_pre(r, options));
    QN_TRY(read_tokens(r));
    QN_TRY(read_special_ids(r));
    r->space_prefix = r->kind == LLAMA;
    if (r->kind == LLAMA)
        QN_TRY(qn_gguf_optional(qn_gguf_get_bool(r->g, "tokenizer.ggml.add_space_prefix", &r->space_prefix)));
    int64_t n_merges = 0;
    if (r->kind != LLAMA) QN_TRY(qn_gguf_get_array_count(r->g, "tokenizer.ggml.merges", &n_merges));
    qn_bpe_options o = {.unk_id = r->kind == GPT2 ? -1 : t->unk_id,
                        .byte_fallback = r->kind != GPT2,
                        .fuse_unk = 1,
                        .ignore_merges = r->pre && r->pre->ignore_merges,
                        .by_score = r->kind == LLAMA};
    QN_TRY(qn_bpe_new(&t->vocab, &o, (size_t)n_merges, &t->bpe));
    QN_TRY(r->kind == LLAMA ? read_scores(r) : read_merges(r));
    QN_TRY(build_normalizer(r));
    QN_TRY(build_pretokenizer(r, options));
    QN_TRY(qn_decoder_for_gguf(r->kind == GPT2, r->space_prefix, &t->decoder));
    QN_TRY(read_added(r));
    return qn_tokenizer_finish(t);
}

/* Of an encoder. */
static qn_status from_words(const qn_gguf *g, qn_tokenizer **out)
{
    int32_t ids[4];
    qn_buf text = {0};
    qn_tokenizer *t = NULL;
    qn_status status = qn_gguf_json_write(g, ids, &text);
    if (status == QN_OK) status = qn_tokenizer_from_json(qn_gguf_path(g), text.data, text.length, &t);
    qn_buf_free(&text);
    if (status == QN_OK) status = qn_tokenizer_set_ids(t, ids[0], ids[1], ids[2], ids[3]);
    if (status == QN_OK)
        *out = t;
    else
        qn_tokenizer_free(t);
    return status;
}

qn_status qn_tokenizer_from_gguf(const qn_gguf *g, const qn_tokenizer_options *options, qn_tokenizer **out)
{
    if (qn_gguf_json_has(g)) return from_words(g, out);
    reader r = {.g = g, .path = qn_gguf_path(g)};
    qn_status status = qn_tokenizer_new(r.path, &r.t);
    if (status == QN_OK) status = build(&r, options);
    qn_free(r.types);
    if (status != QN_OK) {
        qn_tokenizer_free(r.t);
        return status;
    }
    *out = r.t;
    return QN_OK;
}

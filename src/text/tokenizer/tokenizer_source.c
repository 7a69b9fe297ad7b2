#include "text/tokenizer/tokenizer_source.h"

#include <string.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "text/tokenizer/files/sentencepiece.h"
#include "text/tokenizer/files/tiktoken.h"
#include "text/tokenizer/files/vocab_files.h"
#include "text/tokenizer/named_tokens.h"
#include "text/tokenizer/tokenizer_build.h"

const char *qn_tokenizer_config_text(const json_t *value, size_t *n)
{
    if (json_is_object(value)) value = json_object_get(value, "content");
    *n = json_string_length(value);
    return json_string_value(value);
}

qn_status qn_tokenizer_config_read(qn_source *src, json_t **out)
{
    const char *path = qn_source_side_path(src, QN_SIDE_TOKENIZER_CONFIG), *text;
    size_t n;
    json_t *json = NULL;
    qn_status status = QN_OK;
    if (path) {
        QN_TRY(qn_source_side_text(src, QN_SIDE_TOKENIZER_CONFIG, &text, &n));
        status = qn_json_parse_python(path, text, n, &json);
        qn_source_side_drop(src, QN_SIDE_TOKENIZER_CONFIG);
        if (status == QN_OK && !json_is_object(json))
            status = qn_fail(QN_E_FORMAT, "%s: not a JSON object", path);
    } else if (!(json = json_object())) {
        status = qn_fail_nomem(sizeof *json);
    }
    if (status == QN_OK)
        *out = json;
    else
        json_decref(json);
    return status;
}

static int32_t find_token(const qn_tokenizer *t, const qn_named_tokens *named, const char *name)
{
    size_t n;
    const char *text = qn_tokenizer_config_text(json_object_get(named->names, name), &n);
    return text ? qn_tokenizer_find(t, text, n) : -1;
}

static qn_status name_tokens(const qn_named_tokens *named, qn_tokenizer *t)
{
    return qn_tokenizer_set_ids(t, find_token(t, named, "bos_token"), find_token(t, named, "eos_token"),
                                find_token(t, named, "unk_token"), find_token(t, named, "pad_token"));
}

/* Which files make a tokenizer where there is no tokenizer.json. */
typedef enum { FROM_NOTHING, FROM_VOCAB, FROM_MODEL, FROM_TIKTOKEN, FROM_VOCAB_TXT } source_files;

static source_files find_files(const qn_source *src)
{
    if (qn_vocab_files_are_there(src)) return FROM_VOCAB;
    if (qn_source_side_path(src, QN_SIDE_TOKENIZER_MODEL)) return FROM_MODEL;
    if (qn_source_side_path(src, QN_SIDE_TIKTOKEN)) return FROM_TIKTOKEN;
    return qn_source_side_path(src, QN_SIDE_VOCAB_TXT) ? FROM_VOCAB_TXT : FROM_NOTHING;
}

int qn_tokenizer_is_there(const qn_source *src)
{
    const qn_gguf *g = qn_source_gguf(src);
    return qn_source_side_path(src, QN_SIDE_TOKENIZER) || (!g && find_files(src)) ||
           (g && qn_gguf_value_find(g, "tokenizer.ggml.model"));
}

/* How the tokens of tokenizer.json fare against a GGUF file's list. Ids without a token on one side say
 * nothing: lists are filled up with names of their own. */
static qn_status compare_lists(const char *path, const qn_gguf *g, const qn_tokenizer *t, qn_buf *notes)
{
    qn_gguf_strings list;
    qn_gguf_string there;
    int64_t id = 0, n = 0, n_other = 0, first = -1;
    if (!qn_gguf_value_find(g, "tokenizer.ggml.tokens")) return QN_OK;
    QN_TRY(qn_gguf_get_strings(g, "tokenizer.ggml.tokens", &list));
    for (; id <= INT32_MAX && qn_gguf_strings_next(&list, &there); id++) {
        size_t length;
        const char *text = qn_tokenizer_token_text(t, (int32_t)id, &length);
        if (!text) continue;
        n++;
        if (length == there.length && memcmp(text, there.data, length) == 0) continue;
        if (n_other++ == 0) first = id;
    }
    /* A few renamed tokens are usual. */
    if (n_other <= n / 20) return QN_OK;
    qn_buf_printf(
        notes,
        "%s: %lld of %lld tokens differ from those in %s (the first is %lld). The file is used, but it may "
        "belong to another model; without it, the list in the GGUF file is used\n",
        path, (long long)n_other, (long long)n, qn_gguf_path(g), (long long)first);
    return notes->status;
}

qn_status qn_tokenizer_check(const qn_source *src, const qn_tokenizer *t, int64_t vocab_size, qn_buf *notes)
{
    const char *path = qn_source_side_path(src, QN_SIDE_TOKENIZER);
    const qn_gguf *g = qn_source_gguf(src);
    const char *where = path ? path : qn_source_path(src);
    for (int64_t id = vocab_size; id < (int64_t)qn_tokenizer_vocab_size(t); id++) {
        size_t n;
        const char *text = qn_tokenizer_token_text(t, (int32_t)id, &n);
        if (!text || qn_tokenizer_is_added(t, (int32_t)id)) continue;
        return qn_fail(QN_E_FORMAT,
                       "%s: token %lld \"%.*s\" is beyond the %lld rows of the model's embedding: the "
                       "tokenizer belongs to another model",
                       where, (long long)id, n < 40 ? (int)n : 40, text, (long long)vocab_size);
    }
    return path && g ? compare_lists(path, g, t, notes) : QN_OK;
}

/* Files of before there was a tokenizer.json, as rules around a vocabulary. */
static qn_status open_vocab(qn_source *src, json_t *config, qn_tokenizer **out)
{
    const char *path =
        qn_source_side_path(src, find_files(src) == FROM_VOCAB ? QN_SIDE_VOCAB : QN_SIDE_VOCAB_TXT);
    qn_named_tokens named = {0};
    qn_buf text = {0};
    qn_status status = find_files(src) == FROM_VOCAB ? qn_vocab_files_read(src, config, &text)
                                                     : qn_vocab_text_read(src, config, &text);
    if (status == QN_OK) status = qn_named_tokens_read(src, config, &named);
    if (status == QN_OK) status = qn_tokenizer_from_json_named(path, text.data, text.length, &named, out);
    if (status == QN_OK) status = name_tokens(&named, *out);
    if (status == QN_OK && find_files(src) == FROM_VOCAB_TXT)
        status = qn_tokenizer_set_bert(*out, find_token(*out, &named, "cls_token"),
                                       find_token(*out, &named, "sep_token"));
    qn_buf_free(&text);
    qn_named_tokens_free(&named);
    return status;
}

/* A file that is a whole tokenizer by itself. */
static qn_status open_model(qn_source *src, qn_side_file which, const json_t *config, qn_tokenizer **out)
{
    const char *path = qn_source_side_path(src, which), *text;
    size_t n;
    qn_named_tokens named = {0};
    QN_TRY(qn_source_side_text(src, which, &text, &n));
    qn_status status = qn_named_tokens_read(src, config, &named);
    const int has_config = qn_source_side_path(src, QN_SIDE_TOKENIZER_CONFIG) != NULL;
    if (status == QN_OK)
        status = qn_tiktoken_is(text, n)
                     ? qn_tiktoken_open(path, text, n, has_config ? config : NULL, &named, out)
                     : qn_sentencepiece_open(path, text, n, config, &named, out);
    qn_source_side_drop(src, which);
    qn_named_tokens_free(&named);
    return status;
}

static qn_status open_files(qn_source *src, const char *pre_regex, qn_tokenizer **out)
{
    const source_files kind = find_files(src);
    qn_tokenizer *t = NULL;
    json_t *config = NULL;
    if (pre_regex)
        return qn_fail(
            QN_E_ARG,
            "%s: the tokenizer has its own pre-tokenizer; only a GGUF file's can be replaced by a regex",
            qn_source_path(src));
    QN_TRY(qn_tokenizer_config_read(src, &config));
    qn_status status = kind == FROM_MODEL      ? open_model(src, QN_SIDE_TOKENIZER_MODEL, config, &t)
                       : kind == FROM_TIKTOKEN ? open_model(src, QN_SIDE_TIKTOKEN, config, &t)
                                               : open_vocab(src, config, &t);
    json_decref(config);
    if (status == QN_OK)
        *out = t;
    else
        qn_tokenizer_free(t);
    return status;
}

qn_status qn_tokenizer_open(qn_source *src, const char *pre_regex, qn_tokenizer **out)
{
    const char *path = qn_source_side_path(src, QN_SIDE_TOKENIZER), *text;
    size_t n;
    if (!path && !qn_source_gguf(src) && find_files(src)) return open_files(src, pre_regex, out);
    if (!path) {
        if (!qn_source_gguf(src))
            return qn_fail(QN_E_NOT_FOUND,
                           "%s: there is no tokenizer.json, nor vocab.json with merges.txt, tokenizer.model, "
                           "*.tiktoken or vocab.txt",
                           qn_source_path(src));
        qn_tokenizer_options options = {.pre_regexes = &pre_regex, .n_pre_regexes = pre_regex ? 1 : 0};
        return qn_tokenizer_from_gguf(qn_source_gguf(src), pre_regex ? &options : NULL, out);
    }
    if (pre_regex)
        return qn_fail(QN_E_ARG,
                       "%s has its own pre-tokenizer; only a GGUF file's can be replaced by a regex", path);
    qn_tokenizer *t = NULL;
    qn_named_tokens named = {0};
    json_t *config = NULL;
    QN_TRY(qn_tokenizer_config_read(src, &config));
    qn_status status = qn_named_tokens_read(src, config, &named);
    json_decref(config);
    if (status == QN_OK) status = qn_source_side_text(src, QN_SIDE_TOKENIZER, &text, &n);
    if (status == QN_OK) status = qn_tokenizer_from_json_named(path, text, n, &named, &t);
    qn_source_side_drop(src, QN_SIDE_TOKENIZER);
    if (status == QN_OK) status = name_tokens(&named, t);
    qn_named_tokens_free(&named);
    if (status == QN_OK)
        *out = t;
    else
        qn_tokenizer_free(t);
    return status;
}

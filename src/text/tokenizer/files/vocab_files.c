#include "text/tokenizer/files/vocab_files.h"

#include <stdio.h>
#include <string.h>

#include "base/json/json.h"
#include "base/json/json_write.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "text/tokenizer/split/unicode.h"
#include "text/tokenizer/tokenizer_source.h"

#define BYTE_LEVEL(use_regex) \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":" use_regex "}"

/* What stands around a vocabulary. */
typedef struct {
    const char *name;
    const char *rules;    /* the members of tokenizer.json but for the model */
    const char *named[5]; /* tokens that the class has by itself; all are <|endoftext|> */
    const char *types[8]; /* model_type of models with this class */
} tokenizer_class;

static const tokenizer_class classes[] = {
    {"GPT2Tokenizer",
     "\"normalizer\":null,\"pre_tokenizer\":" BYTE_LEVEL("true") ",\"decoder\":" BYTE_LEVEL("true"),
     {"bos_token", "eos_token", "unk_token", NULL},
     {"gpt2", "gpt_neo", "gptj", "phi", "starcoder2", "opt", NULL}},
    {"Qwen2Tokenizer",
     "\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{"
     "\"type\":\"Split\","
     "\"pattern\":{\"Regex\":\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}|"
     " "
     "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},\"behavior\":"
     "\"Isolated\","
     "\"invert\":false}," BYTE_LEVEL("false") "]},\"decoder\":" BYTE_LEVEL("true"),
     {"eos_token", "unk_token", "pad_token", NULL},
     {"qwen2", "qwen2_moe", "qwen3", "qwen3_moe", NULL}},
};
enum { N_CLASSES = sizeof classes / sizeof *classes };

int qn_vocab_files_are_there(const qn_source *src)
{
    return qn_source_side_path(src, QN_SIDE_VOCAB) && qn_source_side_path(src, QN_SIDE_MERGES);
}

static const tokenizer_class *find_class(const char *name)
{
    const size_t n = strlen(name), m = n > 4 && strcmp(name + n - 4, "Fast") == 0 ? n - 4 : n;
    for (int i = 0; i < N_CLASSES; i++)
        if (strlen(classes[i].name) == m && memcmp(classes[i].name, name, m) == 0) return &classes[i];
    return NULL;
}

static const tokenizer_class *find_type(const char *type)
{
    for (int i = 0; type && i < N_CLASSES; i++)
        for (const char *const *t = classes[i].types; *t; t++)
            if (strcmp(*t, type) == 0) return &classes[i];
    return NULL;
}

/* By what the files say; the name in messages into name. */
static qn_status choose_class(qn_source *src, const json_t *config, const tokenizer_class **out)
{
    const char *path = qn_source_side_path(src, QN_SIDE_CONFIG), *text,
               *said = json_string_value(json_object_get(config, "tokenizer_class"));
    json_t *model = NULL;
    size_t n;
    if (said) {
        *out = find_class(said);
        return *out ? QN_OK
                    : qn_fail(QN_E_UNSUPPORTED,
                              "%s: a tokenizer of the class %.60s without a tokenizer.json is not supported "
                              "(known: "
                              "GPT2Tokenizer, Qwen2Tokenizer): save it again with transformers",
                              qn_source_side_path(src, QN_SIDE_VOCAB), said);
    }
    if (path) {
        QN_TRY(qn_source_side_text(src, QN_SIDE_CONFIG, &text, &n));
        QN_TRY(qn_json_parse_python(path, text, n, &model));
    }
    *out = find_type(json_string_value(json_object_get(model, "model_type")));
    json_decref(model);
    return *out ? QN_OK
                : qn_fail(QN_E_UNSUPPORTED,
                          "%s: neither tokenizer_class in tokenizer_config.json nor model_type in "
                          "config.json says how "
                          "the vocabulary is used: save the tokenizer again with transformers",
                          qn_source_side_path(src, QN_SIDE_VOCAB));
}

static qn_status put_merges(const char *path, const char *text, size_t n, qn_buf *out)
{
    int64_t line = 1;
    qn_json_open(out, '[');
    for (size_t at = 0; at < n; line++) {
        const char *begin = text + at, *newline = memchr(begin, '\n', n - at);
        size_t length = newline ? (size_t)(newline - begin) : n - at;
        at += length + 1;
        if (length && begin[length - 1] == '\r') length--;
        if (length >= 8 && memcmp(begin, "#version", 8) == 0) continue;
        const char *space = length ? memchr(begin, ' ', length) : NULL;
        if (!space || memchr(space + 1, ' ', length - (size_t)(space + 1 - begin)))
            return qn_fail(QN_E_FORMAT, "%s: line %lld: not two tokens with a space between them", path,
                           (long long)line);
        if (qn_utf8_valid_prefix(begin, length) != length)
            return qn_fail(QN_E_FORMAT, "%s: line %lld: not valid UTF-8", path, (long long)line);
        qn_json_text(out, begin, length);
    }
    qn_json_close(out, ']');
    return out->status;
}

qn_status qn_vocab_files_join(const char *tokenizer_class_name, const char *vocab, size_t n_vocab,
                              const char *merges_path, const char *merges, size_t n_merges, qn_buf *out)
{
    const tokenizer_class *c = find_class(tokenizer_class_name);
    if (!c) return qn_fail(QN_E_UNSUPPORTED, "the class %.60s is not known", tokenizer_class_name);
    qn_buf list = {0};
    qn_status status = put_merges(merges_path, merges, n_merges, &list);
    qn_buf_printf(
        out,
        "{\"added_tokens\":[],\"post_processor\":null,%s,\"model\":{\"type\":\"BPE\",\"vocab\":", c->rules);
    qn_buf_append(out, vocab, n_vocab);
    qn_buf_puts(out, ",\"merges\":");
    if (status == QN_OK) qn_buf_append(out, list.data, list.length);
    qn_buf_puts(out, "}}");
    qn_buf_free(&list);
    return status == QN_OK ? out->status : status;
}

qn_status qn_vocab_files_read(qn_source *src, json_t *config, qn_buf *out)
{
    const tokenizer_class *c = NULL;
    const char *vocab, *merges;
    size_t n_vocab, n_merges;
    QN_TRY(choose_class(src, config, &c));
    if (json_is_true(json_object_get(config, "add_prefix_space")))
        return qn_fail(QN_E_UNSUPPORTED, "%s: add_prefix_space without a tokenizer.json is not supported",
                       qn_source_side_path(src, QN_SIDE_VOCAB));
    for (const char *const *name = c->named; *name; name++)
        if (!json_object_get(config, *name) &&
            json_object_set_new(config, *name, json_string("<|endoftext|>")))
            return qn_fail_nomem(sizeof *config);
    QN_TRY(qn_source_side_text(src, QN_SIDE_VOCAB, &vocab, &n_vocab));
    QN_TRY(qn_source_side_text(src, QN_SIDE_MERGES, &merges, &n_merges));
    qn_status status = qn_vocab_files_join(c->name, vocab, n_vocab, qn_source_side_path(src, QN_SIDE_MERGES),
                                           merges, n_merges, out);
    qn_source_side_drop(src, QN_SIDE_VOCAB);
    qn_source_side_drop(src, QN_SIDE_MERGES);
    return status;
}

/* ---- vocab.txt ----------------------------------------------------------------------------------------- */

static size_t trimmed(const char *line, size_t n)
{
    uint32_t cp;
    while (n) {
        size_t at = n - 1;
        while (at && ((uint8_t)line[at] & 0xc0) == 0x80) at--;
        if (qn_utf8_decode(line + at, n - at, &cp) != n - at || !qn_cp_is_space(cp)) break;
        n = at;
    }
    return n;
}

/* A line is a token and its number the id; of a text given twice the last counts. */
static qn_status put_lines(const char *path, const char *text, size_t n, qn_buf *out)
{
    qn_map *last = qn_map_new(1024);
    int64_t id = 0, found, n_put = 0;
    if (!last) return QN_E_NOMEM;
    if (qn_utf8_valid_prefix(text, n) != n) {
        qn_map_free(last);
        return qn_fail(QN_E_FORMAT, "%s: not valid UTF-8", path);
    }
    qn_status status = QN_OK;
    for (int put = 0; put < 2; put++, id = 0) {
        for (size_t at = 0; at < n && status == QN_OK; id++) {
            const char *line = text + at, *newline = memchr(line, '\n', n - at);
            const size_t length = newline ? (size_t)(newline - line) : n - at, kept = trimmed(line, length);
            at += length + 1;
            if (!put) status = qn_map_set(last, line, kept, id, NULL, NULL);
            if (!put || !qn_map_get(last, line, kept, &found) || found != id) continue;
            qn_buf_puts(out, n_put++ ? "," : "");
            qn_buf_json_string(out, line, kept);
            qn_buf_printf(out, ":%lld", (long long)id);
        }
    }
    qn_map_free(last);
    return status == QN_OK ? out->status : status;
}

static int flag_of(const json_t *config, const char *key, int missing)
{
    const json_t *value = json_object_get(config, key);
    return json_is_boolean(value) ? json_is_true(value) : missing;
}

qn_status qn_vocab_text_join(const char *path, const char *text, size_t n, const json_t *config, qn_buf *out)
{
    const json_t *accents = json_object_get(config, "strip_accents");
    size_t n_unk;
    const char *unk = qn_tokenizer_config_text(json_object_get(config, "unk_token"), &n_unk);
    qn_buf_printf(out,
                  "{\"added_tokens\":[],\"normalizer\":{\"type\":\"BertNormalizer\",\"clean_text\":true,"
                  "\"handle_chinese_chars\":%s,\"strip_accents\":%s,\"lowercase\":%s},"
                  "\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},"
                  "\"decoder\":{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true},"
                  "\"model\":{\"type\":\"WordPiece\",\"continuing_subword_prefix\":\"##\","
                  "\"max_input_chars_per_word\":100,\"unk_token\":",
                  flag_of(config, "tokenize_chinese_chars", 1) ? "true" : "false",
                  !json_is_boolean(accents) ? "null"
                  : json_is_true(accents)   ? "true"
                                            : "false",
                  flag_of(config, "do_lower_case", 1) ? "true" : "false");
    qn_buf_json_string(out, unk ? unk : "[UNK]", unk ? n_unk : 5);
    qn_buf_puts(out, ",\"vocab\":{");
    QN_TRY(put_lines(path, text, n, out));
    qn_buf_puts(out, "}}}");
    return out->status;
}

qn_status qn_vocab_text_read(qn_source *src, json_t *config, qn_buf *out)
{
    static const char *const names[][2] = {{"unk_token", "[UNK]"},
                                           {"sep_token", "[SEP]"},
                                           {"pad_token", "[PAD]"},
                                           {"cls_token", "[CLS]"},
                                           {"mask_token", "[MASK]"}};
    static const char *const classes_of_bert[] = {"BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"};
    const char *path = qn_source_side_path(src, QN_SIDE_VOCAB_TXT), *text,
               *said = json_string_value(json_object_get(config, "tokenizer_class"));
    const size_t n_said = said ? strlen(said) : 0,
                 n_class = n_said > 4 && strcmp(said + n_said - 4, "Fast") == 0 ? n_said - 4 : n_said;
    int known = !said;
    size_t n;
    for (size_t i = 0; i < sizeof classes_of_bert / sizeof *classes_of_bert; i++)
        known |= strlen(classes_of_bert[i]) == n_class && memcmp(classes_of_bert[i], said, n_class) == 0;
    if (!known)
        return qn_fail(
            QN_E_UNSUPPORTED,
            "%s: a tokenizer of the class %.60s without a tokenizer.json is not supported (known: "
            "BertTokenizer, DistilBertTokenizer, ElectraTokenizer): save it again with transformers",
            path, said);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!json_object_get(config, names[i][0]) &&
            json_object_set_new(config, names[i][0], json_string(names[i][1])))
            return qn_fail_nomem(sizeof *config);
    QN_TRY(qn_source_side_text(src, QN_SIDE_VOCAB_TXT, &text, &n));
    qn_status status = qn_vocab_text_join(path, text, n, config, out);
    qn_source_side_drop(src, QN_SIDE_VOCAB_TXT);
    return status;
}

#include "text/tokenizer/named_tokens.h"

#include <stdlib.h>
#include <string.h>

#include "base/json/json.h"
#include "base/mem.h"

static const char *const standard[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                       "pad_token", "cls_token", "mask_token"};
enum { STANDARD_COUNT = sizeof standard / sizeof *standard };

typedef struct {
    const char *path;      /* of the file that is read now */
    json_t *words;         /* the keys of tokenizer_config.json, and what replaces them */
    json_t *found, *given; /* further named tokens: found by the end of their keys, given by an object */
    qn_named_tokens *out;
} reader;

int qn_named_token_get(const json_t *value, qn_named_token *out)
{
    const json_t *content = json_is_object(value) ? json_object_get(value, "content") : value;
    if (!json_is_string(content)) return 0;
    *out = (qn_named_token){.text = json_string_value(content), .n = json_string_length(content)};
    const json_t *normalized = json_object_get(value, "normalized");
    out->special = !json_is_object(value) || json_is_true(json_object_get(value, "special"));
    out->single_word = json_is_true(json_object_get(value, "single_word"));
    out->lstrip = json_is_true(json_object_get(value, "lstrip"));
    out->rstrip = json_is_true(json_object_get(value, "rstrip"));
    out->normalized = normalized ? json_is_true(normalized) : !out->special;
    return 1;
}

static int is_standard(const char *name)
{
    for (int i = 0; i < STANDARD_COUNT; i++)
        if (strcmp(name, standard[i]) == 0) return 1;
    return 0;
}

static int is_name(const char *key)
{
    size_t n = strlen(key);
    return n > 6 && strcmp(key + n - 6, "_token") == 0;
}

static int is_token(const json_t *value)
{
    qn_named_token token;
    return qn_named_token_get(value, &token);
}

/* Stands for Python's "not value". */
static int is_nothing(const json_t *value)
{
    return !value || json_is_null(value) || json_is_false(value) ||
           (json_is_array(value) && !json_array_size(value)) ||
           (json_is_object(value) && !json_object_size(value));
}

static qn_status set(json_t *object, const char *key, json_t *value)
{
    return json_object_set(object, key, value) ? qn_fail_nomem(sizeof *value) : QN_OK;
}

static qn_status append(json_t *array, json_t *value)
{
    return json_array_append(array, value) ? qn_fail_nomem(sizeof *value) : QN_OK;
}

/* The keys of tokenizer_config.json that are names of tokens beyond the usual ones. Its texts win over
 * special_tokens_map.json. */
static qn_status take_texts(reader *r)
{
    const char *key;
    json_t *value;
    void *next;
    json_object_foreach_safe(r->words, next, key, value)
    {
        if (!is_name(key) || is_standard(key) || !json_is_string(value)) continue;
        QN_TRY(set(r->given, key, value));
        json_object_del(r->words, key);
    }
    return QN_OK;
}

static qn_status take_found(reader *r)
{
    const char *key;
    json_t *value;
    json_object_foreach(r->words, key, value)
    {
        if (is_name(key) && !is_standard(key) && is_token(value)) QN_TRY(set(r->found, key, value));
    }
    return QN_OK;
}

/* Those of an object `extra_special_tokens`. */
static qn_status take_given(reader *r)
{
    const char *key;
    json_t *value, *extra = json_object_get(r->words, "extra_special_tokens");
    if (!json_is_object(extra)) return QN_OK;
    json_object_foreach(extra, key, value)
    {
        if (!is_token(value))
            return qn_fail(QN_E_FORMAT, "%s: extra_special_tokens.%s: not a token", r->path, key);
        QN_TRY(set(r->given, key, value));
    }
    json_object_del(r->words, "extra_special_tokens");
    return QN_OK;
}

static qn_status take_decoder(reader *r, const json_t *decoder)
{
    const char *key;
    json_t *value;
    if (!json_is_object(decoder))
        return qn_fail(QN_E_FORMAT, "%s: added_tokens_decoder: not an object", r->path);
    json_object_foreach((json_t *)decoder, key, value)
    {
        char *end = NULL;
        long long index = strtoll(key, &end, 10);
        if (!*key || *end)
            return qn_fail(QN_E_FORMAT, "%s: added_tokens_decoder: \"%s\" is not a token id", r->path, key);
        if (!json_is_object(value) || !is_token(value))
            return qn_fail(QN_E_FORMAT, "%s: added_tokens_decoder.%s: not an object with \"content\"",
                           r->path, key);
        json_t *row = json_pack("{s:I,s:O}", "index", (json_int_t)index, "token", value);
        if (!row || json_array_append_new(r->out->listed, row)) return qn_fail_nomem(sizeof *row);
    }
    return QN_OK;
}

/* ---- the older files ----------------------------------------------------------------------------------- */

/* *out NULL: there is no such file. */
static qn_status read_side(reader *r, qn_source *src, qn_side_file which, json_t **out)
{
    const char *path = qn_source_side_path(src, which), *text;
    size_t n;
    if (!path) return QN_OK;
    QN_TRY(qn_source_side_text(src, which, &text, &n));
    json_t *json = NULL;
    qn_status status = qn_json_parse_python(path, text, n, &json);
    qn_source_side_drop(src, which);
    QN_TRY(status);
    if (!json_is_object(json)) {
        json_decref(json);
        return qn_fail(QN_E_FORMAT, "%s: not a JSON object", path);
    }
    r->path = path;
    *out = json;
    return QN_OK;
}

/* A token of special_tokens_map.json is special, whatever it says itself. *out: a new reference. */
static qn_status as_special(json_t *value, json_t **out)
{
    json_t *copy = json_is_object(value) ? qn_json_copy(value) : json_incref(value);
    if (!copy || (json_is_object(value) && json_object_set_new(copy, "special", json_true()))) {
        json_decref(copy);
        return qn_fail_nomem(sizeof *copy);
    }
    *out = copy;
    return QN_OK;
}

/* A list there goes on where that of tokenizer_config.json ends. */
static qn_status join_extra(reader *r, const json_t *list)
{
    const json_t *had = json_object_get(r->words, "extra_special_tokens");
    json_t *joined = json_array(), *value, *each = NULL;
    size_t i;
    qn_status status = joined ? QN_OK : qn_fail_nomem(sizeof *joined);
    if (status == QN_OK && json_is_array(had) && json_array_extend(joined, (json_t *)had))
        status = qn_fail_nomem(sizeof *joined);
    json_array_foreach((json_t *)list, i, value)
    {
        if (status == QN_OK) status = as_special(value, &each);
        if (status == QN_OK && json_array_append_new(joined, each)) status = qn_fail_nomem(sizeof *each);
    }
    if (status == QN_OK) status = set(r->words, "extra_special_tokens", joined);
    json_decref(joined);
    return status;
}

static qn_status take_map(reader *r, const json_t *map)
{
    const char *key;
    json_t *value, *token;
    json_object_foreach((json_t *)map, key, value)
    {
        if (strcmp(key, "extra_special_tokens") == 0 && json_is_array(value)) {
            QN_TRY(join_extra(r, value));
        } else if (json_is_object(value) && strcmp(key, "extra_special_tokens") != 0) {
            QN_TRY(as_special(value, &token));
            if (json_object_set_new(r->words, key, token)) return qn_fail_nomem(sizeof *token);
        } else {
            QN_TRY(set(r->words, key, value));
        }
    }
    return QN_OK;
}

static int has_text(const json_t *value, const char *text, size_t n)
{
    qn_named_token token;
    return qn_named_token_get(value, &token) && token.n == n && memcmp(token.text, text, n) == 0;
}

static int is_named_special(const reader *r, const char *text, size_t n)
{
    const json_t *extra = json_object_get(r->words, "extra_special_tokens"), *value;
    size_t i;
    for (i = 0; i < STANDARD_COUNT; i++)
        if (has_text(json_object_get(r->words, standard[i]), text, n)) return 1;
    json_array_foreach(extra, i, value) if (has_text(value, text, n)) return 1;
    return 0;
}

/* added_tokens.json: text -> id. */
static qn_status take_added(reader *r, const json_t *added)
{
    enum { LOOKS_MAX = 1 << 24 };
    const char *key;
    size_t n, n_extra = json_array_size(json_object_get(r->words, "extra_special_tokens"));
    json_t *value;
    if (n_extra && json_object_size(added) > LOOKS_MAX / n_extra)
        return qn_fail(QN_E_UNSUPPORTED, "%s: %zu tokens are too many", r->path, json_object_size(added));
    json_object_keylen_foreach((json_t *)added, key, n, value)
    {
        if (!json_is_integer(value))
            return qn_fail(QN_E_FORMAT, "%s: \"%s\": the id is not an integer", r->path, key);
        int special = is_named_special(r, key, n);
        json_t *row = json_pack("{s:O,s:{s:s%,s:b,s:b}}", "index", value, "token", "content", key, n,
                                "special", special, "normalized", !special);
        if (!row || json_array_append_new(r->out->listed, row)) return qn_fail_nomem(sizeof *row);
    }
    return QN_OK;
}

static qn_status take_legacy(reader *r, qn_source *src)
{
    json_t *map = NULL, *added = NULL;
    r->out->is_legacy = 1;
    qn_status status = read_side(r, src, QN_SIDE_SPECIAL_TOKENS_MAP, &map);
    if (status == QN_OK && map) status = take_map(r, map);
    if (status == QN_OK && map) status = take_given(r);
    if (status == QN_OK) status = read_side(r, src, QN_SIDE_ADDED_TOKENS, &added);
    if (status == QN_OK && added) status = take_added(r, added);
    json_decref(map);
    json_decref(added);
    if (status == QN_OK) r->path = r->out->path;
    return status;
}

/* ---- all together -------------------------------------------------------------------------------------- */

static qn_status take_names(reader *r)
{
    const char *key;
    json_t *value;
    for (int i = 0; i < STANDARD_COUNT; i++) {
        value = json_object_get(r->words, standard[i]);
        if (!value || json_is_null(value)) continue;
        if (!is_token(value))
            return qn_fail(QN_E_FORMAT, "%s: %s: neither a text nor a token with \"content\"", r->path,
                           standard[i]);
        QN_TRY(set(r->out->names, standard[i], value));
    }
    json_object_foreach(r->found, key, value) QN_TRY(set(r->out->names, key, value));
    json_object_foreach(r->given, key, value) QN_TRY(set(r->out->names, key, value));
    return QN_OK;
}

static qn_status take_extra(reader *r)
{
    json_t *extra = json_object_get(r->words, "extra_special_tokens"), *value;
    const char *key = "extra_special_tokens";
    size_t i;
    if (!extra) {
        key = "additional_special_tokens";
        extra = json_object_get(r->words, key);
    }
    if (!extra || json_is_null(extra)) return QN_OK;
    if (!json_is_array(extra)) return qn_fail(QN_E_FORMAT, "%s: %s: not a list", r->path, key);
    json_array_foreach(extra, i, value)
    {
        if (!is_token(value)) return qn_fail(QN_E_FORMAT, "%s: %s[%zu]: not a token", r->path, key, i);
        QN_TRY(append(r->out->extra, value));
    }
    return QN_OK;
}

static qn_status read_all(reader *r, qn_source *src, const json_t *config)
{
    json_t *additional = json_object_get(r->words, "additional_special_tokens");
    if (additional && is_nothing(json_object_get(r->words, "extra_special_tokens"))) {
        QN_TRY(set(r->words, "extra_special_tokens", additional));
        json_object_del(r->words, "additional_special_tokens");
    }
    QN_TRY(take_texts(r));
    QN_TRY(take_given(r));
    const json_t *decoder = json_object_get(config, "added_tokens_decoder");
    if (decoder)
        QN_TRY(take_decoder(r, decoder));
    else
        QN_TRY(take_legacy(r, src));
    QN_TRY(take_found(r));
    QN_TRY(take_names(r));
    return take_extra(r);
}

qn_status qn_named_tokens_read(qn_source *src, const json_t *config, qn_named_tokens *out)
{
    const char *path = qn_source_side_path(src, QN_SIDE_TOKENIZER_CONFIG);
    *out = (qn_named_tokens){.path = path ? path : "tokenizer_config.json",
                             .names = json_object(),
                             .listed = json_array(),
                             .extra = json_array()};
    reader r = {.path = out->path,
                .words = qn_json_copy(config),
                .found = json_object(),
                .given = json_object(),
                .out = out};
    qn_status status = out->names && out->listed && out->extra && r.words && r.found && r.given
                           ? read_all(&r, src, config)
                           : qn_fail_nomem(sizeof *out->names);
    json_decref(r.words);
    json_decref(r.found);
    json_decref(r.given);
    return status;
}

void qn_named_tokens_free(qn_named_tokens *t)
{
    json_decref(t->names);
    json_decref(t->listed);
    json_decref(t->extra);
    *t = (qn_named_tokens){0};
}

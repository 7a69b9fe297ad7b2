/* Reading a tokenizer.json: its model and its added tokens by a pull parser in one pass, the small components
 * as trees. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/checked.h"
#include "base/json/json.h"
#include "base/json/json_pull.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "text/tokenizer/named_tokens.h"
#include "text/tokenizer/post_json.h"
#include "text/tokenizer/tokenizer_build.h"
#include "text/tokenizer/tokenizer_model_json.h"

enum {
    IDS_SPARE = 1 << 16, /* holes that a vocabulary may have beyond four times its size */
};

typedef struct {
    qn_named_token token, first; /* first: as tokenizer.json has it */
    int64_t index;               /* the id that tokenizer.json says, which may differ from the vocabulary's */
    int32_t id;
    int is_plain; /* named by its text alone */
} added_row;

typedef struct {
    const char *what, *text;
    qn_tokenizer *t;
    int64_t ids_limit; /* added tokens have ids below it: memory for the holes is bounded by the size of the
                          file */
    /* Text of the components, as found; data NULL: missing. */
    qn_json_text normalizer, pre_tokenizer, post_processor, decoder, added_tokens;
    qn_model_json model;
    /* Added tokens, until all that is said of them is known. */
    const qn_named_tokens *named;    /* NULL: none */
    const qn_tokenizer_parts *parts; /* NULL: the model is in the file */
    qn_arena arena;
    added_row *rows;
    size_t n_rows, rows_capacity;
    qn_map *row_of, *is_named; /* by text: place in rows; the text is one that a name stands for */
    int64_t n_model_tokens;
    int32_t id_max; /* of added tokens */
} reader;

static void open_part(const reader *r, qn_json_text part, qn_json_pull *p)
{
    qn_json_pull_part(p, r->what, r->text, part);
}

static int shown(size_t n)
{
    return (int)(n < 100 ? n : 100);
}

/* ---- components ---------------------------------------------------------------------------------------- */

/* *out NULL: missing or null. */
static qn_status parse_component(const reader *r, qn_json_text text, json_t **out)
{
    *out = NULL;
    if (!text.data || qn_json_text_is(text, "null")) return QN_OK;
    return qn_json_parse(r->what, text.data, text.n, out);
}

static const char space_replaced[] =
    "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\xe2\x96\x81\"},"
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xe2\x96\x81\"}]}";
static const char space_decoder[] = "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{"
                                    "\"String\":\"\xe2\x96\x81\"},\"content\":\" \"},"
                                    "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\","
                                    "\"content\":\" \",\"start\":1,\"stop\":0}]}";
static const char byte_level[] = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}";

static qn_json_text literal(const char *s)
{
    return (qn_json_text){s, strlen(s)};
}

static int missing(qn_json_text text)
{
    return !text.data || qn_json_text_is(text, "null");
}

static int contains(qn_json_text text, const char *word)
{
    return text.data && memmem(text.data, text.n, word, strlen(word)) != NULL;
}

/* Where the file has no rule at all its vocabulary tells the style; a missing decoder follows the rules that
 * are there. */
static void supply_missing_rules(reader *r)
{
    /* The rules are for BPE; other models have always been written with theirs. */
    int no_rule =
        r->t->bpe && !r->parts && missing(r->normalizer) && missing(r->pre_tokenizer) && missing(r->decoder);
    int byte_style = qn_vocab_find(&r->t->vocab, "\xc4\xa0the", 5) >= 0;
    if (no_rule) {
        if (byte_style)
            r->pre_tokenizer = literal(byte_level);
        else
            r->normalizer = literal(space_replaced);
        r->decoder = literal(byte_style ? byte_level : space_decoder);
    } else if (missing(r->decoder)) {
        if (contains(r->pre_tokenizer, "\"ByteLevel\"") || contains(r->normalizer, "\"ByteLevel\""))
            r->decoder = literal(byte_level);
        else if (contains(r->normalizer, "\"Prepend\"") || contains(r->pre_tokenizer, "\"Metaspace\""))
            r->decoder = literal(space_decoder);
    }
}

static qn_status build_components(reader *r)
{
    qn_tokenizer *t = r->t;
    json_t *v = NULL;
    supply_missing_rules(r);
    qn_status status;
    if (!t->normalizer) {
        QN_TRY(parse_component(r, r->normalizer, &v));
        status = qn_normalizer_from_json(r->what, v, &t->normalizer);
        json_decref(v);
        QN_TRY(status);
    }
    QN_TRY(parse_component(r, r->pre_tokenizer, &v));
    status = qn_pretokenizer_from_json(r->what, v, &t->pretokenizer);
    json_decref(v);
    QN_TRY(status);
    if (t->decoder) return QN_OK;
    QN_TRY(parse_component(r, r->decoder, &v));
    status = qn_decoder_from_json(r->what, v, &t->decoder);
    json_decref(v);
    return status;
}

/* ---- added tokens -------------------------------------------------------------------------------------- */

static added_row *find_row(const reader *r, const char *text, size_t n)
{
    int64_t i;
    return qn_map_get(r->row_of, text, n, &i) ? &r->rows[i] : NULL;
}

/* Gives the token its flags. A token that was special stays so. index: where the file put it. */
static qn_status put_row(reader *r, const qn_named_token *token, int32_t id, int64_t index)
{
    added_row *row = find_row(r, token->text, token->n);
    if (!row) {
        if (r->n_rows == r->rows_capacity) {
            size_t capacity = r->rows_capacity ? r->rows_capacity * 2 : 64, bytes;
            added_row *rows = qn_mul_size(capacity, sizeof *rows, &bytes) ? qn_realloc(r->rows, bytes) : NULL;
            if (!rows) return QN_E_NOMEM;
            r->rows = rows;
            r->rows_capacity = capacity;
        }
        char *text = qn_arena_strndup(&r->arena, token->text, token->n);
        if (!text) return QN_E_NOMEM;
        QN_TRY(qn_map_set(r->row_of, text, token->n, (int64_t)r->n_rows, NULL, NULL));
        row = &r->rows[r->n_rows++];
        *row = (added_row){.token = {.text = text, .n = token->n}, .index = index};
    }
    const int was_special = row->token.special;
    const char *text = row->token.text;
    row->token = *token;
    row->token.text = text;
    row->token.special |= was_special;
    row->id = id;
    if (id > r->id_max) r->id_max = id;
    return QN_OK;
}

static qn_status read_added_token(reader *r, qn_json_pull *p, qn_buf *content)
{
    qn_named_token token = {.normalized = -1};
    int more, has_content = 0;
    qn_json_text key, s;
    int64_t id = -1;
    const struct {
        const char *name;
        int *value;
    } flags[] = {{"special", &token.special},
                 {"single_word", &token.single_word},
                 {"lstrip", &token.lstrip},
                 {"rstrip", &token.rstrip},
                 {"normalized", &token.normalized}};
    QN_TRY(qn_json_pull_enter(p, '{'));
    for (;;) {
        QN_TRY(qn_json_pull_key(p, &more, &key));
        if (!more) break;
        int *flag = NULL;
        for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
            if (qn_json_text_is(key, flags[i].name)) flag = flags[i].value;
        if (flag) {
            QN_TRY(qn_json_pull_bool(p, flag));
        } else if (qn_json_text_is(key, "id")) {
            QN_TRY(qn_json_pull_i64(p, 0, r->ids_limit, &id));
        } else if (qn_json_text_is(key, "content")) {
            QN_TRY(qn_json_pull_string(p, &s));
            qn_buf_reset(content);
            qn_buf_append(content, s.data, s.n);
            if (content->status != QN_OK) return content->status;
            has_content = 1;
        } else {
            QN_TRY(qn_json_pull_skip(p, NULL));
        }
    }
    if (!has_content || id < 0)
        return qn_json_pull_fail(p, "an added token has no %s", has_content ? "id" : "content");
    if (content->length > QN_ADDED_MAX_BYTES)
        return qn_json_pull_fail(p, "added token %lld has %zu bytes of text (the limit is %d)", (long long)id,
                                 content->length, QN_ADDED_MAX_BYTES);
    /* The model's own id of that text counts, whatever is written here. */
    qn_vocab *v = &r->t->vocab;
    int32_t own = qn_vocab_find(v, content->data, content->length);
    size_t n;
    const char *other = own < 0 ? qn_vocab_text(v, (int32_t)id, &n) : NULL;
    if (other)
        return qn_json_pull_fail(p, "added token '%.*s' has the id %lld, which belongs to '%.*s'",
                                 shown(content->length), content->data, (long long)id, shown(n), other);
    if (own < 0) {
        own = (int32_t)id;
        QN_TRY(qn_vocab_add(v, own, content->data, content->length, QN_TOKEN_ADDED | QN_TOKEN_HIDDEN));
    }
    token.text = content->data ? content->data : "";
    token.n = content->length;
    if (token.normalized < 0) token.normalized = !token.special;
    return put_row(r, &token, own, id);
}

static qn_status read_added_tokens(reader *r)
{
    if (missing(r->added_tokens)) return QN_OK;
    qn_json_pull p;
    qn_buf content = {0};
    int more;
    open_part(r, r->added_tokens, &p);
    r->ids_limit = (int64_t)r->t->vocab.n_ids + (int64_t)r->added_tokens.n + IDS_SPARE;
    if (r->ids_limit > INT32_MAX - 1) r->ids_limit = INT32_MAX - 1;
    qn_status status = qn_json_pull_enter(&p, '[');
    while (status == QN_OK && (status = qn_json_pull_element(&p, &more)) == QN_OK && more)
        status = read_added_token(r, &p, &content);
    qn_json_pull_free(&p);
    qn_buf_free(&content);
    return status;
}

/* ---- tokens that are named elsewhere ------------------------------------------------------------------- */

/* A token of the files beside this one. A text that has no id gets the one after all others. */
static qn_status put_named(reader *r, const qn_named_token *token)
{
    qn_vocab *v = &r->t->vocab;
    if (!token->n) return QN_OK;
    if (token->n > QN_ADDED_MAX_BYTES)
        return qn_fail(QN_E_UNSUPPORTED, "%s: a token has %zu bytes of text (the limit is %d)",
                       r->named->path, token->n, QN_ADDED_MAX_BYTES);
    int32_t id = qn_vocab_find(v, token->text, token->n);
    if (id < 0) {
        size_t n;
        int64_t next = r->id_max >= r->n_model_tokens ? (int64_t)r->id_max + 1 : r->n_model_tokens;
        const char *other = next < INT32_MAX ? qn_vocab_text(v, (int32_t)next, &n) : NULL;
        if (other)
            return qn_fail(QN_E_FORMAT, "%s: token \"%.*s\" would get the id %lld, which belongs to \"%.*s\"",
                           r->named->path, shown(token->n), token->text, (long long)next, shown(n), other);
        id = (int32_t)next;
        QN_TRY(qn_vocab_add(v, id, token->text, token->n, QN_TOKEN_ADDED | QN_TOKEN_HIDDEN));
    }
    return put_row(r, token, id, id);
}

/* A listed token: of a file beside this one, or a row of this one (token NULL). */
typedef struct {
    int64_t index;
    const json_t *token;
    size_t i_row;
} listed_token;

static int by_index(const void *x, const void *y)
{
    const listed_token *a = x, *b = y;
    if (a->index != b->index) return a->index < b->index ? -1 : 1;
    return (a->token == NULL) - (b->token == NULL); /* the row is the later one, and counts */
}

static int is_name_of(const reader *r, const qn_named_token *token)
{
    return qn_map_get(r->is_named, token->text, token->n, &(int64_t){0});
}

static qn_status put_listed(reader *r)
{
    const size_t n_listed = json_array_size(r->named->listed), n_own = r->named->is_legacy ? r->n_rows : 0;
    const json_t *each;
    size_t n = 0, i;
    listed_token *all = qn_alloc_array(n_listed + n_own + 1, sizeof *all);
    if (!all) return QN_E_NOMEM;
    json_array_foreach(r->named->listed, i, each)
    {
        all[n++] = (listed_token){.index = json_integer_value(json_object_get(each, "index")),
                                  .token = json_object_get(each, "token")};
    }
    for (i = 0; i < n_own; i++) all[n++] = (listed_token){.index = r->rows[i].index, .i_row = i};
    qsort(all, n, sizeof *all, by_index);
    qn_status status = QN_OK;
    for (i = 0; i < n && status == QN_OK; i++) {
        qn_named_token token;
        if (i + 1 < n && all[i + 1].index == all[i].index) continue;
        if (!all[i].token)
            token = r->rows[all[i].i_row].first;
        else if (!qn_named_token_get(all[i].token, &token))
            continue;
        token.special |= is_name_of(r, &token);
        status = put_named(r, &token);
    }
    qn_free(all);
    return status;
}

/* A token that is known by now keeps its flags. plain: it was given as a text alone. */
static qn_status put_if_new(reader *r, const json_t *value, size_t n_known)
{
    qn_named_token token;
    if (!qn_named_token_get(value, &token)) return QN_OK;
    added_row *row = find_row(r, token.text, token.n);
    if (row && ((size_t)(row - r->rows) < n_known || (json_is_string(value) && row->is_plain))) return QN_OK;
    token.special |= is_name_of(r, &token);
    QN_TRY(put_named(r, &token));
    row = find_row(r, token.text, token.n);
    if (row && json_is_string(value)) row->is_plain = 1;
    return QN_OK;
}

static qn_status add_named(reader *r)
{
    const char *key;
    const json_t *value;
    size_t i;
    qn_named_token token;
    if (!r->named) return QN_OK;
    for (i = 0; i < r->n_rows; i++) r->rows[i].first = r->rows[i].token;
    json_object_foreach(r->named->names, key, value)
    {
        if (qn_named_token_get(value, &token))
            QN_TRY(qn_map_set(r->is_named, token.text, token.n, 1, NULL, NULL));
    }
    QN_TRY(put_listed(r));
    const size_t n_known = r->n_rows;
    json_object_foreach(r->named->names, key, value) QN_TRY(put_if_new(r, value, n_known));
    json_array_foreach(r->named->extra, i, value) QN_TRY(put_if_new(r, value, n_known));
    return QN_OK;
}

/* All flags are known: the tokens become the tokenizer's. */
static qn_status finish_added(reader *r)
{
    for (size_t i = 0; i < r->n_rows; i++) {
        const qn_named_token *t = &r->rows[i].token;
        const qn_added_token token = {.text = t->text,
                                      .n = (uint32_t)t->n,
                                      .id = r->rows[i].id,
                                      .special = (uint8_t)t->special,
                                      .single_word = (uint8_t)t->single_word,
                                      .lstrip = (uint8_t)t->lstrip,
                                      .rstrip = (uint8_t)t->rstrip};
        r->t->vocab.flags[token.id] |= QN_TOKEN_ADDED;
        if (t->special) r->t->vocab.flags[token.id] |= QN_TOKEN_SPECIAL | QN_TOKEN_HIDDEN;
        QN_TRY(qn_tokenizer_add_token(r->t, &token, t->normalized && !(r->parts && r->parts->literal)));
    }
    return QN_OK;
}

static qn_status build_processor(reader *r)
{
    json_t *v;
    QN_TRY(parse_component(r, r->post_processor, &v));
    qn_status status = v ? qn_post_json_read(r->what, v, r->t) : QN_OK;
    json_decref(v);
    return status;
}

static qn_status build_added(reader *r)
{
    r->n_model_tokens = (int64_t)r->t->vocab.n_tokens;
    r->id_max = -1;
    r->row_of = qn_map_new(64);
    r->is_named = r->row_of ? qn_map_new(16) : NULL;
    qn_status status = r->is_named ? read_added_tokens(r) : QN_E_NOMEM;
    if (status == QN_OK) status = add_named(r);
    if (status == QN_OK) status = finish_added(r);
    qn_map_free(r->row_of);
    qn_map_free(r->is_named);
    qn_arena_clear(&r->arena);
    qn_free(r->rows);
    return status;
}

/* ---- the file ------------------------------------------------------------------------------------------ */

static qn_status find_parts(reader *r, qn_json_pull *p)
{
    const struct {
        const char *name;
        qn_json_text *text;
    } parts[] = {
        {"normalizer", &r->normalizer},         {"pre_tokenizer", &r->pre_tokenizer},
        {"post_processor", &r->post_processor}, {"decoder", &r->decoder},
        {"added_tokens", &r->added_tokens},
    };
    qn_json_text key;
    int more;
    QN_TRY(qn_json_pull_enter(p, '{'));
    for (;;) {
        QN_TRY(qn_json_pull_key(p, &more, &key));
        if (!more) break;
        if (qn_json_text_is(key, "model")) {
            QN_TRY(qn_model_json_read(&r->model, p, r->t));
            continue;
        }
        qn_json_text *part = NULL;
        for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
            if (qn_json_text_is(key, parts[i].name)) part = parts[i].text;
        QN_TRY(qn_json_pull_skip(p, part));
    }
    if (!r->model.seen && !r->parts) return qn_fail(QN_E_FORMAT, "%s: no model", r->what);
    return qn_json_pull_end(p);
}

qn_status qn_tokenizer_from_json(const char *what, const char *text, size_t n, qn_tokenizer **out)
{
    return qn_tokenizer_from_json_named(what, text, n, NULL, out);
}

static qn_status read_all(reader *r, const char *text, size_t n, qn_tokenizer **out)
{
    qn_json_pull p;
    r->text = r->model.text = text;
    r->model.what = r->what;
    qn_json_pull_init(&p, r->what, text, n);
    qn_status status = qn_tokenizer_new(r->what, &r->t);
    if (status == QN_OK) status = find_parts(r, &p);
    if (status == QN_OK)
        status = r->parts ? r->parts->build(r->parts->user, r->t) : qn_model_json_build(&r->model, r->t);
    if (status == QN_OK) status = build_components(r);
    if (status == QN_OK) status = build_added(r);
    if (status == QN_OK) status = build_processor(r);
    if (status == QN_OK) status = qn_tokenizer_finish(r->t);
    qn_json_pull_free(&p);
    if (status != QN_OK) {
        qn_tokenizer_free(r->t);
        return status;
    }
    *out = r->t;
    return QN_OK;
}

qn_status qn_tokenizer_from_json_named(const char *what, const char *text, size_t n,
                                       const qn_named_tokens *named, qn_tokenizer **out)
{
    reader r = {.what = what, .named = named};
    return read_all(&r, text, n, out);
}

qn_status qn_tokenizer_from_parts(const char *what, const qn_tokenizer_parts *parts,
                                  const qn_named_tokens *named, qn_tokenizer **out)
{
    reader r = {.what = what, .named = named, .parts = parts};
    return read_all(&r, parts->rules, parts->n_rules, out);
}

#include "text/tokenizer/post_json.h"

#include <string.h>

#include "base/checked.h"
#include "base/mem.h"

enum { PAIR_MAX = 256, DEPTH_MAX = 8 };

typedef struct {
    const char *what;
    qn_tokenizer *t;
    int n_wraps; /* components that put tokens around the text */
} reader;

static qn_status check_id(const reader *r, const json_t *id, int32_t *out)
{
    json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
    if (value < 0 || (uint64_t)value >= r->t->vocab.n_ids)
        return qn_fail(QN_E_FORMAT,
                       "%s: post_processor: token id %lld is not in the vocabulary of %zu tokens", r->what,
                       (long long)value, r->t->vocab.n_ids);
    *out = (int32_t)value;
    return QN_OK;
}

static qn_status push_id(const reader *r, qn_id_list *l, const json_t *value)
{
    int32_t id = 0;
    QN_TRY(check_id(r, value, &id));
    qn_id_list_push(l, id);
    return l->status;
}

/* What was built so far goes inside: prefix + t->prefix, t->suffix + suffix. */
static qn_status wrap(qn_tokenizer *t, qn_id_list *prefix, const qn_id_list *suffix)
{
    for (size_t i = 0; i < t->prefix.n; i++) qn_id_list_push(prefix, t->prefix.data[i]);
    for (size_t i = 0; i < suffix->n; i++) qn_id_list_push(&t->suffix, suffix->data[i]);
    qn_id_list old = t->prefix;
    t->prefix = *prefix;
    *prefix = old;
    return t->prefix.status != QN_OK ? t->prefix.status : t->suffix.status;
}

/* ---- pairs --------------------------------------------------------------------------------------------- */

static qn_status push_pair(reader *r, int32_t id, int text, int64_t type)
{
    qn_pair_rule *pair = &r->t->pair;
    if (type < 0 || type > INT32_MAX)
        return qn_fail(QN_E_FORMAT, "%s: post_processor: a type_id of %lld is out of range", r->what,
                       (long long)type);
    if (pair->n == PAIR_MAX)
        return qn_fail(QN_E_UNSUPPORTED, "%s: post_processor: more than %d parts around a pair of texts",
                       r->what, PAIR_MAX);
    if (!pair->parts && !(pair->parts = qn_alloc_array(PAIR_MAX, sizeof *pair->parts))) return QN_E_NOMEM;
    pair->parts[pair->n++] = (qn_pair_part){id, text, (int32_t)type};
    return QN_OK;
}

static qn_status read_pair_template(reader *r, const json_t *value)
{
    const json_t *pair = json_object_get(value, "pair"), *tokens = json_object_get(value, "special_tokens"),
                 *item;
    size_t i, j;
    if (!json_is_array(pair))
        return qn_fail(QN_E_FORMAT, "%s: post_processor TemplateProcessing: \"pair\" is not a list", r->what);
    json_array_foreach((json_t *)pair, i, item)
    {
        const json_t *text = json_object_get(item, "Sequence"),
                     *special = json_object_get(item, "SpecialToken"), *part = text ? text : special, *id;
        const char *name = json_string_value(json_object_get(part, "id"));
        const json_int_t type = json_integer_value(json_object_get(part, "type_id"));
        if (text) {
            int second = name && strcmp(name, "B") == 0;
            if (!second && (!name || strcmp(name, "A") != 0))
                return qn_fail(QN_E_FORMAT,
                               "%s: post_processor TemplateProcessing: a text in \"pair\" is neither A nor B",
                               r->what);
            QN_TRY(push_pair(r, -1, second, type));
            continue;
        }
        const json_t *ids = json_object_get(name ? json_object_get(tokens, name) : NULL, "ids");
        if (!json_is_array(ids))
            return qn_fail(QN_E_FORMAT,
                           "%s: post_processor TemplateProcessing: special token \"%s\" has no ids", r->what,
                           name ? name : "?");
        json_array_foreach((json_t *)ids, j, id)
        {
            int32_t token = 0;
            QN_TRY(check_id(r, id, &token));
            QN_TRY(push_pair(r, token, 0, type));
        }
    }
    return QN_OK;
}

/* BERT: [CLS] A [SEP] B [SEP], B and what follows it of type 1. RoBERTa: two separators between, one type. */
static qn_status set_pair(reader *r, int is_bert, int32_t cls, int32_t sep)
{
    QN_TRY(push_pair(r, cls, 0, 0));
    QN_TRY(push_pair(r, -1, 0, 0));
    QN_TRY(push_pair(r, sep, 0, 0));
    if (!is_bert) QN_TRY(push_pair(r, sep, 0, 0));
    QN_TRY(push_pair(r, -1, 1, is_bert));
    return push_pair(r, sep, 0, is_bert);
}

/* ---- one text ------------------------------------------------------------------------------------------ */

static qn_status read_template(reader *r, const json_t *value, qn_id_list *prefix, qn_id_list *suffix)
{
    const json_t *single = json_object_get(value, "single"),
                 *tokens = json_object_get(value, "special_tokens");
    int texts = 0;
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *item = json_array_get(single, i), *special = json_object_get(item, "SpecialToken");
        if (json_object_get(item, "Sequence")) {
            texts++;
            continue;
        }
        const char *name = json_string_value(json_object_get(special, "id"));
        const json_t *ids = json_object_get(name ? json_object_get(tokens, name) : NULL, "ids");
        if (!json_is_array(ids))
            return qn_fail(QN_E_FORMAT,
                           "%s: post_processor TemplateProcessing: special token \"%s\" has no ids", r->what,
                           name ? name : "?");
        for (size_t j = 0; j < json_array_size(ids); j++)
            QN_TRY(push_id(r, texts ? suffix : prefix, json_array_get(ids, j)));
    }
    if (texts != 1)
        return qn_fail(QN_E_UNSUPPORTED,
                       "%s: post_processor TemplateProcessing: \"single\" has the text %d times", r->what,
                       texts);
    /* A file may have a pair that is no use (`[]`), and be fine for single texts. */
    return json_array_size(json_object_get(value, "pair")) ? read_pair_template(r, value) : QN_OK;
}

static qn_status read_bert(reader *r, const json_t *value, int is_bert, qn_id_list *prefix,
                           qn_id_list *suffix)
{
    QN_TRY(push_id(r, prefix, json_array_get(json_object_get(value, "cls"), 1)));
    QN_TRY(push_id(r, suffix, json_array_get(json_object_get(value, "sep"), 1)));
    return set_pair(r, is_bert, prefix->data[0], suffix->data[0]);
}

static qn_status add(reader *r, const json_t *value, int depth)
{
    const char *type = json_string_value(json_object_get(value, "type"));
    if (!type) return qn_fail(QN_E_FORMAT, "%s: post_processor has no type", r->what);
    if (strcmp(type, "ByteLevel") == 0) return QN_OK; /* it only moves offsets */
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(value, "processors");
        if (!json_is_array(list) || depth > DEPTH_MAX)
            return qn_fail(QN_E_FORMAT,
                           "%s: post_processor Sequence: processors is not a list, or is nested too deeply",
                           r->what);
        for (size_t i = 0; i < json_array_size(list); i++) QN_TRY(add(r, json_array_get(list, i), depth + 1));
        return QN_OK;
    }
    qn_id_list prefix = {0}, suffix = {0};
    qn_status status;
    r->t->pair.n = 0; /* of a second wrap no use is made */
    if (strcmp(type, "TemplateProcessing") == 0) {
        status = read_template(r, value, &prefix, &suffix);
    } else if (strcmp(type, "RobertaProcessing") == 0 || strcmp(type, "BertProcessing") == 0) {
        status = read_bert(r, value, type[0] == 'B', &prefix, &suffix);
    } else {
        status = qn_fail(QN_E_UNSUPPORTED, "%s: post_processor \"%s\" is not supported", r->what, type);
    }
    if (status == QN_OK) status = wrap(r->t, &prefix, &suffix);
    qn_free(prefix.data);
    qn_free(suffix.data);
    r->n_wraps++;
    return status;
}

qn_status qn_post_json_read(const char *what, const json_t *value, qn_tokenizer *t)
{
    reader r = {.what = what, .t = t};
    QN_TRY(add(&r, value, 0));
    if (r.n_wraps == 1) t->pair.kind = t->pair.n ? QN_PAIR_PARTS : QN_PAIR_REFUSED;
    if (r.n_wraps > 1) t->pair.kind = QN_PAIR_REFUSED;
    return QN_OK;
}

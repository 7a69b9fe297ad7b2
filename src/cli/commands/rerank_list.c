#include "cli/commands/rerank_list.h"

#include <stdio.h>
#include <string.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "base/status.h"

static qn_status read_texts(const char *what, const json_t *query, const json_t *documents,
                            qn_rerank_line *out)
{
    if (!json_is_string(query)) return qn_fail(QN_E_FORMAT, "%s: \"query\" is not a text", what);
    if (!json_is_array(documents) || !json_array_size(documents))
        return qn_fail(QN_E_FORMAT, "%s: \"documents\" is not a list of texts", what);
    out->pairs = qn_calloc(json_array_size(documents), sizeof *out->pairs);
    if (!out->pairs) return QN_E_NOMEM;
    for (; out->n < json_array_size(documents); out->n++) {
        const json_t *document = json_array_get(documents, out->n);
        if (!json_is_string(document))
            return qn_fail(QN_E_FORMAT, "%s: element %zu of \"documents\" is not a text", what, out->n);
        out->pairs[out->n] = (qn_pair){.query = json_string_value(query),
                                       .query_bytes = json_string_length(query),
                                       .document = json_string_value(document),
                                       .document_bytes = json_string_length(document)};
    }
    return QN_OK;
}

/* The numbers of a row of "ids" or "types". */
static qn_status read_row(const char *what, const char *field, size_t i, const json_t *row, int32_t *out)
{
    for (size_t k = 0; k < json_array_size(row); k++) {
        const json_t *id = json_array_get(row, k);
        const json_int_t value = json_integer_value(id);
        if (!json_is_integer(id) || value < 0 || value > INT32_MAX)
            return qn_fail(QN_E_FORMAT, "%s: element %zu of \"%s\"[%zu] is not a number from 0 to %d", what,
                           k, field, i, INT32_MAX);
        out[k] = (int32_t)value;
    }
    return QN_OK;
}

static qn_status check_rows(const char *what, const json_t *ids, const json_t *types, size_t *n_ids)
{
    if (!json_is_array(ids) || !json_array_size(ids))
        return qn_fail(QN_E_FORMAT, "%s: \"ids\" is not a list of rows", what);
    if (types && json_array_size(types) != json_array_size(ids))
        return qn_fail(QN_E_FORMAT, "%s: \"ids\" has %zu rows, and \"types\" has %zu", what,
                       json_array_size(ids), json_array_size(types));
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *row = json_array_get(ids, i);
        const size_t n_types = json_array_size(json_array_get(types, i));
        if (!json_array_size(row))
            return qn_fail(QN_E_FORMAT, "%s: \"ids\"[%zu] is not a list of ids", what, i);
        if (types && n_types != json_array_size(row))
            return qn_fail(QN_E_FORMAT, "%s: \"ids\"[%zu] has %zu numbers, and \"types\"[%zu] has %zu", what,
                           i, json_array_size(row), i, n_types);
        *n_ids += json_array_size(row);
    }
    return QN_OK;
}

static qn_status read_rows(const char *what, const json_t *ids, const json_t *types, qn_rerank_line *out)
{
    size_t n_ids = 0;
    QN_TRY(check_rows(what, ids, types, &n_ids));
    out->pairs = qn_calloc(json_array_size(ids), sizeof *out->pairs);
    out->ids = qn_alloc_array(2 * n_ids, sizeof *out->ids);
    if (!out->pairs || !out->ids) return QN_E_NOMEM;
    int32_t *at = out->ids;
    for (; out->n < json_array_size(ids); out->n++) {
        const size_t n = json_array_size(json_array_get(ids, out->n));
        out->pairs[out->n] = (qn_pair){.ids = at, .n_ids = (int64_t)n, .types = types ? at + n : NULL};
        QN_TRY(read_row(what, "ids", out->n, json_array_get(ids, out->n), at));
        if (types) QN_TRY(read_row(what, "types", out->n, json_array_get(types, out->n), at + n));
        at += 2 * n;
    }
    return QN_OK;
}

static qn_status read_line(const char *name, const char *text, size_t n_bytes, qn_rerank_line *out)
{
    char what[160];
    const char *key;
    json_t *value, *field[4] = {0};
    static const char *const names[] = {"query", "documents", "ids", "types"};
    snprintf(what, sizeof what, "%.100s: line %lld", name, (long long)out->line);
    QN_TRY(qn_json_parse(what, text, n_bytes, &out->json));
    if (!json_is_object(out->json)) return qn_fail(QN_E_FORMAT, "%s: it is not a JSON object", what);
    json_object_foreach(out->json, key, value)
    {
        size_t i = 0;
        while (i < 4 && strcmp(names[i], key) != 0) i++;
        if (i == 4)
            return qn_fail(QN_E_FORMAT,
                           "%s: \"%.40s\" is none of \"query\", \"documents\", \"ids\" and \"types\"", what,
                           key);
        field[i] = value;
    }
    if ((field[0] || field[1]) && (field[2] || field[3]))
        return qn_fail(QN_E_FORMAT, "%s: it has both texts and ids", what);
    return field[0] || field[1] ? read_texts(what, field[0], field[1], out)
                                : read_rows(what, field[2], field[3], out);
}

static qn_status grow(qn_rerank_list *l, size_t *capacity)
{
    if (l->n < *capacity) return QN_OK;
    *capacity = *capacity ? 2 * *capacity : 16;
    qn_rerank_line *lines = qn_realloc(l->lines, *capacity * sizeof *lines);
    if (!lines) return QN_E_NOMEM;
    l->lines = lines;
    return QN_OK;
}

static int is_blank(const char *text, size_t n)
{
    size_t i = 0;
    while (i < n && strchr(" \t\r", text[i]) && text[i]) i++;
    return i == n;
}

static qn_status read_lines(qn_rerank_list *l, const char *text, size_t n_bytes)
{
    const char *file_end = text + n_bytes;
    size_t capacity = 0;
    for (int64_t line = 1; text < file_end; line++) {
        const char *end = memchr(text, '\n', (size_t)(file_end - text));
        if (!end) end = file_end;
        if (!is_blank(text, (size_t)(end - text))) {
            QN_TRY(grow(l, &capacity));
            l->lines[l->n++] = (qn_rerank_line){.line = line};
            QN_TRY(read_line(l->name, text, (size_t)(end - text), &l->lines[l->n - 1]));
        }
        text = end + 1;
    }
    return l->n ? QN_OK : qn_fail(QN_E_ARG, "%s: there are no queries in the input", l->name);
}

qn_status qn_rerank_list_read(const char *name, const char *text, size_t n_bytes, qn_rerank_list *out)
{
    qn_rerank_list l = {.name = name};
    qn_status status = n_bytes ? read_lines(&l, text, n_bytes) : read_lines(&l, "", 0);
    if (status == QN_OK)
        *out = l;
    else
        qn_rerank_list_free(&l);
    return status;
}

void qn_rerank_list_free(qn_rerank_list *list)
{
    for (size_t i = 0; i < list->n; i++) {
        qn_free(list->lines[i].pairs);
        qn_free(list->lines[i].ids);
        json_decref(list->lines[i].json);
    }
    qn_free(list->lines);
    *list = (qn_rerank_list){0};
}

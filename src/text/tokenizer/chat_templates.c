#include "text/tokenizer/chat_templates.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "text/tokenizer/tokenizer_source.h"

enum { WHAT_MAX = 320 };

static qn_status put(qn_chat_templates *t, const char *what, const char *name, const char *text, size_t n)
{
    size_t i = 0;
    while (i < t->n && strcmp(t->rows[i].name, name) != 0) i++;
    if (i == QN_CHAT_TEMPLATES_MAX)
        return qn_fail(QN_E_UNSUPPORTED, "%s: more than %d chat templates", what, QN_CHAT_TEMPLATES_MAX);
    qn_named_template row = {.name = qn_arena_strndup(&t->arena, name, strlen(name)),
                             .what = qn_arena_strndup(&t->arena, what, strlen(what)),
                             .text = qn_arena_strndup(&t->arena, text, n),
                             .n = n};
    if (!row.name || !row.what || !row.text) return QN_E_NOMEM;
    t->rows[i] = row;
    if (i == t->n) t->n++;
    return QN_OK;
}

/* ---- files ---------------------------------------------------------------------------------------------- */

static qn_status read_files(qn_source *src, qn_chat_templates *t)
{
    const char *text;
    size_t n;
    if (qn_source_side_path(src, QN_SIDE_CHAT_TEMPLATE)) {
        QN_TRY(qn_source_side_text(src, QN_SIDE_CHAT_TEMPLATE, &text, &n));
        QN_TRY(put(t, "chat_template.jinja", "default", text, n));
    }
    for (size_t i = 0; i < qn_source_template_count(src); i++) {
        char what[WHAT_MAX], *own = NULL;
        const char *name = qn_source_template_name(src, i);
        snprintf(what, sizeof what, "additional_chat_templates/%s.jinja", name);
        QN_TRY(qn_source_template_read(src, i, &own, &n));
        qn_status status = put(t, what, name, own, n);
        qn_free(own);
        QN_TRY(status);
    }
    return QN_OK;
}

/* ---- values --------------------------------------------------------------------------------------------- */

static qn_status put_value(qn_chat_templates *t, const char *what, const char *name, const json_t *text)
{
    if (!json_is_string(text))
        return qn_fail(QN_E_FORMAT, "%s: the template \"%.40s\" is not a text", what, name);
    return put(t, what, name, json_string_value(text), json_string_length(text));
}

/* what: the file and the key. */
static qn_status put_values(qn_chat_templates *t, const char *what, const json_t *value)
{
    const char *name;
    json_t *each;
    size_t i;
    if (!value || json_is_null(value)) return QN_OK;
    if (json_is_string(value)) return put_value(t, what, "default", value);
    if (!json_is_array(value) && !json_is_object(value))
        return qn_fail(QN_E_FORMAT, "%s: neither a text, a list nor an object", what);
    json_object_foreach((json_t *)value, name, each) QN_TRY(put_value(t, what, name, each));
    json_array_foreach((json_t *)value, i, each)
    {
        name = json_string_value(json_object_get(each, "name"));
        if (!name) return qn_fail(QN_E_FORMAT, "%s[%zu] has no name", what, i);
        QN_TRY(put_value(t, what, name, json_object_get(each, "template")));
    }
    return QN_OK;
}

static qn_status read_config(qn_source *src, qn_chat_templates *t)
{
    json_t *config = NULL;
    QN_TRY(qn_tokenizer_config_read(src, &config));
    qn_status status =
        put_values(t, "tokenizer_config.json: chat_template", json_object_get(config, "chat_template"));
    json_decref(config);
    return status;
}

static qn_status read_processor(qn_source *src, qn_side_file which, qn_chat_templates *t)
{
    const char *path = qn_source_side_path(src, which), *text;
    char what[WHAT_MAX];
    size_t n;
    json_t *json = NULL;
    if (!path) return QN_OK;
    QN_TRY(qn_source_side_text(src, which, &text, &n));
    snprintf(what, sizeof what, "%s: chat_template", strrchr(path, '/') ? strrchr(path, '/') + 1 : path);
    QN_TRY(qn_json_parse_python(path, text, n, &json));
    qn_status status = put_values(t, what, json_object_get(json, "chat_template"));
    json_decref(json);
    return status;
}

/* The main one, and those of tokenizer.chat_template.NAME that `tokenizer.chat_templates` lists. */
static qn_status read_gguf(const qn_gguf *g, qn_chat_templates *t)
{
    static const char main_key[] = "tokenizer.chat_template", list_key[] = "tokenizer.chat_templates";
    qn_gguf_string text, name;
    qn_gguf_strings list;
    if (qn_gguf_value_find(g, main_key)) {
        QN_TRY(qn_gguf_get_string(g, main_key, &text));
        QN_TRY(put(t, main_key, "default", text.data, text.length));
    }
    static const char tool_key[] = "tokenizer.chat_template.tool_use";
    if (qn_gguf_value_find(g, tool_key)) { /* also where it is not listed */
        QN_TRY(qn_gguf_get_string(g, tool_key, &text));
        QN_TRY(put(t, tool_key, "tool_use", text.data, text.length));
    }
    if (!qn_gguf_value_find(g, list_key)) return QN_OK;
    QN_TRY(qn_gguf_get_strings(g, list_key, &list));
    while (qn_gguf_strings_next(&list, &name)) {
        char key[WHAT_MAX];
        snprintf(key, sizeof key, "%s.%.*s", main_key, name.length < 200 ? (int)name.length : 200, name.data);
        if (!qn_gguf_value_find(g, key)) continue;
        QN_TRY(qn_gguf_get_string(g, key, &text));
        QN_TRY(put(t, key, key + sizeof main_key, text.data, text.length));
    }
    return QN_OK;
}

qn_status qn_chat_templates_read(qn_source *src, qn_chat_templates *out)
{
    QN_TRY(read_files(src, out));
    if (!out->n) QN_TRY(read_config(src, out));
    if (!out->n) QN_TRY(read_processor(src, QN_SIDE_CHAT_TEMPLATE_JSON, out));
    if (!out->n) QN_TRY(read_processor(src, QN_SIDE_PROCESSOR_CONFIG, out));
    return !out->n && qn_source_gguf(src) ? read_gguf(qn_source_gguf(src), out) : QN_OK;
}

const qn_named_template *qn_chat_templates_find(const qn_chat_templates *t, const char *name)
{
    for (size_t i = 0; i < t->n; i++)
        if (strcmp(t->rows[i].name, name) == 0) return &t->rows[i];
    return NULL;
}

void qn_chat_templates_free(qn_chat_templates *t)
{
    qn_arena_clear(&t->arena);
    *t = (qn_chat_templates){0};
}

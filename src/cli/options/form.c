#include "cli/options/form.h"

#include <string.h>

#include "base/buf.h"
#include "base/json/json_value.h"
#include "base/json/json_write.h"
#include "cli/term/input.h"
#include "cli/term/out.h"

/* what: whose fault a refusal is. */
static qn_status open_text(qn_model *model, const char *what, qn_constraint_kind kind, const char *text,
                           size_t n, qn_constraint **out)
{
    const qn_constraint_options o = {.kind = kind, .text = text, .text_bytes = n};
    qn_constraint *c = NULL;
    qn_constraint_note note;
    if (!n && kind != QN_CONSTRAIN_JSON_OBJECT && kind != QN_CONSTRAIN_REGEX)
        return qn_fail(QN_E_FORMAT, "%s: it is empty", what);
    qn_status status = qn_constraint_open(model, &o, &c);
    if (status != QN_OK) return qn_fail_prefix(status, "%s", what);
    for (size_t i = 0; qn_constraint_get_note(c, i, &note) == QN_OK; i++)
        qn_out_note("%s: %s: %s: %s", what, note.pointer, note.keyword, note.message);
    *out = c;
    return QN_OK;
}

static qn_status open_grammar(qn_model *model, const char *what, const char *text, size_t n,
                              qn_constraint **out)
{
    qn_constraint_kind kind;
    if (!qn_constraint_grammar_kind(text, n, &kind))
        return qn_fail(QN_E_FORMAT, "%s: it has neither `::=` (GBNF) nor `:` (Lark)", what);
    return open_text(model, what, kind, text, n, out);
}

static qn_status open_file(qn_model *model, const char *path, int is_grammar, qn_constraint **out)
{
    qn_buf text = {0};
    qn_status status = qn_input_read(path, &text);
    if (status == QN_OK)
        status = is_grammar ? open_grammar(model, path, text.data, text.length, out)
                            : open_text(model, path, QN_CONSTRAIN_JSON_SCHEMA, text.data, text.length, out);
    qn_buf_free(&text);
    return status;
}

/* "a,b" as a JSON array; a text that begins with [ is one already. */
static qn_status open_choices(qn_model *model, const char *text, qn_constraint **out)
{
    qn_buf b = {0};
    if (text[0] == '[') {
        qn_buf_puts(&b, text);
    } else {
        qn_json_open(&b, '[');
        for (const char *at = text, *end;; at = end + 1) {
            end = at + strcspn(at, ",");
            qn_json_text(&b, at, (size_t)(end - at));
            if (!*end) break;
        }
        qn_json_close(&b, ']');
    }
    qn_status status = b.status;
    if (status == QN_OK) status = open_text(model, "--choices", QN_CONSTRAIN_CHOICES, b.data, b.length, out);
    qn_buf_free(&b);
    return status;
}

qn_status qn_form_open(qn_model *model, const qn_form_options *o, qn_constraint **out)
{
    *out = NULL;
    if (o->json_schema) return open_file(model, o->json_schema, 0, out);
    if (o->grammar) return open_file(model, o->grammar, 1, out);
    if (o->choices) return open_choices(model, o->choices, out);
    if (o->regex) return open_text(model, "--regex", QN_CONSTRAIN_REGEX, o->regex, strlen(o->regex), out);
    return QN_OK;
}

qn_status qn_form_open_json(qn_model *model, const char *name, const json_t *value, qn_constraint **out)
{
    const int is_schema = strcmp(name, "json_schema") == 0, is_list = strcmp(name, "choices") == 0;
    const char *text = json_string_value(value);
    const size_t n = json_string_length(value);
    qn_buf b = {0};
    if (strcmp(name, "regex") == 0 && text) return open_text(model, name, QN_CONSTRAIN_REGEX, text, n, out);
    if (strcmp(name, "grammar") == 0 && text) return open_grammar(model, name, text, n, out);
    if (is_schema && text) return open_text(model, name, QN_CONSTRAIN_JSON_SCHEMA, text, n, out);
    if (!is_schema && !is_list) return qn_fail(QN_E_FORMAT, "%s: it is not a text", name);
    qn_json_write_value(&b, value);
    qn_status status = b.status;
    if (status == QN_OK)
        status = open_text(model, name, is_schema ? QN_CONSTRAIN_JSON_SCHEMA : QN_CONSTRAIN_CHOICES, b.data,
                           b.length, out);
    qn_buf_free(&b);
    return status;
}

qn_status qn_form_open_object(qn_model *model, qn_constraint **out)
{
    return open_text(model, "json", QN_CONSTRAIN_JSON_OBJECT, NULL, 0, out);
}

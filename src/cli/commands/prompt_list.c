#include "cli/commands/prompt_list.h"

#include <string.h>

#include "base/json/json.h"
#include "base/json/json_value.h"
#include "base/mem.h"
#include "base/status.h"
#include "cli/term/input.h"

#define AT(field) offsetof(qn_prompt_list_options, field)
const qn_arg qn_prompt_list_args[] = {
    {"--prompts", 'f', QN_ARG_TEXT, AT(path), 0, 0, "FILE",
     "file with the prompts (default: standard input)"},
    {"--prompt", 'p', QN_ARG_LIST, AT(texts), 0, 0, "TEXT", "one prompt, instead of a file; may be repeated"},
    {"--jsonl", 0, QN_ARG_FLAG, AT(jsonl), 0, 0, NULL,
     "each line is JSON: {\"prompt\":TEXT}, {\"messages\":[...]} or {\"ids\":[...]}"},
    {0},
};

const qn_arg_rule qn_prompt_list_rules[] = {{"--prompt", .excludes = "--prompts --jsonl"}, {0}};

static qn_status grow(qn_prompt_list *l, size_t *capacity)
{
    if (l->n < *capacity) return QN_OK;
    *capacity = *capacity ? 2 * *capacity : 64;
    qn_prompt_line *lines = qn_realloc(l->lines, *capacity * sizeof *lines);
    if (!lines) return QN_E_NOMEM;
    l->lines = lines;
    return QN_OK;
}

static qn_status add_text(qn_prompt_list *l, size_t *capacity, const char *text, size_t n, int64_t line)
{
    QN_TRY(grow(l, capacity));
    l->lines[l->n++] = (qn_prompt_line){.text = text, .n_bytes = n, .line = line};
    return QN_OK;
}

/* ---- JSON --------------------------------------------------------------------------------------------- */

static qn_status read_ids(const qn_prompt_list *l, int64_t line, const json_t *list, int32_t **ids,
                          int64_t *n)
{
    const json_t *id;
    size_t i;
    *n = (int64_t)json_array_size(list);
    *ids = qn_alloc_array((size_t)*n + 1, sizeof **ids);
    if (!*ids) return QN_E_NOMEM;
    json_array_foreach(list, i, id)
    {
        json_int_t value = json_integer_value(id);
        if (!json_is_integer(id) || value < 0 || value > INT32_MAX)
            return qn_fail(QN_E_FORMAT, "%s: line %lld: element %zu of a list of ids is not a token id",
                           l->name, (long long)line, i);
        (*ids)[i] = (int32_t)value;
    }
    return QN_OK;
}

/* The forms of answers, besides choices. */
static int is_form(const char *key, const json_t *value)
{
    if (strcmp(key, "json_schema") == 0)
        return json_is_object(value) || json_is_boolean(value) || json_is_string(value);
    return (strcmp(key, "regex") == 0 || strcmp(key, "grammar") == 0) && json_is_string(value);
}

/* The one key of an object that says what the prompt is. */
static qn_status take_member(const qn_prompt_list *l, qn_prompt_line *p, const char *key, const json_t *value)
{
    if (strcmp(key, "prompt") == 0 && json_is_string(value)) {
        p->text = json_string_value(value);
        p->n_bytes = json_string_length(value);
    } else if (strcmp(key, "messages") == 0 && json_is_array(value)) {
        qn_json_write_value(&p->messages, value);
        return p->messages.status;
    } else if (strcmp(key, "ids") == 0 && json_is_array(value)) {
        int32_t *ids = NULL;
        qn_status status = read_ids(l, p->line, value, &ids, &p->ids.n_ids);
        p->ids.ids = ids;
        return status;
    } else if (strcmp(key, "choices") == 0 && json_is_array(value)) {
        p->choices = value;
    } else if (is_form(key, value)) {
        if (p->form)
            return qn_fail(QN_E_FORMAT, "%s: line %lld: an answer has one form: %s or %s", l->name,
                           (long long)p->line, p->form_name, key);
        p->form = value;
        p->form_name = key;
    } else {
        return qn_fail(QN_E_FORMAT,
                       "%s: line %lld: \"%.40s\" is none of \"prompt\" (a text), \"messages\", \"ids\", "
                       "\"choices\" (lists), \"json_schema\", \"regex\" and \"grammar\"",
                       l->name, (long long)p->line, key);
    }
    return QN_OK;
}

static qn_status add_json(qn_prompt_list *l, size_t *capacity, const char *text, size_t n, int64_t line)
{
    char what[160];
    json_t *value;
    const char *key;
    snprintf(what, sizeof what, "%.100s: line %lld", l->name, (long long)line);
    QN_TRY(grow(l, capacity));
    qn_prompt_line *p = &l->lines[l->n++];
    *p = (qn_prompt_line){.line = line};
    QN_TRY(qn_json_parse_exact(what, text, n, &p->json));
    if (!json_is_object(p->json)) return qn_fail(QN_E_FORMAT, "%s: it is not a JSON object", what);
    json_object_foreach(p->json, key, value) QN_TRY(take_member(l, p, key, value));
    int given = !!p->text + !!p->ids.ids + !!p->messages.length;
    if (given != 1)
        return qn_fail(QN_E_FORMAT, "%s: one of \"prompt\", \"messages\" and \"ids\" is needed, %d are given",
                       what, given);
    return QN_OK;
}

/* ---- reading ------------------------------------------------------------------------------------------ */

/* Each line ends with a NUL from here on. */
static qn_status split(qn_prompt_list *l, int jsonl)
{
    char *at = l->file.data, *file_end = at + l->file.length;
    size_t capacity = 0;
    for (int64_t line = 1; at < file_end; line++) {
        char *end = memchr(at, '\n', (size_t)(file_end - at)), *next;
        if (!end) end = file_end;
        next = end + 1;
        *end = 0;
        if (end > at && end[-1] == '\r') *--end = 0;
        QN_TRY(jsonl ? add_json(l, &capacity, at, (size_t)(end - at), line)
                     : add_text(l, &capacity, at, (size_t)(end - at), line));
        at = next;
    }
    return QN_OK;
}

static qn_status read_list(const qn_arg_list *texts, int jsonl, int whole, qn_prompt_list *l)
{
    size_t capacity = 0;
    for (size_t i = 0; i < texts->n; i++)
        QN_TRY(add_text(l, &capacity, texts->items[i], strlen(texts->items[i]), (int64_t)i + 1));
    if (l->file.length && whole && !jsonl)
        QN_TRY(add_text(l, &capacity, l->file.data, l->file.length, 1));
    else if (l->file.length)
        QN_TRY(split(l, jsonl));
    if (!l->n) return qn_fail(QN_E_ARG, "%s: there are no prompts in the input", l->name);
    l->prompts = qn_calloc(l->n, sizeof *l->prompts);
    return l->prompts ? QN_OK : QN_E_NOMEM;
}

static qn_status make(qn_prompt_list l, const qn_arg_list *texts, int jsonl, int whole, qn_prompt_list *out)
{
    qn_status status = read_list(texts, jsonl, whole, &l);
    if (status == QN_OK)
        *out = l;
    else
        qn_prompt_list_free(&l);
    return status;
}

qn_status qn_prompt_list_take(const char *name, qn_buf *text, int jsonl, int whole, qn_prompt_list *out)
{
    static const qn_arg_list none;
    qn_prompt_list l = {.name = name, .file = *text};
    *text = (qn_buf){0};
    return make(l, &none, jsonl, whole, out);
}

qn_status qn_prompt_list_read(const qn_prompt_list_options *o, int whole, qn_prompt_list *out)
{
    const char *name = o->path && strcmp(o->path, "-") ? o->path : "standard input";
    qn_buf text = {0};
    if (o->texts.n) return make((qn_prompt_list){.name = "-p"}, &o->texts, 0, 0, out);
    qn_status status = qn_input_read(o->path, &text);
    if (status == QN_OK) return qn_prompt_list_take(name, &text, o->jsonl, whole, out);
    qn_buf_free(&text);
    return status;
}

qn_status qn_prompt_list_finish(qn_prompt_list *l, int as_chats, const char *system)
{
    for (size_t i = 0; i < l->n; i++) {
        qn_prompt_line *p = &l->lines[i];
        if (p->ids.ids) {
            l->prompts[i] = (qn_prompt){.rows = &p->ids, .n_rows = 1};
        } else if (p->messages.length) {
            l->prompts[i] = (qn_prompt){.messages_json = p->messages.data};
        } else if (!as_chats) {
            l->prompts[i] = (qn_prompt){.text = p->text, .text_bytes = p->n_bytes};
        } else {
            if (memchr(p->text, 0, p->n_bytes))
                return qn_fail(QN_E_FORMAT, "%s: line %lld: the prompt has a NUL character", l->name,
                               (long long)p->line);
            p->chat[0] = (qn_message){"system", system};
            p->chat[1] = (qn_message){"user", p->text};
            l->prompts[i] = (qn_prompt){.messages = p->chat + !system, .n_messages = system ? 2 : 1};
        }
    }
    return QN_OK;
}

void qn_prompt_list_free(qn_prompt_list *l)
{
    for (size_t i = 0; i < l->n; i++) {
        qn_free((void *)(uintptr_t)l->lines[i].ids.ids);
        qn_buf_free(&l->lines[i].messages);
        json_decref(l->lines[i].json);
    }
    qn_buf_free(&l->file);
    qn_free(l->lines);
    qn_free(l->prompts);
    *l = (qn_prompt_list){0};
}

/* ---- choices ------------------------------------------------------------------------------------------ */

static qn_status fill_choices(const qn_prompt_list *l, const qn_prompt_line *p, qn_choice *out, int32_t *ids)
{
    const json_t *choice, *id;
    size_t i, k;
    json_array_foreach(p->choices, i, choice)
    {
        if (json_is_string(choice)) {
            out[i] = (qn_choice){.text = json_string_value(choice), .text_bytes = json_string_length(choice)};
            continue;
        }
        if (!json_is_array(choice))
            return qn_fail(QN_E_FORMAT, "%s: line %lld: choice %zu is neither a text nor a list of ids",
                           l->name, (long long)p->line, i);
        out[i] = (qn_choice){.ids = ids, .n_ids = (int64_t)json_array_size(choice)};
        json_array_foreach(choice, k, id)
        {
            json_int_t value = json_integer_value(id);
            if (!json_is_integer(id) || value < 0 || value > INT32_MAX)
                return qn_fail(QN_E_FORMAT, "%s: line %lld: element %zu of choice %zu is not a token id",
                               l->name, (long long)p->line, k, i);
            *ids++ = (int32_t)value;
        }
    }
    return QN_OK;
}

qn_status qn_prompt_list_choices(const qn_prompt_list *list, size_t i, qn_choice **out, size_t *n,
                                 int32_t **ids)
{
    const qn_prompt_line *p = &list->lines[i];
    const json_t *choice;
    size_t n_ids = 0, k;
    *out = NULL;
    *ids = NULL;
    *n = 0;
    if (!p->choices) return QN_OK;
    json_array_foreach(p->choices, k, choice) n_ids += json_array_size(choice);
    qn_choice *made = qn_calloc(json_array_size(p->choices) + 1, sizeof *made);
    int32_t *all = qn_alloc_array(n_ids + 1, sizeof *all);
    qn_status status = made && all ? fill_choices(list, p, made, all) : QN_E_NOMEM;
    if (status != QN_OK) {
        qn_free(made);
        qn_free(all);
        return status;
    }
    *out = made;
    *ids = all;
    *n = json_array_size(p->choices);
    return QN_OK;
}

#include "text/chat/chat.h"

#include <string.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "text/chat/chat_builtin.h"
#include "text/chat/chat_continue.h"
#include "text/tokenizer/chat_templates.h"
#include "text/tokenizer/named_tokens.h"
#include "text/tokenizer/tokenizer_source.h"

/* A template as the model ships it. A fault in its text is reported by the one who renders: such a model
 * still runs. */
typedef struct {
    qn_template *parsed; /* NULL: none, or faulty */
    qn_status fault;
    char *message;
    qn_answer_format format; /* of the answers to it */
} chat_template;

struct qn_chat_text {
    qn_tokenizer *tokenizer;
    json_t *variables;  /* bos_token and the like, by the names that templates know */
    chat_template main; /* for requests with tools, tool, where the model ships one of its own */
    chat_template tool;
    const char *builtin;  /* name of the built-in format that main is; NULL: it is the model's own */
    char *origin;         /* of the model's own: "chat_template.jinja"; NULL: it has none */
    const char **trusted; /* names of variables that mean the model's own tokens */
    size_t n_trusted;
};

/* ---- opening ---- */

static qn_status parse(chat_template *t, const char *what, const char *text, size_t n)
{
    t->format = qn_answer_format_choose(text, n);
    t->fault = qn_template_parse(what, text, n, &t->parsed);
    if (t->fault == QN_OK) return QN_OK;
    if (t->fault == QN_E_NOMEM) return t->fault;
    t->message = qn_strdup(qn_last_error());
    return t->message ? QN_OK : QN_E_NOMEM;
}

static void end_template(chat_template *t)
{
    qn_template_free(t->parsed);
    qn_free(t->message);
}

static int is_there(const chat_template *t)
{
    return t->parsed || t->fault != QN_OK;
}

/* The format whose tokens the vocabulary has as special ones; NULL: none. */
static const char *choose_builtin(const qn_tokenizer *t)
{
    static const char *const rows[][2] = {
        {"<start_of_turn>", "gemma"}, {"<|start_header_id|>", "llama3"}, {"<|im_start|>", "qwen"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int32_t id = qn_tokenizer_find(t, rows[i][0], strlen(rows[i][0]));
        if (id >= 0 && qn_tokenizer_is_special(t, id)) return rows[i][1];
    }
    return NULL;
}

static qn_status parse_named(const qn_chat_templates *all, const char *name, chat_template *to)
{
    const qn_named_template *row = qn_chat_templates_find(all, name);
    return row ? parse(to, row->what, row->text, row->n) : QN_OK;
}

/* Requests that no template is there for get this answer. */
static qn_status refuse_names(const qn_chat_templates *all, chat_template *main)
{
    qn_buf b = {0};
    qn_buf_printf(
        &b, "%s: the model has several chat templates, and none is named \"default\": ", all->rows[0].what);
    for (size_t i = 0; i < all->n; i++) qn_buf_printf(&b, "%s%s", i ? ", " : "", all->rows[i].name);
    qn_buf_puts(&b, ". Give one by --template FILE");
    qn_buf_putc(&b, 0);
    if (b.status != QN_OK) {
        qn_buf_free(&b);
        return b.status;
    }
    main->fault = QN_E_UNSUPPORTED;
    main->message = b.data;
    return QN_OK;
}

static qn_status parse_all(qn_chat_text *c, const qn_chat_templates *all)
{
    c->origin = qn_strdup(all->rows[0].what);
    if (!c->origin) return QN_E_NOMEM;
    QN_TRY(parse_named(all, "default", &c->main));
    QN_TRY(parse_named(all, "tool_use", &c->tool));
    return is_there(&c->main) ? QN_OK : refuse_names(all, &c->main);
}

static qn_status find_templates(qn_chat_text *c, qn_source *src, const char *own)
{
    if (own) return parse(&c->main, "chat template", own, strlen(own));
    qn_chat_templates *all = qn_calloc(1, sizeof *all);
    if (!all) return QN_E_NOMEM;
    qn_status status = qn_chat_templates_read(src, all);
    const int found = status == QN_OK && all->n;
    if (found) status = parse_all(c, all);
    qn_chat_templates_free(all);
    qn_free(all);
    if (status != QN_OK || found) return status;
    const char *name = choose_builtin(c->tokenizer);
    const qn_chat_builtin *b = name ? qn_chat_builtin_find(name) : NULL;
    c->builtin = b ? name : NULL;
    return b ? parse(&c->main, name, b->text, strlen(b->text)) : QN_OK;
}

static qn_status put_token(json_t *variables, const char *name, const qn_tokenizer *t, int32_t id)
{
    size_t n;
    const char *text = id < 0 ? NULL : qn_tokenizer_token_text(t, id, &n);
    if (!text || json_object_get(variables, name)) return QN_OK;
    return json_object_set_new(variables, name, json_stringn_nocheck(text, n)) ? qn_fail_nomem(n) : QN_OK;
}

/* Special tokens by name, as transformers hands them to a template. */
static qn_status make_variables(qn_chat_text *c, qn_source *src, const json_t *config)
{
    const char *key;
    json_t *value;
    qn_named_tokens named = {0};
    c->variables = json_object();
    if (!c->variables) return qn_fail_nomem(sizeof *c->variables);
    qn_status status = qn_named_tokens_read(src, config, &named);
    json_object_foreach(named.names, key, value)
    {
        size_t n;
        const char *text = status == QN_OK ? qn_tokenizer_config_text(value, &n) : NULL;
        if (text && json_object_set_new(c->variables, key, json_stringn_nocheck(text, n)))
            status = qn_fail_nomem(n);
    }
    qn_named_tokens_free(&named);
    QN_TRY(status);
    QN_TRY(put_token(c->variables, "bos_token", c->tokenizer, qn_tokenizer_bos_id(c->tokenizer)));
    QN_TRY(put_token(c->variables, "eos_token", c->tokenizer, qn_tokenizer_eos_id(c->tokenizer)));
    QN_TRY(put_token(c->variables, "unk_token", c->tokenizer, qn_tokenizer_unk_id(c->tokenizer)));
    return put_token(c->variables, "pad_token", c->tokenizer, qn_tokenizer_pad_id(c->tokenizer));
}

/* Names in `_token` are those of tokens; other names could be those of anything. */
static int is_trusted_name(const char *name)
{
    const size_t n = strlen(name);
    return n > 6 && strcmp(name + n - 6, "_token") == 0;
}

static qn_status list_trusted(qn_chat_text *c)
{
    const char *key;
    json_t *value;
    size_t n = json_object_size(c->variables);
    for (const char *const *name = qn_template_trusted_names; *name; name++) n++;
    c->trusted = qn_alloc_array(n, sizeof *c->trusted);
    if (!c->trusted) return QN_E_NOMEM;
    for (const char *const *name = qn_template_trusted_names; *name; name++)
        c->trusted[c->n_trusted++] = *name;
    json_object_foreach(c->variables, key, value)
    {
        size_t i = 0;
        while (qn_template_trusted_names[i] && strcmp(qn_template_trusted_names[i], key) != 0) i++;
        if (!qn_template_trusted_names[i] && is_trusted_name(key)) c->trusted[c->n_trusted++] = key;
    }
    return QN_OK;
}

qn_status qn_chat_text_open(qn_source *src, const qn_chat_text_options *options, qn_chat_text **out)
{
    const qn_chat_text_options defaults = {0};
    if (!options) options = &defaults;
    json_t *config = NULL;
    qn_chat_text *c = qn_calloc(1, sizeof *c);
    if (!c) return QN_E_NOMEM;
    qn_status status = qn_tokenizer_open(src, options->pre_regex, &c->tokenizer);
    if (status == QN_OK) status = qn_tokenizer_config_read(src, &config);
    if (status == QN_OK) status = make_variables(c, src, config);
    if (status == QN_OK) status = list_trusted(c);
    if (status == QN_OK) status = find_templates(c, src, options->chat_template);
    json_decref(config);
    if (status != QN_OK) {
        qn_chat_text_close(c);
        return status;
    }
    *out = c;
    return QN_OK;
}

void qn_chat_text_close(qn_chat_text *c)
{
    if (!c) return;
    end_template(&c->main);
    end_template(&c->tool);
    qn_free(c->origin);
    qn_free(c->trusted);
    json_decref(c->variables);
    qn_tokenizer_free(c->tokenizer);
    qn_free(c);
}

const qn_tokenizer *qn_chat_text_tokenizer(const qn_chat_text *c)
{
    return c->tokenizer;
}

int qn_chat_text_has_template(const qn_chat_text *c)
{
    return is_there(&c->main) || is_there(&c->tool);
}

const char *qn_chat_text_origin(const qn_chat_text *c)
{
    return c->origin;
}

const char *qn_chat_text_builtin(const qn_chat_text *c)
{
    return c->builtin;
}

/* ---- rendering ---- */

/* Copies: the count of references of a shared value is no business of several threads. */
static int set_token(json_t *context, const char *name, const json_t *token)
{
    return json_object_set_new(context, name,
                               json_stringn_nocheck(json_string_value(token), json_string_length(token)));
}

/* The names that the renderer trusts mean the model's own tokens, whatever the request says. */
static int set_tokens(json_t *context, const qn_chat_text *c)
{
    int failed = 0;
    const char *key;
    json_t *value;
    json_object_foreach(c->variables, key, value)
    {
        if (!json_object_get(context, key)) failed |= set_token(context, key, value);
    }
    for (size_t i = 0; i < c->n_trusted; i++) {
        json_t *token = json_object_get(c->variables, c->trusted[i]);
        if (token)
            failed |= set_token(context, c->trusted[i], token);
        else
            json_object_del(context, c->trusted[i]);
    }
    return failed;
}

static int set_missing(json_t *context, const char *name, json_t *value)
{
    if (!json_object_get(context, name)) return json_object_set_new(context, name, value);
    json_decref(value);
    return 0;
}

/* What the template sees: the request, the model's tokens, and what transformers always defines. */
static qn_status make_context(const qn_chat_text *c, const json_t *request, json_t **out)
{
    json_t *messages = NULL, *context = qn_json_copy(request);
    qn_status status = context ? QN_OK : qn_fail_nomem(sizeof *context);
    if (status == QN_OK)
        status = qn_template_prepare_messages(json_object_get(request, "messages"), &messages);
    if (status == QN_OK) {
        json_object_del(context, "now");
        json_object_del(context, "continue_final_message");
        int failed = json_object_set_new(context, "messages", messages);
        failed |= set_tokens(context, c) | set_missing(context, "tools", json_null());
        failed |= set_missing(context, "documents", json_null());
        failed |= set_missing(context, "add_generation_prompt", json_false());
        if (failed) status = qn_fail_nomem(sizeof *context);
    }
    if (status == QN_OK)
        *out = context;
    else
        json_decref(context);
    return status;
}

qn_status qn_chat_text_encode(const qn_chat_text *c, const qn_rendered *r, const size_t *cuts, size_t n_cuts,
                              size_t *at, int32_t **ids, size_t *n_ids)
{
    qn_text_segment *segments = qn_alloc_array(r->n_segments, sizeof *segments);
    if (!segments) return QN_E_NOMEM;
    for (size_t i = 0; i < r->n_segments; i++)
        segments[i] =
            (qn_text_segment){r->text + r->segments[i].offset, r->segments[i].n, r->segments[i].trusted};
    qn_status status =
        qn_tokenizer_encode_cut(c->tokenizer, segments, r->n_segments, 0, cuts, n_cuts, at, ids, n_ids);
    qn_free(segments);
    return status;
}

/* The template for requests with or without tools. */
static const chat_template *choose(const qn_chat_text *c, int with_tools)
{
    return with_tools && is_there(&c->tool) ? &c->tool : &c->main;
}

qn_answer_format qn_chat_text_answer_format(const qn_chat_text *c, int with_tools)
{
    return choose(c, with_tools)->format;
}

static qn_status get_template(const qn_chat_text *c, const json_t *request, const qn_template **out)
{
    const chat_template *t = choose(c, json_is_array(json_object_get(request, "tools")));
    if (t->fault != QN_OK) return qn_fail_copy(t->fault, t->message);
    if (!t->parsed) return qn_fail(QN_E_UNSUPPORTED, "the model has no chat template");
    *out = t->parsed;
    return QN_OK;
}

qn_status qn_chat_text_render_parts(const qn_chat_text *c, const json_t *request, qn_rendered *out)
{
    const qn_template *chosen = NULL;
    json_t *context = NULL, *final = NULL;
    const int continues = json_is_true(json_object_get(request, "continue_final_message"));
    *out = (qn_rendered){0};
    if (continues && json_is_true(json_object_get(request, "add_generation_prompt")))
        return qn_fail(QN_E_ARG, "continue_final_message and add_generation_prompt exclude each other");
    QN_TRY(get_template(c, request, &chosen));
    QN_TRY(make_context(c, request, &context));
    qn_status status = QN_OK;
    if (continues) status = qn_chat_continue_mark(json_object_get(context, "messages"), &final);
    if (status == QN_OK) {
        qn_render_options options = {.now = json_string_value(json_object_get(request, "now")),
                                     .trusted = c->trusted,
                                     .n_trusted = c->n_trusted};
        status = qn_template_render(chosen, context, &options, out);
        if (status != QN_OK && out->raised) qn_fail(status, "%s", out->raised);
    }
    if (status == QN_OK && continues) status = qn_chat_continue_cut(out, final);
    if (status != QN_OK) qn_rendered_free(out);
    json_decref(final);
    json_decref(context);
    return status;
}

qn_status qn_chat_text_render(const qn_chat_text *c, const json_t *request, qn_chat_trust trust, qn_buf *text,
                              int32_t **ids, size_t *n_ids)
{
    qn_rendered rendered;
    qn_status status = qn_chat_text_render_parts(c, request, &rendered);
    if (status == QN_OK && ids && trust == QN_CHAT_TRUST_ALL)
        status = qn_tokenizer_encode(c->tokenizer, rendered.text, rendered.n, QN_ENCODE_SPECIAL, ids, n_ids);
    else if (status == QN_OK && ids)
        status = qn_chat_text_encode(c, &rendered, NULL, 0, NULL, ids, n_ids);
    if (status == QN_OK && text) {
        qn_buf_append(text, rendered.text, rendered.n);
        status = text->status;
        if (status != QN_OK && ids) {
            qn_free(*ids);
            *ids = NULL;
        }
    }
    qn_rendered_free(&rendered);
    return status;
}

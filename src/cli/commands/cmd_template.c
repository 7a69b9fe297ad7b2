/* quern template: what a chat template makes of messages. */
#include <quern/quern.h>
#include <string.h>

#include "base/mem.h"
#include "cli/command.h"
#include "cli/options/model_name.h"
#include "cli/options/options.h"
#include "cli/term/input.h"
#include "cli/term/out.h"
#include "text/chat/chat.h"
#include "text/chat/chat_builtin.h"

typedef struct {
    const char *file, *builtin, *weights, *prompt;
    int json, provenance;
} template_options;

#define AT(field) offsetof(template_options, field)
static const qn_arg template_args[] = {
    {"--prompt", 'p', QN_ARG_TEXT, AT(prompt), 0, 0, "TEXT",
     "what a user says, instead of a request on standard input; an answer is asked for"},
    {"--file", 0, QN_ARG_TEXT, AT(file), 0, 0, "T.jinja",
     "template file to use without a model; the request must set all variables"},
    {"--builtin", 0, QN_ARG_TEXT, AT(builtin), 0, 0, "gemma|qwen|llama3", "built-in chat format to use"},
    {"--weights", 0, QN_ARG_TEXT, AT(weights), 0, 0, "NAME",
     "with MODEL: which weights file to use, if the directory has several"},
    {"--provenance", 0, QN_ARG_FLAG, AT(provenance), 0, 0, NULL,
     "make ids as run and chat do: special tokens in messages stay plain text"},
    {"--json", 0, QN_ARG_FLAG, AT(json), 0, 0, NULL, "print {\"text\":...,\"ids\":...} or {\"error\":...}"},
    {0},
};

/* What a rendering gave. */
typedef struct {
    qn_buf text;
    int32_t *ids; /* NULL: there is no tokenizer */
    size_t n_ids;
} output;

static qn_status render_model(const char *path, const template_options *o, const json_t *request, output *out)
{
    qn_source *source = NULL;
    qn_chat_text *chat = NULL;
    qn_status status =
        qn_source_open(path, &(qn_source_options){.file = o->weights, .text_only = 1}, &source);
    if (status == QN_OK) status = qn_chat_text_open(source, NULL, &chat);
    qn_source_close(source);
    if (status == QN_OK)
        status =
            qn_chat_text_render(chat, request, o->provenance ? QN_CHAT_TRUST_TEMPLATE : QN_CHAT_TRUST_ALL,
                                &out->text, &out->ids, &out->n_ids);
    qn_chat_text_close(chat);
    return status;
}

/* A template without a model sees the request's variables and nothing else. */
static qn_status render_alone(const char *what, const char *text, size_t n, const json_t *request,
                              output *out)
{
    qn_template *template = NULL;
    qn_rendered rendered = {0};
    QN_TRY(qn_template_parse(what, text, n, &template));
    json_t *context = json_copy((json_t *)request);
    qn_status status = context ? QN_OK : qn_fail_nomem(sizeof *context);
    if (status == QN_OK) {
        qn_render_options options = {.now = json_string_value(json_object_get(request, "now"))};
        json_object_del(context, "now");
        status = qn_template_render(template, context, &options, &rendered);
        if (status != QN_OK && rendered.raised) qn_fail(status, "%s", rendered.raised);
    }
    if (status == QN_OK) qn_buf_append(&out->text, rendered.text, rendered.n);
    qn_rendered_free(&rendered);
    qn_template_free(template);
    json_decref(context);
    return status == QN_OK ? out->text.status : status;
}

static qn_status render_file(const char *path, const json_t *request, output *out)
{
    qn_buf text = {0};
    qn_status status = qn_input_read(path, &text);
    if (status == QN_OK) status = render_alone(path, text.data, text.length, request, out);
    qn_buf_free(&text);
    return status;
}

static qn_status print(const output *out, int json)
{
    if (!json) return qn_out_write(out->text.length ? out->text.data : "", out->text.length);
    qn_buf b = {0};
    qn_json_open(&b, '{');
    qn_json_key(&b, "text");
    qn_json_text(&b, out->text.data, out->text.length);
    if (out->ids) {
        qn_json_key(&b, "ids");
        qn_json_ids(&b, out->ids, (int64_t)out->n_ids);
    }
    qn_json_close(&b, '}');
    return qn_out_line(&b);
}

/* Programs that ask for JSON get the refusal as JSON too. */
static void print_error(void)
{
    qn_buf b = {0};
    qn_json_open(&b, '{');
    qn_json_put_text(&b, "error", qn_last_error());
    qn_json_close(&b, '}');
    qn_out_line(&b);
}

static const qn_arg_group template_groups[] = {{NULL, template_args, 0, NULL}, {0}};
const qn_arg_spec qn_template_spec = {
    "quern template MODEL|--file T.jinja|--builtin NAME [--json] < REQUEST.json",
    "Renders a request with a chat template. The request is a JSON object on standard input:\n"
    "{\"messages\":[...],\"tools\":[...],\"add_generation_prompt\":true, \"now\":\"2026-03-14T15:09:26\", "
    "...}"
    ".",
    template_groups,
    0,
    1,
    NULL};

int qn_cmd_template(int argc, char **argv)
{
    template_options o = {0};
    const char *path = NULL;
    int n, code;
    if (qn_args_parse(&qn_template_spec, &o, argc, argv, &path, &n, &code)) return code;
    if (n + !!o.file + !!o.builtin != 1)
        return qn_args_fail("template", "one of MODEL, --file and --builtin is needed");
    const qn_chat_builtin *builtin = o.builtin ? qn_chat_builtin_find(o.builtin) : NULL;
    const char *format = builtin ? builtin->text : NULL;
    if (o.builtin && !format)
        return qn_args_fail("template", "--builtin: '%s' is none of %s", o.builtin, qn_chat_builtin_names);

    output out = {0};
    json_t *request = NULL;
    qn_buf found = {0};
    qn_status status = n ? qn_model_name_take(&path, &found) : QN_OK;
    if (status == QN_OK && !o.prompt)
        status = qn_input_json(NULL, &request);
    else if (status == QN_OK && !(request = json_pack("{s:[{s:s,s:s}],s:b}", "messages", "role", "user",
                                                      "content", o.prompt, "add_generation_prompt", 1)))
        status = qn_fail(QN_E_FORMAT, "--prompt: not valid UTF-8");
    if (status == QN_OK && !json_is_object(request))
        status = qn_fail(QN_E_FORMAT, "standard input: the request is not a JSON object");
    if (status == QN_OK && format)
        status = render_alone(o.builtin, format, strlen(format), request, &out);
    else if (status == QN_OK)
        status = o.file ? render_file(o.file, request, &out) : render_model(path, &o, request, &out);
    if (status != QN_OK && o.json) print_error();
    if (status == QN_OK) status = print(&out, o.json);
    code = status == QN_OK ? QN_EXIT_OK : qn_out_fail();
    json_decref(request);
    qn_buf_free(&found);
    qn_buf_free(&out.text);
    qn_free(out.ids);
    return code;
}

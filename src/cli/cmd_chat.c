/* quern chat: a conversation. Each line is a message; a line that begins with '/' is a command of the table
 * below. */
#include <quern/quern.h>
#include <string.h>

#include "base/mem.h"
#include "cli/command.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/line.h"
#include "cli/options.h"
#include "cli/out.h"

typedef struct {
    qn_load_options load;
    qn_sampling_options sampling;
    const char *system;
    int json;
} chat_options;

#define AT(field) offsetof(chat_options, field)
static const qn_arg chat_args[] = {
    {"--system", 0, QN_ARG_TEXT, AT(system), 0, 0, "TEXT", "a system message"},
    {"--json", 0, QN_ARG_FLAG, AT(json), 0, 0, NULL, "print each answer as one line of JSON"},
    {0},
};

typedef struct {
    chat_options options;
    qn_model *model;
    qn_model_info info;
    qn_line_reader *reader;
    qn_message *messages; /* contents are owned */
    size_t n_messages, capacity;
    int leaving;
} chat;

static qn_status add_message(chat *c, const char *role, const char *content, size_t n)
{
    if (c->n_messages == c->capacity) {
        size_t capacity = c->capacity ? 2 * c->capacity : 16;
        qn_message *messages = qn_realloc(c->messages, capacity * sizeof *messages);
        if (!messages) return QN_E_NOMEM;
        c->messages = messages;
        c->capacity = capacity;
    }
    char *copy = qn_strndup(content, n);
    if (!copy) return QN_E_NOMEM;
    c->messages[c->n_messages++] = (qn_message){role, copy};
    return QN_OK;
}

static void drop_messages(chat *c, size_t keep)
{
    while (c->n_messages > keep) qn_free((char *)c->messages[--c->n_messages].content);
}

static qn_status start_over(chat *c)
{
    drop_messages(c, 0);
    return c->options.system ? add_message(c, "system", c->options.system, strlen(c->options.system)) : QN_OK;
}

/* What the user did not say is taken from the model's generation_config or, where it names nothing, from our
 * defaults. */
static void choose_sampling(chat *c)
{
    qn_sampling_options *s = &c->options.sampling;
    const qn_model_info *info = &c->info;
    int named = info->default_temperature >= 0 || info->default_top_p >= 0 || info->default_top_k >= 0;
    float temperature = info->default_temperature >= 0 ? info->default_temperature : named ? 1 : 0.7f;
    float top_p = info->default_top_p >= 0 ? info->default_top_p : named ? 0 : 0.95f;
    if (s->temperature < 0) s->o.temperature = temperature;
    if (s->top_p < 0) s->o.top_p = top_p;
    if (s->top_k < 0) s->o.top_k = info->default_top_k > 0 ? info->default_top_k : 0;
}

/* ---- commands ---- */

typedef struct {
    const char *name, *help;
    qn_status (*run)(chat *c, const char *rest);
} chat_command;

static qn_status run_help(chat *c, const char *rest);

/* What a command says; standard output carries nothing but answers where a program reads it. */
static qn_status say(const chat *c, qn_buf *b)
{
    if (!c->options.json) return qn_out_line(b);
    qn_status status = b->status;
    if (status == QN_OK) fprintf(stderr, "%s\n", b->data);
    qn_buf_free(b);
    return status;
}

static qn_status run_clear(chat *c, const char *rest)
{
    return start_over(c);
}

static qn_status run_params(chat *c, const char *rest)
{
    const qn_generate_options *o = &c->options.sampling.o;
    qn_buf b = {0};
    qn_buf_printf(&b, "temperature %g, top_p %g, min_p %g, top_k %d, repeat_penalty %g",
                  (double)o->temperature, (double)o->top_p, (double)o->min_p, (int)o->top_k,
                  (double)o->repeat_penalty);
    if (o->seed) qn_buf_printf(&b, ", seed %llu", (unsigned long long)o->seed);
    if (o->max_tokens) qn_buf_printf(&b, ", max_tokens %lld", (long long)o->max_tokens);
    qn_buf_printf(&b, "; context %lld, %zu messages", (long long)c->info.context_size, c->n_messages);
    return say(c, &b);
}

static qn_status run_quit(chat *c, const char *rest)
{
    c->leaving = 1;
    return QN_OK;
}

static const chat_command commands[] = {
    {"/help", "this list", run_help},
    {"/clear", "forget the conversation", run_clear},
    {"/params", "how tokens are chosen", run_params},
    {"/quit", "leave (also Ctrl-D)", run_quit},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static qn_status run_help(chat *c, const char *rest)
{
    qn_buf b = {0};
    for (size_t i = 0; i < N_COMMANDS; i++)
        qn_buf_printf(&b, "%-9s %s\n", commands[i].name, commands[i].help);
    qn_buf_puts(&b, "//TEXT    the message /TEXT\nCtrl-C    stop the answer");
    return say(c, &b);
}

static qn_status run_command(chat *c, const char *line)
{
    size_t n = strcspn(line, " ");
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strlen(commands[i].name) == n && memcmp(commands[i].name, line, n) == 0)
            return commands[i].run(c, line + n + strspn(line + n, " "));
    return qn_fail(QN_E_ARG, "no command %.*s; /help lists them", (int)n, line);
}

/* ---- a turn ---- */

static qn_status print_json(const qn_buf *answer, qn_end end, const qn_generation_stats *stats)
{
    qn_buf b = {0};
    qn_json_open(&b, '{');
    qn_json_put_text(&b, "role", "assistant");
    qn_json_key(&b, "content");
    qn_json_text(&b, answer->data, answer->length);
    qn_json_put_text(&b, "end", qn_end_name(end));
    qn_json_put_stats(&b, stats);
    qn_json_close(&b, '}');
    return qn_out_line(&b);
}

static qn_status stream(chat *c, qn_generation *generation, qn_buf *answer, qn_end *end)
{
    for (;;) {
        qn_token token;
        QN_TRY(qn_generation_next(generation, &token));
        qn_buf_append(answer, token.text, token.text_bytes);
        if (answer->status != QN_OK) return answer->status;
        if (token.text_bytes && !c->options.json) QN_TRY(qn_out_write(token.text, token.text_bytes));
        if (token.end != QN_END_NONE) {
            *end = token.end;
            return QN_OK;
        }
    }
}

/* Answers the last message; the answer, or what there is of it after Ctrl-C, joins the conversation. */
static qn_status answer_turn(chat *c)
{
    qn_generation *generation = NULL;
    qn_generation_stats stats;
    qn_buf answer = {0};
    qn_end end = QN_END_NONE;
    qn_buf_append(&answer, "", 0);
    qn_interrupt_taken();
    qn_status status = qn_chat(c->model, c->messages, c->n_messages, &c->options.sampling.o, &generation);
    if (status == QN_OK) {
        qn_interrupt_watch(generation);
        status = stream(c, generation, &answer, &end);
        qn_interrupt_watch(NULL);
        qn_interrupt_taken();
    }
    if (status == QN_OK) status = qn_generation_get_stats(generation, &stats);
    if (status == QN_OK) status = c->options.json ? print_json(&answer, end, &stats) : qn_out_write("\n", 1);
    if (status == QN_OK) status = add_message(c, "assistant", answer.data, strlen(answer.data));
    if (status == QN_OK && end == QN_END_LENGTH && !c->options.sampling.o.max_tokens)
        qn_out_note("the context of %lld tokens is full; /clear starts anew",
                    (long long)c->info.context_size);
    qn_generation_close(generation);
    qn_buf_free(&answer);
    return status;
}

static qn_status take_line(chat *c, const qn_buf *line)
{
    const char *text = line->data;
    if (line->length == 0) return QN_OK;
    if (memchr(text, 0, line->length)) return qn_fail(QN_E_FORMAT, "the line has a NUL character");
    if (text[0] == '/' && text[1] != '/') return run_command(c, text);
    if (text[0] == '/') text++;
    size_t before = c->n_messages;
    QN_TRY(add_message(c, "user", text, strlen(text)));
    qn_status status = answer_turn(c);
    if (status != QN_OK) drop_messages(c, before);
    return status;
}

/* On a terminal a failed turn is reported and the session goes on; from a pipe it ends the run. */
static qn_status converse(chat *c)
{
    qn_buf line = {0};
    qn_status status = QN_OK;
    int terminal = qn_line_is_terminal(c->reader);
    while (status == QN_OK && !c->leaving) {
        qn_line_event event;
        status = qn_line_next(c->reader, ">", &line, &event);
        if (status != QN_OK || event == QN_LINE_END) break;
        if (event == QN_LINE_INTERRUPTED) {
            if (!terminal) break;
            continue;
        }
        status = take_line(c, &line);
        if (status != QN_OK && status != QN_E_IO && terminal) {
            qn_out_fail();
            status = QN_OK;
        }
    }
    qn_buf_free(&line);
    return status;
}

static qn_status run(chat *c, const char *path)
{
    QN_TRY(qn_load_open(path, &c->options.load, &c->model));
    qn_interrupt_start(); /* until here Ctrl-C just ends the process */
    QN_TRY(qn_model_get_info(c->model, &c->info));
    if (!c->info.has_chat_template)
        return qn_fail(QN_E_UNSUPPORTED,
                       "%s has no chat template; give one by --template, or use `quern run --raw`", path);
    choose_sampling(c);
    QN_TRY(start_over(c));
    QN_TRY(qn_line_open(&c->reader));
    if (qn_line_is_terminal(c->reader) && !c->options.json)
        qn_out_note("%s, %d bits, context %lld. /help lists commands, Ctrl-D leaves.", c->info.architecture,
                    (int)c->info.quant_bits, (long long)c->info.context_size);
    return converse(c);
}

static const qn_arg_group chat_groups[] = {{NULL, chat_args, 0},
                                           {"Sampling", qn_sampling_args, AT(sampling)},
                                           {"Loading", qn_load_args, AT(load)},
                                           {0}};
const qn_arg_spec qn_chat_spec = {
    "quern chat MODEL [options]",
    "Talks with a model, line by line. Temperature and the like come from the model's\n"
    "generation_config, else temperature 0.7 and top-p 0.95; /params shows them.",
    chat_groups,
    1,
    1,
    NULL};

int qn_cmd_chat(int argc, char **argv)
{
    chat c = {.options.sampling = QN_SAMPLING_UNSET};
    const char *path;
    int n, code;
    if (qn_args_parse(&qn_chat_spec, &c.options, argc, argv, &path, &n, &code)) return code;
    if (qn_sampling_finish("chat", &c.options.sampling)) return QN_EXIT_USAGE;
    code = run(&c, path) == QN_OK ? QN_EXIT_OK : qn_out_fail();
    qn_line_close(c.reader);
    drop_messages(&c, 0);
    qn_free(c.messages);
    qn_model_close(&c.model);
    qn_load_end(&c.options.load);
    return code;
}

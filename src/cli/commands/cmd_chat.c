/* quern chat: a conversation. What is entered is a message, or a command when it begins with '/'. */
#include <quern/quern.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/chat/chat_commands.h"
#include "cli/chat/chat_input.h"
#include "cli/chat/chat_turn.h"
#include "cli/command.h"
#include "cli/options/options.h"
#include "cli/term/interrupt.h"
#include "cli/term/out.h"

typedef struct {
    qn_load_options load;
    qn_sampling_options sampling;
    const char *system, *saved;
    int json, stats, no_wrap;
} chat_options;

#define AT(field) offsetof(chat_options, field)
static const qn_arg chat_args[] = {
    {"--system", 0, QN_ARG_TEXT, AT(system), 0, 0, "TEXT", "system message"},
    {"--load", 0, QN_ARG_TEXT, AT(saved), 0, 0, "FILE", "continue a conversation that /save wrote"},
    {"--json", 0, QN_ARG_FLAG, AT(json), 0, 0, NULL, "print each answer as one line of JSON"},
    {"--stats", 0, QN_ARG_FLAG, AT(stats), 0, 0, NULL, "print speeds after each answer"},
    {"--no-wrap", 0, QN_ARG_FLAG, AT(no_wrap), 0, 0, NULL, "do not wrap lines at word boundaries"},
    {0},
};

/* What the user did not say is taken from the model's generation_config or, where it names nothing, from our
 * defaults. Mirostat chooses how much it cuts: no default cuts before it. */
static void choose_sampling(qn_sampling_options *s, const qn_model_info *info)
{
    const int named = info->default_temperature >= 0 || info->default_top_p >= 0 ||
                      info->default_top_k >= 0 || info->default_min_p > 0 || info->default_typical_p > 0 ||
                      info->default_repeat_penalty > 0 || info->n_default_bad_ids;
    const int cuts = !s->o.mirostat;
    float temperature = info->default_temperature >= 0 ? info->default_temperature : named ? 1 : 0.7f;
    float top_p = s->o.mirostat ? 0 : info->default_top_p >= 0 ? info->default_top_p : named ? 0 : 0.95f;
    if (s->temperature < 0) s->o.temperature = temperature;
    if (s->top_p < 0) s->o.top_p = top_p;
    if (s->top_k < 0) s->o.top_k = info->default_top_k > 0 && cuts ? info->default_top_k : 0;
    if (s->min_p < 0 && cuts) s->o.min_p = info->default_min_p;
    if (s->typical_p < 0 && cuts) s->o.typical_p = info->default_typical_p;
    if (s->repeat_penalty < 0 && s->repeat_last_n) s->o.repeat_penalty = info->default_repeat_penalty;
    if (!s->o.n_bad_ids) {
        s->o.bad_ids = info->default_bad_ids;
        s->o.n_bad_ids = info->n_default_bad_ids;
    }
}

static qn_status take(qn_chat_state *c, qn_buf *entered, int is_block)
{
    if (!c->was_asked && entered->length >= 3 && memcmp(entered->data, "\xef\xbb\xbf", 3) == 0) {
        memmove(entered->data, entered->data + 3,
                entered->length - 2); /* a byte order mark before the first line */
        entered->length -= 3;
    }
    c->was_asked = 1;
    const char *text = entered->data;
    if (entered->length == 0) return QN_OK;
    if (memchr(text, 0, entered->length)) return qn_fail(QN_E_FORMAT, "the line has a NUL character");
    if (!is_block && text[0] == '/' && text[1] != '/') return qn_chat_command_run(c, text);
    if (!is_block && text[0] == '/') text++;
    return qn_chat_turn_ask(c, text, strlen(text));
}

/* "[12%] >": how full the context is, once that is worth saying. */
static const char *make_prompt(qn_chat_state *c, char *out, size_t size_bytes)
{
    long long percent = (long long)(qn_chat_turn_context(c) * 100 / c->info.context_size);
    if (percent == 0) return ">";
    snprintf(out, size_bytes, "[%lld%%] >", percent);
    return out;
}

/* On a terminal what fails is reported and the session goes on; from a pipe it ends the run, and so does
 * Ctrl-C (QN_E_CANCELLED): who presses it there wants no answers to the lines left. */
static qn_status converse(qn_chat_state *c)
{
    qn_buf entered = {0};
    qn_status status = QN_OK;
    int terminal = qn_line_is_terminal(c->reader);
    while (status == QN_OK && !c->is_leaving) {
        char prompt[32];
        int is_block;
        qn_line_event event;
        const char *shown = terminal ? make_prompt(c, prompt, sizeof prompt) : "";
        if (terminal) qn_chat_turn_look_ahead(c);
        status = qn_chat_input_next(c->reader, shown, &entered, &is_block, &event);
        if (status == QN_OK && event == QN_LINE_END) break;
        if (status == QN_OK && event == QN_LINE_TEXT) status = take(c, &entered, is_block);
        if (status == QN_OK && !terminal && (event == QN_LINE_INTERRUPTED || c->was_interrupted))
            status = qn_fail(QN_E_CANCELLED, "ended by Ctrl-C");
        if (status != QN_OK && terminal) {
            qn_out_fail();
            status = QN_OK;
        }
    }
    qn_buf_free(&entered);
    return status;
}

/* What is given on the command line wins over what a file said: it is put over that by parsing it again. */
static void keep_given(qn_generate_options *o, int argc, char **argv)
{
    chat_options again = {.sampling = {.o = *o,
                                       .temperature = o->temperature,
                                       .top_p = o->top_p,
                                       .top_k = o->top_k,
                                       .min_p = o->min_p,
                                       .typical_p = o->typical_p,
                                       .repeat_penalty = o->repeat_penalty,
                                       .repeat_last_n = -1,
                                       .dry_last_n = -1}};
    const char *path;
    int n, code;
    qn_args_parse(&qn_chat_spec, &again, argc, argv, &path, &n, &code); /* it went well before */
    again.sampling.o.min_p = again.sampling.min_p;
    again.sampling.o.typical_p = again.sampling.typical_p;
    again.sampling.o.repeat_penalty = again.sampling.repeat_penalty;
    qn_sampling_set_windows(&again.sampling);
    *o = again.sampling.o;
    o->temperature = again.sampling.temperature;
    o->top_p = again.sampling.top_p;
    o->top_k = again.sampling.top_k;
}

static qn_status run(qn_chat_state *c, const char *path, chat_options *o, int argc, char **argv)
{
    o->load.o.background = isatty(STDIN_FILENO); /* while the user types, see qn_chat_turn_look_ahead */
    o->load.may_fetch = 1;
    QN_TRY(qn_load_open(path, &o->load, &c->model));
    qn_interrupt_start(); /* until here Ctrl-C just ends the process */
    QN_TRY(qn_model_get_info(c->model, &c->info));
    if (!c->info.has_chat_template) {
        /* Without a tokenizer there is no template either: that says more. */
        int32_t *ids = NULL;
        int64_t n;
        QN_TRY(qn_model_encode(c->model, "", 0, NULL, &ids, &n));
        qn_buffer_free(ids);
        return qn_fail(QN_E_UNSUPPORTED,
                       "%s has no chat template; give one by --template, or use `quern run --raw`", path);
    }
    choose_sampling(&o->sampling, &c->info);
    c->session.settings.o = o->sampling.o;
    QN_TRY(qn_form_open(c->model, &o->sampling.form, &c->form));
    c->session.settings.o.constraint = c->form;
    qn_chat_screen_open(&c->screen);
    if (o->saved) QN_TRY(qn_chat_command_load(c, o->saved));
    if (o->saved) keep_given(&c->session.settings.o, argc, argv);
    if (o->system) QN_TRY(qn_chat_session_set_system(&c->session, o->system));
    c->n_context = -1;
    QN_TRY(qn_line_open(&c->reader));
    if (qn_line_is_terminal(c->reader) && !c->json)
        qn_out_note("%s, %d bits, context %lld. /help lists commands, Ctrl-D leaves.", c->info.architecture,
                    (int)c->info.quant_bits, (long long)c->info.context_size);
    return converse(c);
}

static const qn_arg_group chat_groups[] = {{NULL, chat_args, 0, NULL},
                                           {"Sampling", qn_sampling_args, AT(sampling), qn_sampling_rules},
                                           {"Loading", qn_load_args, AT(load), NULL},
                                           {"Rotary positions", qn_rope_args, AT(load.rope), qn_rope_rules},
                                           {0}};
const qn_arg_spec qn_chat_spec = {
    "quern chat MODEL [options]",
    "Chats with a model. Sampling parameters come from the model's generation_config; without one, the\n"
    "temperature is 0.7 and top-p is 0.95. /show parameters prints them, and /help lists the commands of\n"
    "a chat.",
    chat_groups,
    1,
    1,
    NULL};

int qn_cmd_chat(int argc, char **argv)
{
    chat_options o = {.sampling = QN_SAMPLING_UNSET};
    qn_chat_state c = {0};
    const char *path;
    int n, code;
    if (qn_args_parse(&qn_chat_spec, &o, argc, argv, &path, &n, &code)) return code;
    if (qn_sampling_finish("chat", &o.sampling)) return QN_EXIT_USAGE;
    c.json = o.json;
    c.shows_stats = o.stats;
    c.wraps = !o.no_wrap;
    qn_status status = run(&c, path, &o, argc, argv);
    code = status == QN_OK ? QN_EXIT_OK : status == QN_E_CANCELLED ? QN_EXIT_INTERRUPTED : qn_out_fail();
    qn_chat_turn_stop_ahead(&c);
    qn_line_close(c.reader);
    qn_chat_screen_close(&c.screen);
    qn_chat_session_end(&c.session);
    qn_buf_free(&c.attached);
    qn_buf_free(&c.form_name);
    qn_constraint_close(c.form);
    qn_model_close(&c.model);
    qn_load_end(&o.load);
    return code;
}

#include "cli/chat/chat_commands.h"
#include "cli/options/args.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "cli/chat/chat_path.h"
#include "cli/options/form.h"
#include "cli/options/prompt_cache.h"
#include "cli/term/input.h"
#include "cli/term/out.h"

/* Where lines that are longer than the terminal go on. */
enum { VALUE_COLUMN = 12, USAGE_COLUMN = 19, HELP_COLUMN = 29 };

typedef struct {
    const char *name, *usage, *help; /* help NULL: another name of the row above */
    qn_status (*run)(qn_chat_state *c, const char *rest);
} chat_command;

static qn_status run_help(qn_chat_state *c, const char *rest);

static const char *get_model_name(const qn_chat_state *c)
{
    const char *slash = strrchr(c->info.path, '/');
    return slash && slash[1] ? slash + 1 : c->info.path;
}

/* ---- the conversation ---- */

/* Does the template write anything else when it is told to think? */
static qn_status check_think(const qn_chat_state *c)
{
    const qn_message question = {"user", "x"};
    char *texts[2] = {NULL, NULL};
    qn_status status = QN_OK;
    for (int i = 0; status == QN_OK && i < 2; i++) {
        const qn_prompt prompt = {.messages = &question,
                                  .n_messages = 1,
                                  .variables_json =
                                      qn_chat_think_variables(i ? QN_CHAT_THINK_OFF : QN_CHAT_THINK_ON)};
        status = qn_chat_render(c->model, &prompt, &texts[i], NULL, NULL);
    }
    if (status == QN_OK && strcmp(texts[0], texts[1]) == 0)
        status = qn_fail(QN_E_UNSUPPORTED, "think: this model's template has no switch for thinking");
    qn_buffer_free(texts[0]);
    qn_buffer_free(texts[1]);
    return status;
}

static qn_status run_regen(qn_chat_state *c, const char *rest)
{
    return qn_chat_turn_again(c);
}

static qn_status run_clear(qn_chat_state *c, const char *rest)
{
    qn_chat_session_clear(&c->session);
    qn_chat_session_detach(&c->session);
    qn_buf_reset(&c->attached);
    c->n_context = -1;
    return QN_OK;
}

static qn_status run_save(qn_chat_state *c, const char *rest)
{
    qn_buf path = {0}, state = {0}, b = {0};
    qn_status status = qn_chat_path(rest, &path);
    if (status == QN_OK) status = qn_chat_session_save(&c->session, get_model_name(c), path.data);
    if (status == QN_OK) status = qn_prompt_cache_beside(path.data, &state);
    if (status == QN_OK) {
        qn_prompt_cache_save(c->model, state.data);
        qn_buf_printf(&b, "%zu message%s saved to %s", c->session.n_messages,
                      qn_out_plural((int64_t)c->session.n_messages), path.data);
        status = qn_chat_turn_say_folded(c, &b, 0);
    }
    qn_buf_free(&state);
    qn_buf_free(&path);
    return status;
}

qn_status qn_chat_command_load(qn_chat_state *c, const char *path)
{
    qn_buf state = {0};
    QN_TRY(qn_chat_session_load(&c->session, path));
    if (qn_prompt_cache_beside(path, &state) == QN_OK) qn_prompt_cache_load(c->model, state.data);
    qn_buf_free(&state);
    qn_buf_reset(&c->attached);
    c->n_context = -1;
    if (c->session.settings.think != QN_CHAT_THINK_UNSET && check_think(c) != QN_OK)
        qn_out_note("%s", qn_last_error());
    qn_buf b = {0};
    size_t n = c->session.n_messages;
    qn_buf_printf(&b, "%zu message%s loaded from %s", n, qn_out_plural((int64_t)n), path);
    if (n && qn_chat_session_asked(&c->session) == n)
        qn_buf_puts(&b, "; the last one has no answer yet, /regen makes one");
    return qn_chat_turn_say_folded(c, &b, 0);
}

static qn_status run_load(qn_chat_state *c, const char *rest)
{
    qn_buf path = {0};
    qn_status status = qn_chat_path_of_input(rest, &path);
    if (status == QN_OK) status = qn_chat_command_load(c, path.data);
    qn_buf_free(&path);
    return status;
}

static qn_status run_read(qn_chat_state *c, const char *rest)
{
    qn_buf path = {0}, text = {0}, b = {0};
    qn_status status = qn_chat_path_of_input(rest, &path);
    if (status == QN_OK) status = qn_input_read(path.data, &text);
    if (status != QN_OK) goto out;
    size_t valid = qn_utf8_valid_prefix(text.data, text.length), nul = strlen(text.data);
    if (valid < text.length || nul < text.length) {
        status = qn_fail(QN_E_FORMAT, "%s: not a text: byte %zu is %s", path.data, valid < nul ? valid : nul,
                         valid < nul ? "not UTF-8" : "a NUL");
        goto out;
    }
    /* Nothing is attached by halves. */
    qn_buf_reserve(&c->attached, text.length + 2);
    status = c->attached.status;
    if (status != QN_OK) {
        qn_buf_reset(&c->attached);
        goto out;
    }
    qn_buf_append(&c->attached, text.data, text.length);
    qn_buf_puts(&c->attached, text.length && text.data[text.length - 1] == '\n' ? "\n" : "\n\n");
    qn_buf_printf(&b, "%s will be put before your next message (%zu byte%s)", path.data, text.length,
                  qn_out_plural((int64_t)text.length));
    status = qn_chat_turn_say_folded(c, &b, 0);
out:
    qn_buf_free(&path);
    qn_buf_free(&text);
    return status;
}

static qn_status run_image(qn_chat_state *c, const char *rest)
{
    qn_buf path = {0}, b = {0};
    qn_picture picture = {0};
    if (!c->info.takes_images) return qn_fail(QN_E_UNSUPPORTED, "/image: the model takes only text");
    qn_status status = qn_chat_path_of_input(rest, &path);
    if (status == QN_OK) status = qn_input_picture(path.data, &picture);
    if (status == QN_OK) {
        qn_buf_printf(&b, "%s will be put before your next message (%lld x %lld pixels)", path.data,
                      (long long)picture.width, (long long)picture.height);
        status = qn_chat_session_attach(&c->session, &picture);
    }
    if (status == QN_OK) status = qn_chat_turn_say_folded(c, &b, 0);
    qn_picture_free(&picture);
    qn_buf_free(&path);
    qn_buf_free(&b);
    return status;
}

/* ---- the form of answers ---- */

static qn_status say_form(const qn_chat_state *c)
{
    qn_buf b = {0};
    qn_buf_puts(&b, !c->form ? "answers are free; /format json, schema FILE, regex R, grammar FILE or "
                               "choices A,B gives them a form"
                    : c->form_name.length
                        ? c->form_name.data
                        : "answers have the form of the command line; /format off frees them");
    return qn_chat_turn_say_folded(c, &b, 0);
}

static qn_status open_form(qn_chat_state *c, const char *kind, const char *value, qn_constraint **out)
{
    const int is_schema = strcmp(kind, "schema") == 0, is_grammar = strcmp(kind, "grammar") == 0;
    qn_form_options o = {0};
    qn_buf path = {0};
    if (strcmp(kind, "json") == 0 && !value[0]) return qn_form_open_object(c->model, out);
    if (strcmp(kind, "regex") == 0) o.regex = value;
    if (strcmp(kind, "choices") == 0 && value[0]) o.choices = value;
    if (o.regex || o.choices) return qn_form_open(c->model, &o, out);
    if (!is_schema && !is_grammar)
        return qn_fail(QN_E_ARG,
                       "/format: it takes json, schema FILE, regex R, grammar FILE, choices A,B or off");
    qn_status status = qn_chat_path_of_input(value, &path);
    *(is_schema ? &o.json_schema : &o.grammar) = path.data;
    if (status == QN_OK) status = qn_form_open(c->model, &o, out);
    qn_buf_free(&path);
    return status;
}

/* A form that is refused leaves the old one. */
static qn_status run_format(qn_chat_state *c, const char *rest)
{
    char kind[16];
    qn_constraint *form = NULL;
    const size_t n = strcspn(rest, " \t\n");
    const char *value = rest + n + strspn(rest + n, " \t\n");
    if (!n) return say_form(c);
    snprintf(kind, sizeof kind, "%.*s", n < sizeof kind ? (int)n : 0, rest);
    if (strcmp(kind, "off") != 0 || value[0]) QN_TRY(open_form(c, kind, value, &form));
    qn_buf_reset(&c->form_name);
    if (form) qn_buf_printf(&c->form_name, "answers have the form: %s", rest);
    qn_constraint_close(c->form);
    c->form = c->session.settings.o.constraint = form;
    return c->form_name.status != QN_OK ? c->form_name.status : say_form(c);
}

/* ---- settings ---- */

static qn_status set_think(qn_chat_state *c, const char *value)
{
    qn_chat_think think = QN_CHAT_THINK_UNSET;
    if (strcmp(value, "on") == 0)
        think = QN_CHAT_THINK_ON;
    else if (strcmp(value, "off") == 0)
        think = QN_CHAT_THINK_OFF;
    else if (strcmp(value, "auto") != 0)
        return qn_fail(QN_E_ARG, "think: '%.60s' is none of on, off and auto", value);
    if (think != QN_CHAT_THINK_UNSET) QN_TRY(check_think(c));
    c->session.settings.think = think;
    c->n_context = -1;
    return QN_OK;
}

static qn_status set_system(qn_chat_state *c, const char *value)
{
    QN_TRY(qn_chat_session_set_system(&c->session, value));
    c->n_context = -1;
    return QN_OK;
}

static qn_status read_switch(const char *name, const char *value, int *out)
{
    int is_on = strcmp(value, "on") == 0;
    if (!is_on && strcmp(value, "off") != 0)
        return qn_fail(QN_E_ARG, "%s: '%.60s' is neither on nor off", name, value);
    *out = is_on;
    return QN_OK;
}

static qn_status set_wordwrap(qn_chat_state *c, const char *value)
{
    return read_switch("wordwrap", value, &c->wraps);
}

static qn_status set_stats(qn_chat_state *c, const char *value)
{
    return read_switch("stats", value, &c->shows_stats);
}

static qn_status set_history(qn_chat_state *c, const char *value)
{
    int keep = 1;
    QN_TRY(read_switch("history", value, &keep));
    qn_line_keep_history(c->reader, keep);
    return QN_OK;
}

/* What can be set besides the numbers of chat_settings.h. */
static const struct {
    const char *name, *usage, *help;
    qn_status (*set)(qn_chat_state *c, const char *value);
} other_settings[] = {
    {"system", "TEXT", "the system message; without a text it is removed", set_system},
    {"think", "on|off|auto", "auto: the template's default", set_think},
    {"wordwrap", "on|off", "wrap lines at word boundaries", set_wordwrap},
    {"stats", "on|off", "print speeds after each answer", set_stats},
    {"history", "on|off", "remember typed lines", set_history},
};
enum { N_OTHER_SETTINGS = sizeof other_settings / sizeof *other_settings };

static qn_status list_settings(const qn_chat_state *c)
{
    qn_buf b = {0}, value = {0}, range = {0};
    for (const qn_chat_setting *s = qn_chat_setting_table; s->name; s++) {
        qn_buf_reset(&value);
        qn_buf_reset(&range);
        qn_chat_setting_show(s, &c->session.settings, &value);
        qn_chat_setting_show_range(s, &range);
        if (value.status != QN_OK || range.status != QN_OK) b.status = QN_E_NOMEM;
        if (b.status == QN_OK)
            qn_buf_printf(&b, "%-15s %-12s %s (%s)\n", s->name, value.data, s->help, range.data);
    }
    static const char *const thinks[] = {"auto", "on", "off"};
    const char *shown[] = {qn_chat_session_system(&c->session) ? "set" : "none",
                           thinks[c->session.settings.think], c->wraps ? "on" : "off",
                           c->shows_stats ? "on" : "off", qn_line_keeps_history(c->reader) ? "on" : "off"};
    for (size_t i = 0; i < N_OTHER_SETTINGS; i++)
        qn_buf_printf(&b, "%-15s %-12s %s (%s)%s", other_settings[i].name, shown[i], other_settings[i].help,
                      other_settings[i].usage, i + 1 < N_OTHER_SETTINGS ? "\n" : "");
    qn_buf_free(&value);
    qn_buf_free(&range);
    return qn_chat_turn_say_folded(c, &b, HELP_COLUMN);
}

/* The setting that a name may be meant for, by a slip of the hand or by what Ollama calls it; NULL: none. */
static const char *find_near(const char *name)
{
    static const char *const others[][2] = {{"num_predict", "max-tokens"},
                                            {"n_predict", "max-tokens"},
                                            {"max_new_tokens", "max-tokens"},
                                            {"repetition_penalty", "repeat-penalty"},
                                            {"verbose", "stats"},
                                            {"thinking", "think"}};
    const char *best = NULL;
    int least = 3, d;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcmp(others[i][0], name) == 0) return others[i][1];
    for (const qn_chat_setting *s = qn_chat_setting_table; s->name; s++)
        if ((d = qn_args_is_near(name, s->name)) < least) {
            least = d;
            best = s->name;
        }
    for (size_t i = 0; i < N_OTHER_SETTINGS; i++)
        if ((d = qn_args_is_near(name, other_settings[i].name)) < least) {
            least = d;
            best = other_settings[i].name;
        }
    return best;
}

static qn_status run_set(qn_chat_state *c, const char *rest)
{
    char name[32];
    size_t n = strcspn(rest, " \t\n");
    const char *value = rest + n + strspn(rest + n, " \t\n");
    if (!n) return list_settings(c);
    snprintf(name, sizeof name, "%.*s", n < sizeof name ? (int)n : (int)sizeof name, rest);
    for (size_t i = 0; i < N_OTHER_SETTINGS; i++)
        if (strcmp(other_settings[i].name, name) == 0) return other_settings[i].set(c, value);
    const qn_chat_setting *setting = qn_chat_setting_find(name);
    const char *near = setting ? NULL : find_near(name);
    if (near)
        return qn_fail(QN_E_ARG, "no setting %.*s; did you mean %s? /set lists them", (int)(n < 60 ? n : 60),
                       rest, near);
    if (!setting) return qn_fail(QN_E_ARG, "no setting %.*s; /set lists them", (int)(n < 60 ? n : 60), rest);
    return qn_chat_setting_set(setting, value, &c->session.settings);
}

/* ---- what there is ---- */

static void put_context(qn_chat_state *c, qn_buf *b)
{
    long long used = (long long)qn_chat_turn_context(c), size = (long long)c->info.context_size;
    qn_buf_printf(b, "context     %lld of %lld tokens (%lld%%), %zu message%s", used, size, used * 100 / size,
                  c->session.n_messages, qn_out_plural((int64_t)c->session.n_messages));
}

static qn_status show_info(qn_chat_state *c)
{
    const qn_model_info *i = &c->info;
    qn_buf b = {0};
    qn_buf_printf(&b, "model       %s\n", i->path);
    qn_buf_printf(&b, "family      %s, %lld layers, %.1f M parameters, %d bits\n", i->architecture,
                  (long long)i->num_layers, (double)i->num_parameters / 1e6, (int)i->quant_bits);
    qn_buf_printf(&b, "computed    by %s on %s%s%s, %s, %d thread%s\n", i->backend, i->device,
                  i->cpu_set[0] ? " " : "", i->cpu_set, qn_precision_name(i->precision), (int)i->n_threads,
                  qn_out_plural(i->n_threads));
    if (i->generation_config[0]) qn_buf_printf(&b, "asks for    %s\n", i->generation_config);
    put_context(c, &b);
    if (i->notes[0]) qn_buf_printf(&b, "\n%s", i->notes);
    return qn_chat_turn_say_folded(c, &b, VALUE_COLUMN);
}

/* What the model reads at the next turn: the template applied to the conversation and the message that is to
 * come, or to a question that is still without an answer. */
static qn_status show_template(qn_chat_state *c)
{
    char *text = NULL;
    qn_buf b = {0};
    size_t n = c->session.n_messages, n_pictures = qn_chat_session_pictures(&c->session, n);
    qn_message *messages = qn_calloc(n + 1, sizeof *messages);
    size_t *n_images = qn_calloc(n + 1, sizeof *n_images);
    if (!messages || !n_images) {
        qn_free(messages);
        qn_free(n_images);
        return QN_E_NOMEM;
    }
    if (n) memcpy(messages, c->session.messages, n * sizeof *messages);
    if (n) memcpy(n_images, c->session.n_images, n * sizeof *n_images);
    if (!n || qn_chat_session_asked(&c->session) != n) {
        n_images[n] = c->session.n_pictures - n_pictures;
        n_pictures = c->session.n_pictures;
        messages[n++] = (qn_message){"user", "(your message)"};
    }
    const qn_prompt prompt = {.messages = messages,
                              .n_messages = n,
                              .images = c->session.pictures,
                              .n_images = n_pictures,
                              .message_images = n_images,
                              .variables_json = qn_chat_think_variables(c->session.settings.think)};
    qn_status status = qn_chat_render(c->model, &prompt, &text, NULL, NULL);
    qn_free(messages);
    qn_free(n_images);
    if (status != QN_OK) return status;
    qn_buf_puts(&b, text);
    qn_buffer_free(text);
    return qn_chat_turn_say(c, &b);
}

static qn_status show_parameters(qn_chat_state *c)
{
    qn_buf b = {0}, value = {0};
    for (const qn_chat_setting *s = qn_chat_setting_table; s->name; s++) {
        qn_buf_reset(&value);
        qn_chat_setting_show(s, &c->session.settings, &value);
        if (value.status != QN_OK) b.status = value.status;
        if (b.status == QN_OK) qn_buf_printf(&b, "%s%s %s", b.length ? ", " : "", s->name, value.data);
    }
    qn_buf_free(&value);
    return qn_chat_turn_say_folded(c, &b, 0);
}

static qn_status show_system(qn_chat_state *c)
{
    const char *text = qn_chat_session_system(&c->session);
    qn_buf b = {0};
    qn_buf_puts(&b, text ? text : "there is no system message; /set system TEXT sets one");
    return qn_chat_turn_say(c, &b);
}

static qn_status show_history(qn_chat_state *c)
{
    qn_buf b = {0};
    for (size_t i = 0; i < c->session.n_messages; i++) {
        const qn_message *m = &c->session.messages[i];
        qn_buf_printf(&b, "%s%s: ", i ? "\n" : "", m->role);
        if (c->session.n_images[i])
            qn_buf_printf(&b, "(%zu picture%s) ", c->session.n_images[i],
                          qn_out_plural((int64_t)c->session.n_images[i]));
        qn_buf_puts(&b, m->content);
    }
    if (!c->session.n_messages) qn_buf_puts(&b, "there are no messages yet");
    return qn_chat_turn_say(c, &b);
}

static const struct {
    const char *name;
    qn_status (*show)(qn_chat_state *c);
} shows[] = {
    {"info", show_info},     {"template", show_template}, {"parameters", show_parameters},
    {"system", show_system}, {"history", show_history},
};
enum { N_SHOWS = sizeof shows / sizeof *shows };

static qn_status run_show(qn_chat_state *c, const char *rest)
{
    if (!rest[0]) return show_info(c);
    for (size_t i = 0; i < N_SHOWS; i++)
        if (strcmp(shows[i].name, rest) == 0) return shows[i].show(c);
    return qn_fail(QN_E_ARG, "/show %.60s: it shows info, template, parameters, system or history", rest);
}

static qn_status run_stats(qn_chat_state *c, const char *rest)
{
    const qn_generation_stats *s = &c->last;
    const double mib = 1024.0 * 1024.0;
    qn_memory memory;
    qn_buf b = {0};
    QN_TRY(qn_model_get_memory(c->model, &memory));
    if (c->n_answers) {
        qn_buf_printf(&b, "prompt      %lld token%s in %.0f ms, %.1f tokens/s\n",
                      (long long)s->n_prompt_tokens, qn_out_plural(s->n_prompt_tokens), s->prefill_ms,
                      s->prefill_tokens_per_sec);
        qn_buf_printf(&b, "answer      %lld token%s in %.0f ms, %.1f tokens/s, seed %llu\n",
                      (long long)s->n_generated_tokens, qn_out_plural(s->n_generated_tokens), s->decode_ms,
                      s->decode_tokens_per_sec, (unsigned long long)s->seed);
    }
    qn_buf_printf(&b, "session     %lld answer%s, %lld token%s\n", (long long)c->n_answers,
                  qn_out_plural(c->n_answers), (long long)c->n_generated_tokens,
                  qn_out_plural(c->n_generated_tokens));
    put_context(c, &b);
    qn_buf_printf(&b, "\nmemory      %.1f MiB (most: %.1f): weights %.1f, keys and values %.1f, scratch %.1f",
                  (double)memory.active_memory_bytes / mib, (double)memory.peak_memory_bytes / mib,
                  (double)memory.weights_bytes / mib, (double)memory.kv_bytes / mib,
                  (double)memory.scratch_bytes / mib);
    return qn_chat_turn_say_folded(c, &b, VALUE_COLUMN);
}

static qn_status run_quit(qn_chat_state *c, const char *rest)
{
    c->is_leaving = 1;
    return QN_OK;
}

static const chat_command commands[] = {
    {"/help", "", "this list (also /?)", run_help},
    {"/?", "", NULL, run_help},
    {"/regen", "", "answer your last message again, with a new seed", run_regen},
    {"/clear", "", "forget the conversation; the system message and settings stay", run_clear},
    {"/set", " [NAME VALUE]", "change a setting; without arguments: list all with their ranges", run_set},
    {"/show", " [WHAT]", "info, template, parameters, system or history", run_show},
    {"/save", " FILE", "write the conversation and settings to a file", run_save},
    {"/load", " FILE", "continue a conversation that /save wrote", run_load},
    {"/read", " FILE", "put a text file before your next message", run_read},
    {"/image", " FILE", "put a picture, PNG, JPEG or WebP, before your next message", run_image},
    {"/format", " [FORM]", "the form of answers: json, schema FILE, regex R, grammar FILE, choices A,B, off",
     run_format},
    {"/stats", "", "tokens, speeds, context, memory", run_stats},
    {"/bye", "", "leave (also /exit, /quit, Ctrl-D)", run_quit},
    {"/exit", "", NULL, run_quit},
    {"/quit", "", NULL, run_quit},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static qn_status run_help(qn_chat_state *c, const char *rest)
{
    qn_buf b = {0};
    for (size_t i = 0; i < N_COMMANDS; i++) {
        char left[32];
        if (!commands[i].help) continue;
        snprintf(left, sizeof left, "%s%s", commands[i].name, commands[i].usage);
        qn_buf_printf(&b, "%-18s %s\n", left, commands[i].help);
    }
    qn_buf_puts(&b, "//TEXT             the message /TEXT\n"
                    "\"\"\"                a message of several lines begins and ends with three quotes\n"
                    "Ctrl-C             stop the answer\n"
                    "Ctrl-G             write the message in your editor");
    return qn_chat_turn_say_folded(c, &b, USAGE_COLUMN);
}

qn_status qn_chat_command_run(qn_chat_state *c, const char *line)
{
    size_t n = strcspn(line, " \t\n");
    const char *rest = line + n + strspn(line + n, " \t\n");
    size_t n_rest = strlen(rest);
    while (n_rest && strchr(" \t\n", rest[n_rest - 1])) n_rest--;
    for (size_t i = 0; i < N_COMMANDS; i++) {
        const chat_command *command = &commands[i];
        if (strlen(command->name) != n || memcmp(command->name, line, n) != 0) continue;
        if (n_rest && !command->usage[0])
            return qn_fail(QN_E_ARG, "%s takes no argument: '%.60s'", command->name, rest);
        char *argument = qn_strndup(rest, n_rest);
        if (!argument) return QN_E_NOMEM;
        qn_status status = command->run(c, argument);
        qn_free(argument);
        return status;
    }
    return qn_fail(QN_E_ARG, "no command %.*s; /help lists them, and // sends a message that begins with /",
                   (int)(n < 60 ? n : 60), line);
}

#include "cli/chat/chat_turn.h"

#include <string.h>

#include "base/mem.h"
#include "cli/options/options.h"
#include "cli/term/fold.h"
#include "cli/term/interrupt.h"
#include "cli/term/out.h"
#include "server/core/next_turn/next_turn.h"

enum { WARN_PERCENT = 90 };

static const char way_out[] =
    "/save FILE keeps the conversation, /clear starts a new one, the option --context N makes room";

qn_status qn_chat_turn_say(const qn_chat_state *c, qn_buf *b)
{
    qn_status status = b->status;
    if (status == QN_OK) status = qn_chat_screen_say(c->json ? stderr : stdout, b->data, b->length);
    qn_buf_free(b);
    return status;
}

qn_status qn_chat_turn_say_folded(const qn_chat_state *c, qn_buf *b, int indent)
{
    const int columns = qn_fold_terminal(c->json ? stderr : stdout);
    qn_buf folded = {.status = b->status};
    char *rest = b->status == QN_OK ? b->data : NULL;
    for (char *line; columns && (line = strsep(&rest, "\n"));) {
        qn_fold_put(&folded, line, 0, indent, columns, 0);
        if (rest) qn_buf_putc(&folded, '\n');
    }
    if (!columns) return qn_chat_turn_say(c, b);
    qn_buf_free(b);
    return qn_chat_turn_say(c, &folded);
}

static qn_prompt make_prompt(const qn_chat_state *c, size_t n_messages)
{
    return (qn_prompt){.messages = c->session.messages,
                       .n_messages = n_messages,
                       .images = c->session.pictures,
                       .n_images = qn_chat_session_pictures(&c->session, n_messages),
                       .message_images = c->session.n_pictures ? c->session.n_images : NULL,
                       .variables_json = qn_chat_think_variables(c->session.settings.think)};
}

/* Tokens of the first messages; -1 where they cannot be written. */
static int64_t count_tokens(const qn_chat_state *c, size_t n_messages)
{
    int32_t *ids = NULL;
    int64_t n = 0;
    const qn_prompt prompt = make_prompt(c, n_messages);
    if (qn_chat_render(c->model, &prompt, NULL, &ids, &n) != QN_OK) return -1;
    qn_buffer_free(ids);
    return n;
}

int64_t qn_chat_turn_context(qn_chat_state *c)
{
    if (c->n_context < 0) c->n_context = c->session.n_messages ? count_tokens(c, c->session.n_messages) : 0;
    if (c->n_context < 0) c->n_context = 0;
    return c->n_context;
}

/* Does the prompt end inside the thinking? Some templates write its mark themselves. */
static int opens_thinking(const qn_chat_state *c, size_t n_messages)
{
    char *text = NULL;
    const qn_prompt prompt = make_prompt(c, n_messages);
    if (!c->screen.is_terminal || qn_chat_render(c->model, &prompt, &text, NULL, NULL) != QN_OK) return 0;
    int is_open = qn_think_split_is_open(text);
    qn_buffer_free(text);
    return is_open;
}

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

static qn_status stream(qn_chat_state *c, qn_generation *generation, qn_buf *answer, qn_end *end)
{
    for (;;) {
        qn_token token;
        QN_TRY(qn_generation_next(generation, &token));
        qn_buf_append(answer, token.text, token.text_bytes);
        QN_TRY(answer->status);
        if (!c->json) QN_TRY(qn_chat_screen_put(&c->screen, token.text, token.text_bytes));
        if (token.end != QN_END_NONE) {
            *end = token.end;
            return QN_OK;
        }
    }
}

static qn_status stream_shown(qn_chat_state *c, qn_generation *generation, size_t n_messages, qn_buf *answer,
                              qn_end *end)
{
    if (!c->json) QN_TRY(qn_chat_screen_begin(&c->screen, c->wraps, opens_thinking(c, n_messages)));
    qn_interrupt_watch(generation);
    qn_status status = stream(c, generation, answer, end);
    qn_interrupt_watch(NULL);
    c->was_interrupted = qn_interrupt_taken();
    if (c->json) return status;
    /* The style is reset whatever happened. */
    qn_status ended = qn_chat_screen_end(&c->screen);
    return status != QN_OK ? status : ended;
}

/* What the user should know after a turn. */
static void tell(qn_chat_state *c, qn_end end)
{
    const qn_generation_stats *s = &c->last;
    int64_t max_tokens = c->session.settings.o.max_tokens;
    long long used = (long long)qn_chat_turn_context(c), size = (long long)c->info.context_size;
    if (c->shows_stats) qn_note_stats(s, end);
    int is_nearly_full = used * 100 > size * WARN_PERCENT && !c->session.settings.o.rotate;
    if (end == QN_END_LENGTH && (!max_tokens || s->n_generated_tokens < max_tokens))
        qn_out_note("the context of %lld tokens is full: the answer ends here; %s", size, way_out);
    else if (end == QN_END_DEADLINE)
        qn_out_note("ended by the deadline");
    else if (is_nearly_full && !c->has_warned)
        qn_out_note("the context is %lld%% full (%lld of %lld tokens); %s", used * 100 / size, used, size,
                    way_out);
    c->has_warned = is_nearly_full;
}

/* Answers the first messages; the answer takes the place of what follows them. *dropped: Ctrl-C came before
 * there was any, and nothing was changed. */
static qn_status answer(qn_chat_state *c, size_t n_messages, const qn_generate_options *options, int *dropped)
{
    qn_generation *generation = NULL;
    qn_generation_stats stats = {0};
    qn_buf text = {0};
    qn_end end = QN_END_NONE;
    const qn_prompt prompt = make_prompt(c, n_messages);
    qn_buf_append(&text, "", 0);
    qn_interrupt_taken();
    qn_chat_turn_stop_ahead(c);
    qn_status status = qn_generation_open(c->model, &prompt, options, &generation);
    if (status == QN_OK)
        status = stream_shown(c, generation, n_messages, &text, &end);
    else if (status == QN_E_ARG) {
        qn_buf why = {0};
        qn_buf_puts(&why, qn_last_error());
        int is_too_long = count_tokens(c, n_messages) > c->info.context_size;
        if (why.status == QN_OK)
            status = is_too_long ? qn_fail(status, "%s; the message is dropped; %s", why.data, way_out)
                                 : qn_fail(status, "%s", why.data);
        qn_buf_free(&why);
    }
    if (status == QN_OK) status = qn_generation_get_stats(generation, &stats);
    if (status == QN_OK && c->json) status = print_json(&text, end, &stats);
    *dropped = status == QN_OK && end == QN_END_CANCELLED && !text.length;
    if (status == QN_OK && !*dropped) {
        status = qn_chat_session_answer(&c->session, n_messages, text.data, text.length);
        c->last = stats;
        c->n_answers++;
        c->n_generated_tokens += stats.n_generated_tokens;
        c->n_context = stats.n_prompt_tokens + stats.n_generated_tokens;
        if (c->n_context > c->info.context_size) c->n_context = c->info.context_size;
    }
    if (status == QN_OK && !*dropped) tell(c, end);
    qn_generation_close(generation);
    qn_buf_free(&text);
    return status;
}

void qn_chat_turn_look_ahead(qn_chat_state *c)
{
    static const char *const contents[2] = QN_NEXT_TURN_CONTENTS;
    const size_t n = c->session.n_messages;
    qn_message *messages[2] = {NULL, NULL};
    qn_prompt prompts[2];
    int32_t *ids = NULL;
    int64_t n_ids = 0;
    qn_status status = n && !c->ahead && !c->session.n_pictures ? QN_OK : QN_E_ARG;
    for (int i = 0; i < 2 && status == QN_OK; i++) {
        messages[i] = qn_alloc_array(n + 1, sizeof *messages[i]);
        if (!messages[i]) {
            status = QN_E_NOMEM;
            break;
        }
        memcpy(messages[i], c->session.messages, n * sizeof *messages[i]);
        messages[i][n] = (qn_message){"user", contents[i]};
        prompts[i] = make_prompt(c, n);
        prompts[i].n_messages = n + 1;
        prompts[i].messages = messages[i];
    }
    /* A conversation that is too long for it, or whatever else: the next turn will say it. */
    if (status == QN_OK) status = qn_next_turn_ids(c->model, prompts, &ids, &n_ids);
    if (status == QN_OK && n_ids)
        qn_next_turn_open(c->model, ids, n_ids, &(qn_generate_options){0}, &c->ahead);
    qn_buffer_free(ids);
    for (int i = 0; i < 2; i++) qn_free(messages[i]);
}

void qn_chat_turn_stop_ahead(qn_chat_state *c)
{
    qn_generation_close(c->ahead);
    c->ahead = NULL;
}

/* The message with the files that were read before it. */
static qn_status add_question(qn_chat_state *c, const char *text, size_t n)
{
    if (!c->attached.length) return qn_chat_session_add(&c->session, "user", text, n);
    qn_buf whole = {0};
    qn_buf_append(&whole, c->attached.data, c->attached.length);
    qn_buf_append(&whole, text, n);
    qn_status status = whole.status;
    if (status == QN_OK) status = qn_chat_session_add(&c->session, "user", whole.data, whole.length);
    qn_buf_free(&whole);
    return status;
}

qn_status qn_chat_turn_ask(qn_chat_state *c, const char *text, size_t n)
{
    size_t before = c->session.n_messages;
    int dropped = 0;
    qn_status status = add_question(c, text, n);
    /* What makes a message too long must not stay before the next one. */
    qn_buf_reset(&c->attached);
    if (status == QN_OK) status = answer(c, before + 1, &c->session.settings.o, &dropped);
    if (status == QN_OK && !dropped) return QN_OK;
    qn_chat_session_truncate(&c->session, before);
    if (dropped) qn_out_note("stopped before the first word: the message is dropped");
    return status;
}

qn_status qn_chat_turn_again(qn_chat_state *c)
{
    qn_generate_options options = c->session.settings.o;
    size_t n_messages = qn_chat_session_asked(&c->session);
    int dropped = 0;
    if (!n_messages) return qn_fail(QN_E_ARG, "there is no message of yours to answer");
    options.seed = 0;
    if (options.temperature == 0)
        qn_out_note("temperature 0 gives the same answer again; /set temp 0.7 lets it vary");
    QN_TRY(answer(c, n_messages, &options, &dropped));
    if (dropped) qn_out_note("stopped before the first word: the previous answer is kept");
    return QN_OK;
}

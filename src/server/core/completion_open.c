/* On a worker: from a body to open generations. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json/json_write.h"
#include "base/mem.h"
#include "server/core/completion.h"
#include "server/core/conversation.h"
#include "server/core/fields/cache_marks.h"
#include "server/core/next_turn/look_ahead.h"
#include "server/core/prefix_pins.h"
#include "server/core/slots/completion_slot.h"
#include "text/tools/tool_formats.h"

/* What a worker needs while it opens; all of it is the library's no longer when qn_generation_open returns.
 */
typedef struct {
    qn_completion *c;
    qn_chat_prompt chat;
    qn_buf prompt_text;
    qn_api_request_prompt one; /* the prompt of the moment */
} opening;

static int fail_memory(qn_completion *c)
{
    return qn_api_fail_status(&c->error, QN_E_NOMEM);
}

int qn_completion_check_model(const qn_server *s, const char *model, const char **adapter,
                              qn_api_error *error)
{
    const size_t n = strlen(s->options->model_name);
    const int is_part = model && strncmp(model, s->options->model_name, n) == 0 && model[n] == '+';
    const char *part = is_part ? model + n + 1 : model;
    qn_adapter_info info;
    int64_t n_adapters = 0;
    *adapter = NULL;
    if (!model || strcmp(model, s->options->model_name) == 0) return 0;
    for (; qn_adapter_get_info(s->model, n_adapters, &info) == QN_OK; n_adapters++)
        if (strcmp(info.name, part) == 0) *adapter = part;
    if (is_part && n_adapters && strcmp(part, "none") == 0) *adapter = part;
    if (*adapter) return 0;
    return qn_api_fail(error, 404, "model_not_found", "model", "this server has no model '%s'; it has '%s'%s",
                       model, s->options->model_name,
                       n_adapters ? ", and the adapters that GET /v1/models lists" : "");
}

int qn_completion_choose_model(const qn_server *s, qn_api_request *r, const char **name, const char **adapter,
                               qn_api_error *error)
{
    const char *own = s->options->model_name;
    const size_t n = strlen(own);
    char message[1024];
    const int refused = qn_completion_check_model(s, r->model, adapter, error);
    *name = r->model ? r->model : own;
    if (!refused || s->options->strict_model || (strncmp(r->model, own, n) == 0 && r->model[n] == '+'))
        return refused;
    *name = own;
    *error = (qn_api_error){0};
    snprintf(message, sizeof message,
             "this server has one model, '%.256s', which answered instead of '%.256s'", own, r->model);
    qn_api_request_warn(r, "model", message);
    return r->warnings.status == QN_OK ? 0 : qn_api_fail_status(error, r->warnings.status);
}

/* ---- what a prompt is made of -------------------------------------------------------------------------- */

/* Does the prompt change with its tools? */
static qn_status shows_tools(qn_model *model, const qn_prompt *prompt, int *shown)
{
    qn_prompt without = *prompt;
    qn_conversation chat = *prompt->conversation;
    char *texts[2] = {NULL, NULL};
    chat.tools = NULL;
    without.conversation = &chat;
    qn_status status = qn_chat_render(model, prompt, &texts[0], NULL, NULL);
    if (status == QN_OK) status = qn_chat_render(model, &without, &texts[1], NULL, NULL);
    if (status == QN_OK) *shown = strcmp(texts[0], texts[1]) != 0;
    qn_buffer_free(texts[0]);
    qn_buffer_free(texts[1]);
    return status;
}

/* Templates need not know of tools, nor write calls in a form that is known here. */
static int warn_of_tools(opening *o)
{
    qn_completion *c = o->c;
    const qn_server *s = c->ex->server;
    int shown = 0;
    if (!c->request.tools || (s->info.call_format && *s->info.call_format)) return 0;
    const qn_status status = shows_tools(s->model, &o->chat.prompt, &shown);
    if (status == QN_E_NOMEM) return fail_memory(c);
    if (status != QN_OK) return 0; /* whoever opens the generation tells */
    qn_api_request_warn(&c->request, "tools",
                        shown ? "calls stay in the text: the chat template writes them in an unknown format"
                              : "has no effect: the model's chat template does not show tools");
    return c->request.warnings.status == QN_OK ? 0 : fail_memory(c);
}

static int prepare_chat(opening *o)
{
    qn_completion *c = o->c;
    int refused = c->dialect->read_messages(&c->request, &c->error);
    if (!refused) refused = qn_api_request_hold_texts(&c->request, c->request.chat, &c->error);
    if (!refused) refused = qn_chat_prompt_write(c->ex->server, &c->request, &o->chat, &c->error);
    if (refused) return refused;
    if (!c->ex->server->info.has_chat_template)
        return qn_api_fail(&c->error, 400, "unsupported", "messages",
                           "the model has no chat template; use /v1/completions, which continues a text as "
                           "it is");
    refused = warn_of_tools(o);
    if (refused) return refused;
    o->one.prompt = o->chat.prompt;
    c->keeps_said = qn_look_ahead_is_wanted(c);
    return 0;
}

/* ---- opening ------------------------------------------------------------------------------------------- */

/* The ids of the prompt of the moment. *own is to be freed (qn_buffer_free); *ids may be borrowed. */
static qn_status get_prompt_ids(const opening *o, int32_t **own, const int32_t **ids, int64_t *n)
{
    const qn_model *model = o->c->ex->server->model;
    const qn_prompt *p = &o->one.prompt;
    const qn_encode_options encode = {.bos = 1, .special = p->special};
    if (!p->conversation && !p->text) {
        *ids = o->one.row.ids;
        *n = o->one.row.n_ids;
        return QN_OK;
    }
    const qn_status status = p->conversation
                                 ? qn_chat_render(model, p, NULL, own, n)
                                 : qn_model_encode(model, p->text, p->text_bytes, &encode, own, n);
    *ids = *own;
    return status;
}

/* What a choice has of its prompt beside what it says: ids, and the text that it begins with. */
static int show_prompt(opening *o, qn_completion_choice *choice)
{
    const qn_api_request *r = &o->c->request;
    const int wants_ids = r->return_ids && choice->index % r->n == 0;
    const qn_prompt *p = &o->one.prompt;
    qn_answer_event said = {.kind = QN_ANSWER_CONTENT, .text = p->text, .n = p->text_bytes};
    const int32_t *ids = NULL;
    int32_t *own = NULL;
    char *text = NULL;
    int64_t n = 0;
    qn_status status = QN_OK;
    if (wants_ids || (r->echo && !p->text)) status = get_prompt_ids(o, &own, &ids, &n);
    if (status == QN_OK && wants_ids) {
        qn_buf_append(&choice->prompt_ids, ids, (size_t)n * sizeof *ids);
        status = choice->prompt_ids.status;
    }
    if (status == QN_OK && r->echo && !p->text) {
        status = qn_model_decode(o->c->ex->server->model, ids, n, &(qn_decode_options){.skip_special = 1},
                                 &text, &said.n);
        said.text = text;
    }
    if (status == QN_OK && r->echo) {
        qn_said_add(&choice->said, &said);
        status = qn_said_status(&choice->said);
    }
    qn_buffer_free(own);
    qn_buffer_free(text);
    return status == QN_OK ? 0 : qn_api_fail_status(&o->c->error, status);
}

/* Where the client marks what is to stay cached, the prompt's tokens say how far that is. Choices share them. */
static int find_pins(opening *o, size_t i)
{
    qn_completion *c = o->c;
    const int32_t *ids = NULL;
    int32_t *own = NULL;
    int64_t n = 0;
    if (!qn_cache_is_marked(&c->request) || i % (size_t)c->request.n) return 0;
    const qn_status status = get_prompt_ids(o, &own, &ids, &n);
    /* What cannot be rendered is refused where the generation is opened. */
    const int refused = status == QN_OK ? qn_prefix_pins_find(c, ids, n) : 0;
    qn_buffer_free(own);
    return refused;
}

/* One whose prompt has pictures, or is not to be cached, leaves the slot empty. */
static int take_slot(opening *o, size_t i)
{
    qn_completion *c = o->c;
    const int has_ids = !c->request.n_pictures && c->request.cache_prompt;
    const int32_t *ids = NULL;
    int32_t *own = NULL;
    int64_t n = 0;
    if (i || !c->ex->server->slots) return 0;
    qn_status status = has_ids ? get_prompt_ids(o, &own, &ids, &n) : QN_OK;
    if (status == QN_OK) status = qn_completion_take_slot(c, ids, n);
    qn_buffer_free(own);
    return status == QN_OK ? 0 : qn_api_fail_status(&c->error, status);
}

/* A failure to open; a prompt that is too long gets a code of its own, with both counts. */
static int fail_open(opening *o, qn_status status)
{
    qn_completion *c = o->c;
    int64_t n = 0, context = c->ex->server->info.context_size;
    const int32_t *ids = NULL;
    int32_t *own = NULL;
    static const char words[] = "bad_words"; /* only the tokenizer knows how many tokens they are */
    const char *field = c->dialect->prompt_field;
    static const char of_prompt[] = "prompt_logprobs";
    qn_api_fail_status(&c->error, status);
    if (strncmp(c->error.message, of_prompt, sizeof of_prompt - 1) == 0) {
        snprintf(c->error.param, sizeof c->error.param, "%s",
                 c->request.prompt_logprobs >= 0 ? of_prompt : "echo");
        return c->error.status;
    }
    if (status != QN_E_ARG) return c->error.status;
    if (strncmp(c->error.message, words, sizeof words - 1) == 0) {
        memcpy(c->error.param, words, sizeof words);
        return c->error.status;
    }
    const qn_status counted = get_prompt_ids(o, &own, &ids, &n);
    qn_buffer_free(own);
    if (counted == QN_OK && n > context) return qn_api_request_fail_length(field, n, context, &c->error);
    snprintf(c->error.param, sizeof c->error.param, "%s", field);
    return c->error.status;
}

/* The text that the last message of a chat ends with. */
static const char *final_text(const qn_api_request *r)
{
    const json_t *message = json_array_get(r->chat, json_array_size(r->chat) - 1);
    return json_string_value(json_object_get(message, "content"));
}

static const char *find_last(const char *text, const char *part)
{
    const char *last = NULL;
    for (const char *at = text; (at = strstr(at, part)); at++) last = at;
    return last;
}

/* An answer that goes on from reasoning begins with reasoning: the parser is shown a prompt that ends with
 * the mark that opens it. */
static void end_in_reasoning(const opening *o, qn_answer_options *options)
{
    const qn_reasoning_format *reasoning = options->format.reasoning;
    if (!o->chat.prompt.continue_final || !reasoning) return;
    const char *begun = find_last(final_text(&o->c->request), reasoning->open);
    const char *open = find_last(options->prompt, reasoning->open);
    if (begun && open && !strstr(begun, reasoning->close))
        options->prompt_bytes = (size_t)(open - options->prompt) + strlen(reasoning->open);
}

/* What takes calls and reasoning out of a chat's text. Its beginning may be said by the end of the prompt. */
static int make_answer(opening *o, qn_completion_choice *choice)
{
    const qn_server *s = o->c->ex->server;
    const qn_api_request *r = &o->c->request;
    qn_answer_options options = {.format = qn_answer_format_find(
                                     s->info.call_format, r->plain_reasoning ? NULL : s->info.reasoning_mark),
                                 .tools = r->tools,
                                 .prompt = o->prompt_text.data,
                                 .prompt_bytes = o->prompt_text.length};
    /* Headers are no text of an answer without tools either. */
    if (!r->tools && (r->plain_reasoning || !qn_answer_has_headers(options.format)))
        options.format.calls = NULL;
    if (!r->chat || (!options.format.calls && !options.format.reasoning)) return 0;
    if (!o->prompt_text.data) {
        char *text = NULL;
        qn_status status = qn_chat_render(s->model, &o->one.prompt, &text, NULL, NULL);
        if (status != QN_OK) return fail_open(o, status);
        qn_buf_puts(&o->prompt_text, text);
        qn_buffer_free(text);
        options.prompt = o->prompt_text.data;
        options.prompt_bytes = o->prompt_text.length;
        if (o->prompt_text.status != QN_OK) return fail_memory(o->c);
    }
    end_in_reasoning(o, &options);
    return qn_answer_new(&options, &choice->parser) == QN_OK ? 0 : fail_memory(o->c);
}

/* The choices of one prompt share its log-probabilities, but each echo has its own. */
static void choose_prompt_logprobs(const qn_completion *c, size_t i, qn_generate_options *options)
{
    if (i % (size_t)c->request.n == 0 || (c->request.echo && c->request.logprobs)) return;
    options->prompt_logprobs = 0;
    options->n_prompt_top_logprobs = 0;
}

/* Log-probabilities of a prompt become JSON that may be long. */
static int hold_prompt_logprobs(opening *o, const qn_completion_choice *choice,
                                const qn_generate_options *options)
{
    enum { EACH = 256 /* bytes of an entry, in a list, in a text and in the answer */ };
    qn_generation_stats stats;
    if (!options->prompt_logprobs) return 0;
    const qn_status status = qn_generation_get_stats(choice->generation, &stats);
    if (status != QN_OK) return qn_api_fail_status(&o->c->error, status);
    return qn_api_request_hold(
        &o->c->request, (size_t)stats.n_prompt_tokens * (size_t)(options->n_prompt_top_logprobs + 1) * EACH,
        &o->c->error);
}

/* Called by a thread that computes. */
static void notify(void *user)
{
    qn_server_list(user);
}

static int open_choice(opening *o, size_t i)
{
    qn_completion *c = o->c;
    qn_completion_choice *choice = &c->choices[i];
    qn_generate_options options = c->request.o;
    int refused = make_answer(o, choice);
    if (refused) return refused;
    if (atomic_load(&c->is_gone))
        return qn_api_fail(&c->error, 503, "cancelled", NULL, "the client disconnected");
    choice->index = (int64_t)i;
    if (c->dialect->choice_bytes && !(choice->memory = qn_calloc(1, c->dialect->choice_bytes)))
        return fail_memory(c);
    /* Each choice of a prompt draws its own numbers. */
    if (options.seed) options.seed += i % (uint64_t)c->request.n;
    if (c->request.has_seed && !options.seed) options.seed = 1;
    choose_prompt_logprobs(c, i, &options);
    options.pins = c->pins;
    options.n_pins = c->n_pins;
    options.n_draft = c->ex->server->options->n_draft;
    options.notify = notify;
    options.notify_user = &c->ready;
    options.notify_prompts = c->request.wants_progress && c->request.stream && c->dialect->write_progress;
    qn_status status =
        qn_generation_open(c->ex->server->model, &o->one.prompt, &options, &choice->generation);
    if (status != QN_OK) return fail_open(o, status);
    refused = hold_prompt_logprobs(o, choice, &options);
    if (!refused) refused = show_prompt(o, choice);
    return refused ? refused : take_slot(o, i);
}

static int open_prompts(opening *o)
{
    qn_completion *c = o->c;
    const qn_api_request *r = &c->request;
    const int is_chat = c->dialect->read_messages && !r->prompt;
    const size_t n_prompts = is_chat ? 1 : qn_api_request_count_prompts(r->prompt), n = (size_t)r->n;
    if (!n) return 0;
    if (n_prompts > QN_REQUEST_CHOICES_MAX || n_prompts * n > QN_REQUEST_CHOICES_MAX)
        return qn_api_fail(&c->error, 400, "invalid_value", is_chat ? "n" : c->dialect->prompt_field,
                           "%zu prompts times n = %zu is too much: at most %d choices are allowed", n_prompts,
                           n, (int)QN_REQUEST_CHOICES_MAX);
    c->choices = qn_calloc(n_prompts * n, sizeof *c->choices);
    if (!c->choices) return fail_memory(c);
    c->n_choices = n_prompts * n;
    if (!is_chat) {
        const int refused = qn_api_request_hold_texts(&c->request, r->prompt, &c->error);
        if (refused) return refused;
    }
    for (size_t i = 0; i < c->n_choices; i++) {
        int refused = 0;
        if (is_chat)
            refused = i ? 0 : prepare_chat(o);
        else if (i % n == 0)
            refused = qn_api_request_get_prompt(r->prompt, i / n, c->dialect->prompt_field,
                                                c->ex->server->info.vocab_size, &o->one, &c->error);
        if (!is_chat) o->one.prompt.special = r->special;
        if (!refused) refused = find_pins(o, i);
        if (!refused) refused = open_choice(o, i);
        if (refused) return refused;
    }
    return 0;
}

void qn_completion_write_salt(const qn_server *s, int key, const char *cache_salt, qn_buf *out)
{
    if (!s->options->http.n_api_keys) key = -1;
    if (key >= 0 || cache_salt) qn_buf_printf(out, "%d %s", key, cache_salt ? cache_salt : "");
}

/* Who it runs for, and whose prefixes it may share: those of other keys are not even to be guessed by their
 * speed. */
static int set_tenant(qn_completion *c)
{
    qn_generate_options *options = &c->request.o;
    if (c->ex->key >= 0) qn_buf_printf(&c->tenant, "key %d", c->ex->key);
    qn_completion_write_salt(c->ex->server, c->ex->key, c->request.cache_salt, &c->salt);
    options->tenant = c->tenant.data;
    options->cache_salt = c->salt.data;
    options->priority = c->ex->is_idle ? QN_PRIORITY_IDLE : (int32_t)c->request.priority;
    options->no_prefix_cache = !c->request.cache_prompt;
    return c->tenant.status == QN_OK && c->salt.status == QN_OK ? 0 : fail_memory(c);
}

void qn_completion_open(qn_completion *c)
{
    const qn_server *s = c->ex->server;
    opening o = {.c = c};
    const char *name = NULL;
    const qn_api_request_limits limits = qn_server_request_limits(s);
    if (c->dialect->choose) c->dialect = c->dialect->choose(c->ex->body.data, c->ex->body.length);
    int refused = c->dialect->read(c->ex->body.data, c->ex->body.length, &limits, &c->request, &c->error);
    qn_buf_free(&c->ex->body);
    c->request.key = c->ex->key;
    if (!refused)
        refused = qn_completion_choose_model(s, &c->request, &name, &c->request.o.adapter, &c->error);
    if (!refused && c->dialect->prepare) refused = c->dialect->prepare(s, &c->request, &c->error);
    if (!refused) refused = set_tenant(c);
    if (!refused) refused = qn_completion_constrain(c);
    if (!refused) {
        qn_buf_puts(&c->model, name);
        refused = c->model.status == QN_OK ? open_prompts(&o) : fail_memory(c);
    }
    qn_api_request_let_texts(&c->request);
    qn_chat_prompt_free(&o.chat);
    qn_buf_free(&o.prompt_text);
    qn_buf_free(&o.one.ids);
}

#include "server/core/prefix_pins.h"

#include <quern/quern.h>
#include <string.h>

#include "server/core/conversation.h"
#include "server/core/fields/cache_marks.h"
#include "server/core/message.h"
#include "server/core/next_turn/next_turn.h"

enum { TTL_MS = 30 * 60000 };

/* The message with the first n bytes of its text, and nothing that comes behind. NULL: memory is out. */
static json_t *cut_message(const json_t *message, size_t n)
{
    const json_t *content = json_object_get(message, "content");
    json_t *made = json_copy((json_t *)message);
    if (!made || n >= json_string_length(content)) return made;
    json_object_del(made, "tool_calls");
    if (json_object_set_new(made, "content", qn_message_text(json_string_value(content), n)) == 0)
        return made;
    json_decref(made);
    return NULL;
}

/* The chat up to the mark; with_more: with a message behind it, for templates that want one. */
static json_t *cut_chat(const json_t *chat, const qn_cache_mark *mark, int with_more)
{
    static const char more[] = "a";
    json_t *made = json_array();
    int failed = !made;
    for (size_t i = 0; i < mark->n_messages && !failed; i++) {
        json_t *message = json_array_get(chat, i);
        failed = i + 1 < mark->n_messages ? json_array_append(made, message)
                                          : json_array_append_new(made, cut_message(message, mark->n_text));
    }
    if (!failed && with_more)
        failed = json_array_append_new(made, qn_message_new("user", qn_message_text(more, sizeof more - 1)));
    if (!failed) return made;
    json_decref(made);
    return NULL;
}

/* How many of the prompt's tokens the chat up to the mark has, too; 0: none, or the template does not take it. */
static int64_t common_tokens(const qn_completion *c, const qn_cache_mark *mark, int with_more,
                             const int32_t *ids, int64_t n)
{
    const qn_server *s = c->ex->server;
    const qn_api_request *whole = &c->request;
    qn_api_request r;
    qn_chat_prompt chat = {0};
    qn_api_error error;
    int32_t *own = NULL;
    int64_t n_own = 0, found = 0;
    qn_api_request_start(&r, whole->route);
    r.chat = cut_chat(whole->chat, mark, with_more);
    r.tools = whole->tools;
    r.template_kwargs = whole->template_kwargs;
    r.reasoning_effort = whole->reasoning_effort;
    r.thinking = whole->thinking;
    r.add_generation_prompt = 1;
    if (r.chat && !qn_chat_prompt_write(s, &r, &chat, &error) &&
        qn_chat_render(s->model, &chat.prompt, NULL, &own, &n_own) == QN_OK)
        found = qn_next_turn_common(own, n_own, ids, n);
    qn_buffer_free(own);
    qn_chat_prompt_free(&chat);
    qn_api_request_free(&r);
    return found;
}

/* Templates want a message of the user behind instructions; where another one refuses what ends at the mark, it may take
 * that with such a message. */
static int64_t find_mark(const qn_completion *c, const qn_cache_mark *mark, const int32_t *ids, int64_t n)
{
    const json_t *last = json_array_get(c->request.chat, mark->n_messages ? mark->n_messages - 1 : 0);
    const char *role = json_string_value(json_object_get(last, "role"));
    const int is_early = !mark->n_messages || (role && strcmp(role, "system") == 0);
    int64_t found = is_early ? 0 : common_tokens(c, mark, 0, ids, n);
    return found ? found : common_tokens(c, mark, 1, ids, n);
}

static int warn(qn_completion *c, const char *message)
{
    qn_api_request_warn(&c->request, "cache_control", message);
    return c->request.warnings.status == QN_OK ? 0 : qn_api_fail_status(&c->error, QN_E_NOMEM);
}

static void add(qn_completion *c, int64_t n_tokens, int64_t ttl_ms)
{
    c->pins[c->n_pins++] = (qn_prefix_pin){n_tokens, ttl_ms};
}

int qn_prefix_pins_find(qn_completion *c, const int32_t *ids, int64_t n)
{
    const qn_api_request *r = &c->request;
    const int has_whole = r->keep_whole && !r->no_whole;
    const int64_t ttl_ms = r->keep_ttl_ms ? r->keep_ttl_ms : TTL_MS;
    const size_t most = (size_t)QN_PREFIX_PINS_MAX - (size_t)has_whole;
    int refused = 0;
    c->n_pins = 0;
    if (!qn_cache_is_marked(r) || !r->cache_prompt) return 0;
    if (r->n_pictures)
        return warn(c, "keeps nothing of a prompt with pictures: that stays as long as there is room");
    for (size_t i = r->n_marks > most ? r->n_marks - most : 0; r->chat && i < r->n_marks && !refused; i++) {
        const int64_t found = find_mark(c, &r->marks[i], ids, n);
        if (found)
            add(c, found, r->marks[i].ttl_ms ? r->marks[i].ttl_ms : ttl_ms);
        else
            refused = warn(
                c, "a mark keeps nothing: the chat template shows the conversation otherwise up to there");
    }
    if (has_whole) add(c, n, ttl_ms);
    return refused;
}

int64_t qn_prefix_pins_written(const qn_completion *c, int64_t min_ttl_ms)
{
    int64_t end = 0;
    for (size_t i = 0; i < c->n_pins; i++)
        if (c->pins[i].ttl_ms >= min_ttl_ms && c->pins[i].n_tokens > end) end = c->pins[i].n_tokens;
    return end > c->n_cached_tokens ? end - c->n_cached_tokens : 0;
}

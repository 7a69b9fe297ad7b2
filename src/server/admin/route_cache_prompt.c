/* /v1/cache/warm, /v1/cache/explain: a prompt that is computed and kept ready; how much of a prompt the cache has, and why
 * no more. */
#include <stdio.h>
#include <string.h>

#include "base/json/json_write.h"
#include "server/admin/admin.h"
#include "server/admin/request.h"
#include "server/core/completion.h"
#include "server/core/conversation.h"
#include "server/core/write.h"
#include "server/http/guard.h"
#include "server/openai/request.h"

enum { NAME_MAX_BYTES = 128 };

/* What a prompt of a body needs while it is used. */
typedef struct {
    qn_chat_prompt chat;
    qn_api_request_prompt one;
    const qn_prompt *prompt;
    qn_buf salt;
    qn_prefix_options options;
} body_prompt;

/* Whose prefixes: those of the key that was shown, or, for an admin, of one that the body names. */
static int find_key(qn_task *t, int must_name, int *key)
{
    const qn_http_options *o = &t->ex->server->options->http;
    const char *named = t->request.api_key;
    *key = t->ex->key;
    if (!o->n_api_keys)
        return named ? qn_api_fail(&t->error, 400, "invalid_value", "api_key",
                                   "api_key must be absent: the server asks for no API keys")
                     : 0;
    if (!named && must_name) return qn_admin_fail_missing(t, "api_key");
    if (!named) return 0;
    if (*key < 0 || (size_t)*key < o->n_api_keys)
        return qn_api_fail(&t->error, 403, "not_admin", "api_key", "api_key needs an admin key");
    *key = -1;
    for (size_t i = 0; i < o->n_api_keys; i++)
        if (qn_guard_same(named, o->api_keys[i])) *key = (int)i;
    return *key >= 0 ? 0
                     : qn_api_fail(&t->error, 400, "invalid_value", "api_key",
                                   "api_key is not one of the server's");
}

static int read_chat(qn_task *t, body_prompt *p)
{
    const qn_server *s = t->ex->server;
    if (!s->info.has_chat_template)
        return qn_api_fail(&t->error, 400, "unsupported", "messages", "the model has no chat template");
    int refused = qn_api_request_read_messages(&t->request, &t->error);
    if (!refused) refused = qn_api_request_hold_texts(&t->request, t->request.chat, &t->error);
    if (!refused) refused = qn_chat_prompt_write(s, &t->request, &p->chat, &t->error);
    p->prompt = &p->chat.prompt;
    return refused;
}

static int read_text(qn_task *t, body_prompt *p)
{
    const json_t *prompt = t->request.prompt;
    if (qn_api_request_count_prompts(prompt) != 1)
        return qn_api_fail(&t->error, 400, "invalid_value", "prompt", "prompt must be one prompt");
    int refused = qn_api_request_hold_texts(&t->request, prompt, &t->error);
    if (!refused)
        refused = qn_api_request_get_prompt(prompt, 0, "prompt", t->ex->server->info.vocab_size, &p->one,
                                            &t->error);
    p->prompt = &p->one.prompt;
    return refused;
}

static int read_prompt(qn_task *t, int must_name_key, body_prompt *p)
{
    const qn_server *s = t->ex->server;
    const char *name;
    int key = -1, refused = qn_admin_read(t);
    if (!refused) refused = find_key(t, must_name_key, &key);
    if (!refused) refused = qn_completion_choose_model(s, &t->request, &name, &p->options.adapter, &t->error);
    if (refused) return refused;
    qn_completion_write_salt(s, key, t->request.cache_salt, &p->salt);
    if (p->salt.status != QN_OK) return qn_api_fail_status(&t->error, p->salt.status);
    p->options.cache_salt = p->salt.data;
    if (t->request.messages && t->request.prompt)
        return qn_api_fail(&t->error, 400, "invalid_value", "prompt",
                           "prompt must be absent beside messages");
    if (t->request.messages) return read_chat(t, p);
    if (t->request.prompt) return read_text(t, p);
    return qn_admin_fail_missing(t, "messages");
}

static void free_prompt(body_prompt *p)
{
    qn_chat_prompt_free(&p->chat);
    qn_buf_free(&p->one.ids);
    qn_buf_free(&p->salt);
}

static void fail(qn_task *t, qn_status status)
{
    qn_api_fail_status(&t->error, status);
    if (status == QN_E_FULL)
        qn_api_fail(&t->error, 503, "out_of_memory", NULL, "%s", qn_last_error());
    else if (t->error.status == 400)
        snprintf(t->error.param, sizeof t->error.param, "%s", t->request.messages ? "messages" : "prompt");
}

/* ---- warm ---------------------------------------------------------------------------------------------- */

static void write_warm(qn_task *t, const char *name, const char *key, int value)
{
    qn_json_open(&t->answer, '{');
    qn_json_put_text(&t->answer, "name", name);
    qn_json_put_text(&t->answer, "object", "cache.prefix");
    qn_json_put_bool(&t->answer, key, value);
    qn_write_warnings(&t->request, &t->answer);
    qn_json_close(&t->answer, '}');
}

/* As a segment of a path can have it. */
static int is_name(const char *name)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    const size_t n = strlen(name);
    return n && n < NAME_MAX_BYTES && strspn(name, letters) == n;
}

static void warm(qn_task *t)
{
    body_prompt p = {0};
    const char *name;
    int refused = read_prompt(t, 1, &p);
    if (!refused && !t->request.cache_name) refused = qn_admin_fail_missing(t, "name");
    name = t->request.cache_name;
    if (!refused && !is_name(name))
        refused = qn_api_fail(&t->error, 400, "invalid_value", "name",
                              "name must have 1 to %d letters, digits, '.', '_' and '-'", NAME_MAX_BYTES - 1);
    if (!refused) {
        const qn_status status = qn_model_warm_prefix(t->ex->server->model, p.prompt, name, &p.options);
        if (status == QN_OK)
            write_warm(t, name, "warm", 1);
        else
            fail(t, status);
    }
    free_prompt(&p);
}

static void unwarm(qn_task *t)
{
    char name[NAME_MAX_BYTES];
    qn_exchange_segment(t->ex, "name", name, sizeof name);
    const qn_status status = qn_model_unwarm(t->ex->server->model, name);
    if (status == QN_OK)
        write_warm(t, name, "deleted", 1);
    else
        qn_api_fail_status(&t->error, status);
}

void qn_route_cache_warm(qn_exchange *ex)
{
    qn_task_begin(ex, warm, NULL, 1);
}

void qn_route_cache_unwarm(qn_exchange *ex)
{
    qn_task_begin(ex, unwarm, NULL, 0);
}

/* ---- explain ------------------------------------------------------------------------------------------- */

/* "given", "known": tokens around the place where the two part, and their text. */
static void put_side(qn_buf *b, const char *key, const int32_t *ids, int32_t n, int32_t first,
                     const char *token, const char *context)
{
    qn_json_key(b, key);
    qn_json_open(b, '{');
    qn_json_key(b, "ids");
    qn_json_ids(b, ids, n);
    qn_json_put_int(b, "first_different", first);
    qn_json_put_text(b, "token", token);
    qn_json_put_text(b, "text", context);
    qn_json_close(b, '}');
}

static const char *sentence_of(qn_cache_reason reason)
{
    static const char *const sentences[] = {
        [QN_CACHE_USABLE] = "all of the prompt is cached",
        [QN_CACHE_UNKNOWN] = "nothing is cached for this adapter, API key and cache_salt",
        [QN_CACHE_DIFFERS] = "the cached prompts go on with other tokens",
        [QN_CACHE_ENDS] = "nothing was computed behind the cached tokens",
        [QN_CACHE_EVICTED] = "it was cached, and has been evicted",
        [QN_CACHE_NO_WINDOW] = "the tokens are known, but the keys that sliding windows see were dropped",
        [QN_CACHE_NO_SNAPSHOT] = "the tokens are known, but no recurrent state was kept there",
    };
    return sentences[reason];
}

static void write_miss(qn_task *t, const qn_cache_miss *m)
{
    qn_buf *b = &t->answer;
    qn_json_open(b, '{');
    qn_json_put_text(b, "object", "cache.explanation");
    qn_json_put_text(b, "reason", qn_cache_reason_name(m->reason));
    qn_json_put_text(b, "message", sentence_of(m->reason));
    qn_json_put_int(b, "prompt_tokens", m->n_prompt_tokens);
    qn_json_put_int(b, "known_tokens", m->n_known_tokens);
    qn_json_put_int(b, "cached_tokens", m->n_usable_tokens);
    put_side(b, "given", m->given, m->n_given, m->i_given, m->given_token, m->given_context);
    put_side(b, "known", m->known, m->n_known, m->i_known, m->known_token, m->known_context);
    qn_json_key(b, "evicted");
    if (m->reason == QN_CACHE_EVICTED) {
        qn_json_open(b, '{');
        qn_json_put_int(b, "begin", m->evicted_begin);
        qn_json_put_int(b, "end", m->evicted_end);
        qn_json_put_int(b, "evictions_ago", m->evictions_ago);
        qn_json_close(b, '}');
    } else {
        qn_buf_puts(b, "null");
    }
    qn_write_warnings(&t->request, b);
    qn_json_close(b, '}');
}

static void explain(qn_task *t)
{
    body_prompt p = {0};
    qn_cache_miss miss;
    if (!read_prompt(t, 0, &p)) {
        const qn_status status = qn_cache_explain_prefix(t->ex->server->model, p.prompt, &p.options, &miss);
        if (status == QN_OK)
            write_miss(t, &miss);
        else
            fail(t, status);
    }
    free_prompt(&p);
}

void qn_route_cache_explain(qn_exchange *ex)
{
    qn_task_begin(ex, explain, NULL, 0);
}

/* The public functions of generate.h: argument checks, the life of the handle, then the backend. */
#include <quern/quern.h>
#include <string.h>

#include "api/handles.h"
#include "backend/registry.h"
#include "base/buf.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "engine/sample/sampler.h"
#include "text/chat/conversation.h"

enum { IMAGES_MAX = 1024 };

static qn_status check_utf8(const char *what, const char *text, size_t n)
{
    size_t valid = qn_utf8_valid_prefix(text, n);
    if (valid == n) return QN_OK;
    return qn_fail(QN_E_FORMAT, "%s: not valid UTF-8 at byte %zu", what, valid);
}

static qn_status check_pins(const qn_generate_options *o)
{
    if (o->n_pins > QN_PREFIX_PINS_MAX)
        return qn_fail(QN_E_ARG, "pins: %zu prefixes, at most %d are allowed", o->n_pins,
                       (int)QN_PREFIX_PINS_MAX);
    if (o->n_pins && !o->pins) return qn_fail(QN_E_ARG, "pins is NULL");
    for (size_t i = 0; i < o->n_pins; i++)
        if (o->pins[i].n_tokens < 0 || o->pins[i].ttl_ms < 1)
            return qn_fail(QN_E_ARG, "pins: prefix %zu has %lld tokens and a time of %lld ms", i,
                           (long long)o->pins[i].n_tokens, (long long)o->pins[i].ttl_ms);
    return QN_OK;
}

static qn_status check_options(const qn_generate_options *o)
{
    QN_TRY(qn_sampler_check(o));
    if (o->max_tokens < 0) return qn_fail(QN_E_ARG, "max_tokens: %lld is negative", (long long)o->max_tokens);
    if (o->min_tokens < 0) return qn_fail(QN_E_ARG, "min_tokens: %lld is negative", (long long)o->min_tokens);
    if (o->deadline_ms < 0)
        return qn_fail(QN_E_ARG, "deadline_ms: %lld is negative", (long long)o->deadline_ms);
    QN_TRY(check_pins(o));
    if (o->n_stop_strings && !o->stop_strings) return qn_fail(QN_E_ARG, "stop_strings is NULL");
    if (o->n_stop_ids && !o->stop_ids) return qn_fail(QN_E_ARG, "stop_ids is NULL");
    if (o->alternative && (!o->constraint || o->row_constraints))
        return qn_fail(QN_E_ARG, "alternative: it needs constraint, and no row_constraints");
    for (size_t i = 0; i < o->n_stop_strings; i++) {
        const char *s = o->stop_strings[i];
        if (!s || !s[0]) return qn_fail(QN_E_ARG, "stop string %zu is empty", i);
        QN_TRY(check_utf8("stop string", s, strlen(s)));
    }
    return QN_OK;
}

qn_status qn_prompt_normalise(const qn_prompt *prompt, qn_prompt *out, qn_conversation **own)
{
    int given = !!prompt->text + !!prompt->rows + !!prompt->messages + !!prompt->messages_json +
                !!prompt->conversation;
    if (given != 1)
        return qn_fail(
            QN_E_ARG,
            "a prompt needs exactly one of text, rows, messages, messages_json and conversation; %d "
            "are given",
            given);
    if (prompt->conversation && (prompt->tools_json || prompt->variables_json))
        return qn_fail(QN_E_ARG, "tools_json and variables_json: a conversation has its own");
    if (prompt->n_images && !prompt->images) return qn_fail(QN_E_ARG, "images is NULL");
    if (prompt->n_images > IMAGES_MAX)
        return qn_fail(QN_E_ARG, "%zu images, a prompt may have at most %d", prompt->n_images,
                       (int)IMAGES_MAX);
    *out = *prompt;
    if (prompt->text) {
        if (!out->text_bytes) out->text_bytes = strlen(out->text);
        return check_utf8("the prompt", out->text, out->text_bytes);
    }
    if (prompt->rows) {
        if (prompt->n_rows < 1) return qn_fail(QN_E_ARG, "n_rows: %lld rows", (long long)prompt->n_rows);
        for (int64_t i = 0; i < prompt->n_rows; i++)
            if (!prompt->rows[i].ids || prompt->rows[i].n_ids < 1)
                return qn_fail(QN_E_ARG, "row %lld has no token ids", (long long)i);
        return QN_OK;
    }
    if (prompt->conversation) return QN_OK;
    if (prompt->messages)
        QN_TRY(qn_conversation_of(prompt->messages, prompt->n_messages, prompt->n_images,
                                  prompt->message_images, prompt->tools_json, prompt->variables_json, own));
    else
        QN_TRY(qn_conversation_parse(prompt->messages_json, prompt->tools_json, prompt->variables_json, own));
    out->messages = NULL;
    out->messages_json = out->tools_json = out->variables_json = NULL;
    out->conversation = *own;
    return QN_OK;
}

qn_status qn_generation_open(qn_model *model, const qn_prompt *prompt, const qn_generate_options *options,
                             qn_generation **out)
{
    if (!model || !prompt || !out) return qn_fail(QN_E_ARG, "qn_generation_open: an argument is NULL");
    if (!model->backend->generation_open || !model->backend->generation_next)
        return qn_backend_fail_missing(model->backend, "generation");
    qn_generate_options o = {0};
    if (options) o = *options;
    QN_TRY(check_options(&o));
    if (o.seed == 0) o.seed = qn_sampler_fresh_seed();
    o.rotate |= model->rotates;
    if (o.prompt_logprobs && !model->backend->generation_get_prompt_token)
        return qn_backend_fail_missing(model->backend, "log-probabilities of prompts");
    qn_conversation *own = NULL;
    qn_prompt normal;
    qn_generation *g = NULL;
    qn_constraint *constraint = NULL, *alternative = NULL;
    qn_status status = qn_prompt_normalise(prompt, &normal, &own);
    if (status == QN_OK) status = qn_constraint_choose(model, &normal, &o, &constraint);
    if (status == QN_OK && o.alternative) {
        normal.constraint = o.alternative;
        status = qn_constraint_choose(model, &normal, &o, &alternative);
    }
    if (status != QN_OK) goto out;
    o.constraint = constraint;
    o.alternative = alternative;
    g = qn_calloc(1, sizeof *g);
    if (!g) {
        status = QN_E_NOMEM;
        goto out;
    }
    status = model->backend->generation_open(model->object, &normal, &o, &g->cancel, &g->object);
    if (status != QN_OK) goto out;
    g->model = model;
    g->n_open = normal.rows ? normal.n_rows : 1;
    atomic_store(&g->references, 1);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->is_free, NULL);
    pthread_mutex_lock(&model->lock);
    g->next = model->generations;
    if (g->next) g->next->previous = g;
    model->generations = g;
    pthread_mutex_unlock(&model->lock);
    *out = g;
    g = NULL;
out:
    qn_free(g);
    qn_constraint_close(constraint); /* the generation has its own references */
    qn_constraint_close(alternative);
    qn_conversation_free(own);
    return status;
}

qn_status qn_generate(qn_model *model, const char *text, const qn_generate_options *options,
                      qn_generation **out)
{
    return qn_generation_open(model, &(qn_prompt){.text = text}, options, out);
}

qn_status qn_chat(qn_model *model, const qn_message *messages, size_t n_messages,
                  const qn_generate_options *options, qn_generation **out)
{
    return qn_generation_open(model, &(qn_prompt){.messages = messages, .n_messages = n_messages}, options,
                              out);
}

/* must_wait 0: QN_E_FULL where another thread's call is under way. A function that the thread's own call on
 * the generation calls (notify, a probe) would wait for itself. */
static qn_status begin_call(qn_generation *g, int must_wait)
{
    pthread_mutex_lock(&g->lock);
    int is_within = g->is_busy && pthread_equal(g->caller, pthread_self());
    while (g->is_busy && !is_within && must_wait) pthread_cond_wait(&g->is_free, &g->lock);
    int is_busy = g->is_busy;
    if (!is_busy) {
        g->is_busy = 1;
        g->caller = pthread_self();
    }
    pthread_mutex_unlock(&g->lock);
    if (is_within)
        return qn_fail(QN_E_ARG, "this call is made from within another call on the same generation");
    return is_busy ? QN_E_FULL : QN_OK;
}

static void end(qn_generation *g);
static void drop(qn_generation *g);

static void end_call(qn_generation *g)
{
    int shall_close = g->shall_close;
    if (shall_close) end(g);
    pthread_mutex_lock(&g->lock);
    g->is_busy = 0;
    pthread_cond_signal(&g->is_free);
    pthread_mutex_unlock(&g->lock);
    if (shall_close) drop(g);
}

static qn_status fail_closed(void)
{
    return qn_fail(QN_E_CLOSED, "the model of this generation was closed");
}

/* is_there NULL: the next event is waited for. The caller is in a call. */
static qn_status next_event(qn_generation *g, qn_token *out, int *is_there)
{
    qn_status status = QN_OK;
    int there = 1;
    *out = (qn_token){.id = -1, .text = ""};
    if (atomic_load(&g->n_open) == 0) {
        *out = (qn_token){.row = g->last_row, .id = -1, .text = "", .end = g->last_end};
    } else if (!g->model) {
        return fail_closed();
    } else {
        const qn_backend *backend = g->model->backend;
        status = is_there ? backend->generation_poll(g->object, out, &there)
                          : backend->generation_next(g->object, out);
        if (is_there && status == QN_E_ARG) return status; /* the call was refused: nothing happened */
        if (status != QN_OK) out->end = QN_END_ERROR;
        if (out->end != QN_END_NONE) {
            atomic_fetch_sub(&g->n_open, 1);
            g->last_row = out->row;
            g->last_end = out->end;
        }
    }
    if (is_there) *is_there = there;
    return status;
}

qn_status qn_generation_next(qn_generation *g, qn_token *out)
{
    if (!g || !out) return qn_fail(QN_E_ARG, "qn_generation_next: an argument is NULL");
    QN_TRY(begin_call(g, 1));
    qn_status status = next_event(g, out, NULL);
    end_call(g);
    return status;
}

qn_status qn_generation_poll(qn_generation *g, qn_token *out, int *is_there)
{
    if (!g || !out || !is_there) return qn_fail(QN_E_ARG, "qn_generation_poll: an argument is NULL");
    qn_status status = begin_call(g, 0);
    if (status == QN_E_FULL) { /* what there is goes to who is in that call */
        *out = (qn_token){.id = -1, .text = ""};
        *is_there = 0;
        return QN_OK;
    }
    QN_TRY(status);
    if (g->model && !g->model->backend->generation_poll)
        status = qn_backend_fail_missing(g->model->backend, "events without waiting");
    else
        status = next_event(g, out, is_there);
    end_call(g);
    return status;
}

void qn_generation_cancel(qn_generation *g)
{
    if (g) atomic_store_explicit(&g->cancel.set, 1, memory_order_relaxed);
}

qn_status qn_generation_get_stats(const qn_generation *generation, qn_generation_stats *out)
{
    qn_generation *g = (qn_generation *)generation; /* only its lock is touched */
    if (!g || !out) return qn_fail(QN_E_ARG, "qn_generation_get_stats: an argument is NULL");
    QN_TRY(begin_call(g, 1));
    qn_status status = QN_OK;
    if (!g->model)
        status = fail_closed();
    else if (!g->model->backend->generation_get_stats)
        status = qn_backend_fail_missing(g->model->backend, "statistics");
    else
        status = g->model->backend->generation_get_stats(g->object, out);
    end_call(g);
    return status;
}

qn_status qn_generation_get_prompt_token(const qn_generation *generation, int64_t row, int64_t position,
                                         qn_prompt_token *out)
{
    qn_generation *g = (qn_generation *)generation; /* only its lock is touched */
    if (!g || !out) return qn_fail(QN_E_ARG, "qn_generation_get_prompt_token: an argument is NULL");
    QN_TRY(begin_call(g, 1));
    qn_status status = QN_OK;
    if (!g->model)
        status = fail_closed();
    else if (!g->model->backend->generation_get_prompt_token)
        status = qn_backend_fail_missing(g->model->backend, "log-probabilities of prompts");
    else
        status = g->model->backend->generation_get_prompt_token(g->object, row, position, out);
    end_call(g);
    return status;
}

/* Closes the backend's object and takes the generation out of its model's list. The caller is in a call. */
static void end(qn_generation *g)
{
    qn_model *model = g->model;
    if (!model) return;
    if (model->backend->generation_close) model->backend->generation_close(g->object);
    g->object = NULL;
    g->model = NULL;
    pthread_mutex_lock(&model->lock);
    if (g->previous)
        g->previous->next = g->next;
    else
        model->generations = g->next;
    if (g->next) g->next->previous = g->previous;
    g->previous = g->next = NULL;
    pthread_mutex_unlock(&model->lock);
}

static void drop(qn_generation *g)
{
    if (atomic_fetch_sub(&g->references, 1) > 1) return;
    pthread_cond_destroy(&g->is_free);
    pthread_mutex_destroy(&g->lock);
    qn_free(g);
}

void qn_generation_close(qn_generation *g)
{
    if (!g) return;
    if (begin_call(g, 1) != QN_OK) { /* from within its own call, whose end frees it */
        qn_generation_cancel(g);
        g->shall_close = 1;
        return;
    }
    end(g);
    end_call(g);
    drop(g);
}

int qn_generations_are_calling(qn_model *model)
{
    int is_within = 0;
    pthread_mutex_lock(&model->lock);
    for (qn_generation *g = model->generations; g && !is_within; g = g->next) {
        pthread_mutex_lock(&g->lock);
        is_within = g->is_busy && pthread_equal(g->caller, pthread_self());
        pthread_mutex_unlock(&g->lock);
    }
    pthread_mutex_unlock(&model->lock);
    return is_within;
}

int64_t qn_generations_end_all(qn_model *model)
{
    int64_t n_cut = 0;
    for (;;) {
        pthread_mutex_lock(&model->lock);
        qn_generation *g = model->generations;
        for (qn_generation *each = g; each; each = each->next) {
            n_cut += atomic_load(&each->n_open) > 0 && !atomic_load(&each->cancel.set);
            qn_generation_cancel(each);
        }
        if (g) atomic_fetch_add(&g->references, 1);
        pthread_mutex_unlock(&model->lock);
        if (!g) return n_cut;
        if (begin_call(g, 1) == QN_OK) {
            end(g);
            end_call(g);
        }
        drop(g);
    }
}

qn_status qn_chat_render(const qn_model *model, const qn_prompt *prompt, char **text, int32_t **ids,
                         int64_t *n_ids)
{
    if (!model || !prompt || (ids && !n_ids)) return qn_fail(QN_E_ARG, "qn_chat_render: an argument is NULL");
    if (!model->backend->chat_render) return qn_backend_fail_missing(model->backend, "chat templates");
    qn_conversation *own = NULL;
    qn_prompt normal;
    qn_status status = qn_prompt_normalise(prompt, &normal, &own);
    if (status == QN_OK && !normal.conversation)
        status = qn_fail(QN_E_ARG, "qn_chat_render: the prompt is not a chat");
    if (status == QN_OK) status = model->backend->chat_render(model->object, &normal, text, ids, n_ids);
    qn_conversation_free(own);
    return status;
}

/* ---- names --------------------------------------------------------------------------------------------- */

int qn_sampler_step_from_name(const char *name, size_t n, qn_sampler_step *out)
{
    static const struct {
        const char *name;
        qn_sampler_step step;
    } others[] = {{"penalties", QN_SAMPLER_REPEAT_PENALTY},
                  {"typ_p", QN_SAMPLER_TYPICAL_P},
                  {"typical", QN_SAMPLER_TYPICAL_P}};
    for (int i = 0; i < QN_SAMPLER_COUNT; i++) {
        const char *own = qn_sampler_step_name((qn_sampler_step)i);
        if (strlen(own) != n || memcmp(own, name, n) != 0) continue;
        *out = (qn_sampler_step)i;
        return 1;
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (strlen(others[i].name) != n || memcmp(others[i].name, name, n) != 0) continue;
        *out = others[i].step;
        return 1;
    }
    return 0;
}

/* The thread between the queue of generations and the process that computes the first of them. */
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backend/mlx_lm/mlx_lm_parts.h"
#include "base/clock.h"
#include "base/json/json.h"
#include "base/json/json_value.h"
#include "base/mem.h"

enum { TICK_MS = 50, READY_S = 60, STOP_S = 20 };

void qn_mlx_wake(mlx_model *m)
{
    while (write(m->wake[1], "", 1) < 0 && errno == EINTR) continue; /* full: it will look anyway */
}

void qn_mlx_generation_free(mlx_generation *g)
{
    for (int32_t i = 0; i < g->n_events; i++)
        qn_free(g->events[(g->first_event + i) % (QN_TOKENS_AHEAD + 1)].text);
    json_decref(g->request);
    qn_free(g->given);
    qn_free(g);
}

/* ---- with the lock held -------------------------------------------------------------------------------- */

/* The last place is for the end. */
static void put_event(mlx_generation *g, mlx_event event)
{
    if (g->is_closed || g->n_events == QN_TOKENS_AHEAD + 1) {
        qn_free(event.text);
        return;
    }
    g->events[(g->first_event + g->n_events++) % (QN_TOKENS_AHEAD + 1)] = event;
    pthread_cond_broadcast(&g->model->changed);
    if (g->notify) g->notify(g->notify_user);
}

static int has_room(const mlx_generation *g)
{
    return g->is_closed || g->why != QN_END_NONE || g->n_events < QN_TOKENS_AHEAD;
}

/* Its last event, and out of the queue. text: owned. */
static void finish(mlx_generation *g, qn_status status, qn_end end, char *text, size_t n)
{
    mlx_model *m = g->model;
    for (mlx_generation **at = &m->first; *at; at = &(*at)->next) {
        if (*at != g) continue;
        *at = g->next;
        break;
    }
    g->next = NULL;
    g->is_over = 1;
    put_event(g, (mlx_event){status, end, -1, text, n});
    if (g->is_closed) qn_mlx_generation_free(g);
}

static void fail(mlx_generation *g, qn_status status, const char *text)
{
    finish(g, status, QN_END_ERROR, qn_strdup(text), strlen(text));
}

/* Who is to end before the time. The first one, where it is computed, has to be told to stop. */
static void look_for_ends(mlx_model *m)
{
    int64_t now = qn_clock_ns();
    for (mlx_generation *g = m->first, *next; g; g = next) {
        next = g->next;
        if (g->why != QN_END_NONE) continue;
        if (g->is_closed || qn_cancel_is_set(g->cancel))
            g->why = QN_END_CANCELLED;
        else if (g->deadline_ns && now >= g->deadline_ns)
            g->why = QN_END_DEADLINE;
        if (g->why == QN_END_NONE) continue;
        if (!g->id) {
            finish(g, QN_OK, g->why, NULL, 0);
        } else {
            char line[64];
            int n = snprintf(line, sizeof line, "{\"op\":\"cancel\",\"of\":%lld}\n", (long long)g->id);
            qn_child_write(m->child, line, (size_t)n);
            m->stop_asked_ns = now;
        }
    }
}

/* The process is of no use any more. The first load, or the generation whose turn it is, failed with it; the
 * others get a new one. */
static void give_up(mlx_model *m, qn_status status, const char *text)
{
    int was_loading = !m->is_loaded;
    qn_child_free(m->child, 0);
    m->child = NULL;
    m->is_loaded = m->is_ready = 0;
    m->load_id = m->stop_asked_ns = 0;
    if (!m->is_tried) {
        m->is_tried = 1;
        m->opened = status;
        m->opened_text = qn_strdup(text);
        pthread_cond_broadcast(&m->changed);
    } else if (m->first && (was_loading || m->first->id)) {
        fail(m->first, status, text);
    }
}

static void break_off(mlx_model *m, const char *why)
{
    char text[QN_ERROR_TEXT_MAX];
    snprintf(text, sizeof text, "%s: mlx_lm in %s %s", m->path, m->python, why);
    give_up(m, QN_E_DEVICE, text);
}

/* ---- what it is asked ---------------------------------------------------------------------------------- */

static qn_status send(mlx_model *m, json_t *request)
{
    qn_buf line = {0};
    qn_json_write_value(&line, request);
    qn_buf_putc(&line, '\n');
    const qn_status status =
        line.status == QN_OK ? qn_child_write(m->child, line.data, line.length) : line.status;
    qn_buf_free(&line);
    return status;
}

static qn_status ask_load(mlx_model *m)
{
    json_t *request = json_object();
    m->load_id = ++m->n_requests;
    int failed =
        !request || json_object_set_new(request, "op", json_string("load")) ||
        json_object_set_new(request, "id", json_integer(m->load_id)) ||
        json_object_set_new(request, "path", json_string(m->path)) ||
        (m->context_asked && json_object_set_new(request, "context_size", json_integer(m->context_asked))) ||
        (m->adapter_path && json_object_set_new(request, "adapter_path", json_string(m->adapter_path)));
    qn_status status = failed ? qn_fail_nomem(sizeof *request) : send(m, request);
    json_decref(request);
    return status;
}

static void start(mlx_model *m)
{
    char temporary[QN_ERROR_TEXT_MAX], text[QN_ERROR_TEXT_MAX];
    const char *argv[] = {m->python, m->bridge.data, NULL};
    const char *environment[] = {temporary, "HF_HUB_OFFLINE=1", "TOKENIZERS_PARALLELISM=false", NULL};
    snprintf(temporary, sizeof temporary, "TMPDIR=%s", m->scratch.data);
    qn_status status = qn_child_start(argv, environment, &m->child);
    m->started_ns = qn_clock_ns();
    if (status == QN_OK) status = ask_load(m);
    if (status == QN_OK) return;
    snprintf(text, sizeof text, "%s", qn_last_error());
    if (status == QN_E_NOT_FOUND)
        snprintf(text, sizeof text,
                 "there is no program %s, which the backend mlx_lm needs; install Python (Debian: apt-get "
                 "install python3) or name another program by --python",
                 m->python);
    give_up(m, status, text);
}

/* ---- what it says -------------------------------------------------------------------------------------- */

static int64_t whole(const json_t *answer, const char *key)
{
    return json_integer_value(json_object_get(answer, key));
}

static double number(const json_t *answer, const char *key)
{
    return json_number_value(json_object_get(answer, key));
}

static void take_error(mlx_model *m, mlx_generation *g, const json_t *answer)
{
    char text[QN_ERROR_TEXT_MAX];
    const char *kind = json_string_value(json_object_get(answer, "kind"));
    snprintf(text, sizeof text, "%s: mlx_lm: %s", m->path,
             json_string_value(json_object_get(answer, "error")));
    qn_status status = kind && strcmp(kind, "refused") == 0 ? QN_E_ARG : QN_E_DEVICE;
    m->stop_asked_ns = 0;
    if (g)
        fail(g, status, text);
    else
        give_up(m, status == QN_E_ARG ? QN_E_UNSUPPORTED : status, text);
}

static void take_load(mlx_model *m, const json_t *answer)
{
    const char *type = json_string_value(json_object_get(answer, "model_type"));
    const char *versions = json_string_value(json_object_get(answer, "versions"));
    m->load_id = 0;
    m->is_loaded = 1;
    if (m->is_tried) return; /* a second process for the same model */
    m->architecture = qn_strdup(type ? type : "");
    m->vocab_size = whole(answer, "vocab_size");
    m->n_layers = whole(answer, "layers");
    m->hidden_size = whole(answer, "hidden_size");
    m->context_size = whole(answer, "context_size");
    m->own_context_size = whole(answer, "model_context_size");
    m->weights_bytes = whole(answer, "weights_bytes");
    m->bits = (int32_t)whole(answer, "bits");
    m->has_template = json_is_true(json_object_get(answer, "has_chat_template"));
    m->load_ms = (double)(qn_clock_ns() - m->started_ns) * 1e-6;
    m->device = qn_strdup(versions ? versions : "mlx_lm");
    m->opened = m->architecture && m->device ? QN_OK : QN_E_NOMEM;
    m->is_tried = 1;
    pthread_cond_broadcast(&m->changed);
}

static qn_end end_of(const mlx_generation *g, const char *name)
{
    if (g->why != QN_END_NONE && strcmp(name, "cancelled") == 0) return g->why;
    for (qn_end end = QN_END_STOP; end <= QN_END_LENGTH; end++)
        if (strcmp(name, qn_end_name(end)) == 0) return end;
    return QN_END_ERROR;
}

static void take_done(mlx_model *m, mlx_generation *g, const json_t *answer, const char *done)
{
    const json_t *rest = json_object_get(answer, "text");
    g->n_prompt = whole(answer, "prompt_tokens");
    m->prefill_per_s = g->prefill_per_s;
    g->decode_per_s = m->decode_per_s = number(answer, "generation_tps");
    if ((size_t)whole(answer, "peak_memory_bytes") > m->peak_bytes)
        m->peak_bytes = (size_t)whole(answer, "peak_memory_bytes");
    m->stop_asked_ns = 0;
    qn_end end = end_of(g, done);
    size_t n = json_string_length(rest);
    if (end == QN_END_ERROR) {
        fail(g, QN_E_DEVICE, "mlx_lm ended the answer for an unknown reason");
        return;
    }
    finish(g, QN_OK, end, n ? qn_strndup(json_string_value(rest), n) : NULL, n);
}

static void take_token(mlx_generation *g, const json_t *answer, const json_t *token)
{
    size_t n = json_string_length(token);
    char *text = n ? qn_strndup(json_string_value(token), n) : NULL;
    if (n && !text) n = 0; /* the end follows */
    g->last_ns = qn_clock_ns();
    if (!g->first_ns) {
        g->first_ns = g->last_ns;
        g->prefill_per_s = (double)g->n_prompt / ((double)(g->first_ns - g->sent_ns) * 1e-9);
    }
    g->n_generated++;
    if (g->why == QN_END_NONE)
        put_event(g, (mlx_event){n || !json_string_length(token) ? QN_OK : QN_E_NOMEM, QN_END_NONE,
                                 (int32_t)whole(answer, "token_id"), text, n});
    else
        qn_free(text);
}

static void take_line(mlx_model *m, const char *line, size_t n)
{
    json_t *answer = NULL;
    if (qn_json_parse("the answer", line, n, &answer) != QN_OK || !json_is_object(answer)) {
        char why[160];
        snprintf(why, sizeof why, "sent an invalid answer: \"%.*s\"", (int)(n < 100 ? n : 100), line);
        json_decref(answer);
        break_off(m, why);
        return;
    }
    int64_t id = whole(answer, "id");
    mlx_generation *g = m->first && m->first->id && id == m->first->id ? m->first : NULL;
    const json_t *token = json_object_get(answer, "token");
    const char *done = json_string_value(json_object_get(answer, "done"));
    int is_error = json_is_string(json_object_get(answer, "error"));
    m->is_ready = 1;
    if (is_error && (g || (id && id == m->load_id)))
        take_error(m, g, answer);
    else if (id && id == m->load_id && json_is_true(json_object_get(answer, "ok")))
        take_load(m, answer);
    else if (g && json_is_string(token) && json_is_integer(json_object_get(answer, "token_id")))
        take_token(g, answer, token);
    else if (g && done)
        take_done(m, g, answer, done);
    else if (g && json_is_integer(json_object_get(answer, "prompt_tokens")))
        g->n_prompt = whole(answer, "prompt_tokens");
    else if (!json_is_true(json_object_get(answer, "ready")))
        break_off(m, "sent an answer without a request");
    json_decref(answer);
}

/* ---- the loop ------------------------------------------------------------------------------------------ */

static void drain(int fd)
{
    char bytes[64];
    while (read(fd, bytes, sizeof bytes) == (ssize_t)sizeof bytes) continue;
}

static void hand_over(mlx_model *m)
{
    mlx_generation *g = m->first;
    if (!m->is_loaded || !g || g->id) return;
    g->id = ++m->n_requests;
    g->sent_ns = qn_clock_ns();
    qn_status status = json_object_set_new(g->request, "id", json_integer(g->id)) ? QN_E_NOMEM : QN_OK;
    if (status == QN_OK) status = send(m, g->request);
    json_decref(g->request);
    g->request = NULL;
    if (status != QN_OK) break_off(m, "cannot be called: out of memory");
}

static void check_times(mlx_model *m)
{
    int64_t now = qn_clock_ns();
    if (!m->is_ready && now - m->started_ns > READY_S * INT64_C(1000000000))
        break_off(m, "does not answer");
    else if (m->stop_asked_ns && now - m->stop_asked_ns > STOP_S * INT64_C(1000000000))
        break_off(m, "does not stop");
}

static void take_lines(mlx_model *m)
{
    char *line;
    size_t n;
    while (m->child && (!m->first || has_room(m->first)) && (line = qn_child_line(m->child, &n)))
        take_line(m, line, n);
    if (!m->child || !qn_child_is_gone(m->child) || (m->first && !has_room(m->first))) return;
    char why[QN_ERROR_TEXT_MAX];
    qn_child_describe_end(m->child, why, sizeof why);
    break_off(m, why);
}

void *qn_mlx_work(void *p)
{
    mlx_model *m = p;
    pthread_mutex_lock(&m->lock);
    while (!m->is_closing) {
        look_for_ends(m);
        if (!m->child && (!m->is_tried || m->first)) start(m);
        hand_over(m);
        int is_full = m->first && !has_room(m->first);
        int has_work = m->first || !m->is_tried, runs = m->child != NULL;
        pthread_mutex_unlock(&m->lock);
        if (runs)
            qn_child_wait(m->child, !is_full, has_work ? TICK_MS : -1, m->wake[0]);
        else
            poll(&(struct pollfd){.fd = m->wake[0], .events = POLLIN}, 1, has_work ? TICK_MS : -1);
        drain(m->wake[0]);
        pthread_mutex_lock(&m->lock);
        if (m->child) take_lines(m);
        if (m->child) check_times(m);
    }
    if (m->child) qn_child_write(m->child, "{\"op\":\"quit\"}\n", 14);
    pthread_mutex_unlock(&m->lock);
    if (m->child) qn_child_wait(m->child, 0, 0, -1);
    qn_child_free(m->child, 2000);
    m->child = NULL;
    while (m->first) finish(m->first, QN_OK, QN_END_CANCELLED, NULL, 0);
    return NULL;
}

#include "backend/mlx_lm/mlx_lm.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/mlx_lm/mlx_lm_parts.h"
#include "backend/text/model_text.h"
#include "base/clock.h"
#include "base/mem.h"
#include "model/config/rope_change.h"
#include "text/chat/conversation.h"
#include "text/tokenizer/tokenizer_source.h"

/* What only the own engine does. */
static qn_status refuse(const char *what)
{
    return qn_fail(QN_E_UNSUPPORTED, "the backend mlx_lm does not support %s; the backend native does", what);
}

/* ---- opening ------------------------------------------------------------------------------------------- */

static qn_status check_model_options(const qn_model_options *o)
{
    if (o->device) return refuse("the choice of a device");
    if (o->file) return refuse("the choice of a file");
    if (o->pre_tokenizer_regex) return refuse("another pre-tokenizer");
    if (o->chat_template) return refuse("another chat template");
    if (o->kv_type != QN_KV_AUTO) return refuse("the choice of a type for keys and values");
    if (o->memory_limit_bytes || o->device_memory_limit_bytes) return refuse("a hard memory limit");
    if (o->draft_model) return refuse("draft model");
    if (o->mmproj) return refuse("vision tower in a file");
    if (qn_rope_change_asked(&o->rope)) return refuse("other rotary positions");
    if (o->adapter_scale != 0 && o->adapter_scale != 1) return refuse("a scale for adapters");
    return QN_OK;
}

static qn_status check_folder(const char *path)
{
    struct stat s;
    if (stat(path, &s) != 0) return qn_fail(QN_E_IO, "%s: %s", path, strerror(errno));
    if (S_ISDIR(s.st_mode)) return QN_OK;
    return qn_fail(QN_E_UNSUPPORTED, "%s: the backend mlx_lm reads Hugging Face folders, not files", path);
}

/* What this library can read of the model's text side; mlx_lm goes by its own. */
static qn_status open_text(mlx_model *m)
{
    qn_source *source = NULL;
    if (qn_source_open(m->path, &(qn_source_options){0}, &source) != QN_OK) return QN_OK;
    qn_status status = QN_OK;
    if (qn_tokenizer_is_there(source)) status = qn_chat_text_open(source, NULL, &m->text);
    if (status == QN_E_UNSUPPORTED || status == QN_E_FORMAT) {
        qn_buf_printf(&m->notes, "only mlx_lm can encode text: %s\n", qn_last_error());
        status = m->notes.status;
    }
    qn_source_close(source);
    return status;
}

static void mlx_close(void *model)
{
    mlx_model *m = model;
    if (m->wake[0] >= 0) close(m->wake[0]);
    if (m->wake[1] >= 0) close(m->wake[1]);
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->lock);
    qn_chat_text_close(m->text);
    qn_buf_free(&m->notes);
    qn_buf_free(&m->bridge);
    qn_buf_free(&m->scratch);
    qn_free(m->opened_text);
    qn_free(m->architecture);
    qn_free(m->device);
    qn_free(m->path);
    qn_free(m->python);
    qn_free(m->adapter_path);
    qn_free(m);
}

static void stop(void *model)
{
    mlx_model *m = model;
    pthread_mutex_lock(&m->lock);
    m->is_closing = 1;
    pthread_mutex_unlock(&m->lock);
    qn_mlx_wake(m);
    pthread_join(m->worker, NULL);
    mlx_close(m);
}

static qn_status prepare(mlx_model *m, const char *path, const qn_model_options *o)
{
    const char *python = o->python ? o->python : getenv("QUERN_PYTHON");
    m->path = qn_strdup(path);
    m->python = qn_strdup(python && *python ? python : "python3");
    m->adapter_path = o->adapter_path ? qn_strdup(o->adapter_path) : NULL;
    m->context_asked = o->context_size;
    m->background = o->background;
    if (!m->path || !m->python || (o->adapter_path && !m->adapter_path)) return QN_E_NOMEM;
    QN_TRY(qn_mlx_place(&m->bridge, &m->scratch));
    QN_TRY(open_text(m));
    if (pipe(m->wake) != 0) return qn_fail(QN_E_IO, "no pipe: %s", strerror(errno));
    for (int i = 0; i < 2; i++) {
        fcntl(m->wake[i], F_SETFD, FD_CLOEXEC);
        fcntl(m->wake[i], F_SETFL, O_NONBLOCK);
    }
    return QN_OK;
}

static qn_status mlx_open(const char *path, const qn_model_options *options, void **model)
{
    QN_TRY(check_model_options(options));
    QN_TRY(check_folder(path));
    mlx_model *m = qn_calloc(1, sizeof *m);
    if (!m) return QN_E_NOMEM;
    m->wake[0] = m->wake[1] = -1;
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->changed, NULL);
    qn_status status = prepare(m, path, options);
    if (status == QN_OK && (qn_mem_fails() || pthread_create(&m->worker, NULL, qn_mlx_work, m) != 0))
        status = qn_fail(QN_E_NOMEM, "cannot start a thread for the backend mlx_lm");
    if (status != QN_OK) {
        mlx_close(m);
        return status;
    }
    pthread_mutex_lock(&m->lock);
    while (!m->is_tried) pthread_cond_wait(&m->changed, &m->lock);
    pthread_mutex_unlock(&m->lock);
    if (m->opened != QN_OK) {
        status = m->opened_text ? qn_fail(m->opened, "%s", m->opened_text) : m->opened;
        stop(m);
        return status;
    }
    *model = m;
    return QN_OK;
}

/* ---- figures ------------------------------------------------------------------------------------------- */

static qn_status mlx_get_info(void *model, qn_model_info *out)
{
    const mlx_model *m = model;
    qn_answer_format plain = {0}, tools = {0};
    if (m->text) {
        plain = qn_chat_text_answer_format(m->text, 0);
        tools = qn_chat_text_answer_format(m->text, 1);
    }
    *out = (qn_model_info){.path = m->path,
                           .architecture = m->architecture,
                           .backend = qn_backend_mlx_lm.name,
                           .device = m->device,
                           .device_name = "",
                           .cpu_set = "",
                           .kv_dtype = QN_DTYPE_BF16,
                           .quant_bits = m->bits ? m->bits : 16,
                           .num_layers = m->n_layers,
                           .vocab_size = m->vocab_size,
                           .hidden_size = m->hidden_size,
                           .encoded_size = m->hidden_size,
                           .context_size = m->context_size,
                           .model_context_size = m->own_context_size,
                           .n_threads = 1,
                           .parallel_slots = 1,
                           .has_chat_template = m->has_template,
                           .notes = m->notes.data ? m->notes.data : "",
                           .packed = "",
                           .default_temperature = -1,
                           .default_top_p = -1,
                           .default_top_k = -1,
                           .generation_config = "",
                           .call_format = tools.calls ? qn_answer_format_name(tools) : "",
                           .reasoning_mark = m->text ? qn_answer_reasoning_mark(plain) : ""};
    return QN_OK;
}

static qn_status mlx_get_metrics(void *model, qn_metrics *out)
{
    mlx_model *m = model;
    pthread_mutex_lock(&m->lock);
    *out = (qn_metrics){.prefill_tokens_per_sec = m->prefill_per_s,
                        .decode_tokens_per_sec = m->decode_per_s,
                        .peak_memory_bytes = m->peak_bytes,
                        .active_memory_bytes = (size_t)m->weights_bytes,
                        .load_total_ms = m->load_ms,
                        .load_weights_ms = m->load_ms};
    pthread_mutex_unlock(&m->lock);
    return QN_OK;
}

static qn_status mlx_get_memory(void *model, qn_memory *out)
{
    mlx_model *m = model;
    pthread_mutex_lock(&m->lock);
    *out = (qn_memory){.active_memory_bytes = (size_t)m->weights_bytes,
                       .peak_memory_bytes = m->peak_bytes,
                       .weights_bytes = (size_t)m->weights_bytes};
    pthread_mutex_unlock(&m->lock);
    return QN_OK;
}

/* ---- text ---------------------------------------------------------------------------------------------- */

static qn_status mlx_encode(void *model, const char *text, size_t n_bytes, const qn_encode_options *options,
                            int32_t **ids, int64_t *n_ids)
{
    const mlx_model *m = model;
    return qn_model_text_encode(m->text, m->path, text, n_bytes, options, ids, n_ids);
}

static qn_status mlx_decode(void *model, const int32_t *ids, int64_t n_ids, const qn_decode_options *options,
                            char **text, size_t *n_bytes)
{
    const mlx_model *m = model;
    return qn_model_text_decode(m->text, m->path, m->vocab_size, ids, n_ids, options, text, n_bytes);
}

static int mlx_is_stop_id(void *model, int32_t id)
{
    const mlx_model *m = model;
    size_t n = 0;
    const int32_t *ids = m->text ? qn_tokenizer_eos_ids(qn_chat_text_tokenizer(m->text), &n) : NULL;
    for (size_t i = 0; i < n; i++)
        if (ids[i] == id) return 1;
    return 0;
}

static qn_status mlx_chat_render(void *model, const qn_prompt *prompt, char **text, int32_t **ids,
                                 int64_t *n_ids)
{
    const mlx_model *m = model;
    return qn_model_text_render(m->text, m->path, prompt, NULL, text, ids, n_ids);
}

/* ---- generation ---------------------------------------------------------------------------------------- */

/* mlx_lm has another chain. Steps that it lacks are refused by the option's name. */
static qn_status check_steps(const qn_generate_options *o)
{
    const struct {
        int is_set;
        const char *name;
    } steps[] = {
        {o->repeat_last_n > 0, "repeat_last_n"},
        {o->typical_p > 0 && o->typical_p < 1, "typical_p"},
        {o->top_n_sigma > 0, "top_n_sigma"},
        {o->xtc_probability > 0, "xtc_probability"},
        {o->dynatemp_range > 0, "dynatemp_range"},
        {o->mirostat != 0, "mirostat"},
        {o->dry_multiplier > 0, "dry_multiplier"},
        {o->n_bad_words || o->n_bad_ids, "bad words"},
        {o->allowed_ids != NULL, "list of allowed ids"},
        {o->constraint != NULL, "constraints"},
        {o->max_reasoning_tokens != 0, "a bound on reasoning"},
    };
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        if (steps[i].is_set) return refuse(steps[i].name);
    return QN_OK;
}

static qn_status check_prompt(const qn_prompt *p, const qn_generate_options *o)
{
    if (p->n_images) return refuse("pictures");
    if (p->rows && p->n_rows > 1) return refuse("batches: one sequence is computed at a time");
    if (o->adapter && strcmp(o->adapter, "none") != 0) return refuse("adapters by name");
    if (o->row_adapters) return refuse("adapters by row");
    if (o->rotate) return refuse("rotation of the context");
    if (o->min_tokens) return refuse("min_tokens");
    if (o->n_sampler_order) return refuse("order of sampler steps");
    if (o->logprobs) return refuse("log-probabilities");
    return check_steps(o);
}

static int put(json_t *to, const char *key, json_t *value)
{
    return json_object_set_new(to, key, value);
}

static int put_prompt(json_t *to, const qn_prompt *p, json_t *chat)
{
    int failed = put(to, "op", json_string(chat ? "chat" : "generate"));
    if (chat) {
        failed |= json_object_set(to, "messages", json_object_get(chat, "messages"));
        if (json_object_get(chat, "tools"))
            failed |= json_object_set(to, "tools", json_object_get(chat, "tools"));
        json_object_del(chat, "messages");
        json_object_del(chat, "tools");
        return failed | json_object_set(to, "variables", chat);
    }
    if (p->text)
        return failed | put(to, "prompt", json_stringn(p->text, p->text_bytes)) |
               (p->no_bos && put(to, "no_bos", json_true()));
    json_t *ids = json_array();
    for (int64_t i = 0; ids && i < p->rows->n_ids; i++)
        failed |= json_array_append_new(ids, json_integer(p->rows->ids[i]));
    return failed | put(to, "ids", ids);
}

static int put_options(json_t *to, const qn_generate_options *o)
{
    int failed = put(to, "max_tokens", json_integer(o->max_tokens)) |
                 put(to, "temperature", json_real(o->temperature)) |
                 put(to, "top_k", json_integer(o->top_k)) |
                 put(to, "seed", json_integer((json_int_t)(o->seed & INT64_MAX)));
    if (o->top_p > 0 && o->top_p < 1) failed |= put(to, "top_p", json_real(o->top_p));
    if (o->min_p > 0 && o->min_p < 1) failed |= put(to, "min_p", json_real(o->min_p));
    if (o->repeat_penalty > 0 && o->repeat_penalty != 1)
        failed |= put(to, "repeat_penalty", json_real(o->repeat_penalty));
    if (o->presence_penalty != 0) failed |= put(to, "presence_penalty", json_real(o->presence_penalty));
    if (o->frequency_penalty != 0) failed |= put(to, "frequency_penalty", json_real(o->frequency_penalty));
    if (o->ignore_eos) failed |= put(to, "ignore_eos", json_true());
    json_t *stop = json_array(), *ids = json_array(), *bias = json_object();
    for (size_t i = 0; stop && i < o->n_stop_strings; i++)
        failed |= json_array_append_new(stop, json_string(o->stop_strings[i]));
    for (size_t i = 0; ids && i < o->n_stop_ids; i++)
        failed |= json_array_append_new(ids, json_integer(o->stop_ids[i]));
    for (size_t i = 0; bias && i < o->n_logit_bias; i++) {
        char key[16];
        snprintf(key, sizeof key, "%d", (int)o->logit_bias[i].id);
        /* JSON has no infinity. */
        const double own = fmax((double)o->logit_bias[i].bias, -1e9);
        double sum = json_number_value(json_object_get(bias, key)) + own;
        failed |= put(bias, key, json_real(sum));
    }
    return failed | put(to, "stop", stop) | put(to, "stop_ids", ids) | put(to, "logit_bias", bias);
}

static qn_status make_request(const qn_prompt *prompt, const qn_generate_options *options, json_t **out)
{
    json_t *chat = NULL, *request = json_object();
    qn_status status = QN_OK;
    if (prompt->conversation)
        status = qn_conversation_request(prompt->conversation, prompt->continue_final, &chat);
    if (status == QN_OK && (!request || put_prompt(request, prompt, chat) || put_options(request, options)))
        status = qn_fail_nomem(prompt->text_bytes);
    json_decref(chat);
    if (status == QN_OK)
        *out = request;
    else
        json_decref(request);
    return status;
}

static qn_status mlx_generation_open(void *model, const qn_prompt *prompt, const qn_generate_options *options,
                                     const qn_cancel *cancel, void **generation)
{
    mlx_model *m = model;
    QN_TRY(check_prompt(prompt, options));
    mlx_generation *g = qn_calloc(1, sizeof *g);
    if (!g) return QN_E_NOMEM;
    qn_status status = make_request(prompt, options, &g->request);
    if (status != QN_OK) {
        qn_mlx_generation_free(g);
        return status;
    }
    g->model = m;
    g->cancel = cancel;
    g->notify = options->notify;
    g->notify_user = options->notify_user;
    g->seed = options->seed & INT64_MAX;
    g->opened_ns = qn_clock_ns();
    if (options->deadline_ms) g->deadline_ns = g->opened_ns + options->deadline_ms * INT64_C(1000000);
    pthread_mutex_lock(&m->lock);
    mlx_generation **at = &m->first;
    while (*at) at = &(*at)->next;
    *at = g;
    pthread_mutex_unlock(&m->lock);
    qn_mlx_wake(m);
    *generation = g;
    return QN_OK;
}

/* With the lock held, and an event there. */
static qn_status take_event(mlx_generation *g, qn_token *out)
{
    mlx_event e = g->events[g->first_event];
    g->first_event = (g->first_event + 1) % (QN_TOKENS_AHEAD + 1);
    if (g->n_events-- == QN_TOKENS_AHEAD) qn_mlx_wake(g->model); /* there is room again */
    qn_free(g->given);
    g->given = e.text;
    *out = (qn_token){.id = e.id,
                      .position = g->n_prompt + g->n_read,
                      .text = e.text && e.status == QN_OK ? e.text : "",
                      .text_bytes = e.status == QN_OK ? e.n : 0,
                      .end = e.end};
    if (e.end == QN_END_NONE) g->n_read++;
    if (e.status == QN_OK) return QN_OK;
    out->end = QN_END_ERROR;
    return e.text ? qn_fail(e.status, "%s", e.text) : qn_fail_nomem(e.n);
}

static qn_status mlx_generation_next(void *generation, qn_token *out)
{
    mlx_generation *g = generation;
    pthread_mutex_lock(&g->model->lock);
    while (!g->n_events) pthread_cond_wait(&g->model->changed, &g->model->lock);
    qn_status status = take_event(g, out);
    pthread_mutex_unlock(&g->model->lock);
    return status;
}

static qn_status mlx_generation_poll(void *generation, qn_token *out, int *is_there)
{
    mlx_generation *g = generation;
    qn_status status = QN_OK;
    pthread_mutex_lock(&g->model->lock);
    *is_there = g->n_events > 0;
    if (*is_there) status = take_event(g, out);
    pthread_mutex_unlock(&g->model->lock);
    return status;
}

static qn_status mlx_generation_get_stats(void *generation, qn_generation_stats *out)
{
    mlx_generation *g = generation;
    pthread_mutex_lock(&g->model->lock);
    *out = (qn_generation_stats){.n_prompt_tokens = g->n_prompt,
                                 .n_generated_tokens = g->n_generated,
                                 .prefill_tokens_per_sec = g->prefill_per_s,
                                 .decode_tokens_per_sec = g->decode_per_s,
                                 .seed = g->seed};
    if (g->sent_ns) out->queue_ms = (double)(g->sent_ns - g->opened_ns) * 1e-6;
    if (g->first_ns) {
        out->first_token_ms = (double)(g->first_ns - g->opened_ns) * 1e-6;
        out->prefill_ms = (double)(g->first_ns - g->sent_ns) * 1e-6;
        out->decode_ms = (double)(g->last_ns - g->first_ns) * 1e-6;
    }
    pthread_mutex_unlock(&g->model->lock);
    return QN_OK;
}

static void mlx_generation_close(void *generation)
{
    mlx_generation *g = generation;
    mlx_model *m = g->model;
    pthread_mutex_lock(&m->lock);
    g->notify = NULL;
    g->is_closed = 1;
    if (g->is_over) qn_mlx_generation_free(g); /* else who takes it out of the queue does */
    pthread_mutex_unlock(&m->lock);
    qn_mlx_wake(m);
}

const qn_backend qn_backend_mlx_lm = {
    .name = "mlx_lm",
    .open = mlx_open,
    .close = stop,
    .get_info = mlx_get_info,
    .get_metrics = mlx_get_metrics,
    .get_memory = mlx_get_memory,
    .encode = mlx_encode,
    .decode = mlx_decode,
    .is_stop_id = mlx_is_stop_id,
    .chat_render = mlx_chat_render,
    .generation_open = mlx_generation_open,
    .generation_next = mlx_generation_next,
    .generation_poll = mlx_generation_poll,
    .generation_get_stats = mlx_generation_get_stats,
    .generation_close = mlx_generation_close,
};

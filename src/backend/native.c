#include "backend/native.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "backend/native_draft.h"
#include "backend/native_parts.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "engine/evaluate.h"
#include "engine/figures.h"
#include "engine/generate.h"
#include "engine/handles.h"
#include "engine/prefixes.h"
#include "engine/snapshot.h"
#include "text/chat.h"
#include "text/tokenizer_source.h"

typedef struct {
    native_model *model;
    qn_run *run;
} native_generation;

/* ---- opening ---- */

static int has_stop_id(const native_model *m, int32_t id)
{
    for (int64_t i = 0; i < m->n_stop_ids; i++)
        if (m->stop_ids[i] == id) return 1;
    return 0;
}

static void add_stop_id(native_model *m, int32_t id)
{
    if (id >= 0 && !has_stop_id(m, id)) m->stop_ids[m->n_stop_ids++] = id;
}

/* What ends a generation: the ids that the configuration and the tokenizer name, and the family's ends of
 * turn. */
static qn_status collect_stop_ids(native_model *m)
{
    const qn_model_config *config = qn_engine_config(m->engine);
    const qn_tokenizer *t = m->text ? qn_chat_text_tokenizer(m->text) : NULL;
    size_t n_eos = 0, n_turn = 0;
    const int32_t *eos = t ? qn_tokenizer_eos_ids(t, &n_eos) : NULL;
    while (t && config->stop_tokens && config->stop_tokens[n_turn]) n_turn++;
    m->stop_ids = qn_alloc_array((size_t)config->n_stop_ids + n_eos + n_turn, sizeof *m->stop_ids);
    if (!m->stop_ids) return QN_E_NOMEM;
    for (int i = 0; i < config->n_stop_ids; i++) add_stop_id(m, config->stop_ids[i]);
    for (size_t i = 0; i < n_eos; i++) add_stop_id(m, eos[i]);
    for (size_t i = 0; i < n_turn; i++) {
        int32_t id = qn_tokenizer_find(t, config->stop_tokens[i], strlen(config->stop_tokens[i]));
        if (id >= 0 && qn_tokenizer_is_special(t, id)) add_stop_id(m, id);
    }
    return QN_OK;
}

static float read_number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    double number = json_number_value(value);
    return json_is_number(value) && number >= 0 && number <= 1000 ? (float)number : -1;
}

/* How the model's makers would sample. A file that cannot be read says nothing. */
static qn_status read_defaults(native_model *m, qn_source *source)
{
    const char *text;
    size_t n;
    json_t *json = NULL;
    m->default_temperature = m->default_top_p = -1;
    m->default_top_k = -1;
    if (!qn_source_side_path(source, QN_SIDE_GENERATION_CONFIG)) return QN_OK;
    QN_TRY(qn_source_side_text(source, QN_SIDE_GENERATION_CONFIG, &text, &n));
    QN_TRY(qn_json_parse("generation_config.json", text, n, &json));
    m->default_temperature = read_number(json, "temperature");
    m->default_top_p = read_number(json, "top_p");
    m->default_top_k = (int32_t)read_number(json, "top_k");
    if (json_is_false(json_object_get(json, "do_sample"))) m->default_temperature = 0;
    json_decref(json);
    return QN_OK;
}

static qn_status need_text(const native_model *m)
{
    if (m->text) return QN_OK;
    return qn_fail(
        QN_E_NOT_FOUND,
        "%s: there is no tokenizer (tokenizer.json), so text cannot become token ids or come out of "
        "them; logits and run --ids work",
        m->path);
}

static qn_status write_notes(native_model *m, const qn_model_options *o)
{
    const qn_model_config *config = qn_engine_config(m->engine);
    qn_buf_puts(&m->notes, qn_engine_get_info(m->engine)->notes);
    if (config->recognised_by)
        qn_buf_printf(&m->notes, "the files name no architecture; by its tensors it is %s: %s\n",
                      config->architecture, config->recognised_by);
    const char *builtin = m->text ? qn_chat_text_builtin(m->text) : NULL;
    if (builtin)
        qn_buf_printf(&m->notes,
                      "the files have no chat template; the built-in format %s stands for it, as the "
                      "vocabulary suggests\n",
                      builtin);
    if (o->gpu_layers) qn_buf_puts(&m->notes, "gpu_layers is ignored: the device computes all layers\n");
    return m->notes.status;
}

static qn_status load(native_model *m, const char *path, const qn_model_options *o)
{
    qn_source *source = NULL;
    qn_model_config config = {0};
    int64_t start = qn_clock_ns(), read = start, tokenized = start;
    qn_status status = qn_source_open(path, &(qn_source_options){.file = o->file}, &source);
    if (status == QN_OK) status = qn_config_read(source, &config);
    if (status == QN_OK) status = read_defaults(m, source);
    if (status != QN_OK) goto out;
    read = qn_clock_ns();
    qn_chat_text_options text = {.pre_regex = o->pre_tokenizer_regex, .chat_template = o->chat_template};
    int64_t before = qn_mem_thread_bytes();
    if (qn_tokenizer_is_there(source)) status = qn_chat_text_open(source, &text, &m->text);
    if (status == QN_OK && m->text)
        status = qn_tokenizer_check(source, qn_chat_text_tokenizer(m->text), config.vocab_size, &m->notes);
    if (status != QN_OK) goto out;
    size_t text_bytes = (size_t)(qn_mem_thread_bytes() - before);
    tokenized = qn_clock_ns();
    qn_engine_options engine = {.device = o->device,
                                .precision = o->precision,
                                .kv_type = o->kv_type,
                                .n_threads = o->n_threads,
                                .context_size = o->context_size,
                                .max_sequences = o->parallel_slots,
                                .max_rows = o->prefill_chunk,
                                .memory_limit_bytes = o->memory_limit_bytes,
                                .packed = o->packed,
                                .adapter_path = o->adapter_path,
                                .adapter_name = o->adapter_name,
                                .adapter_scale = o->adapter_scale,
                                .no_prefix_cache = o->no_prefix_cache,
                                .held_bytes = text_bytes};
    status = qn_engine_open(source, &config, &engine, &m->engine);
    const qn_scheduler_options scheduler = {o->background, o->max_queue};
    m->background = o->background;
    if (status == QN_OK) status = qn_scheduler_new(m->engine, &scheduler, &m->scheduler);
    if (status == QN_OK) status = qn_handles_new(m->engine, m->scheduler, &m->handles);
    if (status == QN_OK) status = qn_fingerprint_new(source, o->file, &m->fingerprint);
    if (status == QN_OK && o->draft_model)
        status = qn_native_draft_open(o->draft_model, m->engine,
                                      m->text ? qn_chat_text_tokenizer(m->text) : NULL, o, &m->draft);
    if (status == QN_OK) status = collect_stop_ids(m);
    if (status == QN_OK) status = write_notes(m, o);
    if (status != QN_OK) goto out;
    m->load.load_files_ms = (double)(read - start) * 1e-6;
    m->load.load_tokenizer_ms = (double)(tokenized - read) * 1e-6;
    m->load.load_weights_ms = qn_engine_get_info(m->engine)->weights_ms;
    m->load.load_programs_ms = qn_engine_get_info(m->engine)->programs_ms;
    m->load.load_total_ms = (double)(qn_clock_ns() - start) * 1e-6;
out:
    qn_config_free(&config);
    qn_source_close(source);
    return status;
}

static void native_close(void *model)
{
    native_model *m = model;
    qn_handles_free(m->handles);
    qn_fingerprint_free(m->fingerprint);
    qn_scheduler_free(m->scheduler);
    qn_native_draft_close(m->draft, m->engine);
    qn_engine_close(m->engine);
    qn_chat_text_close(m->text);
    qn_buf_free(&m->notes);
    qn_free(m->stop_ids);
    qn_free(m->path);
    pthread_mutex_destroy(&m->lock);
    qn_free(m);
}

qn_status qn_native_open_as(const char *path, const char *source, const char *backend,
                            const qn_model_options *options, void **model)
{
    native_model *m = qn_calloc(1, sizeof *m);
    if (!m) return QN_E_NOMEM;
    pthread_mutex_init(&m->lock, NULL);
    m->backend = backend;
    m->path = qn_strdup(path);
    qn_status status = m->path ? load(m, source, options) : QN_E_NOMEM;
    if (status != QN_OK) {
        native_close(m);
        return status;
    }
    *model = m;
    return QN_OK;
}

static qn_status native_open(const char *path, const qn_model_options *options, void **model)
{
    return qn_native_open_as(path, path, qn_backend_native.name, options, model);
}

/* ---- figures ---- */

static qn_status native_get_info(void *model, qn_model_info *out)
{
    const native_model *m = model;
    const qn_model_config *config = qn_engine_config(m->engine);
    const qn_engine_info *info = qn_engine_get_info(m->engine);
    qn_answer_format plain = {0}, tools = {0};
    if (m->text) {
        plain = qn_chat_text_answer_format(m->text, 0);
        tools = qn_chat_text_answer_format(m->text, 1);
    }
    *out = (qn_model_info){
        .path = m->path,
        .architecture = config->architecture,
        .backend = m->backend,
        .device = info->device,
        .cpu_set = info->cpu_set ? info->cpu_set : "",
        .precision = info->precision,
        .kv_dtype = info->kv_dtype,
        .quant_bits = info->quant_bits,
        .num_layers = config->num_hidden_layers,
        .vocab_size = config->vocab_size,
        .hidden_size = config->hidden_size,
        .num_parameters = info->num_parameters,
        .context_size = info->context_size,
        .model_context_size = info->model_context_size,
        .n_threads = info->n_threads,
        .parallel_slots = (int32_t)info->max_sequences,
        .prefill_chunk = (int32_t)info->max_rows,
        .has_chat_template = m->text && qn_chat_text_has_template(m->text),
        .notes = m->notes.data,
        .packed = info->packed,
        .default_temperature = m->default_temperature,
        .default_top_p = m->default_top_p,
        .default_top_k = m->default_top_k,
        .call_format = tools.calls ? qn_answer_format_name(tools) : "",
        .reasoning_mark = qn_answer_reasoning_mark(plain),
    };
    return QN_OK;
}

static qn_status native_get_figures(void *model, qn_figures *out)
{
    native_model *m = model;
    qn_engine_get_figures(m->engine, m->scheduler, out);
    return QN_OK;
}

static qn_status native_get_memory(void *model, qn_memory *out)
{
    native_model *m = model;
    const qn_ledger_figures now = qn_ledger_get(qn_engine_ledger(m->engine));
    *out = (qn_memory){
        .active_memory_bytes = now.total - now.held[QN_LEDGER_CACHE],
        .cache_memory_bytes = now.held[QN_LEDGER_CACHE],
        .peak_memory_bytes = now.peak,
        .weights_bytes = now.held[QN_LEDGER_WEIGHTS],
        .kv_bytes = now.held[QN_LEDGER_KV],
        .scratch_bytes = now.held[QN_LEDGER_SCRATCH],
        .other_bytes = now.held[QN_LEDGER_OTHER],
        .limit_bytes = now.limit,
        .cache_limit_bytes = now.cache_limit,
        .mapped_bytes = qn_engine_get_info(m->engine)->mapped_bytes,
    };
    pthread_mutex_lock(&m->lock);
    out->wired_bytes = m->wired_bytes;
    out->wired_limit_bytes = m->wired_limit_bytes;
    pthread_mutex_unlock(&m->lock);
    return QN_OK;
}

static qn_status native_set_memory_limit(void *model, size_t limit_bytes, size_t *old_bytes)
{
    *old_bytes = qn_ledger_set_limit(qn_engine_ledger(((native_model *)model)->engine), limit_bytes);
    return QN_OK;
}

static qn_status native_set_cache_limit(void *model, size_t limit_bytes, size_t *old_bytes)
{
    *old_bytes = qn_ledger_set_cache_limit(qn_engine_ledger(((native_model *)model)->engine), limit_bytes);
    return QN_OK;
}

static qn_status native_set_wired_limit(void *model, size_t limit_bytes, size_t *old_bytes)
{
    native_model *m = model;
    pthread_mutex_lock(&m->lock);
    qn_status status = qn_engine_wire(m->engine, limit_bytes, &m->wired_bytes);
    if (status == QN_OK) {
        *old_bytes = m->wired_limit_bytes;
        m->wired_limit_bytes = limit_bytes;
    }
    pthread_mutex_unlock(&m->lock);
    return status;
}

static qn_status native_clear_cache(void *model)
{
    qn_ledger_clear_cache(qn_engine_ledger(((native_model *)model)->engine));
    return QN_OK;
}

static qn_status native_reset_peak_memory(void *model)
{
    qn_ledger_reset_peak(qn_engine_ledger(((native_model *)model)->engine));
    return QN_OK;
}

static qn_status native_get_metrics(void *model, qn_metrics *out)
{
    native_model *m = model;
    const qn_ledger_figures now = qn_ledger_get(qn_engine_ledger(m->engine));
    *out = m->load;
    out->active_memory_bytes = now.total - now.held[QN_LEDGER_CACHE];
    out->peak_memory_bytes = now.peak;
    pthread_mutex_lock(&m->lock);
    out->prefill_tokens_per_sec = m->prefill_tokens_per_sec;
    out->decode_tokens_per_sec = m->decode_tokens_per_sec;
    pthread_mutex_unlock(&m->lock);
    return QN_OK;
}

/* ---- text ---- */

static qn_status native_encode(void *model, const char *text, size_t n_bytes,
                               const qn_encode_options *options, int32_t **ids, int64_t *n_ids)
{
    size_t n;
    unsigned flags = (options->special ? QN_ENCODE_SPECIAL : 0) | (options->bos ? QN_ENCODE_BOS : 0);
    const native_model *m = model;
    QN_TRY(need_text(m));
    const qn_tokenizer *t = qn_chat_text_tokenizer(m->text);
    QN_TRY(qn_tokenizer_encode(t, text, n_bytes, flags, ids, &n));
    *n_ids = (int64_t)n;
    return QN_OK;
}

static qn_status native_decode(void *model, const int32_t *ids, int64_t n_ids,
                               const qn_decode_options *options, char **text, size_t *n_bytes)
{
    const native_model *m = model;
    int64_t vocabulary = qn_engine_config(m->engine)->vocab_size;
    QN_TRY(need_text(m));
    for (int64_t i = 0; i < n_ids; i++)
        if (ids[i] < 0 || ids[i] >= vocabulary)
            return qn_fail(QN_E_ARG, "token id %d is outside the vocabulary of %lld", (int)ids[i],
                           (long long)vocabulary);
    qn_buf b = {0};
    unsigned flags = options->skip_special ? QN_DECODE_SKIP_SPECIAL : 0;
    qn_status status = qn_tokenizer_decode(qn_chat_text_tokenizer(m->text), ids, (size_t)n_ids, flags, &b);
    size_t n;
    char *bytes = qn_buf_take(&b, &n);
    if (status == QN_OK && !bytes) status = QN_E_NOMEM;
    if (status != QN_OK) {
        qn_free(bytes);
        return status;
    }
    *text = bytes;
    *n_bytes = n;
    return QN_OK;
}

static int native_is_stop_id(void *model, int32_t id)
{
    return has_stop_id(model, id);
}

/* The template's request out of a prompt that is a chat. */
static qn_status make_request(const qn_prompt *prompt, json_t **out)
{
    json_t *request = NULL, *messages = NULL, *tools = NULL;
    qn_status status = QN_OK;
    if (prompt->variables_json)
        status =
            qn_json_parse("variables_json", prompt->variables_json, strlen(prompt->variables_json), &request);
    else if (!(request = json_object()))
        status = qn_fail_nomem(sizeof(json_t *));
    if (status == QN_OK && !json_is_object(request))
        status = qn_fail(QN_E_ARG, "variables_json is not an object");
    if (status == QN_OK)
        status =
            qn_json_parse("messages_json", prompt->messages_json, strlen(prompt->messages_json), &messages);
    if (status == QN_OK && !json_is_array(messages))
        status = qn_fail(QN_E_ARG, "messages_json is not an array");
    if (status == QN_OK && prompt->tools_json)
        status = qn_json_parse("tools_json", prompt->tools_json, strlen(prompt->tools_json), &tools);
    if (status == QN_OK && tools && !json_is_array(tools))
        status = qn_fail(QN_E_ARG, "tools_json is not an array");
    if (status == QN_OK) {
        int failed = json_object_set(request, "messages", messages) ||
                     (tools && json_object_set(request, "tools", tools));
        if (!json_object_get(request, "add_generation_prompt"))
            failed |= json_object_set_new(request, "add_generation_prompt", json_true());
        if (failed) status = qn_fail_nomem(sizeof(json_t *));
    }
    json_decref(messages);
    json_decref(tools);
    if (status == QN_OK)
        *out = request;
    else
        json_decref(request);
    return status;
}

static qn_status native_chat_render(void *model, const qn_prompt *prompt, char **text, int32_t **ids,
                                    int64_t *n_ids)
{
    json_t *request = NULL;
    qn_buf b = {0};
    size_t n = 0;
    int32_t *made = NULL;
    QN_TRY(need_text(model));
    QN_TRY(make_request(prompt, &request));
    qn_status status = qn_chat_text_render(((native_model *)model)->text, request, QN_CHAT_TRUST_TEMPLATE, &b,
                                           ids ? &made : NULL, &n);
    json_decref(request);
    char *bytes = status == QN_OK ? qn_buf_take(&b, NULL) : NULL;
    if (status == QN_OK && !bytes) status = QN_E_NOMEM;
    qn_buf_free(&b);
    if (status != QN_OK) {
        qn_free(made);
        return status;
    }
    if (ids) {
        *ids = made;
        *n_ids = (int64_t)n;
    }
    if (text)
        *text = bytes;
    else
        qn_free(bytes);
    return QN_OK;
}

/* ---- logits ---- */

typedef struct {
    qn_logits_fn *fn;
    void *user;
} logits_sink;

static qn_status pass_on(void *user, int64_t row, int64_t position, int64_t n, float *logits)
{
    const logits_sink *s = user;
    return s->fn(s->user, row, position, n, logits);
}

static qn_status native_logits(void *model, const qn_ids *rows, int64_t n_rows,
                               const qn_logits_options *options, qn_logits_fn *fn, void *user)
{
    native_model *m = model;
    const int64_t context = qn_engine_get_info(m->engine)->context_size;
    for (int64_t i = 0; i < n_rows; i++)
        if (rows[i].n_ids > context)
            return qn_fail(QN_E_ARG, "row %lld has %lld tokens, the context holds %lld", (long long)i,
                           (long long)rows[i].n_ids, (long long)context);
    qn_adapters *adapters = qn_engine_adapters(m->engine);
    int32_t *held = qn_alloc_array((size_t)n_rows, sizeof *held);
    int64_t n_held = 0;
    logits_sink sink = {fn, user};
    qn_status status = held ? QN_OK : QN_E_NOMEM;
    for (; status == QN_OK && n_held < n_rows; n_held += status == QN_OK) {
        const char *own = options->row_adapters ? options->row_adapters[n_held] : NULL;
        status = qn_adapters_hold(adapters, own ? own : options->adapter, &held[n_held]);
    }
    const qn_evaluation what = {.rows = rows,
                                .n_rows = n_rows,
                                .adapters = held,
                                .from = options->row_first,
                                .last_only = options->last_only,
                                .hidden = options->hidden,
                                .no_cache = options->no_prefix_cache,
                                .salt = options->cache_salt,
                                .tenant = options->tenant,
                                .priority = options->priority,
                                .cancel = options->cancel};
    if (status == QN_OK) status = qn_evaluate(m->scheduler, m->engine, &what, pass_on, &sink, NULL);
    while (n_held > 0) qn_adapters_release(adapters, held[--n_held]);
    qn_free(held);
    return status;
}

/* ---- adapters ---- */

static qn_status native_adapter_load(void *model, const qn_adapter_options *options)
{
    native_model *m = model;
    qn_buf notes = {0};
    QN_TRY(qn_scheduler_enter(m->scheduler));
    qn_status status =
        qn_engine_adapter_load(m->engine, options->name, options->path, options->scale, &notes);
    qn_scheduler_leave(m->scheduler);
    /* No info has them: it is of the opening. */
    if (status == QN_OK && notes.length) qn_log_lines(QN_LOG_WARNING, notes.data);
    qn_buf_free(&notes);
    return status;
}

static qn_status native_adapter_unload(void *model, const char *name)
{
    native_model *m = model;
    QN_TRY(qn_scheduler_enter(m->scheduler));
    qn_status status = qn_engine_adapter_unload(m->engine, name);
    qn_scheduler_leave(m->scheduler);
    return status;
}

static qn_status native_adapter_get_info(void *model, int64_t i_adapter, qn_adapter_info *out)
{
    const native_model *m = model;
    qn_adapter_about about;
    qn_status status = qn_adapters_about(qn_engine_adapters(m->engine), i_adapter, &about);
    if (status == QN_E_NOT_FOUND)
        return qn_fail(status, "no adapter has the number %lld", (long long)i_adapter);
    QN_TRY(status);
    *out = (qn_adapter_info){.layout = about.layout == QN_ADAPTER_PEFT ? "peft" : "mlx",
                             .scale = about.scale,
                             .rank = about.rank,
                             .n_matrices = about.n_matrices,
                             .size_bytes = about.size_bytes};
    snprintf(out->name, sizeof out->name, "%s", about.name);
    snprintf(out->path, sizeof out->path, "%s", about.path);
    qn_free(about.path);
    return QN_OK;
}

/* ---- probes ---- */

/* From inside of a step both would wait for its end. */
static qn_status begin_between_steps(native_model *m)
{
    QN_TRY(qn_probes_check_thread(qn_engine_probes(m->engine)));
    QN_TRY(qn_scheduler_enter(m->scheduler));
    return QN_OK;
}

static qn_status native_probe_add(void *model, uint32_t mask, qn_probe_event_fn *fn, void *user,
                                  int64_t *probe)
{
    native_model *m = model;
    QN_TRY(begin_between_steps(m));
    qn_status status = qn_engine_probe_add(m->engine, mask, fn, user, probe);
    qn_scheduler_leave(m->scheduler);
    return status;
}

static qn_status native_probe_remove(void *model, int64_t probe)
{
    native_model *m = model;
    QN_TRY(begin_between_steps(m));
    qn_status status = qn_engine_probe_remove(m->engine, probe);
    qn_scheduler_leave(m->scheduler);
    return status;
}

/* ---- generation ---- */

/* Token ids of a prompt that is a text or a chat. */
static qn_status encode_prompt(native_model *m, const qn_prompt *prompt, int32_t **ids, size_t *n_ids)
{
    QN_TRY(need_text(m));
    if (prompt->text) {
        unsigned flags = (prompt->special ? QN_ENCODE_SPECIAL : 0) | (prompt->no_bos ? 0 : QN_ENCODE_BOS);
        return qn_tokenizer_encode(qn_chat_text_tokenizer(m->text), prompt->text, prompt->text_bytes, flags,
                                   ids, n_ids);
    }
    json_t *request = NULL;
    QN_TRY(make_request(prompt, &request));
    qn_status status = qn_chat_text_render(m->text, request, QN_CHAT_TRUST_TEMPLATE, NULL, ids, n_ids);
    json_decref(request);
    return status;
}

/* How many of a chat's ids come before what asks for the answer: a later turn begins with these, whatever the
 * template makes of the answer. 0: the template does not say. Where every position can be gone on from nobody
 * needs to know. */
static qn_status find_stable(native_model *m, const qn_prompt *prompt, const qn_ids *whole, int64_t *out)
{
    json_t *request = NULL;
    int32_t *ids = NULL;
    size_t n_ids = 0;
    int64_t n = 0;
    *out = 0;
    if (!prompt->messages_json || !qn_engine_keeps_points(m->engine)) return QN_OK;
    QN_TRY(make_request(prompt, &request));
    qn_status status = QN_E_NOMEM;
    if (json_object_set_new(request, "add_generation_prompt", json_false()) == 0)
        status = qn_chat_text_render(m->text, request, QN_CHAT_TRUST_TEMPLATE, NULL, &ids, &n_ids);
    while (n < whole->n_ids && n < (int64_t)n_ids && ids[n] == whole->ids[n]) n++;
    qn_free(ids);
    json_decref(request);
    if (status == QN_E_NOMEM) return status;
    *out = n;
    return QN_OK;
}

/* A text or chat with a place for an image that nobody gave would be answered as if it had been blank. */
static qn_status check_no_places(const native_model *m, const int32_t *ids, size_t n_ids)
{
    const qn_vision_config *v = &qn_engine_config(m->engine)->vision;
    for (size_t i = 0; v->depth && i < n_ids; i++)
        if (ids[i] == v->image_token_id)
            return qn_fail(QN_E_ARG, "the prompt has a place for an image, and no image was given");
    return QN_OK;
}

static qn_status native_prompt_ids(void *model, const qn_prompt *prompt, int32_t **ids, int64_t *n_ids)
{
    int32_t *made = NULL;
    size_t n = 0;
    QN_TRY(encode_prompt(model, prompt, &made, &n));
    qn_status status = check_no_places(model, made, n);
    if (status != QN_OK) {
        qn_free(made);
        return status;
    }
    *ids = made;
    *n_ids = (int64_t)n;
    return QN_OK;
}

qn_status qn_native_prompt(native_model *m, const qn_prompt *prompt, int32_t **ids, int64_t *n_ids,
                           int64_t *n_stable)
{
    if (!prompt->rows) QN_TRY(native_prompt_ids(m, prompt, ids, n_ids));
    if (prompt->rows) {
        *n_ids = prompt->rows->n_ids;
        *ids = qn_alloc_array((size_t)*n_ids, sizeof **ids);
        if (!*ids) return QN_E_NOMEM;
        memcpy(*ids, prompt->rows->ids, (size_t)*n_ids * sizeof **ids);
    }
    const qn_ids row = {*ids, *n_ids};
    qn_status status = find_stable(m, prompt, &row, n_stable);
    if (status == QN_OK) return QN_OK;
    qn_free(*ids);
    *ids = NULL;
    return status;
}

static qn_status native_generation_open(void *model, const qn_prompt *prompt,
                                        const qn_generate_options *options, const qn_cancel *cancel,
                                        void **generation)
{
    native_model *m = model;
    int32_t *ids = NULL;
    size_t n_ids = 0;
    if (options->n_stop_strings) QN_TRY(need_text(m));
    int64_t n_stable = 0;
    if (!prompt->rows) QN_TRY(encode_prompt(m, prompt, &ids, &n_ids));
    qn_ids row = {ids, (int64_t)n_ids};
    qn_status status = find_stable(m, prompt, &row, &n_stable);
    const qn_run_prompt what = {.rows = prompt->rows ? prompt->rows : &row,
                                .n_rows = prompt->rows ? prompt->n_rows : 1,
                                .images = prompt->images,
                                .n_images = prompt->n_images,
                                .n_stable = n_stable};
    const qn_run_model run = {m->engine,   m->scheduler,  m->text ? qn_chat_text_tokenizer(m->text) : NULL,
                              m->stop_ids, m->n_stop_ids, m->draft};
    if (status == QN_OK && !prompt->n_images) status = check_no_places(m, ids, n_ids);
    native_generation *g = status == QN_OK ? qn_calloc(1, sizeof *g) : NULL;
    if (status == QN_OK && !g) status = QN_E_NOMEM;
    if (g) status = qn_run_open(&run, &what, options, cancel, &g->run);
    qn_free(ids);
    if (status != QN_OK) {
        qn_free(g);
        return status;
    }
    g->model = m;
    *generation = g;
    return QN_OK;
}

static qn_status native_attention_snapshot(void *model, const qn_prompt *prompt,
                                           const qn_snapshot_options *options, qn_attention_snapshot **out)
{
    native_model *m = model;
    int32_t *ids = NULL;
    size_t n_ids = 0;
    QN_TRY(qn_probes_check_thread(qn_engine_probes(m->engine)));
    if (!prompt->rows) QN_TRY(encode_prompt(m, prompt, &ids, &n_ids));
    const qn_ids row = {ids, (int64_t)n_ids};
    const qn_run_prompt what = {.rows = prompt->rows ? prompt->rows : &row,
                                .n_rows = 1,
                                .images = prompt->images,
                                .n_images = prompt->n_images};
    qn_status status = prompt->n_images ? QN_OK : check_no_places(m, ids, n_ids);
    if (status == QN_OK) status = qn_snapshot_take(m->engine, m->scheduler, &what, options, out);
    qn_free(ids);
    return status;
}

static qn_status native_generation_get_stats(void *generation, qn_generation_stats *out)
{
    qn_run_get_stats(((native_generation *)generation)->run, out);
    return QN_OK;
}

static void note_speeds(const native_generation *g)
{
    qn_generation_stats stats;
    qn_run_get_stats(g->run, &stats);
    pthread_mutex_lock(&g->model->lock);
    g->model->prefill_tokens_per_sec = stats.prefill_tokens_per_sec;
    g->model->decode_tokens_per_sec = stats.decode_tokens_per_sec;
    pthread_mutex_unlock(&g->model->lock);
}

static qn_status native_generation_next(void *generation, qn_token *out)
{
    native_generation *g = generation;
    qn_status status = qn_run_next(g->run, out);
    if (status != QN_OK || out->end != QN_END_NONE) note_speeds(g);
    return status;
}

static qn_status native_generation_poll(void *generation, qn_token *out, int *is_there)
{
    native_generation *g = generation;
    if (!g->model->background)
        return qn_fail(QN_E_ARG,
                       "nobody computes while nobody waits: the model was opened without background");
    qn_status status = qn_run_poll(g->run, out, is_there);
    if (status != QN_OK || out->end != QN_END_NONE) note_speeds(g);
    return status;
}

static void native_generation_close(void *generation)
{
    native_generation *g = generation;
    qn_run_close(g->run);
    qn_free(g);
}

const qn_backend qn_backend_native = {
    .name = "native",
    .open = native_open,
    .close = native_close,
    .get_info = native_get_info,
    .get_metrics = native_get_metrics,
    .get_figures = native_get_figures,
    .get_memory = native_get_memory,
    .set_memory_limit = native_set_memory_limit,
    .set_cache_limit = native_set_cache_limit,
    .set_wired_limit = native_set_wired_limit,
    .clear_cache = native_clear_cache,
    .reset_peak_memory = native_reset_peak_memory,
    .logits = native_logits,
    .encode = native_encode,
    .decode = native_decode,
    .is_stop_id = native_is_stop_id,
    .chat_render = native_chat_render,
    .generation_open = native_generation_open,
    .generation_next = native_generation_next,
    .generation_poll = native_generation_poll,
    .generation_get_stats = native_generation_get_stats,
    .generation_close = native_generation_close,
    .adapter_load = native_adapter_load,
    .adapter_unload = native_adapter_unload,
    .adapter_get_info = native_adapter_get_info,
    .probe_add = native_probe_add,
    .probe_remove = native_probe_remove,
    .attention_snapshot = native_attention_snapshot,
    .prompt_ids = native_prompt_ids,
    .cache_forward = qn_native_cache_forward,
    .cache_slice = qn_native_cache_slice,
    .cache_length = qn_native_cache_length,
    .cache_free = qn_native_cache_free,
    .cache_save = qn_native_cache_save,
    .cache_load = qn_native_cache_load,
    .save_state = qn_native_save_state,
    .load_state = qn_native_load_state,
    .warm = qn_native_warm,
    .unwarm = qn_native_unwarm,
    .cache_explain = qn_native_cache_explain,
    .cache_get_counters = qn_native_cache_get_counters,
};

#include "backend/native/native.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "backend/native/native_draft.h"
#include "backend/native/native_parts.h"
#include "backend/text/model_text.h"
#include "base/clock.h"
#include "base/json/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/clients/evaluate.h"
#include "engine/clients/figures.h"
#include "engine/clients/generate.h"
#include "engine/clients/handles.h"
#include "engine/clients/snapshot.h"
#include "engine/machine/encode.h"
#include "engine/machine/prefixes.h"
#include "text/chat/chat.h"
#include "text/tokenizer/tokenizer_source.h"

typedef struct {
    native_model *model;
    qn_run *run;
} native_generation;

static qn_status native_open(const char *path, const qn_model_options *options, void **model)
{
    return qn_native_open_as(path, path, qn_backend_native.name, options, model);
}

qn_status qn_native_get_view(void *model, qn_native_view *out)
{
    const native_model *m = model;
    const qn_engine_info *info = qn_engine_get_info(m->engine);
    if (qn_engine_encodes(m->engine))
        return qn_fail(QN_E_UNSUPPORTED, "%s: a %s is an encoder, which cannot be trained", m->path,
                       qn_engine_config(m->engine)->architecture);
    if (qn_engine_card(m->engine) || !qn_engine_device(m->engine)->ops->buffers_are_shared)
        return qn_fail(QN_E_UNSUPPORTED,
                       "%s: the device %s does not share a model's weights between threads: open the model "
                       "on the device cpu",
                       m->path, info->device);
    *out = (qn_native_view){.path = m->path,
                            .file = m->file,
                            .device = info->device,
                            .n_threads = info->n_threads,
                            .precision = info->precision,
                            .config = qn_engine_config(m->engine),
                            .parameters = qn_engine_parameters(m->engine)};
    return QN_OK;
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
        .device_name = info->device_name,
        .cpu_set = info->cpu_set ? info->cpu_set : "",
        .precision = info->precision,
        .kv_dtype = info->kv_dtype,
        .quant_bits = info->quant_bits,
        .num_layers = config->num_hidden_layers,
        .gpu_layers = info->gpu_layers,
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
        .default_temperature = m->defaults.temperature,
        .default_top_p = m->defaults.top_p,
        .default_top_k = m->defaults.top_k,
        .default_min_p = m->defaults.min_p,
        .default_typical_p = m->defaults.typical_p,
        .default_repeat_penalty = m->defaults.repeat_penalty,
        .default_bad_ids = m->defaults.bad_ids,
        .n_default_bad_ids = m->defaults.n_bad_ids,
        .generation_config = m->defaults.text,
        .mmproj = m->mmproj ? m->mmproj : "",
        .takes_images = config->vision.family != NULL,
        .is_encoder = qn_engine_encodes(m->engine),
        .encoded_size = qn_engine_encoded_size(m->engine),
        .num_labels = config->encoder.num_labels,
        .num_token_types = config->encoder.type_vocab_size,
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
    /* First: the device answers when it has taken in what was given up before. */
    const size_t device_cache_bytes = qn_device_cache_bytes(qn_engine_device(m->engine));
    const qn_ledger_figures now = qn_ledger_get(qn_engine_ledger(m->engine));
    *out = (qn_memory){
        .active_memory_bytes = now.total - now.held[QN_LEDGER_CACHE],
        .cache_memory_bytes = now.held[QN_LEDGER_CACHE] + device_cache_bytes,
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

static qn_status native_get_device_memory(void *model, qn_device_memory *out)
{
    qn_device *d = qn_engine_card(((native_model *)model)->engine);
    if (!d) return QN_OK;
    const size_t device_cache_bytes = qn_device_cache_bytes(d);
    const qn_ledger_figures now = qn_ledger_get(d->ledger);
    *out = (qn_device_memory){
        .active_memory_bytes = now.total - now.held[QN_LEDGER_CACHE],
        .cache_memory_bytes = now.held[QN_LEDGER_CACHE] + device_cache_bytes,
        .peak_memory_bytes = now.peak,
        .weights_bytes = now.held[QN_LEDGER_WEIGHTS],
        .kv_bytes = now.held[QN_LEDGER_KV],
        .scratch_bytes = now.held[QN_LEDGER_SCRATCH],
        .other_bytes = now.held[QN_LEDGER_OTHER],
        .limit_bytes = now.limit,
        .cache_limit_bytes = now.cache_limit,
        .free_bytes = d->ops->free_bytes(d),
    };
    return QN_OK;
}

static qn_status native_set_device_memory_limit(void *model, size_t limit_bytes, size_t *old_bytes)
{
    const qn_engine *e = ((native_model *)model)->engine;
    qn_device *d = qn_engine_card(e);
    if (!d)
        return qn_fail(QN_E_UNSUPPORTED,
                       "the device %s computes in the host's memory: its limit is the memory limit",
                       qn_engine_get_info(e)->device);
    *old_bytes = qn_ledger_set_limit(d->ledger, limit_bytes);
    return QN_OK;
}

static qn_status native_memory_hold(void *model, size_t size_bytes)
{
    return qn_ledger_reserve(qn_engine_ledger(((native_model *)model)->engine), QN_LEDGER_OTHER, size_bytes);
}

static void native_memory_release(void *model, size_t size_bytes)
{
    qn_ledger_release(qn_engine_ledger(((native_model *)model)->engine), QN_LEDGER_OTHER, size_bytes);
}

static qn_status native_set_memory_limit(void *model, size_t limit_bytes, size_t *old_bytes)
{
    *old_bytes = qn_ledger_set_limit(qn_engine_ledger(((native_model *)model)->engine), limit_bytes);
    return QN_OK;
}

static qn_status native_set_cache_limit(void *model, size_t limit_bytes, size_t *old_bytes)
{
    qn_engine *e = ((native_model *)model)->engine;
    qn_device *card = qn_engine_card(e);
    if (card) qn_ledger_set_cache_limit(qn_engine_ledger(e), limit_bytes);
    *old_bytes = qn_ledger_set_cache_limit(qn_engine_device_ledger(e), limit_bytes);
    qn_device_set_cache_limit(card ? card : qn_engine_device(e), limit_bytes);
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
    qn_engine *e = ((native_model *)model)->engine;
    qn_ledger_clear_cache(qn_engine_ledger(e));
    qn_ledger_clear_cache(qn_engine_device_ledger(e));
    qn_device_clear_cache(qn_engine_card(e) ? qn_engine_card(e) : qn_engine_device(e));
    return QN_OK;
}

static qn_status native_reset_peak_memory(void *model)
{
    const qn_engine *e = ((native_model *)model)->engine;
    qn_ledger_reset_peak(qn_engine_ledger(e));
    qn_ledger_reset_peak(qn_engine_device_ledger(e));
    return QN_OK;
}

static qn_status native_get_metrics(void *model, qn_metrics *out)
{
    native_model *m = model;
    const qn_ledger_figures now = qn_ledger_get(qn_engine_ledger(m->engine));
    *out = m->load;
    out->active_memory_bytes = now.total - now.held[QN_LEDGER_CACHE];
    out->peak_memory_bytes = now.peak;
    if (qn_engine_card(m->engine)) {
        const qn_ledger_figures card = qn_ledger_get(qn_engine_device_ledger(m->engine));
        out->device_active_memory_bytes = card.total - card.held[QN_LEDGER_CACHE];
        out->device_peak_memory_bytes = card.peak;
    }
    pthread_mutex_lock(&m->lock);
    out->prefill_tokens_per_sec = m->prefill_tokens_per_sec;
    out->decode_tokens_per_sec = m->decode_tokens_per_sec;
    pthread_mutex_unlock(&m->lock);
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
    if (qn_engine_encodes(m->engine)) return qn_native_hidden(m, rows, n_rows, options, fn, user);
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
                                .cancel = options->cancel,
                                .images = options->images,
                                .n_images = options->n_images};
    if (status == QN_OK) status = qn_evaluate(m->scheduler, m->engine, &what, pass_on, &sink);
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
        return qn_fail(status, "there is no adapter with the number %lld", (long long)i_adapter);
    QN_TRY(status);
    *out = (qn_adapter_info){.layout = about.layout == QN_ADAPTER_PEFT ? "peft" : "mlx",
                             .scale = about.scale,
                             .rank = about.rank,
                             .n_matrices = about.n_matrices,
                             .size_bytes = about.size_bytes,
                             .is_default = about.is_default};
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

static qn_status native_generation_open(void *model, const qn_prompt *prompt,
                                        const qn_generate_options *options, const qn_cancel *cancel,
                                        void **generation)
{
    native_model *m = model;
    int32_t *ids = NULL;
    size_t n_ids = 0;
    QN_TRY(qn_native_check_generates(m, "generations"));
    if (options->n_stop_strings) QN_TRY(qn_model_text_need(m->text, m->path));
    int64_t n_stable = 0;
    if (!prompt->rows) QN_TRY(qn_native_text_ids(m, prompt, &ids, &n_ids));
    qn_ids row = {ids, (int64_t)n_ids};
    qn_native_reasoning reasoning = {0};
    qn_status status = qn_native_find_stable(m, prompt, &row, &n_stable);
    const qn_run_prompt what = {.rows = prompt->rows ? prompt->rows : &row,
                                .n_rows = prompt->rows ? prompt->n_rows : 1,
                                .images = prompt->images,
                                .n_images = prompt->n_images,
                                .n_stable = n_stable,
                                .reasoning = &reasoning.options};
    if (status == QN_OK) status = qn_native_bound_reasoning(m, prompt, options, &reasoning);
    const qn_run_model run = {m->engine,   m->scheduler,  m->text ? qn_chat_text_tokenizer(m->text) : NULL,
                              m->stop_ids, m->n_stop_ids, m->draft};
    if (status == QN_OK && !prompt->n_images) status = qn_native_check_no_places(m, ids, n_ids);
    native_generation *g = status == QN_OK ? qn_calloc(1, sizeof *g) : NULL;
    if (status == QN_OK && !g) status = QN_E_NOMEM;
    if (g) status = qn_run_open(&run, &what, options, cancel, &g->run);
    qn_free(ids);
    qn_buf_free(&reasoning.ids);
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
    QN_TRY(qn_native_check_generates(m, "snapshots of attention"));
    QN_TRY(qn_probes_check_thread(qn_engine_probes(m->engine)));
    if (!prompt->rows) QN_TRY(qn_native_text_ids(m, prompt, &ids, &n_ids));
    const qn_ids row = {ids, (int64_t)n_ids};
    const qn_run_prompt what = {.rows = prompt->rows ? prompt->rows : &row,
                                .n_rows = 1,
                                .images = prompt->images,
                                .n_images = prompt->n_images};
    qn_status status = prompt->n_images ? QN_OK : qn_native_check_no_places(m, ids, n_ids);
    if (status == QN_OK) status = qn_snapshot_take(m->engine, m->scheduler, &what, options, out);
    qn_free(ids);
    return status;
}

static qn_status native_generation_get_stats(void *generation, qn_generation_stats *out)
{
    qn_run_get_stats(((native_generation *)generation)->run, out);
    return QN_OK;
}

static qn_status native_generation_get_prompt_token(void *generation, int64_t row, int64_t position,
                                                    qn_prompt_token *out)
{
    return qn_run_get_prompt_token(((native_generation *)generation)->run, row, position, out);
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
                       "polling needs a background thread, but the model was opened without background");
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
    .close = qn_native_close,
    .get_info = native_get_info,
    .get_metrics = native_get_metrics,
    .get_figures = native_get_figures,
    .get_memory = native_get_memory,
    .memory_hold = native_memory_hold,
    .memory_release = native_memory_release,
    .set_memory_limit = native_set_memory_limit,
    .get_device_memory = native_get_device_memory,
    .set_device_memory_limit = native_set_device_memory_limit,
    .set_cache_limit = native_set_cache_limit,
    .set_wired_limit = native_set_wired_limit,
    .clear_cache = native_clear_cache,
    .reset_peak_memory = native_reset_peak_memory,
    .logits = native_logits,
    .sequence_scores = qn_native_scores,
    .get_embedding_info = qn_native_get_embedding_info,
    .embedding_project = qn_native_embedding_project,
    .encode = qn_native_encode,
    .encode_pair = qn_native_encode_pair,
    .decode = qn_native_decode,
    .is_stop_id = qn_native_is_stop_id,
    .chat_render = qn_native_chat_render,
    .constraint_open = qn_native_constraint_open,
    .constraint_fit = qn_native_constraint_fit,
    .generation_open = native_generation_open,
    .generation_next = native_generation_next,
    .generation_poll = native_generation_poll,
    .generation_get_stats = native_generation_get_stats,
    .generation_get_prompt_token = native_generation_get_prompt_token,
    .generation_close = native_generation_close,
    .adapter_load = native_adapter_load,
    .adapter_unload = native_adapter_unload,
    .adapter_get_info = native_adapter_get_info,
    .probe_add = native_probe_add,
    .probe_remove = native_probe_remove,
    .attention_snapshot = native_attention_snapshot,
    .prompt_ids = qn_native_prompt_ids,
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
    .save_prefix = qn_native_save_prefix,
    .load_prefix = qn_native_load_prefix,
    .forget_prefix = qn_native_forget_prefix,
    .cache_explain = qn_native_cache_explain,
    .cache_get_counters = qn_native_cache_get_counters,
};

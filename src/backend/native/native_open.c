/* From files to a model that is ready. */
#include <string.h>

#include "backend/native/native.h"
#include "backend/native/native_draft.h"
#include "backend/native/native_parts.h"
#include "base/clock.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "text/tokenizer/tokenizer_source.h"

int qn_native_has_stop_id(const native_model *m, int32_t id)
{
    for (int64_t i = 0; i < m->n_stop_ids; i++)
        if (m->stop_ids[i] == id) return 1;
    return 0;
}

static void add_stop_id(native_model *m, int32_t id)
{
    if (id >= 0 && !qn_native_has_stop_id(m, id)) m->stop_ids[m->n_stop_ids++] = id;
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

/* Those that the model itself has not, such as of packed weights. */
static void add_draft_notes(native_model *m, const qn_model_options *o)
{
    const char *own = qn_engine_get_info(m->engine)->notes, *line = qn_engine_get_info(m->draft)->notes;
    for (const char *end; (end = strchr(line, '\n')); line = end + 1) {
        char *text = qn_strndup(line, (size_t)(end - line));
        if (text && !strstr(own, text))
            qn_buf_printf(&m->notes, "draft model %s: %s\n", o->draft_model, text);
        qn_free(text);
    }
}

static int is_cpu(const char *device)
{
    return strcmp(device, "cpu") == 0;
}

/* What became of the wish for some layers on a card and the others on the CPU, where the engine did not divide
 * them. */
static void add_layers_note(native_model *m, const qn_model_options *o)
{
    const qn_engine_info *info = qn_engine_get_info(m->engine);
    const char *device = info->device;
    const int64_t n_layers = qn_engine_config(m->engine)->num_hidden_layers;
    if (o->gpu_layers == QN_ALL_LAYERS || info->gpu_layers) return;
    if (o->gpu_layers > 0 && is_cpu(device))
        qn_buf_puts(&m->notes, "gpu_layers is ignored: the device computes all layers\n");
    else if (o->gpu_layers > 0 && o->gpu_layers < n_layers)
        qn_buf_printf(&m->notes,
                      "gpu_layers %d is ignored: a model is not split between two devices, so the device %s "
                      "computes all %lld layers\n",
                      (int)o->gpu_layers, device, (long long)n_layers);
    else if (o->gpu_layers < 0 && o->device && !is_cpu(o->device) && strcmp(o->device, "auto") != 0)
        qn_buf_printf(&m->notes,
                      "gpu_layers asks for no layer on the device %s: the CPU computes all of them\n",
                      o->device);
}

static qn_status write_notes(native_model *m, const qn_model_options *o)
{
    const qn_model_config *config = qn_engine_config(m->engine);
    qn_buf_puts(&m->notes, qn_engine_get_info(m->engine)->notes);
    if (m->draft) add_draft_notes(m, o);
    if (config->recognised_by)
        qn_buf_printf(&m->notes, "the files name no architecture; the tensors match %s: %s\n",
                      config->architecture, config->recognised_by);
    const char *builtin = m->text ? qn_chat_text_builtin(m->text) : NULL;
    if (builtin)
        qn_buf_printf(&m->notes,
                      "the files have no chat template; the built-in format %s is used because the "
                      "vocabulary matches it\n",
                      builtin);
    add_layers_note(m, o);
    return m->notes.status;
}

static qn_status load(native_model *m, const char *path, const qn_model_options *o)
{
    qn_source *source = NULL;
    qn_model_config config = {0};
    int64_t start = qn_clock_ns(), read = start, tokenized = start;
    const int is_off = o->mmproj && strcmp(o->mmproj, "none") == 0;
    const qn_source_options opened = {
        .file = o->file, .mmproj = is_off ? NULL : o->mmproj, .sees = !o->mmproj};
    qn_status status = qn_source_open(path, &opened, &source);
    if (status == QN_OK) status = qn_config_read_changed(source, &o->rope, &m->notes, &config);
    if (status == QN_OK) status = qn_sampling_defaults_read(source, &m->defaults);
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
    qn_engine_options engine = {.device = o->gpu_layers < 0 ? "cpu" : o->device,
                                .precision = o->precision,
                                .kv_type = o->kv_type,
                                .n_threads = o->n_threads,
                                .context_size = o->context_size,
                                .max_sequences = o->parallel_slots,
                                .max_rows = o->prefill_chunk,
                                .gpu_layers = o->gpu_layers > 0 ? o->gpu_layers : 0,
                                .memory_limit_bytes = o->memory_limit_bytes,
                                .device_memory_limit_bytes = o->device_memory_limit_bytes,
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
    if (status == QN_OK && qn_engine_config(m->engine)->vision.projector) {
        m->mmproj = qn_strdup(qn_gguf_path(qn_source_projector(source)));
        if (!m->mmproj) status = QN_E_NOMEM;
    }
    if (status == QN_OK) status = qn_fingerprint_new(source, o->file, &m->fingerprint);
    if (status == QN_OK && o->draft_model)
        status = qn_native_draft_open(o->draft_model, m->engine,
                                      m->text ? qn_chat_text_tokenizer(m->text) : NULL, o, &m->draft);
    if (status == QN_OK) status = qn_native_read_sentence(m, source);
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

void qn_native_close(void *model)
{
    native_model *m = model;
    qn_handles_free(m->handles);
    qn_fingerprint_free(m->fingerprint);
    qn_scheduler_free(m->scheduler);
    qn_native_draft_close(m->draft, m->engine);
    qn_native_free_constraints(m);
    qn_engine_close(m->engine);
    qn_chat_text_close(m->text);
    qn_sentence_free(m->sentence);
    qn_free(m->sentence_failure);
    qn_buf_free(&m->notes);
    qn_sampling_defaults_free(&m->defaults);
    qn_free(m->stop_ids);
    qn_free(m->path);
    qn_free(m->mmproj);
    qn_free(m->file);
    pthread_mutex_destroy(&m->lock);
    qn_free(m);
}

qn_status qn_native_open_as(const char *path, const char *source, const char *backend,
                            const qn_model_options *options, void **model)
{
    native_model *m = qn_calloc(1, sizeof *m);
    if (!m) return QN_E_NOMEM;
    pthread_mutex_init(&m->lock, NULL);
    pthread_mutex_init(&m->constraints_lock, NULL);
    m->backend = backend;
    m->path = qn_strdup(path);
    m->file = options->file ? qn_strdup(options->file) : NULL;
    const int is_copied = m->path && (m->file || !options->file);
    qn_status status = is_copied ? load(m, source, options) : QN_E_NOMEM;
    if (status != QN_OK) {
        qn_native_close(m);
        return status;
    }
    *model = m;
    return QN_OK;
}

#include "cli/options/options.h"

#include <quern/quern.h>
#include <string.h>

#include "cli/command.h"
#include "cli/options/model_name.h"
#include "cli/term/input.h"
#include "cli/term/out.h"

#define LOAD(field) offsetof(qn_load_options, field)
const qn_arg qn_load_args[] = {
    {"--precision", 0, QN_ARG_CHOICE, LOAD(precision), 0, 0, "high|fast|exact",
     "arithmetic precision (default high)"},
    {"--kv-type", 0, QN_ARG_CHOICE, LOAD(kv_type), 0, 0, "auto|f32|f16|bf16|q8_0|q4_0",
     "type of stored keys and values (default auto: chosen by --precision)"},
    {"--threads", 't', QN_ARG_INT32, LOAD(o.n_threads), 1, 1024, "N",
     "number of threads (default: the number of physical cores)"},
    {"--context", 'c', QN_ARG_INT64, LOAD(o.context_size), 1, INT32_MAX, "N",
     "maximum tokens in one sequence"},
    {"--chunk", 0, QN_ARG_INT32, LOAD(o.prefill_chunk), 1, INT32_MAX, "N",
     "maximum prompt tokens in one step"},
    {"--slots", 0, QN_ARG_INT32, LOAD(o.parallel_slots), 1, 1024, "N",
     "number of sequences computed together (default 1; run --ids: one per row)"},
    {"--memory-limit", 0, QN_ARG_BYTES, LOAD(o.memory_limit_bytes), 0, 0, "SIZE",
     "hard limit of the host's memory, such as 2G"},
    {"--device-memory-limit", 0, QN_ARG_BYTES, LOAD(o.device_memory_limit_bytes), 0, 0, "SIZE",
     "hard limit of a card's memory, such as 20G (default: what is free there)"},
    {"--cache-limit", 0, QN_ARG_LIMIT, LOAD(cache_limit), 0, 0, "SIZE",
     "maximum memory for the keys and values of finished sequences, kept for later prompts that begin the "
     "same; 0 keeps nothing (default: enough for whole contexts, at most half of the free memory)"},
    {"--wired-limit", 0, QN_ARG_BYTES, LOAD(o.wired_limit_bytes), 0, 0, "SIZE",
     "lock this much of the weights in memory (default 0)"},
    {"--file", 0, QN_ARG_TEXT, LOAD(o.file), 0, 0, "NAME",
     "which weights file to use, if the directory has several"},
    {"--mmproj", 0, QN_ARG_TEXT, LOAD(o.mmproj), 0, 0, "FILE",
     "vision tower of a GGUF model, if it does not lie beside it as mmproj*.gguf; `none`: the model sees no "
     "pictures"},
    {"--packed", 0, QN_ARG_TEXT, LOAD(o.packed), 0, 0, "FILE",
     "file with packed weights (see quern pack), if it is not beside the model; `none`: pack now"},
    {"--template", 0, QN_ARG_TEXT, LOAD(template_path), 0, 0, "FILE",
     "Jinja chat template that replaces the model's own"},
    {"--pre", 0, QN_ARG_TEXT, LOAD(o.pre_tokenizer_regex), 0, 0, "REGEX",
     "regular expression that replaces the pre-tokenizer of a GGUF file"},
    {"--adapter", 0, QN_ARG_LIST, LOAD(adapters), 0, 0, "[NAME=]DIR[:SCALE]",
     "LoRA adapter to load (PEFT or mlx_lm); may be repeated. The first is used unless --use names another"},
    {"--draft-model", 0, QN_ARG_TEXT, LOAD(o.draft_model), 0, 0, "PATH",
     "smaller model with the same vocabulary that guesses tokens ahead (see --speculate)"},
    {"--python", 0, QN_ARG_TEXT, LOAD(o.python), 0, 0, "PROGRAM",
     "Python program that runs the backend mlx_lm (default: $QUERN_PYTHON, else python3)"},
    {"--backend", 0, QN_ARG_TEXT, LOAD(o.backend), 0, 0, "NAME",
     "backend that answers: native (default), mlx_lm (runs in your Python), or mock (a made-up model for "
     "tests; MODEL is its seed)"},
    {"--device", 0, QN_ARG_TEXT, LOAD(o.device), 0, 0, "NAME",
     "device that computes: auto (default: an NVIDIA card if its library is installed, else the CPU), cpu, "
     "cuda "
     "(NVIDIA) or mlx (Apple's MLX)"},
    {"--gpu-layers", 0, QN_ARG_TEXT, LOAD(gpu_layers), 0, 0, "N|all|auto",
     "layers that a card computes (--device cuda), from the first on; the CPU computes the others and the "
     "head. "
     "0: none; all, or no fewer than the model has: all (default); auto: as many as fit into the card's "
     "memory. "
     "On mlx a model is not split between two devices"},
    {"--offline", 0, QN_ARG_FLAG, LOAD(offline), 0, 0, NULL,
     "do not use the network: a model that is named must be on this machine"},
    {0},
};

size_t qn_load_read_scale(const char *path, float *scale)
{
    const char *colon = strrchr(path, ':');
    double number;
    *scale = 1;
    if (!colon || !qn_args_read_real(colon + 1, &number)) return strlen(path);
    *scale = (float)number;
    return (size_t)(colon - path);
}

/* The last part of a path, without the slashes behind it. */
static size_t last_part(const char *path, size_t length, const char **part)
{
    while (length > 1 && path[length - 1] == '/') length--;
    size_t begin = length;
    while (begin > 0 && path[begin - 1] != '/') begin--;
    *part = path + begin;
    return length - begin;
}

/* [NAME=]DIR[:SCALE]: a name has no slash, so ./ before a path keeps a '=' in it from being taken for one; a
 * slash behind it does the same for a ':'. The text lasts until qn_load_end. */
static qn_status read_adapter(qn_load_options *l, size_t i)
{
    const char *text = l->adapters.items[i], *path = text, *name;
    size_t n_name = strcspn(text, "=/");
    qn_cli_adapter *a = &l->adapter[i];
    if (text[n_name] == '=') path = text + n_name + 1;
    size_t n_path = qn_load_read_scale(path, &a->scale);
    if (!n_path) return qn_fail(QN_E_ARG, "--adapter: '%s' names no folder", text);
    if (a->scale == 0) return qn_fail(QN_E_ARG, "--adapter: '%s': the scale must not be 0", text);
    if (path != text)
        name = text;
    else
        n_name = last_part(path, n_path, &name);
    qn_buf_reset(&a->name);
    qn_buf_reset(&a->path);
    qn_buf_append(&a->name, name, n_name);
    qn_buf_append(&a->path, path, n_path);
    return a->name.status != QN_OK ? a->name.status : a->path.status;
}

/* A field of 0 means as many layers as fit, and a negative one none. text NULL: the option was not given. */
static qn_status read_layers(const char *text, int32_t *out)
{
    uint64_t n;
    if (!text || strcmp(text, "all") == 0) {
        *out = QN_ALL_LAYERS;
        return QN_OK;
    }
    if (strcmp(text, "auto") == 0) {
        *out = 0;
        return QN_OK;
    }
    if (!qn_args_read_uint(text, &n))
        return qn_fail(QN_E_ARG, "--gpu-layers: '%s' is neither a number of layers nor `all` nor `auto`",
                       text);
    *out = !n ? -1 : n < QN_ALL_LAYERS ? (int32_t)n : QN_ALL_LAYERS;
    return QN_OK;
}

qn_status qn_load_prepare(qn_load_options *l)
{
    l->o.precision = (qn_precision)l->precision;
    l->o.kv_type = (qn_kv_type)l->kv_type;
    if (l->cache_limit.given)
        l->o.cache_limit_bytes = l->cache_limit.bytes ? l->cache_limit.bytes : QN_KEEP_NOTHING;
    QN_TRY(qn_rope_finish(&l->rope));
    l->o.rope = l->rope.o;
    QN_TRY(read_layers(l->gpu_layers, &l->o.gpu_layers));
    for (size_t i = 0; i < l->adapters.n; i++) QN_TRY(read_adapter(l, i));
    if (l->adapters.n) {
        l->o.adapter_path = l->adapter[0].path.data;
        l->o.adapter_name = l->adapter[0].name.data;
        l->o.adapter_scale = l->adapter[0].scale;
    }
    if (!l->template_path) return QN_OK;
    QN_TRY(qn_input_read(l->template_path, &l->template_text));
    l->o.chat_template = l->template_text.data;
    return QN_OK;
}

qn_status qn_load_adapters(const qn_load_options *l, qn_model *model)
{
    for (size_t i = 1; i < l->adapters.n; i++) {
        const qn_cli_adapter *a = &l->adapter[i];
        QN_TRY(qn_adapter_load(model, &(qn_adapter_options){a->name.data, a->path.data, a->scale}));
    }
    return QN_OK;
}

void qn_note_device(const char *wish, const char *device, const char *name)
{
    if ((!wish || strcmp(wish, "auto") == 0) && name && *name)
        qn_out_note("computing on %s: %s", device, name);
}

static void note_device(const qn_load_options *l, const qn_model *model)
{
    qn_model_info info;
    if (qn_model_get_info(model, &info) == QN_OK) qn_note_device(l->o.device, info.device, info.device_name);
}

/* The seed of the made-up model is no name. */
static int is_mock(const qn_load_options *l)
{
    return l->o.backend && strcmp(l->o.backend, "mock") == 0;
}

qn_status qn_load_find(qn_load_options *l, const char **path)
{
    const qn_model_name_options o = {.may_fetch = l->may_fetch, .offline = l->offline};
    if (is_mock(l)) return QN_OK;
    return qn_model_name_find(*path, &o, &l->found, path);
}

qn_status qn_load_open(const char *path, qn_load_options *l, qn_model **out)
{
    qn_model *model = NULL;
    const qn_model_name_options o = {.may_fetch = l->may_fetch, .offline = l->offline};
    QN_TRY(qn_load_prepare(l));
    QN_TRY(qn_load_find(l, &path));
    if (l->o.draft_model && !is_mock(l))
        QN_TRY(qn_model_name_find(l->o.draft_model, &o, &l->found_draft, &l->o.draft_model));
    qn_status status = qn_model_open(path, &l->o, &model);
    if (status != QN_OK) return is_mock(l) ? status : qn_model_name_hint(path, status);
    note_device(l, model);
    status = qn_load_adapters(l, model);
    if (status == QN_OK)
        *out = model;
    else
        qn_model_close(&model);
    return status;
}

qn_status qn_load_open_for(const char *path, qn_load_options *l, size_t n_prompts, qn_model **out)
{
    enum { LIST_SLOTS = 16 };
    if (!l->o.parallel_slots) l->o.parallel_slots = n_prompts < LIST_SLOTS ? (int32_t)n_prompts : LIST_SLOTS;
    return qn_load_open(path, l, out);
}

void qn_load_end(qn_load_options *l)
{
    qn_buf_free(&l->template_text);
    qn_buf_free(&l->found);
    qn_buf_free(&l->found_draft);
    for (size_t i = 0; i < l->adapters.n; i++) {
        qn_buf_free(&l->adapter[i].name);
        qn_buf_free(&l->adapter[i].path);
    }
}

qn_status qn_note_seed(const char *command, const qn_model *model)
{
    qn_model_info info;
    QN_TRY(qn_model_get_info(model, &info));
    qn_out_note(
        "the seed answers: a toy model of %.1f million parameters inside quern, which is often wrong. To use "
        "a real model: quern %s MODEL, a path or a name; qwen3:0.6b is fetched once (640 MB)",
        (double)info.num_parameters * 1e-6, command);
    return QN_OK;
}

void qn_json_info(qn_buf *b, const qn_model_info *info)
{
    qn_json_open(b, '{');
    qn_json_put_text(b, "path", info->path);
    qn_json_put_text(b, "architecture", info->architecture);
    qn_json_put_text(b, "backend", info->backend);
    qn_json_put_text(b, "device", info->device);
    if (info->device_name && *info->device_name) qn_json_put_text(b, "device_name", info->device_name);
    qn_json_put_text(b, "cpu_set", info->cpu_set);
    qn_json_put_text(b, "precision", qn_precision_name(info->precision));
    qn_json_put_text(b, "kv_dtype", qn_dtype_name(info->kv_dtype));
    qn_json_put_int(b, "quant_bits", info->quant_bits);
    qn_json_put_int(b, "num_layers", info->num_layers);
    qn_json_put_int(b, "gpu_layers", info->gpu_layers);
    qn_json_put_int(b, "vocab_size", info->vocab_size);
    qn_json_put_int(b, "hidden_size", info->hidden_size);
    qn_json_put_int(b, "num_parameters", info->num_parameters);
    qn_json_put_int(b, "context_size", info->context_size);
    qn_json_put_int(b, "model_context_size", info->model_context_size);
    qn_json_put_int(b, "n_threads", info->n_threads);
    qn_json_put_int(b, "parallel_slots", info->parallel_slots);
    qn_json_put_text(b, "notes", info->notes);
    qn_json_put_text(b, "packed", info->packed ? info->packed : "");
    qn_json_put_text(b, "mmproj", info->mmproj ? info->mmproj : "");
    qn_json_close(b, '}');
}

void qn_json_metrics(qn_buf *b, const qn_metrics *metrics)
{
    qn_json_open(b, '{');
    qn_json_put_real(b, "prefill_tokens_per_sec", metrics->prefill_tokens_per_sec);
    qn_json_put_real(b, "decode_tokens_per_sec", metrics->decode_tokens_per_sec);
    qn_json_put_int(b, "peak_memory_bytes", (int64_t)metrics->peak_memory_bytes);
    qn_json_put_int(b, "active_memory_bytes", (int64_t)metrics->active_memory_bytes);
    if (metrics->device_peak_memory_bytes) {
        qn_json_put_int(b, "device_peak_memory_bytes", (int64_t)metrics->device_peak_memory_bytes);
        qn_json_put_int(b, "device_active_memory_bytes", (int64_t)metrics->device_active_memory_bytes);
    }
    qn_json_put_real(b, "load_total_ms", metrics->load_total_ms);
    qn_json_put_real(b, "load_files_ms", metrics->load_files_ms);
    qn_json_put_real(b, "load_tokenizer_ms", metrics->load_tokenizer_ms);
    qn_json_put_real(b, "load_weights_ms", metrics->load_weights_ms);
    qn_json_put_real(b, "load_programs_ms", metrics->load_programs_ms);
    qn_json_close(b, '}');
}

void qn_json_put_stats(qn_buf *b, const qn_generation_stats *stats)
{
    qn_json_put_int(b, "n_prompt_tokens", stats->n_prompt_tokens);
    qn_json_put_int(b, "n_cached_tokens", stats->n_cached_tokens);
    qn_json_put_int(b, "n_generated_tokens", stats->n_generated_tokens);
    qn_json_put_real(b, "prefill_ms", stats->prefill_ms);
    qn_json_put_real(b, "decode_ms", stats->decode_ms);
    qn_json_put_real(b, "prefill_tokens_per_sec", stats->prefill_tokens_per_sec);
    qn_json_put_real(b, "decode_tokens_per_sec", stats->decode_tokens_per_sec);
    qn_json_put_int(b, "n_drafted_tokens", stats->n_drafted_tokens);
    qn_json_put_int(b, "n_accepted_tokens", stats->n_accepted_tokens);
    qn_json_key(b, "seed");
    qn_json_uint(b, stats->seed);
}

void qn_note_stats(const qn_generation_stats *stats, qn_end end)
{
    qn_out_note("%lld prompt token%s at %.1f/s, %lld new token%s at %.1f/s, ended by %s",
                (long long)stats->n_prompt_tokens, qn_out_plural(stats->n_prompt_tokens),
                stats->prefill_tokens_per_sec, (long long)stats->n_generated_tokens,
                qn_out_plural(stats->n_generated_tokens), stats->decode_tokens_per_sec, qn_end_name(end));
}

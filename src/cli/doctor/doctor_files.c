/* The doctor's steps over the files and the memory: files, config, weights, memory, compute. */
#include <jansson.h>
#include <math.h>
#include <quern/quern.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json/json.h"
#include "cli/doctor/doctor.h"
#include "cli/term/out.h"

enum { FILES_SHOWN = 6, CONTEXT = 512, CONTEXT_MIN = 256 };

/* ---- files -------------------------------------------------------------------------------------------- */

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static void say_weight_files(qn_doctor *d)
{
    qn_buf b = {0};
    size_t total = 0;
    char size[32];
    int64_t n = qn_source_file_count(d->source);
    for (int64_t i = 0; i < n; i++) {
        const char *path = qn_source_file_path(d->source, i);
        const size_t bytes = qn_source_file_bytes(d->source, i);
        total += bytes;
        if (i < FILES_SHOWN)
            qn_buf_printf(&b, "%s%s %s", i ? ", " : "", base_name(path),
                          qn_out_size_text(bytes, size, sizeof size));
    }
    if (n > FILES_SHOWN) qn_buf_printf(&b, " and %lld more", (long long)(n - FILES_SHOWN));
    if (n > 1) qn_buf_printf(&b, "; %s in all", qn_out_size_text(total, size, sizeof size));
    if (b.status == QN_OK) qn_doctor_say(d, QN_FOUND_OK, NULL, "%s", b.data);
    qn_buf_free(&b);
}

static void say_side_files(qn_doctor *d)
{
    char text[256] = "";
    size_t at = 0;
    for (int i = 0; i < QN_SIDE_COUNT; i++) {
        const char *path = qn_source_side_path(d->source, (qn_side_file)i),
                   *slash = path ? strrchr(path, '/') : NULL;
        if (path && at < sizeof text)
            at += (size_t)snprintf(text + at, sizeof text - at, "%s%s", at ? ", " : "",
                                   slash ? slash + 1 : path);
    }
    if (at) qn_doctor_say(d, QN_FOUND_OK, NULL, "beside the weights: %s", text);
}

static const char *advise_files(const qn_doctor *d, qn_status status)
{
    struct stat st;
    switch (status) {
    case QN_E_IO:
        return "check the path, the permissions and the targets of links";
    case QN_E_NOT_FOUND:
        return "name a folder that holds .safetensors or .gguf files; `quern models DIR` lists the models "
               "below a folder";
    case QN_E_ARG:
        if (d->load->o.file) return "--file takes the name of a file in the folder MODEL";
        if (stat(d->path, &st) == 0 && !S_ISDIR(st.st_mode))
            return "name a model's folder, or a .safetensors or .gguf file; `quern models DIR` lists the "
                   "models below a folder";
        return "if there are several files, name one by --file NAME; otherwise name the folder of a complete "
               "model";
    case QN_E_UNSUPPORTED:
        return "get the same model in another format: safetensors, or one GGUF file of version 2 or 3";
    case QN_E_FORMAT:
        return strstr(qn_last_error(), "Git LFS")
                   ? "run `git lfs install` and `git lfs pull` in the repository, or download the file"
                   : "the file is damaged or incomplete: download it again and compare the sizes";
    default:
        return NULL;
    }
}

void qn_doctor_files(qn_doctor *d)
{
    qn_source_options options = {.file = d->load->o.file};
    qn_status status = qn_source_open(d->path, &options, &d->source);
    if (status == QN_OK) {
        d->has_weights = 1;
        say_weight_files(d);
    } else {
        qn_doctor_fail(d, advise_files(d, status));
        options.text_only = 1;
        if (qn_source_open(d->path, &options, &d->source) != QN_OK) return;
    }
    say_side_files(d);
}

/* ---- config ------------------------------------------------------------------------------------------- */

/* config.json, and the object in it that describes the decoder. *root: json_decref. */
static const json_t *read_description(qn_doctor *d, json_t **root)
{
    const char *text;
    size_t n;
    *root = NULL;
    if (!qn_source_side_path(d->source, QN_SIDE_CONFIG) ||
        qn_source_side_text(d->source, QN_SIDE_CONFIG, &text, &n) != QN_OK ||
        qn_json_parse_python("config.json", text, n, root) != QN_OK)
        return NULL;
    const json_t *inner = json_object_get(*root, "text_config");
    return json_is_object(inner) ? inner : *root;
}

static void say_guessed_keys(qn_doctor *d, const json_t *root, const json_t *object)
{
    const qn_model_config *c = &d->config;
    const struct {
        const char *key;
        double value;
    } keys[] = {{"vocab_size", (double)c->vocab_size},
                {"head_dim", (double)c->head_dim},
                {"num_key_value_heads", (double)c->num_key_value_heads},
                {"intermediate_size", (double)c->intermediate_size},
                {"max_position_embeddings", (double)c->max_position_embeddings},
                {"rms_norm_eps", (double)c->rms_norm_eps}};
    char text[512] = "";
    size_t at = 0;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!(c->latent.kv_lora_rank && strcmp(keys[i].key, "head_dim") == 0) &&
            !json_object_get(object, keys[i].key) && !json_object_get(root, keys[i].key) && at < sizeof text)
            at += (size_t)snprintf(text + at, sizeof text - at, "%s%s %.7g", at ? ", " : "", keys[i].key,
                                   keys[i].value);
    if (at)
        qn_doctor_say(d, QN_FOUND_OK, NULL,
                      "missing in config.json and derived from the tensors' shapes or the family: %s", text);
}

static void say_family(qn_doctor *d, const json_t *root, const json_t *object)
{
    const qn_model_config *c = &d->config;
    if (c->recognised_by) {
        qn_doctor_say(d, QN_FOUND_WARNING, "if that is right, write it into config.json as model_type",
                      "the files name no architecture; the tensors match %s: %s", c->architecture,
                      c->recognised_by);
        return;
    }
    int typed = json_is_string(json_object_get(object, "model_type")) ||
                json_is_string(json_object_get(root, "model_type"));
    qn_doctor_say(d, QN_FOUND_OK, NULL, "family %s, by %s", c->architecture,
                  !object ? "general.architecture"
                  : typed ? "model_type"
                          : "architectures");
}

static const char *advise_config(qn_status status)
{
    switch (status) {
    case QN_E_NOT_FOUND:
        return "download config.json from the source of the weights";
    case QN_E_UNSUPPORTED:
        return "this version of quern does not support that; use another model, or a newer quern, or add "
               "what is "
               "missing (docs/adding-a-model.md)";
    case QN_E_FORMAT:
        return "use the publisher's config.json for exactly these weights";
    default:
        return NULL;
    }
}

/* Of queries and keys, as they meet. */
static int64_t size_of_heads(const qn_model_config *c)
{
    const qn_latent_config *l = &c->latent;
    return l->kv_lora_rank ? l->qk_nope_head_dim + l->qk_rope_head_dim : c->head_dim;
}

/* What layers have in place of attention, or before it. */
static void say_mixers(qn_doctor *d, const qn_model_config *c)
{
    const qn_delta_config *net = &c->delta;
    const qn_state_space_config *s = &c->state_space;
    int64_t n_nets = 0, n_by_channel = 0, n_convolving = 0, n_spaces = 0, n_indexed = 0;
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        const qn_layer_config *l = &c->layers[i];
        n_nets += l->mixer == QN_MIXER_DELTA;
        n_by_channel += l->mixer == QN_MIXER_CHANNEL_DELTA;
        n_convolving += l->mixer == QN_MIXER_SHORT_CONV;
        n_spaces += qn_layer_has_state_space(l);
        n_indexed += l->indexed;
    }
    if (n_convolving)
        qn_doctor_say(d, QN_FOUND_OK, NULL, "%lld of the layers are gated convolutions over %lld rows",
                      (long long)n_convolving, (long long)c->short_conv.conv_L_cache);
    if (n_nets || n_by_channel)
        qn_doctor_say(d, QN_FOUND_OK, NULL, "%lld of the layers are %s: %lld heads of %lld by %lld",
                      (long long)(n_nets + n_by_channel),
                      n_nets ? "gated delta nets" : "Kimi delta attention",
                      (long long)net->linear_num_value_heads, (long long)net->linear_key_head_dim,
                      (long long)net->linear_value_head_dim);
    if (n_spaces)
        qn_doctor_say(d, QN_FOUND_OK, NULL,
                      "%lld of the layers have a state space: %lld heads of %lld by %lld",
                      (long long)n_spaces, (long long)s->mamba_n_heads, (long long)s->mamba_d_state,
                      (long long)s->mamba_d_head);
    if (n_indexed)
        qn_doctor_say(d, QN_FOUND_OK, NULL,
                      "%lld of the layers attend to the best %lld blocks of %lld positions",
                      (long long)n_indexed, (long long)(c->index.index_topk / c->index.index_kpool),
                      (long long)c->index.index_kpool);
}

void qn_doctor_config(qn_doctor *d)
{
    if (!d->source || !d->has_weights) {
        qn_doctor_say(d, QN_FOUND_SKIPPED, NULL, "skipped: the weights cannot be opened");
        return;
    }
    qn_status status = qn_config_read(d->source, &d->config);
    if (status != QN_OK) {
        qn_doctor_fail(d, advise_config(status));
        return;
    }
    const qn_model_config *c = &d->config;
    json_t *root;
    const json_t *object = read_description(d, &root);
    d->has_config = 1;
    say_family(d, root, object);
    qn_doctor_say(
        d, QN_FOUND_OK, NULL,
        "%lld layers, hidden size %lld, %lld heads (%lld for keys and values) of %lld, vocabulary %lld, "
        "context %lld",
        (long long)c->num_hidden_layers, (long long)c->hidden_size, (long long)c->num_attention_heads,
        (long long)c->num_key_value_heads, (long long)size_of_heads(c), (long long)c->vocab_size,
        (long long)c->max_position_embeddings);
    if (c->latent.kv_lora_rank)
        qn_doctor_say(
            d, QN_FOUND_OK, NULL,
            "keys and values of all heads are computed from latents of %lld dimensions, and %lld rotated "
            "ones",
            (long long)c->latent.kv_lora_rank, (long long)c->latent.qk_rope_head_dim);
    say_mixers(d, c);
    if (object) say_guessed_keys(d, root, object);
    json_decref(root);
}

/* ---- weights ------------------------------------------------------------------------------------------ */

void qn_doctor_weights(qn_doctor *d)
{
    if (!d->has_config) {
        qn_doctor_say(d, QN_FOUND_SKIPPED, NULL,
                      "skipped: without a config the expected tensors are not known");
        return;
    }
    qn_status status = qn_examine_weights(d->source, &d->config, &d->weights);
    if (status != QN_OK) {
        qn_doctor_fail(
            d, status == QN_E_UNSUPPORTED
                   ? "get the model in another type; `quern inspect` shows which tensors have this one"
                   : "weights and config.json do not belong together, or a file is missing: compare both "
                     "with the publisher's; `quern inspect` lists the tensors");
        return;
    }
    d->has_checked_weights = 1;
    char size[32];
    qn_doctor_say(d, QN_FOUND_OK, NULL, "%lld tensors, %s, most of type %s; head %s",
                  (long long)d->weights.n_tensors, qn_out_size_text(d->weights.size_bytes, size, sizeof size),
                  d->weights.type_name, d->weights.tied ? "tied to the embedding" : "separate");
    if (d->weights.n_unused)
        qn_doctor_say(
            d, QN_FOUND_WARNING,
            "usual for files that hold more than the language model (vision, audio), or keys and values of "
            "layers that share another layer's; otherwise the config belongs to another model",
            "unused tensors: %lld (%s), %s%s", (long long)d->weights.n_unused,
            qn_out_size_text(d->weights.unused_bytes, size, sizeof size), d->weights.unused,
            d->weights.n_unused > 1 ? " and others" : "");
    int64_t n = 0;
    status = qn_examine_vectors(d->source, &d->config, &n);
    if (status != QN_OK) {
        d->has_checked_weights = 0;
        qn_doctor_fail(d, "the weights are damaged, or were published so: download them again");
        return;
    }
    qn_doctor_say(d, QN_FOUND_OK, NULL, "%lld norms and biases are finite", (long long)n);
    const char *name;
    status = qn_examine_zeros(d->source, &d->config, &n, &name);
    if (status != QN_OK) d->status = status;
    if (status == QN_OK && n)
        qn_doctor_say(d, QN_FOUND_WARNING,
                      "compare the file with the publisher's: the download may be incomplete",
                      "%lld matri%s only zeros, %s%s", (long long)n, n > 1 ? "ces are" : "x is",
                      name ? name : "unnamed", n > 1 ? " and others" : "");
}

/* ---- memory ------------------------------------------------------------------------------------------- */

/* Keys, values and recurrent state of n_tokens. */
static double kv_bytes(const qn_model_config *c, int64_t n_tokens, double bytes)
{
    double total = 0;
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        const qn_layer_config *l = &c->layers[i];
        int64_t conv, rule;
        qn_layer_state_floats(c, i, &conv, &rule);
        total += sizeof(float) * (double)(conv + rule);
        if (l->indexed && l->index_layer == i)
            total += (double)n_tokens * (double)c->index.index_head_dim * sizeof(float);
        if (l->kv_layer != i || !qn_layer_attends(l)) continue;
        int64_t n = l->window && l->window < n_tokens ? l->window : n_tokens;
        int64_t dims = l->head_dim + (l->mixer == QN_MIXER_LATENT ? 0 : l->v_head_dim);
        total += (double)n * (double)l->num_key_value_heads * (double)dims * bytes;
    }
    return total;
}

/* What `quern doctor` knows of a device beside the CPU. */
typedef struct {
    const char *name;
    int is_there; /* it can be used */
    qn_device_info info;
    char missing[QN_ERROR_TEXT_MAX];
} other_device;

static void look_at_device(other_device *o)
{
    o->is_there = qn_device_find(o->name, &o->info) == QN_OK;
    snprintf(o->missing, sizeof o->missing, "%s", o->is_there ? "" : qn_last_error());
}

static const char *advise_device(const char *name)
{
    return strcmp(name, "cuda") == 0
               ? "docs/cuda.md says what is needed; leave --device out to compute on the CPU"
               : "leave --device out to compute on the CPU";
}

static int is_full(const qn_device_info *card)
{
    return card->memory_bytes && card->available_bytes < card->memory_bytes / 20;
}

/* A card is there. */
static void say_card(qn_doctor *d, const qn_device_info *card)
{
    char room[32], all[32];
    qn_out_size_text(card->available_bytes, room, sizeof room);
    qn_out_size_text(card->memory_bytes, all, sizeof all);
    if (is_full(card))
        qn_doctor_say(d, QN_FOUND_WARNING, "end the programs that use it (nvidia-smi lists them)",
                      "the memory of the card %s is full: %s of %s are free", card->description, room, all);
    if (*card->note)
        qn_doctor_say(d, QN_FOUND_WARNING, "compare its answers with those of --device cpu", "%s: %s",
                      card->description, card->note);
}

/* 1: doctor reports that the device is missing. 0 if the user did not ask for the device and its library is not
 * installed. */
static int is_missed(const other_device *o, const char *wish)
{
    const char *asked = wish ? wish : getenv("QUERN_DEVICE"),
               *library = getenv(strcmp(o->name, "cuda") == 0 ? "QUERN_CUDA_LIBRARY" : "QUERN_MLX_LIBRARY");
    if ((asked && strcmp(asked, o->name) == 0) || library) return 1;
    return !strstr(o->missing, "not built") && !strstr(o->missing, "cannot be loaded");
}

void qn_doctor_devices(qn_doctor *d)
{
    const char *wish = d->load->o.device;
    qn_device_info cpu, used;
    other_device cuda = {.name = "cuda"}, mlx = {.name = "mlx"};
    if (!d->source) {
        qn_doctor_say(d, QN_FOUND_SKIPPED, NULL, "skipped: there is nothing to compute");
        return;
    }
    if (qn_device_get_info(0, &cpu) != QN_OK) {
        qn_doctor_fail(d, "leave QUERN_CPU out, or name a set that this machine has");
        return;
    }
    look_at_device(&cuda);
    look_at_device(&mlx);
    if (qn_device_find(wish, &used) != QN_OK) {
        qn_doctor_fail(d, wish ? advise_device(wish)
                               : "QUERN_DEVICE names a device: leave it out, or set it to cpu");
        return;
    }
    d->has_device = 1;
    qn_buf b = {0};
    qn_buf_printf(&b, "%s computes; cpu with set %s", used.name, cpu.set);
    if (cuda.is_there)
        qn_buf_printf(&b, "; cuda on %s (%s)", cuda.info.description, cuda.info.set);
    else if (is_missed(&cuda, wish))
        qn_buf_printf(&b, "; %s", cuda.missing);
    if (mlx.is_there)
        qn_buf_printf(&b, "; mlx by %s on %s", mlx.info.description,
                      strcmp(mlx.info.set, "mlx_cpu") != 0 ? "the GPU" : "the CPU");
    else if (is_missed(&mlx, wish))
        qn_buf_printf(&b, "; %s", mlx.missing);
    if (b.status == QN_OK) qn_doctor_say(d, QN_FOUND_OK, NULL, "%s", b.data);
    qn_buf_free(&b);
    if (cuda.is_there) say_card(d, &cuda.info);
}

/* What fits is decided when the model is opened, for each side alone. */
static void say_divided(qn_doctor *d)
{
    char weights[32];
    const int n = d->load->o.gpu_layers;
    qn_out_size_text(d->weights.size_bytes, weights, sizeof weights);
    d->fits = 1;
    qn_json_put_int(&d->figures, "weights_bytes", (int64_t)d->weights.size_bytes);
    if (n)
        qn_doctor_say(d, QN_FOUND_OK, NULL,
                      "weights %s: the first %d of %lld layers go to the card, the others to the CPU",
                      weights, n, (long long)d->config.num_hidden_layers);
    else
        qn_doctor_say(d, QN_FOUND_OK, NULL,
                      "weights %s: as many layers as fit go to the card, the others to the CPU", weights);
}

void qn_doctor_memory(qn_doctor *d)
{
    qn_device_info device;
    char weights[32], kv[32], room[32];
    if (!d->has_checked_weights) {
        qn_doctor_say(d, QN_FOUND_SKIPPED, NULL, "skipped: the weights are not usable");
        return;
    }
    if (!d->has_device ||
        qn_device_find(d->load->o.gpu_layers < 0 ? "cpu" : d->load->o.device, &device) != QN_OK) {
        qn_doctor_say(d, QN_FOUND_SKIPPED, NULL, "skipped: the device cannot be used");
        return;
    }
    const qn_model_config *c = &d->config;
    const int is_card = strcmp(device.name, "cuda") == 0;
    if (is_card && d->load->o.gpu_layers < c->num_hidden_layers) {
        say_divided(d);
        return;
    }
    size_t limit = is_card ? d->load->o.device_memory_limit_bytes : d->load->o.memory_limit_bytes,
           available = device.available_bytes;
    if (limit && limit < available) available = limit;
    const qn_kv_type type = (qn_kv_type)d->load->kv_type;
    const int full = type == QN_KV_AUTO ? d->load->o.precision == QN_PRECISION_EXACT : type == QN_KV_F32;
    double bytes = full ? 4 : type == QN_KV_Q8_0 ? 34.0 / 32 : type == QN_KV_Q4_0 ? 18.0 / 32 : 2;
    double thousand = kv_bytes(c, 1000, bytes), left = (double)available - (double)d->weights.size_bytes;
    int64_t context = c->max_position_embeddings;
    while (context > CONTEXT_MIN && kv_bytes(c, context, bytes) > left * 0.9) context = context * 7 / 8;
    qn_out_size_text(d->weights.size_bytes, weights, sizeof weights);
    qn_out_size_text((size_t)thousand, kv, sizeof kv);
    qn_out_size_text(available, room, sizeof room);
    d->fits = left > 0 && kv_bytes(c, context, bytes) <= left * 0.9;
    qn_json_put_int(&d->figures, "weights_bytes", (int64_t)d->weights.size_bytes);
    qn_json_put_int(&d->figures, "kv_bytes_per_1000_tokens", (int64_t)thousand);
    qn_json_put_int(&d->figures, "available_bytes", (int64_t)available);
    if (!d->fits) {
        qn_doctor_say(
            d, QN_FOUND_FAILURE,
            is_card ? "use a smaller quantisation, or --device cpu; --device auto takes the CPU by itself"
            : limit == available ? "raise --memory-limit, or use a smaller quantisation"
                                 : "free memory, or use a smaller quantisation of the model",
            "weights %s, keys and values %s for 1,000 tokens; only %s %sare available", weights, kv, room,
            is_card ? "of the card's memory " : "");
        return;
    }
    qn_doctor_say(
        d, QN_FOUND_OK, NULL,
        "weights %s, keys and values %s for 1,000 tokens; of %s available%s, a context of %lld fits", weights,
        kv, room, is_card ? " on the card" : "", (long long)context);
}

/* ---- compute ------------------------------------------------------------------------------------------ */

/* What the callback of the logits sees. */
typedef struct {
    int64_t vocab_size, n_rows, bad_row, bad_id;
} scan;

static qn_status look(void *user, int64_t row, int64_t position, int64_t n_positions, const float *logits)
{
    scan *s = user;
    for (int64_t i = 0; i < n_positions; i++, s->n_rows++)
        for (int64_t id = 0; id < s->vocab_size; id++)
            if (!isfinite(logits[i * s->vocab_size + id]) && s->bad_row < 0) {
                s->bad_row = position + i;
                s->bad_id = id;
            }
    return QN_OK;
}

static qn_status check_logits(qn_doctor *d, qn_model *model, const char *text)
{
    qn_model_info info;
    int32_t *ids = NULL;
    int64_t n_ids = 0;
    QN_TRY(qn_model_get_info(model, &info));
    QN_TRY(qn_model_encode(model, text, strlen(text), &(qn_encode_options){.bos = 1}, &ids, &n_ids));
    scan s = {.vocab_size = info.vocab_size, .bad_row = -1};
    qn_ids row = {ids, n_ids};
    qn_status status = qn_model_logits(model, &row, 1, NULL, look, &s);
    qn_buffer_free(ids);
    QN_TRY(status);
    if (s.bad_row >= 0)
        qn_doctor_say(
            d, QN_FOUND_FAILURE,
            *info.packed
                ? "the packed weights or the model's own are damaged: `quern pack` compares the two"
                : "the weights are damaged, or have values too large for 16 bits: compare with --precision "
                  "exact",
            "the logits of position %lld are not finite; the first is that of token %lld",
            (long long)s.bad_row, (long long)s.bad_id);
    else
        qn_doctor_say(d, QN_FOUND_OK, NULL, "logits of %lld positions are finite (%s, set %s)",
                      (long long)s.n_rows, qn_precision_name(info.precision), info.cpu_set);
    return QN_OK;
}

static qn_status generate(qn_doctor *d, qn_model *model, const char *text)
{
    qn_generation *g = NULL;
    qn_generation_stats stats;
    qn_token token;
    qn_buf answer = {0};
    QN_TRY(qn_generate(model, text, &(qn_generate_options){.max_tokens = d->max_tokens}, &g));
    qn_status status;
    do {
        status = qn_generation_next(g, &token);
        if (status == QN_OK) qn_buf_append(&answer, token.text, token.text_bytes);
    } while (status == QN_OK && token.end == QN_END_NONE);
    if (status == QN_OK) status = answer.status;
    if (status == QN_OK) status = qn_generation_get_stats(g, &stats);
    if (status == QN_OK) {
        qn_doctor_say(d, QN_FOUND_OK, NULL, "\"%s\" is continued by \"%s\" (%lld token%s, %.1f per second)",
                      text, answer.data ? answer.data : "", (long long)stats.n_generated_tokens,
                      qn_out_plural(stats.n_generated_tokens), stats.decode_tokens_per_sec);
        qn_json_put_text(&d->figures, "generated_text", answer.data ? answer.data : "");
    }
    qn_generation_close(g);
    qn_buf_free(&answer);
    return status;
}

/* What the load noted; by what the family was recognised has been said. */
static void say_notes(qn_doctor *d, const char *notes)
{
    const char *said = d->config.recognised_by;
    for (const char *p = notes; *p;) {
        size_t n = strcspn(p, "\n");
        if (!said || !memmem(p, n, said, strlen(said)))
            qn_doctor_say(d, QN_FOUND_WARNING, "nothing to do if this is intended", "%.*s", (int)n, p);
        p += n + (p[n] == '\n');
    }
}

static const char *advise_compute(qn_status status)
{
    switch (status) {
    case QN_E_FULL:
    case QN_E_NOMEM:
        return "allow more memory, or use a smaller --context";
    case QN_E_ARG:
    case QN_E_UNSUPPORTED:
    case QN_E_NOT_FOUND:
        return "leave out the option that asks for this, or give it another value";
    default:
        return "the steps above found nothing wrong: please report this, with this output";
    }
}

void qn_doctor_compute(qn_doctor *d)
{
    static const char text[] = "The capital of France is";
    if (!d->has_checked_weights || !d->has_tokenizer || !d->has_device || !d->fits) {
        qn_doctor_say(d, QN_FOUND_SKIPPED, NULL, "not tried: %s",
                      !d->has_checked_weights ? "the weights are not usable"
                      : !d->has_tokenizer     ? "there is no tokenizer"
                      : !d->has_device        ? "the device cannot be used"
                                              : "the model does not fit into memory");
        return;
    }
    qn_model *model = NULL;
    qn_model_info info;
    qn_model_options *o = &d->load->o;
    /* A small context is enough, and the model is there sooner. */
    if (!o->context_size)
        o->context_size =
            d->config.max_position_embeddings < CONTEXT ? d->config.max_position_embeddings : CONTEXT;
    qn_status status = qn_model_open(d->path, o, &model);
    if (status == QN_OK) status = qn_load_adapters(d->load, model);
    if (status == QN_OK) status = qn_model_get_info(model, &info);
    int64_t n_failed = d->n_found[QN_FOUND_FAILURE];
    if (status == QN_OK) {
        say_notes(d, info.notes);
        if (info.mmproj && *info.mmproj)
            qn_doctor_say(d, QN_FOUND_OK, NULL, "pictures are seen by the vision tower %s", info.mmproj);
        status = check_logits(d, model, text);
    }
    if (status == QN_OK && d->n_found[QN_FOUND_FAILURE] == n_failed) status = generate(d, model, text);
    if (status != QN_OK) qn_doctor_fail(d, advise_compute(status));
    qn_model_close(&model);
}

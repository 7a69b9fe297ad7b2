#include "engine/machine/engine.h"

#include "base/clock.h"
#include "base/mem.h"
#include "engine/machine/engine_parts.h"
#include "model/weights/packing.h"

enum { NOTE_BYTES = 1024 };

/* Returns the bytes that were given, in the ledgers of all parts. */
static size_t reclaim_some(qn_engine *e, size_t size_bytes)
{
    size_t given = 0;
    if (e->tree) return qn_tree_reclaim(e->tree, size_bytes);
    for (int i = 0; i < e->groups.n && given < size_bytes; i++)
        given += qn_pages_reclaim(e->pages[i], size_bytes - given);
    if (e->slots && given < size_bytes) given += qn_pages_reclaim(e->slots, size_bytes - given);
    return given;
}

static void reclaim_pages(void *user, size_t size_bytes)
{
    const qn_reclaimer *r = user;
    for (;;) {
        const size_t before = qn_ledger_held(r->ledger, QN_LEDGER_CACHE),
                     given = reclaim_some(r->engine, size_bytes),
                     now = qn_ledger_held(r->ledger, QN_LEDGER_CACHE), gone = before > now ? before - now : 0;
        if (!r->engine->card.device || !given || gone >= size_bytes) return;
        size_bytes -= gone; /* a part of what was given is another ledger's */
    }
}

/* fast_kv: what the device multiplies fastest. It serves `fast` where int8 activations cost more of the
 * quality than 8 bits of mantissa in keys and values do: with weights of 16 bits or more (bits) they would be
 * the largest error. */
static qn_dtype kv_dtype_of(const qn_engine_options *o, qn_dtype fast_kv, int bits, int is_bf16)
{
    static const qn_dtype types[] = {[QN_KV_F32] = QN_DTYPE_F32,
                                     [QN_KV_F16] = QN_DTYPE_F16,
                                     [QN_KV_BF16] = QN_DTYPE_BF16,
                                     [QN_KV_Q8_0] = QN_DTYPE_Q8_0,
                                     [QN_KV_Q4_0] = QN_DTYPE_Q4_0};
    if (o->kv_type != QN_KV_AUTO) return types[o->kv_type];
    if (is_bf16 && o->precision != QN_PRECISION_EXACT) return QN_DTYPE_BF16;
    if (o->precision == QN_PRECISION_FAST && bits < 16) return fast_kv;
    return o->precision == QN_PRECISION_EXACT ? QN_DTYPE_F32 : QN_DTYPE_F16;
}

static void choose_kv_dtype(qn_engine *e, const qn_engine_options *o)
{
    qn_device *d = e->card.device ? e->card.device : e->device;
    const qn_device_description about = d->ops->describe(d);
    e->info.kv_dtype = kv_dtype_of(o, about.fast_kv, e->info.quant_bits, about.own_kv && e->is_bf16);
}

/* Decides how many layers a card computes, and divides the model if it is not all of them. */
static qn_status place_layers(qn_engine *e, const qn_weights *weights, const qn_engine_options *o)
{
    size_t size_bytes;
    QN_TRY(qn_parameters_measure(e->device, weights, &e->config, &size_bytes, &e->info.quant_bits));
    choose_kv_dtype(e, o);
    QN_TRY(qn_engine_check_fit(e, weights, size_bytes, o, &e->info.gpu_layers));
    return e->info.gpu_layers < e->config.num_hidden_layers ? qn_split_begin(e, e->info.gpu_layers, o)
                                                            : QN_OK;
}

static qn_status load_first_layers(qn_engine *e, const qn_weights *weights)
{
    const qn_parameters_part first = {.end = e->groups.border};
    if (!e->card.device) return QN_OK;
    return qn_parameters_load_part(e->card.device, weights, &e->config, &first, NULL, &e->card.parameters);
}

/* packed NULL: from the model's own files. */
static qn_status load_own_layers(qn_engine *e, const qn_weights *weights, qn_packed *packed)
{
    /* An encoder's weights are often of f32, which no precision of activations would make faster. */
    const qn_parameters_part own = {.begin = e->groups.border,
                                    .end = e->config.num_hidden_layers,
                                    .has_model = 1,
                                    .as_bf16 = e->config.encoder.both_ways &&
                                               e->info.precision == QN_PRECISION_FAST};
    return qn_parameters_load_part(e->device, weights, &e->config, &own, packed, &e->parameters);
}

static qn_status load_weights(qn_engine *e, qn_source *source, const qn_engine_options *o)
{
    const char *packed_path = o->packed;
    qn_weights *weights;
    qn_packed *packed = NULL;
    QN_TRY(qn_weights_open(source, &e->config, &weights));
    const qn_tensor_view *norm = qn_weights_get(weights, QN_WEIGHT_FINAL_NORM, 0);
    e->is_bf16 = norm && norm->dtype == QN_DTYPE_BF16;
    qn_status status = qn_device_has_memory(e->device) ? place_layers(e, weights, o) : QN_OK;
    if (status == QN_OK) status = load_first_layers(e, weights);
    if (status == QN_OK) status = qn_packing_find(source, e->device, packed_path, &packed, &e->notes);
    if (status == QN_OK) status = load_own_layers(e, weights, packed);
    if (status == QN_OK && packed) {
        e->info.packed = qn_packed_path(packed);
        e->info.mapped_bytes = qn_ledger_held(e->device->ledger, QN_LEDGER_WEIGHTS); /* matrices alone */
    } else if (packed) {
        qn_packed_close(packed);
        if (status == QN_E_FORMAT) { /* what it says of itself is right, but it lacks a tensor */
            qn_packing_note(packed_path, &e->notes);
            status = load_own_layers(e, weights, NULL);
        }
    }
    qn_weights_close(weights);
    return status;
}

static qn_status make_tree(qn_engine *e)
{
    qn_tree_spec spec = {.ledger = e->device->ledger, .n_groups = e->groups.n, .slots = e->slots};
    if (e->card.device) spec.other_ledger = e->card.device->ledger;
    for (int i = 0; i < e->groups.n; i++) {
        spec.pages[i] = e->pages[i];
        spec.window[i] = e->groups.group[i].window;
    }
    return qn_tree_new(&spec, &e->tree);
}

static qn_status open_device(qn_engine *e, const qn_engine_options *o)
{
    const qn_device_options d = {.n_threads = o->n_threads,
                                 .ledger = e->ledger,
                                 .device_memory_limit_bytes = o->device_memory_limit_bytes};
    QN_TRY(qn_device_open(o->device, &d, &e->device));
    if (*e->device->note) qn_buf_printf(&e->notes, "%s\n", e->device->note);
    return qn_device_get_logits_kernels(e->device, &e->logits_kernels);
}

/* A divided model is called by its card. */
static void describe_card(qn_engine *e)
{
    const qn_device_description about = e->card.device->ops->describe(e->card.device);
    e->info.device = e->card.device->ops->name;
    e->info.device_name = about.chip ? about.chip : "";
    if (*about.note) qn_buf_printf(&e->notes, "%s\n", about.note);
}

static void set_reclaim(qn_engine *e)
{
    for (int i = 0; i < QN_PARTS; i++) {
        const qn_device *d = qn_engine_part(e, (qn_part)i);
        if (!d) continue;
        e->reclaimers[i] = (qn_reclaimer){e, d->ledger};
        qn_ledger_set_reclaim(d->ledger, reclaim_pages, &e->reclaimers[i]);
    }
}

static qn_status load(qn_engine *e, qn_source *source, const qn_engine_options *o)
{
    int64_t start = qn_clock_ns();
    QN_TRY(qn_ledger_reserve(e->ledger, QN_LEDGER_OTHER, o->held_bytes));
    QN_TRY(open_device(e, o));
    e->info.precision = o->precision;
    e->keep_positions = o->keep_positions;
    e->info.max_sequences = o->max_sequences > 0 ? o->max_sequences : 1;
    e->info.max_rows = o->max_rows > 0 ? o->max_rows : qn_engine_choose_rows(e);
    if (e->info.max_rows < e->info.max_sequences) e->info.max_rows = e->info.max_sequences;
    QN_TRY(qn_layer_groups_make(&e->config, &e->groups));
    QN_TRY(load_weights(e, source, o));
    int64_t loaded = qn_clock_ns();
    e->info.weights_ms = (double)(loaded - start) * 1e-6;
    int32_t adapter = -1;
    QN_TRY(qn_adapters_new(e->device, &e->config, e->parameters, &e->adapters));
    if (e->card.device) qn_adapters_split(e->adapters, e->groups.border, e->card.device, e->card.parameters);
    if (o->adapter_path)
        QN_TRY(qn_adapters_load(e->adapters, o->adapter_name ? o->adapter_name : "default", o->adapter_path,
                                o->adapter_scale != 0 ? o->adapter_scale : 1, &e->notes, &adapter));
    if (!e->card.device) e->info.quant_bits = qn_parameters_bits(e->parameters);
    choose_kv_dtype(e, o);
    e->info.num_parameters = qn_parameters_count(e->parameters);
    if (e->card.device) e->info.num_parameters += qn_parameters_count(e->card.parameters);
    if (e->config.encoder.both_ways)
        QN_TRY(qn_encoder_fit(e, o->context_size));
    else
        QN_TRY(qn_engine_fit_context(e, o->context_size));
    if (e->groups.n + e->groups.n_recurrent > 0 && !o->no_prefix_cache && !o->keep_positions)
        QN_TRY(make_tree(e));
    if (adapter >= 0) qn_adapters_show(e->adapters, adapter, 1);
    set_reclaim(e);
    e->fed = qn_calloc((size_t)e->info.max_sequences, sizeof *e->fed);
    e->parts = qn_calloc((size_t)e->info.max_sequences, sizeof *e->parts);
    e->ahead.sequences = qn_calloc((size_t)e->info.max_sequences, sizeof *e->ahead.sequences);
    if (!e->fed || !e->parts || !e->ahead.sequences) return QN_E_NOMEM;
    qn_device_description about = e->device->ops->describe(e->device);
    e->info.device = e->device->ops->name;
    e->info.device_name = about.chip ? about.chip : "";
    e->info.cpu_set = about.set;
    e->info.n_threads = about.n_threads;
    if (*about.note) qn_buf_printf(&e->notes, "%s\n", about.note);
    if (e->card.device) describe_card(e);
    qn_buf_append(&e->notes, "", 0);
    e->info.notes = e->notes.data;
    e->info.programs_ms = (double)(qn_clock_ns() - loaded) * 1e-6;
    return e->notes.status;
}

/* note: for the user, before all others. *gives_way 1: the CPU is worth a trial, and note says why. */
static qn_status open_on(qn_source *source, qn_model_config *config, const qn_engine_options *options,
                         char note[NOTE_BYTES], int *gives_way, qn_engine **out)
{
    qn_engine *e = qn_calloc(1, sizeof *e);
    if (!e) return QN_E_NOMEM;
    e->config = *config; /* borrowed until all is well */
    qn_status status = QN_E_NOMEM;
    qn_probes_init(&e->probes);
    e->info.packed = "";
    if (*note) qn_buf_printf(&e->notes, "%s\n", note);
    e->ledger = qn_ledger_new();
    if (e->ledger) {
        qn_ledger_set_limit(e->ledger, options->memory_limit_bytes);
        status = load(e, source, options);
    }
    if (status != QN_OK) {
        *gives_way = qn_device_gives_way(e->card.device ? e->card.device : e->device, status);
        if (*gives_way) qn_device_give_way_text(note, NOTE_BYTES);
        e->config = (qn_model_config){0};
        qn_engine_close(e);
        return status;
    }
    *config = (qn_model_config){0};
    *out = e;
    return QN_OK;
}

qn_status qn_engine_open(qn_source *source, qn_model_config *config, const qn_engine_options *options,
                         qn_engine **out)
{
    char note[NOTE_BYTES] = "";
    int gives_way = 0;
    qn_engine_options on_cpu = *options;
    on_cpu.device = "cpu";
    const qn_status status = open_on(source, config, options, note, &gives_way, out);
    if (!gives_way) return status;
    return open_on(source, config, &on_cpu, note, &gives_way, out);
}

void qn_engine_close(qn_engine *e)
{
    if (!e) return;
    qn_wired_end(&e->wired);
    qn_engine_free_programs(e);
    qn_tree_free(e->tree);
    if (e->ledger) qn_engine_free_states(e);
    qn_adapters_free(e->adapters);
    qn_layer_groups_free(&e->groups);
    qn_parameters_free(e->parameters);
    qn_parameters_free(e->card.parameters);
    qn_config_free(&e->config);
    qn_device_close(e->device);
    qn_device_close(e->card.device);
    qn_ledger_free(e->ledger);
    qn_buf_free(&e->notes);
    qn_free(e->fed);
    qn_free(e->parts);
    qn_free(e->ahead.sequences);
    qn_probes_end(&e->probes);
    qn_free(e);
}

const qn_model_config *qn_engine_config(const qn_engine *e)
{
    return &e->config;
}

const qn_engine_info *qn_engine_get_info(const qn_engine *e)
{
    return &e->info;
}

qn_ledger *qn_engine_ledger(const qn_engine *e)
{
    return e->ledger;
}

qn_ledger *qn_engine_device_ledger(const qn_engine *e)
{
    const qn_device *card = qn_engine_card(e);
    return card ? card->ledger : e->device->ledger;
}

const qn_logits_kernels *qn_engine_logits_kernels(const qn_engine *e)
{
    return e->logits_kernels;
}

qn_device *qn_engine_device(const qn_engine *e)
{
    return e->device;
}

qn_device *qn_engine_card(const qn_engine *e)
{
    return e->card.device ? e->card.device : qn_device_has_memory(e->device) ? e->device : NULL;
}

const qn_parameters *qn_engine_parameters(const qn_engine *e)
{
    return e->parameters;
}

qn_status qn_engine_wire(qn_engine *e, size_t limit_bytes, size_t *wired_bytes)
{
    if (e->device->ops->wire) return e->device->ops->wire(e->device, limit_bytes, wired_bytes);
    qn_status status = qn_wired_set(&e->wired, e->parameters, e->config.num_hidden_layers, limit_bytes);
    *wired_bytes = e->wired.size_bytes;
    return status;
}

/* ---- adapters ----------------------------------------------------------------------------------------- */

qn_adapters *qn_engine_adapters(const qn_engine *e)
{
    return e->adapters;
}

qn_status qn_engine_adapter_load(qn_engine *e, const char *name, const char *path, float scale, qn_buf *notes)
{
    int32_t id = 0;
    QN_TRY(qn_adapters_load(e->adapters, name, path, scale, notes, &id));
    qn_status status = qn_engine_renew_programs(e);
    if (status == QN_OK)
        qn_adapters_show(e->adapters, id, 0);
    else
        qn_adapters_drop(e->adapters, id);
    return status;
}

qn_status qn_engine_adapter_unload(qn_engine *e, const char *name)
{
    int32_t id = -1;
    QN_TRY(qn_adapters_hold(e->adapters, name, &id));
    qn_adapters_release(e->adapters, id);
    QN_TRY(qn_adapters_unload(e->adapters, name));
    if (e->tree && id >= 0) qn_tree_forget_adapter(e->tree, id);
    qn_engine_renew_programs(e); /* steps that nobody needs cost little: where memory is short they stay */
    return QN_OK;
}

/* ---- probes ------------------------------------------------------------------------------------------- */

qn_probes *qn_engine_probes(qn_engine *e)
{
    return &e->probes;
}

qn_status qn_engine_probe_add(qn_engine *e, uint32_t points, qn_probe_event_fn *fn, void *user,
                              int64_t *number)
{
    QN_TRY(qn_probes_add(&e->probes, points, fn, user, number));
    qn_engine_show_steps(e);
    return QN_OK;
}

qn_status qn_engine_probe_remove(qn_engine *e, int64_t number)
{
    QN_TRY(qn_probes_remove(&e->probes, number));
    qn_engine_show_steps(e);
    return QN_OK;
}

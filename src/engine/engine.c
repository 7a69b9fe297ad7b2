#include "engine/engine.h"

#include <stdio.h>
#include <string.h>

#include "array/program.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/random.h"
#include "engine/kept_ids.h"
#include "engine/sampler.h"
#include "engine/wired.h"
#include "model/forward.h"
#include "model/packing.h"

enum {
    DEFAULT_ROWS = 256,
    CONTEXT_MAX = 131072,
    CONTEXT_MIN = 32,       /* of those that are chosen for want of memory */
    LOGITS_BYTES = 8 << 20, /* of one block of logits, unless there are more sequences */
    LOGITS_ROWS = 32
};

/* Rows [row, row + n) of a chunk: tokens [first, first + n) of a feed; below 0 they are those that the
 * sequence was given before, computed anew. */
typedef struct {
    int64_t feed, first, row, n;
} chunk_part;

struct qn_sequence {
    qn_engine *engine;
    int64_t length;   /* tokens computed */
    int64_t n_given;  /* tokens given: more than length only where a step failed that computed some anew */
    int64_t expected; /* see qn_sequence_expect */
    int is_long;      /* it is turned by the frequencies of long sequences */
    qn_kept_ids kept; /* what was given, while it is short and may get long */
    int32_t adapter;  /* id; -1: none */
    qn_block_table tables[QN_LAYER_GROUPS_MAX];
    int32_t slot; /* of its recurrent state; -1: none yet */
    int is_lost;  /* a step failed that had begun to change the recurrent state */
};

struct qn_engine {
    qn_device *device;
    qn_ledger *ledger;
    qn_model_config config;
    qn_parameters *parameters;
    qn_adapters *adapters;
    qn_layer_groups groups;
    qn_state *states[QN_LAYER_GROUPS_MAX];
    qn_pages *pages[QN_LAYER_GROUPS_MAX];
    qn_state *recurrent;                     /* NULL: no layer has such state */
    qn_pages *slots;                         /* of it, one a sequence */
    int64_t table_size[QN_LAYER_GROUPS_MAX]; /* entries of a sequence's block table */
    qn_program *body, *head;
    int32_t *ids, *positions, *row_begin, *blocks[QN_LAYER_GROUPS_MAX], *slot_ids, *reset,
        *logit_rows;                           /* the programs' inputs */
    float *is_long;                            /* the same; NULL: none */
    int32_t *rope_positions[QN_ROPE_SECTIONS]; /* inputs, too; NULL: positions do */
    int32_t *row_adapters, *logit_adapters;    /* inputs, too; NULL: no step reads them */
    int64_t max_logit_rows, n_sequences;
    int64_t *fed;      /* [max_sequences] tokens of each feed computed so far, in one step */
    chunk_part *parts; /* [max_sequences] of the current chunk */
    uint64_t shakes;
    int64_t keep_positions; /* for tests, see qn_engine_options */
    size_t tables_bytes;    /* of pools and block tables, in the ledger */
    qn_wired wired;
    qn_probe_fn *probe;
    void *probe_user;
    qn_engine_info info;
    qn_buf notes;
};

/* ---- opening ------------------------------------------------------------------------------------------ */

/* Keys and values that one group keeps of a sequence: the context, or its narrower window, and one chunk. */
static int64_t kept_positions(const qn_engine *e, int group, int64_t context)
{
    int64_t window = e->groups.group[group].window;
    if (e->keep_positions) return e->keep_positions;
    return (window && window < context ? window : context) + e->info.max_rows;
}

static int64_t pages_for(int64_t positions)
{
    return (positions + QN_STATE_PAGE_TOKENS - 1) / QN_STATE_PAGE_TOKENS + 1;
}

static qn_state_spec spec_of(const qn_engine *e, int group, int64_t context)
{
    const qn_layer_group *g = &e->groups.group[group];
    return (qn_state_spec){.kind = QN_STATE_PAGES,
                           .n_layers = g->n_layers,
                           .n_units = pages_for(kept_positions(e, group, context)) * e->info.max_sequences,
                           .kv_heads = g->num_key_value_heads,
                           .head_dim = g->head_dim,
                           .v_dim = g->head_dim,
                           .dtype = e->info.kv_dtype};
}

/* Bytes of keys, values and recurrent state when all sequences are full. */
static double kv_bytes(const qn_engine *e, int64_t context)
{
    const qn_dtype type = e->info.kv_dtype;
    double total = (double)e->groups.n_recurrent * (double)e->groups.recurrent_floats * sizeof(float) *
                   (double)e->info.max_sequences,
           element = type == QN_DTYPE_F32    ? 4
                     : type == QN_DTYPE_Q8_0 ? 34.0 / 32
                                             : 2;
    for (int i = 0; i < e->groups.n; i++) {
        qn_state_spec s = spec_of(e, i, context);
        total += (double)s.n_units * (double)s.n_layers * (double)s.kv_heads *
                 (double)(s.head_dim + s.v_dim) * QN_STATE_PAGE_TOKENS * element;
    }
    return total;
}

/* Bytes that may still be used: under the limit, and in the machine (the cgroup's figure where it is
 * smaller). */
static double room_bytes(const qn_engine *e)
{
    double room = 1e18;
    size_t limit = qn_ledger_get_limit(e->ledger), held = qn_ledger_total(e->ledger);
    if (limit) room = limit > held ? (double)(limit - held) : 0;
    long long available = -1;
    FILE *f = fopen("/proc/meminfo", "r");
    char line[128];
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %lld kB", &available) == 1) break;
    if (f) fclose(f);
    if (available >= 0 && (double)available * 1024 < room) room = (double)available * 1024;
    long long max = -1, current = 0;
    if ((f = fopen("/sys/fs/cgroup/memory.max", "r"))) {
        if (fscanf(f, "%lld", &max) != 1) max = -1;
        fclose(f);
    }
    if (max >= 0 && (f = fopen("/sys/fs/cgroup/memory.current", "r"))) {
        if (fscanf(f, "%lld", &current) == 1 && (double)(max - current) < room)
            room = (double)(max - current);
        fclose(f);
    }
    return room;
}

/* What else a full load of sequences needs: samplers, prompts, a little for each. */
static double run_bytes(const qn_engine *e, int64_t context)
{
    enum { SMALL_THINGS = 64 << 10 };
    int64_t kept = e->config.rope_short_positions < context ? e->config.rope_short_positions : context;
    return (double)e->info.max_sequences * ((double)qn_sampler_bytes(e->config.vocab_size) +
                                            4 * (double)context + 8 * (double)kept + SMALL_THINGS);
}

static double context_bytes(const qn_engine *e, int64_t context)
{
    return kv_bytes(e, context) + run_bytes(e, context);
}

/* wish: what was asked for; 0: context is the smallest that is chosen without being asked. */
static qn_status fail_context(const qn_engine *e, int64_t wish, int64_t context, double room)
{
    if (wish <= 0)
        return qn_fail(QN_E_NOMEM,
                       "too little memory: even a context of %lld tokens needs %.1f MiB for keys, values and "
                       "sampling, %.1f MiB are left",
                       (long long)context, context_bytes(e, context) / 1048576, room / 1048576);
    return qn_fail(QN_E_NOMEM,
                   "context size %lld needs %.1f MiB for keys, values and sampling, %.1f MiB are left",
                   (long long)context, context_bytes(e, context) / 1048576, room / 1048576);
}

/* The first choice; scratch is not known yet. */
static qn_status choose_context(qn_engine *e, int64_t wish)
{
    int64_t own = e->config.max_position_embeddings, context = wish;
    double room = room_bytes(e);
    if (wish > 0) {
        if (own > 0 && wish > own)
            qn_buf_printf(&e->notes, "context size %lld is above the model's own %lld: quality may suffer\n",
                          (long long)wish, (long long)own);
        if (context_bytes(e, wish) > room) return fail_context(e, wish, wish, room);
    } else {
        context = own > 0 && own < CONTEXT_MAX ? own : CONTEXT_MAX;
        while (context > CONTEXT_MIN && context_bytes(e, context) > room * 0.9) context = context * 7 / 8;
    }
    e->info.context_size = context;
    e->info.model_context_size = own;
    return e->notes.status;
}

static qn_status make_states(qn_engine *e)
{
    const qn_device_ops *ops = e->device->ops;
    size_t tables_bytes = 0;
    for (int i = 0; i < e->groups.n; i++) {
        qn_state_spec spec = spec_of(e, i, e->info.context_size);
        QN_TRY(ops->state_new(e->device, &spec, &e->states[i]));
        QN_TRY(qn_pages_new(e->states[i], &e->pages[i]));
        e->table_size[i] = spec.n_units / e->info.max_sequences + QN_BLOCK_BASE_STEP;
        tables_bytes += qn_pages_bytes(e->pages[i]);
        tables_bytes += (size_t)(e->table_size[i] * e->info.max_sequences) * sizeof(int32_t);
    }
    if (e->groups.n_recurrent) {
        qn_state_spec spec = {.kind = QN_STATE_SLOTS,
                              .n_layers = e->groups.n_recurrent,
                              .n_units = e->info.max_sequences,
                              .slot_floats = e->groups.recurrent_floats};
        QN_TRY(ops->state_new(e->device, &spec, &e->recurrent));
        QN_TRY(qn_pages_new(e->recurrent, &e->slots));
        tables_bytes += qn_pages_bytes(e->slots);
    }
    QN_TRY(qn_ledger_reserve(e->ledger, QN_LEDGER_OTHER, tables_bytes));
    e->tables_bytes = tables_bytes;
    return QN_OK;
}

static void free_states(qn_engine *e)
{
    for (int i = 0; i < QN_LAYER_GROUPS_MAX; i++) {
        qn_pages_free(e->pages[i]);
        if (e->states[i]) e->device->ops->state_free(e->states[i]);
        e->pages[i] = NULL;
        e->states[i] = NULL;
    }
    qn_pages_free(e->slots);
    if (e->recurrent) e->device->ops->state_free(e->recurrent);
    e->slots = NULL;
    e->recurrent = NULL;
    qn_ledger_release(e->ledger, QN_LEDGER_OTHER, e->tables_bytes);
    e->tables_bytes = 0;
}

static void free_programs(qn_engine *e)
{
    qn_program_free(e->body);
    qn_program_free(e->head);
    e->body = e->head = NULL;
}

static qn_shape vector(qn_symbol symbol, int64_t extra)
{
    qn_shape s = qn_shape_sym(symbol, 0, NULL);
    s.dim[0] = extra;
    return s;
}

/* Where the programs' inputs lie, in the order in which make_programs makes them. */
static void bind_inputs(qn_engine *e)
{
    int n = 3;
    e->ids = qn_program_input(e->body, 0);
    e->positions = qn_program_input(e->body, 1);
    e->row_begin = qn_program_input(e->body, 2);
    for (int i = 0; i < e->groups.n; i++) e->blocks[i] = qn_program_input(e->body, n++);
    if (e->recurrent) {
        e->slot_ids = qn_program_input(e->body, n++);
        e->reset = qn_program_input(e->body, n++);
    }
    if (e->config.rope_short_positions) e->is_long = qn_program_input(e->body, n++);
    for (int i = 0; e->config.rope[0].mrope_section[0] && i < QN_ROPE_SECTIONS; i++)
        e->rope_positions[i] = qn_program_input(e->body, n++);
    e->row_adapters = qn_program_input(e->body, n++);
    e->logit_rows = qn_program_input(e->head, 0);
    e->logit_adapters = qn_program_input(e->head, 1);
    qn_engine_set_probe(e, e->probe, e->probe_user);
}

static qn_status make_programs(qn_engine *e)
{
    qn_scope *s = qn_scope_new(e->device), *h = qn_scope_new(e->device);
    qn_status status = QN_E_NOMEM;
    if (!s || !h) goto out;
    qn_forward f = {.config = &e->config,
                    .parameters = e->parameters,
                    .groups = &e->groups,
                    .adapters = e->adapters,
                    .context_size = e->info.context_size};
    f.ids = qn_input(s, QN_DTYPE_I32, vector(QN_SYM_R, 0));
    f.positions = qn_input(s, QN_DTYPE_I32, vector(QN_SYM_R, 0));
    f.row_begin = qn_input(s, QN_DTYPE_I32, vector(QN_SYM_S, 1));
    for (int i = 0; i < e->groups.n; i++) {
        int64_t width = 1 + e->table_size[i];
        f.state[i] = e->states[i];
        f.blocks[i] = qn_input(s, QN_DTYPE_I32, qn_shape_sym(QN_SYM_S, 1, &width));
    }
    f.recurrent = e->recurrent;
    if (e->recurrent) {
        f.slots = qn_input(s, QN_DTYPE_I32, vector(QN_SYM_S, 0));
        f.reset = qn_input(s, QN_DTYPE_I32, vector(QN_SYM_S, 0));
    }
    if (e->config.rope_short_positions)
        f.is_long = qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 1, (int64_t[]){1}));
    for (int i = 0; e->config.rope[0].mrope_section[0] && i < QN_ROPE_SECTIONS; i++)
        f.rope_positions[i] = qn_input(s, QN_DTYPE_I32, vector(QN_SYM_R, 0));
    f.row_adapters = qn_input(s, QN_DTYPE_I32, vector(QN_SYM_R, 0));
    qn_adapters_begin_programs(e->adapters);
    qn_program_options o = {.name = "body",
                            .max = {{e->info.max_rows, e->info.max_sequences, 0}},
                            .precision = e->info.precision};
    qn_array *hidden = qn_forward_body(s, &f);
    if ((status = qn_program_new(s, &o, 1, &hidden, &e->body)) != QN_OK) goto out;

    e->max_logit_rows = LOGITS_BYTES / (4 * e->config.vocab_size);
    if (e->max_logit_rows > LOGITS_ROWS) e->max_logit_rows = LOGITS_ROWS;
    if (e->max_logit_rows < e->info.max_sequences) e->max_logit_rows = e->info.max_sequences;
    qn_shape hidden_shape = qn_shape_make(2, (int64_t[]){e->info.max_rows, e->config.hidden_size});
    qn_array *from = qn_from_buffer(h, QN_DTYPE_F32, hidden_shape, qn_program_output_buffer(e->body, 0));
    qn_array *rows = qn_input(h, QN_DTYPE_I32, vector(QN_SYM_L, 0));
    f.row_adapters = qn_input(h, QN_DTYPE_I32, vector(QN_SYM_L, 0));
    qn_array *logits = qn_forward_head(h, &f, from, rows);
    qn_program_options ho = {
        .name = "head", .max = {{0, 0, e->max_logit_rows}}, .precision = e->info.precision};
    if ((status = qn_program_new(h, &ho, 1, &logits, &e->head)) != QN_OK) goto out;
    if ((status = qn_adapters_check_programs(e->adapters)) != QN_OK) goto out;
    bind_inputs(e);
out:
    qn_scope_free(s);
    qn_scope_free(h);
    return status;
}

/* Chooses the context and makes pages and programs for it. The programs' scratch is known when they are made;
 * a context that was not asked for then gives way until keys and values of full sequences fit beside it. */
static qn_status fit_context(qn_engine *e, int64_t wish)
{
    QN_TRY(choose_context(e, wish));
    for (;;) {
        QN_TRY(make_states(e));
        QN_TRY(make_programs(e));
        int64_t context = e->info.context_size;
        double room = room_bytes(e);
        if (context_bytes(e, context) <= room) break;
        if (wish > 0 || context <= CONTEXT_MIN) return fail_context(e, wish, context, room);
        free_programs(e);
        free_states(e);
        while (context > CONTEXT_MIN && context_bytes(e, context) > room) context = context * 7 / 8;
        e->info.context_size = context;
    }
    int64_t own = e->info.model_context_size, full = own > 0 && own < CONTEXT_MAX ? own : CONTEXT_MAX;
    if (wish <= 0 && e->info.context_size < full)
        qn_buf_printf(&e->notes, "context size is %lld, not %lld: memory allows no more\n",
                      (long long)e->info.context_size, (long long)full);
    return e->notes.status;
}

static void reclaim_pages(void *user, size_t size_bytes)
{
    qn_engine *e = user;
    for (int i = 0; i < e->groups.n; i++) {
        size_t given = qn_pages_reclaim(e->pages[i], size_bytes);
        if (given >= size_bytes) return;
        size_bytes -= given;
    }
    if (e->slots) qn_pages_reclaim(e->slots, size_bytes);
}

static qn_status load_weights(qn_engine *e, qn_source *source, const char *packed_path)
{
    qn_weights *weights;
    qn_packed *packed = NULL;
    QN_TRY(qn_weights_open(source, &e->config, &weights));
    qn_status status = qn_packing_find(source, e->device, packed_path, &packed, &e->notes);
    if (status == QN_OK) status = qn_parameters_load(e->device, weights, &e->config, packed, &e->parameters);
    if (status == QN_OK && packed) {
        e->info.packed = qn_packed_path(packed);
        e->info.mapped_bytes = qn_ledger_held(e->ledger, QN_LEDGER_WEIGHTS); /* matrices alone */
    } else if (packed) {
        qn_packed_close(packed);
        if (status == QN_E_FORMAT) { /* what it says of itself is right, but it lacks a tensor */
            qn_packing_note(&e->notes);
            status = qn_parameters_load(e->device, weights, &e->config, NULL, &e->parameters);
        }
    }
    qn_weights_close(weights);
    return status;
}

/* fast_kv: what the device multiplies fastest. It serves `fast` where int8 activations cost more of the
 * quality than 8 bits of mantissa in keys and values do: with weights of 16 bits or more (bits) they would be
 * the largest error. */
static qn_dtype kv_dtype_of(const qn_engine_options *o, qn_dtype fast_kv, int bits)
{
    static const qn_dtype types[] = {[QN_KV_F32] = QN_DTYPE_F32,
                                     [QN_KV_F16] = QN_DTYPE_F16,
                                     [QN_KV_BF16] = QN_DTYPE_BF16,
                                     [QN_KV_Q8_0] = QN_DTYPE_Q8_0};
    if (o->kv_type != QN_KV_AUTO) return types[o->kv_type];
    if (o->precision == QN_PRECISION_FAST && bits < 16) return fast_kv;
    return o->precision == QN_PRECISION_EXACT ? QN_DTYPE_F32 : QN_DTYPE_F16;
}

static qn_status load(qn_engine *e, qn_source *source, const qn_engine_options *o)
{
    int64_t start = qn_clock_ns();
    QN_TRY(qn_ledger_reserve(e->ledger, QN_LEDGER_OTHER, o->held_bytes));
    qn_device_options d = {.n_threads = o->n_threads, .ledger = e->ledger};
    QN_TRY(qn_device_open(o->device ? o->device : "cpu", &d, &e->device));
    QN_TRY(load_weights(e, source, o->packed));
    int64_t loaded = qn_clock_ns();
    e->info.weights_ms = (double)(loaded - start) * 1e-6;
    e->info.precision = o->precision;
    e->keep_positions = o->keep_positions;
    int32_t adapter = -1;
    QN_TRY(qn_adapters_new(e->device, &e->config, &e->adapters));
    if (o->adapter_path)
        QN_TRY(qn_adapters_load(e->adapters, o->adapter_name ? o->adapter_name : "default", o->adapter_path,
                                o->adapter_scale != 0 ? o->adapter_scale : 1, &e->notes, &adapter));
    e->info.quant_bits = qn_parameters_bits(e->parameters);
    e->info.kv_dtype = kv_dtype_of(o, e->device->ops->describe(e->device).fast_kv, e->info.quant_bits);
    e->info.max_sequences = o->max_sequences > 0 ? o->max_sequences : 1;
    e->info.max_rows = o->max_rows > 0 ? o->max_rows : DEFAULT_ROWS;
    if (e->info.max_rows < e->info.max_sequences) e->info.max_rows = e->info.max_sequences;
    e->info.num_parameters = qn_parameters_count(e->parameters);
    QN_TRY(qn_layer_groups_make(&e->config, &e->groups));
    QN_TRY(fit_context(e, o->context_size));
    if (adapter >= 0) qn_adapters_show(e->adapters, adapter, 1);
    qn_ledger_set_reclaim(e->ledger, reclaim_pages, e);
    e->fed = qn_calloc((size_t)e->info.max_sequences, sizeof *e->fed);
    e->parts = qn_calloc((size_t)e->info.max_sequences, sizeof *e->parts);
    if (!e->fed || !e->parts) return QN_E_NOMEM;
    qn_device_description about = e->device->ops->describe(e->device);
    e->info.device = e->device->ops->name;
    e->info.cpu_set = about.set;
    e->info.n_threads = about.n_threads;
    qn_buf_append(&e->notes, "", 0);
    e->info.notes = e->notes.data;
    e->info.programs_ms = (double)(qn_clock_ns() - loaded) * 1e-6;
    return e->notes.status;
}

qn_status qn_engine_open(qn_source *source, qn_model_config *config, const qn_engine_options *options,
                         qn_engine **out)
{
    qn_engine *e = qn_calloc(1, sizeof *e);
    if (!e) return QN_E_NOMEM;
    e->config = *config; /* borrowed until all is well */
    qn_status status = QN_E_NOMEM;
    e->info.packed = "";
    e->ledger = qn_ledger_new();
    if (e->ledger) {
        qn_ledger_set_limit(e->ledger, options->memory_limit_bytes);
        status = load(e, source, options);
    }
    if (status != QN_OK) {
        e->config = (qn_model_config){0};
        qn_engine_close(e);
        return status;
    }
    *config = (qn_model_config){0};
    *out = e;
    return QN_OK;
}

void qn_engine_close(qn_engine *e)
{
    if (!e) return;
    qn_wired_end(&e->wired);
    free_programs(e);
    if (e->ledger) free_states(e);
    qn_adapters_free(e->adapters);
    qn_layer_groups_free(&e->groups);
    qn_parameters_free(e->parameters);
    qn_config_free(&e->config);
    qn_device_close(e->device);
    qn_ledger_free(e->ledger);
    qn_buf_free(&e->notes);
    qn_free(e->fed);
    qn_free(e->parts);
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

qn_status qn_engine_wire(qn_engine *e, size_t limit_bytes, size_t *wired_bytes)
{
    qn_status status = qn_wired_set(&e->wired, e->parameters, e->config.num_hidden_layers, limit_bytes);
    *wired_bytes = e->wired.size_bytes;
    return status;
}

/* ---- adapters ----------------------------------------------------------------------------------------- */

qn_adapters *qn_engine_adapters(const qn_engine *e)
{
    return e->adapters;
}

/* Programs that have the steps of what is loaded. When they cannot be made, the old ones stay in use. */
static qn_status renew_programs(qn_engine *e)
{
    qn_program *body = e->body, *head = e->head;
    if (!qn_adapters_want_programs(e->adapters)) return QN_OK;
    e->body = e->head = NULL;
    qn_status status = make_programs(e);
    if (status == QN_OK) {
        qn_program_free(body);
        qn_program_free(head);
        return QN_OK;
    }
    free_programs(e);
    e->body = body;
    e->head = head;
    bind_inputs(e);
    return status;
}

qn_status qn_engine_adapter_load(qn_engine *e, const char *name, const char *path, float scale, qn_buf *notes)
{
    int32_t id = 0;
    QN_TRY(qn_adapters_load(e->adapters, name, path, scale, notes, &id));
    qn_status status = renew_programs(e);
    if (status == QN_OK)
        qn_adapters_show(e->adapters, id, 0);
    else
        qn_adapters_drop(e->adapters, id);
    return status;
}

qn_status qn_engine_adapter_unload(qn_engine *e, const char *name)
{
    QN_TRY(qn_adapters_unload(e->adapters, name));
    renew_programs(e); /* steps that nobody needs cost little: where memory is short they stay */
    return QN_OK;
}

void qn_sequence_set_adapter(qn_sequence *s, int32_t id)
{
    s->adapter = id;
}

void qn_engine_set_probe(qn_engine *e, qn_probe_fn *probe, void *user)
{
    e->probe = probe;
    e->probe_user = user;
    qn_program_set_probe(e->body, probe, user);
    qn_program_set_probe(e->head, probe, user);
}

/* ---- sequences ---------------------------------------------------------------------------------------- */

qn_status qn_sequence_new(qn_engine *e, qn_sequence **out)
{
    if (e->n_sequences == e->info.max_sequences)
        return qn_fail(QN_E_FULL, "%lld sequences are open, which is all this model was opened for",
                       (long long)e->n_sequences);
    qn_sequence *s = qn_calloc(1, sizeof *s);
    if (!s) return QN_E_NOMEM;
    s->engine = e;
    s->slot = -1;
    s->adapter = -1;
    e->n_sequences++;
    for (int i = 0; i < e->groups.n; i++) {
        qn_status status = qn_block_table_init(&s->tables[i], e->table_size[i]);
        if (status != QN_OK) {
            qn_sequence_free(s);
            return status;
        }
    }
    *out = s;
    return QN_OK;
}

void qn_sequence_free(qn_sequence *s)
{
    if (!s) return;
    for (int i = 0; i < s->engine->groups.n; i++) qn_block_table_end(&s->tables[i], s->engine->pages[i]);
    if (s->slot >= 0) qn_pages_release(s->engine->slots, s->slot);
    qn_kept_ids_free(&s->kept, s->engine->ledger);
    s->engine->n_sequences--;
    qn_free(s);
}

qn_status qn_sequence_reserve(qn_sequence *s, int64_t n_ids)
{
    qn_engine *e = s->engine;
    if (n_ids > e->info.max_rows) n_ids = e->info.max_rows;
    if (e->slots && s->slot < 0) {
        int32_t slot;
        QN_TRY(qn_pages_reserve(e->slots, 1, &slot));
        s->slot = slot;
    }
    for (int i = 0; i < e->groups.n; i++)
        QN_TRY(qn_block_table_extend(&s->tables[i], e->pages[i], s->length + n_ids));
    return QN_OK;
}

void qn_sequence_expect(qn_sequence *s, int64_t n_ids)
{
    s->expected = n_ids;
}

int64_t qn_sequence_length(const qn_sequence *s)
{
    return s->n_given;
}

/* ---- steps -------------------------------------------------------------------------------------------- */

static qn_status check_feeds(const qn_engine *e, int64_t n_feeds, const qn_feed *feeds)
{
    if (n_feeds > e->info.max_sequences)
        return qn_fail(QN_E_ARG, "%lld sequences in one step, the model was opened for %lld",
                       (long long)n_feeds, (long long)e->info.max_sequences);
    for (int64_t i = 0; i < n_feeds; i++) {
        if (feeds[i].sequence->is_lost)
            return qn_fail(QN_E_DEVICE,
                           "the recurrent state of the sequence was lost at position %lld, where "
                           "a step failed: it can be computed anew, but not go on",
                           (long long)qn_sequence_length(feeds[i].sequence));
        for (int64_t j = 0; j < feeds[i].n_ids; j++)
            if (feeds[i].ids[j] < 0 || feeds[i].ids[j] >= e->config.vocab_size)
                return qn_fail(QN_E_ARG, "token id %d at position %lld is outside the vocabulary of %lld",
                               feeds[i].ids[j], (long long)(qn_sequence_length(feeds[i].sequence) + j),
                               (long long)e->config.vocab_size);
    }
    return QN_OK;
}

static int64_t chunk_limit(qn_engine *e)
{
#ifdef QN_SHAKE
    return 1 + (int64_t)(qn_random_bits(3, e->shakes++) % (uint64_t)e->info.max_rows);
#else
    return e->info.max_rows;
#endif
}

/* Where the feed's tokens make a short sequence long, it begins anew. */
static void lengthen(qn_engine *e, const qn_feed *feed)
{
    qn_sequence *s = feed->sequence;
    int64_t limit = e->config.rope_short_positions, end = s->n_given + feed->n_ids;
    if (!limit || s->is_long || (end <= limit && s->expected <= limit)) return;
    for (int i = 0; i < e->groups.n; i++) qn_block_table_clear(&s->tables[i], e->pages[i]);
    s->length = 0;
    s->is_long = 1;
}

/* The next tokens of one feed become rows [rows, rows + n) and sequence number `at` of the chunk. */
static qn_status add_rows(qn_engine *e, const qn_feed *feed, int64_t first, int64_t n, int64_t rows,
                          int64_t at)
{
    qn_sequence *s = feed->sequence;
    QN_TRY(qn_sequence_reserve(s, n));
    for (int i = 0; i < e->groups.n; i++) {
        const qn_block_table *t = &s->tables[i];
        int32_t *row = e->blocks[i] + at * (1 + e->table_size[i]);
        row[0] = (int32_t)t->base;
        memcpy(row + 1, t->ids, (size_t)t->n * sizeof *row);
    }
    if (e->config.rope_short_positions && !s->is_long)
        QN_TRY(qn_kept_ids_put(&s->kept, e->ledger, s->length, n, feed->ids + first));
    for (int64_t j = 0; j < n; j++) {
        e->ids[rows + j] = first + j < 0 ? s->kept.ids[s->length + j] : feed->ids[first + j];
        e->positions[rows + j] = (int32_t)(s->length + j);
        for (int k = 0; k < QN_ROPE_SECTIONS && e->rope_positions[k]; k++)
            e->rope_positions[k][rows + j] = (int32_t)(s->length + j);
        if (e->is_long) e->is_long[rows + j] = s->is_long ? 1.0f : 0.0f;
        if (e->row_adapters) e->row_adapters[rows + j] = s->adapter;
    }
    if (e->slots) {
        e->slot_ids[at] = s->slot;
        e->reset[at] = s->length == 0;
    }
    e->row_begin[at] = (int32_t)rows;
    e->row_begin[at + 1] = (int32_t)(rows + n);
    return QN_OK;
}

/* Pages go when no later row can see them. */
static void commit(qn_engine *e, qn_sequence *s, int64_t n)
{
    s->length += n;
    if (s->n_given < s->length) s->n_given = s->length;
    for (int i = 0; !e->keep_positions && i < e->groups.n; i++) {
        int64_t window = e->groups.group[i].window;
        if (!window || window > e->info.context_size) window = e->info.context_size;
        if (s->length - window + 1 > 0)
            qn_block_table_release_below(&s->tables[i], e->pages[i], s->length - window + 1);
    }
}

/* Recurrent state is changed in place, and the rows of a step that failed may have changed some of it: what
 * they belong to must not go on from there. A sequence that has no tokens yet begins at zero anyway. */
static void lose_states(const qn_feed *feeds, int64_t n_parts, const chunk_part *parts)
{
    for (int64_t i = 0; i < n_parts; i++) {
        qn_sequence *s = feeds[parts[i].feed].sequence;
        s->is_lost = s->slot >= 0 && s->length > 0;
    }
}

/* A run of rows of one feed whose logits are wanted. */
typedef struct {
    int64_t feed, first, n;
} logit_run;

static qn_status flush_logits(qn_engine *e, logit_run *runs, int64_t *n_runs, int64_t *n_rows,
                              qn_step_logits_fn *logits, void *user)
{
    if (*n_rows == 0) return QN_OK;
    qn_sizes sizes = {{0, 0, *n_rows}};
    QN_TRY(qn_program_run(e->head, &sizes));
    float *out = (float *)(uintptr_t)qn_program_output(e->head, 0);
    for (int64_t i = 0; i < *n_runs; i++) {
        QN_TRY(logits(user, runs[i].feed, runs[i].first, runs[i].n, out));
        out += runs[i].n * e->config.vocab_size;
    }
    *n_runs = *n_rows = 0;
    return QN_OK;
}

static qn_status give_logits(qn_engine *e, const qn_feed *feeds, int64_t n_parts, const chunk_part *parts,
                             qn_step_logits_fn *logits, void *user)
{
    logit_run runs[LOGITS_ROWS];
    int64_t n_runs = 0, n_rows = 0;
    for (int64_t i = 0; i < n_parts; i++) {
        const chunk_part *part = &parts[i];
        qn_logits_wish wish = feeds[part->feed].logits;
        int64_t from = wish != QN_LOGITS_ALL ? part->n : part->first < 0 ? -part->first : 0;
        if (wish == QN_LOGITS_LAST && part->first + part->n == feeds[part->feed].n_ids) from = part->n - 1;
        while (from < part->n) {
            int64_t n =
                part->n - from < e->max_logit_rows - n_rows ? part->n - from : e->max_logit_rows - n_rows;
            runs[n_runs++] = (logit_run){part->feed, part->first + from, n};
            for (int64_t j = 0; j < n; j++, n_rows++) {
                e->logit_rows[n_rows] = (int32_t)(part->row + from + j);
                if (e->logit_adapters) e->logit_adapters[n_rows] = feeds[part->feed].sequence->adapter;
            }
            from += n;
            if (n_rows == e->max_logit_rows || n_runs == LOGITS_ROWS)
                QN_TRY(flush_logits(e, runs, &n_runs, &n_rows, logits, user));
        }
    }
    return flush_logits(e, runs, &n_runs, &n_rows, logits, user);
}

qn_status qn_engine_step(qn_engine *e, int64_t n_feeds, const qn_feed *feeds, qn_step_logits_fn *logits,
                         qn_step_stop_fn *stop, void *user)
{
    QN_TRY(check_feeds(e, n_feeds, feeds));
    for (int64_t i = 0; i < n_feeds; i++) {
        lengthen(e, &feeds[i]);
        e->fed[i] = feeds[i].sequence->length - feeds[i].sequence->n_given;
    }
    for (;;) {
        int64_t rows = 0, n_parts = 0, limit = chunk_limit(e);
        for (int64_t i = 0; i < n_feeds && rows < limit; i++) {
            int64_t n = feeds[i].n_ids - e->fed[i];
            if (n > limit - rows) n = limit - rows;
            if (n <= 0) continue;
            QN_TRY(add_rows(e, &feeds[i], e->fed[i], n, rows, n_parts));
            e->parts[n_parts++] = (chunk_part){i, e->fed[i], rows, n};
            rows += n;
        }
        if (rows == 0) return QN_OK;
        if (stop && stop(user)) return qn_fail(QN_E_CANCELLED, "cancelled");
        qn_sizes sizes = {{rows, n_parts, 0}};
        qn_status status = qn_program_run(e->body, &sizes);
        if (status != QN_OK) {
            lose_states(feeds, n_parts, e->parts);
            return status;
        }
        for (int64_t i = 0; i < n_parts; i++) {
            e->fed[e->parts[i].feed] += e->parts[i].n;
            commit(e, feeds[e->parts[i].feed].sequence, e->parts[i].n);
        }
        QN_TRY(give_logits(e, feeds, n_parts, e->parts, logits, user));
    }
}

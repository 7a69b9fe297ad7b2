/* How much of each sequence an engine keeps: the context that was asked for, or what memory allows. */
#include "engine/machine/engine_parts.h"
#include "engine/sample/sampler.h"

enum {
#ifdef QN_SHAKE
    SPARE_UNITS_MAX = 512, /* few enough for all to be poisoned */
#else
    SPARE_UNITS_MAX = 4096,
#endif
    CONTEXT_MAX = 131072,
    CONTEXT_MIN = 32 /* of those that are chosen for want of memory */
};

/* Keys and values that one group keeps of a sequence: the context, or its narrower window, and one chunk. */
static int64_t kept_positions(const qn_engine *e, int group, int64_t context)
{
    int64_t window = e->groups.group[group].window;
    if (e->keep_positions) return e->keep_positions;
    return (window && window < context ? window : context) + e->info.max_rows;
}

static int64_t pages_for(int64_t positions)
{
    return (positions + QN_PAGE_TOKENS - 1) / QN_PAGE_TOKENS + 1;
}

/* n_units: of one full sequence. */
static qn_state_spec spec_of(const qn_engine *e, int group, int64_t context)
{
    const qn_layer_group *g = &e->groups.group[group];
    return (qn_state_spec){.kind = QN_STATE_PAGES,
                           .n_layers = g->n_layers,
                           .n_units = pages_for(kept_positions(e, group, context)),
                           .kv_heads = g->num_key_value_heads,
                           .head_dim = g->head_dim,
                           .v_dim = g->v_head_dim,
                           .v_in_k = g->v_in_k,
                           .dtype = e->info.kv_dtype};
}

static double page_bytes(const qn_state_spec *s)
{
    double element = s->dtype == QN_DTYPE_F32    ? 4
                     : s->dtype == QN_DTYPE_Q8_0 ? 34.0 / 32
                     : s->dtype == QN_DTYPE_Q4_0 ? 18.0 / 32
                                                 : 2;
    return (double)s->n_layers * (double)s->kv_heads * (double)(s->head_dim + (s->v_in_k ? 0 : s->v_dim)) *
           QN_PAGE_TOKENS * element;
}

static double slot_bytes(const qn_engine *e)
{
    return (double)e->groups.n_recurrent * (double)e->groups.recurrent_floats * sizeof(float);
}

/* Other sequences share the pages: one
 * that gets none waits, and goes on with the same bits. */
double qn_engine_kv_bytes(const qn_engine *e, int64_t context)
{
    double total = slot_bytes(e) * (double)e->info.max_sequences;
    for (int i = 0; i < e->groups.n; i++) {
        qn_state_spec s = spec_of(e, i, context);
        total += (double)s.n_units * page_bytes(&s);
    }
    return total;
}

/* Units beside those of full sequences, for prefixes that are kept: as many as memory may hold. What is never
 * used is address space alone. */
static int64_t spare_units(double room, double unit_bytes)
{
    double n = room / unit_bytes;
    return n < SPARE_UNITS_MAX ? (int64_t)n : SPARE_UNITS_MAX;
}

/* Bytes that may still be used: under the limit, and of those that are free. */
static double room_under(const qn_ledger *ledger, size_t free_bytes)
{
    const size_t limit = qn_ledger_get_limit(ledger), held = qn_ledger_total(ledger);
    const double room = !limit ? 1e18 : limit > held ? (double)(limit - held) : 0;
    return (double)free_bytes < room ? (double)free_bytes : room;
}

static double host_room(const qn_engine *e)
{
    qn_device_info machine;
    const int is_known = qn_device_get_info(0, &machine) == QN_OK && machine.memory_bytes;
    return room_under(e->ledger, is_known ? machine.available_bytes : SIZE_MAX);
}

double qn_engine_device_room(const qn_engine *e)
{
    qn_device *d = e->device;
    return qn_device_has_memory(d) ? room_under(d->ledger, d->ops->free_bytes(d)) : host_room(e);
}

/* What else a full load of sequences needs: samplers, prompts, a little for each. */
static double run_bytes(const qn_engine *e, int64_t context)
{
    enum { SMALL_THINGS = 64 << 10 };
    int64_t kept = e->config.rope_short_positions < context ? e->config.rope_short_positions : context;
    return (double)e->info.max_sequences * ((double)qn_sampler_bytes(e->config.vocab_size) +
                                            4 * (double)context + 8 * (double)kept + SMALL_THINGS);
}

/* Of the memory that the device computes in. */
static double context_bytes(const qn_engine *e, int64_t context)
{
    return qn_engine_kv_bytes(e, context) + (qn_device_has_memory(e->device) ? 0 : run_bytes(e, context));
}

/* wish: what was asked for; 0: context is the smallest that is chosen without being asked. */
static qn_status fail_context(const qn_engine *e, int64_t wish, int64_t context, double room)
{
    if (qn_device_has_memory(e->device))
        return qn_fail(
            QN_E_NOMEM,
            "device %s: a context of %lld tokens needs %.2f MiB of the card's memory for keys and "
            "values in %s, and %.2f MiB are left beside weights and programs. A smaller context or "
            "keys and values of fewer bits need less",
            e->device->ops->name, (long long)context, context_bytes(e, context) / 1048576,
            qn_dtype_name(e->info.kv_dtype), room / 1048576);
    if (wish <= 0)
        return qn_fail(QN_E_NOMEM,
                       "too little memory: even a context of %lld tokens needs %.2f MiB for keys, values and "
                       "sampling, %.2f MiB are left",
                       (long long)context, context_bytes(e, context) / 1048576, room / 1048576);
    return qn_fail(QN_E_NOMEM,
                   "context size %lld needs %.2f MiB for keys, values and sampling, %.2f MiB are left",
                   (long long)context, context_bytes(e, context) / 1048576, room / 1048576);
}

int64_t qn_engine_shortest_context(void)
{
    return CONTEXT_MIN;
}

/* In whole pages. */
int64_t qn_engine_tokens_that_fit(const qn_engine *e, int64_t context, double room)
{
    while (context > CONTEXT_MIN && context_bytes(e, context) > room) {
        context = (context - 1) / QN_PAGE_TOKENS * QN_PAGE_TOKENS;
        if (context < CONTEXT_MIN) context = CONTEXT_MIN;
    }
    return context;
}

/* The first choice; scratch is not known yet. */
static qn_status choose_context(qn_engine *e, int64_t wish)
{
    int64_t own = e->config.max_position_embeddings, context = wish;
    const int64_t most = wish > 0 ? wish : own > 0 && own < CONTEXT_MAX ? own : CONTEXT_MAX;
    double room = qn_engine_device_room(e);
    /* No step has more rows than all sequences have tokens. */
    if (e->info.max_rows > most * e->info.max_sequences)
        e->info.max_rows = (int32_t)(most * e->info.max_sequences);
    if (wish > 0) {
        if (own > 0 && wish > own)
            qn_buf_printf(&e->notes, "context size %lld is above the model's own %lld: quality may suffer\n",
                          (long long)wish, (long long)own);
        if (context_bytes(e, wish) > room) return fail_context(e, wish, wish, room);
    } else {
        context = qn_engine_tokens_that_fit(e, own > 0 && own < CONTEXT_MAX ? own : CONTEXT_MAX, room * 0.9);
    }
    e->info.context_size = context;
    e->info.model_context_size = own;
    if (qn_device_has_memory(e->device) && run_bytes(e, context) > (room = host_room(e)))
        return qn_fail(QN_E_NOMEM,
                       "sampling of %lld tokens needs %.2f MiB of the host's memory, %.2f MiB are left",
                       (long long)context, run_bytes(e, context) / 1048576, room / 1048576);
    return e->notes.status;
}

static qn_status make_states(qn_engine *e)
{
    const qn_device_ops *ops = e->device->ops;
    size_t tables_bytes = 0;
    double room = qn_engine_device_room(e);
    for (int i = 0; i < e->groups.n; i++) {
        qn_state_spec spec = spec_of(e, i, e->info.context_size);
        e->table_size[i] = spec.n_units + QN_BLOCK_BASE_STEP;
        spec.n_units = spec.n_units * e->info.max_sequences + spare_units(room, page_bytes(&spec));
        QN_TRY(ops->state_new(e->device, &spec, &e->states[i]));
        QN_TRY(qn_pages_new(e->states[i], &e->pages[i]));
        tables_bytes += qn_pages_bytes(e->pages[i]);
        tables_bytes += (size_t)(e->table_size[i] * e->info.max_sequences) * sizeof(int32_t);
    }
    if (e->groups.n_recurrent) {
        qn_state_spec spec = {.kind = QN_STATE_SLOTS,
                              .n_layers = e->groups.n_recurrent,
                              .n_units = e->info.max_sequences + spare_units(room, slot_bytes(e)),
                              .slot_floats = e->groups.recurrent_floats};
        QN_TRY(ops->state_new(e->device, &spec, &e->recurrent));
        QN_TRY(qn_pages_new(e->recurrent, &e->slots));
        tables_bytes += qn_pages_bytes(e->slots);
    }
    QN_TRY(qn_ledger_reserve(e->ledger, QN_LEDGER_OTHER, tables_bytes));
    e->tables_bytes = tables_bytes;
    return QN_OK;
}

void qn_engine_free_states(qn_engine *e)
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

/* What full sequences leave behind may stay, or the next turn of a long chat would compute most of it anew;
 * in half of the memory that is left at most, for a server goes on to fill what it may. */
static void choose_cache_limit(qn_engine *e, double room)
{
    const double n = (double)e->info.max_sequences;
    double full = n * (qn_engine_kv_bytes(e, e->info.context_size) - (n - 1) * slot_bytes(e));
    if (full > room / 2) full = room / 2;
    if (full > QN_LEDGER_CACHE_DEFAULT) qn_ledger_set_cache_limit(e->device->ledger, (size_t)full);
}

/* Chooses the context and makes pages and programs for it. The programs' scratch is known when they are made;
 * a context that was not asked for then gives way until keys and values of full sequences fit beside it. */
qn_status qn_engine_fit_context(qn_engine *e, int64_t wish)
{
    QN_TRY(choose_context(e, wish));
    for (;;) {
        QN_TRY(make_states(e));
        QN_TRY(qn_engine_make_programs(e));
        int64_t context = e->info.context_size;
        double room = qn_engine_device_room(e);
        if (context_bytes(e, context) <= room) {
            choose_cache_limit(e, room);
            break;
        }
        if (wish > 0 || context <= CONTEXT_MIN) return fail_context(e, wish, context, room);
        qn_engine_free_programs(e);
        qn_engine_free_states(e);
        e->info.context_size = qn_engine_tokens_that_fit(e, context, room);
    }
    int64_t own = e->info.model_context_size, full = own > 0 && own < CONTEXT_MAX ? own : CONTEXT_MAX;
    if (wish <= 0 && e->info.context_size < full)
        qn_buf_printf(&e->notes, "context size is %lld instead of %lld: there is no memory for more\n",
                      (long long)e->info.context_size, (long long)full);
    return e->notes.status;
}

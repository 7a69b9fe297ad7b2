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
static qn_state_spec spec_of(const qn_engine *e, qn_part part, int group, int64_t context)
{
    const qn_layer_group *g = &e->groups.group[group];
    return (qn_state_spec){.kind = QN_STATE_PAGES,
                           .n_layers = part == QN_PART_CARD ? g->n_below : g->n_layers - g->n_below,
                           .n_units = pages_for(kept_positions(e, group, context)),
                           .kv_heads = g->num_key_value_heads,
                           .head_dim = g->head_dim,
                           .v_dim = g->v_head_dim,
                           .v_in_k = g->v_in_k,
                           .dtype = g->of_index ? QN_DTYPE_F32 : e->info.kv_dtype};
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

static int64_t recurrent_layers(const qn_engine *e, qn_part part)
{
    const qn_layer_groups *g = &e->groups;
    return part == QN_PART_CARD ? g->n_recurrent_below : g->n_recurrent - g->n_recurrent_below;
}

static double slot_bytes(const qn_engine *e, qn_part part)
{
    return (double)recurrent_layers(e, part) * (double)e->groups.recurrent_floats * sizeof(float);
}

/* Other sequences share the pages: one
 * that gets none waits, and goes on with the same bits. */
double qn_engine_kv_bytes(const qn_engine *e, qn_part part, int64_t context)
{
    double total = slot_bytes(e, part) * (double)e->info.max_sequences;
    for (int i = 0; i < e->groups.n; i++) {
        qn_state_spec s = spec_of(e, part, i, context);
        total += (double)s.n_units * page_bytes(&s);
    }
    return total;
}

/* Units beside those of full sequences, for prefixes that are kept: as many as memory may hold. What is never
 * used is address space alone. */
static int64_t spare_units(double room, double unit_bytes)
{
    double n = unit_bytes > 0 ? room / unit_bytes : SPARE_UNITS_MAX;
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

double qn_engine_device_room(const qn_engine *e, qn_part part)
{
    qn_device *d = qn_engine_part(e, part);
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

/* Of the memory that the part's device computes in. */
static double context_bytes(const qn_engine *e, qn_part part, int64_t context)
{
    return qn_engine_kv_bytes(e, part, context) +
           (qn_device_has_memory(qn_engine_part(e, part)) ? 0 : run_bytes(e, context));
}

/* wish: what was asked for; 0: context is the smallest that is chosen without being asked. */
static qn_status fail_context(const qn_engine *e, qn_part part, int64_t wish, int64_t context, double room)
{
    const qn_device *d = qn_engine_part(e, part);
    if (qn_device_has_memory(d))
        return qn_fail(
            QN_E_NOMEM,
            "device %s: a context of %lld tokens needs %.2f MiB of the card's memory for keys and "
            "values in %s, and %.2f MiB are left beside weights and programs. A smaller context or "
            "keys and values of fewer bits need less",
            d->ops->name, (long long)context, context_bytes(e, part, context) / 1048576,
            qn_dtype_name(e->info.kv_dtype), room / 1048576);
    if (wish <= 0)
        return qn_fail(QN_E_NOMEM,
                       "too little memory: even a context of %lld tokens needs %.2f MiB for keys, values and "
                       "sampling, %.2f MiB are left",
                       (long long)context, context_bytes(e, part, context) / 1048576, room / 1048576);
    return qn_fail(QN_E_NOMEM,
                   "context size %lld needs %.2f MiB for keys, values and sampling, %.2f MiB are left",
                   (long long)context, context_bytes(e, part, context) / 1048576, room / 1048576);
}

int64_t qn_engine_shortest_context(void)
{
    return CONTEXT_MIN;
}

/* In whole pages. */
int64_t qn_engine_tokens_that_fit(const qn_engine *e, qn_part part, int64_t context, double room)
{
    while (context > CONTEXT_MIN && context_bytes(e, part, context) > room) {
        context = (context - 1) / QN_PAGE_TOKENS * QN_PAGE_TOKENS;
        if (context < CONTEXT_MIN) context = CONTEXT_MIN;
    }
    return context;
}

static int count_parts(const qn_engine *e)
{
    return e->card.device ? QN_PARTS : 1;
}

/* The first choice; scratch is not known yet. */
static qn_status choose_context(qn_engine *e, int64_t wish)
{
    int64_t own = e->config.max_position_embeddings;
    const int64_t most = wish > 0 ? wish : own > 0 && own < CONTEXT_MAX ? own : CONTEXT_MAX;
    int64_t context = most;
    double room;
    /* No step has more rows than all sequences have tokens. */
    if (e->info.max_rows > most * e->info.max_sequences)
        e->info.max_rows = (int32_t)(most * e->info.max_sequences);
    if (wish > 0) {
        if (own > 0 && wish > own)
            qn_buf_printf(&e->notes, "context size %lld is above the model's own %lld: quality may suffer\n",
                          (long long)wish, (long long)own);
    }
    for (int i = 0; i < count_parts(e); i++) {
        const qn_part part = (qn_part)i;
        room = qn_engine_device_room(e, part);
        if (wish <= 0)
            context = qn_engine_tokens_that_fit(e, part, context, room * 0.9);
        else if (context_bytes(e, part, wish) > room)
            return fail_context(e, part, wish, wish, room);
    }
    e->info.context_size = context;
    e->info.model_context_size = own;
    if (qn_device_has_memory(e->device) && run_bytes(e, context) > (room = host_room(e)))
        return qn_fail(QN_E_NOMEM,
                       "sampling of %lld tokens needs %.2f MiB of the host's memory, %.2f MiB are left",
                       (long long)context, run_bytes(e, context) / 1048576, room / 1048576);
    return e->notes.status;
}

/* The states of a pool, one for each part that has layers of it, of so many units. */
static qn_status make_pool(qn_engine *e, const qn_state_spec specs[QN_PARTS], int64_t n_units, qn_state **own,
                           qn_state **of_card, qn_pages **out)
{
    qn_state **to[QN_PARTS] = {own, of_card};
    for (int i = 0; i < count_parts(e); i++) {
        qn_device *d = qn_engine_part(e, (qn_part)i);
        qn_state_spec spec = specs[i];
        spec.n_units = n_units;
        if (spec.n_layers) QN_TRY(d->ops->state_new(d, &spec, to[i]));
    }
    return qn_pages_new_over(QN_PARTS, (qn_state *[QN_PARTS]){*own, *of_card}, out);
}

static int64_t less(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static qn_status make_states(qn_engine *e)
{
    size_t tables_bytes = 0;
    double room[QN_PARTS];
    qn_state_spec specs[QN_PARTS];
    const int n_parts = count_parts(e);
    for (int k = 0; k < n_parts; k++) room[k] = qn_engine_device_room(e, (qn_part)k);
    for (int i = 0; i < e->groups.n; i++) {
        int64_t spare = SPARE_UNITS_MAX;
        for (int k = 0; k < n_parts; k++) {
            specs[k] = spec_of(e, (qn_part)k, i, e->info.context_size);
            spare = less(spare, spare_units(room[k], page_bytes(&specs[k])));
        }
        e->table_size[i] = specs[0].n_units + QN_BLOCK_BASE_STEP;
        QN_TRY(make_pool(e, specs, specs[0].n_units * e->info.max_sequences + spare, &e->states[i],
                         &e->card.states[i], &e->pages[i]));
        tables_bytes += qn_pages_bytes(e->pages[i]);
        tables_bytes += (size_t)(e->table_size[i] * e->info.max_sequences) * sizeof(int32_t);
    }
    if (e->groups.n_recurrent) {
        int64_t spare = SPARE_UNITS_MAX;
        for (int k = 0; k < n_parts; k++) {
            specs[k] = (qn_state_spec){.kind = QN_STATE_SLOTS,
                                       .n_layers = recurrent_layers(e, (qn_part)k),
                                       .slot_floats = e->groups.recurrent_floats};
            spare = less(spare, spare_units(room[k], slot_bytes(e, (qn_part)k)));
        }
        QN_TRY(
            make_pool(e, specs, e->info.max_sequences + spare, &e->recurrent, &e->card.recurrent, &e->slots));
        tables_bytes += qn_pages_bytes(e->slots);
    }
    QN_TRY(qn_ledger_reserve(e->ledger, QN_LEDGER_OTHER, tables_bytes));
    e->tables_bytes = tables_bytes;
    return e->card.device ? qn_split_make_stage(e) : QN_OK;
}

static void free_state(qn_state **s)
{
    if (*s) (*s)->device->ops->state_free(*s);
    *s = NULL;
}

void qn_engine_free_states(qn_engine *e)
{
    for (int i = 0; i < QN_LAYER_GROUPS_MAX; i++) {
        qn_pages_free(e->pages[i]);
        e->pages[i] = NULL;
        free_state(&e->states[i]);
        free_state(&e->card.states[i]);
    }
    qn_pages_free(e->slots);
    e->slots = NULL;
    free_state(&e->recurrent);
    free_state(&e->card.recurrent);
    if (e->card.stage_bytes) qn_split_free_stage(e);
    qn_ledger_release(e->ledger, QN_LEDGER_OTHER, e->tables_bytes);
    e->tables_bytes = 0;
}

/* What full sequences leave behind may stay, or the next turn of a long chat would compute most of it anew;
 * in half of the memory that is left at most, for a server goes on to fill what it may. */
static void choose_cache_limit(qn_engine *e, qn_part part)
{
    const double n = (double)e->info.max_sequences, room = qn_engine_device_room(e, part);
    double full = n * (qn_engine_kv_bytes(e, part, e->info.context_size) - (n - 1) * slot_bytes(e, part));
    if (full > room / 2) full = room / 2;
    if (full > QN_LEDGER_CACHE_DEFAULT)
        qn_ledger_set_cache_limit(qn_engine_part(e, part)->ledger, (size_t)full);
}

/* Chooses the context and makes pages and programs for it. The programs' scratch is known when they are made;
 * a context that was not asked for then gives way until keys and values of full sequences fit beside it. */
qn_status qn_engine_fit_context(qn_engine *e, int64_t wish)
{
    QN_TRY(choose_context(e, wish));
    for (int64_t context;;) {
        QN_TRY(make_states(e));
        QN_TRY(qn_engine_make_programs(e));
        context = e->info.context_size;
        for (int i = 0; i < count_parts(e); i++) {
            const double room = qn_engine_device_room(e, (qn_part)i);
            if (context_bytes(e, (qn_part)i, context) <= room) continue;
            if (wish > 0 || context <= CONTEXT_MIN) return fail_context(e, (qn_part)i, wish, context, room);
            context = qn_engine_tokens_that_fit(e, (qn_part)i, context, room);
        }
        if (context == e->info.context_size) break;
        qn_engine_free_programs(e);
        qn_engine_free_states(e);
        e->info.context_size = context;
    }
    for (int i = 0; i < count_parts(e); i++) choose_cache_limit(e, (qn_part)i);
    int64_t own = e->info.model_context_size, full = own > 0 && own < CONTEXT_MAX ? own : CONTEXT_MAX;
    if (wish <= 0 && e->info.context_size < full)
        qn_buf_printf(&e->notes, "context size is %lld instead of %lld: there is no memory for more\n",
                      (long long)e->info.context_size, (long long)full);
    return e->notes.status;
}

/* A model divided between a card and the CPU: the card computes the first layers. The CPU computes the embedding
 * before them, the other layers and the head. Between them the rows of the stream go through the host's memory.
 *
 *     embed (CPU) --hidden.0--> first (card) --hidden.N--> body (CPU) --> head (CPU)
 *
 * Every page and slot has a part on each side (cache/pages.h), so sequences, prefixes and saved states know
 * nothing of it. Each side's bits depend on its rows alone, so those of both together do, too. */
#include <string.h>

#include "base/mem.h"
#include "engine/machine/engine_parts.h"

qn_device *qn_engine_part(const qn_engine *e, qn_part part)
{
    return part == QN_PART_CARD ? e->card.device : e->device;
}

static void note_border(qn_engine *e, int64_t n_layers, const qn_engine_options *o)
{
    const char *card = e->card.device->ops->name;
    const int64_t all = e->config.num_hidden_layers;
    if (o->gpu_layers <= 0)
        qn_buf_printf(&e->notes, "the card has no room for all layers: ");
    else if (o->gpu_layers > n_layers)
        qn_buf_printf(&e->notes, "layers behind the first %lld read keys and values of these: ",
                      (long long)o->gpu_layers);
    qn_buf_printf(&e->notes, "the device %s computes the first %lld of %lld layers, the CPU the others\n",
                  card, (long long)n_layers, (long long)all);
}

qn_status qn_split_begin(qn_engine *e, int64_t n_layers, const qn_engine_options *o)
{
    const qn_device_options options = {.n_threads = o->n_threads, .ledger = e->ledger};
    qn_device *cpu = NULL;
    qn_layer_groups groups;
    QN_TRY(qn_layer_groups_split(&e->config, n_layers, &groups));
    qn_layer_groups_free(&e->groups);
    e->groups = groups;
    QN_TRY(qn_device_open("cpu", &options, &cpu));
    e->card.device = e->device;
    e->device = cpu;
    note_border(e, n_layers, o);
    return e->notes.status;
}

/* ---- rows --------------------------------------------------------------------------------------------- */

/* The next n numbers of the stage. */
static void *take(char **at, int64_t n)
{
    void *p = *at;
    *at += (size_t)n * sizeof(int32_t);
    return p;
}

qn_status qn_split_make_stage(qn_engine *e)
{
    const int64_t n_rows = e->info.max_rows, n_sequences = e->info.max_sequences;
    int64_t n = (3 + QN_ROPE_SECTIONS) * n_rows + (3 * n_sequences + 1);
    for (int i = 0; i < e->groups.n; i++) n += n_sequences * (1 + e->table_size[i]);
    const size_t size_bytes = (size_t)n * sizeof(int32_t);
    QN_TRY(qn_ledger_reserve(e->ledger, QN_LEDGER_SCRATCH, size_bytes));
    e->card.stage_bytes = size_bytes;
    char *at = e->card.stage = qn_calloc((size_t)n, sizeof(int32_t));
    if (!at) return QN_E_NOMEM;
    qn_row_inputs r = {.positions = take(&at, n_rows),
                       .row_adapters = take(&at, n_rows),
                       .row_begin = take(&at, n_sequences + 1)};
    if (e->slots) {
        r.slot_ids = take(&at, n_sequences);
        r.reset = take(&at, n_sequences);
    }
    if (e->config.rope_short_positions) r.is_long = take(&at, n_rows);
    for (int i = 0; e->config.rope[0].mrope_section[0] && i < QN_ROPE_SECTIONS; i++)
        r.rope_positions[i] = take(&at, n_rows);
    for (int i = 0; i < e->groups.n; i++) r.blocks[i] = take(&at, n_sequences * (1 + e->table_size[i]));
    e->rows = r;
    return QN_OK;
}

void qn_split_free_stage(qn_engine *e)
{
    qn_free(e->card.stage);
    qn_ledger_release(e->ledger, QN_LEDGER_SCRATCH, e->card.stage_bytes);
    e->card.stage = NULL;
    e->card.stage_bytes = 0;
    e->rows = (qn_row_inputs){0};
}

/* n numbers of 4 bytes each; an input that no step reads is NULL. */
static void copy(void *to, const void *from, int64_t n)
{
    if (to) memcpy(to, from, (size_t)n * sizeof(int32_t));
}

static void fill(const qn_engine *e, qn_part part, int64_t n_rows, int64_t n_sequences)
{
    const qn_row_inputs *to = &e->card.rows[part], *from = &e->rows;
    copy(to->positions, from->positions, n_rows);
    copy(to->row_adapters, from->row_adapters, n_rows);
    copy(to->row_begin, from->row_begin, n_sequences + 1);
    copy(to->slot_ids, from->slot_ids, n_sequences);
    copy(to->reset, from->reset, n_sequences);
    copy(to->is_long, from->is_long, n_rows);
    for (int i = 0; i < QN_ROPE_SECTIONS; i++) copy(to->rope_positions[i], from->rope_positions[i], n_rows);
    for (int i = 0; i < e->groups.n; i++)
        copy(to->blocks[i], from->blocks[i], n_sequences * (1 + e->table_size[i]));
}

/* Output i of a program, rows of so many floats, becomes an input of another. */
static qn_status pass(const qn_program *from, int i, int64_t n_rows, int64_t width, float *to)
{
    const void *data;
    QN_TRY(qn_program_read(from, i, &data));
    copy(to, data, n_rows * width);
    return QN_OK;
}

/* The layers of a part, over the stream that a program left. */
static qn_status run_layers(qn_engine *e, qn_part part, const qn_program *before, int64_t n_rows,
                            int64_t n_sequences)
{
    const qn_model_config *c = &e->config;
    const int64_t own = c->num_hidden_layers * c->hidden_size_per_layer_input;
    QN_TRY(pass(before, 0, n_rows, c->hidden_size, e->card.hidden[part]));
    if (own) QN_TRY(pass(e->embed, 1, n_rows, own, e->card.layer_inputs[part]));
    fill(e, part, n_rows, n_sequences);
    return qn_program_run(part == QN_PART_CARD ? e->first : e->body, &(qn_sizes){{n_rows, n_sequences, 0}});
}

qn_status qn_engine_run_body(qn_engine *e, int64_t n_rows, int64_t n_sequences)
{
    const qn_sizes sizes = {{n_rows, n_sequences, 0}};
    if (!e->card.device) return qn_program_run(e->body, &sizes);
    copy(e->card.embed_adapters, e->rows.row_adapters, n_rows);
    QN_TRY(qn_program_run(e->embed, &sizes));
    QN_TRY(run_layers(e, QN_PART_CARD, e->embed, n_rows, n_sequences));
    return run_layers(e, QN_PART_OWN, e->first, n_rows, n_sequences);
}

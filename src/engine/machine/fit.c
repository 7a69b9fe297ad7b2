/* Whether a model fits into the memory of a card, before anything of it is loaded. */
#include <stdio.h>

#include "engine/machine/engine_parts.h"

/* Temporaries of a step take at most this part of a device's own memory, unless its rows are few anyway. */
enum { CONTEXT_SHOWN_MAX = 1 << 20, CONTEXT_USUAL = 4096, DEFAULT_ROWS = 256, STEP_PART = 16 };
/* What a choice of layers uses of the card's room: what steps take is known only when they are compiled. */
static const double ROOM_USED = 0.9;

/* "1.50 GiB" */
static const char *size_text(double bytes, char *text, size_t size)
{
    const double mib = bytes / 1048576;
    snprintf(text, size, mib >= 1024 ? "%.2f GiB" : "%.2f MiB", mib >= 1024 ? mib / 1024 : mib);
    return text;
}

/* About what temporaries of a step and its logits take: programs say exactly, but need the weights. */
static double step_bytes(const qn_engine *e)
{
    const qn_model_config *c = &e->config;
    double width = 0;
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        const qn_layer_config *l = &c->layers[i];
        const double heads = (double)(c->num_attention_heads + 2 * l->num_key_value_heads);
        const double row = 4 * (double)c->hidden_size + heads * (double)l->head_dim;
        if (row > width) width = row;
    }
    width += 2 * (double)c->intermediate_size;
    return sizeof(float) *
           ((double)e->info.max_rows * width + (double)e->info.max_sequences * (double)c->vocab_size);
}

int32_t qn_engine_choose_rows(qn_engine *e)
{
    const int32_t wish = e->device->ops->describe(e->device).prefill_rows;
    if (!wish || !qn_device_has_memory(e->device)) return wish ? wish : (int32_t)DEFAULT_ROWS;
    const double room = qn_engine_device_room(e, QN_PART_OWN);
    for (e->info.max_rows = wish; e->info.max_rows > DEFAULT_ROWS; e->info.max_rows /= 2)
        if (step_bytes(e) <= room / STEP_PART) break;
    return e->info.max_rows;
}

/* The first layers of a model on the card that it may be opened on. While they are measured, e->groups has
 * their border. */
typedef struct {
    qn_engine *e;
    const qn_weights *weights;
    int64_t context; /* that must fit, and up to which a longer one is of use */
    double room;     /* of the card */
    int64_t n;       /* layers; below all: part is QN_PART_CARD */
    qn_part part;
    double weights_bytes, step_bytes;
} fitting;

static double needed(const fitting *f)
{
    return f->weights_bytes + f->step_bytes + qn_engine_kv_bytes(f->e, f->part, f->context);
}

/* weights_bytes: of all layers. */
static qn_status measure(fitting *f, int64_t n, size_t weights_bytes)
{
    qn_engine *e = f->e;
    const int is_part = n < e->config.num_hidden_layers;
    const qn_parameters_part first = {.end = n};
    qn_layer_groups groups;
    int bits;
    if (is_part)
        QN_TRY(qn_parameters_measure_part(e->device, f->weights, &e->config, &first, &weights_bytes, &bits));
    QN_TRY(qn_layer_groups_split(&e->config, is_part ? n : 0, &groups));
    qn_layer_groups_free(&e->groups);
    e->groups = groups;
    f->n = n;
    f->part = is_part ? QN_PART_CARD : QN_PART_OWN;
    f->weights_bytes = (double)weights_bytes;
    f->step_bytes = step_bytes(e);
    return QN_OK;
}

/* How many of the first layers, not all of them, need at most so many bytes. */
static qn_status count_that_fit(const fitting *of, double most, int64_t *out)
{
    fitting f = *of;
    int64_t low = 0, high = f.e->config.num_hidden_layers - 1;
    while (low < high) {
        const int64_t n = low + (high - low + 1) / 2, border = qn_layer_border(&f.e->config, n);
        if (border > 0) QN_TRY(measure(&f, border, 0));
        if (border == 0 || needed(&f) <= most)
            low = n;
        else
            high = n - 1;
    }
    *out = qn_layer_border(&f.e->config, low);
    return QN_OK;
}

/* The longest context that fits, of what the model takes; 0: not even the shortest. */
static int64_t longest(const fitting *f, qn_dtype kv_dtype, double room, int64_t most)
{
    qn_engine *e = f->e;
    const qn_dtype own = e->info.kv_dtype;
    e->info.kv_dtype = kv_dtype;
    int64_t context = most;
    while (context > qn_engine_shortest_context() && qn_engine_kv_bytes(e, f->part, context) > room) {
        context = (context - 1) / QN_PAGE_TOKENS * QN_PAGE_TOKENS;
        if (context < qn_engine_shortest_context()) context = qn_engine_shortest_context();
    }
    const int fits = qn_engine_kv_bytes(e, f->part, context) <= room;
    e->info.kv_dtype = own;
    return fits ? context : 0;
}

/* What the user may do, in the order of what it costs. n_first: layers that would fit, 0: none. */
static void advise(const fitting *f, int64_t n_first, char *out, size_t size)
{
    const qn_dtype own = f->e->info.kv_dtype;
    const double room = f->room - f->weights_bytes - f->step_bytes;
    const int64_t most = f->context < CONTEXT_SHOWN_MAX ? f->context : CONTEXT_SHOWN_MAX;
    const int64_t here = room > 0 ? longest(f, own, room, most) : 0,
                  small = room > 0 ? longest(f, QN_DTYPE_Q8_0, room, most) : 0,
                  smallest = room > 0 ? longest(f, QN_DTYPE_Q4_0, room, most) : 0;
    size_t at = 0;
    out[0] = 0;
    if (here) at += (size_t)snprintf(out + at, size - at, "a context of %lld; ", (long long)here);
    if (small > here)
        at += (size_t)snprintf(out + at, size - at, "keys and values in q8_0 with a context of %lld; ",
                               (long long)small);
    if (smallest > small)
        at += (size_t)snprintf(out + at, size - at, "keys and values in q4_0 with a context of %lld; ",
                               (long long)smallest);
    at += (size_t)snprintf(out + at, size - at,
                           "no layer on the card (gpu_layers: none), so that the CPU computes");
    if (n_first)
        snprintf(out + at, size - at, "; the first %lld of %lld layers on the card (gpu_layers: %lld)",
                 (long long)n_first, (long long)f->e->config.num_hidden_layers, (long long)n_first);
}

/* Nothing is kept of an encoder's sequences, and it is not divided. */
static qn_status refuse_encoder(const fitting *f)
{
    const qn_device *d = f->e->device;
    char texts[4][32];
    return qn_fail(
        QN_E_NOMEM,
        "device %s: the model needs %s of the card's memory (weights %s, steps about %s), and %s are "
        "left. What fits: the device cpu",
        d->ops->name, size_text(needed(f), texts[0], sizeof *texts),
        size_text(f->weights_bytes, texts[1], sizeof *texts),
        size_text(f->step_bytes, texts[2], sizeof *texts), size_text(f->room, texts[3], sizeof *texts));
}

/* Why there is no border between its layers. */
static const char *why_whole(const qn_model_config *c)
{
    if (c->encoder.both_ways) return "an encoder is computed by one device";
    return c->altup_num_inputs || c->hyper.hc_count
               ? "it has several streams, and one alone can cross to the CPU"
               : "later ones read keys and values of the first one";
}

static qn_status refuse(fitting *f)
{
    const qn_device *d = f->e->device;
    const double kv = qn_engine_kv_bytes(f->e, f->part, f->context), all = f->room;
    const size_t limit = qn_ledger_get_limit(d->ledger);
    char texts[5][32], advice[384], what[64] = "the model needs";
    int64_t n_first;
    fitting then = *f;
    QN_TRY(count_that_fit(f, f->room * ROOM_USED, &n_first));
    QN_TRY(measure(&then, f->n, (size_t)f->weights_bytes)); /* the groups are as they were */
    advise(&then, n_first < f->n ? n_first : 0, advice, sizeof advice);
    if (f->part == QN_PART_CARD)
        snprintf(what, sizeof what, "the first %lld of %lld layers need", (long long)f->n,
                 (long long)f->e->config.num_hidden_layers);
    return qn_fail(QN_E_NOMEM,
                   "device %s: %s %s of the card's memory (weights %s, keys and values of %lld "
                   "tokens in %s %s, steps about %s), and %s are %s. What fits: %s",
                   d->ops->name, what, size_text(needed(f), texts[0], sizeof *texts),
                   size_text(f->weights_bytes, texts[1], sizeof *texts), (long long)f->context,
                   qn_dtype_name(f->e->info.kv_dtype), size_text(kv, texts[2], sizeof *texts),
                   size_text(f->step_bytes, texts[3], sizeof *texts), size_text(all, texts[4], sizeof *texts),
                   limit && (double)limit <= all + (double)qn_ledger_total(d->ledger)
                       ? "left under the device memory limit"
                       : "free",
                   advice);
}

/* The context that layers are chosen for if none was asked for: what a chat needs. */
static int64_t usual_context(const qn_model_config *c)
{
    const int64_t own = c->max_position_embeddings;
    return own > 0 && own < CONTEXT_USUAL ? own : CONTEXT_USUAL;
}

/* As many of the first layers as fit, if not all do. */
static qn_status choose_layers(const fitting *all, const qn_engine_options *o, int64_t *n_layers)
{
    fitting f = *all;
    if (o->context_size <= 0) f.context = usual_context(&f.e->config);
    return count_that_fit(&f, f.room * ROOM_USED, n_layers);
}

qn_status qn_engine_check_fit(qn_engine *e, const qn_weights *weights, size_t weights_bytes,
                              const qn_engine_options *o, int64_t *n_layers)
{
    const int64_t n = e->config.num_hidden_layers, wish = o->gpu_layers;
    const int is_part = wish > 0 && wish < n;
    fitting f = {.e = e,
                 .weights = weights,
                 .context = o->context_size > 0 ? o->context_size : qn_engine_shortest_context(),
                 .room = qn_engine_device_room(e, QN_PART_OWN)};
    const int64_t border = is_part ? qn_layer_border(&e->config, wish) : n;
    if (border == 0)
        return qn_fail(
            QN_E_UNSUPPORTED,
            "device %s: the model cannot be divided behind its first %lld layers: %s. gpu_layers may "
            "be all or none",
            e->device->ops->name, (long long)wish, why_whole(&e->config));
    QN_TRY(measure(&f, border, weights_bytes));
    *n_layers = border;
    if (needed(&f) <= f.room) return QN_OK;
    if (e->config.encoder.both_ways) return refuse_encoder(&f);
    if (wish <= 0) {
        QN_TRY(choose_layers(&f, o, n_layers));
        if (*n_layers > 0) return QN_OK;
        QN_TRY(measure(&f, border, weights_bytes));
    }
    return refuse(&f);
}

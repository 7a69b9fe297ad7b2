#include "engine/clients/snapshot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/mem.h"
#include "engine/machine/engine_parts.h"
#include "engine/machine/images.h"
#include "prim/chosen.h"

/* What is handed out and all it points to is one block of memory, which begins with this. */
typedef struct {
    qn_attention_snapshot of;
    qn_ledger *ledger;
} snapshot;

/* What is gathered of one layer. Arrays are NULL where they are not wanted. */
typedef struct {
    int is_wanted;
    int64_t kv_layer, heads, kv_heads, dim; /* dim: of queries, and of keys as they are multiplied */
    int64_t shown_dim;                      /* of these, what is handed out as keys */
    float *queries;                         /* [heads, n, dim] */
    float *keys;                            /* [kv_heads, n, shown_dim]: of those who have their own */
    float *whole_keys;                      /* [kv_heads, n, dim], the same where all is shown */
    float *attention;                       /* [heads, n, n] */
    int64_t n_rows;                         /* that went by */
    qn_params_attend how;
    const float *sinks; /* [heads]; NULL: none */
    int32_t *chosen;    /* [n, top] blocks that rows attend to; NULL: rows see all */
    int64_t top;
} part;

/* One taking. */
typedef struct {
    qn_engine *engine;
    const qn_snapshot_options *options;
    const int32_t *ids;
    int64_t n; /* tokens */
    int32_t adapter;
    qn_images *images;
    snapshot *s;
    part *parts;          /* [num_hidden_layers], with what is needed no longer than this */
    float *const *hidden; /* [num_hidden_layers + 1]; NULL: not wanted */
    int64_t n_normed;     /* rows of the final norm that came, in order */
    qn_status status;     /* of what went by */
} taking;

/* ---- memory ------------------------------------------------------------------------------------------- */

/* Memory that is handed out piece by piece; without a base it is only measured. */
typedef struct {
    char *base;
    size_t size_bytes;
    int fits;
} block;

static void *place(block *b, size_t element_bytes, int64_t n0, int64_t n1, int64_t n2)
{
    int64_t n;
    size_t bytes, from = b->size_bytes, end = 0;
    b->fits &= qn_mul_i64(n0, n1, &n) && qn_mul_i64(n, n2, &n) &&
               qn_mul_size((size_t)n, element_bytes, &bytes) && qn_align_size(bytes, 64, &bytes) &&
               qn_add_size(from, bytes, &end) && end <= INT64_MAX;
    if (!b->fits) return NULL;
    b->size_bytes = end;
    return b->base ? b->base + from : NULL;
}

static int is_wanted(const qn_snapshot_options *o, int64_t layer)
{
    for (size_t i = 0; o->layers && i < o->n_layers; i++)
        if (o->layers[i] == layer) return 1;
    return !o->layers;
}

/* Does a layer that is wanted read the keys of this one? */
static int are_keys_wanted(const taking *t, int64_t layer)
{
    const qn_model_config *c = &t->engine->config;
    for (int64_t i = layer; i < c->num_hidden_layers; i++)
        if (c->layers[i].kv_layer == layer && is_wanted(t->options, i)) return 1;
    return 0;
}

static part shape_of(const taking *t, int64_t layer)
{
    const qn_model_config *c = &t->engine->config;
    const qn_layer_config *l = &c->layers[layer];
    if (!qn_layer_attends(l)) return (part){.kv_layer = -1};
    return (part){.top = l->indexed ? c->index.index_topk / c->index.index_kpool : 0,
                  .is_wanted = is_wanted(t->options, layer),
                  .kv_layer = l->kv_layer,
                  .heads = c->num_attention_heads,
                  .kv_heads = l->num_key_value_heads,
                  .dim = l->head_dim,
                  .shown_dim = l->mixer == QN_MIXER_LATENT ? l->v_head_dim : l->head_dim};
}

/* Where the arrays of a layer lie: what is handed out in `kept`, the rest in `own`. */
static void place_layer(const taking *t, part *p, int64_t layer, block *kept, block *own)
{
    const unsigned wanted = t->options->wanted;
    const size_t f32 = sizeof(float);
    if (p->kv_layer == layer && are_keys_wanted(t, layer)) {
        p->keys = p->whole_keys = place(kept, f32, p->kv_heads, t->n, p->shown_dim);
        if (wanted & QN_SNAPSHOT_ATTENTION && p->shown_dim != p->dim)
            p->whole_keys = place(own, f32, p->kv_heads, t->n, p->dim);
    }
    if (p->is_wanted && wanted & (QN_SNAPSHOT_QUERIES | QN_SNAPSHOT_ATTENTION))
        p->queries = place(wanted & QN_SNAPSHOT_QUERIES ? kept : own, f32, p->heads, t->n, p->dim);
    if (p->is_wanted && wanted & QN_SNAPSHOT_ATTENTION) {
        p->attention = place(kept, f32, p->heads, t->n, t->n);
        if (p->top) p->chosen = place(own, sizeof *p->chosen, t->n, p->top, 1);
    }
}

static qn_attention_layer show(const taking *t, const part *p, int64_t layer)
{
    return (qn_attention_layer){
        .kv_layer = p->kv_layer,
        .window = t->engine->config.layers[layer].window,
        .chunk = t->engine->config.layers[layer].chunk,
        .num_attention_heads = p->heads,
        .num_key_value_heads = p->kv_heads,
        .head_dim = p->shown_dim,
        .query_dim = p->dim,
        .keys = p->is_wanted ? t->parts[p->kv_layer].keys : NULL,
        .queries = t->options->wanted & QN_SNAPSHOT_QUERIES ? p->queries : NULL,
        .attention = p->attention,
    };
}

/* Measures both blocks, or fills them where they have a base. */
static void lay_out(taking *t, block *kept, block *own)
{
    const qn_model_config *c = &t->engine->config;
    const int64_t n_layers = c->num_hidden_layers;
    snapshot *s = place(kept, sizeof *s, 1, 1, 1);
    qn_attention_layer *layers = place(kept, sizeof *layers, n_layers, 1, 1);
    int32_t *ids = place(kept, sizeof *ids, t->n, 1, 1);
    float **hidden = NULL;
    if (t->options->wanted & QN_SNAPSHOT_HIDDEN) hidden = place(kept, sizeof *hidden, n_layers + 1, 1, 1);
    part *parts = place(own, sizeof *parts, n_layers, 1, 1);
    t->s = s;
    t->parts = parts;
    t->hidden = hidden;
    for (int64_t i = 0; i < n_layers; i++) {
        part p = shape_of(t, i);
        place_layer(t, &p, i, kept, own);
        if (!s) continue;
        parts[i] = p;
        layers[i] = show(t, &p, i);
    }
    for (int64_t i = 0; t->options->wanted & QN_SNAPSHOT_HIDDEN && i <= n_layers; i++) {
        float *h = place(kept, sizeof(float), t->n, c->hidden_size, 1);
        if (s) hidden[i] = h;
    }
    if (!s) return;
    memcpy(ids, t->ids, (size_t)t->n * sizeof *ids);
    s->of = (qn_attention_snapshot){.n_layers = n_layers,
                                    .seq_len = t->n,
                                    .hidden_size = c->hidden_size,
                                    .ids = ids,
                                    .layers = layers,
                                    .hidden = (const float *const *)hidden,
                                    .size_bytes = kept->size_bytes};
}

/* What the machine has not may look as if it were there until it is touched. */
static qn_status check_room(size_t size_bytes, int64_t n)
{
    qn_device_info machine;
    QN_TRY(qn_device_get_info(0, &machine));
    if (size_bytes <= machine.available_bytes) return QN_OK;
    return qn_fail(
        QN_E_NOMEM,
        "the requested snapshot of %lld tokens needs %.1f MiB, but the machine has %.1f MiB left; fewer "
        "layers need less",
        (long long)n, (double)size_bytes / 1048576, (double)machine.available_bytes / 1048576);
}

static void release(qn_attention_snapshot *of)
{
    snapshot *s = (snapshot *)of;
    qn_ledger *ledger = s->ledger;
    const size_t size_bytes = s->of.size_bytes;
    qn_free_mapped(s, size_bytes);
    qn_ledger_release(ledger, QN_LEDGER_OTHER, size_bytes);
    qn_ledger_free(ledger);
}

/* Takes all memory of the taking, counted; own->base is for the caller to give back. */
static qn_status take_memory(taking *t, block *own)
{
    qn_ledger *ledger = t->engine->ledger;
    block kept = {.fits = 1};
    size_t total;
    *own = (block){.fits = 1};
    lay_out(t, &kept, own);
    if (!kept.fits || !own->fits || !qn_add_size(kept.size_bytes, own->size_bytes, &total))
        return qn_fail(QN_E_NOMEM, "the requested snapshot of %lld tokens is larger than any memory",
                       (long long)t->n);
    QN_TRY(check_room(total, t->n));
    QN_TRY(qn_ledger_reserve(ledger, QN_LEDGER_OTHER, total));
    const size_t kept_bytes = kept.size_bytes, own_bytes = own->size_bytes;
    kept = (block){.base = qn_alloc_mapped(kept_bytes), .fits = 1};
    *own = (block){.base = kept.base ? qn_alloc_mapped(own_bytes) : NULL, .fits = 1};
    if (!own->base) {
        qn_free_mapped(kept.base, kept_bytes);
        qn_ledger_release(ledger, QN_LEDGER_OTHER, total);
        return QN_E_NOMEM;
    }
    lay_out(t, &kept, own);
    t->s->of.release = release;
    t->s->ledger = qn_ledger_retain(ledger);
    return QN_OK;
}

static void give_own(const taking *t, const block *own)
{
    if (!own->base) return;
    qn_free_mapped(own->base, own->size_bytes);
    qn_ledger_release(t->engine->ledger, QN_LEDGER_OTHER, own->size_bytes);
}

/* ---- what goes by ------------------------------------------------------------------------------------- */

/* Rows of x, [n_rows, heads, from_dim], become those of out, [heads, n, dim], at the positions of the step.
 */
static void copy_heads(const taking *t, const float *x, const qn_operand *shape, int64_t n_rows, int64_t dim,
                       float *out)
{
    const int64_t heads = shape->shape.dim[1], from_dim = shape->shape.dim[2];
    for (int64_t r = 0; r < n_rows; r++)
        for (int64_t h = 0; h < heads; h++)
            memcpy(out + (h * t->n + t->engine->rows.positions[r]) * dim,
                   x + r * shape->stride[0] + h * from_dim, (size_t)dim * sizeof *out);
}

/* The last input of attention over chosen blocks. */
static void copy_chosen(const taking *t, const qn_probe_view *view, int64_t n_rows, part *p)
{
    const int last = view->step->n_in - 1;
    const int32_t *rows = view->in[last];
    for (int64_t r = 0; r < n_rows; r++)
        memcpy(p->chosen + t->engine->rows.positions[r] * p->top, rows + r * view->step->in[last].stride[0],
               (size_t)p->top * sizeof *p->chosen);
}

static int has_shape(const qn_operand *o, int64_t heads, int64_t dim)
{
    return o->shape.n == 3 && o->shape.dim[1] == heads && o->shape.dim[2] == dim;
}

static void see_attention(taking *t, const qn_probe_view *view, int64_t layer, int64_t n_rows)
{
    enum { QUERIES = 0, KEYS = 1, SINKS = 6 };
    part *p = &t->parts[layer];
    const qn_operand *q = &view->step->in[QUERIES], *k = &view->step->in[KEYS];
    if (p->kv_layer < 0 || !has_shape(q, p->heads, p->dim) || !has_shape(k, p->kv_heads, p->dim)) {
        t->status =
            qn_fail(QN_E_INTERNAL, "layer %lld has other heads than its configuration", (long long)layer);
        return;
    }
    if (p->keys) copy_heads(t, view->in[KEYS], k, n_rows, p->shown_dim, p->keys);
    if (p->whole_keys != p->keys) copy_heads(t, view->in[KEYS], k, n_rows, p->dim, p->whole_keys);
    if (p->queries) copy_heads(t, view->in[QUERIES], q, n_rows, p->dim, p->queries);
    if (p->chosen) copy_chosen(t, view, n_rows, p);
    p->how = view->step->params.attend;
    p->sinks = p->how.has_sinks ? view->in[SINKS] : NULL;
    p->n_rows += n_rows;
}

/* Of several streams beside each other their mean. */
static void see_hidden(const taking *t, const qn_probe_view *view, int64_t layer, int64_t n_rows)
{
    const qn_model_config *c = &t->engine->config;
    const int64_t width = c->hidden_size, n = c->hyper.hc_count ? c->hyper.hc_count : 1;
    const float *x = view->out;
    for (int64_t r = 0; r < n_rows; r++, x += n * width) {
        float *to = t->hidden[layer] + t->engine->rows.positions[r] * width;
        memcpy(to, x, (size_t)width * sizeof *x);
        for (int64_t i = 1; i < n; i++)
            for (int64_t d = 0; d < width; d++) to[d] += x[i * width + d];
        for (int64_t d = 0; n > 1 && d < width; d++) to[d] /= (float)n;
    }
}

static void see(void *user, const qn_probe_view *view)
{
    taking *t = user;
    const qn_plan_step *s = view->step;
    const int64_t n_rows = qn_shape_dim(&s->out.shape, 0, view->sizes);
    long long layer;
    if (t->status != QN_OK) return;
    if (s->prim == QN_PRIM_ATTEND && sscanf(s->label, "layer.%lld.", &layer) == 1)
        see_attention(t, view, layer, n_rows);
    else if (t->hidden && sscanf(s->label, "hidden.%lld", &layer) == 1 &&
             layer < t->engine->config.num_hidden_layers)
        see_hidden(t, view, layer, n_rows);
}

/* Hidden states after the final norm, of tokens of the current chunk of the sequence. */
static qn_status take_normed(void *user, int64_t feed, int64_t first, int64_t n, float *rows)
{
    taking *t = user;
    const int64_t width = t->engine->config.hidden_size;
    if (n > t->n - t->n_normed) return qn_fail(QN_E_INTERNAL, "the final norm was seen twice");
    memcpy(t->hidden[t->engine->config.num_hidden_layers] + t->n_normed * width, rows,
           (size_t)(n * width) * sizeof *rows);
    t->n_normed += n;
    return QN_OK;
}

/* The next chunk of the prompt, from `first` on; the engine is the caller's. */
static qn_status compute_chunk(taking *t, qn_sequence *sequence, int64_t first)
{
    qn_engine *e = t->engine;
    const int64_t left = t->n - first;
    const qn_feed feed = {sequence, t->ids + first, left < e->info.max_rows ? left : e->info.max_rows,
                          t->hidden ? QN_LOGITS_HIDDEN : QN_LOGITS_NONE};
    qn_engine_set_probe(e, see, t);
    qn_status status = qn_engine_step(e, 1, &feed, take_normed, NULL, t);
    qn_engine_set_probe(e, NULL, NULL);
    if (status == QN_OK && t->status != QN_OK) status = qn_fail_prefix(t->status, "snapshot");
    return status;
}

static qn_status check_seen(const taking *t)
{
    for (int64_t i = 0; i < t->engine->config.num_hidden_layers; i++)
        if (t->parts[i].kv_layer >= 0 && t->parts[i].n_rows < t->n)
            return qn_fail(QN_E_INTERNAL, "the attention of layer %lld was not seen", (long long)i);
    if (t->hidden && t->n_normed < t->n) return qn_fail(QN_E_INTERNAL, "the final norm was not seen");
    return QN_OK;
}

static qn_status begin(taking *t, qn_guest *g)
{
    QN_TRY(qn_guest_begin(g, t->engine));
    qn_sequence_expect(g->sequence, t->n);
    qn_sequence_set_adapter(g->sequence, t->adapter);
    qn_sequence_set_images(g->sequence, t->images);
    t->n_normed = 0;
    return QN_OK;
}

/* The prompt as a sequence of its own. Others have their turns between its chunks, until one of them takes
 * its pages: then it begins anew, and keeps the engine. */
static qn_status compute(taking *t, qn_scheduler *scheduler, int64_t n_images)
{
    qn_guest g;
    int keeps = 0;
    QN_TRY(qn_scheduler_enter(scheduler));
    qn_status status = begin(t, &g);
    while (status == QN_OK && n_images > 0) status = qn_images_see(t->images, t->engine, 0, &n_images);
    while (status == QN_OK && qn_sequence_length(g.sequence) < t->n) {
        status = compute_chunk(t, g.sequence, qn_sequence_length(g.sequence));
        if (status != QN_OK || keeps) continue;
        qn_scheduler_leave(scheduler);
        if (qn_scheduler_enter(scheduler) != QN_OK) return QN_E_INTERNAL; /* it was no leader before */
        if (g.sequence) continue;
        keeps = 1;
        qn_guest_end(&g, t->engine);
        status = begin(t, &g);
    }
    qn_guest_end(&g, t->engine);
    qn_scheduler_leave(scheduler);
    return status == QN_OK ? check_seen(t) : status;
}

/* ---- probabilities ------------------------------------------------------------------------------------ */

/* In eight sums, which any vector unit can hold. */
static float dot(const float *x, const float *y, int64_t n)
{
    float sums[8] = {0}, rest = 0;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; k++) sums[k] += x[i + k] * y[i + k];
    for (; i < n; i++) rest += x[i] * y[i];
    for (int k = 0; k < 8; k++) rest += sums[k];
    return rest;
}

/* Of scores of positions [begin, at]: -infinity where the row at `at` does not look. */
static void hide(const part *p, int64_t at, int64_t begin, float *out)
{
    qn_chosen_runs runs = {.chosen = p->chosen + at * p->top,
                           .top = p->top,
                           .block = p->how.block,
                           .first = begin,
                           .position = at,
                           .no_tail = p->how.no_tail};
    int64_t from, to, j = begin;
    while (qn_chosen_next(&runs, &from, &to)) {
        for (; j < from; j++) out[j] = -HUGE_VALF;
        j = to;
    }
    for (; j <= at; j++) out[j] = -HUGE_VALF;
}

/* softmax(softcap(scale q.k)) of a row at position `at` over what it sees of keys [n, dim]; a sink takes a
 * share and gives nothing. out [n]. */
static void attend(const part *p, const float *sink, const float *q, const float *keys, int64_t at,
                   float *out)
{
    const qn_params_attend *how = &p->how;
    const int64_t inside = how->chunk ? at - at % how->chunk : 0;
    int64_t begin = how->window && at >= how->window ? at - how->window + 1 : 0;
    if (begin < inside) begin = inside;
    float most = sink ? *sink : -HUGE_VALF;
    for (int64_t j = begin; j <= at; j++) {
        float score = how->scale * dot(q, keys + j * p->dim, p->dim);
        if (how->softcap > 0) score = how->softcap * tanhf(score / how->softcap);
        out[j] = score;
    }
    if (p->chosen && how->block) hide(p, at, begin, out);
    for (int64_t j = begin; j <= at; j++)
        if (out[j] > most) most = out[j];
    const int sees = most > -HUGE_VALF; /* else it chose nothing */
    double sum = sink ? exp((double)(*sink - most)) : 0;
    for (int64_t j = begin; j <= at; j++) {
        out[j] = sees ? expf(out[j] - most) : 0;
        sum += (double)out[j];
    }
    for (int64_t j = begin; j <= at && sees; j++) out[j] = (float)((double)out[j] / sum);
}

/* Memory of the block is zero where nothing is seen. */
static void weigh(const taking *t, const part *p)
{
    const part *of = &t->parts[p->kv_layer];
    for (int64_t h = 0; h < p->heads; h++) {
        const float *keys = of->whole_keys + h / (p->heads / of->kv_heads) * t->n * p->dim;
        for (int64_t r = 0; r < t->n; r++)
            attend(p, p->sinks ? &p->sinks[h] : NULL, p->queries + (h * t->n + r) * p->dim, keys, r,
                   p->attention + (h * t->n + r) * t->n);
    }
}

/* ---- taking ------------------------------------------------------------------------------------------- */

static qn_status check(const qn_engine *e, const qn_ids *ids, const qn_snapshot_options *o)
{
    const int64_t context = e->info.context_size, n_layers = e->config.num_hidden_layers;
    if (ids->n_ids < 1) return qn_fail(QN_E_ARG, "the prompt has no tokens");
    if (ids->n_ids > context)
        return qn_fail(QN_E_ARG, "the prompt has %lld tokens, the context holds %lld", (long long)ids->n_ids,
                       (long long)context);
    for (int64_t i = 0; i < ids->n_ids; i++)
        if (ids->ids[i] < 0 || ids->ids[i] >= e->config.vocab_size)
            return qn_fail(QN_E_ARG, "token id %d at position %lld is outside the vocabulary of %lld",
                           (int)ids->ids[i], (long long)i, (long long)e->config.vocab_size);
    if (o->layers && (int64_t)o->n_layers > n_layers)
        return qn_fail(QN_E_ARG, "%zu layers are requested, but the model has %lld", o->n_layers,
                       (long long)n_layers);
    for (size_t i = 0; o->layers && i < o->n_layers; i++)
        if (o->layers[i] < 0 || o->layers[i] >= n_layers)
            return qn_fail(QN_E_ARG, "layer %lld is requested, but the model has %lld layers, counted from 0",
                           (long long)o->layers[i], (long long)n_layers);
    return QN_OK;
}

qn_status qn_snapshot_take(qn_engine *e, qn_scheduler *scheduler, const qn_run_prompt *prompt,
                           const qn_snapshot_options *options, qn_attention_snapshot **out)
{
    qn_ids ids = prompt->rows[0];
    block own = {0};
    taking t = {.engine = e, .options = options, .adapter = -1};
    QN_TRY(check(e, &ids, options));
    if (prompt->n_images && options->wanted & QN_SNAPSHOT_ATTENTION &&
        e->config.vision.seen != QN_VISION_SEEN_BEFORE)
        return qn_fail(
            QN_E_UNSUPPORTED,
            "the attention over images of this model is not shown: their tokens see those behind them");
    qn_status status = QN_OK;
    if (prompt->n_images)
        status = qn_images_new(&e->config, prompt->n_images, prompt->images, ids.ids, ids.n_ids,
                               e->info.context_size, &t.images);
    if (t.images) ids = qn_images_prompt(t.images);
    t.ids = ids.ids;
    t.n = ids.n_ids;
    if (status == QN_OK) status = qn_adapters_hold(e->adapters, options->adapter, &t.adapter);
    if (status == QN_OK) status = take_memory(&t, &own);
    if (status == QN_OK) status = compute(&t, scheduler, (int64_t)prompt->n_images);
    for (int64_t i = 0; status == QN_OK && i < e->config.num_hidden_layers; i++)
        if (t.parts[i].attention) weigh(&t, &t.parts[i]);
    give_own(&t, &own);
    qn_adapters_release(e->adapters, t.adapter);
    qn_images_free(t.images);
    if (status == QN_OK)
        *out = &t.s->of;
    else if (t.s)
        release(&t.s->of);
    return status;
}

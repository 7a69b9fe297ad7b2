#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "base/checked.h"
#include "base/mem.h"
#include "device/cpu/cpu.h"
#include "device/host.h"
#include "quant/mlx.h"
#include "quant/types.h"

/* All weights of a model lie in one block, so that large pages hold them however small each is. Workers take
 * spans of the block in turn: large pages that nobody else fills, so that each is cleared once. Behind a span
 * the source's pages are dropped, so that file and packed copy are never resident together. */
enum { SPAN_BYTES = 2 << 20, ALIGN_BYTES = 64 };

/* A weight and its place in the block. */
typedef struct {
    const qn_weight *w;
    int64_t n_panels; /* of one part */
    int waits;        /* not to be packed now: it lies packed elsewhere, or is cold */
    size_t size_bytes, begin, panel_bytes, row_bytes;
    qn_mlx_row_bytes mlx; /* where parts have scales */
} placed;

typedef struct {
    const qn_kernels *kernels;
    int64_t n;
    placed *weights; /* by rising begin */
    char *block;
    size_t total;
    char *joined; /* QN_PANEL rows for each worker, of matrices whose rows are gathered */
    size_t joined_bytes;
    atomic_size_t next; /* span */
} pack_job;

static qn_status place(const qn_weight *w, placed *out, size_t *bytes)
{
    placed p = {.w = w, .n_panels = (w->n_out + QN_PANEL - 1) / QN_PANEL};
    p.panel_bytes = qn_pack_panel_bytes(w->dtype, w->n_in);
    if (!p.panel_bytes)
        return qn_fail(QN_E_UNSUPPORTED, "no compute layout for %s with %lld columns",
                       qn_dtype_name(w->dtype), (long long)w->n_in);
    if (w->transposed && qn_type_is_quantised(w->dtype))
        return qn_fail(QN_E_UNSUPPORTED, "a transposed matrix of %s", qn_dtype_name(w->dtype));
    size_t total;
    if (!qn_type_bytes(w->dtype, w->n_in, &p.row_bytes) ||
        !qn_mul_size(p.panel_bytes, (size_t)p.n_panels, &total) ||
        !qn_mul_size(total, (size_t)w->n_parts, &total))
        return qn_fail(QN_E_ARG, "a weight of %lld x %lld is too large", (long long)w->n_out,
                       (long long)w->n_in);
    if (w->n_parts && w->parts && w->parts[0].scales) p.mlx = qn_mlx_row(w->dtype, w->n_in);
    *out = p;
    *bytes = total;
    return QN_OK;
}

qn_status qn_cpu_weight_bytes(qn_device *d, const qn_weight *w, size_t *out)
{
    placed p;
    return place(w, &p, out);
}

/* ---- packing ------------------------------------------------------------------------------------------ */

/* Row i of a matrix among those of its part, and how many there are. */
static int64_t row_in_part(const qn_weight *w, int64_t i)
{
    return w->rows.step ? w->rows.first + i * w->rows.step : i;
}

static int64_t part_rows(const qn_weight *w)
{
    return w->rows.step ? w->rows.stored : w->n_out;
}

/* Rows [first, first + n) of a part whose rows do not lie one after the other: MLX's are of several tensors,
 * those of a transposed one are its columns, or there are others between them. */
static void gather_rows(const placed *at, const qn_weight_part *m, int64_t first, int64_t n, char *rows)
{
    const qn_weight *w = at->w;
    const char *data = m->data;
    for (int64_t r = 0; r < n && !w->transposed; r++, rows += at->row_bytes) {
        int64_t i = row_in_part(w, first + r);
        if (m->scales)
            qn_mlx_join(w->dtype, w->n_in, data, m->scales, m->biases, i, rows);
        else
            memcpy(rows, data + (size_t)i * at->row_bytes, at->row_bytes);
    }
    size_t each = at->row_bytes / (size_t)w->n_in;
    for (int64_t k = 0; k < w->n_in && w->transposed; k++) {
        const char *line = data + (size_t)(k * part_rows(w)) * each;
        for (int64_t r = 0; r < n; r++)
            memcpy(rows + (size_t)r * at->row_bytes + (size_t)k * each,
                   line + (size_t)row_in_part(w, first + r) * each, each);
    }
}

static int is_gathered(const qn_weight *w)
{
    return w->transposed || w->rows.step || w->parts[0].scales;
}

/* Room for QN_PANEL rows that pack_panels may need. */
static size_t gathered_bytes(const placed *at)
{
    const qn_weight *w = at->w;
    return is_gathered(w) ? QN_PANEL * at->row_bytes : 0;
}

/* Panels [p, q) of one part. out: the weight's first panel. */
static void pack_panels(const qn_kernels *kernels, const placed *at, int64_t i_part, int64_t p, int64_t q,
                        char *out, char *rows)
{
    const qn_weight *w = at->w;
    const qn_weight_part *m = &w->parts[i_part];
    const char *data = m->data, *scales = m->scales, *biases = m->biases;
    size_t begin = (size_t)p * QN_PANEL, end = (size_t)(q * QN_PANEL < w->n_out ? q * QN_PANEL : w->n_out);
    out += (size_t)(i_part * at->n_panels) * at->panel_bytes;
    if (!is_gathered(w)) {
        kernels->pack(w->dtype, w->n_in, w->n_out, data, p, q, out);
        qn_drop_pages(data + begin * at->row_bytes, (end - begin) * at->row_bytes);
        return;
    }
    for (int64_t i = p; i < q; i++) {
        int64_t first = i * QN_PANEL, n = w->n_out - first < QN_PANEL ? w->n_out - first : QN_PANEL;
        gather_rows(at, m, first, n, rows);
        kernels->pack(w->dtype, w->n_in, n, rows, 0, 1, out + (size_t)i * at->panel_bytes);
    }
    if (w->transposed) return; /* all of its pages are looked at until the end */
    begin = (size_t)row_in_part(w, (int64_t)begin);
    end = (size_t)row_in_part(w, (int64_t)end - 1) + 1;
    size_t row_bytes = scales ? at->mlx.data : at->row_bytes;
    qn_drop_pages(data + begin * row_bytes, (end - begin) * row_bytes);
    if (!scales) return;
    qn_drop_pages(scales + begin * at->mlx.scales, (end - begin) * at->mlx.scales);
    if (biases) qn_drop_pages(biases + begin * at->mlx.biases, (end - begin) * at->mlx.biases);
}

/* The panels that begin in bytes [begin, end) of the block. */
static void pack_span(const pack_job *j, size_t begin, size_t end, char *rows)
{
    int64_t low = 0, high = j->n; /* the last weight that begins at or before begin */
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (j->weights[middle].begin <= begin)
            low = middle;
        else
            high = middle;
    }
    for (; low < j->n && j->weights[low].begin < end; low++) {
        const placed *at = &j->weights[low];
        if (at->waits) continue;
        size_t from = begin > at->begin ? begin - at->begin : 0, to = end - at->begin;
        int64_t n = at->w->n_parts * at->n_panels,
                p = (int64_t)((from + at->panel_bytes - 1) / at->panel_bytes),
                q = (int64_t)((to + at->panel_bytes - 1) / at->panel_bytes);
        if (q > n) q = n;
        while (p < q) {
            int64_t part = p / at->n_panels, first = part * at->n_panels,
                    last = q - first < at->n_panels ? q - first : at->n_panels;
            pack_panels(j->kernels, at, part, p - first, last, j->block + at->begin, rows);
            p = first + last;
        }
    }
}

static void pack_share(void *arg, int thread, int n_threads)
{
    pack_job *j = arg;
    char *rows = j->joined ? j->joined + (size_t)thread * j->joined_bytes : NULL;
    for (;;) {
        size_t begin = SPAN_BYTES * atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed);
        if (begin >= j->total) return;
        pack_span(j, begin, begin + SPAN_BYTES, rows);
    }
}

/* ---- cold weights ------------------------------------------------------------------------------------- */

enum { COLD, PACKING, READY };

struct qn_cpu_cold {
    qn_weight w;
    placed at;
    atomic_uchar *panels; /* [n_parts][n_panels] */
};

static qn_status cold_new(const placed *at, qn_cpu_cold **out)
{
    size_t n = (size_t)at->w->n_parts;
    qn_cpu_cold *c = qn_calloc(1, sizeof *c);
    qn_weight_part *parts = qn_alloc_array(n, sizeof *parts);
    atomic_uchar *panels = qn_calloc(n * (size_t)at->n_panels, sizeof *panels);
    if (!c || !parts || !panels) {
        qn_free(c);
        qn_free(parts);
        qn_free(panels);
        return QN_E_NOMEM;
    }
    memcpy(parts, at->w->parts, n * sizeof *parts);
    c->w = *at->w;
    c->w.parts = parts;
    c->at = *at;
    c->at.w = &c->w;
    c->panels = panels;
    *out = c;
    return QN_OK;
}

void qn_cpu_cold_free(qn_cpu_cold *c)
{
    if (!c) return;
    qn_free((void *)(uintptr_t)c->w.parts);
    qn_free(c->panels);
    qn_free(c);
}

size_t qn_cpu_warm_scratch_bytes(const qn_buffer *b)
{
    const qn_cpu_cold *c = b->cold;
    return c ? gathered_bytes(&c->at) : 0;
}

void qn_cpu_warm(const qn_kernels *kernels, const qn_buffer *b, int64_t part, int64_t begin, int64_t end,
                 char *scratch)
{
    const qn_cpu_cold *c = b->cold;
    if (!c) return;
    atomic_uchar *panels = c->panels + part * c->at.n_panels;
    for (int64_t next; begin < end; begin = next) {
        for (next = begin; next < end; next++) { /* as many as nobody has, packed in one go */
            unsigned char cold = COLD;
            if (!atomic_compare_exchange_strong_explicit(&panels[next], &cold, PACKING, memory_order_acquire,
                                                         memory_order_acquire))
                break;
        }
        if (begin < next) pack_panels(kernels, &c->at, part, begin, next, b->data, scratch);
        for (; begin < next; begin++) atomic_store_explicit(&panels[begin], READY, memory_order_release);
        /* Another step of the same group may be packing this one. */
        while (next < end && atomic_load_explicit(&panels[next], memory_order_acquire) == PACKING)
            sched_yield();
        while (next < end && atomic_load_explicit(&panels[next], memory_order_acquire) == READY) next++;
    }
}

/* ---- places in the block ------------------------------------------------------------------------------ */

static qn_status place_all(pack_job *j, const qn_weight *weights)
{
    for (int64_t i = 0; i < j->n; i++) {
        size_t bytes = 0, end = 0;
        QN_TRY(place(&weights[i], &j->weights[i], &bytes));
        j->weights[i].begin = j->total;
        j->weights[i].size_bytes = bytes;
        j->weights[i].waits = weights[i].packed || weights[i].cold;
        if (weights[i].packed) continue;
        if (!qn_add_size(bytes, ALIGN_BYTES - 1, &end) || !qn_add_size(j->total, end, &j->total))
            return qn_fail(QN_E_ARG, "weights of %lld x %lld are too many", (long long)weights[i].n_out,
                           (long long)weights[i].n_in);
        j->total = j->total / ALIGN_BYTES * ALIGN_BYTES;
        size_t rows = weights[i].cold ? 0 : gathered_bytes(&j->weights[i]);
        if (rows > j->joined_bytes) j->joined_bytes = rows;
    }
    /* The system puts maps of whole large pages where large pages begin. */
    if (j->total >= SPAN_BYTES && !qn_add_size(j->total, SPAN_BYTES - 1, &j->total))
        return qn_fail(QN_E_ARG, "the weights are too many");
    if (j->total >= SPAN_BYTES) j->total = j->total / SPAN_BYTES * SPAN_BYTES;
    return QN_OK;
}

/* Hands the block out in parts, which hold it from then on; what lies packed elsewhere is in the ledger too.
 */
static qn_status cut(const pack_job *j, qn_device *d, qn_buffer *block, qn_buffer **out)
{
    for (int64_t i = 0; i < j->n; i++) {
        qn_buffer *b = qn_calloc(1, sizeof *b);
        if (!b) {
            while (i) qn_buffer_release(out[--i]);
            return QN_E_NOMEM;
        }
        const placed *at = &j->weights[i];
        atomic_init(&b->references, 1);
        b->device = qn_device_retain(d);
        b->size_bytes = at->size_bytes;
        b->entry = QN_LEDGER_WEIGHTS;
        b->layout = QN_CPU_LAYOUT_PANELS;
        out[i] = b;
        if (!at->w->packed) {
            b->data = j->block + at->begin;
            b->block = qn_buffer_retain(block);
            qn_cpu_cold *cold = NULL;
            if (at->w->cold && cold_new(at, &cold) != QN_OK) {
                for (i++; i;) qn_buffer_release(out[--i]);
                return QN_E_NOMEM;
            }
            b->cold = cold;
            continue;
        }
        b->data = (void *)(uintptr_t)at->w->packed;
        b->borrowed = 1;
        qn_status status = qn_ledger_reserve(d->ledger, b->entry, b->size_bytes);
        if (status != QN_OK) {
            b->size_bytes = 0;
            for (i++; i;) qn_buffer_release(out[--i]);
            return status;
        }
    }
    return QN_OK;
}

qn_status qn_cpu_import_weights(qn_device *base, int64_t n, const qn_weight *weights, qn_buffer **out)
{
    qn_cpu *d = (qn_cpu *)base;
    pack_job j = {.kernels = d->kernels, .n = n};
    qn_buffer *block = NULL;
    qn_status status = QN_E_NOMEM;
    atomic_init(&j.next, 0);
    j.weights = qn_calloc((size_t)n, sizeof *j.weights);
    if (j.weights) status = place_all(&j, weights);
    if (status == QN_OK && j.joined_bytes) {
        j.joined = qn_alloc_array((size_t)qn_pool_threads(d->pool), j.joined_bytes);
        if (!j.joined) status = QN_E_NOMEM;
    }
    if (status == QN_OK && j.total) status = qn_host_alloc(base, j.total, QN_LEDGER_WEIGHTS, &block);
    if (status != QN_OK) goto out;
    if (block) j.block = block->data;
    status = cut(&j, base, block, out);
    if (status == QN_OK && block) qn_pool_run(d->pool, pack_share, &j);
out:
    qn_buffer_release(block);
    qn_free(j.joined);
    qn_free(j.weights);
    return status;
}

#include <stdatomic.h>
#include <string.h>

#include "base/checked.h"
#include "base/mem.h"
#include "device/cpu/cpu.h"
#include "quant/mlx.h"
#include "quant/types.h"

/* All weights of a model lie in one block, so that large pages hold them however small each is. Workers take
 * spans of the block in turn: large pages that nobody else fills, so that each is cleared once. Behind a span
 * the source's pages are dropped, so that file and packed copy are never resident together. */
enum { SPAN_BYTES = 2 << 20, ALIGN_BYTES = 64 };

/* A weight and its place in the block. */
typedef struct {
    const qn_weight *w;
    int64_t n_panels; /* of one part; 0: it lies packed elsewhere */
    size_t size_bytes, begin, panel_bytes, row_bytes;
    qn_mlx_row_bytes mlx; /* where parts have scales */
} placed;

typedef struct {
    const qn_kernels *kernels;
    int64_t n;
    placed *weights; /* by rising begin */
    char *block;
    size_t total;
    char *joined; /* QN_PANEL rows for each worker, of matrices that lie in several tensors */
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
    if (w->n_parts > 1 && w->n_out % QN_PANEL)
        return qn_fail(QN_E_UNSUPPORTED,
                       "a weight of %lld parts needs a multiple of %d rows in each, not %lld",
                       (long long)w->n_parts, QN_PANEL, (long long)w->n_out);
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

/* Panels [p, q) of a matrix of MLX's: its rows are joined first. */
static void pack_joined(const pack_job *j, const placed *at, const qn_weight_part *m, int64_t p, int64_t q,
                        char *rows, char *out)
{
    const qn_weight *w = at->w;
    for (int64_t i = p; i < q; i++) {
        int64_t first = i * QN_PANEL, n = w->n_out - first < QN_PANEL ? w->n_out - first : QN_PANEL;
        for (int64_t r = 0; r < n; r++)
            qn_mlx_join(w->dtype, w->n_in, m->data, m->scales, m->biases, first + r,
                        rows + (size_t)r * at->row_bytes);
        j->kernels->pack(w->dtype, w->n_in, n, rows, 0, 1, out + (size_t)i * at->panel_bytes);
    }
}

/* Panels [p, q) of one part. */
static void pack_panels(const pack_job *j, const placed *at, int64_t i_part, int64_t p, int64_t q, char *rows)
{
    const qn_weight *w = at->w;
    const qn_weight_part *m = &w->parts[i_part];
    const char *data = m->data, *scales = m->scales, *biases = m->biases;
    char *out = j->block + at->begin + (size_t)(i_part * at->n_panels) * at->panel_bytes;
    size_t begin = (size_t)p * QN_PANEL, end = (size_t)(q * QN_PANEL < w->n_out ? q * QN_PANEL : w->n_out);
    if (!scales) {
        j->kernels->pack(w->dtype, w->n_in, w->n_out, data, p, q, out);
        qn_drop_pages(data + begin * at->row_bytes, (end - begin) * at->row_bytes);
        return;
    }
    pack_joined(j, at, m, p, q, rows, out);
    qn_drop_pages(data + begin * at->mlx.data, (end - begin) * at->mlx.data);
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
        size_t from = begin > at->begin ? begin - at->begin : 0, to = end - at->begin;
        int64_t n = at->w->n_parts * at->n_panels,
                p = (int64_t)((from + at->panel_bytes - 1) / at->panel_bytes),
                q = (int64_t)((to + at->panel_bytes - 1) / at->panel_bytes);
        if (q > n) q = n;
        while (p < q) {
            int64_t part = p / at->n_panels, first = part * at->n_panels,
                    last = q - first < at->n_panels ? q - first : at->n_panels;
            pack_panels(j, at, part, p - first, last, rows);
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

/* ---- places in the block ------------------------------------------------------------------------------ */

static qn_status place_all(pack_job *j, const qn_weight *weights)
{
    for (int64_t i = 0; i < j->n; i++) {
        size_t bytes = 0, end = 0;
        QN_TRY(place(&weights[i], &j->weights[i], &bytes));
        j->weights[i].begin = j->total;
        j->weights[i].size_bytes = bytes;
        if (weights[i].packed) {
            j->weights[i].n_panels = 0;
            continue;
        }
        if (!qn_add_size(bytes, ALIGN_BYTES - 1, &end) || !qn_add_size(j->total, end, &j->total))
            return qn_fail(QN_E_ARG, "weights of %lld x %lld are too many", (long long)weights[i].n_out,
                           (long long)weights[i].n_in);
        j->total = j->total / ALIGN_BYTES * ALIGN_BYTES;
        size_t rows = QN_PANEL * j->weights[i].row_bytes;
        if (weights[i].parts[0].scales && rows > j->joined_bytes) j->joined_bytes = rows;
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
        b->device = d;
        b->size_bytes = at->size_bytes;
        b->entry = QN_LEDGER_WEIGHTS;
        b->layout = QN_CPU_LAYOUT_PANELS;
        out[i] = b;
        if (!at->w->packed) {
            b->data = j->block + at->begin;
            b->block = qn_buffer_retain(block);
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
    if (status == QN_OK && j.total) status = qn_cpu_alloc(base, j.total, QN_LEDGER_WEIGHTS, &block);
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

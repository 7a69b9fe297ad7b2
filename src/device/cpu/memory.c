#include <string.h>
#include <sys/mman.h>

#include "base/checked.h"
#include "base/mem.h"
#include "device/cpu/cpu.h"
#include "quant/mlx.h"
#include "quant/types.h"

/* Buffers of this size and more come straight from the system: untouched pages cost nothing, and large pages
 * help. */
enum { MAP_BYTES = 1 << 20 };

qn_status qn_cpu_alloc(qn_device *d, size_t size_bytes, qn_ledger_entry entry, qn_buffer **out)
{
    qn_buffer *b = qn_calloc(1, sizeof *b);
    if (!b) return QN_E_NOMEM;
    qn_status status = qn_ledger_reserve(d->ledger, entry, size_bytes);
    if (status != QN_OK) {
        qn_free(b);
        return status;
    }
    if (size_bytes >= MAP_BYTES) {
        b->data = qn_alloc_mapped(size_bytes);
    } else {
        b->data = qn_calloc(1, size_bytes);
    }
    if (!b->data) {
        qn_ledger_release(d->ledger, entry, size_bytes);
        qn_free(b);
        return qn_fail_nomem(size_bytes);
    }
    atomic_init(&b->references, 1);
    b->device = d;
    b->size_bytes = size_bytes;
    b->entry = entry;
    *out = b;
    return QN_OK;
}

void qn_cpu_free(qn_device *d, qn_buffer *b)
{
    if (!b->mapped) {
        if (b->size_bytes >= MAP_BYTES)
            qn_free_mapped(b->data, b->size_bytes);
        else
            qn_free(b->data);
        qn_ledger_release(d->ledger, b->entry, b->size_bytes);
    }
    qn_free(b);
}

/* ---- packing ------------------------------------------------------------------------------------------ */

typedef struct {
    const qn_kernels *kernels;
    qn_dtype dtype;
    int64_t n_in, n_out, n_panels, n_parts; /* n_out and n_panels of one part */
    const qn_weight_part *parts;
    size_t row_bytes, part_bytes; /* part_bytes: packed */
    qn_mlx_row_bytes mlx;         /* where parts have scales */
    char *joined;                 /* for them: QN_PANEL rows for each worker */
    char *out;
} pack_job;

/* Source pages are dropped every few MiB behind the packing, so that file and packed copy are never resident
 * together. */
static void drop_pages(const char *from, const char *to)
{
    uintptr_t page = 4096, a = ((uintptr_t)from + page - 1) & ~(page - 1), b = (uintptr_t)to & ~(page - 1);
    if (b > a) madvise((void *)a, b - a, MADV_DONTNEED);
}

/* Panels [p, q) of a matrix of MLX's: its rows are joined first. */
static void pack_joined(const pack_job *j, const qn_weight_part *m, int64_t p, int64_t q, int thread,
                        char *out)
{
    char *rows = j->joined + (size_t)thread * QN_PANEL * j->row_bytes;
    size_t panel = qn_pack_panel_bytes(j->dtype, j->n_in);
    for (int64_t i = p; i < q; i++) {
        int64_t first = i * QN_PANEL, n = j->n_out - first < QN_PANEL ? j->n_out - first : QN_PANEL;
        for (int64_t r = 0; r < n; r++)
            qn_mlx_join(j->dtype, j->n_in, m->data, m->scales, m->biases, first + r,
                        rows + (size_t)r * j->row_bytes);
        j->kernels->pack(j->dtype, j->n_in, n, rows, 0, 1, out + (size_t)i * panel);
    }
    const char *data = m->data, *scales = m->scales, *biases = m->biases;
    size_t begin = (size_t)p * QN_PANEL, end = (size_t)(q * QN_PANEL < j->n_out ? q * QN_PANEL : j->n_out);
    drop_pages(data + begin * j->mlx.data, data + end * j->mlx.data);
    drop_pages(scales + begin * j->mlx.scales, scales + end * j->mlx.scales);
    if (biases) drop_pages(biases + begin * j->mlx.biases, biases + end * j->mlx.biases);
}

static void pack_share(void *arg, int thread, int n_threads)
{
    const pack_job *j = arg;
    enum { DROP_BYTES = 4 << 20 };
    int64_t begin, end, panels = DROP_BYTES / (int64_t)(j->row_bytes * QN_PANEL) + 1;
    qn_pool_share(j->n_panels, 1, thread, n_threads, &begin, &end);
    for (int64_t i = 0; i < j->n_parts; i++) {
        const char *bytes = j->parts[i].data;
        char *out = j->out + (size_t)i * j->part_bytes;
        for (int64_t p = begin; p < end; p += panels) {
            int64_t q = p + panels < end ? p + panels : end,
                    last = q * QN_PANEL < j->n_out ? q * QN_PANEL : j->n_out;
            if (j->joined) {
                pack_joined(j, &j->parts[i], p, q, thread, out);
                continue;
            }
            j->kernels->pack(j->dtype, j->n_in, j->n_out, bytes, p, q, out);
            drop_pages(bytes + (size_t)p * QN_PANEL * j->row_bytes, bytes + (size_t)last * j->row_bytes);
        }
    }
}

qn_status qn_cpu_import_weight(qn_device *base, qn_dtype dtype, int64_t n_parts, const qn_weight_part *parts,
                               int64_t n_out, int64_t n_in, qn_buffer **out, int *packed)
{
    qn_cpu *d = (qn_cpu *)base;
    size_t panel = qn_pack_panel_bytes(dtype, n_in), total;
    pack_job j = {.kernels = d->kernels,
                  .dtype = dtype,
                  .n_in = n_in,
                  .n_out = n_out,
                  .n_panels = (n_out + QN_PANEL - 1) / QN_PANEL,
                  .n_parts = n_parts,
                  .parts = parts};
    if (!panel)
        return qn_fail(QN_E_UNSUPPORTED, "no compute layout for %s with %lld columns", qn_dtype_name(dtype),
                       (long long)n_in);
    if (n_parts > 1 && n_out % QN_PANEL)
        return qn_fail(QN_E_UNSUPPORTED,
                       "a weight of %lld parts needs a multiple of %d rows in each, not %lld",
                       (long long)n_parts, QN_PANEL, (long long)n_out);
    if (!qn_type_bytes(dtype, n_in, &j.row_bytes) || !qn_mul_size(panel, (size_t)j.n_panels, &j.part_bytes) ||
        !qn_mul_size(j.part_bytes, (size_t)n_parts, &total))
        return qn_fail(QN_E_ARG, "a weight of %lld x %lld is too large", (long long)n_out, (long long)n_in);
    qn_buffer *b;
    if (parts[0].scales) {
        j.mlx = qn_mlx_row(dtype, n_in);
        j.joined = qn_alloc_array((size_t)qn_pool_threads(d->pool) * QN_PANEL, j.row_bytes);
        if (!j.joined) return QN_E_NOMEM;
    }
    qn_status status = qn_cpu_alloc(base, total, QN_LEDGER_WEIGHTS, &b);
    if (status != QN_OK) {
        qn_free(j.joined);
        return status;
    }
    if (total >= MAP_BYTES) madvise(b->data, total, MADV_HUGEPAGE);
    b->layout = QN_CPU_LAYOUT_PANELS;
    j.out = b->data;
    qn_pool_run(d->pool, pack_share, &j);
    qn_free(j.joined);
    *packed = 1;
    *out = b;
    return QN_OK;
}

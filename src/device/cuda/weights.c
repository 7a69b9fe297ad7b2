/* Weights: rows of mapped files go through locked memory to the card, which packs them. While the card packs one
 * piece the host's threads read the next. */
#include "device/cuda/cuda.h"
#include "device/weight_use.h"

#include <string.h>

#include "base/mem.h"
#include "quant/mlx.h"
#include "quant/types.h"

enum { STAGES = 3 };
#define STAGE_BYTES ((size_t)16 << 20)

/* ---- sizes --------------------------------------------------------------------------------------------- */

static qn_status plan_of(const qn_weight *w, qn_cuda_weight *out)
{
    size_t row_bytes;
    if (w->n_in < 1 || w->n_out < 1 || w->n_parts < 1 || w->n_in > INT32_MAX || w->n_out > INT32_MAX ||
        w->n_parts > INT32_MAX || !qn_type_bytes(w->dtype, w->n_in, &row_bytes) ||
        !qn_cuda_weight_plan(w->dtype, w->n_parts, w->n_out, w->n_in, out))
        return qn_fail(QN_E_UNSUPPORTED,
                       "device cuda has no layout for a matrix of %s with %lld rows and %lld columns",
                       qn_dtype_name(w->dtype), (long long)w->n_out, (long long)w->n_in);
    if (w->transposed && qn_type_is_quantised(w->dtype))
        return qn_fail(QN_E_UNSUPPORTED, "a transposed matrix of %s", qn_dtype_name(w->dtype));
    return QN_OK;
}

static size_t bytes_of(const qn_cuda_weight *w)
{
    const size_t data = ((size_t)w->n_parts * qn_cuda_part_bytes(w) + 255) / 256 * 256;
    return data + qn_cuda_factor_bytes(w);
}

qn_status qn_cuda_weight_bytes(qn_device *d, const qn_weight *w, size_t *out)
{
    qn_cuda_weight plan;
    QN_TRY(plan_of(w, &plan));
    *out = bytes_of(&plan);
    return QN_OK;
}

/* ---- pieces of a file ---------------------------------------------------------------------------------- */

typedef struct {
    qn_cuda *d;
    size_t stage_bytes;
    char *host[STAGES], *card[STAGES];
    int next; /* stage */
    int n_begun;
} ring;

static void ring_close(ring *r)
{
    qn_cuda *d = r->d;
    d->shim->wait(d->context);
    for (int i = 0; i < STAGES; i++) {
        qn_cuda_give_host(d, r->stage_bytes, QN_LEDGER_SCRATCH, r->host[i]);
        qn_cuda_give(d, r->stage_bytes, QN_LEDGER_SCRATCH, r->card[i]);
    }
}

static qn_status ring_open(ring *r, qn_cuda *d, size_t stage_bytes)
{
    *r = (ring){.d = d, .stage_bytes = stage_bytes};
    qn_status status = QN_OK;
    for (int i = 0; i < STAGES && status == QN_OK; i++) {
        void *host = NULL, *card = NULL;
        status = qn_cuda_take_host(d, stage_bytes, QN_LEDGER_SCRATCH, &host);
        if (status == QN_OK) status = qn_cuda_take(d, stage_bytes, QN_LEDGER_SCRATCH, &card);
        r->host[i] = host;
        r->card[i] = card;
    }
    if (status != QN_OK) ring_close(r);
    return status;
}

/* Rows [first, first + n) of a part. Each tensor's rows lie one after the other in the stage. */
typedef struct {
    const qn_weight *w;
    const qn_weight_part *part;
    int64_t first, n;
    size_t row[3], at[3]; /* bytes of a row of each tensor, and where it begins in the stage */
    char *to;
} piece;

enum { DATA, SCALES, BIASES, READ_ROWS = 16 };

static int64_t row_in_part(const qn_weight *w, int64_t i)
{
    return w->rows.step ? w->rows.first + i * w->rows.step : i;
}

static int64_t part_rows(const qn_weight *w)
{
    return w->rows.step ? w->rows.stored : w->n_out;
}

/* READ_ROWS rows; of a transposed part, whose columns they are, they become rows. */
static void read_rows(void *user, int64_t i)
{
    const piece *p = user;
    const qn_weight *w = p->w;
    const int64_t begin = i * READ_ROWS, end = begin + READ_ROWS < p->n ? begin + READ_ROWS : p->n;
    if (w->transposed) {
        const size_t each = p->row[DATA] / (size_t)w->n_in;
        for (int64_t k = 0; k < w->n_in; k++) {
            const char *line = (const char *)p->part->data + (size_t)(k * part_rows(w)) * each;
            for (int64_t r = begin; r < end; r++)
                memcpy(p->to + (size_t)r * p->row[DATA] + (size_t)k * each,
                       line + (size_t)row_in_part(w, p->first + r) * each, each);
        }
        return;
    }
    const char *from[3] = {p->part->data, p->part->scales, p->part->biases};
    for (int t = 0; t < 3; t++) {
        if (!p->row[t]) continue;
        for (int64_t r = begin; r < end; r++)
            memcpy(p->to + p->at[t] + (size_t)r * p->row[t],
                   from[t] + (size_t)row_in_part(w, p->first + r) * p->row[t], p->row[t]);
    }
}

static void row_bytes_of(const qn_weight *w, size_t row[3])
{
    row[SCALES] = row[BIASES] = 0;
    if (w->parts[0].scales) {
        const qn_mlx_row_bytes m = qn_mlx_row(w->dtype, w->n_in);
        row[DATA] = m.data;
        row[SCALES] = m.scales;
        row[BIASES] = m.biases;
    } else {
        qn_type_bytes(w->dtype, w->n_in, &row[DATA]);
    }
}

/* The file's pages are not needed any longer; those of a matrix of which others take rows too go with the file. */
static void drop(const piece *p)
{
    const qn_weight *w = p->w;
    if (w->transposed || w->rows.step) return;
    const char *from[3] = {p->part->data, p->part->scales, p->part->biases};
    for (int t = 0; t < 3; t++)
        if (p->row[t]) qn_drop_pages(from[t] + (size_t)p->first * p->row[t], (size_t)p->n * p->row[t]);
}

static qn_status send(ring *r, piece *p, const qn_cuda_weight *to, int64_t i_part)
{
    const qn_cuda *d = r->d;
    const int stage = r->next;
    /* a stage is free again when what was begun with it is done */
    if (r->n_begun >= STAGES - 1) {
        QN_TRY(qn_cuda_said(d, d->shim->wait(d->context)));
        r->n_begun = 0;
    }
    p->to = r->host[stage];
    qn_pool_each(d->pool, (p->n + READ_ROWS - 1) / READ_ROWS, read_rows, p);
    const size_t total = p->at[BIASES] + (size_t)p->n * p->row[BIASES];
    QN_TRY(qn_cuda_said(d, d->shim->copy(d->context, r->card[stage], r->host[stage], total)));
    const uint8_t *card = (const uint8_t *)r->card[stage];
    const qn_cuda_raw raw = {.data = card,
                             .scales = p->row[SCALES] ? card + p->at[SCALES] : NULL,
                             .biases = p->row[BIASES] ? card + p->at[BIASES] : NULL,
                             .row_bytes = p->row[DATA],
                             .scale_row_bytes = p->row[SCALES]};
    QN_TRY(qn_cuda_said(d, d->shim->pack(d->context, to, i_part, p->first, p->n, &raw)));
    drop(p);
    r->next = (stage + 1) % STAGES;
    r->n_begun++;
    return QN_OK;
}

/* Whole panels that a stage holds; a row must fit. */
static int64_t rows_of_stage(const size_t row[3], size_t stage_bytes)
{
    const int64_t n = (int64_t)(stage_bytes / (row[DATA] + row[SCALES] + row[BIASES] + 1)) / QN_CUDA_PANEL;
    return n * QN_CUDA_PANEL;
}

static size_t stage_bytes_for(int64_t n, const qn_weight *weights)
{
    size_t panel = 0, part = 0;
    for (int64_t i = 0; i < n; i++) {
        size_t row[3];
        row_bytes_of(&weights[i], row);
        const size_t each = (row[DATA] + row[SCALES] + row[BIASES] + 1) * QN_CUDA_PANEL,
                     n_panels = ((size_t)weights[i].n_out + QN_CUDA_PANEL - 1) / QN_CUDA_PANEL;
        if (each > panel) panel = each;
        if (each * n_panels > part) part = each * n_panels;
    }
    const size_t most = part < STAGE_BYTES ? part : STAGE_BYTES;
    return (most > panel ? most : panel) + 64;
}

static qn_status pack_all(ring *r, const qn_weight *w, const qn_cuda_weight *to, size_t stage_bytes)
{
    piece p = {.w = w};
    row_bytes_of(w, p.row);
    const int64_t most = rows_of_stage(p.row, stage_bytes);
    for (int64_t i = 0; i < w->n_parts; i++) {
        p.part = &w->parts[i];
        for (p.first = 0; p.first < w->n_out; p.first += p.n) {
            p.n = w->n_out - p.first < most ? w->n_out - p.first : most;
            p.at[SCALES] = (size_t)p.n * p.row[DATA];
            p.at[BIASES] = p.at[SCALES] + (size_t)p.n * p.row[SCALES];
            QN_TRY(send(r, &p, to, i));
        }
    }
    return QN_OK;
}

/* ---- importing ----------------------------------------------------------------------------------------- */

static qn_status new_weight(qn_cuda *d, const qn_weight *w, qn_buffer **out)
{
    qn_buffer *b = qn_calloc(1, sizeof *b);
    qn_cuda_weight *to = qn_calloc(1, sizeof *to);
    void *memory = NULL;
    qn_status status = b && to ? plan_of(w, to) : QN_E_NOMEM;
    const size_t size_bytes = status == QN_OK ? bytes_of(to) : 0;
    if (status == QN_OK) status = qn_cuda_take(d, size_bytes, QN_LEDGER_WEIGHTS, &memory);
    if (status != QN_OK) {
        qn_free(to);
        qn_free(b);
        return status;
    }
    to->data = memory;
    if (qn_cuda_has_factors(to))
        to->factor = (float *)(void *)(to->data + (size_bytes - qn_cuda_factor_bytes(to)));
    atomic_init(&b->references, 1);
    b->device = qn_device_retain(&d->base);
    b->data = to;
    b->size_bytes = size_bytes;
    b->entry = QN_LEDGER_WEIGHTS;
    b->layout = QN_CUDA_LAYOUT_WEIGHT;
    *out = b;
    return QN_OK;
}

void qn_cuda_weight_free(qn_cuda *d, qn_buffer *b)
{
    qn_cuda_weight *w = b->data;
    qn_cuda_give(d, b->size_bytes, QN_LEDGER_WEIGHTS, w->data);
    qn_free(w);
}

qn_status qn_cuda_import_weights(qn_device *base, int64_t n, const qn_weight *weights, qn_buffer **out)
{
    qn_cuda *d = (qn_cuda *)base;
    const size_t stage_bytes = stage_bytes_for(n, weights);
    ring r;
    int64_t done = 0;
    QN_TRY(ring_open(&r, d, stage_bytes));
    qn_status status = QN_OK;
    for (; done < n && status == QN_OK; done += status == QN_OK) {
        status = new_weight(d, &weights[done], &out[done]);
        if (status != QN_OK) break;
        status = pack_all(&r, &weights[done], out[done]->data, stage_bytes);
        if (status != QN_OK) qn_buffer_release(out[done]);
    }
    if (status == QN_OK) status = qn_cuda_said(d, d->shim->wait(d->context));
    ring_close(&r);
    if (status != QN_OK)
        while (done) qn_buffer_release(out[--done]);
    return status;
}

/* ---- what reads a weight ------------------------------------------------------------------------------- */

static int is_whole(const qn_operand *o, int turned, const qn_cuda_weight *w)
{
    const int n = o->shape.n;
    return !o->offset && (n == 2 || n == 3) && qn_operand_in_order(o, turned) &&
           (n == 3 ? o->shape.dim[0] : 1) == w->n_parts && o->shape.dim[turned ? n - 1 : n - 2] == w->n_out &&
           o->shape.dim[turned ? n - 2 : n - 1] == w->n_in;
}

qn_status qn_cuda_check_weights(const qn_plan *plan)
{
    for (int i = 0; i < plan->n_steps; i++) {
        const qn_plan_step *s = &plan->steps[i];
        for (int k = 0; k < s->n_in; k++) {
            const qn_buffer *b = plan->slots[s->in[k].slot].buffer;
            if (!b || b->layout != QN_CUDA_LAYOUT_WEIGHT) continue;
            if (!qn_reads_weight(s->prim, k))
                return qn_fail(QN_E_UNSUPPORTED, "%s%s%s of a weight of the device", s->label,
                               *s->label ? ": " : "", qn_prim_get(s->prim)->name);
            if (!is_whole(&s->in[k], 0, b->data) &&
                !(s->prim == QN_PRIM_MATMUL && is_whole(&s->in[k], 1, b->data)))
                return qn_fail(QN_E_UNSUPPORTED, "%s%s%s by a part of a weight", s->label,
                               *s->label ? ": " : "", qn_prim_get(s->prim)->name);
        }
    }
    return QN_OK;
}

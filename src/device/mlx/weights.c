/* Weights as MLX multiplies them. Its own quantised types and plain ones are handed over as they lie; GGUF's
 * blocks are converted once, by all of the pool, to what gives the same numbers: affine groups where there
 * are such (quant/affine.h), else f32. What became of each type is counted, for whoever asks. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/mem.h"
#include "device/mlx/mlx.h"
#include "device/weight_use.h"
#include "quant/affine.h"
#include "quant/mlx.h"

/* ROWS: that are converted at a time; columns of a transposed matrix are read by as many. */
enum { ROWS = 16, DATA = 0, SCALES = 1, BIASES = 2 };

/* A weight and what it becomes. */
typedef struct {
    const qn_weight *w;
    qn_mlx_weight_spec spec;
    size_t row_bytes;   /* of a row as it lies */
    size_t row[3];      /* of one in data, scales and biases as they are handed over; 0: there are none */
    size_t given_bytes; /* of all rows of all three */
    size_t size_bytes;  /* and as MLX keeps them */
} plan;

/* ---- what becomes of a weight ------------------------------------------------------------------------- */

static void plan_plain(plan *p, qn_dtype dtype)
{
    const size_t each = dtype == QN_DTYPE_F32 ? 4 : 2;
    p->spec.kind = QN_MLX_PLAIN;
    p->spec.dtype = dtype;
    p->row[DATA] = (size_t)p->w->n_in * each;
    p->row[SCALES] = p->row[BIASES] = 0;
}

static void plan_affine(plan *p, qn_affine a)
{
    const size_t groups = (size_t)(p->w->n_in / a.group), each = a.scale == QN_DTYPE_F32 ? 4 : 2;
    p->spec.kind = QN_MLX_AFFINE;
    p->spec.bits = a.bits;
    p->spec.group = a.group;
    p->spec.dtype = a.scale;
    p->row[DATA] = (size_t)p->w->n_in * (size_t)a.bits / 8;
    p->row[SCALES] = p->row[BIASES] = groups * each;
}

static int is_fp4(qn_dtype dtype)
{
    return dtype == QN_DTYPE_MXFP4 || dtype == QN_DTYPE_NVFP4;
}

static void plan_fp4(plan *p)
{
    const qn_mlx_row_bytes row = qn_mlx_row(p->w->dtype, p->w->n_in);
    p->spec.kind = p->w->dtype == QN_DTYPE_MXFP4 ? QN_MLX_MXFP4 : QN_MLX_NVFP4;
    p->spec.bits = 4;
    p->spec.group = p->w->dtype == QN_DTYPE_MXFP4 ? 32 : 16;
    p->row[DATA] = row.data;
    p->row[SCALES] = row.scales;
}

/* By the rows' bytes: all of it. Groups of 16 are kept as groups of 32 (shim.h). */
static qn_status measure(plan *p)
{
    const qn_weight *w = p->w;
    const size_t row = p->row[DATA] + p->row[SCALES] + p->row[BIASES],
                 kept = row + (p->spec.kind == QN_MLX_AFFINE && p->spec.group == 16 ? p->row[DATA] : 0);
    size_t rows;
    if (qn_mul_size((size_t)w->n_out, (size_t)w->n_parts, &rows) && qn_mul_size(row, rows, &p->given_bytes) &&
        qn_mul_size(kept, rows, &p->size_bytes))
        return QN_OK;
    return qn_fail(QN_E_ARG, "a weight of %lld x %lld is too large", (long long)w->n_out, (long long)w->n_in);
}

/* exact 0: the type's own form cannot hold this one's numbers. */
static qn_status plan_of(const qn_weight *w, int exact, plan *out)
{
    plan p = {.w = w, .spec = {.n_parts = w->n_parts, .n_out = w->n_out, .n_in = w->n_in}};
    const int is_blocks = qn_type_is_quantised(w->dtype);
    if (w->packed)
        return qn_fail(QN_E_UNSUPPORTED, "packed weights belong to another device; mlx does not use any");
    if (w->transposed && is_blocks)
        return qn_fail(QN_E_UNSUPPORTED, "a transposed matrix of %s", qn_dtype_name(w->dtype));
    if (w->n_in < 1 || w->n_out < 1 || w->n_parts < 1 || w->n_in > INT32_MAX || w->n_out > INT32_MAX ||
        w->n_parts > INT32_MAX || !qn_type_bytes(w->dtype, w->n_in, &p.row_bytes) ||
        (w->dtype != QN_DTYPE_F32 && w->dtype != QN_DTYPE_F16 && w->dtype != QN_DTYPE_BF16 && !is_blocks))
        return qn_fail(QN_E_UNSUPPORTED, "MLX has no matrix of %s with %lld rows and %lld columns",
                       qn_dtype_name(w->dtype), (long long)w->n_out, (long long)w->n_in);
    const qn_affine own = qn_affine_of(w->dtype), turned = qn_affine_of_blocks(w->dtype);
    if (!is_blocks)
        plan_plain(&p, w->dtype);
    else if (own.bits)
        plan_affine(&p, own);
    else if (is_fp4(w->dtype) && exact)
        plan_fp4(&p);
    else if (turned.bits && exact)
        plan_affine(&p, turned);
    else
        plan_plain(&p, QN_DTYPE_F32);
    QN_TRY(measure(&p));
    *out = p;
    return QN_OK;
}

qn_status qn_mlx_weight_bytes(qn_device *d, const qn_weight *w, size_t *out)
{
    plan p;
    QN_TRY(plan_of(w, 1, &p));
    *out = p.size_bytes;
    return QN_OK;
}

/* ---- what reads a weight ------------------------------------------------------------------------------ */

/* All of a weight, as it is or turned; by its bytes, of either form that it may have become. */
static int is_whole(const qn_operand *o, int turned, const qn_buffer *b)
{
    const int n = o->shape.n;
    if (o->offset || (n != 2 && n != 3) || !qn_operand_in_order(o, turned)) return 0;
    const qn_weight w = {.dtype = o->dtype,
                         .n_parts = n == 3 ? o->shape.dim[0] : 1,
                         .n_out = o->shape.dim[turned ? n - 1 : n - 2],
                         .n_in = o->shape.dim[turned ? n - 2 : n - 1]};
    plan p;
    for (int exact = 0; exact < 2; exact++)
        if (plan_of(&w, exact, &p) == QN_OK && p.size_bytes == b->size_bytes) return 1;
    return 0;
}

qn_status qn_mlx_check_weights(const qn_plan *plan)
{
    for (int i = 0; i < plan->n_steps; i++) {
        const qn_plan_step *s = &plan->steps[i];
        for (int k = 0; k < s->n_in; k++) {
            const qn_buffer *b = plan->slots[s->in[k].slot].buffer;
            if (!b || b->layout != QN_MLX_LAYOUT_WEIGHT) continue;
            if (!qn_reads_weight(s->prim, k))
                return qn_fail(QN_E_UNSUPPORTED, "%s%s%s of a weight of the device", s->label,
                               *s->label ? ": " : "", qn_prim_get(s->prim)->name);
            if (!is_whole(&s->in[k], 0, b) && !(s->prim == QN_PRIM_MATMUL && is_whole(&s->in[k], 1, b)))
                return qn_fail(QN_E_UNSUPPORTED, "%s%s%s by a part of a weight", s->label,
                               *s->label ? ": " : "", qn_prim_get(s->prim)->name);
        }
    }
    return QN_OK;
}

/* ---- rows --------------------------------------------------------------------------------------------- */

typedef struct {
    const plan *p;
    qn_pool *pool;
    char *to[3];         /* rows of all parts, one after the other */
    atomic_int is_wrong; /* a number did not go into what the type becomes */
} conversion;

static int64_t row_in_part(const qn_weight *w, int64_t i)
{
    return w->rows.step ? w->rows.first + i * w->rows.step : i;
}

static int64_t part_rows(const qn_weight *w)
{
    return w->rows.step ? w->rows.stored : w->n_out;
}

/* Rows [first, first + n) of a transposed part, which are columns of it. */
static void turn(const plan *p, const char *data, int64_t first, int64_t n, char *to)
{
    const qn_weight *w = p->w;
    const size_t each = p->row_bytes / (size_t)w->n_in;
    for (int64_t k = 0; k < w->n_in; k++) {
        const char *line = data + (size_t)(k * part_rows(w)) * each;
        for (int64_t r = 0; r < n; r++)
            memcpy(to + (size_t)r * p->row_bytes + (size_t)k * each,
                   line + (size_t)row_in_part(w, first + r) * each, each);
    }
}

/* 1: none of the scales of a row of MXFP4 or NVFP4 blocks is one that stands for no number. */
static int has_numbers(qn_dtype dtype, const uint8_t *block, int64_t n_in)
{
    if (dtype == QN_DTYPE_NVFP4) {
        for (int64_t k = 0; k < n_in; k += 32, block += 18)
            if ((block[0] & 0x7f) == 0x7f || (block[1] & 0x7f) == 0x7f) return 0;
        return 1;
    }
    for (int64_t k = 0; k < n_in; k += 32, block += 17)
        if (*block == 255) return 0;
    return 1;
}

/* Row i of a part to where it belongs; 0: it cannot be said there. */
static int convert_row(const plan *p, const qn_weight_part *m, int64_t i, char *const to[3])
{
    const qn_weight *w = p->w;
    const int64_t j = row_in_part(w, i);
    if (m->scales) {
        memcpy(to[DATA], (const char *)m->data + (size_t)j * p->row[DATA], p->row[DATA]);
        memcpy(to[SCALES], (const char *)m->scales + (size_t)j * p->row[SCALES], p->row[SCALES]);
        if (p->row[BIASES])
            memcpy(to[BIASES], (const char *)m->biases + (size_t)j * p->row[BIASES], p->row[BIASES]);
        return 1;
    }
    const char *row = (const char *)m->data + (size_t)j * p->row_bytes;
    if (p->spec.kind == QN_MLX_PLAIN && w->dtype == p->spec.dtype) {
        memcpy(to[DATA], row, p->row_bytes);
        return 1;
    }
    if (p->spec.kind == QN_MLX_PLAIN) {
        const qn_type *type = qn_type_get(w->dtype);
        type->decode(type, row, w->n_in, (float *)(void *)to[DATA]);
        return 1;
    }
    if (qn_affine_of_blocks(w->dtype).bits)
        return qn_affine_from_blocks(w->dtype, w->n_in, row, to[DATA], to[SCALES], to[BIASES]);
    qn_mlx_split(w->dtype, w->n_in, row, 0, to[DATA], to[SCALES], to[BIASES]);
    return !is_fp4(w->dtype) || has_numbers(w->dtype, (const uint8_t *)row, w->n_in);
}

/* Rows [first, first + n) of a part. */
static void convert_rows(conversion *c, int64_t i_part, int64_t first, int64_t n)
{
    const plan *p = c->p;
    const qn_weight_part *m = &p->w->parts[i_part];
    char *to[3];
    for (int k = 0; k < 3; k++) to[k] = c->to[k] + (size_t)(i_part * p->w->n_out + first) * p->row[k];
    if (p->w->transposed) {
        turn(p, m->data, first, n, to[DATA]);
        return;
    }
    for (int64_t i = first; i < first + n; i++) {
        if (!convert_row(p, m, i, to)) atomic_store_explicit(&c->is_wrong, 1, memory_order_relaxed);
        for (int k = 0; k < 3; k++) to[k] += p->row[k];
    }
}

static void convert(void *arg, int thread, int n_threads)
{
    conversion *c = arg;
    const qn_weight *w = c->p->w;
    const int64_t per_part = (w->n_out + ROWS - 1) / ROWS;
    int64_t begin, end;
    qn_pool_share(w->n_parts * per_part, 1, thread, n_threads, &begin, &end);
    for (; begin < end; begin++) {
        const int64_t first = begin % per_part * ROWS, n = w->n_out - first < ROWS ? w->n_out - first : ROWS;
        convert_rows(c, begin / per_part, first, n);
    }
}

/* The file's pages are not needed any longer; those of a matrix of which others take rows too go with the
 * file. */
static void drop(const plan *p)
{
    const qn_weight *w = p->w;
    const size_t rows = (size_t)w->n_out;
    for (int64_t i = 0; i < w->n_parts && !w->rows.step; i++) {
        const qn_weight_part *m = &w->parts[i];
        qn_drop_pages(m->data, rows * (m->scales ? p->row[DATA] : p->row_bytes));
        if (m->scales) qn_drop_pages(m->scales, rows * p->row[SCALES]);
        if (m->scales && m->biases) qn_drop_pages(m->biases, rows * p->row[BIASES]);
    }
}

/* ---- importing ---------------------------------------------------------------------------------------- */

/* The parts lie as MLX wants them, one behind the other. */
static int lies_ready(const plan *p)
{
    const qn_weight *w = p->w;
    const qn_weight_part *m = w->parts;
    if (w->transposed || w->rows.step || (!m->scales && qn_type_is_quantised(w->dtype))) return 0;
    for (int64_t i = 1; i < w->n_parts; i++) {
        const size_t rows = (size_t)(i * w->n_out);
        if ((const char *)m[i].data != (const char *)m->data + rows * p->row[DATA]) return 0;
        if (m->scales && (const char *)m[i].scales != (const char *)m->scales + rows * p->row[SCALES])
            return 0;
        if (p->row[BIASES] && (const char *)m[i].biases != (const char *)m->biases + rows * p->row[BIASES])
            return 0;
    }
    return 1;
}

typedef struct {
    const qn_mlx *d;
    const qn_mlx_weight_spec *spec;
    qn_mlx_weight *weight;
} building;

static qn_status build(void *arg)
{
    building *b = arg;
    return qn_mlx_check(b->d->shim, b->d->shim->weight_new(b->spec, &b->weight));
}

/* Converts the weight in memory of our own, which the ledger counts until MLX has its copy; *is_exact 0: it
 * has to become something else. */
static qn_status build_converted(qn_mlx *d, plan *p, qn_mlx_weight **out, int *is_exact)
{
    qn_ledger *ledger = d->base.ledger;
    const size_t rows = (size_t)(p->w->n_parts * p->w->n_out);
    QN_TRY(qn_ledger_reserve(ledger, QN_LEDGER_SCRATCH, p->given_bytes));
    qn_status status = QN_OK;
    char *memory = qn_alloc_mapped(p->given_bytes);
    if (memory) {
        conversion c = {.p = p, .pool = d->pool};
        atomic_init(&c.is_wrong, 0);
        c.to[DATA] = memory;
        c.to[SCALES] = c.to[DATA] + rows * p->row[DATA];
        c.to[BIASES] = c.to[SCALES] + rows * p->row[SCALES];
        qn_pool_run(d->pool, convert, &c);
        *is_exact = !atomic_load(&c.is_wrong);
        p->spec.data = c.to[DATA];
        p->spec.scales = p->row[SCALES] ? c.to[SCALES] : NULL;
        p->spec.biases = p->row[BIASES] ? c.to[BIASES] : NULL;
        building b = {.d = d, .spec = &p->spec};
        if (*is_exact) status = qn_mlx_call(d->owner, build, &b);
        *out = b.weight;
    } else {
        status = QN_E_NOMEM;
    }
    qn_free_mapped(memory, p->given_bytes);
    qn_ledger_release(ledger, QN_LEDGER_SCRATCH, p->given_bytes);
    return status;
}

static qn_status build_ready(qn_mlx *d, plan *p, qn_mlx_weight **out)
{
    const qn_weight_part *m = p->w->parts;
    p->spec.data = m->data;
    p->spec.scales = m->scales;
    p->spec.biases = p->row[BIASES] ? m->biases : NULL;
    building b = {.d = d, .spec = &p->spec};
    const qn_status status = qn_mlx_call(d->owner, build, &b);
    *out = b.weight;
    return status;
}

/* MLX does not survive an allocation that fails. */
static qn_status reserve(const qn_mlx *d, size_t size_bytes)
{
    const size_t room = qn_mlx_room(d);
    QN_TRY(qn_ledger_reserve(d->base.ledger, QN_LEDGER_WEIGHTS, size_bytes));
    if (size_bytes <= room) return QN_OK;
    qn_ledger_release(d->base.ledger, QN_LEDGER_WEIGHTS, size_bytes);
    return qn_fail(QN_E_NOMEM, "a weight of %zu bytes does not fit: the machine has %zu left", size_bytes,
                   room);
}

static void count(qn_mlx *d, const plan *p)
{
    qn_mlx_tally *t = &d->tally[p->w->dtype][p->spec.kind];
    size_t before;
    t->n++;
    t->size_bytes += p->size_bytes;
    if (qn_mul_size(p->row_bytes, (size_t)(p->w->n_parts * p->w->n_out), &before)) t->file_bytes += before;
}

/* *is_exact 0, and no buffer: it has to become something else. */
static qn_status import(qn_mlx *d, plan *p, qn_buffer *b, int *is_exact)
{
    qn_mlx_weight *weight = NULL;
    *is_exact = 1;
    QN_TRY(reserve(d, p->size_bytes));
    const qn_status status =
        lies_ready(p) ? build_ready(d, p, &weight) : build_converted(d, p, &weight, is_exact);
    if (status != QN_OK || !*is_exact) {
        qn_ledger_release(d->base.ledger, QN_LEDGER_WEIGHTS, p->size_bytes);
        return status;
    }
    atomic_init(&b->references, 1);
    b->device = qn_device_retain(&d->base);
    b->data = weight;
    b->size_bytes = p->size_bytes;
    b->entry = QN_LEDGER_WEIGHTS;
    b->layout = QN_MLX_LAYOUT_WEIGHT;
    count(d, p);
    drop(p);
    return QN_OK;
}

static qn_status import_one(qn_mlx *d, const qn_weight *w, qn_buffer **out)
{
    plan p;
    int is_exact;
    QN_TRY(plan_of(w, 1, &p));
    qn_buffer *b = qn_calloc(1, sizeof *b);
    if (!b) return QN_E_NOMEM;
    qn_status status = import(d, &p, b, &is_exact);
    if (status == QN_OK && !is_exact) {
        status = plan_of(w, 0, &p);
        if (status == QN_OK) status = import(d, &p, b, &is_exact);
    }
    if (status != QN_OK) {
        qn_free(b);
        return status;
    }
    *out = b;
    return QN_OK;
}

qn_status qn_mlx_import_weights(qn_device *base, int64_t n, const qn_weight *weights, qn_buffer **out)
{
    for (int64_t i = 0; i < n; i++) {
        const qn_status status = import_one((qn_mlx *)base, &weights[i], &out[i]);
        if (status == QN_OK) continue;
        while (i) qn_buffer_release(out[--i]);
        return status;
    }
    return QN_OK;
}

/* ---- what became of them ------------------------------------------------------------------------------ */

/* "210 tensors q4_0 as affine 4-bit (exact)" */
static int describe(const qn_mlx_tally *t, qn_dtype dtype, int kind, char *out, size_t size)
{
    const double times = t->file_bytes ? (double)t->size_bytes / (double)t->file_bytes : 1;
    char form[32] = "f32", grown[64] = "";
    if (kind == QN_MLX_AFFINE) snprintf(form, sizeof form, "affine %d-bit", qn_affine_of_blocks(dtype).bits);
    if (times >= 1.05) snprintf(grown, sizeof grown, ", %.1f times the bytes", times);
    return snprintf(out, size, "%lld tensor%s %s as %s (exact%s)", (long long)t->n, t->n == 1 ? "" : "s",
                    qn_dtype_name(dtype), form, grown);
}

void qn_mlx_weights_note(const qn_mlx *d, char *out, size_t size)
{
    size_t n = 0;
    if (size) *out = 0;
    for (int t = 0; t < QN_DTYPE_COUNT; t++)
        for (int kind = 0; kind < QN_MLX_KINDS; kind++) {
            const qn_mlx_tally *tally = &d->tally[t][kind];
            const int is_turned = kind == QN_MLX_PLAIN    ? qn_type_is_quantised((qn_dtype)t)
                                  : kind == QN_MLX_AFFINE ? !qn_affine_of((qn_dtype)t).bits
                                                          : 0;
            char text[160];
            if (!tally->n || !is_turned) continue;
            describe(tally, (qn_dtype)t, kind, text, sizeof text);
            const int more = snprintf(out + n, size - n, "%s%s", n ? ", " : "mlx: ", text);
            if (more < 0 || (size_t)more >= size - n) return;
            n += (size_t)more;
        }
}

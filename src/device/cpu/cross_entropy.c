/* Losses of rows by a head, and their gradients, with no more of the logits at a time than a block of rows by
 * BLOCK of the vocabulary.
 *
 * Blocks of the vocabulary lie at fixed places and are merged in rising order, and each logit is the
 * product's own, so nothing depends on rows in company or on who computes a block. The gradient computes the
 * logits again: what the softmax is divided by comes from the loss and the target's logit. */
#include <string.h>

#include "device/cpu/slices.h"

enum {
    BLOCK = 256,       /* of the vocabulary; slices of the head fit in it */
    ROWS = 1024,       /* that go through the head together */
    LOGITS_ROWS = 128, /* whose block of logits a worker holds: it stays in the second-level cache */
    UNIT_ROWS = 24     /* of a claim: whole tiles of the kernels */
};

/* x: the open rows, packed activations or plain rows x_stride apart. */
typedef struct {
    const qn_cpu_run *run;
    const qn_cpu_step *s;
    const qn_params_cross_entropy *p;
    int64_t k, vocab, n_blocks, x_stride;
    size_t panel_bytes, act_bytes;
    const char *x;
    char *scratch; /* of the product */
} head;

/* In a worker's scratch, behind that of products and unpacking. */
typedef struct {
    size_t logits, row, size;
} places;

/* In the shared area. */
typedef struct {
    size_t x, largest, total, lse, logits[2], slices[2], size;
} shared_places;

static int is_packed(const qn_cpu_step *s)
{
    return s->weight != NULL;
}

static size_t take(size_t *at, size_t bytes)
{
    size_t place = *at;
    *at += (bytes + 63) / 64 * 64;
    return place;
}

static int64_t blocks_of(int64_t vocab)
{
    return (vocab + BLOCK - 1) / BLOCK;
}

static places place_own(const qn_kernels *k, const qn_cpu_step *s)
{
    const qn_shape *w = &s->plan.in[1].shape;
    size_t at = 0;
    places p;
    size_t product =
        is_packed(s) ? qn_matmul_scratch_bytes(k, s->plan.in[1].dtype, s->act, w->dim[1], ROWS) : 0;
    if (product < qn_cpu_slice_scratch_bytes()) product = qn_cpu_slice_scratch_bytes();
    take(&at, product);
    p.logits =
        take(&at, (s->plan.prim == QN_PRIM_CROSS_ENTROPY ? LOGITS_ROWS : UNIT_ROWS) * BLOCK * sizeof(float));
    int64_t row = blocks_of(w->dim[0]);
    p.row = take(&at, (size_t)(row < BLOCK ? BLOCK : row) * sizeof(float));
    p.size = at;
    return p;
}

/* Slices are bf16 where MATMUL's would be. */
static qn_cpu_slices slices_of(const qn_cpu_step *s, const qn_kernels *kernels, qn_precision precision)
{
    const qn_operand *w = &s->plan.in[1];
    return (qn_cpu_slices){.dtype = w->dtype,
                           .panels = s->weight ? s->weight->data : NULL,
                           .n = w->shape.dim[0],
                           .k = w->shape.dim[1],
                           .bf16 = precision != QN_PRECISION_EXACT && kernels->gemm_bf16 != NULL};
}

static shared_places place_shared(const qn_cpu_step *s, const qn_cpu_slices *slices, int64_t rows)
{
    const qn_shape *w = &s->plan.in[1].shape;
    const int64_t most = rows < ROWS ? rows : ROWS;
    shared_places p = {0};
    size_t at = 0;
    if (is_packed(s)) p.x = take(&at, (size_t)most * qn_act_row_bytes(s->act, w->dim[1]));
    if (s->plan.prim == QN_PRIM_CROSS_ENTROPY) {
        p.largest = take(&at, (size_t)(most * blocks_of(w->dim[0])) * sizeof(float));
        p.total = take(&at, (size_t)(most * blocks_of(w->dim[0])) * sizeof(float));
        p.lse = take(&at, (size_t)most * sizeof(float)); /* here: the targets' logits */
    } else {
        p.lse = take(&at, (size_t)most * sizeof(float));
        for (int i = 0; i < 2; i++) p.logits[i] = take(&at, (size_t)(most * BLOCK) * sizeof(float));
        for (int i = 0; i < 2 && is_packed(s) && !s->plan.params.cross_entropy.which; i++)
            p.slices[i] = take(&at, BLOCK / QN_CPU_SLICE_ROWS * qn_cpu_slice_bytes(slices));
    }
    p.size = at;
    return p;
}

static head head_of(const qn_cpu_run *run, const qn_cpu_step *s)
{
    const qn_shape *w = &s->plan.in[1].shape;
    head h = {.run = run,
              .s = s,
              .p = &s->plan.params.cross_entropy,
              .k = w->dim[1],
              .vocab = w->dim[0],
              .n_blocks = blocks_of(w->dim[0]),
              .x_stride = s->plan.in[0].stride[0],
              .scratch = run->scratch};
    if (is_packed(s)) {
        h.panel_bytes = qn_pack_panel_bytes(s->plan.in[1].dtype, h.k);
        h.act_bytes = qn_act_row_bytes(s->act, h.k);
    }
    return h;
}

static const float *row_of(const head *h, int64_t r)
{
    return (const float *)h->s->in[0] + r * h->x_stride;
}

/* The rows [first, first + n) become those that products take. */
static void open_rows(head *h, int64_t first, int64_t n, char *shared)
{
    int64_t begin, end;
    h->x = (const char *)row_of(h, first);
    if (!is_packed(h->s)) return;
    h->x = shared;
    while (qn_cpu_claim(h->run, n, &begin, &end))
        for (int64_t r = begin; r < end; r++)
            h->run->kernels->act_pack(h->s->act, h->k, row_of(h, first + r),
                                      shared + (size_t)r * h->act_bytes);
    qn_pool_barrier(h->run->pool);
}

/* Products of n rows from `row` on (of those that are open) with the columns [begin, end) of the vocabulary,
 * begin a multiple of QN_PANEL, into out[..][column - begin]. */
static void products(const head *h, int64_t row, int64_t n, int64_t begin, int64_t end, float *out,
                     int64_t out_stride)
{
    const qn_kernels *kernels = h->run->kernels;
    if (!is_packed(h->s)) {
        const float *w = (const float *)h->s->in[1] + begin * h->k;
        kernels->gemm_f32(out, out_stride, (const float *)(const void *)h->x + row * h->x_stride, h->x_stride,
                          1, w, 1, h->k, end - begin, h->k, 0, n, 0);
        return;
    }
    const qn_matmul_args a = {.dtype = h->s->plan.in[1].dtype,
                              .act = h->s->act,
                              .n_in = h->k,
                              .n_out = end - begin,
                              .panels = (const char *)h->s->weight->data +
                                        (size_t)(begin / QN_PANEL) * h->panel_bytes,
                              .x = h->x + (size_t)row * h->act_bytes,
                              .n_rows = n,
                              .out = out,
                              .out_stride = out_stride};
    kernels->matmul(&a, 0, (a.n_out + QN_PANEL - 1) / QN_PANEL, h->scratch);
}

/* Logits of n products in z; tanh (may be NULL) gets the tangents under a cap. */
static void finish(const head *h, float *z, int64_t n, float *tanh)
{
    const qn_kernels *k = h->run->kernels;
    const float inverse = h->p->softcap > 0 ? 1 / h->p->softcap : 0;
    if (h->p->scale != 1) k->ew[QN_EW_MUL](z, z, 1, &h->p->scale, 0, n);
    if (!(h->p->softcap > 0)) return;
    k->ew[QN_EW_MUL](z, z, 1, &inverse, 0, n);
    k->ew[QN_EW_TANH](z, z, 1, z, 1, n);
    if (tanh) memcpy(tanh, z, (size_t)n * sizeof *tanh);
    k->ew[QN_EW_MUL](z, z, 1, &h->p->softcap, 0, n);
}

/* -1: outside the vocabulary, no target. */
static int64_t target_of(const head *h, int64_t r)
{
    const int32_t id = ((const int32_t *)h->s->in[2])[r * h->s->plan.in[2].stride[0]];
    return id >= 0 && id < h->vocab ? id : -1;
}

/* ---- losses ------------------------------------------------------------------------------------------- */

/* Of block b and the rows [first, first + n): the largest logit of each row, the sum of exp beside it, and
 * the target's logit if it is here. */
static void one_block(const head *h, int64_t b, int64_t first, int64_t n, float *logits, float *largest,
                      float *total, float *of_target)
{
    const qn_kernels *k = h->run->kernels;
    const int64_t begin = b * BLOCK, end = begin + BLOCK < h->vocab ? begin + BLOCK : h->vocab;
    for (int64_t row = 0; row < n; row += LOGITS_ROWS) {
        const int64_t rows = n - row < LOGITS_ROWS ? n - row : LOGITS_ROWS;
        products(h, row, rows, begin, end, logits, BLOCK);
        for (int64_t r = 0; r < rows; r++) {
            float *z = logits + r * BLOCK;
            const int64_t target = target_of(h, first + row + r), at = (row + r) * h->n_blocks + b;
            finish(h, z, end - begin, NULL);
            largest[at] = k->max(z, end - begin);
            k->sum_exp_blocks(z, end - begin, largest[at], 1, &total[at]);
            if (target >= begin && target < end) of_target[row + r] = z[target - begin];
        }
    }
}

/* log of the sum over all blocks, in rising order. largest is used up. */
static float merge(const head *h, float *largest, const float *total)
{
    const qn_kernels *k = h->run->kernels;
    const float most = k->max(largest, h->n_blocks);
    k->ew[QN_EW_SUB](largest, largest, 1, &most, 0, h->n_blocks);
    k->ew[QN_EW_EXP](largest, largest, 1, largest, 1, h->n_blocks);
    float sum = k->dot(largest, total, h->n_blocks);
    k->ew[QN_EW_LOG](&sum, &sum, 1, &sum, 1, 1);
    return most + sum;
}

static void losses_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    head h = head_of(run, s);
    const int64_t n_rows = qn_cpu_rows(run, &s->plan.out);
    const places own = place_own(run->kernels, s);
    const qn_cpu_slices w = slices_of(s, run->kernels, run->precision);
    const shared_places at = place_shared(s, &w, n_rows);
    char *shared = run->shared[0];
    float *largest = (float *)(void *)(shared + at.largest), *total = (float *)(void *)(shared + at.total),
          *of_target = (float *)(void *)(shared + at.lse), *out = (float *)(void *)s->out;
    int64_t begin, end;
    for (int64_t first = 0; first < n_rows; first += ROWS) {
        const int64_t n = n_rows - first < ROWS ? n_rows - first : ROWS;
        qn_pool_barrier(run->pool); /* others may still read what lies in the shared area */
        open_rows(&h, first, n, shared + at.x);
        while (qn_cpu_claim(run, h.n_blocks, &begin, &end))
            for (int64_t b = begin; b < end; b++)
                one_block(&h, b, first, n, (float *)(void *)(run->scratch + own.logits), largest, total,
                          of_target);
        qn_pool_barrier(run->pool);
        qn_pool_share(n, 1, run->thread, run->n_threads, &begin, &end);
        for (int64_t r = begin; r < end; r++)
            out[first + r] = target_of(&h, first + r) < 0
                                 ? 0
                                 : merge(&h, largest + r * h.n_blocks, total + r * h.n_blocks) - of_target[r];
    }
    qn_pool_barrier(run->pool); /* nor may others write there meanwhile */
}

static qn_status prepare(qn_cpu *d, const qn_plan *plan, qn_cpu_step *s, size_t *scratch_bytes,
                         size_t *shared_bytes)
{
    const qn_operand *w = &s->plan.in[1];
    const qn_plan_slot *slot = &plan->slots[w->slot];
    const int packed = slot->buffer && slot->buffer->layout == QN_CPU_LAYOUT_PANELS;
    if (packed ? w->offset || slot->buffer->cold || s->plan.params.cross_entropy.which
               : w->dtype != QN_DTYPE_F32 || (w->shape.dim[0] > 1 && w->stride[0] != w->shape.dim[1]))
        return qn_fail(QN_E_UNSUPPORTED, "cross entropy by a part of a head, or a head of plain %s",
                       qn_dtype_name(w->dtype));
    if (packed) {
        s->weight = slot->buffer;
        s->act = qn_matmul_act(w->dtype, plan->precision);
    }
    const qn_cpu_slices slices = slices_of(s, d->kernels, plan->precision);
    const size_t own = place_own(d->kernels, s).size,
                 shared = place_shared(s, &slices, qn_shape_dim(&s->plan.in[0].shape, 0, &plan->max)).size;
    if (*scratch_bytes < own) *scratch_bytes = own;
    if (*shared_bytes < shared) *shared_bytes = shared;
    return QN_OK;
}

const qn_cpu_prim qn_cpu_CROSS_ENTROPY = {losses_run, prepare};

/* ---- gradients ---------------------------------------------------------------------------------------- */

/* What exp(z - lse) is the softmax by, of each of the open rows. */
static void open_softmax(const head *h, int64_t first, int64_t n, float *lse)
{
    const float *losses = (const float *)h->s->in[3];
    float z[QN_PANEL];
    int64_t begin, end;
    qn_pool_share(n, 1, h->run->thread, h->run->n_threads, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        const int64_t target = target_of(h, first + r), panel = target / QN_PANEL * QN_PANEL,
                      to = panel + QN_PANEL < h->vocab ? panel + QN_PANEL : h->vocab;
        if (target < 0) continue;
        products(h, r, 1, panel, to, z, QN_PANEL);
        finish(h, z, to - panel, NULL);
        lse[r] = losses[(first + r) * h->s->plan.in[3].stride[0]] + z[target - panel];
    }
}

/* Products of row r with the block become the gradient by them. */
static void turn_row(const head *h, int64_t r, int64_t begin, int64_t n, float lse, float *z, float *tanh)
{
    const qn_kernels *k = h->run->kernels;
    const int64_t target = target_of(h, r);
    if (target < 0) {
        memset(z, 0, (size_t)n * sizeof *z);
        return;
    }
    const float factor = ((const float *)h->s->in[4])[r * h->s->plan.in[4].stride[0]] * h->p->scale;
    finish(h, z, n, tanh);
    k->ew[QN_EW_SUB](z, z, 1, &lse, 0, n);
    k->ew[QN_EW_EXP](z, z, 1, z, 1, n);
    if (target >= begin && target < begin + n) z[target - begin] -= 1;
    if (h->p->softcap > 0) { /* times 1 - tanh^2 */
        k->ew[QN_EW_SQUARE](tanh, tanh, 1, tanh, 1, n);
        k->ew[QN_EW_MUL](tanh, tanh, 1, z, 1, n);
        k->ew[QN_EW_SUB](z, z, 1, tanh, 1, n);
    }
    k->ew[QN_EW_MUL](z, z, 1, &factor, 0, n);
}

typedef struct {
    int64_t first, n;       /* rows that are open */
    int64_t begin, columns; /* of the block */
    float *logits;          /* [n][BLOCK] */
    const float *lse;
    char *slices;
} block;

/* All workers: products of the open rows with the block, and its slices of the head. */
static void open_block(const head *h, const block *b, const qn_cpu_slices *w, size_t slice_bytes)
{
    int64_t begin, end;
    const int64_t panels = (b->columns + QN_PANEL - 1) / QN_PANEL, first = b->begin / QN_PANEL,
                  each = QN_CPU_SLICE_ROWS / QN_PANEL;
    while (qn_cpu_claim(h->run, panels, &begin, &end)) {
        const int64_t to = end * QN_PANEL < b->columns ? end * QN_PANEL : b->columns;
        products(h, 0, b->n, b->begin + begin * QN_PANEL, b->begin + to, b->logits + begin * QN_PANEL, BLOCK);
        for (int64_t p = begin; p < end && b->slices; p++)
            qn_cpu_slice_unpack(h->run->kernels, w, (first + p) / each, (first + p) % each,
                                (first + p) % each + 1, b->slices + (size_t)(p / each) * slice_bytes,
                                (float *)(void *)h->scratch);
    }
    qn_pool_barrier(h->run->pool);
}

/* out of the open rows += their gradients by the block's logits times the block of the head. */
static void by_rows(const head *h, const block *b, const qn_cpu_slices *w, size_t slice_bytes, float *own,
                    float *tanh)
{
    const qn_kernels *k = h->run->kernels;
    float *out = (float *)(void *)h->s->out + b->first * h->k;
    uint16_t *rounded = (uint16_t *)(void *)own;
    const int64_t units = (b->n + UNIT_ROWS - 1) / UNIT_ROWS, each = QN_CPU_SLICE_ROWS;
    int64_t from, to;
    while (qn_cpu_claim(h->run, units, &from, &to)) {
        for (int64_t u = from; u < to; u++) {
            const int64_t row = u * UNIT_ROWS, end = row + UNIT_ROWS < b->n ? row + UNIT_ROWS : b->n;
            for (int64_t r = row; r < end; r++) {
                float *z = b->logits + r * BLOCK;
                turn_row(h, b->first + r, b->begin, b->columns, b->lse[r], z, tanh);
                if (w->bf16) qn_cpu_slice_round(k, z, b->columns, rounded + (r - row) * BLOCK);
            }
            for (int64_t i = 0; i * each < b->columns; i++) {
                const int64_t slice = b->begin / each + i, n = b->columns - i * each;
                float *to_out = out + row * h->k;
                const int more = b->begin + i > 0;
                if (!b->slices)
                    k->gemm_f32(to_out, h->k, b->logits + row * BLOCK + i * each, BLOCK, 1,
                                (const float *)(const void *)h->s->in[1] + (b->begin + i * each) * h->k, h->k,
                                1, h->k, n < each ? n : each, 0, end - row, more);
                else if (w->bf16)
                    qn_cpu_slice_multiply(k, w, slice, b->slices + (size_t)i * slice_bytes,
                                          rounded + i * each, BLOCK, to_out, h->k, 0, end - row, more);
                else
                    qn_cpu_slice_multiply(k, w, slice, b->slices + (size_t)i * slice_bytes,
                                          b->logits + row * BLOCK + i * each, BLOCK, to_out, h->k, 0,
                                          end - row, more);
            }
        }
    }
}

/* Rows of the block in out += transpose of the gradients by logits times the open rows. */
static void by_head(const head *h, const block *b, float *tanh)
{
    int64_t from, to;
    while (qn_cpu_claim(h->run, b->n, &from, &to))
        for (int64_t r = from; r < to; r++)
            turn_row(h, b->first + r, b->begin, b->columns, b->lse[r], b->logits + r * BLOCK, tanh);
    qn_pool_barrier(h->run->pool);
    qn_pool_share(b->columns, QN_PANEL, h->run->thread, h->run->n_threads, &from, &to);
    if (from < to)
        h->run->kernels->gemm_f32((float *)(void *)h->s->out + b->begin * h->k, h->k, b->logits, 1, BLOCK,
                                  row_of(h, b->first), h->x_stride, 1, h->k, b->n, from, to, b->first > 0);
}

static void grad_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    head h = head_of(run, s);
    const int64_t n_rows = qn_cpu_rows(run, &s->plan.in[0]);
    const places own = place_own(run->kernels, s);
    const qn_cpu_slices w = slices_of(s, run->kernels, run->precision);
    const shared_places at = place_shared(s, &w, n_rows);
    const size_t slice_bytes = is_packed(s) ? qn_cpu_slice_bytes(&w) : 0;
    char *shared = run->shared[0];
    float *tanh = (float *)(void *)(run->scratch + own.row),
          *mine = (float *)(void *)(run->scratch + own.logits), *lse = (float *)(void *)(shared + at.lse);
    for (int64_t first = 0; first < n_rows; first += ROWS) {
        const int64_t n = n_rows - first < ROWS ? n_rows - first : ROWS;
        qn_pool_barrier(run->pool); /* others may still read what lies in the shared area */
        open_rows(&h, first, n, shared + at.x);
        open_softmax(&h, first, n, lse);
        for (int64_t i = 0; i < h.n_blocks; i++) {
            block b = {.first = first, .n = n, .begin = i * BLOCK, .lse = lse};
            b.columns = h.vocab - b.begin < BLOCK ? h.vocab - b.begin : BLOCK;
            b.logits = (float *)(void *)(shared + at.logits[i % 2]);
            if (is_packed(s) && !h.p->which) b.slices = shared + at.slices[i % 2];
            open_block(&h, &b, &w, slice_bytes); /* and a barrier, which lse is ready behind, too */
            if (h.p->which)
                by_head(&h, &b, tanh);
            else
                by_rows(&h, &b, &w, slice_bytes, mine, tanh);
        }
    }
    qn_pool_barrier(run->pool); /* nor may others write there meanwhile */
}

const qn_cpu_prim qn_cpu_CROSS_ENTROPY_GRAD = {grad_run, prepare};

/* EXPERTS, EXPERTS_SUM, EXPERTS_GRAD: products of each row with the matrices that its ids name, as one product of
 * many groups (groups.cuh). A product's bits do not depend on who shares its group. */
#include "device/cuda/product/float_product.cuh"
#include "device/cuda/product/product.h"

/* ROUND_BYTES: products of EXPERTS_SUM that wait for their sum at once. */
enum { ROUND_BYTES = 64 << 20 };

/* One step, or rows [first, first + rows) of it. */
typedef struct {
    const qn_cuda_step *s;
    const qn_cuda_weight *w;
    const qn_cuda_operand *x, *ids;
    int64_t top, n_parts, rows, x_rows; /* x_rows: rows of activations, `rows` or all pairs */
    qn_cuda_rows x_places;
    int is_float, per_group, straight;
} experts;

/* c NULL: to know sizes alone, those of the smallest groups. */
static experts experts_of(const qn_cuda_context *c, const qn_cuda_step *s, int64_t rows)
{
    experts e = {s, s->in[1].weight, &s->in[0], &s->in[2]};
    e.top = e.ids->dim[1];
    e.n_parts = s->in[1].dim[0];
    e.rows = rows;
    e.x_rows = e.x->n == 2 ? rows : rows * e.top;
    e.x_places = {e.x->n == 2 ? 1 : e.top, e.x->stride[0], e.x->n == 2 ? 0 : e.x->dim[2]};
    e.straight = s->prim == QN_PRIM_EXPERTS_GRAD;
    e.is_float = s->precision == QN_PRECISION_EXACT || e.w->form == QN_CUDA_F32 || e.straight;
    e.per_group = QN_CUDA_FEW;
    if (c && rows * e.top >= 16 * e.n_parts) e.per_group = QN_CUDA_MANY;
    if (c && !e.is_float && rows * e.top >= 64 * e.n_parts)
        e.per_group = c->has_wide ? QN_CUDA_WIDE : QN_CUDA_MANY;
    return e;
}

/* ---- scratch ------------------------------------------------------------------------------------------- */

typedef struct {
    qn_cuda_group *groups;
    int32_t *pairs;
    uint16_t *x;
    float *x_scale, *products;
    size_t size_bytes;
} scratch;

static void *take(scratch *t, char *base, size_t size_bytes)
{
    void *p = base ? base + t->size_bytes : NULL;
    t->size_bytes += (size_bytes + 255) / 256 * 256;
    return p;
}

/* base NULL: for the size alone. */
static scratch scratch_of(const experts *e, char *base, int keeps_products)
{
    scratch t = {};
    const int64_t n_pairs = e->rows * e->top;
    t.groups = (qn_cuda_group *)take(
        &t, base, (size_t)qn_cuda_most_groups(n_pairs, e->n_parts, QN_CUDA_FEW) * sizeof(qn_cuda_group));
    t.pairs = (int32_t *)take(&t, base, (size_t)n_pairs * sizeof(int32_t));
    if (!e->is_float) {
        t.x = (uint16_t *)take(&t, base, (size_t)(e->x_rows * qn_cuda_padded(e->w)) * sizeof(uint16_t));
        t.x_scale = (float *)take(&t, base, (size_t)e->x_rows * sizeof(float));
    }
    if (keeps_products) t.products = (float *)take(&t, base, (size_t)(n_pairs * e->w->n_out) * sizeof(float));
    return t;
}

/* Rows of EXPERTS_SUM that are computed at once. */
static int64_t round_rows(const qn_cuda_step *s)
{
    const int64_t row_bytes = s->in[2].dim[1] * s->in[1].weight->n_out * (int64_t)sizeof(float),
                  most = ROUND_BYTES / (row_bytes ? row_bytes : 1), rows = s->in[0].dim[0];
    return most < 1 ? 1 : most < rows ? most : rows;
}

static size_t experts_scratch_bytes(const qn_cuda_step *s)
{
    const experts e = experts_of(NULL, s, s->in[0].dim[0]);
    return scratch_of(&e, NULL, 0).size_bytes;
}

static size_t sum_scratch_bytes(const qn_cuda_step *s)
{
    const experts e = experts_of(NULL, s, round_rows(s));
    return scratch_of(&e, NULL, 1).size_bytes;
}

/* ---- products ------------------------------------------------------------------------------------------ */

static qn_status multiply_floats(qn_cuda_context *c, const experts *e, const scratch *t, const float *x,
                                 float *out, const float *bias)
{
    qn_cuda_float_product p = {};
    p.a = x;
    p.out = out;
    p.k = e->straight ? e->w->n_out : e->w->n_in;
    p.n = p.out_row = e->straight ? e->w->n_in : e->w->n_out;
    p.m = e->per_group;
    p.rows = e->x_places;
    p.a_col = 1;
    p.w = *e->w;
    p.has_weight = 1;
    p.straight = e->straight;
    p.groups = t->groups;
    p.n_groups = qn_cuda_most_groups(e->rows * e->top, e->n_parts, p.m);
    p.pairs = t->pairs;
    p.x_share = (int32_t)(e->x->n == 2 ? e->top : 1);
    p.bias = bias;
    return qn_cuda_float_product_begin(c, &p);
}

static qn_status multiply_packed(qn_cuda_context *c, const experts *e, const scratch *t, const float *x,
                                 float *out, const float *bias)
{
    qn_cuda_product p = {};
    p.w = *e->w;
    p.x_stride = qn_cuda_padded(e->w);
    const qn_status status =
        qn_cuda_pack_rows(c, x, e->x_places, e->x_rows, e->w->n_in, p.x_stride, 0, 0, t->x, t->x_scale);
    if (status != QN_OK) return status;
    p.x = t->x;
    p.x_scale = t->x_scale;
    p.out = out;
    p.out_stride = e->w->n_out;
    p.groups = t->groups;
    p.n_groups = qn_cuda_most_groups(e->rows * e->top, e->n_parts, e->per_group);
    p.pairs = t->pairs;
    p.x_share = (int32_t)(e->x->n == 2 ? e->top : 1);
    p.bias = bias;
    return qn_cuda_product_begin(c, &p, e->per_group);
}

/* Rows from `first` on into out [rows, top, n]. */
static qn_status multiply(qn_cuda_context *c, const experts *e, const scratch *t, int64_t first, float *out,
                          const float *bias)
{
    const float *x = (const float *)e->x->data + first * e->x->stride[0];
    const int32_t *ids = (const int32_t *)e->ids->data + first * e->ids->stride[0];
    const qn_status status = qn_cuda_group_pairs(c, ids, e->ids->stride[0], e->top, e->rows * e->top,
                                                 e->n_parts, e->per_group, t->groups, t->pairs);
    if (status != QN_OK) return status;
    return e->is_float ? multiply_floats(c, e, t, x, out, bias) : multiply_packed(c, e, t, x, out, bias);
}

static const float *bias_of(const qn_cuda_step *s, int i)
{
    return s->params->experts.has_bias ? (const float *)s->in[i].data : NULL;
}

static qn_status launch_experts(qn_cuda_context *c, const qn_cuda_step *s)
{
    const experts e = experts_of(c, s, s->in[0].dim[0]);
    if (e.rows == 0) return QN_OK;
    const scratch t = scratch_of(&e, (char *)s->scratch, 0);
    return multiply(c, &e, &t, 0, (float *)s->out.data, e.straight ? NULL : bias_of(s, 3));
}

/* ---- their sum ----------------------------------------------------------------------------------------- */

typedef struct {
    const float *products, *share;
    const int32_t *ids;
    float *out;
    int64_t rows, n_out, top, share_row, ids_row;
} share_sum;

/* A thread an output: from 0 on by rising id. */
static __global__ void __launch_bounds__(256) sum_shares(share_sum p)
{
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (i >= p.rows * p.n_out) return;
    const int64_t r = i / p.n_out, column = i % p.n_out;
    const int32_t *ids = p.ids + r * p.ids_row;
    float sum = 0;
    for (int32_t n = 0, last = -1; n < p.top; n++) {
        int64_t next = 0;
        int32_t lowest = INT32_MAX;
        for (int64_t j = 0; j < p.top; j++)
            if (ids[j] > last && ids[j] < lowest) lowest = ids[j], next = j;
        last = lowest;
        sum = sum + p.products[(r * p.top + next) * p.n_out + column] * p.share[r * p.share_row + next];
    }
    p.out[i] = sum;
}

static qn_status launch_sum(qn_cuda_context *c, const qn_cuda_step *s)
{
    const int64_t rows = s->in[0].dim[0], per_round = round_rows(s), n_out = s->in[1].weight->n_out;
    for (int64_t first = 0; first < rows; first += per_round) {
        const experts e = experts_of(c, s, rows - first < per_round ? rows - first : per_round);
        const scratch t = scratch_of(&e, (char *)s->scratch, 1);
        qn_status status = multiply(c, &e, &t, first, t.products, bias_of(s, 4));
        if (status != QN_OK) return status;
        const share_sum p = {t.products,
                             (const float *)s->in[3].data + first * s->in[3].stride[0],
                             (const int32_t *)s->in[2].data + first * s->in[2].stride[0],
                             (float *)s->out.data + first * n_out,
                             e.rows,
                             n_out,
                             e.top,
                             s->in[3].stride[0],
                             s->in[2].stride[0]};
        status = qn_cuda_begin(c, sum_shares, qn_blocks(e.rows * n_out, 256), 256, 0, p);
        if (status != QN_OK) return status;
    }
    return QN_OK;
}

extern const qn_cuda_prim qn_cuda_prim_EXPERTS, qn_cuda_prim_EXPERTS_SUM, qn_cuda_prim_EXPERTS_GRAD;
const qn_cuda_prim qn_cuda_prim_EXPERTS = {launch_experts, experts_scratch_bytes};
const qn_cuda_prim qn_cuda_prim_EXPERTS_SUM = {launch_sum, sum_scratch_bytes};
const qn_cuda_prim qn_cuda_prim_EXPERTS_GRAD = {launch_experts, experts_scratch_bytes};

/* MATMUL and MATMUL_ROWS: which product computes them. */
#include "device/cuda/elements/wide.cuh"
#include "device/cuda/product/float_product.cuh"
#include "device/cuda/product/product.h"
#include "device/cuda/step/step.h"

/* ---- f64, integers, bf16: a thread an output, in rising k ------------------------------------------------- */

typedef struct {
    qn_cuda_view a, b; /* [batches.., m, k] and [batches.., k, n] */
    qn_cuda_view out;
    int64_t m, n, k, total;
} typed_product;

/* bf16 in f32, other floating types in double, integers in 64 bits. */
static __global__ void __launch_bounds__(256) multiply_typed(typed_product p)
{
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (i >= p.total) return;
    const int64_t column = i % p.n, row = i / p.n % p.m;
    int64_t batch = i / p.n / p.m, a_at = row * p.a.stride[p.a.n - 2], b_at = column * p.b.stride[p.b.n - 1];
    for (int d = p.a.n - 3; d >= 0; d--) {
        const int64_t at = batch % p.a.dim[d];
        batch /= p.a.dim[d];
        a_at += at * p.a.stride[d];
        if (p.b.n == p.a.n) b_at += at * p.b.stride[d];
    }
    const int64_t a_col = p.a.stride[p.a.n - 1], b_row = p.b.stride[p.b.n - 2];
    const int kind = qn_wide_kind_of(p.a.dtype);
    float small = 0;
    qn_wide sum;
    sum.u = 0;
    for (int64_t k = 0; k < p.k; k++) {
        const qn_wide x = qn_wide_get(p.a.dtype, p.a.data, a_at + k * a_col),
                      y = qn_wide_get(p.b.dtype, p.b.data, b_at + k * b_row);
        if (p.a.dtype == QN_DTYPE_BF16)
            small = fmaf((float)x.f, (float)y.f, small);
        else if (kind == QN_WIDE_REAL)
            sum.f += x.f * y.f;
        else
            sum.u += x.u * y.u;
    }
    if (p.a.dtype == QN_DTYPE_BF16) sum.f = (double)small;
    qn_wide_put(p.out.dtype, sum, p.out.data, i);
}

static qn_status launch_typed(qn_cuda_context *c, const qn_cuda_step *s, qn_cuda_view a, int64_t m, int64_t k)
{
    typed_product p = {a, qn_cuda_view_of(&s->in[1]), qn_cuda_view_of(&s->out), m, s->out.dim[s->out.n - 1],
                       k, qn_elements(&s->out)};
    return qn_cuda_begin(c, multiply_typed, qn_blocks(p.total, 256), 256, 0, p);
}

/* ---- plain f32 ----------------------------------------------------------------------------------------- */

static qn_status launch_plain(qn_cuda_context *c, const qn_cuda_step *s)
{
    const qn_cuda_operand *a = &s->in[0], *b = &s->in[1];
    const int n = a->n;
    qn_cuda_float_product p = {};
    p.a = (const float *)a->data;
    p.b = (const float *)b->data;
    p.out = (float *)s->out.data;
    p.m = a->dim[n - 2];
    p.k = a->dim[n - 1];
    p.n = p.out_row = s->out.dim[s->out.n - 1];
    p.a_row = a->stride[n - 2];
    p.a_col = a->stride[n - 1];
    p.b_row = b->stride[b->n - 2];
    p.b_col = b->stride[b->n - 1];
    p.n_dims = n - 2;
    for (int d = 0; d < n - 2; d++) {
        p.dim[d] = a->dim[d];
        p.a_batch[d] = a->stride[d];
        p.b_batch[d] = b->n == n ? b->stride[d] : 0;
    }
    return qn_cuda_float_product_begin(c, &p);
}

/* ---- packed weights ------------------------------------------------------------------------------------ */

static int is_float(const qn_cuda_step *s)
{
    return s->precision == QN_PRECISION_EXACT || s->params->matmul.exact || !s->transposed ||
           s->in[1].weight->form == QN_CUDA_F32;
}

static int64_t rows_of(const qn_cuda_step *s)
{
    int64_t rows = 1;
    for (int i = 0; i < s->in[0].n - 1; i++) rows *= s->in[0].dim[i];
    return rows;
}

static size_t half_bytes(const qn_cuda_step *s)
{
    const int64_t rows = qn_cuda_tiled_rows(rows_of(s));
    return ((size_t)(rows * qn_cuda_padded(s->in[1].weight)) * 2 + 255) / 256 * 256;
}

static size_t matmul_scratch_bytes(const qn_cuda_step *s)
{
    if (!s->in[1].weight || is_float(s)) return 0;
    return half_bytes(s) + (size_t)rows_of(s) * sizeof(float);
}

static qn_status launch_float(qn_cuda_context *c, const qn_cuda_step *s)
{
    const qn_cuda_operand *a = &s->in[0];
    const qn_cuda_weight *w = s->in[1].weight;
    qn_cuda_float_product p = {};
    p.a = (const float *)a->data;
    p.out = (float *)s->out.data;
    p.m = rows_of(s);
    p.k = a->dim[a->n - 1];
    p.n = p.out_row = s->out.dim[s->out.n - 1];
    p.a_row = a->stride[a->n - 2];
    p.a_col = 1;
    if (w->form == QN_CUDA_F32) {
        p.b = (const float *)w->data;
        p.b_row = s->transposed ? 1 : w->n_in;
        p.b_col = s->transposed ? w->n_in : 1;
    } else {
        p.w = *w;
        p.has_weight = 1;
        p.straight = !s->transposed;
    }
    return qn_cuda_float_product_begin(c, &p);
}

/* The step kernel packs rows itself. */
static void note_product(qn_cuda_context *c, const qn_cuda_step *s, const qn_cuda_product *p)
{
    const qn_cuda_operand *a = &s->in[0];
    qn_step_product n = {};
    n.x = (const float *)a->data;
    n.x_row = a->stride[a->n - 2];
    n.rows = p->n_tokens < INT32_MAX ? (int)p->n_tokens : INT32_MAX;
    n.n_in = (int)p->w.n_in;
    n.padded = (int)p->x_stride;
    n.n_matrices = 1;
    n.matrix[0] = {p->w, p->out, p->out_stride};
    qn_cuda_note_op(c, QN_OP_PRODUCT, 1, 32, 0, &n, sizeof n);
}

static qn_status launch_packed(qn_cuda_context *c, const qn_cuda_step *s)
{
    const qn_cuda_operand *a = &s->in[0];
    qn_cuda_product p = {};
    p.w = *s->in[1].weight;
    p.n_tokens = rows_of(s);
    p.x_stride = qn_cuda_padded(&p.w);
    const int per_tile = qn_cuda_tile_of(c, &p.w, p.n_tokens);
    p.x_tiled = per_tile == QN_CUDA_WIDE || per_tile == QN_CUDA_SOME ? qn_cuda_tiled_rows(p.n_tokens) : 0;
    p.out = (float *)s->out.data;
    p.out_stride = p.w.n_out;
    p.x_share = 1;
    note_product(c, s, &p);
    uint16_t *x = (uint16_t *)s->scratch;
    float *scale = (float *)((char *)s->scratch + half_bytes(s));
    p.x = x;
    p.x_scale = scale;
    const qn_status status =
        qn_cuda_pack_rows(c, (const float *)a->data, qn_cuda_rows{1, a->stride[a->n - 2], 0}, p.n_tokens,
                          p.w.n_in, p.x_stride, p.x_tiled, per_tile, x, scale);
    return status == QN_OK ? qn_cuda_product_begin(c, &p, per_tile) : status;
}

static qn_status launch_matmul(qn_cuda_context *c, const qn_cuda_step *s)
{
    const qn_cuda_operand *a = &s->in[0];
    if (s->in[1].weight) return is_float(s) ? launch_float(c, s) : launch_packed(c, s);
    if (a->dtype == QN_DTYPE_F32 && s->in[1].dtype == QN_DTYPE_F32) return launch_plain(c, s);
    if (a->dtype != s->in[1].dtype)
        return qn_cuda_fail(QN_E_UNSUPPORTED, "device cuda: matmul with a plain matrix of another type");
    return launch_typed(c, s, qn_cuda_view_of(a), a->dim[a->n - 2], a->dim[a->n - 1]);
}

extern const qn_cuda_prim qn_cuda_prim_MATMUL, qn_cuda_prim_MATMUL_ROWS;
const qn_cuda_prim qn_cuda_prim_MATMUL = {launch_matmul, matmul_scratch_bytes};

/* ---- rows summed in rising order ------------------------------------------------------------------------- */

static qn_status launch_matmul_rows(qn_cuda_context *c, const qn_cuda_step *s)
{
    qn_cuda_view a = qn_cuda_view_of(&s->in[0]); /* [R, k], taken as [k, R] */
    a.dim[0] = s->in[0].dim[1], a.dim[1] = s->in[0].dim[0];
    a.stride[0] = s->in[0].stride[1], a.stride[1] = s->in[0].stride[0];
    if (s->in[0].dtype != QN_DTYPE_F32) return launch_typed(c, s, a, a.dim[0], a.dim[1]);
    qn_cuda_float_product p = {};
    p.a = (const float *)a.data;
    p.b = (const float *)s->in[1].data;
    p.out = (float *)s->out.data;
    p.m = a.dim[0];
    p.k = a.dim[1];
    p.n = p.out_row = s->out.dim[1];
    p.a_row = a.stride[0];
    p.a_col = a.stride[1];
    p.b_row = s->in[1].stride[0];
    p.b_col = s->in[1].stride[1];
    return qn_cuda_float_product_begin(c, &p);
}

const qn_cuda_prim qn_cuda_prim_MATMUL_ROWS = {launch_matmul_rows, NULL};

/* Element-wise primitives of numbers that are not f32, comparisons and choices. One thread an element.
 *
 * As device/cpu/typed.c has them: integers wrap around; what is divided by 0 gives 0, the smallest number by -1
 * itself; quotients are rounded down. */
#include "device/cuda/elements/places.cuh"
#include "device/cuda/elements/wide.cuh"

enum { BLOCK = 256 };

/* ---- arithmetic ---------------------------------------------------------------------------------------- */

static __device__ uint64_t power(uint64_t x, uint64_t n)
{
    uint64_t r = 1;
    for (; n; n >>= 1, x *= x)
        if (n & 1) r *= x;
    return r;
}

/* x to the power of n < 0: 1 / x^-n without its fraction. */
static __device__ int64_t reciprocal_power(int64_t x, int64_t n)
{
    if (x == 1) return 1;
    return x == -1 ? (n & 1 ? -1 : 1) : 0;
}

static __device__ int64_t divide(int64_t a, int64_t b)
{
    if (b == 0) return 0;
    if (b == -1) return (int64_t)(0 - (uint64_t)a);
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

static __device__ qn_wide compute_signed(int op, qn_wide x, qn_wide y)
{
    qn_wide r = x;
    switch (op) {
    case QN_PRIM_NEG:
        r.u = 0 - x.u;
        break;
    case QN_PRIM_ABS:
        r.u = x.i < 0 ? 0 - x.u : x.u;
        break;
    case QN_PRIM_SQUARE:
        r.u = x.u * x.u;
        break;
    case QN_PRIM_RELU:
        r.i = x.i > 0 ? x.i : 0;
        break;
    case QN_PRIM_ADD:
        r.u = x.u + y.u;
        break;
    case QN_PRIM_SUB:
        r.u = x.u - y.u;
        break;
    case QN_PRIM_MUL:
        r.u = x.u * y.u;
        break;
    case QN_PRIM_DIV:
        r.i = divide(x.i, y.i);
        break;
    case QN_PRIM_MAXIMUM:
        r.i = x.i > y.i ? x.i : y.i;
        break;
    case QN_PRIM_MINIMUM:
        r.i = x.i < y.i ? x.i : y.i;
        break;
    case QN_PRIM_POW:
        if (y.i < 0)
            r.i = reciprocal_power(x.i, y.i);
        else
            r.u = power(x.u, y.u);
        break;
    default:
        break; /* FLOOR, ROUND: as it is */
    }
    return r;
}

static __device__ qn_wide compute_unsigned(int op, qn_wide x, qn_wide y)
{
    qn_wide r = x;
    switch (op) {
    case QN_PRIM_NEG:
        r.u = 0 - x.u;
        break;
    case QN_PRIM_SQUARE:
        r.u = x.u * x.u;
        break;
    case QN_PRIM_ADD:
        r.u = x.u + y.u;
        break;
    case QN_PRIM_SUB:
        r.u = x.u - y.u;
        break;
    case QN_PRIM_MUL:
        r.u = x.u * y.u;
        break;
    case QN_PRIM_DIV:
        r.u = y.u ? x.u / y.u : 0;
        break;
    case QN_PRIM_MAXIMUM:
        r.u = x.u > y.u ? x.u : y.u;
        break;
    case QN_PRIM_MINIMUM:
        r.u = x.u < y.u ? x.u : y.u;
        break;
    case QN_PRIM_POW:
        r.u = power(x.u, y.u);
        break;
    default:
        break; /* ABS, RELU, FLOOR, ROUND: as it is */
    }
    return r;
}

static __device__ double real_of(int op, double a, double b)
{
    const double half_root = 0.70710678118654752440, c = 0.79788456080286535588;
    switch (op) {
    case QN_PRIM_NEG:
        return -a;
    case QN_PRIM_ABS:
        return fabs(a);
    case QN_PRIM_EXP:
        return exp(a);
    case QN_PRIM_LOG:
        return log(a);
    case QN_PRIM_SQRT:
        return sqrt(a);
    case QN_PRIM_RSQRT:
        return 1 / sqrt(a);
    case QN_PRIM_SQUARE:
        return a * a;
    case QN_PRIM_RECIP:
        return 1 / a;
    case QN_PRIM_SIN:
        return sin(a);
    case QN_PRIM_COS:
        return cos(a);
    case QN_PRIM_TANH:
        return tanh(a);
    case QN_PRIM_ERF:
        return erf(a);
    case QN_PRIM_SIGMOID:
        return a < 0 ? exp(a) / (1 + exp(a)) : 1 / (1 + exp(-a));
    case QN_PRIM_SOFTPLUS:
        return (a > 0 ? a : a < 0 ? 0 : a) + log1p(exp(-fabs(a)));
    case QN_PRIM_SILU:
        return a / (1 + exp(-a));
    case QN_PRIM_GELU:
        return 0.5 * a * (1 + erf(a * half_root));
    case QN_PRIM_GELU_TANH:
        return 0.5 * a * (1 + tanh(c * a * (1 + 0.044715 * a * a)));
    case QN_PRIM_RELU:
        return a < 0 ? 0 : a;
    case QN_PRIM_FLOOR:
        return floor(a);
    case QN_PRIM_ROUND:
        return nearbyint(a);
    case QN_PRIM_LOG1P:
        return log1p(a);
    case QN_PRIM_EXPM1:
        return expm1(a);
    case QN_PRIM_ADD:
        return a + b;
    case QN_PRIM_SUB:
        return a - b;
    case QN_PRIM_MUL:
        return a * b;
    case QN_PRIM_DIV:
        return a / b;
    case QN_PRIM_MAXIMUM:
        return a != a ? a : b != b ? b : a > b ? a : b;
    case QN_PRIM_MINIMUM:
        return a != a ? a : b != b ? b : a < b ? a : b;
    case QN_PRIM_POW:
        return pow(a, b);
    default:
        return a;
    }
}

/* Operands of a step whose inputs have the output's shape. */
template <int N> struct elements {
    void *out;
    const void *in[N];
    qn_places<N> places;
};

template <int N> static elements<N> elements_of(const qn_cuda_step *s)
{
    elements<N> e = {};
    e.out = s->out.data;
    for (int k = 0; k < s->n_in; k++) e.in[k] = s->in[k].data;
    e.places = qn_places_of<N>(s, s->n_in);
    return e;
}

template <int KIND> static __global__ void compute(elements<2> e, int dtype, int op, int n_in)
{
    const int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= e.places.total) return;
    const qn_indices at = qn_indices_of(e.places, i);
    qn_wide x = qn_wide_get(dtype, e.in[0], qn_place_in(e.places, 0, at)), y = x;
    if (n_in > 1) y = qn_wide_get(dtype, e.in[1], qn_place_in(e.places, 1, at));
    if (KIND == QN_WIDE_SIGNED)
        x = compute_signed(op, x, y);
    else if (KIND == QN_WIDE_UNSIGNED)
        x = compute_unsigned(op, x, y);
    else
        x.f = real_of(op, x.f, y.f);
    qn_wide_put(dtype, x, e.out, i);
}

static qn_status launch_typed(qn_cuda_context *c, const qn_cuda_step *s)
{
    const int kind = qn_wide_kind_of(s->out.dtype);
    const elements<2> e = elements_of<2>(s);
    return qn_cuda_begin(c,
                         kind == QN_WIDE_REAL       ? compute<QN_WIDE_REAL>
                         : kind == QN_WIDE_UNSIGNED ? compute<QN_WIDE_UNSIGNED>
                                                    : compute<QN_WIDE_SIGNED>,
                         qn_blocks(e.places.total, BLOCK), BLOCK, 0, e, (int)s->out.dtype, (int)s->prim,
                         s->n_in);
}

extern const qn_cuda_prim qn_cuda_prim_TYPED;
const qn_cuda_prim qn_cuda_prim_TYPED = {launch_typed, NULL};

/* ---- comparison ---------------------------------------------------------------------------------------- */

static __global__ void compare(elements<2> e, int dtype, int which)
{
    const int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= e.places.total) return;
    const qn_indices at = qn_indices_of(e.places, i);
    const qn_wide x = qn_wide_get(dtype, e.in[0], qn_place_in(e.places, 0, at)),
                  y = qn_wide_get(dtype, e.in[1], qn_place_in(e.places, 1, at));
    const int kind = qn_wide_kind_of(dtype), equal = kind == QN_WIDE_REAL ? x.f == y.f : x.u == y.u,
              less = kind == QN_WIDE_REAL       ? x.f < y.f
                     : kind == QN_WIDE_UNSIGNED ? x.u < y.u
                                                : x.i < y.i;
    ((uint8_t *)e.out)[i] = (uint8_t)(which == QN_COMPARE_EQ   ? equal
                                      : which == QN_COMPARE_NE ? !equal
                                      : which == QN_COMPARE_LT ? less
                                                               : less | equal);
}

static qn_status launch_compare(qn_cuda_context *c, const qn_cuda_step *s)
{
    const elements<2> e = elements_of<2>(s);
    return qn_cuda_begin(c, compare, qn_blocks(e.places.total, BLOCK), BLOCK, 0, e, (int)s->in[0].dtype,
                         (int)s->params->compare.which);
}

extern const qn_cuda_prim qn_cuda_prim_COMPARE;
const qn_cuda_prim qn_cuda_prim_COMPARE = {launch_compare, NULL};

/* ---- choice -------------------------------------------------------------------------------------------- */

template <class T> static __global__ void select(elements<3> e)
{
    const int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= e.places.total) return;
    const qn_indices at = qn_indices_of(e.places, i);
    const int k = ((const uint8_t *)e.in[0])[qn_place_in(e.places, 0, at)] ? 1 : 2;
    ((T *)e.out)[i] = k == 1 ? ((const T *)e.in[1])[qn_place_in(e.places, 1, at)]
                             : ((const T *)e.in[2])[qn_place_in(e.places, 2, at)];
}

static qn_status launch_select(qn_cuda_context *c, const qn_cuda_step *s)
{
    const elements<3> e = elements_of<3>(s);
    const int bytes = qn_plain_bytes(s->out.dtype);
    return qn_cuda_begin(c,
                         bytes == 1   ? select<uint8_t>
                         : bytes == 2 ? select<uint16_t>
                         : bytes == 4 ? select<uint32_t>
                                      : select<uint64_t>,
                         qn_blocks(e.places.total, BLOCK), BLOCK, 0, e);
}

extern const qn_cuda_prim qn_cuda_prim_SELECT;
const qn_cuda_prim qn_cuda_prim_SELECT = {launch_select, NULL};

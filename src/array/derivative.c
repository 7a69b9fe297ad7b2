/* Derivatives of the element-wise primitives, each by each of its inputs. x, y: inputs; a: the result. */
#include "array/tape.h"

typedef qn_array *derivative(qn_scope *s, qn_array *a, int i, qn_array *g);

static qn_array *shifted(qn_scope *s, qn_array *x, double factor, double shift)
{
    return qn_add(s, qn_scale(s, x, factor), qn_number_like(s, x, shift));
}

static qn_array *squared(qn_scope *s, qn_array *x)
{
    return qn_unary(s, QN_PRIM_SQUARE, x);
}

/* There is no comparison among the primitives: x grown until every normal number passes 1, then cut to
 * [-1, 1]. */
qn_array *qn_sign_of(qn_scope *s, qn_array *x)
{
    qn_array *high = qn_binary(s, QN_PRIM_MINIMUM, qn_scale(s, x, 0x1p127f), qn_scalar(s, 1));
    return qn_binary(s, QN_PRIM_MAXIMUM, high, qn_scalar(s, -1));
}

static qn_array *derivative_NEG(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    return qn_unary(s, QN_PRIM_NEG, g);
}

static qn_array *derivative_ABS(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    return qn_mul(s, g, qn_sign_of(s, a->in[0]));
}

static qn_array *derivative_EXP(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    return qn_mul(s, g, a);
}

static qn_array *derivative_LOG(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    return qn_div(s, g, a->in[0]);
}

static qn_array *derivative_SQRT(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    return qn_div(s, qn_scale(s, g, 0.5f), a);
}

static qn_array *derivative_RSQRT(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    return qn_mul(s, qn_scale(s, g, -0.5f), qn_mul(s, a, squared(s, a)));
}

static qn_array *derivative_SQUARE(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    return qn_mul(s, qn_scale(s, g, 2), a->in[0]);
}

static qn_array *derivative_RECIP(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    return qn_mul(s, qn_unary(s, QN_PRIM_NEG, g), squared(s, a));
}

static qn_array *derivative_SIN(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    return qn_mul(s, g, qn_unary(s, QN_PRIM_COS, a->in[0]));
}

static qn_array *derivative_COS(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    return qn_mul(s, qn_unary(s, QN_PRIM_NEG, g), qn_unary(s, QN_PRIM_SIN, a->in[0]));
}

static qn_array *derivative_TANH(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    return qn_mul(s, g, shifted(s, squared(s, a), -1, 1));
}

/* 2 / sqrt(pi) exp(-x^2) */
static qn_array *derivative_ERF(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    qn_array *bell = qn_unary(s, QN_PRIM_EXP, qn_scale(s, squared(s, a->in[0]), -1));
    return qn_mul(s, g, qn_scale(s, bell, 1.1283791670955126));
}

static qn_array *derivative_SIGMOID(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    return qn_mul(s, g, qn_mul(s, a, shifted(s, a, -1, 1)));
}

static qn_array *derivative_SOFTPLUS(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    return qn_mul(s, g, qn_unary(s, QN_PRIM_SIGMOID, a->in[0]));
}

/* sigmoid(x) (1 + x - a), as a = x sigmoid(x) */
static qn_array *derivative_SILU(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    qn_array *rest = shifted(s, qn_sub(s, a->in[0], a), 1, 1);
    return qn_mul(s, g, qn_mul(s, qn_unary(s, QN_PRIM_SIGMOID, a->in[0]), rest));
}

/* The normal distribution and x times its density. */
static qn_array *derivative_GELU(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    qn_array *x = a->in[0], *erf = qn_unary(s, QN_PRIM_ERF, qn_scale(s, x, 0.70710678118654752));
    qn_array *density = qn_unary(s, QN_PRIM_EXP, qn_scale(s, squared(s, x), -0.5f));
    density = qn_scale(s, qn_mul(s, x, density), 0.39894228040143268);
    return qn_mul(s, g, qn_add(s, shifted(s, erf, 0.5f, 0.5f), density));
}

/* a = x (1 + t) / 2, t = tanh(c (x + d x^3)) */
static qn_array *derivative_GELU_TANH(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    const double c = 0.79788456080286536, d = 0.044715;
    qn_array *x = a->in[0], *x2 = squared(s, x);
    qn_array *t = qn_unary(s, QN_PRIM_TANH, qn_mul(s, x, shifted(s, x2, c * d, c)));
    qn_array *slope = qn_mul(s, shifted(s, squared(s, t), -0.5f, 0.5f), shifted(s, x2, 3 * c * d, c));
    return qn_mul(s, g, qn_add(s, shifted(s, t, 0.5f, 0.5f), qn_mul(s, x, slope)));
}

static qn_array *derivative_RELU(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    return qn_mul(s, g, qn_unary(s, QN_PRIM_RELU, qn_sign_of(s, a->in[0])));
}

/* Flat wherever they have a slope. */
static qn_array *derivative_FLOOR(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    return NULL;
}

static qn_array *derivative_ROUND(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    return NULL;
}

static qn_array *derivative_LOG1P(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    return qn_div(s, g, shifted(s, a->in[0], 1, 1));
}

static qn_array *derivative_EXPM1(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    return qn_mul(s, g, shifted(s, a, 1, 1));
}

static qn_array *derivative_ADD(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    return g;
}

static qn_array *derivative_SUB(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    return i == 0 ? g : qn_unary(s, QN_PRIM_NEG, g);
}

static qn_array *derivative_MUL(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    return qn_mul(s, g, a->in[1 - i]);
}

static qn_array *derivative_DIV(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    qn_array *share = qn_div(s, g, a->in[1]);
    return i == 0 ? share : qn_mul(s, qn_unary(s, QN_PRIM_NEG, share), a);
}

/* Equal inputs take half each. */
static qn_array *chosen(qn_scope *s, qn_array *better, qn_array *worse, qn_array *g)
{
    return qn_mul(s, g, shifted(s, qn_sign_of(s, qn_sub(s, better, worse)), 0.5f, 0.5f));
}

static qn_array *derivative_MAXIMUM(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    return chosen(s, a->in[i], a->in[1 - i], g);
}

static qn_array *derivative_MINIMUM(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    return chosen(s, a->in[1 - i], a->in[i], g);
}

static qn_array *derivative_POW(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    qn_array *x = a->in[0], *y = a->in[1];
    if (i == 1) return qn_mul(s, g, qn_mul(s, a, qn_unary(s, QN_PRIM_LOG, x)));
    return qn_mul(s, g, qn_mul(s, y, qn_binary(s, QN_PRIM_POW, x, shifted(s, y, 1, -1))));
}

static derivative *const table[QN_PRIM_COUNT] = {
#define E(name, inputs) [QN_PRIM_##name] = derivative_##name,
#include "prim/primitives.def"
};

qn_array *qn_derivative(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    return table[a->prim](s, a, i, g);
}

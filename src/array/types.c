/* In which types primitives are computed. Inputs of other types are cast before, and the result back: f16 and
 * bf16 are computed in f32; a product of bf16 matrices takes them as they are;
 * where two types meet, in the one that qn_promote gives; integers become f32 where
 * a primitive gives fractions; sums and products of bool are i32. f64 is computed by the primitive itself or
 * by its fallback. */
#include "array/graph.h"
#include "prim/convert.h"
#include "prim/dtype.h"

typedef enum {
    AS_IT_IS, /* moves elements, or looks after its types itself */
    MOVED,    /* moves elements of one type */
    COUNTED,  /* numbers of any type but f16 and bf16 */
    SUMMED,   /* the same, and bool becomes i32 */
    REAL      /* f32; f64 by its fallback */
} kind;

typedef struct {
    kind kind;
    unsigned inputs; /* which ones must be of one type: bit i for input i */
} typing;

static typing typing_of(qn_prim prim)
{
    switch (prim) {
    case QN_PRIM_CONCAT:
        return (typing){MOVED, ~0u};
    case QN_PRIM_SELECT:
        return (typing){MOVED, 6};
    case QN_PRIM_MAXIMUM:
    case QN_PRIM_MINIMUM:
    case QN_PRIM_COMPARE:
        return (typing){COUNTED, 3};
    case QN_PRIM_MAX:
    case QN_PRIM_MIN:
    case QN_PRIM_ARG_MAX:
    case QN_PRIM_ARG_SORT:
        return (typing){COUNTED, 1};
    case QN_PRIM_SUM:
    case QN_PRIM_PROD:
    case QN_PRIM_SCAN:
    case QN_PRIM_SCATTER_ADD:
    case QN_PRIM_SCATTER_ALONG:
        return (typing){SUMMED, 1};
    case QN_PRIM_MATMUL:
    case QN_PRIM_MATMUL_ROWS:
        return (typing){SUMMED, 3};
    case QN_PRIM_SOFTMAX:
    case QN_PRIM_SINKHORN:
    case QN_PRIM_DROPOUT:
    case QN_PRIM_TOP_K:
        return (typing){REAL, 1};
    case QN_PRIM_ROPE:
    case QN_PRIM_CROSS_ENTROPY:
        return (typing){REAL, 3};
    case QN_PRIM_RMS_NORM:
    case QN_PRIM_RMS_NORM_GRAD:
    case QN_PRIM_LAYER_NORM:
        return (typing){REAL, 7};
    case QN_PRIM_CROSS_ENTROPY_GRAD:
        return (typing){REAL, 1 | 2 | 8 | 16};
    case QN_PRIM_GATHER_MM:
    case QN_PRIM_SCATTER_MM:
        return (typing){REAL, 3};
    case QN_PRIM_EXPERTS:
        return (typing){REAL, 1 | 2 | 8};
    default:
        if (qn_prim_get(prim)->kind != QN_CLASS_ELEMENTWISE) return (typing){AS_IT_IS, 0};
        return (typing){qn_prim_takes_integers(prim) ? SUMMED : REAL, 3};
    }
}

int qn_is_f32_alone(qn_prim prim)
{
    return qn_prim_get(prim)->kind == QN_CLASS_OTHER && typing_of(prim).kind == REAL;
}

static int is_half(qn_dtype d)
{
    return d == QN_DTYPE_F16 || d == QN_DTYPE_BF16;
}

/* The type in which the numbers meet. A packed weight looks after itself. */
static int meeting(int n_in, qn_array *const *in, unsigned which, qn_dtype *out)
{
    int n_weak = 0, n = 0;
    qn_dtype t = QN_DTYPE_BOOL;
    for (int i = 0; i < n_in; i++) {
        if (!(which >> i & 1) || !qn_is_plain(in[i])) continue;
        if (in[i]->weak)
            n_weak++;
        else
            t = n++ ? qn_promote(t, in[i]->dtype) : in[i]->dtype;
    }
    if (n_weak && !(n && qn_dtype_is_float(t))) t = QN_DTYPE_F32;
    *out = t;
    return n + n_weak;
}

static qn_dtype computed_in(qn_prim prim, kind kind, qn_dtype t)
{
    if (kind == MOVED) return t;
    if (is_half(t)) return QN_DTYPE_F32;
    if (kind == SUMMED && t == QN_DTYPE_BOOL) return QN_DTYPE_I32;
    return kind == REAL && !qn_dtype_is_float(t) ? QN_DTYPE_F32 : t;
}

int qn_fit_types(qn_scope *s, qn_prim prim, int n_in, qn_array **in, qn_dtype *back)
{
    const typing how = typing_of(prim);
    *back = QN_DTYPE_COUNT;
    int same = 1;
    for (int i = 0; i < n_in; i++)
        if (how.inputs >> i & 1) same &= in[i]->dtype == QN_DTYPE_F32;
    qn_dtype t;
    if (same || how.kind == AS_IT_IS || !meeting(n_in, in, how.inputs, &t)) return 1;
    if (prim == QN_PRIM_MATMUL && qn_is_plain(in[0]) && qn_is_plain(in[1]) && in[0]->dtype == QN_DTYPE_BF16 &&
        in[1]->dtype == QN_DTYPE_BF16) { /* the product is f32 before it is rounded */
        *back = QN_DTYPE_BF16;
        return 1;
    }
    const qn_dtype to = computed_in(prim, how.kind, t);
    for (int i = 0; i < n_in; i++) {
        if (!(how.inputs >> i & 1) || !qn_is_plain(in[i]) || in[i]->dtype == to) continue;
        in[i] = in[i]->weak ? qn_restated(s, in[i], to) : qn_astype(s, in[i], to);
        if (!in[i]) return 0;
    }
    if (is_half(t) && to != t) *back = t;
    return 1;
}

#include "prim/shape.h"

#include <stdio.h>
#include <string.h>

#include "base/checked.h"

qn_shape qn_shape_make(int n, const int64_t *dims)
{
    qn_shape s = {.n = n};
    for (int i = 0; i < n; i++) s.dim[i] = dims[i];
    return s;
}

qn_shape qn_shape_sym(qn_symbol symbol, int n, const int64_t *dims)
{
    qn_shape s = {.n = n + 1};
    s.sym[symbol] = 1;
    for (int i = 0; i < n; i++) s.dim[i + 1] = dims[i];
    return s;
}

int qn_shape_is_symbolic(const qn_shape *a)
{
    return a->sym[0] || a->sym[1] || a->sym[2];
}

static int same_first(const qn_shape *a, int i, const qn_shape *b, int j)
{
    if (a->dim[i] != b->dim[j]) return 0;
    for (int k = 0; k < QN_SYM_COUNT; k++)
        if ((i == 0 ? a->sym[k] : 0) != (j == 0 ? b->sym[k] : 0)) return 0;
    return 1;
}

int qn_shape_equal(const qn_shape *a, const qn_shape *b)
{
    if (a->n != b->n) return 0;
    for (int i = 0; i < a->n; i++)
        if (!same_first(a, i, b, i)) return 0;
    return 1;
}

int64_t qn_shape_dim(const qn_shape *a, int i, const qn_sizes *sizes)
{
    int64_t d = a->dim[i];
    if (i == 0 && sizes)
        for (int k = 0; k < QN_SYM_COUNT; k++) d += a->sym[k] * sizes->v[k];
    return d;
}

int64_t qn_shape_row(const qn_shape *a)
{
    int64_t n = 1;
    for (int i = 1; i < a->n; i++) n *= a->dim[i];
    return n;
}

int64_t qn_shape_elements(const qn_shape *a, const qn_sizes *sizes)
{
    return a->n == 0 ? 1 : qn_shape_dim(a, 0, sizes) * qn_shape_row(a);
}

const char *qn_shape_text(const qn_shape *a, char *text, int size)
{
    int at = snprintf(text, (size_t)size, "[");
    for (int i = 0; i < a->n && at < size; i++) {
        if (i) at += snprintf(text + at, (size_t)(size - at), ", ");
        if (i == 0 && qn_shape_is_symbolic(a)) {
            const char *plus = "";
            for (int k = 0; k < QN_SYM_COUNT && at < size; k++) {
                if (!a->sym[k]) continue;
                if (a->sym[k] == 1)
                    at += snprintf(text + at, (size_t)(size - at), "%s%c", plus, "RSL"[k]);
                else
                    at += snprintf(text + at, (size_t)(size - at), "%s%d%c", plus, a->sym[k], "RSL"[k]);
                plus = "+";
            }
            if (a->dim[0] && at < size)
                at += snprintf(text + at, (size_t)(size - at), "+%lld", (long long)a->dim[0]);
        } else if (at < size) {
            at += snprintf(text + at, (size_t)(size - at), "%lld", (long long)a->dim[i]);
        }
    }
    if (at < size) snprintf(text + at, (size_t)(size - at), "]");
    return text;
}

qn_status qn_shape_broadcast(const qn_shape *a, const qn_shape *b, qn_shape *out)
{
    qn_shape r = {.n = a->n > b->n ? a->n : b->n};
    for (int i = 0; i < r.n; i++) {
        int ia = i - (r.n - a->n), ib = i - (r.n - b->n);
        const qn_shape *from = NULL;
        int j = 0;
        int one_a = ia < 0 || (a->dim[ia] == 1 && !(ia == 0 && qn_shape_is_symbolic(a)));
        int one_b = ib < 0 || (b->dim[ib] == 1 && !(ib == 0 && qn_shape_is_symbolic(b)));
        if (one_b && ia >= 0)
            from = a, j = ia;
        else if (one_a && ib >= 0)
            from = b, j = ib;
        else if (ia >= 0 && ib >= 0 && same_first(a, ia, b, ib))
            from = a, j = ia;
        if (!from || (i > 0 && j == 0 && qn_shape_is_symbolic(from))) {
            char ta[96], tb[96];
            return qn_fail(QN_E_ARG, "shapes %s and %s do not match", qn_shape_text(a, ta, sizeof ta),
                           qn_shape_text(b, tb, sizeof tb));
        }
        r.dim[i] = from->dim[j];
        if (i == 0 && j == 0) memcpy(r.sym, from->sym, sizeof r.sym);
    }
    *out = r;
    return QN_OK;
}

void qn_shape_strides(const qn_shape *a, int64_t *strides)
{
    int64_t s = 1;
    for (int i = a->n - 1; i >= 0; i--) {
        strides[i] = s;
        s *= a->dim[i];
    }
}

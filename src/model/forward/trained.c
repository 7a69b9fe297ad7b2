#include "model/forward/trained.h"

#include "base/mem.h"

struct qn_trained {
    int64_t n; /* places: the model's own roles, then those of each layer */
    qn_trained_matrix **of;
};

static int64_t place(qn_weight_role role, int64_t layer)
{
    return (role < QN_WEIGHT_MODEL_COUNT ? 0 : 1 + layer) * QN_WEIGHT_ROLE_COUNT + role;
}

qn_status qn_trained_new(int64_t n_layers, qn_trained **out)
{
    qn_trained *t = qn_calloc(1, sizeof *t);
    if (!t) return QN_E_NOMEM;
    t->n = (1 + n_layers) * QN_WEIGHT_ROLE_COUNT;
    t->of = qn_calloc((size_t)t->n, sizeof *t->of);
    if (!t->of) {
        qn_free(t);
        return QN_E_NOMEM;
    }
    *out = t;
    return QN_OK;
}

void qn_trained_free(qn_trained *t)
{
    if (!t) return;
    for (int64_t i = 0; i < t->n; i++) qn_free(t->of[i]);
    qn_free(t->of);
    qn_free(t);
}

qn_trained_matrix *qn_trained_add(qn_trained *t, qn_weight_role role, int64_t layer)
{
    qn_trained_matrix **at = &t->of[place(role, layer)];
    if (!*at) *at = qn_calloc(1, sizeof **at);
    return *at;
}

const qn_trained_matrix *qn_trained_get(const qn_trained *t, qn_weight_role role, int64_t layer)
{
    return t ? t->of[place(role, layer)] : NULL;
}

static qn_array *as_vector(qn_scope *s, qn_array *column)
{
    return column ? qn_reshape_sym(s, column, qn_shape_make(1, qn_array_shape(column)->dim)) : NULL;
}

/* |w + scale b a|^2 of each row is |w|^2 + 2 scale b . (w a^T) + scale^2 b (a a^T) b^T. */
static qn_array *gains(qn_scope *s, const qn_trained_matrix *m, qn_array *weight)
{
    qn_array *a = m->still_a, *b = qn_scale(s, m->still_b, m->scale);
    qn_array *with_w = qn_transpose(s, qn_linear_exact(s, a, weight));
    qn_array *own = qn_matmul(s, b, qn_matmul(s, a, qn_transpose(s, a)));
    qn_array *change = qn_mul(s, b, qn_add(s, qn_scale(s, with_w, 2), own));
    qn_array *squares = qn_add(s, m->squares, as_vector(s, qn_sum(s, change, 1)));
    return qn_mul(s, m->magnitude, qn_unary(s, QN_PRIM_RSQRT, squares));
}

qn_array *qn_trained_linear(qn_scope *s, const qn_trained_matrix *m, qn_array *x, qn_array *weight,
                            qn_array *y)
{
    if (!m->a) return y;
    if (m->key) x = qn_dropout(s, x, m->key, m->dropout, m->stream);
    /* scaled where it is narrow: the wide gradient needs no copy of its own */
    qn_array *h = qn_scale(s, qn_linear_exact(s, x, m->a), m->scale);
    y = qn_add(s, y, qn_linear_exact(s, h, m->b));
    return m->magnitude ? qn_mul(s, y, gains(s, m, weight)) : y;
}

qn_array *qn_trained_experts(qn_scope *s, const qn_trained_matrix *m, qn_array *x, qn_array *ids,
                             qn_array *share, qn_array *y)
{
    if (!m->a) return y;
    if (m->key) x = qn_dropout(s, x, m->key, m->dropout, m->stream);
    qn_array *h = qn_scale(s, qn_gather_plain(s, x, m->a, ids), m->scale);
    if (!share) return qn_add(s, y, qn_gather_plain(s, h, m->b, ids));
    const int64_t n = qn_array_shape(m->b)->dim[1], top = qn_array_shape(share)->dim[1];
    h = qn_mul(s, h, qn_reshape_rows(s, share, 2, (int64_t[]){top, 1}));
    h = qn_sum(s, qn_gather_plain(s, h, m->b, ids), 1);
    return qn_add(s, y, qn_reshape_rows(s, h, 1, &n));
}

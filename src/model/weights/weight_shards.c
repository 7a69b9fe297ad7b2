#include "model/weights/weight_shards.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "model/config/families.h"
#include "quant/types.h"

enum { NAME_BYTES = QN_TENSOR_NAME_MAX + 32, SHARDS_MAX = 1 << 16 };

struct qn_weight_shards {
    qn_tensor_view view;
    char name[NAME_BYTES];
    char *data; /* of all together; NULL: there is one */
    const qn_tensor_view **stored;
    int64_t n;
};

static const qn_tensor_view *find(const qn_source *src, const char *name, int64_t i)
{
    char own[NAME_BYTES];
    const char *last = strrchr(name, '.');
    snprintf(own, sizeof own, "%.*s.shard_%lld%s", (int)(last - name), name, (long long)i, last);
    return qn_source_find(src, own);
}

static qn_status check(const qn_tensor_view *v, const qn_tensor_view *first, int64_t n_cols, int64_t left)
{
    char shape[64];
    QN_TRY(qn_view_check(v));
    if (!qn_type_get(v->dtype)->decode || v->dtype != first->dtype)
        return qn_fail(QN_E_UNSUPPORTED, "%s: tensor %s: type %s is not supported%s", v->file, v->name,
                       v->type_name, v->dtype == first->dtype ? " for weights" : " beside the first shard's");
    if (v->n_dims == 2 && v->shape[1] == n_cols && v->shape[0] <= left) return QN_OK;
    return qn_fail(QN_E_FORMAT, "%s: tensor %s: shape %s, expected at most [%lld, %lld]", v->file, v->name,
                   qn_view_shape_text(v, shape, sizeof shape), (long long)left, (long long)n_cols);
}

/* All rows, one tensor behind the other. */
static qn_status join(qn_weight_shards *s, const int64_t shape[2])
{
    size_t bytes = 0, at = 0;
    for (int64_t i = 0; i < s->n; i++) bytes += s->stored[i]->size_bytes;
    if (!(s->data = qn_alloc(bytes))) return QN_E_NOMEM;
    for (int64_t i = 0; i < s->n; i++) {
        memcpy(s->data + at, s->stored[i]->data, s->stored[i]->size_bytes);
        qn_view_drop(s->stored[i], 0, s->stored[i]->size_bytes);
        at += s->stored[i]->size_bytes;
    }
    s->view.data = s->data;
    s->view.size_bytes = bytes;
    s->view.shape[0] = shape[0];
    s->view.n_elements = shape[0] * shape[1];
    s->view.mapping = NULL;
    return QN_OK;
}

static qn_status gather(qn_weight_shards *s, const qn_source *src, const char *name, const int64_t shape[2])
{
    int64_t left = shape[0];
    const qn_tensor_view *v;
    for (; s->n < SHARDS_MAX && (v = find(src, name, s->n)); s->n++) {
        const qn_tensor_view **more = qn_realloc(s->stored, (size_t)(s->n + 1) * sizeof *more);
        if (!more) return QN_E_NOMEM;
        s->stored = more;
        s->stored[s->n] = v;
        QN_TRY(check(v, s->stored[0], shape[1], left));
        left -= v->shape[0];
    }
    v = s->stored[0];
    if (left)
        return qn_fail(QN_E_FORMAT, "%s: the %lld tensors from %s on have %lld rows together, expected %lld",
                       v->file, (long long)s->n, v->name, (long long)(shape[0] - left), (long long)shape[0]);
    s->view = *v;
    snprintf(s->name, sizeof s->name, "%s", s->n == 1 ? v->name : name);
    s->view.name = s->name;
    s->view.whole = v;
    return s->n == 1 ? QN_OK : join(s, shape);
}

qn_status qn_weight_shards_find(const qn_source *src, const char *name, const int64_t shape[2],
                                qn_weight_shards **out)
{
    *out = NULL;
    if (!find(src, name, 0)) return QN_OK;
    qn_weight_shards *s = qn_calloc(1, sizeof *s);
    if (!s) return QN_E_NOMEM;
    const qn_status status = gather(s, src, name, shape);
    if (status == QN_OK)
        *out = s;
    else
        qn_weight_shards_free(s);
    return status;
}

void qn_weight_shards_free(qn_weight_shards *s)
{
    if (!s) return;
    qn_free(s->data);
    qn_free(s->stored);
    qn_free(s);
}

const qn_tensor_view *qn_weight_shards_view(const qn_weight_shards *s)
{
    return &s->view;
}

int qn_weight_shards_uses(const qn_weight_shards *s, const qn_tensor_view *v)
{
    for (int64_t i = 0; i < s->n; i++)
        if (s->stored[i] == v) return 1;
    return 0;
}

/* Faces of plain buffers: the array that MLX has of one, beside its bytes on the host. A result stays an array as
 * long as only runs read it; constants become arrays once. */
#include "base/mem.h"
#include "device/mlx/mlx.h"
#include "prim/dtype.h"

static void let_go(const qn_mlx *d, qn_mlx_array **a)
{
    d->shim->array_free(*a);
    *a = NULL;
}

static void forget(const qn_mlx *d, qn_mlx_face *f)
{
    let_go(d, &f->array);
    let_go(d, &f->narrow);
    f->is_stale = f->is_newer = 0;
    f->valid_bytes = 0;
}

static qn_status face_of(qn_buffer *b, qn_mlx_face **out)
{
    if (!b->mirror && !(b->mirror = qn_calloc(1, sizeof(qn_mlx_face)))) return QN_E_NOMEM;
    *out = b->mirror;
    return QN_OK;
}

qn_status qn_mlx_face_get(qn_buffer *b, qn_mlx_face **out)
{
    qn_mlx_face *f;
    QN_TRY(face_of(b, &f));
    if (f->is_stale) forget((const qn_mlx *)b->device, f);
    *out = f;
    return QN_OK;
}

qn_status qn_mlx_face_read(const qn_mlx *d, qn_buffer *b)
{
    qn_mlx_face *f = b->mirror;
    if (!f || !f->is_newer) return QN_OK;
    f->is_newer = 0;
    return qn_mlx_check(d->shim, d->shim->array_read(f->array, f->dtype, b->data, f->valid_bytes));
}

qn_status qn_mlx_face_put(const qn_mlx *d, qn_buffer *b, qn_mlx_array *a, qn_dtype dtype, int64_t n)
{
    qn_mlx_face *f;
    const qn_status status = face_of(b, &f);
    if (status != QN_OK) {
        d->shim->array_free(a);
        return status;
    }
    forget(d, f);
    f->array = a;
    f->dtype = dtype;
    f->is_newer = 1;
    qn_dtype_bytes(dtype, n, &f->valid_bytes);
    return QN_OK;
}

/* ---- the host ----------------------------------------------------------------------------------------- */

typedef struct {
    const qn_mlx *d;
    qn_buffer *b;
} face_call;

static qn_status read(void *arg)
{
    const face_call *c = arg;
    return qn_mlx_face_read(c->d, c->b);
}

qn_status qn_mlx_bring(qn_device *base, qn_buffer *b, qn_host_access how)
{
    const qn_mlx *d = (const qn_mlx *)base;
    qn_mlx_face *f = b->mirror;
    if (f && f->is_newer) QN_TRY(qn_mlx_call(d->owner, read, &(face_call){d, b}));
    if (how == QN_HOST_READS) {
        if (f) f->is_wanted = 1;
        return QN_OK;
    }
    QN_TRY(face_of(b, &f));
    f->is_stale = 1;
    f->is_kept |= how == QN_HOST_KEEPS;
    return QN_OK;
}

static qn_status forget_all(void *arg)
{
    const face_call *c = arg;
    forget(c->d, c->b->mirror);
    return QN_OK;
}

void qn_mlx_free_mirror(qn_device *base, qn_buffer *b)
{
    const qn_mlx *d = (const qn_mlx *)base;
    const qn_mlx_face *f = b->mirror;
    if (!f) return;
    if (f->array || f->narrow) qn_mlx_call(d->owner, forget_all, &(face_call){d, b});
    qn_free(b->mirror);
    b->mirror = NULL;
}

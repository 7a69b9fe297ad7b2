/* The forward pass over arrays: what the engine computes in pages, here over whole sequences side by side. */
#include <string.h>

#include "array/build.h"
#include "model/forward/forward.h"
#include "train/function/finetune_parts.h"

/* One pass on its way. */
typedef struct {
    qn_finetune *f;
    qn_scope *s;
    const char *what; /* the public function, for messages */
    int64_t n, length;
    qn_trained *trained; /* of the caller's arrays; NULL: f's own, or none */
    qn_forward forward;
} pass;

/* ---- inputs ------------------------------------------------------------------------------------------- */

/* Fails in the scope if an id of ids, which are data, is not in [least, vocab_size). */
static void check_ids(const pass *p, qn_array *ids, int64_t least)
{
    const int64_t vocab_size = p->f->base.config.vocab_size;
    int64_t id;
    qn_view view;
    qn_iterator it;
    const qn_status status = qn_array_view(p->s, ids, &view);
    if (status != QN_OK) return;
    qn_iterator_begin(&it, &view);
    for (const void *x; (x = qn_iterator_next(&it));) {
        qn_convert(view.dtype, x, QN_DTYPE_I64, &id, 1);
        if (id >= least && id < vocab_size) continue;
        qn_scope_fail(p->s, qn_fail(QN_E_ARG, "%s: token id %lld: the vocabulary has %lld", p->what,
                                    (long long)id, (long long)vocab_size));
        return;
    }
}

/* ids [N, L] as a vector of i32. Data is checked; of what is computed later the nearest id is taken. */
static qn_array *as_rows(const pass *p, qn_array *ids, int64_t least)
{
    qn_scope *s = p->s;
    if (qn_array_data(ids)) {
        check_ids(p, ids, least);
    } else {
        const double most = (double)(p->f->base.config.vocab_size - 1);
        ids = qn_minimum(s, qn_astype(s, ids, QN_DTYPE_I64), qn_constant(s, QN_DTYPE_I64, most));
        ids = qn_maximum(s, ids, qn_constant(s, QN_DTYPE_I64, (double)least));
    }
    if (qn_scope_status(s) != QN_OK) return NULL;
    return qn_reshape(s, qn_astype(s, ids, QN_DTYPE_I32), 1, (int64_t[]){p->n * p->length});
}

static int is_table_of_ids(pass *p, qn_array *ids)
{
    const qn_dtype d = qn_array_dtype(ids);
    if (qn_array_n_dims(ids) != 2 || d > QN_DTYPE_I64 || d == QN_DTYPE_BOOL)
        return qn_bad_call(p->s, p->what, ids, "takes token ids [N, L] of integers"), 0;
    p->n = qn_array_dim(ids, 0);
    p->length = qn_array_dim(ids, 1);
    if (p->n < 1 || p->length < 1 || p->n > INT32_MAX / p->length)
        return qn_bad_call(p->s, p->what, ids, "takes sequences of a known number and length"), 0;
    return 1;
}

/* Positions 0 to L - 1 of each sequence, and where the sequences begin. */
static void make_positions(pass *p)
{
    const int64_t n_rows = p->n * p->length, n_begins = p->n + 1;
    qn_forward *f = &p->forward;
    void *at, *begins;
    f->positions = qn_array_alloc(p->s, p->what, QN_DTYPE_I32, 1, &n_rows, &at);
    f->row_begin = qn_array_alloc(p->s, p->what, QN_DTYPE_I32, 1, &n_begins, &begins);
    for (int64_t i = 0; f->positions && i < n_rows; i++) ((int32_t *)at)[i] = (int32_t)(i % p->length);
    for (int64_t i = 0; f->row_begin && i < n_begins; i++) ((int32_t *)begins)[i] = (int32_t)(i * p->length);
    if (f->config->rope[0].mrope_section[0])
        for (int i = 0; i < QN_ROPE_SECTIONS; i++) f->rope_positions[i] = f->positions;
    if (f->config->rope_short_positions)
        f->is_long = qn_full(p->s, QN_DTYPE_F32, 2, (int64_t[]){n_rows, 1},
                             p->length > f->config->rope_short_positions);
}

static int check_mask(pass *p, qn_array *mask)
{
    const qn_shape shape = qn_shape_make(4, (int64_t[]){p->n, 1, p->length, p->length});
    if (!mask) return 1;
    if (p->f->base.groups.n_recurrent)
        return qn_scope_fail(p->s,
                             qn_fail(QN_E_UNSUPPORTED,
                                     "%s: the model has recurrent layers, which take no mask", p->what)),
               0;
    if (qn_array_dtype(mask) != QN_DTYPE_F32 || !qn_shape_equal(qn_array_shape(mask), &shape))
        return qn_bad_call(p->s, p->what, mask, "takes a mask [N, 1, L, L] of f32"), 0;
    return 1;
}

static int check_arrays(pass *p, qn_array *const *arrays)
{
    const qn_trainable *t = &p->f->trainable;
    for (int64_t i = 0; i < t->n; i++) {
        if (!arrays[i]) return 0;
        if (qn_array_dtype(arrays[i]) != QN_DTYPE_F32 ||
            !qn_shape_equal(qn_array_shape(arrays[i]), &t->arrays[i].shape))
            return qn_scope_fail(p->s, qn_fail(QN_E_ARG, "%s: array %lld must be of f32, in the shape of %s",
                                               p->what, (long long)i, t->arrays[i].name)),
                   0;
    }
    return 1;
}

/* 0: the scope has an error, or something given was NULL. */
static int begin(pass *p, qn_array *const *arrays, qn_array *ids, const qn_forward_options *o)
{
    qn_finetune *f = p->f;
    if (!ids || qn_scope_status(p->s) != QN_OK) return 0;
    if (qn_scope_device(p->s) != f->base.device)
        return qn_bad_call(p->s, p->what, ids, "takes a scope of qn_finetune_scope"), 0;
    if (!is_table_of_ids(p, ids) || !check_mask(p, o->mask)) return 0;
    p->forward = (qn_forward){.config = &f->base.config,
                              .parameters = f->base.parameters,
                              .groups = &f->base.groups,
                              .mask = o->mask,
                              .checkpoint_layers = f->options.o.checkpoint_layers};
    p->forward.ids = as_rows(p, ids, 0);
    make_positions(p);
    if (o->without_trained) return 1;
    p->forward.trained = f->trainable.trained;
    if (!arrays) return 1;
    if (!check_arrays(p, arrays)) return 0;
    const qn_status status = qn_trainable_bind(&f->trainable, &f->base, p->s, arrays, &p->trained);
    if (status != QN_OK) return qn_scope_fail(p->s, status), 0;
    p->forward.trained = p->trained;
    return 1;
}

/* All rows, as the head takes them. */
static qn_array *all_rows(const pass *p)
{
    return qn_count_up(p->s, p->n * p->length);
}

static qn_array *finish(pass *p, qn_array *rows, int64_t width)
{
    qn_trained_free(p->trained);
    return width ? qn_reshape(p->s, rows, 3, (int64_t[]){p->n, p->length, width})
                 : qn_reshape(p->s, rows, 2, (int64_t[]){p->n, p->length});
}

/* ---- public ------------------------------------------------------------------------------------------- */

static const qn_forward_options defaults;

qn_array *qn_finetune_forward(qn_finetune *f, qn_scope *s, qn_array *const *arrays, qn_array *ids,
                              const qn_forward_options *options)
{
    pass p = {.f = f, .s = s, .what = "qn_finetune_forward"};
    qn_array *x = NULL;
    if (begin(&p, arrays, ids, options ? options : &defaults))
        x = qn_forward_head(s, &p.forward, qn_forward_body(s, &p.forward), all_rows(&p));
    return finish(&p, x, f->base.config.vocab_size);
}

qn_array *qn_finetune_hidden(qn_finetune *f, qn_scope *s, qn_array *const *arrays, qn_array *ids,
                             const qn_forward_options *options)
{
    pass p = {.f = f, .s = s, .what = "qn_finetune_hidden"};
    qn_array *x = NULL;
    if (begin(&p, arrays, ids, options ? options : &defaults))
        x = qn_forward_norm(s, &p.forward, qn_forward_body(s, &p.forward), all_rows(&p));
    return finish(&p, x, f->base.config.hidden_size);
}

/* Losses [R, 1]; where a target is negative that of id 0 is computed and left out. */
static qn_array *losses(pass *p, qn_array *targets)
{
    qn_scope *s = p->s;
    qn_array *rows = as_rows(p, targets, INT32_MIN), *zero = qn_constant(s, QN_DTYPE_I32, 0);
    qn_array *column = qn_expand_dims(s, rows, 1);
    qn_array *x = qn_forward_losses(s, &p->forward, qn_forward_body(s, &p->forward), all_rows(p),
                                    qn_maximum(s, column, zero));
    return qn_where(s, qn_ge(s, column, zero), x, qn_scalar(s, 0));
}

qn_array *qn_finetune_losses(qn_finetune *f, qn_scope *s, qn_array *const *arrays, qn_array *ids,
                             qn_array *targets, const qn_forward_options *options)
{
    pass p = {.f = f, .s = s, .what = "qn_finetune_losses"};
    qn_array *x = NULL;
    if (targets && begin(&p, arrays, ids, options ? options : &defaults)) {
        if (qn_array_n_dims(targets) != 2 || qn_array_dim(targets, 0) != p.n ||
            qn_array_dim(targets, 1) != p.length)
            qn_bad_call(s, p.what, targets, "takes targets of the shape of the ids");
        else
            x = losses(&p, targets);
    }
    return finish(&p, x, 0);
}

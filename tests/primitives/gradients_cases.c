#include "tests/primitives/gradients_cases.h"

#include "base/random.h"

/* ---- views and copies --------------------------------------------------------------------------------- */

static qn_array *make_RESHAPE(qn_gradient_case *c)
{
    qn_shape shape = qn_case_shape(c, 1, 3), flat = {.n = 1, .dim = {qn_shape_elements(&shape, NULL)}};
    return qn_case_apply(c, QN_PRIM_RESHAPE, NULL, qn_case_real_as(c, QN_REAL_ANY, shape), &flat);
}

static qn_array *make_TRANSPOSE(qn_gradient_case *c)
{
    return qn_case_turned(c, QN_REAL_ANY, qn_case_shape(c, 1, 4));
}

/* Where elements of a shape lie in a larger array, by steps in either direction; *whole: its shape. */
static void by_steps(qn_gradient_case *c, qn_shape shape, qn_params *p, qn_shape *whole)
{
    *whole = shape;
    for (int d = 0; d < shape.n; d++) {
        const int64_t step = 1 + qn_case_roll(c, 2), reach = (shape.dim[d] - 1) * step,
                      before = qn_case_roll(c, 2);
        const int back = qn_case_roll(c, 3) == 0;
        whole->dim[d] = before + reach + 1 + qn_case_roll(c, 2);
        p->slice.begin[d] = back ? before + reach : before;
        p->slice.step[d] = back ? -step : step;
        qn_case_say(c, " %lld:%lld", (long long)p->slice.begin[d], (long long)p->slice.step[d]);
    }
    if (2 * qn_shape_elements(whole, NULL) <= QN_CASE_ELEMENTS) return;
    *p = (qn_params){0};
    *whole = shape;
    qn_case_say(c, " or all of it");
}

static qn_array *make_SLICE(qn_gradient_case *c)
{
    qn_shape shape = qn_case_shape(c, 1, 3), whole;
    if (qn_case_roll(c, 2)) return qn_case_cut(c, QN_REAL_ANY, shape);
    qn_params p = {0};
    by_steps(c, shape, &p, &whole);
    return qn_case_apply(c, QN_PRIM_SLICE, &p, qn_case_real_as(c, QN_REAL_ANY, whole), &shape);
}

static qn_array *make_UPDATE(qn_gradient_case *c)
{
    qn_shape shape = qn_case_shape(c, 1, 3), whole;
    qn_params p = {0};
    by_steps(c, shape, &p, &whole);
    qn_array *x = qn_case_real_as(c, QN_REAL_ANY, whole);
    return qn_case_call(c, QN_PRIM_UPDATE, &p, 2, (qn_array *[]){x, qn_case_real_as(c, QN_REAL_ANY, shape)});
}

/* Strides of any sign, and 0: elements may come several times. */
static qn_array *make_STRIDED(qn_gradient_case *c)
{
    const qn_shape base = qn_case_shape(c, 1, 3), shape = qn_case_shape(c, 1, 3);
    const int64_t n = qn_shape_elements(&base, NULL);
    qn_params p = {0};
    int64_t low = 0, high = 0;
    for (int d = 0; d < shape.n; d++) {
        const int64_t room = n - 1 - (high - low), most = shape.dim[d] > 1 ? room / (shape.dim[d] - 1) : 3;
        const int64_t stride = most > 0 ? qn_case_roll(c, most + 1) : 0, reach = stride * (shape.dim[d] - 1);
        const int back = (int)qn_case_roll(c, 2);
        p.strided.stride[d] = back ? -stride : stride;
        if (back)
            low -= reach;
        else
            high += reach;
        qn_case_say(c, " stride %lld", (long long)p.strided.stride[d]);
    }
    p.strided.offset = -low + qn_case_roll(c, n - (high - low));
    return qn_case_apply(c, QN_PRIM_STRIDED, &p, qn_case_real_as(c, QN_REAL_ANY, base), &shape);
}

static qn_array *make_SELECT(qn_gradient_case *c)
{
    const qn_shape shape = qn_case_shape(c, 1, 3);
    uint8_t holds[QN_CASE_ELEMENTS];
    for (int64_t i = 0; i < qn_shape_elements(&shape, NULL); i++) holds[i] = (uint8_t)qn_case_roll(c, 2);
    qn_array *condition = qn_case_constant(c, QN_DTYPE_BOOL, holds, shape.n, shape.dim);
    qn_shape one = shape;
    one.dim[qn_case_roll(c, shape.n)] = 1;
    qn_array *a = qn_case_real_as(c, QN_REAL_ANY, qn_case_roll(c, 2) ? shape : one);
    return qn_case_call(c, QN_PRIM_SELECT, NULL, 3,
                        (qn_array *[]){condition, a, qn_case_real_as(c, QN_REAL_ANY, shape)});
}

static qn_array *make_BROADCAST(qn_gradient_case *c)
{
    return qn_case_repeated(c, QN_REAL_ANY, qn_case_shape(c, 1, 4));
}

static qn_array *make_COPY(qn_gradient_case *c)
{
    return qn_case_apply(c, QN_PRIM_COPY, NULL, qn_case_real_as(c, QN_REAL_ANY, qn_case_shape(c, 1, 3)),
                         NULL);
}

static qn_array *make_CAST(qn_gradient_case *c)
{
    return qn_case_apply(c, QN_PRIM_CAST, NULL, qn_case_real_as(c, QN_REAL_ANY, qn_case_shape(c, 1, 3)),
                         NULL);
}

static qn_array *make_DROPOUT(qn_gradient_case *c)
{
    const int64_t three = 3;
    qn_params p = {.dropout = {.rate = 0.3f, .stream = qn_case_roll(c, 100)}};
    qn_array *x = qn_case_real_as(c, QN_REAL_ANY, qn_case_shape(c, 1, 3));
    return qn_case_call(
        c, QN_PRIM_DROPOUT, &p, 2,
        (qn_array *[]){x, qn_case_whole(c, (int32_t[]){(int32_t)qn_case_roll(c, 1000), 5, 1}, 1, &three)});
}

static qn_array *make_CONCAT(qn_gradient_case *c)
{
    qn_shape shape = qn_case_shape(c, 1, 3);
    qn_array *parts[3];
    const int n = 1 + (int)qn_case_roll(c, 3);
    for (int i = 0; i < n; i++) {
        shape.dim[shape.n - 1] = qn_case_size(c);
        parts[i] = qn_case_real_as(c, QN_REAL_ANY, shape);
    }
    if (n > 1 && qn_case_roll(c, 4) == 0) parts[n - 1] = parts[0]; /* one that comes twice */
    return qn_case_call(c, QN_PRIM_CONCAT, NULL, n, parts);
}

/* ---- along an axis ------------------------------------------------------------------------------------ */

static qn_array *reduced(qn_gradient_case *c, qn_prim prim, qn_real_values how)
{
    qn_shape shape = qn_case_shape(c, 1, 3);
    qn_params p = {.reduce = {.axis = (int32_t)qn_case_roll(c, shape.n)}};
    qn_array *x = qn_case_real_as(c, how, shape);
    qn_case_say(c, " axis %d", p.reduce.axis);
    return qn_case_call(c, prim, &p, 1, &x);
}

static qn_array *make_SUM(qn_gradient_case *c)
{
    return reduced(c, QN_PRIM_SUM, QN_REAL_ANY);
}

static qn_array *make_MAX(qn_gradient_case *c)
{
    return reduced(c, QN_PRIM_MAX, QN_REAL_APART);
}

static qn_array *make_MIN(qn_gradient_case *c)
{
    return reduced(c, QN_PRIM_MIN, QN_REAL_APART);
}

static qn_array *make_PROD(qn_gradient_case *c)
{
    return reduced(c, QN_PRIM_PROD, QN_REAL_ANY);
}

static qn_array *make_SCAN(qn_gradient_case *c)
{
    const qn_shape shape = qn_case_shape(c, 1, 3);
    qn_params p = {.scan = {.axis = (int32_t)qn_case_roll(c, shape.n),
                            .how = (int32_t)qn_case_roll(c, QN_SCAN_MIN + 1),
                            .reverse = (int32_t)qn_case_roll(c, 2)}};
    const int is_extreme = p.scan.how == QN_SCAN_MAX || p.scan.how == QN_SCAN_MIN;
    p.scan.exclusive = !is_extreme && qn_case_roll(c, 2); /* the first of those would be infinite */
    qn_case_say(c, " axis %d, how %d, reverse %d, exclusive %d", p.scan.axis, p.scan.how, p.scan.reverse,
                p.scan.exclusive);
    qn_array *x = qn_case_real_as(c, is_extreme ? QN_REAL_APART : QN_REAL_ANY, shape);
    return qn_case_call(c, QN_PRIM_SCAN, &p, 1, &x);
}

static qn_array *make_SOFTMAX(qn_gradient_case *c)
{
    qn_array *x = qn_case_real_as(c, QN_REAL_ANY, qn_case_shape(c, 1, 3));
    return qn_case_call(c, QN_PRIM_SOFTMAX, NULL, 1, &x);
}

static qn_array *make_SINKHORN(qn_gradient_case *c)
{
    const int64_t n = 1 + qn_case_roll(c, 4);
    const qn_params p = {.sinkhorn = {.eps = 0.01f, .n_turns = 1 + (int32_t)qn_case_roll(c, 3)}};
    qn_shape shape = qn_case_shape(c, 1, 2);
    shape.dim[shape.n++] = n;
    shape.dim[shape.n++] = n;
    qn_array *x = qn_case_real_as(c, QN_REAL_ANY, shape);
    return qn_case_call(c, QN_PRIM_SINKHORN, &p, 1, &x);
}

/* x, then `same` arrays of its shape, then up to `vectors` of its last dimension. */
static qn_array *normed(qn_gradient_case *c, qn_prim prim, int same, int vectors)
{
    qn_shape shape = qn_case_shape(c, 1, 3);
    qn_params p = {.norm = {.eps = 0.05f, .offset = qn_case_roll(c, 2) ? 1.0f : 0}};
    qn_array *in[4] = {qn_case_real_as(c, QN_REAL_ANY, shape)};
    int n = 1;
    for (int i = 0; i < same; i++) in[n++] = qn_case_real_as(c, QN_REAL_ANY, shape);
    for (int64_t i = qn_case_roll(c, vectors + 1); i > 0; i--)
        in[n++] = qn_case_reals(c, QN_REAL_ANY, 1, &shape.dim[shape.n - 1]);
    return qn_case_call(c, prim, &p, n, in);
}

static qn_array *make_RMS_NORM(qn_gradient_case *c)
{
    return normed(c, QN_PRIM_RMS_NORM, 0, 1);
}

static qn_array *make_RMS_NORM_GRAD(qn_gradient_case *c)
{
    return normed(c, QN_PRIM_RMS_NORM_GRAD, 1, 1);
}

static qn_array *make_LAYER_NORM(qn_gradient_case *c)
{
    return normed(c, QN_PRIM_LAYER_NORM, 0, 2);
}

/* ---- rope --------------------------------------------------------------------------------------------- */

static qn_array *angles(qn_gradient_case *c, int64_t rows, int64_t half, qn_array *frequencies)
{
    int32_t at[64];
    qn_params p = {.rope = {.factor = 1.25f}};
    for (int64_t r = 0; r < rows; r++) at[r] = (int32_t)qn_case_roll(c, 20);
    qn_array *positions = qn_case_whole(c, at, 1, &rows);
    if (!frequencies) frequencies = qn_case_fixed(c, 0, 1, 1, &half);
    return qn_case_call(c, QN_PRIM_ROPE_TABLE, &p, 2, (qn_array *[]){positions, frequencies});
}

static qn_array *make_ROPE(qn_gradient_case *c)
{
    const int64_t rows = qn_case_size(c), half = qn_case_size(c), rest = qn_case_roll(c, 3);
    qn_params p = {.rope = {.interleaved = (int32_t)qn_case_roll(c, 2)}};
    qn_array *x = qn_case_reals(c, QN_REAL_ANY, QN_DIMS(rows, qn_case_size(c), 2 * half + rest));
    return qn_case_call(c, QN_PRIM_ROPE, &p, 2, (qn_array *[]){x, angles(c, rows, half, NULL)});
}

static qn_array *make_ROPE_TABLE(qn_gradient_case *c)
{
    const int64_t half = qn_case_size(c);
    return angles(c, qn_case_size(c), half, qn_case_new_base(c, QN_REAL_POSITIVE, qn_shape_make(1, &half)));
}

/* ---- products ----------------------------------------------------------------------------------------- */

static qn_array *make_MATMUL(qn_gradient_case *c)
{
    qn_shape a = qn_case_shape(c, 2, 4), b = a;
    if (qn_case_roll(c, 2)) { /* one matrix for all */
        b.n = 2;
        b.dim[1] = qn_case_size(c);
    } else {
        b.dim[b.n - 1] = qn_case_size(c);
    }
    b.dim[b.n - 2] = a.dim[a.n - 1];
    qn_array *x = qn_case_real_as(c, QN_REAL_ANY, a);
    return qn_case_call(c, QN_PRIM_MATMUL, NULL, 2, (qn_array *[]){x, qn_case_real_as(c, QN_REAL_ANY, b)});
}

static qn_array *make_MATMUL_ROWS(qn_gradient_case *c)
{
    const int64_t rows = qn_case_size(c);
    qn_array *a = qn_case_reals(c, QN_REAL_ANY, QN_DIMS(rows, qn_case_size(c))),
             *b = qn_case_reals(c, QN_REAL_ANY, QN_DIMS(rows, qn_case_size(c)));
    return qn_case_call(c, QN_PRIM_MATMUL_ROWS, NULL, 2, (qn_array *[]){a, b});
}

enum { EXPERTS = 3, WIDTH = 32 };

static qn_array *weights(qn_gradient_case *c)
{
    static float rows[EXPERTS][WIDTH * WIDTH];
    qn_weight_part part[EXPERTS];
    for (int64_t m = 0; m < EXPERTS; m++) {
        for (int64_t i = 0; i < WIDTH * WIDTH; i++)
            rows[m][i] = (float)qn_random_unit(11, (uint64_t)(m * WIDTH * WIDTH + i)) - 0.5f;
        part[m] = (qn_weight_part){.data = rows[m]};
    }
    const qn_weight w = {
        .dtype = QN_DTYPE_F32, .n_parts = EXPERTS, .n_out = WIDTH, .n_in = WIDTH, .parts = part};
    qn_buffer *b = NULL;
    if (c->device->ops->import_weights(c->device, 1, &w, &b) != QN_OK) return NULL;
    qn_array *a = qn_from_buffer(c->scope, w.dtype, qn_shape_make(3, (int64_t[]){EXPERTS, WIDTH, WIDTH}), b);
    qn_buffer_release(b);
    return a;
}

static qn_array *make_EXPERTS(qn_gradient_case *c)
{
    const int64_t rows = 1 + qn_case_roll(c, 2), top = 1 + qn_case_roll(c, 2), has_bias = qn_case_roll(c, 2);
    qn_params p = {.experts = {(int32_t)has_bias}};
    qn_array *x = qn_case_roll(c, 2) ? qn_case_reals(c, QN_REAL_ANY, QN_DIMS(rows, WIDTH))
                                     : qn_case_reals(c, QN_REAL_ANY, QN_DIMS(rows, top, WIDTH));
    qn_array *ids = qn_case_indices(c, rows, top, EXPERTS, 1, 2), *w = weights(c);
    qn_array *bias = has_bias ? qn_case_fixed(c, -1, 1, QN_DIMS(EXPERTS, WIDTH)) : NULL;
    return qn_case_call(c, QN_PRIM_EXPERTS, &p, has_bias ? 4 : 3, (qn_array *[]){x, w, ids, bias});
}

static qn_array *make_EXPERTS_SUM(qn_gradient_case *c)
{
    const int64_t rows = 1 + qn_case_roll(c, 2), top = 1 + qn_case_roll(c, 2), has_bias = qn_case_roll(c, 2);
    qn_params p = {.experts = {(int32_t)has_bias}};
    qn_array *x = qn_case_reals(c, QN_REAL_ANY, QN_DIMS(rows, top, WIDTH)),
             *share = qn_case_reals(c, QN_REAL_POSITIVE, QN_DIMS(rows, top));
    qn_array *ids = qn_case_indices(c, rows, top, EXPERTS, 1, 2), *w = weights(c);
    qn_array *bias = has_bias ? qn_case_fixed(c, -1, 1, QN_DIMS(EXPERTS, WIDTH)) : NULL;
    return qn_case_call(c, QN_PRIM_EXPERTS_SUM, &p, has_bias ? 5 : 4, (qn_array *[]){x, w, ids, share, bias});
}

static qn_array *vectors(qn_gradient_case *c, int64_t rows, int64_t top, int64_t k)
{
    return qn_case_roll(c, 2) ? qn_case_reals(c, QN_REAL_ANY, QN_DIMS(rows, k))
                              : qn_case_reals(c, QN_REAL_ANY, QN_DIMS(rows, top, k));
}

static qn_array *make_GATHER_MM(qn_gradient_case *c)
{
    const int64_t rows = qn_case_size(c), top = qn_case_size(c), n = qn_case_size(c), k = qn_case_size(c),
                  matrices = 1 + qn_case_roll(c, 3);
    const int32_t transposed = (int32_t)qn_case_roll(c, 2);
    qn_params p = {.gather_mm = {.transposed = transposed}};
    qn_array *x = vectors(c, rows, top, k),
             *w = qn_case_reals(c, QN_REAL_ANY, QN_DIMS(matrices, transposed ? k : n, transposed ? n : k)),
             *ids = qn_case_indices(c, rows, top, matrices, 0, 2);
    return qn_case_call(c, QN_PRIM_GATHER_MM, &p, 3, (qn_array *[]){x, w, ids});
}

static qn_array *make_SCATTER_MM(qn_gradient_case *c)
{
    const int64_t rows = qn_case_size(c), top = qn_case_size(c), n = qn_case_size(c), k = qn_case_size(c),
                  matrices = 1 + qn_case_roll(c, 3);
    qn_params p = {.gather_mm = {.n_matrices = matrices}};
    qn_array *a = vectors(c, rows, top, n), *b = vectors(c, rows, top, k),
             *ids = qn_case_indices(c, rows, top, matrices, 0, 2);
    return qn_case_call(c, QN_PRIM_SCATTER_MM, &p, 3, (qn_array *[]){a, b, ids});
}

static qn_array *make_EXPERTS_LORA(qn_gradient_case *c)
{
    static const qn_lora_pair none; /* adds nothing */
    const int64_t rows = qn_case_size(c), top = qn_case_size(c), n = qn_case_size(c);
    const int with_share = (int)qn_case_roll(c, 2);
    qn_array *x = vectors(c, rows, top, qn_case_size(c)), *share = NULL,
             *y = with_share ? qn_case_reals(c, QN_REAL_ANY, QN_DIMS(rows, n))
                             : qn_case_reals(c, QN_REAL_ANY, QN_DIMS(rows, top, n));
    if (with_share) share = qn_case_fixed(c, 0, 1, QN_DIMS(rows, top));
    return qn_experts_lora(c->scope, &(qn_params_lora){&none, 1}, 3, x, y,
                           qn_case_indices(c, rows, top, 3, 0, 2), qn_case_row_ids(c, rows, 1), share);
}

static qn_array *make_LORA(qn_gradient_case *c)
{
    static const qn_lora_pair none; /* adds nothing */
    const int64_t rows = qn_case_size(c);
    qn_array *x = qn_case_reals(c, QN_REAL_ANY, QN_DIMS(rows, qn_case_size(c))),
             *y = qn_case_reals(c, QN_REAL_ANY, QN_DIMS(rows, qn_case_size(c)));
    return qn_lora(c->scope, &(qn_params_lora){&none, 1}, x, y, qn_case_row_ids(c, rows, 1));
}

/* ---- rows by index ------------------------------------------------------------------------------------ */

static qn_array *make_TAKE(qn_gradient_case *c)
{
    qn_shape table = qn_case_shape(c, 1, 3);
    qn_array *x = qn_case_real_as(c, QN_REAL_ANY, table);
    return qn_case_call(c, QN_PRIM_TAKE, NULL, 2,
                        (qn_array *[]){x, qn_case_row_ids(c, qn_case_size(c), table.dim[0])});
}

static qn_array *make_SCATTER_ADD(qn_gradient_case *c)
{
    qn_shape rows = qn_case_shape(c, 1, 3);
    qn_params p = {.scatter = {.n = qn_case_size(c)}};
    qn_array *x = qn_case_real_as(c, QN_REAL_ANY, rows);
    return qn_case_call(c, QN_PRIM_SCATTER_ADD, &p, 2,
                        (qn_array *[]){x, qn_case_row_ids(c, rows.dim[0], p.scatter.n)});
}

static qn_array *make_TAKE_ALONG(qn_gradient_case *c)
{
    const int64_t rows = qn_case_size(c), n = qn_case_size(c);
    qn_array *x = qn_case_reals(c, QN_REAL_ANY, QN_DIMS(rows, n));
    return qn_case_call(c, QN_PRIM_TAKE_ALONG, NULL, 2,
                        (qn_array *[]){x, qn_case_indices(c, rows, qn_case_size(c), n, 0, 2)});
}

static qn_array *make_SCATTER_ALONG(qn_gradient_case *c)
{
    const int64_t rows = qn_case_size(c), k = qn_case_size(c);
    qn_params p = {.scatter = {.n = k + qn_case_roll(c, 3)}};
    qn_array *x = qn_case_reals(c, QN_REAL_ANY, QN_DIMS(rows, k));
    return qn_case_call(c, QN_PRIM_SCATTER_ALONG, &p, 2,
                        (qn_array *[]){x, qn_case_indices(c, rows, k, p.scatter.n, 1, 2)});
}

/* ---- sequences ---------------------------------------------------------------------------------------- */

/* Rising numbers of blocks, some of which rows do not see as a whole; -1 behind the last. */
static qn_array *chosen_blocks(qn_gradient_case *c, int64_t rows, int64_t top)
{
    int32_t chosen[QN_CASE_ELEMENTS];
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0, at = 0; i < top && r * top + i < QN_CASE_ELEMENTS; i++) {
            at += qn_case_roll(c, 2);
            chosen[r * top + i] = i && qn_case_roll(c, 4) == 0 ? -1 : (int32_t)(at++);
        }
    return qn_case_whole(c, chosen, 2, (int64_t[]){rows, top});
}

static qn_array *make_ATTEND(qn_gradient_case *c)
{
    qn_array *row_begin, *positions, *in[7];
    const int64_t rows = qn_case_ragged(c, &row_begin, &positions), kv = 1 + qn_case_roll(c, 2),
                  dim = qn_case_size(c), top = 1 + qn_case_roll(c, 2);
    int n = 5;
    const int64_t heads = kv * (1 + qn_case_roll(c, 2));
    qn_params p = {.attend = {.scale = 0.7f,
                              .has_sinks = (int32_t)qn_case_roll(c, 2),
                              .whole = qn_case_roll(c, 3) == 0}};
    if (qn_case_roll(c, 2)) p.attend.window = 1 + qn_case_roll(c, 3);
    if (!p.attend.whole && qn_case_roll(c, 2)) p.attend.chunk = 1 + qn_case_roll(c, 3);
    if (!p.attend.whole && !p.attend.chunk && qn_case_roll(c, 2)) {
        p.attend.block = 1 + qn_case_roll(c, 3);
        p.attend.no_tail = (int32_t)qn_case_roll(c, 2);
    }
    if (qn_case_roll(c, 2)) p.attend.softcap = 2;
    in[0] = qn_case_reals(c, QN_REAL_ANY, QN_DIMS(rows, heads, dim));
    in[1] = qn_case_reals(c, QN_REAL_ANY, QN_DIMS(rows, kv, dim));
    in[2] = qn_case_reals(c, QN_REAL_ANY, QN_DIMS(rows, kv, qn_case_size(c)));
    in[3] = positions;
    in[4] = row_begin;
    if (p.attend.has_sinks) in[n++] = qn_case_fixed(c, -1, 1, 1, &heads);
    if (p.attend.block) in[n++] = chosen_blocks(c, rows, top);
    qn_case_say(c, " window %lld chunk %lld softcap %g whole %d sinks %d", (long long)p.attend.window,
                (long long)p.attend.chunk, (double)p.attend.softcap, p.attend.whole, p.attend.has_sinks);
    qn_case_say(c, " block %lld no_tail %d", (long long)p.attend.block, p.attend.no_tail);
    return qn_case_call(c, QN_PRIM_ATTEND, &p, n, in);
}

static qn_array *make_SHORT_CONV(qn_gradient_case *c)
{
    qn_array *row_begin;
    const int64_t rows = qn_case_ragged(c, &row_begin, NULL), channels = qn_case_size(c);
    qn_array *x = qn_case_reals(c, QN_REAL_ANY, QN_DIMS(rows, channels)),
             *w = qn_case_reals(c, QN_REAL_ANY, QN_DIMS(1 + qn_case_size(c), channels));
    return qn_case_call(c, QN_PRIM_SHORT_CONV, NULL, 3, (qn_array *[]){x, w, row_begin});
}

static qn_array *make_GATED_DELTA(qn_gradient_case *c)
{
    qn_array *row_begin, *in[6];
    const int64_t rows = qn_case_ragged(c, &row_begin, NULL), keys = 1 + qn_case_roll(c, 2),
                  dk = qn_case_size(c);
    const int64_t heads = keys * (1 + qn_case_roll(c, 2));
    in[0] = qn_case_reals(c, QN_REAL_ANY, QN_DIMS(rows, keys, dk));
    in[1] = qn_case_reals(c, QN_REAL_ANY, QN_DIMS(rows, keys, dk));
    in[2] = qn_case_reals(c, QN_REAL_ANY, QN_DIMS(rows, heads, qn_case_size(c)));
    const qn_params p = {.recurrent = {.additive = (int32_t)qn_case_roll(c, 2)}};
    in[3] = qn_case_roll(c, 2) ? qn_case_reals(c, QN_REAL_NEGATIVE, QN_DIMS(rows, heads))
                               : qn_case_reals(c, QN_REAL_POSITIVE, QN_DIMS(rows, heads, dk));
    in[4] = qn_case_reals(c, QN_REAL_POSITIVE, QN_DIMS(rows, heads));
    in[5] = row_begin;
    qn_case_say(c, " additive %d", p.recurrent.additive);
    return qn_case_call(c, QN_PRIM_GATED_DELTA, &p, 6, in);
}

/* ---- losses ------------------------------------------------------------------------------------------- */

static int losses_in(qn_gradient_case *c, qn_params *p, qn_array **in)
{
    const int64_t rows = qn_case_size(c), k = qn_case_size(c), vocab = 1 + qn_case_size(c);
    p->cross_entropy.scale = 0.75f;
    p->cross_entropy.softcap = qn_case_roll(c, 2) ? 3 : 0;
    in[0] = qn_case_reals(c, QN_REAL_ANY, QN_DIMS(rows, k));
    in[1] = qn_case_reals(c, QN_REAL_ANY, QN_DIMS(vocab, k));
    in[2] = qn_case_indices(c, rows, 1, vocab, 0, 1 + (int)qn_case_roll(c, 2));
    return (int)rows;
}

static qn_array *make_CROSS_ENTROPY(qn_gradient_case *c)
{
    qn_params p = {0};
    qn_array *in[3];
    losses_in(c, &p, in);
    return qn_case_call(c, QN_PRIM_CROSS_ENTROPY, &p, 3, in);
}

static qn_array *make_CROSS_ENTROPY_GRAD(qn_gradient_case *c)
{
    qn_params p = {0};
    qn_array *in[5];
    const int64_t rows = losses_in(c, &p, in);
    p.cross_entropy.which = (int32_t)qn_case_roll(c, 2);
    in[3] = qn_case_reals(c, QN_REAL_POSITIVE, QN_DIMS(rows, 1));
    in[4] = qn_case_reals(c, QN_REAL_ANY, QN_DIMS(rows, 1));
    qn_case_say(c, " which %d", p.cross_entropy.which);
    return qn_case_call(c, QN_PRIM_CROSS_ENTROPY_GRAD, &p, 5, in);
}

/* ---- gradients of the second order, which are refused -------------------------------------------------- */

static qn_array *first_gradient(qn_gradient_case *c, qn_array *y)
{
    qn_array *g = NULL;
    if (!y || qn_vjp(c->scope, y, y, 1, &c->base[0].input, &g) != QN_OK) return NULL;
    return g;
}

static qn_array *make_ATTEND_GRAD(qn_gradient_case *c)
{
    return first_gradient(c, make_ATTEND(c));
}

static qn_array *make_EXPERTS_GRAD(qn_gradient_case *c)
{
    return first_gradient(c, make_EXPERTS(c));
}

static qn_array *make_SHORT_CONV_GRAD(qn_gradient_case *c)
{
    return first_gradient(c, make_SHORT_CONV(c));
}

static qn_array *make_GATED_DELTA_GRAD(qn_gradient_case *c)
{
    return first_gradient(c, make_GATED_DELTA(c));
}

/* ---- element-wise ------------------------------------------------------------------------------------- */

static const struct {
    qn_prim prim;
    qn_real_values of[2];
} elementwise[] = {
    {QN_PRIM_NEG, {QN_REAL_ANY}},
    {QN_PRIM_ABS, {QN_REAL_FROM_ZERO}},
    {QN_PRIM_EXP, {QN_REAL_ANY}},
    {QN_PRIM_LOG, {QN_REAL_POSITIVE}},
    {QN_PRIM_SQRT, {QN_REAL_POSITIVE}},
    {QN_PRIM_RSQRT, {QN_REAL_POSITIVE}},
    {QN_PRIM_SQUARE, {QN_REAL_ANY}},
    {QN_PRIM_RECIP, {QN_REAL_FROM_ZERO}},
    {QN_PRIM_SIN, {QN_REAL_ANY}},
    {QN_PRIM_COS, {QN_REAL_ANY}},
    {QN_PRIM_TANH, {QN_REAL_ANY}},
    {QN_PRIM_ERF, {QN_REAL_ANY}},
    {QN_PRIM_SIGMOID, {QN_REAL_ANY}},
    {QN_PRIM_SOFTPLUS, {QN_REAL_ANY}},
    {QN_PRIM_SILU, {QN_REAL_ANY}},
    {QN_PRIM_GELU, {QN_REAL_ANY}},
    {QN_PRIM_GELU_TANH, {QN_REAL_ANY}},
    {QN_PRIM_RELU, {QN_REAL_FROM_ZERO}},
    {QN_PRIM_FLOOR, {QN_REAL_ODD}},
    {QN_PRIM_ROUND, {QN_REAL_ODD}},
    {QN_PRIM_LOG1P, {QN_REAL_POSITIVE}},
    {QN_PRIM_EXPM1, {QN_REAL_ANY}},
    {QN_PRIM_ADD, {QN_REAL_ANY, QN_REAL_ANY}},
    {QN_PRIM_SUB, {QN_REAL_ANY, QN_REAL_ANY}},
    {QN_PRIM_MUL, {QN_REAL_ANY, QN_REAL_ANY}},
    {QN_PRIM_DIV, {QN_REAL_ANY, QN_REAL_FROM_ZERO}},
    {QN_PRIM_MAXIMUM, {QN_REAL_EVEN, QN_REAL_ODD}},
    {QN_PRIM_MINIMUM, {QN_REAL_ODD, QN_REAL_EVEN}},
    {QN_PRIM_POW, {QN_REAL_POSITIVE, QN_REAL_ANY}},
};

/* Inputs of one shape, or of shapes that go together. */
static qn_array *make_elementwise(qn_gradient_case *c, qn_prim prim)
{
    qn_array *in[2] = {NULL};
    const int n = qn_prim_get(prim)->elementwise_inputs;
    for (size_t i = 0; i < sizeof elementwise / sizeof *elementwise; i++) {
        if (elementwise[i].prim != prim) continue;
        qn_shape shape = qn_case_shape(c, 0, 4);
        for (int k = 0; k < n; k++) {
            qn_shape own = shape;
            for (int d = 0; d < own.n && k == 1; d++)
                if (qn_case_roll(c, 4) == 0) own.dim[d] = 1;
            in[k] = qn_case_real_as(c, elementwise[i].of[k], own);
        }
        return qn_case_call(c, prim, NULL, n, in);
    }
    return NULL;
}

/* ---- the table ---------------------------------------------------------------------------------------- */

#define ROW(name)                                    \
    {                                                \
        QN_PRIM_##name, QN_CASE_NUMBERS, make_##name \
    }
#define REFUSED(name)                                \
    {                                                \
        QN_PRIM_##name, QN_CASE_REFUSED, make_##name \
    }

static const qn_case_row rows[] = {
    {QN_PRIM_DATA, QN_CASE_NOTHING, NULL},
    {QN_PRIM_INPUT, QN_CASE_NOTHING, NULL},
    {QN_PRIM_FUSED, QN_CASE_NOTHING, NULL},
    {QN_PRIM_TOP_K, QN_CASE_NOTHING, NULL},
    {QN_PRIM_INDEX_BLOCKS, QN_CASE_NOTHING, NULL},
    {QN_PRIM_COMPARE, QN_CASE_NOTHING, NULL},
    {QN_PRIM_ARG_MAX, QN_CASE_NOTHING, NULL},
    {QN_PRIM_ARG_SORT, QN_CASE_NOTHING, NULL},
    {QN_PRIM_LAST_WRITER, QN_CASE_NOTHING, NULL},
    {QN_PRIM_HASH_IDS, QN_CASE_NOTHING, NULL},
    {QN_PRIM_RANDOM, QN_CASE_NOTHING, NULL},
    ROW(RESHAPE),
    ROW(TRANSPOSE),
    ROW(SLICE),
    ROW(STRIDED),
    ROW(BROADCAST),
    ROW(COPY),
    ROW(CAST),
    ROW(DROPOUT),
    ROW(CONCAT),
    ROW(SELECT),
    ROW(UPDATE),
    ROW(SUM),
    ROW(MAX),
    ROW(MIN),
    ROW(PROD),
    ROW(SCAN),
    ROW(SOFTMAX),
    ROW(SINKHORN),
    ROW(RMS_NORM),
    ROW(RMS_NORM_GRAD),
    ROW(LAYER_NORM),
    ROW(ROPE),
    REFUSED(ROPE_TABLE),
    ROW(MATMUL),
    ROW(MATMUL_ROWS),
    ROW(TAKE),
    ROW(SCATTER_ADD),
    ROW(TAKE_ALONG),
    ROW(SCATTER_ALONG),
    ROW(ATTEND),
    REFUSED(ATTEND_GRAD),
    ROW(CROSS_ENTROPY),
    ROW(CROSS_ENTROPY_GRAD),
    REFUSED(LORA),
    ROW(EXPERTS),
    ROW(EXPERTS_SUM),
    REFUSED(EXPERTS_GRAD),
    REFUSED(EXPERTS_LORA),
    ROW(GATHER_MM),
    ROW(SCATTER_MM),
    ROW(SHORT_CONV),
    REFUSED(SHORT_CONV_GRAD),
    ROW(GATED_DELTA),
    REFUSED(GATED_DELTA_GRAD),
};

const qn_case_row *qn_case_find(qn_prim prim)
{
    static qn_case_row found;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].prim == prim) return &rows[i];
    for (size_t i = 0; i < sizeof elementwise / sizeof *elementwise; i++)
        if (elementwise[i].prim == prim) {
            found = (qn_case_row){prim, QN_CASE_NUMBERS, NULL};
            return &found;
        }
    return NULL;
}

/* The result as it is, turned, or summed over its first dimension: so that the gradient that comes back is a
 * view as well. */
static qn_array *behind(qn_gradient_case *c, qn_array *y)
{
    const int n = y ? qn_array_shape(y)->n : 0;
    qn_params p = {0};
    switch (n ? qn_case_roll(c, 4) : 0) {
    case 1:
        for (int d = 0; d < n; d++) p.transpose.perm[d] = (d + 1) % n;
        qn_case_say(c, ", result turned");
        return qn_case_apply(c, QN_PRIM_TRANSPOSE, &p, y, NULL);
    case 2:
        if (qn_array_dtype(y) != QN_DTYPE_F32)
            y = qn_apply(c->scope, QN_PRIM_CAST, NULL, 1, &y, NULL, QN_DTYPE_F32);
        qn_case_say(c, ", result summed");
        return qn_case_apply(c, QN_PRIM_SUM, &p, y, NULL);
    default:
        return y;
    }
}

qn_array *qn_case_make(qn_gradient_case *c, const qn_case_row *row)
{
    qn_array *y = row->make ? row->make(c) : make_elementwise(c, row->prim);
    return row->kind == QN_CASE_NUMBERS && !c->as_it_is ? behind(c, y) : y;
}

/* Programs: random graphs planned, fused and grouped against the same graphs evaluated array by array; sizes,
 * inputs, outputs and probes; devices that lack primitives. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "array/graph.h"
#include "array/program.h"
#include "base/mem.h"
#include "base/random.h"

#define OK(expr)                                              \
    do {                                                      \
        if ((expr) != QN_OK) fail_msg("%s", qn_last_error()); \
    } while (0)

static qn_device *open_device(int n_threads)
{
    qn_device *d;
    OK(qn_device_open("cpu", &(qn_device_options){.n_threads = n_threads}, &d));
    return d;
}

/* ---- random graphs ------------------------------------------------------------------------------------ */

enum { WIDTH = 6, NODES = 40, OUTPUTS = 6, ROWS_MAX = 37 };

typedef struct {
    qn_scope *scope;
    uint64_t seed, position;
    qn_array *node[NODES]; /* all of [rows, ..], two or three dimensions, values of moderate size */
    int n;
    qn_array *reversed; /* [rows] i32: the last row first */
    int step_by_step;   /* evaluate each array by itself */
} graph;

static int64_t draw(graph *g, int64_t below)
{
    return (int64_t)(qn_random_bits(g->seed, g->position++) % (uint64_t)below);
}

static qn_array *constant(graph *g, int n, const int64_t *dims)
{
    float x[256];
    qn_shape shape = qn_shape_make(n, dims);
    for (int64_t i = 0; i < qn_shape_elements(&shape, NULL); i++)
        x[i] = (float)qn_random_unit(g->seed, g->position++) - 0.5f;
    return qn_from_data(g->scope, QN_DTYPE_F32, shape.n, shape.dim, x);
}

static qn_array *one(graph *g)
{
    return g->node[draw(g, g->n)];
}

static int64_t last(const qn_array *a)
{
    return qn_array_shape(a)->dim[qn_array_shape(a)->n - 1];
}

static qn_array *flat(graph *g, qn_array *a)
{
    return qn_reshape_rows(g->scope, a, 1, (int64_t[]){qn_shape_row(qn_array_shape(a))});
}

/* [rows, n] -> [rows, 2, n / 2] */
static qn_array *folded(graph *g, qn_array *a)
{
    int64_t n = last(flat(g, a));
    return n % 2 ? a : qn_reshape_rows(g->scope, flat(g, a), 2, (int64_t[]){2, n / 2});
}

static qn_array *elementwise(graph *g)
{
    static const qn_prim unary[] = {QN_PRIM_NEG,  QN_PRIM_ABS,    QN_PRIM_TANH, QN_PRIM_SIGMOID,
                                    QN_PRIM_SILU, QN_PRIM_SQUARE, QN_PRIM_SIN,  QN_PRIM_RELU};
    static const qn_prim binary[] = {QN_PRIM_ADD, QN_PRIM_SUB, QN_PRIM_MUL, QN_PRIM_MAXIMUM};
    qn_scope *s = g->scope;
    qn_array *a = one(g), *b;
    switch (draw(g, 4)) {
    case 0:
        return qn_unary(s, QN_PRIM_TANH, qn_unary(s, unary[draw(g, 8)], a));
    case 1: /* with a vector, or with one number a row */
        a = flat(g, a);
        b = draw(g, 2) ? constant(g, 1, (int64_t[]){last(a)}) : qn_slice_last(s, a, draw(g, last(a)), 1);
        return qn_binary(s, binary[draw(g, 4)], b, a);
    case 2: /* halves of the same rows */
        a = folded(g, a);
        b = flat(g, a);
        if (last(b) % 2) return a;
        a = qn_slice_last(s, b, 0, last(b) / 2);
        return qn_binary(s, binary[draw(g, 4)], a, qn_slice_last(s, b, last(b) / 2, last(b) / 2));
    default: /* two arrays, cut to the same width */
        a = flat(g, a);
        b = flat(g, one(g));
        if (last(a) > last(b)) a = qn_slice_last(s, a, 0, last(b));
        return qn_binary(s, binary[draw(g, 4)], a, qn_slice_last(s, b, last(b) - last(a), last(a)));
    }
}

static qn_array *rest(graph *g)
{
    qn_scope *s = g->scope;
    qn_array *a = one(g), *b;
    switch (draw(g, 10)) {
    case 9:
        return qn_take(s, flat(g, a), g->reversed);
    case 0:
        return qn_softmax(s, folded(g, a));
    case 1:
        a = folded(g, a);
        return qn_rms_norm(s, a, constant(g, 1, (int64_t[]){last(a)}), 1e-3f, 1);
    case 2:
        a = flat(g, a);
        return qn_unary(s, QN_PRIM_TANH, qn_matmul(s, a, constant(g, 2, (int64_t[]){last(a), WIDTH})));
    case 3:
        a = flat(g, a);
        b = flat(g, one(g));
        if (last(a) + last(b) > 24) return a;
        return qn_concat(s, 3, (qn_array *[]){a, qn_slice_last(s, b, 0, 1), b});
    case 4: /* over columns, repeated again */
        a = qn_sum(s, folded(g, a), (int)(1 + draw(g, qn_array_shape(folded(g, a))->n - 1)));
        return qn_unary(s, QN_PRIM_TANH,
                        qn_add(s, flat(g, a), constant(g, 1, (int64_t[]){last(flat(g, a))})));
    case 5: /* over rows, given back to every row */
        a = flat(g, a);
        b = draw(g, 2) ? qn_max(s, a, 0) : qn_scale(s, qn_sum(s, a, 0), 0.1f);
        return qn_unary(s, QN_PRIM_TANH, qn_mul(s, a, b));
    case 6: /* transposed inside each row */
        a = folded(g, a);
        if (qn_array_shape(a)->n < 3) return a;
        return draw(g, 2) ? qn_transpose(s, a) : flat(g, qn_transpose(s, a));
    case 7:
        a = flat(g, a);
        return qn_take_along(s, a, qn_top_k(s, a, (int)(1 + draw(g, last(a)))));
    default: /* a product over rows, and back */
        a = flat(g, a);
        b = flat(g, one(g));
        b = qn_binary(s, QN_PRIM_MATMUL_ROWS, a, qn_scale(s, b, 0.1f));
        return qn_unary(s, QN_PRIM_TANH, qn_matmul(s, a, b));
    }
}

/* Grows the graph from x [rows, WIDTH]; the same seed gives the same graph. */
static void grow(graph *g, qn_array *x)
{
    g->node[g->n++] = x;
    while (g->n < NODES) {
        qn_array *a = draw(g, 2) ? elementwise(g) : rest(g);
        if (g->step_by_step)
            OK(qn_eval(g->scope, 1, &a));
        else
            OK(qn_scope_status(g->scope));
        g->node[g->n++] = a;
    }
}

static void fill(float *x, int32_t *reversed, int64_t rows, uint64_t seed)
{
    for (int64_t i = 0; reversed && i < rows; i++) reversed[i] = (int32_t)(rows - 1 - i);
    for (int64_t i = 0; i < rows * WIDTH; i++) x[i] = 2 * (float)qn_random_unit(seed, (uint64_t)i) - 1;
}

/* Runs the program over `rows` rows and copies its outputs, each of rows x width[i]. */
static void run(qn_program *p, int64_t rows, uint64_t seed, const int64_t *width, float out[][ROWS_MAX * 64])
{
    fill(qn_program_input(p, 0), qn_program_input(p, 1), rows, seed);
    OK(qn_program_run(p, &(qn_sizes){{rows, 0, 0}}));
    for (int i = 0; i < OUTPUTS; i++)
        memcpy(out[i], qn_program_output(p, i), (size_t)(rows * width[i]) * sizeof(float));
}

static qn_program *random_program(qn_device *d, uint64_t seed, int64_t *width)
{
    qn_scope *s = qn_scope_new(d);
    graph g = {.scope = s, .seed = seed};
    qn_array *x = qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 1, (int64_t[]){WIDTH}));
    g.reversed = qn_input(s, QN_DTYPE_I32, qn_shape_sym(QN_SYM_R, 0, NULL));
    grow(&g, x);
    qn_program *p;
    qn_program_options o = {.name = "random", .max = {{ROWS_MAX, 0, 0}}, .precision = QN_PRECISION_EXACT};
    for (int i = 0; i < OUTPUTS; i++) width[i] = qn_shape_row(qn_array_shape(g.node[NODES - 1 - i]));
    qn_array *outputs[OUTPUTS];
    for (int i = 0; i < OUTPUTS; i++) outputs[i] = g.node[NODES - 1 - i];
    OK(qn_program_new(s, &o, OUTPUTS, outputs, &p));
    qn_scope_free(s);
    return p;
}

static void random_graphs(void **state)
{
    static float a[OUTPUTS][ROWS_MAX * 64], b[OUTPUTS][ROWS_MAX * 64];
    qn_device *single = open_device(1), *several = open_device(3);
    for (uint64_t seed = 1; seed <= 150; seed++) {
        int64_t rows = 1 + (int64_t)(seed % 7), width[OUTPUTS];
        qn_program *p = random_program(single, seed, width), *q = random_program(several, seed, width);
        run(p, ROWS_MAX, seed + 1000, width, a); /* leaves its marks in all memory */
        run(q, ROWS_MAX, seed + 1000, width, b);
        for (int i = 0; i < OUTPUTS; i++)
            assert_memory_equal(a[i], b[i], (size_t)(ROWS_MAX * width[i]) * sizeof(float));
        run(p, rows, seed, width, a);
        run(q, rows, seed, width, b);
        for (int i = 0; i < OUTPUTS; i++)
            assert_memory_equal(a[i], b[i], (size_t)(rows * width[i]) * sizeof(float));
        qn_program_free(p);
        qn_program_free(q);
        qn_scope *s = qn_scope_new(single);
        graph g = {.scope = s, .seed = seed, .step_by_step = 1};
        float x[ROWS_MAX * WIDTH];
        int32_t reversed[ROWS_MAX];
        fill(x, reversed, rows, seed);
        g.reversed = qn_from_data(s, QN_DTYPE_I32, 1, &rows, reversed);
        grow(&g, qn_from_data(s, QN_DTYPE_F32, 2, (int64_t[]){rows, WIDTH}, x));
        for (int i = 0; i < OUTPUTS; i++) {
            const float *want = qn_array_data(g.node[NODES - 1 - i]);
            for (int64_t k = 0; k < rows * width[i]; k++)
                if (!(fabsf(want[k] - a[i][k]) <= 1e-4f))
                    fail_msg("seed %ld: output %d, element %ld is %g, not %g", (long)seed, i, (long)k,
                             a[i][k], want[k]);
        }
        qn_scope_free(s);
    }
    qn_device_close(single);
    qn_device_close(several);
}

/* ---- fusion ------------------------------------------------------------------------------------------- */

static int steps_of(qn_scope *s, qn_array *a)
{
    qn_program *p;
    OK(qn_program_new(s, &(qn_program_options){.name = "count"}, 1, &a, &p));
    int n = qn_program_steps(p);
    qn_program_free(p);
    return n;
}

static void chains_become_one_step(void **state)
{
    qn_device *d = open_device(1);
    qn_scope *s = qn_scope_new(d);
    qn_array *x = qn_from_data(s, QN_DTYPE_F32, 1, (int64_t[]){3}, (float[]){1, 2, 3}), *a = x;
    for (int i = 0; i < QN_FUSED_MAX; i++) a = qn_unary(s, QN_PRIM_TANH, a);
    assert_int_equal(steps_of(s, a), 1);
    a = qn_unary(s, QN_PRIM_TANH, a);
    assert_int_equal(steps_of(s, a), 2);
    qn_array *half = qn_mul(s, x, x), *both = qn_add(s, half, half); /* two uses: computed once, by itself */
    assert_int_equal(steps_of(s, both), 2);
    a = qn_label(s, qn_mul(s, x, x), "seen");
    assert_int_equal(steps_of(s, qn_unary(s, QN_PRIM_NEG, a)), 2);
    a = x; /* more inputs than a step takes */
    for (int i = 0; i < 2 * QN_MAX_INPUTS; i++) a = qn_add(s, a, qn_scalar(s, (float)i));
    assert_in_range(steps_of(s, a), 2, 4);
    OK(qn_eval(s, 1, &a));
    assert_float_equal(((const float *)qn_array_data(a))[0], 191, 0);
    qn_scope_free(s);
    qn_device_close(d);
}

/* ---- sizes, inputs, outputs --------------------------------------------------------------------------- */

static void symbols_and_buffers(void **state)
{
    qn_device *d = open_device(2);
    qn_scope *s = qn_scope_new(d), *t = qn_scope_new(d);
    int64_t two = 2;
    qn_array *x = qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 1, &two));
    qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_S, 1, &two)); /* nobody reads it */
    qn_array *ids = qn_input(s, QN_DTYPE_I32, qn_shape_sym(QN_SYM_L, 0, NULL));
    qn_array *out[2] = {qn_scale(s, qn_take(s, x, ids), 10), qn_transpose(s, qn_sum(s, x, 0))};
    qn_program *p, *q;
    OK(qn_program_new(s, &(qn_program_options){.name = "rows", .max = {{8, 4, 4}}}, 2, out, &p));
    qn_scope_free(s);
    assert_null(qn_program_input(p, 1));
    assert_null(qn_program_input(p, 3));
    assert_null(qn_program_input(p, -1));
    for (int i = 0; i < 16; i++) ((float *)qn_program_input(p, 0))[i] = (float)i;
    memcpy(qn_program_input(p, 2), (int32_t[]){5, 0, 7}, 3 * sizeof(int32_t));
    assert_int_equal(qn_program_run(p, &(qn_sizes){{9, 0, 3}}), QN_E_ARG);
    assert_non_null(strstr(qn_last_error(), "R is 9, at most 8"));
    assert_int_equal(qn_program_run(p, &(qn_sizes){{-1, 0, 3}}), QN_E_ARG);
    OK(qn_program_run(p, &(qn_sizes){{8, 0, 3}}));
    assert_memory_equal(qn_program_output(p, 0), ((float[]){100, 110, 0, 10, 140, 150}), 6 * sizeof(float));
    assert_memory_equal(qn_program_output(p, 1), ((float[]){56, 64}), 2 * sizeof(float));
    OK(qn_program_run(p, &(qn_sizes){{0, 0, 0}})); /* nothing to do */

    /* another program reads the first one's output where it stands */
    qn_array *from =
        qn_from_buffer(t, QN_DTYPE_F32, qn_shape_make(2, (int64_t[]){4, 2}), qn_program_output_buffer(p, 0));
    qn_array *more = qn_scale(t, from, 2);
    OK(qn_program_new(t, &(qn_program_options){.name = "next"}, 1, &more, &q));
    qn_scope_free(t);
    OK(qn_program_run(p, &(qn_sizes){{8, 0, 3}}));
    qn_program_free(p); /* the buffer is counted */
    OK(qn_program_run(q, &(qn_sizes){{0}}));
    assert_float_equal(((const float *)qn_program_output(q, 0))[5], 300, 0);
    assert_true(qn_program_bytes(q) > 0);
    qn_program_free(q);
    qn_device_close(d);
}

static void count_label(void *user, const qn_probe_view *view)
{
    if (strcmp(view->step->label, "layer.3.seen") != 0) return;
    assert_int_equal(qn_shape_dim(&view->step->out.shape, 0, view->sizes), 2);
    assert_float_equal(((const float *)view->in[0])[1], 2, 0);
    assert_float_equal(((const float *)view->out)[1], 4, 0);
    ++*(int *)user;
}

static void probes_see_labels(void **state)
{
    qn_device *d = open_device(2);
    qn_scope *s = qn_scope_new(d);
    qn_array *x = qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 0, NULL));
    qn_scope_prefix(s, "layer.%d.", 3);
    qn_array *y = qn_unary(s, QN_PRIM_EXP, qn_label(s, qn_mul(s, x, x), "seen"));
    qn_program *p;
    OK(qn_program_new(s, &(qn_program_options){.name = "probed", .max = {{4, 0, 0}}}, 1, &y, &p));
    qn_scope_free(s);
    int seen = 0;
    qn_program_set_probe(p, count_label, NULL, &seen);
    memcpy(qn_program_input(p, 0), (float[]){1, 2}, 2 * sizeof(float));
    OK(qn_program_run(p, &(qn_sizes){{2, 0, 0}}));
    qn_program_set_probe(p, NULL, NULL, NULL);
    OK(qn_program_run(p, &(qn_sizes){{2, 0, 0}}));
    assert_int_equal(seen, 1);
    qn_program_free(p);
    qn_device_close(d);
}

/* ---- a device that lacks primitives ------------------------------------------------------------------- */

static int no_norms(qn_device *d, qn_prim prim)
{
    return prim != QN_PRIM_RMS_NORM && prim != QN_PRIM_TOP_K;
}

static void fallbacks_take_the_place(void **state)
{
    qn_device *d = open_device(1);
    const qn_device_ops *ops = d->ops;
    qn_device_ops few = *ops;
    few.supports = no_norms;
    qn_scope *s = qn_scope_new(d);
    qn_array *x = qn_from_data(s, QN_DTYPE_F32, 2, (int64_t[]){1, 2}, (float[]){3, 4});
    qn_array *fused = qn_rms_norm(s, x, NULL, 0, 0);
    d->ops = &few;
    qn_array *small = qn_rms_norm(s, x, NULL, 0, 0), *ids = qn_top_k(s, x, 1);
    assert_int_equal(fused->prim, QN_PRIM_RMS_NORM);
    assert_int_equal(small->prim, QN_PRIM_MUL);
    assert_int_equal(qn_eval(s, 1, &ids), QN_E_UNSUPPORTED);
    assert_non_null(strstr(qn_last_error(), "cpu has no TOP_K"));
    OK(qn_eval(s, 1, &small));
    d->ops = ops;
    OK(qn_eval(s, 1, &fused));
    for (int i = 0; i < 2; i++)
        assert_float_equal(((const float *)qn_array_data(small))[i], ((const float *)qn_array_data(fused))[i],
                           1e-6);
    qn_scope_free(s);
    qn_device_close(d);
}

/* ---- products that share a group ---------------------------------------------------------------------- */

enum { WIDE = 64, MANY = 8, FEW = 2 };

static qn_array *packed(qn_device *d, qn_scope *s, int64_t n_out, int64_t n_in, uint64_t seed)
{
    static float w[WIDE * WIDE];
    const qn_weight_part parts[1] = {{.data = w}};
    qn_buffer *b = NULL;
    for (int64_t i = 0; i < n_out * n_in; i++) w[i] = (float)qn_random_unit(seed, (uint64_t)i) - 0.5f;
    OK(d->ops->import_weights(
        d, 1, &(qn_weight){.dtype = QN_DTYPE_F32, .n_parts = 1, .n_out = n_out, .n_in = n_in, .parts = parts},
        &b));
    qn_array *a = qn_from_buffer(s, QN_DTYPE_F32, qn_shape_make(2, (int64_t[]){n_out, n_in}), b);
    qn_buffer_release(b);
    return a;
}

/* Products that read views of one array, which begin at the same place, and products of few and many rows:
 * all of one group, against each by itself. */
static void products_of_one_group(void **state)
{
    enum { PRODUCTS = 5 };
    qn_device *d = open_device(4);
    qn_scope *s = qn_scope_new(d);
    static float x[3][MANY * WIDE];
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < MANY * WIDE; i++)
            x[k][i] = (float)qn_random_unit(9 + (uint64_t)k, (uint64_t)i) - 0.5f;
    for (int64_t rows = FEW; rows <= MANY; rows += MANY - FEW) {
        qn_array *whole = qn_from_data(s, QN_DTYPE_F32, 2, (int64_t[]){rows, WIDE}, x[0]);
        qn_array *few = qn_from_data(s, QN_DTYPE_F32, 2, (int64_t[]){FEW, WIDE}, x[1]);
        qn_array *other = qn_from_data(s, QN_DTYPE_F32, 2, (int64_t[]){rows, WIDE}, x[2]);
        qn_array *wide = packed(d, s, WIDE, WIDE, 1), *narrow = packed(d, s, WIDE, WIDE / 2, 2);
        qn_array *in[PRODUCTS] = {whole, qn_slice_last(s, whole, 0, WIDE / 2),
                                  qn_reshape_sym(s, whole, qn_shape_make(3, (int64_t[]){rows, 2, WIDE / 2})),
                                  few, other};
        qn_array *out[PRODUCTS], *alone[PRODUCTS];
        for (int i = 0; i < PRODUCTS; i++) out[i] = qn_linear(s, in[i], i == 1 || i == 2 ? narrow : wide);
        for (int i = 0; i < PRODUCTS; i++) {
            alone[i] = qn_linear(s, in[i], i == 1 || i == 2 ? narrow : wide);
            OK(qn_eval(s, 1, &alone[i]));
        }
        qn_program *p;
        OK(qn_program_new(s, &(qn_program_options){.name = "group"}, PRODUCTS, out, &p));
        for (int n = 0; n < 300; n++) {
            OK(qn_program_run(p, &(qn_sizes){{0}}));
            for (int i = 0; i < PRODUCTS; i++) {
                int64_t elements = qn_shape_elements(qn_array_shape(out[i]), NULL);
                if (memcmp(qn_program_output(p, i), qn_array_data(alone[i]),
                           (size_t)elements * sizeof(float)) != 0)
                    fail_msg("%d rows, run %d: product %d differs", (int)rows, n, i);
            }
        }
        qn_program_free(p);
    }
    qn_scope_free(s);
    qn_device_close(d);
}

/* A packed weight is used whole: what reads a part of its columns would find other numbers there. */
static void parts_of_packed_weights(void **state)
{
    qn_device *d = open_device(1);
    qn_scope *s = qn_scope_new(d);
    static float x[FEW * WIDE];
    qn_array *part = qn_slice_last(s, packed(d, s, WIDE, WIDE, 1), 0, WIDE / 2);
    qn_array *ids = qn_from_data(s, QN_DTYPE_I32, 1, (int64_t[]){2}, (int32_t[]){3, 0});
    qn_array *half = qn_from_data(s, QN_DTYPE_F32, 2, (int64_t[]){FEW, WIDE / 2}, x);
    qn_array *whole = qn_from_data(s, QN_DTYPE_F32, 2, (int64_t[]){FEW, WIDE}, x);
    qn_array *use[] = {qn_linear(s, half, part), qn_matmul(s, whole, part), qn_take(s, part, ids)};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(qn_eval(s, 1, &use[i]), QN_E_UNSUPPORTED);
        assert_non_null(strstr(qn_last_error(), "a part of a packed weight"));
    }
    qn_scope_free(s);
    qn_device_close(d);
}

/* A part of each row, taken apart into heads, is read where it lies. */
static void parts_of_rows_stay_apart(void **state)
{
    qn_device *d = open_device(1);
    qn_scope *s = qn_scope_new(d);
    int64_t width = 12;
    qn_array *x = qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 1, &width));
    qn_array *heads = qn_reshape_rows(s, qn_slice_last(s, x, 3, 8), 2, (int64_t[]){2, 4});
    qn_array *y = qn_softmax(s, heads);
    qn_program *p;
    OK(qn_program_new(s, &(qn_program_options){.name = "p", .max = {{3, 0, 0}}}, 1, &y, &p));
    assert_int_equal(qn_program_steps(p), 1);
    float *in = qn_program_input(p, 0);
    for (int i = 0; i < 36; i++) in[i] = i % 12 < 7 ? 1 : 5;
    OK(qn_program_run(p, &(qn_sizes){{3, 0, 0}}));
    for (int i = 0; i < 24; i++)
        assert_true(fabsf(((const float *)qn_program_output(p, 0))[i] - 0.25f) < 1e-6f);
    qn_program_free(p);
    qn_scope_free(s);
    qn_device_close(d);
}

static void look_away(void *user, const qn_probe_view *view)
{
}

/* Row-local steps and the packing for the product behind them, walked together some rows at a time, against
 * the same step by step, as a probe makes it. */
static void rows_go_through_steps_together(void **state)
{
    enum { MOST = 150 };
    static const int64_t counts[] = {1, 3, 5, 31, 33, MOST};
    static float x[MOST * WIDE], apart[3][MOST * WIDE];
    qn_device *d = open_device(4);
    qn_scope *s = qn_scope_new(d);
    qn_array *in = qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 1, (int64_t[]){WIDE}));
    qn_array *wide = packed(d, s, WIDE, WIDE, 1), *narrow = packed(d, s, WIDE, WIDE / 2, 2);
    qn_array *h = qn_rms_norm(s, qn_unary(s, QN_PRIM_TANH, in), NULL, 0, 1e-5f);
    qn_array *gate = qn_linear(s, h, wide), *up = qn_linear(s, h, wide);
    h = qn_add(s, in, qn_linear(s, qn_mul(s, qn_unary(s, QN_PRIM_SILU, gate), up), wide));
    qn_array *heads = qn_rms_norm(s, qn_reshape_rows(s, h, 2, (int64_t[]){2, WIDE / 2}), NULL, 0, 1e-5f);
    qn_array *rows = qn_reshape_rows(s, heads, 1, (int64_t[]){WIDE});
    qn_array *part = qn_slice_last(s, qn_unary(s, QN_PRIM_ABS, h), WIDE / 2, WIDE / 2);
    qn_array *out[] = {qn_linear(s, rows, wide), qn_linear(s, part, narrow), qn_linear(s, rows, wide)};
    qn_program *p;
    OK(qn_program_new(s, &(qn_program_options){.name = "turns", .max = {{MOST, 0, 0}}}, 3, out, &p));
    qn_scope_free(s);
    for (int i = 0; i < MOST * WIDE; i++) x[i] = (float)qn_random_unit(5, (uint64_t)i) - 0.5f;
    memcpy(qn_program_input(p, 0), x, sizeof x);
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        size_t bytes = (size_t)(counts[c] * WIDE) * sizeof(float);
        qn_program_set_probe(p, look_away, NULL, NULL);
        OK(qn_program_run(p, &(qn_sizes){{counts[c], 0, 0}}));
        for (int i = 0; i < 3; i++) memcpy(apart[i], qn_program_output(p, i), bytes);
        qn_program_set_probe(p, NULL, NULL, NULL);
        for (int n = 0; n < 200; n++) {
            for (int i = 0; i < 3; i++) memset((void *)(uintptr_t)qn_program_output(p, i), 0, bytes);
            OK(qn_program_run(p, &(qn_sizes){{counts[c], 0, 0}}));
            for (int i = 0; i < 3; i++)
                if (memcmp(qn_program_output(p, i), apart[i], bytes) != 0)
                    fail_msg("%d rows, run %d: output %d differs", (int)counts[c], n, i);
        }
    }
    qn_program_free(p);
    qn_device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_graphs),
        cmocka_unit_test(chains_become_one_step),
        cmocka_unit_test(symbols_and_buffers),
        cmocka_unit_test(probes_see_labels),
        cmocka_unit_test(fallbacks_take_the_place),
        cmocka_unit_test(products_of_one_group),
        cmocka_unit_test(parts_of_packed_weights),
        cmocka_unit_test(parts_of_rows_stay_apart),
        cmocka_unit_test(rows_go_through_steps_together),
    };
    return cmocka_run_group_tests_name("program", tests, NULL, NULL);
}

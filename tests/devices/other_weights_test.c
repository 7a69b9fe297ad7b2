/* Weights on the device mlx: what it multiplies by is exactly what the files say, for every type and every
 * way that matrices lie in files, and products agree with the CPU's; what became of them is told; refusals,
 * the ledger, memory that runs out. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "array/array.h"
#include "base/mem.h"
#include "base/random.h"
#include "device/mlx/mlx.h"
#include "format/files/mmap.h"
#include "quant/mlx.h"
#include "quant/types.h"
#include "tests/kernels/kernel_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/scratch.h"

#define OK(expr)                                              \
    do {                                                      \
        if ((expr) != QN_OK) fail_msg("%s", qn_last_error()); \
    } while (0)

enum { PARTS_MAX = 9, OUTPUTS = 6 };

static qn_device *cpu, *mlx;

/* Matrices and how they lie. parts 0: one matrix that is no list of experts. */
typedef struct {
    qn_dtype dtype;
    int64_t parts, n_out, n_in;
    qn_test_weights kind;
    int transposed, step, in_three; /* in_three: MLX's tensors; else blocks */
    int cold;
    int64_t rows, top;
    int bias;
} subject;

/* The file that they lie in, and what they are. */
typedef struct {
    qn_mapping *file;
    qn_weight_part parts[PARTS_MAX];
    qn_weight w;
    float *numbers; /* [parts][n_out][n_in] */
} lying;

static int64_t count(const subject *t)
{
    return t->parts ? t->parts : 1;
}

static int64_t stored_rows(const subject *t)
{
    return t->step ? 1 + t->step * t->n_out : t->n_out;
}

/* Row i of the matrix among those that are stored. */
static int64_t stored_at(const subject *t, int64_t i)
{
    return t->step ? 1 + i * t->step : i;
}

/* One part, from blocks of all its stored rows, at `to`; returns its bytes. */
static size_t lay(const subject *t, const uint8_t *blocks, char *to, qn_weight_part *part)
{
    size_t row;
    assert_true(qn_type_bytes(t->dtype, t->n_in, &row));
    const size_t rows = (size_t)stored_rows(t), each = row / (size_t)t->n_in;
    part->data = to;
    if (t->in_three) {
        const qn_mlx_row_bytes r = qn_mlx_row(t->dtype, t->n_in);
        part->scales = to + rows * r.data;
        part->biases = r.biases ? to + rows * (r.data + r.scales) : NULL;
        for (size_t i = 0; i < rows; i++)
            qn_mlx_split(t->dtype, t->n_in, blocks + i * row, (int64_t)i, to, to + rows * r.data,
                         to + rows * (r.data + r.scales));
    } else if (t->transposed) {
        for (size_t i = 0; i < rows; i++)
            for (size_t k = 0; k < (size_t)t->n_in; k++)
                memcpy(to + (k * rows + i) * each, blocks + i * row + k * each, each);
    } else {
        memcpy(to, blocks, rows * row);
    }
    return rows * row;
}

static lying lay_down(const subject *t, const char *folder)
{
    lying l = {0};
    size_t row, at = 1; /* of no alignment */
    const int64_t rows = stored_rows(t);
    const qn_type *type = qn_type_get(t->dtype);
    assert_true(qn_type_bytes(t->dtype, t->n_in, &row));
    char *bytes = qn_calloc(1, (size_t)count(t) * ((size_t)rows * row + 13) + 64);
    l.numbers = qn_alloc_array((size_t)(count(t) * t->n_out * t->n_in), sizeof *l.numbers);
    assert_true(bytes && l.numbers);
    qn_test_dice dice = {.seed = 3};
    float *out = l.numbers;
    for (int64_t p = 0; p < count(t); p++) {
        const uint8_t *blocks = qn_test_rows(&dice, t->kind, t->dtype, t->n_in, rows);
        for (int64_t i = 0; i < t->n_out; i++, out += t->n_in)
            type->decode(type, blocks + (size_t)stored_at(t, i) * row, t->n_in, out);
        at += lay(t, blocks, bytes + at, &l.parts[p]) + 13;
    }
    qn_test_guarded_end();
    char file[32]; /* others may still be mapped */
    static int n_files;
    snprintf(file, sizeof file, "matrices%d", n_files++ % 8);
    OK(qn_mapping_open(qn_test_write(folder, file, bytes, at + 16), &l.file));
    const char *data = (const char *)qn_mapping_data(l.file);
    for (int64_t p = 0; p < count(t); p++) {
        qn_weight_part *part = &l.parts[p];
        part->data = data + ((const char *)part->data - bytes);
        if (part->scales) part->scales = data + ((const char *)part->scales - bytes);
        if (part->biases) part->biases = data + ((const char *)part->biases - bytes);
    }
    qn_free(bytes);
    l.w = (qn_weight){.dtype = t->dtype,
                      .n_parts = count(t),
                      .n_out = t->n_out,
                      .n_in = t->n_in,
                      .transposed = t->transposed,
                      .rows = {.first = t->step != 0, .step = t->step, .stored = rows},
                      .cold = t->cold};
    return l;
}

static void take_up(lying *l)
{
    qn_mapping_close(l->file);
    qn_free(l->numbers);
}

static qn_array *import(qn_scope *s, lying *l, int n_dims)
{
    qn_buffer *b = NULL;
    l->w.parts = l->parts;
    OK(qn_scope_device(s)->ops->import_weights(qn_scope_device(s), 1, &l->w, &b));
    const int64_t dims[3] = {l->w.n_parts, l->w.n_out, l->w.n_in};
    qn_array *a = qn_from_buffer(s, l->w.dtype, qn_shape_make(n_dims, dims + 3 - n_dims), b);
    qn_buffer_release(b);
    return a;
}

static qn_array *floats(qn_scope *s, int n, const int64_t *dims, uint64_t seed)
{
    const qn_shape shape = qn_shape_make(n, dims);
    const int64_t elements = qn_shape_elements(&shape, NULL);
    float *x = qn_alloc_array((size_t)elements + 1, sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < elements; i++) x[i] = (float)qn_random_unit(seed, (uint64_t)i) - 0.5f;
    qn_array *a = qn_from_data(s, QN_DTYPE_F32, n, dims, x);
    qn_free(x);
    return a;
}

static void name(const subject *t, char *out, size_t size)
{
    snprintf(out, size, "%s%s%s%s, %lld of [%lld, %lld], %lld rows, kind %d", qn_dtype_name(t->dtype),
             t->in_three ? " in three" : "", t->transposed ? " transposed" : "",
             t->step ? " among others" : "", (long long)t->parts, (long long)t->n_out, (long long)t->n_in,
             (long long)t->rows, t->kind);
}

/* ---- the numbers themselves --------------------------------------------------------------------------- */

/* What one multiply-add may differ by where a product is rounded before the sum. */
static double slack(const subject *t, const float *row)
{
    double most = 0;
    if (qn_affine_of(t->dtype).scale != QN_DTYPE_F32 || !qn_affine_of(t->dtype).bits) return 0;
    for (int64_t k = 0; k < t->n_in; k++)
        if (isfinite(row[k])) most = fmax(most, fabs((double)row[k]));
    return most * 4e-7;
}

static void check_numbers(const subject *t, const char *folder)
{
    char text[200];
    name(t, text, sizeof text);
    lying l = lay_down(t, folder);
    qn_scope *s = qn_scope_new(mlx);
    int32_t *ids = qn_alloc_array((size_t)t->n_out, sizeof *ids);
    assert_non_null(ids);
    for (int64_t i = 0; i < t->n_out; i++) ids[i] = (int32_t)(t->n_out - 1 - i);
    qn_array *rows = qn_take(s, import(s, &l, 2), qn_from_data(s, QN_DTYPE_I32, 1, &t->n_out, ids));
    OK(qn_eval(s, 1, &rows));
    const float *got = qn_array_data(rows);
    for (int64_t i = 0; i < t->n_out; i++) {
        const float *want = l.numbers + (t->n_out - 1 - i) * t->n_in;
        const double allowed = slack(t, want);
        for (int64_t k = 0; k < t->n_in; k++, got++)
            if (*got != want[k] && !(isnan(*got) && isnan(want[k])) &&
                !(fabs((double)*got - (double)want[k]) <= allowed))
                fail_msg("%s: row %d, column %d is %.9g, not %.9g", text, (int)(t->n_out - 1 - i), (int)k,
                         (double)*got, (double)want[k]);
    }
    qn_free(ids);
    qn_scope_free(s);
    take_up(&l);
}

static int is_open(void)
{
    if (!cpu) OK(qn_device_open("cpu", &(qn_device_options){.n_threads = 2}, &cpu));
    if (!mlx && qn_device_open("mlx", &(qn_device_options){.n_threads = 2}, &mlx) != QN_OK)
        qn_test_leave_out(qn_last_error());
    return mlx != NULL;
}

static void numbers_are_the_files(void **state)
{
    if (!is_open()) return;
    const char *folder = qn_test_scratch();
    for (int d = 0; d < QN_DTYPE_COUNT; d++) {
        const qn_type *type = qn_type_get((qn_dtype)d);
        if (!type->decode || d == QN_DTYPE_F64) continue;
        const int64_t block = type->block_elements < 32 ? 35 : type->block_elements;
        const int of_mlx = qn_affine_of((qn_dtype)d).bits != 0 || d == QN_DTYPE_MXFP4 || d == QN_DTYPE_NVFP4;
        for (int kind = 0; kind < QN_TEST_WEIGHTS_COUNT; kind++)
            for (int form = 0; form < 3 + of_mlx; form++) {
                subject t = {.dtype = (qn_dtype)d,
                             .n_out = 5 + 14 * form,
                             .n_in = block * (1 + form),
                             .kind = (qn_test_weights)kind,
                             .step = form == 1 ? 2 : 0,
                             .transposed = form == 2 && type->block_elements == 1,
                             .in_three = form == 3,
                             .cold = form == 0};
                check_numbers(&t, folder);
                t.step = 3 * (t.in_three || t.transposed);
                if (t.step) check_numbers(&t, folder);
            }
    }
    qn_test_remove(folder);
}

/* ---- products ----------------------------------------------------------------------------------------- */

typedef struct {
    int n;
    int64_t elements[OUTPUTS];
    float *data[OUTPUTS];
} results;

static void keep(qn_scope *s, int n, qn_array **out, results *r)
{
    OK(qn_eval(s, n, out));
    r->n = n;
    for (int i = 0; i < n; i++) {
        r->elements[i] = qn_shape_elements(qn_array_shape(out[i]), NULL);
        r->data[i] = qn_alloc_array((size_t)r->elements[i] + 1, sizeof(float));
        assert_non_null(r->data[i]);
        memcpy(r->data[i], qn_array_data(out[i]), (size_t)r->elements[i] * sizeof(float));
    }
}

/* A matrix: forth, in three dimensions, back, and rows of it. */
static void of_matrix(qn_scope *s, const subject *t, lying *l, results *r)
{
    qn_array *w = import(s, l, 2), *back = NULL;
    qn_array *x = floats(s, 2, (int64_t[]){t->rows, t->n_in}, 1);
    qn_array *apart = floats(s, 3, (int64_t[]){t->rows, 3, t->n_in}, 2);
    qn_array *g = floats(s, 2, (int64_t[]){t->rows, t->n_out}, 3), *y = qn_linear(s, x, w);
    OK(qn_vjp(s, y, g, 1, &x, &back));
    int32_t ids[4] = {0, (int32_t)t->n_out - 1, (int32_t)t->n_out / 2, 0};
    qn_array *out[] = {y,
                       qn_linear(s, apart, w),
                       back,
                       qn_matmul(s, g, w),
                       qn_take(s, w, qn_from_data(s, QN_DTYPE_I32, 1, &(int64_t){4}, ids)),
                       qn_linear_exact(s, x, w)};
    keep(s, 6, out, r);
}

static void of_experts(qn_scope *s, const subject *t, lying *l, results *r)
{
    qn_array *w = import(s, l, 3), *scores = floats(s, 2, (int64_t[]){t->rows, t->parts}, 11);
    qn_array *ids = qn_top_k_rising(s, scores, (int)t->top);
    qn_array *x = floats(s, 2, (int64_t[]){t->rows, t->n_in}, 1);
    qn_array *each = floats(s, 3, (int64_t[]){t->rows, t->top, t->n_in}, 2);
    qn_array *share = floats(s, 2, (int64_t[]){t->rows, t->top}, 3);
    qn_array *bias = t->bias ? floats(s, 2, (int64_t[]){t->parts, t->n_out}, 4) : NULL;
    qn_array *out[] = {qn_experts(s, x, w, ids, bias), qn_experts(s, each, w, ids, bias),
                       qn_experts_sum(s, each, w, ids, share, bias), NULL, NULL};
    qn_array *g = floats(s, 3, (int64_t[]){t->rows, t->top, t->n_out}, 5);
    OK(qn_vjp(s, out[0], g, 1, &x, &out[3]));
    OK(qn_vjp(s, out[1], g, 1, &each, &out[4]));
    keep(s, 5, out, r);
}

static void check_products(const subject *t, const char *folder)
{
    char text[200];
    name(t, text, sizeof text);
    results r[2];
    lying l = lay_down(t, folder);
    for (int i = 0; i < 2; i++) {
        qn_scope *s = qn_scope_new(i ? mlx : cpu);
        qn_scope_precision(s, QN_PRECISION_EXACT);
        if (t->parts)
            of_experts(s, t, &l, &r[i]);
        else
            of_matrix(s, t, &l, &r[i]);
        qn_scope_free(s);
    }
    for (int k = 0; k < r[0].n; k++) {
        double most = 0;
        for (int64_t i = 0; i < r[0].elements[k]; i++) most = fmax(most, fabs((double)r[0].data[k][i]));
        for (int64_t i = 0; i < r[0].elements[k]; i++)
            if (!(fabs((double)r[0].data[k][i] - (double)r[1].data[k][i]) <= 1e-5 * most))
                fail_msg("%s: product %d, element %d is %.9g, not %.9g", text, k, (int)i,
                         (double)r[1].data[k][i], (double)r[0].data[k][i]);
        for (int i = 0; i < 2; i++) qn_free(r[i].data[k]);
    }
    take_up(&l);
}

static void products_agree(void **state)
{
    static const int64_t rows[] = {1, 3, 33, 0};
    if (!is_open()) return;
    const char *folder = qn_test_scratch();
    for (int i = 0; qn_test_packed_types[i] != QN_DTYPE_COUNT; i++) {
        const qn_dtype d = qn_test_packed_types[i];
        const qn_type *type = qn_type_get(d);
        const int plain = type->block_elements == 1,
                  of_mlx = qn_affine_of(d).bits || d == QN_DTYPE_MXFP4 || d == QN_DTYPE_NVFP4;
        for (int k = 0; k < 3; k++) {
            subject t = {.dtype = d,
                         .n_out = k == 1 ? 1 : 37,
                         .n_in = plain ? (k == 1 ? 1 : 50) : 2 * type->block_elements,
                         .transposed = plain && k == 2,
                         .in_three = of_mlx && k > 0,
                         .rows = rows[k]};
            check_products(&t, folder);
            if (plain && k == 0) t.n_out = t.n_in; /* a square one says nothing by its shape */
            if (plain && k == 0) check_products(&t, folder);
            t = (subject){.dtype = d,
                          .parts = k == 1 ? 1 : 9,
                          .n_out = 21,
                          .n_in = plain ? 20 : type->block_elements,
                          .in_three = 0,
                          .step = k == 2 && !of_mlx ? 2 : 0,
                          .cold = k == 0,
                          .rows = rows[k],
                          .top = k == 1 ? 1 : 4,
                          .bias = k != 1};
            check_products(&t, folder);
        }
    }
    qn_test_remove(folder);
}

/* ---- what is told, refused and counted ---------------------------------------------------------------- */

static void told(void **state)
{
    if (!is_open()) return;
    const char *folder = qn_test_scratch();
    static const struct {
        qn_dtype dtype;
        qn_test_weights kind;
        const char *text;
    } cases[] = {
        {QN_DTYPE_Q4_0, QN_TEST_ORDINARY, "1 tensor q4_0 as affine 4-bit (exact"},
        {QN_DTYPE_Q5_K, QN_TEST_ORDINARY, "1 tensor q5_k as affine 5-bit (exact, 1.3 times"},
        {QN_DTYPE_Q6_K, QN_TEST_ORDINARY, "1 tensor q6_k as affine 6-bit (exact, 2.4 times the bytes)"},
        {QN_DTYPE_Q4_0, QN_TEST_EXTREME_SCALES, "1 tensor q4_0 as f32 (exact, 7.1 times"},
        {QN_DTYPE_BF16, QN_TEST_ORDINARY, NULL},
        {QN_DTYPE_MXFP4, QN_TEST_ORDINARY, NULL},
        {QN_DTYPE_NVFP4, QN_TEST_ORDINARY, NULL},
        {QN_DTYPE_AFFINE4_G64_BF16, QN_TEST_ORDINARY, NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        subject t = {.dtype = cases[i].dtype, .n_out = 40, .n_in = 256, .kind = cases[i].kind};
        lying l = lay_down(&t, folder);
        qn_device *d;
        qn_buffer *b;
        size_t bytes;
        OK(qn_device_open("mlx", &(qn_device_options){.n_threads = 1}, &d));
        l.w.parts = l.parts;
        OK(d->ops->weight_bytes(d, &l.w, &bytes));
        OK(d->ops->import_weights(d, 1, &l.w, &b));
        assert_int_equal(qn_ledger_held(d->ledger, QN_LEDGER_WEIGHTS), b->size_bytes);
        assert_int_equal(qn_ledger_held(d->ledger, QN_LEDGER_SCRATCH), 0);
        if (cases[i].kind == QN_TEST_ORDINARY) assert_int_equal(b->size_bytes, bytes);
        assert_int_equal(((qn_mlx *)d)->shim->weight_bytes(b->data), b->size_bytes);
        const char *note = d->ops->describe(d).note;
        if (cases[i].text ? !strstr(note, cases[i].text) : *note) fail_msg("\"%s\"", note);
        qn_buffer_release(b);
        assert_int_equal(qn_ledger_held(d->ledger, QN_LEDGER_WEIGHTS), 0);
        qn_device_close(d);
        take_up(&l);
    }
    qn_test_remove(folder);
}

static void refused_by_name(void **state)
{
    if (!is_open()) return;
    static const float numbers[64 * 64];
    static const qn_weight_part part = {.data = numbers};
    static const struct {
        qn_weight w;
        const char *text;
    } cases[] = {
        {{.dtype = QN_DTYPE_Q4_0, .n_parts = 1, .n_out = 16, .n_in = 33, .parts = &part}, "33 columns"},
        {{.dtype = QN_DTYPE_Q4_0, .n_parts = 2, .n_out = 32, .n_in = 32, .parts = &part, .transposed = 1},
         "a transposed matrix of q4_0"},
        {{.dtype = QN_DTYPE_F32, .n_parts = 1, .n_out = INT64_MAX / 2, .n_in = 1024, .parts = &part}, "rows"},
        {{.dtype = QN_DTYPE_I32, .n_parts = 1, .n_out = 4, .n_in = 4, .parts = &part}, "i32"},
        {{.dtype = QN_DTYPE_F32, .n_parts = 1, .n_out = 4, .n_in = 4, .parts = &part, .packed = numbers},
         "packed"},
        {{.dtype = QN_DTYPE_F32, .n_parts = 1, .n_out = INT32_MAX, .n_in = INT32_MAX, .parts = &part},
         "left"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_buffer *b = NULL;
        assert_int_not_equal(mlx->ops->import_weights(mlx, 1, &cases[i].w, &b), QN_OK);
        if (!strstr(qn_last_error(), cases[i].text)) fail_msg("%s", qn_last_error());
    }
}

/* Uses of parts of a weight [64, 64], and of one where none is taken; NULL: no more. */
static qn_array *used(qn_scope *s, qn_array *w, int i)
{
    const qn_shape shape = qn_shape_make(2, (int64_t[]){32, 64});
    qn_params range = {.slice = {.begin = {i < 2 ? 16 : 0}}};
    qn_array *x = floats(s, 2, (int64_t[]){2, 64}, 1), *columns = qn_slice_last(s, w, 32, 32),
             *rows = qn_apply(s, QN_PRIM_SLICE, &range, 1, &w, &shape, QN_DTYPE_F32),
             *ids = qn_from_data(s, QN_DTYPE_I32, 1, (int64_t[]){2}, (int32_t[]){3, 0});
    switch (i) {
    case 0:
    case 2: /* the first rows */
        return qn_linear(s, x, rows);
    case 1:
    case 3:
        return qn_take(s, rows, ids);
    case 4:
        return qn_linear(s, qn_slice_last(s, x, 0, 32), columns);
    case 5:
        return qn_matmul(s, x, columns);
    case 6:
        return qn_take(s, columns, ids);
    case 7:
        return qn_head_loss(s, x, rows, ids, 1, 0);
    case 8:
        return qn_take(s, qn_transpose(s, w), ids);
    case 9:
        return qn_unary(s, QN_PRIM_EXP, w);
    default:
        return NULL;
    }
}

/* A weight is read whole: the device keeps it in a form of which rows and columns are not found by strides.
 */
static void parts_are_refused(void **state)
{
    if (!is_open()) return;
    const char *folder = qn_test_scratch();
    const subject t = {.dtype = QN_DTYPE_F32, .n_out = 64, .n_in = 64};
    lying l = lay_down(&t, folder);
    for (int i = 0; i < 10; i++) {
        qn_scope *s = qn_scope_new(mlx);
        qn_array *y = used(s, import(s, &l, 2), i);
        assert_non_null(y);
        assert_int_equal(qn_eval(s, 1, &y), QN_E_UNSUPPORTED);
        if (!strstr(qn_last_error(), "of a weight")) fail_msg("%d: %s", i, qn_last_error());
        qn_scope_free(s);
    }
    take_up(&l);
    qn_test_remove(folder);
}

/* What is refused or fails leaves nothing behind. */
static void memory_runs_out(void **state)
{
    if (!is_open()) return;
    const char *folder = qn_test_scratch();
    const subject kinds[] = {{.dtype = QN_DTYPE_F32, .n_out = 7, .n_in = 64},
                             {.dtype = QN_DTYPE_Q6_K, .parts = 3, .n_out = 5, .n_in = 256},
                             {.dtype = QN_DTYPE_Q4_1, .parts = 2, .n_out = 33, .n_in = 64},
                             {.dtype = QN_DTYPE_AFFINE4_G64_BF16, .n_out = 9, .n_in = 128, .in_three = 1}};
    enum { N = sizeof kinds / sizeof *kinds };
    lying l[N];
    qn_weight w[N];
    qn_buffer *out[N];
    qn_device *d;
    for (int i = 0; i < N; i++) {
        l[i] = lay_down(&kinds[i], folder);
        w[i] = l[i].w;
        w[i].parts = l[i].parts;
    }
    OK(qn_device_open("mlx", &(qn_device_options){.n_threads = 2}, &d));
    qn_ledger_set_limit(d->ledger, 8 << 10);
    assert_int_equal(d->ops->import_weights(d, N, w, out), QN_E_NOMEM);
    assert_int_equal(qn_ledger_total(d->ledger), 0);
    qn_ledger_set_limit(d->ledger, 0);
    const int64_t before = qn_mem_live_blocks();
    qn_status status = QN_E_NOMEM;
    for (int n = 1; status != QN_OK && n < 2000; n++) {
        qn_mem_fail_nth(n);
        status = d->ops->import_weights(d, N, w, out);
        qn_mem_fail_nth(0);
        if (status != QN_OK) assert_int_equal(status, QN_E_NOMEM);
        for (int i = 0; status == QN_OK && i < N; i++) qn_buffer_release(out[i]);
        assert_int_equal(qn_mem_live_blocks(), before);
        assert_int_equal(qn_ledger_total(d->ledger), 0);
    }
    assert_int_equal(status, QN_OK);
    qn_device_close(d);
    for (int i = 0; i < N; i++) take_up(&l[i]);
    qn_test_remove(folder);
}

static int close_devices(void **state)
{
    qn_device_close(mlx);
    qn_device_close(cpu);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(numbers_are_the_files),
                                       cmocka_unit_test(products_agree),
                                       cmocka_unit_test(told),
                                       cmocka_unit_test(refused_by_name),
                                       cmocka_unit_test(parts_are_refused),
                                       cmocka_unit_test(memory_runs_out)};
    return cmocka_run_group_tests_name("mlx_weights", tests, NULL, close_devices);
}

/* Products with experts against each row's own product with each of its experts, computed one by one: equal
 * bits for every type, any number of rows, threads, precisions; cold weights, biases, sums by rising id. And
 * rows of cold tables. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <stdlib.h>
#include <string.h>

#include "array/array.h"
#include "array/program.h"
#include "base/mem.h"
#include "base/random.h"
#include "device/cpu/kernels/kernels.h"
#include "format/files/mmap.h"
#include "quant/types.h"
#include "tests/support/scratch.h"

#define OK(expr)                                              \
    do {                                                      \
        if ((expr) != QN_OK) fail_msg("%s", qn_last_error()); \
    } while (0)

enum { EXPERTS_MAX = 40 };

typedef struct {
    qn_dtype dtype;
    int64_t experts, top, n_out, n_in, rows;
    int bias, cold, transposed;
} layer;

static float uniform(uint64_t seed, int64_t i)
{
    return (float)qn_random_unit(seed, (uint64_t)i) - 0.5f;
}

static qn_array *floats(qn_scope *s, int n, const int64_t *dims, uint64_t seed)
{
    qn_shape shape = qn_shape_make(n, dims);
    int64_t count = qn_shape_elements(&shape, NULL);
    float *x = qn_alloc_array((size_t)count, sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < count; i++) x[i] = uniform(seed, i);
    qn_array *a = qn_from_data(s, QN_DTYPE_F32, shape.n, shape.dim, x);
    qn_free(x);
    return a;
}

/* Blocks of any codes whose scales are small numbers. */
static void fill_blocks(qn_dtype dtype, int64_t n, char *out)
{
    const qn_type *t = qn_type_get(dtype);
    for (int64_t i = 0; i < n / t->block_elements; i++, out += t->block_bytes) {
        for (size_t k = 0; k < t->block_bytes; k++)
            out[k] = (char)(qn_random_bits(5, (uint64_t)i * 1024 + k) & 0xff);
        if (t->block_elements == 1) {
            float value = uniform(5, i);
            uint16_t half = dtype == QN_DTYPE_F16 ? qn_f32_to_f16(value) : qn_f32_to_bf16(value);
            memcpy(out, dtype == QN_DTYPE_F32 ? (void *)&value : (void *)&half, t->block_bytes);
        } else if (dtype == QN_DTYPE_MXFP4) {
            out[0] = 120;
        } else if (dtype == QN_DTYPE_NVFP4) {
            memcpy(out, (uint8_t[]){0x28, 0x2b}, 2);
        } else if (dtype == QN_DTYPE_Q4_K || qn_affine_of(dtype).bits) {
            memcpy(out, (uint16_t[]){0x1c00, 0x1c00}, 4);
        } else {
            memcpy(out, (uint16_t[]){0x2400}, 2);
        }
    }
}

static qn_array *import(qn_scope *s, const qn_weight *w, int n_dims)
{
    qn_buffer *b = NULL;
    OK(qn_scope_device(s)->ops->import_weights(qn_scope_device(s), 1, w, &b));
    int64_t dims[3] = {w->n_parts, w->n_out, w->n_in};
    qn_array *a = qn_from_buffer(s, w->dtype, qn_shape_make(n_dims, dims + 3 - n_dims), b);
    qn_buffer_release(b);
    return a;
}

/* [R, top] by the values of a table of their own, so that groups differ in size. */
static qn_array *choose(qn_scope *s, const layer *l)
{
    qn_array *scores = floats(s, 2, (int64_t[]){l->rows, l->experts}, 11);
    return qn_top_k_rising(s, scores, (int)l->top);
}

static const float *values(qn_scope *s, qn_array *a)
{
    OK(qn_eval(s, 1, &a));
    return qn_array_data(a);
}

static void same(const layer *l, const char *what, const float *got, const float *want, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (memcmp(&got[i], &want[i], sizeof *got) != 0)
            fail_msg("%s, %s, %d experts of [%d, %d], %d of them for %d rows: element %d is %.9g, not %.9g",
                     what, qn_dtype_name(l->dtype), (int)l->experts, (int)l->n_out, (int)l->n_in, (int)l->top,
                     (int)l->rows, (int)i, (double)got[i], (double)want[i]);
}

/* Experts that no row asks for are not packed: their memory is as the system gave it. */
static void check_cold(const layer *l, const qn_buffer *b, const int32_t *ids)
{
    char asked[EXPERTS_MAX] = {0};
    size_t each = b->size_bytes / (size_t)l->experts;
    for (int64_t i = 0; i < l->rows * l->top; i++) asked[ids[i]] = 1;
    for (int64_t e = 0; e < l->experts; e++) {
        const char *panels = (const char *)b->data + (size_t)e * each;
        int touched = 0;
        for (size_t i = 0; i < each && !touched; i++) touched = panels[i] != 0;
        assert_int_equal(touched, asked[e]);
    }
}

static void check(qn_device *d, const layer *l, qn_precision precision, const char *folder)
{
    qn_weight_part parts[EXPERTS_MAX] = {{NULL}};
    size_t matrix;
    assert_true(qn_type_bytes(l->dtype, l->n_out * l->n_in, &matrix));
    char *blocks = qn_alloc_array((size_t)l->experts, matrix);
    assert_non_null(blocks);
    fill_blocks(l->dtype, l->experts * l->n_out * l->n_in, blocks);
    /* Packing gives up the pages behind it, which only a file brings back. */
    qn_mapping *file;
    OK(qn_mapping_open(qn_test_write(folder, "blocks", blocks, (size_t)l->experts * matrix), &file));
    qn_free(blocks);
    for (int64_t e = 0; e < l->experts; e++) parts[e].data = qn_mapping_data(file) + (size_t)e * matrix;
    qn_scope *s = qn_scope_new(d);
    qn_scope_precision(s, precision);
    const qn_weight all = {.dtype = l->dtype,
                           .n_parts = l->experts,
                           .n_out = l->n_out,
                           .n_in = l->n_in,
                           .parts = parts,
                           .transposed = l->transposed,
                           .cold = l->cold};
    qn_array *w = import(s, &all, 3), *ids = choose(s, l);
    qn_array *x = floats(s, 2, (int64_t[]){l->rows, l->n_in}, 1);
    qn_array *each = floats(s, 3, (int64_t[]){l->rows, l->top, l->n_in}, 2);
    qn_array *share = floats(s, 2, (int64_t[]){l->rows, l->top}, 3);
    qn_array *bias = l->bias ? floats(s, 2, (int64_t[]){l->experts, l->n_out}, 4) : NULL;
    qn_array *out[] = {qn_experts(s, x, w, ids, bias), qn_experts(s, each, w, ids, bias),
                       qn_experts_sum(s, each, w, ids, share, bias)};
    OK(qn_eval(s, 3, out));

    int64_t n = l->rows * l->top * l->n_out;
    float *want[3];
    for (int i = 0; i < 3; i++) {
        want[i] = qn_calloc((size_t)n, sizeof **want);
        assert_non_null(want[i]);
    }
    const int32_t *id = (const int32_t *)(const void *)values(s, ids);
    if (l->cold) check_cold(l, qn_array_buffer(w), id);
    const float *shares = values(s, share), *biases = bias ? values(s, bias) : NULL;
    qn_array *flat = qn_reshape_sym(s, each, qn_shape_make(2, (int64_t[]){l->rows * l->top, l->n_in}));
    for (int64_t e = 0; e < l->experts; e++) { /* rising, as the sum has it */
        const qn_weight one = {.dtype = l->dtype,
                               .n_parts = 1,
                               .n_out = l->n_out,
                               .n_in = l->n_in,
                               .parts = &parts[e],
                               .transposed = l->transposed};
        qn_array *matrix_of = import(s, &one, 2);
        const float *of_row = values(s, qn_linear(s, x, matrix_of)),
                    *of_pair = values(s, qn_linear(s, flat, matrix_of));
        for (int64_t p = 0; p < l->rows * l->top; p++)
            for (int64_t k = 0; id[p] == e && k < l->n_out; k++) {
                int64_t at = p * l->n_out + k;
                float b = biases ? biases[e * l->n_out + k] : 0;
                want[0][at] = of_row[p / l->top * l->n_out + k];
                want[1][at] = of_pair[at];
                if (biases) want[0][at] += b;
                if (biases) want[1][at] += b;
                float weighted = want[1][at] * shares[p];
                want[2][p / l->top * l->n_out + k] += weighted;
            }
    }
    same(l, "by row", qn_array_data(out[0]), want[0], n);
    same(l, "by pair", qn_array_data(out[1]), want[1], n);
    same(l, "summed", qn_array_data(out[2]), want[2], l->rows * l->n_out);
    for (int i = 0; i < 3; i++) qn_free(want[i]);
    qn_scope_free(s);
    qn_mapping_close(file);
}

static void as_one_by_one(void **state)
{
    static const layer layers[] = {{QN_DTYPE_F32, 5, 2, 24, 24, 7, 0, 0, 0},
                                   {QN_DTYPE_F32, 3, 3, 40, 33, 5, 1, 0, 1},
                                   {QN_DTYPE_BF16, 8, 2, 96, 64, 40, 1, 1, 0},
                                   {QN_DTYPE_BF16, 4, 2, 50, 31, 3, 0, 0, 1},
                                   {QN_DTYPE_F16, 1, 1, 16, 64, 9, 1, 1, 0},
                                   {QN_DTYPE_Q4_0, 40, 8, 80, 64, 1, 0, 1, 0},
                                   {QN_DTYPE_Q4_0, 6, 2, 33, 96, 4, 0, 1, 0},
                                   {QN_DTYPE_Q4_K, 4, 2, 320, 256, 300, 0, 1, 0},
                                   {QN_DTYPE_Q8_0, 16, 4, 64, 32, 200, 1, 0, 0},
                                   {QN_DTYPE_MXFP4, 9, 4, 48, 64, 6, 1, 1, 0},
                                   {QN_DTYPE_NVFP4, 7, 3, 40, 96, 6, 0, 1, 0},
                                   {QN_DTYPE_AFFINE4_G64_F16, 7, 3, 72, 128, 33, 0, 1, 0},
                                   {QN_DTYPE_AFFINE8_G32_F16, 3, 1, 7, 64, 17, 1, 0, 0}};
    const char *folder = qn_test_scratch();
    for (const char *const *set = qn_kernels_names(); *set; set++) {
        setenv("QUERN_CPU", *set, 1);
        for (int threads = 1; threads <= 3; threads++) {
            qn_device *d;
            OK(qn_device_open("cpu", &(qn_device_options){.n_threads = threads}, &d));
            for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
                for (int p = 0; p < 3; p++) check(d, &layers[i], (qn_precision)p, folder);
            qn_device_close(d);
        }
    }
    unsetenv("QUERN_CPU");
    qn_test_remove(folder);
}

/* Rows of a cold table are those of a warm one; of panels that no row is asked of there is nothing. */
static void check_table(qn_device *d, qn_dtype dtype, int64_t n_rows, int64_t n_in, const char *folder)
{
    static const int32_t asked[] = {70, 3, 3, 99, 64, 71, 0, 99};
    enum { N_ASKED = sizeof asked / sizeof *asked, PANEL = 16 };
    size_t bytes;
    assert_true(qn_type_bytes(dtype, n_rows * n_in, &bytes));
    char *blocks = qn_alloc(bytes);
    assert_non_null(blocks);
    fill_blocks(dtype, n_rows * n_in, blocks);
    qn_mapping *file;
    OK(qn_mapping_open(qn_test_write(folder, "table", blocks, bytes), &file));
    qn_free(blocks);
    const qn_weight_part part = {.data = qn_mapping_data(file)};
    qn_weight table = {
        .dtype = dtype, .n_parts = 1, .n_out = n_rows, .n_in = n_in, .parts = &part, .cold = 1};
    qn_scope *s = qn_scope_new(d);
    qn_array *cold = import(s, &table, 2);
    table.cold = 0;
    qn_array *warm = import(s, &table, 2);
    qn_array *ids = qn_from_data(s, QN_DTYPE_I32, 1, &(int64_t){N_ASKED}, asked);
    const float *got = values(s, qn_take(s, cold, ids)), *want = values(s, qn_take(s, warm, ids));
    assert_memory_equal(got, want, (size_t)(N_ASKED * n_in) * sizeof *got);
    const qn_buffer *b = qn_array_buffer(cold);
    int64_t n_panels = (n_rows + PANEL - 1) / PANEL;
    size_t each = b->size_bytes / (size_t)n_panels;
    for (int64_t p = 0; p < n_panels; p++) {
        int is_asked = 0, touched = 0;
        for (int i = 0; i < N_ASKED; i++) is_asked |= asked[i] / PANEL == p;
        for (size_t i = 0; i < each; i++) touched |= ((const char *)b->data)[(size_t)p * each + i] != 0;
        assert_int_equal(touched, is_asked);
    }
    qn_scope_free(s);
    qn_mapping_close(file);
}

static void cold_tables(void **state)
{
    static const qn_dtype types[] = {QN_DTYPE_F32, QN_DTYPE_BF16, QN_DTYPE_F16, QN_DTYPE_Q8_0, QN_DTYPE_Q4_K};
    const char *folder = qn_test_scratch();
    for (int threads = 1; threads <= 3; threads++) {
        qn_device *d;
        OK(qn_device_open("cpu", &(qn_device_options){.n_threads = threads}, &d));
        for (size_t i = 0; i < sizeof types / sizeof *types; i++)
            check_table(d, types[i], 100, types[i] == QN_DTYPE_Q4_K ? 512 : 96, folder);
        qn_device_close(d);
    }
    qn_test_remove(folder);
}

/* The sum in smaller primitives, for a device without it. */
static int no_sum(qn_device *d, qn_prim prim)
{
    return prim != QN_PRIM_EXPERTS_SUM;
}

static void sum_by_its_fallback(void **state)
{
    const layer l = {QN_DTYPE_BF16, 6, 3, 40, 32, 11, 1, 0, 0};
    const char *folder = qn_test_scratch();
    qn_device *d;
    OK(qn_device_open("cpu", &(qn_device_options){.n_threads = 2}, &d));
    const qn_device_ops *ops = d->ops;
    qn_device_ops few = *ops;
    few.supports = no_sum;
    d->ops = &few;
    for (int p = 0; p < 3; p++) check(d, &l, (qn_precision)p, folder);
    d->ops = ops;
    qn_device_close(d);
    qn_test_remove(folder);
}

static void refused(void **state)
{
    qn_device *d;
    OK(qn_device_open("cpu", &(qn_device_options){.n_threads = 1}, &d));
    static const float w[2 * 4 * 8];
    const qn_weight_part parts[] = {{.data = w}, {.data = w + 32}};
    for (int i = 0; i < 5; i++) {
        qn_scope *s = qn_scope_new(d);
        const qn_weight weight = {.dtype = QN_DTYPE_F32, .n_parts = 2, .n_out = 4, .n_in = 8, .parts = parts};
        qn_array *m = import(s, &weight, 3), *x = floats(s, 2, (int64_t[]){3, 8}, 1);
        qn_array *each = floats(s, 3, (int64_t[]){3, 1, 8}, 1), *share = floats(s, 2, (int64_t[]){3, 2}, 1);
        qn_array *ids = qn_top_k(s, floats(s, 2, (int64_t[]){3, 2}, 2), 1), *out = NULL;
        qn_array *bias = floats(s, 2, (int64_t[]){2, 3}, 1);
        if (i == 0) out = qn_experts(s, floats(s, 2, (int64_t[]){3, 7}, 1), m, ids, NULL);
        if (i == 1) out = qn_experts(s, x, m, ids, bias);
        if (i == 2) out = qn_experts_sum(s, x, m, ids, ids, NULL);
        if (i == 3) out = qn_experts_sum(s, each, m, ids, share, NULL);
        if (i == 4) out = qn_experts(s, x, floats(s, 3, (int64_t[]){2, 4, 8}, 1), ids, NULL);
        static const char *const texts[] = {"takes x [R, k]", "takes a bias", "takes x [R, k]",
                                            "takes shares", "experts need packed weights"};
        assert_int_not_equal(qn_eval(s, 1, &out), QN_OK);
        if (!strstr(qn_last_error(), texts[i])) fail_msg("%d: %s", i, qn_last_error());
        qn_scope_free(s);
    }
    qn_device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_one_by_one), cmocka_unit_test(sum_by_its_fallback),
                                       cmocka_unit_test(cold_tables), cmocka_unit_test(refused)};
    return cmocka_run_group_tests_name("experts", tests, NULL, NULL);
}

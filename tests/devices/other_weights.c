#include "tests/devices/other_weights.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/random.h"
#include "quant/mlx.h"
#include "quant/types.h"
#include "tests/support/scratch.h"

#define OK(expr)                                              \
    do {                                                      \
        if ((expr) != QN_OK) fail_msg("%s", qn_last_error()); \
    } while (0)

static int64_t count(const qn_test_matrix *t)
{
    return t->parts ? t->parts : 1;
}

static int64_t stored_rows(const qn_test_matrix *t)
{
    return t->step ? 1 + t->step * t->n_out : t->n_out;
}

/* Row i of the matrix among those that are stored. */
static int64_t stored_at(const qn_test_matrix *t, int64_t i)
{
    return t->step ? 1 + i * t->step : i;
}

/* One part, from blocks of all its stored rows, at `to`; returns its bytes. */
static size_t lay(const qn_test_matrix *t, const uint8_t *blocks, char *to, qn_weight_part *part)
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

qn_test_lying qn_test_lay_down(const qn_test_matrix *t, const char *folder)
{
    qn_test_lying l = {0};
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

void qn_test_take_up(qn_test_lying *l)
{
    qn_mapping_close(l->file);
    qn_free(l->numbers);
}

qn_array *qn_test_import(qn_scope *s, qn_test_lying *l, int n_dims)
{
    qn_buffer *b = NULL;
    l->w.parts = l->parts;
    OK(qn_scope_device(s)->ops->import_weights(qn_scope_device(s), 1, &l->w, &b));
    const int64_t dims[3] = {l->w.n_parts, l->w.n_out, l->w.n_in};
    qn_array *a = qn_from_buffer(s, l->w.dtype, qn_shape_make(n_dims, dims + 3 - n_dims), b);
    qn_buffer_release(b);
    return a;
}

qn_array *qn_test_random_array(qn_scope *s, int n, const int64_t *dims, uint64_t seed)
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

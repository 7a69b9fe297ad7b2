/* Weights of many shapes and types imported together: each part of the block holds what packing it alone
 * gives, and nothing is left behind when memory runs out. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "device/cpu/cpu.h"
#include "device/cpu/kernels/kernels.h"
#include "format/files/mmap.h"
#include "quant/mlx.h"
#include "quant/types.h"
#include "tests/support/scratch.h"

#define OK(expr)                                              \
    do {                                                      \
        if ((expr) != QN_OK) fail_msg("%s", qn_last_error()); \
    } while (0)

enum { MANY = 40, PARTS = 3, FILE_BYTES = 12 << 20 };

/* The first is larger than what a worker takes at a time; some have parts, are transposed or cold; one is one
 * of MLX's. */
typedef struct {
    qn_weight_part parts[MANY][PARTS];
    qn_weight weights[MANY];
    int64_t n;
    qn_mapping *file;
} set;

static void make(set *s, const char *folder)
{
    static const qn_dtype types[] = {QN_DTYPE_Q4_0, QN_DTYPE_F32,  QN_DTYPE_Q6_K, QN_DTYPE_BF16,
                                     QN_DTYPE_Q8_0, QN_DTYPE_Q4_K, QN_DTYPE_F16,  QN_DTYPE_AFFINE4_G64_BF16};
    uint8_t *bytes = qn_alloc(FILE_BYTES);
    assert_non_null(bytes);
    for (size_t i = 0; i + 8 <= FILE_BYTES; i += 8) {
        uint64_t v = qn_random_bits(1, i);
        memcpy(bytes + i, &v, 8);
    }
    OK(qn_mapping_open(qn_test_write(folder, "rows", bytes, FILE_BYTES), &s->file));
    qn_free(bytes);
    const uint8_t *data = qn_mapping_data(s->file);
    size_t at = 0;
    for (s->n = 0; s->n < MANY; s->n++) {
        qn_weight *w = &s->weights[s->n];
        w->dtype = types[s->n % 8];
        w->n_in = s->n ? 256 * (1 + s->n % 3) : 2048;
        w->n_parts = s->n % 5 == 4 ? PARTS : 1;
        w->n_out = s->n == 0 ? 3001 : w->n_parts > 1 ? 30 + s->n % 4 : 1 + (s->n * 37) % 99;
        w->transposed = !qn_type_is_quantised(w->dtype) && s->n % 3 == 1;
        w->cold = s->n % 7 == 4;
        w->parts = s->parts[s->n];
        for (int64_t i = 0; i < w->n_parts; i++) {
            qn_weight_part *p = &s->parts[s->n][i];
            size_t row;
            assert_true(qn_type_bytes(w->dtype, w->n_in, &row));
            p->data = data + at;
            at += (size_t)w->n_out * row + 13; /* of any alignment */
            if (w->dtype != QN_DTYPE_AFFINE4_G64_BF16) continue;
            qn_mlx_row_bytes r = qn_mlx_row(w->dtype, w->n_in);
            p->scales = (const uint8_t *)p->data + (size_t)w->n_out * r.data;
            p->biases = (const uint8_t *)p->scales + (size_t)w->n_out * r.scales;
        }
        assert_true(at <= FILE_BYTES);
    }
}

/* What packing one part alone gives. */
static void check(const qn_kernels *k, const qn_weight *w, const qn_buffer *b)
{
    size_t row, panel = qn_pack_panel_bytes(w->dtype, w->n_in);
    int64_t n_panels = (w->n_out + QN_PANEL - 1) / QN_PANEL;
    assert_true(qn_type_bytes(w->dtype, w->n_in, &row));
    char *rows = qn_alloc((size_t)w->n_out * row), *want = qn_alloc((size_t)n_panels * panel);
    assert_true(rows && want);
    for (int64_t i = 0; i < w->n_parts; i++) {
        const qn_weight_part *p = &w->parts[i];
        memcpy(rows, p->data, (size_t)w->n_out * row);
        size_t each = row / (size_t)w->n_in;
        for (int64_t j = 0; w->transposed && j < w->n_out * w->n_in; j++)
            memcpy(rows + (size_t)j * each,
                   (const char *)p->data + (size_t)(j % w->n_in * w->n_out + j / w->n_in) * each, each);
        for (int64_t r = 0; p->scales && r < w->n_out; r++)
            qn_mlx_join(w->dtype, w->n_in, p->data, p->scales, p->biases, r, rows + (size_t)r * row);
        k->pack(w->dtype, w->n_in, w->n_out, rows, 0, n_panels, want);
        assert_memory_equal((char *)b->data + (size_t)(i * n_panels) * panel, want, (size_t)n_panels * panel);
    }
    qn_free(rows);
    qn_free(want);
}

/* Packs what is cold, by pieces that overlap. */
static void warm(const qn_kernels *k, const qn_weight *w, const qn_buffer *b)
{
    int64_t n_panels = (w->n_out + QN_PANEL - 1) / QN_PANEL;
    assert_int_equal(b->cold != NULL, w->cold);
    if (!w->cold) return;
    char *scratch = qn_alloc(qn_cpu_warm_scratch_bytes(b) + 1);
    assert_non_null(scratch);
    for (int64_t i = w->n_parts - 1; i >= 0; i--) {
        if (n_panels > 1) qn_cpu_warm(k, b, i, n_panels - 1, n_panels, scratch);
        if (n_panels > 3) qn_cpu_warm(k, b, i, 1, 2, scratch);
        memset((void *)(uintptr_t)scratch, 0xff, qn_cpu_warm_scratch_bytes(b));
        qn_cpu_warm(k, b, i, 0, n_panels, scratch);
    }
    qn_free(scratch);
}

static void packed_together_as_alone(void **state)
{
    const char *folder = qn_test_scratch();
    const qn_kernels *k;
    set s = {.n = 0};
    OK(qn_kernels_get(&k));
    make(&s, folder);
    for (int threads = 1; threads <= 3; threads++) {
        qn_device *d;
        qn_buffer *out[MANY];
        OK(qn_device_open("cpu", &(qn_device_options){.n_threads = threads}, &d));
        OK(d->ops->import_weights(d, s.n, s.weights, out));
        size_t held = qn_ledger_held(d->ledger, QN_LEDGER_WEIGHTS), sum = 0;
        for (int64_t i = 0; i < s.n; i++) {
            size_t bytes;
            OK(d->ops->weight_bytes(d, &s.weights[i], &bytes));
            assert_true(out[i]->size_bytes >= bytes);
            assert_int_equal((uintptr_t)out[i]->data % 64, 0);
            sum += bytes;
            warm(k, &s.weights[i], out[i]);
            check(k, &s.weights[i], out[i]);
        }
        assert_true(held >= sum && held - sum < (4 << 20));
        for (int64_t i = 0; i < s.n; i++) {
            assert_int_equal(qn_ledger_held(d->ledger, QN_LEDGER_WEIGHTS), held); /* the block is whole */
            qn_buffer_release(out[i]);
        }
        assert_int_equal(qn_ledger_held(d->ledger, QN_LEDGER_WEIGHTS), 0);
        qn_device_close(d);
    }
    qn_mapping_close(s.file);
    qn_test_remove(folder);
}

static void refused_by_name(void **state)
{
    const char *folder = qn_test_scratch();
    qn_device *d;
    qn_buffer *out[1];
    set s = {.n = 0};
    make(&s, folder);
    OK(qn_device_open("cpu", &(qn_device_options){.n_threads = 1}, &d));
    const qn_weight odd[] = {
        {.dtype = QN_DTYPE_Q4_0, .n_parts = 1, .n_out = 16, .n_in = 33, .parts = s.parts[0]},
        {.dtype = QN_DTYPE_Q4_0, .n_parts = 2, .n_out = 32, .n_in = 32, .parts = s.parts[0], .transposed = 1},
        {.dtype = QN_DTYPE_F32, .n_parts = 1, .n_out = INT64_MAX / 2, .n_in = 1024, .parts = s.parts[0]}};
    static const char *const texts[] = {"33 columns", "a transposed matrix of q4_0", "too large"};
    for (int i = 0; i < 3; i++) {
        assert_int_not_equal(d->ops->import_weights(d, 1, &odd[i], out), QN_OK);
        if (!strstr(qn_last_error(), texts[i])) fail_msg("%s", qn_last_error());
    }
    OK(d->ops->import_weights(d, 0, NULL, out));
    qn_ledger_set_limit(d->ledger, 1 << 20);
    assert_int_equal(d->ops->import_weights(d, s.n, s.weights, out), QN_E_NOMEM);
    assert_int_equal(qn_ledger_held(d->ledger, QN_LEDGER_WEIGHTS), 0);
    qn_ledger_set_limit(d->ledger, 0);
    int64_t before = qn_mem_live_blocks();
    qn_status status = QN_E_NOMEM;
    for (int n = 1; status != QN_OK && n < 2000; n++) {
        qn_buffer *all[MANY];
        qn_mem_fail_nth(n);
        status = d->ops->import_weights(d, s.n, s.weights, all);
        qn_mem_fail_nth(0);
        if (status != QN_OK) assert_int_equal(status, QN_E_NOMEM);
        for (int64_t i = 0; status == QN_OK && i < s.n; i++) qn_buffer_release(all[i]);
        assert_int_equal(qn_mem_live_blocks(), before);
    }
    assert_int_equal(status, QN_OK);
    qn_device_close(d);
    qn_mapping_close(s.file);
    qn_test_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_together_as_alone),
        cmocka_unit_test(refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

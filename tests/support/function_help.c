#include "tests/support/function_help.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"

void qn_test_function_open_at(qn_test_function *t, const char *path, qn_model_options m,
                              qn_finetune_options o)
{
    qn_model_info info;
    *t = (qn_test_function){0};
    qn_test_ok(qn_model_open(path, &m, &t->model));
    qn_test_ok(qn_model_get_info(t->model, &info));
    t->vocab_size = info.vocab_size;
    qn_test_ok(qn_finetune_open(t->model, &o, &t->f));
    t->scope = qn_scope_inner(qn_finetune_scope(t->f));
    assert_non_null(t->scope);
    for (int i = 0; i < QN_TEST_FUNCTION_N * QN_TEST_FUNCTION_LENGTH; i++) {
        t->ids[i] = (int32_t)(qn_random_bits(5, (uint64_t)i) % (uint64_t)t->vocab_size);
        t->targets[i] = (int32_t)(qn_random_bits(6, (uint64_t)i) % (uint64_t)t->vocab_size);
    }
}

void qn_test_function_open(qn_test_function *t, const char *kind, qn_precision precision,
                           qn_finetune_options o)
{
    char path[96];
    snprintf(path, sizeof path, "models/%s", kind);
    o.precision = precision;
    qn_test_function_open_at(
        t, qn_test_need_fixture(path),
        (qn_model_options){.n_threads = 2, .precision = precision, .kv_type = QN_KV_F32, .packed = "none"},
        o);
}

void qn_test_function_close(qn_test_function *t)
{
    qn_scope_close(t->scope);
    qn_finetune_close(t->f);
    qn_model_close(&t->model);
    assert_null(t->model);
}

qn_array *qn_test_function_table(const qn_test_function *t, const int32_t *ids)
{
    return qn_from_data(t->scope, QN_DTYPE_I32, 2, (int64_t[]){QN_TEST_FUNCTION_N, QN_TEST_FUNCTION_LENGTH},
                        ids);
}

qn_array *qn_test_function_mean(qn_scope *s, qn_array *losses)
{
    return qn_mean(s, qn_reshape(s, losses, 1, (int64_t[]){-1}), 0);
}

/* Random numbers for all trained arrays, so that factors do something. */
void qn_test_function_disturb(qn_test_function *t)
{
    const int64_t n = qn_finetune_count(t->f);
    qn_array **values = qn_calloc((size_t)n, sizeof *values);
    for (int64_t i = 0; i < n; i++) {
        qn_train_array a;
        qn_test_ok(qn_finetune_get_array(t->f, i, &a));
        float *numbers = qn_alloc((size_t)a.n * sizeof *numbers);
        for (int64_t k = 0; k < a.n; k++)
            numbers[k] = 0.1F * (float)(qn_random_unit(77 + (uint64_t)i, (uint64_t)k) - 0.5);
        values[i] = qn_from_data(t->scope, QN_DTYPE_F32, a.n_dims, a.shape, numbers);
        qn_free(numbers);
    }
    qn_test_ok(qn_finetune_set(t->f, t->scope, values));
    qn_free(values);
}

float *qn_test_function_numbers(const qn_test_function *t, qn_array *a, int64_t *n)
{
    if (!a) fail_msg("%s", qn_scope_status(t->scope) ? qn_last_error() : "an array is NULL without an error");
    *n = qn_array_size(a);
    float *out = qn_alloc((size_t)*n * sizeof *out);
    const qn_status status = qn_array_read(t->scope, a, QN_DTYPE_F32, out, *n);
    if (status != QN_OK) fail_msg("%s", qn_last_error());
    return out;
}

typedef struct {
    const float *expected;
    int64_t width, n_equal, n;
} comparison;

static qn_status compare(void *user, int64_t row, int64_t position, int64_t n, const float *values)
{
    comparison *c = user;
    const float *expected = c->expected + (row * QN_TEST_FUNCTION_LENGTH + position) * c->width;
    for (int64_t i = 0; i < n * c->width; i++)
        c->n_equal += memcmp(&values[i], &expected[i], sizeof *values) == 0;
    c->n += n * c->width;
    return QN_OK;
}

void qn_test_function_check_bits(const qn_test_function *t, const float *logits, int hidden, int64_t width,
                                 const char *adapter)
{
    comparison c = {.expected = logits, .width = width};
    const qn_ids rows[QN_TEST_FUNCTION_N] = {{t->ids, QN_TEST_FUNCTION_LENGTH},
                                             {t->ids + QN_TEST_FUNCTION_LENGTH, QN_TEST_FUNCTION_LENGTH}};
    const qn_logits_options o = {.hidden = hidden, .adapter = adapter};
    qn_test_ok(qn_model_logits(t->model, rows, QN_TEST_FUNCTION_N, &o, compare, &c));
    assert_int_equal(c.n, (int64_t)QN_TEST_FUNCTION_N * QN_TEST_FUNCTION_LENGTH * width);
    if (c.n_equal != c.n)
        fail_msg("%lld of %lld numbers differ", (long long)(c.n - c.n_equal), (long long)c.n);
}

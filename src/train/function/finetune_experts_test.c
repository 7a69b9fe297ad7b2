/* Training the matrices of experts: losses, gradients and steps against transformers and peft's target_parameters
 * (tests/golden/lora_experts, made by tools/experts_golden.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <quern/quern.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "format/safetensors/safetensors.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"

/* As the script has them. */
enum { ROWS = 2, LENGTH = 12, RANK = 2, ALPHA = 6, STEPS = 4 };
static const double rate = 0.05;

static float number(int64_t salt, int64_t i)
{
    return (float)(((double)((i * 7919 + salt * 104729) % 2003) / 2003 - 0.5) * 0.2);
}

typedef struct {
    qn_safetensors *golden;
    qn_model *model;
    qn_finetune *f;
    int32_t ids[ROWS * LENGTH], targets[ROWS * LENGTH];
} subject;

static void set_first_numbers(subject *t)
{
    const int64_t n = qn_finetune_count(t->f);
    qn_scope *s = qn_scope_inner(qn_finetune_scope(t->f));
    qn_array **values = qn_calloc((size_t)n, sizeof *values);
    for (int64_t i = 0; i < n; i++) {
        qn_train_array a;
        qn_test_ok(qn_finetune_get_array(t->f, i, &a));
        float *numbers = qn_alloc_array((size_t)a.n, sizeof *numbers);
        for (int64_t k = 0; k < a.n; k++) numbers[k] = number(i, k);
        values[i] = qn_from_data(s, QN_DTYPE_F32, a.n_dims, a.shape, numbers);
        qn_free(numbers);
    }
    qn_test_ok(qn_finetune_set(t->f, s, values));
    qn_free(values);
    qn_scope_close(s);
}

static void open_all(subject *t, const char *kind)
{
    char path[128];
    qn_model_info info;
    *t = (subject){0};
    snprintf(path, sizeof path, "models/%s", kind);
    const qn_model_options model = {.n_threads = 2, .precision = QN_PRECISION_EXACT, .packed = "none"};
    qn_test_ok(qn_model_open(qn_test_need_fixture(path), &model, &t->model));
    snprintf(path, sizeof path, "tests/golden/lora_experts/%s.safetensors", kind);
    qn_test_ok(qn_safetensors_open(path, &t->golden));
    const qn_finetune_options o = {
        .targets = "*.layers.1.*.experts.*", .rank = RANK, .alpha = ALPHA, .precision = QN_PRECISION_EXACT};
    qn_test_ok(qn_finetune_open(t->model, &o, &t->f));
    qn_test_ok(qn_model_get_info(t->model, &info));
    for (int64_t i = 0; i < ROWS * LENGTH; i++) t->ids[i] = (int32_t)((i * 37 + 11) % info.vocab_size);
    for (int i = 0; i < ROWS * LENGTH; i++) t->targets[i] = i % LENGTH == LENGTH - 1 ? -1 : t->ids[i + 1];
    set_first_numbers(t);
}

static void close_all(subject *t)
{
    qn_finetune_close(t->f);
    qn_model_close(&t->model);
    qn_safetensors_close(t->golden);
}

static qn_array *mean_loss(const subject *t, qn_scope *s)
{
    const int64_t shape[2] = {ROWS, LENGTH};
    qn_array *ids = qn_from_data(s, QN_DTYPE_I32, 2, shape, t->ids),
             *targets = qn_from_data(s, QN_DTYPE_I32, 2, shape, t->targets);
    qn_array *losses = qn_finetune_losses(t->f, s, NULL, ids, targets, NULL);
    losses = qn_reduce(s, QN_REDUCE_SUM, losses, 0, NULL, 0);
    return qn_mul(s, losses, qn_scalar(s, 1.0F / (ROWS * (LENGTH - 1))));
}

static void check_gradients(const subject *t)
{
    const int64_t n = qn_finetune_count(t->f);
    qn_scope *s = qn_scope_inner(qn_finetune_scope(t->f));
    qn_array **wrt = qn_calloc((size_t)n, sizeof *wrt), **g = qn_calloc((size_t)n, sizeof *g);
    assert_int_equal(n + 1, qn_safetensors_count(t->golden)); /* and the losses */
    for (int64_t i = 0; i < n; i++) wrt[i] = qn_finetune_array(t->f, i);
    qn_test_ok(qn_vjp(s, mean_loss(t, s), NULL, (int)n, wrt, g));
    for (int64_t i = 0; i < n; i++) {
        qn_train_array a;
        const qn_tensor_view *want;
        double largest = 0, worst = 0;
        qn_test_ok(qn_finetune_get_array(t->f, i, &a));
        qn_test_ok(qn_safetensors_tensor(t->golden, a.name, &want));
        assert_int_equal(want->n_dims, a.n_dims);
        assert_memory_equal(want->shape, a.shape, (size_t)a.n_dims * sizeof *a.shape);
        const float *expected = want->data;
        float *numbers = qn_alloc_array((size_t)a.n, sizeof *numbers);
        qn_test_ok(qn_array_read(s, g[i], QN_DTYPE_F32, numbers, a.n));
        for (int64_t k = 0; k < a.n; k++) {
            largest = fmax(largest, fabs((double)expected[k]));
            worst = fmax(worst, fabs((double)expected[k] - (double)numbers[k]));
        }
        if (!(largest > 0 && worst <= 1e-4 * largest))
            fail_msg("%s: off by %g of %g", a.name, worst, largest);
        qn_free(numbers);
    }
    qn_free(wrt);
    qn_free(g);
    qn_scope_close(s);
}

static void check_steps(const subject *t)
{
    qn_optimizer_options o = qn_optimizer_defaults(QN_OPTIMIZER_SGD);
    o.rate = rate;
    o.momentum = 0;
    o.weight_decay = 0;
    const qn_tensor_view *want;
    qn_test_ok(qn_safetensors_tensor(t->golden, "losses", &want));
    assert_int_equal(want->n_elements, STEPS);
    for (int i = 0; i < STEPS; i++) {
        qn_finetune_report report;
        const double expected = (double)((const float *)want->data)[i];
        qn_scope *s = qn_scope_inner(qn_finetune_scope(t->f));
        qn_test_ok(qn_finetune_step(t->f, s, mean_loss(t, s), &o, 0, &report));
        if (!(fabs(report.loss - expected) <= 2e-5))
            fail_msg("step %d: loss %.7g, expected %.7g", i, report.loss, expected);
        qn_scope_close(s);
    }
}

static void as_by_peft(void **state)
{
    subject t;
    open_all(&t, *state);
    check_gradients(&t);
    check_steps(&t);
    close_all(&t);
}

int main(void)
{
    static char halves[] = "qwen3_moe", turns[] = "gpt_oss"; /* how gate and up lie in a parameter */
    const struct CMUnitTest tests[] = {{"as_by_peft_qwen3_moe", as_by_peft, NULL, NULL, halves},
                                       {"as_by_peft_gpt_oss", as_by_peft, NULL, NULL, turns}};
    return cmocka_run_group_tests_name("finetune_experts", tests, NULL, NULL);
}

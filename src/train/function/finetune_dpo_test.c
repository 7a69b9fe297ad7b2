/* DPO by arrays over an open model: its loss and the gradients of an adapter against transformers and peft
 * (tests/golden/lora/llama_qv/dpo.safetensors, made by tools/dpo_golden.py). */
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

typedef struct {
    qn_safetensors *golden;
    qn_model *model;
    qn_finetune *f;
    qn_scope *s;
    const int32_t *ids; /* [2, length]: with the better answer, with the worse one */
    int64_t length, n_prompt;
    double beta, loss;
} subject;

static const qn_tensor_view *find(const subject *t, const char *name)
{
    const qn_tensor_view *v = qn_safetensors_find(t->golden, name);
    if (!v) fail_msg("dpo.safetensors has no %s", name);
    return v;
}

static void open_all(subject *t)
{
    float number;
    int32_t n_prompt;
    *t = (subject){0};
    qn_test_ok(qn_safetensors_open("tests/golden/lora/llama_qv/dpo.safetensors", &t->golden));
    const qn_tensor_view *ids = find(t, "ids");
    t->ids = ids->data;
    t->length = ids->shape[1];
    memcpy(&n_prompt, find(t, "n_prompt")->data, sizeof n_prompt);
    t->n_prompt = n_prompt;
    memcpy(&number, find(t, "beta")->data, sizeof number);
    t->beta = (double)number;
    memcpy(&number, find(t, "loss")->data, sizeof number);
    t->loss = (double)number;
    const qn_model_options model = {.n_threads = 2, .precision = QN_PRECISION_EXACT, .packed = "none"};
    qn_test_ok(qn_model_open("tests/golden/models/llama", &model, &t->model));
    const qn_finetune_options o = {.start_path = "tests/golden/lora/llama_qv",
                                   .precision = QN_PRECISION_EXACT};
    qn_test_ok(qn_finetune_open(t->model, &o, &t->f));
    t->s = qn_scope_inner(qn_finetune_scope(t->f));
}

static void close_all(subject *t)
{
    qn_scope_close(t->s);
    qn_finetune_close(t->f);
    qn_model_close(&t->model);
    qn_safetensors_close(t->golden);
}

/* log p of the answers by the model as it is trained, less that by the model as it was opened: [2]. */
static qn_array *gains(const subject *t)
{
    const qn_forward_options opened = {.without_trained = 1};
    qn_array *all = qn_from_data(t->s, QN_DTYPE_I32, 2, (int64_t[]){2, t->length}, t->ids);
    qn_array *ids = qn_slice(t->s, all, (int64_t[]){0, 0}, (int64_t[]){2, t->length - 1}, NULL);
    qn_array *next = qn_slice(t->s, all, (int64_t[]){0, 1}, (int64_t[]){2, t->length}, NULL);
    qn_array *each = qn_sub(t->s, qn_finetune_losses(t->f, t->s, NULL, ids, next, &opened),
                            qn_finetune_losses(t->f, t->s, NULL, ids, next, NULL));
    each = qn_slice(t->s, each, (int64_t[]){0, t->n_prompt - 1}, (int64_t[]){2, t->length - 1}, NULL);
    return qn_sum(t->s, each, 1);
}

static qn_array *loss_of(const subject *t)
{
    const float signs[2] = {(float)-t->beta, (float)t->beta};
    qn_array *weights = qn_from_data(t->s, QN_DTYPE_F32, 2, (int64_t[]){2, 1}, signs);
    qn_array *margin =
        qn_sum(t->s, qn_mul(t->s, qn_reshape(t->s, gains(t), 2, (int64_t[]){2, 1}), weights), 0);
    return qn_softplus(t->s, margin);
}

/* The largest difference from the golden gradient of the array with this name, by its largest number. */
static double difference(const subject *t, const char *name, const float *numbers, int64_t n)
{
    char key[256];
    double most = 0, largest = 0;
    snprintf(key, sizeof key, "grad.%s", name);
    const qn_tensor_view *v = find(t, key);
    assert_int_equal(v->n_elements, n);
    const float *expected = v->data;
    for (int64_t k = 0; k < n; k++) {
        if (fabs((double)expected[k]) > largest) largest = fabs((double)expected[k]);
        if (!(fabs((double)numbers[k] - (double)expected[k]) <= most))
            most = fabs((double)numbers[k] - (double)expected[k]);
    }
    return most / largest;
}

static void dpo(void **state)
{
    subject t;
    double value;
    open_all(&t);
    const int64_t n = qn_finetune_count(t.f);
    qn_array **wrt = qn_calloc((size_t)n, sizeof *wrt), **g = qn_calloc((size_t)n, sizeof *g);
    qn_array *loss = loss_of(&t);
    for (int64_t i = 0; i < n; i++) wrt[i] = qn_finetune_array(t.f, i);
    qn_test_ok(qn_vjp(t.s, loss, NULL, (int)n, wrt, g));
    qn_test_ok(qn_eval(t.s, (int)n, g));
    qn_test_ok(qn_array_item(t.s, loss, &value));
    if (!(fabs(value - t.loss) <= 1e-5)) fail_msg("the loss is %g, transformers' %g", value, t.loss);
    for (int64_t i = 0; i < n; i++) {
        qn_train_array a;
        qn_test_ok(qn_finetune_get_array(t.f, i, &a));
        const double by = difference(&t, a.name, qn_array_data(g[i]), a.n);
        if (!(by <= 2e-5)) fail_msg("%s: the gradient differs by %g of its largest number", a.name, by);
    }
    assert_int_equal(n + 4, qn_safetensors_count(t.golden));
    qn_free(wrt);
    qn_free(g);
    close_all(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(dpo)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* A model as a function of arrays: the engine's bits for every kind of model, masks, gradients against finite
 * differences. */
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
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/function_help.h"
#include "tests/support/models/kinds.h"
#include "tests/support/models/model_dir.h"

enum { N = QN_TEST_FUNCTION_N, LENGTH = QN_TEST_FUNCTION_LENGTH };

/* ---- the engine's bits -------------------------------------------------------------------------------- */

static void bits_of_kind(const char *kind, qn_precision precision)
{
    qn_test_function t;
    int64_t n;
    qn_test_function_open(&t, kind, precision, (qn_finetune_options){.rank = 2});
    float *logits = qn_test_function_numbers(
        &t, qn_finetune_forward(t.f, t.scope, NULL, qn_test_function_table(&t, t.ids), NULL), &n);
    qn_test_function_check_bits(&t, logits, 0, t.vocab_size, NULL);
    qn_free(logits);
    float *hidden = qn_test_function_numbers(
        &t, qn_finetune_hidden(t.f, t.scope, NULL, qn_test_function_table(&t, t.ids), NULL), &n);
    qn_test_function_check_bits(&t, hidden, 1, n / (N * LENGTH), NULL);
    qn_free(hidden);
    qn_test_function_close(&t);
}

static void exact_bits(void **state)
{
    bits_of_kind(*state, QN_PRECISION_EXACT);
}

static void high_bits(void **state)
{
    bits_of_kind(*state, QN_PRECISION_HIGH);
}

/* Weights of blocks: what `high` promises. */
static void quantised_bits(void **state)
{
    qn_test_function t;
    int64_t n;
    qn_test_function_open_at(&t, "seed",
                             (qn_model_options){.n_threads = 2, .kv_type = QN_KV_F32, .packed = "none"},
                             (qn_finetune_options){.rank = 2, .targets = "q_proj"});
    float *logits = qn_test_function_numbers(
        &t, qn_finetune_forward(t.f, t.scope, NULL, qn_test_function_table(&t, t.ids), NULL), &n);
    qn_test_function_check_bits(&t, logits, 0, t.vocab_size, NULL);
    qn_free(logits);
    qn_test_function_close(&t);
}

/* ---- masks -------------------------------------------------------------------------------------------- */

/* 0 where row q sees row k. */
typedef int sees_fn(int64_t n, int64_t q, int64_t k);

static qn_array *mask_of(const qn_test_function *t, sees_fn *sees)
{
    float *mask = qn_alloc(sizeof *mask * N * LENGTH * LENGTH);
    for (int64_t i = 0; i < (int64_t)N * LENGTH * LENGTH; i++)
        mask[i] = sees(i / (LENGTH * LENGTH), i / LENGTH % LENGTH, i % LENGTH) ? 0 : -INFINITY;
    qn_array *a = qn_from_data(t->scope, QN_DTYPE_F32, 4, (int64_t[]){N, 1, LENGTH, LENGTH}, mask);
    qn_free(mask);
    return a;
}

static int sees_before(int64_t n, int64_t q, int64_t k)
{
    return k <= q;
}

static int sees_last_three(int64_t n, int64_t q, int64_t k)
{
    return k <= q && k > q - 3;
}

static int sees_all(int64_t n, int64_t q, int64_t k)
{
    return 1;
}

static double largest_difference(const float *a, const float *b, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((double)a[i] - b[i]) <= most)) most = fabs((double)a[i] - b[i]);
    return most;
}

static int has_recurrent_layers(const qn_test_function *t, qn_array *ids, qn_array *mask)
{
    if (qn_finetune_forward(t->f, t->scope, NULL, ids, &(qn_forward_options){.mask = mask})) return 0;
    assert_int_equal(qn_scope_recover(t->scope), QN_E_UNSUPPORTED);
    assert_non_null(strstr(qn_last_error(), "recurrent layers"));
    return 1;
}

/* A causal mask changes nothing; one that shows what follows changes the first row. */
static void masked(void **state)
{
    qn_test_function t;
    int64_t n;
    qn_test_function_open(&t, *state, QN_PRECISION_EXACT, (qn_finetune_options){.rank = 2});
    qn_test_function_disturb(&t);
    qn_array *ids = qn_test_function_table(&t, t.ids), *causal = mask_of(&t, sees_before);
    if (!has_recurrent_layers(&t, ids, causal)) {
        float *plain = qn_test_function_numbers(&t, qn_finetune_forward(t.f, t.scope, NULL, ids, NULL), &n);
        qn_forward_options o = {.mask = causal};
        float *same = qn_test_function_numbers(&t, qn_finetune_forward(t.f, t.scope, NULL, ids, &o), &n);
        double scale = 1;
        for (int64_t i = 0; i < n; i++)
            if (fabs((double)plain[i]) > scale) scale = fabs((double)plain[i]);
        const double error = largest_difference(plain, same, n);
        if (!(error <= 2e-5 * scale)) fail_msg("a causal mask changes logits up to %g by %g", scale, error);
        o.mask = mask_of(&t, sees_all);
        float *all = qn_test_function_numbers(&t, qn_finetune_forward(t.f, t.scope, NULL, ids, &o), &n);
        assert_true(largest_difference(plain, all, t.vocab_size) > 1e-4);
        qn_free(plain);
        qn_free(same);
        qn_free(all);
    }
    qn_test_function_close(&t);
}

/* A mask of three rows is what a model with a window of three sees, layer by layer: changing an id beyond all
 * layers' reach changes no logit of the last row. */
static void mask_hides(void **state)
{
    qn_test_function t;
    int64_t n;
    qn_test_function_open(&t, "llama", QN_PRECISION_EXACT, (qn_finetune_options){.rank = 2});
    qn_model_info info;
    qn_test_ok(qn_model_get_info(t.model, &info));
    const int64_t reach = info.num_layers * 2; /* rows back, of all layers together */
    if (reach + 2 > LENGTH) qn_test_leave_out("the model has too many layers for these rows");
    const qn_forward_options o = {.mask = mask_of(&t, sees_last_three)};
    float *before = qn_test_function_numbers(
        &t, qn_finetune_forward(t.f, t.scope, NULL, qn_test_function_table(&t, t.ids), &o), &n);
    t.ids[LENGTH - 2 - reach] = (int32_t)((t.ids[LENGTH - 2 - reach] + 1) % t.vocab_size);
    float *after = qn_test_function_numbers(
        &t, qn_finetune_forward(t.f, t.scope, NULL, qn_test_function_table(&t, t.ids), &o), &n);
    const int64_t last = (LENGTH - 1) * t.vocab_size, first = (LENGTH - 2 - reach) * t.vocab_size;
    assert_memory_equal(before + last, after + last, (size_t)t.vocab_size * sizeof *before);
    assert_true(largest_difference(before + first, after + first, t.vocab_size) > 0);
    qn_free(before);
    qn_free(after);
    qn_test_function_close(&t);
}

/* ---- gradients ---------------------------------------------------------------------------------------- */

/* Numbers of all arrays moved by `by` along a fixed random direction. */
static double loss_along(qn_test_function *t, double by, qn_array *const *direction)
{
    const int64_t n = qn_finetune_count(t->f);
    qn_array **moved = qn_calloc((size_t)n, sizeof *moved);
    for (int64_t i = 0; i < n; i++)
        moved[i] = qn_add(t->scope, qn_finetune_array(t->f, i),
                          qn_mul(t->scope, direction[i], qn_scalar(t->scope, (float)by)));
    qn_array *losses = qn_finetune_losses(t->f, t->scope, moved, qn_test_function_table(t, t->ids),
                                          qn_test_function_table(t, t->targets), NULL);
    double loss = NAN;
    qn_test_ok(qn_array_item(t->scope, qn_test_function_mean(t->scope, losses), &loss));
    qn_free(moved);
    return loss;
}

/* Of DoRA the magnitudes alone are moved: the lengths that they are divided by count as constants in the
 * gradient by A and B (trained.h). */
static int is_moved(const qn_test_function *t, qn_train_method method, int64_t i)
{
    qn_train_array a;
    qn_test_ok(qn_finetune_get_array(t->f, i, &a));
    return method != QN_TRAIN_DORA || strstr(a.name, "magnitude") != NULL;
}

static void gradient_of(const char *kind, qn_train_method method, const char *targets)
{
    qn_test_function t;
    qn_test_function_open(&t, kind, QN_PRECISION_EXACT,
                          (qn_finetune_options){.rank = 3, .method = method, .targets = targets});
    if (method == QN_TRAIN_LORA) qn_test_function_disturb(&t);
    const int64_t n = qn_finetune_count(t.f);
    qn_array **direction = qn_calloc((size_t)n, sizeof *direction), **wrt = qn_calloc((size_t)n, sizeof *wrt),
             **g = qn_calloc((size_t)n, sizeof *g);
    double slope = 0, length = 0;
    for (int64_t i = 0; i < n; i++) wrt[i] = qn_finetune_array(t.f, i);
    qn_array *losses = qn_finetune_losses(t.f, t.scope, NULL, qn_test_function_table(&t, t.ids),
                                          qn_test_function_table(&t, t.targets), NULL);
    qn_test_ok(qn_vjp(t.scope, qn_test_function_mean(t.scope, losses), NULL, (int)n, wrt, g));
    qn_test_ok(qn_eval(t.scope, (int)n, g));
    /* along the gradient itself, where the slope is largest */
    for (int64_t i = 0; i < n; i++) {
        int64_t count;
        assert_non_null(g[i]);
        if (!is_moved(&t, method, i)) g[i] = qn_mul(t.scope, g[i], qn_scalar(t.scope, 0));
        float *numbers = qn_test_function_numbers(&t, g[i], &count);
        for (int64_t k = 0; k < count; k++) slope += (double)numbers[k] * numbers[k];
        qn_free(numbers);
    }
    length = sqrt(slope);
    for (int64_t i = 0; i < n; i++)
        direction[i] = qn_mul(t.scope, g[i], qn_scalar(t.scope, (float)(1 / length)));
    /* The loss changes by 0.008, of which f32 leaves 4 digits. A router or an index that chooses otherwise on
     * the way makes a jump: then a shorter way is taken. */
    double measured = NAN;
    for (double h = 4e-3 / length; h > 2e-4 / length && !(fabs(measured - length) <= 0.02 * length); h /= 2)
        measured = (loss_along(&t, h, direction) - loss_along(&t, -h, direction)) / (2 * h);
    if (!(fabs(measured - length) <= 0.02 * length))
        fail_msg("the slope along the gradient is %g, its length %g", measured, length);
    qn_free(direction);
    qn_free(wrt);
    qn_free(g);
    qn_test_function_close(&t);
}

static void gradients(void **state)
{
    gradient_of(*state, QN_TRAIN_LORA, NULL);
}

/* 1: the layers of a kind have experts. */
static int has_experts(const char *kind)
{
    char path[96];
    qn_model_config c;
    snprintf(path, sizeof path, "models/%s", kind);
    qn_test_ok(qn_test_config(qn_test_need_fixture(path), &c));
    const int has = c.experts.num_experts > 0;
    qn_config_free(&c);
    return has;
}

/* Factors of experts begin without a change of any bit, and have gradients; they are trained on demand. */
static void experts(void **state)
{
    static const char targets[] = "*.experts.*";
    if (has_experts(*state)) {
        qn_test_function t;
        int64_t n;
        qn_train_array a;
        qn_test_function_open(&t, *state, QN_PRECISION_EXACT,
                              (qn_finetune_options){.rank = 2, .targets = targets});
        for (int64_t i = 0; i < qn_finetune_count(t.f); i++) {
            qn_test_ok(qn_finetune_get_array(t.f, i, &a));
            assert_non_null(strstr(a.name, ".experts."));
            assert_int_equal(a.n_dims, 3);
        }
        float *logits = qn_test_function_numbers(
            &t, qn_finetune_forward(t.f, t.scope, NULL, qn_test_function_table(&t, t.ids), NULL), &n);
        qn_test_function_check_bits(&t, logits, 0, t.vocab_size, NULL);
        qn_free(logits);
        qn_test_function_close(&t);
        gradient_of(*state, QN_TRAIN_LORA, targets);
        qn_test_function_open(&t, *state, QN_PRECISION_EXACT, (qn_finetune_options){.rank = 2});
        for (int64_t i = 0; qn_finetune_get_array(t.f, i, &a) == QN_OK; i++)
            assert_null(strstr(a.name, ".experts."));
        qn_finetune *f;
        assert_int_equal(qn_finetune_open(t.model,
                                          &(qn_finetune_options){.method = QN_TRAIN_DORA, .targets = targets},
                                          &f),
                         QN_E_UNSUPPORTED);
        assert_non_null(strstr(qn_last_error(), ".experts."));
        qn_test_function_close(&t);
        return;
    }
    qn_model *model;
    qn_finetune *f;
    char path[96];
    snprintf(path, sizeof path, "models/%s", (const char *)*state);
    qn_test_ok(qn_model_open(qn_test_need_fixture(path), &(qn_model_options){.n_threads = 1}, &model));
    assert_int_equal(qn_finetune_open(model, &(qn_finetune_options){.targets = targets}, &f), QN_E_ARG);
    qn_model_close(&model);
}

static void gradients_dora(void **state)
{
    gradient_of("llama", QN_TRAIN_DORA, NULL);
}

static void gradients_full(void **state)
{
    gradient_of("llama", QN_TRAIN_FULL, NULL);
}
int main(void)
{
    static const qn_test_kind_row rows[] = {
        {"exact_bits_", exact_bits}, {"high_bits_", high_bits}, {"masked_", masked},
        {"gradients_", gradients},   {"experts_", experts},
    };
    enum { N_ROWS = sizeof rows / sizeof *rows };
    static const struct CMUnitTest others[] = {
        cmocka_unit_test(mask_hides),
        cmocka_unit_test(gradients_dora),
        cmocka_unit_test(gradients_full),
        cmocka_unit_test(quantised_bits),
    };
    static struct CMUnitTest tests[N_ROWS * QN_TEST_KINDS_MAX + sizeof others / sizeof *others];
    int n = qn_test_kind_rows(N_ROWS, rows, tests);
    memcpy(tests + n, others, sizeof others);
    n += (int)(sizeof others / sizeof *others);
    return _cmocka_run_group_tests("finetune", tests, (size_t)n, NULL, NULL);
}

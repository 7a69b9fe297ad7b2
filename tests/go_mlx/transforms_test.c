/* What docs/go-mlx.md names for gradients, optimisers, losses, compiled functions, evaluation, memory, devices
 * and files of arrays, each called once and looked at. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <quern/quern.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/engine_help.h"
#include "tests/support/expect.h"
#include "tests/support/scratch.h"

#define NUMBERS(a, ...) QN_TEST_NUMBERS(s, a, __VA_ARGS__)

static qn_scope *s;

static int open_scope(void **state)
{
    return qn_scope_open(2, 0, &s) != QN_OK;
}

static int close_scope(void **state)
{
    qn_scope_close(s);
    s = NULL;
    return 0;
}

static qn_array *floats(int64_t n, const float *numbers)
{
    return qn_from_data(s, QN_DTYPE_F32, 1, &n, numbers);
}

static qn_array *matrix(int64_t rows, int64_t columns, const float *numbers)
{
    return qn_from_data(s, QN_DTYPE_F32, 2, (int64_t[]){rows, columns}, numbers);
}

static qn_array *total(qn_scope *t, qn_array *a)
{
    return qn_reduce(t, QN_REDUCE_SUM, a, 0, NULL, 0);
}

/* ---- gradients ---------------------------------------------------------------------------------------- */

/* sum(x^2 y) */
static qn_status loss(void *user, qn_scope *t, int n_in, qn_array *const *in, int n_out, qn_array **out)
{
    if (user) ++*(int *)user;
    out[0] = total(t, qn_mul(t, qn_square(t, in[0]), in[1]));
    return qn_scope_status(t);
}

static void derivatives(void **state)
{
    qn_array *in[2] = {floats(2, (float[]){2, 3}), floats(2, (float[]){5, 7})}, *g[2], *out;
    qn_array *each = qn_mul(s, qn_square(s, in[0]), in[1]);
    qn_test_ok(qn_vjp(s, each, floats(2, (float[]){1, 10}), 2, in, g));
    NUMBERS(g[0], 20, 420);
    NUMBERS(g[1], 4, 90);
    qn_array *tangents[2] = {floats(2, (float[]){1, 0}), NULL};
    qn_test_ok(qn_jvp(s, each, 2, in, tangents, &out));
    NUMBERS(out, 20, 0);
    qn_test_ok(qn_value_and_grad(s, loss, NULL, 2, in, 2, (int[]){0, 1}, 1, &out, g));
    NUMBERS(out, 83);
    NUMBERS(g[0], 20, 42);
    NUMBERS(g[1], 4, 9);
    qn_array *stopped = total(s, qn_mul(s, qn_stop_gradient(s, in[0]), in[0]));
    qn_test_ok(qn_vjp(s, stopped, NULL, 1, in, g));
    NUMBERS(g[0], 2, 3);
}

/* The function is called again where the gradient comes to it, and gives the same bits. */
static void checkpoints(void **state)
{
    int calls = 0;
    qn_array *in[2] = {floats(2, (float[]){2, 3}), floats(2, (float[]){5, 7})}, *g[2], *plain[2], *out;
    qn_test_ok(qn_value_and_grad(s, loss, NULL, 2, in, 2, (int[]){0, 1}, 1, &out, plain));
    qn_test_ok(qn_checkpoint(s, loss, &calls, 2, in, 1, &out));
    assert_int_equal(calls, 1);
    qn_test_ok(qn_vjp(s, out, NULL, 2, in, g));
    for (int i = 0; i < 2; i++) qn_test_alike(s, g[i], plain[i], 0);
}

/* ---- layers, losses, optimisers ----------------------------------------------------------------------- */

/* y = x W^T + b, an embedding, the same as a head, and LoRA beside the matrix. */
static void layers(void **state)
{
    qn_array *w = matrix(3, 2, (float[]){1, 2, 3, 4, 5, 6}), *bias = floats(3, (float[]){10, 20, 30}),
             *x = matrix(1, 2, (float[]){1, -1}), *y = qn_add(s, qn_linear(s, x, w), bias);
    NUMBERS(y, 9, 19, 29);
    qn_array *ids = qn_from_data(s, QN_DTYPE_I32, 1, (int64_t[]){2}, (int32_t[]){2, 0});
    NUMBERS(qn_take_axis(s, w, ids, 0), 5, 6, 1, 2);
    qn_array *a = matrix(1, 2, (float[]){2, 1}), *b = matrix(3, 1, (float[]){1, 0, -1}),
             *delta = qn_scale(s, qn_linear(s, qn_linear(s, x, a), b), 16.0 / 1);
    NUMBERS(qn_add(s, y, delta), 25, 19, 13);
}

static void losses(void **state)
{
    qn_array *logits = matrix(2, 2, (float[]){0, (float)log(3), 0, 0}),
             *targets = qn_from_data(s, QN_DTYPE_I32, 1, (int64_t[]){2}, (int32_t[]){1, 0});
    NUMBERS(qn_loss_cross_entropy(s, logits, targets, NULL), (log(4.0 / 3) + log(2)) / 2);
    const qn_class_options masked = {.weight = floats(2, (float[]){0, 1})};
    NUMBERS(qn_loss_cross_entropy(s, logits, targets, &masked), log(2));
    NUMBERS(qn_loss_mse(s, floats(2, (float[]){1, 4}), floats(2, (float[]){2, 1}), NULL), 5);
    /* the head's product and the loss in one, without the logits */
    qn_array *head = matrix(2, 2, (float[]){1, 0, 0, 1});
    NUMBERS(qn_cross_entropy(s, logits, head, targets, 0), log(4.0 / 3), log(2));
}

static void optimisers(void **state)
{
    qn_optimizer_options o = qn_optimizer_defaults(QN_OPTIMIZER_ADAMW);
    assert_true(o.rate == 1e-5 && o.beta1 == 0.9 && o.beta2 == 0.999 && o.eps == 1e-8);
    assert_true(o.weight_decay == 0.01);
    o.rate = 0.1;
    qn_optimizer_state moments = {0};
    qn_array *w = floats(2, (float[]){1, 1}), *g = floats(2, (float[]){4, -4}), *cut[1], *norm;
    w = qn_optimizer_update(s, &o, 1, w, g, &moments);
    NUMBERS(w, 1 - 0.001 - 0.1, 1 - 0.001 + 0.1);
    NUMBERS(moments.m, 0.4, -0.4);
    NUMBERS(moments.v, 0.016, 0.016);
    moments = (qn_optimizer_state){0}; /* forgets */
    NUMBERS(qn_optimizer_update(s, &o, 1, floats(1, (float[]){0}), floats(1, (float[]){1}), &moments), -0.1);
    qn_clip_gradients(s, 1, (qn_array *[]){floats(2, (float[]){3, 4})}, 1, cut, &norm);
    NUMBERS(norm, 5);
    NUMBERS(cut[0], 0.6, 0.8);
}

/* ---- compiling and evaluating ------------------------------------------------------------------------- */

static void compiled(void **state)
{
    int calls = 0;
    qn_compiled *c;
    qn_array *out;
    qn_test_ok(qn_compile(s, loss, &calls, 1, &(qn_compile_options){.shapeless = 1}, &c));
    for (int64_t n = 1; n <= 5; n++) {
        qn_array *ones = qn_ones(s, QN_DTYPE_F32, 1, &n), *in[2] = {ones, ones};
        qn_test_ok(qn_compiled_call(c, s, 2, in, &out));
        NUMBERS(out, (double)n);
    }
    const qn_compiled_figures f = qn_compiled_get_figures(c);
    assert_true(calls == 1 && f.n_calls == 5 && f.n_traces == 1);
    qn_compiled_free(c);
}

static void evaluated(void **state)
{
    qn_array *x = qn_exp(s, qn_zeros(s, QN_DTYPE_F32, 1, (int64_t[]){4})), *later[16];
    assert_null(qn_array_data(x));
    qn_test_ok(qn_eval(s, 1, &x));
    assert_true(((const float *)qn_array_data(x))[3] == 1);
    /* the order of one stream: each reads what was begun before */
    qn_scope *inner = qn_scope_inner(s);
    for (int i = 0; i < 16; i++) {
        later[i] = qn_add(i % 2 ? inner : s, i ? later[i - 1] : x, x);
        qn_test_ok(qn_eval_async(i % 2 ? inner : s, 1, &later[i]));
    }
    qn_test_ok(qn_eval(s, 0, NULL)); /* waits for all of it */
    NUMBERS(later[15], 17, 17, 17, 17);
    NUMBERS(later[0], 2, 2, 2, 2);
    qn_scope_close(inner);
}

/* ---- memory and devices ------------------------------------------------------------------------------- */

static void memory(void **state)
{
    qn_scope *t;
    size_t live, peak, old = 1;
    const qn_scope_options o = {
        .n_threads = 1, .memory_limit_bytes = (size_t)64 << 20, .cache_limit_bytes = QN_KEEP_NOTHING};
    qn_test_ok(qn_scope_open_with(&o, &t));
    qn_array *a = qn_zeros(t, QN_DTYPE_F32, 1, (int64_t[]){1 << 20});
    a = qn_add(t, a, qn_arange(t, QN_DTYPE_F32, 0, 1 << 20, 1));
    qn_test_ok(qn_eval(t, 1, &a));
    qn_scope_memory(t, &live, &peak);
    assert_true(live >= (size_t)4 << 20 && peak >= live && peak <= (size_t)64 << 20);
    qn_scope_set_memory_limit(t, live, &old);
    assert_int_equal(old, (size_t)64 << 20);
    qn_array *more = qn_exp(t, a);
    assert_int_equal(qn_eval(t, 1, &more), QN_E_NOMEM);
    (void)qn_scope_recover(t);
    qn_scope_set_memory_limit(t, 0, NULL);
    qn_scope_set_cache_limit(t, 12345, &old);
    assert_int_equal(old, 0);
    qn_scope_set_cache_limit(t, 0, &old);
    assert_int_equal(old, 12345);
    qn_scope_clear_cache(t);
    qn_scope_reset_peak_memory(t);
    qn_scope_memory(t, &live, &peak);
    assert_int_equal(live, peak);
    qn_scope_close(t);
    /* the CPU has no memory that could be wired for arrays */
    assert_int_equal(qn_scope_open_with(&(qn_scope_options){.wired_limit_bytes = 4096}, &t),
                     QN_E_UNSUPPORTED);
    assert_non_null(strstr(qn_last_error(), "wired limit"));
}

static void devices(void **state)
{
    qn_device_info first, found;
    qn_scope *t = NULL;
    qn_test_ok(qn_device_get_info(0, &first));
    qn_test_ok(qn_device_find("cpu", &found));
    assert_string_equal(first.name, found.name);
    assert_true(found.n_threads >= 1 && found.memory_bytes >= found.available_bytes);
    setenv("QUERN_MLX_LIBRARY", "nowhere/libquern-mlx.so", 1);
    assert_int_equal(qn_device_find("mlx", &found), QN_E_UNSUPPORTED);
    assert_int_equal(qn_scope_open_on("mlx", 1, 0, &t), QN_E_UNSUPPORTED);
    assert_int_equal(qn_device_find("gpu", &found), QN_E_NOT_FOUND);
    assert_non_null(strstr(qn_last_error(), "cpu, cuda, mlx"));
    assert_null(t);
    qn_test_ok(qn_scope_open_on("cpu", 1, 0, &t));
    double item;
    qn_test_ok(qn_array_item(t, qn_scalar(t, 3), &item));
    assert_true(item == 3);
    qn_scope_close(t);
}

/* ---- files -------------------------------------------------------------------------------------------- */

static void files(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_path(folder, "w.safetensors");
    qn_array *w = floats(3, (float[]){1, 2, 3}), *h = qn_astype(s, w, QN_DTYPE_BF16);
    qn_array_file *f = NULL;
    qn_test_ok(qn_save_safetensors(s, path, 2, (const char *[]){"w", "h"}, (qn_array *[]){w, h}, 1,
                                   (const char *[]){"format", "pt"}));
    qn_test_ok(qn_array_file_open(path, &f));
    assert_int_equal(qn_array_file_count(f), 2);
    assert_string_equal(qn_array_file_metadata(f, "format"), "pt");
    for (int64_t i = 0; i < 2; i++) {
        qn_array *a = qn_array_file_get(s, f, qn_array_file_name(f, i));
        NUMBERS(a, 1, 2, 3);
        assert_int_equal(qn_array_dtype(a),
                         strcmp(qn_array_file_name(f, i), "h") == 0 ? QN_DTYPE_BF16 : QN_DTYPE_F32);
    }
    assert_null(qn_array_file_get(s, f, "x"));
    assert_int_equal(qn_scope_recover(s), QN_E_NOT_FOUND);
    qn_array_file_close(f);
    qn_test_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(derivatives), cmocka_unit_test(checkpoints), cmocka_unit_test(layers),
        cmocka_unit_test(losses),      cmocka_unit_test(optimisers),  cmocka_unit_test(compiled),
        cmocka_unit_test(evaluated),   cmocka_unit_test(memory),      cmocka_unit_test(devices),
        cmocka_unit_test(files),
    };
    return cmocka_run_group_tests(tests, open_scope, close_scope);
}

/* Losses and steps over a model as a function of arrays, what is refused, and training while it answers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <quern/quern.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "format/files/mmap.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/function_help.h"
#include "tests/support/models/kinds.h"
#include "tests/support/models/model_dir.h"
#include "tests/support/scratch.h"

enum { N = QN_TEST_FUNCTION_N, LENGTH = QN_TEST_FUNCTION_LENGTH };

/* ---- losses and steps --------------------------------------------------------------------------------- */

static void losses_are_those_of_logits(void **state)
{
    qn_test_function t;
    int64_t n;
    /* What stands before the other linear layers is a mixer in files whose layers are one thing alone. */
    const char *targets = strcmp(*state, "nemotron_h") == 0 ? "*.mixer.*" : "*.self_attn.*";
    qn_test_function_open(&t, *state, QN_PRECISION_EXACT,
                          (qn_finetune_options){.rank = 2, .targets = targets});
    t.targets[3] = -1;
    float *logits = qn_test_function_numbers(
        &t, qn_finetune_forward(t.f, t.scope, NULL, qn_test_function_table(&t, t.ids), NULL), &n);
    float *losses =
        qn_test_function_numbers(&t,
                                 qn_finetune_losses(t.f, t.scope, NULL, qn_test_function_table(&t, t.ids),
                                                    qn_test_function_table(&t, t.targets), NULL),
                                 &n);
    assert_int_equal(n, N * LENGTH);
    for (int64_t r = 0; r < n; r++) {
        const float *x = logits + r * t.vocab_size;
        double sum = 0, most = -INFINITY;
        for (int64_t k = 0; k < t.vocab_size; k++) most = x[k] > most ? (double)x[k] : most;
        for (int64_t k = 0; k < t.vocab_size; k++) sum += exp((double)x[k] - most);
        const double expected = t.targets[r] < 0 ? 0 : most + log(sum) - (double)x[t.targets[r]];
        if (!(fabs((double)losses[r] - expected) <= 1e-5 * (1 + fabs(expected))))
            fail_msg("row %lld: %g, expected %g", (long long)r, (double)losses[r], expected);
    }
    qn_free(logits);
    qn_free(losses);
    qn_test_function_close(&t);
}

static double take_steps(qn_test_function *t, const qn_optimizer_options *o, int n, double *first)
{
    qn_finetune_report report = {0};
    for (int i = 0; i < n; i++) {
        qn_scope *s = qn_scope_inner(t->scope);
        qn_array *ids = qn_from_data(s, QN_DTYPE_I32, 2, (int64_t[]){N, LENGTH}, t->ids);
        qn_array *targets = qn_from_data(s, QN_DTYPE_I32, 2, (int64_t[]){N, LENGTH}, t->targets);
        qn_array *losses = qn_finetune_losses(t->f, s, NULL, ids, targets, NULL);
        qn_test_ok(qn_finetune_step(t->f, s, qn_test_function_mean(s, losses), o, 1, &report));
        assert_int_equal(report.step, i + 1);
        assert_true(report.grad_norm > 0);
        if (!i) *first = report.loss;
        qn_scope_close(s);
    }
    return report.loss;
}

/* Steps lower the loss; the adapter that is saved gives the engine the same logits; the model as it was opened
 * is still there. */
static void trains_and_saves(qn_train_method method, int bf16)
{
    qn_test_function t;
    int64_t n;
    double first = 0;
    char folder[256];
    qn_optimizer_options o = qn_optimizer_defaults(QN_OPTIMIZER_ADAMW);
    qn_test_function_open(&t, "llama", QN_PRECISION_EXACT,
                          (qn_finetune_options){.method = method, .rank = 4, .bf16_adapter = bf16});
    o.rate = method == QN_TRAIN_FULL ? 1e-3 : 1e-2;
    const double last = take_steps(&t, &o, 12, &first);
    if (!(last < first - 0.1)) fail_msg("12 steps: from %g to %g", first, last);
    float *logits = qn_test_function_numbers(
        &t, qn_finetune_forward(t.f, t.scope, NULL, qn_test_function_table(&t, t.ids), NULL), &n);
    snprintf(folder, sizeof folder, "%s/trained", qn_test_scratch());
    qn_test_ok(qn_finetune_save(t.f, folder, QN_ADAPTER_PEFT));
    const qn_forward_options base = {.without_trained = 1};
    float *plain = qn_test_function_numbers(
        &t, qn_finetune_forward(t.f, t.scope, NULL, qn_test_function_table(&t, t.ids), &base), &n);
    qn_test_function_check_bits(&t, plain, 0, t.vocab_size, NULL);
    if (method != QN_TRAIN_FULL) {
        qn_test_ok(qn_adapter_load(t.model, &(qn_adapter_options){.name = "trained", .path = folder}));
        float *served = qn_alloc((size_t)n * sizeof *served);
        qn_finetune *again;
        qn_test_ok(qn_finetune_open(
            t.model, &(qn_finetune_options){.start_path = folder, .precision = QN_PRECISION_EXACT}, &again));
        qn_scope *s = qn_scope_inner(qn_finetune_scope(again));
        qn_array *ids = qn_from_data(s, QN_DTYPE_I32, 2, (int64_t[]){N, LENGTH}, t.ids);
        qn_test_ok(qn_array_read(s, qn_finetune_forward(again, s, NULL, ids, NULL), QN_DTYPE_F32, served, n));
        assert_memory_equal(served, logits, (size_t)n * sizeof *served);
        qn_scope_close(s);
        qn_finetune_close(again);
        qn_free(served);
    }
    qn_free(logits);
    qn_free(plain);
    qn_test_function_close(&t);
}

static void trains_lora(void **state)
{
    trains_and_saves(QN_TRAIN_LORA, 0);
}

static void trains_dora(void **state)
{
    trains_and_saves(QN_TRAIN_DORA, 0);
}

static void trains_bf16(void **state)
{
    trains_and_saves(QN_TRAIN_LORA, 1);
}

static void trains_full(void **state)
{
    trains_and_saves(QN_TRAIN_FULL, 0);
}

static void trains_sgd(void **state)
{
    qn_test_function t;
    double first = 0;
    qn_optimizer_options o = qn_optimizer_defaults(QN_OPTIMIZER_SGD);
    qn_test_function_open(&t, "llama", QN_PRECISION_HIGH, (qn_finetune_options){.rank = 4});
    o.rate = 0.5;
    const double last = take_steps(&t, &o, 8, &first);
    assert_true(last < first);
    qn_optimizer_options other = qn_optimizer_defaults(QN_OPTIMIZER_ADAMW);
    qn_array *losses = qn_finetune_losses(t.f, t.scope, NULL, qn_test_function_table(&t, t.ids),
                                          qn_test_function_table(&t, t.targets), NULL);
    assert_int_equal(qn_finetune_step(t.f, t.scope, qn_test_function_mean(t.scope, losses), &other, 0, NULL),
                     QN_E_ARG);
    qn_test_function_close(&t);
}

/* Numbers of A as the way to begin says: variance times n_in. */
static double variance_of_a(qn_train_init init)
{
    qn_test_function t;
    double sum = 0, n = 0;
    qn_test_function_open(&t, "llama", QN_PRECISION_EXACT,
                          (qn_finetune_options){.rank = 8, .init = init, .seed = 3});
    for (int64_t i = 0; i < qn_finetune_count(t.f); i++) {
        qn_train_array a;
        int64_t count;
        qn_test_ok(qn_finetune_get_array(t.f, i, &a));
        float *x = qn_test_function_numbers(&t, qn_finetune_array(t.f, i), &count);
        for (int64_t k = 0; k < count; k++) {
            if (strstr(a.name, "lora_B")) assert_true(x[k] == 0);
            if (strstr(a.name, "lora_A")) sum += (double)x[k] * x[k] * (double)a.shape[1], n++;
        }
        qn_free(x);
    }
    qn_test_function_close(&t);
    return sum / n;
}

static void begins(void **state)
{
    assert_true(fabs(variance_of_a(QN_TRAIN_UNIFORM) - 1.0 / 3) < 0.02);
    assert_true(fabs(variance_of_a(QN_TRAIN_KAIMING_NORMAL) - 1) < 0.05);
}

/* in: ids and targets; out: the mean loss, then its gradient by the first array. */
static qn_status loss_and_gradient(void *user, qn_scope *s, int n_in, qn_array *const *in, int n_out,
                                   qn_array **out)
{
    const qn_test_function *t = user;
    qn_array *first = qn_finetune_array(t->f, 0);
    out[0] = qn_test_function_mean(s, qn_finetune_losses(t->f, s, NULL, in[0], in[1], NULL));
    return qn_vjp(s, out[0], NULL, 1, &first, out + 1);
}

static void same_numbers(const qn_test_function *t, qn_array *a, qn_array *b)
{
    int64_t n, m;
    float *x = qn_test_function_numbers(t, a, &n), *y = qn_test_function_numbers(t, b, &m);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, (size_t)n * sizeof *x);
    qn_free(x);
    qn_free(y);
}

/* A step that is compiled once has the bits of one that is built each time, and sees new numbers. */
static void compiles(void **state)
{
    qn_test_function t;
    qn_compiled *c;
    qn_test_function_open(&t, "llama", QN_PRECISION_HIGH, (qn_finetune_options){.rank = 2});
    qn_test_ok(qn_compile(t.scope, loss_and_gradient, &t, 2, NULL, &c));
    qn_array *in[2] = {qn_test_function_table(&t, t.ids), qn_test_function_table(&t, t.targets)};
    for (int round = 0; round < 3; round++) {
        qn_array *compiled[2], *built[2];
        qn_test_ok(qn_compiled_call(c, t.scope, 2, in, compiled));
        qn_test_ok(loss_and_gradient(&t, t.scope, 2, in, 2, built));
        for (int i = 0; i < 2; i++) same_numbers(&t, compiled[i], built[i]);
        qn_test_function_disturb(&t);
    }
    assert_int_equal(qn_compiled_get_figures(c).n_traces, 1);
    qn_compiled_free(c);
    qn_test_function_close(&t);
}

/* Ids of other types of integers, and ids that are computed: those outside the vocabulary become the nearest. */
static void takes_any_ids(void **state)
{
    qn_test_function t;
    int64_t n, m;
    qn_test_function_open(&t, "llama", QN_PRECISION_EXACT, (qn_finetune_options){.rank = 2});
    for (int i = 0; i < N * LENGTH; i++) t.ids[i] %= 200;
    qn_array *ids = qn_test_function_table(&t, t.ids);
    float *plain = qn_test_function_numbers(&t, qn_finetune_forward(t.f, t.scope, NULL, ids, NULL), &n);
    static const qn_dtype types[] = {QN_DTYPE_U8, QN_DTYPE_I64, QN_DTYPE_U32};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        qn_array *other = qn_astype(t.scope, ids, types[i]);
        for (int computed = 0; computed < 2; computed++) {
            float *same =
                qn_test_function_numbers(&t, qn_finetune_forward(t.f, t.scope, NULL, other, NULL), &m);
            assert_memory_equal(plain, same, (size_t)n * sizeof *same);
            qn_free(same);
            qn_test_ok(qn_eval(t.scope, 1, &other));
        }
    }
    t.ids[0] = 0;
    float *first = qn_test_function_numbers(
        &t, qn_finetune_forward(t.f, t.scope, NULL, qn_test_function_table(&t, t.ids), NULL), &n);
    t.ids[0] = -7;
    qn_array *below = qn_add(t.scope, qn_test_function_table(&t, t.ids),
                             qn_zeros(t.scope, QN_DTYPE_I32, 1, (int64_t[]){1}));
    float *nearest = qn_test_function_numbers(&t, qn_finetune_forward(t.f, t.scope, NULL, below, NULL), &n);
    assert_memory_equal(first, nearest, (size_t)n * sizeof *first);
    qn_free(plain);
    qn_free(first);
    qn_free(nearest);
    qn_test_function_close(&t);
}

/* ---- refusals ----------------------------------------------------------------------------------------- */

static void expect_fail(const qn_test_function *t, qn_array *a, qn_status status, const char *words)
{
    assert_null(a);
    assert_int_equal(qn_scope_recover(t->scope), status);
    if (!strstr(qn_last_error(), words)) fail_msg("%s", qn_last_error());
}

static void refuses(void **state)
{
    qn_test_function t;
    qn_test_function_open(&t, "llama", QN_PRECISION_EXACT, (qn_finetune_options){.rank = 2});
    qn_scope *s = t.scope;
    t.ids[7] = (int32_t)t.vocab_size;
    expect_fail(&t, qn_finetune_forward(t.f, s, NULL, qn_test_function_table(&t, t.ids), NULL), QN_E_ARG,
                "token id");
    t.ids[7] = -1;
    expect_fail(&t, qn_finetune_hidden(t.f, s, NULL, qn_test_function_table(&t, t.ids), NULL), QN_E_ARG,
                "token id -1");
    t.ids[7] = 1;
    qn_array *ids = qn_test_function_table(&t, t.ids);
    expect_fail(&t, qn_finetune_forward(t.f, s, NULL, qn_astype(s, ids, QN_DTYPE_F32), NULL), QN_E_ARG,
                "integers");
    expect_fail(&t, qn_finetune_forward(t.f, s, NULL, qn_reshape(s, ids, 1, (int64_t[]){-1}), NULL), QN_E_ARG,
                "[N, L]");
    expect_fail(&t, qn_finetune_forward(t.f, s, NULL, ids, &(qn_forward_options){.mask = qn_scalar(s, 0)}),
                QN_E_ARG, "[N, 1, L, L]");
    expect_fail(&t, qn_finetune_losses(t.f, s, NULL, ids, qn_reshape(s, ids, 1, (int64_t[]){-1}), NULL),
                QN_E_ARG, "shape of the ids");
    const int64_t n = qn_finetune_count(t.f);
    qn_array **arrays = qn_calloc((size_t)n, sizeof *arrays);
    for (int64_t i = 0; i < n; i++) arrays[i] = qn_scalar(s, 1);
    expect_fail(&t, qn_finetune_forward(t.f, s, arrays, ids, NULL), QN_E_ARG, "lora_A");
    assert_int_equal(qn_finetune_set(t.f, s, arrays), QN_E_ARG);
    for (int64_t i = 0; i < n; i++) arrays[i] = qn_div(s, qn_finetune_array(t.f, i), qn_scalar(s, 0));
    assert_int_equal(qn_finetune_set(t.f, s, arrays), QN_E_ARG);
    if (!strstr(qn_last_error(), "new value 0 is not finite")) fail_msg("%s", qn_last_error());
    qn_free(arrays);
    qn_array *none = qn_slice(s, ids, (int64_t[]){0, 0}, (int64_t[]){0, LENGTH}, NULL);
    expect_fail(&t, qn_finetune_forward(t.f, s, NULL, none, NULL), QN_E_ARG, "known number and length");
    qn_train_array a;
    assert_int_equal(qn_finetune_get_array(t.f, n, &a), QN_E_NOT_FOUND);
    assert_null(qn_finetune_array(t.f, n));
    qn_optimizer_options o = qn_optimizer_defaults(QN_OPTIMIZER_ADAMW);
    assert_int_equal(qn_finetune_step(t.f, s, qn_scalar(s, 1), &o, 0, NULL), QN_E_ARG);
    qn_scope *other;
    qn_test_ok(qn_scope_open(1, 0, &other));
    qn_array *elsewhere = qn_from_data(other, QN_DTYPE_I32, 2, (int64_t[]){N, LENGTH}, t.ids);
    assert_null(qn_finetune_forward(t.f, other, NULL, elsewhere, NULL));
    assert_int_equal(qn_scope_status(other), QN_E_ARG);
    qn_scope_close(other);
    qn_model *same = t.model;
    qn_model_close(&t.model); /* stays open */
    assert_ptr_equal(t.model, same);
    qn_test_function_close(&t);
}

/* A loss or gradients that are not finite change nothing, and training goes on. */
static void refuses_infinite(void **state)
{
    qn_test_function t;
    qn_finetune_report report = {0};
    const qn_optimizer_options o = qn_optimizer_defaults(QN_OPTIMIZER_ADAMW);
    qn_test_function_open(&t, "llama", QN_PRECISION_EXACT, (qn_finetune_options){.rank = 2});
    for (int round = 0; round < 3; round++) {
        qn_scope *s = qn_scope_inner(t.scope);
        qn_array *ids = qn_from_data(s, QN_DTYPE_I32, 2, (int64_t[]){N, LENGTH}, t.ids);
        qn_array *targets = qn_from_data(s, QN_DTYPE_I32, 2, (int64_t[]){N, LENGTH}, t.targets);
        qn_array *loss = qn_test_function_mean(s, qn_finetune_losses(t.f, s, NULL, ids, targets, NULL));
        qn_array *zero = qn_mul(s, loss, qn_scalar(s, 0));
        if (round == 0) loss = qn_div(s, loss, qn_scalar(s, 0));
        if (round == 1) loss = qn_add(s, loss, qn_sqrt(s, zero)); /* its slope at 0 is infinite */
        const qn_status status = qn_finetune_step(t.f, s, loss, &o, 1, &report);
        assert_int_equal(status, round < 2 ? QN_E_DEVICE : QN_OK);
        const char *words = round ? "the gradient with respect to" : "the loss is inf after 0 steps";
        if (round < 2 && !strstr(qn_last_error(), words)) fail_msg("%s", qn_last_error());
        qn_scope_close(s);
    }
    assert_int_equal(report.step, 1);
    qn_test_function_close(&t);
}

/* The files are read again for training: without them it does not begin, and the model goes on. */
static void refuses_lost_files(void **state)
{
    char dir[QN_TEST_DIR_MAX];
    qn_model *model;
    qn_finetune *f = NULL;
    const int64_t live = qn_mem_live_blocks();
    qn_test_model_copy(qn_test_need_fixture("models/llama"), NULL, NULL, dir);
    qn_test_ok(qn_model_open(dir, &(qn_model_options){.n_threads = 1}, &model));
    qn_test_model_remove(dir);
    assert_int_equal(qn_finetune_open(model, &(qn_finetune_options){.rank = 2}, &f), QN_E_IO);
    assert_non_null(strstr(qn_last_error(), dir));
    assert_null(f);
    qn_model_close(&model);
    assert_null(model); /* it is not borrowed */
    assert_int_equal(qn_mem_live_blocks(), live);
}

static void refuses_to_open(void **state)
{
    qn_model *model;
    qn_finetune *f = NULL;
    qn_test_ok(
        qn_model_open(qn_test_need_fixture("models/llama"), &(qn_model_options){.n_threads = 1}, &model));
    assert_int_equal(qn_finetune_open(model, &(qn_finetune_options){.targets = "no_proj"}, &f), QN_E_ARG);
    assert_int_equal(qn_finetune_open(model, &(qn_finetune_options){.rank = -1}, &f), QN_E_ARG);
    assert_int_equal(qn_finetune_open(model, &(qn_finetune_options){.start_path = "/nowhere"}, &f),
                     QN_E_NOT_FOUND);
    assert_int_equal(qn_finetune_open(model, &(qn_finetune_options){.memory_limit_bytes = 1000}, &f),
                     QN_E_NOMEM);
    assert_int_equal(qn_finetune_open(NULL, NULL, &f), QN_E_ARG);
    assert_null(f);
    qn_model_close(&model);
    assert_null(model);
    qn_test_ok(qn_model_open("mock", &(qn_model_options){.backend = "mock"}, &model));
    assert_int_equal(qn_finetune_open(model, NULL, &f), QN_E_UNSUPPORTED);
    assert_non_null(strstr(qn_last_error(), "mock"));
    qn_model_close(&model);
}

/* What chooses blocks for attention is trained by no name, and a pattern goes past it. */
static void refuses_an_index(void **state)
{
    qn_model *model;
    qn_finetune *f = NULL;
    qn_test_ok(qn_model_open(qn_test_need_fixture("families2/glm5_next"), &(qn_model_options){.n_threads = 1},
                             &model));
    static const char *const none[] = {"indexer.wk", "*.indexer.*"};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(qn_finetune_open(model, &(qn_finetune_options){.targets = none[i]}, &f),
                         QN_E_UNSUPPORTED);
        assert_non_null(strstr(qn_last_error(), "indexer.w"));
    }
    qn_test_ok(qn_finetune_open(model, &(qn_finetune_options){.targets = "*.self_attn.*"}, &f));
    qn_finetune_close(f);
    qn_model_close(&model);
}

/* ---- together with the engine ------------------------------------------------------------------------- */

static void *serve(void *arg)
{
    qn_test_function *t = arg;
    for (int i = 0; i < 6; i++) {
        qn_generation *g;
        const qn_ids row = {t->ids, LENGTH};
        if (qn_generation_open(t->model, &(qn_prompt){.rows = &row, .n_rows = 1},
                               &(qn_generate_options){.max_tokens = 8}, &g) != QN_OK)
            return arg;
        qn_token token;
        while (qn_generation_next(g, &token) == QN_OK && token.end == QN_END_NONE) continue;
        qn_generation_close(g);
    }
    return NULL;
}

/* The model answers on one thread while it is trained on another. */
static void serves_meanwhile(void **state)
{
    qn_test_function t;
    pthread_t thread;
    void *failed;
    double first = 0;
    qn_optimizer_options o = qn_optimizer_defaults(QN_OPTIMIZER_ADAMW);
    qn_test_function_open(&t, "llama", QN_PRECISION_HIGH, (qn_finetune_options){.rank = 4});
    o.rate = 1e-2;
    assert_int_equal(pthread_create(&thread, NULL, serve, &t), 0);
    const double last = take_steps(&t, &o, 6, &first);
    pthread_join(thread, &failed);
    assert_null(failed);
    assert_true(last < first);
    qn_test_function_close(&t);
}

/* A training of qn_training_open with the weights of the open model writes the same adapter as one that loads
 * the model itself. */
static void trains_on_data(void **state)
{
    qn_test_function t;
    qn_model_info info;
    char *bytes[2];
    size_t n[2];
    qn_test_function_open(&t, "llama", QN_PRECISION_EXACT, (qn_finetune_options){.rank = 2});
    qn_test_ok(qn_model_get_info(t.model, &info));
    const char *folder = qn_test_scratch();
    qn_train_options o = {
        .data_path = qn_test_write_text(folder, "data.jsonl",
                                        "{\"text\":\"a river turns the mill\"}\n{\"text\":\"one stone\"}\n"),
        .rank = 2,
        .learning_rate = 1e-2,
        .n_steps = 3,
        .precision = QN_PRECISION_EXACT,
        .overwrite = 1};
    for (int i = 0; i < 2; i++) {
        qn_training *training = NULL;
        char out[512];
        snprintf(out, sizeof out, "%s/%d", folder, i);
        o.out_path = out;
        o.model = i ? t.model : NULL;
        o.model_path = i ? NULL : info.path;
        qn_test_ok(qn_training_open(&o, &training));
        qn_test_ok(qn_training_run(training, NULL, NULL));
        qn_training_close(training);
        snprintf(out, sizeof out, "%s/%d/last/adapter_model.safetensors", folder, i);
        qn_test_ok(qn_file_read(out, (size_t)1 << 30, &bytes[i], &n[i]));
    }
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(bytes[0], bytes[1], n[0]);
    qn_free(bytes[0]);
    qn_free(bytes[1]);
    qn_training *both = NULL;
    o.model_path = info.path;
    assert_int_equal(qn_training_open(&o, &both), QN_E_ARG);
    qn_test_remove(folder);
    qn_test_function_close(&t);
}

int main(void)
{
    static const qn_test_kind_row rows[] = {
        {"losses_", losses_are_those_of_logits},
    };
    enum { N_ROWS = sizeof rows / sizeof *rows };
    static const struct CMUnitTest others[] = {
        cmocka_unit_test(trains_lora),
        cmocka_unit_test(trains_dora),
        cmocka_unit_test(trains_bf16),
        cmocka_unit_test(trains_full),
        cmocka_unit_test(trains_sgd),
        cmocka_unit_test(begins),
        cmocka_unit_test(compiles),
        cmocka_unit_test(takes_any_ids),
        cmocka_unit_test(refuses),
        cmocka_unit_test(refuses_infinite),
        cmocka_unit_test(refuses_lost_files),
        cmocka_unit_test(refuses_to_open),
        cmocka_unit_test(refuses_an_index),
        cmocka_unit_test(serves_meanwhile),
        cmocka_unit_test(trains_on_data),
    };
    static struct CMUnitTest tests[N_ROWS * QN_TEST_KINDS_MAX + sizeof others / sizeof *others];
    int n = qn_test_kind_rows(N_ROWS, rows, tests);
    memcpy(tests + n, others, sizeof others);
    n += (int)(sizeof others / sizeof *others);
    return _cmocka_run_group_tests("finetune_steps", tests, (size_t)n, NULL, NULL);
}

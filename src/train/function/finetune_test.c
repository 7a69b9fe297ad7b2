/* A model as a function of arrays: the engine's bits for every kind of model, gradients against finite
 * differences, masks, steps, and what is refused. */
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
#include "base/random.h"
#include "format/files/mmap.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/kinds.h"
#include "tests/support/model_dir.h"
#include "tests/support/scratch.h"

enum { N = 2, LENGTH = 23 };

typedef struct {
    qn_model *model;
    qn_finetune *f;
    qn_scope *scope;
    int64_t vocab_size;
    int32_t ids[N * LENGTH], targets[N * LENGTH];
} subject;

static void open_at(subject *t, const char *path, qn_model_options m, qn_finetune_options o)
{
    qn_model_info info;
    *t = (subject){0};
    qn_test_ok(qn_model_open(path, &m, &t->model));
    qn_test_ok(qn_model_get_info(t->model, &info));
    t->vocab_size = info.vocab_size;
    qn_test_ok(qn_finetune_open(t->model, &o, &t->f));
    t->scope = qn_scope_inner(qn_finetune_scope(t->f));
    assert_non_null(t->scope);
    for (int i = 0; i < N * LENGTH; i++) {
        t->ids[i] = (int32_t)(qn_random_bits(5, (uint64_t)i) % (uint64_t)t->vocab_size);
        t->targets[i] = (int32_t)(qn_random_bits(6, (uint64_t)i) % (uint64_t)t->vocab_size);
    }
}

static void open_kind(subject *t, const char *kind, qn_precision precision, qn_finetune_options o)
{
    char path[96];
    snprintf(path, sizeof path, "models/%s", kind);
    o.precision = precision;
    open_at(
        t, qn_test_need_fixture(path),
        (qn_model_options){.n_threads = 2, .precision = precision, .kv_type = QN_KV_F32, .packed = "none"},
        o);
}

static void close_all(subject *t)
{
    qn_scope_close(t->scope);
    qn_finetune_close(t->f);
    qn_model_close(&t->model);
    assert_null(t->model);
}

static qn_array *table(const subject *t, const int32_t *ids)
{
    return qn_from_data(t->scope, QN_DTYPE_I32, 2, (int64_t[]){N, LENGTH}, ids);
}

static qn_array *mean(qn_scope *s, qn_array *losses)
{
    return qn_mean(s, qn_reshape(s, losses, 1, (int64_t[]){-1}), 0);
}

/* Random numbers for all trained arrays, so that factors do something. */
static void disturb(subject *t)
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

static float *numbers_of(const subject *t, qn_array *a, int64_t *n)
{
    if (!a) fail_msg("%s", qn_scope_status(t->scope) ? qn_last_error() : "an array is NULL without an error");
    *n = qn_array_size(a);
    float *out = qn_alloc((size_t)*n * sizeof *out);
    const qn_status status = qn_array_read(t->scope, a, QN_DTYPE_F32, out, *n);
    if (status != QN_OK) fail_msg("%s", qn_last_error());
    return out;
}

/* ---- the engine's bits -------------------------------------------------------------------------------- */

typedef struct {
    const float *expected;
    int64_t width, n_equal, n;
} comparison;

static qn_status compare(void *user, int64_t row, int64_t position, int64_t n, const float *values)
{
    comparison *c = user;
    const float *expected = c->expected + (row * LENGTH + position) * c->width;
    for (int64_t i = 0; i < n * c->width; i++)
        c->n_equal += memcmp(&values[i], &expected[i], sizeof *values) == 0;
    c->n += n * c->width;
    return QN_OK;
}

static void check_bits(const subject *t, const float *logits, int hidden, int64_t width, const char *adapter)
{
    comparison c = {.expected = logits, .width = width};
    const qn_ids rows[N] = {{t->ids, LENGTH}, {t->ids + LENGTH, LENGTH}};
    const qn_logits_options o = {.hidden = hidden, .adapter = adapter};
    qn_test_ok(qn_model_logits(t->model, rows, N, &o, compare, &c));
    assert_int_equal(c.n, (int64_t)N * LENGTH * width);
    if (c.n_equal != c.n)
        fail_msg("%lld of %lld numbers differ", (long long)(c.n - c.n_equal), (long long)c.n);
}

static void bits_of_kind(const char *kind, qn_precision precision)
{
    subject t;
    int64_t n;
    open_kind(&t, kind, precision, (qn_finetune_options){.rank = 2});
    float *logits = numbers_of(&t, qn_finetune_forward(t.f, t.scope, NULL, table(&t, t.ids), NULL), &n);
    check_bits(&t, logits, 0, t.vocab_size, NULL);
    qn_free(logits);
    float *hidden = numbers_of(&t, qn_finetune_hidden(t.f, t.scope, NULL, table(&t, t.ids), NULL), &n);
    check_bits(&t, hidden, 1, n / (N * LENGTH), NULL);
    qn_free(hidden);
    close_all(&t);
}

static void exact_bits(void **state)
{
    bits_of_kind(*state, QN_PRECISION_EXACT);
}

static void high_bits(void **state)
{
    bits_of_kind(*state, QN_PRECISION_HIGH);
}

/* ---- masks -------------------------------------------------------------------------------------------- */

/* 0 where row q sees row k. */
typedef int sees_fn(int64_t n, int64_t q, int64_t k);

static qn_array *mask_of(const subject *t, sees_fn *sees)
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

static int has_recurrent_layers(const subject *t, qn_array *ids, qn_array *mask)
{
    if (qn_finetune_forward(t->f, t->scope, NULL, ids, &(qn_forward_options){.mask = mask})) return 0;
    assert_int_equal(qn_scope_recover(t->scope), QN_E_UNSUPPORTED);
    assert_non_null(strstr(qn_last_error(), "recurrent layers"));
    return 1;
}

/* A causal mask changes nothing; one that shows what follows changes the first row. */
static void masked(void **state)
{
    subject t;
    int64_t n;
    open_kind(&t, *state, QN_PRECISION_EXACT, (qn_finetune_options){.rank = 2});
    disturb(&t);
    qn_array *ids = table(&t, t.ids), *causal = mask_of(&t, sees_before);
    if (!has_recurrent_layers(&t, ids, causal)) {
        float *plain = numbers_of(&t, qn_finetune_forward(t.f, t.scope, NULL, ids, NULL), &n);
        qn_forward_options o = {.mask = causal};
        float *same = numbers_of(&t, qn_finetune_forward(t.f, t.scope, NULL, ids, &o), &n);
        double scale = 1;
        for (int64_t i = 0; i < n; i++)
            if (fabs((double)plain[i]) > scale) scale = fabs((double)plain[i]);
        const double error = largest_difference(plain, same, n);
        if (!(error <= 2e-5 * scale)) fail_msg("a causal mask changes logits up to %g by %g", scale, error);
        o.mask = mask_of(&t, sees_all);
        float *all = numbers_of(&t, qn_finetune_forward(t.f, t.scope, NULL, ids, &o), &n);
        assert_true(largest_difference(plain, all, t.vocab_size) > 1e-4);
        qn_free(plain);
        qn_free(same);
        qn_free(all);
    }
    close_all(&t);
}

/* A mask of three rows is what a model with a window of three sees, layer by layer: changing an id beyond all
 * layers' reach changes no logit of the last row. */
static void mask_hides(void **state)
{
    subject t;
    int64_t n;
    open_kind(&t, "llama", QN_PRECISION_EXACT, (qn_finetune_options){.rank = 2});
    qn_model_info info;
    qn_test_ok(qn_model_get_info(t.model, &info));
    const int64_t reach = info.num_layers * 2; /* rows back, of all layers together */
    if (reach + 2 > LENGTH) qn_test_leave_out("the model has too many layers for these rows");
    const qn_forward_options o = {.mask = mask_of(&t, sees_last_three)};
    float *before = numbers_of(&t, qn_finetune_forward(t.f, t.scope, NULL, table(&t, t.ids), &o), &n);
    t.ids[LENGTH - 2 - reach] = (int32_t)((t.ids[LENGTH - 2 - reach] + 1) % t.vocab_size);
    float *after = numbers_of(&t, qn_finetune_forward(t.f, t.scope, NULL, table(&t, t.ids), &o), &n);
    const int64_t last = (LENGTH - 1) * t.vocab_size, first = (LENGTH - 2 - reach) * t.vocab_size;
    assert_memory_equal(before + last, after + last, (size_t)t.vocab_size * sizeof *before);
    assert_true(largest_difference(before + first, after + first, t.vocab_size) > 0);
    qn_free(before);
    qn_free(after);
    close_all(&t);
}

/* ---- gradients ---------------------------------------------------------------------------------------- */

/* Numbers of all arrays moved by `by` along a fixed random direction. */
static double loss_along(subject *t, double by, qn_array *const *direction)
{
    const int64_t n = qn_finetune_count(t->f);
    qn_array **moved = qn_calloc((size_t)n, sizeof *moved);
    for (int64_t i = 0; i < n; i++)
        moved[i] = qn_add(t->scope, qn_finetune_array(t->f, i),
                          qn_mul(t->scope, direction[i], qn_scalar(t->scope, (float)by)));
    qn_array *losses =
        qn_finetune_losses(t->f, t->scope, moved, table(t, t->ids), table(t, t->targets), NULL);
    double loss = NAN;
    qn_test_ok(qn_array_item(t->scope, mean(t->scope, losses), &loss));
    qn_free(moved);
    return loss;
}

/* Of DoRA the magnitudes alone are moved: the lengths that they are divided by count as constants in the
 * gradient by A and B (trained.h). */
static int is_moved(const subject *t, qn_train_method method, int64_t i)
{
    qn_train_array a;
    qn_test_ok(qn_finetune_get_array(t->f, i, &a));
    return method != QN_TRAIN_DORA || strstr(a.name, "magnitude") != NULL;
}

static void gradient_of(const char *kind, qn_train_method method, const char *targets)
{
    subject t;
    open_kind(&t, kind, QN_PRECISION_EXACT,
              (qn_finetune_options){.rank = 3, .method = method, .targets = targets});
    if (method == QN_TRAIN_LORA) disturb(&t);
    const int64_t n = qn_finetune_count(t.f);
    qn_array **direction = qn_calloc((size_t)n, sizeof *direction), **wrt = qn_calloc((size_t)n, sizeof *wrt),
             **g = qn_calloc((size_t)n, sizeof *g);
    double slope = 0, length = 0;
    for (int64_t i = 0; i < n; i++) wrt[i] = qn_finetune_array(t.f, i);
    qn_array *losses = qn_finetune_losses(t.f, t.scope, NULL, table(&t, t.ids), table(&t, t.targets), NULL);
    qn_test_ok(qn_vjp(t.scope, mean(t.scope, losses), NULL, (int)n, wrt, g));
    qn_test_ok(qn_eval(t.scope, (int)n, g));
    /* along the gradient itself, where the slope is largest */
    for (int64_t i = 0; i < n; i++) {
        int64_t count;
        assert_non_null(g[i]);
        if (!is_moved(&t, method, i)) g[i] = qn_mul(t.scope, g[i], qn_scalar(t.scope, 0));
        float *numbers = numbers_of(&t, g[i], &count);
        for (int64_t k = 0; k < count; k++) slope += (double)numbers[k] * numbers[k];
        qn_free(numbers);
    }
    length = sqrt(slope);
    for (int64_t i = 0; i < n; i++)
        direction[i] = qn_mul(t.scope, g[i], qn_scalar(t.scope, (float)(1 / length)));
    /* The loss changes by 0.008, of which f32 leaves 4 digits. A router that chooses another expert on the way
     * makes a jump: then a shorter way is taken. */
    double measured = NAN;
    for (double h = 4e-3 / length; h > 4e-4 / length && !(fabs(measured - length) <= 0.02 * length); h /= 2)
        measured = (loss_along(&t, h, direction) - loss_along(&t, -h, direction)) / (2 * h);
    if (!(fabs(measured - length) <= 0.02 * length))
        fail_msg("the slope along the gradient is %g, its length %g", measured, length);
    qn_free(direction);
    qn_free(wrt);
    qn_free(g);
    close_all(&t);
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
        subject t;
        int64_t n;
        qn_train_array a;
        open_kind(&t, *state, QN_PRECISION_EXACT, (qn_finetune_options){.rank = 2, .targets = targets});
        for (int64_t i = 0; i < qn_finetune_count(t.f); i++) {
            qn_test_ok(qn_finetune_get_array(t.f, i, &a));
            assert_non_null(strstr(a.name, ".experts."));
            assert_int_equal(a.n_dims, 3);
        }
        float *logits = numbers_of(&t, qn_finetune_forward(t.f, t.scope, NULL, table(&t, t.ids), NULL), &n);
        check_bits(&t, logits, 0, t.vocab_size, NULL);
        qn_free(logits);
        close_all(&t);
        gradient_of(*state, QN_TRAIN_LORA, targets);
        open_kind(&t, *state, QN_PRECISION_EXACT, (qn_finetune_options){.rank = 2});
        for (int64_t i = 0; qn_finetune_get_array(t.f, i, &a) == QN_OK; i++)
            assert_null(strstr(a.name, ".experts."));
        qn_finetune *f;
        assert_int_equal(qn_finetune_open(t.model,
                                          &(qn_finetune_options){.method = QN_TRAIN_DORA, .targets = targets},
                                          &f),
                         QN_E_UNSUPPORTED);
        assert_non_null(strstr(qn_last_error(), ".experts."));
        close_all(&t);
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

/* ---- losses and steps --------------------------------------------------------------------------------- */

static void losses_are_those_of_logits(void **state)
{
    subject t;
    int64_t n;
    open_kind(&t, *state, QN_PRECISION_EXACT, (qn_finetune_options){.rank = 2, .targets = "*.self_attn.*"});
    t.targets[3] = -1;
    float *logits = numbers_of(&t, qn_finetune_forward(t.f, t.scope, NULL, table(&t, t.ids), NULL), &n);
    float *losses = numbers_of(
        &t, qn_finetune_losses(t.f, t.scope, NULL, table(&t, t.ids), table(&t, t.targets), NULL), &n);
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
    close_all(&t);
}

static double take_steps(subject *t, const qn_optimizer_options *o, int n, double *first)
{
    qn_finetune_report report = {0};
    for (int i = 0; i < n; i++) {
        qn_scope *s = qn_scope_inner(t->scope);
        qn_array *ids = qn_from_data(s, QN_DTYPE_I32, 2, (int64_t[]){N, LENGTH}, t->ids);
        qn_array *targets = qn_from_data(s, QN_DTYPE_I32, 2, (int64_t[]){N, LENGTH}, t->targets);
        qn_array *losses = qn_finetune_losses(t->f, s, NULL, ids, targets, NULL);
        qn_test_ok(qn_finetune_step(t->f, s, mean(s, losses), o, 1, &report));
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
    subject t;
    int64_t n;
    double first = 0;
    char folder[256];
    qn_optimizer_options o = qn_optimizer_defaults(QN_OPTIMIZER_ADAMW);
    open_kind(&t, "llama", QN_PRECISION_EXACT,
              (qn_finetune_options){.method = method, .rank = 4, .bf16_adapter = bf16});
    o.rate = method == QN_TRAIN_FULL ? 1e-3 : 1e-2;
    const double last = take_steps(&t, &o, 12, &first);
    if (!(last < first - 0.1)) fail_msg("12 steps: from %g to %g", first, last);
    float *logits = numbers_of(&t, qn_finetune_forward(t.f, t.scope, NULL, table(&t, t.ids), NULL), &n);
    snprintf(folder, sizeof folder, "%s/trained", qn_test_scratch());
    qn_test_ok(qn_finetune_save(t.f, folder, QN_ADAPTER_PEFT));
    const qn_forward_options base = {.without_trained = 1};
    float *plain = numbers_of(&t, qn_finetune_forward(t.f, t.scope, NULL, table(&t, t.ids), &base), &n);
    check_bits(&t, plain, 0, t.vocab_size, NULL);
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
    close_all(&t);
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
    subject t;
    double first = 0;
    qn_optimizer_options o = qn_optimizer_defaults(QN_OPTIMIZER_SGD);
    open_kind(&t, "llama", QN_PRECISION_HIGH, (qn_finetune_options){.rank = 4});
    o.rate = 0.5;
    const double last = take_steps(&t, &o, 8, &first);
    assert_true(last < first);
    qn_optimizer_options other = qn_optimizer_defaults(QN_OPTIMIZER_ADAMW);
    qn_array *losses = qn_finetune_losses(t.f, t.scope, NULL, table(&t, t.ids), table(&t, t.targets), NULL);
    assert_int_equal(qn_finetune_step(t.f, t.scope, mean(t.scope, losses), &other, 0, NULL), QN_E_ARG);
    close_all(&t);
}

/* Numbers of A as the way to begin says: variance times n_in. */
static double variance_of_a(qn_train_init init)
{
    subject t;
    double sum = 0, n = 0;
    open_kind(&t, "llama", QN_PRECISION_EXACT, (qn_finetune_options){.rank = 8, .init = init, .seed = 3});
    for (int64_t i = 0; i < qn_finetune_count(t.f); i++) {
        qn_train_array a;
        int64_t count;
        qn_test_ok(qn_finetune_get_array(t.f, i, &a));
        float *x = numbers_of(&t, qn_finetune_array(t.f, i), &count);
        for (int64_t k = 0; k < count; k++) {
            if (strstr(a.name, "lora_B")) assert_true(x[k] == 0);
            if (strstr(a.name, "lora_A")) sum += (double)x[k] * x[k] * (double)a.shape[1], n++;
        }
        qn_free(x);
    }
    close_all(&t);
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
    const subject *t = user;
    qn_array *first = qn_finetune_array(t->f, 0);
    out[0] = mean(s, qn_finetune_losses(t->f, s, NULL, in[0], in[1], NULL));
    return qn_vjp(s, out[0], NULL, 1, &first, out + 1);
}

static void same_numbers(const subject *t, qn_array *a, qn_array *b)
{
    int64_t n, m;
    float *x = numbers_of(t, a, &n), *y = numbers_of(t, b, &m);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, (size_t)n * sizeof *x);
    qn_free(x);
    qn_free(y);
}

/* A step that is compiled once has the bits of one that is built each time, and sees new numbers. */
static void compiles(void **state)
{
    subject t;
    qn_compiled *c;
    open_kind(&t, "llama", QN_PRECISION_HIGH, (qn_finetune_options){.rank = 2});
    qn_test_ok(qn_compile(t.scope, loss_and_gradient, &t, 2, NULL, &c));
    qn_array *in[2] = {table(&t, t.ids), table(&t, t.targets)};
    for (int round = 0; round < 3; round++) {
        qn_array *compiled[2], *built[2];
        qn_test_ok(qn_compiled_call(c, t.scope, 2, in, compiled));
        qn_test_ok(loss_and_gradient(&t, t.scope, 2, in, 2, built));
        for (int i = 0; i < 2; i++) same_numbers(&t, compiled[i], built[i]);
        disturb(&t);
    }
    assert_int_equal(qn_compiled_get_figures(c).n_traces, 1);
    qn_compiled_free(c);
    close_all(&t);
}

/* Ids of other types of integers, and ids that are computed: those outside the vocabulary become the nearest. */
static void takes_any_ids(void **state)
{
    subject t;
    int64_t n, m;
    open_kind(&t, "llama", QN_PRECISION_EXACT, (qn_finetune_options){.rank = 2});
    for (int i = 0; i < N * LENGTH; i++) t.ids[i] %= 200;
    qn_array *ids = table(&t, t.ids);
    float *plain = numbers_of(&t, qn_finetune_forward(t.f, t.scope, NULL, ids, NULL), &n);
    static const qn_dtype types[] = {QN_DTYPE_U8, QN_DTYPE_I64, QN_DTYPE_U32};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        qn_array *other = qn_astype(t.scope, ids, types[i]);
        for (int computed = 0; computed < 2; computed++) {
            float *same = numbers_of(&t, qn_finetune_forward(t.f, t.scope, NULL, other, NULL), &m);
            assert_memory_equal(plain, same, (size_t)n * sizeof *same);
            qn_free(same);
            qn_test_ok(qn_eval(t.scope, 1, &other));
        }
    }
    t.ids[0] = 0;
    float *first = numbers_of(&t, qn_finetune_forward(t.f, t.scope, NULL, table(&t, t.ids), NULL), &n);
    t.ids[0] = -7;
    qn_array *below = qn_add(t.scope, table(&t, t.ids), qn_zeros(t.scope, QN_DTYPE_I32, 1, (int64_t[]){1}));
    float *nearest = numbers_of(&t, qn_finetune_forward(t.f, t.scope, NULL, below, NULL), &n);
    assert_memory_equal(first, nearest, (size_t)n * sizeof *first);
    qn_free(plain);
    qn_free(first);
    qn_free(nearest);
    close_all(&t);
}

/* ---- refusals ----------------------------------------------------------------------------------------- */

static void expect_fail(const subject *t, qn_array *a, qn_status status, const char *words)
{
    assert_null(a);
    assert_int_equal(qn_scope_recover(t->scope), status);
    if (!strstr(qn_last_error(), words)) fail_msg("%s", qn_last_error());
}

static void refuses(void **state)
{
    subject t;
    open_kind(&t, "llama", QN_PRECISION_EXACT, (qn_finetune_options){.rank = 2});
    qn_scope *s = t.scope;
    t.ids[7] = (int32_t)t.vocab_size;
    expect_fail(&t, qn_finetune_forward(t.f, s, NULL, table(&t, t.ids), NULL), QN_E_ARG, "token id");
    t.ids[7] = -1;
    expect_fail(&t, qn_finetune_hidden(t.f, s, NULL, table(&t, t.ids), NULL), QN_E_ARG, "token id -1");
    t.ids[7] = 1;
    qn_array *ids = table(&t, t.ids);
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
    close_all(&t);
}

/* A loss or gradients that are not finite change nothing, and training goes on. */
static void refuses_infinite(void **state)
{
    subject t;
    qn_finetune_report report = {0};
    const qn_optimizer_options o = qn_optimizer_defaults(QN_OPTIMIZER_ADAMW);
    open_kind(&t, "llama", QN_PRECISION_EXACT, (qn_finetune_options){.rank = 2});
    for (int round = 0; round < 3; round++) {
        qn_scope *s = qn_scope_inner(t.scope);
        qn_array *ids = qn_from_data(s, QN_DTYPE_I32, 2, (int64_t[]){N, LENGTH}, t.ids);
        qn_array *targets = qn_from_data(s, QN_DTYPE_I32, 2, (int64_t[]){N, LENGTH}, t.targets);
        qn_array *loss = mean(s, qn_finetune_losses(t.f, s, NULL, ids, targets, NULL));
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
    close_all(&t);
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

/* ---- together with the engine ------------------------------------------------------------------------- */

static void *serve(void *arg)
{
    subject *t = arg;
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
    subject t;
    pthread_t thread;
    void *failed;
    double first = 0;
    qn_optimizer_options o = qn_optimizer_defaults(QN_OPTIMIZER_ADAMW);
    open_kind(&t, "llama", QN_PRECISION_HIGH, (qn_finetune_options){.rank = 4});
    o.rate = 1e-2;
    assert_int_equal(pthread_create(&thread, NULL, serve, &t), 0);
    const double last = take_steps(&t, &o, 6, &first);
    pthread_join(thread, &failed);
    assert_null(failed);
    assert_true(last < first);
    close_all(&t);
}

/* A training of qn_training_open with the weights of the open model writes the same adapter as one that loads
 * the model itself. */
static void trains_on_data(void **state)
{
    subject t;
    qn_model_info info;
    char *bytes[2];
    size_t n[2];
    open_kind(&t, "llama", QN_PRECISION_EXACT, (qn_finetune_options){.rank = 2});
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
    close_all(&t);
}

/* Weights of blocks: what `high` promises. */
static void quantised_bits(void **state)
{
    subject t;
    int64_t n;
    open_at(&t, "seed", (qn_model_options){.n_threads = 2, .kv_type = QN_KV_F32, .packed = "none"},
            (qn_finetune_options){.rank = 2, .targets = "q_proj"});
    float *logits = numbers_of(&t, qn_finetune_forward(t.f, t.scope, NULL, table(&t, t.ids), NULL), &n);
    check_bits(&t, logits, 0, t.vocab_size, NULL);
    qn_free(logits);
    close_all(&t);
}

int main(void)
{
    static const qn_test_kind_row rows[] = {
        {"exact_bits_", exact_bits}, {"high_bits_", high_bits}, {"masked_", masked},
        {"gradients_", gradients},   {"experts_", experts},     {"losses_", losses_are_those_of_logits},
    };
    enum { N_ROWS = sizeof rows / sizeof *rows };
    static const struct CMUnitTest others[] = {
        cmocka_unit_test(mask_hides),       cmocka_unit_test(gradients_dora),
        cmocka_unit_test(gradients_full),   cmocka_unit_test(trains_lora),
        cmocka_unit_test(trains_dora),      cmocka_unit_test(trains_bf16),
        cmocka_unit_test(trains_full),      cmocka_unit_test(trains_sgd),
        cmocka_unit_test(refuses),          cmocka_unit_test(compiles),
        cmocka_unit_test(takes_any_ids),    cmocka_unit_test(begins),
        cmocka_unit_test(refuses_to_open),  cmocka_unit_test(serves_meanwhile),
        cmocka_unit_test(trains_on_data),   cmocka_unit_test(quantised_bits),
        cmocka_unit_test(refuses_infinite), cmocka_unit_test(refuses_lost_files),
    };
    static struct CMUnitTest tests[N_ROWS * QN_TEST_KINDS_MAX + sizeof others / sizeof *others];
    int n = qn_test_kind_rows(N_ROWS, rows, tests);
    memcpy(tests + n, others, sizeof others);
    n += (int)(sizeof others / sizeof *others);
    return _cmocka_run_group_tests("finetune", tests, (size_t)n, NULL, NULL);
}

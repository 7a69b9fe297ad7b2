/* Losses and optimisers: the reference files' cases, definitions in double, refusals, every allocation
 * failing once. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <jansson.h>
#include <math.h>
#include <quern/array_nn.h>
#include <stdio.h>
#include <string.h>

#include "array/array.h"
#include "base/mem.h"
#include "base/random.h"
#include "format/safetensors/safetensors.h"
#include "tests/support/fixtures.h"
#include "tests/support/json_file.h"
#include "train/step/optimizer.h"

#define OK(expr)                                              \
    do {                                                      \
        if ((expr) != QN_OK) fail_msg("%s", qn_last_error()); \
    } while (0)

/* The reference files' own: relative to a tensor's largest value. */
static const double TOLERANCE = 2e-5;

static qn_scope *s;
static qn_safetensors *tensors;
static json_t *cases;

static int open_scope(void **state)
{
    return qn_scope_open(2, 0, &s) != QN_OK;
}

static int close_scope(void **state)
{
    qn_scope_close(s);
    s = NULL;
    qn_safetensors_close(tensors);
    json_decref(cases);
    tensors = NULL;
    cases = NULL;
    return 0;
}

static void need_cases(void)
{
    cases = qn_test_json(qn_test_need_fixture("ops/losses.json"));
    OK(qn_safetensors_open(qn_test_need_fixture("ops/losses.safetensors"), &tensors));
}

static qn_array *tensor(const char *name)
{
    const qn_tensor_view *v = name ? qn_safetensors_find(tensors, name) : NULL;
    return v ? qn_from_data(s, v->dtype, v->n_dims, v->shape, v->data) : NULL;
}

static qn_array *extra(const json_t *c, const char *key)
{
    return tensor(json_string_value(json_object_get(json_object_get(c, "extra"), key)));
}

static void close_to(const char *name, qn_array *got, const char *want_name)
{
    const qn_tensor_view *want = qn_safetensors_find(tensors, want_name);
    float x[4096];
    assert_non_null(want);
    assert_in_range(want->n_elements, 1, 4096);
    OK(qn_array_read(s, got, QN_DTYPE_F32, x, want->n_elements));
    double largest = 0;
    for (int64_t i = 0; i < want->n_elements; i++)
        largest = fmax(largest, fabs(((const float *)want->data)[i]));
    for (int64_t i = 0; i < want->n_elements; i++)
        if (!(fabs((double)x[i] - ((const float *)want->data)[i]) <= TOLERANCE * largest))
            fail_msg("%s: %s, element %d is %.9g, not %.9g", name, want_name, (int)i, x[i],
                     ((const float *)want->data)[i]);
}

/* ---- the reference files ------------------------------------------------------------------------------ */

/* By what the file says of a case: its name begins with the loss, and ends with what is summed. */
static qn_array *loss_of(const json_t *c, const char *name, qn_array *x)
{
    qn_array *targets = extra(c, "targets"), *mask = extra(c, "mask");
    const qn_loss_reduction how = strstr(name, "_sum") ? QN_LOSS_SUM : QN_LOSS_MEAN;
    const qn_loss_options of_elements = {.reduction = how, .weight = mask};
    if (strstr(name, "cross_entropy"))
        return qn_loss_cross_entropy(
            s, x, targets,
            &(qn_class_options){.reduction = how,
                                .weight = mask,
                                .label_smoothing = strstr(name, "label_smoothing") ? 0.1 : 0});
    if (strncmp(name, "mse", 3) == 0) return qn_loss_mse(s, x, targets, &of_elements);
    if (strncmp(name, "l1", 2) == 0) return qn_loss_l1(s, x, targets, &of_elements);
    if (strncmp(name, "bce", 3) == 0) return qn_loss_binary_cross_entropy(s, x, targets, 1, &of_elements);
    if (strncmp(name, "kl_div", 6) == 0)
        return qn_loss_kl_div(s, qn_sub(s, x, qn_logsumexp(s, x)), extra(c, "target_logp"), 1,
                              &(qn_loss_options){.reduction = QN_LOSS_BATCH_MEAN});
    fail_msg("no function for %s", name);
    return NULL;
}

static void losses_and_their_gradients(void **state)
{
    json_t *c;
    size_t i, n = 0;
    need_cases();
    json_array_foreach(json_object_get(cases, "losses"), i, c)
    {
        const char *name = json_string_value(json_object_get(c, "name"));
        qn_array *x = tensor(json_string_value(json_array_get(json_object_get(c, "inputs"), 0))), *g;
        qn_array *loss = loss_of(c, name, x);
        double got, want = json_number_value(json_object_get(c, "loss"));
        OK(qn_scope_status(s));
        OK(qn_vjp(s, loss, NULL, 1, &x, &g));
        OK(qn_array_item(s, loss, &got));
        if (!(fabs(got - want) <= TOLERANCE * fabs(want))) fail_msg("%s is %.9g, not %.9g", name, got, want);
        close_to(name, g, json_string_value(json_array_get(json_object_get(c, "gradients"), 0)));
        n++;
    }
    printf("%d losses\n", (int)n);
    assert_true(n > 0);
}

static qn_optimizer_options options_of(const json_t *trace)
{
    const json_t *o = json_object_get(trace, "options"), *betas = json_object_get(o, "betas");
    const int is_sgd = betas == NULL;
    qn_optimizer_options by = qn_optimizer_defaults(is_sgd ? QN_OPTIMIZER_SGD : QN_OPTIMIZER_ADAMW);
    by.rate = json_number_value(json_object_get(o, "lr"));
    by.weight_decay = json_number_value(json_object_get(o, "weight_decay")); /* 0 where there is none */
    by.momentum = json_number_value(json_object_get(o, "momentum"));
    if (is_sgd) return by;
    by.beta1 = json_number_value(json_array_get(betas, 0));
    by.beta2 = json_number_value(json_array_get(betas, 1));
    by.eps = json_number_value(json_object_get(o, "eps"));
    by.no_bias_correction = !json_is_true(json_object_get(trace, "bias_correction"));
    return by;
}

/* Gradient `step` of all that lie one behind the other. */
static qn_array *gradient_of(const char *all, int64_t step, const qn_array *like)
{
    const qn_tensor_view *v = qn_safetensors_find(tensors, all);
    const int64_t n = qn_array_size(like);
    int64_t dims[QN_ARRAY_DIMS_MAX];
    for (int d = 0; d < qn_array_n_dims(like); d++) dims[d] = qn_array_dim(like, d);
    assert_true((step + 1) * n <= v->n_elements);
    return qn_from_data(s, QN_DTYPE_F32, qn_array_n_dims(like), dims, (const float *)v->data + step * n);
}

static void optimisers_step_by_step(void **state)
{
    json_t *trace;
    size_t i;
    need_cases();
    const json_t *all = json_object_get(cases, "optimizers");
    const char *grads = json_string_value(json_object_get(all, "grads"));
    json_array_foreach(json_object_get(all, "traces"), i, trace)
    {
        const char *name = json_string_value(json_object_get(trace, "name"));
        const qn_optimizer_options o = options_of(trace);
        const int64_t n_steps = json_integer_value(json_object_get(trace, "steps"));
        qn_array *w = tensor(json_string_value(json_object_get(all, "start")));
        qn_optimizer_state by = {NULL, NULL};
        for (int64_t step = 1; step <= n_steps; step++) {
            char want[128];
            w = qn_optimizer_update(s, &o, step, w, gradient_of(grads, step - 1, w), &by);
            OK(qn_scope_status(s));
            const char *const part[3] = {"param", "m", "v"};
            for (int p = 0; p < 3; p++) {
                snprintf(want, sizeof want, "optim.%s.%s%d", name, part[p], (int)step);
                if (p == 0 || qn_safetensors_find(tensors, want))
                    close_to(name, p == 0 ? w : p == 1 ? by.m : by.v, want);
            }
        }
    }
    assert_true(i > 0);
}

static void gradients_are_clipped(void **state)
{
    need_cases();
    const json_t *all = json_object_get(cases, "optimizers"), *clip = json_object_get(all, "clip");
    const char *which = json_string_value(json_object_get(clip, "grad"));
    const int64_t step = strtoll(strchr(which, '[') + 1, NULL, 10);
    const double norm = json_number_value(json_object_get(clip, "norm"));
    const double most = json_number_value(json_object_get(clip, "max_norm"));
    qn_array *w = tensor(json_string_value(json_object_get(all, "start"))), *out[2], *length;
    qn_array *g[2] = {gradient_of(json_string_value(json_object_get(all, "grads")), step, w), NULL};
    double got;
    qn_clip_gradients(s, 2, g, most, out, &length);
    OK(qn_array_item(s, length, &got));
    assert_true(fabs(got - norm) <= TOLERANCE * norm);
    close_to("clip", out[0], json_string_value(json_object_get(clip, "result")));
    assert_null(out[1]);
    qn_clip_gradients(s, 1, g, 2 * norm, out, NULL); /* short enough: as they were */
    float a[64], b[64];
    OK(qn_array_read(s, out[0], QN_DTYPE_F32, a, qn_array_size(w)));
    OK(qn_array_read(s, g[0], QN_DTYPE_F32, b, qn_array_size(w)));
    assert_memory_equal(a, b, (size_t)qn_array_size(w) * sizeof *a);
}

/* ---- definitions -------------------------------------------------------------------------------------- */

enum { ROWS = 5, CLASSES = 7 };

static double number(uint64_t i)
{
    return 4 * qn_random_unit(3, i) - 2;
}

static qn_array *numbers(uint64_t from, int n, const int64_t *dims)
{
    float x[ROWS * CLASSES];
    int64_t total = 1;
    for (int d = 0; d < n; d++) total *= dims[d];
    for (int64_t i = 0; i < total; i++) x[i] = (float)number(from + (uint64_t)i);
    return qn_from_data(s, QN_DTYPE_F32, n, dims, x);
}

static void is(qn_array *a, double want)
{
    double got;
    OK(qn_array_item(s, a, &got));
    if (!(fabs(got - want) <= 1e-5 * fmax(1, fabs(want)))) fail_msg("%.9g, not %.9g", got, want);
}

/* Weights of rows and of classes, ignored and unknown classes, smoothing, distributions. */
static void classes_are_weighed(void **state)
{
    const int64_t dims[2] = {ROWS, CLASSES}, rows = ROWS, classes = CLASSES;
    const int32_t target[ROWS] = {3, 0, -100, 6, 2};
    const float weight[ROWS] = {1, 0.5f, 1, 2, 0}, of_class[CLASSES] = {1, 2, 0.5f, 3, 1, 1, 0.25f};
    qn_array *x = numbers(0, 2, dims), *t = qn_from_data(s, QN_DTYPE_I32, 1, &rows, target);
    qn_array *w = qn_from_data(s, QN_DTYPE_F32, 1, &rows, weight);
    qn_array *cw = qn_from_data(s, QN_DTYPE_F32, 1, &classes, of_class);
    double sum = 0, total = 0, plain = 0, spread = 0;
    const double e = 0.2;
    for (int i = 0; i < ROWS; i++) {
        double lse = 0, shares = 0, other = 0;
        if (target[i] < 0) continue;
        for (int j = 0; j < CLASSES; j++) lse += exp((float)number((uint64_t)(i * CLASSES + j)));
        lse = log(lse);
        for (int j = 0; j < CLASSES; j++) {
            const double nll = lse - (float)number((uint64_t)(i * CLASSES + j));
            shares += e / CLASSES * nll * of_class[j];
            other += nll / CLASSES;
        }
        const double nll = lse - (float)number((uint64_t)(i * CLASSES + target[i]));
        sum += weight[i] * ((1 - e) * nll * of_class[target[i]] + shares);
        total += weight[i] * of_class[target[i]];
        plain += nll;
        spread += other;
    }
    qn_class_options o = {
        .weight = w, .class_weight = cw, .label_smoothing = e, .ignored = -100, .has_ignored = 1};
    is(qn_loss_cross_entropy(s, x, t, &o), sum / total);
    qn_array *log_p = qn_sub(s, x, qn_logsumexp(s, x));
    is(qn_loss_nll(s, log_p, t, &o), sum / total);
    o.reduction = QN_LOSS_SUM;
    is(qn_loss_cross_entropy(s, x, t, &o), sum);
    o.reduction = QN_LOSS_EACH;
    qn_array *each = qn_loss_cross_entropy(s, x, t, &o);
    assert_int_equal(qn_array_n_dims(each), 1);
    is(qn_sum(s, each, 0), sum);
    o = (qn_class_options){.reduction = QN_LOSS_BATCH_MEAN, .ignored = -100, .has_ignored = 1};
    is(qn_loss_cross_entropy(s, x, t, &o), plain / ROWS);
    o.reduction = QN_LOSS_MEAN;
    is(qn_loss_cross_entropy(s, qn_astype(s, x, QN_DTYPE_F32), qn_astype(s, t, QN_DTYPE_I64), &o),
       plain / (ROWS - 1));

    /* -100 is no class when it is not ignored; weight 0 makes it count nothing */
    double got;
    OK(qn_array_item(s, qn_loss_cross_entropy(s, x, t, NULL), &got));
    assert_true(isnan(got));
    const float without[ROWS] = {1, 1, 0, 1, 1};
    o = (qn_class_options){.weight = qn_from_data(s, QN_DTYPE_F32, 1, &rows, without)};
    is(qn_loss_cross_entropy(s, x, t, &o), plain / (ROWS - 1));

    /* every class alike: a distribution */
    qn_array *alike = qn_full(s, QN_DTYPE_F32, 2, dims, 1.0 / CLASSES);
    is(qn_loss_cross_entropy(s, x, alike, &o), spread / (ROWS - 1));
}

static void elements_follow_their_definitions(void **state)
{
    const int64_t dims[2] = {ROWS, CLASSES};
    const int n = ROWS * CLASSES;
    qn_array *x = numbers(0, 2, dims), *t = numbers(1000, 2, dims);
    double huber = 0, smooth = 0, bce = 0, probability = 0, kl = 0, cosine = 0;
    for (int i = 0; i < n; i++) {
        const double a = (float)number((uint64_t)i), b = (float)number((uint64_t)(1000 + i)), d = fabs(a - b);
        const double p = 1 / (1 + exp(-a)), y = 1 / (1 + exp(-b));
        huber += d < 0.7 ? d * d / 2 : 0.7 * (d - 0.35);
        smooth += d < 0.5 ? d * d : d - 0.25;
        bce -= 2.5 * y * log(p) + (1 - y) * log(1 - p);
        probability -= y * log(p) + (1 - y) * log(1 - p);
        kl += y * (log(y) - a);
    }
    for (int r = 0; r < ROWS; r++) {
        double dot = 0, aa = 0, bb = 0;
        for (int j = 0; j < CLASSES; j++) {
            const double a = (float)number((uint64_t)(r * CLASSES + j)),
                         b = (float)number((uint64_t)(1000 + r * CLASSES + j));
            dot += a * b;
            aa += a * a;
            bb += b * b;
        }
        cosine += 1 - dot / sqrt(aa * bb);
    }
    qn_array *y = qn_unary(s, QN_PRIM_SIGMOID, t), *p = qn_unary(s, QN_PRIM_SIGMOID, x);
    is(qn_loss_huber(s, x, t, 0.7, NULL), huber / n);
    is(qn_loss_smooth_l1(s, x, t, 0.5, &(qn_loss_options){.reduction = QN_LOSS_SUM}), smooth);
    is(qn_loss_binary_cross_entropy(s, x, y, 2.5, NULL), bce / n);
    is(qn_loss_binary_probabilities(s, p, y, NULL), probability / n);
    is(qn_loss_kl_div(s, x, y, 0, &(qn_loss_options){.reduction = QN_LOSS_BATCH_MEAN}), kl / ROWS);
    is(qn_loss_cosine(s, x, t, 0, NULL), cosine / ROWS);
    /* ends of the range: no infinities where the definition has none */
    const int64_t two = 2;
    const float far[2] = {-200, 200}, sure[2] = {0, 1};
    qn_array *f = qn_from_data(s, QN_DTYPE_F32, 1, &two, far),
             *c = qn_from_data(s, QN_DTYPE_F32, 1, &two, sure);
    is(qn_loss_binary_cross_entropy(s, f, c, 1, NULL), 0);
    is(qn_loss_binary_probabilities(s, c, qn_sub(s, qn_scalar(s, 1), c), NULL), 100);
    is(qn_loss_kl_div(s, c, c, 0, &(qn_loss_options){.reduction = QN_LOSS_SUM}), -1);
    is(qn_loss_cosine(s, qn_sub(s, c, c), c, 0, NULL), 1);
    /* a weight of each row */
    qn_array *rows = numbers(2000, 2, (int64_t[]){ROWS, 1});
    rows = qn_unary(s, QN_PRIM_SQUARE, rows);
    double sum = 0, total = 0;
    for (int i = 0; i < n; i++) {
        const double d = (float)number((uint64_t)i) - (float)number((uint64_t)(1000 + i));
        const double r = (float)number((uint64_t)(2000 + i / CLASSES));
        sum += r * r * d * d;
        total += r * r;
    }
    is(qn_loss_mse(s, x, t, &(qn_loss_options){.weight = rows}), sum / total);
}

/* The trainer's arithmetic, which is f64, and that of arrays give the same numbers but for roundings. */
static void the_trainer_does_the_same(void **state)
{
    enum { N = 24, STEPS = 6 };
    for (int kind = 0; kind < 2; kind++) {
        const qn_optimizer trainer = {.kind = kind ? QN_OPTIMIZER_SGD : QN_OPTIMIZER_ADAMW,
                                      .beta1 = 0.9,
                                      .beta2 = 0.99,
                                      .eps = 1e-8,
                                      .weight_decay = 0.1,
                                      .momentum = kind ? 0.8 : 0};
        const qn_optimizer_options o = {trainer.kind, 1e-2, 0.9, 0.99, 1e-8, 0.1, trainer.momentum, 0};
        const int64_t n = N;
        float w[N], m[N] = {0}, v[N] = {0}, g[N], got[N];
        for (int i = 0; i < N; i++) w[i] = (float)number((uint64_t)i);
        qn_array *a = qn_from_data(s, QN_DTYPE_F32, 1, &n, w);
        qn_optimizer_state by = {NULL, NULL};
        for (int step = 1; step <= STEPS; step++) {
            for (int i = 0; i < N; i++) g[i] = (float)number((uint64_t)(100 * step + i));
            qn_optimizer_step(&trainer, step, o.rate, 1, N, w, g, m, v);
            a = qn_optimizer_update(s, &o, step, a, qn_from_data(s, QN_DTYPE_F32, 1, &n, g), &by);
        }
        OK(qn_array_read(s, a, QN_DTYPE_F32, got, N));
        for (int i = 0; i < N; i++)
            if (!(fabsf(got[i] - w[i]) <= 2e-6f)) fail_msg("element %d is %.9g, not %.9g", i, got[i], w[i]);
    }
}

static void narrow_parameters_keep_their_type(void **state)
{
    const int64_t dims[2] = {ROWS, CLASSES};
    const qn_optimizer_options o = qn_optimizer_defaults(QN_OPTIMIZER_ADAMW);
    qn_array *w = qn_astype(s, numbers(0, 2, dims), QN_DTYPE_BF16);
    qn_optimizer_state by = {NULL, NULL};
    qn_array *next = qn_optimizer_update(s, &o, 1, w, qn_astype(s, w, QN_DTYPE_F32), &by);
    assert_int_equal(qn_array_dtype(next), QN_DTYPE_BF16);
    assert_int_equal(qn_array_dtype(by.m), QN_DTYPE_F32);
    qn_array *loss = qn_loss_mse(s, w, qn_scalar(s, 0), NULL), *g;
    OK(qn_vjp(s, loss, NULL, 1, &w, &g));
    assert_int_equal(qn_array_dtype(g), QN_DTYPE_BF16);
    OK(qn_eval(s, 2, (qn_array *[]){next, g}));
}

/* ---- what is refused ---------------------------------------------------------------------------------- */

static void refused(qn_array *a, const char *words)
{
    assert_null(a);
    assert_int_equal(qn_scope_recover(s), QN_E_ARG);
    if (!strstr(qn_last_error(), words)) fail_msg("%s: not %s", qn_last_error(), words);
}

static void refusals_say_why(void **state)
{
    const int64_t dims[2] = {ROWS, CLASSES}, rows = ROWS;
    qn_array *x = numbers(0, 2, dims), *t = qn_zeros(s, QN_DTYPE_I32, 1, &rows);
    qn_optimizer_options o = qn_optimizer_defaults(QN_OPTIMIZER_SGD);
    qn_optimizer_state by = {NULL, NULL};
    refused(qn_loss_cross_entropy(s, x, qn_zeros(s, QN_DTYPE_I32, 2, dims), NULL), "one class per row");
    refused(qn_loss_cross_entropy(s, qn_scalar(s, 1), t, NULL), "[.., classes]");
    refused(qn_loss_cross_entropy(s, x, t, &(qn_class_options){.label_smoothing = 1}), "label_smoothing");
    refused(qn_loss_cross_entropy(s, x, t, &(qn_class_options){.class_weight = x}), "class_weight");
    refused(qn_loss_cross_entropy(s, x, x, &(qn_class_options){.has_ignored = 1}),
            "targets that are classes");
    refused(qn_loss_huber(s, x, x, 0, NULL), "delta");
    refused(qn_loss_smooth_l1(s, x, x, -1, NULL), "beta");
    refused(qn_loss_mse(s, t, x, NULL), "[5]");
    refused(qn_optimizer_update(s, &o, 1, x, t, &by), "another shape");
    refused(qn_optimizer_update(s, &o, 0, x, x, &by), "first step");
    o.kind = (qn_optimizer_kind)9;
    refused(qn_optimizer_update(s, &o, 1, x, x, &by), "the optimiser does not exist");
    assert_null(qn_loss_mse(s, NULL, x, NULL));
    assert_null(qn_loss_cosine(s, x, NULL, 0, NULL));
    assert_null(qn_optimizer_update(s, &o, 1, NULL, x, &by));
    OK(qn_scope_status(s));
}

static qn_status all_of_it(void)
{
    qn_scope *own;
    QN_TRY(qn_scope_open(1, 0, &own));
    const int64_t dims[2] = {2, 3}, rows = 2;
    qn_array *x = qn_ones(own, QN_DTYPE_F32, 2, dims), *t = qn_zeros(own, QN_DTYPE_I32, 1, &rows), *g = NULL;
    qn_array *loss = qn_loss_cross_entropy(own, x, t, &(qn_class_options){.label_smoothing = 0.1});
    qn_optimizer_options o = qn_optimizer_defaults(QN_OPTIMIZER_ADAMW);
    qn_optimizer_state by = {NULL, NULL};
    qn_status status = loss ? qn_vjp(own, loss, NULL, 1, &x, &g) : qn_scope_status(own);
    qn_array *clipped = NULL;
    if (status == QN_OK) qn_clip_gradients(own, 1, &g, 1, &clipped, NULL);
    qn_array *w = qn_optimizer_update(own, &o, 1, x, clipped, &by);
    if (status == QN_OK) status = w ? qn_eval(own, 1, &w) : qn_scope_status(own);
    qn_scope_close(own);
    return status;
}

static void every_allocation_may_fail(void **state)
{
    const int64_t before = qn_mem_live_blocks();
    int64_t n = 1;
    for (; n < 2000; n++) {
        qn_mem_fail_nth(n);
        const qn_status status = all_of_it();
        qn_mem_fail_nth(0);
        assert_int_equal(qn_mem_live_blocks(), before);
        if (status == QN_OK) break;
        assert_int_equal(status, QN_E_NOMEM);
    }
    assert_in_range(n, 50, 1999);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_scope, close_scope)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(losses_and_their_gradients),
        TEST(optimisers_step_by_step),
        TEST(gradients_are_clipped),
        TEST(classes_are_weighed),
        TEST(elements_follow_their_definitions),
        TEST(the_trainer_does_the_same),
        TEST(narrow_parameters_keep_their_type),
        TEST(refusals_say_why),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests_name("array_nn", tests, NULL, NULL);
}

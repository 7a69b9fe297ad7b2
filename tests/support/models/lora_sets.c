#include "tests/support/models/lora_sets.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/random.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/json_file.h"

enum { NAME_MAX_BYTES = 64 };

/* ---- a set -------------------------------------------------------------------------------------------- */

const char *qn_lora_path(const char *set, const char *file)
{
    static char path[160];
    snprintf(path, sizeof path, "lora/%s/%s", set, file);
    return qn_test_need_fixture(path);
}

/* The batch [n, width]: padding is on the right, behind the last counted token, and sees nothing. */
static void read_batch(qn_lora_subject *s)
{
    const qn_tensor_view *ids = qn_test_tensor(s->tensors, "ids", 0),
                         *mask = qn_test_tensor(s->tensors, "mask", 0);
    const int64_t n = ids->shape[0], width = ids->shape[1];
    const int32_t *counts = mask->data, *all = ids->data;
    s->row_begin = qn_alloc_array((size_t)n + 1, sizeof *s->row_begin);
    s->rows = qn_alloc_array((size_t)(n * width), sizeof *s->rows);
    s->targets = qn_alloc_array((size_t)(n * width), sizeof *s->targets);
    for (int64_t b = 0; b <= n; b++) s->row_begin[b] = (int32_t)(b * width);
    s->batch = (qn_train_batch){.n_rows = n * width,
                                .n_sequences = n,
                                .ids = all,
                                .row_begin = s->row_begin,
                                .rows = s->rows,
                                .targets = s->targets};
    for (int64_t i = 0; i < n * width; i++) {
        if (i % width == 0 || !counts[i]) continue;
        s->rows[s->batch.n_targets] = (int32_t)i - 1;
        s->targets[s->batch.n_targets++] = all[i];
    }
}

qn_trainer_options qn_lora_options(qn_lora_subject *s, int64_t max_rows, int64_t max_sequences)
{
    json_t *config = qn_test_json(qn_lora_path(s->name, "adapter_config.json")), *module,
           *o = json_object_get(s->run, "optimizer");
    json_t *betas = json_object_get(o, "betas");
    size_t i, at = 0;
    qn_free(s->names);
    s->names = qn_calloc(json_array_size(json_object_get(config, "target_modules")) + 1, NAME_MAX_BYTES);
    json_array_foreach(json_object_get(config, "target_modules"), i, module) at +=
        (size_t)snprintf(s->names + at, NAME_MAX_BYTES, "%s%s", i ? "," : "", json_string_value(module));
    qn_trainer_options options = {.trainable = {.targets = s->names,
                                                .rank = (int32_t)qn_test_json_number(config, "r"),
                                                .alpha = (float)qn_test_json_number(config, "lora_alpha")},
                                  .optimizer = {.beta1 = json_number_value(json_array_get(betas, 0)),
                                                .beta2 = json_number_value(json_array_get(betas, 1)),
                                                .eps = qn_test_json_number(o, "eps"),
                                                .weight_decay = qn_test_json_number(o, "weight_decay")},
                                  .max_rows = max_rows,
                                  .max_sequences = max_sequences,
                                  .precision = QN_PRECISION_EXACT};
    json_decref(config);
    return options;
}

/* All files that a set takes, before anything is held: a test that is left out jumps. */
static void need_set(const qn_lora_subject *s)
{
    static const char *const files[] = {"expected.json", "train.safetensors", "adapter_model.safetensors",
                                        "adapter_config.json"};
    char path[160];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) (void)qn_lora_path(s->name, files[i]);
    json_t *expected = qn_test_json(qn_lora_path(s->name, files[0]));
    snprintf(path, sizeof path, "models/%.100s", json_string_value(json_object_get(expected, "base")));
    json_decref(expected);
    (void)qn_test_need_fixture(path);
}

void qn_lora_open(qn_lora_subject *s, const char *name, const char *device, int n_threads)
{
    char path[160];
    *s = (qn_lora_subject){.name = name};
    need_set(s);
    s->expected = qn_test_json(qn_lora_path(s->name, "expected.json"));
    s->run = json_object_get(s->expected, "train");
    qn_test_ok(qn_safetensors_open(qn_lora_path(s->name, "train.safetensors"), &s->tensors));
    read_batch(s);
    snprintf(path, sizeof path, "models/%s", json_string_value(json_object_get(s->expected, "base")));
    qn_test_ok(qn_train_base_open(qn_test_need_fixture(path), device, n_threads, 0, &s->base));
    qn_trainer_options o = qn_lora_options(s, s->batch.n_rows, s->batch.n_sequences);
    qn_test_ok(qn_trainer_new(&s->base, &o, &s->trainer));
}

void qn_lora_close(qn_lora_subject *s)
{
    qn_trainer_free(s->trainer);
    qn_train_base_close(&s->base);
    qn_safetensors_close(s->tensors);
    json_decref(s->expected);
    qn_free(s->names);
    qn_free(s->row_begin);
    qn_free(s->rows);
    qn_free(s->targets);
}

/* "PREFIXbase_model.model.NAME" of the stored run. */
static const float *stored(const qn_lora_subject *s, const char *prefix, const qn_trainable_array *a)
{
    char full[320];
    const qn_tensor_view *v = NULL;
    snprintf(full, sizeof full, "%sbase_model.model.%s", prefix, a->name);
    qn_test_ok(qn_safetensors_tensor(s->tensors, full, &v));
    assert_int_equal(v->n_elements, a->n);
    return v->data;
}

static void set_numbers(qn_lora_subject *s, const qn_safetensors *from, const char *prefix)
{
    qn_trainable *t = qn_trainer_trainable(s->trainer);
    for (int64_t i = 0; i < t->n; i++) {
        char full[320];
        const qn_tensor_view *v = NULL;
        snprintf(full, sizeof full, "%sbase_model.model.%s", prefix, t->arrays[i].name);
        qn_test_ok(qn_safetensors_tensor(from, full, &v));
        memcpy(t->arrays[i].data, v->data, (size_t)t->arrays[i].n * sizeof(float));
    }
}

static void check_loss(const qn_lora_subject *s, const qn_lora_bounds *bounds, const char *what, double got,
                       double want)
{
    if (!(fabs(got - want) <= bounds->loss)) fail_msg("%s: %s %.7f, expected %.7f", s->name, what, got, want);
}

/* Gradients of the mean; returns the worst difference over the largest value. */
static double check_gradients(qn_lora_subject *s, const qn_lora_bounds *bounds, const char *prefix)
{
    qn_trainable *t = qn_trainer_trainable(s->trainer);
    double worst = 0;
    for (int64_t i = 0; i < t->n; i++) {
        const float *want = stored(s, prefix, &t->arrays[i]), *got = qn_trainer_gradient(s->trainer, i);
        double largest = 0, off = 0;
        for (int64_t k = 0; k < t->arrays[i].n; k++) {
            double d = fabs((double)got[k] / (double)s->batch.n_targets - want[k]);
            if (fabs(want[k]) > largest) largest = fabs(want[k]);
            if (!(d <= off)) off = d;
        }
        if (!(off <= bounds->gradient * largest))
            fail_msg("%s: gradient %s%s differs by %g, its largest is %g", s->name, prefix, t->arrays[i].name,
                     off, largest);
        if (largest > 0 && off / largest > worst) worst = off / largest;
    }
    return worst;
}

void qn_lora_check_set(const char *name, const qn_lora_bounds *bounds)
{
    qn_lora_subject s;
    qn_safetensors *adapter;
    qn_trainer_report report;
    double loss = 0, worst = 0;
    qn_lora_open(&s, name, bounds->device, 2);
    qn_test_ok(qn_safetensors_open(qn_lora_path(s.name, "adapter_model.safetensors"), &adapter));
    qn_trainable *t = qn_trainer_trainable(s.trainer);
    assert_int_equal(t->n, qn_safetensors_count(adapter)); /* the same modules as peft found */

    set_numbers(&s, adapter, "");
    qn_test_ok(qn_trainer_evaluate(s.trainer, &s.batch, &loss));
    check_loss(&s, bounds, "evaluated loss", loss, qn_test_json_number(s.run, "adapter_loss"));
    qn_test_ok(qn_trainer_add(s.trainer, &s.batch, &loss));
    check_loss(&s, bounds, "loss", loss, qn_test_json_number(s.run, "adapter_loss"));
    worst = check_gradients(&s, bounds, "adapter_grad.");
    qn_trainer_free(s.trainer);
    qn_trainer_options o = qn_lora_options(&s, s.batch.n_rows, s.batch.n_sequences);
    qn_test_ok(qn_trainer_new(&s.base, &o, &s.trainer));
    t = qn_trainer_trainable(s.trainer);

    set_numbers(&s, s.tensors, "start.");
    json_t *losses = json_object_get(s.run, "losses"), *norms = json_object_get(s.run, "grad_norms");
    for (size_t i = 0; i < json_array_size(losses); i++) {
        qn_test_ok(qn_trainer_add(s.trainer, &s.batch, &loss));
        check_loss(&s, bounds, "loss of a step", loss, json_number_value(json_array_get(losses, i)));
        if (i == 0) check_gradients(&s, bounds, "grad0.");
        if (i == 1) check_gradients(&s, bounds, "grad1.");
        qn_test_ok(qn_trainer_update(
            s.trainer, qn_test_json_number(json_object_get(s.run, "optimizer"), "lr"), &report));
        double norm = json_number_value(json_array_get(norms, i));
        assert_int_equal(report.step, i + 1);
        if (!(fabs(report.grad_norm - norm) <= bounds->gradient * norm))
            fail_msg("%s: gradient of length %g in step %d, expected %g", s.name, report.grad_norm,
                     (int)i + 1, norm);
    }
    qn_test_ok(qn_trainer_evaluate(s.trainer, &s.batch, &loss));
    check_loss(&s, bounds, "loss in the end", loss, qn_test_json_number(s.run, "final_loss"));
    for (int64_t i = 0; i < t->n; i++) {
        const float *want = stored(&s, "final.", &t->arrays[i]);
        for (int64_t k = 0; k < t->arrays[i].n; k++)
            if (!(fabs((double)t->arrays[i].data[k] - (double)want[k]) <= bounds->weight))
                fail_msg("%s: %s is %g in the end, not %g", s.name, t->arrays[i].name,
                         (double)t->arrays[i].data[k], (double)want[k]);
    }
    printf("%s: %lld arrays, gradients within %.1e\n", s.name, (long long)t->n, worst);
    qn_safetensors_close(adapter);
    qn_lora_close(&s);
}

/* ---- slopes ------------------------------------------------------------------------------------------- */

double qn_lora_loss(qn_lora_subject *s)
{
    double loss = 0;
    qn_test_ok(qn_trainer_evaluate(s->trainer, &s->batch, &loss));
    return loss;
}

void qn_lora_check_direction(qn_lora_subject *s, const char *what, const char *ending, double step)
{
    qn_trainable *t = qn_trainer_trainable(s->trainer);
    double slope = 0, length = 0, loss;
    qn_test_ok(qn_trainer_add(s->trainer, &s->batch, &loss));
    float **before = qn_calloc((size_t)t->n, sizeof *before);
    for (int64_t i = 0; i < t->n; i++) {
        const size_t n = strlen(t->arrays[i].name), m = strlen(ending);
        if (n < m || strcmp(t->arrays[i].name + n - m, ending) != 0) continue;
        before[i] = qn_alloc_array((size_t)t->arrays[i].n, sizeof(float));
        memcpy(before[i], t->arrays[i].data, (size_t)t->arrays[i].n * sizeof(float));
        for (int64_t k = 0; k < t->arrays[i].n; k++) length += pow(qn_trainer_gradient(s->trainer, i)[k], 2);
    }
    length = sqrt(length);
    assert_true(length > 0);
    double sides[2];
    for (int side = 0; side < 2; side++) {
        for (int64_t i = 0; i < t->n; i++) {
            const float *g = qn_trainer_gradient(s->trainer, i);
            for (int64_t k = 0; before[i] && k < t->arrays[i].n; k++)
                t->arrays[i].data[k] = (float)(before[i][k] + (side ? step : -step) * g[k] / length);
        }
        sides[side] = qn_lora_loss(s);
    }
    for (int64_t i = 0; i < t->n; i++) {
        if (before[i]) memcpy(t->arrays[i].data, before[i], (size_t)t->arrays[i].n * sizeof(float));
        qn_free(before[i]);
    }
    qn_free(before);
    slope = (sides[1] - sides[0]) / (2 * step);
    length /= (double)s->batch.n_targets;
    if (!(fabs(slope - length) <= 0.02 * length))
        fail_msg("%s: the loss rises by %g along a gradient of length %g", what, slope, length);
    qn_test_ok(qn_trainer_update(s->trainer, 0, NULL));
}

void qn_lora_make_batch(qn_lora_subject *s)
{
    static const int32_t lengths[] = {7, 40, 2};
    const int64_t n = 3, total = 49;
    int32_t *ids = qn_alloc_array((size_t)total, sizeof *ids);
    s->row_begin = qn_alloc_array((size_t)n + 1, sizeof *s->row_begin);
    s->rows = qn_alloc_array((size_t)total, sizeof *s->rows);
    s->targets = qn_alloc_array((size_t)total, sizeof *s->targets);
    s->batch = (qn_train_batch){.n_rows = total,
                                .n_sequences = n,
                                .ids = ids,
                                .row_begin = s->row_begin,
                                .rows = s->rows,
                                .targets = s->targets};
    for (int64_t i = 0; i < total; i++)
        ids[i] = (int32_t)(qn_random_bits(5, (uint64_t)i) % (uint64_t)s->base.config.vocab_size);
    s->row_begin[0] = 0;
    for (int64_t i = 0; i < n; i++) {
        s->row_begin[i + 1] = s->row_begin[i] + lengths[i];
        for (int32_t r = s->row_begin[i]; r + 1 < s->row_begin[i + 1]; r++) {
            s->rows[s->batch.n_targets] = r;
            s->targets[s->batch.n_targets++] = ids[r + 1];
        }
    }
}

/* A trainer on the base of s for its batch; factors A and B both begin with numbers. */
static qn_status renew_kind(qn_lora_subject *s, const qn_trainable_options *what)
{
    const qn_trainer_options o = {.trainable = *what,
                                  .max_rows = s->batch.n_rows,
                                  .max_sequences = s->batch.n_sequences,
                                  .precision = QN_PRECISION_EXACT};
    qn_trainer_free(s->trainer);
    s->trainer = NULL;
    QN_TRY(qn_trainer_new(&s->base, &o, &s->trainer));
    qn_trainable *t = qn_trainer_trainable(s->trainer);
    for (int64_t i = 0; i < t->n; i++)
        for (int64_t k = 0; strstr(t->arrays[i].name, "lora_B") && k < t->arrays[i].n; k++)
            t->arrays[i].data[k] = (float)(0.1 * (qn_random_unit((uint64_t)i, (uint64_t)k) - 0.5));
    return QN_OK;
}

static void open_kind(qn_lora_subject *s, const char *name, const char *device)
{
    char path[160];
    *s = (qn_lora_subject){.name = name};
    snprintf(path, sizeof path, "models/%s", name);
    qn_test_ok(qn_train_base_open(qn_test_need_fixture(path), device, 2, 0, &s->base));
    qn_lora_make_batch(s);
}

static void close_kind(qn_lora_subject *s)
{
    qn_free((void *)(uintptr_t)s->batch.ids);
    qn_lora_close(s);
}

static const qn_trainable_options factors = {.rank = 4, .alpha = 8}, whole = {.method = QN_TRAIN_FULL};

/* 1: a whole model of this kind is not trained. */
static int is_left_out(qn_status status)
{
    if (status == QN_E_UNSUPPORTED && strstr(qn_last_error(), "as a whole")) return 1;
    qn_test_ok(status);
    return 0;
}

void qn_lora_check_kind(const char *name)
{
    qn_lora_subject s;
    open_kind(&s, name, NULL);
    qn_test_ok(renew_kind(&s, &factors));
    qn_lora_check_direction(&s, s.name, "", 0.0001);
    qn_lora_check_direction(&s, s.name, ".lora_A.weight", 0.0001);
    if (!is_left_out(renew_kind(&s, &whole))) qn_lora_check_direction(&s, s.name, "", 0.0001);
    close_kind(&s);
}

static double largest_of(const float *x, int64_t n)
{
    double most = 0;
    for (int64_t k = 0; k < n; k++)
        if (fabs((double)x[k]) > most) most = fabs((double)x[k]);
    return most;
}

/* What is nothing but for rounding, as the gradient of a bias of keys, is measured by the largest of all. */
static double compare_gradients(qn_lora_subject *want, qn_lora_subject *got, double share)
{
    const qn_trainable *t = qn_trainer_trainable(want->trainer);
    double all = 0, worst = 0, losses[2];
    qn_test_ok(qn_trainer_add(want->trainer, &want->batch, &losses[0]));
    qn_test_ok(qn_trainer_add(got->trainer, &got->batch, &losses[1]));
    if (!(fabs(losses[0] - losses[1]) <= share)) fail_msg("a loss of %g, not %g", losses[1], losses[0]);
    for (int64_t i = 0; i < t->n; i++)
        all = fmax(all, largest_of(qn_trainer_gradient(want->trainer, i), t->arrays[i].n));
    for (int64_t i = 0; i < t->n; i++) {
        const float *x = qn_trainer_gradient(want->trainer, i), *y = qn_trainer_gradient(got->trainer, i);
        const double largest = fmax(largest_of(x, t->arrays[i].n), 1e-3 * all);
        for (int64_t k = 0; k < t->arrays[i].n; k++) {
            const double off = fabs((double)x[k] - (double)y[k]) / largest;
            if (!(off <= share))
                fail_msg("%s: the gradient of %s is off by %g of its largest", want->name, t->arrays[i].name,
                         off);
            if (off > worst) worst = off;
        }
    }
    return worst;
}

void qn_lora_compare_kind(const char *name, const char *device, double share)
{
    qn_lora_subject want, got;
    double worst = 0;
    open_kind(&want, name, NULL);
    open_kind(&got, name, device);
    for (int i = 0; i < 2; i++) {
        const qn_trainable_options *what = i ? &whole : &factors;
        const qn_status status = renew_kind(&want, what);
        if (i && is_left_out(status)) continue;
        qn_test_ok(status);
        qn_test_ok(renew_kind(&got, what));
        worst = fmax(worst, compare_gradients(&want, &got, share));
    }
    printf("%s: gradients within %.1e\n", name, worst);
    close_kind(&want);
    close_kind(&got);
}

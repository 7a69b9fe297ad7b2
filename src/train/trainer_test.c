/* Losses, gradients, ten steps of AdamW and the weights after them against peft and torch (fixtures/lora),
 * and what a trainer promises: nothing changes before the first step, batches may be cut anyhow, threads do
 * not matter. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "format/safetensors.h"
#include "tests/engine_help.h"
#include "tests/fixtures.h"
#include "train/trainer.h"

enum { SETS_MAX = 32, KINDS_MAX = 64, NAME_MAX_BYTES = 64 };

static char sets[SETS_MAX][NAME_MAX_BYTES]; /* folders of fixtures/lora */
static int n_sets;

/* One folder of fixtures/lora with a trainer on its base. */
typedef struct {
    const char *name;
    json_t *expected, *run;
    qn_safetensors *tensors;
    qn_train_base base;
    qn_trainer *trainer;
    qn_train_batch batch;
    int32_t *row_begin, *rows, *targets;
    char *names;
} subject;

static const char *path_of(const subject *s, const char *file)
{
    static char path[160];
    snprintf(path, sizeof path, "lora/%s/%s", s->name, file);
    return qn_test_need_fixture(path);
}

static json_t *read_json(const char *path)
{
    json_error_t error;
    json_t *j = json_load_file(path, 0, &error);
    if (!j) fail_msg("%s: %s", path, error.text);
    return j;
}

static double number(json_t *from, const char *key)
{
    json_t *j = json_object_get(from, key);
    if (!json_is_number(j)) fail_msg("no number %s", key);
    return json_number_value(j);
}

/* The batch [n, width]: padding is on the right, behind the last counted token, and sees nothing. */
static void read_batch(subject *s)
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

static qn_trainer_options options_of(subject *s, int64_t max_rows, int64_t max_sequences)
{
    json_t *config = read_json(path_of(s, "adapter_config.json")), *module,
           *o = json_object_get(s->run, "optimizer");
    json_t *betas = json_object_get(o, "betas");
    size_t i, at = 0;
    qn_free(s->names);
    s->names = qn_calloc(json_array_size(json_object_get(config, "target_modules")) + 1, NAME_MAX_BYTES);
    json_array_foreach(json_object_get(config, "target_modules"), i, module) at +=
        (size_t)snprintf(s->names + at, NAME_MAX_BYTES, "%s%s", i ? "," : "", json_string_value(module));
    qn_trainer_options options = {.trainable = {.targets = s->names,
                                                .rank = (int32_t)number(config, "r"),
                                                .alpha = (float)number(config, "lora_alpha")},
                                  .optimizer = {.beta1 = json_number_value(json_array_get(betas, 0)),
                                                .beta2 = json_number_value(json_array_get(betas, 1)),
                                                .eps = number(o, "eps"),
                                                .weight_decay = number(o, "weight_decay")},
                                  .max_rows = max_rows,
                                  .max_sequences = max_sequences,
                                  .precision = QN_PRECISION_EXACT};
    json_decref(config);
    return options;
}

/* All files that a set takes, before anything is held: a test that is left out jumps. */
static void need_set(const subject *s)
{
    static const char *const files[] = {"expected.json", "train.safetensors", "adapter_model.safetensors",
                                        "adapter_config.json"};
    char path[160];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) (void)path_of(s, files[i]);
    json_t *expected = read_json(path_of(s, files[0]));
    snprintf(path, sizeof path, "models/%.100s", json_string_value(json_object_get(expected, "base")));
    json_decref(expected);
    (void)qn_test_need_fixture(path);
}

static void open_subject(subject *s, const char *name, int n_threads)
{
    char path[160];
    *s = (subject){.name = name};
    need_set(s);
    s->expected = read_json(path_of(s, "expected.json"));
    s->run = json_object_get(s->expected, "train");
    qn_test_ok(qn_safetensors_open(path_of(s, "train.safetensors"), &s->tensors));
    read_batch(s);
    snprintf(path, sizeof path, "models/%s", json_string_value(json_object_get(s->expected, "base")));
    qn_test_ok(qn_train_base_open(qn_test_need_fixture(path), NULL, n_threads, 0, &s->base));
    qn_trainer_options o = options_of(s, s->batch.n_rows, s->batch.n_sequences);
    qn_test_ok(qn_trainer_new(&s->base, &o, &s->trainer));
}

static void close_subject(subject *s)
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
static const float *stored(const subject *s, const char *prefix, const qn_trainable_array *a)
{
    char full[320];
    const qn_tensor_view *v = NULL;
    snprintf(full, sizeof full, "%sbase_model.model.%s", prefix, a->name);
    qn_test_ok(qn_safetensors_tensor(s->tensors, full, &v));
    assert_int_equal(v->n_elements, a->n);
    return v->data;
}

static void set_numbers(subject *s, const qn_safetensors *from, const char *prefix)
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

static void check_loss(const subject *s, const char *what, double got, double want)
{
    if (!(fabs(got - want) <= 2e-5)) fail_msg("%s: %s %.7f, expected %.7f", s->name, what, got, want);
}

/* Gradients of the mean; returns the worst difference over the largest value. */
static double check_gradients(subject *s, const char *prefix)
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
        if (!(off <= 1e-4 * largest))
            fail_msg("%s: gradient %s%s differs by %g, its largest is %g", s->name, prefix, t->arrays[i].name,
                     off, largest);
        if (largest > 0 && off / largest > worst) worst = off / largest;
    }
    return worst;
}

static void one_set(void **state)
{
    subject s;
    qn_safetensors *adapter;
    qn_trainer_report report;
    double loss = 0, worst = 0;
    open_subject(&s, *state, 2);
    qn_test_ok(qn_safetensors_open(path_of(&s, "adapter_model.safetensors"), &adapter));
    qn_trainable *t = qn_trainer_trainable(s.trainer);
    assert_int_equal(t->n, qn_safetensors_count(adapter)); /* the same modules as peft found */

    set_numbers(&s, adapter, "");
    qn_test_ok(qn_trainer_evaluate(s.trainer, &s.batch, &loss));
    check_loss(&s, "evaluated loss", loss, number(s.run, "adapter_loss"));
    qn_test_ok(qn_trainer_add(s.trainer, &s.batch, &loss));
    check_loss(&s, "loss", loss, number(s.run, "adapter_loss"));
    worst = check_gradients(&s, "adapter_grad.");
    qn_trainer_free(s.trainer);
    qn_trainer_options o = options_of(&s, s.batch.n_rows, s.batch.n_sequences);
    qn_test_ok(qn_trainer_new(&s.base, &o, &s.trainer));
    t = qn_trainer_trainable(s.trainer);

    set_numbers(&s, s.tensors, "start.");
    json_t *losses = json_object_get(s.run, "losses"), *norms = json_object_get(s.run, "grad_norms");
    for (size_t i = 0; i < json_array_size(losses); i++) {
        qn_test_ok(qn_trainer_add(s.trainer, &s.batch, &loss));
        check_loss(&s, "loss of a step", loss, json_number_value(json_array_get(losses, i)));
        if (i == 0) check_gradients(&s, "grad0.");
        if (i == 1) check_gradients(&s, "grad1.");
        qn_test_ok(qn_trainer_update(s.trainer, number(json_object_get(s.run, "optimizer"), "lr"), &report));
        double norm = json_number_value(json_array_get(norms, i));
        assert_int_equal(report.step, i + 1);
        if (!(fabs(report.grad_norm - norm) <= 1e-4 * norm))
            fail_msg("%s: gradient of length %g in step %d, expected %g", s.name, report.grad_norm,
                     (int)i + 1, norm);
    }
    qn_test_ok(qn_trainer_evaluate(s.trainer, &s.batch, &loss));
    check_loss(&s, "loss in the end", loss, number(s.run, "final_loss"));
    for (int64_t i = 0; i < t->n; i++) {
        const float *want = stored(&s, "final.", &t->arrays[i]);
        for (int64_t k = 0; k < t->arrays[i].n; k++)
            if (!(fabsf(t->arrays[i].data[k] - want[k]) <= 5e-5f))
                fail_msg("%s: %s is %g in the end, not %g", s.name, t->arrays[i].name,
                         (double)t->arrays[i].data[k], (double)want[k]);
    }
    printf("%s: %lld arrays, gradients within %.1e\n", s.name, (long long)t->n, worst);
    qn_safetensors_close(adapter);
    close_subject(&s);
}

/* ---- promises ----------------------------------------------------------------------------------------- */

static const char *base_set(void)
{
    return sets[0];
}

static qn_status renew(subject *s, const qn_trainable_options *trainable)
{
    qn_trainer_free(s->trainer);
    s->trainer = NULL;
    qn_trainer_options o = options_of(s, s->batch.n_rows, s->batch.n_sequences);
    o.trainable = *trainable;
    return qn_trainer_new(&s->base, &o, &s->trainer);
}

static double loss_of(subject *s)
{
    double loss = 0;
    qn_test_ok(qn_trainer_evaluate(s->trainer, &s->batch, &loss));
    return loss;
}

/* B is zero: the loss is the base's to the last bit, whatever A is. */
static void begins_at_the_base(void **state)
{
    subject s;
    double losses[3];
    const qn_trainable_options ways[] = {{.rank = 1, .alpha = 1, .targets = "q_proj"},
                                         {.rank = 8, .alpha = 16, .seed = 7},
                                         {.rank = 3, .alpha = 5, .rslora = 1, .init = QN_TRAIN_NORMAL}};
    open_subject(&s, base_set(), 2);
    for (int i = 0; i < 3; i++) {
        qn_test_ok(renew(&s, &ways[i]));
        losses[i] = loss_of(&s);
        assert_true(losses[i] == losses[0]);
    }
    qn_test_ok(renew(&s, &(qn_trainable_options){.method = QN_TRAIN_DORA, .rank = 4, .alpha = 8}));
    if (!(fabs(loss_of(&s) - losses[0]) <= 1e-5)) fail_msg("DoRA begins at %g", loss_of(&s));
    qn_test_ok(renew(&s, &(qn_trainable_options){.method = QN_TRAIN_FULL}));
    if (!(fabs(loss_of(&s) - losses[0]) <= 1e-5)) fail_msg("full training begins at %g", loss_of(&s));
    close_subject(&s);
}

/* The loss changes along a direction as the gradient says; ending: of the arrays' names. */
static void check_direction(subject *s, const char *what, const char *ending, double step)
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
        sides[side] = loss_of(s);
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

static void gradients_are_slopes(void **state)
{
    subject s;
    open_subject(&s, base_set(), 2);
    qn_test_ok(renew(&s, &(qn_trainable_options){.method = QN_TRAIN_DORA, .rank = 4, .alpha = 8}));
    check_direction(&s, "DoRA's magnitudes", ".lora_magnitude_vector", 0.05);
    qn_test_ok(renew(&s, &(qn_trainable_options){.method = QN_TRAIN_FULL}));
    check_direction(&s, "all weights", "", 0.005);
    check_direction(&s, "norms", "norm.weight", 0.01);
    check_direction(&s, "the embedding", "embed_tokens.weight", 0.005);
    close_subject(&s);
}

/* ---- every family ------------------------------------------------------------------------------------- */

static char kinds[KINDS_MAX][NAME_MAX_BYTES]; /* folders of fixtures/models */
static int n_kinds;

/* Sequences of 7, 40 and 2 tokens of the vocabulary, every one but the first to be learned. */
static void make_batch(subject *s)
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

/* Gradients through all layers of a family: A and B both begin with numbers. */
static void one_kind(void **state)
{
    char path[160];
    subject s = {.name = *state};
    snprintf(path, sizeof path, "models/%s", s.name);
    qn_test_ok(qn_train_base_open(qn_test_need_fixture(path), NULL, 2, 0, &s.base));
    make_batch(&s);
    qn_trainer_options o = {.trainable = {.rank = 4, .alpha = 8},
                            .max_rows = s.batch.n_rows,
                            .max_sequences = s.batch.n_sequences,
                            .precision = QN_PRECISION_EXACT};
    qn_test_ok(qn_trainer_new(&s.base, &o, &s.trainer));
    qn_trainable *t = qn_trainer_trainable(s.trainer);
    for (int64_t i = 0; i < t->n; i++)
        for (int64_t k = 0; strstr(t->arrays[i].name, "lora_B") && k < t->arrays[i].n; k++)
            t->arrays[i].data[k] = (float)(0.1 * (qn_random_unit((uint64_t)i, (uint64_t)k) - 0.5));
    check_direction(&s, s.name, "", 0.0001);
    check_direction(&s, s.name, ".lora_A.weight", 0.0001);
    qn_trainer_free(s.trainer);
    s.trainer = NULL;
    o.trainable = (qn_trainable_options){.method = QN_TRAIN_FULL};
    qn_status status = qn_trainer_new(&s.base, &o, &s.trainer);
    if (status == QN_OK)
        check_direction(&s, s.name, "", 0.0001);
    else if (status != QN_E_UNSUPPORTED || !strstr(qn_last_error(), "as a whole"))
        qn_test_ok(status);
    qn_free((void *)(uintptr_t)s.batch.ids);
    qn_trainer_free(s.trainer);
    qn_train_base_close(&s.base);
    qn_free(s.row_begin);
    qn_free(s.rows);
    qn_free(s.targets);
}

/* Bits of all trained numbers after three steps. */
static void train_with(int n_threads, int64_t n_pieces, float **numbers, int64_t *n, double *loss)
{
    subject s;
    qn_trainer_report report = {0};
    open_subject(&s, base_set(), n_threads);
    for (int step = 0; step < 3; step++) {
        int64_t target = 0;
        for (int64_t piece = 0; piece < n_pieces; piece++) {
            /* sequences [first, last) as a batch of its own */
            const int64_t of = s.batch.n_sequences, first = piece * of / n_pieces,
                          last = (piece + 1) * of / n_pieces;
            const int32_t begin = s.row_begin[first];
            int32_t row_begin[16], rows[512];
            qn_train_batch b = {.n_rows = s.row_begin[last] - begin, .n_sequences = last - first};
            b.ids = s.batch.ids + begin;
            for (int64_t i = first; i <= last; i++) row_begin[i - first] = s.row_begin[i] - begin;
            b.targets = s.targets + target;
            for (; target < s.batch.n_targets && s.rows[target] < s.row_begin[last]; target++)
                rows[b.n_targets++] = s.rows[target] - begin;
            b.row_begin = row_begin;
            b.rows = rows;
            qn_test_ok(qn_trainer_add(s.trainer, &b, NULL));
        }
        qn_test_ok(qn_trainer_update(s.trainer, 1e-3, &report));
    }
    qn_trainable *t = qn_trainer_trainable(s.trainer);
    *numbers = qn_alloc_array((size_t)t->n_elements, sizeof **numbers);
    *n = 0;
    for (int64_t i = 0; i < t->n; i++) {
        memcpy(*numbers + *n, t->arrays[i].data, (size_t)t->arrays[i].n * sizeof(float));
        *n += t->arrays[i].n;
    }
    *loss = report.loss;
    close_subject(&s);
}

static void threads_and_pieces(void **state)
{
    float *one, *three, *pieces;
    int64_t n;
    double loss[3];
    train_with(1, 1, &one, &n, &loss[0]);
    train_with(3, 1, &three, &n, &loss[1]);
    train_with(2, 3, &pieces, &n, &loss[2]);
    assert_memory_equal(one, three, (size_t)n * sizeof *one);
    assert_true(loss[0] == loss[1]);
    assert_true(fabs(loss[0] - loss[2]) < 1e-5);
    for (int64_t i = 0; i < n; i++)
        if (!(fabsf(one[i] - pieces[i]) <= 2e-5f))
            fail_msg("number %d: %g in pieces", (int)i, (double)pieces[i]);
    qn_free(one);
    qn_free(three);
    qn_free(pieces);
}

/* Gradients of all arrays of a family, and the program's bytes. */
static float *all_gradients(subject *s, int checkpoint, int64_t *n, size_t *bytes)
{
    double loss;
    qn_trainer_options o = {.trainable = {.rank = 4, .alpha = 8},
                            .checkpoint_layers = checkpoint,
                            .max_rows = s->batch.n_rows,
                            .max_sequences = s->batch.n_sequences,
                            .precision = QN_PRECISION_EXACT};
    qn_test_ok(qn_trainer_new(&s->base, &o, &s->trainer));
    qn_trainable *t = qn_trainer_trainable(s->trainer);
    for (int64_t i = 0; i < t->n; i++)
        for (int64_t k = 0; k < t->arrays[i].n; k++)
            t->arrays[i].data[k] = (float)(0.1 * (qn_random_unit((uint64_t)i, (uint64_t)k) - 0.5));
    qn_test_ok(qn_trainer_add(s->trainer, &s->batch, &loss));
    float *out = qn_alloc_array((size_t)t->n_elements, sizeof *out);
    *n = 0;
    for (int64_t i = 0; i < t->n; i++) {
        memcpy(out + *n, qn_trainer_gradient(s->trainer, i), (size_t)t->arrays[i].n * sizeof *out);
        *n += t->arrays[i].n;
    }
    *bytes = qn_trainer_program_bytes(s->trainer);
    qn_trainer_free(s->trainer);
    s->trainer = NULL;
    return out;
}

static void checkpoints(void **state)
{
    for (int i = 0; i < n_kinds; i++) {
        subject s = {.name = kinds[i]};
        char path[160];
        int64_t n;
        size_t bytes[2];
        snprintf(path, sizeof path, "models/%s", s.name);
        qn_test_ok(qn_train_base_open(qn_test_need_fixture(path), NULL, 2, 0, &s.base));
        make_batch(&s);
        float *kept = all_gradients(&s, 0, &n, &bytes[0]), *again = all_gradients(&s, 1, &n, &bytes[1]);
        if (memcmp(kept, again, (size_t)n * sizeof *kept) != 0) fail_msg("%s: other gradients", s.name);
        if (bytes[1] >= bytes[0])
            fail_msg("%s: %zu bytes with checkpoints, %zu without", s.name, bytes[1], bytes[0]);
        qn_free(kept);
        qn_free(again);
        qn_free((void *)(uintptr_t)s.batch.ids);
        qn_train_base_close(&s.base);
        qn_free(s.row_begin);
        qn_free(s.rows);
        qn_free(s.targets);
    }
}

/* Dropout changes what is learned, not what is evaluated; the same seed drops the same, another one other
 * places, and a step other ones than the one before. */
static void drops(void **state)
{
    subject s;
    double losses[4], evaluated[2];
    qn_trainable_options o = {.rank = 4, .alpha = 8, .seed = 3};
    open_subject(&s, base_set(), 2);
    for (int i = 0; i < 4; i++) {
        o.dropout = i ? 0.5f : 0;
        o.seed = i < 3 ? 3 : 4;
        qn_test_ok(renew(&s, &o));
        qn_trainable *t = qn_trainer_trainable(s.trainer);
        for (int64_t k = 0; k < t->n; k++)
            for (int64_t j = 0; j < t->arrays[k].n; j++)
                t->arrays[k].data[j] = (float)(0.4 * (qn_random_unit((uint64_t)k, (uint64_t)j) - 0.5));
        qn_test_ok(qn_trainer_add(s.trainer, &s.batch, &losses[i]));
        if (i < 2) evaluated[i] = loss_of(&s);
        if (i) {
            double again;
            qn_test_ok(qn_trainer_update(s.trainer, 0, NULL));
            qn_test_ok(qn_trainer_add(s.trainer, &s.batch, &again));
            assert_true(again != losses[i]);
        }
    }
    assert_true(evaluated[0] == evaluated[1] && evaluated[0] == losses[0]);
    assert_true(losses[1] != losses[0] && losses[1] == losses[2] && losses[3] != losses[2]);
    close_subject(&s);
}

static void expect(subject *s, qn_trainable_options o, qn_status status, const char *words)
{
    qn_status got = renew(s, &o);
    if (got != status || !strstr(qn_last_error(), words))
        fail_msg("%s: %s, expected %s with \"%s\"", qn_status_name(got), qn_last_error(),
                 qn_status_name(status), words);
}

static void refuses(void **state)
{
    subject s;
    qn_train_batch b;
    open_subject(&s, base_set(), 1);
    expect(&s, (qn_trainable_options){.rank = 0, .alpha = 1}, QN_E_ARG, "rank 0");
    expect(&s, (qn_trainable_options){.rank = 2000, .alpha = 1}, QN_E_ARG, "rank 2000");
    expect(&s, (qn_trainable_options){.rank = 2, .alpha = 1, .dropout = 1}, QN_E_ARG, "dropout 1");
    expect(&s, (qn_trainable_options){.rank = 2, .alpha = INFINITY}, QN_E_ARG, "alpha");
    expect(&s, (qn_trainable_options){.rank = 2, .alpha = 1, .targets = "q_proj, wq"}, QN_E_ARG, "target wq");
    expect(&s, (qn_trainable_options){.rank = 2, .alpha = 1, .targets = "proj"}, QN_E_ARG, "target proj");
    expect(&s, (qn_trainable_options){.rank = 2, .alpha = 1, .layer_begin = 99}, QN_E_ARG, "layers 99");
    expect(&s, (qn_trainable_options){.rank = 2, .alpha = 1, .layer_begin = 1, .layer_end = 1}, QN_E_ARG,
           "layers 1");
    qn_test_ok(renew(&s, &(qn_trainable_options){.rank = 2, .alpha = 1, .targets = "*.layers.1.*"}));
    for (int64_t i = 0; i < qn_trainer_trainable(s.trainer)->n; i++)
        assert_non_null(strstr(qn_trainer_trainable(s.trainer)->arrays[i].name, ".layers.1."));
    assert_int_equal(qn_trainer_update(s.trainer, 1, NULL), QN_E_ARG);
    b = s.batch;
    b.n_targets = 0;
    assert_int_equal(qn_trainer_add(s.trainer, &b, NULL), QN_E_ARG);
    b = s.batch;
    b.n_rows++;
    assert_int_equal(qn_trainer_add(s.trainer, &b, NULL), QN_E_ARG);
    int32_t *ids = qn_alloc_array((size_t)s.batch.n_rows, sizeof *ids);
    memcpy(ids, s.batch.ids, (size_t)s.batch.n_rows * sizeof *ids);
    ids[1] = (int32_t)s.base.config.vocab_size;
    b = s.batch;
    b.ids = ids;
    assert_int_equal(qn_trainer_add(s.trainer, &b, NULL), QN_E_ARG);
    assert_non_null(strstr(qn_last_error(), "at row 1"));
    qn_free(ids);
    close_subject(&s);
}

/* Each allocation of opening, a step and an evaluation fails once. */
static void out_of_memory(void **state)
{
    subject s;
    open_subject(&s, base_set(), 1);
    qn_trainer_free(s.trainer);
    s.trainer = NULL;
    const qn_trainer_options o = options_of(&s, s.batch.n_rows, s.batch.n_sequences);
    const int64_t live = qn_mem_live_blocks();
    int64_t n = 1;
    for (;; n += n < 200 ? 1 : 37) {
        const int64_t made = qn_mem_allocations();
        double loss;
        qn_mem_fail_nth(n);
        qn_status status = qn_trainer_new(&s.base, &o, &s.trainer);
        if (status == QN_OK) status = qn_trainer_add(s.trainer, &s.batch, NULL);
        if (status == QN_OK) status = qn_trainer_update(s.trainer, 1e-3, NULL);
        if (status == QN_OK) status = qn_trainer_evaluate(s.trainer, &s.batch, &loss);
        qn_mem_fail_nth(0);
        const int reached = qn_mem_allocations() - made >= n;
        if (status != (reached ? QN_E_NOMEM : QN_OK))
            fail_msg("allocation %d: %s, %s", (int)n, qn_status_name(status), qn_last_error());
        qn_trainer_free(s.trainer);
        s.trainer = NULL;
        assert_int_equal(qn_mem_live_blocks(), live);
        if (!reached) break;
    }
    assert_true(n > 200);
    close_subject(&s);
}

static int list(const char *folder, char (*names)[NAME_MAX_BYTES], int most)
{
    const char *path = qn_test_fixture(folder);
    DIR *d = path ? opendir(path) : NULL;
    struct dirent *entry;
    int n = 0;
    while (d && (entry = readdir(d)) && n < most)
        if (entry->d_name[0] != '.') snprintf(names[n++], NAME_MAX_BYTES, "%.63s", entry->d_name);
    if (d) closedir(d);
    return n;
}

int main(void)
{
    static char titles[SETS_MAX + KINDS_MAX][2 * NAME_MAX_BYTES];
    struct CMUnitTest tests[SETS_MAX + KINDS_MAX + 7] = {cmocka_unit_test(begins_at_the_base),
                                                         cmocka_unit_test(gradients_are_slopes),
                                                         cmocka_unit_test(threads_and_pieces),
                                                         cmocka_unit_test(checkpoints),
                                                         cmocka_unit_test(drops),
                                                         cmocka_unit_test(refuses),
                                                         cmocka_unit_test(out_of_memory)};
    int n = 7;
    n_sets = list("lora", sets, SETS_MAX);
    n_kinds = list("models", kinds, KINDS_MAX);
    if (!n_sets) snprintf(sets[n_sets++], NAME_MAX_BYTES, "llama_all"); /* says that it is skipped */
    for (int i = 0; i < n_sets; i++) {
        snprintf(titles[i], sizeof titles[i], "%s learns as with peft", sets[i]);
        tests[n++] = (struct CMUnitTest){titles[i], one_set, NULL, NULL, sets[i]};
    }
    for (int i = 0; i < n_kinds; i++) {
        snprintf(titles[n_sets + i], sizeof titles[0], "gradients through %s", kinds[i]);
        tests[n++] = (struct CMUnitTest){titles[n_sets + i], one_kind, NULL, NULL, kinds[i]};
    }
    return _cmocka_run_group_tests("trainer", tests, (size_t)n, NULL, NULL);
}

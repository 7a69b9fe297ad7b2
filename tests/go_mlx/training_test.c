/* What docs/go-mlx.md names for training and adapters, each called once and looked at, on a tiny model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <quern/quern.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/engine_help.h"
#include "tests/support/expect.h"
#include "tests/support/fixtures.h"
#include "tests/support/scratch.h"

enum { N = 2, LENGTH = 12, VOCAB_MAX = 1024, PATH_BYTES = 600 };

static qn_model *model;
static int64_t n_vocab;
static char base[PATH_BYTES], folder[PATH_BYTES];
static int32_t ids[N * LENGTH], targets[N * LENGTH];

static int open_model(void **state)
{
    qn_model_info info;
    const qn_model_options o = {
        .n_threads = 2, .precision = QN_PRECISION_EXACT, .kv_type = QN_KV_F32, .packed = "none"};
    snprintf(base, sizeof base, "%s", qn_test_need_fixture("models/llama"));
    snprintf(folder, sizeof folder, "%s", qn_test_scratch());
    if (qn_model_open(base, &o, &model) != QN_OK || qn_model_get_info(model, &info) != QN_OK) return 1;
    n_vocab = info.vocab_size;
    for (int i = 0; i < N * LENGTH; i++) {
        ids[i] = 3 + i * 31 % 500;
        targets[i] = i % LENGTH == LENGTH - 1 ? -1 : 3 + (i + 1) * 31 % 500;
    }
    return n_vocab > VOCAB_MAX;
}

static int close_model(void **state)
{
    qn_test_remove(folder);
    return qn_model_close(&model) != QN_OK;
}

static qn_array *table(qn_scope *s, const int32_t *numbers)
{
    return qn_from_data(s, QN_DTYPE_I32, 2, (int64_t[]){N, LENGTH}, numbers);
}

static qn_array *mean(qn_scope *s, qn_array *a)
{
    return qn_reduce(s, QN_REDUCE_MEAN, a, 0, NULL, 0);
}

/* ---- by hand ------------------------------------------------------------------------------------------ */

static qn_finetune *open_lora(void)
{
    qn_finetune *f = NULL;
    const qn_finetune_options o = {.rank = 4,
                                   .alpha = 8,
                                   .targets = "q_proj,v_proj",
                                   .init = QN_TRAIN_KAIMING_NORMAL,
                                   .precision = QN_PRECISION_EXACT};
    qn_test_ok(qn_finetune_open(model, &o, &f));
    return f;
}

static void trainable_arrays(void **state)
{
    qn_finetune *f = open_lora();
    qn_train_array first, second;
    qn_array *values[64] = {NULL};
    int64_t n_numbers = 0;
    assert_int_equal(qn_finetune_count(f), 4 * 2 * 2); /* layers, matrices, factors */
    for (int64_t i = 0; i < qn_finetune_count(f); i++) {
        qn_train_array a;
        qn_test_ok(qn_finetune_get_array(f, i, &a));
        n_numbers += a.n;
        assert_int_equal(qn_array_size(qn_finetune_array(f, i)), a.n);
    }
    assert_int_equal(n_numbers, 4 * (4 * (64 + 64) + 4 * (64 + 32)));
    qn_test_ok(qn_finetune_get_array(f, 0, &first));
    qn_test_ok(qn_finetune_get_array(f, 1, &second));
    assert_string_equal(first.name, "model.layers.0.self_attn.q_proj.lora_A.weight");
    assert_string_equal(second.name, "model.layers.0.self_attn.q_proj.lora_B.weight");
    assert_true(second.n <= QN_TEST_NUMBERS_MAX * 4 && second.shape[0] == 64 && second.shape[1] == 4);
    qn_scope *s = qn_scope_inner(qn_finetune_scope(f));
    values[1] = qn_full(s, QN_DTYPE_F32, 2, second.shape, 0.5);
    qn_test_ok(qn_finetune_set(f, s, values)); /* NULL: as it was */
    qn_test_alike(s, qn_finetune_array(f, 1), values[1], 0);
    qn_scope_close(s);
    qn_finetune_close(f);
}

static qn_status compare(void *user, int64_t row, int64_t position, int64_t n, const float *logits)
{
    const float *all = user;
    assert_memory_equal(all + (row * LENGTH + position) * n_vocab, logits,
                        (size_t)(n * n_vocab) * sizeof *logits);
    return QN_OK;
}

/* Logits are the engine's; the causal mask changes none of them; losses are those of the logits. */
static void forward(void **state)
{
    static float all[N * LENGTH * VOCAB_MAX], mask[N * LENGTH * LENGTH];
    qn_finetune *f = open_lora();
    qn_scope *s = qn_scope_inner(qn_finetune_scope(f));
    qn_array *logits = qn_finetune_forward(f, s, NULL, table(s, ids), NULL);
    qn_test_ok(qn_array_read(s, logits, QN_DTYPE_F32, all, N * LENGTH * n_vocab));
    const qn_ids rows[N] = {{ids, LENGTH}, {ids + LENGTH, LENGTH}};
    qn_test_ok(qn_model_logits(model, rows, N, NULL, compare, all));
    for (int64_t i = 0; i < N * LENGTH * LENGTH; i++)
        mask[i] = i % LENGTH > i / LENGTH % LENGTH ? -INFINITY : 0;
    const qn_forward_options masked = {
        .mask = qn_from_data(s, QN_DTYPE_F32, 4, (int64_t[]){N, 1, LENGTH, LENGTH}, mask)};
    qn_test_alike(s, qn_finetune_forward(f, s, NULL, table(s, ids), &masked), logits, 1e-4);
    qn_array *hidden = qn_finetune_hidden(f, s, NULL, table(s, ids), NULL);
    QN_TEST_SHAPE(hidden, N, LENGTH, 64);
    qn_array *losses = qn_finetune_losses(f, s, NULL, table(s, ids), table(s, targets), NULL),
             *flat = qn_reshape(s, logits, 2, (int64_t[]){-1, n_vocab}),
             *flat_targets = qn_reshape(s, table(s, targets), 1, (int64_t[]){-1});
    const qn_class_options each = {.reduction = QN_LOSS_EACH, .ignored = -1, .has_ignored = 1};
    qn_test_alike(s, qn_reshape(s, losses, 1, (int64_t[]){-1}),
                  qn_loss_cross_entropy(s, flat, flat_targets, &each), 1e-4);
    qn_scope_close(s);
    qn_finetune_close(f);
}

/* Steps lower the loss; what is saved serves requests; it can be fused into a new model. */
static void steps_and_adapters(void **state)
{
    char adapter[PATH_BYTES + 16], fused[PATH_BYTES + 16];
    qn_finetune *f = open_lora();
    qn_finetune_report report = {0};
    qn_optimizer_options o = qn_optimizer_defaults(QN_OPTIMIZER_ADAMW);
    double first = 0;
    o.rate = 2e-2;
    for (int i = 0; i < 8; i++) {
        qn_scope *s = qn_scope_inner(qn_finetune_scope(f));
        qn_array *loss = mean(s, qn_finetune_losses(f, s, NULL, table(s, ids), table(s, targets), NULL));
        qn_test_ok(qn_finetune_step(f, s, loss, &o, 1, &report));
        assert_true(report.step == i + 1 && report.grad_norm > 0);
        if (!i) first = report.loss;
        qn_scope_close(s);
    }
    if (!(report.loss < first - 0.05)) fail_msg("8 steps: from %g to %g", first, report.loss);
    snprintf(adapter, sizeof adapter, "%s/adapter", folder);
    snprintf(fused, sizeof fused, "%s/fused", folder);
    qn_test_ok(qn_finetune_save(f, adapter, QN_ADAPTER_MLX));
    qn_finetune_close(f);

    qn_adapter_info info;
    qn_test_ok(qn_adapter_load(model, &(qn_adapter_options){.name = "mill", .path = adapter}));
    qn_test_ok(qn_adapter_get_info(model, 0, &info));
    assert_true(info.rank == 4 && info.n_matrices == 8);
    assert_string_equal(info.layout, "mlx");
    qn_test_ok(qn_adapter_unload(model, "mill"));
    assert_int_equal(qn_adapter_get_info(model, 0, &info), QN_E_NOT_FOUND);

    qn_fuse_result result;
    qn_test_ok(qn_model_fuse(base, adapter, fused, &(qn_fuse_options){.type = "f32"}, &result));
    assert_int_equal(result.n_merged, 8);
    qn_model *whole = NULL;
    qn_test_ok(qn_model_open(fused, &(qn_model_options){.n_threads = 1}, &whole));
    qn_test_ok(qn_model_close(&whole));
}

/* ---- a data set --------------------------------------------------------------------------------------- */

static int note(void *user, const qn_train_event *e)
{
    int *n = user;
    n[e->kind]++;
    assert_true(qn_train_event_name(e->kind)[0]);
    return 0;
}

static void whole_runs(void **state)
{
    int n[QN_TRAIN_EVENT_DONE + 1] = {0};
    char out[PATH_BYTES + 16], saved[PATH_BYTES + 16], *batch = NULL;
    static const char lines[] =
        "{\"text\": \"The mill turns.\"}\n{\"text\": \"The river turns the mill.\"}\n";
    snprintf(out, sizeof out, "%s/run", folder);
    snprintf(saved, sizeof saved, "%s/saved", folder);
    const char *data = qn_test_write_text(folder, "train.jsonl", lines);
    const qn_train_options o = {.model = model,
                                .data_path = data,
                                .out_path = out,
                                .rank = 2,
                                .learning_rate = 1e-2,
                                .n_steps = 6,
                                .batch_sequences = 2};
    qn_training *t = NULL;
    qn_train_info info;
    qn_train_step_report report;
    qn_train_array a;
    float numbers[1024], gradient[1024];
    qn_test_ok(qn_training_open(&o, &t));
    qn_test_ok(qn_training_get_info(t, &info));
    assert_true(info.n_lines == 2 && info.n_steps == 6 && info.n_trained > 0);
    qn_test_ok(qn_training_show_batch(t, 0, &batch));
    assert_non_null(strstr(batch, "mill"));
    qn_buffer_free(batch);
    qn_test_ok(qn_training_step(t, &report));
    assert_true(report.step == 1 && isfinite(report.loss));
    qn_test_ok(qn_training_get_array(t, 0, &a));
    assert_true(a.n <= 1024);
    qn_test_ok(qn_training_read_array(t, 0, numbers, gradient));
    assert_true(isfinite(numbers[0]) && isfinite(gradient[0]));
    double loss;
    assert_int_equal(qn_training_validate(t, &loss), QN_E_NOT_FOUND);
    qn_test_ok(qn_training_run(t, note, n));
    assert_true(n[QN_TRAIN_EVENT_STEP] == 5 && n[QN_TRAIN_EVENT_DONE] == 1 && n[QN_TRAIN_EVENT_SAVED] > 0);
    qn_test_ok(qn_training_save(t, saved, QN_ADAPTER_PEFT));
    qn_training_stop(t);
    qn_training_close(t);

    qn_evaluate_result before, after;
    qn_evaluate_options e = {.model_path = base, .data_path = data};
    qn_test_ok(qn_evaluate_data(&e, &before));
    e.adapter_path = saved;
    qn_test_ok(qn_evaluate_data(&e, &after));
    assert_true(after.n_lines == 2 && after.loss < before.loss);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trainable_arrays),
        cmocka_unit_test(forward),
        cmocka_unit_test(steps_and_adapters),
        cmocka_unit_test(whole_runs),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}

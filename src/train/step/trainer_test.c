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
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/lora_sets.h"
#include "train/step/trainer.h"

enum { SETS_MAX = 32, KINDS_MAX = 64, NAME_MAX_BYTES = 64 };

static char sets[SETS_MAX][NAME_MAX_BYTES]; /* folders of fixtures/lora */
static int n_sets;

static void one_set(void **state)
{
    qn_lora_check_set(*state, &(qn_lora_bounds){NULL, 2e-5, 1e-4, 5e-5});
}

/* ---- promises ----------------------------------------------------------------------------------------- */

static const char *base_set(void)
{
    return sets[0];
}

static qn_status renew(qn_lora_subject *s, const qn_trainable_options *trainable)
{
    qn_trainer_free(s->trainer);
    s->trainer = NULL;
    qn_trainer_options o = qn_lora_options(s, s->batch.n_rows, s->batch.n_sequences);
    o.trainable = *trainable;
    return qn_trainer_new(&s->base, &o, &s->trainer);
}

/* B is zero: the loss is the base's to the last bit, whatever A is. */
static void begins_at_the_base(void **state)
{
    qn_lora_subject s;
    double losses[4];
    const qn_trainable_options ways[] = {{.rank = 1, .alpha = 1, .targets = "q_proj"},
                                         {.rank = 8, .alpha = 16, .seed = 7},
                                         {.rank = 3, .alpha = 5, .rslora = 1, .init = QN_TRAIN_NORMAL},
                                         {.rank = 4, .alpha = 4, .init = QN_TRAIN_KAIMING_NORMAL}};
    qn_lora_open(&s, base_set(), NULL, 2);
    for (int i = 0; i < 4; i++) {
        qn_test_ok(renew(&s, &ways[i]));
        losses[i] = qn_lora_loss(&s);
        assert_true(losses[i] == losses[0]);
    }
    qn_test_ok(renew(&s, &(qn_trainable_options){.method = QN_TRAIN_DORA, .rank = 4, .alpha = 8}));
    if (!(fabs(qn_lora_loss(&s) - losses[0]) <= 1e-5)) fail_msg("DoRA begins at %g", qn_lora_loss(&s));
    qn_test_ok(renew(&s, &(qn_trainable_options){.method = QN_TRAIN_FULL}));
    if (!(fabs(qn_lora_loss(&s) - losses[0]) <= 1e-5))
        fail_msg("full training begins at %g", qn_lora_loss(&s));
    qn_lora_close(&s);
}

static void gradients_are_slopes(void **state)
{
    qn_lora_subject s;
    qn_lora_open(&s, base_set(), NULL, 2);
    qn_test_ok(renew(&s, &(qn_trainable_options){.method = QN_TRAIN_DORA, .rank = 4, .alpha = 8}));
    qn_lora_check_direction(&s, "DoRA's magnitudes", ".lora_magnitude_vector", 0.05);
    qn_test_ok(renew(&s, &(qn_trainable_options){.method = QN_TRAIN_FULL}));
    qn_lora_check_direction(&s, "all weights", "", 0.005);
    qn_lora_check_direction(&s, "norms", "norm.weight", 0.01);
    qn_lora_check_direction(&s, "the embedding", "embed_tokens.weight", 0.005);
    qn_lora_close(&s);
}

/* ---- every family ------------------------------------------------------------------------------------- */

static char kinds[KINDS_MAX][NAME_MAX_BYTES]; /* folders of fixtures/models */
static int n_kinds;

static void one_kind(void **state)
{
    qn_lora_check_kind(*state);
}

/* Bits of all trained numbers after three steps. */
static void train_with(int n_threads, int64_t n_pieces, float **numbers, int64_t *n, double *loss)
{
    qn_lora_subject s;
    qn_trainer_report report = {0};
    qn_lora_open(&s, base_set(), NULL, n_threads);
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
    qn_lora_close(&s);
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
static float *all_gradients(qn_lora_subject *s, int checkpoint, int64_t *n, size_t *bytes)
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
        qn_lora_subject s = {.name = kinds[i]};
        char path[160];
        int64_t n;
        size_t bytes[2];
        snprintf(path, sizeof path, "models/%s", s.name);
        qn_test_ok(qn_train_base_open(qn_test_need_fixture(path), NULL, 2, 0, &s.base));
        qn_lora_make_batch(&s);
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
    qn_lora_subject s;
    double losses[4], evaluated[2];
    qn_trainable_options o = {.rank = 4, .alpha = 8, .seed = 3};
    qn_lora_open(&s, base_set(), NULL, 2);
    for (int i = 0; i < 4; i++) {
        o.dropout = i ? 0.5f : 0;
        o.seed = i < 3 ? 3 : 4;
        qn_test_ok(renew(&s, &o));
        qn_trainable *t = qn_trainer_trainable(s.trainer);
        for (int64_t k = 0; k < t->n; k++)
            for (int64_t j = 0; j < t->arrays[k].n; j++)
                t->arrays[k].data[j] = (float)(0.4 * (qn_random_unit((uint64_t)k, (uint64_t)j) - 0.5));
        qn_test_ok(qn_trainer_add(s.trainer, &s.batch, &losses[i]));
        if (i < 2) evaluated[i] = qn_lora_loss(&s);
        if (i) {
            double again;
            qn_test_ok(qn_trainer_update(s.trainer, 0, NULL));
            qn_test_ok(qn_trainer_add(s.trainer, &s.batch, &again));
            assert_true(again != losses[i]);
        }
    }
    assert_true(evaluated[0] == evaluated[1] && evaluated[0] == losses[0]);
    assert_true(losses[1] != losses[0] && losses[1] == losses[2] && losses[3] != losses[2]);
    qn_lora_close(&s);
}

static void expect(qn_lora_subject *s, qn_trainable_options o, qn_status status, const char *words)
{
    qn_status got = renew(s, &o);
    if (got != status || !strstr(qn_last_error(), words))
        fail_msg("%s: %s, expected %s with \"%s\"", qn_status_name(got), qn_last_error(),
                 qn_status_name(status), words);
}

static void refuses(void **state)
{
    qn_lora_subject s;
    qn_train_batch b;
    qn_lora_open(&s, base_set(), NULL, 1);
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
    qn_lora_close(&s);
}

/* Each allocation of opening, a step and an evaluation fails once. */
static void out_of_memory(void **state)
{
    qn_lora_subject s;
    qn_lora_open(&s, base_set(), NULL, 1);
    qn_trainer_free(s.trainer);
    s.trainer = NULL;
    const qn_trainer_options o = qn_lora_options(&s, s.batch.n_rows, s.batch.n_sequences);
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
    qn_lora_close(&s);
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

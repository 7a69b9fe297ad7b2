/* A training that is stopped, saved and gone on with in new objects is the same to the last bit as one that
 * was not; files that are damaged or of something else are refused by name, and the trainer stays usable. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "format/files/mmap.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/scratch.h"
#include "tests/support/train_help.h"
#include "train/files/train_state.h"

enum { STEPS = 10, HALF = 5 };

typedef struct {
    qn_train_base base;
    qn_trainer *trainer;
} subject;

static const qn_optimizer adamw = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01},
                          momentum = {.kind = QN_OPTIMIZER_SGD, .momentum = 0.9, .weight_decay = 0.1},
                          plain = {.kind = QN_OPTIMIZER_SGD};

static qn_trainer_options options_of(qn_train_method method, const qn_optimizer *by)
{
    return (qn_trainer_options){.trainable = {.method = method,
                                              .rank = 2,
                                              .alpha = 4,
                                              .dropout = 0.25f,
                                              .targets = "q_proj,down_proj",
                                              .seed = 5},
                                .optimizer = *by,
                                .clip_norm = 1,
                                .max_rows = QN_TEST_BATCH_ROWS,
                                .max_sequences = QN_TEST_BATCH_SEQUENCES,
                                .precision = QN_PRECISION_EXACT};
}

static void open_model(subject *s, const char *fixture)
{
    *s = (subject){0};
    qn_test_ok(qn_train_base_open(qn_test_need_fixture(fixture), NULL, 2, 0, &s->base));
}

static void open_subject(subject *s, const qn_trainer_options *o)
{
    open_model(s, "models/llama");
    qn_test_ok(qn_trainer_new(&s->base, o, &s->trainer));
}

static void renew(subject *s, const qn_trainer_options *o)
{
    qn_trainer_free(s->trainer);
    s->trainer = NULL;
    qn_test_ok(qn_trainer_new(&s->base, o, &s->trainer));
}

static void close_subject(subject *s)
{
    qn_trainer_free(s->trainer);
    qn_train_base_close(&s->base);
}

/* Steps [begin, end), each with a batch of its own. */
static void take_steps(subject *s, int begin, int end, double *losses)
{
    for (int i = begin; i < end; i++) {
        qn_test_batch b;
        qn_trainer_report report;
        qn_test_batch_draw(&b, s->base.config.vocab_size, (uint64_t)i);
        qn_test_ok(qn_trainer_add(s->trainer, &b.batch, NULL));
        qn_test_ok(qn_trainer_update(s->trainer, 0.01 / (1 + i), &report));
        assert_int_equal(report.step, i + 1);
        losses[i] = report.loss;
    }
}

/* Of all numbers that training changes. */
static uint64_t hash_of(subject *s)
{
    const qn_trainable *t = qn_trainer_trainable(s->trainer);
    uint64_t hash = 1;
    for (int64_t i = 0; i < t->n; i++) {
        const float *x[3] = {t->arrays[i].data, qn_trainer_moment(s->trainer, i, 0),
                             qn_trainer_moment(s->trainer, i, 1)};
        for (int k = 0; k < 3; k++)
            if (x[k]) hash = qn_hash_bytes(x[k], (size_t)t->arrays[i].n * sizeof(float), hash);
    }
    return hash;
}

/* ---- going on ------------------------------------------------------------------------------------------ */

static void stop_and_go_on(const qn_trainer_options *o, const char *path)
{
    static const char settings[] = "schedule=linear\nbatch_tokens=40\n";
    const qn_train_state_run run = {.settings = settings,
                                    .seed = UINT64_MAX - 1,
                                    .best_loss = 0.1 + 0.2,
                                    .n_position = 3,
                                    .position = {7, -1, INT64_MIN}};
    double straight[STEPS], stopped[STEPS];
    subject s;
    qn_test_batch b;
    qn_train_state *c;
    open_subject(&s, o);
    take_steps(&s, 0, STEPS, straight);
    const uint64_t want = hash_of(&s);
    close_subject(&s);

    open_subject(&s, o);
    take_steps(&s, 0, HALF, stopped);
    qn_test_batch_draw(&b, s.base.config.vocab_size, 99);
    qn_test_ok(qn_trainer_add(s.trainer, &b.batch, NULL)); /* not kept */
    qn_test_ok(qn_train_state_write(path, s.trainer, &run));
    close_subject(&s);

    open_subject(&s, o);
    qn_test_ok(qn_trainer_add(s.trainer, &b.batch, NULL)); /* dropped */
    qn_test_ok(qn_train_state_open(path, &c));
    assert_int_equal(qn_train_state_steps(c), HALF);
    const qn_train_state_run *got = qn_train_state_get_run(c);
    assert_string_equal(got->settings, settings);
    assert_true(got->seed == run.seed && got->best_loss == run.best_loss);
    assert_int_equal(got->n_position, run.n_position);
    assert_memory_equal(got->position, run.position, sizeof run.position);
    qn_test_ok(qn_train_state_restore(c, s.trainer, settings));
    qn_train_state_close(c);
    take_steps(&s, HALF, STEPS, stopped);
    assert_true(hash_of(&s) == want);
    assert_memory_equal(stopped, straight, sizeof straight);
    close_subject(&s);
}

static void goes_on(void **state)
{
    const qn_optimizer *const by[] = {&adamw, &momentum, &plain};
    const char *scratch = qn_test_scratch();
    char path[600];
    snprintf(path, sizeof path, "%s/state.safetensors", scratch);
    for (int method = QN_TRAIN_LORA; method <= QN_TRAIN_FULL; method++)
        for (int i = 0; i < 3; i++) {
            const qn_trainer_options o = options_of((qn_train_method)method, by[i]);
            stop_and_go_on(&o, path);
        }
    assert_int_equal(qn_test_count_files(scratch), 1);
    qn_test_remove(scratch);
}

/* ---- refusals ------------------------------------------------------------------------------------------ */

/* The trainer is as it was, and goes on. */
static void expect_refused(subject *s, const char *path, const char *settings, const char *words)
{
    qn_train_state *c = NULL;
    double losses[STEPS];
    const uint64_t before = hash_of(s);
    const int64_t steps = qn_trainer_steps(s->trainer);
    qn_status status = qn_train_state_open(path, &c);
    if (status == QN_OK) status = qn_train_state_restore(c, s->trainer, settings);
    qn_train_state_close(c);
    if (status == QN_OK || !strstr(qn_last_error(), words) || !strstr(qn_last_error(), path))
        fail_msg("%s: %s, expected \"%s\"", qn_status_name(status), qn_last_error(), words);
    assert_true(hash_of(s) == before);
    take_steps(s, (int)steps, (int)steps + 1, losses);
}

static void of_something_else(void **state)
{
    const char *scratch = qn_test_scratch();
    char path[600];
    double losses[STEPS];
    subject s;
    qn_trainer_options o = options_of(QN_TRAIN_LORA, &adamw);
    snprintf(path, sizeof path, "%s/state.safetensors", scratch);
    open_subject(&s, &o);
    take_steps(&s, 0, 2, losses);
    qn_test_ok(qn_train_state_write(
        path, s.trainer, &(qn_train_state_run){.best_loss = INFINITY, .settings = "a=1\nlr=2\nz=3\n"}));

    expect_refused(&s, path, "a=1\nlr=3\nz=3\n", "with lr=2; this one has lr=3");
    expect_refused(&s, path, "a=1\nlr=2\n", "with z=3; this one has none");
    expect_refused(&s, path, "a=1\nlr=2\nz=3\nmore=4\n", "with nothing; this one has more=4");
    expect_refused(&s, path, NULL, "with a=1; this one has none");

    const struct {
        qn_trainer_options o;
        const char *words;
    } others[] = {
        {options_of(QN_TRAIN_DORA, &adamw), "method=lora; this one has method=dora"},
        {options_of(QN_TRAIN_FULL, &adamw), "method=lora; this one has method=full"},
        {options_of(QN_TRAIN_LORA, &momentum), "optimizer=adamw; this one has optimizer=sgd"},
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        renew(&s, &others[i].o);
        expect_refused(&s, path, "a=1\nlr=2\nz=3\n", others[i].words);
    }
    const char *settings = "a=1\nlr=2\nz=3\n";
    o = options_of(QN_TRAIN_LORA, &adamw);
    o.trainable.rank = 3;
    renew(&s, &o);
    expect_refused(&s, path, settings, "rank=2");
    o = options_of(QN_TRAIN_LORA, &adamw);
    o.optimizer.beta2 = 0.99;
    renew(&s, &o);
    expect_refused(&s, path, settings, "beta2=");
    o = options_of(QN_TRAIN_LORA, &adamw);
    o.trainable.targets = "q_proj,v_proj";
    renew(&s, &o);
    expect_refused(&s, path, settings, "v_proj.lora_A.weight, which this training has");
    o.trainable.targets = "q_proj";
    renew(&s, &o);
    expect_refused(&s, path, settings, "arrays");

    o = options_of(QN_TRAIN_LORA, &adamw);
    renew(&s, &o);
    expect_refused(&s, qn_test_need_fixture("models/llama/model.safetensors"), settings,
                   "not the state of a training");
    expect_refused(&s, qn_test_need_fixture("models/llama/config.json"), settings, "config.json");
    expect_refused(&s, qn_test_path(scratch, "none.safetensors"), settings, "none.safetensors");
    close_subject(&s);

    if (qn_test_fixture("models/mistral")) {
        open_model(&s, "models/mistral");
        qn_test_ok(qn_trainer_new(&s.base, &o, &s.trainer));
        expect_refused(&s, path, settings, "another base model");
        close_subject(&s);
    }
    open_subject(&s, &o);
    qn_trainer_resume(s.trainer, INT64_MAX); /* no step could follow */
    qn_test_ok(qn_train_state_write(path, s.trainer, &(qn_train_state_run){.best_loss = INFINITY}));
    qn_train_state *c = NULL;
    assert_int_equal(qn_train_state_open(path, &c), QN_E_FORMAT);
    assert_non_null(strstr(qn_last_error(), "quern.steps"));
    close_subject(&s);
    qn_test_remove(scratch);
}

/* Each byte of the header and many of the numbers changed, and the file cut at many places. */
static void damaged(void **state)
{
    const char *scratch = qn_test_scratch();
    char path[600], *bytes;
    size_t n;
    double losses[STEPS];
    subject s;
    qn_train_state *c;
    const qn_trainer_options o = options_of(QN_TRAIN_LORA, &momentum);
    snprintf(path, sizeof path, "%s/state.safetensors", scratch);
    open_subject(&s, &o);
    take_steps(&s, 0, 1, losses);
    qn_test_ok(qn_train_state_write(path, s.trainer, &(qn_train_state_run){.settings = "a=1\n"}));
    qn_test_ok(qn_file_read(path, 1 << 30, &bytes, &n));
    const int64_t live = qn_mem_live_blocks();
    const uint64_t before = hash_of(&s);
    for (size_t i = 0; i < n; i += i < 8000 ? 1 : 997) {
        bytes[i] ^= 1 << i % 8;
        const qn_status status = qn_train_state_open_bytes("state", bytes, n, &c);
        if (status == QN_OK) { /* the header's spaces and the like say nothing */
            qn_test_ok(qn_train_state_restore(c, s.trainer, "a=1\n"));
            qn_train_state_close(c);
            assert_true(i < 8000 && hash_of(&s) == before && qn_trainer_steps(s.trainer) == 1);
        } else {
            assert_int_equal(status, QN_E_FORMAT);
        }
        bytes[i] ^= 1 << i % 8;
    }
    for (size_t cut = 0; cut < n; cut += cut < 200 ? 1 : 1009)
        assert_int_equal(qn_train_state_open_bytes("state", bytes, cut, &c), QN_E_FORMAT);
    assert_int_equal(qn_mem_live_blocks(), live);
    qn_test_write(scratch, "cut.safetensors", bytes, n - 5);
    expect_refused(&s, qn_test_path(scratch, "cut.safetensors"), "a=1\n", "cut.safetensors");
    qn_free(bytes);
    close_subject(&s);
    qn_test_remove(scratch);
}

/* A write that fails leaves the old file; so does each allocation of going on that fails leave the trainer.
 */
static void out_of_memory(void **state)
{
    const char *scratch = qn_test_scratch();
    char path[600];
    double losses[STEPS];
    subject s;
    const qn_trainer_options o = options_of(QN_TRAIN_DORA, &adamw);
    const qn_train_state_run first = {.best_loss = 1}, second = {.best_loss = 2};
    snprintf(path, sizeof path, "%s/state.safetensors", scratch);
    open_subject(&s, &o);
    take_steps(&s, 0, 1, losses);
    qn_test_ok(qn_train_state_write(path, s.trainer, &first));
    const int64_t live = qn_mem_live_blocks();
    for (int64_t n = 1;; n++) {
        const int64_t made = qn_mem_allocations();
        qn_train_state *c = NULL;
        qn_mem_fail_nth(n);
        const qn_status status = qn_train_state_write(path, s.trainer, &second);
        qn_mem_fail_nth(0);
        const int reached = qn_mem_allocations() - made >= n;
        assert_int_equal(status, reached ? QN_E_NOMEM : QN_OK);
        assert_int_equal(qn_mem_live_blocks(), live);
        assert_int_equal(qn_test_count_files(scratch), 1);
        qn_test_ok(qn_train_state_open(path, &c));
        assert_true(qn_train_state_get_run(c)->best_loss == (reached ? 1 : 2));
        qn_train_state_close(c);
        if (!reached) break;
    }
    const uint64_t before = hash_of(&s);
    for (int64_t n = 1;; n++) {
        const int64_t made = qn_mem_allocations();
        qn_train_state *c = NULL;
        qn_mem_fail_nth(n);
        qn_status status = qn_train_state_open(path, &c);
        if (status == QN_OK) status = qn_train_state_restore(c, s.trainer, "");
        qn_train_state_close(c);
        qn_mem_fail_nth(0);
        const int reached = qn_mem_allocations() - made >= n;
        assert_int_equal(status, reached ? QN_E_NOMEM : QN_OK);
        assert_int_equal(qn_mem_live_blocks(), live);
        assert_true(hash_of(&s) == before);
        if (!reached) break;
    }
    assert_int_equal(qn_train_state_write(qn_test_path(scratch, "no/such"), s.trainer, &first), QN_E_IO);
    assert_int_equal(qn_train_state_write(path, s.trainer, &(qn_train_state_run){.n_position = 99}),
                     QN_E_ARG);
    close_subject(&s);
    qn_test_remove(scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(goes_on), cmocka_unit_test(of_something_else),
                                       cmocka_unit_test(damaged), cmocka_unit_test(out_of_memory)};
    return cmocka_run_group_tests_name("train_state", tests, NULL, NULL);
}

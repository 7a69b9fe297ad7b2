/* Many steps leave memory flat, and a step or a state that there was no memory for is an error after which
 * the same training goes on with the same bits. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/map.h"
#include "base/mem.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/scratch.h"
#include "tests/support/train_help.h"
#include "train/files/train_state.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { STEPS = 400 };
#else
enum { STEPS = 2000 };
#endif
enum { WARM = 100, BATCHES = 3, FAILURES_MAX = 2000, EACH = 40, RESUMED = 1 };
static const double rate = 1e-3;

typedef struct {
    qn_train_base base;
    qn_trainer *trainer;
    qn_test_batch batches[BATCHES];
} subject;

static qn_status new_trainer(subject *s, qn_trainer **out)
{
    const qn_trainer_options o = {.trainable = {.rank = 4, .alpha = 8, .seed = 3, .dropout = 0.1f},
                                  .optimizer = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8},
                                  .clip_norm = 1,
                                  .max_rows = QN_TEST_BATCH_ROWS,
                                  .max_sequences = QN_TEST_BATCH_SEQUENCES,
                                  .precision = QN_PRECISION_EXACT};
    return qn_trainer_new(&s->base, &o, out);
}

static void begin(subject *s)
{
    *s = (subject){0};
    qn_test_ok(qn_train_base_open(qn_test_need_fixture("models/llama"), NULL, 1, 0, &s->base));
    for (int i = 0; i < BATCHES; i++)
        qn_test_batch_draw(&s->batches[i], s->base.config.vocab_size, (uint64_t)i + 1);
    qn_test_ok(new_trainer(s, &s->trainer));
}

static void end(subject *s)
{
    qn_trainer_free(s->trainer);
    qn_train_base_close(&s->base);
}

/* Two batches in every fourth step, and then a look at another one. */
static qn_status step(subject *s)
{
    const int64_t i = qn_trainer_steps(s->trainer);
    double loss;
    QN_TRY(qn_trainer_add(s->trainer, &s->batches[i % BATCHES].batch, NULL));
    if (i % 4) return qn_trainer_update(s->trainer, rate, NULL);
    QN_TRY(qn_trainer_add(s->trainer, &s->batches[(i + 1) % BATCHES].batch, NULL));
    QN_TRY(qn_trainer_update(s->trainer, rate, NULL));
    return qn_trainer_evaluate(s->trainer, &s->batches[(i + 2) % BATCHES].batch, &loss);
}

static uint64_t hash_numbers(qn_trainer *t)
{
    const qn_trainable *what = qn_trainer_trainable(t);
    uint64_t hash = 1;
    for (int64_t i = 0; i < what->n; i++)
        hash =
            qn_hash_bytes(qn_trainable_numbers(&what->arrays[i]), qn_trainable_bytes(&what->arrays[i]), hash);
    return hash;
}

static int64_t resident_bytes(void)
{
    long long all = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f) return 0;
    if (fscanf(f, "%lld %lld", &all, &resident) != 2) resident = 0;
    fclose(f);
    return (int64_t)resident * sysconf(_SC_PAGESIZE);
}

static void flat(void **state)
{
    subject s;
    int64_t blocks = 0, resident = 0;
    size_t ledger = 0;
    begin(&s);
    for (int i = 0; i < STEPS; i++) {
        qn_test_ok(step(&s));
        if (i + 1 == WARM) {
            blocks = qn_mem_live_blocks();
            ledger = qn_ledger_total(s.base.device->ledger);
            resident = resident_bytes();
        }
    }
    const int64_t more = resident_bytes() - resident;
    printf("%d steps: %lld blocks, resident memory grew by %lld KiB after step %d\n", STEPS,
           (long long)qn_mem_live_blocks(), (long long)(more / 1024), WARM);
    assert_int_equal(qn_mem_live_blocks(), blocks);
    assert_int_equal(qn_ledger_total(s.base.device->ledger), ledger);
    assert_true(more < 1 << 20);
    end(&s);
}

/* From the file into a new trainer. */
static void restart(subject *s, const char *path)
{
    qn_train_state *c;
    qn_trainer_free(s->trainer);
    s->trainer = NULL;
    qn_test_ok(new_trainer(s, &s->trainer));
    qn_test_ok(qn_train_state_open(path, &c));
    qn_test_ok(qn_train_state_restore(c, s->trainer, NULL));
    qn_train_state_close(c);
}

/* Allocations of two steps that save fail, one at a time: each of the first, then a sample. What is saved
 * after that can be gone on from, with the numbers of who never failed. */
static void failures(void **state)
{
    const qn_train_state_run run = {.best_loss = INFINITY};
    const char *folder = qn_test_scratch();
    char path[600];
    uint64_t wanted = 0;
    subject s;
    int64_t n_failed = 0;
    snprintf(path, sizeof path, "%s", qn_test_path(folder, "state"));
    begin(&s);
    for (int i = 0; i < 2 + RESUMED; i++) qn_test_ok(step(&s));
    wanted = hash_numbers(s.trainer);
    qn_trainer_free(s.trainer);
    s.trainer = NULL;
    const int64_t live = qn_mem_live_blocks();
    for (int64_t n = 1; n <= FAILURES_MAX; n += n < EACH ? 1 : 31) {
        const int64_t made = qn_mem_allocations();
        qn_test_ok(new_trainer(&s, &s.trainer));
        const int64_t first = qn_mem_allocations() - made;
        qn_mem_fail_nth(n);
        qn_status status = QN_OK;
        for (int i = 0; i < 2 && status == QN_OK; i++) {
            status = step(&s);
            if (status == QN_OK) status = qn_train_state_write(path, s.trainer, &run);
        }
        qn_mem_fail_nth(0);
        const int reached = qn_mem_allocations() - made - first >= n;
        if (status != (reached ? QN_E_NOMEM : QN_OK))
            fail_msg("allocation %d: %s, %s", (int)n, qn_status_name(status), qn_last_error());
        n_failed += reached;
        qn_test_ok(qn_train_state_write(path, s.trainer, &run));
        restart(&s, path);
        while (qn_trainer_steps(s.trainer) < 2 + RESUMED) qn_test_ok(step(&s));
        if (hash_numbers(s.trainer) != wanted) fail_msg("allocation %d: other numbers", (int)n);
        qn_trainer_free(s.trainer);
        s.trainer = NULL;
        assert_int_equal(qn_mem_live_blocks(), live);
        if (!reached) break;
    }
    printf("%lld failures\n", (long long)n_failed);
    assert_true(n_failed > 10);
    end(&s);
    qn_test_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(flat), cmocka_unit_test(failures)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

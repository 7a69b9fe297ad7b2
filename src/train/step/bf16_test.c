/* Factors that are kept in bf16: how their numbers are rounded, that they learn as those of f32 do at half
 * the bytes, and that states and files keep them to the last bit. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "quant/types.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/scratch.h"
#include "tests/support/train_help.h"
#include "train/files/train_state.h"
#include "train/files/trainable_file.h"

enum { STEPS = 100, BATCHES = 4 };

typedef struct {
    char path[512];
    qn_train_base base;
    qn_trainer *trainer;
    qn_test_batch batches[BATCHES];
} subject;

static qn_trainer_options options_of(qn_trainable_options what)
{
    return (qn_trainer_options){
        .trainable = what,
        .optimizer = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01},
        .max_rows = QN_TEST_BATCH_ROWS,
        .max_sequences = QN_TEST_BATCH_SEQUENCES,
        .precision = QN_PRECISION_EXACT};
}

static void open_trainer(subject *s, qn_trainable_options what)
{
    const qn_trainer_options o = options_of(what);
    qn_trainer_free(s->trainer);
    s->trainer = NULL;
    qn_test_ok(qn_trainer_new(&s->base, &o, &s->trainer));
}

static void begin(subject *s, int n_threads)
{
    *s = (subject){0};
    snprintf(s->path, sizeof s->path, "%s", qn_test_need_fixture("models/llama"));
    qn_test_ok(qn_train_base_open(s->path, NULL, n_threads, 0, &s->base));
    for (int i = 0; i < BATCHES; i++)
        qn_test_batch_draw(&s->batches[i], s->base.config.vocab_size, (uint64_t)i + 1);
}

static void end(subject *s)
{
    qn_trainer_free(s->trainer);
    qn_train_base_close(&s->base);
}

static double steps(subject *s, int n, double rate)
{
    qn_trainer_report r = {0};
    for (int i = 0; i < n; i++) {
        const int64_t turn = qn_trainer_steps(s->trainer) % BATCHES;
        qn_test_ok(qn_trainer_add(s->trainer, &s->batches[turn].batch, NULL));
        qn_test_ok(qn_trainer_update(s->trainer, rate, &r));
    }
    return r.loss;
}

static const qn_trainable_options lora = {.rank = 4, .alpha = 8, .seed = 3};

static qn_trainable_options in_bf16(qn_trainable_options o)
{
    o.bf16 = 1;
    return o;
}

/* One of the two neighbours, on average the number itself; what is a bf16 number stays; so do infinity and
 * NaN. */
static void rounds_fairly(void **state)
{
    enum { N = 20000 };
    static const float some[] = {1.0f, 1.001f, -1.003f, 3.1e-5f, -250.3f, 0};
    static uint16_t halves[N];
    static float numbers[N];
    qn_trainable_array a = {.n = N, .dtype = QN_DTYPE_BF16, .halves = halves};
    for (size_t c = 0; c < sizeof some / sizeof *some; c++) {
        uint32_t bits;
        float low, high;
        double sum = 0;
        memcpy(&bits, &some[c], sizeof bits);
        bits &= 0xffff0000u;
        memcpy(&low, &bits, sizeof low);
        bits += 0x10000u;
        memcpy(&high, &bits, sizeof high);
        for (int i = 0; i < N; i++) numbers[i] = some[c];
        qn_trainable_write_drawn(&a, 0, N, numbers, 9);
        for (int i = 0; i < N; i++) {
            const float x = qn_bf16_to_f32(halves[i]);
            assert_true(x == low || (x == high && low != some[c]));
            sum += (double)x;
        }
        /* five times the deviation of such a mean at most */
        assert_true(fabs(sum / N - (double)some[c]) <= 2.5 * fabs((double)(high - low)) / sqrt(N));
    }
    const float ends[3] = {INFINITY, -INFINITY, NAN};
    float back[3];
    qn_trainable_write_drawn(&a, 0, 3, ends, 9);
    qn_trainable_read(&a, 0, 3, back);
    assert_true(back[0] == INFINITY && back[1] == -INFINITY && isnan(back[2]));
}

/* In pieces of an array the draws are those of the whole. */
static void draws_by_place(void **state)
{
    enum { N = 100 };
    uint16_t whole[N], pieces[N], other[N];
    float numbers[N];
    qn_trainable_array a = {.n = N, .dtype = QN_DTYPE_BF16, .halves = whole};
    for (int i = 0; i < N; i++) numbers[i] = 0.1f + 0.003f * (float)i;
    qn_trainable_write_drawn(&a, 0, N, numbers, 5);
    a.halves = pieces;
    for (int i = 0; i < N; i += 7) qn_trainable_write_drawn(&a, i, N - i < 7 ? N - i : 7, numbers + i, 5);
    assert_memory_equal(whole, pieces, sizeof whole);
    a.halves = other;
    qn_trainable_write_drawn(&a, 0, N, numbers, 6);
    assert_memory_not_equal(whole, other, sizeof whole);
}

static size_t bytes_of(const qn_trainable *t)
{
    size_t bytes = 0;
    for (int64_t i = 0; i < t->n; i++) bytes += qn_trainable_bytes(&t->arrays[i]);
    return bytes;
}

/* The loss after 100 steps is f32's within 1%, at half the bytes; with DoRA too, whose magnitudes stay f32.
 */
static void learns_as_f32(void **state)
{
    static const qn_train_method methods[] = {QN_TRAIN_LORA, QN_TRAIN_DORA};
    for (int m = 0; m < 2; m++) {
        subject s;
        qn_trainable_options what = lora;
        double losses[2], first[2];
        size_t bytes[2];
        begin(&s, 2);
        what.method = methods[m];
        for (int bf16 = 0; bf16 < 2; bf16++) {
            what.bf16 = bf16;
            open_trainer(&s, what);
            first[bf16] = steps(&s, 1, 1e-3);
            losses[bf16] = steps(&s, STEPS - 1, 1e-3);
            bytes[bf16] = bytes_of(qn_trainer_trainable(s.trainer));
        }
        printf("%s: loss %.4f, after %d steps %.4f in f32 and %.4f in bf16; %zu and %zu bytes\n",
               m ? "DoRA" : "LoRA", first[0], STEPS, losses[0], losses[1], bytes[0], bytes[1]);
        assert_true(fabs(first[0] - first[1]) <= 1e-5); /* B is zero */
        assert_true(losses[0] < 0.9 * first[0]);
        assert_true(fabs(losses[1] - losses[0]) <= 0.01 * losses[0]);
        assert_true(m ? bytes[1] < 0.6 * (double)bytes[0] : 2 * bytes[1] == bytes[0]);
        end(&s);
    }
}

static void *all_numbers(subject *s, size_t *n)
{
    const qn_trainable *t = qn_trainer_trainable(s->trainer);
    char *all = qn_alloc_array(bytes_of(t), 1);
    *n = 0;
    for (int64_t i = 0; i < t->n; i++) {
        memcpy(all + *n, qn_trainable_numbers(&t->arrays[i]), qn_trainable_bytes(&t->arrays[i]));
        *n += qn_trainable_bytes(&t->arrays[i]);
    }
    return all;
}

/* The same bits with any number of threads, and on from a state. */
static void same_bits(void **state)
{
    void *kept = NULL;
    size_t n = 0, m = 0;
    const char *folder = qn_test_scratch();
    char path[600];
    const qn_train_state_run run = {.best_loss = INFINITY};
    snprintf(path, sizeof path, "%s", qn_test_path(folder, "state"));
    for (int way = 0; way < 3; way++) {
        subject s;
        begin(&s, way == 1 ? 3 : 1);
        open_trainer(&s, in_bf16(lora));
        (void)steps(&s, 3, 1e-3);
        if (way == 2) {
            qn_train_state *c;
            qn_test_ok(qn_train_state_write(path, s.trainer, &run));
            open_trainer(&s, lora);
            qn_test_ok(qn_train_state_open(path, &c));
            assert_int_equal(qn_train_state_restore(c, s.trainer, NULL), QN_E_UNSUPPORTED);
            assert_non_null(strstr(qn_last_error(), "adapter=bf16"));
            open_trainer(&s, in_bf16(lora));
            qn_test_ok(qn_train_state_restore(c, s.trainer, NULL));
            qn_train_state_close(c);
        }
        (void)steps(&s, 3, 1e-3);
        void *numbers = all_numbers(&s, &m);
        if (kept) {
            assert_int_equal(n, m);
            assert_memory_equal(kept, numbers, n);
        } else {
            n = m;
        }
        qn_free(kept);
        kept = numbers;
        end(&s);
    }
    qn_free(kept);
    qn_test_remove(folder);
}

/* What is written has all bits of what was trained, in half the bytes of f32. */
static void files(void **state)
{
    subject s;
    qn_buf notes = {0};
    size_t n, m;
    struct stat sizes[2];
    const char *folder = qn_test_scratch();
    char path[600];
    snprintf(path, sizeof path, "%s", qn_test_path(folder, "adapter"));
    begin(&s, 2);
    open_trainer(&s, in_bf16(lora));
    (void)steps(&s, 3, 1e-2);
    void *before = all_numbers(&s, &n);
    qn_test_ok(qn_trainable_save(qn_trainer_trainable(s.trainer), &s.base, path, NULL));
    assert_int_equal(stat(qn_test_path(path, "adapter_model.safetensors"), &sizes[0]), 0);
    open_trainer(&s, in_bf16(lora));
    qn_test_ok(qn_trainable_load(qn_trainer_trainable(s.trainer), &s.base, path, &notes));
    void *after = all_numbers(&s, &m);
    assert_int_equal(n, m);
    assert_memory_equal(before, after, n);
    open_trainer(&s, lora);
    qn_test_ok(qn_trainable_load(qn_trainer_trainable(s.trainer), &s.base, path, &notes));
    qn_test_ok(qn_trainable_save(qn_trainer_trainable(s.trainer), &s.base, path, NULL));
    assert_int_equal(stat(qn_test_path(path, "adapter_model.safetensors"), &sizes[1]), 0);
    const int64_t more = (int64_t)(sizes[1].st_size - sizes[0].st_size), header = 1024;
    assert_true(more > (int64_t)n - header && more < (int64_t)n + header);
    qn_free(before);
    qn_free(after);
    qn_buf_free(&notes);
    end(&s);
    qn_test_remove(folder);
}

static void refuses(void **state)
{
    subject s;
    begin(&s, 1);
    const qn_trainer_options o = options_of((qn_trainable_options){.method = QN_TRAIN_FULL, .bf16 = 1});
    assert_int_equal(qn_trainer_new(&s.base, &o, &s.trainer), QN_E_ARG);
    assert_non_null(strstr(qn_last_error(), "whole weights"));
    end(&s);
}

static void out_of_memory(void **state)
{
    subject s;
    const char *folder = qn_test_scratch();
    char path[600];
    snprintf(path, sizeof path, "%s", qn_test_path(folder, "adapter"));
    begin(&s, 1);
    const qn_trainer_options o = options_of(in_bf16(lora));
    const int64_t live = qn_mem_live_blocks();
    int64_t n = 1;
    for (;; n += n < 100 ? 1 : 97) {
        const int64_t made = qn_mem_allocations();
        qn_mem_fail_nth(n);
        qn_status status = qn_trainer_new(&s.base, &o, &s.trainer);
        if (status == QN_OK) status = qn_trainer_add(s.trainer, &s.batches[0].batch, NULL);
        if (status == QN_OK) status = qn_trainer_update(s.trainer, 1e-3, NULL);
        if (status == QN_OK) status = qn_trainable_save(qn_trainer_trainable(s.trainer), &s.base, path, NULL);
        qn_mem_fail_nth(0);
        const int reached = qn_mem_allocations() - made >= n;
        if (status != (reached ? QN_E_NOMEM : QN_OK))
            fail_msg("allocation %d: %s, %s", (int)n, qn_status_name(status), qn_last_error());
        qn_trainer_free(s.trainer);
        s.trainer = NULL;
        assert_int_equal(qn_mem_live_blocks(), live);
        if (!reached) break;
    }
    assert_true(n > 100);
    end(&s);
    qn_test_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rounds_fairly), cmocka_unit_test(draws_by_place),
                                       cmocka_unit_test(learns_as_f32), cmocka_unit_test(same_bits),
                                       cmocka_unit_test(files),         cmocka_unit_test(refuses),
                                       cmocka_unit_test(out_of_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Losses of a data set: line by line as the engine computes them, whatever lines share a batch; bad lines,
 * splits, adapters, and what is refused. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <quern/quern.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/scratch.h"

enum { LINES_MAX = 64, PATH_BYTES = 600 };

typedef struct {
    char folder[PATH_BYTES], file[PATH_BYTES], model[PATH_BYTES];
} place;

static place begin(const char *model)
{
    place p;
    snprintf(p.model, sizeof p.model, "%s", qn_test_need_fixture(model));
    snprintf(p.folder, sizeof p.folder, "%s", qn_test_scratch());
    qn_buf b = {0};
    qn_buf_puts(&b, "\n{\"ids\":[7]}\n");
    for (int i = 0; i < 20; i++) {
        qn_buf_puts(&b, "{\"ids\":[");
        for (int k = 0; k < 2 + i * 5 % 17; k++)
            qn_buf_printf(&b, "%s%d", k ? "," : "", 3 + (i * 31 + k * 7) % 90);
        qn_buf_puts(&b, "]}\n");
    }
    qn_buf_puts(&b, "{\"ids\":[5,6,7,8],\"counts\":[1,0,0,1]}\nnot json");
    snprintf(p.file, sizeof p.file, "%s", qn_test_write(p.folder, "valid.jsonl", b.data, b.length));
    qn_buf_free(&b);
    return p;
}

typedef struct {
    qn_evaluate_line lines[LINES_MAX];
    int64_t n, n_bad, stop_at;
} seen;

static qn_status note_line(void *user, const qn_evaluate_line *line)
{
    seen *s = user;
    assert_true(s->n < LINES_MAX && (!s->n || line->line > s->lines[s->n - 1].line));
    s->lines[s->n++] = *line;
    if (line->bad) {
        assert_true(*line->bad && !line->n_counted);
        s->n_bad++;
    } else {
        assert_true(line->n_counted > 0 && line->n_tokens > line->n_counted && isfinite(line->loss));
    }
    return s->stop_at && s->n == s->stop_at ? QN_E_CANCELLED : QN_OK;
}

static qn_evaluate_options options_of(const place *p, seen *s)
{
    return (qn_evaluate_options){.model_path = p->model,
                                 .data_path = p->folder,
                                 .precision = QN_PRECISION_EXACT,
                                 .n_threads = 2,
                                 .notify = note_line,
                                 .user = s};
}

static void line_by_line(void **state)
{
    static const char *const models[] = {"models/llama", "models/qwen3_5", "models/gemma3_text"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        const place p = begin(models[m]);
        seen all = {0}, few = {0};
        qn_evaluate_options o = options_of(&p, &all);
        qn_evaluate_result whole, again;
        qn_test_ok(qn_evaluate_data(&o, &whole));
        assert_int_equal(all.n, 23);
        assert_int_equal(all.n_bad, 2);
        assert_int_equal(whole.n_lines, 23);
        assert_int_equal(whole.n_bad_lines, 2);
        assert_int_equal(all.lines[0].line, 2);
        assert_int_equal(all.lines[21].n_counted, 1);
        assert_int_equal(all.lines[22].line, 24);
        double sum = 0;
        int64_t n_counted = 0, n_tokens = 0;
        for (int64_t i = 0; i < all.n; i++) {
            sum += all.lines[i].loss * (double)all.lines[i].n_counted;
            n_counted += all.lines[i].n_counted;
            n_tokens += all.lines[i].n_tokens;
        }
        assert_int_equal(n_counted, whole.n_counted);
        assert_int_equal(n_tokens, whole.n_tokens);
        assert_true(fabs(sum / (double)n_counted - whole.loss) < 1e-12);
        assert_true(whole.perplexity == exp(whole.loss) && whole.peak_memory_bytes > 0);

        /* Other batches, other threads: the same bits. */
        o.user = &few;
        o.batch_tokens = 20;
        o.max_length = 20;
        o.n_threads = 1;
        qn_test_ok(qn_evaluate_data(&o, &again));
        assert_true(again.loss == whole.loss);
        for (int64_t i = 0; i < all.n; i++) assert_true(few.lines[i].loss == all.lines[i].loss);

        few = (seen){0};
        o.max_lines = 4;
        qn_test_ok(qn_evaluate_data(&o, &again));
        assert_int_equal(few.n, 4);
        assert_int_equal(again.n_lines, 4);
        few = (seen){.stop_at = 3};
        assert_int_equal(qn_evaluate_data(&o, &again), QN_E_CANCELLED);
        assert_int_equal(few.n, 3);
        qn_test_remove(p.folder);
    }
}

/* What a training calls its validation's loss, and the loss with an adapter on a scale. */
static void with_adapters(void **state)
{
    const place p = begin("models/llama");
    char adapter[PATH_BYTES];
    snprintf(adapter, sizeof adapter, "%s", qn_test_need_fixture("lora/llama_qv"));
    qn_test_copy(p.folder, "train.jsonl", p.file);
    const qn_train_options training = {.model_path = p.model,
                                       .data_path = p.folder,
                                       .targets = "q_proj,v_proj",
                                       .rank = 4,
                                       .alpha = 8,
                                       .start_path = adapter,
                                       .precision = QN_PRECISION_EXACT};
    qn_training *t;
    double want, plain;
    qn_test_ok(qn_training_open(&training, &t));
    qn_test_ok(qn_training_validate(t, &want));
    qn_training_close(t);
    qn_evaluate_options o = options_of(&p, NULL);
    qn_evaluate_result whole;
    o.notify = NULL;
    qn_test_ok(qn_evaluate_data(&o, &whole));
    plain = whole.loss;
    o.adapter_path = adapter;
    qn_test_ok(qn_evaluate_data(&o, &whole));
    assert_true(fabs(whole.loss - want) < 2e-5 && fabs(whole.loss - plain) > 1e-3);
    o.adapter_scale = 1e-30f;
    qn_test_ok(qn_evaluate_data(&o, &whole));
    assert_true(fabs(whole.loss - plain) < 1e-6);
    qn_test_remove(p.folder);
}

static void expect(const qn_evaluate_options *o, qn_status status, const char *words)
{
    const int64_t live = qn_mem_live_blocks();
    qn_evaluate_result whole = {.n_lines = -1};
    const qn_status got = qn_evaluate_data(o, &whole);
    if (got != status || !strstr(qn_last_error(), words))
        fail_msg("%s: %s, expected %s with \"%s\"", qn_status_name(got), qn_last_error(),
                 qn_status_name(status), words);
    assert_int_equal(whole.n_lines, -1);
    assert_int_equal(qn_mem_live_blocks(), live);
}

static void refuses(void **state)
{
    const place p = begin("models/llama");
    const qn_evaluate_options o = options_of(&p, NULL);
#define WITH(field, value, status, words) \
    do {                                  \
        qn_evaluate_options other = o;    \
        other.notify = NULL;              \
        other.field = value;              \
        expect(&other, status, words);    \
    } while (0)
    WITH(model_path, NULL, QN_E_ARG, "no model");
    WITH(model_path, p.folder, QN_E_NOT_FOUND, "");
    WITH(data_path, NULL, QN_E_ARG, "no data");
    WITH(data_path, "/no/such/data", QN_E_IO, "/no/such/data");
    WITH(split, "test", QN_E_NOT_FOUND, "no split test");
    WITH(split, "holdout", QN_E_ARG, "no split \"holdout\"");
    WITH(adapter_path, p.folder, QN_E_NOT_FOUND, "");
    WITH(adapter_scale, NAN, QN_E_ARG, "scale");
    WITH(mask, (qn_mask)9, QN_E_ARG, "mask 9");
    WITH(precision, (qn_precision)9, QN_E_ARG, "precision 9");
    WITH(max_length, 1, QN_E_ARG, "lines of 1 tokens");
    WITH(max_length, INT64_MAX, QN_E_ARG, "lines of");
    WITH(batch_tokens, -1, QN_E_ARG, "batches of -1 tokens");
    WITH(max_lines, -1, QN_E_ARG, "lines to evaluate is -1");
    WITH(n_threads, -1, QN_E_ARG, "-1 threads");
    WITH(strict, 1, QN_E_ARG, "valid.jsonl:2: none of its 1 tokens");
    WITH(max_lines, 1, QN_E_ARG, "no line can be evaluated");
    WITH(memory_limit_bytes, 1000, QN_E_NOMEM, "");
#undef WITH
    /* The last split there is, unless one is named; a file is what it is. */
    qn_evaluate_result whole;
    qn_evaluate_options other = o;
    other.notify = NULL;
    qn_test_write_text(p.folder, "test.jsonl", "{\"ids\":[1,2]}\n");
    qn_test_ok(qn_evaluate_data(&other, &whole));
    assert_int_equal(whole.n_lines, 1);
    other.split = "valid";
    qn_test_ok(qn_evaluate_data(&other, &whole));
    assert_int_equal(whole.n_lines, 23);
    other.split = NULL;
    other.data_path = p.file;
    qn_test_ok(qn_evaluate_data(&other, &whole));
    assert_int_equal(whole.n_lines, 23);
    qn_test_remove(p.folder);
}

static void out_of_memory(void **state)
{
    const place p = begin("models/llama");
    char adapter[PATH_BYTES];
    snprintf(adapter, sizeof adapter, "%s", qn_test_need_fixture("lora/llama_qv"));
    qn_evaluate_options o = options_of(&p, NULL);
    o.notify = NULL;
    o.adapter_path = adapter;
    o.n_threads = 1;
    const int64_t live = qn_mem_live_blocks();
    for (int64_t n = 1, reached = 1; reached; n += n < 200 ? 1 : 37) {
        const int64_t made = qn_mem_allocations();
        qn_evaluate_result whole;
        qn_mem_fail_nth(n);
        const qn_status status = qn_evaluate_data(&o, &whole);
        qn_mem_fail_nth(0);
        reached = qn_mem_allocations() - made >= n;
        if (status != (reached ? QN_E_NOMEM : QN_OK))
            fail_msg("allocation %lld: %s, %s", (long long)n, qn_status_name(status), qn_last_error());
        assert_int_equal(qn_mem_live_blocks(), live);
    }
    qn_test_remove(p.folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(line_by_line), cmocka_unit_test(with_adapters),
                                       cmocka_unit_test(refuses), cmocka_unit_test(out_of_memory)};
    return cmocka_run_group_tests_name("evaluate_data", tests, NULL, NULL);
}

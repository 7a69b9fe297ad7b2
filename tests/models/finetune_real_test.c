/* SmolLM2-135M (a Q4_1 base) learns a small task (tests/golden/orders): the loss falls, and so does the
 * number of answers that are wrong on notes that it never saw; shortly here. With QUERN_FINETUNE set to a
 * folder, all that another library needs to do the same is left there, for tools/finetune_check.py: the
 * adapters before and after, the batches and their losses. QUERN_FINETUNE_PRECISION: exact, high (default) or
 * fast. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <jansson.h>
#include <quern/quern.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/scratch.h"
#include "train/data/dataset.h"
#include "train/files/trainable_file.h"
#include "train/step/trainer.h"

enum {
    STEPS = 100,
    SHORT_STEPS = 40,
    SHORT_LINES = 30,
    BATCH_TOKENS = 384,
    RANK = 8,
    LINES_MAX = 200,
    ANSWER_TOKENS = 24
};
static const char orders[] = "tests/golden/orders";
static const double rate = 1e-4, betas[2] = {0.9, 0.999}, eps = 1e-8, weight_decay = 0.01, alpha = 16;

typedef struct {
    char *prompts[LINES_MAX], *answers[LINES_MAX];
    size_t n;
} questions;

/* ---- answers ------------------------------------------------------------------------------------------ */

static char *text_of(const json_t *line, const char *key)
{
    const char *text = json_string_value(json_object_get(line, key));
    if (!text) fail_msg("%s: a line without %s", orders, key);
    return qn_strdup(text);
}

static void read_questions(questions *q, size_t most)
{
    char path[256];
    *q = (questions){0};
    snprintf(path, sizeof path, "%s/test.jsonl", orders);
    FILE *f = fopen(path, "r");
    if (!f) fail_msg("%s is missing", path);
    for (json_t *line; q->n < most && (line = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL)); q->n++) {
        q->prompts[q->n] = text_of(line, "prompt");
        q->answers[q->n] = text_of(line, "completion");
        json_decref(line);
    }
    fclose(f);
    assert_true(q->n > 0);
}

static void free_questions(questions *q)
{
    for (size_t i = 0; i < q->n; i++) {
        qn_free(q->prompts[i]);
        qn_free(q->answers[i]);
    }
}

/* Which part of the answers is right to the last letter. adapter NULL: by the model alone. */
static double accuracy(const char *model_path, const char *adapter, const questions *q)
{
    qn_model *model;
    qn_batch *batch;
    qn_message messages[LINES_MAX];
    qn_prompt prompts[LINES_MAX];
    size_t right = 0;
    qn_test_ok(qn_model_open(
        model_path, &(qn_model_options){.adapter_path = adapter, .parallel_slots = 8, .context_size = 512},
        &model));
    for (size_t i = 0; i < q->n; i++) {
        messages[i] = (qn_message){.role = "user", .content = q->prompts[i]};
        prompts[i] = (qn_prompt){.messages = &messages[i], .n_messages = 1};
    }
    qn_test_ok(
        qn_batch_open(model, prompts, q->n, &(qn_generate_options){.max_tokens = ANSWER_TOKENS}, &batch));
    for (;;) {
        qn_batch_result r;
        int is_there;
        qn_test_ok(qn_batch_next(batch, &r, &is_there));
        if (!is_there) break;
        qn_test_ok(r.status);
        right += strcmp(r.text, q->answers[r.i_prompt]) == 0;
    }
    qn_batch_close(batch);
    qn_model_close(&model);
    return (double)right / (double)q->n;
}

/* ---- training ----------------------------------------------------------------------------------------- */

typedef struct {
    char path[512]; /* of the model */
    const char *folder;
    qn_train_base base;
    qn_trainer *trainer;
    qn_chat_text *text;
    qn_dataset *set;
    FILE *log;
} run;

static qn_precision wanted_precision(void)
{
    const char *name = getenv("QUERN_FINETUNE_PRECISION");
    for (int p = 0; name && p < 3; p++)
        if (strcmp(name, qn_test_precision_name((qn_precision)p)) == 0) return (qn_precision)p;
    return QN_PRECISION_HIGH;
}

static void begin(run *r)
{
    char *file = NULL;
    qn_source *source;
    const qn_trainer_options o = {
        .trainable = {.rank = RANK, .alpha = (float)alpha, .seed = 1},
        .optimizer = {.beta1 = betas[0], .beta2 = betas[1], .eps = eps, .weight_decay = weight_decay},
        .max_rows = BATCH_TOKENS,
        .max_sequences = BATCH_TOKENS,
        .precision = wanted_precision()};
    qn_test_ok(qn_source_open(r->path, &(qn_source_options){.text_only = 1}, &source));
    qn_test_ok(qn_chat_text_open(source, NULL, &r->text));
    qn_source_close(source);
    qn_test_ok(qn_dataset_find(orders, QN_SPLIT_TRAIN, &file));
    qn_test_ok(qn_dataset_open(
        file, r->text,
        &(qn_dataset_options){.max_length = BATCH_TOKENS, .batch_tokens = BATCH_TOKENS, .seed = 1}, &r->set));
    qn_free(file);
    qn_test_ok(qn_train_base_open(r->path, NULL, 0, 0, &r->base));
    qn_test_ok(qn_trainer_new(&r->base, &o, &r->trainer));
}

static void end(run *r)
{
    if (r->log) fclose(r->log);
    qn_trainer_free(r->trainer);
    qn_train_base_close(&r->base);
    qn_dataset_close(r->set);
    qn_chat_text_close(r->text);
}

static void save(run *r, const char *name)
{
    qn_test_ok(
        qn_trainable_save(qn_trainer_trainable(r->trainer), &r->base, qn_test_path(r->folder, name), NULL));
}

static json_t *numbers(const int32_t *x, int64_t n)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < n; i++) json_array_append_new(list, json_integer(x[i]));
    return list;
}

/* A line: the settings first, then each step's batch and loss. */
static void log_line(run *r, json_t *line)
{
    if (json_dumpf(line, r->log, JSON_REAL_PRECISION(17)) || fputc('\n', r->log) == EOF) fail_msg("no log");
    json_decref(line);
}

static double step(run *r)
{
    qn_train_batch b = {0};
    qn_trainer_report report = {0};
    while (!b.n_sequences) qn_test_ok(qn_dataset_next(r->set, &b));
    qn_test_ok(qn_trainer_add(r->trainer, &b, NULL));
    qn_test_ok(qn_trainer_update(r->trainer, rate, &report));
    log_line(r, json_pack("{s:o, s:o, s:o, s:o, s:f, s:f}", "ids", numbers(b.ids, b.n_rows), "row_begin",
                          numbers(b.row_begin, b.n_sequences + 1), "rows", numbers(b.rows, b.n_targets),
                          "targets", numbers(b.targets, b.n_targets), "loss", report.loss, "grad_norm",
                          report.grad_norm));
    return report.loss;
}

static double mean(const double *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i];
    return sum / n;
}

static void learns_orders(void **state)
{
    run r = {0};
    questions q;
    double losses[STEPS];
    const char *kept = getenv("QUERN_FINETUNE");
    snprintf(r.path, sizeof r.path, "%s", qn_test_need_model("smollm2"));
    r.folder = kept && *kept ? kept : qn_test_scratch();
    read_questions(&q, r.folder == kept ? LINES_MAX : SHORT_LINES);
    begin(&r);
    if (!(r.log = fopen(qn_test_path(r.folder, "run.jsonl"), "w"))) fail_msg("%s: no run.jsonl", r.folder);
    save(&r, "start");
    log_line(&r, json_pack("{s:s, s:s, s:f, s:[f, f], s:f, s:f}", "model", r.path, "precision",
                           qn_test_precision_name(wanted_precision()), "lr", rate, "betas", betas[0],
                           betas[1], "eps", eps, "weight_decay", weight_decay));
    const int n = r.folder == kept ? STEPS : SHORT_STEPS;
    for (int i = 0; i < n; i++) losses[i] = step(&r);
    save(&r, "trained");
    end(&r);
    const double first = mean(losses, 10), last = mean(losses + n - 10, 10);
    const double before = accuracy(r.path, NULL, &q),
                 after = accuracy(r.path, qn_test_path(r.folder, "trained"), &q);
    printf("loss %.4f, after %d steps %.4f; of %zu answers %.0f%% were right, now %.0f%%\n", first, n, last,
           q.n, 100 * before, 100 * after);
    assert_true(last < 0.5 * first);
    assert_true(after >= before + 0.4);
    free_questions(&q);
    if (r.folder != kept) qn_test_remove(r.folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(learns_orders)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

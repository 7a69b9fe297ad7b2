/* Trainings by the public API: that one which stopped goes on as if it had not, what is on disk whenever it
 * ends, where numbers that are not finite come from, and what is refused. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <jansson.h>
#include <math.h>
#include <quern/quern.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "format/files/mmap.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/scratch.h"
#include "train/run/run.h"

enum { PATH_BYTES = 600, N_LINES = 13, N_VALID_LINES = 5 };

/* A folder with data, and the model. */
typedef struct {
    char folder[PATH_BYTES], model[PATH_BYTES], data[PATH_BYTES];
} place;

static char *make_lines(int n, int seed)
{
    static const char *const words[] = {"one",  "river", "stone", "of",   "the",
                                        "mill", "turns", "and",   "light"};
    qn_buf b = {0};
    for (int i = 0; i < n; i++) {
        qn_buf_puts(&b, "{\"text\":\"");
        for (int k = 0; k < 3 + (i * 7 + seed) % 9; k++)
            qn_buf_printf(&b, "%s%s", k ? " " : "", words[(i * 5 + k * k + seed) % 9]);
        qn_buf_puts(&b, "\"}\n");
    }
    return qn_buf_take(&b, NULL);
}

static place begin(void)
{
    place p;
    char *train = make_lines(N_LINES, 1), *valid = make_lines(N_VALID_LINES, 4);
    snprintf(p.model, sizeof p.model, "%s", qn_test_need_fixture("models/llama"));
    snprintf(p.folder, sizeof p.folder, "%s", qn_test_scratch());
    snprintf(p.data, sizeof p.data, "%s", p.folder);
    qn_test_write_text(p.folder, "train.jsonl", train);
    qn_test_write_text(p.folder, "valid.jsonl", valid);
    qn_free(train);
    qn_free(valid);
    return p;
}

static void end(const place *p)
{
    qn_test_remove(p->folder);
}

/* All that a state has to carry: dropout, accumulation, shuffled lines, a schedule, momentum of two kinds. */
static qn_train_options options_of(const place *p, const char *out)
{
    return (qn_train_options){.model_path = p->model,
                              .data_path = p->data,
                              .out_path = out,
                              .targets = "q_proj,down_proj",
                              .rank = 4,
                              .dropout = 0.1f,
                              .learning_rate = 1e-2,
                              .schedule = QN_SCHEDULE_COSINE,
                              .warmup_steps = 2,
                              .accumulate = 2,
                              .n_steps = 12,
                              .seed = 5,
                              .batch_sequences = 3,
                              .max_length = 24,
                              .validate_every = 3,
                              .save_every = 4,
                              .precision = QN_PRECISION_EXACT,
                              .n_threads = 2};
}

static qn_training *open_training(const qn_train_options *o)
{
    qn_training *t = NULL;
    qn_test_ok(qn_training_open(o, &t));
    return t;
}

/* What a run told, and when it is to stop. */
typedef struct {
    int64_t stop_at; /* behind the step; 0: never */
    int n[QN_TRAIN_EVENT_DONE + 1];
    double first_valid, valid_loss;
    char text[4096]; /* notes and warnings */
    qn_train_event_kind last;
} seen;

static int note_event(void *user, const qn_train_event *e)
{
    seen *s = user;
    s->n[e->kind]++;
    s->last = e->kind;
    if (e->kind == QN_TRAIN_EVENT_STEP) {
        assert_int_equal(e->report->step, e->step);
        assert_true(e->report->peak_memory_bytes >= e->report->memory_bytes && e->report->eta_s >= 0);
    }
    if (e->kind == QN_TRAIN_EVENT_VALID) {
        if (s->n[e->kind] == 1) s->first_valid = e->valid_loss;
        s->valid_loss = e->valid_loss;
    }
    if (e->text) snprintf(s->text + strlen(s->text), sizeof s->text - strlen(s->text), "%s\n", e->text);
    return e->kind == QN_TRAIN_EVENT_STEP && s->stop_at && e->step == s->stop_at;
}

static void run(const qn_train_options *o, seen *s)
{
    qn_training *t = open_training(o);
    qn_test_ok(qn_training_run(t, note_event, s));
    qn_training_close(t);
}

static char *read_all(const char *folder, const char *name, size_t *n)
{
    char *bytes = NULL;
    qn_test_ok(qn_file_read(qn_test_path(folder, name), (size_t)1 << 30, &bytes, n));
    return bytes;
}

static void same_file(const char *a, const char *b, const char *name)
{
    size_t n, m;
    char *x = read_all(a, name, &n), *y = read_all(b, name, &m);
    if (n != m || memcmp(x, y, n) != 0) fail_msg("%s differs", name);
    qn_free(x);
    qn_free(y);
}

/* The events of steps and validations of a log, without what depends on clock and memory. */
static json_t *read_log(const char *out)
{
    static const char *const others[] = {"seconds", "tokens_per_s", "eta_s", "memory_bytes",
                                         "peak_memory_bytes"};
    size_t n;
    char *text = read_all(out, "log.jsonl", &n);
    json_t *events = json_array();
    for (char *line = text, *rest = NULL; (line = strtok_r(line, "\n", &rest)); line = NULL) {
        json_error_t error;
        json_t *e = json_loads(line, 0, &error);
        if (!e) fail_msg("%s: %s", error.text, line);
        const char *kind = json_string_value(json_object_get(e, "event"));
        for (size_t i = 0; i < sizeof others / sizeof *others; i++) json_object_del(e, others[i]);
        if (strcmp(kind, "step") == 0 || strcmp(kind, "valid") == 0) json_array_append(events, e);
        json_decref(e);
    }
    qn_free(text);
    return events;
}

static void same_result(const char *a, const char *b)
{
    json_t *x = read_log(a), *y = read_log(b);
    if (!json_equal(x, y))
        fail_msg("logs differ:\n%s\n%s", json_dumps(x, JSON_INDENT(1)), json_dumps(y, JSON_INDENT(1)));
    json_decref(x);
    json_decref(y);
    same_file(a, b, "state.safetensors");
    same_file(a, b, "last/adapter_model.safetensors");
    same_file(a, b, "best/adapter_model.safetensors");
}

/* ---- going on ----------------------------------------------------------------------------------------- */

static void resumes(void **state)
{
    const place p = begin();
    char whole[PATH_BYTES], parts[PATH_BYTES];
    snprintf(whole, sizeof whole, "%s/whole", p.folder);
    qn_train_options o = options_of(&p, whole);
    seen s = {0};
    run(&o, &s);
    assert_int_equal(s.n[QN_TRAIN_EVENT_STEP], 12);
    assert_int_equal(s.n[QN_TRAIN_EVENT_VALID], 4);
    assert_int_equal(s.last, QN_TRAIN_EVENT_DONE);
    assert_true(s.valid_loss < s.first_valid);

    /* Behind a step, behind one that is to be validated or saved, behind none, and more than once. */
    static const int64_t stops[][3] = {{5}, {6}, {4, 9}, {1, 2, 11}};
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        snprintf(parts, sizeof parts, "%s/parts%zu", p.folder, i);
        o = options_of(&p, parts);
        o.n_threads = 1 + (int32_t)i;
        for (int k = 0; k < 3 && stops[i][k]; k++) {
            seen stopped = {.stop_at = stops[i][k]};
            run(&o, &stopped);
            assert_int_equal(stopped.last, QN_TRAIN_EVENT_STOPPED);
            o.resume = 1;
        }
        seen rest = {0};
        run(&o, &rest);
        assert_int_equal(rest.last, QN_TRAIN_EVENT_DONE);
        same_result(whole, parts);
    }
    /* All is done: nothing is left to do. */
    seen nothing = {0};
    run(&o, &nothing);
    assert_int_equal(nothing.n[QN_TRAIN_EVENT_STEP], 0);
    assert_int_equal(nothing.last, QN_TRAIN_EVENT_DONE);
    same_result(whole, parts);
    end(&p);
}

typedef struct {
    const char *out;
    char *state;
    size_t n;
} keeper;

static int keep_state(void *user, const qn_train_event *e)
{
    keeper *k = user;
    if (e->kind == QN_TRAIN_EVENT_SAVED && e->step == 8) {
        qn_free(k->state);
        k->state = read_all(k->out, "state.safetensors", &k->n);
    }
    return 0;
}

/* A process that dies leaves the last checkpoint and a log that knows more. */
static void dies(void **state)
{
    const place p = begin();
    char whole[PATH_BYTES], dead[PATH_BYTES];
    size_t n;
    snprintf(whole, sizeof whole, "%s/whole", p.folder);
    snprintf(dead, sizeof dead, "%s/dead", p.folder);
    qn_train_options o = options_of(&p, whole);
    run(&o, &(seen){0});
    o.out_path = dead;
    keeper k = {.out = dead};
    qn_training *t = open_training(&o);
    qn_test_ok(qn_training_run(t, keep_state, &k));
    qn_training_close(t);
    qn_test_write(dead, "state.safetensors", k.state, k.n);
    char *log = read_all(dead, "log.jsonl", &n);
    qn_test_write(dead, "log.jsonl", log, n - 30); /* a line was being written */
    qn_free(log);
    qn_free(k.state);
    o.resume = 1;
    run(&o, &(seen){0});
    same_result(whole, dead);
    end(&p);
}

static void stops_at_once(void **state)
{
    const place p = begin();
    char out[PATH_BYTES];
    snprintf(out, sizeof out, "%s/out", p.folder);
    qn_train_options o = options_of(&p, out);
    seen s = {0};
    qn_training *t = open_training(&o);
    qn_training_stop(t);
    qn_test_ok(qn_training_run(t, note_event, &s));
    assert_int_equal(s.last, QN_TRAIN_EVENT_STOPPED);
    assert_int_equal(s.n[QN_TRAIN_EVENT_STEP], 0);
    /* The same training may go on. */
    qn_test_ok(qn_training_run(t, note_event, &s));
    assert_int_equal(s.last, QN_TRAIN_EVENT_DONE);
    qn_training_close(t);
    end(&p);
}

/* ---- whose folder it is ------------------------------------------------------------------------------- */

static void expect(const qn_train_options *o, qn_status status, const char *words)
{
    qn_training *t = NULL;
    const int64_t live = qn_mem_live_blocks();
    const qn_status got = qn_training_open(o, &t);
    if (got != status || !strstr(qn_last_error(), words))
        fail_msg("%s: %s, expected %s with \"%s\"", qn_status_name(got), got ? qn_last_error() : "",
                 qn_status_name(status), words);
    assert_null(t);
    assert_int_equal(qn_mem_live_blocks(), live);
}

static void folders(void **state)
{
    const place p = begin();
    char out[PATH_BYTES];
    snprintf(out, sizeof out, "%s/out", p.folder);
    qn_train_options o = options_of(&p, out);
    o.resume = 1;
    expect(&o, QN_E_NOT_FOUND, "no training in this folder to resume");
    o.resume = 0;
    qn_training *first = open_training(&o), *second = open_training(&o);
    qn_test_ok(qn_training_run(first, NULL, NULL));
    assert_int_equal(qn_training_run(second, NULL, NULL), QN_E_ARG);
    assert_non_null(strstr(qn_last_error(), "another training is writing to it"));
    qn_training_close(first);
    qn_training_close(second);
    expect(&o, QN_E_ARG, "there is a training in this folder");
    assert_int_equal(access(qn_test_path(out, "best/adapter_model.safetensors"), R_OK), 0);

    /* Begun anew, nothing of the old one is left. */
    o.overwrite = 1;
    o.n_steps = 1;
    unlink(qn_test_path(p.folder, "valid.jsonl"));
    seen s = {0};
    run(&o, &s);
    assert_int_equal(s.n[QN_TRAIN_EVENT_VALID], 0);
    assert_int_not_equal(access(qn_test_path(out, "best"), R_OK), 0);
    json_t *log = read_log(out);
    assert_int_equal(json_array_size(log), 1);
    json_decref(log);
    o.out_path = qn_test_path(p.folder, "train.jsonl");
    expect(&o, QN_E_ARG, "is not a folder");
    o.out_path = qn_test_path(p.folder, "no/such/folder");
    qn_training *t = open_training(&o);
    assert_int_equal(qn_training_run(t, NULL, NULL), QN_E_IO);
    qn_training_close(t);
    end(&p);
}

/* Every option that changes a step is named when it differs. */
static void of_other_settings(void **state)
{
    const place p = begin();
    char out[PATH_BYTES];
    snprintf(out, sizeof out, "%s/out", p.folder);
    qn_train_options o = options_of(&p, out);
    run(&o, &(seen){.stop_at = 2});
    o.resume = 1;
#define OTHER(field, value, words)               \
    do {                                         \
        qn_train_options other = o;              \
        other.field = value;                     \
        expect(&other, QN_E_UNSUPPORTED, words); \
    } while (0)
    OTHER(learning_rate, 2e-2, "learning_rate=");
    OTHER(schedule, QN_SCHEDULE_LINEAR, "schedule=cosine; this one has schedule=linear");
    OTHER(warmup_steps, 3, "warmup_steps=2");
    OTHER(end_rate, 0.1, "end_rate=0");
    OTHER(n_steps, 13, "steps=12; this one has steps=13");
    OTHER(accumulate, 1, "accumulate=2");
    OTHER(mask, QN_MASK_ALL, "mask=answers; this one has mask=all");
    OTHER(max_length, 25, "max_length=24");
    OTHER(batch_tokens, 100, "batch_tokens=");
    OTHER(batch_sequences, 2, "batch_tokens=");
    OTHER(in_order, 1, "order=shuffled; this one has order=file");
    OTHER(seed, 6, "seed=5");
    OTHER(rank, 5, "rank=4");
    OTHER(alpha, 4, "alpha=16");
    OTHER(dropout, 0.2f, "dropout=");
    OTHER(rslora, 1, "rslora=0");
    OTHER(bf16_adapter, 1, "");
    OTHER(targets, "q_proj", "");
    OTHER(method, QN_TRAIN_DORA, "method=lora; this one has method=dora");
    OTHER(optimizer, QN_OPTIMIZER_SGD, "optimizer=adamw");
    OTHER(beta1, 0.8, "beta1=");
    OTHER(beta2, 0.9, "beta2=");
    OTHER(eps, 1e-6, "eps=");
    OTHER(weight_decay, 0.5, "weight_decay=");
    OTHER(no_bias_correction, 1, "bias_correction=");
    OTHER(clip_norm, 2, "clip_norm=1");
    OTHER(precision, QN_PRECISION_HIGH, "precision=");
#undef OTHER
    /* What changes no step may differ. */
    o.validate_every = 5;
    o.validate_batches = 1;
    o.save_every = 1;
    o.checkpoint_layers = 1;
    o.n_threads = 1;
    o.strict = 1;
    o.layout = QN_ADAPTER_MLX;
    run(&o, &(seen){.stop_at = 4});
    assert_int_equal(access(qn_test_path(out, "last/adapters.safetensors"), R_OK), 0);
    /* Other data: to be trained on, no; to be validated with, the best begins anew. */
    char *lines = make_lines(N_LINES, 2);
    qn_test_write_text(p.folder, "valid.jsonl", lines);
    seen s = {.stop_at = 5};
    run(&o, &s);
    assert_non_null(strstr(s.text, "the best loss starts over"));
    qn_test_write_text(p.folder, "train.jsonl", lines);
    qn_free(lines);
    expect(&o, QN_E_UNSUPPORTED, "data=");
    assert_non_null(strstr(qn_last_error(), "the training data differs"));
    end(&p);
}

/* ---- numbers that are not finite ---------------------------------------------------------------------- */

static qn_trainable_array *array_of(qn_training *t, const char *name)
{
    qn_trainable_array *a = qn_trainable_find(qn_trainer_trainable(t->trainer), name);
    assert_non_null(a);
    return a;
}

typedef struct {
    qn_training *t;
    const char *name;
    float value;
    int64_t step;
} spoiler;

static int spoil(void *user, const qn_train_event *e)
{
    const spoiler *s = user;
    if (e->kind != (s->step ? QN_TRAIN_EVENT_STEP : QN_TRAIN_EVENT_START) || e->step != s->step) return 0;
    qn_trainable_array *a = array_of(s->t, s->name);
    for (int64_t i = 0; i < a->n; i++) a->data[i] = s->value;
    return 0;
}

static void not_finite(void **state)
{
    static const struct {
        const char *name;
        float value;
        int64_t step;
        const char *when, *where;
    } cases[] = {
        {"model.layers.1.self_attn.q_proj.lora_B.weight", NAN, 5, "step 6: the loss is nan",
         "appears in layer 1 (step "},
        {"model.layers.0.mlp.down_proj.lora_A.weight", INFINITY, 7, "step 8: ", "appears in layer 0 (step "},
        {"model.layers.1.mlp.down_proj.lora_B.weight", INFINITY, 6,
         "validation after step 6: ", "appears in layer 1 (step "},
        {"model.layers.0.self_attn.q_proj.lora_A.weight", 4e36f, 0, "step 1: the gradient with respect to ",
         "appears in the gradients, while that with respect to model.layers.0.self_attn.q_proj."},
    };
    const place p = begin();
    char out[PATH_BYTES];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(out, sizeof out, "%s/out%zu", p.folder, i);
        qn_train_options o = options_of(&p, out);
        o.dropout = 0;
        qn_training *t = open_training(&o);
        const qn_status status =
            qn_training_run(t, spoil, &(spoiler){t, cases[i].name, cases[i].value, cases[i].step});
        if (status != QN_E_DEVICE || !strstr(qn_last_error(), cases[i].where) ||
            !strstr(qn_last_error(), cases[i].when))
            fail_msg("%s: %s", qn_status_name(status), qn_last_error());
        assert_int_equal(qn_trainer_steps(t->trainer), cases[i].step);
        qn_training_close(t);
        /* The last good one goes on. */
        o.resume = 1;
        t = open_training(&o);
        qn_train_info info;
        qn_test_ok(qn_training_get_info(t, &info));
        assert_int_equal(info.step, cases[i].step / 4 * 4);
        seen s = {0};
        qn_test_ok(qn_training_run(t, note_event, &s));
        assert_int_equal(s.n[QN_TRAIN_EVENT_STEP], 12 - info.step);
        qn_training_close(t);
    }
    end(&p);
}

/* A rate at which every training ends, and numbers that cannot be saved. */
static void too_fast(void **state)
{
    const place p = begin();
    char out[PATH_BYTES];
    snprintf(out, sizeof out, "%s/out", p.folder);
    qn_train_options o = options_of(&p, out);
    o.learning_rate = 1e42;
    o.optimizer = QN_OPTIMIZER_SGD;
    o.schedule = QN_SCHEDULE_CONSTANT;
    o.warmup_steps = 0;
    o.clip_norm = -1;
    o.save_every = 1;
    o.validate_every = 50;
    qn_training *t = open_training(&o);
    seen s = {0};
    const qn_status status = qn_training_run(t, note_event, &s);
    if (status != QN_E_DEVICE) fail_msg("%s: %s", qn_status_name(status), qn_last_error());
    assert_non_null(strstr(qn_last_error(), "finite"));
    assert_int_equal(s.last, QN_TRAIN_EVENT_FAILED);
    assert_non_null(strstr(s.text, "finite"));
    qn_training_close(t);
    o.resume = 1;
    t = open_training(&o);
    qn_train_info info;
    qn_test_ok(qn_training_get_info(t, &info));
    assert_int_equal(info.step, 0);
    qn_training_close(t);
    end(&p);
}

/* ---- what is asked for -------------------------------------------------------------------------------- */

static void refuses(void **state)
{
    const place p = begin();
    const qn_train_options o = options_of(&p, NULL);
#define WITH(field, value, status, words) \
    do {                                  \
        qn_train_options other = o;       \
        other.field = value;              \
        expect(&other, status, words);    \
    } while (0)
    WITH(model_path, NULL, QN_E_ARG, "no model");
    WITH(data_path, NULL, QN_E_ARG, "no data");
    WITH(out_path, "", QN_E_ARG, "empty");
    WITH(resume, 1, QN_E_ARG, "no folder");
    WITH(model_path, "/no/such/model", QN_E_IO, "/no/such/model");
    WITH(data_path, "/no/such/data", QN_E_IO, "/no/such/data");
    WITH(data_path, p.model, QN_E_NOT_FOUND, "train.jsonl");
    WITH(method, (qn_train_method)7, QN_E_ARG, "method 7");
    WITH(mask, (qn_mask)-1, QN_E_ARG, "mask -1");
    WITH(schedule, (qn_schedule_kind)3, QN_E_ARG, "schedule 3");
    WITH(optimizer, (qn_optimizer_kind)2, QN_E_ARG, "optimiser 2");
    WITH(precision, (qn_precision)3, QN_E_ARG, "precision 3");
    WITH(layout, (qn_adapter_layout)2, QN_E_ARG, "layout 2");
    WITH(init, (qn_train_init)3, QN_E_ARG, "init 3");
    WITH(rank, -1, QN_E_ARG, "rank -1");
    WITH(rank, 1 << 30, QN_E_ARG, "rank");
    WITH(alpha, NAN, QN_E_ARG, "alpha");
    WITH(dropout, 1, QN_E_ARG, "dropout");
    WITH(learning_rate, -1, QN_E_ARG, "learning rate -1");
    WITH(learning_rate, INFINITY, QN_E_ARG, "learning rate");
    WITH(beta1, 1, QN_E_ARG, "beta");
    WITH(beta2, -0.5, QN_E_ARG, "beta2");
    WITH(eps, NAN, QN_E_ARG, "eps");
    WITH(weight_decay, NAN, QN_E_ARG, "weight decay");
    WITH(clip_norm, NAN, QN_E_ARG, "clip norm");
    WITH(momentum, 2, QN_E_ARG, "momentum 2");
    WITH(end_rate, -1, QN_E_ARG, "end rate");
    WITH(warmup_steps, -1, QN_E_ARG, "warm-up");
    WITH(accumulate, -1, QN_E_ARG, "accumulated");
    WITH(accumulate, INT64_MAX, QN_E_ARG, "accumulated");
    WITH(n_steps, INT64_MIN, QN_E_ARG, "steps");
    WITH(n_epochs, INT64_MAX, QN_E_ARG, "epochs");
    WITH(max_length, 1, QN_E_ARG, "at least 2 tokens");
    WITH(max_length, INT64_MAX, QN_E_ARG, "tokens of a line");
    WITH(batch_tokens, 2, QN_E_ARG, "batches of 2 tokens");
    WITH(batch_sequences, INT64_MAX, QN_E_ARG, "lines of a batch");
    WITH(validate_every, -1, QN_E_ARG, "between validations");
    WITH(validate_batches, -1, QN_E_ARG, "of a validation");
    WITH(save_every, -1, QN_E_ARG, "between checkpoints");
    WITH(n_threads, -1, QN_E_ARG, "threads");
    WITH(targets, "wq", QN_E_ARG, "target wq");
    WITH(layer_begin, 99, QN_E_ARG, "layers 99");
    WITH(start_path, p.folder, QN_E_NOT_FOUND, "");
    WITH(memory_limit_bytes, 1000, QN_E_NOMEM, "");
#undef WITH
    qn_train_options both = o;
    both.out_path = p.folder;
    both.resume = both.overwrite = 1;
    expect(&both, QN_E_ARG, "not both");
    end(&p);
}

static void tells(void **state)
{
    const place p = begin();
    qn_train_options o = options_of(&p, NULL);
    char *text = NULL, *again = NULL;
    qn_test_write_text(
        p.folder, "train.jsonl",
        "{\"text\":\"the mill turns\"}\n{\"text\":3}\n\n{\"text\":\"a stone in the river\",\"id\":1}\n"
        "{\"text\":\"light and light and light and light and light and light and light and light\"}\n"
        "{\"text\":\"river\"}\n{\"text\":\"of stone\"}\n");
    o.in_order = 1;
    o.n_steps = 0;
    o.n_epochs = 2;
    o.batch_sequences = 2;
    o.accumulate = 0;
    o.warmup_steps = 7;
    qn_training *t = open_training(&o);
    qn_train_info info;
    qn_test_ok(qn_training_get_info(t, &info));
    assert_string_equal(info.architecture, "llama");
    assert_int_equal(info.n_threads, 2);
    assert_true(*info.cpu_set && info.n_model_parameters > 0);
    assert_true(fabs(info.uniform_loss - log((double)info.vocab_size)) < 1e-12);
    assert_int_equal(info.n_lines, 6);
    assert_int_equal(info.n_bad_lines, 1);
    assert_int_equal(info.n_cut_lines, 1);
    assert_int_equal(info.n_valid_lines, N_VALID_LINES);
    assert_int_equal(info.n_steps, 6);
    assert_int_equal(info.n_epochs, 2);
    assert_int_equal(info.batch_sequences, 2);
    assert_true(info.best_loss == INFINITY && info.step == 0);
    assert_non_null(strstr(info.notes, "train.jsonl:2: left out: \"text\" is not a text\n"));
    assert_non_null(strstr(info.notes, "1 of 6 lines are longer than 24 tokens"));
    assert_non_null(strstr(info.notes, ":4: the key \"id\" has no meaning and is ignored\n"));
    assert_non_null(strstr(info.notes, "rises until the end: 7 warm-up steps, 6 steps in all\n"));
    int64_t n_trained = 0, i = 0;
    qn_train_array a;
    for (; qn_training_get_array(t, i, &a) == QN_OK; i++) n_trained += a.n;
    assert_int_equal(i, info.n_arrays);
    assert_int_equal(n_trained, info.n_trained);
    float *numbers = qn_alloc_array((size_t)n_trained, sizeof *numbers);
    assert_int_equal(qn_training_read_array(t, 0, NULL, numbers), QN_E_ARG);
    qn_free(numbers);

    qn_test_ok(qn_training_show_batch(t, 0, &text));
    qn_test_ok(qn_training_show_batch(t, 0, &again));
    assert_string_equal(text, again);
    assert_non_null(strstr(text, "sequence 1 of 2, line 1"));
    assert_non_null(strstr(text, "sequence 2 of 2, line 4"));
    assert_non_null(strstr(text, "mill turns"));
    qn_buffer_free(again);
    qn_test_ok(qn_training_show_batch(t, 1, &again));
    assert_non_null(strstr(again, "\x1b["));
    qn_buffer_free(again);
    qn_buffer_free(text);

    /* Without a folder nothing is written; validations come with the ends of epochs. */
    o.strict = 0;
    seen s = {0};
    const int n_files = qn_test_count_files(p.folder);
    qn_test_ok(qn_training_run(t, note_event, &s));
    assert_int_equal(s.n[QN_TRAIN_EVENT_STEP], 6);
    assert_int_equal(s.n[QN_TRAIN_EVENT_VALID], 2);
    assert_int_equal(s.n[QN_TRAIN_EVENT_SAVED], 0);
    assert_int_equal(qn_test_count_files(p.folder), n_files);
    assert_non_null(strstr(s.text, "a uniform guess among"));
    assert_int_equal(qn_training_step(t, NULL), QN_E_CLOSED);
    qn_training_close(t);
    o.strict = 1;
    expect(&o, QN_E_ARG, "train.jsonl:2: \"text\" is not a text");
    end(&p);
}

/* An adapter that was written is begun with as it is, though nothing is said of it. */
static void begins_with(void **state)
{
    const place p = begin();
    for (int i = 0; i < 4; i++) {
        char out[PATH_BYTES], last[PATH_BYTES + 8];
        snprintf(out, sizeof out, "%s/out%d", p.folder, i);
        snprintf(last, sizeof last, "%s/last", out);
        qn_train_options o = options_of(&p, out),
                         next = {.model_path = p.model, .data_path = p.data, .max_length = 24};
        o.method = i % 2 ? QN_TRAIN_DORA : QN_TRAIN_LORA;
        o.layout = i / 2 ? QN_ADAPTER_MLX : QN_ADAPTER_PEFT;
        o.rslora = i == 1;
        o.rank = 3;
        o.alpha = 5;
        o.n_steps = 2;
        o.targets = "o_proj,gate_proj";
        qn_training *t = open_training(&o), *u;
        qn_test_ok(qn_training_run(t, NULL, NULL));
        next.start_path = last;
        u = open_training(&next);
        qn_train_info a, b;
        qn_test_ok(qn_training_get_info(t, &a));
        qn_test_ok(qn_training_get_info(u, &b));
        assert_int_equal(a.n_arrays, b.n_arrays);
        for (int64_t k = 0; k < a.n_arrays; k++) {
            qn_train_array x, y;
            qn_test_ok(qn_training_get_array(t, k, &x));
            qn_test_ok(qn_training_get_array(u, k, &y));
            assert_string_equal(x.name, y.name);
            float *got = qn_alloc_array((size_t)x.n, sizeof *got),
                  *want = qn_alloc_array((size_t)x.n, sizeof *got);
            qn_test_ok(qn_training_read_array(t, k, want, NULL));
            qn_test_ok(qn_training_read_array(u, k, got, NULL));
            assert_memory_equal(got, want, (size_t)x.n * sizeof *got);
            qn_free(got);
            qn_free(want);
        }
        double before, after;
        qn_test_ok(qn_training_validate(t, &before));
        qn_training_close(t);
        qn_training_close(u);
        next.precision = QN_PRECISION_EXACT;
        u = open_training(&next);
        qn_test_ok(qn_training_validate(u, &after)); /* the factor, too */
        if (!(fabs(before - after) < 1e-5)) fail_msg("%d: %g, then %g", i, before, after);
        qn_training_close(u);
        next.rank = 4;
        expect(&next, QN_E_ARG, "rank");
    }
    end(&p);
}

/* ---- whole weights ------------------------------------------------------------------------------------ */

static void whole_weights(void **state)
{
    const place p = begin();
    char out[PATH_BYTES], model[PATH_BYTES];
    snprintf(out, sizeof out, "%s/out", p.folder);
    qn_train_options o = options_of(&p, out);
    o.method = QN_TRAIN_FULL;
    o.targets = NULL;
    o.learning_rate = 1e-3;
    o.save_type = "f32";
    seen s = {0};
    run(&o, &s);
    assert_true(s.valid_loss < s.first_valid);
    snprintf(model, sizeof model, "%s/last", out);
    qn_evaluate_result whole;
    qn_test_ok(qn_evaluate_data(
        &(qn_evaluate_options){
            .model_path = model, .data_path = p.data, .max_length = 24, .precision = QN_PRECISION_EXACT},
        &whole));
    if (!(fabs(whole.loss - s.valid_loss) < 1e-5)) fail_msg("%g, not %g", whole.loss, s.valid_loss);
    o.start_path = out;
    o.overwrite = 1;
    expect(&o, QN_E_ARG, "cannot start from an adapter");
    end(&p);
}

/* ---- memory ------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t live[2];
    size_t bytes[2];
} growth;

static int watch_memory(void *user, const qn_train_event *e)
{
    growth *g = user;
    if (e->kind != QN_TRAIN_EVENT_STEP || (e->step != 20 && e->step != 300)) return 0;
    g->live[e->step == 300] = qn_mem_live_blocks();
    g->bytes[e->step == 300] = e->report->memory_bytes;
    return 0;
}

static void stays_flat(void **state)
{
    const place p = begin();
    char out[PATH_BYTES];
    snprintf(out, sizeof out, "%s/out", p.folder);
    qn_train_options o = options_of(&p, out);
    o.n_steps = 301;
    o.validate_every = o.save_every = 7;
    growth g;
    qn_training *t = open_training(&o);
    qn_test_ok(qn_training_run(t, watch_memory, &g));
    qn_training_close(t);
    assert_int_equal(g.bytes[0], g.bytes[1]);
    if (llabs(g.live[0] - g.live[1]) > 2 * QN_DATASET_WINDOW) /* lines that wait for room */
        fail_msg("%lld blocks, then %lld", (long long)g.live[0], (long long)g.live[1]);
    end(&p);
}

/* Each allocation of a training fails once: that is an error, what is on disk can be resumed, and ends as if
 * nothing had been. */
static void out_of_memory(void **state)
{
    const place p = begin();
    char whole[PATH_BYTES], out[PATH_BYTES];
    snprintf(whole, sizeof whole, "%s/whole", p.folder);
    qn_train_options o = options_of(&p, whole);
    o.n_steps = 3;
    o.validate_every = o.save_every = 2;
    o.n_threads = 1;
    run(&o, &(seen){0});
    const int64_t live = qn_mem_live_blocks();
    snprintf(out, sizeof out, "%s/out", p.folder);
    o.out_path = out;
    int n_resumed = 0;
    for (int64_t n = 1, reached = 1; reached; n += n < 100 ? 7 : 41) {
        const int64_t made = qn_mem_allocations();
        qn_training *t = NULL;
        o.resume = 0;
        o.overwrite = 1;
        unlink(qn_test_path(out, "state.safetensors"));
        qn_mem_fail_nth(n);
        qn_status status = qn_training_open(&o, &t);
        if (status == QN_OK) status = qn_training_run(t, NULL, NULL);
        qn_training_close(t);
        qn_mem_fail_nth(0);
        reached = qn_mem_allocations() - made >= n;
        if (status != (reached ? QN_E_NOMEM : QN_OK))
            fail_msg("allocation %lld: %s, %s", (long long)n, qn_status_name(status), qn_last_error());
        assert_int_equal(qn_mem_live_blocks(), live);
        if (!reached || access(qn_test_path(out, "state.safetensors"), R_OK) != 0) continue;
        o.resume = 1;
        o.overwrite = 0;
        run(&o, &(seen){0});
        same_result(whole, out);
        n_resumed++;
    }
    assert_true(n_resumed > 3);
    end(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resumes),      cmocka_unit_test(dies),          cmocka_unit_test(stops_at_once),
        cmocka_unit_test(folders),      cmocka_unit_test(refuses),       cmocka_unit_test(of_other_settings),
        cmocka_unit_test(not_finite),   cmocka_unit_test(too_fast),      cmocka_unit_test(tells),
        cmocka_unit_test(begins_with),  cmocka_unit_test(whole_weights), cmocka_unit_test(stays_flat),
        cmocka_unit_test(out_of_memory)};
    return cmocka_run_group_tests_name("run", tests, NULL, NULL);
}

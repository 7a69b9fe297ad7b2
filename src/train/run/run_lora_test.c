/* fixtures/lora by the public API alone: peft's losses, gradients, ten steps of AdamW and the weights after
 * them, from lines of token ids and an adapter to begin with. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <quern/quern.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "format/safetensors/safetensors.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/json_file.h"
#include "tests/support/models/lora_sets.h"
#include "tests/support/scratch.h"

enum { SETS_MAX = 32, NAME_MAX_BYTES = 64 };

static char sets[SETS_MAX][NAME_MAX_BYTES];

typedef struct {
    const char *name, *folder, *data;
    char base[512], adapter[512], start[600], targets[512];
    json_t *expected, *run, *config;
    qn_safetensors *stored;
} subject;

/* The batch as lines of ids. */
static void write_data(subject *s)
{
    const qn_tensor_view *ids = qn_test_tensor(s->stored, "ids", 0),
                         *mask = qn_test_tensor(s->stored, "mask", 0);
    const int32_t *id = ids->data, *counts = mask->data;
    qn_buf lines = {0};
    for (int64_t b = 0; b < ids->shape[0]; b++) {
        for (int which = 0; which < 2; which++) {
            qn_buf_puts(&lines, which ? "], \"counts\": [" : "{\"ids\": [");
            for (int64_t i = 0; i < ids->shape[1]; i++)
                qn_buf_printf(&lines, "%s%d", i ? ", " : "", (which ? counts : id)[b * ids->shape[1] + i]);
        }
        qn_buf_puts(&lines, "]}\n");
    }
    s->data = qn_test_write(s->folder, "train.jsonl", lines.data, lines.length);
    qn_buf_free(&lines);
}

/* What the stored run began with, as a folder that peft would have written. */
static void write_start(subject *s)
{
    qn_safetensors *like;
    qn_st_writer *w;
    int64_t n = 0;
    snprintf(s->start, sizeof s->start, "%s", s->folder);
    qn_test_copy(s->folder, "adapter_config.json", qn_lora_path(s->name, "adapter_config.json"));
    qn_test_ok(qn_safetensors_open(qn_lora_path(s->name, "adapter_model.safetensors"), &like));
    qn_test_ok(qn_st_writer_new(qn_test_path(s->folder, "adapter_model.safetensors"), &w));
    for (int64_t i = 0; i < qn_safetensors_count(like); i++) {
        const qn_tensor_view *v = qn_safetensors_get(like, i);
        qn_test_ok(qn_st_writer_add(w, v->name, QN_DTYPE_F32, v->n_dims, v->shape, NULL));
    }
    qn_test_ok(qn_st_writer_begin(w));
    for (int64_t i = 0; i < qn_safetensors_count(like); i++) {
        char name[320];
        const qn_tensor_view *v = NULL;
        snprintf(name, sizeof name, "start.%s", qn_safetensors_get(like, i)->name);
        qn_test_ok(qn_safetensors_tensor(s->stored, name, &v));
        qn_test_ok(qn_st_writer_write(w, n++, 0, v->data, v->size_bytes));
    }
    qn_test_ok(qn_st_writer_finish(w));
    qn_st_writer_free(w);
    qn_safetensors_close(like);
}

static void open_subject(subject *s, const char *name)
{
    static const char *const files[] = {"expected.json", "train.safetensors", "adapter_model.safetensors",
                                        "adapter_config.json"};
    char base[160];
    size_t i, at = 0;
    json_t *module;
    for (i = 0; i < sizeof files / sizeof *files; i++) (void)qn_lora_path(name, files[i]);
    *s = (subject){.name = name, .expected = qn_test_json(qn_lora_path(name, "expected.json"))};
    snprintf(base, sizeof base, "models/%s", json_string_value(json_object_get(s->expected, "base")));
    snprintf(s->base, sizeof s->base, "%s", qn_test_need_fixture(base));
    snprintf(s->adapter, sizeof s->adapter, "%s", qn_lora_path(name, "adapter_model.safetensors"));
    s->run = json_object_get(s->expected, "train");
    s->config = qn_test_json(qn_lora_path(name, "adapter_config.json"));
    json_array_foreach(json_object_get(s->config, "target_modules"), i, module) at += (size_t)snprintf(
        s->targets + at, sizeof s->targets - at, "%s%s", i ? "," : "", json_string_value(module));
    qn_test_ok(qn_safetensors_open(qn_lora_path(name, "train.safetensors"), &s->stored));
    s->folder = qn_test_scratch();
    write_data(s);
    write_start(s);
}

static void close_subject(subject *s)
{
    qn_safetensors_close(s->stored);
    json_decref(s->expected);
    json_decref(s->config);
    qn_test_remove(s->folder);
}

/* own: modules, rank and alpha are what the adapter says. */
static qn_training *open_training(const subject *s, const char *start, int own)
{
    qn_training *t = NULL;
    json_t *o = json_object_get(s->run, "optimizer"), *betas = json_object_get(o, "betas");
    const qn_train_options options = {.model_path = s->base,
                                      .data_path = s->data,
                                      .targets = own ? NULL : s->targets,
                                      .rank = own ? 0 : (int32_t)qn_test_json_number(s->config, "r"),
                                      .alpha = own ? 0 : (float)qn_test_json_number(s->config, "lora_alpha"),
                                      .start_path = start,
                                      .learning_rate = qn_test_json_number(o, "lr"),
                                      .beta1 = json_number_value(json_array_get(betas, 0)),
                                      .beta2 = json_number_value(json_array_get(betas, 1)),
                                      .eps = qn_test_json_number(o, "eps"),
                                      .weight_decay = qn_test_json_number(o, "weight_decay"),
                                      .clip_norm = -1,
                                      .batch_sequences = 16,
                                      .in_order = 1,
                                      .n_steps = (int64_t)json_array_size(json_object_get(s->run, "losses")),
                                      .precision = QN_PRECISION_EXACT};
    qn_test_ok(qn_training_open(&options, &t));
    return t;
}

static void check_loss(const subject *s, const char *what, double got, double want)
{
    if (!(fabs(got - want) <= 2e-5)) fail_msg("%s: %s %.7f, expected %.7f", s->name, what, got, want);
}

/* Against the stored arrays of a name's beginning: numbers within an absolute difference, gradients within a
 * part of the largest. */
static void check_arrays(const subject *s, const qn_training *t, const char *prefix, int gradients)
{
    qn_train_array a;
    int64_t i = 0;
    for (; qn_training_get_array(t, i, &a) == QN_OK; i++) {
        char name[320];
        const qn_tensor_view *v = NULL;
        float *got = qn_alloc_array((size_t)a.n, sizeof *got);
        double largest = 0, off = 0;
        qn_test_ok(qn_training_read_array(t, i, gradients ? NULL : got, gradients ? got : NULL));
        snprintf(name, sizeof name, "%sbase_model.model.%s", prefix, a.name);
        qn_test_ok(qn_safetensors_tensor(s->stored, name, &v));
        assert_int_equal(v->n_elements, a.n);
        assert_int_equal(v->n_dims, a.n_dims);
        for (int d = 0; d < a.n_dims; d++) assert_int_equal(v->shape[d], a.shape[d]);
        for (int64_t k = 0; k < a.n; k++) {
            const double want = (double)((const float *)v->data)[k], d = fabs((double)got[k] - want);
            if (fabs(want) > largest) largest = fabs(want);
            if (!(d <= off)) off = d;
        }
        if (!(off <= (gradients ? 1e-4 * largest : 5e-5)))
            fail_msg("%s: %s differs by %g", s->name, name, off);
        qn_free(got);
    }
    assert_true(i > 0);
}

static void one_set(void **state)
{
    subject s;
    qn_train_step_report report;
    open_subject(&s, *state);
    qn_training *t = open_training(&s, s.adapter, 1);
    qn_test_ok(qn_training_step(t, &report));
    check_loss(&s, "loss", report.loss, qn_test_json_number(s.run, "adapter_loss"));
    check_arrays(&s, t, "adapter_grad.", 1);
    qn_training_close(t);

    t = open_training(&s, s.start, 0);
    check_arrays(&s, t, "start.", 0);
    json_t *losses = json_object_get(s.run, "losses"), *norms = json_object_get(s.run, "grad_norms");
    for (size_t i = 0; i < json_array_size(losses); i++) {
        qn_test_ok(qn_training_step(t, &report));
        assert_int_equal(report.step, i + 1);
        check_loss(&s, "loss of a step", report.loss, json_number_value(json_array_get(losses, i)));
        if (i == 0) check_arrays(&s, t, "grad0.", 1);
        if (i == 1) check_arrays(&s, t, "grad1.", 1);
        const double norm = json_number_value(json_array_get(norms, i));
        if (!(fabs(report.grad_norm - norm) <= 1e-4 * norm))
            fail_msg("%s: gradient of length %g, expected %g", s.name, report.grad_norm, norm);
    }
    assert_int_equal(qn_training_step(t, &report), QN_E_CLOSED);
    check_arrays(&s, t, "final.", 0);

    /* What was written has the final loss for everybody who evaluates it. */
    qn_evaluate_result whole;
    const char *saved = qn_test_path(s.folder, "saved");
    qn_test_ok(qn_training_save(t, saved, QN_ADAPTER_PEFT));
    qn_training_close(t);
    qn_test_ok(qn_evaluate_data(&(qn_evaluate_options){.model_path = s.base,
                                                       .data_path = s.data,
                                                       .adapter_path = saved,
                                                       .precision = QN_PRECISION_EXACT},
                                &whole));
    check_loss(&s, "loss in the end", whole.loss, qn_test_json_number(s.run, "final_loss"));
    close_subject(&s);
}

int main(void)
{
    struct CMUnitTest tests[SETS_MAX];
    const char *path = qn_test_fixture("lora");
    DIR *d = path ? opendir(path) : NULL;
    const struct dirent *entry;
    int n = 0;
    while (d && (entry = readdir(d)) && n < SETS_MAX)
        if (entry->d_name[0] != '.') snprintf(sets[n++], NAME_MAX_BYTES, "%.63s", entry->d_name);
    if (d) closedir(d);
    if (!n) snprintf(sets[n++], NAME_MAX_BYTES, "llama_all"); /* says that it is skipped */
    for (int i = 0; i < n; i++) tests[i] = (struct CMUnitTest){sets[i], one_set, NULL, NULL, sets[i]};
    return _cmocka_run_group_tests("run_lora", tests, (size_t)n, NULL, NULL);
}

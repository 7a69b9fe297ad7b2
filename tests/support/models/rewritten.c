#include "tests/support/models/rewritten.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "quant/types.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/model_dir.h"
#include "tests/support/scratch.h"

/* ---- tensors ------------------------------------------------------------------------------------------ */

qn_test_copy_of *qn_test_rewritten_find(qn_test_rewritten *m, const char *fmt, int layer, int expert)
{
    char name[QN_TEST_REWRITTEN_NAME];
    snprintf(name, sizeof name, fmt, layer, expert);
    for (int i = 0; i < m->n; i++)
        if (strcmp(m->t[i].name, name) == 0) return &m->t[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

qn_test_copy_of *qn_test_rewritten_add(qn_test_rewritten *m, const char *name, qn_dtype dtype, int n_dims,
                                       const int64_t *shape)
{
    assert_true(m->n < QN_TEST_REWRITTEN_TENSORS);
    qn_test_copy_of *t = &m->t[m->n++];
    int64_t n = 1;
    snprintf(t->name, sizeof t->name, "%s", name);
    t->dtype = dtype;
    t->n_dims = n_dims;
    for (int i = 0; i < n_dims; i++) n *= t->shape[i] = shape[i];
    assert_true(qn_type_bytes(dtype, n, &t->size_bytes));
    t->data = test_calloc(1, t->size_bytes);
    return t;
}

void qn_test_rewritten_drop(qn_test_rewritten *m, qn_test_copy_of *t)
{
    test_free(t->data);
    *t = m->t[--m->n];
}

void qn_test_rewritten_free(qn_test_rewritten *m)
{
    while (m->n) test_free(m->t[--m->n].data);
    qn_config_free(&m->config);
    test_free(m);
}

int64_t qn_test_copy_elements(const qn_test_copy_of *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->n_dims; i++) n *= t->shape[i];
    return n;
}

float *qn_test_copy_floats(const qn_test_copy_of *t)
{
    float *x = test_calloc((size_t)qn_test_copy_elements(t), sizeof *x);
    qn_type_get(t->dtype)->decode(qn_type_get(t->dtype), t->data, qn_test_copy_elements(t), x);
    return x;
}

qn_test_rewritten *qn_test_rewritten_read(const char *kind)
{
    char path[96];
    qn_safetensors *st;
    qn_test_weights w;
    snprintf(path, sizeof path, "models/%s", kind);
    const char *fixture = qn_test_need_fixture(path);
    qn_test_rewritten *m = test_calloc(1, sizeof *m);
    m->fixture = fixture;
    qn_test_ok(qn_test_weights_open(m->fixture, &w));
    for (int64_t i = 0; i < qn_source_count(w.src); i++) {
        const qn_tensor_view *v = qn_source_get(w.src, i);
        memcpy(qn_test_rewritten_add(m, v->name, v->dtype, v->n_dims, v->shape)->data, v->data,
               v->size_bytes);
    }
    qn_weights_close(w.weights);
    qn_source_close(w.src);
    m->config = w.config;
    snprintf(path, sizeof path, "models/%s/expected.safetensors", kind);
    qn_test_ok(qn_safetensors_open(qn_test_need_fixture(path), &st));
    const qn_tensor_view *ids = qn_test_tensor(st, "prompt%d.ids", 1);
    m->n_ids = ids->n_elements < 64 ? ids->n_elements : 64;
    memcpy(m->ids, ids->data, (size_t)m->n_ids * sizeof *m->ids);
    qn_safetensors_close(st);
    return m;
}

/* A directory with the fixture's config.json, patched, and the model's tensors. */
const char *qn_test_rewritten_write(const qn_test_rewritten *m, const char *folder, const char *patch)
{
    qn_st_writer *w;
    json_t *config = json_load_file(qn_test_path(m->fixture, "config.json"), 0, NULL);
    assert_non_null(config);
    if (patch) qn_test_merge_patch(config, patch);
    assert_int_equal(json_dump_file(config, qn_test_path(folder, "config.json"), 0), 0);
    json_decref(config);
    qn_test_ok(qn_st_writer_new(qn_test_path(folder, "model.safetensors"), &w));
    for (int i = 0; i < m->n; i++)
        qn_test_ok(qn_st_writer_add(w, m->t[i].name, m->t[i].dtype, m->t[i].n_dims, m->t[i].shape, NULL));
    qn_test_ok(qn_st_writer_begin(w));
    for (int i = 0; i < m->n; i++) qn_test_ok(qn_st_writer_write(w, i, 0, m->t[i].data, m->t[i].size_bytes));
    qn_test_ok(qn_st_writer_finish(w));
    qn_st_writer_free(w);
    return folder;
}

/* ---- comparing ---------------------------------------------------------------------------------------- */

static float *logits(const qn_test_rewritten *m, const char *path, qn_precision precision)
{
    qn_engine *e = qn_test_engine(
        path, NULL, (qn_engine_options){.precision = precision, .n_threads = 2, .context_size = 128});
    float *out = test_calloc((size_t)(m->n_ids * m->config.vocab_size), sizeof *out);
    qn_test_logits(e, m->ids, m->n_ids, 0, out);
    qn_engine_close(e);
    return out;
}

/* The largest difference of the logits of two paths; 0 when all bits are equal. */
double qn_test_rewritten_difference(const qn_test_rewritten *m, const char *a, const char *b,
                                    qn_precision precision)
{
    float *x = logits(m, a, precision), *y = logits(m, b, precision);
    double worst = 0;
    int64_t n = m->n_ids * m->config.vocab_size;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)x[i] - (double)y[i]);
        if (!(d <= worst)) worst = d;
    }
    if (worst == 0) assert_memory_equal(x, y, (size_t)n * sizeof *x);
    test_free(x);
    test_free(y);
    return worst;
}

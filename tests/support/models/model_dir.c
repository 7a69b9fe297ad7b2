#include "tests/support/models/model_dir.h"

#include <dirent.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/mem.h"
#include "format/safetensors/safetensors.h"
#include "tests/support/fixtures.h"

enum { FILES_MAX = 16 };
_Static_assert(QN_TEST_DIR_MAX >= PATH_MAX, "realpath");

static int ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static void merge(json_t *object, const json_t *patch)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)patch, key, value)
    {
        json_t *old = json_object_get(object, key);
        if (json_is_null(value))
            json_object_del(object, key);
        else if (json_is_string(value) && strcmp(json_string_value(value), "null") == 0)
            json_object_set_new(object, key, json_null());
        else if (json_is_object(value) && json_is_object(old))
            merge(old, value);
        else
            json_object_set(object, key, value);
    }
}

void qn_test_merge_patch(json_t *object, const char *patch)
{
    json_t *change = json_loads(patch, 0, NULL);
    assert_non_null(change);
    merge(object, change);
    json_decref(change);
}

static void write_config(const char *from, const char *to, const char *patch)
{
    json_t *config = json_load_file(from, 0, NULL);
    assert_non_null(config);
    if (patch) qn_test_merge_patch(config, patch);
    assert_int_equal(json_dump_file(config, to, JSON_INDENT(1)), 0);
    json_decref(config);
}

static const qn_test_tensor_edit *edit_of(const qn_test_tensor_edit *edits, const char *tensor, int kind)
{
    for (; edits->tensor; edits++)
        if ((int)edits->edit == kind && strcmp(edits->tensor, tensor) == 0) return edits;
    return NULL;
}

/* Declares (data 0) or writes (data 1) the tensors of one file as edited. */
static void write_tensors(qn_st_writer *w, const qn_safetensors *s, const qn_test_tensor_edit *edits,
                          int data, int64_t *index)
{
    for (int64_t i = 0; i < qn_safetensors_count(s); i++) {
        const qn_tensor_view *v = qn_safetensors_get(s, i);
        const qn_test_tensor_edit *copy = edit_of(edits, v->name, QN_TEST_COPY);
        int64_t flat[2] = {1, v->n_elements};
        int flatten = edit_of(edits, v->name, QN_TEST_FLATTEN) != NULL;
        qn_dtype dtype = edit_of(edits, v->name, QN_TEST_RETYPE)
                             ? v->dtype == QN_DTYPE_F32 ? QN_DTYPE_I32 : QN_DTYPE_I16
                             : v->dtype;
        const char *names[] = {edit_of(edits, v->name, QN_TEST_DROP) ? NULL : v->name,
                               copy ? copy->name : NULL};
        for (int k = 0; k < 2; k++) {
            if (!names[k]) continue;
            if (data)
                assert_int_equal(qn_st_writer_write(w, (*index)++, 0, v->data, v->size_bytes), QN_OK);
            else
                assert_int_equal(qn_st_writer_add(w, names[k], dtype, flatten ? 2 : v->n_dims,
                                                  flatten ? flat : v->shape, NULL),
                                 QN_OK);
        }
    }
}

static void copy_tensors(char files[][QN_TEST_DIR_MAX], int n_files, const char *to,
                         const qn_test_tensor_edit *edits)
{
    qn_safetensors *open[FILES_MAX];
    qn_st_writer *w = NULL;
    int64_t index = 0;
    for (int i = 0; i < n_files; i++) assert_int_equal(qn_safetensors_open(files[i], &open[i]), QN_OK);
    assert_int_equal(qn_st_writer_new(to, &w), QN_OK);
    for (int i = 0; i < n_files; i++) write_tensors(w, open[i], edits, 0, &index);
    assert_int_equal(qn_st_writer_begin(w), QN_OK);
    for (int i = 0; i < n_files; i++) write_tensors(w, open[i], edits, 1, &index);
    assert_int_equal(qn_st_writer_finish(w), QN_OK);
    qn_st_writer_free(w);
    for (int i = 0; i < n_files; i++) qn_safetensors_close(open[i]);
}

static void join(char *out, const char *folder, const char *name)
{
    int n = snprintf(out, QN_TEST_DIR_MAX, "%s/%s", folder, name);
    assert_true(n > 0 && n < QN_TEST_DIR_MAX);
}

void qn_test_model_copy(const char *from, const char *patch, const qn_test_tensor_edit *edits, char *dir)
{
    static char weights[FILES_MAX][QN_TEST_DIR_MAX];
    static char whole[QN_TEST_DIR_MAX], source[QN_TEST_DIR_MAX], target[QN_TEST_DIR_MAX];
    const char *place = getenv("TMPDIR");
    int n_weights = 0;
    assert_non_null(realpath(from, whole));
    join(dir, place && *place ? place : P_tmpdir, "quern-model-XXXXXX");
    assert_non_null(mkdtemp(dir));
    DIR *folder = opendir(whole);
    assert_non_null(folder);
    for (struct dirent *e; (e = readdir(folder));) {
        if (e->d_name[0] == '.') continue;
        join(source, whole, e->d_name);
        join(target, dir, e->d_name);
        int tensors = strncmp(e->d_name, "model", 5) == 0 && ends_with(e->d_name, ".safetensors");
        if (strcmp(e->d_name, "config.json") == 0) {
            write_config(source, target, patch);
        } else if (edits && tensors) {
            assert_true(n_weights < FILES_MAX);
            memcpy(weights[n_weights++], source, sizeof source);
        } else if (!edits || !ends_with(e->d_name, ".index.json")) {
            assert_int_equal(symlink(source, target), 0);
        }
    }
    closedir(folder);
    join(target, dir, "model.safetensors");
    if (edits) copy_tensors(weights, n_weights, target, edits);
}

void qn_test_model_remove(const char *dir)
{
    static char path[QN_TEST_DIR_MAX];
    DIR *folder = opendir(dir);
    if (!folder) return;
    for (struct dirent *e; (e = readdir(folder));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        join(path, dir, e->d_name);
        unlink(path);
    }
    closedir(folder);
    rmdir(dir);
}

qn_status qn_test_config(const char *path, qn_model_config *out)
{
    qn_source *src = NULL;
    QN_TRY(qn_source_open(path, NULL, &src));
    qn_status status = qn_config_read(src, out);
    qn_source_close(src);
    return status;
}

qn_status qn_test_config_patched(const char *fixture, const char *patch, qn_model_config *out)
{
    static char dir[QN_TEST_DIR_MAX];
    qn_test_model_copy(qn_test_need_fixture(fixture), patch, NULL, dir);
    qn_status status = qn_test_config(dir, out);
    qn_test_model_remove(dir);
    return status;
}

qn_status qn_test_weights_open(const char *path, qn_test_weights *out)
{
    qn_test_weights m = {.src = NULL};
    qn_status status = qn_source_open(path, NULL, &m.src);
    if (status == QN_OK) status = qn_config_read(m.src, &m.config);
    if (status == QN_OK) status = qn_weights_open(m.src, &m.config, &m.weights);
    if (status == QN_OK)
        *out = m;
    else
        qn_test_weights_close(&m);
    return status;
}

void qn_test_weights_close(qn_test_weights *m)
{
    qn_weights_close(m->weights);
    qn_config_free(&m->config);
    qn_source_close(m->src);
}

void qn_test_weights_run_out(const char *path)
{
    int64_t before = qn_mem_live_blocks();
    for (int64_t n = 1;; n++) {
        qn_test_weights m;
        assert_true(n < 2000);
        qn_mem_fail_nth(n);
        qn_status status = qn_test_weights_open(path, &m);
        qn_mem_fail_nth(0);
        if (status == QN_OK) qn_test_weights_close(&m);
        assert_int_equal(qn_mem_live_blocks(), before);
        if (status == QN_OK) break;
        assert_int_equal(status, QN_E_NOMEM);
    }
}

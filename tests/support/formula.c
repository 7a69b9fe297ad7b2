#include "tests/support/formula.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "format/safetensors/safetensors.h"
#include "tests/support/engine_help.h"
#include "tests/support/scratch.h"

/* Element i of tensor number `place`, as the tool makes it. */
static float number(int64_t place, int64_t i, double add, double amplitude)
{
    const uint32_t x = (uint32_t)((uint64_t)i * 2654435761u + (uint64_t)(place * 40503 + 12345)) >> 8;
    return (float)add + (float)amplitude * ((float)x / (float)(1 << 24) - 0.5f);
}

/* A tensor [name, shape, add, amplitude] of a list. */
static const char *read_tensor(const json_t *t, int64_t shape[2], int *n_dims, double *add, double *amplitude)
{
    const json_t *dims = json_array_get(t, 1);
    *n_dims = (int)json_array_size(dims);
    for (int d = 0; d < *n_dims; d++) shape[d] = json_integer_value(json_array_get(dims, (size_t)d));
    *add = json_number_value(json_array_get(t, 2));
    *amplitude = json_number_value(json_array_get(t, 3));
    return json_string_value(json_array_get(t, 0));
}

void qn_test_formula_tensors(const char *path, const char *prefix, const json_t *tensors, int64_t first)
{
    qn_st_writer *w = NULL;
    const json_t *t;
    size_t i;
    int64_t shape[2] = {1, 1};
    int n_dims;
    double add, amplitude;
    char name[256];
    qn_test_ok(qn_st_writer_new(path, &w));
    json_array_foreach(tensors, i, t)
    {
        snprintf(name, sizeof name, "%s%s", prefix, read_tensor(t, shape, &n_dims, &add, &amplitude));
        qn_test_ok(qn_st_writer_add(w, name, QN_DTYPE_F32, n_dims, shape, NULL));
    }
    qn_test_ok(qn_st_writer_begin(w));
    json_array_foreach(tensors, i, t)
    {
        read_tensor(t, shape, &n_dims, &add, &amplitude);
        const int64_t n = shape[0] * (n_dims > 1 ? shape[1] : 1);
        float *values = malloc((size_t)n * sizeof *values); /* foreign */
        assert_non_null(values);
        for (int64_t k = 0; k < n; k++) values[k] = number(first + (int64_t)i, k, add, amplitude);
        qn_test_ok(qn_st_writer_write(w, (int64_t)i, 0, values, (size_t)n * sizeof *values));
        free(values); /* foreign */
    }
    qn_test_ok(qn_st_writer_finish(w));
    qn_st_writer_free(w);
}

void qn_test_formula_json(const char *folder, const char *name, const json_t *value)
{
    char *text = json_dumps(value, 0);
    assert_non_null(text);
    qn_test_write_text(folder, name, text);
    free(text); /* foreign */
}

const char *qn_test_formula_adapter(const json_t *form)
{
    const char *folder = qn_test_scratch();
    qn_test_formula_json(folder, "adapter_config.json", json_object_get(form, "config"));
    qn_test_formula_tensors(qn_test_path(folder, "adapter_model.safetensors"), "base_model.model.",
                            json_object_get(form, "tensors"), 0);
    return folder;
}

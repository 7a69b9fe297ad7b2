#include "tests/support/models/adapter_dir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/random.h"
#include "format/files/mmap.h"
#include "format/safetensors/safetensors.h"
#include "model/weights/weights.h"
#include "prim/dtype.h"
#include "tests/support/engine_help.h"
#include "tests/support/models/model_dir.h"
#include "tests/support/scratch.h"

#define PEFT_PREFIX "base_model.model."

qn_test_adapter *qn_test_adapter_new(int64_t rank, double alpha)
{
    qn_test_adapter *a = test_calloc(1, sizeof *a);
    a->config = json_pack("{s:s, s:I, s:f}", "peft_type", "LORA", "r", (json_int_t)rank, "lora_alpha", alpha);
    assert_non_null(a->config);
    return a;
}

static qn_test_adapter_tensor *next_tensor(qn_test_adapter *a, const char *name, int n_dims,
                                           const int64_t *shape)
{
    assert_true(a->n < QN_TEST_ADAPTER_TENSORS);
    qn_test_adapter_tensor *t = &a->tensors[a->n++];
    int64_t n = 1;
    *t = (qn_test_adapter_tensor){.n_dims = n_dims, .dtype = QN_DTYPE_F32};
    snprintf(t->name, sizeof t->name, "%s", name);
    for (int i = 0; i < n_dims; i++) n *= t->shape[i] = shape[i];
    t->values = test_calloc((size_t)n + 1, sizeof *t->values);
    return t;
}

qn_test_adapter *qn_test_adapter_read(const char *dir)
{
    qn_safetensors *st;
    char *text;
    size_t n;
    qn_test_adapter *a = test_calloc(1, sizeof *a);
    qn_test_ok(qn_file_read(qn_test_path(dir, "adapter_config.json"), 1 << 20, &text, &n));
    qn_test_ok(qn_json_parse("adapter_config.json", text, n, &a->config));
    qn_free(text);
    qn_test_ok(qn_safetensors_open(qn_test_path(dir, "adapter_model.safetensors"), &st));
    for (int64_t i = 0; i < qn_safetensors_count(st); i++) {
        const qn_tensor_view *v = qn_safetensors_get(st, i);
        qn_test_ok(qn_weights_floats(v, next_tensor(a, v->name, v->n_dims, v->shape)->values));
    }
    qn_safetensors_close(st);
    return a;
}

void qn_test_adapter_free(qn_test_adapter *a)
{
    for (size_t i = 0; i < a->n; i++) test_free(a->tensors[i].values);
    json_decref(a->config);
    test_free(a);
}

qn_test_adapter_tensor *qn_test_adapter_add_tensor(qn_test_adapter *a, const char *name, int n_dims,
                                                   const int64_t *shape)
{
    return next_tensor(a, name, n_dims, shape);
}

void qn_test_adapter_add(qn_test_adapter *a, const char *module, int64_t rank, int64_t n_in, int64_t n_out,
                         uint64_t seed)
{
    const int64_t shapes[2][2] = {{rank, n_in}, {n_out, rank}};
    for (int h = 0; h < 2; h++) {
        char name[QN_TEST_ADAPTER_NAME];
        snprintf(name, sizeof name, PEFT_PREFIX "%s.lora_%c.weight", module, "AB"[h]);
        qn_test_adapter_tensor *t = next_tensor(a, name, 2, shapes[h]);
        for (int64_t i = 0; i < shapes[h][0] * shapes[h][1]; i++)
            t->values[i] = 0.2f * ((float)qn_random_unit(2 * seed + (uint64_t)h, (uint64_t)i) - 0.5f);
    }
}

void qn_test_adapter_add_magnitudes(qn_test_adapter *a, const char *module, int64_t n_out, float size,
                                    uint64_t seed)
{
    char name[QN_TEST_ADAPTER_NAME];
    snprintf(name, sizeof name, PEFT_PREFIX "%s.lora_magnitude_vector", module);
    qn_test_adapter_tensor *t = next_tensor(a, name, 1, &n_out);
    for (int64_t i = 0; i < n_out; i++)
        t->values[i] = size * (0.8f + 0.4f * (float)qn_random_unit(seed, (uint64_t)i));
    qn_test_adapter_patch(a, "{\"use_dora\": true}");
}

qn_test_adapter_tensor *qn_test_adapter_find(qn_test_adapter *a, const char *part)
{
    for (size_t i = 0; i < a->n; i++)
        if (strstr(a->tensors[i].name, part)) return &a->tensors[i];
    fail_msg("no tensor has %s in its name", part);
    return NULL;
}

void qn_test_adapter_drop(qn_test_adapter *a, qn_test_adapter_tensor *t)
{
    test_free(t->values);
    *t = a->tensors[--a->n];
}

void qn_test_adapter_patch(qn_test_adapter *a, const char *patch)
{
    qn_test_merge_patch(a->config, patch);
}

/* "model.layers.0.self_attn.q_proj.lora_a" of PEFT's name. */
static void mlx_name(const char *name, char out[QN_TEST_ADAPTER_NAME])
{
    size_t n = strlen(PEFT_PREFIX);
    snprintf(out, QN_TEST_ADAPTER_NAME, "%s", strncmp(name, PEFT_PREFIX, n) == 0 ? name + n : name);
    char *at = strstr(out, ".lora_A.weight");
    if (!at) at = strstr(out, ".lora_B.weight");
    if (!at && (at = strstr(out, ".lora_magnitude_vector"))) memcpy(at, ".m", sizeof ".m");
    if (!at || at[1] == 'm') return;
    at[6] = at[6] == 'A' ? 'a' : 'b';
    at[7] = '\0';
}

static void write_tensor(qn_st_writer *w, int64_t index, const qn_test_adapter_tensor *t, int transposed)
{
    int64_t rows = t->n_dims == 2 ? t->shape[0] : 1, n = 1;
    for (int i = 0; i < t->n_dims; i++) n *= t->shape[i];
    for (int64_t i = 0; i < n; i++) {
        float value = t->values[transposed ? i % rows * (n / rows) + i / rows : i];
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        if (t->dtype == QN_DTYPE_F32) {
            qn_test_ok(qn_st_writer_write(w, index, (size_t)i * 4, &value, 4));
        } else if (t->dtype == QN_DTYPE_BF16) {
            uint16_t half = (uint16_t)(bits >> 16);
            qn_test_ok(qn_st_writer_write(w, index, (size_t)i * 2, &half, 2));
        } else {
            size_t bytes;
            const char zeros[8] = {0};
            assert_true(qn_dtype_bytes(t->dtype, 1, &bytes));
            qn_test_ok(qn_st_writer_write(w, index, (size_t)i * bytes, zeros, bytes));
        }
    }
}

const char *qn_test_adapter_write(const qn_test_adapter *a, const char *folder, const char *name,
                                  qn_adapter_layout layout)
{
    int is_mlx = layout == QN_ADAPTER_MLX;
    qn_st_writer *w;
    char dir[512];
    snprintf(dir, sizeof dir, "%s/%s", folder, name);
    mkdir(dir, 0777);
    json_t *config = json_incref(a->config);
    if (is_mlx) {
        double rank = json_number_value(json_object_get(a->config, "r"));
        double alpha = json_number_value(json_object_get(a->config, "lora_alpha"));
        json_decref(config);
        config = json_pack("{s:s, s:i, s:{s:I, s:f, s:f}, s:[]}", "fine_tune_type",
                           json_is_true(json_object_get(a->config, "use_dora")) ? "dora" : "lora",
                           "num_layers", 4, "lora_parameters", "rank", (json_int_t)rank, "scale",
                           alpha / rank, "dropout", 0.0, "data");
    }
    assert_int_equal(json_dump_file(config, qn_test_path(dir, "adapter_config.json"), JSON_INDENT(1)), 0);
    json_decref(config);
    qn_test_ok(qn_st_writer_new(
        qn_test_path(dir, is_mlx ? "adapters.safetensors" : "adapter_model.safetensors"), &w));
    for (size_t i = 0; i < a->n; i++) {
        const qn_test_adapter_tensor *t = &a->tensors[i];
        char own[QN_TEST_ADAPTER_NAME];
        int64_t shape[3] = {t->shape[0], t->shape[1], t->shape[2]};
        if (is_mlx) mlx_name(t->name, own);
        if (is_mlx && t->n_dims == 2) {
            shape[0] = t->shape[1];
            shape[1] = t->shape[0];
        }
        qn_test_ok(qn_st_writer_add(w, is_mlx ? own : t->name, t->dtype, t->n_dims, shape, NULL));
    }
    qn_test_ok(qn_st_writer_begin(w));
    for (size_t i = 0; i < a->n; i++)
        write_tensor(w, (int64_t)i, &a->tensors[i], is_mlx && a->tensors[i].n_dims == 2);
    qn_test_ok(qn_st_writer_finish(w));
    qn_st_writer_free(w);
    return qn_test_path(folder, name);
}

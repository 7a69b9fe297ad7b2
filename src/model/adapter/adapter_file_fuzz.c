/* Any bytes as an adapter for the small golden llama, and for a model of its sizes with experts: up to the first NUL
 * the configuration, behind it the tensors. Opens it and reads all that is offered. Runs from the root of the
 * repository. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "model/adapter/adapter_file.h"

enum { PATH_BYTES = 128, VALUES_MAX = 1 << 20, EXPERTS = 3, WIDTH = 5, LAYERS_MAX = 8 };

static const char *const files[] = {"adapter_config.json", "adapter_model.safetensors",
                                    "adapters.safetensors"};
static char dir[PATH_BYTES];
static qn_model_config model, with_experts; /* the second has what the first owns */

static void join(char *path, int i)
{
    snprintf(path, 2 * PATH_BYTES, "%s/%s", dir, files[i]);
}

static void clean_up(void)
{
    char path[2 * PATH_BYTES];
    for (int i = 0; i < 3; i++) {
        join(path, i);
        unlink(path);
    }
    rmdir(dir);
    qn_config_free(&model);
}

/* Those of the model, with experts in place of the dense block. */
static qn_layer_config *copy_layers(const qn_model_config *c)
{
    static qn_layer_config layers[LAYERS_MAX];
    if (c->num_hidden_layers > LAYERS_MAX) return NULL;
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        layers[i] = c->layers[i];
        layers[i].has_experts = 1;
        layers[i].has_mlp = 0;
    }
    return layers;
}

static int set_up(void)
{
    qn_source *src = NULL;
    snprintf(dir, sizeof dir, "%s/quern-adapter-XXXXXX", P_tmpdir);
    if (!mkdtemp(dir) || atexit(clean_up) != 0) return 0;
    int ok = qn_source_open("tests/golden/models/llama", NULL, &src) == QN_OK &&
             qn_config_read(src, &model) == QN_OK;
    qn_source_close(src);
    with_experts = model;
    with_experts.family = qn_family_by_model_type("qwen3_moe", &(const char *){NULL});
    with_experts.experts.num_experts = EXPERTS;
    with_experts.experts.moe_intermediate_size = WIDTH;
    if (ok && !(with_experts.layers = copy_layers(&model))) ok = 0;
    return ok;
}

static void put(int i, const uint8_t *bytes, size_t n)
{
    char path[2 * PATH_BYTES];
    join(path, i);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) __builtin_trap();
}

static void read_targets(const qn_adapter_file *f)
{
    for (int64_t i = 0; i < f->n_targets; i++) {
        const qn_adapter_target *t = &f->targets[i];
        const int64_t n = qn_adapter_target_count(t) * t->rank;
        if (n * (t->n_in + t->n_out) > VALUES_MAX) continue;
        float *a = qn_alloc_array((size_t)(n * t->n_in), sizeof *a);
        float *b = qn_alloc_array((size_t)(n * t->n_out), sizeof *b);
        float *m = qn_alloc_array((size_t)t->n_out, sizeof *m);
        if (a && b && m) qn_adapter_target_read(t, a, b, m);
        qn_free(m);
        qn_free(a);
        qn_free(b);
    }
}

static void apply_wholes(const qn_adapter_file *f, const qn_model_config *c)
{
    for (int64_t i = 0; i < f->wholes.n; i++) {
        const qn_adapter_whole *w = &f->wholes.list[i];
        if (w->n_rows * w->n_cols > VALUES_MAX) continue;
        float *numbers = qn_calloc((size_t)(w->n_rows * w->n_cols) + 1, sizeof *numbers);
        if (numbers) qn_adapter_whole_apply(w, c, numbers);
        qn_free(numbers);
    }
}

static void open_for(const qn_model_config *c)
{
    qn_adapter_file f = {0};
    qn_buf notes = {0};
    if (qn_adapter_file_open(dir, c, &notes, &f) == QN_OK) {
        read_targets(&f);
        apply_wholes(&f, c);
        qn_adapter_file_close(&f);
    }
    qn_buf_free(&notes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int ready;
    if (!ready && !set_up()) __builtin_trap();
    ready = 1;
    const uint8_t *nul = memchr(data, 0, size);
    size_t n_config = nul ? (size_t)(nul - data) : size, skip = nul ? n_config + 1 : size;
    put(0, data, n_config);
    for (int i = 1; i < 3; i++) put(i, data + skip, size - skip);
    open_for(&model);
    open_for(&with_experts);
    return 0;
}

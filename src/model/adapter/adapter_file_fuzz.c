/* Any bytes as an adapter for the small golden llama: up to the first NUL the configuration, behind it the
 * tensors. Opens it and reads all that is offered. Runs from the root of the repository. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "model/adapter/adapter_file.h"

enum { PATH_BYTES = 128, VALUES_MAX = 1 << 20 };

static const char *const files[] = {"adapter_config.json", "adapter_model.safetensors",
                                    "adapters.safetensors"};
static char dir[PATH_BYTES];
static qn_model_config model;

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

static int set_up(void)
{
    qn_source *src = NULL;
    snprintf(dir, sizeof dir, "%s/quern-adapter-XXXXXX", P_tmpdir);
    if (!mkdtemp(dir) || atexit(clean_up) != 0) return 0;
    int ok = qn_source_open("tests/golden/models/llama", NULL, &src) == QN_OK &&
             qn_config_read(src, &model) == QN_OK;
    qn_source_close(src);
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
        if (t->rank * (t->n_in + t->n_out) > VALUES_MAX) continue;
        float *a = qn_alloc_array((size_t)(t->rank * t->n_in), sizeof *a);
        float *b = qn_alloc_array((size_t)(t->rank * t->n_out), sizeof *b);
        float *m = qn_alloc_array((size_t)t->n_out, sizeof *m);
        if (a && b && m) qn_adapter_file_read(f, t, a, b, m);
        qn_free(m);
        qn_free(a);
        qn_free(b);
    }
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
    qn_adapter_file f = {0};
    qn_buf notes = {0};
    if (qn_adapter_file_open(dir, &model, &notes, &f) == QN_OK) {
        read_targets(&f);
        qn_adapter_file_close(&f);
    }
    qn_buf_free(&notes);
    return 0;
}

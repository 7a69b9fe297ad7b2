/* Any bytes as the files that describe a vision tower, config.json and, behind the first NUL,
 * preprocessor_config.json, beside weights that have a tensor under each name that a tower's begin with: refused, or
 * numbers from which sizes of every picture follow within bounds. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/config/config.h"
#include "model/vision/image_processor.h"
#include "model/weights/vision_roles.h"

enum { PATH_BYTES = 128 };

static char dir[PATH_BYTES];
static const char *const names[] = {"config.json", "preprocessor_config.json", "model.safetensors"};
enum { N_NAMES = sizeof names / sizeof *names };

static void join(char *path, int i)
{
    snprintf(path, 2 * PATH_BYTES, "%s/%s", dir, names[i]);
}

static void remove_dir(void)
{
    char path[2 * PATH_BYTES];
    for (int i = 0; i < N_NAMES; i++) {
        join(path, i);
        unlink(path);
    }
    rmdir(dir);
}

static int write_file(int i, const void *bytes, size_t n)
{
    char path[2 * PATH_BYTES];
    join(path, i);
    FILE *f = fopen(path, "wb");
    return f && fwrite(bytes, 1, n, f) == n && fclose(f) == 0;
}

static int make_dir(void)
{
#define TENSOR(name, offsets) \
    "\"" name ".x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[" offsets "]}"
    static const char header[] = "{" TENSOR("visual", "0,4") "," TENSOR("vision_tower", "4,8") "," TENSOR(
        "vision_model", "8,12") "," TENSOR("vision_embedder", "12,16") "}";
#undef TENSOR
    char file[sizeof(uint64_t) + sizeof header - 1 + 16] = {0};
    uint64_t n = sizeof header - 1;
    memcpy(file, &n, sizeof n);
    memcpy(file + sizeof n, header, sizeof header - 1);
    snprintf(dir, sizeof dir, "%s/quern-vision-XXXXXX", P_tmpdir);
    return mkdtemp(dir) && write_file(2, file, sizeof file) && atexit(remove_dir) == 0;
}

static void check_pictures(const qn_vision_config *v)
{
    static const int64_t sides[] = {1, 2, 27, 28, 29, 640, 4097, QN_IMAGE_SIDE_MAX};
    enum { N = sizeof sides / sizeof *sides };
    for (int i = 0; i < N * N; i++) {
        qn_image_plan plan;
        const qn_image_processor *p = &v->processor;
        if (qn_image_plan_of(p, sides[i / N], sides[i % N], &plan) != QN_OK) continue;
        if (qn_image_plan_tokens(&plan) < 1 || qn_image_plan_bytes(&plan) < 3 || qn_image_patch_floats(p) < 3)
            abort();
        for (int64_t k = 0; k < qn_image_plan_views(&plan); k++) {
            const qn_image_grid *view = qn_image_plan_view(&plan, k);
            if (view->rows < 1 || view->columns < 1 || view->height > QN_IMAGE_SIDE_MAX ||
                view->width > QN_IMAGE_SIDE_MAX || view->rows * p->patch_size > view->height ||
                view->columns * p->patch_size > view->width)
                abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int ready;
    if (!ready && !make_dir()) __builtin_trap();
    ready = 1;
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t n = nul ? (size_t)(nul - data) : size;
    if (!write_file(0, data, n) || !write_file(1, nul ? nul + 1 : data, nul ? size - n - 1 : 0))
        __builtin_trap();
    qn_source *src = NULL;
    qn_model_config c;
    if (qn_source_open(dir, NULL, &src) == QN_OK && qn_config_read(src, &c) == QN_OK) {
        char name[QN_VISION_NAME_MAX];
        int64_t shape[QN_VISION_DIMS_MAX];
        if (c.vision.family) check_pictures(&c.vision);
        for (int64_t i = 0; i < qn_vision_count(&c.vision); i++) {
            int n_dims = qn_vision_tensor(&c, QN_SOURCE_SAFETENSORS, i, name, shape);
            for (int d = 0; d < n_dims; d++)
                if (shape[d] < 1) abort();
        }
        qn_config_free(&c);
    }
    qn_source_close(src);
    return 0;
}

/* Any bytes as the preprocessor_config.json of every kind of model that sees pictures: refused, or a processor
 * whose plans of pictures of all shapes hold together, and whose views and patches stay within their memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "model/vision/image_processor.h"
#include "model/vision/image_prompt.h"

enum { NAMES = 2, PATH_BYTES = 256 };

static const char *const names[NAMES] = {"preprocessor_config.json", "model.safetensors"};
static char dir[PATH_BYTES / 2];
static volatile float sink;

static void join(char *path, int i)
{
    snprintf(path, PATH_BYTES, "%s/%s", dir, names[i]);
}

static int write_file(int i, const void *bytes, size_t n)
{
    char path[PATH_BYTES];
    join(path, i);
    FILE *f = fopen(path, "wb");
    return f && fwrite(bytes, 1, n, f) == n && fclose(f) == 0;
}

static void remove_dir(void)
{
    char path[PATH_BYTES];
    for (int i = 0; i < NAMES; i++) {
        join(path, i);
        unlink(path);
    }
    rmdir(dir);
}

static int make_dir(void)
{
    static const char weights[] = "\x02\0\0\0\0\0\0\0{}";
    snprintf(dir, sizeof dir, "%s/quern-image-XXXXXX", P_tmpdir);
    return mkdtemp(dir) && write_file(1, weights, sizeof weights - 1) && atexit(remove_dir) == 0;
}

static void check_pixels(const qn_image_processor *p, const qn_image *image, const qn_image_plan *plan)
{
    uint8_t *rgb = qn_alloc((size_t)qn_image_plan_bytes(plan)), *at = rgb;
    if (!rgb || qn_image_fit(p, image, plan, rgb) != QN_OK) abort();
    for (int64_t i = 0; i < qn_image_plan_views(plan); i++) {
        const qn_image_grid *view = qn_image_plan_view(plan, i);
        const int64_t n = view->rows * view->columns * qn_image_patch_floats(p);
        float *patches = qn_alloc_array((size_t)n, sizeof *patches);
        if (!patches) abort();
        qn_image_patches(p, at, view, patches);
        for (int64_t k = 0; k < n; k++) sink = patches[k];
        at += qn_image_grid_bytes(view);
        qn_free(patches);
    }
    qn_free(rgb);
}

static void check_plan(const qn_image_processor *p, int64_t width, int64_t height)
{
    enum { BYTES_MAX = 1 << 14, TOKENS_MAX = 1 << 10 }; /* so that the fuzzer spends its time on plans */
    static uint8_t pixels[3 * 32 * 32];
    qn_image_plan plan;
    if (qn_image_plan_of(p, width, height, &plan) != QN_OK) return;
    if (qn_image_plan_tokens(&plan) < 1 || qn_image_plan_views(&plan) > QN_IMAGE_TILES_MAX + 1) abort();
    if (plan.content.height > plan.canvas.height || plan.content.width > plan.canvas.width) abort();
    if (plan.tile_rows * plan.tile.height > plan.canvas.height ||
        plan.tile_columns * plan.tile.width > plan.canvas.width)
        abort();
    for (int64_t i = 0; i < qn_image_plan_views(&plan); i++) {
        const qn_image_grid *view = qn_image_plan_view(&plan, i);
        if (view->rows < 1 || view->rows * p->patch_size > view->height ||
            view->columns * p->patch_size > view->width)
            abort();
    }
    if (qn_image_plan_tokens(&plan) <= TOKENS_MAX) {
        qn_buf text = {0};
        qn_image_prompt_put(p, &plan, &(qn_image_words){"I", "B", "E"}, &text);
        qn_buf_free(&text);
    }
    if (width <= 32 && height <= 32 && qn_image_plan_bytes(&plan) <= BYTES_MAX)
        check_pixels(p, &(qn_image){pixels, width, height, 0}, &plan);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const models[] = {"qwen2_vl", "glm5_next",      "muse_glimmer", "gemma3",
                                         "gemma4",   "gemma4_unified", "mistral3",     "smolvlm",
                                         "internvl", "llama4",         "lfm2_vl"};
    static const int64_t sides[] = {1, 2, 27, 32, 640, 4097, QN_IMAGE_SIDE_MAX};
    enum { N_MODELS = sizeof models / sizeof models[0], N = sizeof sides / sizeof sides[0] };
    static int ready;
    if (!ready && !make_dir()) __builtin_trap();
    ready = 1;
    if (!write_file(0, data, size)) __builtin_trap();
    for (int k = 0; k < N_MODELS; k++) {
        const qn_image_tower tower = {models[k], 4, 2, 1};
        qn_image_processor p;
        qn_source *src = NULL;
        if (qn_source_open(dir, NULL, &src) != QN_OK) __builtin_trap();
        const qn_status status = qn_image_processor_read(src, &tower, NULL, &p);
        qn_source_close(src);
        for (int i = 0; status == QN_OK && i < N * N; i++) check_plan(&p, sides[i / N], sides[i % N]);
    }
    return 0;
}

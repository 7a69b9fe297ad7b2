/* Any bytes as config.json beside the weights of small models: read the configuration and find the tensors it
 * asks for. The bytes say themselves whose weights: without that, only llama's roles would ever be looked
 * for. Runs from the root of the repository. */
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/config/config.h"
#include "model/weights/weights.h"

enum { N_MODELS = 4, PATH_BYTES = 128 };

/* The first whose word is in the bytes; the last otherwise. */
static const struct {
    const char *word, *model;
} models[N_MODELS] = {{"qwen2_vl", NULL}, {"gemma", "gemma3_text"}, {"qwen", "qwen3"}, {"", "llama"}};

/* In place of a model of safetensors: the first two files of one in bin_weights, vocabulary 8, hidden size 4.
 */
static const struct {
    const char *name;
    size_t size_bytes;
} raw[] = {{"bin_weights/embed_tokens.bin", 64}, {"bin_weights/final_norm.bin", 8}};

static char dirs[N_MODELS][PATH_BYTES];

static void join(char *path, int i, const char *name)
{
    snprintf(path, 2 * PATH_BYTES, "%s/%s", dirs[i], name);
}

static void remove_dirs(void)
{
    char path[2 * PATH_BYTES];
    for (int i = 0; i < N_MODELS; i++) {
        join(path, i, "config.json");
        unlink(path);
        join(path, i, "model.safetensors");
        unlink(path);
        for (size_t k = 0; k < sizeof raw / sizeof *raw; k++) {
            join(path, i, raw[k].name);
            unlink(path);
        }
        join(path, i, "bin_weights");
        rmdir(path);
        rmdir(dirs[i]);
    }
}

static int make_raw(int i)
{
    static const char zeros[64];
    char path[2 * PATH_BYTES];
    join(path, i, "bin_weights");
    if (mkdir(path, 0700) != 0) return 0;
    for (size_t k = 0; k < sizeof raw / sizeof *raw; k++) {
        join(path, i, raw[k].name);
        FILE *f = fopen(path, "wb");
        if (!f || fwrite(zeros, 1, raw[k].size_bytes, f) != raw[k].size_bytes || fclose(f) != 0) return 0;
    }
    return 1;
}

static int make_dirs(void)
{
    char path[2 * PATH_BYTES];
    static char weights[PATH_MAX];
    for (int i = 0; i < N_MODELS; i++) {
        snprintf(dirs[i], PATH_BYTES, "%s/quern-config-XXXXXX", P_tmpdir);
        if (!mkdtemp(dirs[i])) return 0;
        if (!models[i].model) {
            if (!make_raw(i)) return 0;
            continue;
        }
        snprintf(path, sizeof path, "tests/golden/models/%s/model.safetensors", models[i].model);
        if (!realpath(path, weights)) return 0;
        join(path, i, "model.safetensors");
        if (symlink(weights, path) != 0) return 0;
    }
    return atexit(remove_dirs) == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int ready;
    char path[2 * PATH_BYTES];
    int i = 0;
    if (!ready && !make_dirs()) __builtin_trap();
    ready = 1;
    while (i < N_MODELS - 1 && !memmem(data, size, models[i].word, strlen(models[i].word))) i++;
    join(path, i, "config.json");
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, size, f) != size || fclose(f) != 0) __builtin_trap();

    static const qn_rope_options changes[] = {
        {.theta = 5e5, .factor = 2},
        {.scaling = QN_ROPE_SCALING_YARN, .factor = 4, .yarn_original_context = 64}};
    qn_source *src = NULL;
    qn_model_config c;
    if (qn_source_open(dirs[i], NULL, &src) == QN_OK && qn_config_read(src, &c) == QN_OK) {
        qn_weights *w = NULL;
        if (qn_weights_open(src, &c, &w) == QN_OK) qn_weights_close(w);
        qn_config_free(&c);
    }
    if (src && qn_config_read_changed(src, &changes[size % 2], NULL, &c) == QN_OK) qn_config_free(&c);
    qn_source_close(src);
    return 0;
}

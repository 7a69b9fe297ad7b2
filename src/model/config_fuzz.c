/* Any bytes as config.json beside the weights of a small model: read the configuration and find the tensors
 * it asks for. Runs from the root of the repository. */
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "model/config.h"
#include "model/weights.h"

static char dir[] = P_tmpdir "/quern-config-XXXXXX";
static char config_path[sizeof dir + 32], weights_path[sizeof dir + 32];

static void remove_dir(void)
{
    unlink(config_path);
    unlink(weights_path);
    rmdir(dir);
}

static int make_dir(void)
{
    static char weights[PATH_MAX];
    if (!realpath("tests/golden/models/llama/model.safetensors", weights) || !mkdtemp(dir)) return 0;
    snprintf(config_path, sizeof config_path, "%s/config.json", dir);
    snprintf(weights_path, sizeof weights_path, "%s/model.safetensors", dir);
    return symlink(weights, weights_path) == 0 && atexit(remove_dir) == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int ready;
    if (!ready && !make_dir()) __builtin_trap();
    ready = 1;
    FILE *f = fopen(config_path, "wb");
    if (!f || fwrite(data, 1, size, f) != size || fclose(f) != 0) __builtin_trap();

    qn_source *src = NULL;
    qn_model_config c;
    if (qn_source_open(dir, NULL, &src) == QN_OK && qn_config_read(src, &c) == QN_OK) {
        qn_weights *w = NULL;
        if (qn_weights_open(src, &c, &w) == QN_OK) qn_weights_close(w);
        qn_config_free(&c);
    }
    qn_source_close(src);
    return 0;
}

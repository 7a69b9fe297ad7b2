/* Any bytes as the GGUF file of a vision tower, beside a text that has the tokens of all towers: refused, or numbers from which
 * sizes of every picture and of every tensor follow within bounds. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "model/config/projector/projector_config.h"
#include "model/config/projector/projector_family.h"
#include "model/vision/image_processor.h"
#include "model/weights/vision_roles.h"

enum { PATH_BYTES = 128, HIDDEN = 48, VOCABULARY = 64 };

static char dir[PATH_BYTES], text[2 * PATH_BYTES], tower[2 * PATH_BYTES];

static void remove_dir(void)
{
    unlink(text);
    unlink(tower);
    rmdir(dir);
}

static int write_file(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    return f && fwrite(bytes, 1, n, f) == n && fclose(f) == 0;
}

static void put_text(qn_buf *b, const char *s)
{
    const uint64_t n = strlen(s);
    qn_buf_append(b, &n, sizeof n);
    qn_buf_append(b, s, (size_t)n);
}

/* A GGUF without tensors whose vocabulary is the tokens that towers need. */
static int make_dir(void)
{
    const uint32_t version = 3, array = QN_GGUF_ARRAY, string = QN_GGUF_STRING;
    const uint64_t n_tensors = 0, n_values = 1;
    uint64_t n = 0;
    qn_buf file = {0}, tokens = {0};
    for (int i = 0; qn_projector_row(i); i++)
        for (int k = 0; qn_projector_row(i)->image_tokens[k]; k++, n++)
            put_text(&tokens, qn_projector_row(i)->image_tokens[k]);
    qn_buf_puts(&file, "GGUF");
    qn_buf_append(&file, &version, sizeof version);
    qn_buf_append(&file, &n_tensors, sizeof n_tensors);
    qn_buf_append(&file, &n_values, sizeof n_values);
    put_text(&file, "tokenizer.ggml.tokens");
    qn_buf_append(&file, &array, sizeof array);
    qn_buf_append(&file, &string, sizeof string);
    qn_buf_append(&file, &n, sizeof n);
    qn_buf_append(&file, tokens.data, tokens.length);
    snprintf(dir, sizeof dir, "%s/quern-projector-XXXXXX", P_tmpdir);
    int made = file.status == QN_OK && n <= VOCABULARY && mkdtemp(dir) != NULL;
    snprintf(text, sizeof text, "%s/text.gguf", dir);
    snprintf(tower, sizeof tower, "%s/tower.gguf", dir);
    made = made && write_file(text, file.data, file.length) && atexit(remove_dir) == 0;
    qn_buf_free(&file);
    qn_buf_free(&tokens);
    return made;
}

static void check_pictures(const qn_vision_config *v)
{
    static const int64_t sides[] = {1, 27, 28, 29, 640, 4097, QN_IMAGE_SIDE_MAX};
    enum { N = sizeof sides / sizeof *sides };
    for (int i = 0; i < N * N; i++) {
        qn_image_plan plan;
        const qn_image_processor *p = &v->processor;
        if (qn_image_plan_of(p, sides[i / N], sides[i % N], &plan) != QN_OK) continue;
        if (qn_image_plan_tokens(&plan) < 1 || qn_image_plan_bytes(&plan) < 3 || qn_image_patch_floats(p) < 3)
            abort();
    }
}

static void check_tensors(const qn_model_config *c)
{
    for (int64_t i = 0; i < qn_vision_count(&c->vision); i++) {
        char name[QN_VISION_NAME_MAX];
        int64_t shape[QN_VISION_DIMS_MAX];
        const int n_dims = qn_vision_tensor(c, QN_SOURCE_GGUF, i, name, shape);
        for (int d = 0; d < n_dims; d++)
            if (shape[d] < 1) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int ready;
    if (!ready && !make_dir()) __builtin_trap();
    ready = 1;
    if (!write_file(tower, data, size)) __builtin_trap();
    const qn_source_options options = {.mmproj = tower};
    qn_source *src = NULL;
    qn_model_config c = {.hidden_size = HIDDEN, .vocab_size = VOCABULARY, .rms_norm_eps = 1e-6f};
    if (qn_source_open(text, &options, &src) == QN_OK && qn_projector_config_read(src, &c) == QN_OK) {
        if (!c.vision.family || !c.vision.projector) abort();
        check_pictures(&c.vision);
        check_tensors(&c);
    }
    qn_source_close(src);
    return 0;
}

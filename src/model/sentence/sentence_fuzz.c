/* Any bytes as the files of sentence-transformers: modules.json, then those of a pooling, of a linear layer and its
 * tensors, of prompts, each up to a NUL, the last to the end. Bytes that begin with "GGUF" are a file of that kind. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "model/sentence/sentence.h"

enum { PATH_BYTES = 128, FILES = 5, WIDTH = 3 };

static const char *const files[FILES] = {"modules.json", "1_Pooling/config.json", "2_Dense/config.json",
                                         "config_sentence_transformers.json", "2_Dense/model.safetensors"};
static char dir[PATH_BYTES];

static const char *join(const char *name)
{
    static char path[2 * PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void clean_up(void)
{
    unlink(join("model.gguf"));
    for (int i = 0; i < FILES; i++) unlink(join(files[i]));
    rmdir(join("1_Pooling"));
    rmdir(join("2_Dense"));
    rmdir(dir);
}

static int set_up(void)
{
    snprintf(dir, sizeof dir, "%s/quern-sentence-XXXXXX", P_tmpdir);
    return mkdtemp(dir) && atexit(clean_up) == 0 && mkdir(join("1_Pooling"), 0700) == 0 &&
           mkdir(join("2_Dense"), 0700) == 0;
}

static void write_file(const char *name, const uint8_t *data, size_t n)
{
    FILE *f = fopen(join(name), "wb");
    if (!f || (n && fwrite(data, 1, n, f) != n) || fclose(f) != 0) __builtin_trap();
}

static void read_gguf(const uint8_t *data, size_t size, qn_sentence **s)
{
    qn_source *source = NULL;
    write_file("model.gguf", data, size);
    if (qn_source_open(join("model.gguf"), NULL, &source) == QN_OK)
        (void)qn_sentence_read_gguf(source, WIDTH, s);
    qn_source_close(source);
}

static void read_folder(const uint8_t *data, size_t size, qn_sentence **s)
{
    for (int i = 0; i < FILES; i++) {
        const uint8_t *end = i + 1 < FILES && size ? memchr(data, 0, size) : NULL;
        const size_t n = end ? (size_t)(end - data) : size;
        write_file(files[i], data, n);
        data += n + (end != NULL);
        size -= n + (end != NULL);
    }
    (void)qn_sentence_read(dir, WIDTH, s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int is_ready;
    qn_sentence *s = NULL;
    if (!is_ready && !set_up()) __builtin_trap();
    is_ready = 1;
    (size >= 4 && memcmp(data, "GGUF", 4) == 0 ? read_gguf : read_folder)(data, size, &s);
    if (s) {
        const qn_sentence_info *info = qn_sentence_get(s);
        float *x = qn_calloc(2 * qn_sentence_scratch(s) + (size_t)(info->n_in + info->n_out), sizeof *x);
        if (x && info->n_dense)
            qn_sentence_project(s, x, x + info->n_in, x + info->n_in + qn_sentence_scratch(s));
        qn_free(x);
    }
    qn_sentence_free(s);
    return 0;
}

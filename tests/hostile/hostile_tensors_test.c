/* Models of which one tensor is missing, or holds what is no number: each kind of tensor (its name but for
 * the layer) of each fixture is left out once, and the model is opened as a user opens it. What the model
 * needs must be missed by file, name and shape; what it can do without must not be missed. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "format/safetensors/safetensors.h"
#include "tests/hostile/hostile.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/gguf_file.h"
#include "tests/support/models/model_dir.h"
#include "tests/support/scratch.h"

enum { KINDS_MAX = 128, KIND_BYTES = 128, MODELS_MAX = 64 };

/* One tensor of each kind: that of the last layer, whose absence nothing else gives away. */
typedef struct {
    char kind[KIND_BYTES], name[KIND_BYTES], shape[64];
    int64_t layer;
} sample;

typedef struct {
    sample list[KINDS_MAX];
    int n;
} samples;

/* "blk.7.attn_q.weight" -> "blk.#.attn_q.weight", 7; names without a number have layer -1. */
static int64_t kind_of(const char *name, char *kind)
{
    long long layer = -1;
    const char *p = name;
    size_t n = 0;
    while (*p && n + 2 < KIND_BYTES) {
        int digit = *p >= '0' && *p <= '9' && p > name && p[-1] == '.';
        if (digit && layer < 0) {
            sscanf(p, "%lld", &layer);
            kind[n++] = '#';
            while (*p >= '0' && *p <= '9') p++;
        } else {
            kind[n++] = *p++;
        }
    }
    kind[n] = '\0';
    return layer;
}

static void add_sample(samples *s, const qn_tensor_view *v)
{
    char kind[KIND_BYTES];
    int64_t layer = kind_of(v->name, kind);
    int i = 0;
    while (i < s->n && strcmp(s->list[i].kind, kind) != 0) i++;
    assert_true(i < KINDS_MAX);
    if (i == s->n)
        s->n++;
    else if (layer < s->list[i].layer)
        return;
    snprintf(s->list[i].kind, KIND_BYTES, "%s", kind);
    snprintf(s->list[i].name, KIND_BYTES, "%s", v->name);
    qn_view_shape_text(v, s->list[i].shape, sizeof s->list[i].shape);
    s->list[i].layer = layer;
}

static int begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

static int ends(const char *text, const char *with)
{
    size_t n = strlen(text), m = strlen(with);
    return n >= m && strcmp(text + n - m, with) == 0;
}

/* ---- safetensors -------------------------------------------------------------------------------------- */

/* All tensors of a folder's model files. */
static void sample_folder(const char *path, samples *s)
{
    DIR *dir = opendir(path);
    assert_non_null(dir);
    s->n = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        qn_safetensors *st = NULL;
        if (!begins(e->d_name, "model") || !ends(e->d_name, ".safetensors")) continue;
        if (qn_safetensors_open(qn_test_path(path, e->d_name), &st) != QN_OK) fail_msg("%s", qn_last_error());
        for (int64_t i = 0; i < qn_safetensors_count(st); i++) add_sample(s, qn_safetensors_get(st, i));
        qn_safetensors_close(st);
    }
    closedir(dir);
}

/* What tie_word_embeddings says: 1, 0, or -1 for nothing. */
static int says_tied(const char *path)
{
    json_t *config = json_load_file(qn_test_path(path, "config.json"), 0, NULL);
    const json_t *tie = json_object_get(config, "tie_word_embeddings");
    int said = json_is_boolean(tie) ? json_is_true(tie) : -1;
    json_decref(config);
    return said;
}

/* Is the model whole without it? A layer without a scale is not scaled, and without a word on tying a missing
 * head means that the embedding is the head. */
static int can_do_without(const char *path, const sample *t)
{
    if (ends(t->name, ".layer_scalar")) return 1;
    return ends(t->name, "lm_head.weight") && says_tied(path) != 0;
}

static void leave_out(const char *path, const sample *t)
{
    const qn_test_tensor_edit drop[] = {{t->name, QN_TEST_DROP, NULL}, {NULL, 0, NULL}};
    char dir[QN_TEST_DIR_MAX], says[512];
    qn_test_opening o;
    int embedding = ends(t->name, "embed_tokens.weight");
    qn_test_model_copy(path, NULL, drop, dir);
    qn_test_open(dir, "", &o);
    qn_test_model_remove(dir);
    /* Without its embedding nothing says under which prefix the decoder lies: the plain one is named. */
    snprintf(says, sizeof says, "model.safetensors: tensor %s is missing, expected with shape %s",
             embedding ? "model.embed_tokens.weight" : t->name, t->shape);
    if (can_do_without(path, t)) {
        if (o.status != QN_OK) fail_msg("%s without %s: %s", path, t->name, o.message);
    } else if (o.status != QN_E_FORMAT || strcmp(o.message, says) != 0) {
        fail_msg("%s without %s: %s: \"%s\"\n     expected \"%s\"", path, t->name, qn_status_name(o.status),
                 o.message, says);
    }
}

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void test_safetensors(void **state)
{
    static char names[MODELS_MAX][64];
    static samples s;
    int n_names = 0, n_models = 0;
    DIR *dir = opendir(qn_test_need_fixture("models"));
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));)
        if (e->d_name[0] != '.' && n_names < MODELS_MAX)
            snprintf(names[n_names++], sizeof names[0], "%.63s", e->d_name);
    closedir(dir);
    qsort(names, (size_t)n_names, sizeof names[0], by_name);
    for (int i = 0; i < n_names; i++) {
        char relative[96];
        qn_test_opening o;
        snprintf(relative, sizeof relative, "models/%s", names[i]);
        const char *path = qn_test_fixture(relative);
        qn_test_open(path, "", &o);
        if (o.status == QN_E_UNSUPPORTED) continue; /* a family that is not known is none of this test's */
        if (o.status != QN_OK) fail_msg("%s: %s", names[i], o.message);
        sample_folder(path, &s);
        assert_true(s.n >= 8); /* embedding, final norm, four matrices, two norms, and often more */
        for (int k = 0; k < s.n; k++) leave_out(path, &s.list[k]);
        n_models++;
    }
    assert_true(n_models >= 4); /* as many are in the tree */
}

/* MLX keeps a quantised matrix in two or three tensors: none can be there without the others. */
static void leave_out_of_mlx(const char *path, const sample *t)
{
    const qn_test_tensor_edit drop[] = {{t->name, QN_TEST_DROP, NULL}, {NULL, 0, NULL}};
    char dir[QN_TEST_DIR_MAX], says[512];
    int stem = (int)(strrchr(t->name, '.') - t->name);
    if (ends(t->name, ".scales"))
        snprintf(says, sizeof says,
                 "model.safetensors: tensor %.*s.weight is of type U32, but there is no %s", stem, t->name,
                 t->name);
    else if (ends(t->name, ".biases"))
        snprintf(says, sizeof says, "model.safetensors: tensor %.*s.weight has scales but no biases", stem,
                 t->name);
    else
        snprintf(says, sizeof says, "model.safetensors: tensor %s is missing, expected with shape [*]",
                 t->name);
    qn_test_model_copy(path, NULL, drop, dir);
    qn_test_refused(dir, "", QN_E_FORMAT, says);
    qn_test_model_remove(dir);
}

static void test_mlx(void **state)
{
    static const char *const names[] = {"gemma3_text-8bit-g32", "llama-mixed", "qwen2-mxfp4",
                                        "qwen3-4bit-g64"};
    static samples s;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char relative[96];
        snprintf(relative, sizeof relative, "quant/mlx_models/%s", names[i]);
        const char *path = qn_test_need_fixture(relative);
        sample_folder(path, &s);
        assert_true(s.n >= 18);
        for (int k = 0; k < s.n; k++) leave_out_of_mlx(path, &s.list[k]);
    }
}

/* A model that says nothing of itself is recognised by its tensors; without the one that gives it away it
 * would be taken for another, and the tensors that are left over must tell. */
static void test_recognised_by_what_is_missing(void **state)
{
    static const char *const gone[] = {"model.layers.0.self_attn.q_norm.weight",
                                       "model.layers.0.self_attn.q_proj.weight", "model.embed_tokens.weight"};
    const char *path = qn_test_need_fixture("models/qwen3_no_model_type");
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++) {
        const qn_test_tensor_edit drop[] = {{gone[i], QN_TEST_DROP, NULL}, {NULL, 0, NULL}};
        char dir[QN_TEST_DIR_MAX];
        qn_test_opening o;
        qn_test_model_copy(path, NULL, drop, dir);
        qn_test_open(dir, "", &o);
        qn_test_model_remove(dir);
        if (o.status != QN_E_FORMAT ||
            !strstr(o.message,
                    i == 0 ? "model_type is missing, and the tensors match no known family" : gone[i]))
            fail_msg("without %s: %s: %s", gone[i], qn_status_name(o.status), o.message);
    }
}

/* In several files: the index still promises it, or does not. */
static void test_shards(void **state)
{
    static const char tensor[] = "model.layers.1.mlp.up_proj.weight";
    static const char index[] = "model.safetensors.index.json";
    const char *path = qn_test_need_fixture("models/llama_rope3_tied");
    char dir[QN_TEST_DIR_MAX];
    json_t *json = json_load_file(qn_test_path(path, index), 0, NULL),
           *map = json_object_get(json, "weight_map");
    assert_non_null(json_object_get(map, tensor));
    const char *wrong =
        strcmp(json_string_value(json_object_get(map, tensor)), "model-00001-of-00002.safetensors") == 0
            ? "model-00002-of-00002.safetensors"
            : "model-00001-of-00002.safetensors";
    char says[256];
    qn_test_model_copy(path, NULL, NULL, dir);
    unlink(qn_test_path(dir, index));
    json_object_set_new(map, tensor, json_string(wrong));
    assert_int_equal(json_dump_file(json, qn_test_path(dir, index), 0), 0);
    snprintf(says, sizeof says, "%s: tensor %s is not in %s", index, tensor, wrong);
    qn_test_refused(dir, "", QN_E_FORMAT, says);
    /* A file that the index needs is gone. */
    unlink(qn_test_path(dir, wrong));
    snprintf(
        says, sizeof says,
        "%s: No such file or directory, which %s names: the model is incomplete, download the file again",
        wrong, index);
    qn_test_refused(dir, "", QN_E_IO, says);
    json_decref(json);
    qn_test_model_remove(dir);
}

/* ---- GGUF --------------------------------------------------------------------------------------------- */

/* GGUF files never say whether the head is tied, and factors for the rotation are a table of their own. */
static int gguf_can_do_without(const char *name)
{
    return strcmp(name, "output.weight") == 0 || strcmp(name, "rope_freqs.weight") == 0;
}

/* path: a file, or the architecture of one that is made up. */
static qn_test_gguf *whole(const char *path)
{
    if (ends(path, ".gguf")) return qn_test_gguf_read(path);
    qn_test_gguf *f = qn_test_gguf_new();
    qn_test_gguf_become(f, path);
    return f;
}

static void leave_out_of_gguf(const char *path)
{
    static samples s;
    const char *folder = qn_test_scratch();
    qn_test_gguf *f = whole(path);
    qn_gguf *g = NULL;
    s.n = 0;
    assert_int_equal(qn_gguf_open(qn_test_gguf_write(f, folder, "t.gguf"), &g), QN_OK);
    qn_test_accepted(folder, "t.gguf");
    for (int64_t i = 0; i < qn_gguf_count(g); i++) add_sample(&s, qn_gguf_get(g, i));
    int has_vocab_size = 0;
    for (int64_t i = 0; i < qn_gguf_value_count(g); i++)
        has_vocab_size |= ends(qn_gguf_value_get(g, i)->key, ".vocab_size");
    qn_gguf_close(g);
    qn_test_gguf_free(f);
    assert_true(s.n >= 11);
    for (int k = 0; k < s.n; k++) {
        const sample *t = &s.list[k];
        char says[256];
        qn_test_opening o;
        /* Files that leave the size of the vocabulary to this tensor. */
        int nameless = !has_vocab_size && strcmp(t->name, "token_embd.weight") == 0;
        f = whole(path);
        qn_test_gguf_tensor_drop(f, t->name);
        qn_test_gguf_write(f, folder, "t.gguf");
        qn_test_gguf_free(f);
        qn_test_open(folder, "t.gguf", &o);
        snprintf(says, sizeof says, "t.gguf: tensor %s is missing, %s%s", t->name,
                 nameless ? "and so is *.vocab_size" : "expected with shape ", nameless ? "" : t->shape);
        if (gguf_can_do_without(t->name) ? o.status != QN_OK
                                         : o.status != QN_E_FORMAT || !qn_test_matches(says, o.message))
            fail_msg("%s without %s: %s: \"%s\"", path, t->name, qn_status_name(o.status), o.message);
    }
    qn_test_remove(folder);
}

static void test_gguf(void **state)
{
    static const char *const architectures[] = {"llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3"};
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++)
        leave_out_of_gguf(architectures[i]);
}

static void test_gguf_fixtures(void **state)
{
    static const char *const names[] = {"llama-Q4_K_M", "qwen2-Q5_K_M", "qwen3-Q4_K_M", "gemma3-Q4_0"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char relative[96];
        snprintf(relative, sizeof relative, "quant/gguf_models/%s.gguf", names[i]);
        leave_out_of_gguf(qn_test_need_fixture(relative));
    }
}

/* ---- values ------------------------------------------------------------------------------------------- */

/* Two tokens, greedy and drawn: ids of the vocabulary, or an end that says what is wrong. */
static void generate(qn_model *m, float temperature, const char *tensor)
{
    static const int32_t ids[] = {5, 6, 7};
    const qn_ids row = {ids, 3};
    const qn_prompt prompt = {.rows = &row, .n_rows = 1};
    const qn_generate_options options = {
        .max_tokens = 2, .temperature = temperature, .seed = 3, .ignore_eos = 1};
    qn_generation *g = NULL;
    qn_token token = {.end = QN_END_NONE};
    assert_int_equal(qn_generation_open(m, &prompt, &options, &g), QN_OK);
    for (int i = 0; i < 3 && token.end == QN_END_NONE; i++) {
        qn_status status = qn_generation_next(g, &token);
        if (status == QN_OK && token.end == QN_END_NONE && (token.id < 0 || token.id >= QN_TEST_GGUF_VOCAB))
            fail_msg("%s: token %d", tensor, token.id);
        if (status != QN_OK &&
            (token.end != QN_END_ERROR ||
             !qn_test_matches("position *: the model gave logits that are not finite numbers",
                              qn_last_error())))
            fail_msg("%s: %s: %s", tensor, qn_status_name(status), qn_last_error());
    }
    assert_int_not_equal(token.end, QN_END_NONE);
    qn_generation_close(g);
}

/* Every tensor once with values that are no numbers: as floats, or as the scales of blocks. */
static void test_values(void **state)
{
    static const uint32_t patterns[] = {0x7fc00000, 0x7f800000, 0xff800000,
                                        0x7f7fffff, 0xffffffff, 0x7c007c00};
    static uint32_t data[4096];
    const char *folder = qn_test_scratch();
    qn_test_gguf *f = qn_test_gguf_new();
    for (size_t i = 0; i < f->n_tensors; i++)
        for (size_t p = 0; p < sizeof patterns / sizeof *patterns; p++) {
            qn_test_gguf_tensor *t = &f->tensors[i];
            const qn_test_gguf_tensor sound = *t;
            int blocks =
                p >= 4 && t->n_dims == 2; /* as Q8_0, of which each block begins with a float of 2 bytes */
            qn_model *m = NULL;
            for (size_t j = 0; j < sizeof data / sizeof *data; j++) data[j] = patterns[p];
            t->data = data;
            if (blocks) t->type = 8, t->size_bytes = (size_t)(t->dims[0] / 32 * t->dims[1] * 34);
            qn_test_gguf_place(f);
            const char *path = qn_test_gguf_write(f, folder, "t.gguf");
            if (qn_model_open(path, &(qn_model_options){.n_threads = 1}, &m) != QN_OK)
                fail_msg("%s: %s", t->name, qn_last_error());
            generate(m, 0, t->name);
            generate(m, 1, t->name);
            qn_model_close(&m);
            *t = sound;
        }
    qn_test_gguf_free(f);
    qn_test_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_safetensors),
        cmocka_unit_test(test_mlx),
        cmocka_unit_test(test_recognised_by_what_is_missing),
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_gguf_fixtures),
        cmocka_unit_test(test_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

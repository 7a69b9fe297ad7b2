/* Tensors that hold the rows of several matrices (phi3's qkv_proj and gate_up_proj): for every weight type
 * the same bits as the matrices by themselves, also from a packed file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "device/cpu/kernels/kernels.h"
#include "engine/machine/examine.h"
#include "engine/machine/pack.h"
#include "quant/types.h"
#include "tests/support/engine_help.h"
#include "tests/support/models/gguf_file.h"
#include "tests/support/models/model_dir.h"
#include "tests/support/models/typed_model.h"
#include "tests/support/scratch.h"

enum { N_IDS = 9, LAYERS = 2, PARTS_MAX = 3 };
static const int32_t ids[N_IDS] = {3, 14, 15, 92, 65, 35, 89, 79, 32};

/* A tensor of several, from the top. */
typedef struct {
    const char *whole, *parts[PARTS_MAX + 1];
} sharing;

static const sharing in_gguf[] = {{"attn_qkv", {"attn_q", "attn_k", "attn_v"}},
                                  {"ffn_up", {"ffn_gate", "ffn_up"}}};
static const sharing in_safetensors[] = {
    {"self_attn.qkv_proj", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}},
    {"mlp.gate_up_proj", {"mlp.gate_proj", "mlp.up_proj"}}};

static void *joined[2 * LAYERS]; /* data of the tensors of a GGUF file */

/* In place of the parts, one tensor with their rows. */
static void share_in_gguf(qn_test_gguf *f, const sharing *s, int layer, void **kept)
{
    char name[64];
    size_t size_bytes = 0, at = 0;
    int64_t rows = 0, cols = 0;
    uint32_t type = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; s->parts[i]; i++) {
            snprintf(name, sizeof name, "blk.%d.%s.weight", layer, s->parts[i]);
            qn_test_gguf_tensor *t = qn_test_gguf_tensor_get(f, name);
            if (pass) {
                memcpy((char *)*kept + at, t->data, t->size_bytes);
                at += t->size_bytes;
                type = t->type;
                qn_test_gguf_tensor_drop(f, name);
            } else {
                size_bytes += t->size_bytes;
                rows += (int64_t)t->dims[1];
                cols = (int64_t)t->dims[0];
            }
        }
        if (!pass) *kept = test_calloc(size_bytes, 1);
    }
    snprintf(name, sizeof name, "blk.%d.%s.weight", layer, s->whole);
    qn_test_gguf_tensor_add(f, name, QN_DTYPE_F32, rows, cols, *kept);
    qn_test_gguf_tensor *t = qn_test_gguf_tensor_get(f, name);
    t->type = type;
    t->size_bytes = size_bytes;
}

/* The file as one of a phi3: apart.gguf, and with shared tensors: shared.gguf. */
static void write_gguf(const char *folder, const char *path, const char **apart, const char **shared)
{
    qn_test_gguf *f = qn_test_gguf_read(path);
    size_t offset = 0;
    for (size_t i = 0; i < f->n_values; i++) {
        char key[QN_TEST_GGUF_KEY_MAX];
        if (strncmp(f->values[i].key, "llama.", 6) != 0) continue;
        snprintf(key, sizeof key, "phi3.%s", f->values[i].key + 6);
        memcpy(f->values[i].key, key, sizeof key);
    }
    qn_test_gguf_set_text(f, "general.architecture", "phi3");
    *apart = qn_test_gguf_write(f, folder, "apart.gguf");
    for (int l = 0; l < LAYERS; l++)
        for (int s = 0; s < 2; s++) share_in_gguf(f, &in_gguf[s], l, &joined[2 * l + s]);
    for (size_t i = 0; i < f->n_tensors; i++) { /* types of which the helper knows no size stay as they are */
        f->tensors[i].offset = offset;
        offset += (f->tensors[i].size_bytes + f->alignment - 1) / f->alignment * f->alignment;
    }
    *shared = qn_test_gguf_write(f, folder, "shared.gguf");
    for (int i = 0; i < 2 * LAYERS; i++) test_free(joined[i]);
    qn_test_gguf_free(f);
}

/* The tensors of the first part's place, of one kind ("weight", "scales", "biases"); none: not there. */
static int64_t find_parts(const qn_safetensors *st, const char *first, const qn_tensor_view **parts,
                          char *whole, size_t size)
{
    for (int s = 0; s < 2; s++) {
        const char *at = strstr(first, in_safetensors[s].parts[0]);
        if (!at) continue;
        int n_before = (int)(at - first), n = 0;
        const char *kind = at + strlen(in_safetensors[s].parts[0]);
        snprintf(whole, size, "%.*s%s%s", n_before, first, in_safetensors[s].whole, kind);
        for (; in_safetensors[s].parts[n]; n++) {
            char name[128];
            snprintf(name, sizeof name, "%.*s%s%s", n_before, first, in_safetensors[s].parts[n], kind);
            parts[n] = qn_safetensors_find(st, name);
            assert_non_null(parts[n]);
        }
        return n;
    }
    return 0;
}

static int is_later_part(const char *name)
{
    for (int s = 0; s < 2; s++)
        for (int i = 1; in_safetensors[s].parts[i]; i++)
            if (strstr(name, in_safetensors[s].parts[i])) return 1;
    return 0;
}

/* Declares (data 0) or writes the tensors of a file, those that share one joined. */
static void write_shared(qn_st_writer *w, const qn_safetensors *st, int data)
{
    int64_t index = 0;
    for (int64_t i = 0; i < qn_safetensors_count(st); i++) {
        const qn_tensor_view *v = qn_safetensors_get(st, i), *parts[PARTS_MAX] = {v};
        char name[128];
        if (is_later_part(v->name)) continue;
        int64_t n = find_parts(st, v->name, parts, name, sizeof name), shape[2] = {0, v->shape[1]};
        size_t at = 0;
        for (int64_t k = 0; k < (n ? n : 1); k++) {
            shape[0] += parts[k]->shape[0];
            if (data) qn_test_ok(qn_st_writer_write(w, index, at, parts[k]->data, parts[k]->size_bytes));
            at += parts[k]->size_bytes;
        }
        if (!data) qn_test_ok(qn_st_writer_add(w, n ? name : v->name, v->dtype, v->n_dims, shape, NULL));
        index++;
    }
}

static void write_directory(const char *folder, const char *from, const char **apart, const char **shared)
{
    static char kept[QN_TEST_DIR_MAX];
    qn_safetensors *st;
    qn_st_writer *w;
    qn_test_model_copy(from, "{\"model_type\": \"phi3\", \"architectures\": null}", NULL, kept);
    *apart = kept;
    *shared = qn_test_path(folder, "shared");
    assert_int_equal(mkdir(*shared, 0700), 0);
    qn_test_copy(*shared, "config.json", qn_test_path(kept, "config.json"));
    qn_test_ok(qn_safetensors_open(qn_test_path(from, "model.safetensors"), &st));
    qn_test_ok(qn_st_writer_new(qn_test_path(*shared, "model.safetensors"), &w));
    write_shared(w, st, 0);
    qn_test_ok(qn_st_writer_begin(w));
    write_shared(w, st, 1);
    qn_test_ok(qn_st_writer_finish(w));
    qn_st_writer_free(w);
    qn_safetensors_close(st);
}

static uint64_t hash(const char *path, const char *set, const char *packed)
{
    qn_engine *e = qn_test_engine(path, set, (qn_engine_options){.packed = packed, .context_size = 64});
    assert_int_equal(qn_engine_get_info(e)->packed[0] != 0, packed == NULL);
    uint64_t h = qn_test_last_hash(e, ids, N_IDS, N_IDS);
    qn_engine_close(e);
    return h;
}

static void pack(const char *path, size_t *size_bytes)
{
    qn_pack_options o = {.n_threads = 2};
    qn_pack_result made;
    qn_source *source;
    qn_model_config config = {0};
    qn_test_ok(qn_source_open(path, NULL, &source));
    qn_test_ok(qn_config_read(source, &config));
    qn_test_ok(qn_engine_pack(source, &config, &o, &made));
    *size_bytes = made.size_bytes;
    qn_config_free(&config);
    qn_source_close(source);
}

/* Tensors in use, of which the shared one counts once; none is left over. */
static int64_t used_tensors(const char *path)
{
    qn_source *source;
    qn_model_config config = {0};
    qn_examination x;
    qn_test_ok(qn_source_open(path, NULL, &source));
    qn_test_ok(qn_config_read(source, &config));
    qn_test_ok(qn_examine_weights(source, &config, &x));
    assert_int_equal(x.n_unused, 0);
    assert_int_equal(x.size_bytes, qn_source_tensor_bytes(source));
    qn_config_free(&config);
    qn_source_close(source);
    return x.n_tensors;
}

static void same_bits(void **state)
{
    for (const qn_dtype *t = qn_test_weight_types; *t != QN_DTYPE_COUNT; t++) {
        const char *folder = qn_test_scratch(), *path = qn_test_typed_model(folder, *t), *apart, *shared;
        size_t apart_bytes, shared_bytes;
        int mlx = *t == QN_DTYPE_MXFP4 || *t == QN_DTYPE_NVFP4 || qn_affine_of(*t).bits;
        (mlx ? write_directory : write_gguf)(folder, path, &apart, &shared);
        assert_int_equal(used_tensors(apart) - used_tensors(shared), 3 * LAYERS);
        for (const char *const *set = qn_kernels_names(); *set; set++)
            if (hash(apart, *set, "none") != hash(shared, *set, "none"))
                fail_msg("%s, %s: the bits are others", qn_dtype_name(*t), *set);
        pack(apart, &apart_bytes);
        pack(shared, &shared_bytes);
        assert_int_equal(apart_bytes, shared_bytes);
        if (hash(apart, NULL, NULL) != hash(shared, NULL, NULL) ||
            hash(shared, NULL, NULL) != hash(shared, NULL, "none"))
            fail_msg("%s: packed, the bits are others", qn_dtype_name(*t));
        if (mlx) qn_test_model_remove(apart);
        qn_test_remove(folder);
    }
}

static void memory_runs_out(void **state)
{
    const char *folder = qn_test_scratch(), *apart, *shared;
    const char *path = qn_test_typed_model(folder, QN_DTYPE_AFFINE4_G64_BF16);
    write_directory(folder, path, &apart, &shared);
    qn_test_weights_run_out(shared);
    qn_test_model_remove(apart);
    qn_test_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits),
        cmocka_unit_test(memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

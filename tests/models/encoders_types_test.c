/* Encoders with weights of every type that GGUF has: the numbers of the same weights in f32, and the same bits alone and
 * in company, in each precision. The model is the little llama of typed_model.h under nomic-bert's names. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/machine/encode.h"
#include "quant/types.h"
#include "tests/support/engine_help.h"
#include "tests/support/models/gguf_file.h"
#include "tests/support/models/typed_model.h"
#include "tests/support/scratch.h"

enum {
    HIDDEN = 256,
    LAYERS = 2,
    SEQUENCES = 3,
    LONGEST = 20,
    FLOATS_MAX = SEQUENCES * LONGEST * HIDDEN,
    GGUF_BOOL = 7
};

static const float zeros[HIDDEN];
static const int64_t lengths[SEQUENCES] = {1, 20, 7};

static void rename_tensor(qn_test_gguf *f, const char *from, const char *to)
{
    qn_test_gguf_tensor *t = qn_test_gguf_tensor_get(f, from);
    snprintf(t->name, sizeof t->name, "%s", to);
}

static void rename_norm(qn_test_gguf *f, int layer, const char *from, const char *to)
{
    char old[64], new[64];
    snprintf(old, sizeof old, "blk.%d.%s.weight", layer, from);
    snprintf(new, sizeof new, "blk.%d.%s.weight", layer, to);
    rename_tensor(f, old, new);
    snprintf(new, sizeof new, "blk.%d.%s.bias", layer, to);
    qn_test_gguf_tensor_add(f, new, QN_DTYPE_F32, 0, HIDDEN, zeros);
}

static void become_encoder(qn_test_gguf *f)
{
    static const char causal = 0;
    static const struct {
        const char *key;
        uint32_t value;
    } sizes[] = {{"nomic-bert.block_count", LAYERS},
                 {"nomic-bert.context_length", 64},
                 {"nomic-bert.embedding_length", HIDDEN},
                 {"nomic-bert.feed_forward_length", HIDDEN},
                 {"nomic-bert.attention.head_count", 4},
                 {"nomic-bert.attention.head_count_kv", 2},
                 {"nomic-bert.attention.key_length", HIDDEN / 4}};
    qn_test_gguf_set_text(f, "general.architecture", "nomic-bert");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        qn_test_gguf_set_u32(f, sizes[i].key, sizes[i].value);
    qn_test_gguf_set_f32(f, "nomic-bert.attention.layer_norm_epsilon", 1e-5f);
    qn_test_gguf_set_f32(f, "nomic-bert.rope.freq_base", 1000);
    qn_test_gguf_set(f, "nomic-bert.attention.causal", GGUF_BOOL, &causal, 1);
    for (int i = 0; i < LAYERS; i++) {
        rename_norm(f, i, "attn_norm", "attn_output_norm");
        rename_norm(f, i, "ffn_norm", "layer_output_norm");
    }
    rename_tensor(f, "output_norm.weight", "token_embd_norm.weight");
    qn_test_gguf_tensor_add(f, "token_embd_norm.bias", QN_DTYPE_F32, 0, HIDDEN, zeros);
    qn_test_gguf_tensor_drop(f, "output.weight");
    qn_test_gguf_place(f);
}

/* The numbers of all matrices as f32, in floats; the caller keeps them as long as f. */
static void decode_all(qn_test_gguf *f, qn_dtype dtype, float *floats)
{
    const qn_type *type = qn_type_get(dtype);
    for (size_t i = 0; i < f->n_tensors; i++) {
        qn_test_gguf_tensor *t = &f->tensors[i];
        const int64_t n = (int64_t)(t->dims[0] * (t->n_dims > 1 ? t->dims[1] : 1));
        if (t->n_dims < 2) continue;
        type->decode(type, t->data, n, floats);
        t->type = 0; /* F32 */
        t->data = floats;
        t->size_bytes = (size_t)n * sizeof *floats;
        floats += n;
    }
    qn_test_gguf_place(f);
}

static void make_rows(int32_t ids[SEQUENCES][LONGEST], qn_encode_row rows[SEQUENCES])
{
    for (int s = 0; s < SEQUENCES; s++) {
        for (int i = 0; i < LONGEST; i++) ids[s][i] = (5 + 31 * s + i * 7) % QN_TEST_TYPED_VOCAB;
        rows[s] = (qn_encode_row){ids[s], NULL, lengths[s], -1};
    }
}

/* Of all sequences, `per_step` at a time. */
static size_t encode(const char *path, qn_precision precision, int n_threads, int per_step, float *out)
{
    int32_t ids[SEQUENCES][LONGEST];
    qn_encode_row rows[SEQUENCES];
    const float *got;
    size_t at = 0;
    make_rows(ids, rows);
    qn_engine *e =
        qn_test_engine(path, NULL, (qn_engine_options){.precision = precision, .n_threads = n_threads});
    for (int s = 0; s < SEQUENCES; s += per_step) {
        size_t n = 0;
        qn_test_ok(qn_engine_encode(e, per_step, rows + s, &got));
        for (int i = s; i < s + per_step; i++) n += (size_t)(lengths[i] * HIDDEN);
        memcpy(out + at, got, n * sizeof *out);
        at += n;
    }
    qn_engine_close(e);
    return at;
}

static double difference(const float *a, const float *b, size_t n)
{
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        const double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= worst)) worst = d;
    }
    return worst;
}

static void typed(void **state)
{
    static float exact[FLOATS_MAX], plain[FLOATS_MAX], alone[FLOATS_MAX], together[FLOATS_MAX];
    static float floats[1 << 20];
    static const double limits[] = {
        [QN_PRECISION_EXACT] = 1e-4, [QN_PRECISION_HIGH] = 5e-3, [QN_PRECISION_FAST] = 0.3};
    const qn_dtype dtype = *(const qn_dtype *)*state;
    const char *folder = qn_test_scratch();
    qn_test_gguf *f = qn_test_gguf_read(qn_test_typed_model(folder, dtype));
    char path[256];
    become_encoder(f);
    snprintf(path, sizeof path, "%s", qn_test_gguf_write(f, folder, "encoder.gguf"));
    const size_t n = encode(path, QN_PRECISION_EXACT, 1, 1, exact);
    decode_all(f, dtype, floats);
    assert_int_equal(encode(qn_test_gguf_write(f, folder, "plain.gguf"), QN_PRECISION_EXACT, 1, 1, plain), n);
    for (int p = 0; p < 3; p++) {
        encode(path, (qn_precision)p, 1, 1, alone);
        encode(path, (qn_precision)p, 3, SEQUENCES, together);
        if (memcmp(alone, together, n * sizeof *alone) != 0)
            fail_msg("%s: other bits in company", qn_precision_name((qn_precision)p));
        const double far = difference(alone, plain, n);
        print_message("%s %s: %.1e\n", qn_dtype_name(dtype), qn_precision_name((qn_precision)p), far);
        if (!(far <= limits[p])) fail_msg("%s: differs by %g", qn_precision_name((qn_precision)p), far);
    }
    assert_true(difference(exact, plain, n) <= limits[QN_PRECISION_EXACT]);
    qn_test_gguf_free(f);
    qn_test_remove(folder);
}

int main(void)
{
    static qn_dtype types[] = {QN_DTYPE_F32,  QN_DTYPE_F16,  QN_DTYPE_BF16, QN_DTYPE_Q4_0,
                               QN_DTYPE_Q4_1, QN_DTYPE_Q5_0, QN_DTYPE_Q5_1, QN_DTYPE_Q8_0,
                               QN_DTYPE_Q4_K, QN_DTYPE_Q5_K, QN_DTYPE_Q6_K};
    enum { N = sizeof types / sizeof *types };
    struct CMUnitTest tests[N];
    for (int i = 0; i < N; i++)
        tests[i] = (struct CMUnitTest){qn_dtype_name(types[i]), typed, NULL, NULL, &types[i]};
    return _cmocka_run_group_tests("encoders of every type", tests, N, NULL, NULL);
}

#include "quant/types.h"

#include <string.h>

#include "base/checked.h"
#include "quant/decode.h"
#include "quant/encode.h"

/* A later type (IQ*, TQ*, ...) is one name in QN_DTYPE_LIST, one row here, one decoder in decode.c, and
 * where it can be written an encoder in encode.c. */
static const qn_type types[QN_DTYPE_COUNT] = {
    /* dtype, name, ggml number, safetensors name, elements and bytes of a block, decoder, encoder */
    [QN_DTYPE_BOOL] = {QN_DTYPE_BOOL, "bool", -1, "BOOL", 1, 1, NULL, NULL},
    [QN_DTYPE_U8] = {QN_DTYPE_U8, "u8", -1, "U8", 1, 1, NULL, NULL},
    [QN_DTYPE_U16] = {QN_DTYPE_U16, "u16", -1, "U16", 1, 2, NULL, NULL},
    [QN_DTYPE_U32] = {QN_DTYPE_U32, "u32", -1, "U32", 1, 4, NULL, NULL},
    [QN_DTYPE_U64] = {QN_DTYPE_U64, "u64", -1, "U64", 1, 8, NULL, NULL},
    [QN_DTYPE_I8] = {QN_DTYPE_I8, "i8", 24, "I8", 1, 1, NULL, NULL},
    [QN_DTYPE_I16] = {QN_DTYPE_I16, "i16", 25, "I16", 1, 2, NULL, NULL},
    [QN_DTYPE_I32] = {QN_DTYPE_I32, "i32", 26, "I32", 1, 4, NULL, NULL},
    [QN_DTYPE_I64] = {QN_DTYPE_I64, "i64", 27, "I64", 1, 8, NULL, NULL},
    [QN_DTYPE_F16] = {QN_DTYPE_F16, "f16", 1, "F16", 1, 2, qn_decode_f16, qn_encode_f16},
    [QN_DTYPE_BF16] = {QN_DTYPE_BF16, "bf16", 30, "BF16", 1, 2, qn_decode_bf16, qn_encode_bf16},
    [QN_DTYPE_F32] = {QN_DTYPE_F32, "f32", 0, "F32", 1, 4, qn_decode_f32, qn_encode_f32},
    [QN_DTYPE_F64] = {QN_DTYPE_F64, "f64", 28, "F64", 1, 8, qn_decode_f64, NULL},
    [QN_DTYPE_Q4_0] = {QN_DTYPE_Q4_0, "q4_0", 2, NULL, 32, 18, qn_decode_q4_0, qn_encode_q4_0},
    [QN_DTYPE_Q4_1] = {QN_DTYPE_Q4_1, "q4_1", 3, NULL, 32, 20, qn_decode_q4_1, qn_encode_q4_1},
    [QN_DTYPE_Q5_0] = {QN_DTYPE_Q5_0, "q5_0", 6, NULL, 32, 22, qn_decode_q5_0, qn_encode_q5_0},
    [QN_DTYPE_Q5_1] = {QN_DTYPE_Q5_1, "q5_1", 7, NULL, 32, 24, qn_decode_q5_1, qn_encode_q5_1},
    [QN_DTYPE_Q8_0] = {QN_DTYPE_Q8_0, "q8_0", 8, NULL, 32, 34, qn_decode_q8_0, qn_encode_q8_0},
    [QN_DTYPE_Q4_K] = {QN_DTYPE_Q4_K, "q4_k", 12, NULL, 256, 144, qn_decode_q4_k, qn_encode_q4_k},
    [QN_DTYPE_Q5_K] = {QN_DTYPE_Q5_K, "q5_k", 13, NULL, 256, 176, qn_decode_q5_k, qn_encode_q5_k},
    [QN_DTYPE_Q6_K] = {QN_DTYPE_Q6_K, "q6_k", 14, NULL, 256, 210, qn_decode_q6_k, qn_encode_q6_k},
    [QN_DTYPE_MXFP4] = {QN_DTYPE_MXFP4, "mxfp4", 39, NULL, 32, 17, qn_decode_mxfp4, qn_encode_mxfp4},
    /* MLX's: a file in GGUF has a scale of its own for each tensor beside these, and has other blocks. */
    [QN_DTYPE_NVFP4] = {QN_DTYPE_NVFP4, "nvfp4", -1, NULL, 32, 18, qn_decode_nvfp4, qn_encode_nvfp4},
#define AFFINE(bits, group, scale, text)                                         \
    [QN_DTYPE_AFFINE##bits##_G##group##_##                                       \
        scale] = {QN_DTYPE_AFFINE##bits##_G##group##_##scale,                    \
                  "affine" #bits "_g" #group "_" text,                           \
                  -1,                                                            \
                  NULL,                                                          \
                  group,                                                         \
                  group * bits / 8 + (QN_DTYPE_##scale == QN_DTYPE_F32 ? 8 : 4), \
                  qn_decode_affine,                                              \
                  qn_encode_affine},
    QN_AFFINE_LIST(AFFINE)
#undef AFFINE
};

/* All numbers that ggml has given out, so that what is not supported can still be named and measured. Missing
 * numbers were withdrawn (Q4_2, Q4_3 and types repacked for one chip). */
static const struct {
    const char *name;
    int block_elements, block_bytes;
} ggml_types[] = {
    [0] = {"F32", 1, 4},         [1] = {"F16", 1, 2},         [2] = {"Q4_0", 32, 18},
    [3] = {"Q4_1", 32, 20},      [6] = {"Q5_0", 32, 22},      [7] = {"Q5_1", 32, 24},
    [8] = {"Q8_0", 32, 34},      [9] = {"Q8_1", 32, 36},      [10] = {"Q2_K", 256, 84},
    [11] = {"Q3_K", 256, 110},   [12] = {"Q4_K", 256, 144},   [13] = {"Q5_K", 256, 176},
    [14] = {"Q6_K", 256, 210},   [15] = {"Q8_K", 256, 292},   [16] = {"IQ2_XXS", 256, 66},
    [17] = {"IQ2_XS", 256, 74},  [18] = {"IQ3_XXS", 256, 98}, [19] = {"IQ1_S", 256, 50},
    [20] = {"IQ4_NL", 32, 18},   [21] = {"IQ3_S", 256, 110},  [22] = {"IQ2_S", 256, 82},
    [23] = {"IQ4_XS", 256, 136}, [24] = {"I8", 1, 1},         [25] = {"I16", 1, 2},
    [26] = {"I32", 1, 4},        [27] = {"I64", 1, 8},        [28] = {"F64", 1, 8},
    [29] = {"IQ1_M", 256, 56},   [30] = {"BF16", 1, 2},       [34] = {"TQ1_0", 256, 54},
    [35] = {"TQ2_0", 256, 66},   [39] = {"MXFP4", 32, 17},    [40] = {"NVFP4", 64, 36},
    [41] = {"Q1_0", 128, 18},    [42] = {"Q2_0", 64, 18},
};
enum { GGML_TYPES = sizeof ggml_types / sizeof *ggml_types };

const char *qn_dtype_name(qn_dtype dtype)
{
    return (unsigned)dtype < QN_DTYPE_COUNT ? types[dtype].name : "?";
}

const qn_type *qn_type_get(qn_dtype dtype)
{
    return (unsigned)dtype < QN_DTYPE_COUNT ? &types[dtype] : NULL;
}

const qn_type *qn_type_from_ggml(uint32_t ggml_type)
{
    for (int i = 0; i < QN_DTYPE_COUNT; i++)
        if (types[i].ggml_type >= 0 && (uint32_t)types[i].ggml_type == ggml_type) return &types[i];
    return NULL;
}

const char *qn_ggml_type_name(uint32_t ggml_type)
{
    return ggml_type < GGML_TYPES ? ggml_types[ggml_type].name : NULL;
}

int qn_ggml_type_layout(uint32_t ggml_type, int64_t *block_elements, size_t *block_bytes)
{
    if (!qn_ggml_type_name(ggml_type)) return 0;
    *block_elements = ggml_types[ggml_type].block_elements;
    *block_bytes = (size_t)ggml_types[ggml_type].block_bytes;
    return 1;
}

const qn_type *qn_type_from_safetensors(const char *name, size_t n)
{
    for (int i = 0; i < QN_DTYPE_COUNT; i++) {
        const char *known = types[i].st_name;
        if (known && strlen(known) == n && memcmp(known, name, n) == 0) return &types[i];
    }
    return NULL;
}

int qn_type_is_quantised(qn_dtype dtype)
{
    return qn_type_get(dtype)->block_elements > 1;
}

int qn_type_bytes(qn_dtype dtype, int64_t n, size_t *bytes)
{
    const qn_type *t = qn_type_get(dtype);
    if (!t || n < 0 || n % t->block_elements) return 0;
    return qn_mul_size((size_t)(n / t->block_elements), t->block_bytes, bytes);
}

int qn_affine_type(int bits, int group, qn_dtype scale, qn_dtype *out)
{
    for (int d = QN_DTYPE_AFFINE2_G32_F16; d <= QN_DTYPE_AFFINE8_G128_F32; d++) {
        qn_affine a = qn_affine_of((qn_dtype)d);
        if (a.bits != bits || a.group != group || a.scale != scale) continue;
        *out = (qn_dtype)d;
        return 1;
    }
    return 0;
}

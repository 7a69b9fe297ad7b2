/* Element types of arrays and of tensors in files, and the precision of arithmetic. */
#ifndef QUERN_DTYPE_H
#define QUERN_DTYPE_H

#include <quern/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The one list: X(NAME, "name as shown").
 * Plain types first. Block types hold a run of elements of one row in a block of bytes (src/quant). */
#define QN_DTYPE_LIST(X) \
    X(BOOL, "bool")      \
    X(U8, "u8")          \
    X(U16, "u16")        \
    X(U32, "u32")        \
    X(U64, "u64")        \
    X(I8, "i8")          \
    X(I16, "i16")        \
    X(I32, "i32")        \
    X(I64, "i64")        \
    X(F16, "f16")        \
    X(BF16, "bf16")      \
    X(F32, "f32")        \
    X(F64, "f64")        \
    X(Q4_0, "q4_0")      \
    X(Q4_1, "q4_1")      \
    X(Q5_0, "q5_0")      \
    X(Q5_1, "q5_1")      \
    X(Q8_0, "q8_0")      \
    X(Q4_K, "q4_k")      \
    X(Q5_K, "q5_k")      \
    X(Q6_K, "q6_k")      \
    X(MXFP4, "mxfp4")    \
    X(NVFP4, "nvfp4")

/* MLX's affine types, "affine4_g64_bf16": codes of BITS bits; GROUP elements share one scale and one bias of
 * type SCALE; value = scale * code + bias. X(BITS, GROUP, SCALE, "scale"). */
#define QN_AFFINE_LIST(X)  \
    QN_AFFINE_GROUPS(X, 2) \
    QN_AFFINE_GROUPS(X, 3) \
    QN_AFFINE_GROUPS(X, 4) QN_AFFINE_GROUPS(X, 5) QN_AFFINE_GROUPS(X, 6) QN_AFFINE_GROUPS(X, 8)
#define QN_AFFINE_GROUPS(X, bits) \
    QN_AFFINE_SCALES(X, bits, 32) QN_AFFINE_SCALES(X, bits, 64) QN_AFFINE_SCALES(X, bits, 128)
#define QN_AFFINE_SCALES(X, bits, group) \
    X(bits, group, F16, "f16") X(bits, group, BF16, "bf16") X(bits, group, F32, "f32")

typedef enum {
#define QN_DTYPE_ENUM(name, text) QN_DTYPE_##name,
    QN_DTYPE_LIST(QN_DTYPE_ENUM)
#undef QN_DTYPE_ENUM
#define QN_AFFINE_ENUM(bits, group, scale, text) QN_DTYPE_AFFINE##bits##_G##group##_##scale,
        QN_AFFINE_LIST(QN_AFFINE_ENUM)
#undef QN_AFFINE_ENUM
            QN_DTYPE_COUNT
} qn_dtype;

/* How matmuls are computed. It fixes the bits of the result.
 * HIGH (default): activations of 15 bits against quantised weights, f32 against 16-bit weights.
 * FAST: activations int8 per block of 32 against quantised weights (against MLX's types as HIGH, since MLX
 * itself computes with bf16 activations), bf16 against bf16 weights. Weights of encoders in f32 and f16 become bf16.
 * EXACT: activations, sums and the KV cache in f32. */
typedef enum { QN_PRECISION_HIGH, QN_PRECISION_FAST, QN_PRECISION_EXACT } qn_precision;

/* How keys and values are kept. AUTO: by precision, f32 for EXACT, f16 for HIGH, and for FAST bf16 where the
 * instruction set multiplies it and weights have fewer than 16 bits, else f16. Q8_0: 8 bits and a scale for
 * 32 numbers, half the memory of f16. Q4_0: 4 bits and a scale for 32 numbers, half of Q8_0's. */
typedef enum { QN_KV_AUTO, QN_KV_F32, QN_KV_F16, QN_KV_BF16, QN_KV_Q8_0, QN_KV_Q4_0 } qn_kv_type;

/* A cache limit at open, where 0 means the default: no memory is kept for reuse. */
#define QN_KEEP_NOTHING SIZE_MAX
/* For qn_model_options.gpu_layers: a card computes all layers, or the model is not opened on it. */
#define QN_ALL_LAYERS INT32_MAX

/* "q4_k"; static storage. */
QN_API const char *qn_dtype_name(qn_dtype dtype);

#ifdef __cplusplus
}
#endif
#endif

/* What the library quern-mlx gives: MLX's arrays and the primitives of src/prim computed by them. It is the
 * only C++ in the tree, built against MLX's headers (make MLX=1) and opened at run time (load.c), so that
 * quern itself neither needs MLX nor notices that it is missing. This header is C and C++.
 *
 * All functions are called by one thread, the device's owner (owner.c). They return a status and keep the
 * sentence of a failure for error(); MLX's exceptions do not leave the library. Arrays are lazy: what is
 * computed is computed by eval, read or a function that says so. */
#ifndef QN_DEVICE_MLX_SHIM_H
#define QN_DEVICE_MLX_SHIM_H

#include <quern/dtype.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "prim/prim.h"

typedef struct qn_mlx_array qn_mlx_array;
typedef struct qn_mlx_weight qn_mlx_weight;
typedef struct qn_mlx_state qn_mlx_state;
typedef struct qn_mlx_memo qn_mlx_memo;

/* How a weight lies in MLX. A matrix is [n_out, n_in], and n_parts of them lie one behind the other. */
typedef enum {
    QN_MLX_PLAIN, /* [n_parts, n_out, n_in] of a plain type */
    /* words u32 [.., n_in * bits / 32], scales and biases [.., n_in / group]. Groups of 16, which MLX has
     * not, are kept as groups of 32 whose second halves nothing is multiplied by. */
    QN_MLX_AFFINE,
    QN_MLX_MXFP4, /* words u32, scales u8 (e8m0), groups of 32 */
    QN_MLX_NVFP4  /* words u32, scales u8 (e4m3), groups of 16 */
} qn_mlx_kind;

/* All three are copied. Contiguous. */
typedef struct {
    qn_mlx_kind kind;
    int64_t n_parts, n_out, n_in;
    int bits, group;
    qn_dtype dtype; /* PLAIN: of data; AFFINE: of scales and biases (F16, BF16, F32) */
    const void *data, *scales, *biases;
} qn_mlx_weight_spec;

/* A matrix pair of an adapter, on the host: A [rank, n_in], B [rank, n_out], gain [n_out] or NULL. a NULL:
 * nothing is added. */
typedef struct {
    const float *a, *b, *gain;
    int32_t rank;
    float scale;
} qn_mlx_lora;

/* One application of a primitive in one run. */
typedef struct {
    qn_prim prim;
    const qn_params *params;
    int n_in;
    /* [n_in], of the operands' shapes; NULL where weight[i] or host[i] is not */
    qn_mlx_array *const *in;
    qn_mlx_weight *const *weight; /* [n_in], NULL where in[i] is not */
    const int32_t *const *host; /* [n_in], the numbers of an i32 input that only the host needs; else NULL */
    const int64_t *host_size;   /* [n_in], how many */
    int transposed;             /* MATMUL by a weight: in[1] is its transpose, [n_in, n_out], as in a layer */
    int n_dims;                 /* of the result */
    const int64_t *shape;       /* [n_dims] */
    qn_dtype dtype;             /* of the result */
    qn_mlx_state *state;        /* of ATTEND, SHORT_CONV, GATED_DELTA with a state; else NULL */
    const qn_mlx_lora *lora;    /* [params->lora.n_pairs]; else NULL */
    qn_mlx_memo **memo;         /* of the step, NULL at first: what may be kept from run to run */
    size_t budget_bytes;        /* no array of this step may be larger */
    uint64_t run;               /* which run of a program; other runs have other numbers */
    /* F16 or BF16: what is f32 in the plan may be an array of this type, as an input and as the result. Any other
     * type: it may not. */
    qn_dtype narrow;
} qn_mlx_step;

typedef struct {
    size_t active_bytes, peak_bytes, cache_bytes;
} qn_mlx_memory;

/* What is known without any array. */
typedef struct {
    int header_version, library_version; /* as MLX_VERSION_NUMERIC: 32004 is 0.32.4 */
    int on_gpu;                          /* 1: arrays are computed on a GPU */
    const char *set;                     /* "metal", "cuda" or "mlx_cpu"; static storage */
    const char *library;                 /* "MLX 0.32.4"; static storage */
    size_t recommended_bytes; /* of memory that the GPU recommends to use at most; 0: none, or no GPU */
} qn_mlx_about;

enum { QN_MLX_SHIM_VERSION = 5 };

typedef struct {
    int version; /* QN_MLX_SHIM_VERSION; fields behind it are those of this header only then */
    qn_mlx_about (*about)(void);
    const char *(*error)(void); /* of the last failure on this thread */

    /* Once by the owner before all else, and at its end. compile: chains are compiled by MLX; kernels that
     * this generates go into folder, which is the caller's own and private (NULL: none are). */
    qn_status (*begin)(int compile, const char *folder);
    void (*end)(void);
    qn_mlx_memory (*memory)(void);
    /* SIZE_MAX: as it is. Of the process, as MLX has them. */
    void (*set_limits)(size_t memory_bytes, size_t cache_bytes, size_t wired_bytes);
    void (*clear_cache)(int wait); /* wait: for what is being computed, whose memory then goes too */

    /* A copy, or with borrow 1 no copy: data must then outlive the array and all that is computed of it. */
    qn_status (*array_new)(const void *data, int n_dims, const int64_t *shape, qn_dtype dtype, int borrow,
                           qn_mlx_array **out);
    /* Elements of a contiguous array by an offset and strides in elements, which may be 0 or negative. */
    qn_status (*array_view)(const qn_mlx_array *a, int64_t offset, int n_dims, const int64_t *shape,
                            const int64_t *strides, qn_mlx_array **out);
    /* Computes it if need be, and copies it as that type row by row to data, size_bytes bytes. */
    qn_status (*array_read)(const qn_mlx_array *a, qn_dtype dtype, void *data, size_t size_bytes);
    /* The same array as another type, lazily. */
    /* i32 [n]: where in each row of a [n, k] its largest number is; anywhere if one of them is no number. */
    qn_status (*array_largest)(const qn_mlx_array *a, qn_mlx_array **out);
    qn_status (*array_cast)(const qn_mlx_array *a, qn_dtype dtype, qn_mlx_array **out);
    int (*array_is_narrow)(const qn_mlx_array *a); /* F16 or BF16 */
    void (*array_free)(qn_mlx_array *a);           /* NULL is accepted */
    /* Computes n arrays and whatever the states hold; async 1: begins to. */
    qn_status (*eval)(int64_t n, qn_mlx_array *const *arrays, int64_t n_states, qn_mlx_state *const *states,
                      int async);

    /* The step's result, lazily. */
    qn_status (*apply)(const qn_mlx_step *step, qn_mlx_array **out);
    void (*memo_free)(qn_mlx_memo *m);

    qn_status (*weight_new)(const qn_mlx_weight_spec *spec, qn_mlx_weight **out);
    size_t (*weight_bytes)(const qn_mlx_weight *w);
    /* The type of 16 bits that a product with it is best computed in: F16 or BF16; F32: it has no opinion. */
    qn_dtype (*weight_type)(const qn_mlx_weight *w);
    int (*weight_is_quantised)(const qn_mlx_weight *w);
    void (*weight_free)(qn_mlx_weight *w);

    /* PAGES: [n_layers] of keys and values, n_units pages of page_tokens tokens, v_dim 0: values are parts of
     * keys; SLOTS: [n_layers] of n_units rows of slot_floats. Grows by need. bytes: what it has taken; spare:
     * of that, what no unit uses. A unit uses memory from when it is first written until it is dropped
     * (poison: filled with NaN). shrink leaves nothing to spare: what is used is copied, a layer at a time.
     * budget_bytes: what is left; it grows by less beside the units that are named. */
    qn_status (*state_new)(int is_pages, int64_t n_layers, int64_t n_units, int64_t page_tokens,
                           int64_t kv_heads, int64_t head_dim, int64_t v_dim, qn_dtype dtype,
                           int64_t slot_floats, qn_mlx_state **out);
    void (*state_free)(qn_mlx_state *s);
    size_t (*state_bytes)(const qn_mlx_state *s);
    size_t (*state_spare)(const qn_mlx_state *s);
    qn_status (*state_drop)(qn_mlx_state *s, int32_t unit, int poison);
    qn_status (*state_shrink)(qn_mlx_state *s);
    qn_status (*state_copy)(qn_mlx_state *s, int32_t from, int32_t to, size_t budget_bytes);
    qn_status (*state_read)(const qn_mlx_state *s, int32_t unit, void *bytes, size_t size_bytes);
    qn_status (*state_write)(qn_mlx_state *s, int32_t unit, const void *bytes, size_t size_bytes,
                             size_t budget_bytes);
} qn_mlx_shim;

/* The one symbol that the library exports. */
#define QN_MLX_SHIM_SYMBOL "qn_mlx_shim_get"
typedef const qn_mlx_shim *qn_mlx_shim_get_fn(void);

#ifdef __cplusplus
}
#endif
#endif

/* What the library quern-cuda gives: memory of a card and the primitives of src/prim computed there. It is made
 * of the .cu files of this folder by nvcc (make CUDA=1) and opened at run time (load.c), so that quern itself
 * neither needs CUDA nor notices that it is missing. The same files compiled for the host (make CUDA=host) give
 * a library that runs the same kernels without a card: for tests. This header is C and C++.
 *
 * A context is one card with one stream: what is asked for is computed in order (copy_beside alone leaves it), and
 * only functions that say so wait. One thread at a time uses a context. Functions return a status and keep the sentence of a failure for
 * error(). After a fault inside a kernel a context is lost: every function then returns QN_E_DEVICE. */
#ifndef QN_DEVICE_CUDA_SHIM_H
#define QN_DEVICE_CUDA_SHIM_H

#include <quern/dtype.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "device/cuda/layout.h"
#include "prim/prim.h"

typedef struct qn_cuda_context qn_cuda_context;

/* Where an input or output of a step lies in one run. */
typedef struct {
    void *data; /* on the card: the first element; of a packed weight NULL */
    qn_dtype dtype;
    int n;
    int64_t dim[QN_MAX_DIMS], stride[QN_MAX_DIMS]; /* strides in elements */
    const qn_cuda_weight *weight;                  /* a packed weight; NULL: plain elements */
} qn_cuda_operand;

/* State of a step (ATTEND, SHORT_CONV, GATED_DELTA), on the card. Unit u of the layer begins at base + u *
 * unit_bytes. PAGES: [kv_heads][QN_PAGE_TOKENS][head_dim] keys, then (unless v_in_k) [kv_heads][QN_PAGE_TOKENS]
 * [v_dim] values, in the spec's type (blocks of 32 elements of Q8_0 and Q4_0 as in GGUF). SLOTS: floats. */
typedef struct {
    char *base; /* NULL: the step has no state */
    size_t unit_bytes;
    int64_t kv_heads, head_dim, v_dim;
    int v_in_k;
    qn_dtype dtype;
} qn_cuda_state;

/* A matrix pair of an adapter, on the card: A [rank, n_in], B [rank, n_out], gain [n_out] or NULL. a NULL:
 * nothing is added. */
typedef struct {
    const float *a, *b, *gain;
    int32_t rank;
    float scale;
} qn_cuda_lora;

/* One application of a primitive in one run. */
typedef struct {
    qn_prim prim;
    const qn_params *params; /* pointers in it are the host's and are not followed */
    qn_precision precision;
    /* Steps of one group and one level do not read what another of them writes; those of a lower level in the group
     * come first. */
    int group, level;
    int n_in;
    qn_cuda_operand in[QN_MAX_INPUTS], out;
    int transposed; /* MATMUL by a weight: in[1] is its transpose, [n_in, n_out], as in a layer */
    qn_cuda_state state;
    const qn_cuda_lora *lora; /* [n_lora] in memory of the card, of LORA and EXPERTS_LORA; else NULL */
    int32_t n_lora, max_rank; /* max_rank: the largest rank of them, 0: none adds anything */
    void *scratch;            /* on the card, as many bytes as scratch_bytes asked for, aligned to 256 */
} qn_cuda_step;

/* A card, for doctor and for choosing. */
typedef struct {
    char name[128];
    int major, minor, n_sm; /* compute capability, multiprocessors */
    int has_code;           /* the library has machine code for it */
    size_t total_bytes;
} qn_cuda_card;

typedef struct {
    int runtime_version, driver_version; /* 13000 is 13.0; driver 0: no driver is installed */
    int n_cards;
    const char *code; /* "sm_80 sm_89 sm_90a sm_120", or "host" */
    int is_host;      /* no card: kernels are computed by this processor */
} qn_cuda_about;

enum { QN_CUDA_SHIM_VERSION = 3 };

typedef struct {
    int version; /* QN_CUDA_SHIM_VERSION; fields behind it are those of this header only then */
    const char *(*error)(void); /* of the last failure on this thread */
    qn_status (*about)(qn_cuda_about *out);
    qn_status (*card)(int i, qn_cuda_card *out);

    qn_status (*open)(int i_card, qn_cuda_context **out);
    void (*close)(qn_cuda_context *c); /* NULL is accepted */
    qn_status (*memory)(qn_cuda_context *c, size_t *free_bytes, size_t *total_bytes);
    /* Memory of the card, aligned to 256; not initialised. QN_E_NOMEM: there is not enough, and nothing else
     * happened. free waits for all that was begun. */
    qn_status (*alloc)(qn_cuda_context *c, size_t size_bytes, void **out);
    void (*free)(qn_cuda_context *c, void *p);
    /* Memory of the host that copies to and from the card need not stage. */
    qn_status (*host_alloc)(qn_cuda_context *c, size_t size_bytes, void **out);
    void (*host_free)(qn_cuda_context *c, void *p);
    /* A range of addresses on the card, and memory behind parts of it: offset and size are multiples of
     * granule. unmap waits for all that was begun. */
    qn_status (*reserve)(qn_cuda_context *c, size_t size_bytes, void **out, size_t *granule);
    void (*release)(qn_cuda_context *c, void *base, size_t size_bytes); /* all of it is unmapped */
    qn_status (*map)(qn_cuda_context *c, void *base, size_t offset, size_t size_bytes);
    void (*unmap)(qn_cuda_context *c, void *base, size_t offset, size_t size_bytes);
    /* Begun, not waited for, unless a host's side is not from host_alloc. Any sides. */
    qn_status (*copy)(qn_cuda_context *c, void *to, const void *from, size_t size_bytes);
    qn_status (*fill)(qn_cuda_context *c, void *to, int byte, size_t size_bytes);
    /* Waits for all that was begun, and says what became of it. */
    qn_status (*wait)(qn_cuda_context *c);

    /* Bytes that a step needs in its scratch, with the operands of the largest sizes; data is not looked at. */
    size_t (*scratch_bytes)(const qn_cuda_step *s);
    /* Begins a step. QN_E_UNSUPPORTED: it is none that the device computes. */
    qn_status (*launch)(qn_cuda_context *c, const qn_cuda_step *s);
    /* Between record and record_end steps are not begun: they are kept, in order, as one thing that replay begins
     * at a fraction of the price, as often as is wished, with the addresses and sizes that they had. record_end
     * ends it whatever happened between; *out is NULL if it failed. */
    qn_status (*record)(qn_cuda_context *c);
    qn_status (*record_end)(qn_cuda_context *c, void **out);
    qn_status (*replay)(qn_cuda_context *c, void *recording);
    void (*recording_free)(qn_cuda_context *c, void *recording); /* waits for all that was begun */
    /* Memory of the card that it has; what the driver takes for a graph is not known. */
    size_t (*recording_bytes)(const void *recording);
    /* Begins to pack rows [first, first + n) of part i of a weight: raw, on the card, are these rows as they lie
     * in a file (row_bytes apart, or columns of it if transposed). scales and biases: of MLX's types. */
    qn_status (*pack)(qn_cuda_context *c, const qn_cuda_weight *w, int64_t part, int64_t first, int64_t n,
                      const qn_cuda_raw *raw);
    /* A mark is the end of the last copy_beside that was given it. */
    qn_status (*mark_new)(qn_cuda_context *c, void **out);
    void (*mark_free)(qn_cuda_context *c, void *mark); /* NULL is accepted */
    /* Begins a copy to the host behind all that was begun. What is begun later does not wait for the copy, so it must
     * not write what is copied. */
    qn_status (*copy_beside)(qn_cuda_context *c, void *to, const void *from, size_t size_bytes, void *mark);
    /* Waits for the mark, and not for what was begun behind it. */
    qn_status (*mark_wait)(qn_cuda_context *c, void *mark);
} qn_cuda_shim;

/* The one symbol that the library exports. */
#define QN_CUDA_SHIM_SYMBOL "qn_cuda_shim_get"
typedef const qn_cuda_shim *qn_cuda_shim_get_fn(void);

#ifdef __cplusplus
}
#endif
#endif

/* A tensor as it lies in a file: what every reader of this folder gives. Views are borrowed: they live as
 * long as the reader that gave them. Immutable, any thread. */
#ifndef QN_FORMAT_FILES_TENSOR_VIEW_H
#define QN_FORMAT_FILES_TENSOR_VIEW_H

#include <quern/dtype.h>
#include <stddef.h>
#include <stdint.h>

#include "format/files/mmap.h"
#include "quant/types.h"

enum { QN_VIEW_DIMS_MAX = 8 };

typedef struct qn_tensor_view {
    const char *name; /* UTF-8, NUL-terminated, never empty */
    /* 0: the file uses a type that quern does not compute with; then dtype, size_bytes and data mean nothing.
     * The readers' `tensor` functions refuse such a tensor by name, `get` and `find` still show it. */
    int supported;
    qn_dtype dtype;
    const char *type_name; /* as the file's format spells it: "Q4_K", "BF16", "F8_E4M3"; for messages */
    int n_dims;            /* 0..8; 0 is a scalar with one element */
    int64_t shape[QN_VIEW_DIMS_MAX]; /* slowest dimension first, as in NumPy, also for GGUF */
    int64_t n_elements;
    const void *data; /* little-endian, of any alignment: safetensors promises none */
    size_t size_bytes;
    const char *file;          /* path of the file that holds it, for messages */
    const qn_mapping *mapping; /* NULL: the reader works on bytes in memory */
    /* A quantised matrix that lies in several tensors (quant/mlx.h; model/config/quantization.h makes such
     * views): then data and size_bytes are those of the codes alone. The readers leave NULL. */
    const struct qn_tensor_view *scales, *biases;
    /* The tensor of the file of which this is a range of rows (model/weights/weight_rows.h); NULL: it is one
     * itself.
     */
    const struct qn_tensor_view *whole;
    /* The matrices of experts (model/weights/weight_experts.h), which may lie apart: they are asked for
     * there, data and size_bytes mean nothing. The readers leave NULL. */
    const struct qn_weight_experts *experts;
    /* Of three dimensions, matrices that lie so many bytes apart, each stored transposed or not
     * (model/weights/weight_heads.h); 0: one after the other, as the readers leave it. */
    size_t matrix_bytes;
    int transposed;
} qn_tensor_view;

/* QN_E_UNSUPPORTED, naming file, tensor and type, when the type is not supported. */
qn_status qn_view_check(const qn_tensor_view *v);
/* The type that decodes it. QN_E_UNSUPPORTED, naming file, tensor and type: none does. */
qn_status qn_view_decoder(const qn_tensor_view *v, const qn_type **out);
/* Decodes elements [first, first + n) of a tensor that lies in one piece to f32: out[0..n). `first` begins a
 * block of the type. QN_E_UNSUPPORTED: as qn_view_decoder. QN_E_FORMAT: the elements do not fill blocks. */
qn_status qn_view_floats(const qn_tensor_view *v, int64_t first, int64_t n, float *out);
/* Gives up the resident pages of bytes [offset, offset + n) of the tensor's data; cut to the tensor. Call it
 * every few MiB behind packing, with rising offsets. */
void qn_view_drop(const qn_tensor_view *v, size_t offset_bytes, size_t n_bytes);
/* "[32000, 4096]" into text (cut when too long); returns text. */
const char *qn_view_shape_text(const qn_tensor_view *v, char *text, size_t size);

#endif

/* Weights as plain files: a folder bin_weights beside config.json, each tensor a file NAME.bin of nothing but
 * its elements, little-endian, row by row. config.json says their type (torch_dtype, or dtype); their shapes
 * are the model's trade. Views are named as their files are and have one dimension; size_bytes is the file's
 * own, whatever the type makes of it. Open and close by one owner; an open one is immutable, any thread. */
#ifndef QN_FORMAT_SOURCE_RAW_WEIGHTS_H
#define QN_FORMAT_SOURCE_RAW_WEIGHTS_H

#include "base/status.h"
#include "format/files/tensor_view.h"

typedef struct qn_raw_weights qn_raw_weights;

/* The type that config.json (text[0..n), path for messages) gives: "bfloat16", "float16" or "float32", also
 * in text_config. QN_E_FORMAT: it does not say; QN_E_UNSUPPORTED: another. */
qn_status qn_raw_weights_dtype(const char *path, const char *text, size_t n, qn_dtype *out);

/* files: [n_files] paths, which must outlive *out. QN_E_IO, QN_E_FORMAT: a file cannot be read or is empty.
 */
qn_status qn_raw_weights_open(const char *const *files, size_t n_files, qn_dtype dtype, qn_raw_weights **out);
void qn_raw_weights_close(qn_raw_weights *r);
int64_t qn_raw_weights_count(const qn_raw_weights *r);
const qn_tensor_view *qn_raw_weights_get(const qn_raw_weights *r, int64_t i);

#endif

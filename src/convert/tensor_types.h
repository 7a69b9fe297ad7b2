/* In which types the tensors of a GGUF file are written. Matrices have the type that was asked for, or where
 * their rows are no multiple of its block a finer one of smaller blocks; the embedding and the head may have
 * one of their own; vectors and what chooses experts stay as exact as they are. Constant data: any thread. */
#ifndef QN_CONVERT_TENSOR_TYPES_H
#define QN_CONVERT_TENSOR_TYPES_H

#include "model/weights/weights.h"
#include "quant/types.h"

typedef struct {
    const qn_type *matrices, *embedding; /* NULL: as it is */
} qn_tensor_types;

/* By name ("q4_k"); NULL: none asked for. embedding NULL: as type. QN_E_ARG: no such type, or none that can
 * be written to GGUF (message: the known ones). */
qn_status qn_tensor_types_read(const char *type, const char *embedding, qn_tensor_types *out);
/* The type that a tensor of a role is written in, with rows of n_cols elements; NULL: its own. role
 * QN_WEIGHT_ROLE_COUNT: of none. */
const qn_type *qn_tensor_types_of(const qn_tensor_types *t, qn_weight_role role, int n_dims, int64_t n_cols);
/* What general.file_type says where most matrices are of this type: llama.cpp's LLAMA_FTYPE numbers. -1: it
 * has no name for it. */
int qn_tensor_types_file_type(qn_dtype dtype);

#endif

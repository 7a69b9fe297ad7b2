/* The insides of arrays for the rest of the library: the public ones (include/quern/array.h) are the same
 * objects, and what is not public of them is here: symbolic shapes, inputs of programs, buffers of devices,
 * primitives by name, and the operations that models alone need.
 *
 * Arrays are built inside a scope, which owns every temporary and keeps the first error: a builder that gets
 * NULL returns NULL, so code that builds needs no check per line; qn_scope_status, qn_eval and qn_program_new
 * report. qn_keep lets a result outlive its scope. A scope and its arrays belong to one thread at a time. */
#ifndef QN_ARRAY_ARRAY_H
#define QN_ARRAY_ARRAY_H

#include <quern/array.h>

#include "device/device.h"

/* The device must outlive the scope. NULL: out of memory. */
qn_scope *qn_scope_new(qn_device *device);
void qn_scope_free(qn_scope *s);
qn_device *qn_scope_device(qn_scope *s);
/* Prefix of the labels that qn_label gives from now on ("layer.3."); copied. */
void qn_scope_prefix(qn_scope *s, const char *fmt, ...) QN_PRINTF(2, 3);

const qn_shape *qn_array_shape(const qn_array *a);

/* ---- sources ------------------------------------------------------------------------------------------- */
/* An array over a buffer, which it retains. The shape may be symbolic (another program's output). */
qn_array *qn_from_buffer(qn_scope *s, qn_dtype dtype, qn_shape shape, qn_buffer *buffer);
/* Bound at each run of a program; inputs are numbered in the order of their making. */
qn_array *qn_input(qn_scope *s, qn_dtype dtype, qn_shape shape);

/* ---- any primitive ------------------------------------------------------------------------------------- */
/* shape and dtype: the wish where the primitive needs one (RESHAPE, SLICE, STRIDED, BROADCAST, CAST, RANDOM),
 * else NULL and anything. */
qn_array *qn_apply(qn_scope *s, qn_prim prim, const qn_params *params, int n_in, qn_array *const *in,
                   const qn_shape *shape, qn_dtype dtype);
qn_array *qn_unary(qn_scope *s, qn_prim prim, qn_array *a);
qn_array *qn_binary(qn_scope *s, qn_prim prim, qn_array *a, qn_array *b);

/* ---- the common ones ----------------------------------------------------------------------------------- */
/* A number that takes a's type where that is a floating one, exact in f64. */
qn_array *qn_number_like(qn_scope *s, const qn_array *a, double value);
/* Same number of elements; a symbolic dimension stays first. The shape may be symbolic. */
qn_array *qn_reshape_sym(qn_scope *s, qn_array *a, qn_shape shape);
/* [R, rest...] -> [R, dims...]: keeps dimension 0. */
qn_array *qn_reshape_rows(qn_scope *s, qn_array *a, int n, const int64_t *dims);
/* Elements [begin, begin + length) of the last dimension. */
qn_array *qn_slice_last(qn_scope *s, qn_array *a, int64_t begin, int64_t length);
qn_array *qn_broadcast_sym(qn_scope *s, qn_array *a, qn_shape shape);
qn_array *qn_concat(qn_scope *s, int n, qn_array *const *parts);
/* x [.., k] times transpose(weight [n, k]), with f32 activations in every precision. */
qn_array *qn_linear_exact(qn_scope *s, qn_array *x, qn_array *weight);
qn_array *qn_take(qn_scope *s, qn_array *table, qn_array *ids);
qn_array *qn_take_along(qn_scope *s, qn_array *x, qn_array *ids);
/* See qn_params.sinkhorn. */
qn_array *qn_sinkhorn(qn_scope *s, qn_array *x, float eps, int32_t n_turns);
/* See qn_params.dropout. rate 0: x. */
qn_array *qn_dropout(qn_scope *s, qn_array *x, qn_array *key, float rate, int64_t stream);
/* Indices of the k largest of each row: the largest first, or by rising index. */
qn_array *qn_top_k(qn_scope *s, qn_array *x, int k);
qn_array *qn_top_k_rising(qn_scope *s, qn_array *x, int k);
qn_array *qn_rope_table(qn_scope *s, qn_array *positions, qn_array *frequencies, float factor);
qn_array *qn_rope(qn_scope *s, qn_array *x, qn_array *table, int interleaved);
/* blocks, sinks: NULL when the parameters do not ask for them. */
qn_array *qn_attend(qn_scope *s, const qn_params_attend *p, qn_array *q, qn_array *k, qn_array *v,
                    qn_array *positions, qn_array *row_begin, qn_array *blocks, qn_array *sinks);
/* The same over chosen blocks. */
qn_array *qn_attend_chosen(qn_scope *s, const qn_params_attend *p, qn_array *q, qn_array *k, qn_array *v,
                           qn_array *positions, qn_array *row_begin, qn_array *blocks, qn_array *sinks,
                           qn_array *chosen);
/* See qn_params_index. blocks, weights: NULL when the parameters do not ask for them. */
qn_array *qn_index_blocks(qn_scope *s, const qn_params_index *p, qn_array *q, qn_array *k,
                          qn_array *positions, qn_array *row_begin, qn_array *blocks, qn_array *weights);
/* Losses [L, 1] of rows by a head: see qn_params_cross_entropy. */
qn_array *qn_head_loss(qn_scope *s, qn_array *rows, qn_array *head, qn_array *targets, float scale,
                       float softcap);
/* y plus the low-rank product of each row's adapter: see qn_params_lora. */
qn_array *qn_lora(qn_scope *s, const qn_params_lora *p, qn_array *x, qn_array *y, qn_array *adapters);
/* y plus the low-rank products of each row's adapter with its experts; share: NULL where y is not their sum. */
qn_array *qn_experts_lora(qn_scope *s, const qn_params_lora *p, int64_t n_experts, qn_array *x, qn_array *y,
                          qn_array *ids, qn_array *adapters, qn_array *share);
/* See qn_params_experts. bias: NULL where there is none. */
qn_array *qn_experts(qn_scope *s, qn_array *x, qn_array *w, qn_array *ids, qn_array *bias);
qn_array *qn_experts_sum(qn_scope *s, qn_array *x, qn_array *w, qn_array *ids, qn_array *share,
                         qn_array *bias);
/* See qn_params_gather_mm; x and w are plain. */
qn_array *qn_gather_plain(qn_scope *s, qn_array *x, qn_array *w, qn_array *ids);
/* log(sum(exp(x))) over the last dimension, kept with size 1. */
qn_array *qn_logsumexp(qn_scope *s, qn_array *x);

/* ---- computing ----------------------------------------------------------------------------------------- */

/* The memory of an array over data, in whatever layout; NULL for one that is computed. Borrowed. */
qn_buffer *qn_array_buffer(const qn_array *a);

/* ---- differentiation ----------------------------------------------------------------------------------- */

/* What was made after `before` and lies below `out` is not kept for the gradient: qn_vjp builds it once more,
 * right before it needs it. The gradient's bits stay, its memory is that of one such piece. Nothing of the
 * piece but `out` should be used by others. Returns out. */
qn_array *qn_checkpoint_from(qn_scope *s, qn_array *before, qn_array *out);

#endif

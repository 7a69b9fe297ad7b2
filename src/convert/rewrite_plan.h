/* Which rows of a source's tensors are which matrix of the model, and how they are read for a new file: a
 * tensor is cut into covers, each what one role of the model is of it; what lies between them is of no role
 * that may change. Immutable once made; one thread at a time. */
#ifndef QN_CONVERT_REWRITE_PLAN_H
#define QN_CONVERT_REWRITE_PLAN_H

#include "base/arena.h"
#include "base/map.h"
#include "convert/merge.h"
#include "convert/rewrite.h"
#include "convert/row_writer.h"
#include "model/weights/weight_experts.h"

/* Rows [first, first + n_rows) of a tensor of the source are of a role; see qn_rewrite_columns. */
typedef struct {
    int64_t tensor, first, n_rows;
    qn_weight_role role;
    int64_t layer;
    const qn_tensor_view *view;      /* of two dimensions; one for all experts, one below the other */
    const qn_adapter_target *target; /* NULL: no adapter changes it */
    const float *numbers;            /* in the place of its own; NULL: none */
    int is_experts;                  /* the tensor has matrices of experts: all of it is one cover */
    int64_t expert;                  /* whose it is; -1: all are in it */
    qn_weight_experts_lines lines;   /* of the role */
    const qn_adapter_target *other;  /* of a second role with lines in the tensor; NULL: none changes it */
    qn_weight_experts_lines other_lines;
} qn_rewrite_cover;

/* What an adapter adds to experts, read when it is first needed: the last few are kept, since the tensors of one
 * layer follow each other. */
typedef struct {
    qn_merge kept[4];
    int next;
} qn_rewrite_merges;

typedef struct {
    const qn_rewrite_model *model;
    const qn_rewrite_changes *changes;
    qn_map *names;            /* of the source's tensors, to their numbers */
    qn_rewrite_cover *covers; /* [n], by tensor, then by row */
    int64_t n, capacity, n_changed;
    qn_arena arena; /* of views */
    qn_rewrite_merges *merges;
} qn_rewrite_plan;

/* QN_E_UNSUPPORTED: a change that has no place in the files (message: which). Free it in any case. */
qn_status qn_rewrite_plan_make(const qn_rewrite_model *model, const qn_rewrite_changes *changes,
                               qn_rewrite_plan *out);
void qn_rewrite_plan_free(qn_rewrite_plan *p);
/* The covers of a tensor; their number. */
int64_t qn_rewrite_covers(const qn_rewrite_plan *p, int64_t tensor, const qn_rewrite_cover **first);
/* What the adapter adds to a role; NULL: nothing. */
const qn_adapter_target *qn_rewrite_target(const qn_rewrite_plan *p, qn_weight_role role, int64_t layer);
/* The number of the tensor that v is, or shows a part of; -1: it is none of the source's. */
int64_t qn_rewrite_tensor(const qn_rewrite_plan *p, const qn_tensor_view *v);
int qn_rewrite_is_changed(const qn_rewrite_cover *c);
/* 1: f32, f16 or bf16. */
int qn_rewrite_is_float(const qn_tensor_view *v);
/* A tensor is read and written row by row; rows of a vector are its numbers, of more than two dimensions the
 * last. joined: columns of a matrix that lies in several tensors; 0: it does not. */
int64_t qn_rewrite_columns(const qn_tensor_view *stored, int64_t joined);

/* The rows of a matrix as they are to be written: numbers in their place, or with the adapter added. */
typedef struct {
    const qn_tensor_view *view;
    int64_t n_cols;
    const float *numbers;
    qn_merge merge;
    float *change;                 /* room for a row */
    const qn_rewrite_cover *cover; /* of experts, whose rows are the tensor's own; NULL: it is none */
    const qn_merge *experts[2];    /* of its two roles; NULL: nothing is added. Of the plan */
} qn_rewrite_rows;
/* c: of the plan. *out is to be freed in any case. */
qn_status qn_rewrite_rows_open(const qn_rewrite_plan *p, const qn_rewrite_cover *c, int64_t n_cols,
                               qn_rewrite_rows *out);
/* Rows [first, first + n) of the cover: out [n, n_cols]. */
qn_status qn_rewrite_rows_read(const qn_rewrite_rows *r, int64_t first, int64_t n, float *out);
void qn_rewrite_rows_free(qn_rewrite_rows *r);

/* Writes all rows of a tensor v of the source, with n covers: what does not change and has the writer's type
 * as it lies. whole: v, or its view with scales and biases. */
qn_status qn_rewrite_pass(const qn_rewrite_plan *p, const qn_tensor_view *whole, int64_t n_rows,
                          const qn_rewrite_cover *covers, int64_t n, qn_row_writer *to);
/* Writes a tensor as it lies, its pages given up behind. */
qn_status qn_rewrite_copy(const qn_tensor_file *to, int64_t index, const qn_tensor_view *v);

#endif

/* A LoRA adapter as it lies in a folder: adapter_config.json beside adapter_model.safetensors (PEFT) or
 * adapters.safetensors (mlx_lm), checked against the model that it is for.
 *
 * Modules are found by the names that the model's family has in safetensors, so a base in GGUF takes the same
 * adapters. A tensor that files have fused (several roles under one name) is cut into the roles' rows.
 * Invariant: every tensor of the file is part of a target or of a whole tensor that changes, every target has both matrices (and its magnitudes
 * for DoRA), and their shapes are those of the model's matrix and the configured rank; numbers are not looked
 * at yet. Views live until
 * close. One thread at a time. */
#ifndef QN_MODEL_ADAPTER_ADAPTER_FILE_H
#define QN_MODEL_ADAPTER_ADAPTER_FILE_H

#include "base/arena.h"
#include "format/safetensors/safetensors.h"
#include "model/adapter/adapter_config.h"
#include "model/adapter/adapter_wholes.h"
#include "model/config/families.h"
#include "model/weights/weights.h"

/* Which part of a matrix's adapter a tensor is: A, B, DoRA's magnitudes. */
typedef enum { QN_ADAPTER_A, QN_ADAPTER_B, QN_ADAPTER_M, QN_ADAPTER_PARTS } qn_adapter_tensor;

/* What a layout calls its files and tensors: prefix, the module's path, the part's ending. */
typedef struct {
    const char *file, *prefix;
    const char *ending[QN_ADAPTER_PARTS];
} qn_adapter_names;
/* By qn_adapter_layout. */
extern const qn_adapter_names qn_adapter_layouts[];
enum { QN_ADAPTER_LAYOUTS = 2 };
#define QN_ADAPTER_CONFIG_NAME "adapter_config.json"

/* One matrix of the model that the adapter changes, or those of all experts of a layer. */
typedef struct qn_adapter_target {
    qn_adapter_layout layout;
    qn_weight_role role;
    int64_t layer;
    const qn_tensor_view *a, *b;   /* of QN_EXPERTS_EACH the first ones */
    const qn_tensor_view *m;       /* DoRA's magnitudes, one for each output; NULL: none */
    int64_t n_in, n_out;           /* of the model's matrix, or of each */
    int64_t row, row_step, n_rows; /* B's outputs row, row + row_step, .. of n_rows are this matrix's n_out */
    int32_t rank;
    float factor;
    int64_t n_experts; /* 0: one matrix */
    qn_expert_form form;
    struct qn_adapter_target *also; /* of the same matrix by another adapter; NULL: none */
    const qn_tensor_view **each;    /* EACH: [n_experts][2], A and B; NULL: nothing is added to the expert */
} qn_adapter_target;
/* Matrices of a target, at least one. */
static inline int64_t qn_adapter_target_count(const qn_adapter_target *t)
{
    return t->n_experts ? t->n_experts : 1;
}

typedef struct {
    qn_adapter_config config;
    char *config_path;
    qn_safetensors *tensors;
    qn_adapter_target *targets; /* by layer, then by role; those of the whole model first */
    int64_t n_targets;
    qn_adapter_wholes wholes; /* what changes that is no matrix with factors */
    qn_arena arena;           /* of the targets' lists */
} qn_adapter_file;

/* path: the folder, or the safetensors file in it. notes get a line for what might surprise. QN_E_NOT_FOUND:
 * there is no adapter in it; QN_E_FORMAT: a shape, a rank, a layer or half of a pair (message: the tensor);
 * QN_E_UNSUPPORTED: a tensor that belongs to no linear layer of the model, a type, or what the configuration
 * asks for. Untouched on failure. */
qn_status qn_adapter_file_open(const char *path, const qn_model_config *model, qn_buf *notes,
                               qn_adapter_file *out);
/* QN_E_UNSUPPORTED: it changes more than matrices by factors (message: which tensor, and `what` for it). */
qn_status qn_adapter_file_needs_factors(const qn_adapter_file *f, const char *what);
/* Accepts a zeroed one. */
void qn_adapter_file_close(qn_adapter_file *f);

/* A [rank, n_in] into a and B, of this matrix's outputs, as [rank, n_out] into b; its magnitudes [n_out] into
 * m where it has some. Of experts one after the other, zeros for those without factors. QN_E_FORMAT names a tensor with a number that is not finite, and the element. */
qn_status qn_adapter_target_read(const qn_adapter_target *t, float *a, float *b, float *m);

#endif

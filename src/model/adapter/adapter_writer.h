/* Writes an adapter as a folder: adapter_config.json beside adapter_model.safetensors (PEFT) or
 * adapters.safetensors (mlx_lm), so that peft, mlx_lm and adapter_file.h read it. Rows of B and magnitudes
 * come in the model's order and go out in that of published files (row_order.h).
 *
 * Invariant: the folder holds the old adapter or the new one, whole, whenever the writing ends. Other files
 * in it stay. One thread at a time. */
#ifndef QN_MODEL_ADAPTER_ADAPTER_WRITER_H
#define QN_MODEL_ADAPTER_ADAPTER_WRITER_H

#include "model/adapter/adapter_config.h"
#include "model/adapter/modules.h"

/* The factors of one module; of experts one after the other. PEFT's layout has those as factors of transformers'
 * parameters, mlx_lm's as factors of each role, with A twice where two roles share it. */
typedef struct {
    const qn_module *module;
    const float *a; /* [rank, n_in]; [n_experts, rank, n_in] */
    const float *b; /* [n_rows, rank]; [n_experts, n_rows, rank] */
    const float *m; /* [n_rows]; NULL unless DoRA */
} qn_adapter_part;

typedef struct {
    qn_adapter_layout layout;
    qn_dtype dtype;         /* of the numbers: F32 or BF16 */
    const char *base_model; /* where the base comes from, for people and for peft */
    int64_t rank;
    double alpha, dropout;
    int rslora, dora;
} qn_adapter_form;

/* all: the model's modules (qn_modules_list), for short lists of targets. parts: sorted by the names of their
 * modules, at least one. QN_E_ARG: a number that is not finite, or beyond bf16 (message: which tensor;
 * nothing is touched); QN_E_IO. */
qn_status qn_adapter_write(const char *path, const qn_model_config *c, const qn_adapter_form *form,
                           const qn_module *all, int64_t n_all, const qn_adapter_part *parts,
                           int64_t n_parts);

#endif

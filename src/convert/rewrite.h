/* A model written anew with other numbers: an adapter added to its matrices, or trained weights in place of
 * its own. Each tensor of the source has a plan: it is copied as it is, or decoded range by range, changed,
 * and written in the type that was asked for. Files, their tensors and the order of these stay as the source
 * has them. One thread at a time. */
#ifndef QN_CONVERT_REWRITE_H
#define QN_CONVERT_REWRITE_H

#include <quern/adapter.h>

#include "model/adapter/adapter_file.h"
#include "quant/types.h"

/* What is changed. */
typedef struct {
    const qn_adapter_target *targets; /* what adapters add to matrices, those behind `also` too */
    int64_t n_targets;
    /* The numbers that stand in the place of a role's, as many as its view has and in the same order;
     * borrowed. NULL is returned: the source's own. The function NULL: all are the source's own. */
    const float *(*numbers)(void *user, qn_weight_role role, int64_t layer);
    void *user;
    int64_t n_numbers; /* roles of which there are numbers: all of them must find their place */
} qn_rewrite_changes;

/* The source, and what was found in it. */
typedef struct {
    qn_source *source;
    const qn_model_config *config;
    const qn_weights *weights;
} qn_rewrite_model;

/* Writes folder out_path, whole or not at all; files of an older folder there that are not the model's stay.
 * QN_E_ARG: another type than those; QN_E_UNSUPPORTED: no safetensors, a change of quantised weights without
 * a type, a matrix that is changed and shares its tensor with what is not told apart, a number too large for
 * the type; QN_E_IO. out may be NULL. */
qn_status qn_rewrite_folder(const qn_rewrite_model *model, const qn_rewrite_changes *changes,
                            const qn_fuse_options *options, const char *out_path, qn_fuse_result *out);
/* Writes a GGUF model as one file, which replaces an older one: all metadata, and tensors in the file's
 * order. Types of options are those of matrices (tensor_types.h). QN_E_ARG: another type; QN_E_UNSUPPORTED:
 * no GGUF, a change of weights in a type that has no encoder. */
qn_status qn_rewrite_gguf(const qn_rewrite_model *model, const qn_rewrite_changes *changes,
                          const qn_fuse_options *options, const char *out_path, qn_fuse_result *out);

#endif

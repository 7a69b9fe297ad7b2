/* A model of safetensors as a GGUF file: tensors under that format's names, rows of q and k in its order,
 * vectors as f32 with what the family adds to norms, numbers of the configuration as metadata. What was
 * written is read again before it takes its place, and whatever does not say the same model is refused by the
 * field: a file that computes something else is never left. One thread at a time. */
#ifndef QN_CONVERT_EXPORT_GGUF_H
#define QN_CONVERT_EXPORT_GGUF_H

#include "convert/rewrite.h"
#include "format/gguf/gguf_writer.h"

/* What the caller adds. */
typedef struct {
    /* Metadata behind the model's; architecture: the file's. May be NULL. */
    qn_status (*put)(void *user, const char *architecture, qn_gguf_writer *w);
    /* The file as it was written. May be NULL. */
    qn_status (*check)(void *user, const qn_gguf *g);
    void *user;
} qn_export_more;

/* Writes out_path, which replaces an older file. QN_E_UNSUPPORTED: a family, or what its config says, that
 * has no form in GGUF (message: which); and the statuses of qn_rewrite_gguf. more and out may be NULL. */
qn_status qn_export_gguf(const qn_rewrite_model *model, const qn_rewrite_changes *changes,
                         const qn_fuse_options *options, const qn_export_more *more, const char *out_path,
                         qn_fuse_result *out);

/* The first field in which two configurations differ that the forward pass would notice, b as GGUF has it;
 * NULL: none. Static storage. */
const char *qn_export_difference(const qn_model_config *a, const qn_model_config *b);

#endif

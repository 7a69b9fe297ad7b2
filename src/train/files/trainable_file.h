/* What is trained as an adapter on disk: written for peft, mlx_lm and the engine, and read to train on. */
#ifndef QN_TRAIN_FILES_TRAINABLE_FILE_H
#define QN_TRAIN_FILES_TRAINABLE_FILE_H

#include "base/buf.h"
#include "model/adapter/adapter_config.h"
#include "train/step/trainable.h"

typedef struct {
    qn_adapter_layout layout;
    int bf16; /* numbers as bf16, half the bytes, as all are where factors are kept so; else f32 */
    const char *base_model; /* what the file says of its base; NULL: where base was opened */
} qn_trainable_save_options;

/* Writes folder path (adapter_writer.h: whole or not at all). options NULL: PEFT, f32. QN_E_ARG: whole
 * weights are trained, or a number is not finite; QN_E_IO. */
qn_status qn_trainable_save(const qn_trainable *t, const qn_train_base *base, const char *path,
                            const qn_trainable_save_options *options);

/* The numbers of the adapter at path (adapter_file.h, either layout) into the arrays, which must be of the
 * same modules, rank and factor, with magnitudes or without as the adapter. notes get a line for what might
 * surprise. QN_E_ARG: they differ (message: how); and the reader's statuses. What is kept in
 * bf16 takes the nearest. No number is changed on failure. */
qn_status qn_trainable_load(qn_trainable *t, const qn_train_base *base, const char *path, qn_buf *notes);

#endif

/* A model whose weights themselves were trained, on disk: a folder as the base's, with the trained numbers in
 * the places of the base's own; of a base in GGUF a folder with one file, model.gguf. */
#ifndef QN_TRAIN_FILES_MODEL_FILE_H
#define QN_TRAIN_FILES_MODEL_FILE_H

#include "train/step/trainable.h"

/* QN_E_ARG: options changed the base's rotary positions, which the files that are written would not say. */
qn_status qn_trainable_check_model(const qn_train_base *base);
/* Writes folder path, whole or not at all (folder_writer.h: what lay there beside a model stays). type:
 * "f32", "f16" or "bf16", of all numbers; NULL: each tensor keeps the base's. What is not trained and all
 * files beside the weights are the base's. QN_E_ARG: factors are trained (trainable_file.h writes these), or
 * a number is not finite, or qn_trainable_check_model; QN_E_UNSUPPORTED: a quantised base without a type, or one that is no safetensors;
 * QN_E_IO. */
qn_status qn_trainable_save_model(const qn_trainable *t, const qn_train_base *base, const char *path,
                                  const char *type);

#endif

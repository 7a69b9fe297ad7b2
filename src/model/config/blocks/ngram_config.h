/* Reads what config.json says of embeddings of n-grams, and makes the numbers by which n-grams are hashed. */
#ifndef QN_MODEL_CONFIG_BLOCKS_NGRAM_CONFIG_H
#define QN_MODEL_CONFIG_BLOCKS_NGRAM_CONFIG_H

#include "model/config/config.h"
#include "model/config/families.h"
#include "model/config/fields.h"

/* Fills c->ngram and the layers' `ngrams` where ple_layer_ids names layers; the layers must be known. Where the files
 * have the numbers of a hash as tensors, these count; else they follow from `seed` and the sizes. QN_E_FORMAT: a field
 * or tensor is missing, out of range or at odds with another. */
qn_status qn_ngram_config_read(const qn_source *src, const qn_family *family, const qn_fields *f,
                               qn_model_config *c);
/* 1: a tensor of this name has some of these numbers. */
int qn_ngram_config_has(const char *tensor);

#endif

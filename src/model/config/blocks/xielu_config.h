/* The numbers of the activation xIELU, four a layer: files have them beside the weights. Read by config.c. */
#ifndef QN_MODEL_CONFIG_BLOCKS_XIELU_CONFIG_H
#define QN_MODEL_CONFIG_BLOCKS_XIELU_CONFIG_H

#include "format/source/source.h"
#include "model/config/config.h"

/* Fills xielu of all layers where hidden_act is XIELU; else nothing is done. QN_E_FORMAT: a number is missing, of
 * another shape, or out of range. */
qn_status qn_xielu_config_read(const qn_source *src, qn_model_config *c);
/* 1: the tensor is one of these numbers. */
int qn_xielu_config_has(const char *tensor);

#endif

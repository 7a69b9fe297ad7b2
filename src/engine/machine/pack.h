/* Packing a model's weights into a file, without opening the model otherwise. Any thread. */
#ifndef QN_ENGINE_MACHINE_PACK_H
#define QN_ENGINE_MACHINE_PACK_H

#include <quern/model.h>

#include "model/config/config.h"

/* See qn_model_pack. *out is set on success. */
qn_status qn_engine_pack(qn_source *source, const qn_model_config *config, const qn_pack_options *options,
                         qn_pack_result *out);

#endif

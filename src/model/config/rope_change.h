/* Rotary positions that options change. The change is made to the description before it is read, so that the model is
 * the one whose files say so. Any thread. */
#ifndef QN_MODEL_CONFIG_ROPE_CHANGE_H
#define QN_MODEL_CONFIG_ROPE_CHANGE_H

#include "base/buf.h"
#include "model/config/config.h"
#include "model/config/families.h"
#include "model/config/fields.h"

/* 1: a field is set. NULL: none is. */
int qn_rope_change_asked(const qn_rope_options *o);
/* What can be said without a model. QN_E_ARG: a field is out of range, or two contradict each other. */
qn_status qn_rope_change_check(const qn_rope_options *o);
/* Replaces f->object by a copy with the change; *edited owns it (json_decref), also on failure. c: the layers and
 * max_position_embeddings are read. The options are checked. QN_E_ARG, QN_E_UNSUPPORTED: see qn_rope_options. */
qn_status qn_rope_change_apply(const qn_rope_options *o, const qn_source *src, const qn_family *family,
                               const qn_model_config *c, qn_fields *f, json_t **edited);
/* One sentence on what is in force. */
qn_status qn_rope_change_note(const qn_rope_options *o, const qn_source *src, const qn_fields *f,
                              const qn_model_config *c, qn_buf *notes);
/* A hash of all that options may change of how queries and keys depend on positions. Of the files' own, their
 * fingerprint tells. */
uint64_t qn_rope_change_hash(const qn_model_config *c);

#endif

/* What a model of an unknown family has that nothing here computes: where adding it begins. Any thread. */
#ifndef QN_MODEL_CONFIG_UNKNOWN_UNKNOWN_FAMILY_H
#define QN_MODEL_CONFIG_UNKNOWN_UNKNOWN_FAMILY_H

#include "base/json/json.h"
#include "format/source/source.h"

enum { QN_UNKNOWN_TEXT_MAX = 640 };

/* A sentence into text: the known family whose names most of the weights have, the first weight and the first field that
 * no family has, and how many there are. Weights of towers and of layers for drafts are not looked at. config: the
 * decoder's own description; NULL: there is none. Empty where memory is out. Returns text. */
const char *qn_unknown_family_text(const qn_source *src, const json_t *config,
                                   char text[QN_UNKNOWN_TEXT_MAX]);

/* 1: some family's description has the field, whatever it means there. */
int qn_is_known_field(const char *name);

#endif

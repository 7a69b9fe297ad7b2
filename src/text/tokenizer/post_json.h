/* The member "post_processor" of a tokenizer.json: which tokens go around a text, and around and between two.
 * One thread at a time. */
#ifndef QN_TEXT_TOKENIZER_POST_JSON_H
#define QN_TEXT_TOKENIZER_POST_JSON_H

#include <jansson.h>

#include "text/tokenizer/tokenizer_build.h"

/* Fills prefix, suffix and pair of t, whose vocabulary is complete. QN_E_UNSUPPORTED names a component that is
 * not known, QN_E_FORMAT a bad field. */
qn_status qn_post_json_read(const char *what, const json_t *value, qn_tokenizer *t);

#endif

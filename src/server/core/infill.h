/* Text between a beginning and an end, for models that were trained to fill it in: their special tokens mark the
 * parts of the prompt, which is a list of token ids. Any thread. */
#ifndef QN_SERVER_CORE_INFILL_H
#define QN_SERVER_CORE_INFILL_H

#include "server/core/request.h"

enum { QN_INFILL_EXTRA_MAX = 256 };

/* Has the model the tokens for it? */
int qn_infill_is_known(const qn_model *model);

/* What is before and behind the gap, and what the text in it begins with: strings, NULL: nothing. extra: files that
 * the text refers to, an array of {"filename", "text"}, or NULL. */
typedef struct {
    const json_t *prefix, *suffix, *begun, *extra;
} qn_infill;

/* Makes *out, which the caller owns, an array of ids. param: the field at fault if the model knows no such tokens;
 * extra_param: that of `extra`. Returns 0, or the HTTP status of a refusal. */
int qn_infill_make(const qn_model *model, const qn_infill *parts, const char *param, const char *extra_param,
                   json_t **out, qn_api_error *error);

#endif

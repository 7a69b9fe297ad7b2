/* Members of answers that are the same in several dialects. All functions append; the buffer keeps the first
 * failure. Any thread that may read what is written. */
#ifndef QN_SERVER_CORE_WRITE_H
#define QN_SERVER_CORE_WRITE_H

#include "server/core/completion.h"

void qn_write_null(qn_buf *out, const char *key);
/* A key with the texts of one kind, joined; of arguments: of the call `index`. */
void qn_write_said(qn_buf *out, const char *key, const qn_said *said, qn_answer_kind kind, int32_t index);
/* "warnings": [...]; nothing if the request has none. */
void qn_write_warnings(const qn_completion *c, qn_buf *out);
/* A key with any JSON value; NULL: null. */
void qn_write_value(qn_buf *out, const char *key, const json_t *value);
/* A key with the arguments of a call as a JSON object. If the model broke off, the object has the members that
 * are complete. */
void qn_write_arguments(qn_buf *out, const char *key, const qn_said *said, int32_t index);

#endif

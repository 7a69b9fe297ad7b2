/* JSON written into a qn_buf in order; commas come by themselves. Keys and names are plain ASCII. The buffer
 * keeps the first failure, as ever. One thread at a time. */
#ifndef QN_BASE_JSON_JSON_WRITE_H
#define QN_BASE_JSON_JSON_WRITE_H

#include <stdint.h>

#include "base/buf.h"

void qn_json_open(qn_buf *b, char bracket); /* '{' or '[' */
void qn_json_close(qn_buf *b, char bracket);
void qn_json_key(qn_buf *b, const char *key);
void qn_json_text(qn_buf *b, const char *text, size_t n);
void qn_json_int(qn_buf *b, int64_t value);
void qn_json_uint(qn_buf *b, uint64_t value);
/* 6 significant digits; what is not finite becomes null. */
void qn_json_real(qn_buf *b, double value);
void qn_json_ids(qn_buf *b, const int32_t *ids, int64_t n);
/* Key and value. */
void qn_json_put_text(qn_buf *b, const char *key, const char *text);
void qn_json_put_int(qn_buf *b, const char *key, int64_t value);
void qn_json_put_bool(qn_buf *b, const char *key, int value);
void qn_json_put_real(qn_buf *b, const char *key, double value);
/* With all of its bits, for those who compare or go on computing. */
void qn_json_put_exact(qn_buf *b, const char *key, double value);

#endif

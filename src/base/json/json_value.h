/* A value that was parsed, written back: compact, members in their order, numbers as the shortest text that reads
 * as the same number. One thread at a time. */
#ifndef QN_BASE_JSON_JSON_VALUE_H
#define QN_BASE_JSON_JSON_VALUE_H

#include <jansson.h>

#include "base/buf.h"

/* Appends the value, which a parser of json.h gave, so its depth is bounded; exact integers with all digits. The buffer keeps the first failure. */
void qn_json_write_value(qn_buf *b, const json_t *value);

#endif

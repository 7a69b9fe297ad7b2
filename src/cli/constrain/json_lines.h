/* Files of JSON lines, plain or gzip, read line by line. */
#ifndef QN_CLI_CONSTRAIN_JSON_LINES_H
#define QN_CLI_CONSTRAIN_JSON_LINES_H

#include <stddef.h>

#include "base/status.h"

enum { QN_JSON_LINE_MAX = 64 << 20 };

/* text[0..n) is one line without its end. */
typedef qn_status qn_json_line_fn(void *user, const char *text, size_t n);

/* Calls fn for each line that is not empty, until it fails; the message is prefixed with path and line. QN_E_IO:
 * the file cannot be read, or its gzip data is broken. QN_E_FULL: a line is longer than QN_JSON_LINE_MAX. */
qn_status qn_json_lines_read(const char *path, qn_json_line_fn *fn, void *user);

#endif

/* Writing to the process's log sink (<quern/log.h>). Any thread. */
#ifndef QN_BASE_LOG_H
#define QN_BASE_LOG_H

#include <quern/log.h>

#include "base/status.h"

void qn_log(qn_log_level level, const char *fmt, ...) QN_PRINTF(2, 3);

/* Each line of text by itself. */
void qn_log_lines(qn_log_level level, const char *text);

#endif

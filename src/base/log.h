/* One log sink for the process. Default: warnings and errors to stderr. Any thread. */
#ifndef QN_BASE_LOG_H
#define QN_BASE_LOG_H

#include "base/status.h"

typedef enum { QN_LOG_ERROR, QN_LOG_WARNING, QN_LOG_INFO, QN_LOG_DEBUG } qn_log_level;
typedef void qn_log_fn(void *user, qn_log_level level, const char *line);

/* fn NULL restores the default. Set before threads start. */
void qn_log_set_sink(qn_log_fn *fn, void *user);
/* Lines above this level are dropped. Default QN_LOG_WARNING. */
void qn_log_set_level(qn_log_level level);
void qn_log(qn_log_level level, const char *fmt, ...) QN_PRINTF(2, 3);

#endif

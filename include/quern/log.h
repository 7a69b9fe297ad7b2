/* Warnings and other lines of the library go to one sink of the process; by default to standard error. What
 * ends a call is not logged but returned (status.h). Any thread. */
#ifndef QUERN_LOG_H
#define QUERN_LOG_H

#include <quern/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { QN_LOG_ERROR, QN_LOG_WARNING, QN_LOG_INFO, QN_LOG_DEBUG } qn_log_level;
/* line: one line of UTF-8 without its end, valid during the call. May be called from any thread. */
typedef void qn_log_fn(void *user, qn_log_level level, const char *line);

/* fn NULL restores the default. Set before threads start. */
QN_API void qn_log_set_sink(qn_log_fn *fn, void *user);
/* Lines above this level are dropped. Default QN_LOG_WARNING. */
QN_API void qn_log_set_level(qn_log_level level);

#ifdef __cplusplus
}
#endif
#endif

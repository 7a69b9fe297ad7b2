/* Warnings and other lines of the library go to one sink of the process, by default standard error. A failure
 * that ends a call is not logged but returned (status.h). Any thread. */
#ifndef QUERN_LOG_H
#define QUERN_LOG_H

#include <quern/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* From severe to detailed; a level includes those before it. The library itself writes only warnings. */
typedef enum {
    QN_LOG_ERROR,   /* something failed, and no call is there that could return it */
    QN_LOG_WARNING, /* it goes on, but a user should know: what was replaced, guessed or ignored */
    QN_LOG_INFO,    /* what happens, in the ordinary course of things */
    QN_LOG_DEBUG    /* details for those who look for a fault */
} qn_log_level;
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

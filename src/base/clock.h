/* Monotonic time, and time of the processor. */
#ifndef QN_BASE_CLOCK_H
#define QN_BASE_CLOCK_H

#include <stdint.h>

/* Nanoseconds since an arbitrary start; never goes back. */
int64_t qn_clock_ns(void);
/* CPU time of the calling thread, in nanoseconds: other programs on the machine do not add to it. */
int64_t qn_clock_thread_ns(void);

#endif

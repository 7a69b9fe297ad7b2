/* Monotonic time. */
#ifndef QN_BASE_CLOCK_H
#define QN_BASE_CLOCK_H

#include <stdint.h>

/* Nanoseconds since an arbitrary start; never goes back. */
int64_t qn_clock_ns(void);

#endif

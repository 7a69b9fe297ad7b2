#include "base/clock.h"

#include <time.h>

static int64_t read_clock(clockid_t which)
{
    struct timespec t;
    clock_gettime(which, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t qn_clock_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

int64_t qn_clock_thread_ns(void)
{
    return read_clock(CLOCK_THREAD_CPUTIME_ID);
}

/* Attention without pages, for attention.c: see ragged.c. */
#ifndef QN_DEVICE_CPU_RAGGED_H
#define QN_DEVICE_CPU_RAGGED_H

#include "device/cpu/cpu.h"

void qn_cpu_attend_ragged(const qn_cpu_run *run, const qn_cpu_step *s);
/* Of a worker, for ATTEND without a state and its gradient. */
size_t qn_cpu_ragged_scratch_bytes(const qn_plan *plan, const qn_cpu_step *step);

#endif

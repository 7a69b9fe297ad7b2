/* Attention without a state, for attention.c: see ragged.c. */
#ifndef QN_DEVICE_CPU_ATTENTION_RAGGED_H
#define QN_DEVICE_CPU_ATTENTION_RAGGED_H

#include "device/cpu/cpu.h"

void qn_cpu_attend_ragged(const qn_cpu_run *run, const qn_cpu_step *s);
void qn_cpu_ragged_prepare(const qn_plan *plan, qn_cpu_step *step, size_t *scratch_bytes,
                           size_t *shared_bytes);

#endif

/* Cosines and sines of rotary position embedding. One implementation for all sets: double arithmetic without
 * fused multiply-adds, so the bits are the same everywhere. */
#ifndef QN_DEVICE_CPU_KERNELS_ATTENTION_ANGLES_H
#define QN_DEVICE_CPU_KERNELS_ATTENTION_ANGLES_H

#include <stdint.h>

/* angle = position * frequency, rounded to f32 as the reference does; out [2 * half]: factor * cos, then
 * factor * sin. */
void qn_rope_angles(int32_t position, const float *frequencies, int64_t half, float factor, float *out);

#endif

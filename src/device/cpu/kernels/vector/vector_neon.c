/* The neon set of the loops in vector.body.h. */
#include "device/cpu/kernels/vec_neon.h"

#include "device/cpu/kernels/sets.h"

#include "device/cpu/kernels/vector/vector.body.h"

void qn_kernels_fill_vector_neon(qn_kernels *k)
{
    fill_vector(k);
}

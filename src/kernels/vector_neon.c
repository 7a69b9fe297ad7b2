/* The neon set of the loops in vector.body.h. */
#include "kernels/vec_neon.h"

#include "kernels/attention.h"
#include "kernels/sets.h"

#include "kernels/vector.body.h"

void qn_kernels_fill_vector_neon(qn_kernels *k)
{
    fill_vector(k);
    qn_kernels_fill_attention_neon(k);
}

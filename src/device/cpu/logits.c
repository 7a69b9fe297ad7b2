/* The first pass over logits: the kernels of the instruction set in use. */
#include <pthread.h>
#include <string.h>

#include "device/cpu/cpu.h"

enum { SETS_MAX = 16 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static qn_logits_kernels tables[SETS_MAX]; /* in the order of qn_kernels_names; made when first asked for */

qn_status qn_cpu_get_logits_kernels(const qn_logits_kernels **out)
{
    const qn_kernels *k;
    QN_TRY(qn_kernels_get(&k));
    const char *const *names = qn_kernels_names();
    int i = 0;
    while (strcmp(names[i], k->name) != 0) i++;
    pthread_mutex_lock(&lock);
    if (!tables[i].max)
        tables[i] = (qn_logits_kernels){.max = k->max,
                                        .sum = k->sum,
                                        .max_blocks = k->max_blocks,
                                        .sum_exp_blocks = k->sum_exp_blocks,
                                        .exp_scaled = k->exp_scaled,
                                        .collect = k->collect};
    pthread_mutex_unlock(&lock);
    *out = &tables[i];
    return QN_OK;
}

#include "base/mem.h"
#include "device/cpu/cpu.h"
#include "device/host.h"

void qn_cpu_free(qn_device *d, qn_buffer *b)
{
    qn_cpu_cold_free(b->cold);
    if (b->block)
        qn_buffer_release(b->block);
    else if (b->borrowed)
        qn_ledger_release(d->ledger, b->entry, b->size_bytes);
    else
        qn_host_free(d, b);
    qn_free(b);
}

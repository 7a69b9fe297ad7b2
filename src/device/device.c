#include "device/device.h"

#include <string.h>

#include "device/registry.h"

static const qn_device_ops *const *const devices = qn_device_registry;

const char *const *qn_device_names(void)
{
    static const char *names[8];
    int n = 0;
    for (; devices[n] && n < 7; n++) names[n] = devices[n]->name;
    return names;
}

qn_status qn_device_open(const char *name, const qn_device_options *options, qn_device **out)
{
    for (int i = 0; devices[i]; i++)
        if (strcmp(devices[i]->name, name) == 0) return devices[i]->open(options, out);
    return qn_fail(QN_E_NOT_FOUND, "device '%s': not in this build (cpu is)", name);
}

void qn_device_close(qn_device *d)
{
    if (d) d->ops->close(d);
}

qn_buffer *qn_buffer_retain(qn_buffer *b)
{
    if (b) atomic_fetch_add_explicit(&b->references, 1, memory_order_relaxed);
    return b;
}

void qn_buffer_release(qn_buffer *b)
{
    if (b && atomic_fetch_sub_explicit(&b->references, 1, memory_order_acq_rel) == 1)
        b->device->ops->free(b->device, b);
}

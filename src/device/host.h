/* Buffers that are memory of the host, for devices that compute there or read it. Any thread. */
#ifndef QN_DEVICE_HOST_H
#define QN_DEVICE_HOST_H

#include "device/device.h"

/* qn_device_ops.alloc. */
qn_status qn_host_alloc(qn_device *d, size_t size_bytes, qn_ledger_entry entry, qn_buffer **out);
/* The memory of a buffer of qn_host_alloc, and not the buffer; it leaves the ledger. */
void qn_host_free(qn_device *d, qn_buffer *b);

#endif

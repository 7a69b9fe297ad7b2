/* The devices of this build, in the order of preference last; NULL-terminated. */
#ifndef QN_DEVICE_REGISTRY_H
#define QN_DEVICE_REGISTRY_H

#include "device/device.h"

extern const qn_device_ops *const qn_device_registry[];
/* The device that computes on the host: its passes over logits serve devices without their own. */
extern const qn_device_ops *const qn_device_host;

#endif

#include "device/registry.h"

extern const qn_device_ops qn_device_cpu, qn_device_cuda, qn_device_mlx;

const qn_device_ops *const qn_device_registry[] = {&qn_device_cpu, &qn_device_cuda, &qn_device_mlx, NULL};
const qn_device_ops *const qn_device_host = &qn_device_cpu;

/* How a plan's steps read weights that a device has packed: what devices check before they compile a plan. */
#ifndef QN_DEVICE_WEIGHT_USE_H
#define QN_DEVICE_WEIGHT_USE_H

#include "device/device.h"

/* 1: input i_in of the primitive may be a packed weight. */
int qn_reads_weight(qn_prim prim, int i_in);
/* 1: the operand's rows lie one after the other; turned: its columns. */
int qn_operand_in_order(const qn_operand *o, int turned);

#endif

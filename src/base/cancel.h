/* A flag that ends work from another thread: the public qn_cancel (quern/model.h, quern/backend.h). Any
 * thread. */
#ifndef QN_BASE_CANCEL_H
#define QN_BASE_CANCEL_H

#include <quern/backend.h>
#include <stdatomic.h>

struct qn_cancel {
    atomic_int set;
};

#endif

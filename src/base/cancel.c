#include "base/cancel.h"

#include "base/mem.h"
#include "base/status.h"

qn_status qn_cancel_new(qn_cancel **out)
{
    if (!out) return qn_fail(QN_E_ARG, "qn_cancel_new: out is NULL");
    qn_cancel *made = qn_calloc(1, sizeof *made);
    if (!made) return QN_E_NOMEM;
    *out = made;
    return QN_OK;
}

void qn_cancel_set(qn_cancel *cancel)
{
    if (cancel) atomic_store_explicit(&cancel->set, 1, memory_order_relaxed);
}

void qn_cancel_free(qn_cancel *cancel)
{
    qn_free(cancel);
}

int qn_cancel_is_set(const qn_cancel *cancel)
{
    return atomic_load_explicit(&cancel->set, memory_order_relaxed);
}

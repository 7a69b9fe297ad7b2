/* The public functions of probe.h: argument checks, then the backend. */
#include <quern/quern.h>

#include "api/handles.h"
#include "backend/registry.h"
#include "base/status.h"

qn_status qn_probe_add(qn_model *model, uint32_t mask, qn_probe_event_fn *fn, void *user, int64_t *probe)
{
    int64_t number;
    if (!model || !fn) return qn_fail(QN_E_ARG, "qn_probe_add: the model or the function is NULL");
    if (!mask || mask & ~(uint32_t)QN_PROBE_ALL)
        return qn_fail(QN_E_ARG,
                       "a probe's mask must be a sum of 1 << point with points below %d; 0x%x is not",
                       (int)QN_PROBE_COUNT, (unsigned)mask);
    if (!model->backend->probe_add) return qn_backend_fail_missing(model->backend, "probes");
    QN_TRY(model->backend->probe_add(model->object, mask, fn, user, &number));
    if (probe) *probe = number;
    return QN_OK;
}

qn_status qn_probe_remove(qn_model *model, int64_t probe)
{
    if (!model) return qn_fail(QN_E_ARG, "qn_probe_remove: the model is NULL");
    if (!model->backend->probe_remove) return qn_backend_fail_missing(model->backend, "probes");
    return model->backend->probe_remove(model->object, probe);
}

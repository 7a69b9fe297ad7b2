#include "api/borrow.h"

#include "api/handles.h"

qn_status qn_model_borrow(qn_model *model, qn_native_view *out)
{
    if (model->backend != &qn_backend_native)
        return qn_fail(QN_E_UNSUPPORTED, "the backend %s does not share a model's weights",
                       model->backend->name);
    QN_TRY(qn_native_get_view(model->object, out));
    atomic_fetch_add(&model->n_borrowers, 1);
    return QN_OK;
}

void qn_model_return(qn_model *model)
{
    atomic_fetch_sub(&model->n_borrowers, 1);
}

#include "api/hold.h"

#include "api/handles.h"

qn_status qn_model_hold(qn_model *model, size_t size_bytes)
{
    return model->backend->memory_hold ? model->backend->memory_hold(model->object, size_bytes) : QN_OK;
}

void qn_model_release(qn_model *model, size_t size_bytes)
{
    if (model->backend->memory_release) model->backend->memory_release(model->object, size_bytes);
}

/* The public functions of attention.h: argument checks, then the backend. */
#include <quern/quern.h>

#include "api/handles.h"
#include "backend/registry.h"
#include "base/buf.h"

qn_status qn_attention_snapshot_new(qn_model *model, const qn_prompt *prompt,
                                    const qn_snapshot_options *options, qn_attention_snapshot **out)
{
    const qn_snapshot_options defaults = {0}, *o = options ? options : &defaults;
    qn_prompt normal;
    qn_conversation *own = NULL;
    if (!model || !prompt || !out) return qn_fail(QN_E_ARG, "qn_attention_snapshot_new: an argument is NULL");
    if (!model->backend->attention_snapshot)
        return qn_backend_fail_missing(model->backend, "attention inspection");
    if (o->wanted & ~(unsigned)QN_SNAPSHOT_ALL)
        return qn_fail(QN_E_ARG, "wanted: 0x%x is not a sum of QN_SNAPSHOT_*", o->wanted);
    if (o->n_layers && !o->layers) return qn_fail(QN_E_ARG, "layers is NULL");
    qn_status status = qn_prompt_normalise(prompt, &normal, &own);
    if (status == QN_OK && normal.rows && normal.n_rows != 1)
        status = qn_fail(QN_E_ARG, "a snapshot takes one row, %lld are given", (long long)normal.n_rows);
    if (status == QN_OK) status = model->backend->attention_snapshot(model->object, &normal, o, out);
    qn_conversation_free(own);
    return status;
}

void qn_attention_snapshot_free(qn_attention_snapshot *snapshot)
{
    if (snapshot) snapshot->release(snapshot);
}

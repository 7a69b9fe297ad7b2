/* Memory that a front end takes for a model's requests, counted in the model's ledger. Any thread. */
#ifndef QN_API_HOLD_H
#define QN_API_HOLD_H

#include <quern/model.h>

/* QN_E_NOMEM: the memory limit. A backend that counts no memory holds any amount. */
qn_status qn_model_hold(qn_model *model, size_t size_bytes);
void qn_model_release(qn_model *model, size_t size_bytes);

#endif

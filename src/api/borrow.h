/* The weights of an open model, borrowed by a training in the same process. Any thread. */
#ifndef QN_API_BORROW_H
#define QN_API_BORROW_H

#include <quern/model.h>

#include "backend/native/native.h"

/* *out is valid until qn_model_return, before which qn_model_close does nothing. QN_E_UNSUPPORTED: another
 * backend than native, or a device that shares no weights. */
qn_status qn_model_borrow(qn_model *model, qn_native_view *out);
void qn_model_return(qn_model *model);

#endif

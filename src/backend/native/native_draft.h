/* The smaller model that guesses for another (engine/schedule/drafter.h): opened with it, closed with it,
 * counted in its memory report. One thread at a time. */
#ifndef QN_BACKEND_NATIVE_NATIVE_DRAFT_H
#define QN_BACKEND_NATIVE_NATIVE_DRAFT_H

#include <quern/model.h>

#include "engine/machine/engine.h"
#include "text/tokenizer/tokenizer.h"

/* For the target, whose tokenizer t is (NULL: it has none); options: those that the target was opened with.
 * QN_E_ARG: another vocabulary; QN_E_UNSUPPORTED: it has recurrent layers, which cannot take tokens back;
 * QN_E_NOMEM: the target's memory limit has no room for it. */
qn_status qn_native_draft_open(const char *path, qn_engine *target, const qn_tokenizer *t,
                               const qn_model_options *options, qn_engine **out);
/* NULL is accepted. */
void qn_native_draft_close(qn_engine *draft, qn_engine *target);

#endif

/* What a model's files of state are bound to: the fingerprint of its tensors (format/source/packed.h), as
 * they were when it was opened.
 *
 * It is computed at the start, unless there are so many tensors (experts, each apart) that looking into all
 * of them would hold a cold start up: then when it is first asked for, of the same files, if they are still
 * the same. Any thread. */
#ifndef QN_ENGINE_MACHINE_FINGERPRINT_H
#define QN_ENGINE_MACHINE_FINGERPRINT_H

#include "format/source/source.h"

typedef struct qn_fingerprint qn_fingerprint;

/* file: as the source was opened with. */
qn_status qn_fingerprint_new(qn_source *source, const char *file, qn_fingerprint **out);
/* NULL is accepted. */
void qn_fingerprint_free(qn_fingerprint *f);
/* QN_E_IO: a file went or was changed since the model was opened. */
qn_status qn_fingerprint_get(qn_fingerprint *f, uint64_t *out);

#endif

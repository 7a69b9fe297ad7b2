/* What the headers of one model say, for discover.c. Any thread. */
#ifndef QN_API_DISCOVERY_H
#define QN_API_DISCOVERY_H

#include <quern/discover.h>

/* Fills *d in from the model at d->path and hands it to fn, whose status is returned. format, n_files and
 * size_bytes are set and hold for a model that cannot be opened; a status other than QN_OK and its error are
 * kept. A model at fault is no failure; QN_E_NOMEM is. */
qn_status qn_discovery_report(qn_discovery *d, qn_discover_fn *fn, void *user);

#endif

/* What the registry of backends tells the public functions, beside quern/backend.h. Any thread. */
#ifndef QN_BACKEND_REGISTRY_H
#define QN_BACKEND_REGISTRY_H

#include <quern/backend.h>

/* "the backend mlx_lm does not offer classify". */
qn_status qn_backend_fail_missing(const qn_backend *backend, const char *what);
/* Lists the registered names, separated by ", ". */
void qn_backend_list_names(char *out, size_t size_bytes);

#endif

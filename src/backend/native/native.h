/* The library's own engine as a backend. */
#ifndef QN_BACKEND_NATIVE_NATIVE_H
#define QN_BACKEND_NATIVE_NATIVE_H

#include <quern/backend.h>

extern const qn_backend qn_backend_native;

/* As its open, of the files at `source`; the info says `path` and `backend`, which is borrowed. */
qn_status qn_native_open_as(const char *path, const char *source, const char *backend,
                            const qn_model_options *options, void **model);

#endif

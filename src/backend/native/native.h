/* The library's own engine as a backend. */
#ifndef QN_BACKEND_NATIVE_NATIVE_H
#define QN_BACKEND_NATIVE_NATIVE_H

#include <quern/backend.h>

#include "model/config/config.h"
#include "model/weights/parameters.h"

extern const qn_backend qn_backend_native;

/* As its open, of the files at `source`; the info says `path` and `backend`, which is borrowed. */
qn_status qn_native_open_as(const char *path, const char *source, const char *backend,
                            const qn_model_options *options, void **model);

/* An open model, for other threads that compute with its weights. All of it is the model's and lives as long.
 */
typedef struct {
    const char *path, *file; /* as it was opened; file NULL: none was named */
    const char *device;
    int n_threads;
    qn_precision precision;
    const qn_model_config *config;
    const qn_parameters *parameters; /* to be shared, qn_parameters_share */
} qn_native_view;

/* Of a model of qn_backend_native. QN_E_UNSUPPORTED: its device shares no buffers. */
qn_status qn_native_get_view(void *model, qn_native_view *out);

#endif

/* The library's own engine as a backend. */
#ifndef QN_BACKEND_NATIVE_H
#define QN_BACKEND_NATIVE_H

#include <quern/backend.h>

extern const qn_backend qn_backend_native;

#endif

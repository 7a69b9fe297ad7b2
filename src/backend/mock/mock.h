/* The backend mock: the engine with a made-up model, for tests of whatever stands on it, without any model
 * files. */
#ifndef QN_BACKEND_MOCK_MOCK_H
#define QN_BACKEND_MOCK_MOCK_H

#include <quern/backend.h>

/* All of the native backend's functions but open. The path is a seed in decimal digits, or "mock" for the
 * seed 1; ",end" behind either lets the model end its turns (mock_file.h). */
const qn_backend *qn_backend_mock(void);

#endif

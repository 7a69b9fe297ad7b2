/* "generation_settings" of an answer, and the same of a request that sets nothing, for /props and /slots. */
#ifndef QN_SERVER_LLAMA_SETTINGS_H
#define QN_SERVER_LLAMA_SETTINGS_H

#include "server/core/request.h"

/* Appends an object. seed: that was drawn with. Any thread. */
void qn_llama_write_settings(const qn_api_request *r, uint64_t seed, qn_buf *out);

#endif

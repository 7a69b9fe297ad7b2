/* Marks of a request (fields/cache_marks.h) as prefixes of its prompt.
 *
 * A place in a chat is found by rendering: the chat up to that place, and the whole chat, begin with the same tokens. So
 * the template itself says how far a place reaches. On a worker. */
#ifndef QN_SERVER_CORE_PREFIX_PINS_H
#define QN_SERVER_CORE_PREFIX_PINS_H

#include "server/core/completion.h"

/* Fills c->pins from the request's marks, for a prompt that is rendered: ids[0..n). A mark that cannot be honoured is
 * reported in the warnings. Returns 0, or the HTTP status of a refusal: memory is out. */
int qn_prefix_pins_find(qn_completion *c, const int32_t *ids, int64_t n);
/* Of the prompt's tokens, those that were not cached before and are kept from now on for at least min_ttl_ms, up to the
 * last prefix. */
int64_t qn_prefix_pins_written(const qn_completion *c, int64_t min_ttl_ms);

#endif

/* What clients say of the prompt cache: Anthropic's cache_control, OpenAI's prompt_cache_key with its options,
 * and breakpoints on parts of messages. They become marks of a request; prefix_pins.h makes prefixes of them. No
 * sockets, no model. One thread at a time. */
#ifndef QN_SERVER_CORE_FIELDS_CACHE_MARKS_H
#define QN_SERVER_CORE_FIELDS_CACHE_MARKS_H

#include "server/core/fields/request_fields.h"

/* Notes "cache_control" or "prompt_cache_breakpoint" of an object at `place` as a mark, if it has one. n_messages, n_text:
 * as in qn_cache_mark. Beyond QN_PREFIX_PINS_MAX, cache_control is refused, as in Anthropic's API, and the oldest
 * breakpoint is forgotten, as in OpenAI's. Returns 0, or the HTTP status of a refusal. */
int qn_cache_mark_read(qn_api_request *r, const json_t *object, const char *place, size_t n_messages,
                       size_t n_text, qn_api_error *error);
/* Does the client say what is to be cached, and expect figures of it? */
int qn_cache_is_marked(const qn_api_request *r);

/* Fields of bodies (QN_FIELD_OWN), named after what they read. */
qn_field_fn qn_field_read_cache_control, qn_field_read_cache_breakpoint, qn_field_read_cache_key,
    qn_field_read_cache_options, qn_field_read_cache_retention;

#endif

/* What of a chat its template does not show, found by rendering it again with that part changed: equal texts
 * mean that the part is not there. A template that refuses the changed chat looks at the part. Any thread. */
#ifndef QN_TRAIN_DATA_SHOWN_H
#define QN_TRAIN_DATA_SHOWN_H

#include <jansson.h>

#include "base/buf.h"
#include "text/chat/chat.h"

enum { QN_SHOWN_KEYS_MAX = 32 };

typedef struct {
    const qn_chat_text *text;
    const json_t *request;    /* as for qn_chat_text_render: "messages", "tools" */
    const qn_rendered *whole; /* what it rendered to */
} qn_shown;

/* *shown 0: the text has no name of any tool. */
qn_status qn_shown_tools(const qn_shown *s, int *shown);
/* *shown 0: the text has neither name nor arguments of the calls of message i. */
qn_status qn_shown_calls(const qn_shown *s, size_t i, int *shown);
/* Appends the keys of messages without which the text is the same, as "messages[].KEY" with a NUL behind each.
 * `known` ends with NULL: keys that are not looked at. QN_E_ARG: more than QN_SHOWN_KEYS_MAX others. */
qn_status qn_shown_unused_keys(const qn_shown *s, const char *const *known, qn_buf *out);

#endif

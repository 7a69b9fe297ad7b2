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
/* Appends the keys without which the text is the same, each with a NUL behind: of messages, "messages[].KEY", of their
 * calls, "messages[].tool_calls[].KEY", and of the functions of these. `known` ends with NULL: keys of messages that are
 * not looked at. Of calls these are id, type, function, name and arguments. QN_E_ARG: more than QN_SHOWN_KEYS_MAX others
 * at one of these places. */
qn_status qn_shown_unused_keys(const qn_shown *s, const char *const *known, qn_buf *out);

#endif

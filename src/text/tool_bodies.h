/* What the text of a call says: names, ids and arguments as JSON. Part of tool_calls.c, which finds where in
 * an answer the text of a call is. One thread at a time per list. */
#ifndef QN_TEXT_TOOL_BODIES_H
#define QN_TEXT_TOOL_BODIES_H

#include "base/buf.h"
#include "text/tool_formats.h"

/* Offsets into the list's text, each string with a NUL behind it. */
typedef struct {
    size_t name, id, arguments, arguments_bytes;
} qn_call;

typedef struct {
    qn_buf text;
    qn_call *calls;
    size_t n_calls, capacity;
} qn_call_list;

void qn_call_list_free(qn_call_list *list);
/* Replaces the list's contents by the calls of text[0..n), which is what stood between the marks (with them
 * where the row is bare). name: a header said it, the text is the arguments; else NULL. QN_E_FORMAT: it is no
 * call, or not only calls, or their JSON is not sound; QN_E_NOMEM. */
qn_status qn_call_list_read(qn_call_list *list, const qn_call_format *format, const json_t *tools,
                            const char *name, const char *text, size_t n);

#endif

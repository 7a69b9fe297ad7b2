/* Lines of a user: from a terminal with editing and history (libedit), or from a pipe. Main thread.
 *
 * On a terminal a paste is part of the line whatever line ends it has (bracketed paste), and Ctrl-G opens the
 * line in the user's editor: such a line may hold several lines of text. */
#ifndef QN_CLI_TERM_LINE_H
#define QN_CLI_TERM_LINE_H

#include "base/buf.h"
#include "base/status.h"

typedef struct qn_line_reader qn_line_reader;

typedef enum {
    QN_LINE_TEXT,        /* a line, or several that were pasted */
    QN_LINE_INTERRUPTED, /* Ctrl-C: the line was thrown away */
    QN_LINE_END          /* Ctrl-D, or the pipe's end */
} qn_line_event;

/* The terminal is used when both standard input and output are one; history is then kept in the user's state
 * folder. *out is owned by the caller. */
qn_status qn_line_open(qn_line_reader **out);
/* Saves the history. NULL is accepted. */
void qn_line_close(qn_line_reader *r);
int qn_line_is_terminal(const qn_line_reader *r);
/* Lines are remembered and the history is saved (as it is at first), or neither. */
void qn_line_keep_history(qn_line_reader *r, int keep);
int qn_line_keeps_history(const qn_line_reader *r);
/* Reads one line into text (its bytes are replaced), without its end. prompt is shown on a terminal only, in
 * bold where styles are on. QN_E_FULL: a line of more than 64 MiB. */
qn_status qn_line_next(qn_line_reader *r, const char *prompt, qn_buf *text, qn_line_event *event);

#endif

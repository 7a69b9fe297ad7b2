/* The progress of a fetch: on a terminal one line that is written over in place, ten times a second at most; where
 * standard error is no terminal, nothing. Main thread. */
#ifndef QN_CLI_TERM_TRANSFER_LINE_H
#define QN_CLI_TERM_TRANSFER_LINE_H

#include "base/buf.h"
#include "hub/net/session.h"

typedef struct {
    int is_live, is_shown;
    int64_t shown_ns;
    int64_t began_ns, sampled_ns, sampled_bytes; /* what the rate is taken from */
    double rate;                                 /* bytes a second, smoothed; 0: not known yet */
} qn_transfer_line;

void qn_transfer_line_open(qn_transfer_line *t);
void qn_transfer_line_put(qn_transfer_line *t, const qn_hub_progress *p);
/* Takes the line away, so that other text may follow. */
void qn_transfer_line_clear(qn_transfer_line *t);

/* The text for so many columns: share, bar, bytes, rate, time left; what has no room is left out, the bar first. */
void qn_transfer_line_text(qn_buf *b, const qn_hub_progress *p, double rate, int columns);

#endif

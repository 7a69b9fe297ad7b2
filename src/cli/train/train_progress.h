/* How a training is shown while it runs, on standard error. On a terminal one line is written over: bar,
 * step, smoothed loss, learning rate, tokens a second, memory, time to the end, as many of them as the width
 * has room for; what is to stay (validations, warnings) goes above it. Elsewhere a plain line every few
 * steps. One thread at a time. */
#ifndef QN_CLI_TRAIN_TRAIN_PROGRESS_H
#define QN_CLI_TRAIN_TRAIN_PROGRESS_H

#include <quern/train.h>

#include "base/buf.h"

typedef struct {
    int is_live, has_style; /* of standard error; set by open */
    int is_shown;           /* a line is there that is to be written over */
    double smoothed, weight;
    int64_t shown_ns, shown_step; /* when a step was shown last, and which; 0: none */
} qn_train_progress;

void qn_train_progress_open(qn_train_progress *p);
void qn_train_progress_put(qn_train_progress *p, const qn_train_event *event);
/* Takes the line that is written over away. */
void qn_train_progress_clear(qn_train_progress *p);

/* "41 s", "3:07", "2:03:07", "3 d 4 h" into text; returns text. Not finite or negative: "?". */
const char *qn_train_time_text(double seconds, char *text, size_t size);
/* The line of a step for so many columns, without colours: never longer than that. */
void qn_train_progress_line(qn_buf *b, const qn_train_step_report *r, double smoothed, int columns);

#endif

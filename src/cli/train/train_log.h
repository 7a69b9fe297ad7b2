/* What a training's log (log.jsonl, docs/training.md) says, for who shows it. A log may be of several runs,
 * one resumed after the other: a run that begins at step K makes void what runs before it said of later
 * steps. Lines that are no JSON (the last one, of a process that was killed) and events of other names are
 * passed over. Immutable once read; any thread. */
#ifndef QN_CLI_TRAIN_TRAIN_LOG_H
#define QN_CLI_TRAIN_TRAIN_LOG_H

#include <jansson.h>
#include <stdint.h>

#include "base/status.h"

typedef struct {
    int64_t step;
    double loss, rate, grad_norm; /* NAN: not said, or not finite */
} qn_train_log_step;

typedef struct {
    int64_t step;
    double loss;
} qn_train_log_valid;

typedef struct {
    int64_t step;
    char *text;
    int is_warning;
} qn_train_log_note;

typedef struct {
    qn_train_log_step *steps; /* [n_steps], rising */
    int64_t n_steps;
    qn_train_log_valid *valids; /* [n_valids], rising */
    int64_t n_valids;
    qn_train_log_note *notes; /* [n_notes]; the texts are theirs */
    int64_t n_notes;
    json_t *start, *end;         /* the last events of these kinds; NULL: none. end: of the last run */
    int64_t n_runs;              /* starts */
    double seconds;              /* sum over the steps */
    int64_t n_tokens, n_counted; /* of the steps */
    int64_t peak_memory_bytes;
} qn_train_log;

/* Takes one line of a log, the next one; log begins zeroed. A line that says nothing is passed over. */
qn_status qn_train_log_take(qn_train_log *log, const char *line, size_t n);
/* All lines of a file. QN_E_IO: it cannot be read; QN_E_NOMEM. Zeroed on failure. */
qn_status qn_train_log_read(const char *path, qn_train_log *out);
/* Accepts a zeroed one. */
void qn_train_log_free(qn_train_log *log);

#endif

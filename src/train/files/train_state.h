/* A training's state in one file: what is trained, the optimiser's numbers, how many steps were taken, and
 * what the run around it needs to go on (where it is in its data). Going on from it is the same to the last
 * bit as never having stopped.
 *
 * It is a safetensors file: the arrays by their names behind "trained.", "m." and "v."; __metadata__ says
 * what it belongs to. A checksum (qn_hash_bytes, 64 bits) covers all of it and is checked by open. Invariant:
 * the file appears whole or the old one stays. An open one is immutable, any thread. */
#ifndef QN_TRAIN_FILES_TRAIN_STATE_H
#define QN_TRAIN_FILES_TRAIN_STATE_H

#include <stddef.h>
#include <stdint.h>

#include "train/step/trainer.h"

enum { QN_TRAIN_STATE_POSITION_MAX = 32 };

/* What a run knows beside the trainer. */
typedef struct {
    /* Lines of "name=value" on which the rest of the run depends; NULL: none. They must be the same to go on.
     */
    const char *settings;
    uint64_t seed;
    double best_loss;                                          /* INFINITY: none yet */
    int64_t n_position, position[QN_TRAIN_STATE_POSITION_MAX]; /* in its data, as it likes */
} qn_train_state_run;

typedef struct qn_train_state qn_train_state;

/* The state after the last update: what was added since is not kept. QN_E_IO, the message begins with the
 * path. */
qn_status qn_train_state_write(const char *path, qn_trainer *t, const qn_train_state_run *run);

/* QN_E_IO: not there or not readable; QN_E_FORMAT: damaged, cut, or no such file; messages begin with the
 * path. */
qn_status qn_train_state_open(const char *path, qn_train_state **out);
/* The same over bytes[0..n), which must outlive it. */
qn_status qn_train_state_open_bytes(const char *name, const void *bytes, size_t n, qn_train_state **out);
void qn_train_state_close(qn_train_state *c);
int64_t qn_train_state_steps(const qn_train_state *c);
/* Name of the device that computed it; NULL: the file does not say. Borrowed. */
const char *qn_train_state_device(const qn_train_state *c);
/* Borrowed. */
const qn_train_state_run *qn_train_state_get_run(const qn_train_state *c);

/* Puts the state into a trainer, which goes on from there. settings: of this run. QN_E_UNSUPPORTED: it
 * belongs to another base, to other arrays or to other settings (message: which); the trainer is then as it
 * was. */
qn_status qn_train_state_restore(const qn_train_state *c, qn_trainer *t, const char *settings);

#endif

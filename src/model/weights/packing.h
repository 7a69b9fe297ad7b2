/* Finding and making files of packed weights (format/source/packed.h) for a model on a device. */
#ifndef QN_MODEL_WEIGHTS_PACKING_H
#define QN_MODEL_WEIGHTS_PACKING_H

#include "format/source/packed.h"
#include "model/weights/parameters.h"

/* The packed file of a source that fits: wish is its path; NULL: beside the model, or else in the cache;
 * "none": none. *out NULL: there is none. One that is there and does not fit is left aside, which notes say
 * (a sentence with the reason); they also say where one that fits is older than the model. QN_E_NOMEM alone
 * is a failure. */
qn_status qn_packing_find(qn_source *s, qn_device *d, const char *wish, qn_packed **out, qn_buf *notes);
/* Adds the sentence that says why a packed file is left aside, which is this thread's message. wish: as of
 * qn_packing_find. */
void qn_packing_note(const char *wish, qn_buf *notes);

/* What a packed file of the source for the device is for. out->device lives as long as the device. */
qn_status qn_packing_key(qn_source *s, qn_device *d, qn_packed_key *out);

/* Called before each weight; anything but QN_OK ends the work. */
typedef qn_status qn_packing_fn(void *user, size_t done_bytes, size_t total_bytes);
/* Packs all weights, one at a time in memory, into a new file at path, which appears when it is whole.
 * source: the model's path, for people. is_private: for its owner alone. *size_bytes: as qn_packed_bytes of
 * the file. QN_E_IO: it cannot be written (nothing is left behind). */
qn_status qn_packing_write(const char *source, const qn_weights *w, qn_device *d, const qn_packed_key *key,
                           const char *path, int is_private, qn_packing_fn *progress, void *user,
                           size_t *size_bytes);
/* *same: the file holds what packing all weights gives, byte by byte. */
qn_status qn_packing_compare(const qn_packed *p, const qn_weights *w, qn_device *d, qn_packing_fn *progress,
                             void *user, int *same);

#endif

/* State in files (format/state/state_file.h): that of one handle, of a prefix tree, or of one prefix in it.
 *
 * A file belongs to the model (by fingerprint), precision, type of keys and values, instruction set and
 * layout that computed it, for all of these decide bits; what belongs to an adapter needs that adapter loaded
 * by the same name with the same factors. Loading takes pages, fills them from the mapped file and only then
 * changes anything, so a damaged file leaves all as it was. The engine is entered for a few megabytes at
 * a time: others compute meanwhile. Any thread. */
#ifndef QN_ENGINE_CLIENTS_STATE_IO_H
#define QN_ENGINE_CLIENTS_STATE_IO_H

#include <quern/cache.h>

#include "cache/tree.h"
#include "engine/clients/handles.h"
#include "engine/schedule/scheduler.h"

/* fingerprint: of the model (model/weights/packing.h). QN_E_DEVICE: the handle is poisoned; QN_E_IO: the file
 * cannot be written (nothing is left behind). */
qn_status qn_state_save_handle(qn_handles *h, const qn_handle *handle, uint64_t fingerprint,
                               const char *path);
/* *out is owned by the caller. QN_E_IO, QN_E_FORMAT: not readable, damaged; QN_E_UNSUPPORTED: it does not fit
 * this model, or holds other than one sequence; QN_E_NOT_FOUND: its adapter is not loaded; QN_E_ARG: it is
 * longer than the context; QN_E_FULL, QN_E_NOMEM: no room. */
qn_status qn_state_load_handle(qn_handles *h, uint64_t fingerprint, const char *path, qn_handle **out);

qn_status qn_state_save_tree(qn_engine *e, qn_scheduler *scheduler, uint64_t fingerprint, const char *path);
/* Adds what the file holds to the prefix tree, as far as there is room for it: nodes nearest the root first,
 * of the last one its first pages. A warning says how many tokens found room and how many did not. What was
 * pinned is pinned, unless something has the name here (a warning where there is no room). What belongs to an
 * adapter that is not loaded is left out, with a warning. Statuses as for a handle, but that what finds no
 * room is no failure. */
qn_status qn_state_load_tree(qn_engine *e, qn_scheduler *scheduler, uint64_t fingerprint, const char *path);

/* Saves what the tree has of ids[0..n), *n_saved tokens from the first one on, as a file of one sequence. */
qn_status qn_state_save_prefix(qn_engine *e, qn_scheduler *scheduler, uint64_t fingerprint,
                               const qn_prefix_options *options, const int32_t *ids, int64_t n,
                               const char *path, int64_t *n_saved);
/* Loads a file of one sequence as qn_state_load_tree does, and says what it has, in one piece of memory (qn_buffer_free).
 * QN_E_UNSUPPORTED: it holds other than one sequence; QN_E_NOT_FOUND: its adapter is not loaded. */
qn_status qn_state_load_prefix(qn_engine *e, qn_scheduler *scheduler, uint64_t fingerprint, const char *path,
                               qn_saved_prefix **out);

#endif

/* A file that is being fetched: "NAME.quern.incomplete" beside where it will lie. Its bytes stand at their places;
 * behind them a table says how many bytes of each piece are there, written after the bytes themselves. So whatever
 * ends the process, the next one goes on behind the last byte that was written, in every piece:
 *
 *     bytes [0, size)  |  head: magic, size, piece size  |  bytes done of piece 0, 1, ...
 *
 * Other programs read neither name nor table. A table that does not fit its file is thrown away with it. The file is
 * hashed in order while later pieces still come. One thread. */
#ifndef QN_HUB_STORE_PARTIAL_H
#define QN_HUB_STORE_PARTIAL_H

#include <stdint.h>

#include "base/bytes/digest.h"
#include "base/status.h"

typedef struct qn_partial qn_partial;

/* Opens or creates what will become path. size_bytes >= 0. QN_E_IO, with the path. */
qn_status qn_partial_open(const char *path, int64_t size_bytes, qn_digest_kind sum, qn_partial **out);
/* Leaves the file for the next time. NULL is accepted. */
void qn_partial_close(qn_partial *p);
/* Begins again with nothing; whole: as one piece, for a server that gives no ranges. */
qn_status qn_partial_restart(qn_partial *p, int whole);
/* Removes the file; only close is allowed after that. */
void qn_partial_remove(qn_partial *p);

int64_t qn_partial_pieces(const qn_partial *p);
/* Where piece i begins and ends, and how many of its bytes are there. */
int64_t qn_partial_begin(const qn_partial *p, int64_t i);
int64_t qn_partial_end(const qn_partial *p, int64_t i);
int64_t qn_partial_done(const qn_partial *p, int64_t i);
/* Of all pieces. */
int64_t qn_partial_total(const qn_partial *p);
/* Did it have bytes when it was opened? */
int qn_partial_was_resumed(const qn_partial *p);

/* Puts the next n bytes of piece i; they must not reach beyond its end. QN_E_FULL: the disk is full; QN_E_IO. */
qn_status qn_partial_write(qn_partial *p, int64_t i, const void *bytes, size_t n);
/* Throws away what piece i has. */
qn_status qn_partial_drop_piece(qn_partial *p, int64_t i);
/* Hashes up to budget bytes of what is there behind what was hashed. *at_end: the whole file is hashed. */
qn_status qn_partial_hash(qn_partial *p, int64_t budget, int *at_end);
int64_t qn_partial_hashed(const qn_partial *p);
/* The sum of a file that is wholly hashed; once. */
void qn_partial_sum(qn_partial *p, char hex[QN_SUM_HEX_MAX]);
/* The first 4 bytes, for a look at what came; 0 where they are not there yet. */
int qn_partial_has_magic(const qn_partial *p, const char magic[4]);
/* Cuts the table off, flushes and renames: path appears whole. */
qn_status qn_partial_finish(qn_partial *p);

#endif

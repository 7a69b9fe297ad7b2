/* Packed weights on disk: what `quern pack` keeps beside a model so that a start maps it instead of packing.
 *
 * It is a safetensors file whose tensors are a device's packed matrices (U8, each a multiple of 64 bytes, so
 * that all are aligned) and then the vectors (F32), named as in the source. __metadata__ says for which
 * device and version of its layout it is, and the fingerprint of the source's tensors: whoever loads checks
 * both. Invariant: what find gives lies inside the mapping, is aligned and of the size asked for. Panels may
 * hold any bytes, as a model file may. Open and close by one owner; an open one is immutable, any thread. */
#ifndef QN_FORMAT_SOURCE_PACKED_H
#define QN_FORMAT_SOURCE_PACKED_H

#include "base/buf.h"
#include "format/source/source.h"

enum { QN_PACKED_ALIGN = 64 };

typedef struct qn_packed qn_packed;

/* What a packed file is for. */
typedef struct {
    const char *device; /* "cpu" */
    int layout;         /* version of the device's layouts */
    uint64_t fingerprint;
} qn_packed_key;

/* A hash over a model's tensors: config.json, sizes and headers of all files, and bytes from the beginning,
 * the middle and the end of every tensor. Not over all bytes: reading them takes as long as packing them, and
 * a file whose tensors were computed anew differs in every block. Times are left out, so that copies of a
 * model and its packed file keep together; one that was repaired may have the hash that it had before. */
qn_status qn_packed_fingerprint(qn_source *s, uint64_t *out);

/* Where the packed file of a source lies: beside its weights as FILE.qpack (of a split GGUF the first part;
 * of several safetensors model.qpack in their folder); elsewhere: below $QUERN_CACHE, else $XDG_CACHE_HOME/quern,
 * else ~/.cache/quern, by the weights' path. QN_E_NOT_FOUND: there is no such folder, for none of these is set; the seed has neither. */
typedef enum { QN_PACKED_BESIDE, QN_PACKED_ELSEWHERE } qn_packed_place;
qn_status qn_packed_find_place(const qn_source *s, qn_packed_place place, qn_buf *out);
/* 1: the name ends in .qpack. */
int qn_packed_is_name(const char *path);

/* QN_E_IO: not there or not readable; QN_E_FORMAT: damaged, or no packed file; messages begin with the path.
 */
qn_status qn_packed_open(const char *path, qn_packed **out);
/* The same over bytes[0..n), which must outlive the reader. */
qn_status qn_packed_open_bytes(const char *name, const void *bytes, size_t n, qn_packed **out);
void qn_packed_close(qn_packed *p);
const char *qn_packed_path(const qn_packed *p);
/* What it was made for. Borrowed. */
const qn_packed_key *qn_packed_get_key(const qn_packed *p);
/* Path of the source when it was made, for people. */
const char *qn_packed_source(const qn_packed *p);
/* Of all tensors. */
size_t qn_packed_bytes(const qn_packed *p);
/* QN_E_UNSUPPORTED: it is for another device, version or source (message: which). */
qn_status qn_packed_check(const qn_packed *p, const qn_packed_key *wanted);
/* A matrix of size_bytes, rounded up to QN_PACKED_ALIGN, or a vector. QN_E_FORMAT: it is not there, or of
 * another size. */
qn_status qn_packed_matrix(const qn_packed *p, const char *name, size_t size_bytes, const void **out);
qn_status qn_packed_vector(const qn_packed *p, const char *name, int64_t n, const float **out);

/* Writing: a safetensors writer with the metadata set; then matrices are added, then vectors. */
qn_status qn_packed_writer_new(const char *path, const qn_packed_key *key, const char *source,
                               qn_st_writer **out);
qn_status qn_packed_add_matrix(qn_st_writer *w, const char *name, size_t size_bytes, int64_t *index);
qn_status qn_packed_add_vector(qn_st_writer *w, const char *name, int64_t n, int64_t *index);

#endif

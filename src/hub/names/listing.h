/* What servers answer about a model, as JSON: the Hub's revision and tree, Ollama's manifest. Everything in it is
 * foreign: paths that would leave their folder, sums that are no sums and sizes that are no sizes are refused
 * here, so that what comes out may become a path. Pure functions, any thread. */
#ifndef QN_HUB_NAMES_LISTING_H
#define QN_HUB_NAMES_LISTING_H

#include <stdint.h>

#include "base/bytes/digest.h"
#include "base/status.h"

enum { QN_HUB_FILES_MAX = 10000 };
/* No file of a model is larger; a server that says so is not believed. */
#define QN_HUB_FILE_BYTES_MAX ((int64_t)1 << 40)

typedef struct {
    char *path; /* relative, of plain parts */
    int64_t size;
    qn_digest_kind sum;
    char hex[QN_SUM_HEX_MAX]; /* "" with QN_SUM_NONE; else also the blob's name in the cache */
    char *etag;               /* that its server's answers must keep; NULL: any */
} qn_hub_file;

typedef struct {
    qn_hub_file *files;
    size_t n, capacity;
} qn_hub_files;
void qn_hub_files_free(qn_hub_files *l);
/* Copies file, path and etag too. QN_E_FULL: too many. */
qn_status qn_hub_files_add(qn_hub_files *l, const qn_hub_file *file);

/* what names the source in messages. QN_E_FORMAT for all that is not as it should be. */

/* {"sha": COMMIT, ...}: 40 hexadecimal digits. */
qn_status qn_hub_read_revision(const char *what, const char *text, size_t n, char sha[QN_SUM_HEX_MAX]);
/* [{"type": "file", "path": ..., "size": ..., "oid": ..., "lfs": {"oid": ..., "size": ...}}, ...]; appends the
 * files. A failure leaves those before it. */
qn_status qn_hub_read_tree(const char *what, const char *text, size_t n, qn_hub_files *files);
/* A manifest of Ollama: its one model layer, under the path file_name; and its projector, under the path tower_name, size 0: it
 * has none. */
qn_status qn_hub_read_manifest(const char *what, const char *text, size_t n, const char *file_name,
                               const char *tower_name, qn_hub_file *out, qn_hub_file *tower);
/* The sentence in {"error": ...} or Ollama's {"errors": [{"message": ...}]}; "" if there is none. */
void qn_hub_read_refusal(const char *text, size_t n, char *out, size_t size);

#endif

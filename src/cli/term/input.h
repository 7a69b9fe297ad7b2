/* What the commands read: standard input, files, and the JSON forms that several of them share. */
#ifndef QN_CLI_TERM_INPUT_H
#define QN_CLI_TERM_INPUT_H

#include <jansson.h>
#include <quern/model.h>

#include "base/buf.h"
#include "base/status.h"
#include "media/picture.h"

/* Reads a file, or standard input when path is NULL or "-", to its end. QN_E_IO; QN_E_FULL past 1 GiB. out
 * starts zeroed. */
qn_status qn_input_read(const char *path, qn_buf *out);
/* The same; a byte order mark before the text, which qn_input_read drops, stays. */
qn_status qn_input_read_exactly(const char *path, qn_buf *out);
/* The same with another limit. */
qn_status qn_input_read_up_to(const char *path, size_t limit_bytes, qn_buf *out);
/* Reads and parses JSON. *out: json_decref. */
qn_status qn_input_json(const char *path, json_t **out);

/* Reads and decodes a PNG, JPEG or WebP file. *out: qn_picture_free. */
qn_status qn_input_picture(const char *path, qn_picture *out);

/* Rows of token ids out of {"ids":[[...],...]} or {"ids":[...]} (one row). Rows may be empty. Owned:
 * qn_id_rows_free. */
typedef struct {
    qn_ids *rows;
    int64_t n_rows;
    int32_t *ids; /* of all rows */
} qn_id_rows;
qn_status qn_input_ids(const char *path, qn_id_rows *out);
void qn_id_rows_free(qn_id_rows *r);

#endif

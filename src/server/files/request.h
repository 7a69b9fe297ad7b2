/* Fields of the bodies of batches. */
#ifndef QN_SERVER_FILES_REQUEST_H
#define QN_SERVER_FILES_REQUEST_H

#include "server/core/fields/request_fields.h"

/* Routes, as the table of fields has them. */
enum { QN_FILES_BATCH = 1 };

/* Up to a row without a name. */
extern const qn_field qn_files_fields[];

#endif

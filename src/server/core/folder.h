/* Paths that clients name, below a folder that the command line names.
 *
 * Invariant: what is found lies in the folder after all symbolic links are followed, the entries of a folder that is
 * found too. Any thread. */
#ifndef QN_SERVER_CORE_FOLDER_H
#define QN_SERVER_CORE_FOLDER_H

#include "server/http/api_error.h"

enum { QN_FOLDER_PATH_MAX = 4096, QN_FOLDER_NAME_MAX = 255 };

/* Finds the folder `name` below `root`; out is its path without links. Errors name `field`. Returns 0, or the HTTP status
 * of a refusal: 400 (the name is absolute, has an empty part, "." or "..", or leads out of the folder), 404. */
int qn_folder_find(const char *root, const char *name, const char *field, char out[QN_FOLDER_PATH_MAX],
                   qn_api_error *error);

/* The path of the file `name`, a single part that does not begin with '.', in `root`. It may be there or not; if it is, it
 * is a file and no link. Returns 0, 400, or 500. */
int qn_folder_name_file(const char *root, const char *name, const char *field, char out[QN_FOLDER_PATH_MAX],
                        qn_api_error *error);

#endif

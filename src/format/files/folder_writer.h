/* Files and folders that appear whole or not at all. A file is written under another name and renamed. A
 * folder is made beside its place, filled, and then takes the place: where a folder lies there already, the
 * two change names in one step, and what the old one had beside the new files moves over. Whoever is
 * interrupted leaves the old one as it was. One thread at a time. */
#ifndef QN_FORMAT_FILES_FOLDER_WRITER_H
#define QN_FORMAT_FILES_FOLDER_WRITER_H

#include <stddef.h>

#include "base/status.h"

/* QN_E_IO, the message begins with the path. */
qn_status qn_file_write(const char *path, const void *bytes, size_t n);

typedef struct qn_folder_writer qn_folder_writer;

/* Makes the new folder. QN_E_IO: it cannot be made, or path is there and no folder. */
qn_status qn_folder_writer_new(const char *path, qn_folder_writer **out);
/* Where a file of this name is to be written; borrowed until the next call. NULL: out of memory. */
const char *qn_folder_writer_path(qn_folder_writer *w, const char *name);
/* Makes a folder in the new one; files in it are named "FOLDER/NAME". */
qn_status qn_folder_writer_make(qn_folder_writer *w, const char *name);
/* A file of this name in the old folder does not move over. Borrowed until free. At most
 * QN_FOLDER_WRITER_DROPS. */
enum { QN_FOLDER_WRITER_DROPS = 4 };
void qn_folder_writer_drop(qn_folder_writer *w, const char *name);
/* Puts the folder in its place. The writer is still to be freed. */
qn_status qn_folder_writer_finish(qn_folder_writer *w);
/* Without a successful finish the new folder and the files in it are removed. NULL is accepted. */
void qn_folder_writer_free(qn_folder_writer *w);

#endif

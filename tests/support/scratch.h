/* Folders and files that a test makes up. Paths come in static buffers per thread: that of a folder is reused
 * by the eighth next folder, that of a file by the eighth next file. Failures end the running test. */
#ifndef QUERN_TESTS_SCRATCH_H
#define QUERN_TESTS_SCRATCH_H

#include <stddef.h>

/* A new, empty folder in $TMPDIR or the system's place for such things. */
const char *qn_test_scratch(void);
/* folder + "/" + name. */
const char *qn_test_path(const char *folder, const char *name);
/* Writes bytes[0..n) as folder/name and returns its path. */
const char *qn_test_write(const char *folder, const char *name, const void *bytes, size_t n);
/* The same with the text of a string. */
const char *qn_test_write_text(const char *folder, const char *name, const char *text);
/* Copies a file as folder/name and returns the new path. */
const char *qn_test_copy(const char *folder, const char *name, const char *from);
/* Number of entries of a folder. */
int qn_test_count_files(const char *folder);
/* Removes the folder and all that is in it. */
void qn_test_remove(const char *folder);

#endif

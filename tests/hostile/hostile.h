/* Opens files that nobody should trust, as a user would: through qn_model_open. Whatever they hold, opening
 * gives a model that computes or a refusal that names the file; no memory stays behind, and never more is
 * taken than the files' size justifies. Failures end the running test. */
#ifndef QUERN_TESTS_HOSTILE_H
#define QUERN_TESTS_HOSTILE_H

#include <quern/quern.h>
#include <stddef.h>

typedef struct {
    qn_status status;   /* of opening, then of computing one step */
    char message[1024]; /* without the folder; "" when all went well */
    char notes[1024];   /* of the model that was opened */
    size_t peak_bytes;  /* most that lived at once, above what lived before */
} qn_test_opening;

/* Opens folder/name (name "": the folder) with one thread and, if that goes well, computes the logits of one
 * token and closes it. */
void qn_test_open(const char *folder, const char *name, qn_test_opening *out);
/* 1: text is of the pattern, in which '*' stands for any characters. */
int qn_test_matches(const char *pattern, const char *text);
/* The file must be refused with this status and a message of this pattern. */
void qn_test_refused(const char *folder, const char *name, qn_status status, const char *pattern);
/* It must open and compute. */
void qn_test_accepted(const char *folder, const char *name);

/* The model at path with a context of 64 tokens and one thread; chat_template: instead of its own, NULL:
 * none. A failure ends the running test. */
qn_model *qn_test_open_model(const char *path, const char *chat_template);
/* before, count times unit, after; to be freed by qn_free. */
char *qn_test_repeat(const char *before, const char *unit, size_t count, const char *after);
/* got must be status and, unless QN_OK, the message of the pattern; what: for the words of a failure. */
void qn_test_expect(const char *what, qn_status got, qn_status status, const char *pattern);

/* Before and after a test that writes files: an empty folder, which the test finds here. */
extern const char *qn_test_folder;
int qn_test_folder_make(void **state);
int qn_test_folder_remove(void **state);
#define QN_TEST_IN_FOLDER(test) \
    cmocka_unit_test_setup_teardown(test, qn_test_folder_make, qn_test_folder_remove)

#endif

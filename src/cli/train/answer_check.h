/* The answers of a data set beside a JSON schema, before a training begins.
 *
 * An answer is what the assistant says in a chat (of the last turn alone, if that is all that counts), or a
 * completion; reasoning before it is left out. Lines of texts and ids have none. What does not satisfy the schema is
 * a warning on standard error, with file and line. Main thread. */
#ifndef QN_CLI_TRAIN_ANSWER_CHECK_H
#define QN_CLI_TRAIN_ANSWER_CHECK_H

#include <quern/train.h>

/* data: as `quern train` takes it; schema: a file. Fails where a file cannot be read, or the schema is none. Bad
 * lines are the training's to report. */
qn_status qn_answers_check(const char *data, qn_mask mask, const char *schema);

#endif

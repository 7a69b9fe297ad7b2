/* Names of files that a user writes behind a command of the chat. */
#ifndef QN_CLI_CHAT_CHAT_PATH_H
#define QN_CLI_CHAT_CHAT_PATH_H

#include "base/buf.h"
#include "base/status.h"

/* Appends the path that `name` means: "~/x" is a file of the user's home; "-" is one of that name, for standard
 * input holds the conversation. */
qn_status qn_chat_path(const char *name, qn_buf *out);
/* The same for a file that is read. Terminals put quotes and backslashes into the name of a file that is dropped on them:
 * these are taken off if no file has the name as it stands. */
qn_status qn_chat_path_of_input(const char *name, qn_buf *out);

#endif

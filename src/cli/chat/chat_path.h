/* Names of files that a user writes behind a command of the chat. */
#ifndef QN_CLI_CHAT_CHAT_PATH_H
#define QN_CLI_CHAT_CHAT_PATH_H

#include "base/buf.h"
#include "base/status.h"

/* Appends the path that `name` means: "~/x" is a file of the user's home; "-" is one of that name, for standard
 * input holds the conversation. */
qn_status qn_chat_path(const char *name, qn_buf *out);
/* The same of a file that is to be read. If no file has the name as it stands, quotes around it and backslashes in
 * it are taken off, as terminals put them when a file is dropped there. */
qn_status qn_chat_path_of_input(const char *name, qn_buf *out);

#endif

/* The commands of a chat: what begins with '/' and is never sent to the model. One table. */
#ifndef QN_CLI_CHAT_CHAT_COMMANDS_H
#define QN_CLI_CHAT_CHAT_COMMANDS_H

#include "cli/chat/chat_turn.h"

/* Runs a line that begins with '/'. QN_E_ARG: no such command, or values that it refuses; nothing changed. */
qn_status qn_chat_command_run(qn_chat_state *c, const char *line);
/* /load: the conversation and settings of a file take the place of what there is. */
qn_status qn_chat_command_load(qn_chat_state *c, const char *path);

#endif

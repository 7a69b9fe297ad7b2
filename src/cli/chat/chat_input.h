/* What a user enters in a chat: a line, a paste of several lines, or a block between lines of three quotes.
 */
#ifndef QN_CLI_CHAT_CHAT_INPUT_H
#define QN_CLI_CHAT_CHAT_INPUT_H

#include "cli/term/line.h"

/* Reads one message into text (its bytes are replaced). A message that begins with """ goes on to the line
 * that ends with """; *is_block tells so, and its text is never a command. QN_E_FORMAT: the input ends inside
 * a block. QN_E_FULL: more than 64 MiB. */
qn_status qn_chat_input_next(qn_line_reader *r, const char *prompt, qn_buf *text, int *is_block,
                             qn_line_event *event);

#endif

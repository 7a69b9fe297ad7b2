/* The last message of a chat left open, so that an answer goes on from its text (transformers'
 * continue_final_message): a mark is put behind the text, the chat is rendered, and all from the mark on is
 * cut off. So the template itself writes the message, and no end of turn follows it. Any thread. */
#ifndef QN_TEXT_CHAT_CHAT_CONTINUE_H
#define QN_TEXT_CHAT_CHAT_CONTINUE_H

#include <jansson.h>

#include "text/jinja/template.h"

/* Puts the mark behind the text of the last message, which is its content or the last part of it that has a
 * text; the message is replaced by a copy. *final is that text, without the mark (json_decref). QN_E_ARG:
 * there is no text. */
qn_status qn_chat_continue_mark(json_t *messages, json_t **final);
/* Cuts *r at the mark. Where the template trims contents, white space at the end of the text goes too, but
 * never what the template wrote before an empty text. QN_E_ARG: *r does not end with `final` then, because
 * the template leaves messages out or changes them. */
qn_status qn_chat_continue_cut(qn_rendered *r, const json_t *final);

#endif

/* A turn of quern chat: the question joins the conversation, the answer is shown as it comes and joins it
 * too.
 *
 * Invariant: a turn that fails, or that Ctrl-C ends before the first word, leaves the conversation as it was.
 * Main thread. */
#ifndef QN_CLI_CHAT_CHAT_TURN_H
#define QN_CLI_CHAT_CHAT_TURN_H

#include <quern/quern.h>

#include "cli/chat/chat_screen.h"
#include "cli/chat/chat_session.h"
#include "cli/term/line.h"

/* All that a chat is while it runs. */
typedef struct {
    qn_model *model; /* borrowed */
    qn_model_info info;
    qn_line_reader *reader; /* borrowed */
    qn_chat_session session;
    qn_chat_screen screen;
    qn_buf attached;                                     /* text of files, for the next message */
    qn_constraint *form;                                 /* of the answers; NULL: they are free */
    qn_buf form_name;                                    /* as the user gave it */
    int json, wraps, shows_stats, is_leaving, was_asked; /* was_asked: a line was entered */
    int64_t n_context;   /* tokens that the conversation takes; -1: to be counted */
    int has_warned;      /* that the context is nearly full */
    int was_interrupted; /* by Ctrl-C, while the last answer came */
    qn_generation_stats last;
    int64_t n_answers, n_generated_tokens;
    qn_generation *ahead; /* computes what the next question stands on while the user types; NULL: nothing */
} qn_chat_state;

/* Takes text[0..n) as the user's message, behind the attached files, and answers it. The files are used up.
 */
qn_status qn_chat_turn_ask(qn_chat_state *c, const char *text, size_t n);
/* Answers the user's last message again, with a fresh seed. QN_E_ARG: there is none. */
qn_status qn_chat_turn_again(qn_chat_state *c);
/* Lets the model compute, while it has nothing else to do, the conversation as the next turn will begin with
 * it: templates write an answer that is history otherwise than it came (its thinking is left out), and all
 * behind that would have to wait for the next question. */
void qn_chat_turn_look_ahead(qn_chat_state *c);
/* Ends that; what it has come to is kept as a prefix. */
void qn_chat_turn_stop_ahead(qn_chat_state *c);
/* Tokens that the conversation takes of the context, counted anew where it was changed by hand. 0 where the
 * template does not write it. */
int64_t qn_chat_turn_context(qn_chat_state *c);
/* What a command has to say; frees b. Standard output carries nothing but answers where a program reads it.
 */
qn_status qn_chat_turn_say(const qn_chat_state *c, qn_buf *b);
/* The same; on a terminal lines that are too long go on at column `indent` of the next one. */
qn_status qn_chat_turn_say_folded(const qn_chat_state *c, qn_buf *b, int indent);

#endif

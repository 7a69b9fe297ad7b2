/* How answers appear: wrapped, with the thinking dimmed, on a terminal; byte by byte anywhere else.
 *
 * Control characters of a text (a model's, a file's) never reach a terminal. Main thread. */
#ifndef QN_CLI_CHAT_CHAT_SCREEN_H
#define QN_CLI_CHAT_CHAT_SCREEN_H

#include <stdio.h>

#include "cli/chat/think_split.h"
#include "cli/term/word_wrap.h"

typedef struct {
    int is_terminal, has_style; /* of standard output; set by open */
    int is_dim;                 /* what is written now */
    qn_word_wrap wrap;
    qn_think_split think;
    qn_buf out;
} qn_chat_screen;

/* s is zeroed. */
void qn_chat_screen_open(qn_chat_screen *s);
/* Frees what it holds. */
void qn_chat_screen_close(qn_chat_screen *s);
/* An answer begins. wraps: at the terminal's width, where it tells one. is_thinking: the prompt opened the
 * thinking; where that cannot be dimmed its mark is written. QN_E_IO. */
qn_status qn_chat_screen_begin(qn_chat_screen *s, int wraps, int is_thinking);
/* Whole characters. */
qn_status qn_chat_screen_put(qn_chat_screen *s, const char *text, size_t n);
/* Writes what was held, plain style and a line end. */
qn_status qn_chat_screen_end(qn_chat_screen *s);
/* Writes text and a line end to stream, without control characters where that is a terminal. */
qn_status qn_chat_screen_say(FILE *stream, const char *text, size_t n);

#endif

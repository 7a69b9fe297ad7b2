/* Texts that people read, in lines that fit the terminal: broken between words, never inside one. Main thread. */
#ifndef QN_CLI_TERM_FOLD_H
#define QN_CLI_TERM_FOLD_H

#include <stdio.h>

#include "base/buf.h"

enum {
    QN_FOLD_LINES = 1, /* a line end in the text stays one; else it is a space */
    QN_FOLD_LONG =
        2 /* a word that no line can hold goes on in the next one, where it has marks behind them; else it
                        * is left whole, as paths are */
};

/* How many columns a line may have: the terminal's, else $COLUMNS, else 80. At least 20. */
int qn_fold_columns(FILE *stream);
/* The same if the stream is a terminal; 0 if it is not: programs read whole lines there. */
int qn_fold_terminal(FILE *stream);

/* A line end, without spaces before it, and the indent of the next line. */
void qn_fold_line_end(qn_buf *b, int indent);
/* Appends the words of a text that may be shown as it is, from column `at` on; further lines begin at column `indent`.
 * columns 0: one line. Returns the column behind the last word. */
int qn_fold_put(qn_buf *b, const char *text, int at, int indent, int columns, unsigned flags);
/* The same for texts of strangers: characters that a terminal would obey are escaped (qn_out_put_shown). */
int qn_fold_put_shown(qn_buf *b, const char *text, size_t n, int at, int indent, int columns, unsigned flags);
/* As qn_out_line, in lines that fit if standard output is a terminal; further ones begin at column `indent`. */
qn_status qn_fold_out_line(qn_buf *text, int indent);

#endif

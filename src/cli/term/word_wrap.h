/* Word wrap of text that comes in pieces: lines end where a space was, before the terminal would break a
 * word.
 *
 * A word is held until it is known to fit, so at most one word waits. Invariant: the text is not altered but
 * for its lines: a run of spaces becomes a line end, or a line end is put beside a wide character; a word
 * wider than the line is left to the terminal, and so is what stands between lines of ``` or ~~~. Control
 * characters but line end and tab cannot reach the terminal: they are written as ^X, or U+FFFD. Pure: no
 * terminal is touched. */
#ifndef QN_CLI_TERM_WORD_WRAP_H
#define QN_CLI_TERM_WORD_WRAP_H

#include <stdint.h>

#include "base/buf.h"

typedef struct {
    int width;  /* columns; 0: lines are left alone */
    int column; /* after what was written */
    /* Held: a run of spaces, then a word. */
    qn_buf spaces, word;
    int spaces_width, word_width;
    int word_is_wide;    /* its last character has two columns: a line may end behind it */
    int is_long;         /* inside a word that is wider than the line */
    uint32_t last;       /* the code point before */
    int indent, n_marks; /* of this line, while it may still become a fence; n_marks -1: it does not */
    uint32_t mark;       /* '`' or '~' */
    int in_fence, on_fence;
} qn_word_wrap;

/* Begins at column 0. w is zeroed or was ended. */
void qn_word_wrap_begin(qn_word_wrap *w, int width);
/* Appends to out what can be shown of text[0..n), whole characters of UTF-8. */
void qn_word_wrap_put(qn_word_wrap *w, const char *text, size_t n, qn_buf *out);
/* Puts bytes without width, such as a change of style, between the characters before and behind. */
void qn_word_wrap_mark(qn_word_wrap *w, const char *bytes);
/* Appends what is held. out or w->word may have failed: see their status. */
void qn_word_wrap_flush(qn_word_wrap *w, qn_buf *out);
/* Frees what w holds. */
void qn_word_wrap_end(qn_word_wrap *w);

#endif

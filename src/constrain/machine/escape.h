/* Strings as JSON writes them, byte by byte, beside an automaton of the decoded text.
 *
 * `escape` is the place inside a character: 0 at its begin; 1 to 3: so many bytes of UTF-8 are due; larger
 * numbers: inside an escape. A step is refused as soon as no character that the automaton takes can come of it. */
#ifndef QN_CONSTRAIN_MACHINE_ESCAPE_H
#define QN_CONSTRAIN_MACHINE_ESCAPE_H

#include <stddef.h>
#include <stdint.h>

#include "constrain/automaton/dfa.h"

typedef enum {
    QN_ESCAPE_DEAD,
    QN_ESCAPE_IN,    /* inside a character */
    QN_ESCAPE_BEGUN, /* a character written as itself begins, of one or more bytes */
    QN_ESCAPE_CHAR,  /* an escape ended: a character */
    QN_ESCAPE_CLOSE  /* the quote; whether the text may end is for the caller to ask */
} qn_escape_result;

/* The slow way: all that is not a plain ASCII character. */
qn_escape_result qn_escape_step_slow(const qn_dfa *d, int32_t *state, uint32_t *escape, uint8_t byte);

static inline qn_escape_result qn_escape_step(const qn_dfa *d, int32_t *state, uint32_t *escape, uint8_t byte)
{
    if (*escape <= 3 && byte >= 0x20 && byte != '"' && byte != '\\') {
        int32_t to = qn_dfa_step(d, *state, byte);
        if (to == 0) return QN_ESCAPE_DEAD;
        *state = to;
        if (*escape) {
            (*escape)--;
            return QN_ESCAPE_IN;
        }
        if (byte >= 0x80) *escape = byte >= 0xf0 ? 3 : byte >= 0xe0 ? 2 : 1;
        return QN_ESCAPE_BEGUN;
    }
    return qn_escape_step_slow(d, state, escape, byte);
}

/* One byte of an escape without an automaton. *n_text bytes of the character it ends lie in text. */
qn_escape_result qn_escape_decode(uint32_t *escape, uint8_t byte, uint8_t text[4], int *n_text);
/* The code points that an unfinished escape can become: two ranges at most, from begin to end inclusive. */
typedef struct {
    uint32_t begin, end;
} qn_escape_range;
int qn_escape_ranges(uint32_t escape, qn_escape_range out[2]);
/* 1: more than n of the texts that the automaton takes from a state begin with a character that an unfinished escape
 * can become. counts: [states] qn_program_counts. */
int qn_escape_leaves_more(const qn_dfa *d, const uint32_t *counts, int32_t state, uint32_t escape,
                          uint32_t n);
/* 1: the unfinished escape can become the first character of a text. */
int qn_escape_may_begin(uint32_t escape, const char *text, size_t n);

#endif

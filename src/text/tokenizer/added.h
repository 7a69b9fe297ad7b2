/* Added tokens: texts that are found in the input before the model sees it (special tokens, <tool_call>, runs
 * of newlines).
 *
 * At each place the longest enabled token wins. A special token is enabled only where every byte of its text
 * is trusted, so that no text of a stranger can become one. Built by one owner, then read-only: any thread.
 */
#ifndef QN_TEXT_TOKENIZER_ADDED_H
#define QN_TEXT_TOKENIZER_ADDED_H

#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"

enum { QN_ADDED_MAX_BYTES = 1024 };

typedef struct {
    const char *text; /* borrowed by the set, or copied into its arena */
    uint32_t n;
    int32_t id;
    uint8_t special, single_word, lstrip, rstrip;
} qn_added_token;

/* Zeroed is empty. */
typedef struct {
    qn_arena arena;
    qn_added_token *tokens; /* sorted by text after qn_added_finish */
    size_t n, capacity;
    uint32_t first[257]; /* tokens whose text begins with byte b are [first[b], first[b + 1]) */
} qn_added;

/* From where on a text is trusted or not; runs cover it, the last one ends at its end. */
typedef struct {
    size_t end;
    int trusted;
} qn_trust_run;

typedef struct {
    size_t start, end; /* with the white space that lstrip and rstrip take */
    int32_t id;
} qn_added_match;

/* Copies the text. QN_E_UNSUPPORTED: longer than QN_ADDED_MAX_BYTES. An empty text is ignored. */
qn_status qn_added_add(qn_added *a, const qn_added_token *token);
void qn_added_finish(qn_added *a);
void qn_added_free(qn_added *a);

/* A walk over a text: zero it, set text, n, runs and n_runs, then call next until it says 0. */
typedef struct {
    const char *text;
    size_t n;
    size_t n_beyond;          /* white space that a match takes may lie up to here; 0: n */
    const qn_trust_run *runs; /* NULL: see trusted */
    size_t n_runs;
    int trusted; /* for all of the text, without runs */
    size_t at, done, i_run;
    size_t steps; /* bytes compared */
    int spent;    /* the walk ended because they were too many */
} qn_added_walk;
/* The next match; 0: there is none, or spent is set: tokens that begin alike are compared again from each
 * byte of a text, and hostile ones would take a thousand steps there. A match may start before the end of the
 * last one where that took white space behind it (rstrip) which is a token by itself. */
int qn_added_next(const qn_added *a, qn_added_walk *w, qn_added_match *match);

#endif

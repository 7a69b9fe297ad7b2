/* Constraints on what is written: which tokens may come next.
 *
 * A constraint is a language of texts, compiled from its source (a JSON schema, a regular expression, a grammar,
 * choices, tool calls) for one vocabulary. It is reference-counted and may be shared by requests and threads:
 * what it learns while it is used (states, masks) lies behind its lock. A matcher is the place of one sequence
 * in it. One thread at a time uses a matcher; different matchers may be used at once.
 *
 * What cannot be enforced is refused when it is compiled, never ignored. No state that a matcher reaches is a
 * dead end: from each, some text leads to the end. */
#ifndef QN_CONSTRAIN_CONSTRAINT_H
#define QN_CONSTRAIN_CONSTRAINT_H

#include <quern/constrain.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "constrain/machine/vocabulary.h"
#include "constrain/validate/validate.h"
#include "text/tools/tool_calls.h"

/* Zero means the default. All is borrowed during the call. */
typedef struct {
    qn_constraint_kind kind;
    const char *text;
    size_t n;
    const char *after; /* free text up to and with this marker comes first; NULL: the form begins at once */
    size_t n_after;
    const char *opens; /* the free text begins with this marker; NULL: with anything */
    size_t n_opens;
    int may_skip_after; /* the form may also begin at once, without free text */
    const qn_call_format
        *messages; /* not TOOLS: the answer begins inside a header of this family, and the form
                                       is the text of a message; NULL: it is the answer */
    struct {
        qn_answer_format format; /* how the model writes calls */
        qn_tool_calls_mode mode;
        const char *name; /* NAMED */
        int is_one_call;  /* parallel_tool_calls false */
        int in_text; /* families whose messages have headers: the answer does not begin inside a header */
        int strict_by_all; /* 1: a schema that is refused fails the constraint also if its tool is not strict */
    } tools;
} qn_constraint_source;

/* Zero means the default. */
typedef struct {
    size_t source_bytes_max; /* 1 MiB */
    int32_t depth_max;       /* of the source's brackets: 64 */
    int32_t states_max;      /* of one automaton: 50,000 */
    int64_t steps_max;       /* work of compiling, and of one step of a matcher: 50 million */
    size_t memory_max;       /* bytes that a constraint may grow to, its matchers' states included: 64 MiB */
} qn_constraint_limits;

/* limits may be NULL. QN_E_FORMAT: the source is no schema, pattern, grammar. QN_E_UNSUPPORTED: it is, and it
 * cannot be enforced or passes a limit; the message is "POINTER: KEYWORD: why" for JSON schemas. The vocabulary
 * is retained. */
qn_status qn_constraint_new(qn_vocabulary *v, const qn_constraint_source *source,
                            const qn_constraint_limits *limits, qn_constraint **out);
qn_constraint *qn_constraint_retain(qn_constraint *c);
void qn_constraint_release(qn_constraint *c);
/* Bytes held now, its share of states and masks included; the vocabulary is not counted. */
size_t qn_constraint_bytes(qn_constraint *c);
/* Borrowed, as long as the constraint lives. */
const qn_constraint_note *qn_constraint_notes(const qn_constraint *c, size_t *n);
/* What it was compiled from, and for. Borrowed, as long as the constraint lives. */
const qn_constraint_source *qn_constraint_get_source(const qn_constraint *c);
qn_vocabulary *qn_constraint_get_vocabulary(const qn_constraint *c);

/* Where in a finished answer the form begins: behind reasoning, and behind the headers of messages. */
size_t qn_constraint_find_form(const qn_constraint_source *source, const char *text, size_t n);

/* The plain validator of a JSON schema, opened at the first call: its texts are checked once more when they are
 * complete. What it validates is bounded by QN_CHECK_STEPS. *out is NULL if the source is none or the validator refuses
 * it. Borrowed, as long as the constraint lives. QN_E_NOMEM. Any thread. */
enum { QN_CHECK_STEPS = 500000 };
qn_status qn_constraint_get_validator(qn_constraint *c, const qn_schema **out);

typedef struct qn_matcher qn_matcher;

/* Retains the constraint. */
qn_status qn_matcher_new(qn_constraint *c, qn_matcher **out);
/* A copy that goes its own way. Cheap: what the place is made of is shared. */
qn_status qn_matcher_copy(const qn_matcher *m, qn_matcher **out);
void qn_matcher_free(qn_matcher *m);
/* bits [qn_vocabulary_mask_words]: a bit is 1 if the token of that id may come. End ids have theirs where the
 * end may come. On failure bits are undefined. QN_E_NOMEM, QN_E_FULL (memory_max), QN_E_UNSUPPORTED (steps_max). */
qn_status qn_matcher_mask(qn_matcher *m, uint32_t *bits);
/* 1: the text may end here. */
int qn_matcher_may_end(const qn_matcher *m);
/* 1: nothing but the end may come. */
int qn_matcher_is_done(const qn_matcher *m);
/* As the bit of a mask, without the mask. */
int qn_matcher_allows(qn_matcher *m, int32_t id);
/* An end id is accepted where the end may come; the matcher then accepts nothing more. QN_E_ARG: the token may
 * not come, and the matcher is as it was. */
qn_status qn_matcher_accept(qn_matcher *m, int32_t id);
/* For checks: accepts bytes one by one up to the first that may not come. *n_taken: how many were. Special
 * tokens are 0xff and their text. */
qn_status qn_matcher_accept_text(qn_matcher *m, const char *bytes, size_t n, size_t *n_taken);
/* The ids that come next whatever is drawn: the tokenizer's own tokens of the text that is forced, up to the
 * last token whose text cannot change with what follows. They are not accepted by this call. *n_ids may be 0.
 * Where an object may be written compactly or with spaces, the compact form counts as forced unless the text so
 * far has line ends between values. */
qn_status qn_matcher_forced(qn_matcher *m, int32_t *ids, size_t n_max, size_t *n_ids);

/* Compiled constraints by their source's content, for one vocabulary: the last used stay, up to limit_bytes. Any
 * thread. */
typedef struct qn_constraint_cache qn_constraint_cache;
qn_status qn_constraint_cache_new(qn_vocabulary *v, size_t limit_bytes, qn_constraint_cache **out);
void qn_constraint_cache_free(qn_constraint_cache *k);
/* As qn_constraint_new; *out is the caller's reference. */
qn_status qn_constraint_cache_get(qn_constraint_cache *k, const qn_constraint_source *source,
                                  const qn_constraint_limits *limits, qn_constraint **out);
size_t qn_constraint_cache_bytes(qn_constraint_cache *k);

#endif

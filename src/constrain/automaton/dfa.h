/* Deterministic automata over bytes: languages of UTF-8 texts.
 *
 * A qn_dfa is immutable, minimal and reference-counted; any thread may read one. State 0 is the dead state: it
 * accepts no text, and no other state is dead. The start is 0 if the language is empty. States are numbered in
 * the order of a walk from the start, so automata of one language are equal number by number. All automata
 * accept valid UTF-8 alone. Building is bounded by qn_dfa_limits: QN_E_UNSUPPORTED names the limit. Nothing
 * recurses. Functions leave *out untouched if they fail. */
#ifndef QN_CONSTRAIN_AUTOMATON_DFA_H
#define QN_CONSTRAIN_AUTOMATON_DFA_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* 0 means the value in the comment. A NULL pointer to limits means all of these. */
typedef struct {
    size_t pattern_bytes_max; /* 16 KiB */
    int32_t depth_max;        /* of groups: 64 */
    int32_t states_max;       /* of each automaton on the way: 50,000 */
    int64_t steps_max;        /* work of one call: 20 million */
} qn_dfa_limits;

enum {
    QN_DFA_ACCEPTS = 1, /* the text may end here */
    QN_DFA_ALL = 2,     /* a character begins here, and every valid UTF-8 text is accepted */
};

typedef struct qn_dfa qn_dfa;
struct qn_dfa {           /* read by the loops that walk it */
    int32_t n_references; /* atomic */
    int32_t n_states, n_classes, start;
    uint8_t class_of[256];
    const int32_t *next;  /* [n_states, n_classes] */
    const uint8_t *flags; /* [n_states] QN_DFA_ACCEPTS | QN_DFA_ALL */
    size_t size_bytes;    /* of the block that holds all of this */
};

static inline int32_t qn_dfa_step(const qn_dfa *d, int32_t state, uint8_t byte)
{
    return d->next[(size_t)state * (size_t)d->n_classes + d->class_of[byte]];
}

qn_dfa *qn_dfa_retain(qn_dfa *d);
/* d may be NULL. */
void qn_dfa_release(qn_dfa *d);

/* A borrowed run of bytes. */
typedef struct {
    const char *text;
    size_t n;
} qn_text_ref;

/* Leaves. */
qn_status qn_dfa_none(qn_dfa **out); /* no text at all */
qn_status qn_dfa_all(qn_dfa **out);  /* every valid UTF-8 text */
/* A finite set; the same text may come twice. QN_E_FORMAT: a text is not valid UTF-8. */
qn_status qn_dfa_texts(const qn_text_ref *texts, size_t n, const qn_dfa_limits *limits, qn_dfa **out);
/* Texts of min to max characters (code points); max -1: no bound. */
qn_status qn_dfa_length(int64_t min_chars, int64_t max_chars, const qn_dfa_limits *limits, qn_dfa **out);
/* An automaton of the caller's own, made minimal: next [n_states, n_classes] with all targets in
 * [0, n_states), class_of with values below n_classes (at most 256), accepts [n_states] with 0 or 1. State 0
 * need not be dead. The language must be one of valid UTF-8 texts. */
qn_status qn_dfa_new(int32_t n_states, int32_t n_classes, const uint8_t class_of[256], const int32_t *next,
                     const uint8_t *accepts, int32_t start, const qn_dfa_limits *limits, qn_dfa **out);

/* Operations. Operands are borrowed; the result may be an operand with one more reference. */
qn_status qn_dfa_intersect(qn_dfa *a, qn_dfa *b, const qn_dfa_limits *limits, qn_dfa **out);
qn_status qn_dfa_unite(qn_dfa *a, qn_dfa *b, const qn_dfa_limits *limits, qn_dfa **out);
/* The texts of a that b refuses. */
qn_status qn_dfa_subtract(qn_dfa *a, qn_dfa *b, const qn_dfa_limits *limits, qn_dfa **out);
/* The valid UTF-8 texts that a refuses. */
qn_status qn_dfa_complement(qn_dfa *a, const qn_dfa_limits *limits, qn_dfa **out);
qn_status qn_dfa_concatenate(qn_dfa *a, qn_dfa *b, const qn_dfa_limits *limits, qn_dfa **out);
/* One text of each, in order; n 0: the empty text. */
qn_status qn_dfa_concatenate_all(qn_dfa *const *parts, size_t n, const qn_dfa_limits *limits, qn_dfa **out);
/* min to max texts of a, one after another; max -1: no bound. */
qn_status qn_dfa_repeat(qn_dfa *a, int64_t min, int64_t max, const qn_dfa_limits *limits, qn_dfa **out);

/* Questions. */
static inline int qn_dfa_is_empty(const qn_dfa *d)
{
    return d->start == 0;
}
/* Is every valid UTF-8 text accepted? */
static inline int qn_dfa_is_all(const qn_dfa *d)
{
    return (d->flags[d->start] & QN_DFA_ALL) != 0;
}
int qn_dfa_accepts(const qn_dfa *d, const char *text, size_t n);
/* The same language? */
int qn_dfa_equal(const qn_dfa *a, const qn_dfa *b);
uint64_t qn_dfa_hash(const qn_dfa *d);
/* 0 also if memory is out. */
int qn_dfa_is_finite(const qn_dfa *d);

/* Lengths of the texts accepted; -1: the language is empty (min), empty or without bound (max). */
typedef struct {
    int64_t min_bytes, max_bytes, min_chars, max_chars;
} qn_dfa_lengths;
qn_status qn_dfa_measure(const qn_dfa *d, qn_dfa_lengths *out);

/* How many texts are accepted: -1 if infinitely many, INT64_MAX if more than that. */
qn_status qn_dfa_count(const qn_dfa *d, int64_t *out);
/* Calls visit with each text of a finite language, in the order of bytes, until it fails or n_max texts came
 * (then QN_E_FULL). QN_E_ARG: infinitely many. */
typedef qn_status qn_dfa_visit(void *context, const char *text, size_t n);
qn_status qn_dfa_list(const qn_dfa *d, size_t n_max, qn_dfa_visit *visit, void *context);

#endif

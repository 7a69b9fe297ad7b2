/* What a walk over a vocabulary may know of an automaton's states in advance, so that it passes whole subtrees of
 * tokens. Kept for each automaton as long as masks of its strings are made. One thread at a time. */
#ifndef QN_CONSTRAIN_MACHINE_STRING_FACTS_H
#define QN_CONSTRAIN_MACHINE_STRING_FACTS_H

#include "constrain/automaton/dfa.h"
#include "constrain/machine/trie.h"

enum {
    QN_PLAIN_ANY = UINT16_MAX, /* more bytes than a token has */
    QN_PLAINS = 4,
};

/* Of a state inside of a character. */
typedef struct {
    int32_t
        home; /* the one state behind all characters that begin as this one; 0: there are several, or none */
    int32_t beside; /* the state of the automaton of all texts that this is true for; 0: not asked for yet */
} qn_home_fact;

/* Plain text is what free strings hold as it is: no quotes, backslashes and control characters. */
typedef struct {
    uint64_t without; /* plain text without these kinds */
    uint16_t *plain;  /* [n_states] so many bytes of it may come, whatever they are; NULL: not known */
} qn_plain_facts;

typedef struct {
    /* [n_states] of states where a character begins: bits of kinds of bytes. A kind of first bytes stands for all
     * characters that begin so; bytes behind them have no bit. 0: not asked for yet. */
    uint64_t *changes;   /* the state behind one of this kind is another, or there is none */
    qn_home_fact *homes; /* [n_states] */
    int32_t *beside; /* [n_states] the state of the automaton of all texts beside each; -1: one of several */
    qn_plain_facts plains[QN_PLAINS];
    int n_plains, next_plain;
    size_t n_bytes;
} qn_string_facts;

/* f is zeroed. */
qn_status qn_string_facts_init(qn_string_facts *f, const qn_dfa *d);
void qn_string_facts_clear(qn_string_facts *f);
/* all: the automaton of all texts, here and below. */
uint64_t qn_string_find_changes(const qn_dfa *d, const qn_dfa *all, int32_t state);
static inline uint64_t qn_string_changes(qn_string_facts *f, const qn_dfa *d, const qn_dfa *all,
                                         int32_t state)
{
    if (!f->changes[state]) f->changes[state] = qn_string_find_changes(d, all, state);
    return f->changes[state];
}
/* Kinds of which one may not come. */
uint64_t qn_string_dead(const qn_dfa *d, const qn_dfa *all, int32_t state);
/* state is inside of a character that `beside`, a state of `all`, is inside of, too. */
int32_t qn_string_home(qn_string_facts *f, const qn_dfa *d, const qn_dfa *all, int32_t state, int32_t beside);
/* The plain text that may come from each state. *plain is NULL if to find it out would take about as long as a walk
 * over a vocabulary: of a large automaton the first kinds alone are asked for. Borrowed until the next call. */
qn_status qn_string_plain(qn_string_facts *f, const qn_dfa *d, const qn_dfa *all, uint64_t without,
                          const uint16_t **plain);
/* 1: whatever plain text without some kinds came, all characters of these kinds may not come. The plain text behind
 * the state is known to be endless. */
int qn_string_is_closed(const qn_string_facts *f, const qn_dfa *d, const qn_dfa *all, uint64_t without,
                        int32_t state);

#endif

/* Masks of JSON strings, from a state of an automaton at a character's begin, over a whole vocabulary.
 *
 * A token either stays inside the string (inside), or closes it; what stands behind the quote is its tail, and
 * tails lie in a trie, so one walk over it by what comes after the string finds all tokens that close it.
 * Immutable once made. */
#ifndef QN_CONSTRAIN_MACHINE_STRINGS_H
#define QN_CONSTRAIN_MACHINE_STRINGS_H

#include "constrain/automaton/dfa.h"
#include "constrain/machine/string_facts.h"
#include "constrain/machine/trie.h"

typedef struct {
    int32_t id;
    uint32_t chars; /* before the quote */
} qn_tail_token;

typedef struct {
    uint32_t *inside;    /* [n_words] */
    qn_trie_node *nodes; /* tails; id: index into lists, -1: none */
    uint32_t n_nodes, n_lists, depth_max;
    uint32_t *lists; /* [n_lists + 1] begins in tokens */
    qn_tail_token *tokens;
    size_t n_bytes;
    int has_nodes; /* nodes are its own, not those of free strings */
} qn_string_mask;

enum { QN_CHARS_MAX = 255 };

/* Strings without a rule, for counted ones: shared by all constraints of a vocabulary. */
typedef struct {
    qn_dfa *all;
    int32_t due
        [4]; /* the states of `all` where so many bytes of a character are due, behind its second; 0 unused */
    qn_string_mask mask;
    uint32_t *having; /* [64, n_words] of those that stay inside: the tokens that have a byte of a kind */
    uint64_t
        *nodes; /* [n_nodes] a bit for each node of the vocabulary's trie with a token that stays inside */
    uint8_t *chars;     /* [n_ids] of tokens that stay inside: begun characters, QN_CHARS_MAX at most */
    uint32_t chars_max; /* of any token */
    _Atomic(uint32_t *)
        within[QN_CHARS_MAX]; /* [room]: tokens inside of so many characters; made on demand */
} qn_free_strings;

/* Borrowed; made at the first call. QN_E_NOMEM. Any thread. */
qn_status qn_vocabulary_strings(qn_vocabulary *v, qn_free_strings **out);
/* Tokens inside of at most room characters. Borrowed. Any thread. */
qn_status qn_free_strings_within(const qn_vocabulary *v, qn_free_strings *s, uint32_t room,
                                 const uint32_t **out);
/* The mask of a state of an automaton at a character's begin. It shares the tails of the free strings, which
 * must outlive it. facts: of the automaton, and learns. */
qn_status qn_string_mask_make(const qn_vocabulary *v, const qn_free_strings *free, const qn_dfa *d,
                              qn_string_facts *facts, int32_t state, qn_string_mask *out);
void qn_string_mask_clear(qn_string_mask *s);

#endif

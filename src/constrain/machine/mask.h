/* Masks: which tokens may come in a state of a machine.
 *
 * A mask is the union of its stacks' masks. A stack with a string on top takes the string's mask (made once
 * for each state of an automaton) and a walk over what stands behind the quote; other stacks walk the
 * vocabulary's trie. Masks of whole states are kept, up to a bound. One thread at a time. */
#ifndef QN_CONSTRAIN_MACHINE_MASK_H
#define QN_CONSTRAIN_MACHINE_MASK_H

#include "constrain/machine/machine.h"
#include "constrain/machine/strings.h"

typedef struct {
    int32_t dfa, state;
    qn_string_mask mask;
} qn_kept_string;

typedef struct {
    int32_t *ids;
    uint32_t n, room;
} qn_id_list;

typedef struct {
    int32_t dfa;
    qn_string_facts facts;
} qn_kept_facts;

typedef struct {
    qn_vocabulary *v; /* borrowed */
    qn_machine *m;    /* borrowed */
    qn_free_strings *free;
    /* Masks of states: a ring of slots. */
    uint32_t **kept;      /* [kept_room] of [n_words]; the first n_kept are made */
    uint32_t *kept_state; /* [kept_room] */
    uint32_t n_kept, kept_room, kept_next;
    qn_kept_string *strings;
    uint32_t n_strings, strings_room;
    qn_kept_facts *facts; /* of the automata of strings */
    uint32_t n_facts, facts_room;
    size_t string_bytes, bytes_max;
    uint8_t *path;       /* [depth_max + 2] */
    qn_frame *places;    /* [depth_max + 2] of the walk over the vocabulary */
    qn_id_list suspects; /* tokens that need a step by step look */
    qn_id_list noted;
    uint32_t *spare; /* [n_words] 0 between its uses */
} qn_masks;

/* bytes_max bounds what is kept. */
qn_status qn_masks_init(qn_masks *k, qn_vocabulary *v, qn_machine *m, size_t bytes_max);
void qn_masks_clear(qn_masks *k);
size_t qn_masks_bytes(const qn_masks *k);
/* Forgets the masks of states, whose numbers changed. */
void qn_masks_forget(qn_masks *k);
/* bits [n_words] of the vocabulary, end ids left out. */
qn_status qn_masks_get(qn_masks *k, uint32_t state, uint32_t *bits);

#endif

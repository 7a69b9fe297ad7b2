/* The machine of a constraint: a push-down machine whose alternatives run side by side, one byte at a time.
 *
 * A frame is an activity that is under way: a string, a member's name, an object. A stack is a frame and the
 * stack below it; stacks are hash-consed, so a stack is a number and equal ones are one. Stack 0 is empty: the
 * text may end. A state is a sorted set of stacks, hash-consed as well; state 0 has none: no text led here.
 * Invariant: from each stack of a state some text leads to the end.
 *
 * What the machine runs on (values, objects, arrays, automata) is in qn_program, which the compilers of sources
 * fill. One thread at a time: the constraint holds a lock. */
#ifndef QN_CONSTRAIN_MACHINE_MACHINE_H
#define QN_CONSTRAIN_MACHINE_MACHINE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "constrain/automaton/dfa.h"
#include "constrain/machine/escape.h"
#include "constrain/machine/program.h"

typedef enum {
    QN_FRAME_TEXT,      /* a: dfa, b: state; ends where it accepts, and takes no byte for that */
    QN_FRAME_FREE,      /* a: scan, b: its state, e: may end: any text up to and with a mark */
    QN_FRAME_MARK,      /* a: marker, b: bytes of it read */
    QN_FRAME_LITERAL,   /* a: qn_literal, b: bytes read */
    QN_FRAME_STRING,    /* a: string of the program, b: dfa's state, c: escape, d: characters */
    QN_FRAME_VALUE,     /* a: value; phase 1: one space may come first */
    QN_FRAME_COLON,     /* a: value behind it */
    QN_FRAME_OBJECT,    /* a: object, b: next member, c: members so far, d: other keys so far, e: marks */
    QN_FRAME_NAMED_KEY, /* above an object; a, b: range of sorted names, c: escape, d: bytes matched */
    QN_FRAME_OTHER_KEY, /* above an object; a: class, b: dfa's state, c: escape, d: text so far */
    QN_FRAME_ARRAY, /* a: array, b: items so far, c: count of contains or the due bits met, d: values so far */
    QN_FRAME_ITEM,  /* a unique string: a: string, b: dfa's state, c: escape, d: text so far */
    QN_FRAME_NUMBER,  /* a unique number: a: dfa, b: state, d: text so far */
    QN_FRAME_GRAMMAR, /* a: state of the program's grammar; the last frame of its stack */
    QN_FRAME_GRAPH    /* a: node of the program's graph */
} qn_frame_kind;

/* Phases of objects and arrays. */
enum { QN_PHASE_OPENED, QN_PHASE_AFTER, QN_PHASE_COMMA };
/* Space so far, in `space`: none, one space, a line end and n - 2 spaces. */
enum { QN_SPACE_NONE, QN_SPACE_ONE, QN_SPACE_LINE };
/* In `flags` of an object or a unique array: its last other key or item is not among those so far (masks do
 * not ask for it). Of a value: an item of a unique array. */
enum { QN_FLAG_UNRECORDED = 1, QN_FLAG_UNIQUE = 1 };

typedef struct {
    uint32_t parent; /* stack */
    uint8_t kind, phase;
    uint8_t flags, unused;
    uint16_t space;
    uint16_t depth; /* of brackets, this one's included */
    uint32_t a, b, c, d, e;
} qn_frame;

typedef struct {
    uint32_t *slots; /* number + 1; 0: empty */
    uint32_t n_slots, n;
} qn_intern_index;

typedef struct {
    uint32_t begin, n; /* in machine.stacks */
    uint32_t hash;
    int32_t mask; /* slot of its mask, -1: none */
} qn_state;

typedef struct {
    uint64_t key; /* state << 8 | byte, + 1; 0: empty */
    uint32_t to;
} qn_move;

/* Persistent texts (keys so far) and lists of texts: (parent, value) pairs. 0: empty. */
typedef struct {
    uint32_t parent, value;
} qn_link;

typedef struct qn_machine qn_machine;
struct qn_machine {
    qn_program *program; /* borrowed */
    qn_frame *frames;    /* [n_frames], 0 unused */
    uint32_t n_frames, frames_room;
    qn_intern_index frame_index;
    uint32_t *stacks; /* pool of states' stacks */
    uint32_t n_stacks, stacks_room;
    qn_state *states;
    uint32_t n_states, states_room;
    qn_intern_index state_index;
    qn_link *links;
    uint32_t n_links, links_room;
    qn_intern_index link_index;
    qn_move *moves; /* [n_moves], a power of two */
    uint32_t n_moves;
    uint32_t *out; /* stacks of the step that is under way */
    uint32_t n_out, out_room;
    int is_loose;    /* masks are made: other keys are not recorded */
    int is_suspect;  /* while loose: a second other key ended in one token */
    int is_broken;   /* a sweep failed halfway: nothing goes on */
    int64_t n_steps; /* left for this call */
    int64_t steps_max;
    qn_status status; /* the first failure of the call */
};

qn_status qn_machine_init(qn_machine *m, qn_program *p);
void qn_machine_clear(qn_machine *m);
size_t qn_machine_bytes(const qn_machine *m);
/* Drops all states but keep [n], which get their new numbers. */
qn_status qn_machine_sweep(qn_machine *m, uint32_t **keep, size_t n);

/* The functions below keep the first failure in m->status and then return 0. */
uint32_t qn_machine_stack(qn_machine *m, const qn_frame *f);
uint32_t qn_machine_link(qn_machine *m, uint32_t parent, uint32_t value);
/* The state of these stacks; sorts them in place. */
uint32_t qn_machine_state(qn_machine *m, uint32_t *stacks, uint32_t n);
/* The state where the program begins. */
uint32_t qn_machine_start(qn_machine *m);
/* The state behind a byte; 0: it may not come. */
uint32_t qn_machine_step(qn_machine *m, uint32_t state, uint8_t byte);
int qn_machine_may_end(const qn_machine *m, uint32_t state);

/* ---- for steps and walks -------------------------------------------------------------------------------- */

/* Adds what a byte makes of a stack to m->out. */
void qn_step_stack(qn_machine *m, uint32_t stack, uint8_t byte);
void qn_step_give(qn_machine *m, uint32_t stack);

/* A frame inside a lexeme (strings, keys, texts) takes a byte without a look at what is below. */
typedef enum {
    QN_LEX_DEAD,
    QN_LEX_IN,   /* *f goes on */
    QN_LEX_CLOSE /* the byte was its last; qn_step_close says what comes */
} qn_lex_result;
qn_lex_result qn_lex_step(qn_machine *m, qn_frame *f, uint8_t byte);
static inline int qn_frame_is_lexeme(const qn_frame *f)
{
    return f->kind <= QN_FRAME_STRING || f->kind == QN_FRAME_NAMED_KEY || f->kind == QN_FRAME_OTHER_KEY ||
           f->kind == QN_FRAME_ITEM || f->kind == QN_FRAME_GRAMMAR;
}
/* 1: the lexeme may end before the next byte. */
int qn_lex_accepts(const qn_machine *m, const qn_frame *f);
/* Adds what comes after f, which was closed, to m->out. */
void qn_step_close(qn_machine *m, const qn_frame *f);

void qn_step_object(qn_machine *m, const qn_frame *f, uint8_t byte);
void qn_step_array(qn_machine *m, const qn_frame *f, uint8_t byte);
/* Space inside brackets: 1: the byte was space and the frame was handed on, or may not come. */
int qn_step_space(qn_machine *m, const qn_frame *f, uint8_t byte);
void qn_step_value(qn_machine *m, const qn_frame *f, uint8_t byte);
/* Keys of an object: what closes named key f, or other key f. */
void qn_close_key(qn_machine *m, const qn_frame *f);
/* 1: the named key may be written to its end: some name of the range may come. */
int qn_named_key_alive(qn_machine *m, const qn_frame *f);
int qn_named_key_closes(qn_machine *m, const qn_frame *f);
/* 1: the text so far of an other key is one of the object's own names or keys so far. */
int qn_other_key_is_taken(qn_machine *m, const qn_frame *f);
/* 1: the text so far can go on to one that is not taken. */
int qn_other_key_alive(qn_machine *m, const qn_frame *f);
/* The same of a text that begins, while masks are made as well. */
int qn_other_key_begins(qn_machine *m, const qn_frame *f);
/* 1: an automaton takes more texts than can be used up. */
int qn_texts_never_end(qn_machine *m, int32_t dfa);
/* A unique item that is a literal: the stack above which it is written; 0: it was written before. */
uint32_t qn_literal_item(qn_machine *m, uint32_t array, qn_literal which);
void qn_step_number_item(qn_machine *m, const qn_frame *f, uint8_t byte);
void qn_close_item(qn_machine *m, const qn_frame *f);

/* ---- for forced text ------------------------------------------------------------------------------------ */

const char *qn_literal_text(qn_literal which);
/* The byte that must come where no space is written and names are spelt as they are; -1: there are several.
 * Where lines were begun, the space before keys, items and closing brackets is free. */
int qn_object_byte(qn_machine *m, const qn_frame *f, int has_lines);
int qn_named_key_byte(qn_machine *m, const qn_frame *f);
/* The same; or *value is the only item's value, whose byte it is. */
int qn_array_byte(qn_machine *m, const qn_frame *f, int has_lines, int32_t *value);

#endif

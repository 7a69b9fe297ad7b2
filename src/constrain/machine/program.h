/* What a machine runs on: values, objects, arrays, strings and automata, by number.
 *
 * The compiler of a source fills it. Values that stand for JSON schemas are expanded when the machine first
 * needs them (expand). Tables grow, so pointers into them are not kept. One thread at a time. */
#ifndef QN_CONSTRAIN_MACHINE_PROGRAM_H
#define QN_CONSTRAIN_MACHINE_PROGRAM_H

#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "constrain/automaton/dfa.h"
#include "constrain/grammar/run.h"

enum { QN_NONE = -1 };
typedef enum { QN_LITERAL_NULL, QN_LITERAL_TRUE, QN_LITERAL_FALSE, QN_LITERAL_COUNT } qn_literal;

/* Strings: those of an automaton, or all of min to max characters. */
typedef struct {
    int32_t dfa;      /* of the decoded text */
    int64_t min, max; /* characters; counted only where the automaton is that of all texts. max -1: none */
} qn_string_rule;

typedef struct {
    const char *name;
    uint32_t n;
    int32_t value;
    uint8_t is_required;
    uint8_t is_possible;        /* its value can be written */
    uint8_t is_marked_possible; /* its marked value can be written */
    uint32_t marks;             /* bit of a floating member: it was written */
    uint32_t meets;             /* bits of the object's due ones that the member meets by being there */
    int32_t marked;             /* a value that meets the object's marked bit as well; QN_NONE: none */
} qn_member;

/* Keys that are no member's name. Classes of an object exclude each other. */
typedef struct {
    int32_t dfa; /* QN_NONE: every text */
    int32_t value;
    uint32_t meets; /* as of members */
    int32_t marked;
    int is_possible, is_marked_possible;
} qn_key_class;

/* Objects: ordered members first, each after those before it; then floating members and other keys in any
 * order. */
typedef struct {
    qn_member *members; /* [n_members], the first n_ordered in their order */
    uint32_t n_members, n_ordered;
    uint32_t *sorted; /* [n_members] by name */
    qn_key_class *classes;
    uint32_t n_classes;
    int64_t min, max; /* members; max -1: none */
    uint32_t due;     /* bits that must be met: some member has a key, or a key and a value, of a kind */
    uint32_t marked_bit;
    int is_prepared;                         /* possible and the lists below are filled */
    uint32_t *required_from, *possible_from; /* [n_ordered + 1]: how many from here on */
    uint32_t *meets_from;                    /* [n_ordered + 1]: bits that members from here on can meet */
    uint32_t meets_by_keys;                  /* by other keys */
} qn_object_rule;

/* Arrays. Items are values: [n_prefix] for the first ones, then that of all others. With `counted` each item
 * either is of items and does not count, or of counted and does; the count lies in counted_min to
 * counted_max. With `due` (then nothing is counted) each bit must be met by some item: one of meeting[set]
 * meets all bits of the set. */
enum { QN_DUE_BITS_MAX = 3, QN_DUE_SETS_MAX = 1 << QN_DUE_BITS_MAX };
typedef struct {
    int32_t *items, *counted; /* [n_prefix + 1]; QN_NONE: there is none; counted NULL: nothing is counted */
    uint32_t n_prefix;
    int64_t min, max;                 /* items; max -1: none */
    int64_t counted_min, counted_max; /* max -1: none */
    uint32_t due;
    int32_t *meeting[QN_DUE_SETS_MAX]; /* as items; set 0 is unused */
    int is_unique;
    int32_t unique_numbers; /* dfa of the numbers of a unique array, in spellings that tell them apart */
    int is_prepared;
    uint32_t *counted_from; /* [n_prefix + 1] of how many in the prefix from here on counted is possible */
    uint32_t *due_from;     /* [n_prefix + 1, due + 1] items from here on that meet a set; UINT32_MAX: none */
} qn_array_rule;

/* A value: what may be written in its place. */
typedef struct {
    uint8_t is_expanded, is_expanding;
    int8_t possible;  /* 1, 0; -1: not known yet */
    uint8_t literals; /* bits of qn_literal */
    int32_t number;   /* dfa */
    int32_t *strings, *objects, *arrays;
    uint32_t n_strings, n_objects, n_arrays;
} qn_value;

/* Graphs: texts and values one after another, with choices. Node 0 is the end. */
typedef enum {
    QN_GRAPH_END,
    QN_GRAPH_TEXT,
    QN_GRAPH_VALUE,
    QN_GRAPH_FREE,    /* any text up to and with a mark of a scan */
    QN_GRAPH_MARK,    /* a marker's bytes */
    QN_GRAPH_PART,    /* what begins at the node `what`, up to the end of that part; it is not empty */
    QN_GRAPH_GRAMMAR, /* a text of the program's grammar; the end comes behind it */
    QN_GRAPH_CHOICE
} qn_graph_kind;
typedef struct {
    qn_graph_kind kind;
    int32_t what;   /* dfa, value, marker, scan, node */
    uint32_t next;  /* node; for CHOICE: the first way */
    uint32_t other; /* CHOICE: the second way */
    int may_end;    /* FREE: the text may also end without the mark */
} qn_graph_node;

typedef struct {
    const char *text;
    uint32_t n;
} qn_marker;

/* Free text up to the first of several marks, as an automaton over any bytes (Aho and Corasick). */
typedef enum {
    QN_SCAN_END,      /* the free text ends behind this mark */
    QN_SCAN_BAD,      /* this mark does not come, unless it is the end of one that ends the text */
    QN_SCAN_BAD_FIRST /* the free text does not begin with this one */
} qn_scan_kind;
typedef struct {
    const char *text;
    size_t n;
    qn_scan_kind kind;
} qn_scan_mark;
typedef struct {
    uint32_t n_states, n_classes;
    uint8_t class_of[256];
    uint16_t
        *next; /* [n_states, n_classes]: 0: the text ends here; 1: it may not come; others go on from 2 */
    uint16_t start;
} qn_scan;
enum { QN_SCAN_CLOSED, QN_SCAN_DEAD, QN_SCAN_ROOT };

typedef struct qn_program qn_program;
typedef qn_status qn_program_expand(qn_program *p, int32_t value);
typedef qn_status qn_program_possible(qn_program *p, int32_t value, int *possible);

struct qn_program {
    qn_arena arena; /* of names, arrays of numbers, rules */
    qn_dfa **dfas;
    uint32_t **counts; /* [n_dfas] of each state: texts accepted from it; NULL: not counted yet */
    qn_string_rule *strings;
    qn_object_rule *objects;
    qn_array_rule *arrays;
    qn_value *values;
    qn_graph_node *graph;
    qn_marker *markers;
    qn_scan *scans;
    uint32_t n_dfas, n_strings, n_objects, n_arrays, n_values, n_graph, n_markers, n_scans;
    uint32_t dfas_room, strings_room, objects_room, arrays_room, values_room, graph_room, markers_room,
        scans_room;
    int32_t all;    /* dfa of all texts */
    int32_t any;    /* value of any JSON; QN_NONE: not made yet */
    uint32_t start; /* graph node */
    qn_dfa_limits dfa_limits;
    /* Set by who makes values lazily; NULL: all are expanded. */
    qn_program_expand *expand;
    qn_program_possible *possible;
    void *compiler;
    qn_grammar_run *grammar; /* NULL: none */
};

qn_status qn_program_init(qn_program *p, const qn_dfa_limits *limits);
void qn_program_clear(qn_program *p);
size_t qn_program_held_bytes(const qn_program *p);
/* Borrowed: for each state of an automaton, how many texts are accepted from it; UINT32_MAX: so many or more. */
qn_status qn_program_counts(qn_program *p, int32_t dfa, const uint32_t **out);
/* Takes d over, also on failure. Equal automata get one number. */
qn_status qn_program_add_dfa(qn_program *p, qn_dfa *d, int32_t *out);
qn_status qn_program_add_string(qn_program *p, const qn_string_rule *rule, int32_t *out);
qn_status qn_program_add_object(qn_program *p, const qn_object_rule *rule, int32_t *out);
qn_status qn_program_add_array(qn_program *p, const qn_array_rule *rule, int32_t *out);
/* A value that is not expanded. */
qn_status qn_program_add_value(qn_program *p, int32_t *out);
qn_status qn_program_add_graph(qn_program *p, const qn_graph_node *node, uint32_t *out);
/* Text is copied. */
qn_status qn_program_add_marker(qn_program *p, const char *text, size_t n, int32_t *out);
/* only_text: no special tokens (bytes 0xff) but in marks that end the text. At least one mark ends it, and no
 * bad one is inside of such a mark before its end. */
qn_status qn_program_add_scan(qn_program *p, const qn_scan_mark *marks, size_t n, int only_text,
                              int32_t *out);
/* For scan.c: p->scans has room for one more. */
qn_status qn_program_room_for_scan(qn_program *p);
/* Expands it if need be. */
qn_status qn_program_value(qn_program *p, int32_t value, const qn_value **out);
/* Looks up which members can be written, and counts. */
qn_status qn_program_prepare(qn_program *p, int32_t object, const qn_object_rule **out);
qn_status qn_program_prepare_array(qn_program *p, int32_t array, const qn_array_rule **out);
/* How many items from slot `from` on meet the bits of `due` at least, by which values can be written: the rule's
 * values that cannot are QN_NONE. UINT32_MAX: none do. table [n_prefix + 1, due + 1]. */
void qn_array_fill_due(const qn_array_rule *a, uint32_t *table);
int32_t *qn_program_numbers(qn_program *p, const int32_t *numbers, uint32_t n);

#endif

/* The inside of the compiler of JSON schemas.
 *
 * A value is known by its conjuncts: a sorted set of schemas, each asserted or denied. Expanding one turns
 * its conjuncts into facts (a type, a bound, a property's schema) and forks (one of several lists of facts must
 * hold). Each way through the forks is a case; a case whose facts do not contradict each other becomes rules of
 * the program, and the value is the union of its cases. Denials are pushed inwards: "not these properties" is
 * a fork of properties that deny one each. Values are memoised by their conjuncts, so recursion is finite.
 * Facts are immutable lists that cases share. All of this dies when the schema is compiled. */
#ifndef QN_CONSTRAIN_JSON_COMPILER_H
#define QN_CONSTRAIN_JSON_COMPILER_H

#include "constrain/automaton/numbers.h"
#include "constrain/json/document.h"
#include "constrain/json/schema.h"

enum {
    QN_TYPE_NULL = 1,
    QN_TYPE_TRUE = 2,
    QN_TYPE_FALSE = 4,
    QN_TYPE_NUMBER = 8,
    QN_TYPE_STRING = 16,
    QN_TYPE_OBJECT = 32,
    QN_TYPE_ARRAY = 64,
    QN_TYPE_ALL = 127
};

/* Conjuncts that are always and never satisfied. */
enum { QN_CONJUNCT_TRUE = -1, QN_CONJUNCT_FALSE = -2 };

typedef enum {
    QN_FACT_CONJUNCT,  /* conjunct */
    QN_FACT_TYPES,     /* min: mask */
    QN_FACT_NUMBERS,   /* bounds, or dfa */
    QN_FACT_TEXTS,     /* dfa of strings */
    QN_FACT_LENGTH,    /* min, max characters */
    QN_FACT_GROUP,     /* schema with properties, patternProperties, additionalProperties */
    QN_FACT_PROPERTY,  /* name: conjunct, where it is there */
    QN_FACT_REQUIRED,  /* name */
    QN_FACT_FORBIDDEN, /* name */
    QN_FACT_NAMES,     /* conjunct of all names */
    QN_FACT_MEMBERS,   /* min, max */
    QN_FACT_ITEMS,     /* schema with items, prefixItems, additionalItems */
    QN_FACT_ITEM,      /* min: index, conjunct, where it is there */
    QN_FACT_COUNT,     /* min, max items */
    QN_FACT_CONTAINS,  /* conjunct, min, max */
    QN_FACT_UNIQUE,
    QN_FACT_UNEVALUATED_MEMBERS, /* schema, conjunct */
    QN_FACT_UNEVALUATED_ITEMS,   /* schema, conjunct */
    QN_FACT_SOME,                /* some member: its key of dfa, its value of conjunct */
    QN_FACT_BROKEN               /* name: a keyword that some member or item must break */
} qn_fact_kind;

typedef struct {
    qn_number_bounds bounds;
    int32_t dfa; /* QN_NONE: not made yet */
} qn_number_fact;

typedef enum {
    QN_NUMBERS_PLAIN, /* without exponents */
    QN_NUMBERS_WHOLE, /* nor a point: integers of draft 4 */
    QN_NUMBERS_ANY    /* those of qn_any_value */
} qn_number_spelling;

typedef struct qn_fact qn_fact;
struct qn_fact {
    const qn_fact *next;
    qn_fact_kind kind;
    int32_t conjunct, dfa;
    uint32_t scope;         /* the application of a schema that brought it; 0: a value's conjunct */
    int64_t min, max, from; /* CONTAINS: items from this index on */
    const char *name;
    const json_t *schema; /* where it stands, for messages */
    qn_number_fact *number;
};

typedef struct qn_fork qn_fork;
struct qn_fork {
    const qn_fork *next;
    const json_t *schema;
    uint32_t n;
    const qn_fact **options; /* [n] lists */
};

/* One way through the forks. */
typedef struct {
    uint32_t types;
    int64_t length_min, length_max, members_min, members_max, items_min, items_max; /* max -1: none */
    const qn_fact *facts, *due;
    const qn_fork *forks;
    int is_dead, is_unique, tracks_scopes;
} qn_case;

typedef struct {
    const json_t *schema;
    int is_denied;
} qn_conjunct;

typedef struct {
    int32_t *conjuncts; /* sorted */
    uint32_t n;
} qn_conjunct_set;

/* What a value is made of while its cases come in. */
typedef struct {
    uint32_t literals;
    int32_t number; /* dfa */
    int32_t text;   /* dfa of strings that are not counted */
    int32_t *strings, *objects, *arrays;
    uint32_t n_strings, n_objects, n_arrays, strings_room, objects_room, arrays_room;
} qn_union;

typedef struct {
    const qn_schema_options *options;
    qn_program *p;
    qn_document doc;
    qn_arena arena;
    json_t *made; /* array of schemas that were made up: constants */
    qn_conjunct *conjuncts;
    uint32_t n_conjuncts, conjuncts_room;
    qn_map *conjunct_of;
    qn_conjunct_set *sets; /* [value] */
    uint32_t sets_room;
    qn_map *value_of;
    qn_map *dfa_of;   /* automata by what they were made of */
    uint32_t *scopes; /* [scope]: the one around it */
    uint32_t n_scopes, scopes_room;
    int64_t steps_left;
    int n_open_forks;                      /* of all expansions that are under way inside each other */
    int depth;                             /* of possible and expand inside each other */
    int assumed_possible, assumed_not;     /* while possible runs: something unknown was taken so */
    int32_t plain_numbers[QN_NUMBERS_ANY]; /* dfas of qn_plain_numbers; QN_NONE: not made */
} qn_compiler;

/* ---- failures ------------------------------------------------------------------------------------------ */

/* "POINTER: KEYWORD: why"; at is the schema object. */
qn_status qn_compiler_refuse(qn_compiler *k, const json_t *at, const char *keyword, const char *fmt, ...)
    QN_PRINTF(4, 5);
/* The same before this thread's message. */
qn_status qn_compiler_refuse_as(qn_compiler *k, qn_status status, const json_t *at, const char *keyword);
qn_status qn_compiler_note(qn_compiler *k, const json_t *at, const char *keyword, const char *message);
/* Counts work. */
qn_status qn_compiler_step(qn_compiler *k);

/* ---- conjuncts and values ------------------------------------------------------------------------------ */

qn_status qn_conjunct_of(qn_compiler *k, const json_t *schema, int is_denied, int32_t *out);
/* The same denied. */
qn_status qn_conjunct_deny(qn_compiler *k, int32_t conjunct, int32_t *out);
/* The value of a set; sorts it in place. */
qn_status qn_value_of(qn_compiler *k, int32_t *conjuncts, uint32_t n, int32_t *out);
qn_status qn_compiler_expand(qn_program *p, int32_t value);
qn_status qn_compiler_possible(qn_program *p, int32_t value, int *possible);

/* ---- facts --------------------------------------------------------------------------------------------- */

/* Puts a fact before a list. NULL: out of memory. */
qn_fact *qn_fact_before(qn_compiler *k, const qn_fact *list, qn_fact_kind kind, const json_t *at);
/* Adds the facts and forks of a schema to a case. */
qn_status qn_schema_assert(qn_compiler *k, qn_case *c, const json_t *s, uint32_t scope);
qn_status qn_schema_deny(qn_compiler *k, qn_case *c, const json_t *s);
/* Adds a fork whose option lists lie in options. */
qn_status qn_case_fork(qn_compiler *k, qn_case *c, const json_t *at, const qn_fact **options, uint32_t n);
/* Takes one fact into the case. */
qn_status qn_case_take(qn_compiler *k, qn_case *c, const qn_fact *f);
qn_status qn_case_add(qn_compiler *k, qn_case *c, int32_t conjunct, const json_t *at, uint32_t scope);
/* One of the values of a list: enum and const. */
qn_status qn_enum_assert(qn_compiler *k, qn_case *c, const json_t *at, const json_t *values, uint32_t scope);
qn_status qn_enum_deny(qn_compiler *k, qn_case *c, const json_t *at, const json_t *values);
/* The schemas of the first items (an array or NULL) and of the others (NULL: any). */
void qn_items_of(const qn_compiler *k, const json_t *s, const json_t **prefix, const json_t **rest);
/* Mask of the JSON schema's type or types; *integer: numbers are integers. */
qn_status qn_types_of(qn_compiler *k, const json_t *at, const json_t *type, uint32_t *mask, int *integer);
qn_status qn_pattern_dfa(qn_compiler *k, const json_t *at, const char *keyword, const char *pattern,
                         int32_t *out);
/* A JSON number as a decimal text. NULL: out of memory. */
const char *qn_decimal_of(qn_compiler *k, const json_t *number);
/* Numbers within bounds. */
qn_status qn_number_dfa(qn_compiler *k, const qn_number_bounds *b, int32_t *out);
qn_status qn_plain_numbers(qn_compiler *k, qn_number_spelling spelling, int32_t *out);
/* Numbers of no exponent that are not of d. */
qn_status qn_number_deny(qn_compiler *k, int32_t d, int32_t *out);
/* A member that is a whole number of at least 0; *has 0: it is not there. */
qn_status qn_count_of(qn_compiler *k, const json_t *s, const char *keyword, int64_t *value, int *has);
qn_status qn_dfa_both(qn_compiler *k, int32_t a, int32_t b, int32_t *out);
qn_status qn_dfa_either(qn_compiler *k, int32_t a, int32_t b, int32_t *out);
qn_status qn_dfa_without(qn_compiler *k, int32_t a, int32_t b, int32_t *out);

/* ---- cases become rules -------------------------------------------------------------------------------- */

qn_status qn_case_finish(qn_compiler *k, const qn_case *c, qn_union *u);
qn_status qn_case_finish_object(qn_compiler *k, const qn_case *c, qn_union *u);
qn_status qn_case_finish_array(qn_compiler *k, const qn_case *c, qn_union *u);
qn_status qn_union_add(int32_t **list, uint32_t *n, uint32_t *room, int32_t number);
/* The strings of a value as one automaton; QN_NONE: none. */
qn_status qn_value_texts(qn_compiler *k, const json_t *at, int32_t value, int32_t *dfa);

#endif

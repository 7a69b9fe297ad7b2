/* A schema as the validator walks it: what validate.h opens, seen from inside of this folder.
 *
 * Each object or boolean of the document that is a schema is one subschema. Its keywords are sorted by kind, which
 * is the order they are applied in. A resource is a part of the document with a URI (its root, or what has $id).
 * All lies in the schema's arena but the automata, which are counted. */
#ifndef QN_CONSTRAIN_VALIDATE_SCHEMA_H
#define QN_CONSTRAIN_VALIDATE_SCHEMA_H

#include "base/map.h"
#include "constrain/automaton/dfa.h"
#include "constrain/validate/validate.h"
#include "constrain/validate/value.h"

typedef enum {
    QN_DRAFT_4 = 1,
    QN_DRAFT_6 = 2,
    QN_DRAFT_7 = 4,
    QN_DRAFT_2019 = 8,
    QN_DRAFT_2020 = 16,
    QN_DRAFT_NONE = 32, /* no $schema */
} qn_draft;

/* What the value of a keyword must be. */
typedef enum {
    QN_SHAPE_REF,     /* a URI reference */
    QN_SHAPE_TYPES,   /* the name of a type, or an array of them */
    QN_SHAPE_VALUES,  /* an array */
    QN_SHAPE_VALUE,   /* anything */
    QN_SHAPE_DIVISOR, /* a number above 0 */
    QN_SHAPE_NUMBER,
    QN_SHAPE_BOUND, /* a number; in draft 4 a boolean */
    QN_SHAPE_COUNT, /* an integer of at least 0 */
    QN_SHAPE_PATTERN,
    QN_SHAPE_FORMAT,
    QN_SHAPE_BOOLEAN,
    QN_SHAPE_NAMES,         /* an array of strings */
    QN_SHAPE_NAMES_BY_NAME, /* an object of these */
    QN_SHAPE_SCHEMA,
    QN_SHAPE_SCHEMAS,         /* an array of at least one */
    QN_SHAPE_SCHEMA_BY_NAME,  /* an object of schemas */
    QN_SHAPE_SCHEMA_BY_REGEX, /* the same, the names are patterns */
    QN_SHAPE_ITEMS,           /* a schema, or before 2020-12 an array of schemas */
    QN_SHAPE_DEPENDENCIES,    /* an object of schemas and arrays of strings */
} qn_shape;

/* X(kind, name, shape, drafts that have it), in the order they are applied in. */
#define QN_KEYWORD_LIST(X)                                                 \
    X(REF, "$ref", REF, ALL)                                               \
    X(DYNAMIC_REF, "$dynamicRef", REF, QN_DRAFT_2020 | QN_DRAFT_NONE)      \
    X(RECURSIVE_REF, "$recursiveRef", REF, QN_DRAFT_2019)                  \
    X(TYPE, "type", TYPES, ALL)                                            \
    X(ENUM, "enum", VALUES, ALL)                                           \
    X(CONST, "const", VALUE, ALL & ~QN_DRAFT_4)                            \
    X(MULTIPLE_OF, "multipleOf", DIVISOR, ALL)                             \
    X(MAXIMUM, "maximum", NUMBER, ALL)                                     \
    X(EXCLUSIVE_MAXIMUM, "exclusiveMaximum", BOUND, ALL)                   \
    X(MINIMUM, "minimum", NUMBER, ALL)                                     \
    X(EXCLUSIVE_MINIMUM, "exclusiveMinimum", BOUND, ALL)                   \
    X(MAX_LENGTH, "maxLength", COUNT, ALL)                                 \
    X(MIN_LENGTH, "minLength", COUNT, ALL)                                 \
    X(PATTERN, "pattern", PATTERN, ALL)                                    \
    X(FORMAT, "format", FORMAT, ALL)                                       \
    X(CONTENT_ENCODING, "contentEncoding", FORMAT, QN_DRAFT_7)             \
    X(CONTENT_MEDIA_TYPE, "contentMediaType", FORMAT, QN_DRAFT_7)          \
    X(MAX_ITEMS, "maxItems", COUNT, ALL)                                   \
    X(MIN_ITEMS, "minItems", COUNT, ALL)                                   \
    X(UNIQUE_ITEMS, "uniqueItems", BOOLEAN, ALL)                           \
    X(MAX_PROPERTIES, "maxProperties", COUNT, ALL)                         \
    X(MIN_PROPERTIES, "minProperties", COUNT, ALL)                         \
    X(REQUIRED, "required", NAMES, ALL)                                    \
    X(DEPENDENT_REQUIRED, "dependentRequired", NAMES_BY_NAME, SINCE_2019)  \
    X(PROPERTY_NAMES, "propertyNames", SCHEMA, ALL & ~QN_DRAFT_4)          \
    X(PROPERTIES, "properties", SCHEMA_BY_NAME, ALL)                       \
    X(PATTERN_PROPERTIES, "patternProperties", SCHEMA_BY_REGEX, ALL)       \
    X(ADDITIONAL_PROPERTIES, "additionalProperties", SCHEMA, ALL)          \
    X(PREFIX_ITEMS, "prefixItems", SCHEMAS, QN_DRAFT_2020 | QN_DRAFT_NONE) \
    X(ITEMS, "items", ITEMS, ALL)                                          \
    X(ADDITIONAL_ITEMS, "additionalItems", SCHEMA, ALL & ~QN_DRAFT_2020)   \
    X(CONTAINS, "contains", SCHEMA, ALL & ~QN_DRAFT_4)                     \
    X(MAX_CONTAINS, "maxContains", COUNT, SINCE_2019)                      \
    X(MIN_CONTAINS, "minContains", COUNT, SINCE_2019)                      \
    X(ALL_OF, "allOf", SCHEMAS, ALL)                                       \
    X(ANY_OF, "anyOf", SCHEMAS, ALL)                                       \
    X(ONE_OF, "oneOf", SCHEMAS, ALL)                                       \
    X(NOT, "not", SCHEMA, ALL)                                             \
    X(IF, "if", SCHEMA, SINCE_2019 | QN_DRAFT_7)                           \
    X(THEN, "then", SCHEMA, SINCE_2019 | QN_DRAFT_7)                       \
    X(ELSE, "else", SCHEMA, SINCE_2019 | QN_DRAFT_7)                       \
    X(DEPENDENCIES, "dependencies", DEPENDENCIES, ALL)                     \
    X(DEPENDENT_SCHEMAS, "dependentSchemas", SCHEMA_BY_NAME, SINCE_2019)   \
    X(UNEVALUATED_ITEMS, "unevaluatedItems", SCHEMA, SINCE_2019)           \
    X(UNEVALUATED_PROPERTIES, "unevaluatedProperties", SCHEMA, SINCE_2019) \
    X(DEFS, "$defs", SCHEMA_BY_NAME, SINCE_2019)                           \
    X(DEFINITIONS, "definitions", SCHEMA_BY_NAME, ALL)                     \
    X(CONTENT_SCHEMA, "contentSchema", SCHEMA, SINCE_2019)

typedef enum {
#define QN_KEYWORD_ENUM(kind, name, shape, drafts) QN_KEYWORD_##kind,
    QN_KEYWORD_LIST(QN_KEYWORD_ENUM)
#undef QN_KEYWORD_ENUM
        QN_KEYWORD_COUNT
} qn_keyword;

static inline int qn_keyword_is_format(qn_keyword kind)
{
    return kind == QN_KEYWORD_FORMAT || kind == QN_KEYWORD_CONTENT_ENCODING ||
           kind == QN_KEYWORD_CONTENT_MEDIA_TYPE;
}

typedef struct qn_subschema qn_subschema;
typedef struct qn_resource qn_resource;

typedef struct {
    uint64_t hash;
    uint32_t index;
} qn_enum_value;

/* A keyword where it stands. */
typedef struct {
    uint8_t kind;
    const qn_value *value;
    union {
        qn_subschema *one;
        struct {
            qn_subschema **many; /* [value->n]; of dependencies NULL where names stand */
            qn_dfa **patterns;   /* [value->n], of patternProperties */
        };
        struct {
            qn_dfa *automaton; /* of pattern and format; NULL: an annotation */
        };
        struct {
            qn_subschema *target;     /* of references */
            const char *dynamic_name; /* the reference goes to the outermost dynamic anchor of this name */
        };
        int64_t count;
        uint32_t types;        /* bits of qn_value_kind, and QN_TYPE_INTEGER */
        qn_enum_value *sorted; /* of a long enum: its values by hash; NULL: look at each */
    };
} qn_keyword_use;

enum { QN_TYPE_INTEGER = 1 << 8 };

struct qn_subschema {
    const qn_value *node;
    const qn_resource *resource;
    qn_subschema *next; /* of the document, in the order they were read */
    qn_keyword_use *uses;
    uint32_t n_uses;
    uint8_t is_boolean, accepts; /* true and false as schemas */
    uint8_t wants_marks;         /* has unevaluatedItems or unevaluatedProperties */
};

typedef struct qn_anchor qn_anchor;
struct qn_anchor {
    const qn_anchor *next;
    const char *name;
    size_t n;
    int is_dynamic;
    qn_subschema *schema;
};

struct qn_resource {
    const char *uri;  /* without a fragment; "" if there is none */
    int is_ambiguous; /* another resource has this URI too */
    qn_draft draft;
    int is_recursive; /* its root has $recursiveAnchor true */
    qn_subschema *root;
    const qn_value *root_node;
    qn_anchor *anchors;
};

struct qn_schema {
    qn_arena arena;
    qn_schema_limits limits;
    const qn_value *document;
    qn_subschema *root, *first, *last;
    size_t n_anchors;
    qn_map *by_node;                        /* address of a value -> its subschema */
    qn_map *by_uri;                         /* -> resource */
    qn_map *patterns, *formats, *encodings; /* text -> index into automata */
    qn_dfa **automata;                      /* counted */
    size_t n_automata, automata_room, automata_bytes;
    qn_schema_note *notes;
    size_t n_notes, notes_room;
    int has_marks; /* some subschema wants marks */
};

const char *qn_keyword_name(qn_keyword kind);
/* NULL: s has no such keyword. */
const qn_keyword_use *qn_subschema_get(const qn_subschema *s, qn_keyword kind);
/* Fails with "POINTER: KEYWORD: why" for the keyword whose value this is. */
qn_status qn_schema_fail(qn_status status, const qn_value *keyword, const char *fmt, ...) QN_PRINTF(3, 4);

/* schema_read.c: makes the subschema of a node and of all below it that are known to be schemas. */
qn_status qn_schema_read_node(qn_schema *s, const qn_value *node, qn_resource *resource, qn_subschema **out);
/* The subschema that was made of this node; NULL: none. */
qn_subschema *qn_schema_find(const qn_schema *s, const qn_value *node);
/* schema_refs.c: finds what the references of u, a keyword of a subschema, mean. May read nodes. */
qn_status qn_schema_resolve(qn_schema *s, const qn_subschema *of, qn_keyword_use *u);
/* Resolves $id at a base and adds a resource. */
qn_status qn_schema_add_resource(qn_schema *s, const char *base, const char *id, size_t n, qn_draft draft,
                                 const qn_value *node, qn_resource **out);
qn_status qn_schema_add_anchor(qn_schema *s, qn_resource *r, const qn_value *keyword, const char *name,
                               size_t n, int is_dynamic, qn_subschema *schema);
/* schema_automata.c */
qn_status qn_schema_automaton(qn_schema *s, const qn_value *keyword, const char *text, size_t n,
                              qn_keyword kind, qn_dfa **out);
qn_status qn_schema_add_note(qn_schema *s, const qn_value *keyword, const char *fmt, ...) QN_PRINTF(3, 4);

#endif

/* Tokens to a tree: Jinja's grammar as transformers enables it (loop controls, generation blocks), plus `do`.
 * include, import, from and extends are refused: a chat template is one text.
 * A finished program is read only and may be run by several threads at once. */
#ifndef QN_TEXT_JINJA_PARSE_H
#define QN_TEXT_JINJA_PARSE_H

#include "text/jinja/lex.h"

typedef enum {
    /* expressions */
    QN_JNODE_CONST,   /* value */
    QN_JNODE_NAME,    /* name */
    QN_JNODE_TUPLE,   /* items */
    QN_JNODE_LIST,    /* items */
    QN_JNODE_DICT,    /* items: key, value, key, value... */
    QN_JNODE_GETATTR, /* a . value */
    QN_JNODE_GETITEM, /* a [ b ] */
    QN_JNODE_SLICE,   /* a : b : c, each may be NULL */
    QN_JNODE_CALL,    /* a ( args ) */
    QN_JNODE_FILTER,  /* a | callee ( args ); a NULL: the body of a block */
    QN_JNODE_TEST,    /* a is callee ( args ) */
    QN_JNODE_UNARY,   /* op a: '-', '+' */
    QN_JNODE_NOT,     /* not a */
    QN_JNODE_BINARY,  /* a op b */
    QN_JNODE_CONCAT,  /* items joined by ~ */
    QN_JNODE_COMPARE, /* items[0] ops[0] items[1] ops[1] ... */
    QN_JNODE_AND,     /* a and b */
    QN_JNODE_OR,      /* a or b */
    QN_JNODE_COND,    /* a if b else c (c may be NULL) */
    QN_JNODE_NSREF,   /* name . value, as a target */
    /* statements */
    QN_JNODE_DATA,     /* value: text */
    QN_JNODE_PRINT,    /* a */
    QN_JNODE_IF,       /* items: condition, body, condition, body, ..., NULL condition for else */
    QN_JNODE_FOR,      /* a: target, b: iterable, c: filter or NULL, items: body, else_items; op: recursive */
    QN_JNODE_SET,      /* a = b */
    QN_JNODE_SET_BODY, /* a = items, through the filter b (may be NULL) */
    QN_JNODE_MACRO,    /* name, params, items */
    QN_JNODE_CALL_BODY,   /* a: the call; params, items: the caller */
    QN_JNODE_FILTER_BODY, /* items through the filter b */
    QN_JNODE_WITH,        /* targets and values in args->items, body in items */
    QN_JNODE_SCOPE,       /* items in a scope of their own; params: of a block that self may call */
    QN_JNODE_GENERATION,  /* the same, and its place in the output is reported */
    QN_JNODE_BODY,        /* items */
    QN_JNODE_DO,          /* a, result dropped */
    QN_JNODE_BREAK,
    QN_JNODE_CONTINUE,
} qn_jnode_kind;

typedef struct qn_jnode qn_jnode;

typedef struct {
    qn_jnode **items;
    uint32_t n;
    qn_jvalue *names; /* of the keyword arguments */
    qn_jnode **named;
    uint32_t n_named;
    qn_jnode *star, *star_star;
} qn_jcall;

typedef struct {
    int32_t *names;
    qn_jnode **defaults; /* NULL: none */
    uint32_t n;
    int uses_varargs, uses_kwargs; /* the body reads `varargs`, `kwargs` */
} qn_jparams;

struct qn_jnode {
    uint8_t kind, op;
    uint16_t height; /* of the tree below, 1 for a leaf */
    uint32_t line;
    int32_t name; /* place in the program's names */
    uint32_t n_items, n_else;
    qn_jnode *a, *b, *c;
    qn_jnode **items, **else_items;
    uint8_t *ops;
    qn_jcall *args;
    qn_jparams *params;
    const void *callee; /* filter or test; NULL: unknown, an error when reached */
    qn_jvalue value;
};

typedef struct {
    qn_jnode **body;
    uint32_t n_body;
    qn_jvalue *names; /* strings; a name node holds its place */
    uint32_t n_names;
    int32_t place_loop, place_caller, place_varargs, place_kwargs, place_self; /* of these; -1: never read */
    qn_jnode **blocks; /* [n_blocks], in their order; `name` is the block's */
    uint32_t n_blocks;
} qn_jprogram;

enum { QN_JPARSE_DEPTH_MAX = 160, QN_JPARSE_HEIGHT_MAX = 600, QN_JTEMPLATE_BYTES_MAX = 1 << 20 };

/* Everything of the program lies in h. Messages start with "line N: ". */
qn_status qn_jparse(qn_jheap *h, const char *text, size_t n, qn_jprogram *program);

#endif

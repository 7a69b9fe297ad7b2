/* The parser at work: its state, tokens, nodes and lists; shared by parse.c (statements) and
 * parse_expr.c. Lives for one call of qn_jparse. */
#ifndef QN_TEXT_JINJA_PARSER_H
#define QN_TEXT_JINJA_PARSER_H

#include "base/map.h"
#include "text/jinja/parse.h"

/* The macros around the current place, innermost first. */
typedef struct qn_jmacro_scope {
    struct qn_jmacro_scope *outer;
    qn_jparams *params;
} qn_jmacro_scope;

/* A list that grows in the heap. */
typedef struct {
    qn_jnode **items;
    uint32_t n, capacity;
} qn_jnode_list;

typedef struct {
    qn_jheap *heap;
    const qn_jtoken *token; /* the current one; the last is QN_JTOKEN_END and is never passed */
    uint32_t depth;
    qn_map *name_places;
    qn_jvalue *names;
    uint32_t n_names, names_capacity;
    qn_jmacro_scope *macro;
    qn_jnode_list blocks;
    int loops; /* open for-bodies, for break and continue */
} qn_jparser;

/* "line N: ..."; QN_E_FORMAT. */
qn_status qn_jparser_fail(const qn_jparser *p, const char *fmt, ...) QN_PRINTF(2, 3);
/* "expected WANTED, found ..." */
qn_status qn_jparser_fail_unexpected(const qn_jparser *p, const char *wanted);
/* One level deeper; p->depth-- leaves it. */
qn_status qn_jparser_enter(qn_jparser *p);

/* The current token: at_ looks, skip_ also consumes it when it is the one, expect_ fails when it is not. */
int qn_jparser_at_op(const qn_jparser *p, int op);
int qn_jparser_at_name(const qn_jparser *p, const char *name);
int qn_jparser_is_name(const qn_jtoken *t, const char *name);
int qn_jparser_skip_op(qn_jparser *p, int op);
int qn_jparser_skip_name(qn_jparser *p, const char *name);
qn_status qn_jparser_expect_op(qn_jparser *p, int op);
qn_status qn_jparser_expect_kind(qn_jparser *p, qn_jtoken_kind kind, const char *wanted);
qn_status qn_jparser_expect_name(qn_jparser *p, int32_t *place);
/* What t is, for a message. */
void qn_jparser_describe(const qn_jtoken *t, char *out, size_t size);

/* Children may be NULL. */
qn_status qn_jparser_new_node(qn_jparser *p, qn_jnode_kind kind, uint32_t line, qn_jnode *a, qn_jnode *b,
                              qn_jnode *c, qn_jnode **out);
/* n is above child; child may be NULL. */
qn_status qn_jparser_raise_height(const qn_jparser *p, qn_jnode *n, const qn_jnode *child);
qn_status qn_jparser_add_node(qn_jparser *p, qn_jnode_list *list, qn_jnode *n);
qn_status qn_jparser_set_items(qn_jparser *p, qn_jnode *n, qn_jnode_list list);
/* A string for all threads that will run the program. */
qn_status qn_jparser_constant_text(qn_jparser *p, const char *text, size_t n, qn_jvalue *out);
qn_status qn_jparser_name_place(qn_jparser *p, const qn_jtoken *t, int32_t *place);

/* parse_expr.c */
typedef enum { QN_JTUPLE_FULL, QN_JTUPLE_NO_CONDITION, QN_JTUPLE_TARGET } qn_jtuple_mode;

qn_status qn_jparser_expression(qn_jparser *p, int with_condition, qn_jnode **out);
/* One expression, or several with commas: a tuple. end: a name that also ends it. parentheses: it may be
 * empty. */
qn_status qn_jparser_tuple(qn_jparser *p, qn_jtuple_mode mode, const char *end, int parentheses,
                           qn_jnode **out);
/* A filter, after the bar; *n is its operand (NULL for the body of a block) and then the filter. */
qn_status qn_jparser_filter(qn_jparser *p, qn_jnode **n);

#endif

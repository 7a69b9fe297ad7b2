/* What the files of tools.c share: graphs of calls, made from their end to their begin. Private to these files.
 *
 * Each qn_put function adds what comes before the node `next` and gives the node where it begins. */
#ifndef QN_CONSTRAIN_TOOLS_PARTS_H
#define QN_CONSTRAIN_TOOLS_PARTS_H

#include <jansson.h>

#include "constrain/constraint_parts.h"
#include "text/tools/tool_formats.h"

typedef struct {
    const char *name;
    int32_t arguments;        /* value: objects */
    const json_t *parameters; /* its schema, borrowed; NULL: none, or one that is not held to */
} qn_tool;

typedef struct {
    qn_constraint *c;
    const qn_call_format *f;
    qn_tool *tools;
    size_t n_tools;
    int is_one; /* one call alone */
    /* LOOSE: the node of each value that was put so far; 0: not yet */
    uint32_t *parts;
    size_t n_parts;
    int n_nested;
} qn_tools;

/* ---- tools_graph.c ---- */

/* Bytes as they are. */
qn_status qn_put_bytes(qn_constraint *c, const char *text, size_t n, uint32_t next, uint32_t *out);
/* Text in which special tokens stand for themselves. One that ends answers is left out. */
qn_status qn_put_text(qn_constraint *c, const char *text, uint32_t next, uint32_t *out);
qn_status qn_put_choice(qn_constraint *c, uint32_t a, uint32_t b, uint32_t *out);
/* The same with what *some is; *some 0: a alone. */
qn_status qn_put_other(qn_constraint *c, uint32_t a, uint32_t *some);
/* Perhaps a line end. */
qn_status qn_put_line_end(qn_constraint *c, uint32_t next, uint32_t *out);
qn_status qn_put_value(qn_constraint *c, int32_t value, uint32_t next, uint32_t *out);
/* A text of the automaton, which is taken over, also on failure. */
qn_status qn_put_dfa(qn_constraint *c, qn_dfa *d, uint32_t next, uint32_t *out);
qn_status qn_put_regex(qn_constraint *c, const char *pattern, uint32_t next, uint32_t *out);
/* 1: the mark is a token that ends answers. */
int qn_is_end_mark(const qn_constraint *c, const char *mark);

/* Marks of a free text. A special token's spelling in other tokens does not come. */
enum { QN_MARKS_MAX = 24 };
typedef struct {
    qn_scan_mark marks[QN_MARKS_MAX];
    size_t n;
} qn_marks;
/* mark may be NULL: nothing is added. */
void qn_marks_add(const qn_constraint *c, qn_marks *m, const char *mark, qn_scan_kind kind);
enum { QN_FREE_MAY_END = 1, QN_FREE_TEXT = 2 /* no special tokens */ };
qn_status qn_put_free(qn_constraint *c, const qn_marks *m, unsigned flags, uint32_t next, uint32_t *out);
/* The texts of d without those that contain mark; d is taken over, also on failure. mark may be NULL. */
qn_status qn_without(const qn_constraint *c, qn_dfa *d, const char *mark, qn_dfa **out);
/* The names that a regular expression takes, and automaton `which` of the program too, if it is not QN_NONE. The caller
 * releases it. *out NULL: there are none. */
qn_status qn_names_dfa(qn_constraint *c, const char *pattern, int32_t which, qn_dfa **out);
/* One member more, at the node `member`, before those that are there. *first: where the members begin, *more: where they
 * go on behind another one, with the separator. */
qn_status qn_put_member(qn_constraint *c, int is_required, uint32_t member, const char *separator,
                        uint32_t *first, uint32_t *more);
/* The automaton of a string of the program; the caller releases it. */
qn_status qn_string_dfa(qn_constraint *c, int32_t string, qn_dfa **out);

/* ---- the bodies of calls ---- */

/* tools_marks.c: TAGS, KEYS, NAMED: the call of a tool, without what opens and closes all calls. */
qn_status qn_put_marked_call(qn_tools *k, const qn_tool *t, uint32_t next, uint32_t *out);
/* tools_loose.c: call:NAME{...} */
qn_status qn_put_loose_call(qn_tools *k, const qn_tool *t, uint32_t next, uint32_t *out);

/* tools_python.c: PYTHON: all calls, without what opens and closes them. is_one: one call alone. */
qn_status qn_put_python_calls(qn_tools *k, int is_one, uint32_t next, uint32_t *out);

/* ---- tools_messages.c: families whose messages have headers ---- */

/* A whole answer. in_text: it does not begin inside a header. */
qn_status qn_put_messages(qn_tools *k, int is_free, int in_text, uint32_t *out);

#endif

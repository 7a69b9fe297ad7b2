/* Rows that say how families of models write calls of tools and reasoning: data for tool_calls.c (where in an
 * answer a call is) and tool_reader.c (what it says). Static, read-only. */
#ifndef QN_TEXT_TOOLS_TOOL_FORMATS_H
#define QN_TEXT_TOOLS_TOOL_FORMATS_H

#include "text/tools/tool_calls.h"

/* What stands between open and close. */
typedef enum {
    QN_CALL_JSON,   /* objects with a name and arguments, one after the other or in arrays */
    QN_CALL_KEYED,  /* objects of one member: its key is the name, its value the arguments */
    QN_CALL_TAGS,   /* elements with one element per parameter: marks.call_open and on */
    QN_CALL_KEYS,   /* the name, then pairs of marks.key_open and marks.parameter_open */
    QN_CALL_LOOSE,  /* call:NAME{...} with bare keys and a token for quotes */
    QN_CALL_PYTHON, /* NAME(key=value, ...) with literals of Python or JSON, one after the other or in a list;
                       what begins with { is read as QN_CALL_JSON */
    QN_CALL_NAMED   /* marks.call_open NAME marks.name_end {JSON} marks.call_close; without call_open and
                      call_close the text is one such call */
} qn_call_body;

typedef struct {
    const char *call_open, *name_end, *call_close;
    const char *id_open;              /* QN_CALL_NAMED: between the name and its id; NULL: there is none */
    const char *key_open, *key_close; /* QN_CALL_KEYS */
    const char *parameter_open, *parameter_name_end, *parameter_close;
    int value_lines; /* a value stands on lines of its own */
} qn_call_marks;

enum { QN_CALL_EVIDENCE = 3, QN_CALL_DROPS = 4, QN_CALL_HEADERS = 2, QN_CALL_TYPES = 3 };

/* Messages with a header each (harmony): header_open HEADER header_close text end. */
typedef struct {
    const char *open, *close; /* NULL: the family has none */
    const char *reasoning;    /* in a header, no part of a longer word: the text is reasoning */
    const char *call;    /* in a header, before the name: the text is arguments; "": every header is a name */
    const char *content; /* the header that is no name, when call is ""; such a header ends with its line */
    /* As the model writes them, for constraints. */
    const char *role;                              /* behind open, where the prompt does not end with it */
    const char *reasoning_header, *content_header; /* between role and close; NULL: none */
    struct {
        const char *before, *after; /* the name; before NULL: no more rows */
    } call_headers[QN_CALL_HEADERS];
    const char *types[QN_CALL_TYPES]; /* what may stand before close where JSON follows */
    const char *next;                 /* ends a message that another follows; "": the next header does */
    const char *last;                 /* ends the last message; NULL: nothing does */
} qn_header_marks;

struct qn_call_format {
    const char *name;
    const char *evidence[QN_CALL_EVIDENCE][2]; /* a template that contains the texts of one row writes so */
    const char *open, *close;                  /* close NULL: a call ends with its JSON value */
    int is_bare; /* open and close belong to the call; without a mark of its own it counts at the
                                 beginning of an answer only, and what is not a call is plain content */
    qn_call_body body;
    const char *name_key, *arguments_key; /* JSON, as the model writes them; NULL: "name", "arguments" */
    int writes_array;                     /* JSON, KEYED, PYTHON: calls stand in brackets, parted by commas */
    qn_call_marks marks;
    qn_header_marks header;
    const char *drop[QN_CALL_DROPS]; /* marks that are nobody's text; with headers: ends of messages */
};

struct qn_reasoning_format {
    const char *open, *close; /* the close is the evidence */
};

#endif

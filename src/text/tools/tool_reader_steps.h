/* What the files of tool_reader.c share: each function reads one item of the text at hand, or waits for the
 * rest of it. Private to these files. */
#ifndef QN_TEXT_TOOLS_TOOL_READER_STEPS_H
#define QN_TEXT_TOOLS_TOOL_READER_STEPS_H

#include "text/tools/tool_reader.h"

typedef enum {
    QN_STEP_ON,
    QN_STEP_WAIT, /* the item is not whole yet */
    QN_STEP_BAD,  /* the text at `at` is not what may stand there */
    QN_STEP_END,  /* the text of the calls is over */
    QN_STEP_NOMEM
} qn_step;

/* Steps, by the file that takes them. */
enum {
    /* tool_reader.c */
    QN_READ_HEADER_BODY,
    QN_READ_HEADER_END,
    QN_READ_ARGUMENTS,
    QN_READ_OBJECT,
    QN_READ_TEXT_OBJECT, /* an object that is written as a JSON string */
    QN_READ_TEXT_END,
    /* tool_reader_json.c */
    QN_READ_NEXT,
    QN_READ_SEPARATED,
    QN_READ_ARRAY_FIRST,
    QN_READ_ARRAY_ELEMENT,
    QN_READ_ARRAY_AFTER,
    QN_READ_FIRST_KEY,
    QN_READ_KEY,
    QN_READ_COLON,
    QN_READ_VALUE,
    QN_READ_SKIPPED,
    QN_READ_AFTER_VALUE,
    QN_READ_NAMED_OPEN,
    QN_READ_NAMED_NAME,
    QN_READ_NAMED_BODY,
    QN_READ_NAMED_LANGUAGE,
    QN_READ_NAMED_AFTER,
    /* tool_reader_tags.c */
    QN_READ_TAG_OPEN,
    QN_READ_TAG_NAME,
    QN_READ_TAG_NAME_END,
    QN_READ_TAG_NEXT,
    QN_READ_TAG_KEY,
    QN_READ_TAG_ATTRIBUTES,
    QN_READ_KEYS_NAME,
    QN_READ_KEYS_KEY,
    QN_READ_KEYS_VALUE,
    QN_READ_KEYS_NEXT,
    QN_READ_MEMBER,
    QN_READ_MEMBER_TEXT,
    QN_READ_MEMBER_WHOLE,
    QN_READ_MEMBER_CDATA,
    QN_READ_CDATA_END,
    /* tool_reader_loose.c */
    QN_READ_LOOSE_NAME,
    QN_READ_LOOSE_OBJECT,
    QN_READ_LOOSE_FIRST,
    QN_READ_LOOSE_ELEMENT,
    QN_READ_LOOSE_COLON,
    QN_READ_LOOSE_VALUE,
    QN_READ_LOOSE_TEXT,
    QN_READ_LOOSE_AFTER,
    QN_READ_LOOSE_END,
    /* tool_reader_python.c */
    QN_READ_PYTHON_FIRST,
    QN_READ_PYTHON_NEXT,
    QN_READ_PYTHON_TEXT,
    QN_READ_PYTHON_CALLED,
    QN_READ_PYTHON_END
};

qn_step qn_read_json(qn_call_reader *r);
qn_step qn_read_tags(qn_call_reader *r);
qn_step qn_read_loose(qn_call_reader *r);
qn_step qn_read_python(qn_call_reader *r);
/* LOOSE, PYTHON: a value is complete; what follows it is read next, behind the last one of a call r->after. */
qn_step qn_read_loose_end_value(qn_call_reader *r);
/* PYTHON: r reads the names and values between a call's brackets. */
int qn_read_is_in_call(const qn_call_reader *r);

/* ---- items ---- */

typedef struct {
    const char *p;
    size_t n;
} qn_slice;

qn_slice qn_slice_trim(qn_slice s);
int qn_slice_is(qn_slice s, const char *text);
/* Skips white space. QN_STEP_WAIT: nothing is left. */
qn_step qn_read_space(qn_call_reader *r);
/* ON: `mark` is at `at`. BAD: it is not. A mark of NULL is nowhere. */
qn_step qn_read_looks_at(const qn_call_reader *r, size_t at, const char *mark);
/* The same, and moves behind it. */
qn_step qn_read_mark(qn_call_reader *r, const char *mark);
/* ON: *before is what stands before the nearest of the two marks, *found that mark; `at` stays. BAD: the text
 * ends without. */
qn_step qn_read_find(qn_call_reader *r, const char *mark, const char *other, qn_slice *before,
                     const char **found);
/* ON: the text of the calls ends here, and its mark is read. BAD: it does not. */
qn_step qn_read_end(qn_call_reader *r);
/* Appends text[0..n) to r->piece, escaped as a part of a JSON string. */
qn_step qn_read_put_escaped(qn_call_reader *r, const char *text, size_t n);
/* Length of the whole character at `at`, of an invalid one too; 0: its rest is to come. */
size_t qn_read_character(const qn_call_reader *r);
/* Text up to `end`, escaped for a JSON string, goes to r->piece; `at` follows, behind `end` when ON.
 * end_line: a line feed before `end` belongs to it. BAD: `bad` comes first. Says nothing by itself. */
qn_step qn_read_text(qn_call_reader *r, const char *end, const char *bad, int end_line);

/* ---- the call ---- */

qn_step qn_read_set_name(qn_call_reader *r, qn_slice name);
/* Says r->piece as arguments, or keeps it while the name is not known, and empties it. */
qn_step qn_read_say(qn_call_reader *r);
/* The arguments are complete. */
qn_step qn_read_arguments_end(qn_call_reader *r);
/* The call is complete; without arguments these are {}. BAD: it has no name. */
qn_step qn_read_call_end(qn_call_reader *r);
/* Reads arguments from here: an object, a string that holds one, or null. then: the step behind. */
qn_step qn_read_begin_arguments(qn_call_reader *r, int then);
qn_step qn_read_memory(qn_status status);

#endif

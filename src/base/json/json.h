/* JSON through jansson, behind our own limits: depth and size are scanned before jansson sees a byte, so that
 * no hostile text can exhaust the stack. Values are jansson's (json_t); include <jansson.h> where they are
 * walked. */
#ifndef QN_BASE_JSON_JSON_H
#define QN_BASE_JSON_JSON_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

enum {
    QN_JSON_DEPTH_MAX = 96,
    QN_JSON_DIGITS_MAX = 4300 /* of an exact integer: what Python's json module reads */
};

/* Parses text[0..n). what names the source in messages ("config.json"). *out is owned by the caller
 * (json_decref). Integers beyond 64 bits become real numbers. Duplicate keys are refused; NaN and Infinity
 * are not JSON. */
qn_status qn_json_parse(const char *what, const char *text, size_t n, json_t **out);
/* The same for values that reach a chat template: integers beyond 64 bits stay exact. In the tree each is an array that
 * no JSON text can hold, so a reader that expects a number, a text, an object or a list of these refuses it. */
qn_status qn_json_parse_exact(const char *what, const char *text, size_t n, json_t **out);
/* The digits of such an integer, the sign before them, ended by a NUL; NULL if the value is anything else. They live as
 * long as the value. */
const char *qn_json_digits(const json_t *value);
/* As qn_json_parse_exact, for texts that models wrote: of members with one key the last counts, as in Python and
 * JavaScript. */
qn_status qn_json_parse_lenient(const char *what, const char *text, size_t n, json_t **out);
/* As qn_json_parse_exact, of one line of a file: messages say the column alone, the caller which line it is. */
qn_status qn_json_parse_line(const char *what, const char *text, size_t n, json_t **out);
/* As qn_json_parse, for files that Python's json module wrote: the bare words NaN, Infinity and -Infinity become strings. A
 * field that is used is then refused as no number; one that is not may hold anything. */
qn_status qn_json_parse_python(const char *what, const char *text, size_t n, json_t **out);
/* The way back: takes the quotes off such values in a JSON text that we wrote, in place. */
void qn_json_unquote_python(char *text);
/* Appends the text of a value that holds no exact integer; flags are jansson's (JSON_COMPACT). Use it in place of
 * json_dumps, which leaves keys out when memory runs out. base/json/json_value.h writes exact integers too. */
qn_status qn_json_write(qn_buf *out, const json_t *value, size_t flags);
/* A copy of an object or array, its members shared; NULL (and no message) when memory is out. json_copy
 * leaves members out then. */
json_t *qn_json_copy(const json_t *value);
/* About how many bytes a text of n bytes takes as values, from above, the text itself not counted. Counts brackets,
 * commas, colons and quotes, so it is linear and needs no memory. */
size_t qn_json_cost(const char *text, size_t n);
/* Checks nesting depth and balance of quotes only; 0 when too deep. */
int qn_json_depth_ok(const char *text, size_t n, int depth_max);

#endif

/* A pull parser for large JSON texts (a tokenizer.json has up to two million values): one pass, no tree,
 * strings without escapes are views into the text.
 *
 * The caller walks: qn_json_pull_enter, then qn_json_pull_next until it says 0, and between these reads or
 * skips exactly one value. The first failure sticks; its message names source, line and column. Strict JSON,
 * strict UTF-8, no lone surrogates. One thread at a time. */
#ifndef QN_BASE_JSON_JSON_PULL_H
#define QN_BASE_JSON_JSON_PULL_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

typedef struct {
    const char *what; /* names the source in messages */
    const char *text;
    size_t n, at;
    int depth;
    uint8_t fresh;  /* a container was just entered: no comma before its first element */
    qn_buf scratch; /* holds the last string that had escapes */
} qn_json_pull;

typedef struct {
    const char *data; /* not NUL-terminated; valid until the next string is read */
    size_t n;
} qn_json_text;

void qn_json_pull_init(qn_json_pull *p, const char *what, const char *text, size_t n);
void qn_json_pull_free(qn_json_pull *p);

/* First byte of the next value: one of { [ " - 0-9 t f n, or 0 at the end of the text. */
char qn_json_pull_peek(qn_json_pull *p);
/* Enters an object ('{') or an array ('['). */
qn_status qn_json_pull_enter(qn_json_pull *p, char open);
/* In an object: *more says whether there is another member; its key is in *key. */
qn_status qn_json_pull_key(qn_json_pull *p, int *more, qn_json_text *key);
/* In an array: *more says whether there is another element. */
qn_status qn_json_pull_element(qn_json_pull *p, int *more);
qn_status qn_json_pull_string(qn_json_pull *p, qn_json_text *out);
/* An integer without fraction or exponent in [min, max]. */
qn_status qn_json_pull_i64(qn_json_pull *p, int64_t min, int64_t max, int64_t *out);
qn_status qn_json_pull_bool(qn_json_pull *p, int *out);
/* Reads any value and drops it; *out (may be NULL) is its text. Checks structure, strings and nesting, not
 * UTF-8. */
qn_status qn_json_pull_skip(qn_json_pull *p, qn_json_text *out);
/* The same; *count: elements or members of an array or object that is not empty, 1 of any other value. */
qn_status qn_json_pull_skip_counted(qn_json_pull *p, qn_json_text *out, size_t *count);
/* Only white space may be left. */
qn_status qn_json_pull_end(qn_json_pull *p);
/* QN_E_FORMAT with source, line and column. */
qn_status qn_json_pull_fail(const qn_json_pull *p, const char *fmt, ...) QN_PRINTF(2, 3);
int qn_json_text_is(qn_json_text s, const char *literal);

#endif

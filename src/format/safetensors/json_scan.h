/* A pull scanner for the JSON inside file formats (safetensors headers, shard indexes): it walks text of any
 * length without building a tree, so memory is what the caller keeps. The first failure sticks in `status`
 * with its message set (it names the source and the byte); afterwards every call returns 0, so a caller may
 * loop freely and look at the status once. Nesting is the caller's own plus at most QN_SCAN_DEPTH_MAX levels
 * of skipped values. One thread at a time. */
#ifndef QN_FORMAT_SAFETENSORS_JSON_SCAN_H
#define QN_FORMAT_SAFETENSORS_JSON_SCAN_H

#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"

enum { QN_SCAN_DEPTH_MAX = 32 };

typedef struct {
    const char *what; /* names the source in messages */
    const char *begin, *at, *end;
    qn_arena *arena; /* strings are copied here */
    qn_status status;
} qn_json_scan;

/* Objects: if (qn_scan_begin(s, '{')) while (qn_scan_key(s, &first, &key, &n)) { ...exactly one value... }
 * Arrays:  if (qn_scan_begin(s, '[')) while (qn_scan_element(s, &first)) { ...exactly one value... }
 * `first` is 1 before the first call. Keys come NUL-terminated and unescaped, without embedded NULs. */
int qn_scan_begin(qn_json_scan *s, char open);
int qn_scan_key(qn_json_scan *s, int *first, char **key, size_t *n);
int qn_scan_element(qn_json_scan *s, int *first);
int qn_scan_string(qn_json_scan *s, char **text, size_t *n);
/* An integer in [0, 2^63) without sign, fraction or exponent. */
int qn_scan_count(qn_json_scan *s, int64_t *out);
/* 1: the next value was null, and is passed; 0: it is something else, and still the next. */
int qn_scan_null(qn_json_scan *s);
/* Any value. */
int qn_scan_skip(qn_json_scan *s);
/* Nothing but white space is left. */
int qn_scan_end(qn_json_scan *s);
/* Sets status and "what: byte N: text"; returns 0. */
int qn_scan_fail(qn_json_scan *s, const char *text);

#endif

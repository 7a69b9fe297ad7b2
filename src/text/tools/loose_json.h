/* Values that are nearly JSON, as models write them in calls of tools: Python literals ({'dry': True}) and
 * Gemma's {city:<|"|>Paris<|"|>}, made JSON. Bare keys, single quotes, tuples, and True, False, None in
 * either spelling are understood; nothing is guessed. Pure functions: any thread. */
#ifndef QN_TEXT_TOOLS_LOOSE_JSON_H
#define QN_TEXT_TOOLS_LOOSE_JSON_H

#include <stddef.h>

#include "base/buf.h"
#include "base/status.h"

/* One value at text[*at..n), white space before it skipped; appends its JSON to out and moves *at behind it.
 * QN_E_FORMAT: it is none, or nested too deeply; out and *at are then as far as it got. */
qn_status qn_loose_json(const char *text, size_t n, size_t *at, qn_buf *out);
/* The same of a key, which may be a bare word. */
qn_status qn_loose_key(const char *text, size_t n, size_t *at, qn_buf *out);
/* A byte of a bare word: a key, a number, a name of a constant. */
int qn_loose_is_word(char c);
/* What Gemma writes for a quote. */
extern const char qn_loose_quote[];

#endif

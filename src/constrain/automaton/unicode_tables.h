/* Sets of code points by general category, script and binary property, for \p{...}; made by
 * tools/unicode_tables.py. Names are in upper case without underscores. Surrogates are in no set. */
#ifndef QN_CONSTRAIN_AUTOMATON_UNICODE_TABLES_H
#define QN_CONSTRAIN_AUTOMATON_UNICODE_TABLES_H

#include <stdint.h>

#include "constrain/automaton/charset.h"

typedef enum { QN_UNICODE_CATEGORY, QN_UNICODE_SCRIPT, QN_UNICODE_BINARY } qn_unicode_kind;

typedef struct {
    qn_unicode_kind kind;
    const char *name;
    int32_t begin, n; /* in qn_unicode_ranges */
} qn_unicode_set;

extern const qn_code_range qn_unicode_ranges[];
extern const qn_unicode_set qn_unicode_sets[];
extern const int qn_n_unicode_sets;

#endif

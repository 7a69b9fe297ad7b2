/* Python's regular expressions in PEFT's configurations, matched against names of modules as peft does. Run by PCRE2
 * with limits. Immutable; any thread. */
#ifndef QN_MODEL_ADAPTER_NAME_PATTERN_H
#define QN_MODEL_ADAPTER_NAME_PATTERN_H

#include <stdint.h>

#include "base/status.h"

typedef struct qn_name_pattern qn_name_pattern;

/* A key of rank_pattern and alpha_pattern: re.match(r"(.*\.)?(KEY)$", name). QN_E_FORMAT: not a regular expression; the message says where. QN_E_UNSUPPORTED: longer than 4 KiB. */
qn_status qn_name_pattern_new(const char *key, qn_name_pattern **out);
/* The same of an expression between two pieces that are expressions, too: re.match(before + key + after, name). */
qn_status qn_name_pattern_between(const char *before, const char *key, const char *after,
                                  qn_name_pattern **out);
void qn_name_pattern_free(qn_name_pattern *p);
/* QN_E_UNSUPPORTED: the match takes too many steps. */
qn_status qn_name_pattern_match(const qn_name_pattern *p, const char *name, int *matches);
/* The digits that the group "idx" of the expression matches, as a number; -1: no match, or a number of more than 18
 * digits. */
qn_status qn_name_pattern_number(const qn_name_pattern *p, const char *name, int64_t *value);

#endif

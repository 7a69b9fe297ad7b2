/* Keys of PEFT's rank_pattern and alpha_pattern: Python's regular expressions, matched against names of modules as
 * peft does, re.match(r"(.*\.)?(KEY)$", name). Run by PCRE2 with limits. Immutable; any thread. */
#ifndef QN_MODEL_ADAPTER_NAME_PATTERN_H
#define QN_MODEL_ADAPTER_NAME_PATTERN_H

#include "base/status.h"

typedef struct qn_name_pattern qn_name_pattern;

/* QN_E_FORMAT: not a regular expression; the message says where. QN_E_UNSUPPORTED: longer than 4 KiB. */
qn_status qn_name_pattern_new(const char *key, qn_name_pattern **out);
void qn_name_pattern_free(qn_name_pattern *p);
/* QN_E_UNSUPPORTED: the match takes too many steps. */
qn_status qn_name_pattern_match(const qn_name_pattern *p, const char *name, int *matches);

#endif

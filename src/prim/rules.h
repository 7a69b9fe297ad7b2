/* Shape rules of the primitives of numbers of any type, for prim.c's table. */
#ifndef QN_PRIM_RULES_H
#define QN_PRIM_RULES_H

#include "prim/prim.h"

/* QN_E_ARG with the primitive's name, why, and the shapes of the inputs. */
qn_status qn_rule_bad(const qn_prim_call *c, const char *why);

qn_shape_rule qn_rule_STRIDED, qn_rule_COMPARE, qn_rule_SELECT, qn_rule_ARG_MAX, qn_rule_SCAN,
    qn_rule_ARG_SORT, qn_rule_LAST_WRITER, qn_rule_HASH_IDS, qn_rule_UPDATE, qn_rule_RANDOM;

#endif

/* Is a value refused by a constraint for the order of its objects' members alone?
 *
 * Constraints write members in an order (a schema's properties first), a value's text may have another. The
 * search tries orders member by member with copies of the matcher, those of the schema's own lists first, and is
 * bounded. */
#ifndef QN_CLI_CONSTRAIN_MEMBER_ORDER_H
#define QN_CLI_CONSTRAIN_MEMBER_ORDER_H

#include "base/buf.h"
#include "constrain/constraint.h"
#include "constrain/validate/value.h"

/* *found: 1 and, if text is not NULL, the value in an order that c allows from begin to end; 0: no order was
 * found within the bound. schema: the document that c was compiled from. */
qn_status qn_member_order_find(qn_constraint *c, const qn_value *schema, const qn_value *v, int *found,
                               qn_buf *text);

#endif

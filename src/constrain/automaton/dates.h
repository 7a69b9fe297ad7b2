/* Dates and times of RFC 3339, days of months and leap years included. A leap second is taken where UTC shows
 * 23:59; if the offset is not 0, it must be one that is in use somewhere: a multiple of 15 minutes. */
#ifndef QN_CONSTRAIN_AUTOMATON_DATES_H
#define QN_CONSTRAIN_AUTOMATON_DATES_H

#include "constrain/automaton/work.h"

enum { QN_DATE = 1, QN_TIME = 2 };

/* parts: QN_DATE, QN_TIME, or both with a T between. */
qn_status qn_dfa_dates(qn_dfa_work *w, int parts, qn_dfa **out);

#endif

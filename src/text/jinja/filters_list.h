/* Filters on sequences. */
#ifndef QN_TEXT_JINJA_FILTERS_LIST_H
#define QN_TEXT_JINJA_FILTERS_LIST_H

#include "text/jinja/run.h"

const qn_jfunction_row *qn_jlist_filter_find(const qn_jstring *name);

#endif

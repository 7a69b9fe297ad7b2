/* Upper and lower case of strings as Python makes them, provenance kept; and the tests for it. */
#ifndef QN_TEXT_JINJA_CASE_H
#define QN_TEXT_JINJA_CASE_H

#include "text/jinja/run.h"

typedef enum {
    QN_JCASE_UPPER,
    QN_JCASE_LOWER,
    QN_JCASE_CAPITALIZE, /* the first letter up, the rest down */
    QN_JCASE_TITLE,      /* letters after a non-letter up, the rest down: str.title() */
    QN_JCASE_HEADLINE,   /* letters after white space, - ( { [ < up: the filter `title` */
    QN_JCASE_SWAP,
    QN_JCASE_FOLD, /* str.casefold() */
} qn_jcase;

qn_status qn_jcase_change(qn_jrun *r, const qn_jstring *s, qn_jcase what, qn_jvalue *out);
/* str.isupper() and str.islower(): there are cased letters and all are of that case. */
int qn_jcase_is(const qn_jstring *s, int upper);

#endif

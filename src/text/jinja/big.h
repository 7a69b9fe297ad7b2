/* Python's integers beyond 64 bits. A value is QN_J_INT where it fits, else QN_J_BIG: every result is brought to that
 * form. At most QN_JBIG_DIGITS_MAX decimal digits (QN_E_FULL). One thread at a time, like the heap. */
#ifndef QN_TEXT_JINJA_BIG_H
#define QN_TEXT_JINJA_BIG_H

#include "text/jinja/value.h"

enum { QN_JBIG_DIGITS_MAX = 4300 }; /* what Python converts to text */

struct qn_jbig {
    int negative;
    uint32_t n;      /* limbs, the last is not 0 */
    uint32_t *limbs; /* base 1,000,000,000, the lowest first */
};

/* op: + - * % and QN_JOP_FLOORDIV, QN_JOP_POW; a and b: QN_J_INT, QN_J_BOOL or QN_J_BIG. QN_E_ARG: division by zero. */
qn_status qn_jbig_binary(qn_jheap *h, int op, qn_jvalue a, qn_jvalue b, qn_jvalue *out);
/* Digits of base 2, 8, 10 or 16; '_' is left out. */
qn_status qn_jbig_parse(qn_jheap *h, const char *digits, size_t n, int base, int user, qn_jvalue *out);
int qn_jbig_compare(qn_jvalue a, qn_jvalue b);
/* The nearest double; infinite beyond its range. */
double qn_jbig_double(const struct qn_jbig *a);
/* The digits of |a| in base 2, 8, 10 or 16, ended by a NUL; they live as long as the heap. */
qn_status qn_jbig_digits(qn_jheap *h, const struct qn_jbig *a, int base, char **out);
void qn_jbig_write(qn_jbuild *b, const struct qn_jbig *a, int user);

#endif

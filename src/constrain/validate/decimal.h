/* Decimal numbers of any length, exact: the numbers of JSON texts, compared and divided without rounding.
 *
 * A qn_decimal is digits * 10^exponent. It has no leading or trailing zero digits, so equal numbers have equal
 * fields; zero has no digits. The digits are borrowed from the text it was read from. Any thread. */
#ifndef QN_CONSTRAIN_VALIDATE_DECIMAL_H
#define QN_CONSTRAIN_VALIDATE_DECIMAL_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    const char *text; /* as it was written */
    uint32_t n_text;
    const char *digits; /* from the first digit that is not 0 to the last; one '.' may stand among them */
    uint32_t n_bytes;   /* of digits, the point included */
    uint32_t n_digits;  /* without the point */
    int64_t exponent;   /* of the last digit: 1500 is "15" and 2 */
    uint8_t is_negative;
} qn_decimal;

enum { QN_DECIMAL_DIVISOR_MAX = 500 }; /* digits */

/* The length of the JSON number that text[0..n) begins with, as RFC 8259 spells one; 0: none. */
size_t qn_decimal_length(const char *text, size_t n);
/* Reads a number that qn_decimal_length found. Exponents beyond +-10^15 are held to that. */
qn_decimal qn_decimal_read(const char *text, size_t n);
/* < 0, 0, > 0. */
int qn_decimal_compare(const qn_decimal *a, const qn_decimal *b);
int qn_decimal_is_integer(const qn_decimal *a);
/* 1: a is a whole multiple of b. b is not 0 and has at most QN_DECIMAL_DIVISOR_MAX digits. Adds the work to
 * *steps: digits of a, times words of 9 digits of b. */
int qn_decimal_is_multiple(const qn_decimal *a, const qn_decimal *b, int64_t *steps);
/* As an int64, held to its bounds; a is an integer. */
int64_t qn_decimal_to_int64(const qn_decimal *a);
uint64_t qn_decimal_hash(const qn_decimal *a);

#endif

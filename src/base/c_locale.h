/* Numbers in files, JSON and messages have a dot, whatever locale the program that embeds the library set:
 * between enter and leave this thread's printf and strtod follow the C locale. Pairs may be nested. Any
 * thread. */
#ifndef QN_BASE_C_LOCALE_H
#define QN_BASE_C_LOCALE_H

#include <locale.h>
#ifdef __APPLE__
#include <xlocale.h>
#endif

/* What leave puts back. */
locale_t qn_c_locale_enter(void);
void qn_c_locale_leave(locale_t before);

/* strtod with a dot as the decimal point. */
double qn_parse_real(const char *text, char **end);

#endif

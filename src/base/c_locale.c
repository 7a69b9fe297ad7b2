#include "base/c_locale.h"

#include <pthread.h>
#include <stdlib.h>

static locale_t c_locale;

static void make(void)
{
    c_locale = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
}

locale_t qn_c_locale_enter(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make);
    return uselocale(c_locale); /* without memory for it nothing changes */
}

void qn_c_locale_leave(locale_t before)
{
    uselocale(before);
}

double qn_parse_real(const char *text, char **end)
{
    locale_t before = qn_c_locale_enter();
    double value = strtod(text, end);
    qn_c_locale_leave(before);
    return value;
}

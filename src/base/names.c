/* Names of values that the public headers enumerate. */
#include <quern/quern.h>

const char *qn_precision_name(qn_precision precision)
{
    switch (precision) {
    case QN_PRECISION_HIGH:
        return "high";
    case QN_PRECISION_FAST:
        return "fast";
    case QN_PRECISION_EXACT:
        return "exact";
    }
    return "unknown precision";
}

const char *qn_end_name(qn_end end)
{
    static const char *const names[] = {
#define NAME(name, text) text,
        QN_END_LIST(NAME)
#undef NAME
    };
    return (size_t)end < sizeof names / sizeof *names ? names[end] : "unknown end";
}

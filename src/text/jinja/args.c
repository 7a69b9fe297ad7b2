/* Arguments of functions written in C. */
#include <string.h>

#include "text/jinja/run.h"

/* The n-th word of names, or 0 at the end. */
static int word_at(const char **names, const char **word, size_t *n)
{
    while (**names == ' ') ++*names;
    *word = *names;
    while (**names && **names != ' ') ++*names;
    *n = (size_t)(*names - *word);
    return *n > 0;
}

qn_status qn_jargs_bind(qn_jrun *r, const char *function, const qn_jargs *a, const char *names,
                        int n_required, qn_jvalue *out)
{
    const char *at = names, *word;
    size_t n;
    uint32_t count = 0, named = 0;
    for (; word_at(&at, &word, &n); count++) {
        out[count].kind = QN_J_MISSING;
        if (count < a->n) out[count] = a->items[count];
        for (uint32_t i = 0; i < a->n_named; i++) {
            if (a->names[i].s->n != n || memcmp(a->names[i].s->data, word, n)) continue;
            if (out[count].kind != QN_J_MISSING)
                return qn_fail(QN_E_ARG, "%s: argument '%.*s' is given twice", function, (int)n, word);
            out[count] = a->named[i];
            named++;
        }
        if ((int)count < n_required && out[count].kind == QN_J_MISSING)
            return qn_fail(QN_E_ARG, "%s: argument '%.*s' is missing", function, (int)n, word);
    }
    if (a->n > count)
        return qn_fail(QN_E_ARG, "%s takes at most %u arguments, %u were given", function, count, a->n);
    if (named < a->n_named) return qn_fail(QN_E_ARG, "%s got an unknown keyword argument", function);
    return QN_OK;
}

qn_status qn_jarg_int(qn_jvalue v, const char *what, int64_t default_value, int64_t *out)
{
    if (v.kind == QN_J_MISSING || v.kind == QN_J_NONE) {
        *out = default_value;
        return QN_OK;
    }
    if (!qn_jis_whole(v)) return qn_fail(QN_E_ARG, "%s must be an integer, not %s", what, qn_jvalue_type(v));
    *out = v.i;
    return QN_OK;
}

qn_status qn_jarg_string(qn_jvalue v, const char *what, qn_jstring **out)
{
    if (v.kind != QN_J_STRING)
        return qn_fail(QN_E_ARG, "%s must be a string, not %s", what, qn_jvalue_type(v));
    *out = v.s;
    return QN_OK;
}

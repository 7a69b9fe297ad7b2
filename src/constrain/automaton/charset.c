#include "constrain/automaton/charset.h"

#include <stdlib.h>
#include <string.h>

#include "constrain/automaton/unicode_tables.h"

enum { SURROGATE_MIN = 0xd800, SURROGATE_MAX = 0xdfff };

qn_status qn_charset_add(qn_dfa_work *w, qn_charset *s, uint32_t lo, uint32_t hi)
{
    QN_TRY(qn_dfa_array_room(w, &s->ranges, 1, sizeof(qn_code_range)));
    ((qn_code_range *)s->ranges.at)[s->ranges.n++] = (qn_code_range){lo, hi};
    return QN_OK;
}

qn_status qn_charset_add_ranges(qn_dfa_work *w, qn_charset *s, const qn_code_range *ranges, size_t n)
{
    QN_TRY(qn_dfa_work_steps(w, (int64_t)n));
    QN_TRY(qn_dfa_array_room(w, &s->ranges, n, sizeof *ranges));
    if (n) memcpy((qn_code_range *)s->ranges.at + s->ranges.n, ranges, n * sizeof *ranges);
    s->ranges.n += n;
    return QN_OK;
}

static int compare_ranges(const void *a, const void *b)
{
    const qn_code_range *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

qn_status qn_charset_settle(qn_dfa_work *w, qn_charset *s)
{
    qn_code_range *r = s->ranges.at;
    size_t n = s->ranges.n, n_out = 0;
    int is_sorted = 1;
    for (size_t i = 1; i < n && is_sorted; i++) is_sorted = r[i - 1].lo <= r[i].lo;
    if (!is_sorted) qsort(r, n, sizeof *r, compare_ranges);
    qn_charset out = {0};
    QN_TRY(qn_dfa_work_steps(w, (int64_t)n));
    QN_TRY(qn_dfa_array_room(w, &out.ranges, n + 1, sizeof *r)); /* one more if surrogates lie in a range */
    qn_code_range *to = out.ranges.at;
    for (size_t i = 0; i < n; i++) {
        uint32_t lo = r[i].lo, hi = r[i].hi;
        if (lo >= SURROGATE_MIN && lo <= SURROGATE_MAX) lo = SURROGATE_MAX + 1;
        if (hi >= SURROGATE_MIN && hi <= SURROGATE_MAX) hi = SURROGATE_MIN - 1;
        if (lo > hi) continue;
        if (n_out && lo <= to[n_out - 1].hi + 1) {
            if (hi > to[n_out - 1].hi) to[n_out - 1].hi = hi;
        } else {
            to[n_out++] = (qn_code_range){lo, hi};
        }
    }
    for (size_t i = 0; i < n_out; i++) { /* at most one range holds them */
        if (to[i].lo >= SURROGATE_MIN || to[i].hi <= SURROGATE_MAX) continue;
        memmove(to + i + 2, to + i + 1, (n_out - i - 1) * sizeof *to);
        to[i + 1] = (qn_code_range){SURROGATE_MAX + 1, to[i].hi};
        to[i].hi = SURROGATE_MIN - 1;
        n_out++;
        break;
    }
    out.ranges.n = n_out;
    *s = out;
    return QN_OK;
}

qn_status qn_charset_invert(qn_dfa_work *w, qn_charset *s)
{
    qn_charset out = {0};
    const qn_code_range *r = qn_charset_ranges(s);
    uint32_t from = 0;
    for (size_t i = 0; i < s->ranges.n; i++) {
        if (r[i].lo > from) QN_TRY(qn_charset_add(w, &out, from, r[i].lo - 1));
        from = r[i].hi + 1;
    }
    if (from <= QN_CODE_MAX) QN_TRY(qn_charset_add(w, &out, from, QN_CODE_MAX));
    QN_TRY(qn_charset_settle(w, &out));
    *s = out;
    return QN_OK;
}

qn_status qn_charset_fold(qn_dfa_work *w, qn_charset *s)
{
    size_t n = s->ranges.n;
    for (size_t i = 0; i < n; i++) {
        for (uint32_t c = 'A'; c <= 'Z'; c++) {
            qn_code_range r = qn_charset_ranges(s)[i];
            if (c >= r.lo && c <= r.hi) QN_TRY(qn_charset_add(w, s, c | 32, c | 32));
            if ((c | 32) >= r.lo && (c | 32) <= r.hi) QN_TRY(qn_charset_add(w, s, c, c));
        }
    }
    return qn_charset_settle(w, s);
}

static const qn_unicode_set *find_set(qn_unicode_kind kind, const char *name)
{
    int lo = 0, hi = qn_n_unicode_sets - 1;
    while (lo <= hi) {
        /* Sorted by the kind's name, then the set's: BINARY, CATEGORY, SCRIPT. */
        static const int rank[] = {
            [QN_UNICODE_BINARY] = 0, [QN_UNICODE_CATEGORY] = 1, [QN_UNICODE_SCRIPT] = 2};
        int at = (lo + hi) / 2;
        const qn_unicode_set *s = &qn_unicode_sets[at];
        int c = rank[s->kind] != rank[kind] ? rank[s->kind] - rank[kind] : strcmp(s->name, name);
        if (c == 0) return s;
        if (c < 0) {
            lo = at + 1;
        } else {
            hi = at - 1;
        }
    }
    return NULL;
}

qn_status qn_charset_add_property(qn_dfa_work *w, qn_charset *s, const char *name, size_t n)
{
    char key[48] = "", value[48] = "";
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        char c = name[i];
        if (c == '=' && !*key) {
            value[at] = 0;
            memcpy(key, value, sizeof key);
            at = 0;
            continue;
        }
        if (c == '_' || c == ' ' || c == '-') continue;
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) ||
            at + 1 >= sizeof value)
            goto unknown;
        value[at++] = (char)(c >= 'a' && c <= 'z' ? c - 32 : c);
    }
    value[at] = 0;
    const qn_unicode_set *set = NULL;
    if (!*key) {
        set = find_set(QN_UNICODE_CATEGORY, value);
        if (!set) set = find_set(QN_UNICODE_BINARY, value);
    } else if (!strcmp(key, "GC") || !strcmp(key, "GENERALCATEGORY")) {
        set = find_set(QN_UNICODE_CATEGORY, value);
    } else if (!strcmp(key, "SC") || !strcmp(key, "SCRIPT")) {
        set = find_set(QN_UNICODE_SCRIPT, value);
    } else if (!strcmp(key, "SCX") || !strcmp(key, "SCRIPTEXTENSIONS")) {
        return qn_fail(QN_E_UNSUPPORTED, "\\p{%.*s}: Script_Extensions is not supported", (int)n, name);
    }
    if (set) return qn_charset_add_ranges(w, s, qn_unicode_ranges + set->begin, (size_t)set->n);
unknown:
    return qn_fail(QN_E_FORMAT, "\\p{%.*s}: no such property", (int)(n < 48 ? n : 48), name);
}

/* Regular expressions of any bytes. The first byte: flags; the rest: a pattern, then, behind a NUL if one is
 * there, a text. Whatever compiles must accept valid UTF-8 alone, and its complement the opposite. */
#include <stdint.h>
#include <string.h>

#include "base/utf8.h"
#include "constrain/automaton/regex.h"

static void check(int ok)
{
    if (!ok) __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1) return 0;
    const char *pattern = (const char *)data + 1, *end = (const char *)data + size;
    const char *nul = memchr(pattern, 0, (size_t)(end - pattern));
    size_t n = (size_t)((nul ? nul : end) - pattern), n_text = nul ? (size_t)(end - nul - 1) : 0;
    const char *text = nul ? nul + 1 : "";
    qn_dfa_limits limits = {.pattern_bytes_max = 4096, .states_max = 4000, .steps_max = 2000000};
    qn_dfa *d = NULL, *other = NULL;
    qn_status s = qn_dfa_regex(pattern, n, data[0] & 7, &limits, &d);
    check(s == QN_OK || s == QN_E_FORMAT || s == QN_E_UNSUPPORTED);
    check((s == QN_OK) == (d != NULL));
    if (!d) return 0;
    int is_text = qn_utf8_valid_prefix(text, n_text) == n_text, in = qn_dfa_accepts(d, text, n_text);
    check(is_text || !in);
    qn_dfa_lengths l;
    check(qn_dfa_measure(d, &l) == QN_OK);
    check((l.min_bytes < 0) == qn_dfa_is_empty(d) && l.min_chars <= l.min_bytes &&
          l.max_chars <= l.max_bytes);
    if (in) check(l.min_bytes <= (int64_t)n_text && (l.max_bytes < 0 || l.max_bytes >= (int64_t)n_text));
    if (qn_dfa_complement(d, &limits, &other) == QN_OK)
        check(qn_dfa_accepts(other, text, n_text) == (is_text && !in));
    qn_dfa_release(other);
    qn_dfa_release(d);
    return 0;
}

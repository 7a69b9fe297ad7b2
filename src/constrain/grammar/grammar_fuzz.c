/* Grammars of any bytes and texts for them. The first byte: which front end; the rest: a grammar, then, behind a
 * NUL if one is there, a text. Forgetting states on the way must change nothing. */
#include <stdint.h>
#include <string.h>

#include "constrain/grammar/grammar.h"
#include "constrain/grammar/run.h"

static void check(int ok)
{
    if (!ok) __builtin_trap();
}

static void run_text(qn_grammar *g, const uint8_t *text, size_t n)
{
    qn_grammar_run_limits limits = {
        .states_max = 2000, .items_max = 1000, .work_max = 3000, .bytes_max = 16 << 20};
    qn_grammar_run *a = NULL, *b = NULL;
    check(qn_grammar_run_new(g, &limits, &a) == QN_OK || !a);
    check(qn_grammar_run_new(g, &limits, &b) == QN_OK || !b);
    check(!a == !b);
    if (!a) return;
    uint32_t x = qn_grammar_run_start(a), y = qn_grammar_run_start(b);
    for (size_t i = 0; i < n; i++) {
        check(qn_grammar_run_may_end(a, x) == qn_grammar_run_may_end(b, y));
        qn_status s = qn_grammar_run_step(a, x, text[i], &x), t = qn_grammar_run_step(b, y, text[i], &y);
        if (s != QN_OK || t != QN_OK) {
            check((s == QN_OK || s == QN_E_FULL) && (t == QN_OK || t == QN_E_FULL));
            break;
        }
        check(!x == !y);
        uint32_t *keep[] = {&y};
        if (i % 5 == 3) check(qn_grammar_run_sweep(b, keep, 1) == QN_OK);
    }
    qn_grammar_run_free(a);
    qn_grammar_run_free(b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1) return 0;
    const char *grammar = (const char *)data + 1, *end = (const char *)data + size;
    const char *nul = memchr(grammar, 0, (size_t)(end - grammar));
    size_t n = (size_t)((nul ? nul : end) - grammar);
    qn_grammar_limits limits = {.bytes_max = 4096,
                                .rules_max = 200,
                                .symbols_max = 4000,
                                .dfa = {.states_max = 1000, .steps_max = 1000000}};
    qn_grammar *g = NULL;
    qn_status s = data[0] % 3 == 0   ? qn_grammar_gbnf(grammar, n, &limits, &g)
                  : data[0] % 3 == 1 ? qn_grammar_ebnf(grammar, n, &limits, &g)
                                     : qn_grammar_lark(grammar, n, &limits, &g);
    check(s == QN_OK || s == QN_E_FORMAT || s == QN_E_UNSUPPORTED);
    check((s == QN_OK) == (g != NULL));
    if (!g) return 0;
    if (nul) run_text(g, (const uint8_t *)nul + 1, (size_t)(end - nul - 1));
    qn_grammar_release(g);
    return 0;
}

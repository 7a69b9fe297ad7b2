#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "base/utf8.h"
#include "constrain/automaton/dfa.h"
#include "constrain/automaton/regex.h"

static uint64_t n_drawn, seed_now;

static uint64_t draw(uint64_t below)
{
    return qn_random_bits(seed_now, n_drawn++) % below;
}

static void must(qn_status s)
{
    if (s != QN_OK) fail_msg("%s", qn_last_error());
}

static qn_dfa *texts_of(const char *const *texts, size_t n)
{
    qn_text_ref refs[32];
    for (size_t i = 0; i < n; i++) refs[i] = (qn_text_ref){texts[i], strlen(texts[i])};
    qn_dfa *d = NULL;
    must(qn_dfa_texts(refs, n, NULL, &d));
    return d;
}

static qn_dfa *regex(const char *pattern)
{
    qn_dfa *d = NULL;
    must(qn_dfa_regex(pattern, strlen(pattern), QN_REGEX_WHOLE, NULL, &d));
    return d;
}

/* What holds for every automaton: 0 is dead and no other state is; numbers are those of a walk; classes are
 * numbered by their first byte and no two are alike; no two states are equal; QN_DFA_ALL says the truth. */
static void check_form(const qn_dfa *d)
{
    size_t n = (size_t)d->n_states, k = (size_t)d->n_classes;
    assert_int_equal(d->flags[0], 0);
    for (size_t c = 0; c < k; c++) assert_int_equal(d->next[c], 0);
    assert_true(d->start == (n > 1));
    int32_t next_class = 0, next_state = 1 + d->start;
    for (int b = 0; b < 256; b++) {
        assert_true(d->class_of[b] <= next_class);
        if (d->class_of[b] == next_class) next_class++;
    }
    assert_int_equal(next_class, d->n_classes);
    for (size_t i = k; i < n * k; i++) {
        assert_true(d->next[i] <= next_state && d->next[i] < d->n_states);
        if (d->next[i] == next_state) next_state++;
    }
    assert_int_equal(next_state, n > 1 ? d->n_states : 1);
    if (n > 60) return;
    /* Moore: states stay together while nothing tells them apart. */
    int32_t group[60], fresh[60];
    int n_groups = 0;
    for (size_t s = 0; s < n; s++) group[s] = d->flags[s] & QN_DFA_ACCEPTS;
    for (;;) {
        int m = 0;
        for (size_t s = 0; s < n; s++) {
            size_t o = 0;
            for (; o < s; o++) {
                size_t c = 0;
                while (c < k && group[d->next[s * k + c]] == group[d->next[o * k + c]]) c++;
                if (group[o] == group[s] && c == k) break;
            }
            fresh[s] = o < s ? fresh[o] : m++;
        }
        memcpy(group, fresh, sizeof group);
        if (m == n_groups) break;
        n_groups = m;
    }
    assert_int_equal(n_groups, n);
    qn_dfa *all = NULL;
    must(qn_dfa_all(&all));
    for (size_t s = 1; s < n; s++) {
        qn_dfa *from = NULL;
        uint8_t accepts[60];
        for (size_t i = 0; i < n; i++) accepts[i] = d->flags[i] & QN_DFA_ACCEPTS;
        must(qn_dfa_new(d->n_states, d->n_classes, d->class_of, d->next, accepts, (int32_t)s, NULL, &from));
        assert_int_equal(qn_dfa_equal(from, all), (d->flags[s] & QN_DFA_ALL) != 0);
        qn_dfa_release(from);
    }
    qn_dfa_release(all);
}

static const char *const LETTERS[] = {"a", "b", "\xc3\xa9", "\xf0\x9f\x98\x80"};

/* All texts of up to four of the letters, 341 of them. */
static size_t text_number(size_t i, char *out)
{
    size_t n = 0, length = 0, count = 1;
    while (i >= count) i -= count, count *= 4, length++;
    for (size_t k = 0; k < length; k++, i /= 4) {
        size_t m = strlen(LETTERS[i % 4]);
        memcpy(out + n, LETTERS[i % 4], m);
        n += m;
    }
    return n;
}

enum { N_TEXTS = 341 };

/* A random automaton over the letters: characters first, then bytes. */
static qn_dfa *random_dfa(void)
{
    enum { BYTES = 1 + 2 + 6 };
    int32_t n = 2 + (int32_t)draw(4);
    int32_t total = 1 + n * 5;
    int32_t next[26 * BYTES] = {0};
    uint8_t accepts[26] = {0}, class_of[256] = {0};
    static const uint8_t bytes[] = {'a', 'b', 0xc3, 0xa9, 0xf0, 0x9f, 0x98, 0x80};
    for (size_t i = 0; i < sizeof bytes; i++) class_of[bytes[i]] = (uint8_t)(i + 1);
    for (int32_t s = 0; s < n; s++) {
        int32_t at = 1 + s * 5;
        accepts[at] = draw(3) == 0;
        int32_t to[4];
        for (int i = 0; i < 4; i++) to[i] = draw(4) ? 1 + (int32_t)draw((uint64_t)n) * 5 : 0;
        next[at * BYTES + 1] = to[0];
        next[at * BYTES + 2] = to[1];
        next[at * BYTES + 3] = at + 1;
        next[(at + 1) * BYTES + 4] = to[2];
        next[at * BYTES + 5] = at + 2;
        next[(at + 2) * BYTES + 6] = at + 3;
        next[(at + 3) * BYTES + 7] = at + 4;
        next[(at + 4) * BYTES + 8] = to[3];
    }
    qn_dfa *d = NULL;
    must(qn_dfa_new(total, BYTES, class_of, next, accepts, 1, NULL, &d));
    return d;
}

/* May text be cut into min to max texts of d? */
static int cuts(const qn_dfa *d, const char *text, size_t n, int min, int max)
{
    uint32_t ways[32] = {0}; /* numbers of parts that reach a place, as bits; many parts count as 20 */
    ways[0] = 1;
    for (int round = 0; round < 25; round++) {
        for (size_t i = 0; i <= n; i++) {
            for (size_t j = i; j <= n; j++) {
                if (!qn_dfa_accepts(d, text + i, j - i)) continue;
                uint32_t more = ways[i] << 1;
                if (more >> 21) more = (more & ((1u << 21) - 1)) | 1u << 20;
                ways[j] |= more;
            }
        }
    }
    for (int k = min; k <= (max < 0 ? 20 : max); k++) {
        if (ways[n] >> k & 1) return 1;
    }
    return 0;
}

static void test_random_operations(void **state)
{
    for (seed_now = 1; seed_now <= 400; seed_now++) {
        n_drawn = 0;
        qn_dfa *a = random_dfa(), *b = random_dfa(), *r[7] = {0};
        int min = (int)draw(3), max = draw(2) ? -1 : min + (int)draw(3);
        must(qn_dfa_intersect(a, b, NULL, &r[0]));
        must(qn_dfa_unite(a, b, NULL, &r[1]));
        must(qn_dfa_subtract(a, b, NULL, &r[2]));
        must(qn_dfa_complement(a, NULL, &r[3]));
        must(qn_dfa_concatenate(a, b, NULL, &r[4]));
        must(qn_dfa_repeat(a, min, max, NULL, &r[5]));
        must(qn_dfa_complement(r[3], NULL, &r[6]));
        assert_true(qn_dfa_equal(a, r[6]));
        assert_true(qn_dfa_hash(a) == qn_dfa_hash(r[6]));
        check_form(a);
        for (int i = 0; i < 7; i++) check_form(r[i]);
        for (size_t i = 0; i < N_TEXTS; i++) {
            char text[20];
            size_t n = text_number(i, text);
            int in_a = qn_dfa_accepts(a, text, n), in_b = qn_dfa_accepts(b, text, n), joined = 0;
            for (size_t k = 0; k <= n; k++)
                joined |= qn_dfa_accepts(a, text, k) && qn_dfa_accepts(b, text + k, n - k);
            assert_int_equal(qn_dfa_accepts(r[0], text, n), in_a && in_b);
            assert_int_equal(qn_dfa_accepts(r[1], text, n), in_a || in_b);
            assert_int_equal(qn_dfa_accepts(r[2], text, n), in_a && !in_b);
            assert_int_equal(qn_dfa_accepts(r[3], text, n), !in_a);
            assert_int_equal(qn_dfa_accepts(r[4], text, n), joined);
            assert_int_equal(qn_dfa_accepts(r[5], text, n), cuts(a, text, n, min, max));
        }
        for (int i = 0; i < 7; i++) qn_dfa_release(r[i]);
        qn_dfa_release(a);
        qn_dfa_release(b);
    }
}

/* Automata whose cycles are loops of one state are made minimal by another way than others. */
static void test_loops(void **state)
{
    for (seed_now = 2000; seed_now < 6000; seed_now++) {
        n_drawn = 0;
        int32_t n = 2 + (int32_t)draw(12), next[16 * 4] = {0};
        uint8_t accepts[16] = {0}, class_of[256] = {0};
        class_of['a'] = 1, class_of['b'] = 2, class_of['c'] = 3;
        for (int32_t s = 1; s < n; s++) {
            accepts[s] = draw(3) == 0;
            for (int c = 1; c < 4; c++) {
                next[s * 4 + c] = draw(3) == 0 ? s : (int32_t)draw((uint64_t)s); /* itself, or one before */
                if (draw(8) == 0) next[s * 4 + c] = draw(40) ? 0 : n - 1;        /* at times a longer cycle */
            }
        }
        qn_dfa *d = NULL;
        must(qn_dfa_new(n, 4, class_of, next, accepts, n - 1, NULL, &d));
        check_form(d);
        for (int k = 0; k < 50; k++) {
            char text[8];
            size_t length = draw(9);
            int32_t s = n - 1;
            for (size_t i = 0; i < length; i++) {
                text[i] = (char)('a' + draw(3));
                s = next[s * 4 + class_of[(uint8_t)text[i]]];
            }
            assert_int_equal(qn_dfa_accepts(d, text, length), accepts[s]);
        }
        qn_dfa_release(d);
    }
}

/* Three and more parts at once are the same as two by two. */
static void test_chains(void **state)
{
    for (seed_now = 1000; seed_now < 1100; seed_now++) {
        n_drawn = 0;
        qn_dfa *parts[4], *two = NULL, *three = NULL, *four = NULL, *at_once = NULL;
        for (int i = 0; i < 4; i++) parts[i] = random_dfa();
        must(qn_dfa_concatenate(parts[0], parts[1], NULL, &two));
        must(qn_dfa_concatenate(two, parts[2], NULL, &three));
        must(qn_dfa_concatenate(three, parts[3], NULL, &four));
        must(qn_dfa_concatenate_all(parts, 4, NULL, &at_once));
        assert_true(qn_dfa_equal(four, at_once));
        for (int i = 0; i < 4; i++) qn_dfa_release(parts[i]);
        qn_dfa_release(two);
        qn_dfa_release(three);
        qn_dfa_release(four);
        qn_dfa_release(at_once);
    }
}

typedef struct {
    char last[64];
    size_t n_last, n;
} listing;

static qn_status collect(void *context, const char *text, size_t n)
{
    listing *l = context;
    size_t m = n < l->n_last ? n : l->n_last;
    int order = m ? memcmp(l->last, text, m) : 0;
    if (l->n) assert_true(order < 0 || (order == 0 && l->n_last < n));
    memcpy(l->last, text, n);
    l->n_last = n;
    l->n++;
    return QN_OK;
}

static void test_texts(void **state)
{
    static const char *const texts[] = {"tap", "taps", "top", "tops", "\xc3\xa9t\xc3\xa9", "", "tap", "stop"};
    qn_dfa *d = texts_of(texts, 8);
    check_form(d);
    for (int i = 0; i < 8; i++) assert_true(qn_dfa_accepts(d, texts[i], strlen(texts[i])));
    assert_false(qn_dfa_accepts(d, "ta", 2));
    assert_false(qn_dfa_accepts(d, "stops", 5));
    int64_t count;
    must(qn_dfa_count(d, &count));
    assert_int_equal(count, 7);
    qn_dfa_lengths l;
    must(qn_dfa_measure(d, &l));
    assert_int_equal(l.min_bytes, 0);
    assert_int_equal(l.max_bytes, 5);
    assert_int_equal(l.min_chars, 0);
    assert_int_equal(l.max_chars, 4);
    listing list = {0};
    must(qn_dfa_list(d, 7, collect, &list));
    assert_int_equal(list.n, 7);
    assert_int_equal(qn_dfa_list(d, 6, collect, &(listing){0}), QN_E_FULL);
    qn_dfa_release(d);
    qn_text_ref bad = {"a\xff", 2};
    d = NULL;
    assert_int_equal(qn_dfa_texts(&bad, 1, NULL, &d), QN_E_FORMAT);
    assert_null(d);
    for (seed_now = 1; seed_now < 200; seed_now++) { /* the same set, text by text */
        n_drawn = 0;
        qn_text_ref refs[12];
        char room[12][20];
        size_t n = 1 + draw(12);
        qn_dfa *sum = NULL, *at_once = NULL;
        must(qn_dfa_none(&sum));
        for (size_t i = 0; i < n; i++) {
            qn_dfa *one = NULL, *both = NULL;
            refs[i] = (qn_text_ref){room[i], text_number(draw(N_TEXTS), room[i])};
            must(qn_dfa_texts(&refs[i], 1, NULL, &one));
            must(qn_dfa_unite(sum, one, NULL, &both));
            qn_dfa_release(one);
            qn_dfa_release(sum);
            sum = both;
        }
        must(qn_dfa_texts(refs, n, NULL, &at_once));
        check_form(at_once);
        assert_true(qn_dfa_equal(sum, at_once));
        qn_dfa_release(sum);
        qn_dfa_release(at_once);
    }
}

static void test_lengths(void **state)
{
    for (int min = 0; min < 4; min++) {
        for (int max = -1; max < 5; max++) {
            qn_dfa *d = NULL;
            must(qn_dfa_length(min, max, NULL, &d));
            check_form(d);
            assert_int_equal(qn_dfa_is_empty(d), max >= 0 && max < min);
            for (size_t i = 0; i < N_TEXTS; i++) {
                char text[20], *p = text;
                size_t n = text_number(i, text);
                int chars = 0;
                uint32_t code;
                while (p < text + n) p += qn_utf8_decode(p, (size_t)(text + n - p), &code), chars++;
                assert_int_equal(qn_dfa_accepts(d, text, n), chars >= min && (max < 0 || chars <= max));
            }
            assert_false(qn_dfa_accepts(d, "\xc0\x80", 2) || qn_dfa_accepts(d, "\xed\xa0\x80", 3));
            assert_false(qn_dfa_accepts(d, "\xf4\x90\x80\x80", 4) || qn_dfa_accepts(d, "\xe0\x80\x80", 3));
            qn_dfa_lengths l;
            must(qn_dfa_measure(d, &l));
            if (!qn_dfa_is_empty(d)) {
                assert_int_equal(l.min_chars, min);
                assert_int_equal(l.min_bytes, min);
                assert_int_equal(l.max_chars, max);
                assert_int_equal(l.max_bytes, max < 0 ? -1 : 4 * max);
                assert_int_equal(qn_dfa_is_finite(d), max >= 0);
            }
            qn_dfa_release(d);
        }
    }
}

/* The languages of whole characters, built twice by different ways, are equal state by state. */
static void test_same_language(void **state)
{
    static const char *const same[][2] = {
        {"(a|b)*", "(a*b*)*"},         {"[^]*", "(?:[\\u{0}-\\u{10ffff}])*"},
        {"a{2,4}", "aa(a|aa)?"},       {"[^]{3}", "(?:[^])(?:[^])(?:[^])"},
        {"(?=[ab]*$)[bc]*", "b*"},     {"\\p{L}|\\P{L}", "[^]"},
        {"(?!ab)[ab]{2}", "aa|ba|bb"}, {"x|xy|xyz|x\\u00e9", "x(y(z|)|\xc3\xa9|)"},
    };
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        qn_dfa *a = regex(same[i][0]), *b = regex(same[i][1]);
        check_form(a);
        if (!qn_dfa_equal(a, b)) fail_msg("%s and %s", same[i][0], same[i][1]);
        qn_dfa_release(a);
        qn_dfa_release(b);
    }
    qn_dfa *all = NULL, *dot = regex("[^]*");
    must(qn_dfa_all(&all));
    assert_true(qn_dfa_equal(all, dot) && qn_dfa_is_all(all));
    qn_dfa_release(all);
    qn_dfa_release(dot);
}

static void test_limits(void **state)
{
    qn_dfa *d = NULL, *a = regex("[ab]*a[ab]{9}"), *b = regex("[ab]*b[ab]{10}");
    qn_dfa_limits few = {.states_max = 100}, brief = {.steps_max = 50};
    assert_int_equal(qn_dfa_length(0, 100000, NULL, &d), QN_E_UNSUPPORTED);
    assert_non_null(strstr(qn_last_error(), "states_max"));
    assert_int_equal(qn_dfa_intersect(a, b, &few, &d), QN_E_UNSUPPORTED);
    assert_int_equal(qn_dfa_repeat(a, 1000, 1000, NULL, &d), QN_E_UNSUPPORTED);
    assert_int_equal(qn_dfa_repeat(a, INT64_MAX, -1, NULL, &d), QN_E_UNSUPPORTED);
    assert_int_equal(qn_dfa_unite(a, b, &brief, &d), QN_E_UNSUPPORTED);
    assert_non_null(strstr(qn_last_error(), "steps_max"));
    assert_null(d);
    qn_dfa_release(a);
    qn_dfa_release(b);
}

static void test_allocations(void **state)
{
    int64_t blocks = qn_mem_live_blocks();
    seed_now = 77;
    n_drawn = 0;
    qn_dfa *a = random_dfa(), *b = random_dfa();
    for (int op = 0; op < 7; op++) {
        for (int64_t n = 1; n < 2000; n++) {
            qn_dfa *d = NULL;
            qn_dfa_lengths l;
            qn_mem_fail_nth(n);
            qn_status s = op == 0   ? qn_dfa_intersect(a, b, NULL, &d)
                          : op == 1 ? qn_dfa_complement(a, NULL, &d)
                          : op == 2 ? qn_dfa_concatenate(a, b, NULL, &d)
                          : op == 3 ? qn_dfa_repeat(a, 1, 3, NULL, &d)
                          : op == 4 ? qn_dfa_texts((qn_text_ref[]){{"ab", 2}, {"c", 1}}, 2, NULL, &d)
                          : op == 5 ? qn_dfa_measure(a, &l)
                                    : qn_dfa_length(1, 3, NULL, &d);
            qn_mem_fail_nth(0);
            qn_dfa_release(d);
            if (s == QN_OK) break;
            assert_int_equal(s, QN_E_NOMEM);
        }
    }
    qn_dfa_release(a);
    qn_dfa_release(b);
    assert_int_equal(qn_mem_live_blocks(), blocks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_operations),
        cmocka_unit_test(test_chains),
        cmocka_unit_test(test_loops),
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_same_language),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

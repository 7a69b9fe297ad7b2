/* LongRoPE: which of two sets of frequencies a sequence is turned by follows from its length alone. It may
 * become longer step by step, in company, be told its length beforehand, or be stopped while it is computed
 * anew: where it is as long, the bits are the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/gguf_model.h"
#include "tests/support/scratch.h"

/* Tokens behind the limit that are looked at; sequences of one step; texts. */
enum { BEYOND = 70, COMPANY = 4 };

typedef struct {
    qn_engine *e;
    int64_t limit, n; /* positions of the short set; tokens of the longest text */
    int32_t *ids;
    uint64_t *longer;  /* [n] of the text as it is given in one step */
    uint64_t *shorter; /* [limit] of its beginning in one step */
    uint64_t *got;     /* [n] */
} text;

static qn_engine *open_engine(qn_precision precision, int64_t max_rows, int64_t context_size)
{
    return qn_test_engine(qn_test_need_fixture("models/phi3_longrope"), NULL,
                          (qn_engine_options){.precision = precision,
                                              .max_rows = max_rows,
                                              .max_sequences = COMPANY,
                                              .context_size = context_size,
                                              .n_threads = 2});
}

static void whole(text *t, int64_t n, uint64_t *out)
{
    qn_sequence *s = qn_test_sequence(t->e);
    qn_test_hashes(t->e, s, t->ids, n, 0, out);
    qn_sequence_free(s);
}

static text new_text(qn_engine *e)
{
    text t = {.e = e, .limit = qn_engine_config(e)->rope_short_positions};
    assert_true(t.limit > 0);
    t.n = t.limit + BEYOND;
    t.ids = test_calloc((size_t)t.n, sizeof *t.ids);
    t.longer = test_calloc((size_t)t.n, sizeof *t.longer);
    t.shorter = test_calloc((size_t)t.n, sizeof *t.shorter);
    t.got = test_calloc((size_t)t.n, sizeof *t.got);
    for (int64_t i = 0; i < t.n; i++)
        t.ids[i] = (int32_t)(1 + (i * 131) % (qn_engine_config(e)->vocab_size - 1));
    whole(&t, t.n, t.longer);
    whole(&t, t.limit, t.shorter);
    /* The first token is at position 0 and turned by nothing. */
    for (int64_t i = 1; i < t.limit; i++) assert_true(t.shorter[i] != t.longer[i]);
    return t;
}

static void free_text(text *t)
{
    test_free(t->ids);
    test_free(t->longer);
    test_free(t->shorter);
    test_free(t->got);
}

/* Hashes of the rows of each feed go where it says. */
typedef struct {
    uint64_t *out[COMPANY];
    int64_t vocab;
    int stop_after; /* chunks; 0: never */
} rows;

static int stop_now(void *user)
{
    rows *r = user;
    return r->stop_after && --r->stop_after == 0;
}

static qn_status hash_rows(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    rows *r = user;
    for (int64_t i = 0; i < n; i++)
        r->out[feed][first + i] = qn_hash_bytes(logits + i * r->vocab, (size_t)r->vocab * sizeof *logits, 0);
    return QN_OK;
}

static void feed(const text *t, qn_sequence *s, int64_t from, int64_t n)
{
    rows r = {.out = {t->got + from}, .vocab = qn_engine_config(t->e)->vocab_size};
    qn_feed f = {s, t->ids + from, n, QN_LOGITS_ALL};
    qn_test_ok(qn_engine_step(t->e, 1, &f, hash_rows, NULL, &r));
    assert_int_equal(qn_sequence_length(s), from + n);
}

/* Tokens of steps that ended at or below the limit have the short set's bits, all others the long one's. */
static void check(const text *t, int64_t piece)
{
    for (int64_t i = 0; i < t->n; i++) {
        int64_t end = (i / piece + 1) * piece;
        if (t->got[i] != (end <= t->limit ? t->shorter[i] : t->longer[i]))
            fail_msg("pieces of %lld: the bits of token %lld differ", (long long)piece, (long long)i);
    }
}

static void grows(void **state)
{
    static const int64_t pieces[] = {1, 7, 32, 64, 100};
    for (int p = 0; p < 3; p++) {
        qn_engine *e = open_engine((qn_precision)p, 48, 0);
        text t = new_text(e);
        for (size_t i = p ? 2 : 0; i < sizeof pieces / sizeof *pieces; i++) {
            qn_sequence *s = qn_test_sequence(e);
            for (int64_t at = 0; at < t.n; at += pieces[i])
                feed(&t, s, at, t.n - at < pieces[i] ? t.n - at : pieces[i]);
            qn_sequence_free(s);
            check(&t, pieces[i]);
            /* Its length is known: no part is computed as of a short one. */
            s = qn_test_sequence(e);
            qn_sequence_expect(s, t.n);
            for (int64_t at = 0; at < t.n; at += pieces[i])
                feed(&t, s, at, t.n - at < pieces[i] ? t.n - at : pieces[i]);
            qn_sequence_free(s);
            assert_memory_equal(t.got, t.longer, (size_t)t.n * sizeof *t.got);
        }
        free_text(&t);
        qn_engine_close(e);
    }
}

/* Sequences that are short, become long in the same step and are long already share their steps. */
static void in_company(void **state)
{
    qn_engine *e = open_engine(QN_PRECISION_HIGH, 64, 0);
    text t = new_text(e);
    int64_t at[COMPANY] = {0, t.limit - 3, t.limit - 1, t.limit + 5};
    uint64_t got[COMPANY][BEYOND];
    qn_sequence *s[COMPANY];
    for (int i = 0; i < COMPANY; i++) {
        s[i] = qn_test_sequence(e);
        if (at[i]) feed(&t, s[i], 0, at[i]);
    }
    for (int step = 0; step < 8; step++) {
        rows r = {.vocab = qn_engine_config(e)->vocab_size};
        qn_feed feeds[COMPANY];
        for (int i = 0; i < COMPANY; i++) {
            r.out[i] = &got[i][step];
            feeds[i] = (qn_feed){s[i], t.ids + at[i] + step, 1, QN_LOGITS_ALL};
        }
        qn_test_ok(qn_engine_step(e, COMPANY, feeds, hash_rows, NULL, &r));
    }
    for (int i = 0; i < COMPANY; i++) {
        for (int step = 0; step < 8; step++) {
            int64_t p = at[i] + step;
            if (got[i][step] != (p < t.limit ? t.shorter[p] : t.longer[p]))
                fail_msg("sequence %d of the step: the bits of token %lld differ", i, (long long)p);
        }
        qn_sequence_free(s[i]);
    }
    free_text(&t);
    qn_engine_close(e);
}

/* A step that is stopped while it computes the beginning anew: the next one goes on with that. */
static void stopped(void **state)
{
    qn_engine *e = open_engine(QN_PRECISION_EXACT, 16, 0);
    text t = new_text(e);
    for (int chunks = 1; chunks <= (int)(t.limit / 16) + 1; chunks++) {
        qn_sequence *s = qn_test_sequence(e);
        feed(&t, s, 0, t.limit);
        rows r = {.out = {t.got + t.limit}, .vocab = qn_engine_config(e)->vocab_size, .stop_after = chunks};
        qn_feed f = {s, t.ids + t.limit, 1, QN_LOGITS_ALL};
        assert_int_equal(qn_engine_step(e, 1, &f, hash_rows, stop_now, &r), QN_E_CANCELLED);
        assert_int_equal(qn_sequence_length(s), t.limit);
        for (int64_t i = t.limit; i < t.n; i++) feed(&t, s, i, 1);
        qn_sequence_free(s);
        check(&t, t.limit);
    }
    free_text(&t);
    qn_engine_close(e);
}

/* A context that is narrower than the short set's positions moves along. */
static void rotates(void **state)
{
    qn_engine *e = open_engine(QN_PRECISION_EXACT, 24, 40);
    text t = new_text(e);
    qn_sequence *s = qn_test_sequence(e);
    for (int64_t i = 0; i < t.n; i++) feed(&t, s, i, 1);
    qn_sequence_free(s);
    check(&t, 1);
    free_text(&t);
    qn_engine_close(e);
}

static void memory_runs_out(void **state)
{
    qn_engine *e = open_engine(QN_PRECISION_EXACT, 48, 0);
    text t = new_text(e);
    int64_t before = qn_mem_live_blocks();
    qn_status status = QN_E_NOMEM;
    for (int n = 1; status != QN_OK && n < 2000; n++) {
        rows r = {.out = {t.got}, .vocab = qn_engine_config(e)->vocab_size};
        qn_sequence *s = NULL;
        qn_mem_fail_nth(n);
        status = qn_sequence_new(e, &s);
        for (int64_t i = 0; i < t.n && status == QN_OK; i++) {
            qn_feed f = {s, t.ids + i, 1, QN_LOGITS_ALL};
            r.out[0] = t.got + i;
            status = qn_engine_step(e, 1, &f, hash_rows, NULL, &r);
        }
        qn_mem_fail_nth(0);
        qn_sequence_free(s);
        if (status != QN_OK) assert_int_equal(status, QN_E_NOMEM);
        assert_int_equal(qn_mem_live_blocks(), before);
    }
    qn_test_ok(status);
    check(&t, 1);
    free_text(&t);
    qn_engine_close(e);
}

/* ---- GGUF --------------------------------------------------------------------------------------------- */

static void in_gguf(void **state)
{
    const char *dir = qn_test_need_fixture("models/phi3_longrope"), *folder = qn_test_scratch();
    const char *path = qn_test_gguf_model(folder, dir);
    qn_engine_options o = {.precision = QN_PRECISION_EXACT, .n_threads = 1};
    qn_engine *a = qn_test_engine(dir, NULL, o), *b = qn_test_engine(path, NULL, o);
    const qn_rope_config *x = &qn_engine_config(a)->rope[0], *y = &qn_engine_config(b)->rope[0];
    assert_int_equal(y->type, QN_ROPE_LONG);
    assert_int_equal(x->short_positions, y->short_positions);
    assert_true(x->attention_factor == y->attention_factor);
    for (int64_t i = 0; i < x->rotary_dim / 2; i++) {
        assert_true(x->inv_freq[i] == y->inv_freq[i]);
        assert_true(x->long_inv_freq[i] == y->long_inv_freq[i]);
    }
    text t = new_text(a), u = new_text(b);
    assert_memory_equal(t.shorter, u.shorter, (size_t)t.limit * sizeof *t.shorter);
    assert_memory_equal(t.longer, u.longer, (size_t)t.n * sizeof *t.longer);
    free_text(&t);
    free_text(&u);
    qn_engine_close(a);
    qn_engine_close(b);
    qn_test_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grows),   cmocka_unit_test(in_company),      cmocka_unit_test(stopped),
        cmocka_unit_test(rotates), cmocka_unit_test(memory_runs_out), cmocka_unit_test(in_gguf),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

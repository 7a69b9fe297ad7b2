/* Answers with a form: the same tokens and log-probabilities alone, in company, with guesses, in pieces, behind
 * cached prefixes and after a preemption; and the form is kept. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>
#include <quern/quern.h>

#include "api/handles.h"
#include "backend/native/native_parts.h"
#include "base/buf.h"
#include "base/mem.h"
#include "base/random.h"
#include "constrain/constraint.h"
#include "engine/machine/engine_parts.h"
#include "engine/sample/logprobs.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"

enum { PROMPT = 40, TOKENS = 90, OTHERS = 5, N_TOP = 3 };

static const char *const models[] = {"models/llama", "models/gemma3", "models/qwen3_next", "models/gpt_oss"};
enum { N_MODELS = sizeof models / sizeof *models };

/* ---- forms --------------------------------------------------------------------------------------------- */

static const struct {
    qn_constraint_kind kind;
    const char *text;
} fixed[] = {
    {QN_CONSTRAIN_CHOICES, "[\"yes\"]"},
    {QN_CONSTRAIN_CHOICES, "[\"yes\", \"yesterday\", \"no\"]"},
    {QN_CONSTRAIN_REGEX, "[a-c]{2,9}(xyz){3}[0-9]*"},
    {QN_CONSTRAIN_REGEX, "(a|b|\\n|é)*"},
    {QN_CONSTRAIN_JSON_OBJECT, ""},
    {QN_CONSTRAIN_GBNF,
     "root ::= item (\", \" item)* \".\"\nitem ::= \"apple\" | \"a pear\" | \"[\" item \"]\""},
    {QN_CONSTRAIN_LARK, "start: \"the answer is \" NUMBER\nNUMBER: /[1-9][0-9]{0,3}/"},
    {QN_CONSTRAIN_JSON_SCHEMA,
     "{\"type\": \"object\", \"properties\": {\"name\": {\"enum\": [\"Ada Lovelace\", \"Grace "
     "Hopper\"]}, \"year\": {\"type\": \"integer\", \"minimum\": 1800, \"maximum\": 1999}, "
     "\"a long name of a member that is forced\": {\"const\": [1, 2, \"three\", null]}}, "
     "\"required\": [\"name\", \"year\", \"a long name of a member that is forced\"], "
     "\"additionalProperties\": false}"},
    {QN_CONSTRAIN_JSON_SCHEMA,
     "{\"type\": \"array\", \"items\": {\"anyOf\": [{\"type\": \"boolean\"}, {\"type\": "
     "\"string\", \"maxLength\": 5}]}, \"minItems\": 2, \"maxItems\": 9}"},
};
enum { N_FIXED = sizeof fixed / sizeof *fixed, N_FORMS = N_FIXED + 6 };

static void put_word(qn_buf *b, uint64_t seed, int n)
{
    static const char letters[] = "etaoin shrdlu{}[]:,-0123";
    for (int i = 0; i < n; i++)
        qn_buf_putc(b, letters[qn_random_bits(seed, (uint64_t)i) % (sizeof letters - 1)]);
}

/* Choices that share beginnings of up to many tokens: more than a ring holds, and than a row may have. */
static void put_choices(qn_buf *b, uint64_t seed)
{
    const int n = 1 + (int)(qn_random_bits(seed, 0) % 6), shared = (int)(qn_random_bits(seed, 1) % 120);
    qn_buf_putc(b, '[');
    for (int i = 0; i < n; i++) {
        qn_buf_printf(b, "%s\"", i ? ", " : "");
        put_word(b, seed, shared);
        put_word(b, seed + 1000 * (uint64_t)(i + 1), 1 + (int)(qn_random_bits(seed, 2 + (uint64_t)i) % 30));
        qn_buf_putc(b, '"');
    }
    qn_buf_putc(b, ']');
}

static qn_constraint *open_form(qn_model *m, int i)
{
    qn_buf b = {0};
    qn_constraint *c = NULL;
    qn_constraint_options o = {.kind = QN_CONSTRAIN_CHOICES};
    if (i < N_FIXED) {
        o.kind = fixed[i].kind;
        qn_buf_puts(&b, fixed[i].text);
    } else {
        put_choices(&b, (uint64_t)i);
    }
    o.text = b.data;
    if (qn_constraint_open(m, &o, &c) != QN_OK) fail_msg("form %d: %s", i, qn_last_error());
    qn_buf_free(&b);
    return c;
}

/* ---- answers ------------------------------------------------------------------------------------------- */

typedef struct {
    int n;
    int32_t ids[TOKENS];
    float logprobs[TOKENS];
    int32_t n_top[TOKENS];
    qn_top_logprob top[TOKENS][N_TOP];
    qn_end end;
    qn_buf text;
} answer;

static void make_prompt(int32_t *ids, uint64_t seed)
{
    for (int i = 0; i < PROMPT; i++)
        ids[i] = (int32_t)(5 + qn_random_bits(seed, (uint64_t)(i % 9)) % 300); /* with a repetition */
}

static qn_model *open_model(const char *name, int32_t chunk, int32_t slots)
{
    qn_model *m = NULL;
    qn_test_ok(qn_model_open(
        qn_test_need_fixture(name),
        &(qn_model_options){
            .n_threads = 2, .parallel_slots = slots, .prefill_chunk = chunk, .context_size = 512},
        &m));
    return m;
}

static qn_generation *open_one(qn_model *m, qn_constraint *c, qn_generate_options o, uint64_t seed)
{
    int32_t ids[PROMPT];
    const qn_ids row = {ids, PROMPT};
    qn_generation *g = NULL;
    make_prompt(ids, seed);
    o.max_tokens = o.max_tokens ? o.max_tokens : TOKENS;
    o.seed = seed;
    o.constraint = c;
    qn_test_ok(qn_generation_open(m, &(qn_prompt){.rows = &row, .n_rows = 1}, &o, &g));
    return g;
}

static int read_token(qn_generation *g, answer *a)
{
    qn_token t;
    qn_test_ok(qn_generation_next(g, &t));
    qn_buf_append(&a->text, t.text, t.text_bytes);
    a->end = t.end;
    if (t.end != QN_END_NONE) return 0;
    assert_true(a->n < TOKENS);
    a->ids[a->n] = t.id;
    a->logprobs[a->n] = t.logprob;
    a->n_top[a->n] = t.n_top;
    assert_true(t.n_top <= N_TOP);
    if (t.n_top) memcpy(a->top[a->n], t.top, (size_t)t.n_top * sizeof *t.top);
    a->n++;
    return 1;
}

static void read_all(qn_generation *g, answer *a)
{
    while (read_token(g, a)) continue;
    qn_generation_close(g);
}

static void same(const char *way, int form, const answer *want, const answer *got)
{
    if (want->n != got->n || want->end != got->end ||
        memcmp(want->ids, got->ids, (size_t)want->n * sizeof *want->ids) != 0)
        fail_msg("form %d, %s: other tokens: %d, ended by %s; %d, ended by %s", form, way, want->n,
                 qn_end_name(want->end), got->n, qn_end_name(got->end));
    for (int i = 0; i < want->n; i++) {
        if (memcmp(&want->logprobs[i], &got->logprobs[i], sizeof *want->logprobs) != 0)
            fail_msg("form %d, %s: token %d of %d: log-probability %a, and %a", form, way, i, want->n,
                     (double)want->logprobs[i], (double)got->logprobs[i]);
        assert_int_equal(want->n_top[i], got->n_top[i]);
        for (int k = 0; k < want->n_top[i]; k++) assert_int_equal(want->top[i][k].id, got->top[i][k].id);
    }
}

static void end_answer(answer *a)
{
    qn_buf_free(&a->text);
    *a = (answer){0};
}

static const qn_generate_options ways[] = {
    {0},
    {.temperature = 1},
    {.temperature = 1, .logprobs = 1, .n_top_logprobs = N_TOP},
    {.logprobs = 1},
    {.temperature = 1.3f, .top_p = 0.9f, .repeat_penalty = 1.2f, .presence_penalty = 0.5f, .mirostat = 2},
    {.temperature = 1, .ignore_eos = 1, .top_k = 5},
};
enum { N_WAYS = sizeof ways / sizeof *ways };

/* One form on one model in one way: alone, and in all other ways that must not matter. */
static void compare(qn_model *m, qn_model *small, int form, int way)
{
    const uint64_t seed = 10 + (uint64_t)form;
    qn_constraint *c = open_form(m, form), *of_small = open_form(small, form), *other[OTHERS];
    qn_generation *others[OTHERS];
    qn_generate_options o = ways[way];
    answer alone = {0}, got = {0};
    o.no_prefix_cache = 1;
    read_all(open_one(m, c, o, seed), &alone);
    o.no_prefix_cache = 0;
    for (int i = 0; i < 2; i++) { /* the second finds the prefix of the first */
        read_all(open_one(m, c, o, seed), &got);
        same(i ? "behind a cached prefix" : "leaving a prefix", form, &alone, &got);
        end_answer(&got);
    }
    for (int i = 0; i < OTHERS; i++) {
        qn_generate_options p = ways[(way + i) % N_WAYS];
        other[i] = open_form(m, (form + i) % N_FORMS);
        p.n_draft = i % 2 ? 4 : 0;
        others[i] = open_one(m, i == 3 ? NULL : other[i], p, seed + 100 + (uint64_t)i);
    }
    read_all(open_one(m, c, o, seed), &got);
    same("in company", form, &alone, &got);
    end_answer(&got);
    for (int i = 0; i < OTHERS; i++) {
        qn_generation_close(others[i]);
        qn_constraint_close(other[i]);
    }
    o.n_draft = 6;
    read_all(open_one(m, c, o, seed), &got);
    same("with guesses", form, &alone, &got);
    end_answer(&got);
    o.n_draft = 0;
    read_all(open_one(small, of_small, o, seed), &got);
    same("in small pieces", form, &alone, &got);
    end_answer(&got);
    /* One place: the other request takes it, and gives it back. */
    qn_generation *g = open_one(small, of_small, o, seed);
    for (int i = 0; i < 3 && read_token(g, &got); i++) {
        answer first = {0};
        if (got.end != QN_END_NONE) break;
        read_all(open_one(small, NULL, (qn_generate_options){.max_tokens = 2, .priority = 1}, seed + 7),
                 &first);
        end_answer(&first);
    }
    if (got.end == QN_END_NONE)
        read_all(g, &got);
    else
        qn_generation_close(g);
    same("preempted", form, &alone, &got);
    end_answer(&got);
    end_answer(&alone);
    qn_constraint_close(of_small);
    qn_constraint_close(c);
}

static void test_same_bits(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        qn_model *m = open_model(models[i], 0, OTHERS + 1), *small = open_model(models[i], 3, 1);
        for (int form = 0; form < N_FORMS; form++)
            for (int way = 0; way < N_WAYS; way++)
                if (i == 0 || (form + way) % 3 == 0) compare(m, small, form, way);
        qn_figures figures;
        qn_test_ok(qn_model_get_figures(small, &figures));
        assert_true(figures.n_preemptions > 0);
        qn_test_ok(qn_model_get_figures(m, &figures));
        assert_true(figures.n_cached_tokens > 0);
        qn_model_close(&small);
        qn_model_close(&m);
    }
}

/* ---- what comes --------------------------------------------------------------------------------------- */

/* The matcher of the constraint says of each answer that it is one, or the beginning of one. */
static void test_form_is_kept(void **state)
{
    (void)state;
    qn_model *m = open_model(models[0], 0, 1);
    int n_complete = 0, n_cut = 0;
    for (int form = 0; form < N_FORMS; form++) {
        qn_constraint *c = open_form(m, form);
        for (int way = 0; way < N_WAYS; way++) {
            answer a = {0};
            size_t n_taken = 0;
            qn_matcher *place = NULL;
            read_all(open_one(m, c, ways[way], 5 + (uint64_t)way), &a);
            qn_test_ok(qn_matcher_new(c, &place));
            qn_test_ok(qn_matcher_accept_text(place, a.text.data, a.text.length, &n_taken));
            /* What is cut may end within a character, which three bytes stand for. */
            if (n_taken + (a.end == QN_END_LENGTH ? 3 : 0) < a.text.length)
                fail_msg("form %d: byte %zu of %s may not come", form, n_taken, a.text.data);
            if (a.end == QN_END_STOP && !qn_matcher_may_end(place))
                fail_msg("form %d: %s is not complete", form, a.text.data);
            qn_matcher_free(place);
            n_complete += a.end == QN_END_STOP;
            n_cut += a.end == QN_END_LENGTH;
            end_answer(&a);
        }
        qn_constraint_close(c);
    }
    assert_true(n_complete > 0 && n_cut > 0);
    qn_model_close(&m);
}

/* A row that ends early has the same first tokens. */
static void test_cut(void **state)
{
    (void)state;
    qn_model *m = open_model(models[0], 0, 1);
    for (int form = 0; form < N_FORMS; form++) {
        qn_constraint *c = open_form(m, form);
        for (int way = 0; way < 3; way++) {
            answer whole = {0}, cut = {0};
            qn_generate_options o = ways[way];
            read_all(open_one(m, c, o, 4), &whole);
            for (int n = 1; n <= whole.n; n += 1 + n / 8) {
                o.max_tokens = n;
                read_all(open_one(m, c, o, 4), &cut);
                assert_int_equal(cut.n, n);
                assert_memory_equal(cut.ids, whole.ids, (size_t)n * sizeof *cut.ids);
                if (n < whole.n) assert_int_equal(cut.end, QN_END_LENGTH); /* else a stop id may have come */
                end_answer(&cut);
            }
            end_answer(&whole);
        }
        qn_constraint_close(c);
    }
    qn_model_close(&m);
}

/* Log-probabilities, of forced tokens too, are the model's for the prompt and the answer in one pass. */
typedef struct {
    const answer *a;
    int64_t n_vocab, n_checked;
} comparison;

static qn_status compare_rows(void *user, int64_t row, int64_t position, int64_t n, const float *logits)
{
    comparison *k = user;
    (void)row;
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = position + i - (PROMPT - 1);
        qn_logprobs l;
        if (at < 0 || at >= k->a->n) continue;
        QN_TRY(qn_logprobs_read(NULL, logits + i * k->n_vocab, k->n_vocab, &l));
        const float want = (float)qn_logprobs_of(&l, k->a->ids[at]);
        assert_memory_equal(&want, &k->a->logprobs[at], sizeof want);
        k->n_checked++;
    }
    return QN_OK;
}

static void test_logprobs(void **state)
{
    (void)state;
    qn_model *m = open_model(models[0], 0, 1);
    qn_model_info info;
    qn_test_ok(qn_model_get_info(m, &info));
    for (int form = 0; form < N_FORMS; form++) {
        answer a = {0};
        int32_t ids[PROMPT + TOKENS];
        comparison k = {&a, info.vocab_size, 0};
        qn_constraint *c = open_form(m, form);
        read_all(open_one(m, c, (qn_generate_options){.temperature = 1, .logprobs = 1}, 6), &a);
        make_prompt(ids, 6);
        memcpy(ids + PROMPT, a.ids, (size_t)a.n * sizeof *ids);
        qn_test_ok(qn_model_logits(m, &(qn_ids){ids, PROMPT + a.n}, 1, NULL, compare_rows, &k));
        assert_int_equal(k.n_checked, a.n);
        qn_constraint_close(c);
        end_answer(&a);
    }
    qn_model_close(&m);
}

/* ---- passes that go wrong -------------------------------------------------------------------------------- */

typedef enum { FAILS, FAILS_LATE, NO_NUMBERS, N_FAULTS } fault;

static struct {
    qn_device_ops ops;
    const qn_device_ops *good;
    qn_engine *e;
    int n_runs, at; /* which pass goes wrong */
    fault what;
} broken;

static qn_status run_broken(qn_exec *exec, const qn_sizes *sizes)
{
    const int is_bad = ++broken.n_runs == broken.at;
    if (is_bad && broken.what == FAILS) return qn_fail(QN_E_DEVICE, "a pass was lost");
    QN_TRY(broken.good->run(exec, sizes));
    if (is_bad && broken.what == FAILS_LATE) return qn_fail(QN_E_DEVICE, "a pass was lost");
    if (is_bad) {
        float *logits = (float *)(uintptr_t)qn_program_output(broken.e->head, 0);
        const int64_t n = sizes->v[2] * broken.e->config.vocab_size;
        for (int64_t k = 0; k < n; k++) logits[k] = NAN;
    }
    return QN_OK;
}

/* The tokens up to the end, or up to a failure. Returns 1 without one. */
static int read_broken(qn_generation *g, answer *a)
{
    qn_token t = {0};
    qn_status status = QN_OK;
    while (status == QN_OK && t.end == QN_END_NONE) {
        status = qn_generation_next(g, &t);
        if (status != QN_OK || t.end != QN_END_NONE) break;
        assert_true(a->n < TOKENS);
        a->logprobs[a->n] = t.logprob;
        a->ids[a->n++] = t.id;
    }
    a->end = t.end;
    qn_generation_close(g);
    return status == QN_OK;
}

/* One pass after the other goes wrong: an answer is the same then, or it fails behind tokens that are right. */
static void test_faults(void **state)
{
    (void)state;
    static const qn_generate_options asked[] = {{.temperature = 1}, {.temperature = 1, .logprobs = 1}};
    int n_recovered = 0;
    for (int i = 0; i < 3; i += 2) { /* with pages alone, and with recurrent state */
        qn_model *m = open_model(models[i], 8, 2);
        qn_engine *e = ((native_model *)m->object)->engine;
        broken.good = e->device->ops;
        broken.ops = *broken.good;
        broken.ops.run = run_broken;
        broken.e = e;
        e->device->ops = &broken.ops;
        for (int form = N_FIXED - 2; form < N_FORMS; form++) {
            qn_constraint *c = open_form(m, form);
            for (int k = 0; k < 2 * N_FAULTS; k++) {
                answer want = {0};
                broken.at = 0;
                read_all(open_one(m, c, asked[k % 2], 3), &want);
                broken.what = (fault)(k / 2);
                for (int at = 1;; at += 1 + at / 12) {
                    answer got = {0};
                    broken.at = at;
                    broken.n_runs = 0;
                    const int is_whole = read_broken(open_one(m, c, asked[k % 2], 3), &got);
                    const int was_broken = broken.n_runs >= at;
                    assert_true(got.n <= want.n);
                    assert_memory_equal(got.ids, want.ids, (size_t)got.n * sizeof *got.ids);
                    assert_memory_equal(got.logprobs, want.logprobs, (size_t)got.n * sizeof *got.logprobs);
                    if (is_whole) {
                        assert_int_equal(got.n, want.n);
                        assert_int_equal(got.end, want.end);
                    }
                    n_recovered += is_whole && was_broken;
                    if (!was_broken) break;
                }
                broken.at = 0;
                answer again = {0};
                read_all(open_one(m, c, asked[k % 2], 3), &again);
                same("behind failures", form, &want, &again);
                end_answer(&again);
                end_answer(&want);
            }
            qn_constraint_close(c);
        }
        e->device->ops = broken.good;
        qn_model_close(&m);
    }
    assert_true(n_recovered > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits), cmocka_unit_test(test_form_is_kept), cmocka_unit_test(test_cut),
        cmocka_unit_test(test_logprobs),  cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

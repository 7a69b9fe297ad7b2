/* Every step of the chain beside tools/sampler_reference.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "engine/sample/candidates.h"
#include "engine/sample/dry.h"
#include "engine/sample/mirostat.h"
#include "engine/sample/sampler.h"
#include "tests/support/fixtures.h"

enum { N_MOST = 20011, IDS_MOST = 64, WORDS_MOST = 8 };

static json_t *golden;

static int read_golden(void **state)
{
    static char text[1 << 17];
    FILE *f = fopen(qn_test_need_fixture("ops/chains.json"), "rb");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof text, f);
    fclose(f);
    assert_true(n > 0 && n < sizeof text);
    assert_int_equal(qn_json_parse("chains.json", text, n, &golden), QN_OK);
    return 0;
}

static int free_golden(void **state)
{
    json_decref(golden);
    return 0;
}

/* The stored logits of a name, or those that its formula makes. */
static int64_t get_logits(const char *name, float *x)
{
    const json_t *stored = json_object_get(json_object_get(golden, "logits"), name),
                 *made = json_object_get(json_object_get(golden, "made"), name);
    if (stored) {
        for (size_t i = 0; i < json_array_size(stored); i++)
            x[i] = (float)json_number_value(json_array_get(stored, i));
        return (int64_t)json_array_size(stored);
    }
    assert_int_equal(json_array_size(made), 4);
    int64_t n = json_integer_value(json_array_get(made, 0)),
            step = json_integer_value(json_array_get(made, 1)),
            modulus = json_integer_value(json_array_get(made, 2));
    float divisor = (float)json_number_value(json_array_get(made, 3));
    assert_true(n <= N_MOST);
    for (int64_t i = 0; i < n; i++) x[i] = (float)(i * step % modulus - modulus / 2) / divisor;
    return n;
}

static int64_t get_ids(const json_t *list, int32_t *ids)
{
    assert_true(json_array_size(list) <= IDS_MOST);
    for (size_t i = 0; i < json_array_size(list); i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return (int64_t)json_array_size(list);
}

static void check_near(double got, double want)
{
    if (fabs(got - want) > 1e-6 || (want > 0) != (got > 0)) fail_msg("%.9g instead of %.9g", got, want);
}

/* ---- chains ---- */

typedef struct {
    qn_generate_options o;
    qn_sampler_step order[QN_SAMPLER_COUNT];
    int32_t allowed[IDS_MOST], bad[WORDS_MOST][IDS_MOST];
    qn_ids words[WORDS_MOST];
} options;

static void read_options(const json_t *from, options *to)
{
    static const char *const no_breakers[] = {NULL};
    qn_generate_options *o = &to->o;
    const struct {
        const char *name;
        float *real;
        int32_t *integer;
    } fields[] = {
        {"temperature", &o->temperature, NULL},
        {"top_p", &o->top_p, NULL},
        {"min_p", &o->min_p, NULL},
        {"top_k", NULL, &o->top_k},
        {"repeat_penalty", &o->repeat_penalty, NULL},
        {"repeat_last_n", NULL, &o->repeat_last_n},
        {"presence_penalty", &o->presence_penalty, NULL},
        {"frequency_penalty", &o->frequency_penalty, NULL},
        {"typical_p", &o->typical_p, NULL},
        {"top_n_sigma", &o->top_n_sigma, NULL},
        {"xtc_probability", &o->xtc_probability, NULL},
        {"xtc_threshold", &o->xtc_threshold, NULL},
        {"dynatemp_range", &o->dynatemp_range, NULL},
        {"dynatemp_exponent", &o->dynatemp_exponent, NULL},
        {"dry_multiplier", &o->dry_multiplier, NULL},
        {"dry_base", &o->dry_base, NULL},
        {"dry_allowed_length", NULL, &o->dry_allowed_length},
        {"dry_penalty_last_n", NULL, &o->dry_penalty_last_n},
    };
    const char *key;
    json_t *value;
    memset(to, 0, sizeof *to);
    o->temperature = 1;
    o->dry_sequence_breakers = no_breakers;
    json_object_foreach((json_t *)from, key, value)
    {
        size_t i = 0, n = sizeof fields / sizeof *fields;
        while (i < n && strcmp(fields[i].name, key) != 0) i++;
        if (i < n && fields[i].real) {
            *fields[i].real = (float)json_number_value(value);
        } else if (i < n) {
            *fields[i].integer = (int32_t)json_integer_value(value);
        } else if (strcmp(key, "allowed_ids") == 0) {
            o->allowed_ids = to->allowed;
            o->n_allowed_ids = (size_t)get_ids(value, to->allowed);
        } else if (strcmp(key, "bad_ids") == 0) {
            o->bad_ids = to->words;
            o->n_bad_ids = json_array_size(value);
            assert_true(o->n_bad_ids <= WORDS_MOST);
            for (size_t w = 0; w < o->n_bad_ids; w++)
                to->words[w] = (qn_ids){to->bad[w], get_ids(json_array_get(value, w), to->bad[w])};
        } else if (strcmp(key, "sampler_order") == 0) {
            o->sampler_order = to->order;
            o->n_sampler_order = json_array_size(value);
            for (size_t s = 0; s < o->n_sampler_order; s++) {
                const char *name = json_string_value(json_array_get(value, s));
                assert_true(qn_sampler_step_from_name(name, strlen(name), &to->order[s]));
            }
        } else {
            fail_msg("option %s", key);
        }
    }
}

static void test_cases(void **state)
{
    static float logits[N_MOST], got[N_MOST];
    static options o;
    const json_t *cases = json_object_get(golden, "cases");
    int32_t prompt[IDS_MOST], drawn[IDS_MOST], ids[IDS_MOST];
    assert_true(json_array_size(cases) > 50);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i), *p = json_object_get(c, "p");
        const int64_t n = get_logits(json_string_value(json_object_get(c, "logits")), logits),
                      n_prompt = get_ids(json_object_get(c, "prompt"), prompt),
                      n_drawn = get_ids(json_object_get(c, "drawn"), drawn),
                      n_ids = get_ids(json_object_get(c, "ids"), ids);
        qn_words *words = NULL;
        qn_sampler *s = NULL;
        int64_t n_kept = 0;
        read_options(json_object_get(c, "options"), &o);
        assert_int_equal(qn_words_new(NULL, &o.o, n, 1000, &words), QN_OK);
        assert_int_equal(qn_sampler_new(NULL, &o.o, n, words, &s), QN_OK);
        assert_int_equal(qn_sampler_accept(s, prompt, n_prompt), QN_OK);
        for (int64_t k = 0; k < n_drawn; k++) assert_int_equal(qn_sampler_accept_drawn(s, drawn[k]), QN_OK);
        for (int again = 0; again < 2; again++) {
            assert_int_equal(qn_sampler_distribution(s, logits, 0, got), QN_OK);
            n_kept = 0;
            for (int64_t k = 0; k < n; k++) n_kept += got[k] > 0;
            if (n_kept != json_integer_value(json_object_get(c, "n_kept")))
                fail_msg("case %zu keeps %d tokens", i, (int)n_kept);
            for (int64_t k = 0; k < n_ids; k++)
                check_near((double)got[ids[k]], json_number_value(json_array_get(p, (size_t)k)));
        }
        qn_sampler_free(s);
        qn_words_free(words);
    }
}

/* ---- mirostat ---- */

static void test_traces(void **state)
{
    static float logits[N_MOST], got[N_MOST];
    const json_t *traces = json_object_get(golden, "traces");
    const qn_logits_kernels *kernels;
    assert_int_equal(qn_device_get_logits_kernels(NULL, &kernels), QN_OK);
    assert_int_equal(json_array_size(traces), 4);
    for (size_t i = 0; i < json_array_size(traces); i++) {
        const json_t *trace = json_array_get(traces, i), *steps = json_object_get(trace, "steps");
        qn_mirostat m;
        qn_mirostat_begin(&m, (int)json_integer_value(json_object_get(trace, "version")),
                          (float)json_number_value(json_object_get(trace, "tau")),
                          (float)json_number_value(json_object_get(trace, "eta")));
        assert_true(json_array_size(steps) == 40);
        for (size_t k = 0; k < json_array_size(steps); k++) {
            const json_t *step = json_array_get(steps, k);
            const int64_t n = get_logits(json_string_value(json_object_get(step, "logits")), logits);
            const int32_t id = (int32_t)json_integer_value(json_object_get(step, "id"));
            qn_candidates *c = NULL;
            int64_t n_kept = 0;
            assert_int_equal(qn_candidates_new(kernels, n, 0, 0, &c), QN_OK);
            assert_int_equal(qn_candidates_begin(c, logits), QN_OK);
            qn_mirostat_filter(&m, c);
            qn_candidates_distribution(c, got);
            qn_mirostat_look(&m, c, id);
            qn_mirostat_accept(&m);
            for (int64_t t = 0; t < n; t++) n_kept += got[t] > 0;
            if (n_kept != json_integer_value(json_object_get(step, "n_kept")))
                fail_msg("trace %zu, step %zu: %d tokens stay", i, k, (int)n_kept);
            check_near((double)got[id], json_number_value(json_object_get(step, "p")));
            assert_true(fabs(m.mu - json_number_value(json_object_get(step, "mu"))) < 1e-5);
            qn_candidates_free(c);
        }
    }
}

/* ---- DRY ---- */

static void test_repetitions(void **state)
{
    const json_t *cases = json_object_get(golden, "repetitions");
    int32_t tokens[IDS_MOST], breakers[IDS_MOST], want[IDS_MOST];
    int n_losses = 0;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i), *losses = json_object_get(c, "losses");
        const int64_t n = get_ids(json_object_get(c, "tokens"), tokens),
                      n_breakers = get_ids(json_object_get(c, "breakers"), breakers),
                      n_want = get_ids(json_object_get(c, "ids"), want);
        uint64_t bits = 0;
        for (int64_t k = 0; k < n_breakers; k++) bits |= UINT64_C(1) << breakers[k];
        const qn_dry_options o = {.multiplier = (float)json_number_value(json_object_get(c, "multiplier")),
                                  .base = (float)json_number_value(json_object_get(c, "base")),
                                  .allowed_length = json_integer_value(json_object_get(c, "allowed_length")),
                                  .window = IDS_MOST,
                                  .breakers = &bits};
        const int32_t *ids = NULL;
        const float *amounts = NULL;
        qn_dry *d = NULL;
        assert_int_equal(qn_dry_new(&o, &d), QN_OK);
        const int64_t n_got = qn_dry_find(d, tokens, n, &ids, &amounts);
        if (n_got != n_want) fail_msg("case %zu: %d tokens instead of %d", i, (int)n_got, (int)n_want);
        for (int64_t k = 0; k < n_want; k++, n_losses++) {
            const double loss = json_number_value(json_array_get(losses, (size_t)k));
            assert_int_equal(ids[k], want[k]);
            assert_true(fabs((double)amounts[k] / loss - 1) < 1e-6);
        }
        qn_dry_free(d);
    }
    assert_true(n_losses > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_traces),
        cmocka_unit_test(test_repetitions),
    };
    return cmocka_run_group_tests(tests, read_golden, free_golden);
}

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "base/random.h"
#include "engine/sample/sampler.h"
#include "tests/support/fixtures.h"

static char *read_fixture(const char *name, size_t *n)
{
    char relative[64];
    snprintf(relative, sizeof relative, "ops/%s", name);
    FILE *f = fopen(qn_test_need_fixture(relative), "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    char *bytes = qn_alloc(*n);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *n, f), *n);
    fclose(f);
    return bytes;
}

/* An F32 vector of a safetensors file. */
static const float *get_vector(const json_t *header, const char *data, const char *name, int64_t *n)
{
    const json_t *tensor = json_object_get(header, name);
    assert_non_null(tensor);
    *n = json_integer_value(json_array_get(json_object_get(tensor, "shape"), 0));
    return (const float *)(const void *)(data + json_integer_value(json_array_get(
                                                    json_object_get(tensor, "data_offsets"), 0)));
}

static float get_number(const json_t *options, const char *name, float otherwise)
{
    const json_t *value = json_object_get(options, name);
    return value ? (float)json_number_value(value) : otherwise;
}

static void test_fixtures(void **state)
{
    size_t n_text, n_bytes;
    char *text = read_fixture("samplers.json", &n_text),
         *bytes = read_fixture("samplers.safetensors", &n_bytes);
    uint64_t n_header;
    json_t *index, *header;
    memcpy(&n_header, bytes, sizeof n_header);
    assert_int_equal(qn_json_parse("samplers.json", text, n_text, &index), QN_OK);
    assert_int_equal(qn_json_parse("samplers.safetensors", bytes + 8, n_header, &header), QN_OK);
    const char *data = bytes + 8 + n_header, *order_name;
    json_t *steps, *c, *element;
    size_t i, j, n_checked = 0;
    double worst = 0;
    json_object_foreach(json_object_get(index, "orders"), order_name, steps)
    {
        qn_sampler_step order[QN_SAMPLER_COUNT];
        json_array_foreach(steps, i, element)
        {
            const char *name = json_string_value(element);
            if (strcmp(name, "repetition_penalty") == 0) name = "repeat_penalty";
            assert_true(qn_sampler_step_from_name(name, strlen(name), &order[i]));
        }
        json_array_foreach(json_object_get(index, "cases"), i, c)
        {
            const json_t *o = json_object_get(c, "options");
            int64_t n, n_want;
            const float *logits =
                get_vector(header, data, json_string_value(json_object_get(c, "logits")), &n);
            const float *want =
                get_vector(header, data, json_string_value(json_object_get(c, order_name)), &n_want);
            assert_int_equal(n, n_want);
            qn_generate_options options = {
                .temperature = get_number(o, "temperature", 1),
                .top_p = get_number(o, "top_p", 0),
                .min_p = get_number(o, "min_p", 0),
                .top_k = (int32_t)get_number(o, "top_k", 0),
                .repeat_penalty = get_number(o, "repetition_penalty", 0),
                .sampler_order = order,
                .n_sampler_order = json_array_size(steps),
            };
            qn_sampler *s = NULL;
            assert_int_equal(qn_sampler_new(NULL, &options, n, NULL, &s), QN_OK);
            json_array_foreach(json_object_get(c, "context"), j, element)
            {
                int32_t id = (int32_t)json_integer_value(element);
                assert_int_equal(qn_sampler_accept(s, &id, 1), QN_OK);
            }
            float *got = qn_alloc_array((size_t)n, sizeof *got);
            assert_int_equal(qn_sampler_distribution(s, logits, 0, got), QN_OK);
            for (int64_t k = 0; k < n; k++) {
                if (want[k] == 0) assert_true(got[k] == 0);
                worst = fmax(worst, fabs((double)got[k] - (double)want[k]));
            }
            n_checked++;
            qn_free(got);
            qn_sampler_free(s);
        }
    }
    print_message("%zu distributions, largest difference %.2g\n", n_checked, worst);
    assert_true(n_checked > 0 && worst <= 1e-6);
    json_decref(index);
    json_decref(header);
    qn_free(text);
    qn_free(bytes);
}

static void fill_logits(float *x, int64_t n, float spread, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        double a = qn_random_unit(seed, (uint64_t)(2 * i)), b = qn_random_unit(seed, (uint64_t)(2 * i + 1));
        x[i] = spread * (float)(sqrt(-2 * log(1 - a)) * cos(6.283185307179586 * b));
    }
}

/* The definitions of the header, written down with a full sort in float64. */
typedef struct {
    double v;
    int32_t id;
} entry;

static int falling(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->v != y->v) return x->v < y->v ? 1 : -1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static void test_against_full_sort(void **state)
{
    enum { N = 20011 };
    static float logits[N], got[N];
    static entry all[N];
    static double want[N];
    const qn_generate_options grid[] = {
        {.temperature = 1, .top_p = 0.95f},
        {.temperature = 0.7f, .top_p = 0.95f, .min_p = 0.01f, .top_k = 40},
        {.temperature = 1.3f, .top_k = 1000},
        {.temperature = 1, .top_p = 0.999f},
        {.temperature = 1, .top_k = N - 1},
    };
    for (uint64_t round = 0; round < 20; round++) {
        fill_logits(logits, N, (float)(round % 4 + 1) * 0.9f, round);
        for (size_t g = 0; g < sizeof grid / sizeof *grid; g++) {
            const qn_generate_options *o = &grid[g];
            int64_t n = N, kept = 0;
            double total = 0, above = 0;
            for (int32_t i = 0; i < N; i++) all[i] = (entry){(double)logits[i], i};
            qsort(all, N, sizeof *all, falling);
            for (int64_t i = 0; i < n; i++) total += exp(all[i].v - all[0].v);
            for (; o->top_p > 0 && kept < n && above < (double)o->top_p * total; kept++)
                above += exp(all[kept].v - all[0].v);
            if (o->top_p > 0) n = kept;
            if (o->min_p > 0)
                while (exp(all[n - 1].v - all[0].v) < (double)o->min_p) n--;
            if (o->top_k > 0 && n > o->top_k) n = o->top_k;
            total = 0;
            for (int64_t i = 0; i < n; i++) total += exp((all[i].v - all[0].v) / (double)o->temperature);
            memset(want, 0, sizeof want);
            for (int64_t i = 0; i < n; i++)
                want[all[i].id] = exp((all[i].v - all[0].v) / (double)o->temperature) / total;
            qn_sampler *s = NULL;
            assert_int_equal(qn_sampler_new(NULL, o, N, NULL, &s), QN_OK);
            assert_int_equal(qn_sampler_distribution(s, logits, 0, got), QN_OK);
            for (int64_t i = 0; i < N; i++) assert_true(fabs((double)got[i] - want[i]) < 1e-6);
            qn_sampler_free(s);
        }
    }
}

/* The chain step by step on a sorted array, in float64 except for the penalty, whose ties are to be the same.
 * 0: a limit is met within rounding, so that either side of it is right. */
typedef struct {
    float v;
    int32_t id;
} token;

static int falling_tokens(const void *a, const void *b)
{
    const token *x = a, *y = b;
    if (x->v != y->v) return x->v < y->v ? 1 : -1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static int reference(const qn_generate_options *o, const float *logits, const char *seen, int64_t n_vocab,
                     token *all, double *want)
{
    int64_t n = 0, kept, n_before;
    double scale = 1, total = 0, above = 0;
    for (int32_t i = 0; i < n_vocab; i++)
        if (logits[i] > -INFINITY) all[n++] = (token){logits[i], i};
    qsort(all, (size_t)n, sizeof *all, falling_tokens);
#define WEIGHT(i) exp(((double)all[i].v - (double)all[0].v) * scale)
    for (size_t step = 0; step < o->n_sampler_order; step++) {
        switch (o->sampler_order[step]) {
        case QN_SAMPLER_REPEAT_PENALTY:
            for (int64_t i = 0; i < n && o->repeat_penalty != 0; i++) {
                if (!seen[all[i].id]) continue;
                all[i].v = all[i].v < 0 ? all[i].v * o->repeat_penalty : all[i].v / o->repeat_penalty;
            }
            qsort(all, (size_t)n, sizeof *all, falling_tokens);
            break;
        case QN_SAMPLER_TOP_P:
            if (o->top_p <= 0 || o->top_p >= 1) break;
            total = above = 0;
            for (int64_t i = 0; i < n; i++) total += WEIGHT(i);
            for (kept = 0; kept < n && above < (double)o->top_p * total; kept++) above += WEIGHT(kept);
            if (fabs(above - (double)o->top_p * total) < 2e-6 * total) return 0;
            if (fabs(above - WEIGHT(kept - 1) - (double)o->top_p * total) < 2e-6 * total) return 0;
            n = kept;
            break;
        case QN_SAMPLER_MIN_P:
            n_before = n;
            while (o->min_p > 0 && WEIGHT(n - 1) < (double)o->min_p) n--;
            for (int64_t i = 0; i < n_before; i++)
                if (o->min_p > 0 && fabs(WEIGHT(i) / (double)o->min_p - 1) < 1e-5 && o->min_p < 1) return 0;
            break;
        case QN_SAMPLER_TOP_K:
            kept = o->top_k > 0 && o->top_k < n ? o->top_k : n;
            while (kept < n && all[kept].v == all[kept - 1].v) kept++;
            n = kept;
            break;
        case QN_SAMPLER_TEMPERATURE:
            scale = 1 / (double)o->temperature;
            break;
        default:
            break;
        }
    }
    total = 0;
    for (int64_t i = 0; i < n; i++) total += WEIGHT(i);
    memset(want, 0, (size_t)n_vocab * sizeof *want);
    for (int64_t i = 0; i < n; i++) want[all[i].id] = WEIGHT(i) / total;
#undef WEIGHT
    return 1;
}

/* A value of a short list, by chance. */
static float pick(const float *values, int n, uint64_t *counter)
{
    return values[qn_random_bits(77, (*counter)++) % (uint64_t)n];
}
#define PICK(...) pick((float[]){__VA_ARGS__}, sizeof((float[]){__VA_ARGS__}) / sizeof(float), &counter)

/* Chains in any order over vocabularies from one token on: listed and whole, ties, masked tokens, flat and
 * peaked, no token, some or all of them in the history. */
static void test_chains(void **state)
{
    enum { MOST = 20011, CASES = 500 };
    static float logits[MOST], got[MOST];
    static double want[MOST];
    static token all[MOST];
    static char seen[MOST];
    uint64_t counter = 0;
    int n_checked = 0;
    double worst = 0;
    for (int round = 0; round < CASES; round++) {
        int64_t n = (int64_t)PICK(1, 2, 17, 255, 256, 257, 3000, 3000, 9000, round % 4 ? 600 : MOST);
        float spread = PICK(0, 0.05f, 0.3f, 1, 3, 3), step = PICK(0, 0, 0.25f),
              masked = PICK(0, 0, 0.3f, 0.999f);
        float marked = PICK(0, 0.01f, 0.4f, 1);
        fill_logits(logits, n, spread, (uint64_t)round);
        qn_sampler_step order[QN_SAMPLER_COUNT];
        for (int i = 0; i < QN_SAMPLER_COUNT; i++) {
            int j = (int)(qn_random_bits(78, counter++) % (uint64_t)(i + 1));
            order[i] = order[j];
            order[j] = (qn_sampler_step)i;
        }
        qn_generate_options o = {
            .temperature = PICK(1, 0.3f, 2, 50),
            .top_p = PICK(0, 0.5f, 0.95f, 0.95f, 0.9999f),
            .min_p = PICK(0, 0, 0.05f, 1e-3f, 1),
            .top_k = (int32_t)PICK(0, 0, 1, 40, 300, 9000),
            .repeat_penalty = PICK(0, 1.1f, 1.8f, 0.7f),
            .sampler_order = order,
            .n_sampler_order = QN_SAMPLER_COUNT - (size_t)PICK(0, 0, 0, 2),
        };
        qn_sampler *s = NULL;
        assert_int_equal(qn_sampler_new(NULL, &o, n, NULL, &s), QN_OK);
        for (int32_t i = 0; i < n; i++) {
            if (step > 0) logits[i] = step * nearbyintf(logits[i] / step);
            if (i != n / 2 && qn_random_unit(79, counter++) < (double)masked) logits[i] = -INFINITY;
            seen[i] = qn_random_unit(80, counter++) < (double)marked;
            if (seen[i]) assert_int_equal(qn_sampler_accept(s, &i, 1), QN_OK);
        }
        if (PICK(0, 0, 1) > 0) logits[n / 2] = 30;
        assert_int_equal(qn_sampler_distribution(s, logits, 0, got), QN_OK);
        if (reference(&o, logits, seen, n, all, want)) {
            n_checked++;
            for (int64_t i = 0; i < n; i++) {
                double error = fabs((double)got[i] - want[i]);
                if ((want[i] == 0 && got[i] != 0) || (want[i] > 1e-37 && got[i] == 0) ||
                    error > 2e-6 * want[i] + 1e-9)
                    fail_msg("case %d, %d tokens, token %d: %g instead of %g", round, (int)n, (int)i,
                             (double)got[i], want[i]);
                worst = fmax(worst, error);
            }
        }
        int32_t id = -1;
        assert_int_equal(qn_sampler_draw(s, logits, round, &id), QN_OK);
        assert_true(id >= 0 && id < n && got[id] > 0);
        qn_sampler_free(s);
    }
    print_message("%d of %d chains, largest difference %.2g\n", n_checked, CASES, worst);
    assert_true(n_checked > CASES * 4 / 5);
}

/* What is too much for a list is drawn in order of ids: the sums below and up to the token hold the draw. */
static void test_draws_of_many(void **state)
{
    enum { N = 20011 };
    static float logits[N], p[N];
    fill_logits(logits, N, 0.3f, 5);
    logits[N / 2] = -INFINITY;
    qn_generate_options o = {.temperature = 0.8f, .top_p = 0.9f, .repeat_penalty = 1.3f, .seed = 4};
    qn_sampler *s = NULL;
    assert_int_equal(qn_sampler_new(NULL, &o, N, NULL, &s), QN_OK);
    for (int32_t i = 0; i < N; i += 3) assert_int_equal(qn_sampler_accept(s, &i, 1), QN_OK);
    assert_int_equal(qn_sampler_distribution(s, logits, 0, p), QN_OK);
    for (int64_t position = 0; position < 300; position++) {
        double below = 0, unit = qn_random_unit(o.seed, (uint64_t)position);
        int32_t id;
        assert_int_equal(qn_sampler_draw(s, logits, position, &id), QN_OK);
        for (int32_t i = 0; i < id; i++) below += (double)p[i];
        assert_true(p[id] > 0 && below - 1e-6 <= unit && unit <= below + (double)p[id] + 1e-6);
    }
    qn_sampler_free(s);
    assert_true(qn_sampler_bytes(151936) < 151936);
}

/* Filters one behind the other on what is too much for a list: a later one never brings back what an earlier
 * one took. */
static void test_filters_of_many(void **state)
{
    enum { N = 20011 };
    static float logits[N], first[N], both[N];
    const struct {
        qn_generate_options first, both;
    } cases[] = {
        {{.temperature = 1, .top_p = 0.5f}, {.temperature = 1, .top_p = 0.5f, .min_p = 0.001f}},
        {{.temperature = 1, .top_p = 0.5f}, {.temperature = 1, .top_p = 0.5f, .top_k = 9000}},
    };
    for (size_t flat = 0; flat < 2; flat++) {
        fill_logits(logits, N, flat ? 0 : 0.05f, 9);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            qn_sampler *s = NULL;
            int64_t n_first = 0, n_both = 0;
            assert_int_equal(qn_sampler_new(NULL, &cases[i].first, N, NULL, &s), QN_OK);
            assert_int_equal(qn_sampler_distribution(s, logits, 0, first), QN_OK);
            qn_sampler_free(s);
            assert_int_equal(qn_sampler_new(NULL, &cases[i].both, N, NULL, &s), QN_OK);
            assert_int_equal(qn_sampler_distribution(s, logits, 0, both), QN_OK);
            qn_sampler_free(s);
            for (int64_t k = 0; k < N; k++) {
                assert_true(first[k] > 0 || both[k] == 0);
                n_first += first[k] > 0;
                n_both += both[k] > 0;
            }
            assert_int_equal(n_both, i && !flat ? 9000 : n_first);
        }
    }
}

/* A difference that rounds to the limit of min_p stays, whether it is looked for in a list or in the whole.
 */
static void test_limit_of_min_p(void **state)
{
    enum { N = 20011 };
    static float logits[N], p[N];
    const int64_t sizes[] = {20, N};
    qn_generate_options o = {.temperature = 1, .min_p = 0.001f};
    for (int64_t i = 0; i < N; i++) logits[i] = i == 7 ? -logf(o.min_p) : i % 2 ? -1e-8f : -1e-5f;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        qn_sampler *s = NULL;
        assert_int_equal(qn_sampler_new(NULL, &o, sizes[i], NULL, &s), QN_OK);
        assert_int_equal(qn_sampler_distribution(s, logits, 0, p), QN_OK);
        for (int64_t k = 0; k < sizes[i]; k++) assert_int_equal(p[k] > 0, k % 2);
        qn_sampler_free(s);
    }
}

static void test_greedy(void **state)
{
    float logits[40] = {0}, p[40];
    int32_t id = -1;
    logits[7] = logits[33] = 3;
    qn_generate_options o = {.top_k = 5, .top_p = 0.5f};
    qn_sampler *s = NULL;
    assert_int_equal(qn_sampler_new(NULL, &o, 40, NULL, &s), QN_OK);
    assert_int_equal(qn_sampler_draw(s, logits, 0, &id), QN_OK);
    assert_int_equal(id, 7);
    assert_int_equal(qn_sampler_distribution(s, logits, 0, p), QN_OK);
    for (int i = 0; i < 40; i++) assert_true(p[i] == (i == 7));
    qn_sampler_free(s);

    o = (qn_generate_options){.repeat_penalty = 1.5f};
    assert_int_equal(qn_sampler_new(NULL, &o, 40, NULL, &s), QN_OK);
    assert_int_equal(qn_sampler_accept(s, (int32_t[]){7, 7, 1}, 3), QN_OK);
    assert_int_equal(qn_sampler_draw(s, logits, 0, &id), QN_OK);
    assert_int_equal(id, 33);
    assert_int_equal(qn_sampler_accept(s, &id, 1), QN_OK);
    assert_int_equal(qn_sampler_draw(s, logits, 1, &id), QN_OK);
    assert_int_equal(id, 7); /* both are 2 now */
    qn_sampler_free(s);
}

static void test_draws(void **state)
{
    enum { N = 50, DRAWS = 40000 };
    float logits[N], p[N];
    int count[N] = {0};
    fill_logits(logits, N, 1.5f, 3);
    logits[4] = -INFINITY;
    qn_generate_options o = {.temperature = 0.9f, .top_p = 0.9f, .seed = 11};
    qn_sampler *s = NULL, *other = NULL;
    assert_int_equal(qn_sampler_new(NULL, &o, N, NULL, &s), QN_OK);
    assert_int_equal(qn_sampler_new(NULL, &o, N, NULL, &other), QN_OK);
    assert_int_equal(qn_sampler_distribution(s, logits, 0, p), QN_OK);
    for (int64_t i = 0; i < DRAWS; i++) {
        int32_t id, again;
        assert_int_equal(qn_sampler_draw(s, logits, i, &id), QN_OK);
        count[id]++;
        if (i % 100 == 0) { /* out of order, on another sampler */
            assert_int_equal(qn_sampler_draw(other, logits, DRAWS - i, &again), QN_OK);
            assert_int_equal(qn_sampler_draw(other, logits, i, &again), QN_OK);
            assert_int_equal(id, again);
        }
    }
    for (int i = 0; i < N; i++) {
        double mean = (double)p[i] * DRAWS, spread = sqrt(mean * (1 - (double)p[i]));
        assert_true(fabs(count[i] - mean) <= 5 * spread);
    }
    assert_int_equal(count[4], 0);
    qn_sampler_free(s);
    qn_sampler_free(other);
}

static void test_extremes(void **state)
{
    float logits[20], p[20];
    int32_t id;
    const float temperatures[] = {0, 1e-40f, 1e-7f, 1, 1000};
    for (size_t t = 0; t < sizeof temperatures / sizeof *temperatures; t++) {
        qn_generate_options o = {
            .temperature = temperatures[t], .top_p = 0.9f, .top_k = 3, .min_p = 0.1f, .repeat_penalty = 2};
        qn_sampler *s = NULL;
        assert_int_equal(qn_sampler_new(NULL, &o, 20, NULL, &s), QN_OK);
        for (int i = 0; i < 20; i++) logits[i] = i == 9 ? 3e38f : -INFINITY;
        assert_int_equal(qn_sampler_draw(s, logits, 5, &id), QN_OK);
        assert_int_equal(id, 9);
        for (int i = 0; i < 20; i++) logits[i] = 0; /* all equal */
        assert_int_equal(qn_sampler_distribution(s, logits, 0, p), QN_OK);
        double sum = 0;
        for (int i = 0; i < 20; i++) sum += (double)p[i];
        assert_true(fabs(sum - 1) < 1e-5);
        const float bad[] = {NAN, INFINITY};
        for (int i = 0; i < 2; i++) {
            logits[17] = bad[i];
            assert_int_equal(qn_sampler_draw(s, logits, 5, &id), QN_E_INTERNAL);
        }
        for (int i = 0; i < 20; i++) logits[i] = -INFINITY;
        assert_int_equal(qn_sampler_draw(s, logits, 5, &id), QN_E_INTERNAL);
        assert_int_equal(qn_sampler_accept(s, (int32_t[]){20}, 1), QN_E_ARG);
        assert_int_equal(qn_sampler_accept(s, (int32_t[]){-1}, 1), QN_E_ARG);
        qn_sampler_free(s);
    }
}

static void test_options(void **state)
{
    const qn_sampler_step twice[] = {QN_SAMPLER_TOP_K, QN_SAMPLER_TOP_K};
    const qn_logit_bias biases[] = {{1, INFINITY}, {1, NAN}, {-1, 0}, {10, 0}};
    static const qn_logit_bias none[QN_LOGIT_BIAS_MAX + 1];
    const struct {
        qn_generate_options o;
        const char *message;
    } cases[] = {
        {{.temperature = NAN}, "temperature: nan is not in the range 0 to 1000"},
        {{.temperature = -1}, "temperature: -1 is not in the range 0 to 1000"},
        {{.top_p = 1.5f}, "top_p: 1.5 is not in the range 0 to 1"},
        {{.min_p = -0.5f}, "min_p: -0.5 is not in the range 0 to 1"},
        {{.top_k = -1}, "top_k: -1 is not in the range 0 to 2.14748e+09"},
        {{.repeat_penalty = 0.0099f}, "repeat_penalty: 0.0099 is not in the range 0.01 to 100"},
        {{.repeat_penalty = INFINITY}, "repeat_penalty: inf is not in the range 0.01 to 100"},
        {{.sampler_order = twice, .n_sampler_order = 2}, "sampler_order: top_k appears twice"},
        {{.presence_penalty = NAN}, "presence_penalty: nan is not in the range -2 to 2"},
        {{.frequency_penalty = 2.5f}, "frequency_penalty: 2.5 is not in the range -2 to 2"},
        {{.logprobs = 1, .n_top_logprobs = 21}, "n_top_logprobs: 21 is not in the range 0 to 20"},
        {{.n_top_logprobs = 3}, "n_top_logprobs is 3, but logprobs is off"},
        {{.prompt_logprobs = 1, .n_prompt_top_logprobs = -1},
         "n_prompt_top_logprobs: -1 is not in the range 0 to 20"},
        {{.n_prompt_top_logprobs = 3}, "n_prompt_top_logprobs is 3, but prompt_logprobs is off"},
        {{.n_logit_bias = 1}, "logit_bias is NULL"},
        {{.logit_bias = none, .n_logit_bias = 1025}, "logit_bias: 1025 tokens, at most 1024 are allowed"},
        {{.logit_bias = biases, .n_logit_bias = 1}, "logit_bias: inf is not in the range -100 to 100"},
        {{.logit_bias = biases + 1, .n_logit_bias = 1}, "logit_bias: nan is not in the range -100 to 100"},
        {{.logit_bias = biases + 2, .n_logit_bias = 1}, "logit_bias: -1 is not a token id"},
        {{.logit_bias = biases + 3, .n_logit_bias = 1},
         "logit_bias: token id 10 is outside the vocabulary of 10"},
    };
    qn_sampler *s = NULL;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(qn_sampler_new(NULL, &cases[i].o, 10, NULL, &s), QN_E_ARG);
        assert_string_equal(qn_last_error(), cases[i].message);
    }
    assert_int_equal(qn_sampler_new(NULL, &(qn_generate_options){0}, 0, NULL, &s), QN_E_ARG);
    assert_string_equal(qn_last_error(), "a vocabulary of 0 tokens");
    assert_null(s);
    assert_int_equal(qn_sampler_check(&(qn_generate_options){.repeat_penalty = 0.01f}), QN_OK);
    assert_true(qn_sampler_fresh_seed() != 0);
}

/* What is added before the chain, beside the definition in float32. */
static void test_additions(void **state)
{
    enum { N = 700 };
    float logits[N], plain[N], want[N], got[N];
    fill_logits(logits, N, 2, 21);
    const qn_logit_bias biases[] = {{3, 5}, {N - 1, -100}, {3, 0.5f}, {400, 100}};
    const int32_t drawn[] = {9, 400, 9, 9, 3};
    qn_generate_options o = {.temperature = 0.8f,
                             .top_p = 0.9f,
                             .repeat_penalty = 1.2f,
                             .presence_penalty = 0.7f,
                             .frequency_penalty = -1.1f,
                             .logit_bias = biases,
                             .n_logit_bias = 4,
                             .seed = 6};
    memcpy(plain, logits, sizeof plain);
    for (int i = 0; i < 5; i++) plain[drawn[i]] -= o.frequency_penalty;
    plain[9] -= o.presence_penalty, plain[400] -= o.presence_penalty, plain[3] -= o.presence_penalty;
    plain[3] += 5.5f, plain[N - 1] -= 100, plain[400] += 100;
    for (int greedy = 0; greedy < 2; greedy++) {
        qn_generate_options without = {.temperature = 0.8f, .top_p = 0.9f, .repeat_penalty = 1.2f, .seed = 6};
        if (greedy) o.temperature = without.temperature = 0;
        qn_sampler *s = NULL, *other = NULL;
        assert_int_equal(qn_sampler_new(NULL, &o, N, NULL, &s), QN_OK);
        assert_int_equal(qn_sampler_new(NULL, &without, N, NULL, &other), QN_OK);
        /* The prompt is in the history of repeat_penalty alone. */
        assert_int_equal(qn_sampler_accept(s, (int32_t[]){9, 50}, 2), QN_OK);
        assert_int_equal(qn_sampler_accept(other, (int32_t[]){9, 50, 400, 3}, 4), QN_OK);
        for (int i = 0; i < 5; i++) assert_int_equal(qn_sampler_accept_drawn(s, drawn[i]), QN_OK);
        assert_int_equal(qn_sampler_accept_drawn(s, N), QN_E_ARG);
        assert_int_equal(qn_sampler_distribution(s, logits, 0, got), QN_OK);
        assert_int_equal(qn_sampler_distribution(other, plain, 0, want), QN_OK);
        for (int i = 0; i < N; i++) assert_true(fabsf(got[i] - want[i]) < 1e-5f);
        int32_t id, again;
        int64_t before = qn_mem_allocations();
        for (int64_t i = 0; i < 50; i++) {
            assert_int_equal(qn_sampler_draw(s, logits, i, &id), QN_OK);
            assert_int_equal(qn_sampler_draw(s, logits, i, &again), QN_OK);
            assert_int_equal(id, again);
        }
        assert_int_equal(id, 400);
        assert_int_equal(qn_mem_allocations(), before);
        qn_sampler_free(s);
        qn_sampler_free(other);
    }
}

static void test_no_allocation_per_token(void **state)
{
    enum { N = 12000 };
    static float logits[N];
    int32_t id;
    const qn_generate_options grid[] = {
        {.temperature = 1, .top_p = 0.9f, .top_k = 50, .min_p = 0.01f, .repeat_penalty = 1.1f},
        {.temperature = 1, .top_p = 0.9f, .repeat_penalty = 1.1f}, /* too many for a list */
    };
    fill_logits(logits, N, 0.5f, 1);
    for (size_t g = 0; g < sizeof grid / sizeof *grid; g++) {
        qn_sampler *s = NULL;
        assert_int_equal(qn_sampler_new(NULL, &grid[g], N, NULL, &s), QN_OK);
        int64_t before = qn_mem_allocations();
        for (int64_t i = 0; i < 50; i++) {
            assert_int_equal(qn_sampler_draw(s, logits, i, &id), QN_OK);
            assert_int_equal(qn_sampler_accept(s, &id, 1), QN_OK);
        }
        assert_int_equal(qn_mem_allocations(), before);
        qn_sampler_free(s);
    }
}

static void test_allocation_failures(void **state)
{
    int64_t before = qn_mem_live_blocks();
    const qn_logit_bias bias = {4, 1};
    qn_generate_options o = {.temperature = 1,
                             .repeat_penalty = 1.1f,
                             .presence_penalty = 1,
                             .logit_bias = &bias,
                             .n_logit_bias = 1};
    for (int64_t n = 1;; n++) {
        assert_true(n < 2000);
        qn_sampler *s = NULL;
        qn_mem_fail_nth(n);
        qn_status status = qn_sampler_new(NULL, &o, 100, NULL, &s);
        qn_mem_fail_nth(0);
        if (status == QN_OK) {
            qn_sampler_free(s);
            break;
        }
        assert_int_equal(status, QN_E_NOMEM);
        assert_null(s);
        assert_int_equal(qn_mem_live_blocks(), before);
    }
    assert_int_equal(qn_mem_live_blocks(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fixtures),
        cmocka_unit_test(test_against_full_sort),
        cmocka_unit_test(test_chains),
        cmocka_unit_test(test_draws_of_many),
        cmocka_unit_test(test_filters_of_many),
        cmocka_unit_test(test_limit_of_min_p),
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_draws),
        cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_additions),
        cmocka_unit_test(test_no_allocation_per_token),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

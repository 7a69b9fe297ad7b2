/* Random walks through constraints: at each step a token that the mask allows, drawn at random, the end made likely.
 * Every finished text must be valid by the validator, the mask must never be empty, and it must say the same of a
 * token as the matcher's other questions.
 *
 * `make test-constrain` runs many of them, and holds the texts against PyPI's jsonschema. QUERN_WALK_SEEDS: walks of
 * each schema (2). QUERN_WALK_SCHEMAS: how many schemas, spread over the file (100). QUERN_WALK_TOKENIZER: a model or
 * a folder with a tokenizer (the seed's). QUERN_WALK_CHECKS: tokens that each 16th mask is compared at (4), 0: all.
 * QUERN_WALK_OUT: a file that gets {"line", "text"} for each finished walk. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/json/json_write.h"
#include "base/mem.h"
#include "base/random.h"
#include "constrain/constraint.h"
#include "constrain/validate/validate.h"
#include "constrain/validate/value.h"
#include "seed/seed.h"
#include "tests/support/fixtures.h"
#include "text/tokenizer/tokenizer_source.h"

enum { TOKENS_MAX = 600, LINES_MAX = 20000 };

/* For clones without the fixtures. */
static const char *const own_schemas[] = {
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"minLength\":1,\"maxLength\":20},"
    "\"age\":{\"type\":"
    "\"integer\",\"minimum\":0,\"maximum\":150},\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"a\","
    "\"b\",\"c\"]},\"uniqueItems\":"
    "true}},\"required\":[\"name\",\"age\"],\"additionalProperties\":false}",
    "{\"anyOf\":[{\"type\":\"number\",\"multipleOf\":0.25,\"exclusiveMinimum\":-3,\"maximum\":7},{\"type\":"
    "\"string\",\"pattern\":"
    "\"^[a-c]{2,4}-\\\\d+$\"},{\"type\":\"null\"}]}",
    "{\"$ref\":\"#/$defs/"
    "tree\",\"$defs\":{\"tree\":{\"type\":\"object\",\"properties\":{\"value\":{\"type\":\"boolean\"},"
    "\"kids\":{"
    "\"type\":\"array\",\"maxItems\":2,\"items\":{\"$ref\":\"#/$defs/"
    "tree\"}}},\"required\":[\"value\"],\"additionalProperties\":false}}}",
    "{\"type\":\"object\",\"properties\":{\"when\":{\"format\":\"date-time\",\"type\":\"string\"},\"id\":{"
    "\"type\":\"string\",\"format\":"
    "\"uuid\"}},\"required\":[\"when\",\"id\"]}",
    "{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"a\"},\"x\":{\"type\":\"integer\"}"
    "},\"required\":[\"kind\",\"x\"]"
    "},{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"b\"},\"y\":{\"type\":\"string\"}},"
    "\"required\":[\"kind\",\"y\"]}]}",
};

static struct {
    qn_tokenizer *tokenizer;
    qn_vocabulary *vocabulary;
    size_t n_words;
    uint32_t *closing; /* tokens whose text begins with what ends something */
    uint32_t *mask, *some;
    uint64_t draws;
    FILE *out;
    int64_t n_walks, n_finished, n_cut, n_tokens, n_stopped, n_refused, n_schemas;
} t;

static int64_t setting(const char *name, int64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoll(text, NULL, 10) : otherwise;
}

static uint64_t draw(void)
{
    return qn_random_bits(39, t.draws++);
}

static void mark_closing(void *user, int32_t id, const char *text, size_t n)
{
    (void)user;
    if (n && strchr("\"]}", *text)) t.closing[id / 32] |= 1u << id % 32;
}

static int set_up(void **state)
{
    const char *path = getenv("QUERN_WALK_TOKENIZER"), *out = getenv("QUERN_WALK_OUT");
    qn_source *source = NULL;
    (void)state;
    qn_status status =
        qn_source_open(path ? path : QN_SEED_PATH, &(qn_source_options){.text_only = 1}, &source);
    if (status == QN_OK) status = qn_tokenizer_open(source, NULL, &t.tokenizer);
    qn_source_close(source);
    if (status == QN_OK) status = qn_vocabulary_new(t.tokenizer, NULL, 0, &t.vocabulary);
    if (status != QN_OK) {
        print_error("%s\n", qn_last_error());
        return 1;
    }
    t.n_words = qn_vocabulary_mask_words(t.vocabulary);
    t.closing = qn_calloc(t.n_words, sizeof *t.closing);
    t.mask = qn_calloc(t.n_words, sizeof *t.mask);
    t.some = qn_calloc(t.n_words, sizeof *t.some);
    if (out) t.out = fopen(out, "w");
    return !t.closing || !t.mask || !t.some || (out && !t.out) ||
           qn_tokenizer_pieces(t.tokenizer, mark_closing, NULL) != QN_OK;
}

static int tear_down(void **state)
{
    (void)state;
    print_message("%lld schemas, %lld refused; %lld walks, %lld finished and valid, %lld cut at %d tokens, "
                  "%lld stopped by "
                  "a limit; %lld tokens\n",
                  (long long)t.n_schemas, (long long)t.n_refused, (long long)t.n_walks,
                  (long long)t.n_finished, (long long)t.n_cut, TOKENS_MAX, (long long)t.n_stopped,
                  (long long)t.n_tokens);
    qn_free(t.closing);
    qn_free(t.mask);
    qn_free(t.some);
    qn_vocabulary_release(t.vocabulary);
    qn_tokenizer_free(t.tokenizer);
    return t.out ? fclose(t.out) : 0;
}

/* ---- one walk ------------------------------------------------------------------------------------------ */

/* A random one of the bits; -1: none. */
static int32_t pick(const uint32_t *bits)
{
    int64_t n = 0;
    for (size_t i = 0; i < t.n_words; i++) n += __builtin_popcount(bits[i]);
    if (!n) return -1;
    int64_t k = (int64_t)(draw() % (uint64_t)n);
    for (size_t i = 0;; i++) {
        int here = __builtin_popcount(bits[i]);
        if (k >= here) {
            k -= here;
            continue;
        }
        uint32_t word = bits[i];
        while (k--) word &= word - 1;
        return (int32_t)(i * 32) + __builtin_ctz(word);
    }
}

static int32_t pick_next(void)
{
    if (draw() % 3 == 0) {
        for (size_t i = 0; i < t.n_words; i++) t.some[i] = t.mask[i] & t.closing[i];
        int32_t id = pick(t.some);
        if (id >= 0) return id;
    }
    return pick(t.mask);
}

static void check_mask(qn_matcher *m, const qn_buf *text)
{
    const int64_t n_ids = (int64_t)qn_tokenizer_vocab_size(t.tokenizer), n = setting("QUERN_WALK_CHECKS", 4);
    for (int64_t i = 0; i < (n ? n : n_ids); i++) {
        int32_t id = (int32_t)(n ? (int64_t)(draw() % (uint64_t)n_ids) : i);
        int bit = t.mask[id / 32] >> id % 32 & 1;
        if (qn_matcher_allows(m, id) != bit)
            fail_msg("token %d behind %s: the mask says %d", id, text->data, bit);
    }
}

/* 1: the text is finished; 0: it was cut; -1: a limit stopped it. */
static int walk(qn_constraint *c, qn_buf *text)
{
    qn_matcher *m = NULL;
    int end = 0;
    assert_int_equal(qn_matcher_new(c, &m), QN_OK);
    qn_buf_puts(text, "");
    for (int i = 0; i < TOKENS_MAX && !end; i++) {
        qn_status status = qn_matcher_mask(m, t.mask);
        if (status == QN_E_FULL || status == QN_E_UNSUPPORTED) end = -1;
        if (end) break;
        assert_int_equal(status, QN_OK);
        int may_end = qn_matcher_may_end(m);
        int32_t id = may_end && draw() % 2 ? -1 : pick_next();
        if (id < 0 && !may_end) fail_msg("a dead end behind %s", text->data);
        if (i % 16 == 0) check_mask(m, text);
        if (id < 0) {
            end = 1;
        } else {
            status = qn_matcher_accept(m, id);
            if (status != QN_OK)
                fail_msg("token %d is in the mask behind %s: %s", id, text->data, qn_last_error());
            assert_int_equal(qn_tokenizer_piece(t.tokenizer, id, text), QN_OK);
            t.n_tokens++;
        }
    }
    qn_matcher_free(m);
    return end;
}

static void write_walk(int64_t line, const qn_buf *text)
{
    qn_buf row = {0};
    qn_json_open(&row, '{');
    qn_json_put_int(&row, "line", line);
    qn_json_put_text(&row, "text", text->data);
    qn_json_close(&row, '}');
    assert_int_equal(row.status, QN_OK);
    assert_true(fprintf(t.out, "%s\n", row.data) > 0);
    qn_buf_free(&row);
}

static void walk_schema(const char *name, int64_t line, const char *schema, size_t n)
{
    qn_constraint_source source = {.kind = QN_CONSTRAIN_JSON_SCHEMA, .text = schema, .n = n};
    qn_constraint *c = NULL;
    qn_schema *validator = NULL;
    qn_schema_report report = {0};
    t.n_schemas++;
    if (qn_constraint_new(t.vocabulary, &source, NULL, &c) != QN_OK) {
        t.n_refused++;
        return;
    }
    if (qn_schema_open(schema, n, NULL, &validator) != QN_OK)
        fail_msg("%s: compiled, and refused by the validator: %s", name, qn_last_error());
    for (int64_t i = setting("QUERN_WALK_SEEDS", 2); i > 0; i--) {
        qn_buf text = {0};
        int end = walk(c, &text);
        t.n_walks++;
        t.n_cut += end == 0;
        t.n_stopped += end < 0;
        if (end == 1) {
            if (qn_schema_validate_text(validator, text.data, text.length, &report) != QN_OK)
                fail_msg("%s: %s: %s", name, text.data, qn_last_error());
            if (!report.is_valid)
                fail_msg("%s: %s: at \"%s\": %s (%s)", name, text.data, report.failures->instance,
                         report.failures->message, report.failures->schema);
            t.n_finished++;
            if (t.out) write_walk(line, &text);
        }
        qn_buf_free(&text);
    }
    qn_schema_report_clear(&report);
    qn_schema_close(validator);
    qn_constraint_release(c);
}

static void test_own_schemas(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof own_schemas / sizeof *own_schemas; i++)
        walk_schema("own", -1 - (int64_t)i, own_schemas[i], strlen(own_schemas[i]));
}

static int64_t count_lines(const char *command)
{
    FILE *f = popen(command, "r");
    char *line = NULL;
    size_t room = 0;
    int64_t n = 0;
    assert_non_null(f);
    while (n < LINES_MAX && getline(&line, &room, f) > 0) n++;
    free(line); /* foreign: getline's */
    pclose(f);
    return n;
}

static void test_maskbench(void **state)
{
    char command[4200];
    (void)state;
    snprintf(command, sizeof command, "gzip -dc '%s'",
             qn_test_need_fixture("json_schema/maskbench.jsonl.gz"));
    int64_t n_lines = count_lines(command), n_wanted = setting("QUERN_WALK_SCHEMAS", 100);
    int64_t stride = n_wanted > 0 && n_lines > n_wanted ? n_lines / n_wanted : 1;
    FILE *f = popen(command, "r");
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    assert_non_null(f);
    for (int64_t i = 0; (n = getline(&line, &room, f)) > 0; i++) {
        if (i % stride) continue;
        qn_arena arena = {0};
        qn_buf schema = {0};
        const qn_value *v = NULL;
        assert_int_equal(qn_value_read(&arena, "maskbench", line, (size_t)n, &v), QN_OK);
        qn_value_show(qn_value_get(v, "schema", 6), 1 << 28, &schema);
        walk_schema(qn_value_get(v, "name", 4)->text, i, schema.data, schema.length);
        qn_buf_free(&schema);
        qn_arena_clear(&arena);
    }
    free(line); /* foreign: getline's */
    pclose(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own_schemas),
        cmocka_unit_test(test_maskbench),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

#include "tests/support/answer_text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/utf8.h"

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"look\",\"parameters\":{"
    "\"type\":\"object\",\"properties\":{"
    "\"city\":{\"type\":\"string\"},\"zip\":{\"type\":[\"string\",\"null\"]},"
    "\"days\":{\"type\":\"integer\"}}}}},{\"name\":\"see\",\"parameters\":{"
    "\"properties\":{\"a\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]},"
    "\"b\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]},"
    "\"c\":{\"$ref\":\"#/$defs/c~1d\"},\"d\":{\"anyOf\":[{\"type\":\"string\"},"
    "{\"type\":\"integer\"}]},\"e\":{\"$ref\":\"#/$defs/e\"}},\"$defs\":{\"c/d\":{"
    "\"enum\":[\"1\",\"2\"]},\"e\":{\"allOf\":[{\"$ref\":\"#/$defs/e\"},{\"$ref\":"
    "\"#/$defs/e\"}]}}}}]";

static json_t *tools;

static void free_tools(void)
{
    json_decref(tools);
}

const json_t *qn_test_tools(void)
{
    if (!tools) {
        assert_int_equal(qn_json_parse("tools", tools_text, strlen(tools_text), &tools), QN_OK);
        atexit(free_tools);
    }
    return tools;
}

typedef struct {
    qn_buf text;
    int last; /* kind and flag of what the transcript ends with */
} transcript;

static void note(transcript *t, const qn_answer *a)
{
    size_t n;
    const qn_answer_event *events = qn_answer_get_events(a, &n);
    for (size_t i = 0; i < n; i++) {
        const qn_answer_event *e = &events[i];
        int what = (int)e->kind * 2 + e->is_malformed;
        if (e->kind == QN_ANSWER_CALL_ARGUMENTS) assert_int_equal(qn_utf8_valid_prefix(e->text, e->n), e->n);
        int joins = e->kind <= QN_ANSWER_REASONING && what == t->last;
        if (!joins && e->kind <= QN_ANSWER_CALL_BEGIN && t->text.length) qn_buf_putc(&t->text, '|');
        if (!joins && e->kind == QN_ANSWER_REASONING) qn_buf_puts(&t->text, "think:");
        if (!joins && e->is_malformed && e->kind == QN_ANSWER_CONTENT) qn_buf_puts(&t->text, "bad:");
        if (e->kind == QN_ANSWER_CALL_BEGIN) {
            assert_int_equal(strlen(e->text), e->n);
            qn_buf_printf(&t->text, "call %d %s %s ", (int)e->index, e->text, e->id);
        } else {
            qn_buf_append(&t->text, e->text, e->n);
        }
        if (e->kind == QN_ANSWER_CALL_END && e->is_malformed) qn_buf_puts(&t->text, "...");
        t->last = what;
    }
}

qn_answer_options qn_test_answer_options(qn_answer_format format, const char *prompt)
{
    return (qn_answer_options){.format = format,
                               .tools = qn_test_tools(),
                               .prompt = prompt,
                               .prompt_bytes = prompt ? strlen(prompt) : 0};
}

char *qn_test_answer(const qn_answer_options *o, const char *text, size_t n, uint64_t seed)
{
    transcript t = {.last = -1};
    qn_answer *a = NULL;
    assert_int_equal(qn_answer_new(o, &a), QN_OK);
    for (size_t at = 0, i = 0; at < n; i++) {
        size_t piece = seed ? qn_random_bits(seed, i) % (seed % 7 + 2) : n;
        if (piece > n - at) piece = n - at;
        assert_int_equal(qn_answer_feed(a, text + at, piece), QN_OK);
        note(&t, a);
        at += piece;
    }
    assert_int_equal(qn_answer_finish(a), QN_OK);
    note(&t, a);
    qn_answer_free(a);
    if (!t.text.data) qn_buf_puts(&t.text, "");
    return qn_buf_take(&t.text, NULL);
}

void qn_test_expect_answer(const qn_answer_options *o, const char *text, const char *want)
{
    for (uint64_t seed = 0; seed < 30; seed++) {
        char *got = qn_test_answer(o, text, strlen(text), seed);
        assert_string_equal(got, want);
        qn_free(got);
    }
}

qn_answer_format qn_test_format_of(const char *evidence)
{
    return qn_answer_format_choose(evidence, strlen(evidence));
}

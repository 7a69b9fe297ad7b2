/* Constraints by the public functions: what is compiled and refused, whose they are, reasoning before the form, two
 * forms, rows and batches, memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include <quern/quern.h>

#include "base/mem.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"

static qn_model *open_model(const char *name)
{
    qn_model *m = NULL;
    qn_test_ok(qn_model_open(qn_test_need_fixture(name),
                             &(qn_model_options){.n_threads = 1, .parallel_slots = 4}, &m));
    return m;
}

static qn_constraint *compile(qn_model *m, qn_constraint_kind kind, const char *text)
{
    qn_constraint *c = NULL;
    qn_test_ok(qn_constraint_open(m, &(qn_constraint_options){.kind = kind, .text = text}, &c));
    return c;
}

/* Reads a generation to its end and closes it: the texts of its rows, which must end by `end`. */
static void read_texts(qn_generation *g, int n_rows, qn_end end, char texts[][256])
{
    qn_token t;
    for (int i = 0; i < n_rows; i++) texts[i][0] = 0;
    for (int n_open = n_rows; n_open;) {
        qn_test_ok(qn_generation_next(g, &t));
        const size_t n = strlen(texts[t.row]);
        assert_true(n + t.text_bytes < sizeof texts[0]);
        memcpy(texts[t.row] + n, t.text, t.text_bytes + 1);
        if (t.end == QN_END_NONE) continue;
        assert_int_equal(t.end, end);
        n_open--;
    }
    qn_generation_close(g);
}

static void ask(qn_model *m, const qn_prompt *prompt, qn_generate_options o, qn_end end, char *text)
{
    char texts[1][256];
    qn_generation *g = NULL;
    if (!o.max_tokens) o.max_tokens = 200;
    qn_test_ok(qn_generation_open(m, prompt, &o, &g));
    read_texts(g, 1, end, texts);
    memcpy(text, texts[0], sizeof texts[0]);
}

static void refused(qn_model *m, qn_constraint_options o, qn_status status, const char *words)
{
    qn_constraint *c = NULL;
    const qn_status got = qn_constraint_open(m, &o, &c);
    if (got != status) fail_msg("status %d, want %d: %s", (int)got, (int)status, qn_last_error());
    assert_null(c);
    if (!strstr(qn_last_error(), words)) fail_msg("\"%s\" does not say \"%s\"", qn_last_error(), words);
}

static void test_refusals(void **state)
{
    (void)state;
    qn_model *m = open_model("models/llama");
    qn_constraint *c = NULL;
    assert_int_equal(qn_constraint_open(NULL, &(qn_constraint_options){0}, &c), QN_E_ARG);
    assert_int_equal(qn_constraint_open(m, NULL, &c), QN_E_ARG);
    refused(m, (qn_constraint_options){.kind = (qn_constraint_kind)99, .text = "a"}, QN_E_ARG, "kind");
    refused(m, (qn_constraint_options){.kind = QN_CONSTRAIN_REGEX}, QN_E_ARG, "text is NULL");
    refused(m, (qn_constraint_options){.kind = QN_CONSTRAIN_REGEX, .text = "\xff"}, QN_E_FORMAT, "UTF-8");
    refused(m, (qn_constraint_options){.kind = QN_CONSTRAIN_REGEX, .text = "(a"}, QN_E_FORMAT, "regex");
    refused(m, (qn_constraint_options){.kind = QN_CONSTRAIN_JSON_SCHEMA, .text = "{"}, QN_E_FORMAT, "");
    refused(m,
            (qn_constraint_options){.kind = QN_CONSTRAIN_JSON_SCHEMA,
                                    .text = "{\"properties\": {\"a\": {\"pattern\": \"(?<=b)\\\\1\"}}}"},
            QN_E_UNSUPPORTED, "/properties/a");
    refused(m, (qn_constraint_options){.kind = QN_CONSTRAIN_CHOICES, .text = "[]"}, QN_E_FORMAT, "choices");
    refused(
        m,
        (qn_constraint_options){.kind = QN_CONSTRAIN_TOOLS, .text = "[]", .tool_calls = QN_TOOL_CALLS_NAMED},
        QN_E_ARG, "tool_name");
    qn_constraint_close(NULL);
    assert_string_equal(qn_constraint_kind_name(QN_CONSTRAIN_CHOICES), "choices");
    assert_string_equal(qn_constraint_kind_name((qn_constraint_kind)99), "unknown constraint");
    qn_model_close(&m);
}

static void test_notes(void **state)
{
    (void)state;
    qn_model *m = open_model("models/llama");
    qn_constraint *c =
        compile(m, QN_CONSTRAIN_JSON_SCHEMA, "{\"properties\": {\"a\": {\"format\": \"colour\"}}}");
    qn_constraint_note note = {0};
    qn_test_ok(qn_constraint_get_note(c, 0, &note));
    assert_non_null(strstr(note.pointer, "/properties/a"));
    assert_string_equal(note.keyword, "format");
    assert_true(note.message[0]);
    assert_int_equal(qn_constraint_get_note(c, 1, &note), QN_E_NOT_FOUND);
    assert_int_equal(qn_constraint_get_note(NULL, 0, &note), QN_E_ARG);
    qn_constraint_close(c);
    qn_model_close(&m);
}

static void test_kinds_of_grammars(void **state)
{
    (void)state;
    qn_constraint_kind kind = QN_CONSTRAIN_TOOLS;
    assert_int_equal(qn_constraint_grammar_kind("root ::= \"a\"", 12, &kind), 1);
    assert_int_equal(kind, QN_CONSTRAIN_GBNF);
    assert_int_equal(qn_constraint_grammar_kind("start: \"a\"", 10, &kind), 1);
    assert_int_equal(kind, QN_CONSTRAIN_LARK);
    assert_int_equal(qn_constraint_grammar_kind("root ::= \"a\"", 5, &kind), 0);
    assert_int_equal(qn_constraint_grammar_kind("", 0, &kind), 0);
}

/* A constraint is of one model; it may go before its generations. */
static void test_owners(void **state)
{
    (void)state;
    char text[256];
    qn_model *m = open_model("models/llama"), *other = open_model("models/llama");
    qn_constraint *c = compile(m, QN_CONSTRAIN_CHOICES, "[\"yes\"]"),
                  *same = compile(m, QN_CONSTRAIN_CHOICES, "[\"yes\"]");
    qn_generation *g = NULL;
    const qn_generate_options o = {.constraint = c};
    assert_ptr_equal(c, same); /* it was kept */
    qn_constraint_close(same);
    assert_int_equal(qn_generate(other, "a", &o, &g), QN_E_ARG);
    assert_non_null(strstr(qn_last_error(), "another model"));
    qn_test_ok(qn_generate(m, "a", &o, &g));
    qn_constraint_close(c);
    read_texts(g, 1, QN_END_STOP, (char(*)[256])text);
    assert_string_equal(text, "yes");
    qn_model_close(&other);
    qn_model_close(&m);
}

static void test_rows_and_batches(void **state)
{
    (void)state;
    char texts[3][256];
    qn_model *m = open_model("models/llama");
    qn_constraint *all = compile(m, QN_CONSTRAIN_CHOICES, "[\"all\"]"),
                  *one = compile(m, QN_CONSTRAIN_REGEX, "[ab]{3}");
    static const int32_t ids[] = {5, 6, 7};
    const qn_ids rows[] = {{ids, 3}, {ids, 2}, {ids, 1}};
    qn_constraint *own[] = {NULL, one, NULL};
    qn_generate_options o = {.constraint = all, .row_constraints = own, .max_tokens = 100};
    qn_generation *g = NULL;
    qn_test_ok(qn_generation_open(m, &(qn_prompt){.rows = rows, .n_rows = 3}, &o, &g));
    read_texts(g, 3, QN_END_STOP, texts);
    assert_string_equal(texts[0], "all");
    assert_int_equal(strspn(texts[1], "ab"), 3);
    assert_string_equal(texts[2], "all");
    /* A batch has a constraint for each prompt. */
    const qn_prompt prompts[] = {
        {.text = "x"}, {.text = "y", .constraint = one}, {.rows = rows, .n_rows = 1}};
    qn_batch *b = NULL;
    qn_batch_result r;
    int is_there;
    assert_int_equal(qn_batch_open(m, prompts, 3, &o, &b), QN_E_ARG);
    assert_non_null(strstr(qn_last_error(), "row_constraints"));
    o.row_constraints = NULL;
    o.alternative = one;
    assert_int_equal(qn_batch_open(m, prompts, 3, &o, &b), QN_E_ARG);
    o.alternative = NULL;
    qn_test_ok(qn_batch_open(m, prompts, 3, &o, &b));
    for (int i = 0; i < 3; i++) {
        qn_test_ok(qn_batch_next(b, &r, &is_there));
        assert_int_equal(r.status, QN_OK);
        if (i == 1)
            assert_int_equal(strspn(r.text, "ab"), 3);
        else
            assert_string_equal(r.text, "all");
    }
    qn_batch_close(b);
    /* Where nothing is generated it is refused. */
    assert_int_equal(
        qn_generation_open(m, &(qn_prompt){.text = "x"}, &(qn_generate_options){.alternative = one}, &g),
        QN_E_ARG);
    qn_constraint_close(all);
    qn_constraint_close(one);
    qn_model_close(&m);
}

/* One form or the other, by what the model begins with. */
static void test_alternative(void **state)
{
    (void)state;
    int n_first = 0, n_second = 0;
    qn_model *m = open_model("models/llama");
    qn_constraint *first = compile(m, QN_CONSTRAIN_REGEX, "[a-m]{3}!"),
                  *second = compile(m, QN_CONSTRAIN_REGEX, "[h-z]{5}\\?");
    for (uint64_t seed = 1; seed < 30; seed++) {
        char text[256], again[256];
        qn_generate_options o = {.temperature = 2, .seed = seed, .constraint = first, .alternative = second};
        ask(m, &(qn_prompt){.text = "abc"}, o, QN_END_STOP, text);
        const size_t n = strlen(text);
        if (n == 4 && text[3] == '!')
            n_first++;
        else if (n == 6 && text[5] == '?')
            n_second++;
        else
            fail_msg("%s is in neither form", text);
        o.n_draft = 5;
        ask(m, &(qn_prompt){.text = "abc"}, o, QN_END_STOP, again);
        assert_string_equal(text, again);
    }
    assert_true(n_first > 2 && n_second > 2);
    qn_constraint_close(first);
    qn_constraint_close(second);
    qn_model_close(&m);
}

/* With a model that reasons the form begins behind the reasoning: at once where the prompt closed it, behind the mark
 * where the prompt opened it, and else either way. */
static void test_reasoning(void **state)
{
    (void)state;
    static const char templates[][160] = {
        "{{ messages[0].content }}<think>\n\n</think>\n\n",
        "{{ messages[0].content }}{# </think> #}<think>\n",
        "{{ messages[0].content }}{# </think> #}",
    };
    for (int i = 0; i < 3; i++) {
        qn_model *m = NULL;
        const qn_message question = {"user", "q"};
        qn_test_ok(qn_model_open(qn_test_need_fixture("models/llama"),
                                 &(qn_model_options){.n_threads = 1, .chat_template = templates[i]}, &m));
        qn_constraint *c = compile(m, QN_CONSTRAIN_CHOICES, "[\"yes\", \"no\"]");
        int n_bare = 0, n_reasoned = 0;
        for (uint64_t seed = 1; seed < 20; seed++) {
            qn_generation *g = NULL;
            qn_token t = {0};
            char text[4096] = "";
            size_t n = 0;
            /* The mark is likely where it may come. */
            const qn_generate_options o = {
                .constraint = c, .temperature = 1.5f, .seed = seed, .max_tokens = 100};
            qn_test_ok(qn_chat(m, &question, 1, &o, &g));
            while (t.end == QN_END_NONE) {
                qn_test_ok(qn_generation_next(g, &t));
                assert_true(n + t.text_bytes < sizeof text);
                memcpy(text + n, t.text, t.text_bytes + 1);
                n += t.text_bytes;
            }
            qn_generation_close(g);
            const char *mark = strstr(text, "</think>");
            const int is_bare = strcmp(text, "yes") == 0 || strcmp(text, "no") == 0;
            n_bare += is_bare;
            n_reasoned += !is_bare;
            if (i == 0) assert_true(is_bare);
            if (i == 1) assert_true(mark || t.end == QN_END_LENGTH);
            if (i == 2 && !is_bare) assert_memory_equal(text, "<think>", 7);
            if (mark) assert_true(strstr(mark, "yes") || strstr(mark, "no") || t.end == QN_END_LENGTH);
        }
        if (i == 0) assert_int_equal(n_reasoned, 0);
        if (i == 1) assert_int_equal(n_bare, 0);
        qn_constraint_close(c);
        qn_model_close(&m);
    }
}

/* The ledger has the vocabulary and what was compiled, and gets all of it back. */
static void test_memory(void **state)
{
    (void)state;
    qn_model *m = open_model("models/llama");
    qn_memory before, after;
    qn_test_ok(qn_model_get_memory(m, &before));
    qn_constraint *c =
        compile(m, QN_CONSTRAIN_JSON_SCHEMA, "{\"type\": \"array\", \"items\": {\"type\": \"integer\"}}");
    qn_test_ok(qn_model_get_memory(m, &after));
    assert_true(after.other_bytes > before.other_bytes);
    qn_constraint_close(c);
    size_t old;
    qn_test_ok(qn_model_set_memory_limit(m, after.active_memory_bytes, &old));
    assert_int_equal(qn_constraint_open(
                         m, &(qn_constraint_options){.kind = QN_CONSTRAIN_REGEX, .text = "[a-z]{1,300}"}, &c),
                     QN_E_NOMEM);
    qn_model_close(&m);
}

/* Each schema is another one, so that each is compiled. */
static void test_allocation_failures(void **state)
{
    (void)state;
    const int64_t before = qn_mem_live_blocks();
    qn_model *m = open_model("models/llama");
    for (int64_t n = 1;; n += 1 + n / 40) {
        char schema[160];
        qn_constraint *c = NULL;
        qn_generation *g = NULL;
        qn_token t = {0};
        snprintf(schema, sizeof schema,
                 "{\"properties\": {\"a%d\": {\"enum\": [\"x\", \"yy\"]}}, \"required\": [\"a%d\"], "
                 "\"additionalProperties\": false}",
                 (int)n, (int)n);
        int64_t made = qn_mem_allocations();
        qn_mem_fail_nth(n);
        qn_status status =
            qn_constraint_open(m, &(qn_constraint_options){QN_CONSTRAIN_JSON_SCHEMA, .text = schema}, &c);
        if (status == QN_OK)
            status = qn_generate(m, "q", &(qn_generate_options){.constraint = c, .max_tokens = 60}, &g);
        while (status == QN_OK && t.end == QN_END_NONE) status = qn_generation_next(g, &t);
        qn_mem_fail_nth(0);
        made = qn_mem_allocations() - made;
        if (status != QN_OK && status != QN_E_NOMEM) fail_msg("allocation %d: %s", (int)n, qn_last_error());
        qn_generation_close(g);
        qn_constraint_close(c);
        if (made < n) break;
    }
    qn_model_close(&m);
    assert_int_equal(qn_mem_live_blocks(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_notes),
        cmocka_unit_test(test_kinds_of_grammars),
        cmocka_unit_test(test_owners),
        cmocka_unit_test(test_rows_and_batches),
        cmocka_unit_test(test_alternative),
        cmocka_unit_test(test_reasoning),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

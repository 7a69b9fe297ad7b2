/* Orders of members that a constraint allows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/mem.h"
#include "cli/constrain/member_order.h"
#include "seed/seed.h"
#include "text/tokenizer/tokenizer_source.h"

static qn_tokenizer *tokenizer;
static qn_vocabulary *vocabulary;

static int set_up(void **state)
{
    qn_source *source = NULL;
    (void)state;
    qn_status status = qn_source_open(QN_SEED_PATH, &(qn_source_options){.text_only = 1}, &source);
    if (status == QN_OK) status = qn_tokenizer_open(source, NULL, &tokenizer);
    qn_source_close(source);
    return status != QN_OK || qn_vocabulary_new(tokenizer, NULL, 0, &vocabulary) != QN_OK;
}

static int tear_down(void **state)
{
    (void)state;
    qn_vocabulary_release(vocabulary);
    qn_tokenizer_free(tokenizer);
    return 0;
}

/* The value in the order that was found, NULL if none was. */
static const struct {
    const char *schema, *value, *ordered;
} cases[] = {
    {"{\"properties\":{\"a\":{},\"b\":{}},\"required\":[\"a\",\"b\"]}", "{\"b\":1,\"a\":2}",
     "{\"a\": 2, \"b\": 1}"},
    {"{\"properties\":{\"a\":{},\"b\":{}},\"required\":[\"a\",\"b\"]}", "{\"a\":1,\"b\":2}",
     "{\"a\": 1, \"b\": 2}"},
    {"{\"properties\":{\"a\":{\"type\":\"null\"},\"b\":{}},\"required\":[\"a\"]}", "{\"b\":1,\"a\":2}", NULL},
    {"{\"properties\":{\"a\":{},\"b\":{}},\"required\":[\"a\",\"b\"],\"additionalProperties\":false}",
     "{\"b\":1,\"a\":2,\"c\":3}", NULL},
    {"{\"items\":{\"properties\":{\"x\":{},\"y\":{\"properties\":{\"p\":{},\"q\":{}},\"required\":[\"p\","
     "\"q\"]}},\"required\":[\"x\",\"y\"]}}",
     "[{\"y\":{\"q\":[],\"p\":\"s\"},\"x\":null}]", "[{\"x\": null, \"y\": {\"p\": \"s\", \"q\": []}}]"},
    {"{\"type\":\"integer\"}", "1.5", NULL},
    {"true", "{\"z\":1,\"a\":2}", "{\"z\": 1, \"a\": 2}"},
};

static qn_status find(size_t i, qn_constraint *c, int *found, qn_buf *text)
{
    qn_arena arena = {0};
    const qn_value *schema = NULL, *value = NULL;
    qn_status status = qn_value_read(&arena, "schema", cases[i].schema, strlen(cases[i].schema), &schema);
    if (status == QN_OK)
        status = qn_value_read(&arena, "value", cases[i].value, strlen(cases[i].value), &value);
    if (status == QN_OK) status = qn_member_order_find(c, schema, value, found, text);
    qn_arena_clear(&arena);
    return status;
}

static qn_constraint *compile(size_t i)
{
    qn_constraint *c = NULL;
    qn_constraint_source source = {
        .kind = QN_CONSTRAIN_JSON_SCHEMA, .text = cases[i].schema, .n = strlen(cases[i].schema)};
    if (qn_constraint_new(vocabulary, &source, NULL, &c) != QN_OK)
        fail_msg("%s: %s", cases[i].schema, qn_last_error());
    return c;
}

static void test_orders(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_constraint *c = compile(i);
        qn_buf text = {0};
        int found = -1;
        assert_int_equal(find(i, c, &found, &text), QN_OK);
        if (found != (cases[i].ordered != NULL))
            fail_msg("%s, %s: %d", cases[i].schema, cases[i].value, found);
        if (found) assert_string_equal(text.data, cases[i].ordered);
        qn_buf_free(&text);
        qn_constraint_release(c);
    }
}

static void test_runs_out_of_memory(void **state)
{
    qn_constraint *c = compile(4);
    (void)state;
    for (int64_t nth = 1; nth < 2000; nth++) {
        qn_buf text = {0};
        int found = 0;
        qn_mem_fail_nth(nth);
        qn_status status = find(4, c, &found, &text);
        qn_mem_fail_nth(0);
        qn_buf_free(&text);
        if (status == QN_OK) {
            assert_true(found);
            qn_constraint_release(c);
            return;
        }
        assert_int_equal(status, QN_E_NOMEM);
    }
    fail();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_orders),
                                       cmocka_unit_test(test_runs_out_of_memory)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

/* The table of fields of rerankers, and what becomes of bodies, also while memory runs out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
/* cmocka wants these before it */
#include <cmocka.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "server/rerank/request.h"

static const qn_api_request_limits limits = {.vocab_size = 100, .context_size = 64};

static int read_body(const char *text, unsigned route, qn_api_request *r, qn_pair **pairs, size_t *n,
                     qn_api_error *error)
{
    *pairs = NULL;
    int refused = qn_rerank_read(text, strlen(text), route, &limits, r, error);
    return refused ? refused : qn_rerank_make_pairs(r, pairs, n, error);
}

static void test_table(void **state)
{
    (void)state;
    for (const qn_field *f = qn_rerank_fields; f->name; f++) {
        for (const qn_field *g = qn_rerank_fields; g < f; g++)
            assert_false(strcmp(f->name, g->name) == 0 && (f->routes & g->routes));
        assert_true(f->routes && f->low <= f->high);
        assert_int_equal(f->kind == QN_FIELD_REPORTED || f->kind == QN_FIELD_REFUSED, f->note != NULL);
    }
}

static void test_pairs(void **state)
{
    static const struct {
        const char *body;
        unsigned route;
        size_t n;
        const char *query, *document; /* of the last */
    } cases[] = {
        {"{\"query\":\"q\",\"documents\":[\"a\",{\"text\":\"b\"}]}", QN_RERANK_ROUTE, 2, "q", "b"},
        {"{\"query\":\"q\",\"texts\":[\"a\",\"b\",\"c\"]}", QN_RERANK_ROUTE, 3, "q", "c"},
        {"{\"text_1\":\"q\",\"text_2\":\"a\"}", QN_SCORE_ROUTE, 1, "q", "a"},
        {"{\"text_1\":\"q\",\"text_2\":[\"a\",\"b\"]}", QN_SCORE_ROUTE, 2, "q", "b"},
        {"{\"text_1\":[\"p\",\"q\"],\"text_2\":[\"a\",\"b\"]}", QN_SCORE_ROUTE, 2, "q", "b"},
        {"{\"queries\":[\"q\"],\"documents\":[\"a\",\"b\"]}", QN_SCORE_ROUTE, 2, "q", "b"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static qn_api_request r;
        qn_api_error error;
        qn_pair *pairs;
        size_t n = 0;
        assert_int_equal(read_body(cases[i].body, cases[i].route, &r, &pairs, &n, &error), 0);
        assert_int_equal(n, cases[i].n);
        assert_string_equal(pairs[n - 1].query, cases[i].query);
        assert_string_equal(pairs[n - 1].document, cases[i].document);
        qn_free(pairs);
        qn_api_request_free(&r);
    }
}

static void test_refused(void **state)
{
    static const struct {
        const char *body;
        unsigned route;
        const char *param;
    } cases[] = {
        {"{\"documents\":[\"a\"]}", QN_RERANK_ROUTE, "query"},
        {"{\"query\":\"q\"}", QN_RERANK_ROUTE, "documents"},
        {"{\"query\":[\"q\"],\"documents\":[\"a\"]}", QN_RERANK_ROUTE, "query"},
        {"{\"query\":\"q\",\"documents\":[]}", QN_RERANK_ROUTE, "documents"},
        {"{\"query\":\"q\",\"documents\":[1]}", QN_RERANK_ROUTE, "documents"},
        {"{\"query\":\"q\",\"documents\":[\"a\"],\"texts\":[\"b\"]}", QN_RERANK_ROUTE, "texts"},
        {"{\"query\":\"q\",\"documents\":[\"a\"],\"top_n\":0}", QN_RERANK_ROUTE, "top_n"},
        {"{\"query\":\"q\",\"documents\":[\"a\"],\"max_tokens_per_doc\":9}", QN_RERANK_ROUTE,
         "max_tokens_per_doc"},
        {"{\"query\":\"q\",\"documents\":[\"a\"],\"colour\":1}", QN_RERANK_ROUTE, "colour"},
        {"{\"text_1\":[\"p\",\"q\"],\"text_2\":[\"a\"]}", QN_SCORE_ROUTE, "text_1"},
        {"{\"text_1\":[],\"text_2\":[\"a\"]}", QN_SCORE_ROUTE, "text_1"},
        {"{\"text_1\":\"q\"}", QN_SCORE_ROUTE, "text_2"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static qn_api_request r;
        qn_api_error error;
        qn_pair *pairs;
        size_t n = 0;
        assert_int_equal(read_body(cases[i].body, cases[i].route, &r, &pairs, &n, &error), 400);
        assert_string_equal(error.param, cases[i].param);
        assert_null(pairs);
        qn_api_request_free(&r);
    }
}

static void test_memory(void **state)
{
    static const char body[] = "{\"query\":\"q\",\"documents\":[\"a\",\"b\"],\"user\":\"u\"}";
    int refused = 1;
    (void)state;
    for (int64_t nth = 1; refused; nth++) {
        static qn_api_request r;
        qn_api_error error;
        qn_pair *pairs;
        size_t n = 0;
        assert_true(nth < 1000);
        qn_mem_fail_nth(nth);
        refused = read_body(body, QN_RERANK_ROUTE, &r, &pairs, &n, &error);
        qn_mem_fail_nth(0);
        if (refused) assert_int_equal(refused, 503);
        qn_free(pairs);
        qn_api_request_free(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_table), cmocka_unit_test(test_pairs),
                                       cmocka_unit_test(test_refused), cmocka_unit_test(test_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

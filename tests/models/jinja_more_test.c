/* Filters and messages that chat templates seldom use, against jinja2 (tools/jinja_more_golden.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "format/files/mmap.h"
#include "tests/support/fixtures.h"
#include "text/jinja/template.h"

static qn_status render(const char *template, const json_t *context, qn_rendered *out)
{
    qn_template *t = NULL;
    QN_TRY(qn_template_parse("t", template, strlen(template), &t));
    qn_status status = qn_template_render(t, context, NULL, out);
    qn_template_free(t);
    return status;
}

static json_t *read(const char *path)
{
    json_t *all = NULL;
    char *text = NULL;
    size_t n = 0;
    assert_int_equal(qn_file_read(path, SIZE_MAX, &text, &n), QN_OK);
    assert_int_equal(qn_json_parse_exact(path, text, n, &all), QN_OK);
    qn_free(text);
    return all;
}

static void test_against_jinja2(void **state)
{
    const char *given = getenv("QUERN_JINJA_MORE");
    json_t *all = read(given ? given : qn_test_need_fixture("jinja/more.json")), *each;
    const json_t *context = json_object_get(all, "context");
    size_t i;
    int n_wrong = 0;
    json_array_foreach(json_object_get(all, "cases"), i, each)
    {
        const char *template = json_string_value(json_object_get(each, "template")),
                   *text = json_string_value(json_object_get(each, "text")),
                   *message = json_string_value(json_object_get(each, "message"));
        qn_rendered r = {0};
        const qn_status status = render(template, context, &r);
        if (text && (status != QN_OK || strcmp(r.text, text) != 0)) {
            print_error("%s\n  gives %s\n  not   %s\n", template, status == QN_OK ? r.text : qn_last_error(),
                        text);
            n_wrong++;
        }
        if (message && (status == QN_OK || !strstr(qn_last_error(), message))) {
            print_error("%s\n  says %s\n  not  %s\n", template, status == QN_OK ? r.text : qn_last_error(),
                        message);
            n_wrong++;
        }
        qn_rendered_free(&r);
    }
    assert_int_equal(n_wrong, 0);
    json_decref(all);
}

static void test_limits(void **state)
{
    json_t *context = json_object();
    qn_rendered r = {0};
    assert_int_equal(render("{% block a %}{{ self.a() }}{% endblock %}", context, &r),
                     QN_E_FULL); /* too deep */
    assert_int_equal(render("{{ (('ab-' * 400) ~ ' ')|wordwrap(1)|length }}", context, &r), QN_OK);
    qn_rendered_free(&r);
    json_decref(context);
}

static void test_out_of_memory(void **state)
{
    static const char template[] =
        "{{ 'a well-known fact'|wordwrap(6) }}{{ {'a': 1}|urlencode }}{{ [1]|pprint }}"
        "{{ ['a b c d e f' * 9, {'k': 1}]|pprint }}{% block b %}{% endblock %}{{ self.b() }}";
    json_t *context = json_object();
    const int64_t before = qn_mem_live_blocks();
    qn_status status = QN_E_NOMEM;
    for (int64_t n = 1; n < 2000 && status != QN_OK; n++) {
        qn_rendered r = {0};
        qn_mem_fail_nth(n);
        status = render(template, context, &r);
        qn_mem_fail_nth(0);
        if (status != QN_OK) assert_int_equal(status, QN_E_NOMEM);
        qn_rendered_free(&r);
        assert_int_equal(qn_mem_live_blocks(), before);
    }
    assert_int_equal(status, QN_OK);
    json_decref(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_against_jinja2), cmocka_unit_test(test_limits),
                                       cmocka_unit_test(test_out_of_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

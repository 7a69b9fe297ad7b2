/* The official JSON Schema test suite and the schemas of MaskBench, if the fixtures are there: each group passes,
 * or is refused when it is opened with the place and the reason. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "constrain/validate/validate.h"
#include "constrain/validate/value.h"
#include "tests/support/fixtures.h"

typedef struct {
    int passed, refused, failed, excepted;
} counts;

/* Groups of the suite that expect what quern does not promise: how "FILE: DESCRIPTION" begins. */
static const char *const excepted_groups[] = {
    /* Formats are asserted. */
    "draft2020-12/format.json: ",
    /* Which labels with xn-- are IDNA2008's is no regular language: none is a host name. */
    "draft2020-12/optional/format/hostname.json: validation of A-label",
    "draft7/optional/format/hostname.json: validation of A-label",
};

static int is_excepted(const char *name)
{
    for (size_t i = 0; i < sizeof excepted_groups / sizeof *excepted_groups; i++)
        if (!strncmp(name, excepted_groups[i], strlen(excepted_groups[i]))) return 1;
    return 0;
}

/* The value as it stands in the file, every digit of its numbers included. */
static void text_of(const qn_value *v, qn_buf *out)
{
    qn_buf_reset(out);
    qn_value_show(v, 1 << 28, out);
    assert_int_equal(out->status, QN_OK);
}

static const qn_value *get(const qn_value *object, const char *key)
{
    return qn_value_get(object, key, strlen(key));
}

/* What a refusal says begins with a place and a keyword of the schema, or it is about the document. */
static int names_its_place(const char *message)
{
    return *message == '/' || !strncmp(message, "schema: ", 8);
}

static void try_group(const char *name, const qn_buf *schema, const qn_value *tests, counts *c)
{
    qn_buf text = {0};
    qn_schema *s = NULL;
    qn_schema_report report = {0};
    qn_status status = qn_schema_open(schema->data, schema->length, NULL, &s);
    if (status != QN_OK) {
        if (status != QN_E_UNSUPPORTED || !names_its_place(qn_last_error()))
            fail_msg("%s: %s: %s", name, qn_status_name(status), qn_last_error());
        c->refused++;
        return;
    }
    int good = 1;
    for (uint32_t i = 0; i < tests->n; i++) {
        text_of(get(&tests->children[i], "data"), &text);
        status = qn_schema_validate_text(s, text.data, text.length, &report);
        int wanted = get(&tests->children[i], "valid")->is_true;
        if (status != QN_OK) fail_msg("%s: %s: %s", name, text.data, qn_last_error());
        if (report.is_valid == wanted) continue;
        good = 0;
        if (!is_excepted(name))
            print_message("%s: test %u: %.200s: must be %s: %s %s\n", name, i, text.data,
                          wanted ? "valid" : "invalid", wanted ? report.failures->schema : "",
                          wanted ? report.failures->message : "");
    }
    qn_buf_free(&text);
    qn_schema_report_clear(&report);
    qn_schema_close(s);
    (*(good ? &c->passed : is_excepted(name) ? &c->excepted : &c->failed))++;
}

static void walk(const char *fixture, void visit(const qn_value *line, counts *c), counts *c)
{
    char command[4200];
    snprintf(command, sizeof command, "gzip -dc '%s'", qn_test_need_fixture(fixture));
    FILE *f = popen(command, "r");
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    assert_non_null(f);
    while ((n = getline(&line, &room, f)) > 0) {
        qn_arena arena = {0};
        const qn_value *group = NULL;
        if (qn_value_read(&arena, fixture, line, (size_t)n, &group) != QN_OK) fail_msg("%s", qn_last_error());
        visit(group, c);
        qn_arena_clear(&arena);
    }
    free(line); /* foreign: getline's */
    assert_int_equal(pclose(f), 0);
    print_message("%s: %d passed, %d refused, %d excepted, %d failed\n", fixture, c->passed, c->refused,
                  c->excepted, c->failed);
    assert_true(c->passed > 0);
    assert_int_equal(c->failed, 0);
}

/* The schemas of draft 7 in the suite do not say so: their folder does. */
static void visit_suite(const qn_value *group, counts *c)
{
    static const char draft[] = "{\"$schema\":\"http://json-schema.org/draft-07/schema#\"";
    char name[512];
    const char *file = get(group, "file")->text;
    const qn_value *schema = get(group, "schema");
    qn_buf text = {0}, declared = {0};
    text_of(schema, &text);
    snprintf(name, sizeof name, "%s: %s", file, get(group, "description")->text);
    int declares = !strncmp(file, "draft7/", 7) && schema->kind == QN_VALUE_OBJECT && !get(schema, "$schema");
    if (declares) qn_buf_printf(&declared, "%s%s%s", draft, schema->n ? "," : "", text.data + 1);
    try_group(name, declares ? &declared : &text, get(group, "tests"), c);
    qn_buf_free(&declared);
    qn_buf_free(&text);
}

static void test_suite(void **state)
{
    counts c = {0};
    (void)state;
    walk("json_schema/test_suite.jsonl.gz", visit_suite, &c);
}

static void visit_maskbench(const qn_value *line, counts *c)
{
    qn_buf text = {0};
    text_of(get(line, "schema"), &text);
    try_group(get(line, "name")->text, &text, get(line, "tests"), c);
    qn_buf_free(&text);
}

static void test_maskbench(void **state)
{
    counts c = {0};
    (void)state;
    walk("json_schema/maskbench.jsonl.gz", visit_maskbench, &c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_suite),
        cmocka_unit_test(test_maskbench),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

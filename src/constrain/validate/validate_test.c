/* The validator: each keyword by cases of this repository, places and messages of failures, limits. The official
 * suite is walked by validate_suite_test.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "constrain/validate/validate.h"

#define D4 "\"$schema\":\"http://json-schema.org/draft-04/schema#\","
#define D6 "\"$schema\":\"http://json-schema.org/draft-06/schema\","
#define D7 "\"$schema\":\"https://json-schema.org/draft-07/schema#\","
#define D19 "\"$schema\":\"https://json-schema.org/draft/2019-09/schema\","
#define D20 "\"$schema\":\"https://json-schema.org/draft/2020-12/schema\","

static qn_schema *open_schema(const char *text)
{
    qn_schema *s = NULL;
    if (qn_schema_open(text, strlen(text), NULL, &s) != QN_OK) fail_msg("%s: %s", text, qn_last_error());
    return s;
}

/* Values up to NULL. */
typedef struct {
    const char *schema;
    const char *valid[8], *invalid[8];
} example;

static const example examples[] = {
    {"true", {"1", "{}"}, {NULL}},
    {"false", {NULL}, {"1", "{}"}},
    {"{\"type\":\"integer\"}",
     {"1", "1.0", "1e400", "-0.0", "100e-2"},
     {"1.5", "true", "\"1\"", "null", "1e-400"}},
    {"{" D4 "\"type\":\"integer\"}", {"1", "-0", "100"}, {"1.0", "1e2", "1.5"}},
    {"{" D6 "\"type\":\"integer\"}", {"1", "1.0", "1e2"}, {"1.5"}},
    {"{\"type\":[\"null\",\"string\"]}", {"null", "\"\""}, {"0", "[]", "{}"}},
    {"{\"enum\":[1,\"a\",null,{\"b\":[2.0]}]}",
     {"1.0", "\"a\"", "null", "{\"b\":[2]}"},
     {"true", "\"b\"", "{}", "[2]"}},
    {"{\"enum\":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,\"x\"]}",
     {"0", "18.0", "1.6e1", "\"x\""},
     {"19", "\"0\"", "0.5"}},
    {"{\"enum\":[]}", {NULL}, {"1", "null"}},
    {"{\"const\":{\"a\":1}}", {"{\"a\":1.0}"}, {"{}", "{\"a\":1,\"b\":1}"}},
    {"{\"multipleOf\":0.01}", {"19.99", "0", "\"a\"", "1e30"}, {"0.005", "19.999"}},
    {"{\"minimum\":1.1,\"exclusiveMaximum\":3}",
     {"1.1", "2.999999999999999999999"},
     {"1.09999999999999999999", "3.0"}},
    {"{\"exclusiveMinimum\":0,\"maximum\":1}", {"1", "1e-300"}, {"0", "-1", "1.00000000000000000001"}},
    {"{" D4 "\"minimum\":1,\"exclusiveMinimum\":true,\"maximum\":2,\"exclusiveMaximum\":false}",
     {"1.5", "2"},
     {"1", "2.1"}},
    {"{\"minimum\":1,\"exclusiveMinimum\":true}", {"1.5"}, {"1"}},
    {"{\"minLength\":2,\"maxLength\":3}",
     {"\"ab\"", "\"\xc3\xa9\xf0\x9f\x98\x80x\"", "1"},
     {"\"a\"", "\"\\ud83d\\ude00\"", "\"abcd\""}},
    {"{\"pattern\":\"^a+$\"}", {"\"aa\"", "7"}, {"\"\"", "\"ab\"", "\"a\\n\""}},
    {"{\"pattern\":\"b\"}", {"\"abc\""}, {"\"ac\""}},
    {"{\"maxItems\":2,\"minItems\":1}", {"[1]", "[1,2]", "{}"}, {"[]", "[1,2,3]"}},
    {"{\"uniqueItems\":true}",
     {"[1,true,\"1\",[1],{\"a\":1}]", "[1,2,3,4,5,6,7,8,9,10,11,12,13,14]", "[]"},
     {"[1,1.0]", "[{\"a\":1,\"b\":2},{\"b\":2,\"a\":1}]", "[1,2,3,4,5,6,7,8,9,10,11,12,13,2.0]"}},
    {"{\"uniqueItems\":false}", {"[1,1]"}, {NULL}},
    {"{\"maxProperties\":1}", {"{}", "{\"a\":1}", "[1,2]"}, {"{\"a\":1,\"b\":1}"}},
    {"{\"minProperties\":1}", {"{\"a\":1}"}, {"{}"}},
    {"{\"required\":[\"a\",\"b\\n\"]}", {"{\"b\\n\":1,\"a\":null}", "[]"}, {"{}", "{\"a\":1}"}},
    {"{\"dependentRequired\":{\"a\":[\"b\"]}}", {"{\"b\":1}", "{\"a\":1,\"b\":1}"}, {"{\"a\":1}"}},
    {"{\"propertyNames\":{\"maxLength\":2}}", {"{\"ab\":1}", "{}"}, {"{\"abc\":1}"}},
    {"{\"properties\":{\"a\":{\"type\":\"string\"},\"b\":false},\"patternProperties\":{\"^x\":{\"type\":"
     "\"null\"}},"
     "\"additionalProperties\":{\"type\":\"boolean\"}}",
     {"{\"a\":\"\",\"x1\":null,\"c\":true}", "{}", "7"},
     {"{\"a\":1}", "{\"b\":1}", "{\"x\":1}", "{\"c\":1}"}},
    {"{\"properties\":{\"x\":{\"type\":\"integer\"}},\"patternProperties\":{\"x\":{\"minimum\":3}}}",
     {"{\"x\":3}"},
     {"{\"x\":2}", "{\"x\":3.5}"}},
    {"{\"prefixItems\":[{\"type\":\"integer\"}],\"items\":{\"type\":\"string\"}}",
     {"[]", "[1]", "[1,\"a\",\"b\"]"},
     {"[\"a\"]", "[1,2]"}},
    {"{\"items\":[{\"type\":\"integer\"}],\"additionalItems\":{\"type\":\"string\"}}",
     {"[]", "[1,\"a\"]"},
     {"[1,2]", "[\"a\"]"}},
    {"{\"items\":{\"type\":\"integer\"},\"additionalItems\":false}", {"[1,2]"}, {"[\"a\"]"}},
    {"{\"items\":false}", {"[]"}, {"[1]"}},
    {"{\"contains\":{\"minimum\":5}}", {"[1,5]", "{}"}, {"[]", "[1,2]"}},
    {"{\"contains\":{\"minimum\":5},\"minContains\":2,\"maxContains\":3}",
     {"[5,1,6]", "[5,6,7]"},
     {"[5]", "[5,6,7,8]"}},
    {"{\"contains\":true,\"minContains\":0}", {"[]"}, {NULL}},
    {"{" D7 "\"contains\":{\"minimum\":5},\"minContains\":2}", {"[5]"}, {"[1]"}},
    {"{\"allOf\":[{\"minimum\":1},{\"maximum\":2}]}", {"1.5"}, {"0", "3"}},
    {"{\"anyOf\":[{\"type\":\"string\"},{\"minimum\":2}]}", {"\"a\"", "2"}, {"1"}},
    {"{\"oneOf\":[{\"multipleOf\":2},{\"multipleOf\":3}]}", {"2", "3"}, {"6", "5"}},
    {"{\"not\":{\"type\":\"integer\"}}", {"1.5", "\"a\""}, {"1"}},
    {"{\"if\":{\"minimum\":10},\"then\":{\"multipleOf\":2},\"else\":{\"maximum\":5}}",
     {"12", "5"},
     {"11", "6"}},
    {"{\"then\":false}", {"1"}, {NULL}},
    {"{" D6 "\"if\":true,\"then\":false}", {"1"}, {NULL}},
    {"{\"dependencies\":{\"a\":[\"b\"],\"c\":{\"minProperties\":2}}}",
     {"{\"a\":1,\"b\":1}", "{}"},
     {"{\"a\":1}", "{\"c\":1}"}},
    {"{\"dependentSchemas\":{\"a\":{\"required\":[\"b\"]}}}", {"{\"a\":1,\"b\":1}"}, {"{\"a\":1}"}},
    {"{\"properties\":{\"a\":true},\"anyOf\":[{\"properties\":{\"b\":true},\"required\":[\"b\"]},{"
     "\"required\":[\"c\"]}],"
     "\"unevaluatedProperties\":{\"type\":\"null\"}}",
     {"{\"a\":1,\"b\":2}", "{\"b\":1,\"z\":null}", "{\"c\":null}"},
     {"{\"b\":1,\"z\":1}", "{\"c\":1}", "{\"a\":1}"}},
    {"{\"not\":{\"properties\":{\"a\":true},\"minProperties\":9},\"unevaluatedProperties\":false}",
     {"{}"},
     {"{\"a\":1}"}},
    {"{\"if\":{\"properties\":{\"a\":{\"const\":1}},\"required\":[\"a\"]},\"else\":{\"properties\":{\"b\":"
     "true}},"
     "\"unevaluatedProperties\":false}",
     {"{\"a\":1}", "{\"b\":1}"},
     {"{\"a\":2}", "{\"a\":1,\"b\":1}"}},
    {"{\"prefixItems\":[true],\"contains\":{\"type\":\"string\"},\"unevaluatedItems\":false}",
     {"[1,\"a\"]", "[\"a\"]"},
     {"[1,\"a\",2]", "[1]"}},
    {"{" D19 "\"items\":[true],\"contains\":{\"type\":\"string\"},\"unevaluatedItems\":false}",
     {"[\"a\"]"},
     {"[1,\"a\"]"}},
    {"{\"$ref\":\"#/$defs/a\",\"maximum\":5,\"$defs\":{\"a\":{\"type\":\"integer\"}}}", {"5"}, {"6", "1.5"}},
    {"{" D7 "\"properties\":{\"a\":{\"$ref\":\"#/definitions/"
     "a\",\"maximum\":5}},\"definitions\":{\"a\":{\"type\":\"integer\"}}}",
     {"{\"a\":6}"},
     {"{\"a\":1.5}"}},
    {"{\"type\":\"object\",\"properties\":{\"next\":{\"$ref\":\"#\"}},\"additionalProperties\":false}",
     {"{\"next\":{\"next\":{}}}"},
     {"{\"next\":{\"next\":1}}", "{\"next\":{\"nxt\":{}}}"}},
    {"{\"$id\":\"http://x/a/"
     "\",\"items\":{\"$ref\":\"b#c\"},\"$defs\":{\"q\":{\"$id\":\"b\",\"$defs\":{\"r\":{\"$anchor\":\"c\","
     "\"type\":\"null\"}}}}}",
     {"[null]"},
     {"[1]"}},
    {"{" D4 "\"items\":{\"$ref\":\"#x\"},\"definitions\":{\"q\":{\"id\":\"#x\",\"type\":\"null\"}}}",
     {"[null]"},
     {"[1]"}},
    {"{\"$ref\":\"#/a~1b/%25/0\",\"a/b\":{\"%\":[{\"type\":\"null\"}]}}", {"null"}, {"1"}},
    {"{" D20 "\"$id\":\"http://x/"
     "strict\",\"$dynamicAnchor\":\"node\",\"$ref\":\"tree\",\"unevaluatedProperties\":false,\"$"
     "defs\":{\"t\":{\"$id\":\"tree\","
     "\"$dynamicAnchor\":\"node\",\"properties\":{\"data\":true,\"kids\":{\"items\":{\"$dynamicRef\":\"#"
     "node\"}}}}}}",
     {"{\"data\":1,\"kids\":[{\"data\":2}]}"},
     {"{\"kids\":[{\"daat\":1}]}", "{\"x\":1}"}},
    {"{" D19 "\"$id\":\"http://x/"
     "strict\",\"$recursiveAnchor\":true,\"$ref\":\"tree\",\"unevaluatedProperties\":false,\"$defs\":"
     "{\"t\":{\"$id\":\"tree\","
     "\"$recursiveAnchor\":true,\"properties\":{\"data\":true,\"kids\":{\"items\":{\"$recursiveRef\":\"#\"}}}"
     "}}}",
     {"{\"data\":1,\"kids\":[{\"data\":2}]}"},
     {"{\"kids\":[{\"daat\":1}]}", "{\"x\":1}"}},
    {"{" D4 "\"const\":1,\"contains\":false,\"propertyNames\":false}", {"2", "[1]", "{\"a\":1}"}, {NULL}},
    {"{\"format\":\"date\"}", {"\"2024-02-29\"", "1"}, {"\"2023-02-29\"", "\"x\""}},
    {"{\"format\":\"no-such\",\"x-y\":1}", {"\"a\"", "1"}, {NULL}},
    {"{\"contentEncoding\":\"base64\",\"contentSchema\":false}", {"\"%\""}, {NULL}},
    {"{" D7 "\"contentEncoding\":\"base64\",\"contentMediaType\":\"base64\"}",
     {"\"\"", "\"YWI=\"", "\"YWJj\\r\\nYQ==\\n\"", "1"},
     {"\"%\"", "\"YWI\"", "\"YWI=YWJj\"", "\"=\""}},
};

static void test_examples(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++) {
        const example *e = &examples[i];
        qn_schema *s = open_schema(e->schema);
        qn_schema_report report = {0};
        for (int k = 0; k < 16; k++) {
            const char *text = k < 8 ? e->valid[k] : e->invalid[k - 8];
            if (!text) continue;
            qn_status status = qn_schema_validate_text(s, text, strlen(text), &report);
            if (status != QN_OK) fail_msg("%s: %s: %s", e->schema, text, qn_last_error());
            if (report.is_valid != (k < 8)) fail_msg("%s: %s: %d", e->schema, text, report.is_valid);
            assert_int_equal(report.n_failures, k < 8 ? 0 : 1);
        }
        qn_schema_report_clear(&report);
        qn_schema_close(s);
    }
}

/* ---- what is said -------------------------------------------------------------------------------------- */

static const struct {
    const char *schema, *value;
    const char *instance, *place, *keyword, *message;
} failures[] = {
    {"{\"properties\":{\"a\":{\"items\":{\"type\":\"string\"}}}}", "{\"a\":[\"x\",1]}", "/a/1",
     "/properties/a/items/type", "type", "is a number, must be of type \"string\""},
    {"{\"required\":[\"b\"]}", "{\"a\":1}", "", "/required", "required", "has no property \"b\""},
    {"{\"additionalProperties\":false}", "{\"a/b\":1}", "/a~1b", "/additionalProperties",
     "additionalProperties", "is a property that is not allowed"},
    {"{\"enum\":[1,\"a\"]}", "{\"b\":[true]}", "", "/enum", "enum",
     "is {\"b\": [true]}, must be one of [1, \"a\"]"},
    {"{\"const\":1}", "2", "", "/const", "const", "is 2, must be 1"},
    {"{\"maximum\":1.50}", "2", "", "/maximum", "maximum", "is 2, must be at most 1.50"},
    {"{\"multipleOf\":0.1}", "0.25", "", "/multipleOf", "multipleOf", "is 0.25, must be a multiple of 0.1"},
    {"{\"maxLength\":1}", "\"\xc3\xa9\xc3\xa9\"", "", "/maxLength", "maxLength",
     "has 2 characters, must have at most 1"},
    {"{\"uniqueItems\":true}", "[1,2,1]", "", "/uniqueItems", "uniqueItems", "items 0 and 2 are equal"},
    {"{\"contains\":{\"const\":1},\"minContains\":2}", "[1,2]", "", "/minContains", "minContains",
     "has 1 items that are valid by contains, must have at least 2"},
    {"{\"oneOf\":[{\"type\":\"integer\"},{\"minimum\":1}]}", "2", "", "/oneOf", "oneOf",
     "is valid by number 0 and number 1 of the schemas"},
    {"{\"anyOf\":[{\"type\":\"integer\"},{\"properties\":{\"a\":{\"const\":1}}}]}", "{\"a\":2}", "", "/anyOf",
     "anyOf", "is valid by none of the 2 schemas; of number 1: /a is 2, must be 1"},
    {"{\"not\":{\"type\":\"null\"}}", "null", "", "/not", "not",
     "is valid by the schema that it must not be"},
    {"{\"$ref\":\"#/$defs/x\",\"$defs\":{\"x\":false}}", "1", "", "/$defs/x", "false",
     "nothing is allowed here: the schema is false"},
    {"{\"propertyNames\":{\"maxLength\":1}}", "{\"abc\":1}", "/abc", "/propertyNames/maxLength", "maxLength",
     "has 3 characters, must have at most 1"},
};

static void test_failures_have_places(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++) {
        qn_schema *s = open_schema(failures[i].schema);
        qn_schema_report report = {0};
        assert_int_equal(qn_schema_validate_text(s, failures[i].value, strlen(failures[i].value), &report),
                         QN_OK);
        assert_int_equal(report.n_failures, 1);
        assert_string_equal(report.failures->instance, failures[i].instance);
        assert_string_equal(report.failures->schema, failures[i].place);
        assert_string_equal(report.failures->keyword, failures[i].keyword);
        assert_string_equal(report.failures->message, failures[i].message);
        qn_schema_report_clear(&report);
        qn_schema_close(s);
    }
}

static void test_all_failures(void **state)
{
    static const char value[] = "{\"a\":1,\"b\":[1,\"x\",2],\"c\":null}";
    qn_schema *s = open_schema("{\"required\":[\"d\",\"e\"],\"properties\":{\"a\":{\"type\":\"null\","
                               "\"maximum\":0},\"b\":{\"items\":"
                               "{\"type\":\"string\"}}},\"additionalProperties\":false}");
    qn_schema_report report = {.failures_max = 100};
    (void)state;
    assert_int_equal(qn_schema_validate_text(s, value, strlen(value), &report), QN_OK);
    assert_int_equal(report.n_failures, 7);
    assert_false(report.is_cut);
    qn_schema_report_clear(&report);
    report.failures_max = 3;
    assert_int_equal(qn_schema_validate_text(s, value, strlen(value), &report), QN_OK);
    assert_int_equal(report.n_failures, 3);
    qn_schema_report_clear(&report);
    qn_schema_close(s);
}

/* A value that was read, numbers included. */
static void test_validates_json(void **state)
{
    qn_schema *s = open_schema("{\"items\":{\"multipleOf\":0.01}}");
    qn_schema_report report = {0};
    json_t *v = json_loads("[0.07, 19.99, 3, 1e22]", 0, NULL);
    (void)state;
    assert_int_equal(qn_schema_validate(s, v, &report), QN_OK);
    assert_true(report.is_valid);
    json_decref(v);
    v = json_loads("[0.07, 0.075]", 0, NULL);
    assert_int_equal(qn_schema_validate(s, v, &report), QN_OK);
    assert_string_equal(report.failures->instance, "/1");
    json_decref(v);
    qn_schema_report_clear(&report);
    qn_schema_close(s);
}

static void test_notes(void **state)
{
    static const struct {
        const char *schema, *pointer, *keyword;
    } cases[] = {
        {"{\"properties\":{\"a\":{\"x-order\":1}}}", "/properties/a/x-order", "x-order"},
        {"{\"format\":\"slug\"}", "/format", "format"},
        {"{" D7 "\"items\":{\"$ref\":\"#\",\"maximum\":1}}", "/items/maximum", "maximum"},
        {"{" D4 "\"const\":1}", "/const", "const"},
        {"{\"then\":{}}", "/then", "then"},
        {"{\"contentMediaType\":\"text/html\"}", "/contentMediaType", "contentMediaType"},
    };
    size_t n;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_schema *s = open_schema(cases[i].schema);
        const qn_schema_note *notes = qn_schema_notes(s, &n);
        assert_int_equal(n, 1);
        assert_string_equal(notes->pointer, cases[i].pointer);
        assert_string_equal(notes->keyword, cases[i].keyword);
        qn_schema_close(s);
    }
    qn_schema *s = open_schema("{\"title\":\"x\",\"description\":\"y\",\"default\":1,\"examples\":[],\"$"
                               "comment\":\"\",\"$id\":\"http://x\"}");
    qn_schema_notes(s, &n);
    assert_int_equal(n, 0);
    qn_schema_close(s);
}

/* ---- what is refused ----------------------------------------------------------------------------------- */

static const struct {
    const char *schema;
    qn_status status;
    const char *message; /* how it begins */
} refused[] = {
    {"", QN_E_FORMAT, "schema: "},
    {"[]", QN_E_FORMAT, "a JSON schema is an object"},
    {"{\"type\":\"strin\"}", QN_E_FORMAT, "/type: type: is \"strin\", must be"},
    {"{\"properties\":{\"a\":{\"type\":[]}}}", QN_E_FORMAT, "/properties/a/type: type: is [], must be"},
    {"{\"required\":true}", QN_E_FORMAT, "/required: required: is true, must be an array of strings"},
    {"{\"required\":[1]}", QN_E_FORMAT, "/required: required: "},
    {"{\"minLength\":\"3\"}", QN_E_FORMAT,
     "/minLength: minLength: is \"3\", must be an integer of at least 0"},
    {"{\"minLength\":1.5}", QN_E_FORMAT, "/minLength: "},
    {"{\"minLength\":-1}", QN_E_FORMAT, "/minLength: "},
    {"{" D7 "\"exclusiveMinimum\":true}", QN_E_FORMAT,
     "/exclusiveMinimum: exclusiveMinimum: is true, must be a number (a boolean is draft 4's form"},
    {"{" D4 "\"exclusiveMinimum\":1}", QN_E_FORMAT, "/exclusiveMinimum: "},
    {"{\"multipleOf\":0}", QN_E_FORMAT, "/multipleOf: multipleOf: is 0, must be a number above 0"},
    {"{\"maximum\":\"1\"}", QN_E_FORMAT, "/maximum: "},
    {"{\"enum\":1}", QN_E_FORMAT, "/enum: "},
    {"{\"allOf\":[]}", QN_E_FORMAT, "/allOf: allOf: is [], must be an array of at least one schema"},
    {"{\"anyOf\":[1]}", QN_E_FORMAT, "/anyOf/0: anyOf: is 1, must be a schema"},
    {"{\"properties\":[]}", QN_E_FORMAT, "/properties: "},
    {"{\"properties\":{\"a\":null}}", QN_E_FORMAT, "/properties/a: a: is null, must be a schema"},
    {"{" D20 "\"items\":[{}]}", QN_E_FORMAT,
     "/items: items: is [{}], must be a schema (2020-12 has prefixItems"},
    {"{\"dependencies\":{\"a\":[1]}}", QN_E_FORMAT, "/dependencies/a: "},
    {"{\"dependentRequired\":{\"a\":1}}", QN_E_FORMAT, "/dependentRequired/a: "},
    {"{\"uniqueItems\":1}", QN_E_FORMAT, "/uniqueItems: "},
    {"{\"pattern\":1}", QN_E_FORMAT, "/pattern: "},
    {"{\"pattern\":\"(\"}", QN_E_FORMAT, "/pattern: pattern: "},
    {"{\"pattern\":\"(a)\\\\1\"}", QN_E_UNSUPPORTED, "/pattern: pattern: "},
    {"{\"patternProperties\":{\"*\":{}}}", QN_E_FORMAT, "/patternProperties/*: "},
    {"{\"format\":\"regex\"}", QN_E_UNSUPPORTED, "/format: format: "},
    {"{\"$ref\":1}", QN_E_FORMAT, "/$ref: "},
    {"{\"$ref\":\"#/nowhere\"}", QN_E_FORMAT, "/$ref: $ref: the document has nothing at /nowhere"},
    {"{\"$ref\":\"#/$ref\"}", QN_E_FORMAT, "/$ref: $ref: what lies at /$ref is no schema"},
    {"{\"$ref\":\"#nobody\"}", QN_E_FORMAT, "/$ref: $ref: no schema is called #nobody"},
    {"{\"items\":{\"$ref\":\"http://other.host/s\"}}", QN_E_UNSUPPORTED,
     "/items/$ref: $ref: http://other.host/s is another document, and nothing is fetched"},
    {"{\"$ref\":\"http://json-schema.org/draft-07/schema#\"}", QN_E_UNSUPPORTED, "/$ref: $ref: "},
    {"{\"$schema\":\"http://example.com/mine\"}", QN_E_UNSUPPORTED,
     "/$schema: $schema: http://example.com/mine is no draft that is known"},
    {"{\"$schema\":\"http://json-schema.org/draft-03/schema#\"}", QN_E_UNSUPPORTED, "/$schema: "},
    {"{\"$schema\":7}", QN_E_FORMAT, "/$schema: "},
    {"{\"$defs\":{\"a\":{\"$anchor\":\"x\"},\"b\":{\"$anchor\":\"x\"}}}", QN_E_FORMAT, "/$defs/b/$anchor: "},
    {"{\"$ref\":\"http://x/a\",\"$defs\":{\"a\":{\"$id\":\"http://x/a\"},\"b\":{\"$id\":\"http://x/a\"}}}",
     QN_E_FORMAT, "/$ref: $ref: more than one schema"},
    {"{" D20 "\"$id\":\"http://x/a#b\"}", QN_E_FORMAT, "/$id: "},
};

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        qn_schema *s = NULL;
        qn_status status = qn_schema_open(refused[i].schema, strlen(refused[i].schema), NULL, &s);
        if (status != refused[i].status ||
            strncmp(qn_last_error(), refused[i].message, strlen(refused[i].message)))
            fail_msg("%s: %s: %s", refused[i].schema, qn_status_name(status), qn_last_error());
        assert_null(s);
    }
}

/* ---- limits (J1, J2, J3 of the hostile inputs that servers were sent) ---------------------------------- */

static void test_references_without_end(void **state)
{
    static const char *const schemas[] = {
        "{\"$ref\":\"#\"}", "{\"allOf\":[{\"anyOf\":[{\"$ref\":\"#\"}]}]}",
        "{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"$ref\":\"#/$defs/b\"},\"b\":{\"$ref\":\"#/$defs/a\"}}}",
        "{\"$dynamicAnchor\":\"x\",\"not\":{\"$dynamicRef\":\"#x\"}}"};
    (void)state;
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) {
        qn_schema *s = open_schema(schemas[i]);
        qn_schema_report report = {0};
        assert_int_equal(qn_schema_validate_text(s, "1", 1, &report), QN_E_UNSUPPORTED);
        assert_non_null(strstr(qn_last_error(), "more than 1000 schemas apply inside one another"));
        assert_false(report.is_valid);
        assert_int_equal(report.n_failures, 0);
        qn_schema_close(s);
    }
}

static void test_steps_are_bounded(void **state)
{
    /* 2^40 ways through alternatives. */
    qn_buf text = {0};
    qn_schema_report report = {0};
    (void)state;
    qn_buf_puts(&text, "{\"$ref\":\"#/$defs/d0\",\"$defs\":{");
    for (int i = 0; i < 40; i++)
        qn_buf_printf(&text, "\"d%d\":{\"oneOf\":[{\"$ref\":\"#/$defs/d%d\"},{\"$ref\":\"#/$defs/d%d\"}]},",
                      i, i + 1, i + 1);
    qn_buf_puts(&text, "\"d40\":true}}");
    qn_schema *s = open_schema(text.data);
    assert_int_equal(qn_schema_validate_text(s, "1", 1, &report), QN_E_UNSUPPORTED);
    assert_string_equal(qn_last_error(), "validation takes more than 20000000 steps");
    qn_schema_close(s);
    qn_buf_reset(&text);

    /* Equal items: pairs would be compared if hashes were equal; they end at the first. */
    s = open_schema("{\"uniqueItems\":true}");
    qn_buf_putc(&text, '[');
    for (int i = 0; i < 200000; i++) qn_buf_printf(&text, "%s{\"a\":%d}", i ? "," : "", i);
    qn_buf_puts(&text, ",{\"a\":17}]");
    assert_int_equal(qn_schema_validate_text(s, text.data, text.length, &report), QN_OK);
    assert_string_equal(report.failures->message, "items 17 and 200000 are equal");
    qn_schema_close(s);
    qn_schema_report_clear(&report);
    qn_buf_free(&text);
}

static void test_depth_and_size(void **state)
{
    enum { N = 3000 };
    qn_buf text = {0};
    qn_schema *s = NULL;
    qn_schema_report report = {0};
    (void)state;
    for (int i = 0; i < N; i++) qn_buf_puts(&text, "{\"not\":");
    assert_int_equal(qn_schema_open(text.data, text.length, NULL, &s), QN_E_FORMAT);
    qn_buf_reset(&text);
    for (int i = 0; i < N; i++) qn_buf_putc(&text, '[');
    s = open_schema("true");
    assert_int_equal(qn_schema_validate_text(s, text.data, text.length, &report), QN_E_FORMAT);
    assert_non_null(strstr(qn_last_error(), "nested deeper"));
    qn_schema_close(s);
    s = NULL;
    qn_schema_limits limits = {.source_bytes_max = 10};
    assert_int_equal(qn_schema_open("{\"title\":1}", 11, &limits, &s), QN_E_UNSUPPORTED);
    assert_int_equal(qn_schema_open("{\"not\":{}}", 10, &limits, &s), QN_OK);
    qn_schema_close(s);
    qn_buf_free(&text);
}

/* Patterns that blow up others: the walk is linear, and what is too large is refused. */
static void test_hostile_patterns(void **state)
{
    qn_buf value = {0};
    qn_schema_report report = {0};
    qn_schema *s = open_schema("{\"pattern\":\"^(a+)+$\"}");
    (void)state;
    qn_buf_putc(&value, '"');
    for (int i = 0; i < 100000; i++) qn_buf_putc(&value, 'a');
    qn_buf_puts(&value, "!\"");
    assert_int_equal(qn_schema_validate_text(s, value.data, value.length, &report), QN_OK);
    assert_false(report.is_valid);
    qn_schema_close(s);
    s = NULL;
    static const char large[] = "{\"pattern\":\"^((a{1000}){1000}){1000}$\"}";
    assert_int_equal(qn_schema_open(large, strlen(large), NULL, &s), QN_E_UNSUPPORTED);
    qn_schema_report_clear(&report);
    qn_buf_free(&value);
}

static void test_runs_out_of_memory(void **state)
{
    static const char schema[] =
        "{\"$id\":\"http://x/"
        "\",\"type\":\"object\",\"properties\":{\"a\":{\"pattern\":\"^a\"},\"b\":{\"$ref\":\"y#z\"},\"c\":"
        "{\"x-c\":1,\"uniqueItems\":true}},\"$defs\":{\"q\":{\"$id\":\"y\",\"$defs\":{\"r\":{\"$anchor\":"
        "\"z\",\"enum\":"
        "[1]}}}},\"unevaluatedProperties\":false}";
    static const char value[] = "{\"a\":\"b\",\"b\":2,\"c\":[1,2,3,4,5,6,7,8,9,10,11,12,13,13],\"d\":1}";
    (void)state;
    for (int64_t nth = 1; nth < 2000; nth++) {
        int64_t blocks = qn_mem_live_blocks();
        qn_schema *s = NULL;
        qn_schema_report report = {.failures_max = 9};
        qn_mem_fail_nth(nth);
        qn_status status = qn_schema_open(schema, strlen(schema), NULL, &s);
        if (status == QN_OK) status = qn_schema_validate_text(s, value, strlen(value), &report);
        qn_mem_fail_nth(0);
        if (status == QN_OK) assert_int_equal(report.n_failures, 4);
        qn_schema_report_clear(&report);
        qn_schema_close(s);
        assert_int_equal(qn_mem_live_blocks(), blocks);
        if (status == QN_OK) return;
        assert_int_equal(status, QN_E_NOMEM);
    }
    fail();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_examples),
        cmocka_unit_test(test_failures_have_places),
        cmocka_unit_test(test_all_failures),
        cmocka_unit_test(test_validates_json),
        cmocka_unit_test(test_notes),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_references_without_end),
        cmocka_unit_test(test_steps_are_bounded),
        cmocka_unit_test(test_depth_and_size),
        cmocka_unit_test(test_hostile_patterns),
        cmocka_unit_test(test_runs_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

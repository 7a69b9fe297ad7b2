/* Lines, columns and JSON pointers of bytes of a text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "cli/constrain/text_place.h"

/* The place of the byte marked by '^' in text, which is taken out. */
static void expect(const char *marked, size_t line, size_t column, const char *pointer)
{
    char text[200];
    size_t offset = strcspn(marked, "^"), n = strlen(marked) - 1;
    qn_text_place p;
    memcpy(text, marked, offset);
    memcpy(text + offset, marked + offset + 1, n - offset);
    qn_text_place_find(text, n, offset, &p);
    if (p.line != line || p.column != column || strcmp(p.pointer.data ? p.pointer.data : "", pointer) != 0)
        fail_msg("%s: line %zu column %zu at \"%s\"", marked, p.line, p.column,
                 p.pointer.data ? p.pointer.data : "");
    qn_buf_free(&p.pointer);
}

static void test_places(void **state)
{
    (void)state;
    expect("^{\"a\": 1}", 1, 1, "");
    expect("{^\"a\": 1}", 1, 2, "");
    expect("{\"a\": ^1}", 1, 7, "/a");
    expect("{\"a\": 1^, \"b\": 2}", 1, 8, "/a");
    expect("{\"a\": 1, ^\"b\": 2}", 1, 10, "");
    expect("{\"a\": 1, \"b\": ^2}", 1, 15, "/b");
    expect("{\"a\": [1, ^2]}", 1, 11, "/a/1");
    expect("{\"a\": [^]}", 1, 8, "/a/0");
    expect("{\"a\": [1]^}", 1, 10, "/a");
    expect("{\"a\": {\"b/~\": [{}, {\"c\": ^", 1, 26, "/a/b~1~0/1/c");
    expect("[[1, 2], [3, [4, ^5]]]", 1, 18, "/1/1/1");
    expect("{\n  \"\xc3\xa9\": \"\xc3\xa9^", 2, 10, "/\xc3\xa9");
    expect("{\"a\": \"[{,\\\"\", \"b\": ^", 1, 21, "/b");
    expect("[1]^", 1, 4, "");
}

/* What is no JSON does no harm. */
static void test_any_text(void **state)
{
    static const char *const texts[] = {"]]]}", "\"\\", ",,,", "{{{\"a\":", "[\"a", "", "}\"a\":[,"};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (size_t at = 0; at <= strlen(texts[i]) + 1; at++) {
            qn_text_place p;
            qn_text_place_find(texts[i], strlen(texts[i]), at, &p);
            qn_buf_free(&p.pointer);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_places), cmocka_unit_test(test_any_text)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

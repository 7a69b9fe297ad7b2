/* A program that embeds the library may have set a locale with a decimal comma. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/c_locale.h"
#include "base/json/json.h"
#include "base/json/json_write.h"
#include "base/status.h"
#include "tests/support/scratch.h"
#include "text/jinja/template.h"

/* newlocale of glibc forgets the list that it makes of LOCPATH. Called by the sanitizer alone. */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:argz_add_sep\n";
}

/* A German locale of the test's own, since no system need have one. */
static int set_comma(const char *folder)
{
    const char *name = qn_test_path(folder, "de_DE.UTF-8");
    char *command[] = {"localedef", "-i", "de_DE", "-f", "UTF-8", (char *)name, NULL};
    pid_t child;
    int status = -1;
    if (posix_spawnp(&child, command[0], NULL, NULL, command, environ) == 0) waitpid(child, &status, 0);
    setenv("LOCPATH", folder, 1);
    locale_t german = status == 0 ? newlocale(LC_ALL_MASK, "de_DE.UTF-8", (locale_t)0) : (locale_t)0;
    if (german) uselocale(german);
    return german != (locale_t)0;
}

static void a_comma_stays_outside(void **state)
{
    (void)state;
    const char *folder = qn_test_scratch();
    int is_set = set_comma(folder);
    qn_test_remove(folder);
    if (!is_set) {
        print_message(
            "skipped: no localedef with the sources of locales (Debian: apt-get install locales)\n");
        skip();
    }
    char own[16], *end;
    snprintf(own, sizeof own, "%.1f", 0.5);
    assert_string_equal(own, "0,5"); /* the locale is in force */

    qn_buf b = {0};
    qn_json_open(&b, '{');
    qn_json_put_real(&b, "x", 0.25);
    qn_json_close(&b, '}');
    qn_buf_printf(&b, " %.17g", 1e-3);
    assert_int_equal(b.status, QN_OK);
    qn_buf_putc(&b, 0);
    assert_string_equal(b.data, "{\"x\":0.25} 0.001");
    qn_buf_free(&b);

    qn_fail(QN_E_ARG, "%g", 1.5);
    assert_string_equal(qn_last_error(), "1.5");
    qn_fail_prefix(QN_E_ARG, "%g", 2.5);
    assert_string_equal(qn_last_error(), "2.5: 1.5");
    assert_true(qn_parse_real("0.5x", &end) == 0.5);
    assert_string_equal(end, "x");

    qn_template *t;
    qn_render_options options = {0};
    qn_rendered text = {0};
    const char *source = "{{ 0.5 }} {{ '1.25' | float }} {{ 2.345 | round(2) }}";
    assert_int_equal(qn_template_parse("test", source, strlen(source), &t), QN_OK);
    json_t *context = json_object();
    assert_int_equal(qn_template_render(t, context, &options, &text), QN_OK);
    assert_string_equal(text.text, "0.5 1.25 2.35");
    json_decref(context);
    qn_rendered_free(&text);
    qn_template_free(t);

    snprintf(own, sizeof own, "%.1f", 0.5);
    assert_string_equal(own, "0,5"); /* and is still */
    freelocale(uselocale(LC_GLOBAL_LOCALE));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_comma_stays_outside)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

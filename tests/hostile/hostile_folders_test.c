/* Folders in which something else stands where a file of a model is expected: it is refused by its name,
 * never waited for, read without end or taken for absent. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/hostile/hostile.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/model_dir.h"
#include "tests/support/scratch.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

enum { FIFO, FOLDER, LINK_TO_NOTHING, LINK_TO_ITSELF, DEVICE, ENDLESS, N_KINDS };

static void make_odd(const char *path, int kind)
{
    FILE *f;
    switch (kind) {
    case FIFO:
        assert_int_equal(mkfifo(path, 0600), 0);
        break;
    case FOLDER:
        assert_int_equal(mkdir(path, 0700), 0);
        break;
    case LINK_TO_NOTHING:
        assert_int_equal(symlink("nothing", path), 0);
        break;
    case LINK_TO_ITSELF:
        assert_int_equal(symlink(path, path), 0);
        break;
    case DEVICE:
        assert_int_equal(symlink("/dev/zero", path), 0);
        break;
    case ENDLESS: /* a terabyte that takes no place */
        assert_non_null(f = fopen(path, "w"));
        assert_int_equal(ftruncate(fileno(f), (off_t)1 << 40), 0);
        fclose(f);
        break;
    }
}

static void test_no_files(void **state)
{
    static const char *const names[] = {"config.json", "generation_config.json", "tokenizer.json",
                                        "tokenizer_config.json", "chat_template.jinja"};
    static const char *const says[N_KINDS] = {
        "is not a regular file",     "is a directory, expected a file",
        "No such file or directory", "Too many levels of symbolic links",
        "is not a regular file",     "1099511627776 bytes, at most * are read"};
    for (size_t i = 0; i < COUNT(names); i++)
        for (int kind = 0; kind < N_KINDS; kind++) {
            char dir[QN_TEST_DIR_MAX], pattern[128];
            qn_test_opening o;
            qn_test_model_copy(qn_test_need_fixture("models/llama"), NULL, NULL, dir);
            const char *path = qn_test_path(dir, names[i]);
            unlink(path);
            make_odd(path, kind);
            qn_test_open(dir, "", &o);
            snprintf(pattern, sizeof pattern, "%s: %s", names[i], says[kind]);
            if (o.status == QN_OK || !qn_test_matches(pattern, o.message))
                fail_msg("%s, kind %d: %s: %s", names[i], kind, qn_status_name(o.status), o.message);
            remove(qn_test_path(dir, names[i]));
            qn_test_model_remove(dir);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Pictures of random sizes through the plans of every image processor: views, tiles, patches and tokens as
 * transformers has them (tools/image_sizes.py). QUERN_IMAGE_SIZES names another file than the golden one. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "model/vision/image_processor.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"

enum { PATH_BYTES = 512, COLUMNS = 6, CASES_MIN = 11 };

static void write_file(const char *dir, const char *name, const void *bytes, size_t n)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* The processor of a model that consists of nothing but this file and an empty one of weights. */
static qn_status read_processor(const json_t *preprocessor, const qn_image_tower *tower,
                                qn_image_processor *out)
{
    static const char *const files[] = {"preprocessor_config.json", "model.safetensors"};
    static const char weights[] = "\x02\0\0\0\0\0\0\0{}";
    char dir[PATH_BYTES / 2], path[PATH_BYTES];
    snprintf(dir, sizeof dir, "%s/quern-sizes-XXXXXX", P_tmpdir);
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/%s", dir, files[0]);
    assert_int_equal(json_dump_file(preprocessor, path, 0), 0);
    write_file(dir, files[1], weights, sizeof weights - 1);
    qn_source *src = NULL;
    qn_test_ok(qn_source_open(dir, NULL, &src));
    qn_status status = qn_image_processor_read(src, tower, NULL, out);
    qn_source_close(src);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        unlink(path);
    }
    rmdir(dir);
    return status;
}

static int64_t field(const json_t *object, const char *name)
{
    return json_integer_value(json_object_get(object, name));
}

/* want: width, height, views (0: the reference refuses it), rows, columns, tokens. */
static void check_row(const char *name, const qn_image_processor *p, const int64_t want[COLUMNS])
{
    qn_image_plan plan;
    const qn_status status = qn_image_plan_of(p, want[0], want[1], &plan);
    if (!want[2]) {
        if (status != QN_E_ARG) fail_msg("%s: %d x %d is taken", name, (int)want[0], (int)want[1]);
        return;
    }
    qn_test_ok(status);
    const int64_t n_views = qn_image_plan_views(&plan);
    const int64_t got[] = {n_views, n_views > 1 ? plan.tile_rows : plan.tile.rows,
                           n_views > 1 ? plan.tile_columns : plan.tile.columns, qn_image_plan_tokens(&plan)};
    if (memcmp(got, want + 2, sizeof got) != 0)
        fail_msg("%s: %d x %d: %d views, %d rows, %d columns, %d tokens, expected %d, %d, %d, %d", name,
                 (int)want[0], (int)want[1], (int)got[0], (int)got[1], (int)got[2], (int)got[3], (int)want[2],
                 (int)want[3], (int)want[4], (int)want[5]);
}

static void check_case(const json_t *c)
{
    const char *name = json_string_value(json_object_get(c, "model_type"));
    const qn_image_tower tower = {.model_type = name,
                                  .patch_size = field(c, "patch_size"),
                                  .merge_size = field(c, "merge_size"),
                                  .temporal_patch_size = field(c, "temporal_patch_size")};
    qn_image_processor p;
    qn_test_ok(read_processor(json_object_get(c, "preprocessor"), &tower, &p));
    const json_t *rows = json_object_get(c, "rows");
    assert_true(json_array_size(rows) > 0);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        int64_t want[COLUMNS];
        for (size_t k = 0; k < COLUMNS; k++)
            want[k] = json_integer_value(json_array_get(json_array_get(rows, i), k));
        check_row(name, &p, want);
    }
}

static void test_sizes(void **state)
{
    enum { BYTES_MAX = 1 << 22 };
    const char *path = getenv("QUERN_IMAGE_SIZES");
    if (!path) path = qn_test_need_fixture("images/sizes.json");
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    char *text = qn_alloc(BYTES_MAX);
    const size_t n = fread(text, 1, BYTES_MAX, f);
    fclose(f);
    json_t *cases = NULL;
    qn_test_ok(qn_json_parse("sizes.json", text, n, &cases));
    assert_true(json_array_size(cases) >= CASES_MIN);
    for (size_t i = 0; i < json_array_size(cases); i++) check_case(json_array_get(cases, i));
    json_decref(cases);
    qn_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sizes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

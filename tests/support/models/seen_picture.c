#include "tests/support/models/seen_picture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"

qn_test_picture qn_test_picture_open(qn_engine *e, const char *kind)
{
    qn_test_picture p = {0};
    char path[160];
    int64_t left = 1;
    snprintf(path, sizeof path, "models/%.60s/expected.safetensors", kind);
    qn_test_ok(qn_safetensors_open(qn_test_need_fixture(path), &p.st));
    const qn_tensor_view *rgb = qn_safetensors_find(p.st, "image.rgb"),
                         *ids = qn_test_tensor(p.st, "image.ids", 0);
    const qn_image image = {rgb->data, rgb->shape[1], rgb->shape[0], 0};
    p.ids = ids->data;
    p.n_ids = ids->n_elements;
    qn_test_ok(qn_images_new(qn_engine_config(e), 1, &image, p.ids, p.n_ids, 1 << 20, &p.im));
    while (left) qn_test_ok(qn_images_see(p.im, e, 0, &left));
    assert_int_equal(qn_images_prompt(p.im).n_ids, p.n_ids);
    assert_memory_equal(qn_images_prompt(p.im).ids, p.ids, (size_t)p.n_ids * sizeof *p.ids);
    return p;
}

void qn_test_picture_close(qn_test_picture *p)
{
    qn_images_free(p->im);
    qn_safetensors_close(p->st);
}

qn_sequence *qn_test_picture_sequence(qn_engine *e, const qn_test_picture *p)
{
    qn_sequence *s = qn_test_sequence(e);
    qn_sequence_set_images(s, p->im);
    return s;
}

#include "tests/support/picture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

void qn_test_media_file(const char *name, qn_buf *b)
{
    char path[256], bytes[4096];
    snprintf(path, sizeof path, "tests/golden/media/%s", name);
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s: cannot be read; tests run from the root of the repository", path);
    for (size_t n; (n = fread(bytes, 1, sizeof bytes, f)) > 0;) qn_buf_append(b, bytes, n);
    fclose(f);
    assert_int_equal(b->status, QN_OK);
}

qn_test_ppm qn_test_ppm_read(const char *name)
{
    qn_test_ppm p = {0};
    long long width, height;
    int head = 0;
    qn_test_media_file(name, &p.file);
    assert_int_equal(sscanf(p.file.data, "P6 %lld %lld 255%n", &width, &height, &head), 2);
    assert_int_equal((long long)p.file.length, head + 1 + width * height * 3);
    p.width = width;
    p.height = height;
    p.rgb = (uint8_t *)p.file.data + head + 1;
    return p;
}

void qn_test_ppm_free(qn_test_ppm *p)
{
    qn_buf_free(&p->file);
}

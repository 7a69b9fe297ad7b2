/* Bodies of parts as clients write them, and those that are refused. The fuzz target feeds them in pieces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
/* cmocka wants these before it */
#include <cmocka.h>

#include "base/buf.h"
#include "server/files/multipart.h"

static int begin(void *user, const qn_multipart_part *part)
{
    qn_buf_printf(user, "%s(%s)=", part->name, part->has_file_name ? part->file_name : "-");
    return 0;
}

static int data(void *user, const char *bytes, size_t n)
{
    qn_buf_append(user, bytes, n);
    return 0;
}

static int end(void *user)
{
    qn_buf_putc(user, ';');
    return 0;
}

static const qn_multipart_reader reader = {begin, data, end};

/* What was read, or why it was refused. */
static void check(const char *type, const char *body, const char *expected)
{
    /* Pieces of every size: a mark may lie across any edge. */
    for (size_t piece = 1; piece <= strlen(body) + 1; piece++) {
        qn_multipart m;
        qn_buf told = {0};
        size_t used = 0;
        int refused = qn_multipart_start(&m, type, &reader, &told);
        for (size_t n; !refused && used < strlen(body); used += n) {
            n = strlen(body) - used < piece ? strlen(body) - used : piece;
            refused = qn_multipart_feed(&m, body + used, n);
        }
        if (refused)
            assert_string_equal(m.why, expected);
        else
            assert_string_equal(qn_multipart_is_whole(&m) ? told.data : "it is not whole", expected);
        qn_buf_free(&told);
    }
}

#define TYPE "multipart/form-data; boundary=xy"
#define NAMED "--xy\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n"

static void test_bodies(void **state)
{
    (void)state;
    check(TYPE, NAMED "1\r\n--xy--\r\n", "a(-)=1;");
    check(TYPE, NAMED "\r\n--xy--", "a(-)=;");
    check("Multipart/Form-Data;charset=utf-8; BOUNDARY=\"xy\"", NAMED "1\r\n--xy--", "a(-)=1;");
    check(TYPE,
          NAMED "1\r\n--xy\r\ncontent-type: text/plain\r\ncontent-disposition: form-data;name=file;"
                "filename=\"a \\\"b\\\".txt\"\r\n\r\nline\r\nline\r\n\r\n--xy--\r\n",
          "a(-)=1;file(a \"b\".txt)=line\r\nline\r\n;");
    /* What is nearly a boundary is data. */
    check(TYPE, NAMED "\r\r\n-\r\n--x\r\n--x\r\r\n--y--xy\r\n--xy--",
          "a(-)=\r\r\n-\r\n--x\r\n--x\r\r\n--y--xy;");
}

static void test_refusals(void **state)
{
    (void)state;
    check("application/json", "", "the content type must be multipart/form-data");
    check("multipart/form-data", "", "the content type has no valid boundary");
    check("multipart/form-data; boundary=", "", "the parameters of the content type are malformed");
    check("multipart/form-data; boundary=a; boundary=b", "", "the content type has two boundaries");
    check("multipart/form-data; boundary=\"a\xff\"", "", "the content type has no valid boundary");
    check(TYPE, NAMED "1\r\n--xy", "it is not whole");
    check(TYPE, NAMED "1", "it is not whole");
    check(TYPE, "", "it is not whole");
    check(TYPE, "preamble", "the body does not begin with the boundary of its content type");
    check(TYPE, NAMED "1\r\n--xyz--", "a boundary is followed by something else than a line end");
    check(TYPE, NAMED "1\r\n--xy--\r\nmore", "the body goes on behind its last boundary");
    check(TYPE, "--xy\r\n\r\n1\r\n--xy--", "a part has no content disposition");
    check(TYPE, "--xy\r\nContent-Disposition: form-data\r\n\r\n1\r\n--xy--", "a part has no name");
    check(TYPE, "--xy\r\nContent-Disposition: form-data; name=a; name=b\r\n\r\n1\r\n--xy--",
          "a part's content disposition has a name twice");
    check(TYPE, "--xy\r\nContent-Disposition: form-data; name=\"a\r\n\r\n1\r\n--xy--",
          "a part's content disposition is malformed, or a name in it is too long");
    check(TYPE, "--xy\r\nContent-Disposition: file; name=a\r\n\r\n1\r\n--xy--",
          "a part's content disposition is not form-data");
    check(TYPE, "--xy\r\nContent-Disposition: form-data; name=a\n\n1\r\n--xy--",
          "a header of a part does not end with CR LF");
    check(TYPE, "--xy\r\nContent-Disposition: form-data; name=a\r\n folded\r\n\r\n1\r\n--xy--",
          "a header of a part is malformed");
    check(TYPE,
          "--xy\r\nContent-Disposition: form-data; name=a\r\nContent-Transfer-Encoding: "
          "base64\r\n\r\n1\r\n--xy--",
          "a part's content transfer encoding is not supported: send it as it is");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bodies), cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

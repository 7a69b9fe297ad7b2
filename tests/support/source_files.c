#include "tests/support/source_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "tests/support/fixtures.h"
#include "tests/support/scratch.h"

const char *const qn_test_a_b[] = {"a", "b", NULL}, *const qn_test_b_c[] = {"b", "c", NULL},
                  *const qn_test_c_d[] = {"c", "d", NULL};

void qn_test_write_shard(const char *folder, const char *name, uint8_t first, const char *const *tensors)
{
    qn_st_writer *w;
    assert_int_equal(qn_st_writer_new(qn_test_path(folder, name), &w), QN_OK);
    for (int i = 0; tensors[i]; i++)
        assert_int_equal(qn_st_writer_add(w, tensors[i], QN_DTYPE_U8, 1, (const int64_t[]){1}, NULL), QN_OK);
    assert_int_equal(qn_st_writer_begin(w), QN_OK);
    for (int i = 0; tensors[i]; i++, first++) assert_int_equal(qn_st_writer_write(w, i, 0, &first, 1), QN_OK);
    assert_int_equal(qn_st_writer_finish(w), QN_OK);
    qn_st_writer_free(w);
}

static void put_key(qn_buf *b, const char *key, uint32_t type, const void *value, size_t n)
{
    const uint64_t length = strlen(key);
    qn_buf_append(b, &length, 8);
    qn_buf_puts(b, key);
    qn_buf_append(b, &type, 4);
    qn_buf_append(b, value, n);
}

static void begin_gguf(qn_buf *b, uint64_t n_keys)
{
    const uint64_t counts[2] = {1, n_keys};
    const uint32_t version = 3;
    qn_buf_puts(b, "GGUF");
    qn_buf_append(b, &version, 4);
    qn_buf_append(b, counts, 16);
}

static void end_gguf(qn_buf *b, const char *tensor, float value, const char *folder, const char *name)
{
    const uint64_t length = strlen(tensor), dims = 1, offset = 0;
    const uint32_t n_dims = 1, type = 0;
    qn_buf_append(b, &length, 8);
    qn_buf_puts(b, tensor);
    qn_buf_append(b, &n_dims, 4);
    qn_buf_append(b, &dims, 8);
    qn_buf_append(b, &type, 4);
    qn_buf_append(b, &offset, 8);
    while (b->length % 32) qn_buf_putc(b, 0);
    qn_buf_append(b, &value, 4);
    qn_test_write(folder, name, b->data, b->length);
    qn_buf_free(b);
}

void qn_test_write_gguf(const char *folder, const char *name, const char *tensor)
{
    qn_buf b = {0};
    begin_gguf(&b, 0);
    end_gguf(&b, tensor, 1, folder, name);
}

void qn_test_write_part(const char *folder, const char *name, uint16_t part, uint16_t n_parts,
                        int32_t n_tensors, const char *tensor)
{
    qn_buf b = {0};
    begin_gguf(&b, 3);
    put_key(&b, "split.no", QN_GGUF_U16, &part, 2);
    put_key(&b, "split.count", QN_GGUF_U16, &n_parts, 2);
    put_key(&b, "split.tensors.count", QN_GGUF_I32, &n_tensors, 4);
    end_gguf(&b, tensor, (float)part, folder, name);
}

qn_source *qn_test_open_source(const char *path, const qn_source_options *options)
{
    qn_source *s = NULL;
    if (qn_source_open(path, options, &s) != QN_OK) fail_msg("%s", qn_last_error());
    return s;
}

void qn_test_refused_source(const char *path, const qn_source_options *options, qn_status status,
                            const char *const *parts)
{
    qn_source *s = NULL;
    qn_status got = qn_source_open(path, options, &s);
    if (got != status || s) fail_msg("%s: status %s: %s", path, qn_status_name(got), qn_last_error());
    for (; *parts; parts++)
        if (!strstr(qn_last_error(), *parts)) fail_msg("\"%s\" does not say \"%s\"", qn_last_error(), *parts);
}

int qn_test_byte_of(const qn_source *s, const char *tensor)
{
    const qn_tensor_view *v = qn_source_find(s, tensor);
    return v ? *(const uint8_t *)v->data : -1;
}

#include "cli/term/input.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/json/json.h"
#include "base/mem.h"

enum { INPUT_BYTES_MAX = 1 << 30, READ_BYTES = 1 << 16 };

/* How messages call it. */
static const char *get_name(const char *path)
{
    return !path || strcmp(path, "-") == 0 ? "standard input" : path;
}

qn_status qn_input_read_up_to(const char *path, size_t limit_bytes, qn_buf *out)
{
    const char *name = get_name(path);
    int is_stdin = name != path;
    FILE *f = is_stdin ? stdin : fopen(path, "rb");
    if (!f) return qn_fail(QN_E_IO, "%s: %s", name, strerror(errno));
    qn_status status = QN_OK;
    out->limit_bytes = limit_bytes;
    for (;;) {
        qn_buf_reserve(out, READ_BYTES);
        if (out->status != QN_OK) {
            status = qn_fail_prefix(out->status, "%s", name);
            break;
        }
        size_t n = fread(out->data + out->length, 1, READ_BYTES, f);
        out->length += n;
        out->data[out->length] = 0;
        if (n < READ_BYTES) {
            if (ferror(f)) status = qn_fail(QN_E_IO, "%s: %s", name, strerror(errno));
            break;
        }
    }
    if (!is_stdin) fclose(f);
    return status;
}

/* Editors and PowerShell put a byte order mark before a text; it is no part of it. */
static void drop_mark(qn_buf *b)
{
    if (b->length < 3 || memcmp(b->data, "\xef\xbb\xbf", 3) != 0) return;
    memmove(b->data, b->data + 3, b->length - 2);
    b->length -= 3;
}

qn_status qn_input_read_exactly(const char *path, qn_buf *out)
{
    return qn_input_read_up_to(path, INPUT_BYTES_MAX, out);
}

qn_status qn_input_read(const char *path, qn_buf *out)
{
    const size_t before = out->length;
    QN_TRY(qn_input_read_exactly(path, out));
    if (!before) drop_mark(out);
    return QN_OK;
}

qn_status qn_input_picture(const char *path, qn_picture *out)
{
    qn_buf file = {0};
    if (!path[0]) return qn_fail(QN_E_ARG, "the name of an image file is empty");
    if (strncmp(path, "data:", 5) == 0 || strstr(path, "://"))
        return qn_fail(QN_E_ARG, "%.60s%s: this is an address, not an image file; quern downloads nothing",
                       path, strlen(path) > 60 ? "..." : "");
    /* One byte too many, so that the decoder says how many there may be. */
    qn_status status = qn_input_read_up_to(path, qn_picture_max_bytes(NULL) + READ_BYTES, &file);
    if (status == QN_E_FULL)
        status = qn_fail(status, "%s: the image file is larger than the limit of %zu bytes", get_name(path),
                         qn_picture_max_bytes(NULL));
    if (status == QN_OK) {
        status = qn_picture_decode(file.data, file.length, NULL, out);
        if (status != QN_OK) status = qn_fail_prefix(status, "%s", get_name(path));
    }
    qn_buf_free(&file);
    return status;
}

qn_status qn_input_json(const char *path, json_t **out)
{
    qn_buf text = {0};
    qn_status status = qn_input_read(path, &text);
    if (status == QN_OK) status = qn_json_parse_exact(get_name(path), text.data, text.length, out);
    qn_buf_free(&text);
    return status;
}

static qn_status read_row(const char *path, int64_t i_row, const json_t *row, int32_t *to)
{
    size_t n = json_array_size(row);
    if (!json_is_array(row))
        return qn_fail(QN_E_FORMAT, "%s: row %lld of \"ids\" is not a list of token ids", path,
                       (long long)i_row);
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(row, i);
        json_int_t value = json_integer_value(id);
        if (!json_is_integer(id) || value < 0 || value > INT32_MAX)
            return qn_fail(QN_E_FORMAT, "%s: element %zu of row %lld is not a token id", path, i,
                           (long long)i_row);
        to[i] = (int32_t)value;
    }
    return QN_OK;
}

static qn_status fill_rows(const char *path, const json_t *ids, qn_id_rows *out)
{
    int single = json_array_size(ids) == 0 || !json_is_array(json_array_get(ids, 0));
    size_t n_rows = single ? 1 : json_array_size(ids), total = 0, at = 0;
    if (!json_is_array(ids))
        return qn_fail(QN_E_FORMAT, "%s: \"ids\" is not a list of rows of token ids", path);
    for (size_t i = 0; i < n_rows; i++) total += json_array_size(single ? ids : json_array_get(ids, i));
    out->rows = qn_alloc_array(n_rows, sizeof *out->rows);
    out->ids = qn_alloc_array(total, sizeof *out->ids);
    if (!out->rows || !out->ids) return QN_E_NOMEM;
    out->n_rows = (int64_t)n_rows;
    for (size_t i = 0; i < n_rows; i++) {
        const json_t *row = single ? ids : json_array_get(ids, i);
        QN_TRY(read_row(path, (int64_t)i, row, out->ids + at));
        out->rows[i] = (qn_ids){out->ids + at, (int64_t)json_array_size(row)};
        at += json_array_size(row);
    }
    return QN_OK;
}

qn_status qn_input_ids(const char *path, qn_id_rows *out)
{
    json_t *json = NULL;
    qn_id_rows rows = {0};
    qn_status status = qn_input_json(path, &json);
    if (status == QN_OK) status = fill_rows(get_name(path), json_object_get(json, "ids"), &rows);
    json_decref(json);
    if (status == QN_OK)
        *out = rows;
    else
        qn_id_rows_free(&rows);
    return status;
}

void qn_id_rows_free(qn_id_rows *r)
{
    qn_free(r->rows);
    qn_free(r->ids);
    *r = (qn_id_rows){0};
}

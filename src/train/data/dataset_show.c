/* Batches as text for a terminal. */
#include <string.h>

#include "base/utf8.h"
#include "train/data/dataset.h"

static const char counted_on[] = "\x1b[32m", counted_off[] = "\x1b[0m", dim_on[] = "\x1b[2m";
static const char mark_on[] = "\xe2\x9f\xa6", mark_off[] = "\xe2\x9f\xa7"; /* white square brackets */

/* Text whose control characters are written as what they are: a newline stays one. */
static void put_visible(qn_buf *out, const char *text, size_t n)
{
    for (size_t i = 0, used; i < n; i += used) {
        uint32_t cp;
        used = qn_utf8_decode(text + i, n - i, &cp);
        if (!used) {
            qn_buf_puts(out, "\xef\xbf\xbd");
            used = 1;
        } else if (cp != '\n' && cp != '\t' && (cp < 0x20 || (cp >= 0x7f && cp < 0xa0))) {
            qn_buf_printf(out, "\\x%02x", (unsigned)cp);
        } else {
            qn_buf_append(out, text + i, used);
        }
    }
}

/* The text that a token (NULL: the end) makes certain. */
static qn_status put_token(qn_token_stream *stream, const int32_t *id, qn_buf *out)
{
    qn_buf text = {0};
    qn_status status = id ? qn_token_stream_push(stream, *id, &text) : qn_token_stream_finish(stream, &text);
    if (status == QN_OK) status = text.status;
    if (status == QN_OK && text.length) put_visible(out, text.data, text.length);
    qn_buf_free(&text);
    return status;
}

/* Sequence s of a batch; *i_target: its first target, then the next sequence's. */
static qn_status show_sequence(qn_token_stream *stream, const qn_train_batch *b, int64_t s, int64_t *i_target,
                               int colours, qn_buf *out)
{
    const int32_t begin = b->row_begin[s], end = b->row_begin[s + 1];
    int was_counted = 0;
    qn_status status = QN_OK;
    for (int32_t row = begin; row <= end && status == QN_OK; row++) { /* the token that row - 1 predicts */
        int counted = row > begin && *i_target < b->n_targets && b->rows[*i_target] == row - 1;
        if (row == end && !counted) break; /* no row holds it, and no target */
        const int32_t id = row == end ? b->targets[*i_target] : b->ids[row];
        *i_target += counted;
        if (counted != was_counted) {
            if (counted)
                qn_buf_puts(out, colours ? counted_on : mark_on);
            else
                qn_buf_puts(out, colours ? counted_off : mark_off);
        }
        was_counted = counted;
        status = put_token(stream, &id, out);
    }
    if (status == QN_OK) status = put_token(stream, NULL, out);
    if (was_counted) qn_buf_puts(out, colours ? counted_off : mark_off);
    qn_buf_putc(out, '\n');
    return status;
}

static int64_t count_targets(const qn_train_batch *b, int64_t s, int64_t from)
{
    int64_t n = 0;
    while (from + n < b->n_targets && b->rows[from + n] < b->row_begin[s + 1]) n++;
    return n;
}

qn_status qn_dataset_show(const qn_tokenizer *t, const qn_train_batch *batch, const int64_t *lines,
                          int colours, qn_buf *out)
{
    qn_token_stream *stream = NULL;
    int64_t i_target = 0;
    QN_TRY(qn_token_stream_new(t, 0, &stream));
    qn_status status = QN_OK;
    for (int64_t s = 0; s < batch->n_sequences && status == QN_OK; s++) {
        const int64_t n_targets = count_targets(batch, s, i_target);
        if (colours) qn_buf_puts(out, dim_on);
        qn_buf_printf(out, "--- sequence %lld of %lld", (long long)s + 1, (long long)batch->n_sequences);
        if (lines) qn_buf_printf(out, ", line %lld", (long long)lines[s]);
        qn_buf_printf(out, ": %lld tokens, %lld count ---",
                      (long long)(batch->row_begin[s + 1] - batch->row_begin[s]) + 1, (long long)n_targets);
        qn_buf_puts(out, colours ? counted_off : "");
        qn_buf_putc(out, '\n');
        status = show_sequence(stream, batch, s, &i_target, colours, out);
    }
    qn_token_stream_free(stream);
    return status == QN_OK ? out->status : status;
}

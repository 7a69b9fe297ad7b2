#include "cli/chat/chat_input.h"

#include <stdint.h>
#include <string.h>

enum { MESSAGE_BYTES_MAX = 64 << 20 };

static const char quotes[] = "\"\"\"";
enum { N_QUOTES = sizeof quotes - 1 };

/* Bytes of the line before quotes at its end (blanks may follow them); SIZE_MAX: it has none there. */
static size_t find_end(const char *line, size_t n)
{
    while (n && (line[n - 1] == ' ' || line[n - 1] == '\t')) n--;
    return n >= N_QUOTES && memcmp(line + n - N_QUOTES, quotes, N_QUOTES) == 0 ? n - N_QUOTES : SIZE_MAX;
}

/* Reads on to the end of a block, whose first line is in text. */
static qn_status read_block(qn_line_reader *r, qn_buf *text, qn_line_event *event)
{
    qn_buf block = {.limit_bytes = MESSAGE_BYTES_MAX};
    qn_status status = QN_OK;
    const char *line = text->data + N_QUOTES;
    size_t n = text->length - N_QUOTES;
    int n_lines = 0, is_opening = 1;
    qn_buf_append(&block, "", 0);
    for (;;) {
        size_t end = find_end(line, n);
        int closes = end != SIZE_MAX;
        /* What stands beside the quotes is a line of the text only if it is there. */
        if (closes ? end > 0 : n > 0 || !is_opening) {
            if (n_lines++) qn_buf_putc(&block, '\n');
            qn_buf_append(&block, line, closes ? end : n);
        }
        status = block.status;
        if (status != QN_OK || closes) break;
        is_opening = 0;
        status = qn_line_next(r, "...", text, event);
        if (status == QN_OK && *event == QN_LINE_END)
            status = qn_fail(QN_E_FORMAT, "the input ends inside a block: no %s closes it", quotes);
        if (status != QN_OK || *event != QN_LINE_TEXT) goto out;
        line = text->data;
        n = text->length;
    }
    qn_buf_reset(text);
    qn_buf_append(text, block.data, block.length);
    if (status == QN_OK) status = text->status;
out:
    qn_buf_free(&block);
    return status;
}

qn_status qn_chat_input_next(qn_line_reader *r, const char *prompt, qn_buf *text, int *is_block,
                             qn_line_event *event)
{
    QN_TRY(qn_line_next(r, prompt, text, event));
    *is_block =
        *event == QN_LINE_TEXT && text->length >= N_QUOTES && memcmp(text->data, quotes, N_QUOTES) == 0;
    return *is_block ? read_block(r, text, event) : QN_OK;
}

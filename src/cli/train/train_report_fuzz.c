/* Fuzz target: a log's lines, and the page that is made of them. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "cli/train/train_report.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const qn_train_report_about about = {{.model_path = "model", .data_path = "data"}, {.n_steps = 10}};
    const char *at = (const char *)data, *end = at + size;
    qn_train_log log = {0};
    qn_buf page = {0};
    qn_status status = QN_OK;
    while (status == QN_OK && at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at)), *stop = newline ? newline : end;
        status = qn_train_log_take(&log, at, (size_t)(stop - at));
        at = stop + 1;
    }
    qn_train_report_put(&page, &log, &about);
    qn_buf_free(&page);
    qn_train_log_free(&log);
    return 0;
}

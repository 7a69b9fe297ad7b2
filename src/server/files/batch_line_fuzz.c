/* Any bytes as a line of a batch: it is read or refused with a sentence, and what is written of it is one line of JSON. */
#include <stdlib.h>
#include <string.h>

#include "base/json/json.h"
#include "server/files/batch.h"

/* Is it JSON in one line, with this member? */
static void check(const qn_buf *text, const char *member)
{
    json_t *value = NULL;
    if (text->status != QN_OK || memchr(text->data, '\n', text->length)) abort();
    if (qn_json_parse("line", text->data, text->length, &value) != QN_OK) abort();
    if (member && !json_is_object(json_object_get(value, member))) abort();
    json_decref(value);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    qn_buf id = {0}, body = {0}, line = {0};
    qn_api_error error = {0};
    const int refused = qn_batch_read_line((const char *)bytes, n, "/v1/embeddings", &id, &body, &error);
    if (refused != error.status || (refused && (!error.message[0] || !error.code))) abort();
    if (refused) {
        qn_batch_write_failure("batch_1", 7, &id, error.code, error.message, &line);
        check(&line, "error");
    } else {
        check(&body, NULL);
        qn_batch_write_answer("batch_1", 7, &id, 200, "req_1", body.data, body.length, &line);
        check(&line, "response");
    }
    qn_buf_free(&id);
    qn_buf_free(&body);
    qn_buf_free(&line);
    return 0;
}

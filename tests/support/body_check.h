/* What the fuzz targets of bodies check, whatever the dialect: refusals are of the client's fault, in sentences
 * of valid UTF-8, and everything that is written is JSON. For fuzz targets alone; a failed check aborts. */
#ifndef QN_TESTS_SUPPORT_BODY_CHECK_H
#define QN_TESTS_SUPPORT_BODY_CHECK_H

#include <stdlib.h>
#include <string.h>

#include "base/json/json.h"
#include "base/utf8.h"
#include "server/core/request.h"

static inline void qn_check(int ok)
{
    if (!ok) abort();
}

static inline void qn_check_json(const qn_buf *text)
{
    json_t *value = NULL;
    qn_check(text->status == QN_OK && qn_json_parse("text", text->data, text->length, &value) == QN_OK);
    json_decref(value);
}

static inline void qn_check_value(const json_t *value)
{
    char *text = json_dumps(value, JSON_COMPACT);
    qn_buf copy = {0};
    qn_check(text != NULL);
    qn_buf_puts(&copy, text);
    qn_check_json(&copy);
    qn_buf_free(&copy);
    free(text); /* foreign: jansson's */
}

static inline void qn_check_error(int status, const qn_api_error *error,
                                  void (*write)(const qn_api_error *, const char *, int, qn_buf *))
{
    qn_buf text = {0};
    qn_check(status >= 400 && status < 500 && error->status == status && error->message[0]);
    qn_check(qn_utf8_valid_prefix(error->message, strlen(error->message)) == strlen(error->message));
    qn_check(qn_utf8_valid_prefix(error->param, strlen(error->param)) == strlen(error->param));
    write(error, "req_0", 0, &text);
    qn_check_json(&text);
    qn_buf_free(&text);
}

/* What was read is within its caps. */
static inline void qn_check_request(const qn_api_request *r)
{
    qn_buf list = {0};
    qn_check(r->o.n_stop_strings <= QN_REQUEST_STOP_MAX && r->o.max_tokens >= 0 && r->n == 1);
    qn_check(r->o.temperature >= 0 && r->o.top_p > 0 && r->o.top_p <= 1 && r->o.top_k >= 0);
    qn_check(!r->tools || json_array_size(r->tools) <= QN_REQUEST_TOOLS_MAX);
    if (r->tools) qn_check_value(r->tools);
    if (r->chat) qn_check_value(r->chat);
    if (!r->warnings.length) return;
    qn_buf_printf(&list, "[%s]", r->warnings.data);
    qn_check_json(&list);
    qn_buf_free(&list);
}

#endif

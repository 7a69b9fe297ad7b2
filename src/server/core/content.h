/* What a message says, while a dialect reads it: texts and pictures in their order.
 *
 * Chat templates take a text alone as a string. With a picture they take parts: {"type": "text", "text": ...} and
 * {"type": "image"}. The picture itself is decoded at once and belongs to the request; the n-th of them belongs to
 * the n-th place. Functions that return int return 0, or the HTTP status of a refusal. On a worker. */
#ifndef QN_SERVER_CORE_CONTENT_H
#define QN_SERVER_CORE_CONTENT_H

#include "base/buf.h"
#include "server/core/request.h"

/* Zeroed, it is empty. */
typedef struct {
    qn_buf text;    /* behind the last picture */
    json_t *parts;  /* owned; NULL: no picture yet */
    int n_texts;    /* in `text` */
    int has_failed; /* memory ran out */
} qn_content;

/* Appends a text; it begins a line if it follows another. */
void qn_content_add_text(qn_content *c, const char *text, size_t n);
/* Appends the picture that a data URL has. param names the field. Another URL is refused: nothing is fetched. */
int qn_content_add_url(qn_content *c, qn_api_request *r, const char *param, const json_t *url,
                       qn_api_error *error);
/* The same of base64 alone. */
int qn_content_add_base64(qn_content *c, qn_api_request *r, const char *param, const json_t *data,
                          qn_api_error *error);
/* A string or an array of parts, owned by the caller; NULL: memory ran out. *c is empty then. */
json_t *qn_content_take(qn_content *c);
void qn_content_free(qn_content *c);

/* Refuses a picture for a model that takes none; param names the field. */
int qn_content_refuse_picture(const char *param, qn_api_error *error);
void qn_content_free_pictures(qn_api_request *r);

#endif

/* Why a request fails: the status of HTTP, a code, the field at fault, a sentence. The API that was called
 * writes it in its form (routes.h). One thread at a time. */
#ifndef QN_SERVER_HTTP_API_ERROR_H
#define QN_SERVER_HTTP_API_ERROR_H

#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

typedef struct {
    int status;       /* of HTTP; 0: no error */
    const char *code; /* "unknown_parameter"; NULL: none. Static storage */
    char param[128];  /* the field at fault, "messages[2].role"; "" : none */
    char message[1024];
    const char *allow; /* 405: the methods that are. Static storage */
    int retry_after_s; /* 0: it does not help, or nobody knows */
    /* Of a prompt that is too long: its tokens, and those of the context. 0: another error. */
    int64_t n_prompt_tokens, n_ctx;
} qn_api_error;

/* Fills *e; returns the HTTP status. code and param may be NULL. */
int qn_api_fail(qn_api_error *e, int status, const char *code, const char *param, const char *fmt, ...)
    QN_PRINTF(5, 6);
/* The same from a failure of the library, with this thread's message. */
int qn_api_fail_status(qn_api_error *e, qn_status status);

#endif

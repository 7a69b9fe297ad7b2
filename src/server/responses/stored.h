/* Responses that are stored: with `--store` a response outlives its request, and another one may go on from it. */
#ifndef QN_SERVER_RESPONSES_STORED_H
#define QN_SERVER_RESPONSES_STORED_H

#include "server/core/completion.h"

/* Of the dialect: loads what came before the input (previous_response_id), and stores a response with its input. On a
 * worker. */
int qn_response_load_history(const qn_server *s, qn_api_request *r, qn_api_error *error);
qn_status qn_response_keep(const qn_completion *c);
/* A stored response is in progress, and nothing makes it any more: memory or the disk was out when it ended. It has failed.
 * On a worker. */
qn_status qn_response_mend(qn_archive *archive, const char *id, const char *owner);
/* When a server starts: responses that were being made when the last one ended have failed. */
qn_status qn_responses_mend(qn_archive *archive);

#endif

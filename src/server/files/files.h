/* OpenAI's files and batches: with `--store` bodies of requests are uploaded, computed in idle times, and their answers
 * downloaded. Errors have OpenAI's form. */
#ifndef QN_SERVER_FILES_FILES_H
#define QN_SERVER_FILES_FILES_H

#include "server/core/state.h"
#include "server/http/exchange.h"

extern const qn_route_table qn_files_routes;
extern const qn_body_sink qn_files_sink;

void qn_route_file_upload(qn_exchange *ex);
void qn_route_files(qn_exchange *ex);
void qn_route_file_get(qn_exchange *ex);
void qn_route_file_content(qn_exchange *ex);
void qn_route_file_delete(qn_exchange *ex);
void qn_route_batch_create(qn_exchange *ex);
void qn_route_batches(qn_exchange *ex);
void qn_route_batch_get(qn_exchange *ex);
void qn_route_batch_cancel(qn_exchange *ex);

/* Refuses with a sentence that names --store if nothing is stored. Returns 0, or the HTTP status. */
int qn_files_check_store(const qn_server *s, qn_api_error *error);
/* The same, and answers the exchange. */
int qn_files_refuse(qn_exchange *ex);
/* Appends a file as the API shows it. file_name is valid UTF-8. */
void qn_files_write_object(const qn_archive_options *o, const char *id, const char *file_name,
                           const char *purpose, int64_t bytes, int64_t created_s, qn_buf *out);
/* Appends a page of objects: {"object": "list", "data": ...}. Returns 0, or the HTTP status of a refusal. On a worker. */
int qn_files_write_list(const qn_exchange *ex, qn_stored_kind kind, const char *label, int64_t limit,
                        int64_t limit_max, qn_buf *out, qn_api_error *error);

#endif

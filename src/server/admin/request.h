/* Fields of the bodies of routes that change the server. */
#ifndef QN_SERVER_ADMIN_REQUEST_H
#define QN_SERVER_ADMIN_REQUEST_H

#include "server/core/fields/request_fields.h"
#include "server/core/tasks/task.h"

/* Routes, as the table of fields has them. */
enum {
    QN_ADMIN_LOAD = 1,
    QN_ADMIN_VLLM_LOAD = 2,
    QN_ADMIN_VLLM_UNLOAD = 4,
    QN_ADMIN_WARM = 8,
    QN_ADMIN_EXPLAIN = 16,
    QN_ADMIN_CACHE_FILE = 32,
};

/* Up to a row without a name. */
extern const qn_field qn_admin_fields[];

/* Reads the body of a task by the rows of its route. Returns 0, or the HTTP status of a refusal. */
int qn_admin_read(qn_task *t);
/* Refuses a body that lacks a field. Returns 400. */
int qn_admin_fail_missing(qn_task *t, const char *field);

#endif

/* Fields of the bodies of routes that change the server. */
#ifndef QN_SERVER_ADMIN_REQUEST_H
#define QN_SERVER_ADMIN_REQUEST_H

#include "server/core/fields/request_fields.h"

/* Routes, as the table of fields has them. */
enum { QN_ADMIN_LOAD = 1, QN_ADMIN_VLLM_LOAD = 2, QN_ADMIN_VLLM_UNLOAD = 4 };

/* Up to a row without a name. */
extern const qn_field qn_admin_fields[];

#endif

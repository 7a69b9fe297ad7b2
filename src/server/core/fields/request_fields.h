/* Bodies, read by a table of fields: each field works, within its range, or is refused by name, or is taken
 * and reported in `warnings`; a field that the table does not have is refused as well, or reported if the
 * server is lenient. Nothing is dropped.
 * Each dialect has its table. No sockets, no model. One thread at a time. */
#ifndef QN_SERVER_CORE_FIELDS_REQUEST_FIELDS_H
#define QN_SERVER_CORE_FIELDS_REQUEST_FIELDS_H

#include "server/core/request.h"

typedef enum {
    QN_FIELD_BOOL,     /* int */
    QN_FIELD_INT,      /* int64_t in [low, high] */
    QN_FIELD_REAL,     /* double in [low, high] */
    QN_FIELD_TEXT,     /* const char *, without NUL characters */
    QN_FIELD_JSON,     /* const json_t *, which its user checks */
    QN_FIELD_OWN,      /* read by the function `read` */
    QN_FIELD_REPORTED, /* taken without effect, and reported */
    QN_FIELD_REFUSED   /* refused, but for values that ask for nothing */
} qn_field_kind;

typedef int qn_field_fn(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                        qn_api_error *error);

typedef struct {
    const char *name;
    unsigned routes; /* bits of the dialect */
    qn_field_kind kind;
    size_t offset;
    double low, high;
    qn_field_fn *read;
    const char *harmless; /* REFUSED: a JSON array of the values that ask for nothing; NULL: null alone */
    const char *note;     /* REPORTED and REFUSED: a sentence */
} qn_field;

/* Reads text[0..n), a JSON object, by a table that ends with a row without a name; `route` says which of its
 * rows count. What the fields say together is the dialect's to check. Returns 0, or the HTTP status of a
 * refusal. qn_api_request_free is due in either case. */
int qn_api_request_read_fields(const char *text, size_t n, const qn_field *table, unsigned route,
                               const qn_api_request_limits *limits, qn_api_request *out, qn_api_error *error);
/* The same of the members of an object within the body, which `prefix` names ("options."): errors and warnings
 * name a member with it. */
int qn_api_request_read_members(const json_t *object, const char *prefix, const qn_field *table,
                                unsigned route, const qn_api_request_limits *limits, qn_api_request *out,
                                qn_api_error *error);

#endif

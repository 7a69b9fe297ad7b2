/* The table of request fields: request_fields_table.c lists them, request.c walks it. */
#ifndef QN_SERVER_REQUEST_FIELDS_H
#define QN_SERVER_REQUEST_FIELDS_H

#include "server/core/request.h"

typedef enum {
    QN_FIELD_BOOL,     /* int */
    QN_FIELD_INT,      /* int64_t in [low, high] */
    QN_FIELD_REAL,     /* double in [low, high] */
    QN_FIELD_TEXT,     /* const char *, without NUL characters */
    QN_FIELD_JSON,     /* const json_t *, to be looked at by who uses it */
    QN_FIELD_OWN,      /* read by a function of its own */
    QN_FIELD_REPORTED, /* taken without effect, and reported */
    QN_FIELD_REFUSED   /* refused, but for values that ask for nothing */
} qn_field_kind;

typedef int qn_field_fn(qn_request *r, const json_t *value, const qn_request_limits *limits,
                        qn_api_error *error);

typedef struct {
    const char *name;
    unsigned routes;
    qn_field_kind kind;
    size_t offset;
    double low, high;
    qn_field_fn *read;
    const char *harmless; /* REFUSED: a JSON array of the values that ask for nothing; NULL: null alone */
    const char *note;     /* REPORTED and REFUSED: a sentence */
} qn_field;

/* Up to a row without a name. */
extern const qn_field qn_request_fields[];

/* Readers of fields that are no plain values (request_values.c). */
qn_field_fn qn_field_read_max_tokens, qn_field_read_max_completion_tokens, qn_field_read_stop,
    qn_field_read_stop_ids, qn_field_read_logit_bias, qn_field_read_seed, qn_field_read_stream_options,
    qn_field_read_ping, qn_field_read_tools, qn_field_read_tool_choice, qn_field_read_parallel_calls,
    qn_field_read_completion_logprobs, qn_field_read_template_kwargs, qn_field_read_effort,
    qn_field_read_reasoning_format, qn_field_read_encoding;

#endif

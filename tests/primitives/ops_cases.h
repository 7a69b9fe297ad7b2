/* The functions of fixtures/ops/autograd.json, by the public operations. */
#ifndef QUERN_TESTS_OPS_CASES_H
#define QUERN_TESTS_OPS_CASES_H

#include <jansson.h>

#include "array/array.h"
#include "format/safetensors/safetensors.h"

typedef struct {
    qn_scope *scope;
    const char *name;
    json_t *attributes;
    const qn_safetensors *tensors;
    qn_array *in[4];
} qn_op_case;

/* The result; its shape may differ from the file's by dimensions of size 1. */
typedef qn_array *qn_op_build(qn_op_case *c);

typedef struct {
    const char *name;
    qn_op_build *build;
    qn_array *(*unary)(qn_scope *s, qn_array *a); /* when build is NULL: one of these */
    qn_array *(*binary)(qn_scope *s, qn_array *a, qn_array *b);
    qn_op_build *fused; /* a second statement, by one primitive that has no tangent; NULL: none */
} qn_op_entry;

/* NULL: no entry of this name. */
const qn_op_entry *qn_op_find(const char *name);
/* A tensor of the file as a constant. */
qn_array *qn_op_tensor(qn_op_case *c, const char *name);

#endif

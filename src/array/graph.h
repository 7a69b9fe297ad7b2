/* The insides of an array, for the files of array/ only. */
#ifndef QN_ARRAY_GRAPH_H
#define QN_ARRAY_GRAPH_H

#include "array/array.h"
#include "base/arena.h"

struct qn_array {
    atomic_int references;
    qn_dtype dtype;
    qn_shape shape;
    qn_prim prim;
    qn_params params;
    int n_in;
    qn_array *in[QN_MAX_INPUTS]; /* each holds a reference */
    qn_buffer *buffer;           /* DATA */
    int input;                   /* INPUT: its number */
    uint64_t id;         /* rises with every array of the process: an order in which inputs come first */
    char *label;         /* owned; NULL: none */
    uint64_t checkpoint; /* id of the array behind which the piece begins, see qn_checkpoint; 0: none */
    qn_array *next;      /* chain of arrays that are being freed */
    int64_t mark;        /* scratch of one pass over the graph */
};

struct qn_scope {
    qn_device *device;
    qn_precision precision;
    qn_status status;
    char message[QN_ERROR_TEXT_MAX];
    qn_array **owned;
    int64_t n_owned, capacity;
    int n_inputs;
    char prefix[64];
};

/* Keeps the first error: copies this thread's message. Returns NULL, for builders to return. */
qn_array *qn_scope_fail(qn_scope *s, qn_status status);

#endif

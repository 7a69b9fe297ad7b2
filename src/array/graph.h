/* The insides of an array, for the files of array/ only. */
#ifndef QN_ARRAY_GRAPH_H
#define QN_ARRAY_GRAPH_H

#include "array/array.h"
#include "base/arena.h"

typedef struct qn_job qn_job;
typedef struct qn_worker qn_worker;

/* Who gives the gradient of an array in place of what it was made of, see qn_custom_gradient. */
typedef struct {
    qn_gradient_function *gradient;
    void *user;
    int n_in;
    qn_array **in; /* each holds a reference */
} qn_custom;

/* Arrays that were made one after the other lie in one block, which goes when all of them went. */
typedef struct qn_slab qn_slab;

/* What every pass looks at comes first. */
struct qn_array {
    uint64_t id;  /* rises with every array of the process: an order in which inputs come first */
    int64_t mark; /* scratch of one pass over the graph */
    atomic_int references;
    qn_prim prim;
    qn_dtype dtype;
    int n_in;
    qn_array *in[QN_MAX_INPUTS]; /* each holds a reference */
    qn_shape shape;
    qn_params params;
    qn_buffer *buffer;   /* DATA */
    int input;           /* INPUT: its number */
    int stops;           /* no gradient goes through it, as if it were data */
    int weak;            /* a number that takes the type of what it meets, see qn_promote */
    char *label;         /* owned; NULL: none */
    uint64_t checkpoint; /* id of the array behind which the piece begins, see qn_checkpoint_from; 0: none */
    qn_job *job;         /* DATA that is being computed, or failed to be; NULL: it is there */
    qn_custom *custom;   /* owned; NULL: none */
    qn_array *next;      /* chain of arrays that are being freed */
    qn_slab *slab;       /* where it lies */
};

#ifdef QN_EVERY_BLOCK
enum { QN_SLAB_ARRAYS = 1 };
#else
enum { QN_SLAB_ARRAYS = 16 };
#endif
struct qn_slab {
    atomic_int left; /* arrays that live or are still to be made */
    int n;           /* made */
    qn_array array[QN_SLAB_ARRAYS];
};

struct qn_scope {
    qn_device *device;
    int holds_device; /* closes it too */
    qn_precision precision;
    qn_status status;
    char message[QN_ERROR_TEXT_MAX];
    qn_array **owned;
    int64_t n_owned, capacity;
    qn_slab *slab; /* where the next array is made; NULL: a new one is needed */
    char **texts;  /* of qn_array_text */
    int64_t n_texts, texts_capacity;
    int n_inputs;
    int traced;        /* what is built here is compiled: its inputs have no values yet */
    qn_worker *worker; /* NULL: none was needed yet */
    char prefix[64];
};

/* An array of the scope, all zero but for its id. */
qn_array *qn_array_new(qn_scope *s);
/* No more arrays are made in the scope's slab. */
void qn_slab_leave(qn_scope *s);
/* The id of the last array that was made: what is made from here on is younger. */
uint64_t qn_array_youngest(void);
/* Inputs first. */
qn_status qn_sort_by_id(qn_array **list, int64_t n);
/* Room for n_dims dims of so many bytes an element; fails in the scope and returns 0 where they are no shape
 * or too large. */
int qn_check_shape(qn_scope *s, const char *what, qn_dtype dtype, int n_dims, const int64_t *dims,
                   qn_shape *shape, size_t *size_bytes);
/* A plain array of this shape whose memory the caller fills through *data. */
qn_array *qn_array_alloc(qn_scope *s, const char *what, qn_dtype dtype, int n_dims, const int64_t *dims,
                         void **data);

/* a in another handle: the same elements, computed once. */
qn_array *qn_alias(qn_scope *s, qn_array *a);
/* A weak number in another type, at once. */
qn_array *qn_restated(qn_scope *s, const qn_array *a, qn_dtype dtype);
/* 1: elements are numbers of a plain type in memory as they are, not a packed weight. */
int qn_is_plain(const qn_array *a);
/* types.c: puts casts before the inputs of a primitive that are not of a type that it is computed in. *back:
 * the type that a result of the type of computing is to be cast to; QN_DTYPE_COUNT: none. 0: failed. */
int qn_fit_types(qn_scope *s, qn_prim prim, int n_in, qn_array **in, qn_dtype *back);
/* 1: computes f32, and f64 by its fallback if it has one. */
int qn_is_f32_alone(qn_prim prim);

/* Keeps the first error: copies this thread's message. Returns NULL, for builders to return. */
qn_array *qn_scope_fail(qn_scope *s, qn_status status);

#endif

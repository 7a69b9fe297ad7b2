/* A compiled plan, for the files that run it: program.c, and operands.c. By the owner's thread. */
#ifndef QN_DEVICE_MLX_PROGRAM_PARTS_H
#define QN_DEVICE_MLX_PROGRAM_PARTS_H

#include "device/mlx/mlx.h"

typedef struct {
    qn_exec base;
    qn_plan plan;       /* arrays in it are the program's, which outlives this */
    int *last;          /* [n_slots] the last step that reads or writes it, -1: none */
    qn_mlx_memo **memo; /* [n_steps] */
    char *shown;        /* [n_steps] the probe wants it */
    int n_states;
    qn_mlx_state **states;        /* [n_states], each once */
    qn_mlx_device_state **owners; /* [n_states], of them */
    qn_mlx_array **slots;         /* [n_slots], of the run */
    qn_mlx_array **held;          /* of the run: what was handed over without a copy, until all is computed */
    int n_held, held_capacity;
    int borrows;         /* the run handed over memory that is the host's */
    int is_pending;      /* started, and neither finished nor discarded */
    qn_mlx_array *guess; /* i32 [n], with it: what it has as an input; NULL: nothing */
    qn_dtype narrow;     /* of activations: F32, F16 or BF16 */
    int keeps_constants; /* as arrays, since each use of the host's bytes would be a copy */
    uint64_t run;
    qn_probe_fn *probe;
    void *probe_user;
    qn_sizes sizes;
} qn_mlx_exec;

qn_mlx *qn_mlx_device_of(const qn_mlx_exec *e);
size_t qn_mlx_element_bytes(qn_dtype dtype);
/* Of this run: dims [shape->n]. */
void qn_mlx_dims_of(const qn_mlx_exec *e, const qn_shape *shape, int64_t *dims);
/* NULL: the operand is no weight of the device. */
qn_mlx_weight *qn_mlx_weight_of(const qn_mlx_exec *e, const qn_operand *o);
/* The numbers of input k of a step, if only the host needs them, and how many there are; NULL: they are wanted as an
 * array. */
const int32_t *qn_mlx_numbers_of(qn_mlx_exec *e, const qn_plan_step *s, int k, int64_t *n);
/* The step's inputs that are neither weights nor numbers, in[s->n_in]. A constant beside rows of 16 bits has 16 bits
 * too. owned[k] 1: in[k] is the caller's to free; also when the call fails. */
qn_status qn_mlx_operands(qn_mlx_exec *e, const qn_plan_step *s, const qn_mlx_step *step, qn_mlx_array **in,
                          int *owned);

#endif

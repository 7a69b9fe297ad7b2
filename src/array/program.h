/* Programs: a graph compiled once for a device and replayed with other inputs and other R, S, L.
 * A program owns its inputs' and outputs' memory and its scratch, all sized for the maxima: a run allocates
 * nothing. */
#ifndef QN_ARRAY_PROGRAM_H
#define QN_ARRAY_PROGRAM_H

#include "array/array.h"

typedef struct qn_program qn_program;

typedef struct {
    const char *name; /* for traces */
    qn_sizes max;     /* the largest R, S, L */
    qn_precision precision;
    /* 1: a model's forward pass. A device may then hold what is f32 here in 16 bits between steps, unless precision
     * is exact; inputs and outputs are f32 for the host. */
    int narrow;
} qn_program_options;

/* Compiles what the outputs need. Inputs are those made by qn_input in this scope. The scope may be freed
 * afterwards. */
qn_status qn_program_new(qn_scope *s, const qn_program_options *options, int n_outputs,
                         qn_array *const *outputs, qn_program **out);
void qn_program_free(qn_program *p);
/* Where the caller writes input i before a run; NULL when the outputs do not depend on it. */
void *qn_program_input(qn_program *p, int i);
/* Where output i stands after a run. NULL: the device could not bring it to the host (message). */
const void *qn_program_output(const qn_program *p, int i);
/* The same with a status. */
qn_status qn_program_read(const qn_program *p, int i, const void **out);
/* Output i as a buffer for another program's qn_from_buffer. */
qn_buffer *qn_program_output_buffer(const qn_program *p, int i);
/* QN_E_ARG when sizes pass the maxima. */
qn_status qn_program_run(qn_program *p, const qn_sizes *sizes);
/* Asynchronous runs: qn_async_ops in device.h says what they do. may_start 0: the device has none, or gains
 * nothing by them; start and finish are not called then. If `after` is not NULL, the largest numbers of its
 * first output become input i. */
int qn_program_may_start(const qn_program *p);
qn_status qn_program_start(qn_program *p, const qn_sizes *sizes, const qn_program *after, int i);
qn_status qn_program_finish(qn_program *p, int64_t n, const int32_t *ids, int *as_guessed);
void qn_program_discard(qn_program *p);
/* wants NULL: every step is shown. */
void qn_program_set_probe(qn_program *p, qn_probe_fn *probe, qn_probe_wants_fn *wants, void *user);
/* Bytes of scratch, inputs and outputs. */
size_t qn_program_bytes(const qn_program *p);
int qn_program_steps(const qn_program *p);
/* 1: the outputs depend on inputs of the scope. */
int qn_program_has_inputs(const qn_program *p);

#endif

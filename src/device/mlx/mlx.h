/* The MLX device, inside: a qn_plan is computed by MLX, step by step as lazy arrays. Buffers are the host's
 * memory, as MLX's own is on an Apple chip. Beside it a buffer may have a face: an array that a run left there,
 * which another run reads as it is, and which the host gets when it asks (faces.c). Weights and state are MLX's
 * arrays. All calls of MLX are made by one thread (owner.c). */
#ifndef QN_DEVICE_MLX_MLX_H
#define QN_DEVICE_MLX_MLX_H

#include <pthread.h>

#include "base/threads.h"
#include "device/device.h"
#include "device/mlx/shim.h"

/* load.c: the library, opened once a process. QN_E_UNSUPPORTED says what is missing and how to get it. */
qn_status qn_mlx_load(const qn_mlx_shim **out);

/* owner.c: the thread that calls MLX, one a process while there are devices. */
typedef struct qn_mlx_owner qn_mlx_owner;
qn_status qn_mlx_owner_new(const qn_mlx_shim *shim, qn_mlx_owner **out);
void qn_mlx_owner_free(qn_mlx_owner *o);
/* Runs fn(arg) on the owner's thread and returns what it returns, with its sentence. */
qn_status qn_mlx_call(qn_mlx_owner *o, qn_status (*fn)(void *arg), void *arg);
/* What nobody waits for: run(arg) in its turn. The job's memory stays where it is until then; posted again
 * before its turn it runs once. Takes no other lock than the owner's. */
typedef struct qn_mlx_job {
    void (*run)(void *arg);
    void *arg;
    int is_posted;
    struct qn_mlx_job *next;
} qn_mlx_job;
void qn_mlx_post(qn_mlx_owner *o, qn_mlx_job *j);

/* Weights of one type that became one kind. */
enum { QN_MLX_KINDS = QN_MLX_NVFP4 + 1 };
typedef struct {
    int64_t n;
    size_t file_bytes, size_bytes;
} qn_mlx_tally;

typedef struct {
    qn_device base;
    const qn_mlx_shim *shim;
    qn_mlx_owner *owner;
    qn_pool *pool; /* for for_each */
    qn_mlx_tally tally[QN_DTYPE_COUNT][QN_MLX_KINDS];
    char note[1024];
} qn_mlx;

/* 1: programs that may are computed in 16 bits: on a GPU, or where QUERN_MLX_HALF asks for it. *type: which,
 * F16 or BF16; F32 if it is the model's own. */
int qn_mlx_is_narrow(const qn_mlx *d, qn_dtype *type);
/* A status of the shim with its sentence. By the owner's thread. */
qn_status qn_mlx_check(const qn_mlx_shim *shim, qn_status status);
/* What may still be taken by the ledger, and by the machine. */
size_t qn_mlx_room(const qn_mlx *d);

/* Layouts of buffers: PLAIN is the host's memory, WEIGHT has a qn_mlx_weight * for its data. */
enum { QN_MLX_LAYOUT_PLAIN = 0, QN_MLX_LAYOUT_WEIGHT = 1 };

/* memory.c: the limit of a ledger that has none becomes what the GPU recommends: MLX does not survive an
 * allocation that fails, so that what a request needs beyond it must be refused before. */
void qn_mlx_limit_by_default(qn_ledger *ledger, const qn_mlx_about *about);
/* memory.c: buffers, and MLX's cache of freed memory, which is the process's. */
size_t qn_mlx_cache_bytes(qn_device *d);
void qn_mlx_set_cache_limit(qn_device *d, size_t limit_bytes);
void qn_mlx_clear_cache(qn_device *d);
qn_status qn_mlx_wire(qn_device *d, size_t limit_bytes, size_t *wired_bytes);
/* Gives the cache back where it and what the ledger holds pass the limit. By the owner's thread. */
void qn_mlx_keep_limit(const qn_mlx *d);
void qn_mlx_free(qn_device *d, qn_buffer *b);

/* faces.c: what MLX has of a plain buffer, in b->mirror. */
typedef struct {
    qn_mlx_array *array; /* what the last run left, or all that the host last wrote; NULL: neither is known */
    qn_mlx_array *narrow; /* of a constant f32: the same in 16 bits, of that type; NULL: not needed so far */
    qn_dtype dtype, narrow_type;
    size_t valid_bytes; /* that a run left, as dtype; 0: no run did */
    int is_newer;       /* than the host's bytes */
    int is_kept;        /* the host reads and writes it between any runs */
    int is_wanted;      /* the host has read it before */
    int is_stale;       /* the host has written since: array and narrow are of no use */
} qn_mlx_face;
qn_status qn_mlx_bring(qn_device *d, qn_buffer *b, qn_host_access how);
void qn_mlx_free_mirror(qn_device *d, qn_buffer *b);
/* The rest by the owner's thread. The face as it may be used, made where there is none. */
qn_status qn_mlx_face_get(qn_buffer *b, qn_mlx_face **out);
/* The host's bytes are those of the face. */
qn_status qn_mlx_face_read(const qn_mlx *d, qn_buffer *b);
/* Takes the array, which a run left in the buffer: n elements of that type, or narrower ones. */
qn_status qn_mlx_face_put(const qn_mlx *d, qn_buffer *b, qn_mlx_array *a, qn_dtype dtype, int64_t n);

/* weights.c */
qn_status qn_mlx_weight_bytes(qn_device *d, const qn_weight *w, size_t *out);
qn_status qn_mlx_import_weights(qn_device *d, int64_t n, const qn_weight *weights, qn_buffer **out);
/* QN_E_UNSUPPORTED: a step reads a part of a weight, or is none that takes weights; names the step. */
qn_status qn_mlx_check_weights(const qn_plan *plan);
/* What became of the types that MLX has not, of all weights so far, as a sentence; "": there were none. */
void qn_mlx_weights_note(const qn_mlx *d, char *out, size_t size);

/* state.c */
typedef struct {
    qn_state base;
    qn_mlx_state *mlx;
    size_t unit_bytes;
    size_t spare_bytes; /* in the ledger: what MLX holds beyond the units in use. The owner's thread */
    qn_status status;   /* of what could not say so: copies and writes */
    char message[256];
    pthread_mutex_t lock; /* of what follows: units that were dropped, and that MLX still holds */
    int32_t *dropped;     /* [n_units], each once */
    uint8_t *is_dropped;  /* [n_units] */
    int64_t n_dropped;
    qn_mlx_job settling;
} qn_mlx_device_state;
qn_status qn_mlx_state_new(qn_device *d, const qn_state_spec *spec, qn_state **out);
void qn_mlx_state_free(qn_state *s);
size_t qn_mlx_state_unit_bytes(const qn_state *s);
void qn_mlx_state_drop(qn_state *s, int32_t unit);
void qn_mlx_state_copy(qn_state *s, int32_t from, int32_t to);
void qn_mlx_state_read(const qn_state *s, int32_t unit, void *bytes);
void qn_mlx_state_write(qn_state *s, int32_t unit, const void *bytes);
/* By the owner's thread. settle: before a run; takes in which units were dropped, and gives memory back where
 * less than half of it is used. count: before what a run left in the state is computed; the ledger has what
 * MLX holds beyond the units in use, which are counted by whoever hands them out. Where there is no room for
 * that it is given back. */
qn_status qn_mlx_state_settle(qn_mlx_device_state *s);
qn_status qn_mlx_state_count(qn_mlx_device_state *s);

/* program.c */
int qn_mlx_supports(qn_device *d, qn_prim prim);
qn_status qn_mlx_compile(qn_device *d, const qn_plan *plan, qn_exec **out);
qn_status qn_mlx_run_program(qn_exec *e, const qn_sizes *sizes);
qn_status qn_mlx_start_program(qn_exec *e, const qn_sizes *sizes, qn_exec *after, const qn_buffer *guessed);
qn_status qn_mlx_finish_program(qn_exec *e, int64_t n, const int32_t *ids, int *as_guessed);
void qn_mlx_discard_program(qn_exec *e);
void qn_mlx_set_probe(qn_exec *e, qn_probe_fn *probe, qn_probe_wants_fn *wants, void *user);
void qn_mlx_exec_free(qn_exec *e);

#endif

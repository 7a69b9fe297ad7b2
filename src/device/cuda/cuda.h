/* The CUDA device, inside: the host's half of it. The library of kernels is behind shim.h. A plain buffer has up
 * to two faces, one on the host (qn_buffer.data) and one on the card (its mirror), each made when it is first
 * needed; the newer one is copied to the other when somebody asks there. Weights and states are the card's. */
#ifndef QN_DEVICE_CUDA_CUDA_H
#define QN_DEVICE_CUDA_CUDA_H

#include <pthread.h>

#include "base/threads.h"
#include "device/cuda/shim.h"
#include "device/device.h"

/* load.c: the library, opened once a process. QN_E_UNSUPPORTED says what is missing and how to get it: no library,
 * no driver, a driver that is too old, a card that the library has no code for. */
qn_status qn_cuda_load(const qn_cuda_shim **out);
/* 1: the library is there, which says nothing of whether it can be used. */
int qn_cuda_is_installed(void);
/* The card to use: the first that the library has code for. */
qn_status qn_cuda_choose_card(const qn_cuda_shim *shim, int *out, qn_cuda_card *card);

typedef struct {
    qn_device base;
    const qn_cuda_shim *shim;
    qn_cuda_context *context;
    qn_pool *pool;  /* of the host, for for_each and for reading files */
    char set[16];   /* "sm_90" */
    char name[128]; /* the card's */
    char *stage;    /* locked memory from which small copies to the card are read; NULL: not made yet */
    size_t stage_bytes, stage_used; /* used since the last wait */
} qn_cuda;

/* A status of the shim with its sentence. */
qn_status qn_cuda_said(const qn_cuda *d, qn_status status);

/* Layouts of buffers: PLAIN has two faces, WEIGHT has a qn_cuda_weight * for its data. */
enum { QN_CUDA_LAYOUT_PLAIN = 0, QN_CUDA_LAYOUT_WEIGHT = 1 };

/* memory.c */
qn_status qn_cuda_alloc(qn_device *d, size_t size_bytes, qn_ledger_entry entry, qn_buffer **out);
void qn_cuda_free(qn_device *d, qn_buffer *b);
qn_status qn_cuda_bring(qn_device *d, qn_buffer *b, qn_host_access how);
void qn_cuda_free_mirror(qn_device *d, qn_buffer *b);
size_t qn_cuda_free_bytes(qn_device *d);
/* Memory of the card that is in the ledger. */
qn_status qn_cuda_take(qn_cuda *d, size_t size_bytes, qn_ledger_entry entry, void **out);
void qn_cuda_give(qn_cuda *d, size_t size_bytes, qn_ledger_entry entry, void *p);
/* Locked memory of the host that is in the host's ledger. NULL is accepted by give. */
qn_status qn_cuda_take_host(qn_cuda *d, size_t size_bytes, qn_ledger_entry entry, void **out);
void qn_cuda_give_host(qn_cuda *d, size_t size_bytes, qn_ledger_entry entry, void *p);
/* The face on the card, with the host's first size_bytes if they are newer. */
qn_status qn_cuda_face(qn_cuda *d, qn_buffer *b, size_t size_bytes, char **out);
/* The face on the card, with n_bytes that the card itself writes from its start: the host's are not sent, and before
 * another run they are newer again. */
qn_status qn_cuda_guessed_face(qn_cuda *d, qn_buffer *b, size_t n_bytes, char **out);
/* A run wrote the first size_bytes on the card. *is_coming 1: they are on their way to the host, which wants
 * them after each run; they are there after the next wait, or, with a mark (NULL: none), when that is reached. */
qn_status qn_cuda_written(qn_cuda *d, qn_buffer *b, size_t size_bytes, void *mark, int *is_coming);
/* Waits for all that was begun. */
qn_status qn_cuda_wait(qn_cuda *d);
/* The bytes on the host, for reading by the device itself: newer ones are fetched. */
qn_status qn_cuda_peek(qn_cuda *d, qn_buffer *b, const void **out);

/* weights.c */
qn_status qn_cuda_weight_bytes(qn_device *d, const qn_weight *w, size_t *out);
qn_status qn_cuda_import_weights(qn_device *d, int64_t n, const qn_weight *weights, qn_buffer **out);
void qn_cuda_weight_free(qn_cuda *d, qn_buffer *b);
/* QN_E_UNSUPPORTED: a step reads a part of a weight, or is none that takes weights; names the step. */
qn_status qn_cuda_check_weights(const qn_plan *plan);

/* state.c */
typedef struct {
    qn_state base;
    size_t part_bytes, unit_bytes, size_bytes; /* of a layer of a unit, of a unit, of all */
    char *memory;                              /* addresses on the card */
    size_t chunk_bytes;                        /* memory is put behind them chunk by chunk */
    pthread_mutex_t lock;                      /* of what follows up to spare_bytes */
    uint8_t *is_live;                          /* [n_units] reached and not dropped */
    int32_t *n_live;                           /* [chunks] such units in it */
    uint8_t *is_mapped;                        /* [chunks] */
    size_t mapped_bytes, live_bytes; /* of chunks; of live units, which the pools count in the ledger */
    size_t spare_bytes;              /* of the difference, what is in the ledger */
    qn_status status;                /* of what could not say so: copies and writes */
    char message[256];
} qn_cuda_device_state;
qn_status qn_cuda_state_new(qn_device *d, const qn_state_spec *spec, qn_state **out);
void qn_cuda_state_free(qn_state *s);
size_t qn_cuda_state_unit_bytes(const qn_state *s);
void qn_cuda_state_drop(qn_state *s, int32_t unit);
void qn_cuda_state_copy(qn_state *s, int32_t from, int32_t to);
void qn_cuda_state_read(const qn_state *s, int32_t unit, void *bytes);
void qn_cuda_state_write(qn_state *s, int32_t unit, const void *bytes);
/* Memory behind a unit, before a run writes it. */
qn_status qn_cuda_state_reach(qn_cuda_device_state *s, int32_t unit);
/* What a step of this layer gets. */
qn_cuda_state qn_cuda_state_layer(const qn_cuda_device_state *s, int64_t layer);

/* program.c */
int qn_cuda_supports(qn_device *d, qn_prim prim);
qn_status qn_cuda_compile(qn_device *d, const qn_plan *plan, qn_exec **out);
qn_status qn_cuda_run_program(qn_exec *e, const qn_sizes *sizes);
/* qn_async_ops. */
qn_status qn_cuda_start_program(qn_exec *e, const qn_sizes *sizes, qn_exec *after, const qn_buffer *guessed);
qn_status qn_cuda_finish_program(qn_exec *e, int64_t n, const int32_t *ids, int *as_guessed);
void qn_cuda_discard_program(qn_exec *e);
void qn_cuda_set_probe(qn_exec *e, qn_probe_fn *probe, qn_probe_wants_fn *wants, void *user);
void qn_cuda_exec_free(qn_exec *e);

#endif

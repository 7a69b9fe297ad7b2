/* Devices: where arrays live and are computed. This header speaks of buffers, state and plans, never of
 * models.
 *
 * A plan is what array/ hands to a device: steps (one primitive each) in an order that respects their inputs,
 * and slots (places in memory) sized for the largest R, S, L. The device compiles it once into a qn_exec and
 * replays that with other sizes. A device is used by one thread at a time (the scheduler's); its own worker
 * threads are its business. */
#ifndef QN_DEVICE_DEVICE_H
#define QN_DEVICE_DEVICE_H

#include <quern/backend.h>
#include <stdatomic.h>
#include <stddef.h>

#include "base/ledger.h"
#include "prim/prim.h"
#include "prim/units.h"

typedef struct qn_device qn_device;
typedef struct qn_exec qn_exec;
typedef struct qn_state qn_state;

/* ---- buffers ------------------------------------------------------------------------------------------- */

/* Counted memory of one device. layout 0: plain, row-major; others are the device's own (packed weights). */
typedef struct qn_buffer {
    atomic_int references;
    qn_device *device;
    void *data;   /* on the host, or NULL as long as a device with memory of its own needs none there: callers
                      use qn_buffer_host */
    void *mirror; /* the device's own: what it keeps beside data. NULL: nothing */
    size_t size_bytes;
    qn_ledger_entry entry;
    int layout;
    int borrowed;            /* data is memory that outlives the buffer, such as a mapped file: not freed */
    struct qn_buffer *block; /* the memory is part of this one, which is held; NULL: it is the buffer's own */
    void *cold;              /* the device's own: what of a weight is not packed yet; NULL: all is */
    void (*let_go)(void *owner); /* NULL, or data belongs to owner, who is told when the buffer goes */
    void *owner;
} qn_buffer;

qn_buffer *qn_buffer_retain(qn_buffer *b);
void qn_buffer_release(qn_buffer *b);
/* A plain buffer over memory of somebody else's, who is told when it is not used any longer; let_go is not
 * called on failure. Of devices that compute on the host's memory. The ledger does not count it. */
qn_status qn_buffer_borrow(qn_device *d, const void *data, size_t size_bytes, void (*let_go)(void *owner),
                           void *owner, qn_buffer **out);

/* What a caller does with the bytes of a plain buffer on the host. READS: reads what the last run left there.
 * WRITES: writes them before the next run. KEEPS: keeps the pointer, and reads and writes between any runs. */
typedef enum { QN_HOST_READS, QN_HOST_WRITES, QN_HOST_KEEPS } qn_host_access;
/* The bytes of a plain buffer on the host; waits until they are there. NULL: they could not be brought there,
 * and the message says why. The device computes with what was written from the next run on. By the thread that
 * uses the device. */
void *qn_buffer_host(qn_buffer *b, qn_host_access how);

/* ---- state --------------------------------------------------------------------------------------------- */

typedef enum { QN_STATE_PAGES, QN_STATE_SLOTS } qn_state_kind;

/* PAGES: keys and values of n_layers layers in n_units pages of QN_PAGE_TOKENS tokens. SLOTS: n_units slots
 * of slot_floats f32 per layer (recurrent state). Memory is address space until a page or slot is first
 * written. */
typedef struct {
    qn_state_kind kind;
    int64_t n_layers, n_units;
    int64_t kv_heads, head_dim, v_dim; /* PAGES */
    int v_in_k; /* PAGES: values are the first v_dim dimensions of the keys, and are not stored beside them */
    qn_dtype dtype;      /* PAGES: F32, F16, BF16, Q8_0 or Q4_0 */
    int64_t slot_floats; /* SLOTS */
} qn_state_spec;

/* ---- plans --------------------------------------------------------------------------------------------- */

typedef enum { QN_SLOT_TEMP, QN_SLOT_BUFFER } qn_slot_kind;

typedef struct {
    qn_slot_kind kind;
    size_t offset_bytes, size_bytes; /* TEMP: in the plan's arena, multiple of 64 */
    qn_buffer *buffer;               /* BUFFER: inputs, outputs, weights; borrowed from the program */
} qn_plan_slot;

/* Where one input or output of a step lies. Strides in elements; block dtypes are contiguous. */
typedef struct {
    int slot;
    int64_t offset; /* elements from the slot's start */
    qn_dtype dtype;
    qn_shape shape;
    int64_t stride[QN_MAX_DIMS];
} qn_operand;

typedef struct {
    qn_prim prim;
    qn_params params;
    int n_in;
    qn_operand *in; /* [n_in], with the plan, which outlives what is compiled of it */
    qn_operand out;
    int group; /* steps of one group need no barrier between them; memory is not reused inside a group */
    const char *label; /* "layer.3.attn.q", or "" */
} qn_plan_step;

typedef struct {
    const char *name;
    qn_precision precision;
    int narrow; /* 1: what is f32 between steps may be kept in 16 bits, unless precision is exact */
    qn_sizes max;
    int n_slots, n_steps, n_groups;
    qn_plan_slot *slots;
    qn_plan_step *steps;
    size_t arena_bytes;
} qn_plan;

/* A step that was just computed, for tests and inspection; valid during the call. */
typedef struct {
    const qn_plan_step *step; /* its label and operands */
    const void *const *in;    /* where inputs begin, on the host; weights are in the device's layout */
    const void *out;          /* contiguous rows, on the host */
    const qn_sizes *sizes;
} qn_probe_view;
/* Called after a step, by a thread that computes. */
typedef void qn_probe_fn(void *user, const qn_probe_view *view);
/* Whether a step is to be shown; asked once for each when a probe is set. */
typedef int qn_probe_wants_fn(void *user, const qn_plan_step *step);

/* A matrix as it lies in a file: rows, one after the other. With scales (and biases) one of MLX's quantised
 * matrices, of three tensors: its words, and a scale and a bias a group (src/quant/mlx.h). Any alignment. */
typedef struct {
    const void *data, *scales, *biases;
} qn_weight_part;

/* n_parts matrices [n_out, n_in] below each other: one, or the experts of a layer, which lie apart in files.
 */
typedef struct {
    qn_dtype dtype;
    int64_t n_parts, n_out, n_in;
    const qn_weight_part *parts;
    /* NULL, or where the weight lies in the device's layout already, weight_bytes bytes aligned to 64, which
     * must outlive the buffer: a file of packed weights. */
    const void *packed;
    int transposed; /* the parts are [n_in, n_out], of a plain type */
    /* step 0: a part is the matrix. Else a part has `stored` rows, and row i of the matrix is its row first +
     * i * step: matrices that files keep row by row in one. */
    struct {
        int64_t first, step, stored;
    } rows;
    /* 1: the parts outlive the buffer, and each may stay where it lies until a product with it is computed
     * (the experts that nobody asks for), or a row of it is asked for. Only EXPERTS, EXPERTS_SUM and TAKE
     * take such a weight. */
    int cold;
} qn_weight;

typedef struct {
    const char *set; /* of instructions; static storage */
    const char
        *chip; /* the chip's own name, as long as the device lives; NULL: it has none that users know */
    int n_threads;
    int layout;       /* version of the layouts of weights, 0: none that a file could keep */
    qn_dtype fast_kv; /* the 16-bit type of keys and values that it computes with fastest */
    int own_kv; /* 1: models of bf16 have keys and values of bf16, where these would have another type of 16 bits */
    int32_t prefill_rows; /* rows of a prompt's step that keep it busy; 0: the engine's own choice */
    const char
        *note; /* what users should know of its weights; "": nothing. The device's, until asked again */
} qn_device_description;

/* ---- logits -------------------------------------------------------------------------------------------- */

/* The passes over a row of logits that a sampler needs, as functions of the host. Logits are in the host's
 * memory today. x is [n]; a token that cannot come is -inf. A long row is taken in blocks of QN_ROW_BLOCK
 * (the last may be shorter), so out is [n / QN_ROW_BLOCK, rounded up]. No result depends on how a row was cut
 * into calls at multiples of a block. Any thread. A mask of allowed tokens is -inf in a copy of the row
 * (qn_sampler_set_mask), so these functions have no part in it. */
typedef struct {
    /* Largest element and sum: 16 lanes by index and one fixed tree. max is NaN if an element is. */
    float (*max)(const float *x, int64_t n);
    float (*sum)(const float *x, int64_t n);
    /* The largest element of each block, NaN if one is NaN. */
    void (*max_blocks)(const float *x, int64_t n, float *out);
    /* The sum of exp((x - shift) * scale) of each block, for x <= shift and scale > 0. */
    void (*sum_exp_blocks)(const float *x, int64_t n, float shift, float scale, float *out);
    /* out[i] = exp((x[i] - shift) * scale), out [n]. */
    void (*exp_scaled)(const float *x, int64_t n, float shift, float scale, float *out);
    /* Elements >= least in order: first + index into index, themselves into value; both have room for n.
     * Returns their number. */
    int64_t (*collect)(const float *x, int64_t n, float least, int32_t first, int32_t *index, float *value);
} qn_logits_kernels;

/* ---- asynchronous runs --------------------------------------------------------------------------------- */

/* Runs that the device computes while the host does other work. A run may start after another one that is
 * not finished, with the largest logits of that one as an input. So the next decode step starts before its
 * tokens are drawn, on the guess that each token is its row's largest logit.
 *
 *          start
 *   idle ---------> pending     start takes the inputs: the host may write them again at once.
 *    ^                |
 *    |<-- finish -----+         waits; the outputs are in place, unless the guess was wrong
 *    |<-- discard ----+         so do run, exec_free and another start of the same qn_exec
 *
 * A qn_exec has at most one pending run. A start or finish that fails leaves it idle. The engine has at most
 * two pending runs: the head of this step and, after it, the body of the next one. It finishes the head
 * first. Once start has returned, the earlier run may end in any way: the later one does not need it.
 * What a discarded run wrote into states stays there, so callers start only runs whose writes are not read
 * then. Called by the thread that uses the device, like run; src/engine/machine/ahead.c is the caller. */
typedef struct {
    /* 0: nothing is gained by asynchronous runs on this device, and callers use run. */
    int (*is_useful)(qn_device *d);
    /* Returns before the run is computed. If `after` is NULL, all inputs are the host's. Else `after` is
     * pending and its first output is [L, width]; the input that lies in `guessed` then holds, for each row,
     * the index of the largest number, not what the host wrote there. */
    qn_status (*start)(qn_exec *e, const qn_sizes *sizes, qn_exec *after, const qn_buffer *guessed);
    /* Waits. ids [n], n = L of `after`, is what the guessed input should have been. *as_guessed 0: it was
     * something else, and the run was discarded. A run without a guess takes n 0 and gives 1. */
    qn_status (*finish)(qn_exec *e, int64_t n, const int32_t *ids, int *as_guessed);
    /* Does nothing if no run is pending. */
    void (*discard)(qn_exec *e);
} qn_async_ops;

/* ---- the interface ------------------------------------------------------------------------------------- */

typedef struct {
    int n_threads;                    /* 0: all that affinity and quota allow */
    qn_ledger *ledger;                /* of the host's memory, borrowed; NULL: the device has its own, with */
    size_t memory_limit_bytes;        /* this limit; 0: none */
    size_t device_memory_limit_bytes; /* of a device with memory of its own; 0: none. Others ignore it */
} qn_device_options;

typedef struct {
    const char *name; /* "cpu" */
    /* 1: another device of this kind, on another thread, computes with this one's buffers as with its own. */
    int buffers_are_shared;
    /* So many groups longer than plans need it does a temporary keep its memory: the device computes steps of
     * neighbouring groups together. */
    int n_groups_more;
    /* Of qn_device_get_info; no device is opened for it. QN_E_UNSUPPORTED says what it lacks here. */
    qn_status (*get_info)(qn_device_info *out);
    /* Whether "auto" tries to open the device: its library is installed, and it would compute faster than the
     * host. NULL: "auto" never takes it, unless it is the host. */
    int (*is_candidate)(void);
    /* There is a ledger in the options: that of the device's memory. */
    qn_status (*open)(const qn_device_options *options, qn_device **out);
    void (*close)(qn_device *d);
    qn_device_description (*describe)(qn_device *d);
    qn_status (*alloc)(qn_device *d, size_t size_bytes, qn_ledger_entry entry, qn_buffer **out);
    void (*free)(qn_device *d, qn_buffer *b);
    /* As qn_buffer_host; and frees the mirror of a borrowed buffer that goes. Both NULL: all plain buffers are
     * the host's memory. */
    qn_status (*bring)(qn_device *d, qn_buffer *b, qn_host_access how);
    void (*free_mirror)(qn_device *d, qn_buffer *b);
    /* Bytes of a weight in the device's layout. QN_E_UNSUPPORTED: it has none for this dtype and shape. */
    qn_status (*weight_bytes)(qn_device *d, const qn_weight *w, size_t *out);
    /* Packs n weights from mapped files into one block of memory: out[i] is the part of weight i. Pages of
     * the mappings are given up behind the packing; the bytes are not needed afterwards. A weight that is
     * packed already is used where it lies. All of them are in the ledger, cold ones as a whole from the
     * beginning, though their memory is taken from the system as they are packed. */
    qn_status (*import_weights)(qn_device *d, int64_t n, const qn_weight *weights, qn_buffer **out);
    /* Calls fn(user, i) once for each i in [0, n), n < 2^32, on any of the device's threads on the host,
     * several at a time, and returns when all have returned. */
    void (*for_each)(qn_device *d, int64_t n, void (*fn)(void *user, int64_t i), void *user);
    int (*supports)(qn_device *d, qn_prim prim);
    qn_status (*compile)(qn_device *d, const qn_plan *plan, qn_exec **out);
    qn_status (*run)(qn_exec *e, const qn_sizes *sizes);
    /* Asynchronous runs. NULL: the device has none. */
    const qn_async_ops *async;
    /* wants NULL: all steps. probe NULL: none is shown any longer. What is not wanted runs as ever. */
    void (*set_probe)(qn_exec *e, qn_probe_fn *probe, qn_probe_wants_fn *wants, void *user);
    void (*exec_free)(qn_exec *e);
    qn_status (*state_new)(qn_device *d, const qn_state_spec *spec, qn_state **out);
    void (*state_free)(qn_state *s);
    /* Bytes of one page or slot, all layers. */
    size_t (*state_unit_bytes)(const qn_state *s);
    /* The unit's memory may be given back to the system; what it held is gone (in a QN_SHAKE build: NaN). */
    void (*state_drop)(qn_state *s, int32_t unit);
    /* Copies a unit's bytes (all layers) to a unit of the same state. */
    void (*state_copy)(qn_state *s, int32_t from, int32_t to);
    /* A unit's bytes (all layers, state_unit_bytes) out to memory of the host, and back in: for saving. They
     * mean something to a state of the same spec on the same device alone. */
    void (*state_read)(const qn_state *s, int32_t unit, void *bytes);
    void (*state_write)(qn_state *s, int32_t unit, const void *bytes);
    /* Memory that the device keeps for reuse beside what the ledger counts, all three or none: its bytes, the
     * most that it may be (as the ledger's own cache limit), and giving all of it back. */
    size_t (*cache_bytes)(qn_device *d);
    void (*set_cache_limit)(qn_device *d, size_t limit_bytes);
    void (*clear_cache)(qn_device *d);
    /* The passes over logits; static storage. NULL: the device has none, and the host's serve. */
    qn_status (*get_logits_kernels)(const qn_logits_kernels **out);
    /* Locks so much of the weights in memory. NULL: they are the host's, which locks them page by page. */
    qn_status (*wire)(qn_device *d, size_t limit_bytes, size_t *wired_bytes);
    /* Bytes of the device's own memory that can be had now, whoever uses the rest. NULL: its memory is the
     * host's. */
    size_t (*free_bytes)(qn_device *d);
} qn_device_ops;

/* Every device begins with these fields. */
struct qn_device {
    const qn_device_ops *ops;
    /* Of the memory that buffers, weights and states lie in, and of the host's. The same ledger, unless the device
     * has memory of its own. */
    qn_ledger *ledger, *host_ledger;
    int owns_host_ledger;
    atomic_int holders; /* those who opened or retained it, and its buffers */
    int is_auto;        /* "auto" chose it */
    char note[512];     /* why "auto" took the host and no other device, for the user; "": nothing to say */
};
struct qn_state {
    qn_device *device;
    qn_state_spec spec;
};
struct qn_exec {
    qn_device *device;
};

/* The name of a device, or "auto". NULL is "auto". "auto" is the device that QUERN_DEVICE in the environment
 * names. If the variable is not set, "auto" takes the first candidate of the registry that opens, else the
 * host; (*out)->note then says why a candidate could not be opened. QN_E_NOT_FOUND lists the known names. */
qn_status qn_device_open(const char *name, const qn_device_options *options, qn_device **out);
/* 1: "auto" chose d, another device than the host, and what failed on it with this status may work on the
 * host (name "cpu"): the caller opens that, and tells the user with qn_device_give_way_text. d may be NULL. */
int qn_device_gives_way(const qn_device *d, qn_status status);
/* Writes the sentence about it, from this thread's message. */
void qn_device_give_way_text(char *out, size_t size);
/* The passes over logits of d, or the host's if d has none or is NULL. QN_E_UNSUPPORTED: QUERN_CPU names an
 * instruction set that this machine cannot run. */
qn_status qn_device_get_logits_kernels(const qn_device *d, const qn_logits_kernels **out);
/* 1: d has memory of its own, beside the host's. */
int qn_device_has_memory(const qn_device *d);
/* One holder more; returns d. */
qn_device *qn_device_retain(qn_device *d);
/* Of a device that keeps memory for reuse; nothing and 0 of others. */
size_t qn_device_cache_bytes(qn_device *d);
void qn_device_set_cache_limit(qn_device *d, size_t limit_bytes);
void qn_device_clear_cache(qn_device *d);
/* One holder less: the device goes with the last one, buffers among them. NULL is accepted. */
void qn_device_close(qn_device *d);

#endif

/* What an engine is made of, for the files that make it up: engine.c opens it, context.c chooses how much it
 * may keep, programs.c builds what it runs, sequence.c runs it, split.c divides it between a card and the CPU. Nobody else
 * looks inside. */
#ifndef QN_ENGINE_MACHINE_ENGINE_PARTS_H
#define QN_ENGINE_MACHINE_ENGINE_PARTS_H

#include "array/program.h"
#include "base/buf.h"
#include "cache/tree.h"
#include "engine/machine/engine.h"
#include "engine/machine/guest.h"
#include "engine/machine/kept_ids.h"
#include "engine/machine/probe.h"
#include "engine/machine/wired.h"
#include "model/forward/forward.h"
#include "model/weights/weights.h"

enum {
    QN_LOGIT_ROWS = 32, /* most of one block of logits, unless there are more sequences */
    QN_NORM_ROWS = 16   /* most of one block of hidden states */
};

/* Rows [row, row + n) of a chunk: tokens [first, first + n) of a feed; below 0 they are those that the
 * sequence was given before, computed anew. */
typedef struct {
    int64_t feed, first, row, n;
} qn_chunk_part;

struct qn_sequence {
    qn_engine *engine;
    int64_t length;      /* tokens computed */
    int64_t n_given;     /* tokens given: more than length only where a step failed that computed some anew */
    int64_t n_attached;  /* of these, those that it was given by the prefix tree */
    int64_t expected;    /* see qn_sequence_expect */
    int64_t n_tentative; /* of the last step's tokens, those that may be taken back */
    int is_long;         /* it is turned by the frequencies of long sequences */
    qn_kept_ids kept;    /* what was given, while it is short and may get long */
    int32_t adapter;     /* id; -1: none */
    const qn_images *images; /* NULL: none */
    qn_block_table tables[QN_LAYER_GROUPS_MAX];
    int32_t slot;     /* of its recurrent state; -1: none yet */
    int is_lost;      /* a step failed that had begun to change the recurrent state */
    int any_thread;   /* see qn_sequence_set_any_thread */
    int follows_best; /* see qn_sequence_set_follows_best */
};

/* A step that was started before its tokens were known; the programs' inputs are as it has them. */
typedef struct {
    int64_t n;                     /* rows, a sequence each; 0: none was started */
    const qn_sequence **sequences; /* [max_sequences], of these */
} qn_ahead;

/* Inputs of programs that say what the rows of a step are. NULL: no step reads it. */
typedef struct {
    int32_t *positions, *row_begin, *blocks[QN_LAYER_GROUPS_MAX], *slot_ids, *reset, *row_adapters;
    float *is_long;
    int32_t *rope_positions[QN_ROPE_SECTIONS];
} qn_row_inputs;

/* What an engine over an encoder has beside (encode.h): rows of a step, and inputs of its programs. NULL: no step
 * reads them. */
typedef struct {
    int64_t max_rows;
    int32_t *places, *types;
    float *read; /* [QN_ENCODE_SEQUENCES, hidden_size] that the head reads */
} qn_encoder_inputs;

/* Where layers are computed: on e->device, or below the border (qn_layer_groups) on the card. */
typedef enum { QN_PART_OWN, QN_PART_CARD, QN_PARTS } qn_part;

/* The card that has the first layers of a divided model. */
typedef struct {
    qn_device *device; /* NULL: the model is not divided, and all is NULL here */
    qn_parameters *parameters;
    qn_state *states[QN_LAYER_GROUPS_MAX], *recurrent;
    /* Of the programs `first` and `body`: the stream [R, hidden_size] and the layers' own inputs. */
    float *hidden[QN_PARTS], *layer_inputs[QN_PARTS];
    int32_t *embed_adapters;      /* of the program `embed`; NULL: no step reads it */
    qn_row_inputs rows[QN_PARTS]; /* of the same, filled from e->rows */
    void *stage;                  /* where e->rows lies */
    size_t stage_bytes;
} qn_card_part;

/* For a ledger: whose pages may be given up. */
typedef struct {
    qn_engine *engine;
    qn_ledger *ledger;
} qn_reclaimer;

struct qn_engine {
    qn_device *device;
    qn_card_part card;
    const qn_logits_kernels *logits_kernels;
    qn_ledger *ledger; /* of the host's memory */
    qn_model_config config;
    qn_parameters *parameters;
    qn_adapters *adapters;
    qn_layer_groups groups;
    qn_state *states[QN_LAYER_GROUPS_MAX]; /* of device; NULL: the card has all layers of the group */
    qn_pages *pages[QN_LAYER_GROUPS_MAX];
    qn_state *recurrent;                     /* NULL: no layer has such state */
    qn_pages *slots;                         /* of it: one a sequence, and snapshots */
    qn_tree *tree;                           /* prefixes; NULL: none are kept */
    int64_t table_size[QN_LAYER_GROUPS_MAX]; /* entries of a sequence's block table */
    /* body: all layers; of a divided model the layers of the CPU, behind embed on the CPU and first on the card.
     * norm: hidden states in place of the head's logits. Of an encoder body gives vectors and head scores, and there is
     * no other program. */
    qn_program *body, *head, *norm, *embed, *first;
    int32_t *ids, *logit_rows, *norm_rows; /* the programs' inputs */
    qn_row_inputs rows;                    /* the same */
    qn_encoder_inputs encoder;
    float *embeds, *is_embed;                /* inputs, too; NULL: the model takes no images */
    int32_t *logit_adapters, *norm_adapters; /* inputs, too; NULL: no step reads them */
    int64_t max_logit_rows;
    int is_bf16;          /* the model's vectors are of bf16: its own type of 16 bits */
    int64_t *fed;         /* [max_sequences] tokens of each feed computed so far, in one step */
    qn_chunk_part *parts; /* [max_sequences] of the current chunk */
    qn_ahead ahead;
    uint64_t shakes;
    int64_t keep_positions; /* for tests, see qn_engine_options */
    size_t tables_bytes;    /* of pools and block tables, in the ledger */
    qn_wired wired;
    void (*meanwhile)(void *user); /* see qn_engine_set_meanwhile */
    void *meanwhile_user;
    qn_probe_fn *probe; /* that of qn_engine_set_probe; NULL: probes, where they ask for it */
    void *probe_user;
    qn_probes probes;
    qn_guest *guests;
    qn_reclaimer reclaimers[QN_PARTS];
    qn_engine_info info;
    qn_buf notes;
};

/* context.c: chooses the context (wish 0: as memory allows) and makes pages and programs for it. */
qn_status qn_engine_fit_context(qn_engine *e, int64_t wish);
void qn_engine_free_states(qn_engine *e);
/* Of the memory that the part's device computes in: bytes that may still be used, under its limit. */
double qn_engine_device_room(const qn_engine *e, qn_part part);
/* Bytes of keys and values of one full sequence, and of recurrent state of all, in the layers of a part. */
double qn_engine_kv_bytes(const qn_engine *e, qn_part part, int64_t context);
/* As many of these tokens as have place in room, but no fewer than the smallest context. */
int64_t qn_engine_tokens_that_fit(const qn_engine *e, qn_part part, int64_t context, double room);
int64_t qn_engine_shortest_context(void);

/* fit.c: rows of a prompt's step: what the device wishes, fewer where its memory is small. */
int32_t qn_engine_choose_rows(qn_engine *e);
/* fit.c: before loading, for a device with memory of its own. weights_bytes: of all layers. *n_layers is how
 * many of the first layers it takes: what the options ask for, or what fits. QN_E_NOMEM says what these layers
 * need, what there is, and what would fit. QN_E_UNSUPPORTED: the layers cannot be divided there. */
qn_status qn_engine_check_fit(qn_engine *e, const qn_weights *weights, size_t weights_bytes,
                              const qn_engine_options *o, int64_t *n_layers);

/* sequence.c: the next tokens of one feed, [first, first + n), become rows [rows, rows + n) and sequence
 * number `at` of the chunk. */
qn_status qn_engine_put_rows(qn_engine *e, const qn_feed *feed, int64_t first, int64_t n, int64_t rows,
                             int64_t at);

/* ahead.c: on a device with asynchronous runs the step after one of single tokens starts before these are
 * drawn, if each is likely to be its row's largest logit. The early step is speculative. It is discarded if
 * the next step has other tokens, other sequences or other pages. head: computes n rows, and starts the step
 * after them if every feed is one of them. take: finishes the step that was started if it is that of these
 * feeds, *taken 1; else discards it. forget: the sequence goes. */
qn_status qn_ahead_head(qn_engine *e, int64_t n, int64_t n_feeds, const qn_feed *feeds);
qn_status qn_ahead_take(qn_engine *e, int64_t n_feeds, const qn_feed *feeds, int *taken);
void qn_ahead_discard(qn_engine *e);
void qn_ahead_forget(qn_engine *e, const qn_sequence *s);

/* split.c: the device becomes the card of the first n layers, and the CPU the device of the others. */
qn_status qn_split_begin(qn_engine *e, int64_t n_layers, const qn_engine_options *o);
/* The device of a part; NULL: there is no such part. */
qn_device *qn_engine_part(const qn_engine *e, qn_part part);
/* The place of e->rows in a divided model, whose programs all need them. */
qn_status qn_split_make_stage(qn_engine *e);
void qn_split_free_stage(qn_engine *e);
/* The stream behind the last layer, for rows that the inputs describe. */
qn_status qn_engine_run_body(qn_engine *e, int64_t n_rows, int64_t n_sequences);

/* programs.c */
qn_status qn_engine_make_programs(qn_engine *e);
void qn_engine_free_programs(qn_engine *e);
/* Programs that have the steps of the adapters that are loaded. When they cannot be made, the old ones stay
 * in use. */
qn_status qn_engine_renew_programs(qn_engine *e);
/* The same whether or not an adapter wants it. */
qn_status qn_engine_remake_programs(qn_engine *e);
/* encode.c: the same of an encoder, as programs.c makes and binds them, and its context. */
qn_status qn_encoder_make_programs(qn_engine *e);
void qn_encoder_bind(qn_engine *e);
qn_status qn_encoder_fit(qn_engine *e, int64_t wish);
/* The programs show their steps to who wants to see them: e->probe, else the probes that ask for it. */
void qn_engine_show_steps(qn_engine *e);

#endif

/* The model of the backend mlx_lm, for the files that make it up: a Python process that answers requests, a
 * queue of generations of which the first is its, and one thread that moves lines between the two. */
#ifndef QN_BACKEND_MLX_LM_MLX_LM_PARTS_H
#define QN_BACKEND_MLX_LM_MLX_LM_PARTS_H

#include <jansson.h>
#include <pthread.h>
#include <quern/backend.h>

#include "backend/mlx_lm/child.h"
#include "base/buf.h"
#include "text/chat/chat.h"

typedef struct {
    qn_status status; /* not QN_OK: the row failed, text is the sentence */
    qn_end end;
    int32_t id;
    char *text;
    size_t n;
} mlx_event;

typedef struct mlx_generation mlx_generation;

typedef struct {
    char *path, *python, *adapter_path;
    int64_t context_asked;
    int background;
    qn_chat_text *text; /* NULL: no tokenizer that this library reads */
    qn_buf notes, bridge,
        scratch; /* the last two: paths of the script and of the folder for what it writes */
    pthread_t worker;
    int wake[2]; /* a pipe: the worker looks again */

    pthread_mutex_t lock; /* of all below */
    pthread_cond_t changed;
    mlx_generation *first;    /* its turn; the others wait behind it */
    int is_closing, is_tried; /* tried: the first load has ended, well or not */
    qn_status opened;
    char *opened_text; /* the sentence of a first load that failed */
    int64_t n_requests;
    /* What the process said of the model. */
    char *architecture, *device; /* device: the versions of what computes */
    int64_t vocab_size, n_layers, hidden_size, context_size, own_context_size, weights_bytes;
    int32_t bits;
    int has_template;
    double load_ms, prefill_per_s, decode_per_s;
    size_t peak_bytes;

    /* The worker's own. */
    qn_child *child; /* NULL: none runs */
    int64_t load_id; /* of the load under way; 0: none */
    int is_loaded;
    int64_t started_ns, stop_asked_ns; /* of the child; of the cancel that it has not answered (0: none) */
    int is_ready;                      /* it said a first word */
} mlx_model;

struct mlx_generation {
    mlx_model *model;
    mlx_generation *next;
    const qn_cancel *cancel; /* not looked at once it is closed */
    qn_notify_fn *notify;
    void *notify_user;
    json_t *request; /* until it is sent */
    int64_t id;      /* of the request; 0: not sent */
    int64_t deadline_ns, opened_ns, sent_ns, first_ns, last_ns;
    qn_end why;    /* the end that was asked for; NONE: none was */
    int is_closed; /* by its owner: what is still said goes nowhere, and then it is freed */
    int is_over;   /* out of the queue */
    mlx_event events[QN_TOKENS_AHEAD + 1];
    int32_t first_event, n_events;
    char *given; /* the text of the event that was read last */
    int64_t n_prompt, n_generated, n_read;
    double prefill_per_s, decode_per_s;
    uint64_t seed;
};

/* mlx_lm_worker.c. p: the model; ends when it is_closing. */
void *qn_mlx_work(void *p);
void qn_mlx_wake(mlx_model *m);
/* Takes a generation that is over, and was closed, apart. */
void qn_mlx_generation_free(mlx_generation *g);

/* mlx_lm_files.c: puts the script into a folder that only this user can write to, and appends the paths. */
qn_status qn_mlx_place(qn_buf *bridge, qn_buf *scratch);

#endif

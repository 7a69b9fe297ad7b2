/* `quern serve`: HTTP APIs in front of one model.
 *
 * http/ knows sockets and no model, core/ knows the model and no API, openai/ knows OpenAI's JSON. This
 * folder joins them: routes.c has the tables, server.c the loop.
 *
 * Threads: one event loop (libevent) owns every connection and every exchange; it never waits and never
 * computes. Two pools of workers do what may take milliseconds or more: opening the model, reading bodies,
 * templates, tokenising and opening and closing generations in one; embeddings in the other. Tokens are
 * computed by the model's own background thread, which wakes the loop once a step. Routes talk to clients
 * through exchange.h alone. */
#ifndef QN_SERVER_SERVER_H
#define QN_SERVER_SERVER_H

#include <quern/classify.h>
#include <quern/model.h>

#include "base/status.h"
#include "server/archive/archive.h"
#include "server/http/http_options.h"

/* What holds for requests that do not say otherwise. */
typedef struct {
    float temperature, top_p, min_p, repeat_penalty; /* negative: the model's own */
    int32_t top_k;                                   /* the same */
    uint64_t seed;                                   /* 0: a fresh one for each request */
    int64_t max_tokens;                              /* 0: the default of the API */
} qn_server_defaults;

typedef struct {
    qn_http_options http;
    const char *model_name;             /* what clients call the model */
    const char *model_file;             /* the last part of its path; NULL: the name */
    const qn_server_defaults *defaults; /* NULL: none */
    const char *adapter_folder;         /* clients with an admin key may load what is in it; NULL: nothing */
    const char
        *cache_folder; /* the same of saved prompt caches, which are written there too; NULL: nowhere */
    const char *
        slot_folder; /* where clients save and load the sequences of slots; NULL: nowhere, and slots have none */
    int allow_template_kwargs;
    int free_tool_calls; /* calls are not held to schemas, unless a tool is strict, a call is forced or answers have a form */
    int strict_model;   /* a name that is not the model's is refused; else the model answers and reports it */
    int lenient;        /* unknown fields of a request are reported, not refused */
    int no_look_ahead;  /* next turns are not computed in idle time (look_ahead.h) */
    int32_t n_draft;    /* tokens guessed ahead, as in qn_generate_options */
    qn_pooling pooling; /* of embeddings */
    size_t machine_bytes;     /* of memory, which bounds what waiting requests hold; 0: not known */
    qn_archive_options store; /* folder NULL: nothing is stored */
    /* Opens the model, on a thread of its own while the server listens already. */
    qn_status (*open)(void *user, qn_model **out);
    /* Saves what the model keeps of prompts, for the next start: at the end, unless a second signal came, and when a
     * client asks (POST /prompt-cache). NULL: nothing is saved. A thread of its own, or the loop at the end. */
    qn_status (*save)(void *user, qn_model *model);
    void *user;
    /* Tells where it listens ("http://127.0.0.1:8080"), and later, with NULL, that the model is ready. Loop
     * thread. */
    void (*say)(void *user, const char *url);
} qn_server_options;

/* Serves until SIGTERM or SIGINT: then new work is refused with 503, what runs is finished, and QN_OK is
 * returned. A second signal ends what runs: QN_E_CANCELLED. Also: QN_E_ARG (an address off loopback without a
 * key), QN_E_IO, and what open returned. Strings of the options are borrowed until it returns. One call at a
 * time in a process. */
qn_status qn_server_run(const qn_server_options *options);

#endif

/* Memory of requests that are not answered: bodies that arrive, their JSON, pictures. All of it has one bound, and
 * belongs to the model's memory limit.
 *
 * Large requests leave a part of it for small ones, and bodies that arrive a part for those that have: a small chat is
 * answered beside any number of them. Invariant: what is held never passes the bound. Any thread. */
#ifndef QN_SERVER_CORE_HELD_H
#define QN_SERVER_CORE_HELD_H

#include <pthread.h>
#include <quern/memory.h>
#include <quern/model.h>

typedef struct {
    pthread_mutex_t lock;
    qn_model *model; /* NULL: not loaded yet */
    size_t held, most;
    size_t in_model; /* of held: counted by the model too */
} qn_held;

/* The bound is an eighth of the machine's memory, 256 MiB to 1 GiB; under a memory limit half of what the model leaves
 * when it is loaded, if that is less. */
void qn_held_start(qn_held *h, size_t machine_bytes);
void qn_held_end(qn_held *h);
/* From now on what is held is the model's too. NULL: no longer. */
void qn_held_set_model(qn_held *h, qn_model *model);
/* whole_bytes: what the request holds with these; it arrives: its body is not whole. QN_E_NOMEM: no room; nothing is
 * held then. */
qn_status qn_held_take(qn_held *h, size_t size_bytes, size_t whole_bytes, int arrives);
void qn_held_give(qn_held *h, size_t size_bytes);
/* 0: so much never has room, whatever others hold. */
int qn_held_fits(qn_held *h, size_t size_bytes);
/* The bytes that are held. */
size_t qn_held_get(qn_held *h);

#endif

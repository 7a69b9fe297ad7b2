/* Tickets: numbers that callers hold in place of a model's objects, so that any number can be judged.
 *
 * A ticket names the model, a place in its list and how often that place was used. Nothing of it is an
 * address: a ticket that was freed, whose model was closed, of another model or made up is found to be so in
 * constant time, and nothing is read that it could point to. Objects are freed by the last of those who use
 * them. The list of models that have tickets is process-wide, for a ticket comes without its model. Any
 * thread. */
#ifndef QN_API_TICKETS_H
#define QN_API_TICKETS_H

#include <stdint.h>

#include "api/handles.h"

typedef uint64_t qn_ticket; /* never 0 */
typedef struct qn_tickets qn_tickets;

/* An object in use, which lives until qn_ticket_end. */
typedef struct {
    qn_tickets *tickets;
    qn_model *model;
    void *object;
    uint32_t place;
} qn_ticket_use;

/* Frees an object of a model. */
typedef void qn_ticket_free_fn(qn_model *model, void *object);

/* Takes object over on success. free: how all objects of the model are freed. QN_E_FULL: a million tickets of
 * this model, or 256 models with tickets. */
qn_status qn_ticket_new(qn_model *model, void *object, qn_ticket_free_fn *free, qn_ticket *out);
/* model NULL: any. QN_E_ARG: no ticket of a living object, or one of another model (message: which). */
qn_status qn_ticket_begin(qn_ticket ticket, const qn_model *model, qn_ticket_use *out);
void qn_ticket_end(qn_ticket_use *use);
/* The ticket is none from here on. What is no ticket is passed over. */
void qn_ticket_free(qn_ticket ticket);
/* Of a model that is being closed: waits for those who use its objects, and frees all. */
void qn_tickets_end_all(qn_model *model);

#endif

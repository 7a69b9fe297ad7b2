#include "api/tickets.h"

#include "base/mem.h"

/* A ticket is, from the lowest bit: place, generation, serial number of the model's list. */
enum { PLACE_BITS = 20, GENERATION_BITS = 24, SERIAL_BITS = 20, LISTS_MAX = 256, FIRST_PLACES = 16 };

static const uint32_t places_max = 1u << PLACE_BITS, generation_end = 1u << GENERATION_BITS,
                      serial_end = 1u << SERIAL_BITS, no_place = UINT32_MAX;

typedef struct {
    void *object; /* NULL: the place is free */
    uint32_t generation;
    uint32_t next; /* of the free ones */
    int32_t uses;
    int is_freed; /* by its owner, while others use it */
} place;

struct qn_tickets {
    qn_model *model;
    qn_ticket_free_fn *free;
    uint32_t serial;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t unused;
    int64_t uses;
    place *places;
    uint32_t n_places, capacity, first_free;
    int is_ending;
};

/* Guards lists and next_serial; a list's own lock is taken inside it. */
static pthread_mutex_t lists_lock = PTHREAD_MUTEX_INITIALIZER;
static qn_tickets *lists[LISTS_MAX]; /* at serial % LISTS_MAX */
static uint32_t next_serial = 1;

static qn_status refuse(qn_ticket ticket)
{
    return qn_fail(QN_E_ARG,
                   "cache handle %llx does not exist; it was freed, its model was closed, or it never was a "
                   "handle",
                   (unsigned long long)ticket);
}

/* ---- lists -------------------------------------------------------------------------------------------- */

/* Gives the list a serial number whose place among the lists is free. lists_lock is held. */
static qn_status enter(qn_tickets *t)
{
    for (int i = 0; i < LISTS_MAX; i++) {
        uint32_t serial = next_serial;
        next_serial = next_serial + 1 < serial_end ? next_serial + 1 : 1;
        if (lists[serial % LISTS_MAX]) continue;
        t->serial = serial;
        lists[serial % LISTS_MAX] = t;
        return QN_OK;
    }
    return qn_fail(QN_E_FULL, "%d models have cache handles, which is the maximum", LISTS_MAX);
}

static void free_list(qn_tickets *t)
{
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->unused);
    qn_free(t->places);
    qn_free(t);
}

/* The model's list, made when there is none. */
static qn_status get_list(qn_model *model, qn_ticket_free_fn *free, qn_tickets **out)
{
    qn_status status = QN_OK;
    pthread_mutex_lock(&model->lock);
    if (!model->tickets) {
        qn_tickets *t = qn_calloc(1, sizeof *t);
        status = t ? QN_OK : QN_E_NOMEM;
        if (t) {
            pthread_mutex_init(&t->lock, NULL);
            pthread_cond_init(&t->unused, NULL);
            t->model = model;
            t->free = free;
            t->first_free = no_place;
            pthread_mutex_lock(&lists_lock);
            status = enter(t);
            pthread_mutex_unlock(&lists_lock);
        }
        if (t && status != QN_OK) free_list(t);
        if (status == QN_OK) model->tickets = t;
    }
    *out = model->tickets;
    pthread_mutex_unlock(&model->lock);
    return status;
}

void qn_tickets_end_all(qn_model *model)
{
    qn_tickets *t = model->tickets;
    if (!t) return;
    pthread_mutex_lock(&lists_lock);
    lists[t->serial % LISTS_MAX] = NULL; /* nobody finds it any more */
    pthread_mutex_lock(&t->lock);
    pthread_mutex_unlock(&lists_lock);
    t->is_ending = 1;
    while (t->uses) pthread_cond_wait(&t->unused, &t->lock);
    for (uint32_t i = 0; i < t->n_places; i++)
        if (t->places[i].object) t->free(model, t->places[i].object);
    pthread_mutex_unlock(&t->lock);
    model->tickets = NULL;
    free_list(t);
}

/* ---- tickets ------------------------------------------------------------------------------------------ */

static qn_status take_place(qn_tickets *t, uint32_t *out)
{
    if (t->first_free != no_place) {
        *out = t->first_free;
        t->first_free = t->places[*out].next;
        return QN_OK;
    }
    if (t->n_places == t->capacity) {
        uint32_t capacity = t->capacity ? 2 * t->capacity : FIRST_PLACES;
        if (t->capacity == places_max)
            return qn_fail(QN_E_FULL, "the model has %u cache handles, which is the maximum", places_max);
        place *places = qn_realloc(t->places, capacity * sizeof *places);
        if (!places) return QN_E_NOMEM;
        t->places = places;
        t->capacity = capacity;
    }
    t->places[t->n_places] = (place){.generation = 0};
    *out = t->n_places++;
    return QN_OK;
}

qn_status qn_ticket_new(qn_model *model, void *object, qn_ticket_free_fn *free, qn_ticket *out)
{
    qn_tickets *t = NULL;
    uint32_t at = 0;
    QN_TRY(get_list(model, free, &t));
    pthread_mutex_lock(&t->lock);
    qn_status status = take_place(t, &at);
    if (status == QN_OK) {
        place *p = &t->places[at];
        *p = (place){.object = object, .generation = p->generation};
        *out = (qn_ticket)at | (qn_ticket)p->generation << PLACE_BITS |
               (qn_ticket)t->serial << (PLACE_BITS + GENERATION_BITS);
    }
    pthread_mutex_unlock(&t->lock);
    return status;
}

/* The place of a ticket whose object lives, with its list locked; NULL: there is none, nothing is locked. */
static place *find(qn_ticket ticket, qn_tickets **out)
{
    uint32_t at = (uint32_t)ticket & (places_max - 1);
    uint32_t generation = (uint32_t)(ticket >> PLACE_BITS) & (generation_end - 1);
    uint32_t serial = (uint32_t)(ticket >> (PLACE_BITS + GENERATION_BITS));
    pthread_mutex_lock(&lists_lock);
    qn_tickets *t = lists[serial % LISTS_MAX];
    if (t && t->serial == serial)
        pthread_mutex_lock(&t->lock);
    else
        t = NULL;
    pthread_mutex_unlock(&lists_lock);
    if (!t) return NULL;
    place *p = at < t->n_places ? &t->places[at] : NULL;
    if (p && p->object && p->generation == generation && !p->is_freed) {
        *out = t;
        return p;
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

/* Nobody holds or uses the object any more: returns it, to be freed. The list's lock is held. */
static void *clear(qn_tickets *t, place *p)
{
    void *object = p->object;
    p->object = NULL;
    p->generation = (p->generation + 1) & (generation_end - 1);
    p->next = t->first_free;
    t->first_free = (uint32_t)(p - t->places);
    return object;
}

qn_status qn_ticket_begin(qn_ticket ticket, const qn_model *model, qn_ticket_use *out)
{
    qn_tickets *t = NULL;
    place *p = find(ticket, &t);
    if (!p) return refuse(ticket);
    int is_own = !model || t->model == model;
    if (is_own) {
        p->uses++;
        t->uses++;
        *out = (qn_ticket_use){t, t->model, p->object, (uint32_t)(p - t->places)};
    }
    pthread_mutex_unlock(&t->lock);
    if (is_own) return QN_OK;
    return qn_fail(QN_E_ARG, "cache handle %llx belongs to another model", (unsigned long long)ticket);
}

void qn_ticket_end(qn_ticket_use *use)
{
    qn_tickets *t = use->tickets;
    void *unused = NULL;
    pthread_mutex_lock(&t->lock);
    place *p = &t->places[use->place];
    if (--p->uses == 0 && p->is_freed) unused = clear(t, p);
    pthread_mutex_unlock(&t->lock);
    if (unused) t->free(t->model, unused);
    pthread_mutex_lock(&t->lock); /* the list lives as long as somebody uses it */
    if (--t->uses == 0 && t->is_ending) pthread_cond_signal(&t->unused);
    pthread_mutex_unlock(&t->lock);
}

void qn_ticket_free(qn_ticket ticket)
{
    qn_tickets *t = NULL;
    place *p = find(ticket, &t);
    if (!p) return;
    p->is_freed = 1;
    p->uses++;
    t->uses++;
    qn_ticket_use use = {.tickets = t, .place = (uint32_t)(p - t->places)};
    pthread_mutex_unlock(&t->lock);
    qn_ticket_end(&use);
}

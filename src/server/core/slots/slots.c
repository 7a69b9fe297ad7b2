#include "server/core/slots/slots.h"

#include <pthread.h>
#include <string.h>

#include "base/mem.h"

/* The part of a prompt that a slot must begin with to be like it: llama.cpp's default. */
static const double similar = 0.1;

typedef struct {
    qn_slot_sequence has;
    int key;
    int64_t n_busy;
    uint64_t used; /* the clock when it was taken last; 0: never */
} slot;

struct qn_slots {
    pthread_mutex_t lock;
    qn_held *held;
    int64_t n;
    uint64_t clock;
    slot slots[];
};

qn_status qn_slots_new(int64_t n, qn_held *held, qn_slots **out)
{
    qn_slots *s = qn_calloc(1, sizeof *s + (size_t)n * sizeof *s->slots);
    if (!s) return QN_E_NOMEM;
    pthread_mutex_init(&s->lock, NULL);
    s->held = held;
    s->n = n;
    *out = s;
    return QN_OK;
}

int64_t qn_slots_count(const qn_slots *s)
{
    return s->n;
}

void qn_slot_sequence_free(qn_slot_sequence *sequence)
{
    qn_free(sequence->ids);
    qn_free(sequence->adapter);
    qn_free(sequence->salt);
    *sequence = (qn_slot_sequence){0};
}

static size_t bytes_of(int64_t n_ids)
{
    return (size_t)n_ids * sizeof(int32_t);
}

static void clear(qn_slots *s, slot *x)
{
    if (s->held) qn_held_give(s->held, bytes_of(x->has.n_ids));
    qn_slot_sequence_free(&x->has);
}

void qn_slots_free(qn_slots *s)
{
    if (!s) return;
    for (int64_t i = 0; i < s->n; i++) clear(s, &s->slots[i]);
    pthread_mutex_destroy(&s->lock);
    qn_free(s);
}

static qn_status copy(const int32_t *ids, int64_t n_ids, const char *adapter, const char *salt,
                      qn_slot_sequence *out)
{
    qn_slot_sequence x = {.ids = qn_alloc_array((size_t)(n_ids ? n_ids : 1), sizeof *x.ids),
                          .n_ids = n_ids,
                          .adapter = adapter ? qn_strdup(adapter) : NULL,
                          .salt = salt ? qn_strdup(salt) : NULL};
    if (!x.ids || (adapter && !x.adapter) || (salt && !x.salt)) {
        qn_slot_sequence_free(&x);
        return QN_E_NOMEM;
    }
    if (n_ids) memcpy(x.ids, ids, bytes_of(n_ids));
    *out = x;
    return QN_OK;
}

static void set(qn_slots *s, slot *x, const qn_slot_owner *owner, const int32_t *ids, int64_t n_ids)
{
    const qn_prefix_options *o = &owner->options;
    const size_t bytes = bytes_of(n_ids);
    clear(s, x);
    x->key = owner->key;
    if (!n_ids || (s->held && qn_held_take(s->held, bytes, bytes, 0) != QN_OK)) return;
    if (copy(ids, n_ids, o->adapter, o->cache_salt, &x->has) != QN_OK && s->held)
        qn_held_give(s->held, bytes);
}

/* ---- choosing ------------------------------------------------------------------------------------------ */

static int is_same_text(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

/* How many of the prompt's tokens the slot begins with. */
static int64_t common(const slot *x, const qn_slot_owner *owner, const int32_t *ids, int64_t n_ids)
{
    const int64_t most = n_ids < x->has.n_ids ? n_ids : x->has.n_ids;
    int64_t n = 0;
    if (x->key != owner->key || !is_same_text(x->has.adapter, owner->options.adapter) ||
        !is_same_text(x->has.salt, owner->options.cache_salt))
        return 0;
    while (n < most && x->has.ids[n] == ids[n]) n++;
    return n;
}

/* Of the slots that are idle, if any is: the one most like the prompt, else the one that was used longest ago. */
static int64_t choose(const qn_slots *s, const qn_slot_owner *owner, const int32_t *ids, int64_t n_ids)
{
    int64_t best = -1, oldest = -1, n_best = (int64_t)(similar * (double)n_ids);
    int has_idle = 0;
    for (int64_t i = 0; i < s->n; i++) has_idle |= !s->slots[i].n_busy;
    for (int64_t i = 0; i < s->n; i++) {
        const slot *x = &s->slots[i];
        if (has_idle && x->n_busy) continue;
        const int64_t n = common(x, owner, ids, n_ids);
        if (n > n_best) {
            n_best = n;
            best = i;
        }
        if (oldest < 0 || x->used < s->slots[oldest].used) oldest = i;
    }
    return best >= 0 ? best : oldest;
}

int64_t qn_slots_take(qn_slots *s, const qn_slot_owner *owner, int64_t wanted, const int32_t *ids,
                      int64_t n_ids)
{
    pthread_mutex_lock(&s->lock);
    const int64_t id = wanted >= 0 ? wanted : choose(s, owner, ids, n_ids);
    s->slots[id].n_busy++;
    s->slots[id].used = ++s->clock;
    pthread_mutex_unlock(&s->lock);
    return id;
}

void qn_slots_give(qn_slots *s, int64_t id, const qn_slot_owner *owner, const int32_t *ids, int64_t n_ids)
{
    pthread_mutex_lock(&s->lock);
    s->slots[id].n_busy--;
    set(s, &s->slots[id], owner, ids, n_ids);
    pthread_mutex_unlock(&s->lock);
}

/* ---- by number ----------------------------------------------------------------------------------------- */

void qn_slots_set(qn_slots *s, int64_t id, const qn_slot_owner *owner, const int32_t *ids, int64_t n_ids)
{
    pthread_mutex_lock(&s->lock);
    set(s, &s->slots[id], owner, ids, n_ids);
    s->slots[id].used = ++s->clock;
    pthread_mutex_unlock(&s->lock);
}

qn_status qn_slots_get(qn_slots *s, int64_t id, int key, int takes, qn_slot_sequence *out)
{
    slot *x = &s->slots[id];
    qn_status status = QN_OK;
    *out = (qn_slot_sequence){0};
    pthread_mutex_lock(&s->lock);
    if (x->key == key && x->has.n_ids) {
        status = copy(x->has.ids, x->has.n_ids, x->has.adapter, x->has.salt, out);
        if (status == QN_OK && takes) clear(s, x);
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

int qn_slots_look(qn_slots *s, int64_t id, int64_t *n_ids)
{
    pthread_mutex_lock(&s->lock);
    const int is_busy = s->slots[id].n_busy > 0;
    if (n_ids) *n_ids = s->slots[id].has.n_ids;
    pthread_mutex_unlock(&s->lock);
    return is_busy;
}

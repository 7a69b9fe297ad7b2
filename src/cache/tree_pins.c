/* Pins: by name, which stay until they are taken away, and with a time, which give way. */
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cache/tree_parts.h"

/* ---- by name ------------------------------------------------------------------------------------------ */

static qn_tree_held **find_pin(qn_tree *t, const char *name)
{
    qn_tree_held **at = &t->pins;
    while (*at && strcmp((*at)->name, name) != 0) at = &(*at)->next;
    return at;
}

static int remove_pin(qn_tree *t, const char *name)
{
    qn_tree_held **at = find_pin(t, name);
    if (!*at) return 0;
    qn_tree_node *n = (*at)->node;
    qn_tree_remove_pin(t, at);
    qn_tree_list(t, n);
    return 1;
}

/* The lock is held. pin is taken when all is well. */
static qn_status pin_to(qn_tree *t, const qn_tree_way *way, int64_t n, qn_tree_held *pin)
{
    qn_tree_node *node = way->usable;
    if (n <= 0 || way->n_usable < n)
        return qn_fail(QN_E_NOT_FOUND, "prefix tree: only %lld of %lld tokens exist",
                       (long long)way->n_usable, (long long)n);
    if (n < node->end && !(node = qn_tree_split(t, node, n))) return QN_E_NOMEM;
    remove_pin(t, pin->name);
    pin->node = node;
    pin->next = t->pins;
    t->pins = pin;
    node->n_pins++;
    t->counters.pins++;
    qn_tree_list(t, node);
    return QN_OK;
}

/* Only where a node has to be split there must be room for another. */
static qn_status find_and_pin(qn_tree *t, const qn_tree_key *key, const int32_t *ids, int64_t n,
                              qn_tree_held *pin)
{
    for (size_t room = 0;; room = qn_tree_node_bytes(t, n)) {
        qn_tree_way way;
        QN_TRY(qn_ledger_reserve(t->spec.ledger, QN_LEDGER_CACHE, room));
        pthread_mutex_lock(&t->lock);
        t->added_bytes = 0;
        qn_tree_find(t, key, ids, n, NULL, &way);
        int needs_room = !room && n > 0 && way.n_usable == n && n < way.usable->end;
        qn_status status = needs_room ? QN_OK : pin_to(t, &way, n, pin);
        qn_ledger_release(t->spec.ledger, QN_LEDGER_CACHE, room - t->added_bytes);
        pthread_mutex_unlock(&t->lock);
        if (!needs_room) return status;
    }
}

qn_status qn_tree_pin(qn_tree *t, const qn_tree_key *key, const int32_t *ids, int64_t n, const char *name)
{
    qn_tree_held *pin = qn_calloc(1, sizeof *pin);
    qn_status status = pin && (pin->name = qn_strdup(name)) ? find_and_pin(t, key, ids, n, pin) : QN_E_NOMEM;
    if (status == QN_OK) return QN_OK;
    if (pin) qn_free(pin->name);
    qn_free(pin);
    return status;
}

qn_status qn_tree_unpin(qn_tree *t, const char *name)
{
    pthread_mutex_lock(&t->lock);
    int found = remove_pin(t, name);
    pthread_mutex_unlock(&t->lock);
    return found ? QN_OK : qn_fail(QN_E_NOT_FOUND, "prefix tree: nothing is pinned as '%s'", name);
}

int qn_tree_is_pinned(qn_tree *t, const char *name)
{
    pthread_mutex_lock(&t->lock);
    int found = *find_pin(t, name) != NULL;
    pthread_mutex_unlock(&t->lock);
    return found;
}

/* ---- with a time -------------------------------------------------------------------------------------- */

static void unlink_timed(qn_tree *t, qn_tree_timed *pin)
{
    *(pin->older ? &pin->older->newer : &t->oldest_timed) = pin->newer;
    *(pin->newer ? &pin->newer->older : &t->newest_timed) = pin->older;
}

static void link_newest(qn_tree *t, qn_tree_timed *pin)
{
    pin->newer = NULL;
    pin->older = t->newest_timed;
    *(pin->older ? &pin->older->newer : &t->oldest_timed) = pin;
    t->newest_timed = pin;
}

void qn_tree_remove_timed(qn_tree *t, qn_tree_node *n)
{
    qn_tree_timed *pin = n->timed;
    if (!pin) return;
    unlink_timed(t, pin);
    n->timed = NULL;
    t->counters.timed_pins--;
    qn_free(pin);
    qn_tree_list(t, n);
}

void qn_tree_expire(qn_tree *t)
{
    const int64_t now = t->oldest_timed ? qn_clock_ns() : 0;
    if (!t->oldest_timed || now < t->first_until_ns) return;
    t->first_until_ns = INT64_MAX;
    for (qn_tree_timed *pin = t->oldest_timed, *next; pin; pin = next) {
        next = pin->newer;
        if (pin->until_ns <= now)
            qn_tree_remove_timed(t, pin->node);
        else if (pin->until_ns < t->first_until_ns)
            t->first_until_ns = pin->until_ns;
    }
}

/* The lock is held. *spare becomes the pin, unless the node has one. */
static void hold_node(qn_tree *t, qn_tree_node *n, int64_t until_ns, qn_tree_timed **spare)
{
    if (!n->timed) {
        n->timed = *spare;
        *spare = NULL;
        n->timed->node = n;
        n->timed->until_ns = until_ns;
        t->counters.timed_pins++;
    } else {
        unlink_timed(t, n->timed);
        if (until_ns > n->timed->until_ns) n->timed->until_ns = until_ns;
    }
    link_newest(t, n->timed);
    qn_tree_list(t, n);
    if (t->counters.timed_pins == 1 || until_ns < t->first_until_ns) t->first_until_ns = until_ns;
    if (t->counters.timed_pins > QN_TREE_TIMED_MAX) {
        qn_tree_remove_timed(t, t->oldest_timed->node);
        t->counters.given_up_pins++;
    }
}

int64_t qn_tree_hold(qn_tree *t, const qn_tree_key *key, const int32_t *ids, int64_t n, int64_t ttl_ns)
{
    const int64_t now = qn_clock_ns(), until = ttl_ns < INT64_MAX - now ? now + ttl_ns : INT64_MAX;
    qn_tree_timed *spare = qn_calloc(1, sizeof *spare);
    int64_t n_held = 0;
    /* Only where a node has to be split there must be room for another. */
    for (size_t room = 0; spare; room = qn_tree_node_bytes(t, n)) {
        qn_tree_way way;
        if (qn_ledger_reserve(t->spec.ledger, QN_LEDGER_CACHE, room) != QN_OK) break;
        pthread_mutex_lock(&t->lock);
        t->added_bytes = 0;
        qn_tree_expire(t);
        qn_tree_find(t, key, ids, n, NULL, &way);
        qn_tree_node *node = way.usable;
        const int needs_room = node && !room && way.n_usable < node->end;
        if (node && !needs_room && way.n_usable < node->end) node = qn_tree_split(t, node, way.n_usable);
        if (node && !needs_room) {
            n_held = way.n_usable;
            hold_node(t, node, until, &spare);
        }
        qn_ledger_release(t->spec.ledger, QN_LEDGER_CACHE, room - t->added_bytes);
        pthread_mutex_unlock(&t->lock);
        if (!needs_room) break;
    }
    qn_free(spare);
    return n_held;
}

#include "cli/constrain/member_order.h"

#include <string.h>

#include "base/mem.h"
#include "cli/constrain/instance_text.h"

enum { TRIES_MAX = 20000, LISTS_MAX = 8 };

typedef struct {
    const qn_value *schema;
    int64_t tries; /* left */
    qn_status status;
    qn_buf text;
} search;

static int place(search *s, const qn_value *v, qn_matcher **m);

static int fail(search *s, qn_status status)
{
    if (s->status == QN_OK) s->status = status;
    return 0;
}

/* Accepts bytes on m itself. */
static int accept(search *s, qn_matcher *m, const char *bytes, size_t n)
{
    size_t n_taken = 0;
    qn_status status = qn_matcher_accept_text(m, bytes, n, &n_taken);
    if (status != QN_OK && status != QN_E_ARG) return fail(s, status);
    if (status != QN_OK || n_taken != n) return 0;
    qn_buf_append(&s->text, bytes, n);
    return s->text.status == QN_OK || fail(s, s->text.status);
}

/* ---- which orders to try first ------------------------------------------------------------------------- */

/* Lists of properties in the schema that have keys of one object, those with most first. */
typedef struct {
    const qn_value *of[LISTS_MAX];
    uint32_t n_keys[LISTS_MAX];
    int n;
} lists;

static void add_list(lists *l, const qn_value *properties, uint32_t n_keys)
{
    int i = l->n < LISTS_MAX ? l->n++ : LISTS_MAX - 1;
    for (; i > 0 && l->n_keys[i - 1] < n_keys; i--) {
        l->of[i] = l->of[i - 1];
        l->n_keys[i] = l->n_keys[i - 1];
    }
    if (i == LISTS_MAX - 1 && l->of[i] && l->n_keys[i] >= n_keys) return;
    l->of[i] = properties;
    l->n_keys[i] = n_keys;
}

static void find_lists(const qn_value *schema, const qn_value *v, lists *l)
{
    if (schema->kind < QN_VALUE_ARRAY) return;
    for (uint32_t i = 0; i < schema->n; i++) {
        const qn_value *child = &schema->children[i];
        uint32_t n = 0;
        if (child->key && child->kind == QN_VALUE_OBJECT && !strcmp(child->key, "properties"))
            for (uint32_t k = 0; k < v->n; k++)
                n += qn_value_get(child, v->children[k].key, v->children[k].key_bytes) != NULL;
        if (n) add_list(l, child, n);
        find_lists(child, v, l);
    }
}

/* Appends the members of v that the list has, in its order, to those in order [v->n] already. */
static void append_list(const qn_value *list, const qn_value *v, uint8_t *used, uint32_t *order, uint32_t *n)
{
    for (uint32_t i = 0; i < list->n; i++) {
        const qn_value *child = qn_value_get(v, list->children[i].key, list->children[i].key_bytes);
        if (!child || used[child->index]) continue;
        used[child->index] = 1;
        order[(*n)++] = child->index;
    }
}

/* order [v->n]: the members of list a, then of b, then of the others, then those in no list. */
static void fill_order(const lists *l, int a, int b, const qn_value *v, uint8_t *used, uint32_t *order)
{
    uint32_t n = 0;
    memset(used, 0, v->n);
    if (a < l->n) append_list(l->of[a], v, used, order, &n);
    if (b < l->n) append_list(l->of[b], v, used, order, &n);
    for (int i = 0; i < l->n; i++) append_list(l->of[i], v, used, order, &n);
    for (uint32_t i = 0; i < v->n; i++)
        if (!used[i]) order[n++] = i;
    memset(used, 0, v->n);
}

/* ---- the search ---------------------------------------------------------------------------------------- */

/* One object while it is placed. */
typedef struct {
    const qn_value *v;
    uint32_t *order; /* [v->n] */
    uint8_t *used;   /* [v->n], by place in the order */
    int is_straight; /* no other order than this */
} object;

/* Places the members that are not yet used, and the bracket. */
static int place_members(search *s, object *o, uint32_t n_used, qn_matcher **m)
{
    if (n_used == o->v->n) return accept(s, *m, "}", 1);
    size_t length = s->text.length;
    for (uint32_t i = o->is_straight ? n_used : 0; i < o->v->n && s->status == QN_OK; i++) {
        if (o->used[i]) continue;
        if (--s->tries < 0) return 0;
        const qn_value *child = &o->v->children[o->order[i]];
        qn_matcher *next = NULL;
        qn_buf key = {0};
        if (n_used) qn_buf_puts(&key, ", ");
        qn_instance_write_string(child->key, child->key_bytes, &key);
        qn_buf_puts(&key, ": ");
        qn_status status = key.status == QN_OK ? qn_matcher_copy(*m, &next) : key.status;
        if (status != QN_OK) fail(s, status);
        o->used[i] = 1;
        int placed = status == QN_OK && accept(s, next, key.data, key.length) && place(s, child, &next) &&
                     place_members(s, o, n_used + 1, &next);
        qn_buf_free(&key);
        if (placed) {
            qn_matcher_free(*m);
            *m = next;
            return 1;
        }
        o->used[i] = 0;
        qn_matcher_free(next);
        s->text.length = length;
        if (o->is_straight) return 0;
    }
    return 0;
}

/* Tries one order as it is, or, if straight is 0, all orders. *m is replaced if one is allowed. */
static int try_order(search *s, object *o, int is_straight, qn_matcher **m)
{
    qn_matcher *own = NULL;
    size_t length = s->text.length;
    if (s->status != QN_OK || s->tries < 0) return 0;
    if (qn_matcher_copy(*m, &own) != QN_OK) return fail(s, QN_E_NOMEM);
    o->is_straight = is_straight;
    if (accept(s, own, "{", 1) && place_members(s, o, 0, &own)) {
        qn_matcher_free(*m);
        *m = own;
        return 1;
    }
    qn_matcher_free(own);
    s->text.length = length;
    return 0;
}

static int place_object(search *s, const qn_value *v, qn_matcher **m)
{
    object o = {v, qn_alloc_array((size_t)v->n + 1, sizeof(uint32_t)), qn_calloc((size_t)v->n + 1, 1), 1};
    lists l = {.n = 0};
    int placed = 0;
    if (!o.order || !o.used) {
        fail(s, QN_E_NOMEM);
    } else {
        for (uint32_t i = 0; i < v->n; i++) o.order[i] = i;
        placed = try_order(s, &o, 1, m);
        if (!placed) find_lists(s->schema, v, &l);
        for (int a = 0; a < l.n; a++)
            for (int b = 0; b < l.n && !placed; b++) {
                if (a == b && l.n > 1) continue;
                fill_order(&l, a, b, v, o.used, o.order);
                placed = try_order(s, &o, 1, m);
            }
        if (!placed) {
            fill_order(&l, 0, 0, v, o.used, o.order);
            placed = try_order(s, &o, 0, m);
        }
    }
    qn_free(o.order);
    qn_free(o.used);
    return placed;
}

/* Places v behind what *m has accepted. 0: *m is of no use any more. */
static int place(search *s, const qn_value *v, qn_matcher **m)
{
    if (v->kind == QN_VALUE_OBJECT) return place_object(s, v, m);
    if (v->kind == QN_VALUE_ARRAY) {
        if (!accept(s, *m, "[", 1)) return 0;
        for (uint32_t i = 0; i < v->n; i++)
            if ((i && !accept(s, *m, ", ", 2)) || !place(s, &v->children[i], m)) return 0;
        return accept(s, *m, "]", 1);
    }
    qn_buf text = {0};
    qn_instance_write(v, -1, &text);
    int placed = text.status == QN_OK ? accept(s, *m, text.data, text.length) : fail(s, text.status);
    qn_buf_free(&text);
    return placed;
}

qn_status qn_member_order_find(qn_constraint *c, const qn_value *schema, const qn_value *v, int *found,
                               qn_buf *text)
{
    search s = {.schema = schema, .tries = TRIES_MAX};
    qn_matcher *m = NULL;
    QN_TRY(qn_matcher_new(c, &m));
    int placed = place(&s, v, &m) && qn_matcher_may_end(m);
    qn_matcher_free(m);
    if (placed && text) qn_buf_append(text, s.text.data, s.text.length);
    qn_buf_free(&s.text);
    if (s.status != QN_OK) return s.status;
    *found = placed;
    return QN_OK;
}

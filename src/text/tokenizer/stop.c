#include "text/tokenizer/stop.h"

#include <string.h>

#include "base/mem.h"

/* A node is a prefix of one or more strings; node 0 is the empty one. Its children are a list, since most
 * have one. */
typedef struct {
    int32_t child, sibling; /* 0: none */
    int32_t fail;           /* the longest proper suffix of this prefix that is a node too */
    int32_t depth;          /* length of the prefix in bytes */
    int32_t match;          /* length of the longest string that ends here; 0: none */
    int32_t string;         /* which one that is; of equal ones the first */
    unsigned char byte;     /* last byte of the prefix */
} node;

struct qn_stop_set {
    node *nodes;
    int32_t n_nodes;
    int32_t root[256]; /* the root's children by byte */
};

static int32_t find_child(const qn_stop_set *set, int32_t at, unsigned char byte)
{
    if (at == 0) return set->root[byte];
    for (int32_t c = set->nodes[at].child; c; c = set->nodes[c].sibling)
        if (set->nodes[c].byte == byte) return c;
    return 0;
}

static int32_t step(const qn_stop_set *set, int32_t at, unsigned char byte)
{
    for (;;) {
        int32_t next = find_child(set, at, byte);
        if (next || at == 0) return next;
        at = set->nodes[at].fail;
    }
}

static void insert(qn_stop_set *set, const char *string, size_t i_string)
{
    int32_t at = 0, depth = 0;
    for (const char *p = string; *p; p++) {
        unsigned char byte = (unsigned char)*p;
        int32_t next = find_child(set, at, byte);
        depth++;
        if (!next) {
            next = set->n_nodes++;
            set->nodes[next] = (node){.sibling = set->nodes[at].child, .depth = depth, .byte = byte};
            set->nodes[at].child = next;
            if (at == 0) set->root[byte] = next;
        }
        at = next;
    }
    if (set->nodes[at].match) return;
    set->nodes[at].match = depth;
    set->nodes[at].string = (int32_t)i_string;
}

/* Breadth first: a node's fail link is shorter than the node, so it is finished before. */
static void link_failures(qn_stop_set *set, int32_t *queue)
{
    int32_t n = 0;
    for (int32_t c = set->nodes[0].child; c; c = set->nodes[c].sibling) queue[n++] = c;
    for (int32_t i = 0; i < n; i++) {
        node *parent = &set->nodes[queue[i]];
        for (int32_t c = parent->child; c; c = set->nodes[c].sibling) {
            node *child = &set->nodes[c];
            child->fail = step(set, parent->fail, child->byte);
            if (!child->match) {
                child->match = set->nodes[child->fail].match;
                child->string = set->nodes[child->fail].string;
            }
            queue[n++] = c;
        }
    }
}

qn_status qn_stop_set_new(const char *const *strings, size_t n, qn_stop_set **out)
{
    size_t total = 0;
    for (size_t i = 0; i < n; i++) {
        size_t length = strings[i] ? strlen(strings[i]) : 0;
        if (length == 0) return qn_fail(QN_E_ARG, "stop string %zu is empty", i);
        if (length > QN_STOP_BYTES_MAX - total)
            return qn_fail(QN_E_ARG, "stop strings of more than %d bytes", QN_STOP_BYTES_MAX);
        total += length;
    }
    qn_stop_set *set = qn_calloc(1, sizeof *set);
    int32_t *queue = qn_alloc_array(total + 1, sizeof *queue);
    if (set) set->nodes = qn_calloc(total + 1, sizeof *set->nodes);
    if (!set || !queue || !set->nodes) {
        qn_stop_set_free(set);
        qn_free(queue);
        return QN_E_NOMEM;
    }
    set->n_nodes = 1;
    for (size_t i = 0; i < n; i++) insert(set, strings[i], i);
    link_failures(set, queue);
    qn_free(queue);
    *out = set;
    return QN_OK;
}

void qn_stop_set_free(qn_stop_set *set)
{
    if (!set) return;
    qn_free(set->nodes);
    qn_free(set);
}

qn_status qn_stop_feed(qn_stop *s, const char *bytes, size_t n, qn_buf *out)
{
    if (s->hit) return QN_OK;
    size_t before = s->held.length, i = 0;
    qn_buf_append(&s->held, bytes, n);
    if (s->held.status != QN_OK) return s->held.status;
    int32_t match = 0;
    for (; i < n && !match; i++) {
        s->state = step(s->set, s->state, (unsigned char)bytes[i]);
        match = s->set->nodes[s->state].match;
    }
    size_t keep = (size_t)s->set->nodes[s->state].depth, ready = before + i - (size_t)match;
    if (match) {
        s->hit = 1;
        s->string = (size_t)s->set->nodes[s->state].string;
    } else {
        ready -= keep;
    }
    qn_buf_append(out, s->held.data, ready);
    if (out->status != QN_OK) return out->status;
    if (match)
        qn_buf_reset(&s->held);
    else if (ready) {
        memmove(s->held.data, s->held.data + ready, keep + 1);
        s->held.length = keep;
    }
    return QN_OK;
}

qn_status qn_stop_flush(qn_stop *s, qn_buf *out)
{
    qn_buf_append(out, s->held.data, s->held.length);
    if (out->status != QN_OK) return out->status;
    qn_buf_reset(&s->held);
    s->state = 0;
    return QN_OK;
}

void qn_stop_end(qn_stop *s)
{
    qn_buf_free(&s->held);
}

/* Scans: free text up to the first of several marks. */
#include <string.h>

#include "base/mem.h"
#include "constrain/machine/program.h"

enum { SPECIAL = 0xff, MARK_BYTES_MAX = 4096, STATES_MAX = 60000 };

/* The trie of the marks. State 0 is CLOSED, 1 is DEAD, 2 is the root; the marks that do not come first lie below
 * a second root, which is the start and falls back to the first. */
typedef struct {
    uint32_t n_states, n_classes;
    uint8_t class_of[256];
    uint16_t *next; /* [n_states_max, n_classes]; 0: no child */
    uint16_t *fallback, *queue;
    uint8_t *ends, *is_bad,
        *is_special; /* of the text that leads to a state; is_special: it begins with 0xff */
    uint16_t first;  /* the root of marks that do not come first; 0: there are none */
} trie;

static uint16_t *child(const trie *t, uint32_t state, uint32_t c)
{
    return &t->next[state * t->n_classes + c];
}

static void add_mark(trie *t, const qn_scan_mark *m)
{
    uint32_t at = m->kind == QN_SCAN_BAD_FIRST ? t->first : QN_SCAN_ROOT;
    for (size_t i = 0; i < m->n; i++) {
        uint16_t *to = child(t, at, t->class_of[(uint8_t)m->text[i]]);
        if (!*to) {
            *to = (uint16_t)t->n_states;
            t->is_special[t->n_states++] = (uint8_t)m->text[0] == SPECIAL;
        }
        at = *to;
    }
    if (m->kind == QN_SCAN_END)
        t->ends[at] = 1;
    else
        t->is_bad[at] = 1;
}

/* Every state gets its way for each class, in the order of the texts' lengths. */
static void finish(trie *t, int only_text)
{
    uint32_t n_queue = 0, special = t->class_of[SPECIAL];
    t->queue[n_queue++] = QN_SCAN_ROOT;
    if (t->first) t->queue[n_queue++] = t->first;
    for (uint32_t i = 0; i < n_queue; i++) {
        uint32_t s = t->queue[i], f = t->fallback[s];
        for (uint32_t c = 0; c < t->n_classes; c++) {
            uint16_t *to = child(t, s, c), otherwise = s == QN_SCAN_ROOT ? QN_SCAN_ROOT : *child(t, f, c);
            if (*to) {
                if (otherwise == QN_SCAN_DEAD) otherwise = QN_SCAN_ROOT;
                t->fallback[*to] = otherwise;
                t->ends[*to] |= t->ends[otherwise];
                t->is_bad[*to] |= t->is_bad[otherwise];
                t->queue[n_queue++] = *to;
            } else {
                *to = otherwise;
                if (only_text && (t->is_special[s] || (c == special && !t->is_special[otherwise])))
                    *to = QN_SCAN_DEAD;
            }
        }
    }
    for (uint32_t i = QN_SCAN_ROOT * t->n_classes; i < t->n_states * t->n_classes; i++) {
        uint16_t to = t->next[i];
        t->next[i] = t->ends[to] ? QN_SCAN_CLOSED : t->is_bad[to] ? QN_SCAN_DEAD : to;
    }
}

static qn_status make(trie *t, const qn_scan_mark *marks, size_t n, int only_text)
{
    size_t room = QN_SCAN_ROOT + 2;
    t->n_classes = 1;
    t->class_of[SPECIAL] = (uint8_t)t->n_classes++;
    for (size_t i = 0; i < n; i++) {
        if (marks[i].n == 0 || marks[i].n > MARK_BYTES_MAX)
            return qn_fail(QN_E_ARG, "a mark has 1 to %d bytes, this one %zu", MARK_BYTES_MAX, marks[i].n);
        room += marks[i].n;
        for (size_t k = 0; k < marks[i].n; k++) {
            uint8_t *c = &t->class_of[(uint8_t)marks[i].text[k]];
            if (*c == 0) *c = (uint8_t)t->n_classes++;
        }
    }
    if (room > STATES_MAX) return qn_fail(QN_E_UNSUPPORTED, "the marks of a text have %zu bytes", room);
    t->next = qn_calloc(room * t->n_classes, sizeof *t->next);
    t->fallback = qn_calloc(2 * room, sizeof *t->fallback);
    t->ends = qn_calloc(3 * room, 1);
    if (!t->next || !t->fallback || !t->ends) return QN_E_NOMEM;
    t->queue = t->fallback + room;
    t->is_bad = t->ends + room;
    t->is_special = t->is_bad + room;
    t->n_states = QN_SCAN_ROOT + 1;
    for (size_t i = 0; i < n; i++)
        if (marks[i].kind == QN_SCAN_BAD_FIRST && !t->first) {
            t->first = (uint16_t)t->n_states++;
            t->fallback[t->first] = QN_SCAN_ROOT;
        }
    for (size_t i = 0; i < n; i++) add_mark(t, &marks[i]);
    finish(t, only_text);
    return QN_OK;
}

qn_status qn_program_add_scan(qn_program *p, const qn_scan_mark *marks, size_t n, int only_text, int32_t *out)
{
    trie t = {0};
    qn_status status = make(&t, marks, n, only_text);
    if (status == QN_OK) status = qn_program_room_for_scan(p);
    if (status == QN_OK) {
        qn_scan *s = &p->scans[p->n_scans];
        size_t n_bytes = (size_t)t.n_states * t.n_classes * sizeof *t.next;
        *s = (qn_scan){.n_states = t.n_states, .n_classes = t.n_classes};
        s->start = t.first ? t.first : QN_SCAN_ROOT;
        memcpy(s->class_of, t.class_of, sizeof s->class_of);
        s->next = qn_arena_alloc(&p->arena, n_bytes);
        if (s->next) memcpy(s->next, t.next, n_bytes);
        status = s->next ? QN_OK : QN_E_NOMEM;
    }
    if (status == QN_OK) *out = (int32_t)p->n_scans++;
    qn_free(t.next);
    qn_free(t.fallback);
    qn_free(t.ends);
    return status;
}

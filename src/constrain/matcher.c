#include <string.h>

#include "base/mem.h"
#include "constrain/constraint_parts.h"

/* ---- one at a time ------------------------------------------------------------------------------------- */

static qn_status make_room(qn_constraint *c)
{
    size_t held = qn_machine_bytes(&c->machine), max = c->limits.memory_max;
    if (c->program.grammar) held += qn_grammar_run_bytes(c->program.grammar);
    if (held <= max / 2) return QN_OK;
    size_t n = 0;
    for (qn_matcher *m = c->matchers; m; m = m->next) n++;
    uint32_t **keep = qn_alloc_array(n + 1, sizeof *keep);
    if (!keep) return QN_E_NOMEM;
    n = 0;
    keep[n++] = &c->start;
    for (qn_matcher *m = c->matchers; m; m = m->next) keep[n++] = &m->state;
    qn_status status = qn_machine_sweep(&c->machine, keep, n);
    qn_free(keep);
    if (status != QN_OK) return status;
    qn_masks_forget(&c->masks);
    held = qn_machine_bytes(&c->machine);
    if (c->program.grammar) held += qn_grammar_run_bytes(c->program.grammar);
    if (held > max / 2)
        return qn_fail(QN_E_FULL, "the places of the constraint's texts need more than %zu bytes", max);
    return QN_OK;
}

/* Takes the lock; c's machine is ready for one call. */
static qn_status enter(qn_constraint *c)
{
    pthread_mutex_lock(&c->lock);
    c->machine.status = QN_OK;
    c->machine.is_loose = 0;
    c->machine.is_suspect = 0;
    c->machine.n_steps = c->machine.steps_max;
    if (c->machine.is_broken) return qn_fail(QN_E_NOMEM, "the constraint lost its places: out of memory");
    return make_room(c);
}

static qn_status leave(qn_constraint *c, qn_status status)
{
    pthread_mutex_unlock(&c->lock);
    return status;
}

/* ---- making -------------------------------------------------------------------------------------------- */

static qn_status add(qn_constraint *c, const qn_matcher *from, qn_matcher **out)
{
    qn_matcher *m = qn_calloc(1, sizeof *m);
    if (!m) return QN_E_NOMEM;
    m->c = qn_constraint_retain(c);
    pthread_mutex_lock(&c->lock);
    m->state = from ? from->state : c->start;
    if (from) m->has_ended = from->has_ended, m->has_lines = from->has_lines;
    m->next = c->matchers;
    if (m->next) m->next->previous = m;
    c->matchers = m;
    pthread_mutex_unlock(&c->lock);
    *out = m;
    return QN_OK;
}

qn_status qn_matcher_new(qn_constraint *c, qn_matcher **out)
{
    return add(c, NULL, out);
}

qn_status qn_matcher_copy(const qn_matcher *m, qn_matcher **out)
{
    return add(m->c, m, out);
}

void qn_matcher_free(qn_matcher *m)
{
    if (!m) return;
    qn_constraint *c = m->c;
    pthread_mutex_lock(&c->lock);
    if (m->previous)
        m->previous->next = m->next;
    else
        c->matchers = m->next;
    if (m->next) m->next->previous = m->previous;
    pthread_mutex_unlock(&c->lock);
    qn_constraint_release(c);
    qn_free(m);
}

/* ---- asking -------------------------------------------------------------------------------------------- */

qn_status qn_matcher_mask(qn_matcher *m, uint32_t *bits)
{
    qn_constraint *c = m->c;
    const qn_vocabulary *v = c->v;
    if (m->has_ended) {
        memset(bits, 0, v->n_words * sizeof *bits);
        return QN_OK;
    }
    qn_status status = enter(c);
    if (status == QN_OK) status = qn_masks_get(&c->masks, m->state, bits);
    if (status == QN_OK && qn_machine_may_end(&c->machine, m->state))
        for (size_t i = 0; i < v->n_end_ids; i++)
            bits[v->end_ids[i] >> 5] |= UINT32_C(1) << (v->end_ids[i] & 31);
    return leave(c, status);
}

int qn_matcher_may_end(const qn_matcher *m)
{
    if (m->has_ended) return 1;
    pthread_mutex_lock(&m->c->lock);
    int may = qn_machine_may_end(&m->c->machine, m->state);
    pthread_mutex_unlock(&m->c->lock);
    return may;
}

static int is_done(const qn_machine *k, uint32_t state)
{
    const qn_state *s = &k->states[state];
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t stack = k->stacks[s->begin + i];
        /* A text that can only end is done as well. */
        for (; stack && k->frames[stack].kind == QN_FRAME_TEXT; stack = k->frames[stack].parent) {
            const qn_dfa *d = k->program->dfas[k->frames[stack].a];
            const int32_t *next = d->next + (size_t)k->frames[stack].b * (size_t)d->n_classes;
            for (int32_t x = 0; x < d->n_classes; x++)
                if (next[x]) return 0;
        }
        if (stack && k->frames[stack].kind == QN_FRAME_GRAMMAR) {
            for (int byte = 0; byte < 256; byte++) {
                uint32_t to;
                if (qn_grammar_run_step(k->program->grammar, k->frames[stack].a, (uint8_t)byte, &to) !=
                        QN_OK ||
                    to)
                    return 0;
            }
            continue;
        }
        if (stack) return 0;
    }
    return 1;
}

int qn_matcher_is_done(const qn_matcher *m)
{
    if (m->has_ended) return 1;
    pthread_mutex_lock(&m->c->lock);
    int done = is_done(&m->c->machine, m->state);
    pthread_mutex_unlock(&m->c->lock);
    return done;
}

/* ---- steps --------------------------------------------------------------------------------------------- */

/* 1: the top of a state is between values, where a line end is no text. */
static int is_between(const qn_machine *k, uint32_t state)
{
    const qn_state *s = &k->states[state];
    for (uint32_t i = 0; i < s->n; i++) {
        uint8_t kind = k->frames[k->stacks[s->begin + i]].kind;
        if (k->stacks[s->begin + i] && (kind == QN_FRAME_OBJECT || kind == QN_FRAME_ARRAY)) return 1;
    }
    return 0;
}

/* 0: the bytes may not come. */
static uint32_t steps(qn_machine *k, uint32_t state, const char *text, size_t n, uint8_t *has_lines,
                      size_t *n_taken)
{
    size_t i = 0;
    for (; i < n; i++) {
        uint32_t to = qn_machine_step(k, state, (uint8_t)text[i]);
        if (!to) break;
        if (text[i] == '\n' && is_between(k, to)) *has_lines = 1;
        state = to;
    }
    *n_taken = i;
    return state;
}

int qn_matcher_allows(qn_matcher *m, int32_t id)
{
    qn_constraint *c = m->c;
    if (m->has_ended) return 0;
    if (qn_vocabulary_is_end(c->v, id)) return qn_matcher_may_end(m);
    size_t n, n_taken = 0;
    const char *text = qn_vocabulary_text(c->v, id, &n);
    uint8_t has_lines = 0;
    qn_status status = enter(c);
    if (status == QN_OK) steps(&c->machine, m->state, text, n, &has_lines, &n_taken);
    leave(c, status);
    return n > 0 && n_taken == n;
}

qn_status qn_matcher_accept(qn_matcher *m, int32_t id)
{
    qn_constraint *c = m->c;
    if (m->has_ended) return qn_fail(QN_E_ARG, "the text has ended: no token may come");
    if (qn_vocabulary_is_end(c->v, id)) {
        if (!qn_matcher_may_end(m)) return qn_fail(QN_E_ARG, "the text may not end here");
        m->has_ended = 1;
        return QN_OK;
    }
    size_t n, n_taken = 0;
    const char *text = qn_vocabulary_text(c->v, id, &n);
    uint8_t has_lines = m->has_lines;
    qn_status status = enter(c);
    if (status != QN_OK) return leave(c, status);
    uint32_t state = steps(&c->machine, m->state, text, n, &has_lines, &n_taken);
    status = c->machine.status;
    if (status == QN_OK && (n == 0 || n_taken < n))
        status = qn_fail(QN_E_ARG, "the token %d may not come here", id);
    if (status == QN_OK) m->state = state, m->has_lines = has_lines;
    return leave(c, status);
}

qn_status qn_matcher_accept_text(qn_matcher *m, const char *bytes, size_t n, size_t *n_taken)
{
    qn_constraint *c = m->c;
    size_t taken = 0;
    if (m->has_ended) {
        *n_taken = 0;
        return QN_OK;
    }
    qn_status status = enter(c);
    if (status == QN_OK) {
        uint32_t state = steps(&c->machine, m->state, bytes, n, &m->has_lines, &taken);
        status = c->machine.status;
        if (status == QN_OK) m->state = state;
    }
    if (status == QN_OK) *n_taken = taken;
    return leave(c, status);
}

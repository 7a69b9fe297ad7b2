#include "constrain/automaton/explore.h"

#include <string.h>

void qn_explorer_classes(qn_explorer *e, const char *single, const char *ranges)
{
    memset(e->class_of, 0, sizeof e->class_of);
    e->n_classes = 1;
    for (; *single; single++) e->class_of[(uint8_t)*single] = (uint8_t)e->n_classes++;
    for (; *ranges; ranges += 2, e->n_classes++) {
        for (int b = (uint8_t)ranges[0]; b <= (uint8_t)ranges[1]; b++) {
            if (!e->class_of[b]) e->class_of[b] = (uint8_t)e->n_classes;
        }
    }
}

qn_status qn_dfa_explore(qn_dfa_work *w, const qn_explorer *e, const void *start, qn_dfa **out)
{
    qn_dfa_rows states = {0};
    qn_dfa_array next = {0}, accepts = {0};
    uint32_t state[QN_EXPLORE_WORDS_MAX], from[QN_EXPLORE_WORDS_MAX];
    size_t k = (size_t)e->n_classes, bytes = e->n_words * sizeof *state;
    uint8_t byte_of[256] = {0};
    int32_t id;
    for (int b = 255; b >= 0; b--) byte_of[e->class_of[b]] = (uint8_t)b;
    QN_TRY(qn_dfa_rows_add(w, &states, NULL, 0, &id, NULL)); /* state 0, dead */
    memcpy(state, start, bytes);
    QN_TRY(qn_dfa_rows_add(w, &states, state, e->n_words, &id, NULL));
    for (int32_t s = 0; s < qn_dfa_rows_count(&states); s++) {
        QN_TRY(qn_dfa_work_states(w, s));
        QN_TRY(qn_dfa_array_room(w, &next, k, sizeof(int32_t)));
        QN_TRY(qn_dfa_array_room(w, &accepts, 1, 1));
        int32_t *to = (int32_t *)next.at + next.n;
        next.n += k;
        memset(to, 0, k * sizeof *to);
        ((uint8_t *)accepts.at)[accepts.n++] = 0;
        if (s == 0) continue;
        size_t n;
        memcpy(from, qn_dfa_rows_get(&states, s, &n), bytes);
        ((uint8_t *)accepts.at)[s] = e->accepts(e->context, from) != 0;
        QN_TRY(qn_dfa_work_steps(w, (int64_t)k));
        for (size_t c = 1; c < k; c++) {
            memcpy(state, from, bytes);
            if (e->move(e->context, state, byte_of[c]))
                QN_TRY(qn_dfa_rows_add(w, &states, state, e->n_words, &to[c], NULL));
        }
    }
    qn_dfa_draft d = {.n_states = qn_dfa_rows_count(&states),
                      .n_classes = e->n_classes,
                      .next = next.at,
                      .accepts = accepts.at,
                      .start = 1};
    memcpy(d.class_of, e->class_of, sizeof d.class_of);
    return qn_dfa_finish(w, &d, 0, out);
}

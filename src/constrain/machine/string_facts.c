#include "constrain/machine/string_facts.h"

#include <string.h>

#include "base/mem.h"

qn_status qn_string_facts_init(qn_string_facts *f, const qn_dfa *d)
{
    f->changes = qn_calloc((size_t)d->n_states, sizeof *f->changes);
    f->homes = qn_calloc((size_t)d->n_states, sizeof *f->homes);
    f->n_bytes = (size_t)d->n_states * (sizeof *f->changes + sizeof *f->homes);
    return f->changes && f->homes ? QN_OK : QN_E_NOMEM;
}

void qn_string_facts_clear(qn_string_facts *f)
{
    qn_free(f->changes);
    qn_free(f->homes);
    qn_free(f->beside);
    for (int i = 0; i < f->n_plains; i++) qn_free(f->plains[i].plain);
    *f = (qn_string_facts){0};
}

/* ---- characters ---------------------------------------------------------------------------------------- */

/* Both functions follow the bytes first to last, and all that may come behind them up to the end of a character,
 * from a state that is at a character's begin or inside of one, as `beside` is. Neighbours that both automata take
 * for the same are one. */
static int is_repeated(const qn_dfa *d, const qn_dfa *all, int b)
{
    return all->class_of[b] == all->class_of[b - 1] && d->class_of[b] == d->class_of[b - 1];
}

/* 1: all lead to *home, which is set first if it is 0. */
static int all_lead_to(const qn_dfa *d, const qn_dfa *all, int32_t state, int32_t beside, int first, int last,
                       int32_t *home)
{
    for (int b = first; b <= last; b++) {
        if (b > first && is_repeated(d, all, b)) continue;
        int32_t beside_to = qn_dfa_step(all, beside, (uint8_t)b);
        if (!beside_to) continue;
        int32_t to = qn_dfa_step(d, state, (uint8_t)b);
        if (!to) return 0;
        if (beside_to != all->start) {
            if (!all_lead_to(d, all, to, beside_to, 0x80, 0xbf, home)) return 0;
        } else if (*home == 0) {
            *home = to;
        } else if (to != *home) {
            return 0;
        }
    }
    return 1;
}

/* 1: one may not come. */
static int some_is_dead(const qn_dfa *d, const qn_dfa *all, int32_t state, int32_t beside, int first,
                        int last)
{
    for (int b = first; b <= last; b++) {
        if (b > first && is_repeated(d, all, b)) continue;
        int32_t beside_to = qn_dfa_step(all, beside, (uint8_t)b);
        if (!beside_to) continue;
        int32_t to = qn_dfa_step(d, state, (uint8_t)b);
        if (!to) return 1;
        if (beside_to != all->start && some_is_dead(d, all, to, beside_to, 0x80, 0xbf)) return 1;
    }
    return 0;
}

/* The kind of a byte that begins a character; 0: it begins none, or its kind is in known. */
static uint64_t kind_bit(int b, uint64_t known)
{
    int kind = qn_kind_of((uint8_t)b);
    return kind == QN_KIND_INSIDE || kind >= QN_KIND_CONTROL ? 0 : UINT64_C(1) << kind & ~known;
}

uint64_t qn_string_find_changes(const qn_dfa *d, const qn_dfa *all, int32_t state)
{
    uint64_t changes = UINT64_C(1) << QN_KIND_ESCAPE;
    for (int b = 0x20; b < 0x100; b++) {
        uint64_t bit = kind_bit(b, changes);
        int32_t home = state;
        if (bit && !all_lead_to(d, all, state, all->start, b, b, &home)) changes |= bit;
    }
    return changes;
}

uint64_t qn_string_dead(const qn_dfa *d, const qn_dfa *all, int32_t state)
{
    uint64_t dead = 0;
    for (int b = 0x20; b < 0x100; b++) {
        uint64_t bit = kind_bit(b, dead);
        if (bit && some_is_dead(d, all, state, all->start, b, b)) dead |= bit;
    }
    return dead;
}

int32_t qn_string_home(qn_string_facts *f, const qn_dfa *d, const qn_dfa *all, int32_t state, int32_t beside)
{
    qn_home_fact *h = &f->homes[state];
    if (h->beside != beside) {
        int32_t home = 0;
        if (!all_lead_to(d, all, state, beside, 0x80, 0xbf, &home)) home = 0;
        *h = (qn_home_fact){home, beside};
    }
    return h->home;
}

/* ---- plain text ---------------------------------------------------------------------------------------- */

enum { MOVES_MAX = 1 << 18, MOVES_FEW = 1 << 16, PASSES_MAX = 8 };

/* Bytes, one of each sort that the automata tell apart. */
typedef struct {
    uint8_t bytes[256];
    int n;
} sorts;

/* wanted 1: of plain text without these kinds; 0: of these kinds; -1: all. */
static void list_sorts(const qn_dfa *d, const qn_dfa *all, uint64_t without, int wanted, sorts *out)
{
    out->n = 0;
    for (int b = 0; b < 256; b++) {
        uint64_t kind = UINT64_C(1) << qn_kind_of((uint8_t)b);
        int sort = kind & without ? 0 : !(kind >> QN_KIND_CONTROL), k = 0;
        if (wanted >= 0 && (sort != wanted || (!sort && !(kind & without)))) continue;
        while (k < out->n && (d->class_of[out->bytes[k]] != d->class_of[b] ||
                              all->class_of[out->bytes[k]] != all->class_of[b]))
            k++;
        if (k == out->n) out->bytes[out->n++] = (uint8_t)b;
    }
}

/* Walks both automata in step. A state that stands beside several of `all` is inside of a character with a rare first
 * byte; the states behind it stand beside one. */
static void reach(const qn_dfa *d, const qn_dfa *all, const sorts *b, int32_t *beside, int32_t *queue,
                  uint8_t *several)
{
    int32_t n = 0;
    queue[n++] = d->start;
    beside[d->start] = all->start;
    for (int32_t i = 0; i < n; i++) {
        int32_t s = queue[i];
        for (int k = 0; k < b->n; k++) {
            int32_t to = qn_dfa_step(d, s, b->bytes[k]);
            if (!to) continue;
            int32_t beside_to = qn_dfa_step(all, beside[s], b->bytes[k]);
            if (beside[to] == 0) {
                beside[to] = beside_to;
                queue[n++] = to;
            } else if (beside[to] != beside_to) {
                several[to] = 1;
            }
        }
    }
    for (int32_t s = 1; s < d->n_states; s++)
        if (several[s]) beside[s] = -1;
}

static qn_status find_beside(qn_string_facts *f, const qn_dfa *d, const qn_dfa *all)
{
    sorts b;
    size_t n = (size_t)d->n_states;
    list_sorts(d, all, 0, -1, &b);
    int32_t *beside = qn_calloc(n, sizeof *beside), *queue = qn_alloc_array(n, sizeof *queue);
    uint8_t *several = qn_calloc(n, 1);
    qn_status status = beside && queue && several ? QN_OK : QN_E_NOMEM;
    if (status == QN_OK) {
        reach(d, all, &b, beside, queue, several);
        f->beside = beside;
        f->n_bytes += n * sizeof *beside;
        beside = NULL;
    }
    qn_free(beside);
    qn_free(queue);
    qn_free(several);
    return status;
}

/* A state is weak if a byte of plain text may not come there. So many bytes may come from any state, whatever they
 * are, as the shortest way from it to a weak one has. States are numbered in the order of a walk, so the passes go
 * from behind. 0: that was not enough. */
static int relax(const qn_string_facts *f, const qn_dfa *d, const qn_dfa *all, const sorts *b,
                 uint16_t *plain)
{
    memset(plain, 0xff, (size_t)d->n_states * sizeof *plain);
    for (int32_t s = 1; s < d->n_states; s++) {
        if (f->beside[s] < 0) plain[s] = 0;
        for (int k = 0; k < b->n && plain[s]; k++)
            if (!qn_dfa_step(d, s, b->bytes[k]) && qn_dfa_step(all, f->beside[s], b->bytes[k])) plain[s] = 0;
    }
    for (int pass = 0; pass < PASSES_MAX; pass++) {
        int is_changed = 0;
        for (int32_t s = d->n_states - 1; s > 0; s--) {
            uint16_t least = QN_PLAIN_ANY;
            for (int k = 0; k < b->n && plain[s]; k++) {
                int32_t to = qn_dfa_step(d, s, b->bytes[k]);
                if (to && plain[to] < least) least = plain[to];
            }
            if (least >= QN_PLAIN_ANY - 1 || least + 1 >= plain[s]) continue;
            plain[s] = (uint16_t)(least + 1);
            is_changed = 1;
        }
        if (!is_changed) return 1;
    }
    return 0;
}

qn_status qn_string_plain(qn_string_facts *f, const qn_dfa *d, const qn_dfa *all, uint64_t without,
                          const uint16_t **plain)
{
    sorts b;
    for (int i = 0; i < f->n_plains; i++) {
        if (f->plains[i].without != without) continue;
        *plain = f->plains[i].plain;
        return QN_OK;
    }
    uint16_t *made = NULL;
    list_sorts(d, all, without, 1, &b);
    if (b.n && d->n_states <= (f->n_plains ? MOVES_FEW : MOVES_MAX) / b.n) {
        if (!f->beside) QN_TRY(find_beside(f, d, all));
        made = qn_alloc_array((size_t)d->n_states, sizeof *made);
        if (!made) return QN_E_NOMEM;
        if (!relax(f, d, all, &b, made)) {
            qn_free(made);
            made = NULL;
        }
    }
    if (f->n_plains < QN_PLAINS) {
        f->n_bytes += (size_t)d->n_states * sizeof *made;
        f->n_plains++;
    }
    qn_free(f->plains[f->next_plain].plain);
    f->plains[f->next_plain] = (qn_plain_facts){without, made};
    f->next_plain = (f->next_plain + 1) % QN_PLAINS;
    *plain = made;
    return QN_OK;
}

int qn_string_is_closed(const qn_string_facts *f, const qn_dfa *d, const qn_dfa *all, uint64_t without,
                        int32_t state)
{
    enum { STATES_MAX = 64 };
    sorts in, out;
    int32_t queue[STATES_MAX], n = 0;
    list_sorts(d, all, without, 1, &in);
    list_sorts(d, all, without, 0, &out);
    queue[n++] = state;
    for (int32_t i = 0; i < n; i++) {
        int32_t s = queue[i], beside = f->beside[s];
        for (int k = 0; k < out.n; k++)
            if (qn_dfa_step(all, beside, out.bytes[k]) && qn_dfa_step(d, s, out.bytes[k])) return 0;
        for (int k = 0; k < in.n; k++) {
            int32_t to = qn_dfa_step(d, s, in.bytes[k]), at = 0;
            while (at < n && queue[at] != to) at++;
            if (!to || at < n) continue;
            if (n == STATES_MAX) return 0;
            queue[n++] = to;
        }
    }
    return 1;
}

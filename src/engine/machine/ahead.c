/* A step that starts before its tokens are known: qn_async_ops in device.h draws the life of such a run. */
#include <string.h>

#include "engine/machine/engine_parts.h"

/* Only what leaves no trace when it comes to nothing: keys and values behind the end of a sequence, and no
 * page more for them. */
static int may_follow(const qn_engine *e, const qn_feed *feed)
{
    const qn_sequence *s = feed->sequence;
    if (!s->follows_best || feed->n_ids != 1 || feed->logits != QN_LOGITS_LAST || s->images ||
        s->length >= e->info.context_size)
        return 0;
    for (int i = 0; i < e->groups.n; i++)
        if (s->length >= (s->tables[i].base + s->tables[i].n) * QN_PAGE_TOKENS) return 0;
    return 1;
}

static int may_start(const qn_engine *e, int64_t n_feeds, const qn_feed *feeds)
{
    if (!qn_program_may_start(e->body) || e->slots || e->config.rope_short_positions || e->probe ||
        qn_probes_want_steps(&e->probes))
        return 0;
    for (int64_t i = 0; i < n_feeds; i++)
        if (!may_follow(e, &feeds[i])) return 0;
    return 1;
}

/* If the start fails, the step runs in its turn and reports the failure itself. */
static void start(qn_engine *e, int64_t n, const qn_feed *feeds)
{
    static const int32_t unknown; /* the device puts its guess there */
    for (int64_t i = 0; i < n; i++) {
        const qn_feed next = {.sequence = feeds[i].sequence, .ids = &unknown, .n_ids = 1};
        if (qn_engine_put_rows(e, &next, 0, 1, i, i) != QN_OK) return;
        e->ahead.sequences[i] = next.sequence;
    }
    if (qn_program_start(e->body, &(qn_sizes){{n, n, 0}}, e->head, 0) == QN_OK) e->ahead.n = n;
}

qn_status qn_ahead_head(qn_engine *e, int64_t n, int64_t n_feeds, const qn_feed *feeds)
{
    const qn_sizes sizes = {{0, 0, n}};
    int as_guessed;
    if (n != n_feeds || !may_start(e, n_feeds, feeds)) return qn_program_run(e->head, &sizes);
    QN_TRY(qn_program_start(e->head, &sizes, NULL, 0));
    start(e, n, feeds);
    return qn_program_finish(e->head, 0, NULL, &as_guessed);
}

/* Is row i what the feed's next one would be? The inputs tell. */
static int is_row(const qn_engine *e, const qn_feed *feed, int64_t i)
{
    const qn_sequence *s = feed->sequence;
    if (feed->n_ids != 1 || s != e->ahead.sequences[i] || s->length != e->rows.positions[i] || s->images ||
        s->length != s->n_given || (e->rows.row_adapters && e->rows.row_adapters[i] != s->adapter))
        return 0;
    for (int g = 0; g < e->groups.n; g++) {
        const int32_t *row = e->rows.blocks[g] + i * (1 + e->table_size[g]);
        const qn_block_table *t = &s->tables[g];
        if (s->length >= t->claimed || row[0] != t->base ||
            memcmp(row + 1, t->ids, (size_t)t->n * sizeof *row) != 0)
            return 0;
    }
    return 1;
}

void qn_ahead_discard(qn_engine *e)
{
    if (e->ahead.n) qn_program_discard(e->body);
    e->ahead.n = 0;
}

qn_status qn_ahead_take(qn_engine *e, int64_t n_feeds, const qn_feed *feeds, int *taken)
{
    const int64_t n = e->ahead.n;
    int same = n == n_feeds;
    *taken = 0;
    if (!n) return QN_OK;
    for (int64_t i = 0; i < n && same; i++) same = is_row(e, &feeds[i], i);
    if (!same) {
        qn_ahead_discard(e);
        return QN_OK;
    }
    e->ahead.n = 0;
    for (int64_t i = 0; i < n; i++) e->ids[i] = feeds[i].ids[0];
    return qn_program_finish(e->body, n, e->ids, taken);
}

void qn_ahead_forget(qn_engine *e, const qn_sequence *s)
{
    for (int64_t i = 0; i < e->ahead.n; i++)
        if (e->ahead.sequences[i] == s) qn_ahead_discard(e);
}

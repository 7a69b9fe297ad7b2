/* Sequences, and the steps that make them longer. */
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "engine/machine/engine_parts.h"
#include "engine/machine/images.h"
#include "model/config/blocks/vision_family.h"
#include "prim/blocks.h"

qn_status qn_sequence_new(qn_engine *e, qn_sequence **out)
{
    qn_sequence *s = qn_calloc(1, sizeof *s);
    if (!s) return QN_E_NOMEM;
    s->engine = e;
    s->slot = -1;
    s->adapter = -1;
    for (int i = 0; i < e->groups.n; i++) {
        qn_status status = qn_block_table_init(&s->tables[i], e->table_size[i]);
        if (status != QN_OK) {
            qn_sequence_free(s);
            return status;
        }
    }
    *out = s;
    return QN_OK;
}

void qn_sequence_free(qn_sequence *s)
{
    if (!s) return;
    qn_ahead_forget(s->engine, s);
    for (int i = 0; i < s->engine->groups.n; i++) qn_block_table_end(&s->tables[i], s->engine->pages[i]);
    if (s->slot >= 0) qn_pages_release(s->engine->slots, s->slot);
    qn_kept_ids_free(&s->kept, s->engine->ledger);
    if (s->engine->tree) qn_tree_trim(s->engine->tree); /* pages that it shared are the tree's alone now */
    qn_free(s);
}

static qn_status reserve(qn_sequence *s, int64_t n_ids)
{
    qn_engine *e = s->engine;
    if (n_ids > e->info.max_rows) n_ids = e->info.max_rows;
    if (e->slots && s->slot < 0) {
        int32_t slot;
        QN_TRY(qn_pages_reserve(e->slots, 1, &slot));
        s->slot = slot;
    }
    for (int i = 0; i < e->groups.n; i++)
        QN_TRY(qn_block_table_prepare(&s->tables[i], e->pages[i], s->length, s->length + n_ids));
    return QN_OK;
}

qn_status qn_sequence_reserve(qn_sequence *s, int64_t n_ids)
{
    qn_status status = reserve(s, n_ids);
    while ((status == QN_E_FULL || status == QN_E_NOMEM) && qn_guest_give_way(s->engine, s))
        status = reserve(s, n_ids);
    return status;
}

void qn_sequence_expect(qn_sequence *s, int64_t n_ids)
{
    s->expected = n_ids;
}

int64_t qn_sequence_length(const qn_sequence *s)
{
    return s->n_given;
}

int qn_engine_takes_back(const qn_engine *e)
{
    return !e->slots;
}

int64_t qn_sequence_get_tentative_max(const qn_sequence *s)
{
    const qn_engine *e = s->engine;
    int64_t n = (e->info.max_rows - 1) / 2, limit = e->config.rope_short_positions;
    if (!qn_engine_takes_back(e)) return 0;
    /* What makes a sequence long must be certain: all of it is computed anew then. */
    if (limit && !s->is_long && n > limit - s->n_given - 1) n = limit - s->n_given - 1;
    return n > 0 ? n : 0;
}

void qn_sequence_set_tentative(qn_sequence *s, int64_t n_ids)
{
    s->n_tentative = n_ids;
}

void qn_sequence_truncate(qn_sequence *s, int64_t n_ids)
{
    for (int i = 0; i < s->engine->groups.n; i++)
        qn_block_table_truncate(&s->tables[i], s->engine->pages[i], n_ids);
    s->length = s->n_given = n_ids;
}

void qn_sequence_set_adapter(qn_sequence *s, int32_t id)
{
    s->adapter = id;
}

void qn_sequence_set_images(qn_sequence *s, const qn_images *images)
{
    s->images = images;
}

void qn_sequence_set_any_thread(qn_sequence *s)
{
    s->any_thread = 1;
}

void qn_sequence_set_follows_best(qn_sequence *s, int is_likely)
{
    s->follows_best = is_likely;
}

/* ---- steps -------------------------------------------------------------------------------------------- */

static qn_status check_feeds(const qn_engine *e, int64_t n_feeds, const qn_feed *feeds)
{
    if (n_feeds > e->info.max_sequences)
        return qn_fail(QN_E_ARG, "%lld sequences in one step, but the model was opened for %lld",
                       (long long)n_feeds, (long long)e->info.max_sequences);
    for (int64_t i = 0; i < n_feeds; i++) {
        if (feeds[i].sequence->is_lost)
            return qn_fail(QN_E_DEVICE,
                           "the recurrent state of the sequence was lost at position %lld, where a step "
                           "failed: the sequence must be computed again from its beginning",
                           (long long)qn_sequence_length(feeds[i].sequence));
        for (int64_t j = 0; j < feeds[i].n_ids; j++)
            if (feeds[i].ids[j] < 0 || feeds[i].ids[j] >= e->config.vocab_size)
                return qn_fail(QN_E_ARG, "token id %d at position %lld is outside the vocabulary of %lld",
                               feeds[i].ids[j], (long long)(qn_sequence_length(feeds[i].sequence) + j),
                               (long long)e->config.vocab_size);
    }
    return QN_OK;
}

static int64_t chunk_limit(qn_engine *e)
{
#ifdef QN_SHAKE
    return 1 + (int64_t)(qn_random_bits(3, e->shakes++) % (uint64_t)e->info.max_rows);
#else
    return e->info.max_rows;
#endif
}

/* Where the feed's tokens make a short sequence long, it begins anew. */
static void lengthen(qn_engine *e, const qn_feed *feed)
{
    qn_sequence *s = feed->sequence;
    int64_t limit = e->config.rope_short_positions, end = s->n_given + feed->n_ids;
    if (!limit || s->is_long || (end <= limit && s->expected <= limit)) return;
    for (int i = 0; i < e->groups.n; i++) qn_block_table_clear(&s->tables[i], e->pages[i]);
    s->length = s->n_attached = 0;
    s->is_long = 1;
}

/* The positions of the token at this index of the sequence, and the vector that stands for it, become a
 * row's. */
static void put_positions(qn_engine *e, const qn_sequence *s, int64_t index, int64_t row)
{
    int32_t p[QN_ROPE_SECTIONS];
    qn_images_positions(s->images, index, p);
    for (int k = 0; k < QN_ROPE_SECTIONS; k++) e->rows.rope_positions[k][row] = p[k];
}

static void put_vector(qn_engine *e, const qn_sequence *s, int64_t index, int64_t row)
{
    const float *v = qn_images_vector(s->images, index);
    const int64_t width = qn_vision_width(&e->config.vision, e->config.hidden_size);
    const size_t bytes = (size_t)width * sizeof *v;
    float *to = e->embeds + row * width;
    e->is_embed[row] = v ? 1.0f : 0.0f;
    if (v) {
        e->ids[row] = e->config.vision.layer_input_id;
        memcpy(to, v, bytes);
    } else {
        memset(to, 0, bytes);
    }
}

/* 1: the next rows of the sequence are those of a picture, which see each other in this group's layers. */
static int is_whole(const qn_engine *e, const qn_sequence *s, int group)
{
    if (!qn_images_is_whole(s->images, s->length)) return 0;
    return e->config.vision.seen == QN_VISION_SEEN_WHOLE || e->groups.group[group].window > 0;
}

qn_status qn_engine_put_rows(qn_engine *e, const qn_feed *feed, int64_t first, int64_t n, int64_t rows,
                             int64_t at)
{
    qn_sequence *s = feed->sequence;
    QN_TRY(qn_sequence_reserve(s, n));
    for (int i = 0; i < e->groups.n; i++) {
        const qn_block_table *t = &s->tables[i];
        int32_t *row = e->rows.blocks[i] + at * (1 + e->table_size[i]);
        row[0] = (int32_t)t->base;
        if (is_whole(e, s, i)) row[0] |= QN_BLOCKS_WHOLE;
        if (is_whole(e, s, i) && e->config.vision.family->windows_reach_back) row[0] |= QN_BLOCKS_BACK;
        memcpy(row + 1, t->ids, (size_t)t->n * sizeof *row);
    }
    if (e->config.rope_short_positions && !s->is_long)
        QN_TRY(qn_kept_ids_put(&s->kept, e->ledger, s->length, n, feed->ids + first));
    for (int64_t j = 0; j < n; j++) {
        e->ids[rows + j] = first + j < 0 ? s->kept.ids[s->length + j] : feed->ids[first + j];
        e->rows.positions[rows + j] = (int32_t)(s->length + j);
        if (e->rows.rope_positions[0]) put_positions(e, s, s->length + j, rows + j);
        if (e->embeds) put_vector(e, s, s->length + j, rows + j);
        if (e->rows.is_long) e->rows.is_long[rows + j] = s->is_long ? 1.0f : 0.0f;
        if (e->rows.row_adapters) e->rows.row_adapters[rows + j] = s->adapter;
    }
    if (e->slots) {
        e->rows.slot_ids[at] = s->slot;
        e->rows.reset[at] = s->length == 0;
    }
    e->rows.row_begin[at] = (int32_t)rows;
    e->rows.row_begin[at + 1] = (int32_t)(rows + n);
    return QN_OK;
}

/* Pages go when neither a later row nor the last that is certain can see them: who has the same tokens again
 * computes that one anew. */
static void commit(qn_engine *e, qn_sequence *s, int64_t n)
{
    s->length += n;
    int64_t certain = s->length - s->n_tentative;
    if (s->n_given < s->length) s->n_given = s->length;
    for (int i = 0; !e->keep_positions && i < e->groups.n; i++) {
        int64_t window = e->groups.group[i].window;
        if (!window || window > e->info.context_size) window = e->info.context_size;
        if (certain - window > 0) qn_block_table_release_below(&s->tables[i], e->pages[i], certain - window);
    }
}

/* Recurrent state is changed in place, and the rows of a step that failed may have changed some of it: what
 * they belong to must not go on from there. A sequence that has no tokens yet begins at zero anyway. */
static void lose_states(const qn_feed *feeds, int64_t n_parts, const qn_chunk_part *parts)
{
    for (int64_t i = 0; i < n_parts; i++) {
        qn_sequence *s = feeds[parts[i].feed].sequence;
        s->is_lost = s->slot >= 0 && s->length > 0;
    }
}

/* A run of rows of one feed whose logits are wanted. */
typedef struct {
    int64_t feed, first, n, row; /* row: of the block, where it begins */
} logit_run;

/* Rows on their way through the head, or through the norm alone. */
typedef struct {
    qn_program *program;
    int32_t *rows, *adapters; /* its inputs */
    int64_t width, max_rows, n_runs, n_rows;
    logit_run runs[QN_LOGIT_ROWS];
} logit_block;

/* Runs whose rows are computed, and who gets them. */
typedef struct {
    const qn_feed *feeds;
    const logit_run *runs;
    float *rows; /* [n_rows, width] */
    int64_t width;
    qn_step_logits_fn *logits;
    void *user;
} logit_giver;

static qn_status give_run(const logit_giver *g, const logit_run *run)
{
    return g->logits(g->user, run->feed, run->first, run->n, g->rows + run->row * g->width);
}

static int may_any_thread_give(const logit_giver *g, const logit_run *run)
{
    return g->feeds[run->feed].sequence->any_thread;
}

static void give_if_any_thread_may(void *user, int64_t i)
{
    const logit_giver *g = user;
    if (may_any_thread_give(g, &g->runs[i])) give_run(g, &g->runs[i]);
}

/* A feed has one run of a block at most: what belongs to it is touched by one thread at a time. n_feeds: of
 * the step. */
static qn_status flush_logits(qn_engine *e, int64_t n_feeds, const qn_feed *feeds, logit_block *b,
                              qn_step_logits_fn *logits, void *user)
{
    if (b->n_rows == 0) return QN_OK;
    QN_TRY(b->program == e->head ? qn_ahead_head(e, b->n_rows, n_feeds, feeds)
                                 : qn_program_run(b->program, &(qn_sizes){{0, 0, b->n_rows}}));
    const void *rows;
    QN_TRY(qn_program_read(b->program, 0, &rows));
    logit_giver g = {feeds, b->runs, (float *)(uintptr_t)rows, b->width, logits, user};
    int64_t n_any = 0;
    for (int64_t i = 0; i < b->n_runs; i++) n_any += may_any_thread_give(&g, &b->runs[i]);
    if (n_any > 1) e->device->ops->for_each(e->device, b->n_runs, give_if_any_thread_may, &g);
    for (int64_t i = 0; i < b->n_runs; i++)
        if (n_any <= 1 || !may_any_thread_give(&g, &b->runs[i])) QN_TRY(give_run(&g, &b->runs[i]));
    b->n_runs = b->n_rows = 0;
    return QN_OK;
}

/* The part's first row that is wanted. */
static int64_t first_wanted(const qn_feed *feed, const qn_chunk_part *part)
{
    if (feed->logits == QN_LOGITS_ALL || feed->logits == QN_LOGITS_HIDDEN)
        return part->first < 0 ? -part->first : 0;
    int is_last = feed->logits == QN_LOGITS_LAST && part->first + part->n == feed->n_ids;
    return is_last ? part->n - 1 : part->n;
}

/* hidden: of the feeds that want hidden states, else of those that want logits. */
static qn_status give_rows(qn_engine *e, int64_t n_feeds, const qn_feed *feeds, int64_t n_parts,
                           const qn_chunk_part *parts, int hidden, qn_step_logits_fn *logits, void *user)
{
    logit_block b =
        hidden
            ? (logit_block){e->norm, e->norm_rows, e->norm_adapters, e->config.hidden_size, QN_NORM_ROWS, 0,
                            0,       {{0}}}
            : (logit_block){
                  e->head, e->logit_rows, e->logit_adapters, e->config.vocab_size, e->max_logit_rows, 0,
                  0,       {{0}}};
    for (int64_t i = 0; i < n_parts; i++) {
        const qn_chunk_part *part = &parts[i];
        const qn_feed *feed = &feeds[part->feed];
        if ((feed->logits == QN_LOGITS_HIDDEN) != hidden) continue;
        for (int64_t from = first_wanted(feed, part), n; from < part->n; from += n) {
            n = part->n - from < b.max_rows - b.n_rows ? part->n - from : b.max_rows - b.n_rows;
            b.runs[b.n_runs++] = (logit_run){part->feed, part->first + from, n, b.n_rows};
            for (int64_t j = 0; j < n; j++, b.n_rows++) {
                b.rows[b.n_rows] = (int32_t)(part->row + from + j);
                if (b.adapters) b.adapters[b.n_rows] = feed->sequence->adapter;
            }
            if (b.n_rows == b.max_rows || b.n_runs == QN_LOGIT_ROWS)
                QN_TRY(flush_logits(e, n_feeds, feeds, &b, logits, user));
        }
    }
    return flush_logits(e, n_feeds, feeds, &b, logits, user);
}

static qn_status give_logits(qn_engine *e, int64_t n_feeds, const qn_feed *feeds, int64_t n_parts,
                             const qn_chunk_part *parts, qn_step_logits_fn *logits, void *user)
{
    QN_TRY(give_rows(e, n_feeds, feeds, n_parts, parts, 0, logits, user));
    return give_rows(e, n_feeds, feeds, n_parts, parts, 1, logits, user);
}

void qn_engine_set_meanwhile(qn_engine *e, void (*fn)(void *user), void *user)
{
    e->meanwhile = fn;
    e->meanwhile_user = user;
}

/* How many of n rows of the feed go into a chunk that has `rows` already: a picture whose tokens see each other is a
 * part by itself. An empty chunk takes one as long as there is room at all. */
static int64_t part_of(const qn_engine *e, const qn_feed *feed, int64_t i, int64_t n, int64_t rows)
{
    const qn_sequence *s = feed->sequence;
    const int64_t part = qn_images_part(s->images, s->length, n), left = feed->n_ids - e->fed[i];
    if (part || rows) return part;
    return qn_images_part(s->images, s->length, left < e->info.max_rows ? left : e->info.max_rows);
}

/* Nothing is left to be computed, unless a picture does not fit. */
static qn_status check_cut(const qn_engine *e, int64_t n_feeds, const qn_feed *feeds)
{
    for (int64_t i = 0; i < n_feeds; i++) {
        const qn_sequence *s = feeds[i].sequence;
        const int64_t left = feeds[i].n_ids - e->fed[i];
        if (left > 0)
            return qn_fail(
                QN_E_ARG,
                "%lld tokens of images stand in a row and see each other, but a step has %lld rows for them",
                (long long)(qn_images_extend(s->images, s->length + 1) - s->length),
                (long long)(left < e->info.max_rows ? left : e->info.max_rows));
    }
    return QN_OK;
}

qn_status qn_engine_step(qn_engine *e, int64_t n_feeds, const qn_feed *feeds, qn_step_logits_fn *logits,
                         qn_step_stop_fn *stop, void *user)
{
    QN_TRY(check_feeds(e, n_feeds, feeds));
    for (int64_t i = 0; i < n_feeds; i++) {
        lengthen(e, &feeds[i]);
        e->fed[i] = feeds[i].sequence->length - feeds[i].sequence->n_given;
    }
    for (;;) {
        int64_t rows = 0, n_parts = 0, limit = chunk_limit(e);
        for (int64_t i = 0; i < n_feeds && rows < limit; i++) {
            int64_t n = feeds[i].n_ids - e->fed[i];
            if (n > limit - rows) n = limit - rows;
            if (n > 0) n = part_of(e, &feeds[i], i, n, rows);
            if (n <= 0) continue;
            e->parts[n_parts++] = (qn_chunk_part){i, e->fed[i], rows, n};
            rows += n;
        }
        if (rows == 0) return check_cut(e, n_feeds, feeds);
        if (stop && stop(user)) return qn_fail(QN_E_CANCELLED, "cancelled");
        int taken;
        qn_status status = qn_ahead_take(e, n_parts == n_feeds ? n_feeds : 0, feeds, &taken);
        for (int64_t i = 0; i < n_parts && status == QN_OK && !taken; i++) {
            const qn_chunk_part *part = &e->parts[i];
            QN_TRY(qn_engine_put_rows(e, &feeds[part->feed], part->first, part->n, part->row, i));
        }
        if (status == QN_OK && !taken) status = qn_engine_run_body(e, rows, n_parts);
        if (status != QN_OK) {
            lose_states(feeds, n_parts, e->parts);
            return status;
        }
        for (int64_t i = 0; i < n_parts; i++) {
            e->fed[e->parts[i].feed] += e->parts[i].n;
            commit(e, feeds[e->parts[i].feed].sequence, e->parts[i].n);
        }
        if (e->meanwhile) e->meanwhile(e->meanwhile_user);
        QN_TRY(give_logits(e, n_feeds, feeds, n_parts, e->parts, logits, user));
    }
}

#include "train/data/dataset.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/checked.h"
#include "base/mem.h"
#include "base/random.h"
#include "train/data/line_index.h"
#include "train/data/permutation.h"

enum { MAX_LENGTH = 2048, BATCH_TOKENS_MAX = 1 << 26 };

/* What is known of a line. */
enum { SEEN = 1, BAD = 2 };

/* A line that waits for room in a batch. */
typedef struct {
    int64_t line;
    qn_train_sequence sequence; /* n 0: to be read (again) */
} waiting;

struct qn_dataset {
    char *file, *now;
    qn_dataset_options options;
    qn_line_options line_options;
    qn_line_index *lines;
    uint8_t *flags;   /* [lines] */
    int32_t *lengths; /* [lines] tokens of a line that was read; 0: it was not, or is bad */
    qn_buf text, keys;
    qn_dataset_summary summary;
    qn_dataset_bad_line bad[QN_DATASET_BAD_KEPT];
    qn_dataset_key other_keys[QN_DATASET_KEYS_KEPT];
    int64_t epoch, next;
    waiting window[QN_DATASET_WINDOW];
    int64_t n_window;
    /* The batch. */
    int32_t *ids, *row_begin, *rows, *targets;
    int64_t *batch_lines;
    qn_train_batch batch;
};

/* ---- the files of a folder ---- */

static qn_status join_path(const char *folder, const char *name, char **out)
{
    qn_buf b = {0};
    size_t n = strlen(folder);
    qn_buf_printf(&b, "%s%s%s", folder, n && folder[n - 1] == '/' ? "" : "/", name);
    char *path = qn_buf_take(&b, NULL);
    if (!path) {
        qn_buf_free(&b);
        return QN_E_NOMEM;
    }
    *out = path;
    return QN_OK;
}

qn_status qn_dataset_find(const char *path, qn_dataset_split split, char **out)
{
    static const char *const names[][2] = {
        {"train.jsonl", "train.json"}, {"valid.jsonl", NULL}, {"test.jsonl", NULL}};
    struct stat found;
    if (stat(path, &found) != 0) return qn_fail(QN_E_IO, "%s: %s", path, strerror(errno));
    if (!S_ISDIR(found.st_mode)) {
        char *copy = split == QN_SPLIT_TRAIN ? qn_strdup(path) : NULL;
        if (split == QN_SPLIT_TRAIN && !copy) return QN_E_NOMEM;
        *out = copy;
        return QN_OK;
    }
    for (int i = 0; i < 2 && names[split][i]; i++) {
        char *file = NULL;
        QN_TRY(join_path(path, names[split][i], &file));
        if (stat(file, &found) == 0) {
            *out = file;
            return QN_OK;
        }
        qn_free(file);
    }
    if (split == QN_SPLIT_TRAIN)
        return qn_fail(QN_E_NOT_FOUND, "%s: there is no train.jsonl in this folder", path);
    *out = NULL;
    return QN_OK;
}

/* ---- opening ---- */

static qn_status check_options(qn_dataset_options *o)
{
    if (!o->max_length) o->max_length = MAX_LENGTH;
    if (!o->batch_tokens) o->batch_tokens = o->max_length;
    if (!o->max_sequences || o->max_sequences > o->batch_tokens) o->max_sequences = o->batch_tokens;
    if (!o->now) o->now = QN_DATASET_NOW;
    if (o->max_length < 2) return qn_fail(QN_E_ARG, "a sequence needs at least 2 tokens");
    if (o->batch_tokens < o->max_length - 1 || o->batch_tokens > BATCH_TOKENS_MAX)
        return qn_fail(QN_E_ARG,
                       "batches of %lld tokens: a batch must have at least the %lld tokens of a sequence, "
                       "and at most %d",
                       (long long)o->batch_tokens, (long long)o->max_length - 1, BATCH_TOKENS_MAX);
    if (o->max_sequences < 0)
        return qn_fail(QN_E_ARG, "batches cannot have %lld sequences", (long long)o->max_sequences);
    if (o->mask != QN_MASK_ANSWERS && o->mask != QN_MASK_LAST && o->mask != QN_MASK_ALL)
        return qn_fail(QN_E_ARG, "there is no mask %d", (int)o->mask);
    return QN_OK;
}

static qn_status make_room(qn_dataset *d)
{
    const size_t rows = (size_t)d->options.batch_tokens, sequences = (size_t)d->options.max_sequences;
    d->flags = qn_calloc((size_t)d->summary.n_lines, 1);
    d->lengths = qn_calloc((size_t)d->summary.n_lines, sizeof *d->lengths);
    d->ids = qn_alloc_array(rows, sizeof *d->ids);
    d->rows = qn_alloc_array(rows, sizeof *d->rows);
    d->targets = qn_alloc_array(rows, sizeof *d->targets);
    d->row_begin = qn_alloc_array(sequences + 1, sizeof *d->row_begin);
    d->batch_lines = qn_alloc_array(sequences, sizeof *d->batch_lines);
    return d->flags && d->lengths && d->ids && d->rows && d->targets && d->row_begin && d->batch_lines
               ? QN_OK
               : QN_E_NOMEM;
}

qn_status qn_dataset_open(const char *file, const qn_chat_text *text, const qn_dataset_options *options,
                          qn_dataset **out)
{
    qn_dataset_options o = options ? *options : (qn_dataset_options){0};
    QN_TRY(check_options(&o));
    qn_dataset *d = qn_calloc(1, sizeof *d);
    if (!d) return QN_E_NOMEM;
    d->file = qn_strdup(file);
    d->now = qn_strdup(o.now);
    o.now = d->now;
    d->options = o;
    d->line_options = (qn_line_options){
        .text = text, .mask = o.mask, .max_length = o.max_length, .vocab_size = o.vocab_size, .now = d->now};
    qn_status status = d->file && d->now ? qn_line_index_open(file, &d->lines) : QN_E_NOMEM;
    if (status == QN_OK) {
        d->summary.n_lines = qn_line_index_count(d->lines);
        d->summary.bad = d->bad;
        d->summary.other_keys = d->other_keys;
        status = d->summary.n_lines ? make_room(d) : qn_fail(QN_E_FORMAT, "%s: the file has no lines", file);
    }
    if (status == QN_OK)
        *out = d;
    else
        qn_dataset_close(d);
    return status;
}

/* The lines that wait are known, their sequences not. */
static void drop_sequences(qn_dataset *d)
{
    for (int64_t i = 0; i < d->n_window; i++) qn_train_sequence_free(&d->window[i].sequence);
}

void qn_dataset_close(qn_dataset *d)
{
    if (!d) return;
    drop_sequences(d);
    qn_line_index_close(d->lines);
    qn_buf_free(&d->text);
    qn_buf_free(&d->keys);
    qn_free(d->file);
    qn_free(d->now);
    qn_free(d->flags);
    qn_free(d->lengths);
    qn_free(d->ids);
    qn_free(d->row_begin);
    qn_free(d->rows);
    qn_free(d->targets);
    qn_free(d->batch_lines);
    qn_free(d);
}

/* ---- reading lines ---- */

static void note_keys(qn_dataset *d, int64_t line)
{
    for (size_t at = 0; at < d->keys.length; at += strlen(d->keys.data + at) + 1) {
        qn_dataset_key key = {.line = line};
        int64_t i = 0;
        snprintf(key.name, sizeof key.name, "%s", d->keys.data + at);
        while (i < d->summary.n_other_keys && strcmp(d->other_keys[i].name, key.name) != 0) i++;
        if (i < QN_DATASET_KEYS_KEPT && i == d->summary.n_other_keys)
            d->other_keys[d->summary.n_other_keys++] = key;
    }
}

static void note_bad(qn_dataset *d, int64_t i)
{
    d->summary.n_bad++;
    if (d->summary.n_bad_kept == QN_DATASET_BAD_KEPT) return;
    qn_dataset_bad_line *bad = &d->bad[d->summary.n_bad_kept++];
    bad->line = qn_line_index_number(d->lines, i);
    bad->offset = qn_line_index_offset(d->lines, i);
    snprintf(bad->reason, sizeof bad->reason, "%s", qn_last_error());
}

/* Adds n; *line is where the first came from. */
static void note_first(int64_t *total, int64_t n, int64_t *first, int64_t line)
{
    if (n && !*total) *first = line;
    *total += n;
}

static void note_sequence(qn_dataset *d, int64_t i, const qn_train_sequence *s)
{
    d->lengths[i] = (int32_t)s->n;
    if (s->n > d->summary.n_longest) d->summary.n_longest = s->n;
    d->summary.n_tokens += s->n;
    d->summary.n_counted += s->n_counted;
    d->summary.n_cut += s->n_whole > d->options.max_length;
    qn_dataset_summary *m = &d->summary;
    const int64_t line = qn_line_index_number(d->lines, i);
    note_first(&m->n_lost_answers, s->n_lost, &m->line_lost_answers, line);
    note_first(&m->n_hidden_tools, s->hides_tools, &m->line_hidden_tools, line);
    note_first(&m->n_empty_answers, s->n_empty, &m->line_empty_answers, line);
    note_first(&m->n_hidden_calls, s->n_hidden_calls, &m->line_hidden_calls, line);
    note_first(&m->n_endless, s->n_endless, &m->line_endless, line);
}

/* *out with n 0: the line is bad. */
static qn_status read_line(qn_dataset *d, int64_t i, qn_train_sequence *out)
{
    *out = (qn_train_sequence){0};
    if ((d->flags[i] & BAD) && !d->options.strict) return QN_OK;
    const int first_time = !(d->flags[i] & SEEN);
    qn_buf_reset(&d->keys);
    qn_status status = qn_line_index_read(d->lines, i, &d->text);
    if (status == QN_OK)
        status = qn_train_sequence_read(&d->line_options, d->text.data, d->text.length, out, &d->keys);
    if (status != QN_OK && !qn_line_is_bad(status)) return status;
    if (first_time) {
        d->flags[i] = status == QN_OK ? SEEN : SEEN | BAD;
        d->summary.n_read++;
        if (status == QN_OK)
            note_sequence(d, i, out);
        else
            note_bad(d, i);
        if (d->keys.status == QN_OK) note_keys(d, qn_line_index_number(d->lines, i));
    }
    if (status == QN_OK || !d->options.strict) return QN_OK;
    return qn_fail_prefix(status, "%s:%lld", d->file, (long long)qn_line_index_number(d->lines, i));
}

/* Some line must be good, or epochs would be without batches for ever. */
static qn_status check_any(const qn_dataset *d)
{
    if (d->summary.n_bad < d->summary.n_lines) return QN_OK;
    return qn_fail(QN_E_ARG, "%s: no line is usable for training; line %lld: %s", d->file,
                   (long long)d->bad[0].line, d->bad[0].reason);
}

qn_status qn_dataset_check(qn_dataset *d)
{
    for (int64_t i = 0; i < d->summary.n_lines; i++) {
        qn_train_sequence s;
        if ((d->flags[i] & SEEN) && !(d->flags[i] & BAD)) continue;
        QN_TRY(read_line(d, i, &s));
        qn_train_sequence_free(&s);
    }
    return check_any(d);
}

qn_dataset_summary qn_dataset_summarize(const qn_dataset *d)
{
    return d->summary;
}

/* ---- batches ---- */

static int64_t line_at(const qn_dataset *d, int64_t epoch, int64_t place)
{
    if (d->options.in_order) return place;
    return qn_permutation_at(d->summary.n_lines, qn_random_bits(d->options.seed, (uint64_t)epoch), place);
}

/* As many as there is room for, in order. */
static qn_status fill_window(qn_dataset *d)
{
    for (int64_t i = 0; i < d->n_window; i++) {
        waiting *w = &d->window[i];
        if (w->sequence.n) continue;
        QN_TRY(read_line(d, w->line, &w->sequence));
        if (!w->sequence.n) /* it was good when it was told */
            return qn_fail(QN_E_ARG, "%s:%lld: the line of a saved position is bad", d->file,
                           (long long)qn_line_index_number(d->lines, w->line));
    }
    while (d->n_window < QN_DATASET_WINDOW && d->next < d->summary.n_lines) {
        waiting w = {.line = line_at(d, d->epoch, d->next)};
        QN_TRY(read_line(d, w.line, &w.sequence));
        d->next++;
        if (w.sequence.n) d->window[d->n_window++] = w;
    }
    return QN_OK;
}

/* Moves sequence i of the window into the batch. */
static void take(qn_dataset *d, int64_t i)
{
    qn_train_batch *b = &d->batch;
    qn_train_sequence s = d->window[i].sequence;
    for (int64_t k = 0; k + 1 < s.n; k++) {
        d->ids[b->n_rows + k] = s.ids[k];
        if (!s.counts[k + 1]) continue;
        d->rows[b->n_targets] = (int32_t)(b->n_rows + k);
        d->targets[b->n_targets++] = s.ids[k + 1];
    }
    d->batch_lines[b->n_sequences++] = qn_line_index_number(d->lines, d->window[i].line);
    b->n_rows += s.n - 1;
    d->row_begin[b->n_sequences] = (int32_t)b->n_rows;
    qn_train_sequence_free(&s);
    memmove(&d->window[i], &d->window[i + 1], (size_t)(--d->n_window - i) * sizeof *d->window);
}

/* The first of the window that fits; n_window: none does. */
static int64_t find_fitting(const qn_dataset *d)
{
    int64_t i = 0, room = d->options.batch_tokens - d->batch.n_rows;
    if (d->batch.n_sequences == d->options.max_sequences) return d->n_window;
    while (i < d->n_window && d->window[i].sequence.n - 1 > room) i++;
    return i;
}

static qn_status pack(qn_dataset *d)
{
    for (;;) {
        QN_TRY(fill_window(d));
        int64_t i = find_fitting(d);
        if (i == d->n_window) return QN_OK;
        take(d, i);
    }
}

qn_status qn_dataset_next(qn_dataset *d, qn_train_batch *out)
{
    qn_dataset_position before;
    qn_dataset_tell(d, &before);
    d->batch =
        (qn_train_batch){.ids = d->ids, .row_begin = d->row_begin, .rows = d->rows, .targets = d->targets};
    d->row_begin[0] = 0;
    qn_status status = pack(d);
    if (status == QN_OK && !d->batch.n_sequences) {
        status = check_any(d);
        if (status == QN_OK) {
            d->epoch++;
            d->next = 0;
        }
    }
    if (status != QN_OK) {
        qn_dataset_seek(d, &before);
        return status;
    }
    *out = d->batch;
    return QN_OK;
}

const int64_t *qn_dataset_batch_lines(const qn_dataset *d)
{
    return d->batch_lines;
}

/* Packing as above, of lengths. */
int64_t qn_dataset_count_batches(const qn_dataset *d, int64_t epoch)
{
    int64_t window[QN_DATASET_WINDOW], n_window = 0, next = 0, n_batches = 0, n_rows = 0, n_sequences = 0;
    for (;;) {
        while (n_window < QN_DATASET_WINDOW && next < d->summary.n_lines) {
            const int32_t length = d->lengths[line_at(d, epoch, next++)];
            if (length) window[n_window++] = length;
        }
        int64_t i = 0, room = d->options.batch_tokens - n_rows;
        if (n_sequences == d->options.max_sequences) i = n_window;
        while (i < n_window && window[i] - 1 > room) i++;
        if (i < n_window) {
            n_rows += window[i] - 1;
            n_sequences++;
            memmove(&window[i], &window[i + 1], (size_t)(--n_window - i) * sizeof *window);
        } else if (n_sequences) {
            n_batches++;
            n_rows = n_sequences = 0;
        } else {
            return n_batches;
        }
    }
}

int qn_dataset_at_end(const qn_dataset *d)
{
    return d->next == d->summary.n_lines && !d->n_window;
}

uint64_t qn_dataset_hash(const qn_dataset *d)
{
    return qn_line_index_hash(d->lines);
}

/* ---- positions ---- */

void qn_dataset_tell(const qn_dataset *d, qn_dataset_position *out)
{
    *out = (qn_dataset_position){.epoch = d->epoch, .next = d->next, .n_held = d->n_window};
    for (int64_t i = 0; i < d->n_window; i++) out->held[i] = d->window[i].line;
}

qn_status qn_dataset_seek(qn_dataset *d, const qn_dataset_position *position)
{
    const qn_dataset_position p = *position;
    const int64_t n = d->summary.n_lines;
    int ok = p.epoch >= 0 && p.epoch < INT64_MAX && p.next >= 0 && p.next <= n && p.n_held >= 0 &&
             p.n_held <= QN_DATASET_WINDOW && p.n_held <= p.next;
    for (int64_t i = 0; ok && i < p.n_held; i++) ok = p.held[i] >= 0 && p.held[i] < n;
    if (!ok)
        return qn_fail(QN_E_ARG, "%s: the saved position does not fit these %lld lines", d->file,
                       (long long)n);
    drop_sequences(d);
    d->epoch = p.epoch;
    d->next = p.next;
    d->n_window = p.n_held;
    for (int64_t i = 0; i < p.n_held; i++) d->window[i] = (waiting){.line = p.held[i]};
    return QN_OK;
}

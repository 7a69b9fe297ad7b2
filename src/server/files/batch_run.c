#include "server/files/batch_run.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "server/files/files.h"

enum {
    LINES_MAX = 8,           /* that are computed together, of all batches */
    EMBEDDING_LINES_MAX = 1, /* they hold one of the few slow workers each */
    PIECE_BYTES = 65536,
    AGAIN_MS = 100, /* after a full queue */
    TICK_S = 30
};

typedef struct qn_batch_run batch;
typedef struct line line;

struct line {
    batch *batch;
    int64_t number;
    qn_buf custom_id, body, text; /* text: of the output */
    int is_error;
    qn_exchange *ex; /* that computes it; NULL: none */
    struct event *again;
    qn_local_client client;
    line *next;
};

struct qn_batch_run {
    qn_batch_info b;
    qn_server *server;
    int key, is_embedding;
    /* The input; a worker has these while is_reading. */
    qn_job read_job;
    int file;
    qn_buf piece;
    size_t piece_at;
    int64_t next_line;
    line *read; /* by the job; NULL: the input has ended */
    qn_status read_status;
    char read_why[512];
    int is_reading, has_ended;
    /* Lines that are computed, and those that are to be stored. A worker has `storing` and `object` while is_storing. */
    qn_job store_job;
    line *asked, *answered, *storing;
    qn_buf object;
    qn_status store_status;
    char store_why[512];
    int is_storing, is_changed;
    qn_job end_job;
    int is_ending, is_done;
    batch *next;
};

struct qn_batches {
    batch *first;
    struct event *tick; /* windows end also while lines wait for idle times */
    int n_lines, n_embedding_lines, n_jobs;
    int is_stopped, is_stepping;
};

/* ---- small things -------------------------------------------------------------------------------------- */

static batch *of_read(qn_job *job)
{
    return (batch *)(void *)((char *)job - offsetof(batch, read_job));
}

static batch *of_store(qn_job *job)
{
    return (batch *)(void *)((char *)job - offsetof(batch, store_job));
}

static batch *of_end(qn_job *job)
{
    return (batch *)(void *)((char *)job - offsetof(batch, end_job));
}

static void push(batch *b, qn_workers *workers, qn_job *job)
{
    b->server->batches->n_jobs++;
    qn_workers_push(workers, job);
}

static void free_line(line *l)
{
    if (!l) return;
    if (l->again) event_free(l->again);
    qn_buf_free(&l->custom_id);
    qn_buf_free(&l->body);
    qn_buf_free(&l->text);
    qn_free(l);
}

static void free_lines(line **list)
{
    for (line *l = *list, *next; l; l = next) {
        next = l->next;
        free_line(l);
    }
    *list = NULL;
}

static void free_batch(batch *b)
{
    free_line(b->read);
    free_lines(&b->asked);
    free_lines(&b->answered);
    free_lines(&b->storing);
    if (b->file >= 0) close(b->file);
    qn_batch_info_free(&b->b);
    qn_buf_free(&b->piece);
    qn_buf_free(&b->object);
    qn_free(b);
}

static void take_out(line **list, const line *l)
{
    while (*list && *list != l) list = &(*list)->next;
    if (*list) *list = l->next;
}

/* What lines become that are not computed any more; NULL: they are. */
static const char *stop_code(const batch *b)
{
    return b->b.state == QN_BATCH_CANCELLING ? "batch_cancelled"
           : b->b.state == QN_BATCH_EXPIRING ? "batch_expired"
           : b->b.state == QN_BATCH_FAILED   ? "batch_failed"
                                             : NULL;
}

static void write_stopped(const batch *b, line *l)
{
    const char *code = stop_code(b);
    qn_batch_write_failure(b->b.id, l->number, &l->custom_id, code ? code : "batch_failed",
                           b->b.state == QN_BATCH_CANCELLING
                               ? "the batch was cancelled before this request was computed"
                           : b->b.state == QN_BATCH_EXPIRING
                               ? "the completion window of the batch ended before this request was computed"
                               : "the batch failed before this request was computed",
                           &l->text);
    l->is_error = 1;
}

static void fail_batch(batch *b, const char *why)
{
    b->b.state = QN_BATCH_FAILED;
    snprintf(b->b.why, sizeof b->b.why, "%s", why);
}

static void unlist_asked(batch *b, line *l)
{
    take_out(&b->asked, l);
    b->server->batches->n_lines--;
    b->server->batches->n_embedding_lines -= b->is_embedding;
}

static void begin_storing(batch *b);

/* The line has its answer, or what is said instead of one. */
static void put_answered(batch *b, line *l)
{
    l->next = b->answered;
    b->answered = l;
    *(l->is_error ? &b->b.n_failed : &b->b.n_completed) += 1;
    begin_storing(b);
}

/* ---- reading ------------------------------------------------------------------------------------------- */

/* Makes the next bytes of the input the piece. *n is 0 at its end. */
static qn_status read_piece(batch *b, size_t *n)
{
    qn_buf_reset(&b->piece);
    qn_buf_reserve(&b->piece, PIECE_BYTES);
    QN_TRY(b->piece.status);
    ssize_t got;
    do got = read(b->file, b->piece.data, PIECE_BYTES);
    while (got < 0 && errno == EINTR);
    if (got < 0) return qn_fail(QN_E_IO, "the input cannot be read: %s", strerror(errno));
    b->piece.length = (size_t)got;
    b->piece_at = 0;
    *n = (size_t)got;
    return QN_OK;
}

/* The next line without its end, cut behind max bytes. *found is 0 at the end of the input. */
static qn_status read_text(batch *b, size_t max, qn_buf *text, int *is_cut, int *found)
{
    *is_cut = *found = 0;
    for (size_t n = 0;;) {
        if (b->piece_at == b->piece.length) {
            QN_TRY(read_piece(b, &n));
            if (!n) return QN_OK;
        }
        const char *at = b->piece.data + b->piece_at;
        const size_t left = b->piece.length - b->piece_at;
        const char *end = memchr(at, '\n', left);
        n = end ? (size_t)(end - at) : left;
        *found = 1;
        if (text->length + n > max)
            *is_cut = 1;
        else
            qn_buf_append(text, at, n);
        QN_TRY(text->status);
        b->piece_at += n + (end != NULL);
        if (end) return QN_OK;
    }
}

static int is_blank(const qn_buf *text)
{
    return !text->length || strspn(text->data, " \t\r") == text->length;
}

/* The next line that is not stored yet; b->read is NULL at the end. */
static qn_status read_line(batch *b)
{
    int64_t bytes;
    if (b->file < 0)
        QN_TRY(qn_archive_open_file(b->server->archive, b->b.input, b->b.owner, &b->file, &bytes));
    const size_t max = b->server->options->http.body_max_bytes;
    qn_buf text = {0};
    qn_api_error error = {0};
    int is_cut, found = 1, is_stored = 1;
    qn_status status = QN_OK;
    while (status == QN_OK && found && is_stored) {
        qn_buf_reset(&text);
        status = read_text(b, max, &text, &is_cut, &found);
        if (status != QN_OK || !found || (!is_cut && is_blank(&text))) continue;
        status = qn_archive_has_line(b->server->archive, b->b.id, b->next_line++, &is_stored);
    }
    line *l = status == QN_OK && found ? qn_calloc(1, sizeof *l) : NULL;
    if (status == QN_OK && found && !l) status = QN_E_NOMEM;
    if (l) {
        l->batch = b;
        l->number = b->next_line - 1;
        if (is_cut)
            qn_api_fail(&error, 413, "line_too_large", NULL, "the line is larger than %zu bytes (--max-body)",
                        max);
        else
            qn_batch_read_line(text.data, text.length, b->b.endpoint, &l->custom_id, &l->body, &error);
        l->is_error = error.status != 0;
        if (l->is_error)
            qn_batch_write_failure(b->b.id, l->number, &l->custom_id, error.code, error.message, &l->text);
        b->read = l;
    }
    qn_buf_free(&text);
    return status;
}

static void run_read(qn_job *job)
{
    batch *b = of_read(job);
    b->read_status = read_line(b);
    if (b->read_status != QN_OK) snprintf(b->read_why, sizeof b->read_why, "%s", qn_last_error());
}

static void ask(line *l);

static void read_done(qn_job *job)
{
    batch *b = of_read(job);
    qn_batches *all = b->server->batches;
    line *l = b->read;
    all->n_jobs--;
    b->is_reading = 0;
    b->read = NULL;
    if (b->read_status != QN_OK) {
        fail_batch(b, b->read_why);
        b->has_ended = 1;
    } else if (!l) {
        b->has_ended = 1;
    }
    if (all->is_stopped) {
        free_line(l);
        return;
    }
    if (l && !l->is_error && stop_code(b)) write_stopped(b, l);
    if (l && l->is_error) {
        put_answered(b, l);
    } else if (l) {
        l->next = b->asked;
        b->asked = l;
        all->n_lines++;
        all->n_embedding_lines += b->is_embedding;
        ask(l);
    }
    qn_batches_step(b->server);
}

/* ---- asking -------------------------------------------------------------------------------------------- */

static void on_again(evutil_socket_t file, short what, void *user)
{
    (void)file, (void)what;
    ask(user);
}

/* The queue was full, or memory: later. */
static void ask_later(line *l)
{
    const struct timeval wait = {0, AGAIN_MS * 1000};
    if (!l->again) l->again = evtimer_new(l->batch->server->http.base, on_again, l);
    if (l->again) evtimer_add(l->again, &wait);
    if (l->again) return;
    batch *b = l->batch;
    unlist_asked(b, l);
    fail_batch(b, "out of memory");
    write_stopped(b, l);
    put_answered(b, l);
}

static void take_answer(void *user, const qn_exchange *ex, int status, const char *answer, size_t n)
{
    line *l = user;
    batch *b = l->batch;
    l->ex = NULL;
    if (b->server->batches->is_stopped) return;
    if (status == 429 || status == 503) {
        ask_later(l);
        return;
    }
    unlist_asked(b, l);
    l->is_error = status != 200;
    qn_batch_write_answer(b->b.id, l->number, &l->custom_id, status, ex->id, answer, n, &l->text);
    put_answered(b, l);
    qn_batches_step(b->server);
}

static void ask(line *l)
{
    batch *b = l->batch;
    qn_buf body = {0};
    qn_buf_append(&body, l->body.data, l->body.length);
    if (body.status != QN_OK) {
        qn_buf_free(&body);
        ask_later(l);
        return;
    }
    l->client = (qn_local_client){take_answer, l};
    /* An answer that comes at once may free the line. */
    qn_exchange *ex =
        qn_exchange_begin_local(&b->server->http, "POST", b->b.endpoint, &body, b->key, &l->client);
    if (ex) {
        l->ex = ex;
    } else if (body.data) { /* not taken over: no memory */
        qn_buf_free(&body);
        ask_later(l);
    }
}

/* ---- storing ------------------------------------------------------------------------------------------- */

static qn_status store(batch *b)
{
    qn_archive *archive = b->server->archive;
    for (const line *l = b->storing; l; l = l->next) {
        QN_TRY(l->text.status);
        QN_TRY(qn_archive_put_line(archive, b->b.id, l->number, l->is_error, l->text.data, l->text.length));
    }
    QN_TRY(b->object.status);
    return qn_archive_put(archive, &(qn_stored){.kind = QN_STORED_BATCH,
                                                .id = b->b.id,
                                                .owner = b->b.owner,
                                                .label = QN_STORED_OPEN,
                                                .refers = b->b.input,
                                                .created_s = b->b.created_s,
                                                .object = b->object.data,
                                                .object_bytes = b->object.length});
}

static void run_store(qn_job *job)
{
    batch *b = of_store(job);
    b->store_status = store(b);
    if (b->store_status != QN_OK) snprintf(b->store_why, sizeof b->store_why, "%s", qn_last_error());
}

static void abandon_asked(batch *b);

static void store_done(qn_job *job)
{
    batch *b = of_store(job);
    qn_server_metrics *m = &b->server->metrics;
    b->server->batches->n_jobs--;
    b->is_storing = 0;
    for (const line *l = b->storing; l; l = l->next)
        *(l->is_error ? &m->n_batch_failures : &m->n_batch_answers) += 1;
    free_lines(&b->storing);
    if (b->store_status != QN_OK) {
        fail_batch(b, b->store_why);
        b->has_ended = 1;
        free_lines(&b->answered);
        abandon_asked(b);
        free_lines(&b->answered);
    }
    if (b->answered || b->is_changed) begin_storing(b);
    qn_batches_step(b->server);
}

static void begin_storing(batch *b)
{
    if (b->is_storing || b->is_ending || b->server->batches->is_stopped) return;
    b->is_storing = 1;
    b->is_changed = 0;
    b->storing = b->answered;
    b->answered = NULL;
    qn_buf_reset(&b->object);
    qn_batch_write(&b->b, &b->object);
    b->store_job = (qn_job){run_store, store_done, NULL};
    push(b, b->server->workers, &b->store_job);
}

/* ---- the end ------------------------------------------------------------------------------------------- */

/* The file with one kind of lines, if there are any. */
static qn_status make_file(batch *b, int is_error, qn_upload **upload, qn_stored *file, qn_buf *object)
{
    static const char own[] = "batch_";
    qn_archive *archive = b->server->archive;
    char *id = is_error ? b->b.errors : b->b.output, name[QN_STORED_ID_MAX + 16];
    if (!(is_error ? b->b.n_failed : b->b.n_completed)) return QN_OK;
    /* The same names each time, so that an end that was cut off and comes again makes nothing twice. */
    snprintf(id, QN_STORED_ID_MAX, "file-%s%s", b->b.id + sizeof own - 1, is_error ? "_error" : "_output");
    snprintf(name, sizeof name, "%s%s.jsonl", b->b.id, is_error ? "_error" : "_output");
    QN_TRY(qn_upload_begin(archive, 1, upload));
    QN_TRY(qn_archive_write_lines(archive, b->b.id, is_error, *upload));
    qn_files_write_object(&b->server->options->store, id, name, "batch_output", qn_upload_bytes(*upload),
                          b->b.ended_s, object);
    *file = (qn_stored){.kind = QN_STORED_FILE,
                        .id = id,
                        .owner = b->b.owner,
                        .label = "batch_output",
                        .created_s = b->b.ended_s,
                        .object = object->data,
                        .object_bytes = object->length};
    return object->status;
}

static qn_status end_with(batch *b, qn_upload *uploads[2], const qn_stored files[2])
{
    qn_buf object = {0};
    qn_batch_write(&b->b, &object);
    qn_status status = object.status;
    if (status == QN_OK)
        status = qn_archive_end_batch(b->server->archive,
                                      &(qn_stored){.kind = QN_STORED_BATCH,
                                                   .id = b->b.id,
                                                   .owner = b->b.owner,
                                                   .label = "ended",
                                                   .refers = b->b.input,
                                                   .created_s = b->b.created_s,
                                                   .object = object.data,
                                                   .object_bytes = object.length},
                                      uploads, files);
    else
        for (int i = 0; i < 2; i++) qn_upload_drop(uploads[i]);
    qn_buf_free(&object);
    return status;
}

static void run_end(qn_job *job)
{
    batch *b = of_end(job);
    qn_upload *uploads[2] = {0};
    qn_stored files[2];
    qn_buf objects[2] = {{0}, {0}};
    qn_batch_counts counts = {0};
    qn_status status = qn_archive_count_lines(b->server->archive, b->b.id, &counts);
    b->b.n_failed = counts.n_errors;
    b->b.n_completed = counts.n_lines - counts.n_errors;
    b->b.ended_s = (int64_t)time(NULL);
    for (int i = 0; i < 2 && status == QN_OK; i++)
        status = make_file(b, i, &uploads[i], &files[i], &objects[i]);
    if (status == QN_OK) {
        status = end_with(b, uploads, files);
    } else {
        for (int i = 0; i < 2; i++) qn_upload_drop(uploads[i]);
    }
    if (status !=
        QN_OK) { /* the disk or the store is full: the batch ends without its answers, and says why */
        b->b.state = QN_BATCH_FAILED;
        snprintf(b->b.why, sizeof b->b.why, "%s", qn_last_error());
        b->b.output[0] = b->b.errors[0] = 0;
        end_with(b, (qn_upload *[2]){NULL, NULL}, files);
    }
    for (int i = 0; i < 2; i++) qn_buf_free(&objects[i]);
}

static void end_done(qn_job *job)
{
    batch *b = of_end(job);
    b->server->batches->n_jobs--;
    b->is_ending = 0;
    b->is_done = 1;
    qn_batches_step(b->server);
}

static void begin_ending(batch *b)
{
    b->is_ending = 1;
    b->b.state = b->b.state == QN_BATCH_CANCELLING    ? QN_BATCH_CANCELLED
                 : b->b.state == QN_BATCH_EXPIRING    ? QN_BATCH_EXPIRED
                 : b->b.state == QN_BATCH_IN_PROGRESS ? QN_BATCH_COMPLETED
                                                      : b->b.state;
    b->end_job = (qn_job){run_end, end_done, NULL};
    push(b, b->server->slow_workers, &b->end_job);
}

/* ---- turns --------------------------------------------------------------------------------------------- */

/* Lines that are computed become lines that were not. */
static void abandon_asked(batch *b)
{
    for (line *l; (l = b->asked);) {
        qn_exchange *ex = l->ex;
        unlist_asked(b, l);
        if (l->again) evtimer_del(l->again);
        l->ex = NULL;
        if (ex) qn_exchange_abandon(ex);
        write_stopped(b, l);
        put_answered(b, l);
    }
}

static int may_read(const batch *b)
{
    const qn_batches *all = b->server->batches;
    if (b->is_reading || b->has_ended || b->is_ending) return 0;
    if (stop_code(b)) return !b->is_storing; /* the lines that are left are only named */
    return all->n_lines < LINES_MAX && !(b->is_embedding && all->n_embedding_lines >= EMBEDDING_LINES_MAX);
}

static void step(batch *b)
{
    if (b->b.state == QN_BATCH_IN_PROGRESS && (int64_t)time(NULL) >= b->b.created_s + QN_BATCH_WINDOW_S) {
        b->b.state = QN_BATCH_EXPIRING;
        abandon_asked(b);
    }
    if (may_read(b)) {
        b->is_reading = 1;
        b->read_job = (qn_job){run_read, read_done, NULL};
        push(b, b->server->workers, &b->read_job);
    }
    if (b->has_ended && !b->is_reading && !b->asked && !b->answered && !b->is_storing && !b->is_ending &&
        !b->is_done)
        begin_ending(b);
}

void qn_batches_step(qn_server *s)
{
    qn_batches *all = s->batches;
    if (!all || all->is_stopped || all->is_stepping || !s->model) return;
    all->is_stepping = 1;
    for (batch **at = &all->first; *at;) {
        batch *b = *at;
        if (!b->is_done) step(b);
        if (!b->is_done) {
            at = &b->next;
            continue;
        }
        *at = b->next;
        free_batch(b);
    }
    /* The first goes behind the others, so that batches take turns. */
    if (all->first && all->first->next) {
        batch *first = all->first, *last = first;
        while (last->next) last = last->next;
        all->first = first->next;
        first->next = NULL;
        last->next = first;
    }
    all->is_stepping = 0;
}

/* ---- life ---------------------------------------------------------------------------------------------- */

/* The key whose owner it is; -1: none, and *found is 0 if the server has keys and none is his. */
static int find_key(const qn_server *s, const char *owner, int *found)
{
    char each[QN_ARCHIVE_OWNER_MAX];
    *found = 1;
    if (!owner[0]) return -1;
    for (size_t i = 0; i < s->options->http.n_api_keys; i++) {
        qn_server_owner(s, (int)i, each);
        if (strcmp(each, owner) == 0) return (int)i;
    }
    *found = 0;
    return -1;
}

qn_batch_run *qn_batch_run_new(void)
{
    batch *b = qn_calloc(1, sizeof *b);
    if (b) b->file = -1;
    return b;
}

void qn_batch_run_free(qn_batch_run *run)
{
    if (run) free_batch(run);
}

void qn_batches_add(qn_server *s, qn_batch_run *b, qn_batch_info *info)
{
    batch **last = &s->batches->first;
    int found;
    b->b = *info;
    info->metadata = NULL;
    b->server = s;
    b->key = find_key(s, b->b.owner, &found);
    b->is_embedding = strcmp(b->b.endpoint, "/v1/embeddings") == 0;
    if (!found) fail_batch(b, "the API key that made the batch is gone");
    b->has_ended = !found;
    while (*last) last = &(*last)->next;
    *last = b;
    qn_batches_step(s);
}

static void on_tick(evutil_socket_t file, short what, void *user)
{
    (void)file, (void)what;
    qn_batches_step(user);
}

static qn_status begin_ticking(qn_server *s)
{
    const struct timeval every = {TICK_S, 0};
    s->batches->tick = event_new(s->http.base, -1, EV_PERSIST, on_tick, s);
    return s->batches->tick && evtimer_add(s->batches->tick, &every) == 0 ? QN_OK : qn_fail_nomem(0);
}

static qn_status collect(void *user, const qn_stored *o)
{
    return json_array_append_new(user, json_pack("[s%,s]", o->object, o->object_bytes, o->owner))
               ? qn_fail_nomem(0)
               : QN_OK;
}

qn_status qn_batches_new(qn_server *s)
{
    const qn_archive_query open = {
        .kind = QN_STORED_BATCH, .label = QN_STORED_OPEN, .limit = INT32_MAX, .oldest_first = 1};
    json_t *found = json_array();
    int more;
    qn_status status = found ? QN_OK : qn_fail_nomem(0);
    s->batches = qn_calloc(1, sizeof *s->batches);
    if (!s->batches) status = QN_E_NOMEM;
    if (status == QN_OK) status = begin_ticking(s);
    if (status == QN_OK) status = qn_archive_list(s->archive, &open, collect, found, &more);
    for (size_t i = 0; i < json_array_size(found) && status == QN_OK; i++) {
        const json_t *each = json_array_get(found, i), *object = json_array_get(each, 0);
        qn_batch_info b;
        qn_batch_counts counts = {0};
        status = qn_batch_read(json_string_value(object), json_string_length(object), &b);
        if (status == QN_OK) status = qn_archive_count_lines(s->archive, b.id, &counts);
        snprintf(b.owner, sizeof b.owner, "%s", json_string_value(json_array_get(each, 1)));
        b.n_failed = counts.n_errors;
        b.n_completed = counts.n_lines - counts.n_errors;
        qn_batch_run *run = status == QN_OK ? qn_batch_run_new() : NULL;
        if (status == QN_OK && !run) status = QN_E_NOMEM;
        if (run)
            qn_batches_add(s, run, &b);
        else
            qn_batch_info_free(&b);
    }
    json_decref(found);
    return status;
}

int qn_batches_cancel(qn_server *s, const char *id, const char *owner, qn_buf *out)
{
    batch *b = s->batches->first;
    while (b && (strcmp(b->b.id, id) != 0 || strcmp(b->b.owner, owner) != 0)) b = b->next;
    if (!b || b->is_ending || b->is_done || b->b.state == QN_BATCH_FAILED) return 0;
    if (b->b.state == QN_BATCH_IN_PROGRESS) {
        b->b.state = QN_BATCH_CANCELLING;
        b->b.cancelling_s = (int64_t)time(NULL);
        b->is_changed = 1;
        abandon_asked(b);
        begin_storing(b);
    }
    qn_batch_write(&b->b, out);
    qn_batches_step(s);
    return 1;
}

void qn_batches_stop(qn_server *s)
{
    if (!s->batches) return;
    s->batches->is_stopped = 1;
    for (batch *b = s->batches->first; b; b = b->next)
        for (line *l; (l = b->asked);) {
            qn_exchange *ex = l->ex;
            unlist_asked(b, l);
            if (ex) qn_exchange_abandon(ex);
            free_line(l);
        }
}

int qn_batches_are_busy(const qn_server *s)
{
    return s->batches && s->batches->n_jobs > 0;
}

void qn_batches_free(qn_server *s)
{
    if (!s->batches) return;
    for (batch *b = s->batches->first, *next; b; b = next) {
        next = b->next;
        free_batch(b);
    }
    if (s->batches->tick) event_free(s->batches->tick);
    qn_free(s->batches);
    s->batches = NULL;
}

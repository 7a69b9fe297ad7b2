#include "train/run/run_log.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/json/json.h"
#include "base/json/json_write.h"
#include "base/mem.h"

enum { CHUNK_BYTES = 1 << 16, LINE_BYTES_MAX = 1 << 20 };

struct qn_run_log {
    char *path;
    int file;
    qn_buf line;
};

static qn_status io_error(const qn_run_log *l, const char *what)
{
    return qn_fail(QN_E_IO, "%s: %s: %s", l->path, what, strerror(errno));
}

/* ---- where to go on ----------------------------------------------------------------------------------- */

/* *known 1: an event of a step up to this one. */
static qn_status look_at(const qn_buf *line, int64_t step, int *known)
{
    json_t *event = NULL;
    *known = 0;
    if (line->status != QN_OK || !line->length) return line->status == QN_E_NOMEM ? QN_E_NOMEM : QN_OK;
    const qn_status status = qn_json_parse("log", line->data, line->length, &event);
    if (status != QN_OK) return status == QN_E_NOMEM ? status : QN_OK;
    const json_t *at = json_object_get(event, "step");
    *known = json_is_integer(at) && json_integer_value(at) <= step;
    json_decref(event);
    return QN_OK;
}

/* Lines of a chunk; *end: behind the last that stays, while *known. */
static qn_status look_through(const char *chunk, size_t n, int64_t step, qn_buf *line, int64_t *end,
                              int *known)
{
    while (n && *known) {
        const char *newline = memchr(chunk, '\n', n);
        const size_t part = newline ? (size_t)(newline - chunk) : n, taken = part + (newline != NULL);
        qn_buf_append(line, chunk, part);
        chunk += taken;
        n -= taken;
        if (!newline) break;
        QN_TRY(look_at(line, step, known));
        if (*known) *end += (int64_t)line->length + 1;
        qn_buf_reset(line);
    }
    return QN_OK;
}

/* *end: behind the last line before the first that does not stay. */
static qn_status find_end(const qn_run_log *l, int64_t step, int64_t *end)
{
    qn_buf line = {.limit_bytes = LINE_BYTES_MAX};
    qn_status status = QN_OK;
    int known = 1;
    *end = 0;
    for (int64_t offset = 0; status == QN_OK && known;) {
        char chunk[CHUNK_BYTES];
        const ssize_t got = pread(l->file, chunk, sizeof chunk, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) status = io_error(l, "cannot read");
        if (got <= 0) break;
        status = look_through(chunk, (size_t)got, step, &line, end, &known);
        offset += got;
    }
    qn_buf_free(&line);
    return status;
}

static qn_status open_file(qn_run_log *l, int64_t step)
{
    int64_t end = 0;
    l->file = open(l->path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (l->file < 0) return io_error(l, "cannot open it");
    if (flock(l->file, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK) return qn_fail(QN_E_ARG, "%s: another training is writing to it", l->path);
        return io_error(l, "cannot lock it");
    }
    if (step >= 0) QN_TRY(find_end(l, step, &end));
    if (ftruncate(l->file, (off_t)end) != 0) return io_error(l, "cannot truncate it");
    if (lseek(l->file, (off_t)end, SEEK_SET) < 0) return io_error(l, "cannot seek to its end");
    return QN_OK;
}

qn_status qn_run_log_open(const char *path, int64_t step, qn_run_log **out)
{
    qn_run_log *l = qn_calloc(1, sizeof *l);
    if (!l) return QN_E_NOMEM;
    l->file = -1;
    l->path = qn_strdup(path);
    qn_status status = l->path ? open_file(l, step) : QN_E_NOMEM;
    if (status == QN_OK)
        *out = l;
    else
        qn_run_log_close(l);
    return status;
}

void qn_run_log_close(qn_run_log *l)
{
    if (!l) return;
    if (l->file >= 0) close(l->file);
    qn_buf_free(&l->line);
    qn_free(l->path);
    qn_free(l);
}

/* ---- events ------------------------------------------------------------------------------------------- */

static void put_report(qn_buf *b, const qn_train_step_report *r)
{
    qn_json_put_int(b, "n_steps", r->n_steps);
    qn_json_put_int(b, "epoch", r->epoch);
    qn_json_put_exact(b, "loss", r->loss);
    qn_json_put_exact(b, "rate", r->rate);
    qn_json_put_exact(b, "grad_norm", r->grad_norm);
    qn_json_put_int(b, "n_tokens", r->n_tokens);
    qn_json_put_int(b, "n_counted", r->n_counted);
    qn_json_put_int(b, "n_sequences", r->n_sequences);
    qn_json_put_int(b, "n_tokens_total", r->n_tokens_total);
    qn_json_put_real(b, "seconds", r->seconds);
    qn_json_put_real(b, "tokens_per_s", r->tokens_per_s);
    qn_json_put_real(b, "eta_s", r->eta_s);
    qn_json_put_int(b, "memory_bytes", (int64_t)r->memory_bytes);
    qn_json_put_int(b, "peak_memory_bytes", (int64_t)r->peak_memory_bytes);
}

static void put_settings(qn_buf *b, const char *settings)
{
    qn_json_key(b, "settings");
    qn_json_open(b, '{');
    for (const char *at = settings; *at;) {
        const size_t n = strcspn(at, "\n"), name = strcspn(at, "=");
        if (name < n) {
            if (b->data[b->length - 1] != '{') qn_buf_putc(b, ',');
            qn_buf_json_string(b, at, name);
            qn_buf_putc(b, ':');
            qn_buf_json_string(b, at + name + 1, n - name - 1);
        }
        at += n + (at[n] == '\n');
    }
    qn_json_close(b, '}');
}

static void put_event(qn_buf *b, const qn_train_event *e, const char *settings)
{
    const int has_losses = e->kind == QN_TRAIN_EVENT_VALID || e->kind == QN_TRAIN_EVENT_STOPPED ||
                           e->kind == QN_TRAIN_EVENT_DONE;
    qn_json_open(b, '{');
    qn_json_put_text(b, "event", qn_train_event_name(e->kind));
    qn_json_put_int(b, "step", e->step);
    if (e->report) put_report(b, e->report);
    if (has_losses) {
        qn_json_put_exact(b, "valid_loss", e->valid_loss);
        qn_json_put_exact(b, "best_loss", e->best_loss);
        qn_json_put_real(b, "seconds", e->seconds);
    }
    if (e->path) qn_json_put_text(b, "path", e->path);
    if (e->text) qn_json_put_text(b, "text", e->text);
    if (settings) {
        qn_json_put_int(b, "unix_s", (int64_t)time(NULL));
        put_settings(b, settings);
    }
    qn_json_close(b, '}');
    qn_buf_putc(b, '\n');
}

qn_status qn_run_log_put(qn_run_log *l, const qn_train_event *event, const char *settings)
{
    qn_buf_reset(&l->line);
    put_event(&l->line, event, settings);
    QN_TRY(l->line.status);
    for (size_t done = 0; done < l->line.length;) {
        const ssize_t n = write(l->file, l->line.data + done, l->line.length - done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return io_error(l, "cannot write");
        done += (size_t)n;
    }
    return QN_OK;
}

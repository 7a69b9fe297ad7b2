#include "cli/train/train_log.h"

#include <math.h>
#include <string.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "train/data/line_index.h"

enum { NOTES_MAX = 1000 };

static double real_of(const json_t *event, const char *key)
{
    const json_t *value = json_object_get(event, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

/* A count, 0 where there is none. No sum of as many as a file has lines overflows. */
static int64_t count_of(const json_t *event, const char *key)
{
    const int64_t value = json_integer_value(json_object_get(event, key));
    return value > 0 && value < (int64_t)1 << 48 ? value : 0;
}

/* An array of n with room for one more; NULL: memory is out, and the old one lives on. It doubles when n is a
 * power of two. */
static void *with_room(void *items, int64_t n, size_t size_bytes)
{
    return items && n & (n - 1) ? items : qn_realloc(items, (size_t)(n ? 2 * n : 1) * size_bytes);
}

static void replace(json_t **to, json_t *event)
{
    json_decref(*to);
    *to = json_incref(event);
}

/* A run begins behind this step: what was said of later ones is void. Sums stay: that work was done. */
static void forget_behind(qn_train_log *log, int64_t step)
{
    while (log->n_steps && log->steps[log->n_steps - 1].step > step) log->n_steps--;
    while (log->n_valids && log->valids[log->n_valids - 1].step > step) log->n_valids--;
    while (log->n_notes && log->notes[log->n_notes - 1].step > step) qn_free(log->notes[--log->n_notes].text);
}

static qn_status take_step(qn_train_log *log, const json_t *event)
{
    const int64_t step = count_of(event, "step"), peak = count_of(event, "peak_memory_bytes");
    const double seconds = real_of(event, "seconds");
    if (log->n_steps && log->steps[log->n_steps - 1].step >= step) return QN_OK;
    void *room = with_room(log->steps, log->n_steps, sizeof *log->steps);
    if (!room) return QN_E_NOMEM;
    log->steps = room;
    log->steps[log->n_steps++] = (qn_train_log_step){step, real_of(event, "loss"), real_of(event, "rate"),
                                                     real_of(event, "grad_norm")};
    if (isfinite(seconds)) log->seconds += seconds;
    log->n_tokens += count_of(event, "n_tokens");
    log->n_counted += count_of(event, "n_counted");
    if (peak > log->peak_memory_bytes) log->peak_memory_bytes = peak;
    return QN_OK;
}

static qn_status take_valid(qn_train_log *log, const json_t *event)
{
    const int64_t step = count_of(event, "step");
    const double loss = real_of(event, "valid_loss");
    if (!isfinite(loss) || (log->n_valids && log->valids[log->n_valids - 1].step >= step)) return QN_OK;
    void *room = with_room(log->valids, log->n_valids, sizeof *log->valids);
    if (!room) return QN_E_NOMEM;
    log->valids = room;
    log->valids[log->n_valids++] = (qn_train_log_valid){step, loss};
    return QN_OK;
}

static qn_status take_note(qn_train_log *log, const json_t *event, int is_warning)
{
    const char *text = json_string_value(json_object_get(event, "text"));
    if (!text || log->n_notes == NOTES_MAX) return QN_OK;
    void *room = with_room(log->notes, log->n_notes, sizeof *log->notes);
    if (!room) return QN_E_NOMEM;
    log->notes = room;
    char *copy = qn_strdup(text);
    if (!copy) return QN_E_NOMEM;
    log->notes[log->n_notes++] = (qn_train_log_note){count_of(event, "step"), copy, is_warning};
    return QN_OK;
}

static qn_status take_event(qn_train_log *log, json_t *event)
{
    const char *name = json_string_value(json_object_get(event, "event"));
    if (!name) return QN_OK;
    if (strcmp(name, "start") == 0) {
        forget_behind(log, count_of(event, "step"));
        replace(&log->start, event);
        replace(&log->end, NULL);
        log->n_runs++;
        return QN_OK;
    }
    if (strcmp(name, "step") == 0) return take_step(log, event);
    if (strcmp(name, "valid") == 0) return take_valid(log, event);
    if (strcmp(name, "note") == 0) return take_note(log, event, 0);
    if (strcmp(name, "warning") == 0) return take_note(log, event, 1);
    if (strcmp(name, "done") == 0 || strcmp(name, "stopped") == 0 || strcmp(name, "failed") == 0)
        replace(&log->end, event);
    return QN_OK;
}

qn_status qn_train_log_take(qn_train_log *log, const char *line, size_t n)
{
    json_t *event = NULL;
    qn_status status = qn_json_parse("log", line, n, &event);
    if (status == QN_OK) status = take_event(log, event);
    json_decref(event);
    return status == QN_E_NOMEM ? status : QN_OK;
}

qn_status qn_train_log_read(const char *path, qn_train_log *out)
{
    qn_line_index *lines = NULL;
    qn_buf line = {0};
    qn_train_log log = {0};
    qn_status status = qn_line_index_open(path, &lines);
    const int64_t n = status == QN_OK ? qn_line_index_count(lines) : 0;
    for (int64_t i = 0; i < n && status == QN_OK; i++) {
        status = qn_line_index_read(lines, i, &line);
        if (status == QN_OK) status = qn_train_log_take(&log, line.data ? line.data : "", line.length);
        if (status == QN_E_FORMAT) status = QN_OK; /* longer than any event */
    }
    qn_line_index_close(lines);
    qn_buf_free(&line);
    if (status != QN_OK) qn_train_log_free(&log);
    *out = log;
    return status;
}

void qn_train_log_free(qn_train_log *log)
{
    for (int64_t i = 0; i < log->n_notes; i++) qn_free(log->notes[i].text);
    qn_free(log->notes);
    qn_free(log->steps);
    qn_free(log->valids);
    json_decref(log->start);
    json_decref(log->end);
    *log = (qn_train_log){0};
}

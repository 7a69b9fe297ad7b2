#include "text/tools/tool_calls.h"

#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "text/tools/tool_formats.h"
#include "text/tools/tool_reader.h"
#include "text/tools/tool_types.h"

enum {
    HEADER_BYTES_MAX = 256,
    RETRIES_MAX = 64, /* texts that began like a call and were none: from then on all is content */
    LIMIT_DEFAULT = 1 << 20
};

/* Where in the answer the next byte is.
 *
 *   held:   ....white space....|mark body so far|not looked at
 *           ^from               ^at              ^scan
 *
 * Bytes before `from` have become events. In TEXT and REASONING only white space lies between from and at; in
 * CALL a mark begins at `at`, and scan is as far as the reader has read. With headers the mark of a header
 * lies between from and at, too, and at is where the header's text begins, or the arguments that it
 * announced. What the reader has said moves from and at. LINE is in a line that begins like a header and is
 * none: content up to its end, whatever it says. BROKEN is behind a mark whose text is no call: it
 * lasts until the mark that ends calls, or until another call begins. Each step looks at bytes that are there
 * and waits when they might be the beginning of a mark; it never knows where a delta ended. */
typedef enum { TEXT, REASONING, HEADER, LINE, CALL, BROKEN } state;

typedef enum { MISS, HIT, WAIT } match;

struct qn_answer {
    const qn_call_format *calls;
    const qn_reasoning_format *reasoning;
    const json_t *tools;
    size_t limit;
    state state;
    int is_fresh; /* no text since the beginning, or since the last mark */
    int is_glued; /* white space here goes away with the mark before it */
    int is_over;
    size_t from, at, scan;
    qn_buf held;
    /* in a call */
    int has_header, has_said; /* a header said its name; some of it has become events */
    int retries;
    qn_call_reader reader;
    int32_t n_calls, n_malformed;
    /* what came out: while a feed runs, text and id of an event are offsets */
    qn_buf texts;
    qn_answer_event *events;
    size_t n_events, capacity;
};

/* ---- events ---- */

static qn_status add_event(qn_answer *a, qn_answer_event e, const char *text, size_t n)
{
    qn_answer_event *last = a->n_events ? &a->events[a->n_events - 1] : NULL;
    int joins = e.kind <= QN_ANSWER_REASONING || e.kind == QN_ANSWER_CALL_ARGUMENTS;
    if (last && joins && last->kind == e.kind && last->is_malformed == e.is_malformed) {
        qn_buf_append(&a->texts, text, n);
        last->n += n;
        return a->texts.status;
    }
    if (a->n_events == a->capacity) {
        size_t capacity = a->capacity ? 2 * a->capacity : 8;
        qn_answer_event *events = qn_realloc(a->events, capacity * sizeof *events);
        if (!events) return QN_E_NOMEM;
        a->events = events;
        a->capacity = capacity;
    }
    e.n = n;
    a->events[a->n_events++] = e;
    qn_buf_append(&a->texts, text, n);
    return a->texts.status;
}

/* Bytes [from, end) are text. */
static qn_status emit(qn_answer *a, qn_answer_kind kind, int is_malformed, size_t end)
{
    size_t n = end - a->from;
    if (n == 0) return QN_OK;
    const char *text = a->held.data + a->from;
    a->from = end;
    return add_event(a, (qn_answer_event){.kind = kind, .is_malformed = is_malformed}, text, n);
}

/* What the reader says of calls. */
static qn_status take_call(void *user, qn_answer_kind kind, const char *text, size_t n, const char *id)
{
    qn_answer *a = user;
    qn_answer_event e = {.kind = kind, .index = a->n_calls};
    QN_TRY(add_event(a, e, text, n));
    if (kind == QN_ANSWER_CALL_END) a->n_calls++;
    if (kind != QN_ANSWER_CALL_BEGIN) return QN_OK;
    /* Both strings, with their ends. */
    size_t id_bytes = strlen(id) + 1;
    qn_buf_putc(&a->texts, 0);
    qn_buf_append(&a->texts, id, id_bytes);
    a->events[a->n_events - 1].n = n + 1 + id_bytes;
    return a->texts.status;
}

/* ---- marks ---- */

static match match_at(const qn_answer *a, size_t at, const char *mark, int is_final)
{
    size_t m, there = a->held.length - at;
    if (!mark) return MISS;
    m = strlen(mark);
    if (there >= m) return memcmp(a->held.data + at, mark, m) == 0 ? HIT : MISS;
    if (is_final || memcmp(a->held.data + at, mark, there) != 0) return MISS;
    return WAIT;
}

/* The first of the marks that is there: HIT. WAIT: one of them may be. */
static match match_any(const qn_answer *a, size_t at, const char *const *marks, size_t n, int is_final,
                       const char **found)
{
    match best = MISS;
    for (size_t i = 0; i < n; i++) {
        match m = match_at(a, at, marks[i], is_final);
        if (m == HIT) {
            *found = marks[i];
            return HIT;
        }
        if (m == WAIT) best = WAIT;
    }
    return best;
}

static int is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* The text goes on at `at`, behind a mark. */
static void go_on(qn_answer *a, state s, size_t at)
{
    a->state = s;
    a->from = a->at = a->scan = at;
    a->is_fresh = a->is_glued = 1;
}

/* The reader takes over. name: a header said it. */
static qn_status begin_call(qn_answer *a, size_t at, size_t scan, const char *name)
{
    a->state = CALL;
    a->at = at;
    a->scan = scan;
    a->has_header = name != NULL;
    a->has_said = 0;
    return qn_call_reader_begin(&a->reader, a->calls, a->tools, name);
}

/* A call's own mark is at `at`. */
static qn_status begin_marked_call(qn_answer *a)
{
    return begin_call(a, a->at, a->calls->is_bare ? a->at : a->at + strlen(a->calls->open), NULL);
}

/* ---- text ---- */

static int begins_call(const qn_answer *a)
{
    const qn_call_format *f = a->calls;
    if (!f || !f->open || !a->tools || a->retries >= RETRIES_MAX) return 0;
    return !f->is_bare || f->close || a->is_fresh;
}

/* One byte or one mark of content or reasoning. 0: wait. */
static qn_status step_text(qn_answer *a, int is_final, int *went_on)
{
    const qn_call_format *f = a->calls;
    const qn_reasoning_format *r = a->reasoning;
    int thinks = a->state == REASONING;
    qn_answer_kind kind = thinks ? QN_ANSWER_REASONING : QN_ANSWER_CONTENT;
    const char *found = NULL;
    const char *const ends[] = {thinks && r ? r->close : NULL,
                                !thinks && r && a->is_fresh ? r->open : NULL,
                                !thinks && begins_call(a) ? f->open : NULL,
                                f ? f->header.open : NULL,
                                f && (!thinks || f->header.open) ? f->drop[0] : NULL,
                                f && (!thinks || f->header.open) ? f->drop[1] : NULL,
                                f && (!thinks || f->header.open) ? f->drop[2] : NULL,
                                f && (!thinks || f->header.open) ? f->drop[3] : NULL};
    match m = match_any(a, a->at, ends, sizeof ends / sizeof *ends, is_final, &found);
    *went_on = m != WAIT;
    if (m == WAIT) return QN_OK;
    if (m == MISS) {
        char c = a->held.data[a->at++];
        int space = is_space(c) || ((c == ';' || c == ',') && f && f->is_bare && a->is_glued && a->n_calls);
        if (space && a->is_glued) a->from = a->at;
        if (space && a->at - a->from <= a->limit) return QN_OK;
        if (!space) a->is_fresh = a->is_glued = 0;
        return emit(a, kind, 0, a->at);
    }
    size_t after = a->at + strlen(found);
    if (found == ends[0] || found == ends[1]) {
        go_on(a, thinks ? TEXT : REASONING, after);
    } else if (found == ends[2]) {
        return begin_marked_call(a);
    } else if (found == ends[3]) {
        a->state = HEADER;
        a->at = a->scan = after;
    } else {
        go_on(a, TEXT, after);
    }
    return QN_OK;
}

/* ---- headers ---- */

static int is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
}

static const char *find(const char *text, const char *what)
{
    return what ? strstr(text, what) : NULL;
}

/* The same, where no name goes on behind it. */
static int has_word(const char *text, const char *what)
{
    const char *at = find(text, what);
    while (at && is_name(at[strlen(what)])) at = find(at + 1, what);
    return at != NULL;
}

/* What is no header was expected to be one, but for families that write text without. */
static qn_status give_back_header(qn_answer *a, size_t end)
{
    a->n_malformed += !a->calls->is_bare;
    a->at = a->scan = end;
    a->state = TEXT;
    a->is_fresh = a->is_glued = 0;
    return emit(a, QN_ANSWER_CONTENT, !a->calls->is_bare, end);
}

/* What is in [at, scan) is no header, nor is the rest of its line. */
static qn_status begin_line(qn_answer *a)
{
    if (a->calls->is_bare) return give_back_header(a, a->scan);
    a->n_malformed++;
    a->at = a->scan;
    a->state = LINE;
    a->is_fresh = a->is_glued = 0;
    return emit(a, QN_ANSWER_CONTENT, 1, a->scan);
}

static qn_status step_line(qn_answer *a)
{
    if (a->held.data[a->at++] == a->calls->header.close[0]) a->state = TEXT;
    return emit(a, QN_ANSWER_CONTENT, 1, a->at);
}

/* A header is complete in [at, scan); its close ends at `after`. A call counts in whatever channel. */
static qn_status read_header(qn_answer *a, size_t after)
{
    const qn_header_marks *h = &a->calls->header;
    char text[HEADER_BYTES_MAX + 1];
    size_t n = a->scan - a->at;
    memcpy(text, a->held.data + a->at, n);
    text[n] = 0;
    const char *name = find(text, h->call);
    size_t length = 0;
    if (name) {
        name += strlen(h->call);
        while (is_name(name[length])) length++;
    }
    int is_content = h->content && strcmp(text, h->content) == 0;
    int is_call = length && !is_content && a->tools && a->retries < RETRIES_MAX;
    if (a->calls->is_bare && length) is_call &= length == n && qn_call_is_tool(a->tools, name, length);
    if (has_word(text, h->reasoning) && !is_call) {
        go_on(a, REASONING, after);
    } else if (h->content && !is_content && (length == 0 || length != n || (a->calls->is_bare && !is_call))) {
        return give_back_header(a, after);
    } else if (!is_call) {
        go_on(a, TEXT, after);
    } else {
        text[(size_t)(name - text) + length] = 0;
        return begin_call(a, after, after, name);
    }
    return QN_OK;
}

static qn_status step_header(qn_answer *a, int is_final, int *went_on)
{
    const char *close = a->calls->header.close;
    match m = match_at(a, a->scan, close, is_final);
    *went_on = m != WAIT;
    if (m == WAIT) return QN_OK;
    if (m == HIT) return read_header(a, a->scan + strlen(close));
    int is_line = a->calls->header.content != NULL;
    if (is_line && !is_name(a->held.data[a->scan])) return begin_line(a);
    a->scan++;
    if (a->scan - a->at < HEADER_BYTES_MAX) return QN_OK;
    return is_line ? begin_line(a) : give_back_header(a, a->scan);
}

/* ---- calls ---- */

/* The text at `scan` continues no call. Bytes that were not said become content, first of all the mark;
 * those behind it are looked at again. */
static qn_status give_up(qn_answer *a)
{
    const qn_call_format *f = a->calls;
    int is_plain = f->is_bare && !f->close;
    size_t n_events = a->n_events;
    if (!a->has_said && !a->has_header) a->at += strlen(f->open);
    a->scan = a->at;
    a->is_fresh = a->is_glued = 0;
    a->state = !is_plain && (f->close || a->has_header) ? BROKEN : TEXT;
    QN_TRY(qn_call_reader_cut(&a->reader));
    if (a->n_events > n_events) a->events[n_events].is_malformed = 1;
    if (!is_plain) {
        a->n_malformed++;
        a->retries++;
    }
    return emit(a, QN_ANSWER_CONTENT, !is_plain, a->at);
}

static qn_status step_call(qn_answer *a, int is_final, int *went_on)
{
    qn_calls_result result;
    size_t used;
    int64_t said;
    QN_TRY(qn_call_reader_read(&a->reader, a->held.data + a->scan, a->held.length - a->scan, is_final,
                               &result, &used, &said));
    if (said >= 0) a->from = a->at = a->scan + (size_t)said;
    a->has_said |= said >= 0;
    a->scan += used;
    *went_on = result != QN_CALLS_MORE;
    if (result == QN_CALLS_END) {
        go_on(a, TEXT, a->scan);
        return QN_OK;
    }
    if (result == QN_CALLS_MORE && !is_final) return QN_OK;
    *went_on = 1;
    return give_up(a);
}

/* One byte or mark of what is no call. */
static qn_status step_broken(qn_answer *a, int is_final, int *went_on)
{
    const qn_call_format *f = a->calls;
    const char *found = NULL;
    const char *const ends[] = {begins_call(a) ? f->open : NULL,
                                f->header.open,
                                f->close,
                                a->has_header ? f->drop[0] : NULL,
                                a->has_header ? f->drop[1] : NULL,
                                a->has_header ? f->drop[2] : NULL};
    match m = match_any(a, a->at, ends, sizeof ends / sizeof *ends, is_final, &found);
    *went_on = m != WAIT;
    if (m == WAIT) return QN_OK;
    if (m == MISS) return emit(a, QN_ANSWER_CONTENT, 1, ++a->at);
    if (found == ends[0]) return begin_marked_call(a);
    a->state = TEXT;
    if (found == ends[1]) return QN_OK; /* the next header begins here */
    a->at += strlen(found);
    return emit(a, QN_ANSWER_CONTENT, 1, a->at);
}

/* ---- in and out ---- */

static qn_status step(qn_answer *a, int is_final, int *went_on)
{
    if (a->state == HEADER) return step_header(a, is_final, went_on);
    if (a->state == LINE) {
        *went_on = 1;
        return step_line(a);
    }
    if (a->state == CALL) return step_call(a, is_final, went_on);
    if (a->state == BROKEN) return step_broken(a, is_final, went_on);
    return step_text(a, is_final, went_on);
}

static size_t next(const qn_answer *a)
{
    return a->state == HEADER || a->state == CALL ? a->scan : a->at;
}

static qn_status run(qn_answer *a, int is_final)
{
    for (int went_on = 1; went_on && next(a) < a->held.length;) QN_TRY(step(a, is_final, &went_on));
    return QN_OK;
}

static void drop_events(qn_answer *a)
{
    a->n_events = 0;
    qn_buf_reset(&a->texts);
}

/* Offsets of the feed become pointers. */
static void place_events(qn_answer *a)
{
    size_t at = 0;
    for (size_t i = 0; i < a->n_events; i++) {
        qn_answer_event *e = &a->events[i];
        size_t n = e->n;
        e->text = n ? a->texts.data + at : "";
        if (e->kind == QN_ANSWER_CALL_BEGIN) {
            e->n = strlen(e->text);
            e->id = e->text + e->n + 1;
        }
        at += n;
    }
}

static void compact(qn_answer *a)
{
    size_t n = a->from;
    if (n == 0) return;
    memmove(a->held.data, a->held.data + n, a->held.length - n);
    a->held.length -= n;
    a->from = 0;
    a->at -= n;
    a->scan = a->scan > n ? a->scan - n : 0;
}

qn_status qn_answer_feed(qn_answer *a, const char *text, size_t n)
{
    drop_events(a);
    if (a->is_over || n == 0) return QN_OK;
    qn_buf_append(&a->held, text, n);
    QN_TRY(a->held.status);
    QN_TRY(run(a, 0));
    place_events(a);
    compact(a);
    return QN_OK;
}

qn_status qn_answer_finish(qn_answer *a)
{
    drop_events(a);
    if (a->is_over) return QN_OK;
    a->is_over = 1;
    for (;;) {
        QN_TRY(run(a, 1));
        if (a->state != CALL) break;
        int went_on;
        QN_TRY(step_call(a, 1, &went_on));
    }
    if (a->state == HEADER && a->scan > a->at) QN_TRY(give_back_header(a, a->held.length));
    if (!a->is_glued)
        QN_TRY(emit(a, a->state == REASONING ? QN_ANSWER_REASONING : QN_ANSWER_CONTENT, 0, a->held.length));
    place_events(a);
    return QN_OK;
}

const qn_answer_event *qn_answer_get_events(const qn_answer *a, size_t *n)
{
    *n = a->n_events;
    return a->events;
}

int qn_answer_is_reasoning(const qn_answer *a)
{
    return a->state == REASONING;
}

int32_t qn_answer_count_calls(const qn_answer *a)
{
    return a->n_calls;
}

int32_t qn_answer_count_malformed(const qn_answer *a)
{
    return a->n_malformed;
}

/* ---- life ---- */

/* Where the last `what` in text[0..n) ends; 0: nowhere. */
static size_t end_of_last(const char *text, size_t n, const char *what)
{
    size_t m = strlen(what);
    for (size_t end = n; end >= m && end > 0; end--)
        if (memcmp(text + end - m, what, m) == 0) return end;
    return 0;
}

static size_t without_space(const char *text, size_t n)
{
    while (n && is_space(text[n - 1])) n--;
    return n;
}

int qn_answer_has_headers(qn_answer_format format)
{
    return format.calls && format.calls->header.open;
}

int qn_answer_begins_in_header(qn_answer_format format, const char *prompt, size_t n)
{
    const qn_header_marks *h = qn_answer_has_headers(format) ? &format.calls->header : NULL;
    n = without_space(prompt, n);
    if (!h || n == 0) return h != NULL;
    size_t open = end_of_last(prompt, n, h->open);
    return open && !end_of_last(prompt + open, n - open, h->close);
}

/* The prompt may have begun the answer: a mark of reasoning, or a header. */
static state first_state(const qn_answer *a, const char *prompt, size_t n)
{
    size_t end = without_space(prompt, n);
    if (a->reasoning && end && end_of_last(prompt, end, a->reasoning->open) == end) return REASONING;
    return qn_answer_begins_in_header((qn_answer_format){.calls = a->calls}, prompt, n) ? HEADER : TEXT;
}

qn_status qn_answer_new(const qn_answer_options *options, qn_answer **out)
{
    qn_answer *a = qn_calloc(1, sizeof *a);
    if (!a) return QN_E_NOMEM;
    a->calls = options->format.calls;
    a->reasoning = options->format.reasoning;
    a->tools = options->tools;
    a->limit = options->limit_bytes ? options->limit_bytes : LIMIT_DEFAULT;
    a->reader.put = take_call;
    a->reader.user = a;
    a->reader.limit_bytes = a->limit;
    a->is_fresh = 1;
    a->state = first_state(a, options->prompt, options->prompt ? options->prompt_bytes : 0);
    a->is_glued = a->state != TEXT;
    *out = a;
    return QN_OK;
}

void qn_answer_free(qn_answer *a)
{
    if (!a) return;
    qn_call_reader_free(&a->reader);
    qn_buf_free(&a->held);
    qn_buf_free(&a->texts);
    qn_free(a->events);
    qn_free(a);
}

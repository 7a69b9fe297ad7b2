#include "engine/schedule/reasoning.h"

#include <string.h>

#include "base/mem.h"

/* A mark that is looked for in text that comes byte by byte. */
typedef struct {
    char text[QN_REASONING_MARK_MAX];
    size_t n, n_found; /* n_found: so many of its bytes are the last ones */
} mark;

struct qn_reasoning {
    qn_token_stream *stream;
    mark open, close;
    int is_inside;
    int64_t most, n_inside;
    int32_t *ids;
    int64_t n_ids, i_forced; /* i_forced: of the next one; n_ids: nothing is forced */
    qn_buf text;             /* of one token */
};

static void set_mark(mark *m, const char *text)
{
    m->n = strlen(text);
    memcpy(m->text, text, m->n);
}

/* Takes a byte. Returns 1 if the mark ends with it. */
static int find(mark *m, char c)
{
    for (;;) {
        if (m->text[m->n_found] == c) {
            if (++m->n_found < m->n) return 0;
            m->n_found = 0;
            return 1;
        }
        if (!m->n_found) return 0;
        /* The longest end of what was found that the mark begins with. */
        size_t n = m->n_found - 1;
        while (n && memcmp(m->text, m->text + m->n_found - n, n) != 0) n--;
        m->n_found = n;
    }
}

static void force_if_due(qn_reasoning *r)
{
    if (r->is_inside && r->n_inside >= r->most) r->i_forced = 0;
}

qn_status qn_reasoning_new(const qn_reasoning_options *o, qn_reasoning **out)
{
    qn_reasoning *r = qn_calloc(1, sizeof *r);
    if (!r) return QN_E_NOMEM;
    set_mark(&r->open, o->open);
    set_mark(&r->close, o->close);
    r->is_inside = o->begins_inside;
    r->most = o->most;
    r->n_ids = r->i_forced = o->n_ids;
    r->ids = qn_alloc_array((size_t)o->n_ids, sizeof *r->ids);
    qn_status status = r->ids ? qn_token_stream_new(o->tokenizer, 0, &r->stream) : QN_E_NOMEM;
    if (status != QN_OK) {
        qn_reasoning_free(r);
        return status;
    }
    memcpy(r->ids, o->ids, (size_t)o->n_ids * sizeof *r->ids);
    force_if_due(r);
    *out = r;
    return QN_OK;
}

void qn_reasoning_free(qn_reasoning *r)
{
    if (!r) return;
    qn_token_stream_free(r->stream);
    qn_buf_free(&r->text);
    qn_free(r->ids);
    qn_free(r);
}

int32_t qn_reasoning_forced(const qn_reasoning *r)
{
    return r && r->i_forced < r->n_ids ? r->ids[r->i_forced] : -1;
}

void qn_reasoning_give_up(qn_reasoning *r)
{
    r->i_forced = r->n_ids;
    r->most = INT64_MAX;
}

/* Follows the marks through the text of a token. Returns 1 if reasoning was open all the time. */
static int follow(qn_reasoning *r)
{
    int was_inside = r->is_inside;
    for (size_t i = 0; i < r->text.length; i++) {
        if (!find(r->is_inside ? &r->close : &r->open, r->text.data[i])) continue;
        r->is_inside = !r->is_inside;
        r->open.n_found = r->close.n_found = 0;
        was_inside = 0;
    }
    return was_inside;
}

qn_status qn_reasoning_accept(qn_reasoning *r, int32_t id)
{
    if (!r) return QN_OK;
    const int is_forced = r->i_forced < r->n_ids;
    qn_buf_reset(&r->text);
    QN_TRY(qn_token_stream_push(r->stream, id, &r->text));
    const int counts = follow(r);
    if (is_forced) {
        if (++r->i_forced == r->n_ids) r->is_inside = 0; /* whatever the tokenizer made of the mark */
        return QN_OK;
    }
    r->n_inside += counts;
    if (r->text.length) force_if_due(r);
    return QN_OK;
}

/* The filter pprint: Python's pprint.pformat, which breaks what does not fit a line of 80 characters. Its names are those
 * of Lib/pprint.py: indent is where a value begins, allowance what follows on its last line. */
#include "text/jinja/run.h"

enum { WIDTH = 80 };

typedef struct {
    int64_t indent, allowance;
    int level; /* 1: the whole value */
} place;

static qn_status put_pretty(qn_jrun *r, qn_jbuild *b, qn_jvalue v, place at);

/* ---- in one line --------------------------------------------------------------------------------------- */

static int is_list(qn_jvalue v)
{
    return v.kind == QN_J_LIST && v.l->shape <= QN_JSHAPE_GROUP;
}

/* The places of a dict's keys in order. */
static qn_status sorted(qn_jrun *r, const qn_jdict *d, int64_t **out)
{
    if (!(*out = qn_jheap_alloc(&r->heap, (size_t)d->n + 1, sizeof **out))) return r->heap.status;
    for (int64_t i = 0; i < d->n; i++) (*out)[i] = i;
    return qn_jsort(r, d->keys, *out, d->n, 0);
}

/* repr() with the keys of dicts in order. */
static qn_status put_line(qn_jrun *r, qn_jbuild *b, qn_jvalue v)
{
    int64_t *places = NULL;
    qn_status status = QN_OK;
    if (v.kind != QN_J_DICT && !is_list(v)) return qn_jwrite_repr(r, b, v);
    const int is_dict = v.kind == QN_J_DICT, is_tuple = !is_dict && qn_jis_tuple(v.l);
    const int64_t n = is_dict ? v.d->n : v.l->n;
    QN_TRY(qn_jheap_enter(&r->heap));
    if (is_dict) QN_TRY(sorted(r, v.d, &places));
    qn_jbuild_text(b, is_dict ? "{" : is_tuple ? "(" : "[", v.user);
    for (int64_t i = 0; i < n && status == QN_OK; i++) {
        if (i) qn_jbuild_text(b, ", ", v.user);
        if (is_dict) {
            status = put_line(r, b, v.d->keys[places[i]]);
            qn_jbuild_text(b, ": ", v.user);
        }
        if (status == QN_OK) status = put_line(r, b, is_dict ? v.d->values[places[i]] : v.l->items[i]);
    }
    if (is_tuple && n == 1) qn_jbuild_text(b, ",", v.user);
    qn_jbuild_text(b, is_dict ? "}" : is_tuple ? ")" : "]", v.user);
    qn_jheap_leave(&r->heap);
    return status == QN_OK ? b->status : status;
}

static qn_status line_of(qn_jrun *r, qn_jvalue v, qn_jvalue *out)
{
    qn_jbuild b;
    qn_jbuild_init(&b, &r->heap);
    b.limit_bytes = r->output_max;
    QN_TRY(put_line(r, &b, v));
    return qn_jbuild_take(&b, out);
}

/* ---- broken -------------------------------------------------------------------------------------------- */

static void break_line(qn_jbuild *b, int64_t indent, int user)
{
    qn_jbuild_text(b, "\n", user);
    qn_jbuild_fill(b, ' ', indent, user);
}

/* _format_dict_items */
static qn_status put_dict(qn_jrun *r, qn_jbuild *b, qn_jvalue v, place at)
{
    int64_t *places;
    QN_TRY(sorted(r, v.d, &places));
    qn_jbuild_text(b, "{", v.user);
    for (int64_t i = 0; i < v.d->n; i++) {
        const int is_last = i + 1 == v.d->n;
        qn_jvalue key;
        QN_TRY(line_of(r, v.d->keys[places[i]], &key));
        qn_jbuild_string(b, key.s);
        qn_jbuild_text(b, ": ", v.user);
        const place of = {at.indent + 1 + qn_jstring_length(key.s) + 2, is_last ? at.allowance + 1 : 1,
                          at.level};
        QN_TRY(put_pretty(r, b, v.d->values[places[i]], of));
        if (is_last) break;
        qn_jbuild_text(b, ",", v.user);
        break_line(b, at.indent + 1, v.user);
    }
    qn_jbuild_text(b, "}", v.user);
    return b->status;
}

/* _format_items */
static qn_status put_list(qn_jrun *r, qn_jbuild *b, qn_jvalue v, place at)
{
    const int is_tuple = qn_jis_tuple(v.l);
    const char *end = !is_tuple ? "]" : v.l->n == 1 ? ",)" : ")";
    qn_jbuild_text(b, is_tuple ? "(" : "[", v.user);
    for (int64_t i = 0; i < v.l->n; i++) {
        const int is_last = i + 1 == v.l->n;
        const place of = {at.indent + 1, is_last ? at.allowance + (end[1] ? 2 : 1) : 1, at.level};
        QN_TRY(put_pretty(r, b, v.l->items[i], of));
        if (is_last) break;
        qn_jbuild_text(b, ",", v.user);
        break_line(b, at.indent + 1, v.user);
    }
    qn_jbuild_text(b, end, v.user);
    return b->status;
}

/* The chunks of a text that take a line each. */
typedef struct {
    qn_jrun *r;
    const qn_jstring *line;
    qn_jvalue *list; /* reprs */
    int64_t n, capacity;
} chunks;

static qn_status add_chunk(chunks *c, qn_jvalue repr)
{
    if (c->n == c->capacity) {
        const int64_t more = c->capacity ? 2 * c->capacity : 16;
        qn_jvalue *list = qn_jheap_alloc(&c->r->heap, (size_t)more, sizeof *list);
        if (!list) return c->r->heap.status;
        for (int64_t i = 0; i < c->n; i++) list[i] = c->list[i];
        c->list = list;
        c->capacity = more;
    }
    c->list[c->n++] = repr;
    return QN_OK;
}

static qn_status repr_of(chunks *c, size_t from, size_t to, qn_jvalue *out)
{
    qn_jvalue part;
    QN_TRY(qn_jstring_bytes(&c->r->heap, c->line, from, to, &part));
    return line_of(c->r, part, out);
}

/* Where a word ends that begins at `from`, with the white space behind it. */
static size_t end_of_word(const qn_jstring *s, size_t from)
{
    uint32_t code;
    int in_space = 0;
    while (from < s->n) {
        const size_t n = qn_jdecode(s->data + from, s->n - from, &code);
        if (qn_jspace(code))
            in_space = 1;
        else if (in_space)
            break;
        from += n;
    }
    return from;
}

/* A line whose repr is too long, word by word. width: of all chunks but the last, which has allowance less. */
static qn_status add_words(chunks *c, int64_t width, int64_t allowance)
{
    size_t begin = 0, end = 0;
    qn_jvalue repr, kept = {.kind = QN_J_MISSING};
    while (end < c->line->n) {
        const size_t next = end_of_word(c->line, end);
        if (next == c->line->n) width -= allowance;
        QN_TRY(repr_of(c, begin, next, &repr));
        if (qn_jstring_length(repr.s) > width) {
            if (begin < end) QN_TRY(add_chunk(c, kept));
            begin = end;
            QN_TRY(repr_of(c, begin, next, &repr));
        }
        kept = repr;
        end = next;
    }
    return begin < end ? add_chunk(c, kept) : QN_OK;
}

/* _pprint_str */
static qn_status put_text(qn_jrun *r, qn_jbuild *b, qn_jvalue v, place at)
{
    chunks c = {.r = r};
    qn_jvalue lines, repr = {.kind = QN_J_MISSING};
    const int is_whole = at.level == 1;
    QN_TRY(qn_jsplitlines(r, v.s, 1, &lines));
    at.indent += is_whole;
    at.allowance += is_whole;
    const int64_t width = WIDTH - at.indent;
    for (int64_t i = 0; i < lines.l->n; i++) {
        const int64_t allowance = i + 1 == lines.l->n ? at.allowance : 0;
        c.line = lines.l->items[i].s;
        QN_TRY(line_of(r, lines.l->items[i], &repr));
        if (qn_jstring_length(repr.s) <= width - allowance)
            QN_TRY(add_chunk(&c, repr));
        else
            QN_TRY(add_words(&c, width, allowance));
    }
    if (c.n == 1) { /* the last line's, as Python has it */
        qn_jbuild_string(b, repr.s);
        return b->status;
    }
    if (is_whole) qn_jbuild_text(b, "(", v.user);
    for (int64_t i = 0; i < c.n; i++) {
        if (i) break_line(b, at.indent, v.user);
        qn_jbuild_string(b, c.list[i].s);
    }
    if (is_whole) qn_jbuild_text(b, ")", v.user);
    return b->status;
}

/* _format */
static qn_status put_pretty(qn_jrun *r, qn_jbuild *b, qn_jvalue v, place at)
{
    qn_jvalue line;
    qn_status status = QN_OK;
    QN_TRY(line_of(r, v, &line));
    const int fits = qn_jstring_length(line.s) <= WIDTH - at.indent - at.allowance;
    if (fits || (v.kind != QN_J_DICT && v.kind != QN_J_STRING && !is_list(v))) {
        qn_jbuild_string(b, line.s);
        return b->status;
    }
    at.level++;
    QN_TRY(qn_jheap_enter(&r->heap));
    if (v.kind == QN_J_STRING)
        status = v.s->n ? put_text(r, b, v, at) : qn_jwrite_repr(r, b, v);
    else
        status = v.kind == QN_J_DICT ? put_dict(r, b, v, at) : put_list(r, b, v, at);
    qn_jheap_leave(&r->heap);
    return status;
}

qn_status qn_jfilter_pprint(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    qn_jbuild b;
    QN_TRY(qn_jargs_bind(r, "pprint", a, "", 0, NULL));
    qn_jbuild_init(&b, &r->heap);
    b.limit_bytes = r->output_max;
    QN_TRY(put_pretty(r, &b, v, (place){0}));
    return qn_jbuild_take(&b, out);
}

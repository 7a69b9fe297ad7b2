/* The filter wordwrap: Python's textwrap.wrap as Jinja calls it, line by line. The chunks of a line, and so each line
 * of the result, are runs of its bytes. */
#include <string.h>

#include "text/jinja/run.h"
#include "text/tokenizer/split/regex.h"

/* textwrap's own two expressions. */
#define SPACE "[\\t\\n\\x0b\\x0c\\r ]"
#define NO_SPACE "[^\\t\\n\\x0b\\x0c\\r ]"
#define PUNCTUATED "[\\w!\"'&.,?]"
#define LETTER "[^\\d\\W]"
static const char by_spaces[] = SPACE "+";
static const char by_words[] =
    SPACE "+|(?<=" PUNCTUATED ")-{2,}(?=\\w)|" NO_SPACE "+?(?:-(?:(?<=" LETTER "{2}-)|(?<=" LETTER
          "-" PUNCTUATED "-))(?=" LETTER "-?" LETTER ")|(?=" SPACE "|\\z)|(?<=" PUNCTUATED ")(?=-{2,}\\w))";

typedef struct {
    size_t from, to;
    int64_t n_chars;
} chunk;

typedef struct {
    qn_jrun *r;
    const qn_jstring *s; /* all of the text */
    qn_regex *regex;
    qn_regex_match *match;
    int64_t width;
    int break_words, break_hyphens;
    const qn_jstring *end; /* of a line */
    qn_jbuild out;
    int n_lines; /* written */
    chunk *chunks;
    size_t n;
} wrapping;

static int64_t count_chars(const qn_jstring *s, size_t from, size_t to)
{
    int64_t n = 0;
    for (uint32_t c; from < to; from += qn_jdecode(s->data + from, to - from, &c)) n++;
    return n;
}

static size_t skip_chars(const qn_jstring *s, size_t from, size_t to, int64_t n)
{
    for (uint32_t c; from < to && n > 0; n--) from += qn_jdecode(s->data + from, to - from, &c);
    return from;
}

static int is_blank(const qn_jstring *s, size_t from, size_t to)
{
    for (uint32_t c; from < to;) {
        from += qn_jdecode(s->data + from, to - from, &c);
        if (!qn_jspace(c)) return 0;
    }
    return 1;
}

static qn_status add_chunk(wrapping *w, size_t from, size_t to)
{
    if (from == to) return QN_OK;
    w->chunks[w->n++] = (chunk){from, to, count_chars(w->s, from, to)};
    return qn_jheap_step(&w->r->heap, 1);
}

static qn_status split(wrapping *w, size_t from, size_t to)
{
    qn_regex_walk walk = {0};
    size_t done = from, start, end;
    int found = 1;
    w->n = 0;
    w->chunks = qn_jheap_alloc(&w->r->heap, to - from + 1, sizeof *w->chunks);
    if (!w->chunks) return w->r->heap.status;
    QN_TRY(qn_jheap_walk(&w->r->heap, to - from));
    while (found) {
        QN_TRY(qn_regex_next(w->regex, w->match, w->s->data + from, to - from, &walk, &found, &start, &end));
        if (!found) break;
        QN_TRY(add_chunk(w, done, from + start));
        QN_TRY(add_chunk(w, from + start, from + end));
        done = from + end;
    }
    return add_chunk(w, done, to);
}

static void put_line(wrapping *w, size_t from, size_t to)
{
    if (w->n_lines++) qn_jbuild_string(&w->out, w->end);
    qn_jbuild_part(&w->out, w->s, from, to);
}

/* How many characters of a chunk that is longer than a line go on this one. */
static int64_t cut_word(const wrapping *w, const chunk *c, int64_t room)
{
    const char *text = w->s->data;
    if (!w->break_hyphens || c->n_chars <= room) return room;
    size_t limit = skip_chars(w->s, c->from, c->to, room), hyphen = limit;
    while (hyphen > c->from && text[hyphen - 1] != '-') hyphen--;
    if (hyphen <= c->from + 1) return room;
    for (size_t i = c->from; i + 1 < hyphen; i++)
        if (text[i] != '-') return count_chars(w->s, c->from, hyphen);
    return room;
}

/* textwrap's _wrap_chunks. */
static qn_status wrap_line(wrapping *w, size_t from, size_t to)
{
    int has_lines = 0;
    QN_TRY(split(w, from, to));
    for (size_t i = 0; i < w->n;) {
        int64_t length = 0;
        if (has_lines && is_blank(w->s, w->chunks[i].from, w->chunks[i].to)) i++;
        if (i == w->n) break;
        const size_t first = i, begin = w->chunks[i].from;
        size_t end = begin;
        while (i < w->n && length + w->chunks[i].n_chars <= w->width) {
            length += w->chunks[i].n_chars;
            end = w->chunks[i++].to;
        }
        /* The last piece of the line is dropped if it is blank. */
        size_t piece = i > first ? w->chunks[i - 1].from : begin;
        if (i < w->n && w->chunks[i].n_chars > w->width) {
            chunk *c = &w->chunks[i];
            if (w->break_words) {
                const int64_t n = cut_word(w, c, w->width - length);
                piece = c->from;
                end = c->from = skip_chars(w->s, c->from, c->to, n);
                c->n_chars -= n;
            } else if (i == first) {
                end = c->to;
                i++;
            }
        }
        if (is_blank(w->s, piece, end)) end = piece;
        QN_TRY(qn_jheap_step(&w->r->heap, 1));
        if (begin == end) continue; /* nothing is left of the line */
        put_line(w, begin, end);
        has_lines = 1;
    }
    if (!has_lines) put_line(w, from, from);
    return w->out.status;
}

static qn_status wrap_all(wrapping *w)
{
    qn_jvalue lines;
    QN_TRY(qn_jsplitlines(w->r, w->s, 0, &lines));
    for (int64_t i = 0; i < lines.l->n; i++) {
        const size_t from = (size_t)(lines.l->items[i].s->data - w->s->data);
        QN_TRY(wrap_line(w, from, from + lines.l->items[i].s->n));
    }
    return QN_OK;
}

qn_status qn_jfilter_wordwrap(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out)
{
    qn_jvalue bound[4];
    qn_jstring *s, newline = {.data = "\n", .n = 1, .n_chars = 1};
    QN_TRY(qn_jargs_bind(r, "wordwrap", a, "width break_long_words wrapstring break_on_hyphens", 0, bound));
    QN_TRY(qn_jarg_string(v, "wordwrap: the value", &s));
    wrapping w = {.r = r, .s = s, .end = bound[2].kind == QN_J_STRING ? bound[2].s : &newline};
    QN_TRY(qn_jarg_int(bound[0], "wordwrap: width", 79, &w.width));
    if (w.width <= 0) return qn_fail(QN_E_ARG, "invalid width %lld (must be > 0)", (long long)w.width);
    w.break_words = bound[1].kind == QN_J_MISSING || qn_jvalue_truth(bound[1]);
    w.break_hyphens = bound[3].kind == QN_J_MISSING || qn_jvalue_truth(bound[3]);
    const char *pattern = w.break_hyphens ? by_words : by_spaces;
    qn_jbuild_init(&w.out, &r->heap);
    qn_status status = qn_regex_new(pattern, strlen(pattern), &w.regex);
    if (status == QN_OK && !(w.match = qn_regex_match_new())) status = QN_E_NOMEM;
    if (status == QN_OK) status = wrap_all(&w);
    qn_regex_match_free(w.match);
    qn_regex_free(w.regex);
    QN_TRY(status);
    return qn_jbuild_take(&w.out, out);
}

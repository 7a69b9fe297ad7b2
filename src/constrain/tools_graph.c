/* Pieces of the graphs of calls. */
#include <string.h>

#include "base/mem.h"
#include "constrain/automaton/regex.h"
#include "constrain/tools_parts.h"

qn_status qn_put_bytes(qn_constraint *c, const char *text, size_t n, uint32_t next, uint32_t *out)
{
    qn_graph_node node = {.kind = QN_GRAPH_MARK, .next = next};
    *out = next;
    if (n == 0) return QN_OK;
    QN_TRY(qn_program_add_marker(&c->program, text, n, &node.what));
    return qn_program_add_graph(&c->program, &node, out);
}

qn_status qn_put_text(qn_constraint *c, const char *text, uint32_t next, uint32_t *out)
{
    int32_t *ids;
    size_t n_ids, n = strlen(text);
    *out = next;
    if (n == 0) return QN_OK;
    QN_TRY(qn_tokenizer_encode(c->v->tokenizer, text, n, QN_ENCODE_SPECIAL, &ids, &n_ids));
    qn_status status = QN_OK;
    /* From behind: each special token is cut off with the plain text behind it. */
    size_t end = n;
    for (size_t i = n_ids; i-- > 0 && status == QN_OK;) {
        size_t n_special, n_piece;
        if (!qn_tokenizer_is_special(c->v->tokenizer, ids[i])) continue;
        const char *special = qn_tokenizer_token_text(c->v->tokenizer, ids[i], &n_special);
        size_t at = end;
        while (at > 0 && (at + n_special > end || memcmp(text + at, special, n_special) != 0)) at--;
        if (at + n_special > end || memcmp(text + at, special, n_special) != 0) continue;
        status = qn_put_bytes(c, text + at + n_special, end - at - n_special, *out, out);
        const char *piece = qn_vocabulary_text(c->v, ids[i], &n_piece);
        if (status == QN_OK) status = qn_put_bytes(c, piece, n_piece, *out, out);
        end = at;
    }
    qn_free(ids);
    if (status == QN_OK) status = qn_put_bytes(c, text, end, *out, out);
    return status;
}

qn_status qn_put_choice(qn_constraint *c, uint32_t a, uint32_t b, uint32_t *out)
{
    return qn_program_add_graph(&c->program, &(qn_graph_node){.kind = QN_GRAPH_CHOICE, .next = a, .other = b},
                                out);
}

qn_status qn_put_other(qn_constraint *c, uint32_t a, uint32_t *some)
{
    if (*some) return qn_put_choice(c, a, *some, some);
    *some = a;
    return QN_OK;
}

qn_status qn_put_line_end(qn_constraint *c, uint32_t next, uint32_t *out)
{
    uint32_t line;
    QN_TRY(qn_put_bytes(c, "\n", 1, next, &line));
    return qn_put_choice(c, next, line, out);
}

qn_status qn_put_value(qn_constraint *c, int32_t value, uint32_t next, uint32_t *out)
{
    return qn_program_add_graph(&c->program,
                                &(qn_graph_node){.kind = QN_GRAPH_VALUE, .what = value, .next = next}, out);
}

qn_status qn_put_dfa(qn_constraint *c, qn_dfa *d, uint32_t next, uint32_t *out)
{
    qn_graph_node node = {.kind = QN_GRAPH_TEXT, .next = next};
    QN_TRY(qn_program_add_dfa(&c->program, d, &node.what));
    return qn_program_add_graph(&c->program, &node, out);
}

qn_status qn_put_regex(qn_constraint *c, const char *pattern, uint32_t next, uint32_t *out)
{
    qn_dfa *d;
    QN_TRY(qn_dfa_regex(pattern, strlen(pattern), QN_REGEX_WHOLE, &c->program.dfa_limits, &d));
    return qn_put_dfa(c, d, next, out);
}

/* The id of a mark that is a special token; -1: it is none. */
static int32_t special_id(const qn_constraint *c, const char *mark)
{
    int32_t id = qn_tokenizer_find(c->v->tokenizer, mark, strlen(mark));
    return id >= 0 && qn_tokenizer_is_special(c->v->tokenizer, id) ? id : -1;
}

int qn_is_end_mark(const qn_constraint *c, const char *mark)
{
    int32_t id = special_id(c, mark);
    return id >= 0 && qn_vocabulary_is_end(c->v, id);
}

/* ---- free text ----------------------------------------------------------------------------------------- */

void qn_marks_add(const qn_constraint *c, qn_marks *m, const char *mark, qn_scan_kind kind)
{
    if (!mark || !*mark) return;
    int32_t id = special_id(c, mark);
    size_t n;
    const char *special = id >= 0 ? qn_vocabulary_text(c->v, id, &n) : NULL;
    if (special && n && m->n < QN_MARKS_MAX) m->marks[m->n++] = (qn_scan_mark){special, n, kind};
    if (special && kind == QN_SCAN_END) kind = QN_SCAN_BAD;
    if (m->n < QN_MARKS_MAX) m->marks[m->n++] = (qn_scan_mark){mark, strlen(mark), kind};
}

qn_status qn_put_free(qn_constraint *c, const qn_marks *m, unsigned flags, uint32_t next, uint32_t *out)
{
    qn_graph_node node = {.kind = QN_GRAPH_FREE, .next = next, .may_end = (flags & QN_FREE_MAY_END) != 0};
    QN_TRY(qn_program_add_scan(&c->program, m->marks, m->n, (flags & QN_FREE_TEXT) != 0, &node.what));
    return qn_program_add_graph(&c->program, &node, out);
}

/* ---- strings ------------------------------------------------------------------------------------------- */

qn_status qn_without(const qn_constraint *c, qn_dfa *d, const char *mark, qn_dfa **out)
{
    const qn_dfa_limits *l = &c->program.dfa_limits;
    qn_dfa *all = NULL, *text = NULL, *with = NULL;
    if (!mark) {
        *out = d;
        return QN_OK;
    }
    qn_status status = qn_dfa_all(&all);
    if (status == QN_OK) status = qn_dfa_texts(&(qn_text_ref){mark, strlen(mark)}, 1, l, &text);
    if (status == QN_OK) status = qn_dfa_concatenate_all((qn_dfa *const[]){all, text, all}, 3, l, &with);
    if (status == QN_OK) status = qn_dfa_subtract(d, with, l, out);
    qn_dfa_release(all);
    qn_dfa_release(text);
    qn_dfa_release(with);
    qn_dfa_release(d);
    return status;
}

qn_status qn_string_dfa(qn_constraint *c, int32_t string, qn_dfa **out)
{
    const qn_string_rule *r = &c->program.strings[string];
    if (r->dfa == c->program.all && (r->min > 0 || r->max >= 0))
        return qn_dfa_length(r->min, r->max, &c->program.dfa_limits, out);
    *out = qn_dfa_retain(c->program.dfas[r->dfa]);
    return QN_OK;
}

qn_status qn_names_dfa(qn_constraint *c, const char *pattern, int32_t which, qn_dfa **out)
{
    const qn_dfa_limits *l = &c->program.dfa_limits;
    qn_dfa *names, *both;
    *out = NULL;
    QN_TRY(qn_dfa_regex(pattern, strlen(pattern), QN_REGEX_WHOLE, l, &names));
    if (which != QN_NONE) {
        const qn_status status = qn_dfa_intersect(names, c->program.dfas[which], l, &both);
        qn_dfa_release(names);
        QN_TRY(status);
        names = both;
    }
    if (qn_dfa_is_empty(names))
        qn_dfa_release(names);
    else
        *out = names;
    return QN_OK;
}

qn_status qn_put_member(qn_constraint *c, int is_required, uint32_t member, const char *separator,
                        uint32_t *first, uint32_t *more)
{
    uint32_t behind;
    QN_TRY(qn_put_bytes(c, separator, strlen(separator), member, &behind));
    if (is_required) {
        *first = member;
        *more = behind;
        return QN_OK;
    }
    QN_TRY(qn_put_choice(c, member, *first, first));
    return qn_put_choice(c, behind, *more, more);
}

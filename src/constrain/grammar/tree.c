#include "constrain/grammar/tree.h"

#include <string.h>

#include "base/mem.h"

void qn_tree_begin(qn_tree *t, const qn_grammar_limits *limits)
{
    memset(t, 0, sizeof *t);
    if (limits) t->limits = *limits;
    qn_grammar_limits *l = &t->limits;
    if (!l->bytes_max) l->bytes_max = 64 << 10;
    if (l->depth_max <= 0) l->depth_max = 64;
    if (l->depth_max > 500) l->depth_max = 500; /* the parsers recurse this deep */
    if (l->rules_max <= 0) l->rules_max = 4000;
    if (l->symbols_max <= 0) l->symbols_max = 50000;
    qn_dfa_work_begin(&t->w, &l->dfa);
}

void qn_tree_end(qn_tree *t)
{
    for (size_t i = 0; i < t->dfas.n; i++) qn_dfa_release(((qn_dfa **)t->dfas.at)[i]);
    qn_dfa_work_end(&t->w);
}

qn_tree_node *qn_tree_at(const qn_tree *t, int32_t i)
{
    return (qn_tree_node *)t->nodes.at + i;
}

qn_tree_rule *qn_tree_rule_at(const qn_tree *t, int32_t i)
{
    return (qn_tree_rule *)t->rules.at + i;
}

qn_status qn_tree_add(qn_tree *t, qn_tree_node node, int32_t *out)
{
    QN_TRY(qn_dfa_work_steps(&t->w, 1));
    QN_TRY(qn_dfa_array_room(&t->w, &t->nodes, 1, sizeof node));
    ((qn_tree_node *)t->nodes.at)[t->nodes.n] = node;
    *out = (int32_t)t->nodes.n++;
    return QN_OK;
}

qn_status qn_tree_add_dfa(qn_tree *t, qn_dfa *d, int32_t line, int32_t column, int32_t *out)
{
    qn_status s = qn_dfa_array_room(&t->w, &t->dfas, 1, sizeof d);
    if (s != QN_OK) {
        qn_dfa_release(d);
        return s;
    }
    int32_t index = (int32_t)t->dfas.n;
    ((qn_dfa **)t->dfas.at)[t->dfas.n++] = d;
    qn_tree_node node = {
        .kind = QN_TREE_DFA, .last = -1, .before = -1, .index = index, .line = line, .column = column};
    return qn_tree_add(t, node, out);
}

qn_status qn_tree_rule_named(qn_tree *t, const char *name, size_t n, int32_t line, int32_t column,
                             int32_t *out)
{
    QN_TRY(qn_dfa_work_steps(&t->w, (int64_t)t->rules.n / 16 + 1));
    for (size_t i = 0; i < t->rules.n; i++) {
        const char *other = qn_tree_rule_at(t, (int32_t)i)->name;
        if (strncmp(other, name, n) || other[n]) continue;
        *out = (int32_t)i;
        return QN_OK;
    }
    if ((int32_t)t->rules.n >= t->limits.rules_max)
        return qn_fail(QN_E_UNSUPPORTED, "line %d: too many rules: the limit rules_max is %d", line,
                       t->limits.rules_max);
    QN_TRY(qn_dfa_array_room(&t->w, &t->rules, 1, sizeof(qn_tree_rule)));
    char *copy = qn_arena_strndup(&t->w.arena, name, n);
    if (!copy) return QN_E_NOMEM;
    *out = (int32_t)t->rules.n;
    ((qn_tree_rule *)t->rules.at)[t->rules.n++] = (qn_tree_rule){copy, line, column, -1};
    return QN_OK;
}

qn_status qn_tree_join(qn_tree *t, qn_tree_kind kind, int32_t last, int32_t *out)
{
    if (last >= 0 && qn_tree_at(t, last)->before < 0) {
        *out = last;
        return QN_OK;
    }
    qn_tree_node node = {.kind = last < 0 ? QN_TREE_EMPTY : kind, .last = last, .before = -1};
    return qn_tree_add(t, node, out);
}

qn_status qn_tree_fail(const qn_tree_reader *r, size_t at, qn_status status, const char *what)
{
    int32_t line = 1;
    size_t begin = 0;
    for (size_t i = 0; i < at && i < r->n; i++) {
        if (r->text[i] == '\n') line++, begin = i + 1;
    }
    return qn_fail(status, "line %d, column %zu: %s", line, at - begin + 1, what);
}

int32_t qn_tree_number(qn_tree_reader *r)
{
    int64_t value = -1;
    for (int c; (c = qn_tree_peek(r, 0)) >= '0' && c <= '9'; r->at++) {
        value = (value < 0 ? 0 : value) * 10 + c - '0';
        if (value > INT32_MAX) value = INT32_MAX;
    }
    return (int32_t)value;
}

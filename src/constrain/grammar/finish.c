/* From rules as they are written to a qn_grammar.
 *
 * Rules that no cycle of references can be reached from are regular: each becomes one automaton, in the order of
 * their references. Of the others, what stands between references to rules that are not regular becomes one
 * automaton, and a repetition or a choice inside a right side becomes a new rule. A rule that calls
 * itself at the very end (or the very begin) of its right sides alone is a repetition, so regular too. If an
 * automaton would pass a limit, its parts stay apart. Walks recurse as deep as brackets are alone. */
#include <string.h>

#include "base/checked.h"
#include "base/mem.h"
#include "constrain/grammar/tree.h"

typedef struct {
    int32_t rule, first, n; /* symbols */
    int is_dropped;
} production;

typedef struct {
    qn_tree *t;
    int32_t n_written; /* rules that are written; helpers come behind them */
    qn_dfa **dfa_of;   /* [n_written] of regular rules, in the tree's list; NULL: not regular, or too large */
    qn_dfa_array symbols; /* int32_t */
    qn_dfa_array productions;
    int32_t n_rules;
    qn_dfa_array terminals; /* qn_dfa *, in the tree's list */
} finisher;

static qn_dfa *dfa_at(const finisher *f, int32_t i)
{
    return ((qn_dfa **)f->t->dfas.at)[i];
}

/* Keeps d for as long as the tree lives; releases it on failure. */
static qn_status keep(finisher *f, qn_dfa *d)
{
    int32_t node;
    return qn_tree_add_dfa(f->t, d, 0, 0, &node);
}

static int is_regular(const finisher *f, int32_t at)
{
    const qn_tree_node *n = qn_tree_at(f->t, at);
    if (n->kind == QN_TREE_RULE) return f->dfa_of[n->index] != NULL;
    for (int32_t i = n->last; i >= 0; i = qn_tree_at(f->t, i)->before) {
        if (!is_regular(f, i)) return 0;
    }
    return 1;
}

/* --- Automata of expressions --- */

static qn_status dfa_of_node(finisher *f, int32_t at, qn_dfa **out);

/* The children in order; *n counts them. */
static qn_status list_children(finisher *f, int32_t at, int32_t **out, size_t *n)
{
    size_t count = 0;
    for (int32_t i = qn_tree_at(f->t, at)->last; i >= 0; i = qn_tree_at(f->t, i)->before) count++;
    int32_t *list = qn_arena_alloc(&f->t->w.arena, (count + 1) * sizeof *list);
    if (!list) return QN_E_NOMEM;
    size_t k = count;
    for (int32_t i = qn_tree_at(f->t, at)->last; i >= 0; i = qn_tree_at(f->t, i)->before) list[--k] = i;
    *out = list;
    *n = count;
    return QN_OK;
}

/* Charges the tree's budget with what an operation may have cost, and gives the limits of the next. */
static qn_dfa_limits limits_now(const finisher *f)
{
    return qn_dfa_work_limits(&f->t->w);
}

static qn_status charge(finisher *f, const qn_dfa *d)
{
    return qn_dfa_work_steps(&f->t->w, 10 + (int64_t)d->n_states * d->n_classes / 2);
}

static qn_status concatenate_nodes(finisher *f, const int32_t *nodes, size_t n, qn_dfa **out)
{
    qn_dfa **parts = qn_arena_calloc(&f->t->w.arena, n + 1, sizeof *parts);
    if (!parts) return QN_E_NOMEM;
    qn_status s = QN_OK;
    for (size_t i = 0; i < n && s == QN_OK; i++) s = dfa_of_node(f, nodes[i], &parts[i]);
    if (s == QN_OK) {
        qn_dfa_limits limits = limits_now(f);
        s = qn_dfa_concatenate_all(parts, n, &limits, out);
    }
    for (size_t i = 0; i < n; i++) qn_dfa_release(parts[i]);
    return s;
}

/* The texts among the alternatives at once, the others one by one. */
static qn_status unite_nodes(finisher *f, const int32_t *nodes, size_t n, qn_dfa **out)
{
    qn_text_ref *texts = qn_arena_alloc(&f->t->w.arena, (n + 1) * sizeof *texts);
    if (!texts) return QN_E_NOMEM;
    size_t n_texts = 0;
    for (size_t i = 0; i < n; i++) {
        const qn_tree_node *node = qn_tree_at(f->t, nodes[i]);
        if (node->kind == QN_TREE_TEXT) texts[n_texts++] = (qn_text_ref){node->text, node->n};
        if (node->kind == QN_TREE_EMPTY) texts[n_texts++] = (qn_text_ref){"", 0};
    }
    qn_dfa *all = NULL;
    qn_dfa_limits limits = limits_now(f);
    QN_TRY(qn_dfa_texts(texts, n_texts, &limits, &all));
    qn_status s = charge(f, all);
    for (size_t i = 0; i < n && s == QN_OK; i++) {
        const qn_tree_node *node = qn_tree_at(f->t, nodes[i]);
        if (node->kind == QN_TREE_TEXT || node->kind == QN_TREE_EMPTY) continue;
        qn_dfa *one = NULL, *both = NULL;
        s = dfa_of_node(f, nodes[i], &one);
        limits = limits_now(f);
        if (s == QN_OK) s = qn_dfa_unite(all, one, &limits, &both);
        qn_dfa_release(one);
        if (s != QN_OK) break;
        qn_dfa_release(all);
        all = both;
        s = charge(f, all);
    }
    if (s == QN_OK) {
        *out = all;
    } else {
        qn_dfa_release(all);
    }
    return s;
}

/* One more reference to the automaton of a regular expression. */
static qn_status dfa_of_node(finisher *f, int32_t at, qn_dfa **out)
{
    const qn_tree_node n = *qn_tree_at(f->t, at);
    int32_t *children;
    size_t n_children;
    qn_dfa *d = NULL;
    qn_dfa_limits limits = limits_now(f);
    switch (n.kind) {
    case QN_TREE_EMPTY:
        QN_TRY(qn_dfa_texts(&(qn_text_ref){"", 0}, 1, &limits, &d));
        break;
    case QN_TREE_TEXT:
        QN_TRY(qn_dfa_texts(&(qn_text_ref){n.text, n.n}, 1, &limits, &d));
        break;
    case QN_TREE_DFA:
        d = qn_dfa_retain(dfa_at(f, n.index));
        break;
    case QN_TREE_RULE:
        d = qn_dfa_retain(f->dfa_of[n.index]);
        break;
    case QN_TREE_SEQUENCE:
        QN_TRY(list_children(f, at, &children, &n_children));
        QN_TRY(concatenate_nodes(f, children, n_children, &d));
        break;
    case QN_TREE_ALTERNATIVES:
        QN_TRY(list_children(f, at, &children, &n_children));
        QN_TRY(unite_nodes(f, children, n_children, &d));
        break;
    case QN_TREE_REPEAT: {
        qn_dfa *one;
        QN_TRY(dfa_of_node(f, n.last, &one));
        qn_status s = qn_dfa_repeat(one, n.min, n.max, &limits, &d);
        qn_dfa_release(one);
        QN_TRY(s);
        break;
    }
    }
    qn_status s = charge(f, d);
    if (s != QN_OK) {
        qn_dfa_release(d);
        return s;
    }
    *out = d;
    return QN_OK;
}

/* --- Which rules are regular --- */

/* A rule whose alternatives end with a call of itself and are regular otherwise (or all begin with one) is
 * replaced by a repetition: a: x a | y is x* y. */
static qn_status unroll(finisher *f, int32_t rule)
{
    qn_tree *t = f->t;
    int32_t body = qn_tree_rule_at(t, rule)->body, *ways, *items, n_first = 0, n_last = 0;
    size_t n_ways, n;
    if (qn_tree_at(t, body)->kind == QN_TREE_ALTERNATIVES) {
        QN_TRY(list_children(f, body, &ways, &n_ways));
    } else {
        ways = &body;
        n_ways = 1;
    }
    int32_t last_loop = -1, last_end = -1;
    for (int pass = 0; pass < 2; pass++) {                         /* look first, then build */
        if (pass && (n_first == 0) == (n_last == 0)) return QN_OK; /* not so, or both */
        for (size_t i = 0; i < n_ways; i++) {
            int32_t one = ways[i], place = -1;
            if (qn_tree_at(t, one)->kind == QN_TREE_SEQUENCE) {
                QN_TRY(list_children(f, one, &items, &n));
            } else {
                items = &one;
                n = 1;
            }
            for (size_t k = 0; k < n; k++) {
                const qn_tree_node *item = qn_tree_at(t, items[k]);
                if (is_regular(f, items[k])) continue;
                if (item->kind != QN_TREE_RULE || item->index != rule || place >= 0) return QN_OK;
                place = (int32_t)k;
            }
            if (place >= 0 && n == 1) return QN_OK; /* a: a */
            if (!pass) {
                if (place > 0 && place < (int32_t)n - 1) return QN_OK;
                n_first += place == 0;
                n_last += place > 0;
                continue;
            }
            int32_t copy_last = -1, joined;
            for (size_t k = 0; k < n; k++) {
                if ((int32_t)k == place) continue;
                qn_tree_node copy = *qn_tree_at(t, items[k]);
                copy.before = copy_last;
                QN_TRY(qn_tree_add(t, copy, &copy_last));
            }
            QN_TRY(qn_tree_join(t, QN_TREE_SEQUENCE, copy_last, &joined));
            int32_t *list = place >= 0 ? &last_loop : &last_end;
            qn_tree_at(t, joined)->before = *list;
            *list = joined;
        }
    }
    if (last_end < 0) return QN_OK; /* no text ends */
    int32_t loop, end, parts[2];
    QN_TRY(qn_tree_join(t, QN_TREE_ALTERNATIVES, last_loop, &loop));
    QN_TRY(qn_tree_join(t, QN_TREE_ALTERNATIVES, last_end, &end));
    QN_TRY(
        qn_tree_add(t, (qn_tree_node){.kind = QN_TREE_REPEAT, .last = loop, .before = -1, .max = -1}, &loop));
    parts[0] = n_last ? loop : end;
    parts[1] = n_last ? end : loop;
    qn_tree_at(t, parts[0])->before = -1;
    qn_tree_at(t, parts[1])->before = parts[0];
    QN_TRY(qn_tree_join(t, QN_TREE_SEQUENCE, parts[1], &body));
    qn_tree_rule_at(t, rule)->body = body;
    return QN_OK;
}

/* Adds the rules that an expression refers to, each once. */
static qn_status list_references(finisher *f, int32_t at, qn_dfa_array *out)
{
    const qn_tree_node *n = qn_tree_at(f->t, at);
    if (n->kind == QN_TREE_RULE) {
        QN_TRY(qn_dfa_array_room(&f->t->w, out, 1, sizeof(int32_t)));
        ((int32_t *)out->at)[out->n++] = n->index;
    }
    for (int32_t i = n->last; i >= 0; i = qn_tree_at(f->t, i)->before) QN_TRY(list_references(f, i, out));
    return qn_dfa_work_steps(&f->t->w, 1);
}

typedef struct {
    int32_t rule;
    size_t next; /* of its references */
    qn_dfa_array references;
} visit;

static qn_status visit_rule(finisher *f, qn_dfa_array *stack, int32_t rule)
{
    visit v = {.rule = rule};
    const qn_tree_rule *r = qn_tree_rule_at(f->t, rule);
    if (r->body < 0)
        return qn_fail(QN_E_FORMAT, "line %d, column %d: the rule \"%.60s\" is used, but not written",
                       r->line, r->column, r->name);
    QN_TRY(list_references(f, r->body, &v.references));
    QN_TRY(qn_dfa_array_room(&f->t->w, stack, 1, sizeof v));
    ((visit *)stack->at)[stack->n++] = v;
    return QN_OK;
}

/* Depth first from the start: a rule comes when all that it refers to is done, or under way (a cycle). */
static qn_status find_regular(finisher *f, int32_t start, uint8_t *state)
{
    qn_dfa_array stack = {0};
    state[start] = 1;
    QN_TRY(visit_rule(f, &stack, start));
    while (stack.n) {
        visit *top = (visit *)stack.at + stack.n - 1;
        if (top->next < top->references.n) {
            int32_t to = ((int32_t *)top->references.at)[top->next++];
            if (state[to]) continue;
            state[to] = 1;
            QN_TRY(visit_rule(f, &stack, to));
            continue;
        }
        int32_t rule = top->rule;
        stack.n--;
        state[rule] = 2;
        QN_TRY(unroll(f, rule));
        if (!is_regular(f, qn_tree_rule_at(f->t, rule)->body)) continue;
        qn_dfa *d;
        qn_status s = dfa_of_node(f, qn_tree_rule_at(f->t, rule)->body, &d);
        if (s == QN_E_UNSUPPORTED) { /* its parts stay apart; what was in vain has its price */
            QN_TRY(qn_dfa_work_steps(&f->t->w, f->t->w.steps_max / 50));
            continue;
        }
        QN_TRY(s);
        QN_TRY(keep(f, d));
        f->dfa_of[rule] = d;
    }
    return QN_OK;
}

/* --- Right sides --- */

static qn_status add_symbol(finisher *f, int32_t symbol)
{
    if ((int32_t)f->symbols.n >= f->t->limits.symbols_max)
        return qn_fail(QN_E_UNSUPPORTED, "the grammar is too large: the limit symbols_max is %d",
                       f->t->limits.symbols_max);
    QN_TRY(qn_dfa_array_room(&f->t->w, &f->symbols, 1, sizeof symbol));
    ((int32_t *)f->symbols.at)[f->symbols.n++] = symbol;
    return QN_OK;
}

static qn_status new_rule(finisher *f, int32_t *out)
{
    if (f->n_rules >= f->t->limits.rules_max * 2)
        return qn_fail(QN_E_UNSUPPORTED, "the grammar is too large: the limit rules_max is %d",
                       f->t->limits.rules_max);
    *out = f->n_rules++;
    return QN_OK;
}

/* A right side is collected in a list of its own, as those of helpers come between. */
typedef struct {
    qn_dfa_array symbols;
} side;

static qn_status put(finisher *f, side *s, int32_t symbol)
{
    QN_TRY(qn_dfa_work_steps(&f->t->w, 1));
    QN_TRY(qn_dfa_array_room(&f->t->w, &s->symbols, 1, sizeof symbol));
    ((int32_t *)s->symbols.at)[s->symbols.n++] = symbol;
    return QN_OK;
}

static qn_status add_production(finisher *f, int32_t rule, const side *s)
{
    production p = {.rule = rule, .first = (int32_t)f->symbols.n, .n = (int32_t)s->symbols.n};
    for (size_t i = 0; i < s->symbols.n; i++) QN_TRY(add_symbol(f, ((int32_t *)s->symbols.at)[i]));
    QN_TRY(qn_dfa_array_room(&f->t->w, &f->productions, 1, sizeof p));
    ((production *)f->productions.at)[f->productions.n++] = p;
    return QN_OK;
}

static int is_empty_text(const qn_dfa *d)
{
    return d->n_states == 2 && d->n_classes == 1 && d->start == 1 && d->next[1] == 0;
}

/* Takes d over. */
static qn_status put_terminal(finisher *f, side *s, qn_dfa *d)
{
    int is_nothing = is_empty_text(d);
    QN_TRY(keep(f, d));
    if (is_nothing) return QN_OK;
    qn_dfa **all = f->terminals.at;
    for (size_t i = 0; i < f->terminals.n; i++) {
        if (qn_dfa_equal(all[i], d)) return put(f, s, ~(int32_t)i);
    }
    QN_TRY(qn_dfa_work_steps(&f->t->w, (int64_t)f->terminals.n + d->n_states));
    QN_TRY(qn_dfa_array_room(&f->t->w, &f->terminals, 1, sizeof d));
    ((qn_dfa **)f->terminals.at)[f->terminals.n] = d;
    return put(f, s, ~(int32_t)f->terminals.n++);
}

static qn_status put_node(finisher *f, side *s, int32_t at);
static qn_status put_repeat(finisher *f, side *s, int32_t at);

/* Items [0, n), where runs of regular ones become one terminal, if it is not too large. */
static qn_status put_items(finisher *f, side *s, const int32_t *items, size_t n)
{
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i; end < n && is_regular(f, items[end]); end++) {
        }
        if (end == i) {
            QN_TRY(put_node(f, s, items[end++]));
            continue;
        }
        qn_dfa *d;
        qn_status st = concatenate_nodes(f, items + i, end - i, &d);
        if (st == QN_OK) {
            QN_TRY(put_terminal(f, s, d));
        } else if (st == QN_E_UNSUPPORTED && end - i > 1) {
            QN_TRY(qn_dfa_work_steps(&f->t->w, f->t->w.steps_max / 50));
            for (; i < end; i++) QN_TRY(put_items(f, s, items + i, 1));
        } else if (st == QN_E_UNSUPPORTED && qn_tree_at(f->t, items[i])->kind == QN_TREE_REPEAT) {
            QN_TRY(qn_dfa_work_steps(&f->t->w, f->t->w.steps_max / 50));
            QN_TRY(put_repeat(f, s, items[i]));
        } else {
            return st;
        }
    }
    return QN_OK;
}

static qn_status make_rule(finisher *f, int32_t rule, int32_t body);

/* What is not regular, on a right side. */
static qn_status put_node(finisher *f, side *s, int32_t at)
{
    const qn_tree_node n = *qn_tree_at(f->t, at);
    int32_t *items, rule = -1;
    size_t n_items;
    switch (n.kind) {
    case QN_TREE_RULE:
        return put(f, s, n.index);
    case QN_TREE_SEQUENCE:
        QN_TRY(list_children(f, at, &items, &n_items));
        return put_items(f, s, items, n_items);
    case QN_TREE_ALTERNATIVES:
        QN_TRY(new_rule(f, &rule));
        QN_TRY(make_rule(f, rule, at));
        return put(f, s, rule);
    case QN_TREE_REPEAT:
        return put_repeat(f, s, at);
    default:
        return put_items(f, s, &at, 1);
    }
}

/* The child becomes a rule, so that its copies are short. */
static qn_status put_repeat(finisher *f, side *s, int32_t at)
{
    const qn_tree_node n = *qn_tree_at(f->t, at);
    side one = {0}, none = {0};
    int32_t child = n.last, item = -1, rule = -1;
    if (n.max == 0) return QN_OK;
    if (qn_tree_at(f->t, child)->kind == QN_TREE_RULE && !is_regular(f, child)) {
        item = qn_tree_at(f->t, child)->index;
    } else {
        QN_TRY(new_rule(f, &item));
        QN_TRY(make_rule(f, item, child));
    }
    for (int32_t i = 0; i < n.min; i++) QN_TRY(put(f, s, item));
    if (n.max < 0) { /* r: item r | nothing */
        QN_TRY(new_rule(f, &rule));
        QN_TRY(put(f, &one, item));
        QN_TRY(put(f, &one, rule));
        QN_TRY(add_production(f, rule, &one));
        QN_TRY(add_production(f, rule, &none));
        return put(f, s, rule);
    }
    int32_t inner = -1; /* r1: item r2 | nothing, and so on */
    for (int32_t i = n.min; i < n.max; i++) {
        QN_TRY(new_rule(f, &rule));
        one.symbols.n = 0;
        QN_TRY(put(f, &one, item));
        if (inner >= 0) QN_TRY(put(f, &one, inner));
        QN_TRY(add_production(f, rule, &one));
        QN_TRY(add_production(f, rule, &none));
        inner = rule;
    }
    return inner >= 0 ? put(f, s, inner) : QN_OK;
}

/* The regular alternatives are one production, the others one each. */
static qn_status make_rule(finisher *f, int32_t rule, int32_t body)
{
    int32_t *ways;
    size_t n_ways, n_regular = 0;
    if (qn_tree_at(f->t, body)->kind == QN_TREE_ALTERNATIVES) {
        QN_TRY(list_children(f, body, &ways, &n_ways));
    } else {
        ways = &body;
        n_ways = 1;
    }
    int32_t *regular = qn_arena_alloc(&f->t->w.arena, sizeof *regular * n_ways);
    if (!regular) return QN_E_NOMEM;
    for (size_t i = 0; i < n_ways; i++) {
        if (is_regular(f, ways[i])) {
            regular[n_regular++] = ways[i];
            continue;
        }
        side s = {0};
        QN_TRY(put_node(f, &s, ways[i]));
        QN_TRY(add_production(f, rule, &s));
    }
    if (n_regular == 0) return QN_OK;
    qn_dfa *d;
    qn_status st = unite_nodes(f, regular, n_regular, &d);
    if (st == QN_OK) {
        side s = {0};
        QN_TRY(put_terminal(f, &s, d));
        return add_production(f, rule, &s);
    }
    if (st != QN_E_UNSUPPORTED) return st;
    for (size_t i = 0; i < n_regular; i++) { /* too large together */
        const qn_tree_node *n = qn_tree_at(f->t, regular[i]);
        side s = {0};
        int32_t *items = &regular[i];
        size_t n_items = 1;
        if (n->kind == QN_TREE_SEQUENCE) QN_TRY(list_children(f, regular[i], &items, &n_items));
        QN_TRY(put_items(f, &s, items, n_items));
        QN_TRY(add_production(f, rule, &s));
    }
    return QN_OK;
}

/* --- What is left --- */

/* Marks rules that end some text (or, with is_nullable, the empty one). */
static void find_ending(const finisher *f, uint8_t *ends, int is_nullable)
{
    const production *p = f->productions.at;
    const int32_t *symbols = f->symbols.at;
    for (int changed = 1; changed;) {
        changed = 0;
        for (size_t i = 0; i < f->productions.n; i++) {
            if (p[i].is_dropped || ends[p[i].rule]) continue;
            int ok = 1;
            for (int32_t k = p[i].first; k < p[i].first + p[i].n && ok; k++) {
                if (symbols[k] >= 0) {
                    ok = ends[symbols[k]];
                } else {
                    const qn_dfa *d = ((qn_dfa **)f->terminals.at)[~symbols[k]];
                    ok = is_nullable ? d->flags[d->start] & QN_DFA_ACCEPTS : d->start != 0;
                }
            }
            if (ok) ends[p[i].rule] = 1, changed = 1;
        }
    }
}

static qn_status drop_useless(finisher *f, int32_t start, uint8_t *is_reached)
{
    size_t n = (size_t)f->n_rules;
    uint8_t *ends = qn_arena_calloc(&f->t->w.arena, n, 1);
    if (!ends) return QN_E_NOMEM;
    QN_TRY(qn_dfa_work_steps(&f->t->w, (int64_t)f->productions.n));
    find_ending(f, ends, 0);
    if (!ends[start]) return qn_fail(QN_E_FORMAT, "the grammar accepts no text: its recursion never ends");
    production *p = f->productions.at;
    const int32_t *symbols = f->symbols.at;
    for (size_t i = 0; i < f->productions.n; i++) {
        for (int32_t k = p[i].first; k < p[i].first + p[i].n; k++) {
            if (symbols[k] >= 0 ? !ends[symbols[k]]
                                : qn_dfa_is_empty(((qn_dfa **)f->terminals.at)[~symbols[k]]))
                p[i].is_dropped = 1;
        }
    }
    is_reached[start] = 1;
    for (int changed = 1; changed;) {
        changed = 0;
        for (size_t i = 0; i < f->productions.n; i++) {
            if (p[i].is_dropped || !is_reached[p[i].rule]) continue;
            for (int32_t k = p[i].first; k < p[i].first + p[i].n; k++) {
                if (symbols[k] >= 0 && !is_reached[symbols[k]]) is_reached[symbols[k]] = 1, changed = 1;
            }
        }
    }
    for (size_t i = 0; i < f->productions.n; i++) p[i].is_dropped |= !is_reached[p[i].rule];
    return QN_OK;
}

/* One block with all arrays. */
static qn_status write_grammar(finisher *f, int32_t start, const uint8_t *is_reached, qn_grammar **out)
{
    const production *p = f->productions.at;
    const int32_t *symbols = f->symbols.at;
    size_t n_terminals_all = f->terminals.n;
    int32_t *number = qn_arena_alloc(&f->t->w.arena, sizeof *number * (size_t)(f->n_rules + 1));
    int32_t *terminal = qn_arena_alloc(&f->t->w.arena, sizeof *terminal * (n_terminals_all + 1));
    uint8_t *is_nullable = qn_arena_calloc(&f->t->w.arena, (size_t)f->n_rules + 1, 1);
    if (!number || !terminal || !is_nullable) return QN_E_NOMEM;
    find_ending(f, is_nullable, 1);
    int32_t n_rules = 0, n_productions = 0, n_symbols = 0, n_terminals = 0;
    for (int32_t i = 0; i < f->n_rules; i++) number[i] = is_reached[i] ? n_rules++ : -1;
    for (size_t i = 0; i < n_terminals_all; i++) terminal[i] = -1;
    for (size_t i = 0; i < f->productions.n; i++) {
        if (p[i].is_dropped) continue;
        n_productions++;
        n_symbols += p[i].n;
        for (int32_t k = p[i].first; k < p[i].first + p[i].n; k++) {
            if (symbols[k] < 0 && terminal[~symbols[k]] < 0) terminal[~symbols[k]] = n_terminals++;
        }
    }
    size_t bytes = sizeof(qn_grammar) + sizeof(qn_dfa *) * (size_t)n_terminals +
                   sizeof(qn_grammar_rule) * (size_t)n_rules +
                   sizeof(qn_grammar_production) * (size_t)n_productions +
                   sizeof(int32_t) * (size_t)n_symbols;
    qn_grammar *g = qn_calloc(1, bytes);
    if (!g) return QN_E_NOMEM;
    qn_dfa **terminals = (qn_dfa **)(g + 1);
    qn_grammar_rule *rules = (qn_grammar_rule *)(terminals + n_terminals);
    qn_grammar_production *productions = (qn_grammar_production *)(rules + n_rules);
    int32_t *to = (int32_t *)(productions + n_productions);
    *g = (qn_grammar){1,           n_rules, n_productions, n_symbols, n_terminals, number[start], rules,
                      productions, to,      terminals};
    for (size_t i = 0; i < n_terminals_all; i++) {
        if (terminal[i] >= 0) terminals[terminal[i]] = qn_dfa_retain(((qn_dfa **)f->terminals.at)[i]);
    }
    for (size_t i = 0; i < f->productions.n; i++) {
        if (!p[i].is_dropped) rules[number[p[i].rule]].n_productions++;
    }
    for (int32_t r = 0, sum = 0; r < n_rules; r++) {
        rules[r].first_production = sum;
        sum += rules[r].n_productions;
        rules[r].n_productions = 0;
    }
    int32_t at = 0;
    for (size_t i = 0; i < f->productions.n; i++) {
        if (p[i].is_dropped) continue;
        int32_t rule = number[p[i].rule];
        rules[rule].is_nullable = is_nullable[p[i].rule];
        productions[rules[rule].first_production + rules[rule].n_productions++] =
            (qn_grammar_production){rule, at, p[i].n};
        for (int32_t k = p[i].first; k < p[i].first + p[i].n; k++)
            to[at++] = symbols[k] >= 0 ? number[symbols[k]] : ~terminal[~symbols[k]];
    }
    *out = g;
    return QN_OK;
}

qn_status qn_tree_finish(qn_tree *t, int32_t start, qn_grammar **out)
{
    finisher f = {.t = t, .n_written = (int32_t)t->rules.n};
    f.n_rules = f.n_written;
    f.dfa_of = qn_arena_calloc(&t->w.arena, (size_t)f.n_written + 1, sizeof *f.dfa_of);
    uint8_t *state = qn_arena_calloc(&t->w.arena, (size_t)f.n_written + 1, 1);
    if (!f.dfa_of || !state) return QN_E_NOMEM;
    QN_TRY(find_regular(&f, start, state));
    if (f.dfa_of[start]) {
        side s = {0};
        QN_TRY(put_terminal(&f, &s, qn_dfa_retain(f.dfa_of[start])));
        QN_TRY(add_production(&f, start, &s));
    } else {
        for (int32_t i = 0; i < f.n_written; i++) {
            if (state[i] && !f.dfa_of[i]) QN_TRY(make_rule(&f, i, qn_tree_rule_at(t, i)->body));
        }
    }
    uint8_t *is_reached = qn_arena_calloc(&t->w.arena, (size_t)f.n_rules + 1, 1);
    if (!is_reached) return QN_E_NOMEM;
    QN_TRY(drop_useless(&f, start, is_reached));
    return write_grammar(&f, start, is_reached, out);
}

qn_grammar *qn_grammar_retain(qn_grammar *g)
{
    __atomic_fetch_add(&g->n_references, 1, __ATOMIC_RELAXED);
    return g;
}

void qn_grammar_release(qn_grammar *g)
{
    if (!g || __atomic_sub_fetch(&g->n_references, 1, __ATOMIC_ACQ_REL) != 0) return;
    for (int32_t i = 0; i < g->n_terminals; i++) qn_dfa_release(g->terminals[i]);
    qn_free(g);
}

size_t qn_grammar_bytes(const qn_grammar *g)
{
    size_t n = sizeof *g + sizeof(qn_dfa *) * (size_t)g->n_terminals + sizeof *g->rules * (size_t)g->n_rules +
               sizeof *g->productions * (size_t)g->n_productions + sizeof *g->symbols * (size_t)g->n_symbols;
    for (int32_t i = 0; i < g->n_terminals; i++) n += g->terminals[i]->size_bytes;
    return n;
}

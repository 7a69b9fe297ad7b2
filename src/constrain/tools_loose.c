/* Calls as Gemma writes them: call:NAME{key:<|"|>text<|"|>,n:[1,{x:null}]}, without spaces, names in the order of
 * Jinja's dictsort, as the template shows them.
 *
 * Each value of the program becomes a part of the graph, once, so schemas may recur. What a graph does not hold
 * (unique items, counts that depend on what was written) is written as JSON, which the reader takes in any
 * place. A key that the schema does not name may come twice; what counts then is its last value, and both are
 * valid. */
#include <string.h>

#include "base/mem.h"
#include "constrain/automaton/regex.h"
#include "constrain/tools_parts.h"
#include "text/tools/loose_json.h"

enum {
    UNROLLED_MAX = 64, /* items of an array that are counted by nodes */
    NESTED_MAX = 80    /* values inside of each other; deeper ones are JSON */
};

static qn_status part_of(qn_tools *k, int32_t value, uint32_t *out);

static qn_status put_part(qn_tools *k, int32_t value, uint32_t next, uint32_t *out)
{
    uint32_t part = 0;
    if (k->n_nested == NESTED_MAX) return qn_put_value(k->c, value, next, out);
    k->n_nested++;
    qn_status status = part_of(k, value, &part);
    k->n_nested--;
    if (status != QN_OK) return status;
    qn_graph_node node = {.kind = QN_GRAPH_PART, .what = (int32_t)part, .next = next};
    return qn_program_add_graph(&k->c->program, &node, out);
}

/* ---- strings and keys ---------------------------------------------------------------------------------- */

static qn_status put_quoted(qn_tools *k, qn_dfa *d, uint32_t next, uint32_t *some)
{
    uint32_t node;
    QN_TRY(qn_without(k->c, d, qn_loose_quote, &d));
    if (qn_dfa_is_empty(d)) {
        qn_dfa_release(d);
        return QN_OK;
    }
    qn_status status = qn_put_text(k->c, qn_loose_quote, next, &node);
    if (status != QN_OK) {
        qn_dfa_release(d);
        return status;
    }
    QN_TRY(qn_put_dfa(k->c, d, node, &node));
    QN_TRY(qn_put_text(k->c, qn_loose_quote, node, &node));
    return qn_put_other(k->c, node, some);
}

static qn_status put_string(qn_tools *k, int32_t string, uint32_t *some)
{
    const qn_string_rule *r = &k->c->program.strings[string];
    qn_dfa *d;
    if (r->dfa != k->c->program.all || r->min > 0 || r->max >= 0) {
        QN_TRY(qn_string_dfa(k->c, string, &d));
        return put_quoted(k, d, 0, some);
    }
    uint32_t node;
    qn_marks marks = {.n = 0};
    qn_marks_add(k->c, &marks, qn_loose_quote, QN_SCAN_END);
    QN_TRY(qn_put_free(k->c, &marks, QN_FREE_TEXT, 0, &node));
    QN_TRY(qn_put_text(k->c, qn_loose_quote, node, &node));
    return qn_put_other(k->c, node, some);
}

/* A name and the colon. */
static qn_status put_name(qn_tools *k, const qn_member *m, uint32_t next, uint32_t *out)
{
    int is_word = m->n > 0;
    for (uint32_t i = 0; i < m->n; i++) is_word &= qn_loose_is_word(m->name[i]);
    if (!is_word && strstr(m->name, qn_loose_quote))
        return qn_fail(QN_E_UNSUPPORTED, "tools: the name \"%.64s\" has the mark %s in it", m->name,
                       qn_loose_quote);
    QN_TRY(qn_put_bytes(k->c, ":", 1, next, out));
    if (!is_word) QN_TRY(qn_put_text(k->c, qn_loose_quote, *out, out));
    QN_TRY(qn_put_bytes(k->c, m->name, m->n, *out, out));
    return is_word ? QN_OK : qn_put_text(k->c, qn_loose_quote, *out, out);
}

/* ---- objects ------------------------------------------------------------------------------------------- */

static int is_simple_object(const qn_object_rule *o)
{
    int64_t n_required = 0, n_possible = 0;
    for (uint32_t i = 0; i < o->n_members; i++)
        n_required += o->members[i].is_required, n_possible += o->members[i].is_possible;
    if (o->due || o->min > n_required) return 0;
    return o->max < 0 || (o->n_classes == 0 && o->max >= n_possible);
}

/* -1: a comes before b in Jinja's dictsort, which takes small and capital letters for one. */
static int compare_names(const qn_member *a, const qn_member *b)
{
    for (uint32_t i = 0; i < a->n && i < b->n; i++) {
        int x = (uint8_t)a->name[i], y = (uint8_t)b->name[i];
        if (x >= 'A' && x <= 'Z') x += 'a' - 'A';
        if (y >= 'A' && y <= 'Z') y += 'a' - 'A';
        if (x != y) return x < y ? -1 : 1;
    }
    return a->n < b->n ? -1 : a->n > b->n;
}

/* Indices of the members as they are written; stable. *order is freed by the caller. */
static qn_status order_members(const qn_object_rule *o, uint32_t **order)
{
    uint32_t *list = qn_alloc_array(2 * (size_t)o->n_members + 1, sizeof *list), *spare = list + o->n_members;
    if (!list) return QN_E_NOMEM;
    for (uint32_t i = 0; i < o->n_members; i++) list[i] = i;
    for (uint32_t width = 1; width < o->n_members; width *= 2) {
        for (uint32_t begin = 0; begin < o->n_members; begin += 2 * width) {
            uint32_t middle = begin + width < o->n_members ? begin + width : o->n_members;
            uint32_t end = middle + width < o->n_members ? middle + width : o->n_members;
            for (uint32_t a = begin, b = middle, at = begin; at < end; at++) {
                int first = b >= end ||
                            (a < middle && compare_names(&o->members[list[a]], &o->members[list[b]]) <= 0);
                spare[at] = first ? list[a++] : list[b++];
            }
        }
        memcpy(list, spare, o->n_members * sizeof *list);
    }
    *order = list;
    return QN_OK;
}

/* The keys of a class that are no member's name. */
static qn_status other_keys(qn_tools *k, const qn_object_rule *o, const qn_key_class *x, qn_dfa **out)
{
    qn_program *p = &k->c->program;
    qn_dfa *d = qn_dfa_retain(p->dfas[x->dfa == QN_NONE ? p->all : x->dfa]), *names = NULL;
    qn_text_ref *texts = qn_alloc_array((size_t)o->n_members + 1, sizeof *texts);
    qn_status status = texts ? QN_OK : QN_E_NOMEM;
    for (uint32_t i = 0; texts && i < o->n_members; i++)
        texts[i] = (qn_text_ref){o->members[i].name, o->members[i].n};
    if (status == QN_OK) status = qn_dfa_texts(texts, o->n_members, &p->dfa_limits, &names);
    if (status == QN_OK) status = qn_dfa_subtract(d, names, &p->dfa_limits, out);
    qn_free(texts);
    qn_dfa_release(names);
    qn_dfa_release(d);
    return status;
}

/* Members of keys that the object does not name, before the node `more`, which begins behind a value. *out 0:
 * there are none. */
static qn_status put_others(qn_tools *k, const qn_object_rule *o, uint32_t more, uint32_t *out)
{
    static const char word[] = "[A-Za-z0-9_.$+\\-\\u0080-\\uffff]+";
    const qn_dfa_limits *l = &k->c->program.dfa_limits;
    *out = 0;
    for (uint32_t i = 0; i < o->n_classes; i++) {
        uint32_t value, keys = 0, node;
        qn_dfa *d, *words, *bare;
        QN_TRY(put_part(k, o->classes[i].value, more, &value));
        QN_TRY(qn_put_bytes(k->c, ":", 1, value, &value));
        QN_TRY(other_keys(k, o, &o->classes[i], &d));
        qn_status status = qn_dfa_regex(word, sizeof word - 1, QN_REGEX_WHOLE, l, &words);
        if (status == QN_OK) {
            status = qn_dfa_intersect(d, words, l, &bare);
            qn_dfa_release(words);
        }
        if (status != QN_OK) {
            qn_dfa_release(d);
            return status;
        }
        if (qn_dfa_is_empty(bare)) {
            qn_dfa_release(bare);
            QN_TRY(put_quoted(k, d, value, &keys));
        } else {
            qn_dfa_release(d);
            QN_TRY(qn_put_dfa(k->c, bare, value, &node));
            QN_TRY(qn_put_other(k->c, node, &keys));
        }
        if (keys) QN_TRY(qn_put_other(k->c, keys, out));
    }
    return QN_OK;
}

/* first and more: where the members go on, before the first one and behind one. */
static qn_status put_members(qn_tools *k, const qn_object_rule *o, const uint32_t *order, uint32_t *out)
{
    qn_constraint *c = k->c;
    uint32_t close, first, more, others;
    QN_TRY(qn_put_bytes(c, "}", 1, 0, &close));
    first = more = close;
    if (o->n_classes) {
        QN_TRY(qn_put_choice(c, close, close, &more));
        QN_TRY(put_others(k, o, more, &others));
        if (others) {
            uint32_t comma;
            QN_TRY(qn_put_bytes(c, ",", 1, others, &comma));
            c->program.graph[more].other = comma;
            QN_TRY(qn_put_choice(c, others, close, &first));
        }
    }
    for (uint32_t i = o->n_members; i-- > 0;) {
        const qn_member *m = &o->members[order[i]];
        uint32_t node;
        if (!m->is_possible) continue;
        QN_TRY(put_part(k, m->value, more, &node));
        QN_TRY(put_name(k, m, node, &node));
        QN_TRY(qn_put_member(c, m->is_required, node, ",", &first, &more));
    }
    return qn_put_bytes(c, "{", 1, first, out);
}

/* *some is unchanged if the object is none that a graph holds; then *is_put is 0. */
static qn_status put_object(qn_tools *k, int32_t object, int *is_put, uint32_t *some)
{
    const qn_object_rule *prepared;
    QN_TRY(qn_program_prepare(&k->c->program, object, &prepared));
    qn_object_rule o = *prepared;
    *is_put = is_simple_object(&o);
    if (!*is_put) return QN_OK;
    uint32_t *order, node;
    QN_TRY(order_members(&o, &order));
    qn_status status = put_members(k, &o, order, &node);
    qn_free(order);
    return status == QN_OK ? qn_put_other(k->c, node, some) : status;
}

/* ---- arrays -------------------------------------------------------------------------------------------- */

static int32_t item_at(const qn_array_rule *a, int64_t i)
{
    return a->items[i < a->n_prefix ? i : a->n_prefix];
}

static qn_status put_array(qn_tools *k, int32_t array, int *is_put, uint32_t *some)
{
    qn_constraint *c = k->c;
    const qn_array_rule *prepared;
    QN_TRY(qn_program_prepare_array(&c->program, array, &prepared));
    qn_array_rule a = *prepared;
    int64_t n = a.min > a.n_prefix ? a.min : a.n_prefix;
    if (a.max >= 0) n = a.max;
    *is_put = !a.is_unique && !a.counted && !a.due && n <= UNROLLED_MAX;
    if (!*is_put) return QN_OK;
    uint32_t close, more, first = 0, node;
    QN_TRY(qn_put_bytes(c, "]", 1, 0, &close));
    more = close;
    /* Behind n items: any number of others. */
    if (a.max < 0 && item_at(&a, n) != QN_NONE) {
        QN_TRY(qn_put_choice(c, close, close, &more));
        QN_TRY(put_part(k, item_at(&a, n), more, &first));
        QN_TRY(qn_put_bytes(c, ",", 1, first, &node));
        c->program.graph[more].other = node;
    }
    if (n == 0 && first)
        QN_TRY(qn_put_choice(c, first, close, &first));
    else if (n == 0)
        first = close;
    for (int64_t i = n; i-- > 0;) {
        /* more: behind i + 1 items, then behind i; first: the same without the comma. */
        if (item_at(&a, i) == QN_NONE && i < a.min) return QN_OK; /* no array is so long */
        if (item_at(&a, i) == QN_NONE) {
            first = more = close;
            continue;
        }
        QN_TRY(put_part(k, item_at(&a, i), more, &node));
        first = node;
        QN_TRY(qn_put_bytes(c, ",", 1, node, &more));
        if (i < a.min) continue;
        QN_TRY(qn_put_choice(c, more, close, &more));
        QN_TRY(qn_put_choice(c, first, close, &first));
    }
    QN_TRY(qn_put_bytes(c, "[", 1, first, &node));
    return qn_put_other(c, node, some);
}

/* ---- values -------------------------------------------------------------------------------------------- */

static qn_status put_literals(qn_tools *k, uint8_t literals, uint32_t *some)
{
    static const struct {
        qn_literal literal;
        const char *text;
    } words[] = {{QN_LITERAL_NULL, "null"},
                 {QN_LITERAL_NULL, "None"}, /* so the template writes it */
                 {QN_LITERAL_TRUE, "true"},
                 {QN_LITERAL_FALSE, "false"}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        uint32_t node;
        if (!(literals >> words[i].literal & 1)) continue;
        QN_TRY(qn_put_bytes(k->c, words[i].text, strlen(words[i].text), 0, &node));
        QN_TRY(qn_put_other(k->c, node, some));
    }
    return QN_OK;
}

/* Objects and arrays as JSON. */
static qn_status put_rest(qn_tools *k, const qn_value *v, uint32_t *some)
{
    qn_program *p = &k->c->program;
    int32_t value;
    uint32_t node;
    if (v->n_objects + v->n_arrays == 0) return QN_OK;
    QN_TRY(qn_program_add_value(p, &value));
    p->values[value] = (qn_value){.is_expanded = 1, .possible = 1, .number = QN_NONE};
    p->values[value].n_objects = v->n_objects;
    p->values[value].n_arrays = v->n_arrays;
    p->values[value].objects = qn_program_numbers(p, v->objects, v->n_objects);
    p->values[value].arrays = qn_program_numbers(p, v->arrays, v->n_arrays);
    if (!p->values[value].objects || !p->values[value].arrays) return QN_E_NOMEM;
    QN_TRY(qn_put_value(k->c, value, 0, &node));
    return qn_put_other(k->c, node, some);
}

static qn_status put_any(qn_tools *k, const qn_value *v, uint32_t *some)
{
    qn_value rest = {.number = QN_NONE};
    uint32_t node;
    int is_put = 1;
    qn_status status = QN_OK;
    rest.objects = qn_alloc_array((size_t)v->n_objects + v->n_arrays + 1, sizeof *rest.objects);
    if (!rest.objects) return QN_E_NOMEM;
    rest.arrays = rest.objects + v->n_objects;
    for (uint32_t i = 0; status == QN_OK && i < v->n_objects; i++) {
        status = put_object(k, v->objects[i], &is_put, some);
        if (!is_put) rest.objects[rest.n_objects++] = v->objects[i];
    }
    for (uint32_t i = 0; status == QN_OK && i < v->n_arrays; i++) {
        status = put_array(k, v->arrays[i], &is_put, some);
        if (!is_put) rest.arrays[rest.n_arrays++] = v->arrays[i];
    }
    for (uint32_t i = 0; status == QN_OK && i < v->n_strings; i++)
        status = put_string(k, v->strings[i], some);
    if (status == QN_OK) status = put_literals(k, v->literals, some);
    if (status == QN_OK && v->number != QN_NONE) {
        status = qn_put_dfa(k->c, qn_dfa_retain(k->c->program.dfas[v->number]), 0, &node);
        if (status == QN_OK) status = qn_put_other(k->c, node, some);
    }
    if (status == QN_OK) status = put_rest(k, &rest, some);
    qn_free(rest.objects);
    return status;
}

static qn_status room_for(qn_tools *k, int32_t value)
{
    if ((size_t)value < k->n_parts) return QN_OK;
    size_t n = 2 * (size_t)value + 64;
    uint32_t *p = qn_realloc(k->parts, n * sizeof *p);
    if (!p) return QN_E_NOMEM;
    memset(p + k->n_parts, 0, (n - k->n_parts) * sizeof *p);
    k->parts = p;
    k->n_parts = n;
    return QN_OK;
}

/* A value's part begins with a choice that is there before what the value holds, so it may hold itself. */
static qn_status part_of(qn_tools *k, int32_t value, uint32_t *out)
{
    const qn_value *expanded;
    uint32_t some = 0;
    QN_TRY(room_for(k, value));
    if (!k->parts[value]) {
        QN_TRY(qn_program_value(&k->c->program, value, &expanded));
        qn_value v = *expanded;
        QN_TRY(qn_put_choice(k->c, 0, 0, &k->parts[value]));
        QN_TRY(put_any(k, &v, &some));
        if (!some)
            return qn_fail(QN_E_UNSUPPORTED,
                           "tools: a value of the arguments cannot be written in calls as the "
                           "family %s writes them",
                           k->f->name);
        k->c->program.graph[k->parts[value]] = k->c->program.graph[some];
    }
    *out = k->parts[value];
    return QN_OK;
}

qn_status qn_put_loose_call(qn_tools *k, const qn_tool *t, uint32_t next, uint32_t *out)
{
    static const char call[] = "call:";
    for (const char *c = t->name; *c; c++)
        if (!qn_loose_is_word(*c))
            return qn_fail(QN_E_UNSUPPORTED,
                           "tools: calls as the family %s writes them have no name \"%.64s\"", k->f->name,
                           t->name);
    QN_TRY(put_part(k, t->arguments, next, out));
    QN_TRY(qn_put_bytes(k->c, t->name, strlen(t->name), *out, out));
    return qn_put_bytes(k->c, call, sizeof call - 1, *out, out);
}

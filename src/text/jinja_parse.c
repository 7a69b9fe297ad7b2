#include "text/jinja_parse.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/map.h"
#include "text/jinja_run.h"

typedef struct macro_scope {
    struct macro_scope *outer;
    qn_jparams *params;
} macro_scope;

typedef struct {
    qn_jheap *heap;
    const qn_jtoken *token; /* the current one */
    uint32_t depth;
    qn_map *name_places;
    qn_jvalue *names;
    uint32_t n_names, names_capacity;
    macro_scope *macro;
    int loops; /* open for-bodies, for break and continue */
} parser;

/* A list that grows in the heap. */
typedef struct {
    qn_jnode **items;
    uint32_t n, capacity;
} node_list;

static qn_status parse_expression(parser *p, int with_condition, qn_jnode **out);
static qn_status parse_unary(parser *p, int with_filter, qn_jnode **out);
static qn_status parse_body(parser *p, const char *const *ends, node_list *out);

static qn_status fail(const parser *p, const char *fmt, ...) QN_PRINTF(2, 3);
static qn_status fail(const parser *p, const char *fmt, ...)
{
    char text[256];
    va_list list;
    va_start(list, fmt);
    vsnprintf(text, sizeof text, fmt, list);
    va_end(list);
    return qn_fail(QN_E_FORMAT, "line %u: %s", p->token->line, text);
}

static qn_status enter(parser *p)
{
    if (p->depth >= QN_JPARSE_DEPTH_MAX)
        return fail(p, "nested more than %d levels deep", QN_JPARSE_DEPTH_MAX);
    p->depth++;
    return QN_OK;
}

/* Tokens. */

static int at_op(const parser *p, int op)
{
    return p->token->kind == QN_JTOKEN_OPERATOR && p->token->op == op;
}

static int is_name(const qn_jtoken *t, const char *name)
{
    return t->kind == QN_JTOKEN_NAME && t->n == strlen(name) && memcmp(t->text, name, t->n) == 0;
}

static int at_name(const parser *p, const char *name)
{
    return is_name(p->token, name);
}

static int skip_op(parser *p, int op)
{
    if (!at_op(p, op)) return 0;
    p->token++;
    return 1;
}

static int skip_name(parser *p, const char *name)
{
    if (!at_name(p, name)) return 0;
    p->token++;
    return 1;
}

static void describe(const qn_jtoken *t, char *out, size_t size)
{
    static const char *const names[] = {"the end of the template", "text", "'{{'", "'}}'", "'{%'", "'%}'"};
    static const char *const pairs[] = {"==", "!=", "<=", ">=", "//", "**"};
    if (t->kind <= QN_JTOKEN_BLOCK_END)
        snprintf(out, size, "%s", names[t->kind]);
    else if (t->kind == QN_JTOKEN_NAME)
        snprintf(out, size, "'%.*s'", t->n > 60 ? 60 : (int)t->n, t->text);
    else if (t->kind == QN_JTOKEN_STRING)
        snprintf(out, size, "a string");
    else if (t->kind != QN_JTOKEN_OPERATOR)
        snprintf(out, size, "a number");
    else if (t->op < 128)
        snprintf(out, size, "'%c'", t->op);
    else
        snprintf(out, size, "'%s'", pairs[t->op - QN_JOP_EQ]);
}

static qn_status fail_unexpected(const parser *p, const char *wanted)
{
    char found[80];
    describe(p->token, found, sizeof found);
    return fail(p, "expected %s, found %s", wanted, found);
}

static qn_status expect_op(parser *p, int op)
{
    char wanted[] = "' '";
    wanted[1] = (char)op;
    return skip_op(p, op) ? QN_OK : fail_unexpected(p, wanted);
}

static qn_status expect_kind(parser *p, qn_jtoken_kind kind, const char *wanted)
{
    if (p->token->kind != kind) return fail_unexpected(p, wanted);
    p->token++;
    return QN_OK;
}

/* Nodes. */

static uint16_t height_of(const qn_jnode *n)
{
    return n ? n->height : 0;
}

static qn_status raise_height(const parser *p, qn_jnode *n, const qn_jnode *child)
{
    uint16_t height = (uint16_t)(height_of(child) + 1);
    if (height > QN_JPARSE_HEIGHT_MAX)
        return fail(p, "an expression is more than %d levels deep", QN_JPARSE_HEIGHT_MAX);
    if (height > n->height) n->height = height;
    return QN_OK;
}

static qn_status new_node(parser *p, qn_jnode_kind kind, uint32_t line, qn_jnode *a, qn_jnode *b, qn_jnode *c,
                          qn_jnode **out)
{
    qn_jnode *n = qn_jheap_alloc(p->heap, 1, sizeof *n);
    if (!n) return p->heap->status;
    memset(n, 0, sizeof *n);
    n->kind = (uint8_t)kind;
    n->line = line;
    n->name = -1;
    n->a = a;
    n->b = b;
    n->c = c;
    QN_TRY(raise_height(p, n, a));
    QN_TRY(raise_height(p, n, b));
    QN_TRY(raise_height(p, n, c));
    *out = n;
    return QN_OK;
}

static qn_status add_node(parser *p, node_list *list, qn_jnode *n)
{
    if (list->n == list->capacity) {
        uint32_t capacity = list->capacity ? list->capacity * 2 : 4;
        qn_jnode **items = qn_jheap_alloc(p->heap, capacity, sizeof *items);
        if (!items) return p->heap->status;
        if (list->n) memcpy(items, list->items, list->n * sizeof *items);
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->n++] = n;
    return QN_OK;
}

static qn_status set_items(parser *p, qn_jnode *n, node_list list)
{
    n->items = list.items;
    n->n_items = list.n;
    for (uint32_t i = 0; i < list.n; i++) QN_TRY(raise_height(p, n, list.items[i]));
    return QN_OK;
}

/* A constant: its length is counted now, because later several threads read it. */
static qn_status constant_text(parser *p, const char *text, size_t n, qn_jvalue *out)
{
    QN_TRY(qn_jstring_borrow(p->heap, text, n, NULL, 0, out));
    qn_jstring_length(out->s);
    return QN_OK;
}

static qn_status name_place(parser *p, const qn_jtoken *t, int32_t *place)
{
    int64_t known;
    if (qn_map_get(p->name_places, t->text, t->n, &known)) {
        *place = (int32_t)known;
        return QN_OK;
    }
    if (p->n_names == p->names_capacity) {
        uint32_t capacity = p->names_capacity ? p->names_capacity * 2 : 32;
        qn_jvalue *names = qn_jheap_alloc(p->heap, capacity, sizeof *names);
        if (!names) return p->heap->status;
        if (p->n_names) memcpy(names, p->names, p->n_names * sizeof *names);
        p->names = names;
        p->names_capacity = capacity;
    }
    QN_TRY(constant_text(p, t->text, t->n, &p->names[p->n_names]));
    QN_TRY(qn_map_set(p->name_places, t->text, t->n, p->n_names, NULL, NULL));
    *place = (int32_t)p->n_names++;
    return QN_OK;
}

static qn_status expect_name(parser *p, int32_t *place)
{
    if (p->token->kind != QN_JTOKEN_NAME) return fail_unexpected(p, "a name");
    QN_TRY(name_place(p, p->token, place));
    p->token++;
    return QN_OK;
}

/* Expressions, loosest binding first. */

static int at_tuple_end(const parser *p, const char *end)
{
    return p->token->kind == QN_JTOKEN_PRINT_END || p->token->kind == QN_JTOKEN_BLOCK_END || at_op(p, ')') ||
           (end && at_name(p, end));
}

static qn_status parse_primary(parser *p, int as_target, qn_jnode **out);

typedef enum { TUPLE_FULL, TUPLE_NO_CONDITION, TUPLE_TARGET } tuple_mode;

/* One expression, or several with commas: a tuple. end: a name that also ends it. */
static qn_status parse_tuple(parser *p, tuple_mode mode, const char *end, int parentheses, qn_jnode **out)
{
    uint32_t line = p->token->line;
    node_list items = {0};
    int is_tuple = 0;
    while (1) {
        if (items.n) QN_TRY(expect_op(p, ','));
        if (at_tuple_end(p, end)) break;
        qn_jnode *item;
        if (mode == TUPLE_TARGET)
            QN_TRY(parse_primary(p, 1, &item));
        else
            QN_TRY(parse_expression(p, mode == TUPLE_FULL, &item));
        QN_TRY(add_node(p, &items, item));
        if (!at_op(p, ',')) break;
        is_tuple = 1;
    }
    if (!is_tuple && items.n) {
        *out = items.items[0];
        return QN_OK;
    }
    if (!is_tuple && !parentheses) return fail_unexpected(p, "an expression");
    QN_TRY(new_node(p, QN_JNODE_TUPLE, line, NULL, NULL, NULL, out));
    return set_items(p, *out, items);
}

static void note_name(parser *p, const qn_jtoken *t)
{
    for (macro_scope *m = p->macro; m; m = m->outer) {
        m->params->uses_varargs |= is_name(t, "varargs");
        m->params->uses_kwargs |= is_name(t, "kwargs");
    }
}

static qn_status parse_name(parser *p, int as_target, qn_jnode **out)
{
    const qn_jtoken *t = p->token++;
    int truth = is_name(t, "true") || is_name(t, "True");
    if (truth || is_name(t, "false") || is_name(t, "False") || is_name(t, "none") || is_name(t, "None")) {
        QN_TRY(new_node(p, QN_JNODE_CONST, t->line, NULL, NULL, NULL, out));
        (*out)->value = (t->text[0] | 0x20) == 'n' ? qn_jnone() : qn_jbool(truth, 0);
        return QN_OK;
    }
    int is_attribute = as_target && skip_op(p, '.');
    QN_TRY(new_node(p, is_attribute ? QN_JNODE_NSREF : QN_JNODE_NAME, t->line, NULL, NULL, NULL, out));
    QN_TRY(name_place(p, t, &(*out)->name));
    note_name(p, t);
    if (is_attribute) {
        const qn_jtoken *attribute = p->token;
        QN_TRY(expect_kind(p, QN_JTOKEN_NAME, "an attribute name"));
        QN_TRY(constant_text(p, attribute->text, attribute->n, &(*out)->value));
    }
    return QN_OK;
}

static qn_status parse_strings(parser *p, qn_jnode **out)
{
    const qn_jtoken *first = p->token++;
    QN_TRY(new_node(p, QN_JNODE_CONST, first->line, NULL, NULL, NULL, out));
    if (p->token->kind != QN_JTOKEN_STRING) return constant_text(p, first->text, first->n, &(*out)->value);
    qn_jbuild b; /* strings side by side are one */
    qn_jbuild_init(&b, p->heap);
    for (p->token = first; p->token->kind == QN_JTOKEN_STRING; p->token++)
        qn_jbuild_bytes(&b, p->token->text, p->token->n, 0);
    QN_TRY(qn_jbuild_take(&b, &(*out)->value));
    qn_jstring_length((*out)->value.s);
    return QN_OK;
}

/* [a, b] or {a: b, c: d}. */
static qn_status parse_display(parser *p, int closer, qn_jnode **out)
{
    uint32_t line = p->token++->line;
    node_list items = {0};
    while (!at_op(p, closer)) {
        qn_jnode *item;
        if (items.n) QN_TRY(expect_op(p, ','));
        if (at_op(p, closer)) break;
        QN_TRY(parse_expression(p, 1, &item));
        QN_TRY(add_node(p, &items, item));
        if (closer == ']') continue;
        QN_TRY(expect_op(p, ':'));
        QN_TRY(parse_expression(p, 1, &item));
        QN_TRY(add_node(p, &items, item));
    }
    QN_TRY(expect_op(p, closer));
    QN_TRY(new_node(p, closer == ']' ? QN_JNODE_LIST : QN_JNODE_DICT, line, NULL, NULL, NULL, out));
    return set_items(p, *out, items);
}

static qn_status parse_primary(parser *p, int as_target, qn_jnode **out)
{
    const qn_jtoken *t = p->token;
    switch ((qn_jtoken_kind)t->kind) {
    case QN_JTOKEN_NAME:
        return parse_name(p, as_target, out);
    case QN_JTOKEN_STRING:
        return parse_strings(p, out);
    case QN_JTOKEN_INT:
    case QN_JTOKEN_FLOAT:
        p->token++;
        QN_TRY(new_node(p, QN_JNODE_CONST, t->line, NULL, NULL, NULL, out));
        (*out)->value = t->kind == QN_JTOKEN_INT ? qn_jint(t->i, 0) : qn_jfloat(t->f, 0);
        return QN_OK;
    default:
        break;
    }
    if (at_op(p, '(')) {
        p->token++;
        QN_TRY(enter(p));
        QN_TRY(parse_tuple(p, as_target ? TUPLE_TARGET : TUPLE_FULL, NULL, 1, out));
        p->depth--;
        return expect_op(p, ')');
    }
    if (at_op(p, '[')) return parse_display(p, ']', out);
    if (at_op(p, '{')) return parse_display(p, '}', out);
    return fail_unexpected(p, "an expression");
}

static qn_status parse_call_arguments(parser *p, qn_jnode *n)
{
    qn_jcall *call = qn_jheap_alloc(p->heap, 1, sizeof *call);
    if (!call) return p->heap->status;
    *call = (qn_jcall){0};
    n->args = call;
    node_list items = {0}, named = {0}, names = {0};
    QN_TRY(expect_op(p, '('));
    for (int first = 1; !at_op(p, ')'); first = 0) {
        qn_jnode *item;
        if (!first) QN_TRY(expect_op(p, ','));
        if (!first && at_op(p, ')')) break;
        if (skip_op(p, '*')) {
            if (call->star || call->star_star) return fail(p, "invalid arguments of a call");
            QN_TRY(parse_expression(p, 1, &call->star));
        } else if (skip_op(p, QN_JOP_POW)) {
            if (call->star_star) return fail(p, "invalid arguments of a call");
            QN_TRY(parse_expression(p, 1, &call->star_star));
        } else if (p->token->kind == QN_JTOKEN_NAME && p->token[1].kind == QN_JTOKEN_OPERATOR &&
                   p->token[1].op == '=') {
            const qn_jtoken *t = p->token;
            if (call->star_star) return fail(p, "invalid arguments of a call");
            QN_TRY(new_node(p, QN_JNODE_CONST, t->line, NULL, NULL, NULL, &item));
            QN_TRY(constant_text(p, t->text, t->n, &item->value));
            QN_TRY(add_node(p, &names, item));
            p->token += 2;
            QN_TRY(parse_expression(p, 1, &item));
            QN_TRY(add_node(p, &named, item));
        } else {
            if (call->star || call->star_star || named.n) return fail(p, "invalid arguments of a call");
            QN_TRY(parse_expression(p, 1, &item));
            QN_TRY(add_node(p, &items, item));
        }
    }
    call->items = items.items;
    call->n = items.n;
    call->named = named.items;
    call->n_named = named.n;
    call->names = qn_jheap_alloc(p->heap, names.n, sizeof *call->names);
    if (!call->names) return p->heap->status;
    for (uint32_t i = 0; i < names.n; i++) call->names[i] = names.items[i]->value;
    for (uint32_t i = 0; i < items.n; i++) QN_TRY(raise_height(p, n, items.items[i]));
    for (uint32_t i = 0; i < named.n; i++) QN_TRY(raise_height(p, n, named.items[i]));
    QN_TRY(raise_height(p, n, call->star));
    QN_TRY(raise_height(p, n, call->star_star));
    return expect_op(p, ')');
}

static qn_status parse_call(parser *p, qn_jnode **n)
{
    qn_jnode *callee = *n;
    QN_TRY(new_node(p, QN_JNODE_CALL, p->token->line, callee, NULL, NULL, n));
    return parse_call_arguments(p, *n);
}

/* What stands between [ and ] or ,: an expression or a slice. */
static qn_status parse_subscribed(parser *p, qn_jnode **out)
{
    uint32_t line = p->token->line;
    qn_jnode *parts[3] = {NULL};
    if (!at_op(p, ':')) {
        QN_TRY(parse_expression(p, 1, &parts[0]));
        if (!at_op(p, ':')) {
            *out = parts[0];
            return QN_OK;
        }
    }
    for (int i = 1; i < 3 && skip_op(p, ':'); i++)
        if (!at_op(p, ':') && !at_op(p, ']') && !at_op(p, ',')) QN_TRY(parse_expression(p, 1, &parts[i]));
    return new_node(p, QN_JNODE_SLICE, line, parts[0], parts[1], parts[2], out);
}

static qn_status parse_subscript(parser *p, qn_jnode **n)
{
    qn_jnode *object = *n, *key;
    uint32_t line = p->token->line;
    if (skip_op(p, '.')) {
        const qn_jtoken *t = p->token++;
        if (t->kind == QN_JTOKEN_NAME) {
            QN_TRY(new_node(p, QN_JNODE_GETATTR, line, object, NULL, NULL, n));
            return constant_text(p, t->text, t->n, &(*n)->value);
        }
        p->token--;
        if (t->kind != QN_JTOKEN_INT) return fail_unexpected(p, "a name or a number after '.'");
        QN_TRY(parse_primary(p, 0, &key));
        return new_node(p, QN_JNODE_GETITEM, line, object, key, NULL, n);
    }
    QN_TRY(expect_op(p, '['));
    node_list keys = {0};
    while (!at_op(p, ']')) {
        if (keys.n) QN_TRY(expect_op(p, ','));
        QN_TRY(parse_subscribed(p, &key));
        QN_TRY(add_node(p, &keys, key));
    }
    QN_TRY(expect_op(p, ']'));
    if (keys.n == 1) {
        key = keys.items[0];
    } else {
        QN_TRY(new_node(p, QN_JNODE_TUPLE, line, NULL, NULL, NULL, &key));
        QN_TRY(set_items(p, key, keys));
    }
    return new_node(p, QN_JNODE_GETITEM, line, object, key, NULL, n);
}

static qn_status parse_postfix(parser *p, qn_jnode **n)
{
    while (1) {
        if (at_op(p, '.') || at_op(p, '['))
            QN_TRY(parse_subscript(p, n));
        else if (at_op(p, '('))
            QN_TRY(parse_call(p, n));
        else
            return QN_OK;
    }
}

/* The name of a filter or test, which may have dots. */
static qn_status parse_dotted(parser *p, qn_jvalue *name)
{
    qn_jbuild b;
    qn_jbuild_init(&b, p->heap);
    do {
        const qn_jtoken *t = p->token;
        QN_TRY(expect_kind(p, QN_JTOKEN_NAME, "the name of a filter or test"));
        if (b.n) qn_jbuild_text(&b, ".", 0);
        qn_jbuild_bytes(&b, t->text, t->n, 0);
    } while (skip_op(p, '.'));
    QN_TRY(qn_jbuild_take(&b, name));
    qn_jstring_length(name->s);
    return QN_OK;
}

/* After the bar. */
static qn_status parse_filter(parser *p, qn_jnode **n)
{
    qn_jnode *operand = *n;
    QN_TRY(new_node(p, QN_JNODE_FILTER, p->token->line, operand, NULL, NULL, n));
    QN_TRY(parse_dotted(p, &(*n)->value));
    (*n)->callee = qn_jfilter_find((*n)->value.s);
    return at_op(p, '(') ? parse_call_arguments(p, *n) : QN_OK;
}

static qn_status parse_test(parser *p, qn_jnode **n)
{
    uint32_t line = p->token++->line;
    int negated = skip_name(p, "not");
    qn_jnode *operand = *n, *test;
    QN_TRY(new_node(p, QN_JNODE_TEST, line, operand, NULL, NULL, &test));
    QN_TRY(parse_dotted(p, &test->value));
    test->callee = qn_jtest_find(test->value.s);
    const qn_jtoken *t = p->token;
    int has_argument = t->kind == QN_JTOKEN_STRING || t->kind == QN_JTOKEN_INT ||
                       t->kind == QN_JTOKEN_FLOAT || t->kind == QN_JTOKEN_NAME || at_op(p, '[') ||
                       at_op(p, '{');
    if (at_op(p, '(')) {
        QN_TRY(parse_call_arguments(p, test));
    } else if (has_argument && !at_name(p, "else") && !at_name(p, "or") && !at_name(p, "and")) {
        if (at_name(p, "is")) return fail(p, "tests cannot be chained with 'is'");
        node_list items = {0};
        qn_jnode *argument;
        QN_TRY(parse_primary(p, 0, &argument));
        QN_TRY(parse_postfix(p, &argument));
        QN_TRY(add_node(p, &items, argument));
        QN_TRY(raise_height(p, test, argument));
        test->args = qn_jheap_alloc(p->heap, 1, sizeof *test->args);
        if (!test->args) return p->heap->status;
        *test->args = (qn_jcall){.items = items.items, .n = 1};
    }
    *n = test;
    return negated ? new_node(p, QN_JNODE_NOT, line, test, NULL, NULL, n) : QN_OK;
}

static qn_status parse_filters(parser *p, qn_jnode **n)
{
    while (1) {
        if (skip_op(p, '|'))
            QN_TRY(parse_filter(p, n));
        else if (at_name(p, "is"))
            QN_TRY(parse_test(p, n));
        else if (at_op(p, '('))
            QN_TRY(parse_call(p, n));
        else
            return QN_OK;
    }
}

static qn_status parse_unary(parser *p, int with_filter, qn_jnode **out)
{
    uint32_t line = p->token->line;
    if (at_op(p, '-') || at_op(p, '+')) {
        uint8_t op = p->token++->op;
        qn_jnode *operand;
        QN_TRY(enter(p));
        QN_TRY(parse_unary(p, 0, &operand));
        p->depth--;
        QN_TRY(new_node(p, QN_JNODE_UNARY, line, operand, NULL, NULL, out));
        (*out)->op = op;
    } else {
        QN_TRY(parse_primary(p, 0, out));
    }
    QN_TRY(parse_postfix(p, out));
    return with_filter ? parse_filters(p, out) : QN_OK;
}

static qn_status new_binary(parser *p, int op, uint32_t line, qn_jnode *right, qn_jnode **left)
{
    qn_jnode *a = *left;
    QN_TRY(new_node(p, QN_JNODE_BINARY, line, a, right, NULL, left));
    (*left)->op = (uint8_t)op;
    return QN_OK;
}

static qn_status parse_power(parser *p, qn_jnode **out)
{
    uint32_t line = p->token->line;
    qn_jnode *right;
    QN_TRY(parse_unary(p, 1, out));
    while (skip_op(p, QN_JOP_POW)) {
        QN_TRY(parse_unary(p, 1, &right));
        QN_TRY(new_binary(p, QN_JOP_POW, line, right, out));
    }
    return QN_OK;
}

static qn_status parse_product(parser *p, qn_jnode **out)
{
    uint32_t line = p->token->line;
    qn_jnode *right;
    QN_TRY(parse_power(p, out));
    while (at_op(p, '*') || at_op(p, '/') || at_op(p, QN_JOP_FLOORDIV) || at_op(p, '%')) {
        int op = p->token++->op;
        QN_TRY(parse_power(p, &right));
        QN_TRY(new_binary(p, op, line, right, out));
    }
    return QN_OK;
}

static qn_status parse_concat(parser *p, qn_jnode **out)
{
    uint32_t line = p->token->line;
    QN_TRY(parse_product(p, out));
    if (!at_op(p, '~')) return QN_OK;
    node_list items = {0};
    QN_TRY(add_node(p, &items, *out));
    while (skip_op(p, '~')) {
        QN_TRY(parse_product(p, out));
        QN_TRY(add_node(p, &items, *out));
    }
    QN_TRY(new_node(p, QN_JNODE_CONCAT, line, NULL, NULL, NULL, out));
    return set_items(p, *out, items);
}

static qn_status parse_sum(parser *p, qn_jnode **out)
{
    uint32_t line = p->token->line;
    qn_jnode *right;
    QN_TRY(parse_concat(p, out));
    while (at_op(p, '+') || at_op(p, '-')) {
        int op = p->token++->op;
        QN_TRY(parse_concat(p, &right));
        QN_TRY(new_binary(p, op, line, right, out));
    }
    return QN_OK;
}

/* The comparison operator here, consumed; 0: none. */
static int comparison(parser *p)
{
    if (p->token->kind == QN_JTOKEN_OPERATOR) {
        int op = p->token->op;
        if (op != '<' && op != '>' && op != QN_JOP_EQ && op != QN_JOP_NE && op != QN_JOP_LE &&
            op != QN_JOP_GE)
            return 0;
        p->token++;
        return op;
    }
    if (skip_name(p, "in")) return QN_JOP_IN;
    if (!at_name(p, "not") || !is_name(p->token + 1, "in")) return 0;
    p->token += 2;
    return QN_JOP_NOT_IN;
}

static qn_status parse_compare(parser *p, qn_jnode **out)
{
    uint32_t line = p->token->line;
    node_list items = {0};
    uint8_t ops[64];
    QN_TRY(parse_sum(p, out));
    QN_TRY(add_node(p, &items, *out));
    for (int op; (op = comparison(p)) != 0;) {
        if (items.n > sizeof ops) return fail(p, "a chain of comparisons is too long");
        ops[items.n - 1] = (uint8_t)op;
        QN_TRY(parse_sum(p, out));
        QN_TRY(add_node(p, &items, *out));
    }
    if (items.n == 1) return QN_OK;
    QN_TRY(new_node(p, QN_JNODE_COMPARE, line, NULL, NULL, NULL, out));
    (*out)->ops = qn_jheap_alloc(p->heap, items.n, 1);
    if (!(*out)->ops) return p->heap->status;
    memcpy((*out)->ops, ops, items.n - 1);
    return set_items(p, *out, items);
}

static qn_status parse_not(parser *p, qn_jnode **out)
{
    uint32_t line = p->token->line;
    if (!skip_name(p, "not")) return parse_compare(p, out);
    qn_jnode *operand;
    QN_TRY(enter(p));
    QN_TRY(parse_not(p, &operand));
    p->depth--;
    return new_node(p, QN_JNODE_NOT, line, operand, NULL, NULL, out);
}

static qn_status parse_and(parser *p, qn_jnode **out)
{
    uint32_t line = p->token->line;
    QN_TRY(parse_not(p, out));
    while (skip_name(p, "and")) {
        qn_jnode *left = *out, *right;
        QN_TRY(parse_not(p, &right));
        QN_TRY(new_node(p, QN_JNODE_AND, line, left, right, NULL, out));
    }
    return QN_OK;
}

static qn_status parse_or(parser *p, qn_jnode **out)
{
    uint32_t line = p->token->line;
    QN_TRY(parse_and(p, out));
    while (skip_name(p, "or")) {
        qn_jnode *left = *out, *right;
        QN_TRY(parse_and(p, &right));
        QN_TRY(new_node(p, QN_JNODE_OR, line, left, right, NULL, out));
    }
    return QN_OK;
}

static qn_status parse_expression(parser *p, int with_condition, qn_jnode **out)
{
    uint32_t line = p->token->line;
    QN_TRY(enter(p));
    QN_TRY(parse_or(p, out));
    while (with_condition && skip_name(p, "if")) {
        qn_jnode *value = *out, *condition, *otherwise = NULL;
        QN_TRY(parse_or(p, &condition));
        if (skip_name(p, "else")) QN_TRY(parse_expression(p, 1, &otherwise));
        QN_TRY(new_node(p, QN_JNODE_COND, line, value, condition, otherwise, out));
    }
    p->depth--;
    return QN_OK;
}

/* Statements. */

static qn_status check_target(parser *p, const qn_jnode *n, int in_tuple)
{
    if (n->kind == QN_JNODE_NAME || n->kind == QN_JNODE_NSREF) return QN_OK;
    if (n->kind != QN_JNODE_TUPLE) return fail(p, "cannot assign to this expression");
    for (uint32_t i = 0; i < n->n_items; i++) QN_TRY(check_target(p, n->items[i], 1));
    return QN_OK;
}

static qn_status parse_target(parser *p, const char *end, qn_jnode **out)
{
    QN_TRY(parse_tuple(p, TUPLE_TARGET, end, 0, out));
    return check_target(p, *out, 0);
}

/* A body up to one of ends (after "%}"), as a node. The end's name is the current token then. */
static qn_status parse_block(parser *p, const char *const *ends, qn_jnode *into)
{
    node_list items = {0};
    skip_op(p, ':');
    QN_TRY(expect_kind(p, QN_JTOKEN_BLOCK_END, "'%}'"));
    QN_TRY(parse_body(p, ends, &items));
    return set_items(p, into, items);
}

static qn_status parse_block_to(parser *p, const char *end, qn_jnode *into)
{
    const char *const ends[] = {end, NULL};
    QN_TRY(parse_block(p, ends, into));
    p->token++;
    return QN_OK;
}

static qn_status parse_if(parser *p, uint32_t line, qn_jnode **out)
{
    static const char *const more[] = {"elif", "else", "endif", NULL};
    node_list branches = {0};
    qn_jnode *condition, *body;
    int is_else = 0;
    do {
        condition = NULL;
        if (!is_else) QN_TRY(parse_tuple(p, TUPLE_NO_CONDITION, NULL, 0, &condition));
        QN_TRY(new_node(p, QN_JNODE_BODY, p->token->line, NULL, NULL, NULL, &body));
        if (is_else) {
            QN_TRY(parse_block_to(p, "endif", body));
        } else {
            QN_TRY(parse_block(p, more, body));
        }
        QN_TRY(add_node(p, &branches, condition));
        QN_TRY(add_node(p, &branches, body));
        if (is_else) break;
        is_else = at_name(p, "else");
    } while (!is_name(p->token++, "endif"));
    QN_TRY(new_node(p, QN_JNODE_IF, line, NULL, NULL, NULL, out));
    return set_items(p, *out, branches);
}

static qn_status parse_for(parser *p, uint32_t line, qn_jnode **out)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    qn_jnode *target, *iterable, *filter = NULL, *otherwise;
    QN_TRY(parse_target(p, "in", &target));
    if (!skip_name(p, "in")) return fail_unexpected(p, "'in'");
    QN_TRY(parse_tuple(p, TUPLE_NO_CONDITION, "recursive", 0, &iterable));
    if (skip_name(p, "if")) QN_TRY(parse_expression(p, 1, &filter));
    int recursive = skip_name(p, "recursive");
    QN_TRY(new_node(p, QN_JNODE_FOR, line, target, iterable, filter, out));
    (*out)->op = (uint8_t)recursive;
    p->loops++;
    QN_TRY(parse_block(p, ends, *out));
    p->loops--;
    if (!is_name(p->token++, "else")) return QN_OK;
    QN_TRY(new_node(p, QN_JNODE_BODY, p->token->line, NULL, NULL, NULL, &otherwise));
    QN_TRY(parse_block_to(p, "endfor", otherwise));
    (*out)->else_items = otherwise->items;
    (*out)->n_else = otherwise->n_items;
    return raise_height(p, *out, otherwise);
}

static qn_status parse_set(parser *p, uint32_t line, qn_jnode **out)
{
    qn_jnode *target, *value = NULL;
    QN_TRY(parse_target(p, NULL, &target));
    if (skip_op(p, '=')) {
        QN_TRY(parse_tuple(p, TUPLE_FULL, NULL, 0, &value));
        return new_node(p, QN_JNODE_SET, line, target, value, NULL, out);
    }
    while (skip_op(p, '|')) QN_TRY(parse_filter(p, &value));
    QN_TRY(new_node(p, QN_JNODE_SET_BODY, line, target, value, NULL, out));
    return parse_block_to(p, "endset", *out);
}

static qn_status parse_signature(parser *p, qn_jparams *params)
{
    node_list names = {0}, defaults = {0};
    QN_TRY(expect_op(p, '('));
    while (!at_op(p, ')')) {
        qn_jnode *name, *value = NULL;
        if (names.n) QN_TRY(expect_op(p, ','));
        QN_TRY(new_node(p, QN_JNODE_NAME, p->token->line, NULL, NULL, NULL, &name));
        QN_TRY(expect_name(p, &name->name));
        if (skip_op(p, '='))
            QN_TRY(parse_expression(p, 1, &value));
        else if (defaults.n && defaults.items[defaults.n - 1])
            return fail(p, "non-default argument follows default argument");
        QN_TRY(add_node(p, &names, name));
        QN_TRY(add_node(p, &defaults, value));
    }
    params->n = names.n;
    params->defaults = defaults.items;
    params->names = qn_jheap_alloc(p->heap, names.n, sizeof *params->names);
    if (!params->names) return p->heap->status;
    for (uint32_t i = 0; i < names.n; i++) params->names[i] = names.items[i]->name;
    return expect_op(p, ')');
}

/* The body of a macro or of a call block: loop controls and special names of the outside do not reach in. */
static qn_status parse_macro_body(parser *p, const char *end, qn_jnode *n)
{
    macro_scope scope = {.outer = p->macro, .params = n->params};
    int loops = p->loops;
    p->loops = 0;
    p->macro = &scope;
    qn_status status = parse_block_to(p, end, n);
    p->macro = scope.outer;
    p->loops = loops;
    return status;
}

static qn_status parse_macro(parser *p, uint32_t line, qn_jnode **out)
{
    QN_TRY(new_node(p, QN_JNODE_MACRO, line, NULL, NULL, NULL, out));
    qn_jparams *params = qn_jheap_alloc(p->heap, 1, sizeof *params);
    if (!params) return p->heap->status;
    *params = (qn_jparams){0};
    (*out)->params = params;
    QN_TRY(expect_name(p, &(*out)->name));
    QN_TRY(parse_signature(p, params));
    return parse_macro_body(p, "endmacro", *out);
}

static qn_status parse_call_block(parser *p, uint32_t line, qn_jnode **out)
{
    qn_jparams *params = qn_jheap_alloc(p->heap, 1, sizeof *params);
    if (!params) return p->heap->status;
    *params = (qn_jparams){0};
    if (at_op(p, '(')) QN_TRY(parse_signature(p, params));
    qn_jnode *call;
    QN_TRY(parse_expression(p, 1, &call));
    if (call->kind != QN_JNODE_CALL) return fail(p, "a call block needs a call");
    QN_TRY(new_node(p, QN_JNODE_CALL_BODY, line, call, NULL, NULL, out));
    (*out)->params = params;
    return parse_macro_body(p, "endcall", *out);
}

static qn_status parse_with(parser *p, uint32_t line, qn_jnode **out)
{
    node_list pairs = {0};
    while (p->token->kind != QN_JTOKEN_BLOCK_END) {
        qn_jnode *target, *value;
        if (pairs.n) QN_TRY(expect_op(p, ','));
        QN_TRY(parse_target(p, NULL, &target));
        QN_TRY(expect_op(p, '='));
        QN_TRY(parse_expression(p, 1, &value));
        QN_TRY(add_node(p, &pairs, target));
        QN_TRY(add_node(p, &pairs, value));
    }
    QN_TRY(new_node(p, QN_JNODE_WITH, line, NULL, NULL, NULL, out));
    qn_jcall *call = qn_jheap_alloc(p->heap, 1, sizeof *call);
    if (!call) return p->heap->status;
    *call = (qn_jcall){.items = pairs.items, .n = pairs.n};
    (*out)->args = call;
    return parse_block_to(p, "endwith", *out);
}

static qn_status parse_filter_block(parser *p, uint32_t line, qn_jnode **out)
{
    qn_jnode *filter = NULL;
    do QN_TRY(parse_filter(p, &filter));
    while (skip_op(p, '|'));
    QN_TRY(new_node(p, QN_JNODE_FILTER_BODY, line, NULL, filter, NULL, out));
    return parse_block_to(p, "endfilter", *out);
}

/* {% block NAME %} without inheritance is a scope. */
static qn_status parse_named_block(parser *p, uint32_t line, qn_jnode **out)
{
    const qn_jtoken *name = p->token;
    int32_t place;
    QN_TRY(expect_name(p, &place));
    while (skip_name(p, "scoped") || skip_name(p, "required")) continue;
    QN_TRY(new_node(p, QN_JNODE_SCOPE, line, NULL, NULL, NULL, out));
    QN_TRY(parse_block_to(p, "endblock", *out));
    if (p->token->kind == QN_JTOKEN_NAME && p->token->n == name->n &&
        !memcmp(p->token->text, name->text, name->n))
        p->token++;
    return QN_OK;
}

static qn_status parse_print(parser *p, uint32_t line, qn_jnode **out)
{
    node_list items = {0};
    while (p->token->kind != QN_JTOKEN_BLOCK_END) {
        qn_jnode *value, *print = NULL;
        if (items.n) QN_TRY(expect_op(p, ','));
        QN_TRY(parse_expression(p, 1, &value));
        QN_TRY(new_node(p, QN_JNODE_PRINT, line, value, NULL, NULL, &print));
        QN_TRY(add_node(p, &items, print));
    }
    QN_TRY(new_node(p, QN_JNODE_BODY, line, NULL, NULL, NULL, out));
    return set_items(p, *out, items);
}

static qn_status parse_do(parser *p, uint32_t line, qn_jnode **out)
{
    qn_jnode *value;
    QN_TRY(parse_tuple(p, TUPLE_FULL, NULL, 0, &value));
    return new_node(p, QN_JNODE_DO, line, value, NULL, NULL, out);
}

static qn_status parse_generation(parser *p, uint32_t line, qn_jnode **out)
{
    QN_TRY(new_node(p, QN_JNODE_GENERATION, line, NULL, NULL, NULL, out));
    return parse_block_to(p, "endgeneration", *out);
}

static qn_status parse_loop_control(parser *p, uint32_t line, qn_jnode **out)
{
    int is_break = is_name(p->token - 1, "break");
    if (!p->loops) return fail(p, "'%s' outside a loop", is_break ? "break" : "continue");
    return new_node(p, is_break ? QN_JNODE_BREAK : QN_JNODE_CONTINUE, line, NULL, NULL, NULL, out);
}

static const struct {
    const char *name;
    qn_status (*parse)(parser *p, uint32_t line, qn_jnode **out);
} statements[] = {
    {"if", parse_if},
    {"for", parse_for},
    {"set", parse_set},
    {"macro", parse_macro},
    {"call", parse_call_block},
    {"filter", parse_filter_block},
    {"with", parse_with},
    {"block", parse_named_block},
    {"print", parse_print},
    {"do", parse_do},
    {"generation", parse_generation},
    {"break", parse_loop_control},
    {"continue", parse_loop_control},
};

static qn_status parse_statement(parser *p, qn_jnode **out)
{
    static const char *const refused[] = {"include", "import", "from", "extends", "autoescape"};
    uint32_t line = p->token->line;
    if (p->token->kind != QN_JTOKEN_NAME) return fail_unexpected(p, "the name of a tag");
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (at_name(p, refused[i]))
            return qn_fail(QN_E_UNSUPPORTED, "line %u: '%s' is not allowed in a chat template", line,
                           refused[i]);
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++) {
        if (!at_name(p, statements[i].name)) continue;
        p->token++;
        QN_TRY(enter(p));
        QN_TRY(statements[i].parse(p, line, out));
        p->depth--;
        return expect_kind(p, QN_JTOKEN_BLOCK_END, "'%}'");
    }
    char found[80];
    describe(p->token, found, sizeof found);
    return fail(p, "unknown or misplaced tag %s", found);
}

/* Up to one of ends (its name is then the current token) or, without ends, to the end of the template. */
static qn_status parse_body(parser *p, const char *const *ends, node_list *out)
{
    while (1) {
        const qn_jtoken *t = p->token;
        qn_jnode *n, *value;
        if (t->kind == QN_JTOKEN_END) {
            if (ends) return fail(p, "the template ends before '%s'", ends[0]);
            return QN_OK;
        }
        p->token++;
        if (t->kind == QN_JTOKEN_DATA) {
            QN_TRY(new_node(p, QN_JNODE_DATA, t->line, NULL, NULL, NULL, &n));
            QN_TRY(constant_text(p, t->text, t->n, &n->value));
        } else if (t->kind == QN_JTOKEN_PRINT_BEGIN) {
            QN_TRY(parse_tuple(p, TUPLE_FULL, NULL, 0, &value));
            QN_TRY(expect_kind(p, QN_JTOKEN_PRINT_END, "'}}'"));
            QN_TRY(new_node(p, QN_JNODE_PRINT, t->line, value, NULL, NULL, &n));
        } else {
            for (int i = 0; ends && ends[i]; i++)
                if (at_name(p, ends[i])) return QN_OK;
            QN_TRY(parse_statement(p, &n));
        }
        QN_TRY(add_node(p, out, n));
    }
}

static int32_t known_place(const parser *p, const char *name)
{
    int64_t place;
    return qn_map_get(p->name_places, name, strlen(name), &place) ? (int32_t)place : -1;
}

qn_status qn_jparse(qn_jheap *h, const char *text, size_t n, qn_jprogram *program)
{
    if (n > QN_JTEMPLATE_BYTES_MAX)
        return qn_fail(QN_E_FORMAT, "the template has %zu bytes, at most %d are read", n,
                       QN_JTEMPLATE_BYTES_MAX);
    qn_jtoken *tokens;
    size_t n_tokens;
    QN_TRY(qn_jlex(h, text, n, &tokens, &n_tokens));
    parser p = {.heap = h, .token = tokens, .name_places = qn_map_new(64)};
    if (!p.name_places) return QN_E_NOMEM;
    node_list body = {0};
    qn_status status = parse_body(&p, NULL, &body);
    if (status == QN_OK)
        *program = (qn_jprogram){.body = body.items,
                                 .n_body = body.n,
                                 .names = p.names,
                                 .n_names = p.n_names,
                                 .place_loop = known_place(&p, "loop"),
                                 .place_caller = known_place(&p, "caller"),
                                 .place_varargs = known_place(&p, "varargs"),
                                 .place_kwargs = known_place(&p, "kwargs")};
    qn_map_free(p.name_places);
    return status;
}

/* Expressions, loosest binding last. */
#include <string.h>

#include "text/jinja/big.h"
#include "text/jinja/parser.h"
#include "text/jinja/run.h"

static qn_status parse_unary(qn_jparser *p, int with_filter, qn_jnode **out);

static int at_tuple_end(const qn_jparser *p, const char *end)
{
    return p->token->kind == QN_JTOKEN_PRINT_END || p->token->kind == QN_JTOKEN_BLOCK_END ||
           qn_jparser_at_op(p, ')') || (end && qn_jparser_at_name(p, end));
}

static qn_status parse_primary(qn_jparser *p, int as_target, qn_jnode **out);

/* One expression, or several with commas: a tuple. end: a name that also ends it. */
qn_status qn_jparser_tuple(qn_jparser *p, qn_jtuple_mode mode, const char *end, int parentheses,
                           qn_jnode **out)
{
    uint32_t line = p->token->line;
    qn_jnode_list items = {0};
    int is_tuple = 0;
    while (1) {
        if (items.n) QN_TRY(qn_jparser_expect_op(p, ','));
        if (at_tuple_end(p, end)) break;
        qn_jnode *item;
        if (mode == QN_JTUPLE_TARGET)
            QN_TRY(parse_primary(p, 1, &item));
        else
            QN_TRY(qn_jparser_expression(p, mode == QN_JTUPLE_FULL, &item));
        QN_TRY(qn_jparser_add_node(p, &items, item));
        if (!qn_jparser_at_op(p, ',')) break;
        is_tuple = 1;
    }
    if (!is_tuple && items.n) {
        *out = items.items[0];
        return QN_OK;
    }
    if (!is_tuple && !parentheses) return qn_jparser_fail_unexpected(p, "an expression");
    QN_TRY(qn_jparser_new_node(p, QN_JNODE_TUPLE, line, NULL, NULL, NULL, out));
    return qn_jparser_set_items(p, *out, items);
}

static void note_name(qn_jparser *p, const qn_jtoken *t)
{
    for (qn_jmacro_scope *m = p->macro; m; m = m->outer) {
        m->params->uses_varargs |= qn_jparser_is_name(t, "varargs");
        m->params->uses_kwargs |= qn_jparser_is_name(t, "kwargs");
    }
}

static qn_status parse_name(qn_jparser *p, int as_target, qn_jnode **out)
{
    const qn_jtoken *t = p->token++;
    int truth = qn_jparser_is_name(t, "true") || qn_jparser_is_name(t, "True");
    if (truth || qn_jparser_is_name(t, "false") || qn_jparser_is_name(t, "False") ||
        qn_jparser_is_name(t, "none") || qn_jparser_is_name(t, "None")) {
        QN_TRY(qn_jparser_new_node(p, QN_JNODE_CONST, t->line, NULL, NULL, NULL, out));
        (*out)->value = (t->text[0] | 0x20) == 'n' ? qn_jnone() : qn_jbool(truth, 0);
        return QN_OK;
    }
    int is_attribute = as_target && qn_jparser_skip_op(p, '.');
    QN_TRY(qn_jparser_new_node(p, is_attribute ? QN_JNODE_NSREF : QN_JNODE_NAME, t->line, NULL, NULL, NULL,
                               out));
    QN_TRY(qn_jparser_name_place(p, t, &(*out)->name));
    note_name(p, t);
    if (is_attribute) {
        const qn_jtoken *attribute = p->token;
        QN_TRY(qn_jparser_expect_kind(p, QN_JTOKEN_NAME, "an attribute name"));
        QN_TRY(qn_jparser_constant_text(p, attribute->text, attribute->n, &(*out)->value));
    }
    return QN_OK;
}

static qn_status parse_strings(qn_jparser *p, qn_jnode **out)
{
    const qn_jtoken *first = p->token++;
    QN_TRY(qn_jparser_new_node(p, QN_JNODE_CONST, first->line, NULL, NULL, NULL, out));
    if (p->token->kind != QN_JTOKEN_STRING)
        return qn_jparser_constant_text(p, first->text, first->n, &(*out)->value);
    qn_jbuild b; /* strings side by side are one */
    qn_jbuild_init(&b, p->heap);
    for (p->token = first; p->token->kind == QN_JTOKEN_STRING; p->token++)
        qn_jbuild_bytes(&b, p->token->text, p->token->n, 0);
    QN_TRY(qn_jbuild_take(&b, &(*out)->value));
    qn_jstring_length((*out)->value.s);
    return QN_OK;
}

/* [a, b] or {a: b, c: d}. */
static qn_status parse_display(qn_jparser *p, int closer, qn_jnode **out)
{
    uint32_t line = p->token++->line;
    qn_jnode_list items = {0};
    while (!qn_jparser_at_op(p, closer)) {
        qn_jnode *item;
        if (items.n) QN_TRY(qn_jparser_expect_op(p, ','));
        if (qn_jparser_at_op(p, closer)) break;
        QN_TRY(qn_jparser_expression(p, 1, &item));
        QN_TRY(qn_jparser_add_node(p, &items, item));
        if (closer == ']') continue;
        QN_TRY(qn_jparser_expect_op(p, ':'));
        QN_TRY(qn_jparser_expression(p, 1, &item));
        QN_TRY(qn_jparser_add_node(p, &items, item));
    }
    QN_TRY(qn_jparser_expect_op(p, closer));
    QN_TRY(
        qn_jparser_new_node(p, closer == ']' ? QN_JNODE_LIST : QN_JNODE_DICT, line, NULL, NULL, NULL, out));
    return qn_jparser_set_items(p, *out, items);
}

static qn_status parse_primary(qn_jparser *p, int as_target, qn_jnode **out)
{
    const qn_jtoken *t = p->token;
    switch ((qn_jtoken_kind)t->kind) {
    case QN_JTOKEN_NAME:
        return parse_name(p, as_target, out);
    case QN_JTOKEN_STRING:
        return parse_strings(p, out);
    case QN_JTOKEN_BIG:
        p->token++;
        QN_TRY(qn_jparser_new_node(p, QN_JNODE_CONST, t->line, NULL, NULL, NULL, out));
        return qn_jbig_parse(p->heap, t->text, t->n, t->op, 0, &(*out)->value);
    case QN_JTOKEN_INT:
    case QN_JTOKEN_FLOAT:
        p->token++;
        QN_TRY(qn_jparser_new_node(p, QN_JNODE_CONST, t->line, NULL, NULL, NULL, out));
        (*out)->value = t->kind == QN_JTOKEN_INT ? qn_jint(t->i, 0) : qn_jfloat(t->f, 0);
        return QN_OK;
    default:
        break;
    }
    if (qn_jparser_at_op(p, '(')) {
        p->token++;
        QN_TRY(qn_jparser_enter(p));
        QN_TRY(qn_jparser_tuple(p, as_target ? QN_JTUPLE_TARGET : QN_JTUPLE_FULL, NULL, 1, out));
        p->depth--;
        return qn_jparser_expect_op(p, ')');
    }
    if (qn_jparser_at_op(p, '[')) return parse_display(p, ']', out);
    if (qn_jparser_at_op(p, '{')) return parse_display(p, '}', out);
    return qn_jparser_fail_unexpected(p, "an expression");
}

static qn_status parse_call_arguments(qn_jparser *p, qn_jnode *n)
{
    qn_jcall *call = qn_jheap_alloc(p->heap, 1, sizeof *call);
    if (!call) return p->heap->status;
    *call = (qn_jcall){0};
    n->args = call;
    qn_jnode_list items = {0}, named = {0}, names = {0};
    QN_TRY(qn_jparser_expect_op(p, '('));
    for (int first = 1; !qn_jparser_at_op(p, ')'); first = 0) {
        qn_jnode *item;
        if (!first) QN_TRY(qn_jparser_expect_op(p, ','));
        if (!first && qn_jparser_at_op(p, ')')) break;
        if (qn_jparser_skip_op(p, '*')) {
            if (call->star || call->star_star) return qn_jparser_fail(p, "invalid arguments of a call");
            QN_TRY(qn_jparser_expression(p, 1, &call->star));
        } else if (qn_jparser_skip_op(p, QN_JOP_POW)) {
            if (call->star_star) return qn_jparser_fail(p, "invalid arguments of a call");
            QN_TRY(qn_jparser_expression(p, 1, &call->star_star));
        } else if (p->token->kind == QN_JTOKEN_NAME && p->token[1].kind == QN_JTOKEN_OPERATOR &&
                   p->token[1].op == '=') {
            const qn_jtoken *t = p->token;
            if (call->star_star) return qn_jparser_fail(p, "invalid arguments of a call");
            QN_TRY(qn_jparser_new_node(p, QN_JNODE_CONST, t->line, NULL, NULL, NULL, &item));
            QN_TRY(qn_jparser_constant_text(p, t->text, t->n, &item->value));
            QN_TRY(qn_jparser_add_node(p, &names, item));
            p->token += 2;
            QN_TRY(qn_jparser_expression(p, 1, &item));
            QN_TRY(qn_jparser_add_node(p, &named, item));
        } else {
            if (call->star || call->star_star || named.n)
                return qn_jparser_fail(p, "invalid arguments of a call");
            QN_TRY(qn_jparser_expression(p, 1, &item));
            QN_TRY(qn_jparser_add_node(p, &items, item));
        }
    }
    call->items = items.items;
    call->n = items.n;
    call->named = named.items;
    call->n_named = named.n;
    call->names = qn_jheap_alloc(p->heap, names.n, sizeof *call->names);
    if (!call->names) return p->heap->status;
    for (uint32_t i = 0; i < names.n; i++) call->names[i] = names.items[i]->value;
    for (uint32_t i = 0; i < items.n; i++) QN_TRY(qn_jparser_raise_height(p, n, items.items[i]));
    for (uint32_t i = 0; i < named.n; i++) QN_TRY(qn_jparser_raise_height(p, n, named.items[i]));
    QN_TRY(qn_jparser_raise_height(p, n, call->star));
    QN_TRY(qn_jparser_raise_height(p, n, call->star_star));
    return qn_jparser_expect_op(p, ')');
}

static qn_status parse_call(qn_jparser *p, qn_jnode **n)
{
    qn_jnode *callee = *n;
    QN_TRY(qn_jparser_new_node(p, QN_JNODE_CALL, p->token->line, callee, NULL, NULL, n));
    return parse_call_arguments(p, *n);
}

/* What stands between [ and ] or ,: an expression or a slice. */
static qn_status parse_subscribed(qn_jparser *p, qn_jnode **out)
{
    uint32_t line = p->token->line;
    qn_jnode *parts[3] = {NULL};
    if (!qn_jparser_at_op(p, ':')) {
        QN_TRY(qn_jparser_expression(p, 1, &parts[0]));
        if (!qn_jparser_at_op(p, ':')) {
            *out = parts[0];
            return QN_OK;
        }
    }
    for (int i = 1; i < 3 && qn_jparser_skip_op(p, ':'); i++)
        if (!qn_jparser_at_op(p, ':') && !qn_jparser_at_op(p, ']') && !qn_jparser_at_op(p, ','))
            QN_TRY(qn_jparser_expression(p, 1, &parts[i]));
    return qn_jparser_new_node(p, QN_JNODE_SLICE, line, parts[0], parts[1], parts[2], out);
}

static qn_status parse_subscript(qn_jparser *p, qn_jnode **n)
{
    qn_jnode *object = *n, *key;
    uint32_t line = p->token->line;
    if (qn_jparser_skip_op(p, '.')) {
        const qn_jtoken *t = p->token++;
        if (t->kind == QN_JTOKEN_NAME) {
            QN_TRY(qn_jparser_new_node(p, QN_JNODE_GETATTR, line, object, NULL, NULL, n));
            return qn_jparser_constant_text(p, t->text, t->n, &(*n)->value);
        }
        p->token--;
        if (t->kind != QN_JTOKEN_INT) return qn_jparser_fail_unexpected(p, "a name or a number after '.'");
        QN_TRY(parse_primary(p, 0, &key));
        return qn_jparser_new_node(p, QN_JNODE_GETITEM, line, object, key, NULL, n);
    }
    QN_TRY(qn_jparser_expect_op(p, '['));
    qn_jnode_list keys = {0};
    while (!qn_jparser_at_op(p, ']')) {
        if (keys.n) QN_TRY(qn_jparser_expect_op(p, ','));
        QN_TRY(parse_subscribed(p, &key));
        QN_TRY(qn_jparser_add_node(p, &keys, key));
    }
    QN_TRY(qn_jparser_expect_op(p, ']'));
    if (keys.n == 1) {
        key = keys.items[0];
    } else {
        QN_TRY(qn_jparser_new_node(p, QN_JNODE_TUPLE, line, NULL, NULL, NULL, &key));
        QN_TRY(qn_jparser_set_items(p, key, keys));
    }
    return qn_jparser_new_node(p, QN_JNODE_GETITEM, line, object, key, NULL, n);
}

static qn_status parse_postfix(qn_jparser *p, qn_jnode **n)
{
    while (1) {
        if (qn_jparser_at_op(p, '.') || qn_jparser_at_op(p, '['))
            QN_TRY(parse_subscript(p, n));
        else if (qn_jparser_at_op(p, '('))
            QN_TRY(parse_call(p, n));
        else
            return QN_OK;
    }
}

/* The name of a filter or test, which may have dots. */
static qn_status parse_dotted(qn_jparser *p, qn_jvalue *name)
{
    qn_jbuild b;
    qn_jbuild_init(&b, p->heap);
    do {
        const qn_jtoken *t = p->token;
        QN_TRY(qn_jparser_expect_kind(p, QN_JTOKEN_NAME, "the name of a filter or test"));
        if (b.n) qn_jbuild_text(&b, ".", 0);
        qn_jbuild_bytes(&b, t->text, t->n, 0);
    } while (qn_jparser_skip_op(p, '.'));
    QN_TRY(qn_jbuild_take(&b, name));
    qn_jstring_length(name->s);
    return QN_OK;
}

/* After the bar. */
qn_status qn_jparser_filter(qn_jparser *p, qn_jnode **n)
{
    qn_jnode *operand = *n;
    QN_TRY(qn_jparser_new_node(p, QN_JNODE_FILTER, p->token->line, operand, NULL, NULL, n));
    QN_TRY(parse_dotted(p, &(*n)->value));
    (*n)->callee = qn_jfilter_find((*n)->value.s);
    return qn_jparser_at_op(p, '(') ? parse_call_arguments(p, *n) : QN_OK;
}

static qn_status parse_test(qn_jparser *p, qn_jnode **n)
{
    uint32_t line = p->token++->line;
    int negated = qn_jparser_skip_name(p, "not");
    qn_jnode *operand = *n, *test;
    QN_TRY(qn_jparser_new_node(p, QN_JNODE_TEST, line, operand, NULL, NULL, &test));
    QN_TRY(parse_dotted(p, &test->value));
    test->callee = qn_jtest_find(test->value.s);
    const qn_jtoken *t = p->token;
    int has_argument = t->kind == QN_JTOKEN_STRING || t->kind == QN_JTOKEN_INT || t->kind == QN_JTOKEN_BIG ||
                       t->kind == QN_JTOKEN_FLOAT || t->kind == QN_JTOKEN_NAME || qn_jparser_at_op(p, '[') ||
                       qn_jparser_at_op(p, '{');
    if (qn_jparser_at_op(p, '(')) {
        QN_TRY(parse_call_arguments(p, test));
    } else if (has_argument && !qn_jparser_at_name(p, "else") && !qn_jparser_at_name(p, "or") &&
               !qn_jparser_at_name(p, "and")) {
        if (qn_jparser_at_name(p, "is")) return qn_jparser_fail(p, "tests cannot be chained with 'is'");
        qn_jnode_list items = {0};
        qn_jnode *argument;
        QN_TRY(parse_primary(p, 0, &argument));
        QN_TRY(parse_postfix(p, &argument));
        QN_TRY(qn_jparser_add_node(p, &items, argument));
        QN_TRY(qn_jparser_raise_height(p, test, argument));
        test->args = qn_jheap_alloc(p->heap, 1, sizeof *test->args);
        if (!test->args) return p->heap->status;
        *test->args = (qn_jcall){.items = items.items, .n = 1};
    }
    *n = test;
    return negated ? qn_jparser_new_node(p, QN_JNODE_NOT, line, test, NULL, NULL, n) : QN_OK;
}

static qn_status parse_filters(qn_jparser *p, qn_jnode **n)
{
    while (1) {
        if (qn_jparser_skip_op(p, '|'))
            QN_TRY(qn_jparser_filter(p, n));
        else if (qn_jparser_at_name(p, "is"))
            QN_TRY(parse_test(p, n));
        else if (qn_jparser_at_op(p, '('))
            QN_TRY(parse_call(p, n));
        else
            return QN_OK;
    }
}

static qn_status parse_unary(qn_jparser *p, int with_filter, qn_jnode **out)
{
    uint32_t line = p->token->line;
    if (qn_jparser_at_op(p, '-') || qn_jparser_at_op(p, '+')) {
        uint8_t op = p->token++->op;
        qn_jnode *operand;
        QN_TRY(qn_jparser_enter(p));
        QN_TRY(parse_unary(p, 0, &operand));
        p->depth--;
        QN_TRY(qn_jparser_new_node(p, QN_JNODE_UNARY, line, operand, NULL, NULL, out));
        (*out)->op = op;
    } else {
        QN_TRY(parse_primary(p, 0, out));
    }
    QN_TRY(parse_postfix(p, out));
    return with_filter ? parse_filters(p, out) : QN_OK;
}

static qn_status new_binary(qn_jparser *p, int op, uint32_t line, qn_jnode *right, qn_jnode **left)
{
    qn_jnode *a = *left;
    QN_TRY(qn_jparser_new_node(p, QN_JNODE_BINARY, line, a, right, NULL, left));
    (*left)->op = (uint8_t)op;
    return QN_OK;
}

static qn_status parse_power(qn_jparser *p, qn_jnode **out)
{
    uint32_t line = p->token->line;
    qn_jnode *right;
    QN_TRY(parse_unary(p, 1, out));
    while (qn_jparser_skip_op(p, QN_JOP_POW)) {
        QN_TRY(parse_unary(p, 1, &right));
        QN_TRY(new_binary(p, QN_JOP_POW, line, right, out));
    }
    return QN_OK;
}

static qn_status parse_product(qn_jparser *p, qn_jnode **out)
{
    uint32_t line = p->token->line;
    qn_jnode *right;
    QN_TRY(parse_power(p, out));
    while (qn_jparser_at_op(p, '*') || qn_jparser_at_op(p, '/') || qn_jparser_at_op(p, QN_JOP_FLOORDIV) ||
           qn_jparser_at_op(p, '%')) {
        int op = p->token++->op;
        QN_TRY(parse_power(p, &right));
        QN_TRY(new_binary(p, op, line, right, out));
    }
    return QN_OK;
}

static qn_status parse_concat(qn_jparser *p, qn_jnode **out)
{
    uint32_t line = p->token->line;
    QN_TRY(parse_product(p, out));
    if (!qn_jparser_at_op(p, '~')) return QN_OK;
    qn_jnode_list items = {0};
    QN_TRY(qn_jparser_add_node(p, &items, *out));
    while (qn_jparser_skip_op(p, '~')) {
        QN_TRY(parse_product(p, out));
        QN_TRY(qn_jparser_add_node(p, &items, *out));
    }
    QN_TRY(qn_jparser_new_node(p, QN_JNODE_CONCAT, line, NULL, NULL, NULL, out));
    return qn_jparser_set_items(p, *out, items);
}

static qn_status parse_sum(qn_jparser *p, qn_jnode **out)
{
    uint32_t line = p->token->line;
    qn_jnode *right;
    QN_TRY(parse_concat(p, out));
    while (qn_jparser_at_op(p, '+') || qn_jparser_at_op(p, '-')) {
        int op = p->token++->op;
        QN_TRY(parse_concat(p, &right));
        QN_TRY(new_binary(p, op, line, right, out));
    }
    return QN_OK;
}

/* The comparison operator here, consumed; 0: none. */
static int comparison(qn_jparser *p)
{
    if (p->token->kind == QN_JTOKEN_OPERATOR) {
        int op = p->token->op;
        if (op != '<' && op != '>' && op != QN_JOP_EQ && op != QN_JOP_NE && op != QN_JOP_LE &&
            op != QN_JOP_GE)
            return 0;
        p->token++;
        return op;
    }
    if (qn_jparser_skip_name(p, "in")) return QN_JOP_IN;
    if (!qn_jparser_at_name(p, "not") || !qn_jparser_is_name(p->token + 1, "in")) return 0;
    p->token += 2;
    return QN_JOP_NOT_IN;
}

static qn_status parse_compare(qn_jparser *p, qn_jnode **out)
{
    uint32_t line = p->token->line;
    qn_jnode_list items = {0};
    uint8_t ops[64];
    QN_TRY(parse_sum(p, out));
    QN_TRY(qn_jparser_add_node(p, &items, *out));
    for (int op; (op = comparison(p)) != 0;) {
        if (items.n > sizeof ops) return qn_jparser_fail(p, "a chain of comparisons is too long");
        ops[items.n - 1] = (uint8_t)op;
        QN_TRY(parse_sum(p, out));
        QN_TRY(qn_jparser_add_node(p, &items, *out));
    }
    if (items.n == 1) return QN_OK;
    QN_TRY(qn_jparser_new_node(p, QN_JNODE_COMPARE, line, NULL, NULL, NULL, out));
    (*out)->ops = qn_jheap_alloc(p->heap, items.n, 1);
    if (!(*out)->ops) return p->heap->status;
    memcpy((*out)->ops, ops, items.n - 1);
    return qn_jparser_set_items(p, *out, items);
}

static qn_status parse_not(qn_jparser *p, qn_jnode **out)
{
    uint32_t line = p->token->line;
    if (!qn_jparser_skip_name(p, "not")) return parse_compare(p, out);
    qn_jnode *operand;
    QN_TRY(qn_jparser_enter(p));
    QN_TRY(parse_not(p, &operand));
    p->depth--;
    return qn_jparser_new_node(p, QN_JNODE_NOT, line, operand, NULL, NULL, out);
}

static qn_status parse_and(qn_jparser *p, qn_jnode **out)
{
    uint32_t line = p->token->line;
    QN_TRY(parse_not(p, out));
    while (qn_jparser_skip_name(p, "and")) {
        qn_jnode *left = *out, *right;
        QN_TRY(parse_not(p, &right));
        QN_TRY(qn_jparser_new_node(p, QN_JNODE_AND, line, left, right, NULL, out));
    }
    return QN_OK;
}

static qn_status parse_or(qn_jparser *p, qn_jnode **out)
{
    uint32_t line = p->token->line;
    QN_TRY(parse_and(p, out));
    while (qn_jparser_skip_name(p, "or")) {
        qn_jnode *left = *out, *right;
        QN_TRY(parse_and(p, &right));
        QN_TRY(qn_jparser_new_node(p, QN_JNODE_OR, line, left, right, NULL, out));
    }
    return QN_OK;
}

qn_status qn_jparser_expression(qn_jparser *p, int with_condition, qn_jnode **out)
{
    uint32_t line = p->token->line;
    QN_TRY(qn_jparser_enter(p));
    QN_TRY(parse_or(p, out));
    while (with_condition && qn_jparser_skip_name(p, "if")) {
        qn_jnode *value = *out, *condition, *otherwise = NULL;
        QN_TRY(parse_or(p, &condition));
        if (qn_jparser_skip_name(p, "else")) QN_TRY(qn_jparser_expression(p, 1, &otherwise));
        QN_TRY(qn_jparser_new_node(p, QN_JNODE_COND, line, value, condition, otherwise, out));
    }
    p->depth--;
    return QN_OK;
}

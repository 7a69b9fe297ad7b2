#include "text/jinja/parser.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

qn_status qn_jparser_fail(const qn_jparser *p, const char *fmt, ...)
{
    char text[256];
    va_list list;
    va_start(list, fmt);
    vsnprintf(text, sizeof text, fmt, list);
    va_end(list);
    return qn_fail(QN_E_FORMAT, "line %u: %s", p->token->line, text);
}

qn_status qn_jparser_enter(qn_jparser *p)
{
    if (p->depth >= QN_JPARSE_DEPTH_MAX)
        return qn_jparser_fail(p, "nested more than %d levels deep", QN_JPARSE_DEPTH_MAX);
    p->depth++;
    return QN_OK;
}

/* Tokens. */

int qn_jparser_at_op(const qn_jparser *p, int op)
{
    return p->token->kind == QN_JTOKEN_OPERATOR && p->token->op == op;
}

int qn_jparser_is_name(const qn_jtoken *t, const char *name)
{
    return t->kind == QN_JTOKEN_NAME && t->n == strlen(name) && memcmp(t->text, name, t->n) == 0;
}

int qn_jparser_at_name(const qn_jparser *p, const char *name)
{
    return qn_jparser_is_name(p->token, name);
}

int qn_jparser_skip_op(qn_jparser *p, int op)
{
    if (!qn_jparser_at_op(p, op)) return 0;
    p->token++;
    return 1;
}

int qn_jparser_skip_name(qn_jparser *p, const char *name)
{
    if (!qn_jparser_at_name(p, name)) return 0;
    p->token++;
    return 1;
}

void qn_jparser_describe(const qn_jtoken *t, char *out, size_t size)
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

qn_status qn_jparser_fail_unexpected(const qn_jparser *p, const char *wanted)
{
    char found[80];
    qn_jparser_describe(p->token, found, sizeof found);
    return qn_jparser_fail(p, "expected %s, found %s", wanted, found);
}

qn_status qn_jparser_expect_op(qn_jparser *p, int op)
{
    char wanted[] = "' '";
    wanted[1] = (char)op;
    return qn_jparser_skip_op(p, op) ? QN_OK : qn_jparser_fail_unexpected(p, wanted);
}

qn_status qn_jparser_expect_kind(qn_jparser *p, qn_jtoken_kind kind, const char *wanted)
{
    if (p->token->kind != kind) return qn_jparser_fail_unexpected(p, wanted);
    p->token++;
    return QN_OK;
}

/* Nodes. */

static uint16_t height_of(const qn_jnode *n)
{
    return n ? n->height : 0;
}

qn_status qn_jparser_raise_height(const qn_jparser *p, qn_jnode *n, const qn_jnode *child)
{
    uint16_t height = (uint16_t)(height_of(child) + 1);
    if (height > QN_JPARSE_HEIGHT_MAX)
        return qn_jparser_fail(p, "an expression is more than %d levels deep", QN_JPARSE_HEIGHT_MAX);
    if (height > n->height) n->height = height;
    return QN_OK;
}

qn_status qn_jparser_new_node(qn_jparser *p, qn_jnode_kind kind, uint32_t line, qn_jnode *a, qn_jnode *b,
                              qn_jnode *c, qn_jnode **out)
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
    QN_TRY(qn_jparser_raise_height(p, n, a));
    QN_TRY(qn_jparser_raise_height(p, n, b));
    QN_TRY(qn_jparser_raise_height(p, n, c));
    *out = n;
    return QN_OK;
}

qn_status qn_jparser_add_node(qn_jparser *p, qn_jnode_list *list, qn_jnode *n)
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

qn_status qn_jparser_set_items(qn_jparser *p, qn_jnode *n, qn_jnode_list list)
{
    n->items = list.items;
    n->n_items = list.n;
    for (uint32_t i = 0; i < list.n; i++) QN_TRY(qn_jparser_raise_height(p, n, list.items[i]));
    return QN_OK;
}

/* A constant: its length is counted now, because later several threads read it. */
qn_status qn_jparser_constant_text(qn_jparser *p, const char *text, size_t n, qn_jvalue *out)
{
    QN_TRY(qn_jstring_borrow(p->heap, text, n, NULL, 0, out));
    qn_jstring_length(out->s);
    return QN_OK;
}

qn_status qn_jparser_name_place(qn_jparser *p, const qn_jtoken *t, int32_t *place)
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
    QN_TRY(qn_jparser_constant_text(p, t->text, t->n, &p->names[p->n_names]));
    QN_TRY(qn_map_set(p->name_places, t->text, t->n, p->n_names, NULL, NULL));
    *place = (int32_t)p->n_names++;
    return QN_OK;
}

qn_status qn_jparser_expect_name(qn_jparser *p, int32_t *place)
{
    if (p->token->kind != QN_JTOKEN_NAME) return qn_jparser_fail_unexpected(p, "a name");
    QN_TRY(qn_jparser_name_place(p, p->token, place));
    p->token++;
    return QN_OK;
}

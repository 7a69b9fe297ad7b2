/* Statements, and the whole. */
#include "text/jinja/parse.h"

#include <string.h>

#include "text/jinja/parser.h"

static qn_status parse_body(qn_jparser *p, const char *const *ends, qn_jnode_list *out);

static qn_status check_target(qn_jparser *p, const qn_jnode *n, int in_tuple)
{
    if (n->kind == QN_JNODE_NAME || n->kind == QN_JNODE_NSREF) return QN_OK;
    if (n->kind != QN_JNODE_TUPLE) return qn_jparser_fail(p, "cannot assign to this expression");
    for (uint32_t i = 0; i < n->n_items; i++) QN_TRY(check_target(p, n->items[i], 1));
    return QN_OK;
}

static qn_status parse_target(qn_jparser *p, const char *end, qn_jnode **out)
{
    QN_TRY(qn_jparser_tuple(p, QN_JTUPLE_TARGET, end, 0, out));
    return check_target(p, *out, 0);
}

/* A body up to one of ends (after "%}"), as a node. The end's name is the current token then. */
static qn_status parse_block(qn_jparser *p, const char *const *ends, qn_jnode *into)
{
    qn_jnode_list items = {0};
    qn_jparser_skip_op(p, ':');
    QN_TRY(qn_jparser_expect_kind(p, QN_JTOKEN_BLOCK_END, "'%}'"));
    QN_TRY(parse_body(p, ends, &items));
    return qn_jparser_set_items(p, into, items);
}

static qn_status parse_block_to(qn_jparser *p, const char *end, qn_jnode *into)
{
    const char *const ends[] = {end, NULL};
    QN_TRY(parse_block(p, ends, into));
    p->token++;
    return QN_OK;
}

static qn_status parse_if(qn_jparser *p, uint32_t line, qn_jnode **out)
{
    static const char *const more[] = {"elif", "else", "endif", NULL};
    qn_jnode_list branches = {0};
    qn_jnode *condition, *body;
    int is_else = 0;
    do {
        condition = NULL;
        if (!is_else) QN_TRY(qn_jparser_tuple(p, QN_JTUPLE_NO_CONDITION, NULL, 0, &condition));
        QN_TRY(qn_jparser_new_node(p, QN_JNODE_BODY, p->token->line, NULL, NULL, NULL, &body));
        if (is_else) {
            QN_TRY(parse_block_to(p, "endif", body));
        } else {
            QN_TRY(parse_block(p, more, body));
        }
        QN_TRY(qn_jparser_add_node(p, &branches, condition));
        QN_TRY(qn_jparser_add_node(p, &branches, body));
        if (is_else) break;
        is_else = qn_jparser_at_name(p, "else");
    } while (!qn_jparser_is_name(p->token++, "endif"));
    QN_TRY(qn_jparser_new_node(p, QN_JNODE_IF, line, NULL, NULL, NULL, out));
    return qn_jparser_set_items(p, *out, branches);
}

static qn_status parse_for(qn_jparser *p, uint32_t line, qn_jnode **out)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    qn_jnode *target, *iterable, *filter = NULL, *otherwise;
    QN_TRY(parse_target(p, "in", &target));
    if (!qn_jparser_skip_name(p, "in")) return qn_jparser_fail_unexpected(p, "'in'");
    QN_TRY(qn_jparser_tuple(p, QN_JTUPLE_NO_CONDITION, "recursive", 0, &iterable));
    if (qn_jparser_skip_name(p, "if")) QN_TRY(qn_jparser_expression(p, 1, &filter));
    int recursive = qn_jparser_skip_name(p, "recursive");
    QN_TRY(qn_jparser_new_node(p, QN_JNODE_FOR, line, target, iterable, filter, out));
    (*out)->op = (uint8_t)recursive;
    p->loops++;
    QN_TRY(parse_block(p, ends, *out));
    p->loops--;
    if (!qn_jparser_is_name(p->token++, "else")) return QN_OK;
    QN_TRY(qn_jparser_new_node(p, QN_JNODE_BODY, p->token->line, NULL, NULL, NULL, &otherwise));
    QN_TRY(parse_block_to(p, "endfor", otherwise));
    (*out)->else_items = otherwise->items;
    (*out)->n_else = otherwise->n_items;
    return qn_jparser_raise_height(p, *out, otherwise);
}

static qn_status parse_set(qn_jparser *p, uint32_t line, qn_jnode **out)
{
    qn_jnode *target, *value = NULL;
    QN_TRY(parse_target(p, NULL, &target));
    if (qn_jparser_skip_op(p, '=')) {
        QN_TRY(qn_jparser_tuple(p, QN_JTUPLE_FULL, NULL, 0, &value));
        return qn_jparser_new_node(p, QN_JNODE_SET, line, target, value, NULL, out);
    }
    while (qn_jparser_skip_op(p, '|')) QN_TRY(qn_jparser_filter(p, &value));
    QN_TRY(qn_jparser_new_node(p, QN_JNODE_SET_BODY, line, target, value, NULL, out));
    return parse_block_to(p, "endset", *out);
}

static qn_status parse_signature(qn_jparser *p, qn_jparams *params)
{
    qn_jnode_list names = {0}, defaults = {0};
    QN_TRY(qn_jparser_expect_op(p, '('));
    while (!qn_jparser_at_op(p, ')')) {
        qn_jnode *name, *value = NULL;
        if (names.n) QN_TRY(qn_jparser_expect_op(p, ','));
        QN_TRY(qn_jparser_new_node(p, QN_JNODE_NAME, p->token->line, NULL, NULL, NULL, &name));
        QN_TRY(qn_jparser_expect_name(p, &name->name));
        if (qn_jparser_skip_op(p, '='))
            QN_TRY(qn_jparser_expression(p, 1, &value));
        else if (defaults.n && defaults.items[defaults.n - 1])
            return qn_jparser_fail(p, "non-default argument follows default argument");
        QN_TRY(qn_jparser_add_node(p, &names, name));
        QN_TRY(qn_jparser_add_node(p, &defaults, value));
    }
    params->n = names.n;
    params->defaults = defaults.items;
    params->names = qn_jheap_alloc(p->heap, names.n, sizeof *params->names);
    if (!params->names) return p->heap->status;
    for (uint32_t i = 0; i < names.n; i++) params->names[i] = names.items[i]->name;
    return qn_jparser_expect_op(p, ')');
}

/* The body of a macro or of a call block: loop controls and special names of the outside do not reach in. */
static qn_status parse_macro_body(qn_jparser *p, const char *end, qn_jnode *n)
{
    qn_jmacro_scope scope = {.outer = p->macro, .params = n->params};
    int loops = p->loops;
    p->loops = 0;
    p->macro = &scope;
    qn_status status = parse_block_to(p, end, n);
    p->macro = scope.outer;
    p->loops = loops;
    return status;
}

static qn_status parse_macro(qn_jparser *p, uint32_t line, qn_jnode **out)
{
    QN_TRY(qn_jparser_new_node(p, QN_JNODE_MACRO, line, NULL, NULL, NULL, out));
    qn_jparams *params = qn_jheap_alloc(p->heap, 1, sizeof *params);
    if (!params) return p->heap->status;
    *params = (qn_jparams){0};
    (*out)->params = params;
    QN_TRY(qn_jparser_expect_name(p, &(*out)->name));
    QN_TRY(parse_signature(p, params));
    return parse_macro_body(p, "endmacro", *out);
}

static qn_status parse_call_block(qn_jparser *p, uint32_t line, qn_jnode **out)
{
    qn_jparams *params = qn_jheap_alloc(p->heap, 1, sizeof *params);
    if (!params) return p->heap->status;
    *params = (qn_jparams){0};
    if (qn_jparser_at_op(p, '(')) QN_TRY(parse_signature(p, params));
    qn_jnode *call;
    QN_TRY(qn_jparser_expression(p, 1, &call));
    if (call->kind != QN_JNODE_CALL) return qn_jparser_fail(p, "a call block needs a call");
    QN_TRY(qn_jparser_new_node(p, QN_JNODE_CALL_BODY, line, call, NULL, NULL, out));
    (*out)->params = params;
    return parse_macro_body(p, "endcall", *out);
}

static qn_status parse_with(qn_jparser *p, uint32_t line, qn_jnode **out)
{
    qn_jnode_list pairs = {0};
    while (p->token->kind != QN_JTOKEN_BLOCK_END) {
        qn_jnode *target, *value;
        if (pairs.n) QN_TRY(qn_jparser_expect_op(p, ','));
        QN_TRY(parse_target(p, NULL, &target));
        QN_TRY(qn_jparser_expect_op(p, '='));
        QN_TRY(qn_jparser_expression(p, 1, &value));
        QN_TRY(qn_jparser_add_node(p, &pairs, target));
        QN_TRY(qn_jparser_add_node(p, &pairs, value));
    }
    QN_TRY(qn_jparser_new_node(p, QN_JNODE_WITH, line, NULL, NULL, NULL, out));
    qn_jcall *call = qn_jheap_alloc(p->heap, 1, sizeof *call);
    if (!call) return p->heap->status;
    *call = (qn_jcall){.items = pairs.items, .n = pairs.n};
    (*out)->args = call;
    return parse_block_to(p, "endwith", *out);
}

static qn_status parse_filter_block(qn_jparser *p, uint32_t line, qn_jnode **out)
{
    qn_jnode *filter = NULL;
    do QN_TRY(qn_jparser_filter(p, &filter));
    while (qn_jparser_skip_op(p, '|'));
    QN_TRY(qn_jparser_new_node(p, QN_JNODE_FILTER_BODY, line, NULL, filter, NULL, out));
    return parse_block_to(p, "endfilter", *out);
}

/* {% block NAME %} without inheritance is a scope, which self.NAME() renders once more. */
static qn_status parse_named_block(qn_jparser *p, uint32_t line, qn_jnode **out)
{
    const qn_jtoken *name = p->token;
    int32_t place;
    QN_TRY(qn_jparser_expect_name(p, &place));
    while (qn_jparser_skip_name(p, "scoped") || qn_jparser_skip_name(p, "required")) continue;
    QN_TRY(qn_jparser_new_node(p, QN_JNODE_SCOPE, line, NULL, NULL, NULL, out));
    for (uint32_t i = 0; i < p->blocks.n; i++)
        if (p->blocks.items[i]->name == place)
            return qn_jparser_fail(p, "block '%.*s' defined twice", (int)(name->n < 60 ? name->n : 60),
                                   name->text);
    (*out)->name = place;
    (*out)->params = qn_jheap_alloc(p->heap, 1, sizeof *(*out)->params);
    if (!(*out)->params) return p->heap->status;
    *(*out)->params = (qn_jparams){0};
    QN_TRY(qn_jparser_add_node(p, &p->blocks, *out));
    QN_TRY(parse_block_to(p, "endblock", *out));
    if (p->token->kind == QN_JTOKEN_NAME && p->token->n == name->n &&
        !memcmp(p->token->text, name->text, name->n))
        p->token++;
    return QN_OK;
}

static qn_status parse_print(qn_jparser *p, uint32_t line, qn_jnode **out)
{
    qn_jnode_list items = {0};
    while (p->token->kind != QN_JTOKEN_BLOCK_END) {
        qn_jnode *value, *print = NULL;
        if (items.n) QN_TRY(qn_jparser_expect_op(p, ','));
        QN_TRY(qn_jparser_expression(p, 1, &value));
        QN_TRY(qn_jparser_new_node(p, QN_JNODE_PRINT, line, value, NULL, NULL, &print));
        QN_TRY(qn_jparser_add_node(p, &items, print));
    }
    QN_TRY(qn_jparser_new_node(p, QN_JNODE_BODY, line, NULL, NULL, NULL, out));
    return qn_jparser_set_items(p, *out, items);
}

static qn_status parse_do(qn_jparser *p, uint32_t line, qn_jnode **out)
{
    qn_jnode *value;
    QN_TRY(qn_jparser_tuple(p, QN_JTUPLE_FULL, NULL, 0, &value));
    return qn_jparser_new_node(p, QN_JNODE_DO, line, value, NULL, NULL, out);
}

static qn_status parse_generation(qn_jparser *p, uint32_t line, qn_jnode **out)
{
    QN_TRY(qn_jparser_new_node(p, QN_JNODE_GENERATION, line, NULL, NULL, NULL, out));
    return parse_block_to(p, "endgeneration", *out);
}

static qn_status parse_loop_control(qn_jparser *p, uint32_t line, qn_jnode **out)
{
    int is_break = qn_jparser_is_name(p->token - 1, "break");
    if (!p->loops) return qn_jparser_fail(p, "'%s' outside a loop", is_break ? "break" : "continue");
    return qn_jparser_new_node(p, is_break ? QN_JNODE_BREAK : QN_JNODE_CONTINUE, line, NULL, NULL, NULL, out);
}

static const struct {
    const char *name;
    qn_status (*parse)(qn_jparser *p, uint32_t line, qn_jnode **out);
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

static qn_status parse_statement(qn_jparser *p, qn_jnode **out)
{
    static const char *const refused[] = {"include", "import", "from", "extends", "autoescape"};
    uint32_t line = p->token->line;
    if (p->token->kind != QN_JTOKEN_NAME) return qn_jparser_fail_unexpected(p, "the name of a tag");
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (qn_jparser_at_name(p, refused[i]))
            return qn_fail(QN_E_UNSUPPORTED, "line %u: '%s' is not allowed in a chat template", line,
                           refused[i]);
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++) {
        if (!qn_jparser_at_name(p, statements[i].name)) continue;
        p->token++;
        QN_TRY(qn_jparser_enter(p));
        QN_TRY(statements[i].parse(p, line, out));
        p->depth--;
        return qn_jparser_expect_kind(p, QN_JTOKEN_BLOCK_END, "'%}'");
    }
    char found[80];
    qn_jparser_describe(p->token, found, sizeof found);
    return qn_jparser_fail(p, "unknown or misplaced tag %s", found);
}

/* Up to one of ends (its name is then the current token) or, without ends, to the end of the template. */
static qn_status parse_body(qn_jparser *p, const char *const *ends, qn_jnode_list *out)
{
    while (1) {
        const qn_jtoken *t = p->token;
        qn_jnode *n, *value;
        if (t->kind == QN_JTOKEN_END) {
            if (ends) return qn_jparser_fail(p, "the template ends before '%s'", ends[0]);
            return QN_OK;
        }
        p->token++;
        if (t->kind == QN_JTOKEN_DATA) {
            QN_TRY(qn_jparser_new_node(p, QN_JNODE_DATA, t->line, NULL, NULL, NULL, &n));
            QN_TRY(qn_jparser_constant_text(p, t->text, t->n, &n->value));
        } else if (t->kind == QN_JTOKEN_PRINT_BEGIN) {
            QN_TRY(qn_jparser_tuple(p, QN_JTUPLE_FULL, NULL, 0, &value));
            QN_TRY(qn_jparser_expect_kind(p, QN_JTOKEN_PRINT_END, "'}}'"));
            QN_TRY(qn_jparser_new_node(p, QN_JNODE_PRINT, t->line, value, NULL, NULL, &n));
        } else {
            for (int i = 0; ends && ends[i]; i++)
                if (qn_jparser_at_name(p, ends[i])) return QN_OK;
            QN_TRY(parse_statement(p, &n));
        }
        QN_TRY(qn_jparser_add_node(p, out, n));
    }
}

static int32_t known_place(const qn_jparser *p, const char *name)
{
    int64_t place;
    return qn_map_get(p->name_places, name, strlen(name), &place) ? (int32_t)place : -1;
}

qn_status qn_jparse(qn_jheap *h, const char *text, size_t n, qn_jprogram *program)
{
    if (n > QN_JTEMPLATE_BYTES_MAX)
        return qn_fail(QN_E_FORMAT, "the template has %zu bytes, at most %d are allowed", n,
                       QN_JTEMPLATE_BYTES_MAX);
    qn_jtoken *tokens;
    size_t n_tokens;
    QN_TRY(qn_jlex(h, text, n, &tokens, &n_tokens));
    qn_jparser p = {.heap = h, .token = tokens, .name_places = qn_map_new(64)};
    if (!p.name_places) return QN_E_NOMEM;
    qn_jnode_list body = {0};
    qn_status status = parse_body(&p, NULL, &body);
    if (status == QN_OK)
        *program = (qn_jprogram){.body = body.items,
                                 .n_body = body.n,
                                 .names = p.names,
                                 .n_names = p.n_names,
                                 .place_loop = known_place(&p, "loop"),
                                 .place_caller = known_place(&p, "caller"),
                                 .place_varargs = known_place(&p, "varargs"),
                                 .place_kwargs = known_place(&p, "kwargs"),
                                 .place_self = known_place(&p, "self"),
                                 .blocks = p.blocks.items,
                                 .n_blocks = p.blocks.n};
    qn_map_free(p.name_places);
    return status;
}

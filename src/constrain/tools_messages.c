/* Answers of families whose messages have headers: reasoning, content and each call are separate messages.
 *
 *   prompt ...<|start|>assistant | <|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.f...
 *             `open    `role       `header           `close      `next `open    `role      `header
 *
 * What counts as a header, a call or content is what text/tools/tool_calls.c takes for one. */
#include <stdio.h>
#include <string.h>

#include "constrain/tools.h"
#include "constrain/tools_parts.h"

/* ---- messages ------------------------------------------------------------------------------------------ */

/* open and role: the next header begins. */
static qn_status put_open(qn_constraint *c, const qn_header_marks *h, uint32_t header, uint32_t *out)
{
    QN_TRY(qn_put_text(c, h->role, header, out));
    return qn_put_text(c, h->open, *out, out);
}

/* 1: another message can follow: its mark does not end the answer. */
static int has_next(const qn_constraint *c, const qn_header_marks *h)
{
    return !qn_is_end_mark(c, h->next) && !qn_is_end_mark(c, h->open);
}

static void add_drops(const qn_constraint *c, const qn_call_format *f, qn_marks *m, qn_scan_kind kind)
{
    for (int i = 0; i < QN_CALL_DROPS; i++)
        if (f->drop[i] && !qn_is_end_mark(c, f->drop[i])) qn_marks_add(c, m, f->drop[i], kind);
}

/* A whole message of reasoning, then the header of the next. */
static qn_status put_reasoning(qn_constraint *c, const qn_call_format *f, uint32_t header, uint32_t *out)
{
    const qn_header_marks *h = &f->header;
    qn_marks marks = {.n = 0};
    uint32_t node;
    qn_marks_add(c, &marks, h->next, QN_SCAN_END);
    qn_marks_add(c, &marks, h->open, QN_SCAN_BAD);
    for (int i = 0; i < QN_CALL_DROPS; i++)
        if (f->drop[i] && strcmp(f->drop[i], h->next) != 0) qn_marks_add(c, &marks, f->drop[i], QN_SCAN_BAD);
    QN_TRY(put_open(c, h, header, &node));
    QN_TRY(qn_put_free(c, &marks, 0, node, &node));
    QN_TRY(qn_put_text(c, h->close, node, &node));
    return qn_put_text(c, h->reasoning_header, node, out);
}

/* The end of a header before JSON. */
static qn_status put_typed_close(qn_constraint *c, const qn_header_marks *h, uint32_t next, uint32_t *out)
{
    uint32_t close, node;
    QN_TRY(qn_put_text(c, h->close, next, &close));
    *out = close;
    for (int i = 0; i < QN_CALL_TYPES && h->types[i]; i++) {
        QN_TRY(qn_put_text(c, h->types[i], close, &node));
        QN_TRY(qn_put_choice(c, *out, node, out));
    }
    return QN_OK;
}

static int is_name(const char *name)
{
    enum { NAME_BYTES_MAX = 128 };
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.");
    return n > 0 && n <= NAME_BYTES_MAX && !name[n];
}

/* ---- calls --------------------------------------------------------------------------------------------- */

/* Between open and close, where the family has these. */
static qn_status put_block(qn_tools *k, const qn_tool *t, uint32_t next, uint32_t *out)
{
    uint32_t node;
    QN_TRY(qn_put_text(k->c, k->f->close, next, &node));
    QN_TRY(qn_put_line_end(k->c, node, &node));
    QN_TRY(qn_put_marked_call(k, t, node, &node));
    return qn_put_line_end(k->c, node, out);
}

/* What follows the header of a call. */
static qn_status put_body(qn_tools *k, const qn_tool *t, uint32_t next, uint32_t *out)
{
    if (!k->f->open) return qn_put_value(k->c, t->arguments, next, out);
    QN_TRY(put_block(k, t, next, out));
    return qn_put_text(k->c, k->f->open, *out, out);
}

/* Headers of a call, whole or from its name on (behind header.call). */
static qn_status put_call_headers(qn_tools *k, const qn_tool *t, int from_name, uint32_t body, uint32_t *some)
{
    const qn_header_marks *h = &k->f->header;
    for (int i = 0; i < QN_CALL_HEADERS && h->call_headers[i].before; i++) {
        uint32_t node;
        QN_TRY(put_typed_close(k->c, h, body, &node));
        QN_TRY(qn_put_text(k->c, h->call_headers[i].after, node, &node));
        QN_TRY(qn_put_bytes(k->c, t->name, strlen(t->name), node, &node));
        if (!from_name) QN_TRY(qn_put_text(k->c, h->call_headers[i].before, node, &node));
        QN_TRY(qn_put_other(k->c, node, some));
    }
    return QN_OK;
}

/* Behind a call: the end, and the header of another message. */
static qn_status put_call_end(qn_tools *k, uint32_t header, uint32_t *out)
{
    const qn_header_marks *h = &k->f->header;
    uint32_t node;
    *out = 0;
    if (h->last && !qn_is_end_mark(k->c, h->last)) {
        QN_TRY(qn_put_text(k->c, h->last, 0, &node));
        QN_TRY(qn_put_choice(k->c, node, *out, out));
    }
    if (k->is_one || !has_next(k->c, h)) return QN_OK;
    QN_TRY(put_open(k->c, h, header, &node));
    if (*h->next)
        QN_TRY(qn_put_text(k->c, h->next, node, &node));
    else
        QN_TRY(qn_put_line_end(k->c, node, &node));
    return qn_put_choice(k->c, node, *out, out);
}

/* ---- answers that are calls ---------------------------------------------------------------------------- */

/* From inside a header: messages of reasoning and calls, one at least. */
static qn_status put_forced(qn_tools *k, uint32_t *out)
{
    const qn_header_marks *h = &k->f->header;
    uint32_t header, tail, body, some = 0;
    QN_TRY(qn_put_choice(k->c, 0, 0, &header));
    QN_TRY(put_call_end(k, header, &tail));
    for (size_t i = 0; i < k->n_tools; i++) {
        QN_TRY(put_body(k, &k->tools[i], tail, &body));
        QN_TRY(put_call_headers(k, &k->tools[i], 0, body, &some));
    }
    if (h->reasoning_header && has_next(k->c, h)) {
        uint32_t node;
        QN_TRY(put_reasoning(k->c, k->f, header, &node));
        QN_TRY(qn_put_other(k->c, node, &some));
    }
    k->c->program.graph[header] = k->c->program.graph[some];
    *out = header;
    return QN_OK;
}

/* ---- free answers -------------------------------------------------------------------------------------- */

/* Free text up to a mark where `next` begins; the other two marks do not come. */
static qn_status put_up_to(qn_tools *k, const char *end, const char *bad, uint32_t next, uint32_t *out)
{
    qn_marks marks = {.n = 0};
    qn_marks_add(k->c, &marks, end, QN_SCAN_END);
    qn_marks_add(k->c, &marks, bad, QN_SCAN_BAD);
    return qn_put_free(k->c, &marks, QN_FREE_MAY_END, next, out);
}

/* Messages: a call counts if its header says so. header is set here, content is where a message's text is. */
static qn_status put_called_by_header(qn_tools *k, uint32_t header, uint32_t content)
{
    const qn_header_marks *h = &k->f->header;
    uint32_t tail, body, names = 0, plain, call;
    QN_TRY(put_call_end(k, header, &tail));
    for (size_t i = 0; i < k->n_tools; i++) {
        QN_TRY(put_body(k, &k->tools[i], tail, &body));
        QN_TRY(put_call_headers(k, &k->tools[i], 1, body, &names));
    }
    QN_TRY(put_up_to(k, h->call, h->close, names, &call));
    QN_TRY(put_up_to(k, h->close, h->call, content, &plain));
    k->c->program.graph[header] = (qn_graph_node){.kind = QN_GRAPH_CHOICE, .next = call, .other = plain};
    return QN_OK;
}

/* Every header is a name: a line that is none is content. */
static qn_status put_called_by_line(qn_tools *k, uint32_t header, uint32_t content)
{
    static const char other[] = "[A-Za-z0-9_.\\-]{0,255}[^A-Za-z0-9_.\\-\\n]|[A-Za-z0-9_.\\-]{256}";
    const qn_header_marks *h = &k->f->header;
    qn_marks marks = {.n = 0};
    uint32_t tail, body, node, some = 0;
    QN_TRY(put_call_end(k, header, &tail));
    for (size_t i = 0; i < k->n_tools; i++) {
        QN_TRY(put_body(k, &k->tools[i], tail, &body));
        QN_TRY(put_call_headers(k, &k->tools[i], 1, body, &some));
    }
    QN_TRY(qn_put_text(k->c, h->close, content, &node));
    QN_TRY(qn_put_other(k->c, node, &some));
    QN_TRY(qn_put_text(k->c, h->content, node, &node));
    QN_TRY(qn_put_other(k->c, node, &some));
    qn_marks_add(k->c, &marks, h->close, QN_SCAN_END);
    QN_TRY(qn_put_free(k->c, &marks, QN_FREE_MAY_END, content, &node));
    QN_TRY(qn_put_regex(k->c, other, node, &node));
    QN_TRY(qn_put_other(k->c, node, &some));
    k->c->program.graph[header] = k->c->program.graph[some];
    return QN_OK;
}

/* A call counts by its own mark, outside of reasoning. */
static qn_status put_called_by_mark(qn_tools *k, uint32_t header, uint32_t content)
{
    const qn_header_marks *h = &k->f->header;
    uint32_t behind = content, block, blocks = 0, call, plain, thoughts, node, word, some;
    if (k->is_one) {
        behind = 0;
        if (h->last && !qn_is_end_mark(k->c, h->last)) {
            QN_TRY(qn_put_text(k->c, h->last, 0, &node));
            QN_TRY(qn_put_choice(k->c, node, behind, &behind));
        }
    }
    for (size_t i = 0; i < k->n_tools; i++) {
        QN_TRY(put_block(k, &k->tools[i], behind, &block));
        QN_TRY(qn_put_other(k->c, block, &blocks));
    }
    QN_TRY(put_up_to(k, k->f->open, h->open, blocks, &call));
    QN_TRY(put_up_to(k, h->open, k->f->open, header, &plain));
    k->c->program.graph[content] = (qn_graph_node){.kind = QN_GRAPH_CHOICE, .next = call, .other = plain};

    /* Reasoning lasts up to the next header, or to a mark that is dropped. */
    qn_marks drops = {.n = 0}, opens = {.n = 0};
    add_drops(k->c, k->f, &drops, QN_SCAN_END);
    qn_marks_add(k->c, &drops, h->open, QN_SCAN_BAD);
    qn_marks_add(k->c, &opens, h->open, QN_SCAN_END);
    add_drops(k->c, k->f, &opens, QN_SCAN_BAD);
    QN_TRY(qn_put_free(k->c, &opens, QN_FREE_MAY_END, header, &thoughts));
    if (drops.n > 0) {
        QN_TRY(qn_put_free(k->c, &drops, QN_FREE_MAY_END, content, &node));
        QN_TRY(qn_put_choice(k->c, thoughts, node, &thoughts));
    }

    /* Behind the word that says reasoning: the header's end, more of the header, or more of a longer word. */
    QN_TRY(put_up_to(k, h->close, NULL, thoughts, &node));
    QN_TRY(qn_put_regex(k->c, "[^A-Za-z0-9_.\\-<]", node, &node));
    QN_TRY(qn_put_regex(k->c, "[A-Za-z0-9_.\\-]", header, &some));
    QN_TRY(qn_put_choice(k->c, node, some, &some));
    QN_TRY(qn_put_text(k->c, h->close, thoughts, &node));
    QN_TRY(qn_put_choice(k->c, node, some, &some));
    QN_TRY(put_up_to(k, h->reasoning, h->close, some, &word));
    QN_TRY(put_up_to(k, h->close, h->reasoning, content, &plain));
    k->c->program.graph[header] = (qn_graph_node){.kind = QN_GRAPH_CHOICE, .next = word, .other = plain};
    return QN_OK;
}

qn_status qn_put_messages(qn_tools *k, int is_free, int in_text, uint32_t *out)
{
    const qn_header_marks *h = &k->f->header;
    uint32_t header, content;
    for (size_t i = 0; i < k->n_tools; i++)
        if (!is_name(k->tools[i].name))
            return qn_fail(QN_E_UNSUPPORTED,
                           "tools: calls as the family %s writes them have no name \"%.64s\"", k->f->name,
                           k->tools[i].name);
    if (!is_free) {
        QN_TRY(put_forced(k, &header));
        *out = header;
        return in_text ? put_open(k->c, h, header, out) : QN_OK;
    }
    QN_TRY(qn_put_choice(k->c, 0, 0, &header));
    QN_TRY(qn_put_choice(k->c, 0, 0, &content));
    if (k->f->open) {
        QN_TRY(put_called_by_mark(k, header, content));
    } else {
        uint32_t node;
        QN_TRY(put_up_to(k, h->open, NULL, header, &node));
        k->c->program.graph[content] = k->c->program.graph[node];
        QN_TRY(*h->call ? put_called_by_header(k, header, content) : put_called_by_line(k, header, content));
    }
    *out = in_text ? content : header;
    return QN_OK;
}

qn_status qn_tools_put_form(qn_constraint *c, const qn_call_format *f, uint32_t form, uint32_t *out)
{
    const qn_header_marks *h = &f->header;
    uint32_t header, content, thoughts;
    QN_TRY(qn_put_choice(c, 0, 0, &header));
    QN_TRY(put_typed_close(c, h, form, &content));
    QN_TRY(qn_put_text(c, h->content_header, content, &content));
    c->program.graph[header] = c->program.graph[content];
    *out = header;
    if (!h->reasoning_header || !has_next(c, h)) return QN_OK;
    QN_TRY(put_reasoning(c, f, header, &thoughts));
    c->program.graph[header] = (qn_graph_node){.kind = QN_GRAPH_CHOICE, .next = thoughts, .other = content};
    return QN_OK;
}

/* Where the first `what` in text[at..n) ends; 0: nowhere. */
static size_t end_of(const char *what, const char *text, size_t at, size_t n)
{
    const char *found = memmem(text + at, n - at, what, strlen(what));
    return found ? (size_t)(found - text) + strlen(what) : 0;
}

size_t qn_tools_find_form(const qn_call_format *f, const char *text, size_t n)
{
    const qn_header_marks *h = &f->header;
    size_t at = 0;
    for (;;) {
        size_t begin = end_of(h->close, text, at, n);
        if (!begin || !h->reasoning || !end_of(h->reasoning, text, at, begin)) return begin ? begin : at;
        at = end_of(h->open, text, begin, n);
        if (!at) return begin;
    }
}

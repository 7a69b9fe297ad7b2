/* URIs inside of the document: resources, anchors, and what a reference means. */
#include <string.h>

#include "base/mem.h"
#include "constrain/validate/schema.h"
#include "constrain/validate/uri.h"

enum { ANCHORS_MAX = 4096 };

qn_status qn_schema_add_resource(qn_schema *s, const char *base, const char *id, size_t n, qn_draft draft,
                                 const qn_value *node, qn_resource **out)
{
    qn_buf uri = {0};
    qn_uri_resolve(base, id, n, &uri);
    qn_resource *r = uri.status == QN_OK ? qn_arena_calloc(&s->arena, 1, sizeof *r) : NULL;
    if (r) r->uri = qn_arena_strndup(&s->arena, uri.data ? uri.data : "", uri.length);
    qn_buf_free(&uri);
    if (!r || !r->uri) return qn_fail_nomem(sizeof *r);
    r->draft = draft;
    r->root_node = node;
    /* Schemas in the wild use one $id twice. It is an error where a reference means it. */
    int64_t same;
    r->is_ambiguous = *r->uri && qn_map_get(s->by_uri, r->uri, strlen(r->uri), &same);
    QN_TRY(qn_map_set(s->by_uri, r->uri, strlen(r->uri), (int64_t)(intptr_t)r, NULL, NULL));
    *out = r;
    return QN_OK;
}

static const qn_anchor *find_anchor(const qn_resource *r, const char *name, size_t n)
{
    const qn_anchor *a = r->anchors;
    while (a && (a->n != n || memcmp(a->name, name, n))) a = a->next;
    return a;
}

qn_status qn_schema_add_anchor(qn_schema *s, qn_resource *r, const qn_value *keyword, const char *name,
                               size_t n, int is_dynamic, qn_subschema *schema)
{
    const qn_anchor *same = find_anchor(r, name, n);
    if (same && same->schema != schema)
        return qn_schema_fail(QN_E_FORMAT, keyword, "\"%.200s\" names two schemas", name);
    if (++s->n_anchors > ANCHORS_MAX)
        return qn_schema_fail(QN_E_UNSUPPORTED, keyword, "more than %d anchors", ANCHORS_MAX);
    qn_anchor *a = qn_arena_calloc(&s->arena, 1, sizeof *a);
    if (!a) return qn_fail_nomem(sizeof *a);
    *a = (qn_anchor){r->anchors, name, n, is_dynamic, schema};
    r->anchors = a;
    return QN_OK;
}

/* The schema at a JSON pointer of a resource. It may lie where no keyword is known: it is read then. */
static qn_status find_pointer(qn_schema *s, const qn_value *keyword, const qn_resource *r,
                              const char *pointer, size_t n, qn_subschema **out)
{
    const qn_value *node = qn_value_at(r->root_node, pointer, n);
    if (!node) return qn_schema_fail(QN_E_FORMAT, keyword, "the document has nothing at %.200s", pointer);
    if (node->kind != QN_VALUE_OBJECT && node->kind != QN_VALUE_BOOLEAN)
        return qn_schema_fail(QN_E_FORMAT, keyword, "what lies at %.200s is no schema", pointer);
    const qn_subschema *above = NULL;
    for (const qn_value *v = node; v && !above; v = v->parent) above = qn_schema_find(s, v);
    return qn_schema_read_node(s, node, (qn_resource *)(above ? above->resource : r), out);
}

static qn_status find_fragment(qn_schema *s, qn_keyword_use *u, const qn_resource *r, const char *fragment,
                               size_t n)
{
    if (!n) {
        u->target = r->root;
        return QN_OK;
    }
    if (*fragment == '/') return find_pointer(s, u->value, r, fragment, n, &u->target);
    const qn_anchor *a = find_anchor(r, fragment, n);
    if (!a) return qn_schema_fail(QN_E_FORMAT, u->value, "no schema is called #%.200s", fragment);
    u->target = a->schema;
    for (; u->kind == QN_KEYWORD_DYNAMIC_REF && a && !u->dynamic_name; a = a->next)
        if (a->is_dynamic && a->n == n && !memcmp(a->name, fragment, n)) u->dynamic_name = a->name;
    return QN_OK;
}

/* *out is NULL if the document has no such resource. */
static qn_status find_resource(const qn_schema *s, const char *base, const char *reference, size_t n,
                               const qn_resource **out)
{
    qn_buf uri = {0};
    int64_t found = 0;
    qn_uri_resolve(base, reference, n, &uri);
    if (uri.status == QN_OK && uri.data) qn_map_get(s->by_uri, uri.data, uri.length, &found);
    qn_status status = uri.status;
    qn_buf_free(&uri);
    *out = (const qn_resource *)(intptr_t)found;
    return status;
}

qn_status qn_schema_resolve(qn_schema *s, const qn_subschema *of, qn_keyword_use *u)
{
    const char *text = u->value->text;
    size_t n = qn_uri_fragment(text, u->value->n);
    const qn_resource *r = of->resource;
    if (n) QN_TRY(find_resource(s, of->resource->uri, text, n, &r));
    if (!r)
        return qn_schema_fail(QN_E_UNSUPPORTED, u->value,
                              "%.200s is another document, and nothing is fetched", text);
    if (n && r->is_ambiguous)
        return qn_schema_fail(QN_E_FORMAT, u->value, "more than one schema is called %.200s", r->uri);
    qn_buf fragment = {0};
    qn_buf_puts(&fragment, "");
    if (n < u->value->n) qn_uri_decode(text + n + 1, u->value->n - n - 1, &fragment);
    qn_status status = fragment.status;
    if (status == QN_OK) status = find_fragment(s, u, r, fragment.data ? fragment.data : "", fragment.length);
    qn_buf_free(&fragment);
    return status;
}

#include "constrain/json/document.h"

#include <string.h>

#include "base/json/json.h"
#include "base/mem.h"

/* ---- identifiers --------------------------------------------------------------------------------------- */

/* The part of a URI before '#'. */
static size_t without_fragment(const char *uri)
{
    return strcspn(uri, "#");
}

/* Takes "." and ".." segments out of a path, in place. */
static void remove_dots(char *path)
{
    char *out = path, *in = path;
    while (*in) {
        char *end = in + (*in == '/');
        end += strcspn(end, "/");
        size_t n = (size_t)(end - in);
        if ((n == 2 && memcmp(in, "/.", 2) == 0) || (n == 1 && *in == '.')) {
            if (!*end) *out++ = '/';
        } else if ((n == 3 && memcmp(in, "/..", 3) == 0) || (n == 2 && memcmp(in, "..", 2) == 0)) {
            while (out > path && *--out != '/') continue;
            if (!*end) *out++ = '/';
        } else {
            memmove(out, in, n);
            out += n;
        }
        in = end;
    }
    *out = 0;
}

/* 1: "scheme:" stands at the begin; *n its length with the colon. */
static int has_scheme(const char *uri, size_t *n)
{
    size_t k = strspn(uri, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-.");
    *n = k + 1;
    return k > 0 && uri[k] == ':';
}

/* RFC 3986's resolution of a reference, without fragments. NULL: out of memory. */
static char *resolve_uri(qn_arena *a, const char *base, const char *ref)
{
    size_t n_ref = without_fragment(ref), n_base = without_fragment(base), n;
    if (n_ref == 0) return qn_arena_strndup(a, base, n_base);
    if (has_scheme(ref, &n) && n <= n_ref) return qn_arena_strndup(a, ref, n_ref);
    char *out = qn_arena_calloc(a, n_base + n_ref + 3, 1);
    if (!out) return NULL;
    size_t authority = 0;
    if (has_scheme(base, &n)) authority = n;
    if (strncmp(base + authority, "//", 2) == 0) {
        authority += 2;
        authority += strcspn(base + authority, "/#");
    }
    if (ref[0] == '/') {
        memcpy(out, base, authority);
        memcpy(out + authority, ref, n_ref);
    } else {
        size_t keep = n_base;
        while (keep > authority && base[keep - 1] != '/') keep--;
        memcpy(out, base, keep);
        if (keep == authority && authority) out[keep++] = '/';
        memcpy(out + keep, ref, n_ref);
    }
    remove_dots(out + authority);
    return out;
}

static qn_status add_resource(qn_document *d, const char *uri, const json_t *value)
{
    if (d->n_resources == d->resources_room) {
        size_t more = d->resources_room ? 2 * d->resources_room : 4;
        qn_resource *p = qn_realloc(d->resources, more * sizeof *p);
        if (!p) return QN_E_NOMEM;
        d->resources = p;
        d->resources_room = more;
    }
    d->resources[d->n_resources++] = (qn_resource){uri, value};
    return QN_OK;
}

static qn_status add_anchor(qn_document *d, uint32_t resource, const char *name, const json_t *value,
                            int is_dynamic)
{
    if (d->n_anchors == d->anchors_room) {
        size_t more = d->anchors_room ? 2 * d->anchors_room : 4;
        qn_anchor *p = qn_realloc(d->anchors, more * sizeof *p);
        if (!p) return QN_E_NOMEM;
        d->anchors = p;
        d->anchors_room = more;
    }
    d->anchors[d->n_anchors++] = (qn_anchor){resource, is_dynamic, name, value};
    return QN_OK;
}

static const char *text_of(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

static qn_status read_identifiers(qn_document *d, const json_t *s, uint32_t *resource)
{
    const char *id = text_of(s, d->draft == QN_DRAFT_4 ? "id" : "$id"), *name;
    int is_old = qn_document_ref_is_alone(d) || d->draft == QN_DRAFT_ANY;
    if (id && is_old && json_object_get(s, "$ref")) id = NULL;
    if (id && is_old && id[0] == '#') {
        QN_TRY(add_anchor(d, *resource, id + 1, s, 0));
    } else if (id && s != d->root) {
        char *uri = resolve_uri(&d->arena, d->resources[*resource].uri, id);
        if (!uri) return QN_E_NOMEM;
        *resource = (uint32_t)d->n_resources;
        QN_TRY(add_resource(d, uri, s));
        size_t n = without_fragment(id);
        if (id[n] && id[n + 1] && is_old) QN_TRY(add_anchor(d, *resource, id + n + 1, s, 0));
    }
    if (d->draft >= QN_DRAFT_2019) {
        if ((name = text_of(s, "$anchor"))) QN_TRY(add_anchor(d, *resource, name, s, 0));
        if ((name = text_of(s, "$dynamicAnchor"))) QN_TRY(add_anchor(d, *resource, name, s, 1));
    }
    return QN_OK;
}

typedef enum { NO_SCHEMA, SCHEMAS, MAP_OF_SCHEMAS } holding;

/* What a keyword's value holds. Identifiers below other keywords are none. */
static holding held_by(const char *keyword)
{
    static const char *const schemas[] = {"additionalItems",
                                          "additionalProperties",
                                          "allOf",
                                          "anyOf",
                                          "contains",
                                          "else",
                                          "if",
                                          "items",
                                          "not",
                                          "oneOf",
                                          "prefixItems",
                                          "propertyNames",
                                          "then",
                                          "unevaluatedItems",
                                          "unevaluatedProperties"};
    static const char *const maps[] = {
        "$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"};
    for (size_t i = 0; i < sizeof schemas / sizeof schemas[0]; i++)
        if (strcmp(keyword, schemas[i]) == 0) return SCHEMAS;
    for (size_t i = 0; i < sizeof maps / sizeof maps[0]; i++)
        if (strcmp(keyword, maps[i]) == 0) return MAP_OF_SCHEMAS;
    return NO_SCHEMA;
}

static qn_status read_tree(qn_document *d, const json_t *v, uint32_t resource, int depth, int is_map)
{
    if (depth < 0) return qn_fail(QN_E_UNSUPPORTED, "the schema is nested too deeply");
    if (json_is_array(v)) {
        for (size_t i = 0; i < json_array_size(v); i++)
            QN_TRY(read_tree(d, json_array_get(v, i), resource, depth - 1, 0));
        return QN_OK;
    }
    if (!json_is_object(v)) return QN_OK;
    if (!is_map) QN_TRY(read_identifiers(d, v, &resource));
    if (resource && !is_map) {
        const json_t **key = qn_arena_alloc(&d->arena, sizeof *key);
        if (!key) return QN_E_NOMEM;
        *key = v;
        QN_TRY(qn_map_set(d->bases, key, sizeof *key, resource, NULL, NULL));
    }
    for (void *it = json_object_iter((json_t *)v); it; it = json_object_iter_next((json_t *)v, it)) {
        holding held = is_map ? SCHEMAS : held_by(json_object_iter_key(it));
        if (held != NO_SCHEMA)
            QN_TRY(read_tree(d, json_object_iter_value(it), resource, depth - 1, held == MAP_OF_SCHEMAS));
    }
    return QN_OK;
}

/* What $schema says; draft ANY without one. */
static qn_status read_draft(const json_t *root, qn_draft *out)
{
    static const struct {
        const char *uri;
        qn_draft draft;
    } drafts[] = {{"json-schema.org/draft-04/schema", QN_DRAFT_4},
                  {"json-schema.org/draft-06/schema", QN_DRAFT_6},
                  {"json-schema.org/draft-07/schema", QN_DRAFT_7},
                  {"json-schema.org/draft/2019-09/schema", QN_DRAFT_2019},
                  {"json-schema.org/draft/2020-12/schema", QN_DRAFT_2020}};
    const json_t *v = json_object_get(root, "$schema");
    *out = QN_DRAFT_ANY;
    if (!v) return QN_OK;
    const char *uri = json_string_value(v);
    if (!uri) return qn_fail(QN_E_FORMAT, "/$schema: $schema: is no string");
    const char *name = uri + (strncmp(uri, "https://", 8) == 0 ? 8 : strncmp(uri, "http://", 7) == 0 ? 7 : 0);
    size_t n = without_fragment(name);
    for (size_t i = 0; i < sizeof drafts / sizeof *drafts; i++)
        if (strlen(drafts[i].uri) == n && memcmp(drafts[i].uri, name, n) == 0 && name != uri &&
            !name[n + (name[n] == '#')]) {
            *out = drafts[i].draft;
            return QN_OK;
        }
    return qn_fail(QN_E_UNSUPPORTED,
                   "/$schema: $schema: %.200s is no draft that is known (4, 6, 7, 2019-09, 2020-12)", uri);
}

qn_status qn_document_open(qn_document *d, const char *text, size_t n, int depth_max)
{
    *d = (qn_document){0};
    if (!qn_json_depth_ok(text, n, depth_max))
        return qn_fail(QN_E_UNSUPPORTED, "the schema is nested more than %d levels deep", depth_max);
    QN_TRY(qn_json_parse("schema", text, n, &d->root));
    if (!json_is_object(d->root) && !json_is_boolean(d->root))
        return qn_fail(QN_E_FORMAT, "a JSON schema is an object, true or false");
    QN_TRY(read_draft(d->root, &d->draft));
    d->bases = qn_map_new(16);
    if (!d->bases) return QN_E_NOMEM;
    const char *id = text_of(d->root, d->draft == QN_DRAFT_4 ? "id" : "$id");
    char *uri = qn_arena_strndup(&d->arena, id ? id : "", id ? without_fragment(id) : 0);
    if (!uri) return QN_E_NOMEM;
    QN_TRY(add_resource(d, uri, d->root));
    return read_tree(d, d->root, 0, depth_max + 1, 0);
}

void qn_document_close(qn_document *d)
{
    json_decref(d->root);
    qn_map_free(d->bases);
    qn_free(d->resources);
    qn_free(d->anchors);
    qn_arena_clear(&d->arena);
    *d = (qn_document){0};
}

/* ---- references ---------------------------------------------------------------------------------------- */

static uint32_t base_of(const qn_document *d, const json_t *from)
{
    int64_t resource;
    return qn_map_get(d->bases, &from, sizeof from, &resource) ? (uint32_t)resource : 0;
}

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* One segment of a pointer in a fragment: %XX, then ~0 and ~1. */
static size_t read_segment(const char *p, size_t n, char *out)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        char c = p[i];
        if (c == '%' && i + 2 < n && hex(p[i + 1]) >= 0 && hex(p[i + 2]) >= 0) {
            c = (char)(hex(p[i + 1]) << 4 | hex(p[i + 2]));
            i += 2;
        }
        out[k++] = c;
    }
    size_t m = 0;
    for (size_t i = 0; i < k; i++) {
        char c = out[i];
        if (c == '~' && i + 1 < k && (out[i + 1] == '0' || out[i + 1] == '1'))
            c = out[++i] == '0' ? '~' : '/';
        out[m++] = c;
    }
    return m;
}

static const json_t *follow(const json_t *v, const char *pointer)
{
    char *segment = qn_alloc(strlen(pointer) + 1);
    if (!segment) return NULL;
    while (v && *pointer == '/') {
        pointer++;
        size_t n = strcspn(pointer, "/"), m = read_segment(pointer, n, segment);
        segment[m] = 0;
        if (json_is_array(v)) {
            size_t i = 0, k = 0;
            while (k < m && segment[k] >= '0' && segment[k] <= '9' && k < 9)
                i = 10 * i + (size_t)(segment[k++] - '0');
            v = k == m && m ? json_array_get(v, i) : NULL;
        } else {
            v = json_object_getn(v, segment, m);
        }
        pointer += n;
    }
    qn_free(segment);
    return *pointer ? NULL : v;
}

static qn_status find(const qn_document *d, const json_t *from, const char *ref, uint32_t *resource,
                      const json_t **out, int *is_dynamic)
{
    qn_arena scratch = {0};
    uint32_t at = base_of(d, from);
    size_t n = without_fragment(ref);
    const char *fragment = ref[n] ? ref + n + 1 : "";
    *is_dynamic = 0;
    if (n) {
        char *uri = resolve_uri(&scratch, d->resources[at].uri, ref);
        if (!uri) {
            qn_arena_clear(&scratch);
            return QN_E_NOMEM;
        }
        for (at = 0; at < d->n_resources && strcmp(d->resources[at].uri, uri) != 0; at++) continue;
        qn_arena_clear(&scratch);
        if (at == d->n_resources)
            return qn_fail(QN_E_UNSUPPORTED, "\"%.200s\" is not in this document, and nothing is fetched",
                           ref);
    }
    *resource = at;
    const json_t *v = NULL;
    if (!*fragment) {
        v = d->resources[at].value;
    } else if (*fragment == '/') {
        v = follow(d->resources[at].value, fragment);
    } else {
        for (size_t i = 0; i < d->n_anchors && !v; i++)
            if (d->anchors[i].resource == at && strcmp(d->anchors[i].name, fragment) == 0) {
                v = d->anchors[i].value;
                *is_dynamic = d->anchors[i].is_dynamic;
            }
    }
    if (!v) return qn_fail(QN_E_UNSUPPORTED, "\"%.200s\" leads nowhere in this document", ref);
    *out = v;
    return QN_OK;
}

qn_status qn_document_resolve(const qn_document *d, const json_t *from, const char *ref, const json_t **out)
{
    uint32_t resource;
    int is_dynamic;
    return find(d, from, ref, &resource, out, &is_dynamic);
}

qn_status qn_document_resolve_dynamic(const qn_document *d, const json_t *from, const char *ref,
                                      const json_t **out)
{
    uint32_t resource;
    int is_dynamic;
    QN_TRY(find(d, from, ref, &resource, out, &is_dynamic));
    if (!is_dynamic) return QN_OK;
    const char *name = ref + without_fragment(ref) + 1;
    int n = 0;
    for (size_t i = 0; i < d->n_anchors; i++)
        n += d->anchors[i].is_dynamic && strcmp(d->anchors[i].name, name) == 0;
    if (n > 1)
        return qn_fail(QN_E_UNSUPPORTED, "\"%.200s\" has several anchors, and the way to here would decide",
                       ref);
    return QN_OK;
}

/* ---- pointers ------------------------------------------------------------------------------------------ */

static int find_value(const json_t *at, const json_t *value, qn_buf *out)
{
    if (at == value) return 1;
    size_t mark = out->length;
    if (json_is_array(at)) {
        for (size_t i = 0; i < json_array_size(at); i++) {
            qn_buf_printf(out, "/%zu", i);
            if (find_value(json_array_get(at, i), value, out)) return 1;
            out->length = mark;
        }
    } else if (json_is_object(at)) {
        for (void *it = json_object_iter((json_t *)at); it; it = json_object_iter_next((json_t *)at, it)) {
            qn_buf_putc(out, '/');
            for (const char *k = json_object_iter_key(it); *k; k++) {
                if (*k == '~' || *k == '/')
                    qn_buf_puts(out, *k == '~' ? "~0" : "~1");
                else
                    qn_buf_putc(out, *k);
            }
            if (find_value(json_object_iter_value(it), value, out)) return 1;
            out->length = mark;
        }
    }
    return 0;
}

void qn_document_pointer(const qn_document *d, const json_t *value, qn_buf *out)
{
    size_t mark = out->length;
    qn_buf_puts(out, "#");
    if (value && find_value(d->root, value, out)) return;
    if (out->status != QN_OK) return;
    out->length = mark;
    qn_buf_puts(out, "?");
}

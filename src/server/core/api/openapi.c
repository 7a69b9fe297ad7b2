#include "server/core/api/openapi.h"

#include <ctype.h>
#include <quern/quern.h>
#include <string.h>

#include "base/json/json_write.h"
#include "server/core/api/about.h"

enum { NAME_MAX_BYTES = 64 };

/* Parameters of queries, and their schemas. Text that is malformed or unknown is refused, so the schemas are exact. */
static const struct {
    const char *name, *schema, *what;
} parameters[] = {
    {"after", "{\"type\":\"string\"}", "the id of the last object of the page before"},
    {"limit", "{\"type\":\"integer\",\"minimum\":1,\"maximum\":10000}",
     "how many objects a page has at most"},
    {"order", "{\"type\":\"string\",\"enum\":[\"asc\",\"desc\"]}", "by the time of creation"},
    {"purpose", "{\"type\":\"string\"}", "only files of this purpose"},
};

/* The next name of a list with spaces between them; NULL: there is none. */
static const char *next_name(const char *list, char name[NAME_MAX_BYTES])
{
    size_t n;
    if (!list) return NULL;
    list += strspn(list, " ");
    n = strcspn(list, " ");
    if (!n || n >= NAME_MAX_BYTES) return NULL;
    memcpy(name, list, n);
    name[n] = 0;
    return list + n;
}

static void put_raw(qn_buf *out, const char *key, const char *json)
{
    qn_json_key(out, key);
    qn_buf_puts(out, json);
}

/* ---- fields -------------------------------------------------------------------------------------------- */

static void put_range(const qn_field *f, qn_buf *out)
{
    qn_json_put_exact(out, "minimum", f->low);
    qn_json_put_exact(out, "maximum", f->high);
}

/* null counts as "not given" everywhere. What is behind QN_FIELD_OWN and QN_FIELD_JSON is checked by code, and the text
 * of its errors says how. */
static void put_field(const qn_field *f, qn_buf *out)
{
    static const char *const types[] = {[QN_FIELD_BOOL] = "[\"boolean\",\"null\"]",
                                        [QN_FIELD_INT] = "[\"integer\",\"null\"]",
                                        [QN_FIELD_REAL] = "[\"number\",\"null\"]",
                                        [QN_FIELD_TEXT] = "[\"string\",\"null\"]"};
    qn_json_key(out, f->name);
    qn_json_open(out, '{');
    if ((size_t)f->kind < sizeof types / sizeof *types) put_raw(out, "type", types[f->kind]);
    if (f->kind == QN_FIELD_INT || f->kind == QN_FIELD_REAL) put_range(f, out);
    if (f->kind == QN_FIELD_REFUSED) {
        qn_json_key(out, "enum");
        if (f->harmless)
            qn_buf_printf(out, "[null,%s", f->harmless + 1);
        else
            qn_buf_puts(out, "[null]");
        qn_json_put_bool(out, "deprecated", 1);
    }
    if (f->note) qn_json_put_text(out, "description", f->note);
    qn_json_close(out, '}');
}

/* required NULL: the object may be null. */
static void put_object(const qn_field *fields, unsigned route, const char *required, const char *member,
                       const qn_field *member_fields, qn_buf *out)
{
    char name[NAME_MAX_BYTES];
    qn_json_open(out, '{');
    put_raw(out, "type", required ? "\"object\"" : "[\"object\",\"null\"]");
    qn_json_key(out, "properties");
    qn_json_open(out, '{');
    for (const qn_field *f = fields; f->name; f++) {
        if (!(f->routes & route)) continue;
        if (member && strcmp(f->name, member) == 0) {
            qn_json_key(out, f->name);
            put_object(member_fields, route, NULL, NULL, NULL, out);
        } else {
            put_field(f, out);
        }
    }
    qn_json_close(out, '}');
    if (required && *required) {
        qn_json_key(out, "required");
        qn_json_open(out, '[');
        while ((required = next_name(required, name))) qn_json_text(out, name, strlen(name));
        qn_json_close(out, ']');
    }
    put_raw(out, "additionalProperties", "false");
    qn_json_close(out, '}');
}

/* ---- routes -------------------------------------------------------------------------------------------- */

static void put_parameter(const char *name, const char *in, const char *schema, const char *what, qn_buf *out)
{
    qn_json_open(out, '{');
    qn_json_put_text(out, "name", name);
    qn_json_put_text(out, "in", in);
    qn_json_put_bool(out, "required", strcmp(in, "path") == 0);
    if (what) qn_json_put_text(out, "description", what);
    put_raw(out, "schema", schema);
    qn_json_close(out, '}');
}

/* A row that stands for all below it has one more segment in the description. */
static int is_below(const qn_route *r)
{
    const size_t n = strlen(r->path);
    return n > 1 && r->path[n - 1] == '/';
}

static void put_parameters(const qn_route *r, qn_buf *out)
{
    static const char segment[] = "{\"type\":\"string\",\"minLength\":1,\"pattern\":\"^[A-Za-z0-9._-]+$\"}";
    char name[NAME_MAX_BYTES];
    qn_json_key(out, "parameters");
    qn_json_open(out, '[');
    for (const char *at = strchr(r->path, '{'); at; at = strchr(at + 1, '{')) {
        const size_t n = strcspn(at + 1, "}");
        if (n >= sizeof name) continue;
        memcpy(name, at + 1, n);
        name[n] = 0;
        put_parameter(name, "path", segment, NULL, out);
    }
    if (is_below(r)) put_parameter("name", "path", segment, NULL, out);
    for (const char *list = r->about->query; (list = next_name(list, name));)
        for (size_t i = 0; i < sizeof parameters / sizeof *parameters; i++)
            if (strcmp(parameters[i].name, name) == 0)
                put_parameter(name, "query", parameters[i].schema, parameters[i].what, out);
    qn_json_close(out, ']');
}

static void put_body(const qn_route_about *a, qn_buf *out)
{
    if (!a->fields && !a->body) return;
    qn_json_key(out, "requestBody");
    qn_json_open(out, '{');
    qn_json_put_bool(out, "required", 1);
    qn_json_key(out, "content");
    qn_json_open(out, '{');
    qn_json_key(out, a->body ? a->body : "application/json");
    qn_json_open(out, '{');
    qn_json_key(out, "schema");
    if (a->fields)
        put_object(a->fields, a->route, a->required ? a->required : "", a->member, a->member_fields, out);
    else
        qn_buf_puts(out, a->parts);
    qn_json_close(out, '}');
    qn_json_close(out, '}');
    qn_json_close(out, '}');
}

/* A content type, and that it may have anything; of JSON: any object or array. */
static void put_content(const char *type, const char *schema, qn_buf *out)
{
    qn_json_key(out, type);
    qn_buf_printf(out, "{\"schema\":%s}", schema);
}

static void put_responses(const qn_route *r, qn_buf *out)
{
    const qn_route_about *a = r->about;
    static const char any_json[] = "{\"type\":[\"object\",\"array\"]}";
    qn_json_key(out, "responses");
    qn_json_open(out, '{');
    if (!a->status) {
        qn_json_key(out, "200");
        qn_json_open(out, '{');
        qn_json_put_text(out, "description", "The answer");
        qn_json_key(out, "content");
        qn_json_open(out, '{');
        if (a->answer)
            put_content(a->answer,
                        strcmp(a->answer, "application/octet-stream") == 0 ? "{}" : "{\"type\":\"string\"}",
                        out);
        else
            put_content("application/json", any_json, out);
        if (a->stream) put_content(a->stream, "{\"type\":\"string\"}", out);
        qn_json_close(out, '}');
        qn_json_close(out, '}');
    }
    qn_json_key(out, "default");
    qn_json_open(out, '{');
    qn_json_put_text(out, "description", "An error: its message names the field at fault");
    qn_json_key(out, "content");
    qn_json_open(out, '{');
    /* GET /health tells its status in any case. */
    put_content("application/json",
                r->access == QN_ACCESS_OPEN ? "{\"type\":\"object\"}"
                                            : "{\"type\":\"object\",\"required\":[\"error\"]}",
                out);
    qn_json_close(out, '}');
    qn_json_close(out, '}');
    qn_json_close(out, '}');
}

/* "POST /v1/chat/completions": post_v1_chat_completions. */
static void put_id(const qn_route *r, qn_buf *out)
{
    char id[160];
    size_t n = 0;
    for (const char *at = r->method; *at && n + 1 < sizeof id; at++)
        id[n++] = (char)tolower((unsigned char)*at);
    for (const char *at = r->path; *at && n + 1 < sizeof id; at++) {
        const int is_word = isalnum((unsigned char)*at) || *at == '_';
        if (is_word)
            id[n++] = *at;
        else if (id[n - 1] != '_')
            id[n++] = '_';
    }
    id[n] = 0;
    qn_json_put_text(out, "operationId", id);
}

static void put_operation(const qn_route *r, int has_keys, qn_buf *out)
{
    char method[16];
    size_t n = 0;
    for (; r->method[n] && n + 1 < sizeof method; n++) method[n] = (char)tolower((unsigned char)r->method[n]);
    method[n] = 0;
    qn_json_key(out, method);
    qn_json_open(out, '{');
    qn_json_put_text(out, "summary", r->about->summary);
    put_id(r, out);
    put_parameters(r, out);
    put_body(r->about, out);
    put_responses(r, out);
    if (r->access == QN_ACCESS_ADMIN || (has_keys && r->access == QN_ACCESS_KEY))
        put_raw(out, "security", "[{\"bearer\":[]},{\"key\":[]}]");
    qn_json_close(out, '}');
}

/* The rows of one path stand together. */
static int is_first_of_path(const qn_route_table *const *tables, size_t i_table, size_t i_row)
{
    const char *path = tables[i_table]->routes[i_row].path;
    for (size_t i = 0; i <= i_table; i++)
        for (size_t k = 0; k < (i < i_table ? tables[i]->n_routes : i_row); k++)
            if (strcmp(tables[i]->routes[k].path, path) == 0) return 0;
    return 1;
}

static void put_path(const qn_route_table *const *tables, size_t n_tables, const qn_route *first,
                     int has_keys, qn_buf *out)
{
    qn_buf path = {0};
    qn_buf_printf(&path, "%s%s", first->path, is_below(first) ? "{name}" : "");
    if (path.status != QN_OK) {
        out->status = path.status;
        return;
    }
    qn_json_key(out, path.data);
    qn_buf_free(&path);
    qn_json_open(out, '{');
    for (size_t i = 0; i < n_tables; i++)
        for (size_t k = 0; k < tables[i]->n_routes; k++) {
            const qn_route *r = &tables[i]->routes[k];
            if (r->about && strcmp(r->path, first->path) == 0) put_operation(r, has_keys, out);
        }
    qn_json_close(out, '}');
}

void qn_openapi_write(const qn_route_table *const *tables, size_t n_tables, int has_keys, qn_buf *out)
{
    qn_json_open(out, '{');
    qn_json_put_text(out, "openapi", "3.1.0");
    qn_json_key(out, "info");
    qn_json_open(out, '{');
    qn_json_put_text(out, "title", "quern");
    qn_json_put_text(out, "version", qn_version());
    qn_json_close(out, '}');
    qn_json_key(out, "paths");
    qn_json_open(out, '{');
    for (size_t i = 0; i < n_tables; i++)
        for (size_t k = 0; k < tables[i]->n_routes; k++)
            if (is_first_of_path(tables, i, k))
                put_path(tables, n_tables, &tables[i]->routes[k], has_keys, out);
    qn_json_close(out, '}');
    put_raw(out, "components",
            "{\"securitySchemes\":{\"bearer\":{\"type\":\"http\",\"scheme\":\"bearer\"},\"key\":{\"type\":"
            "\"apiKey\",\"in\":\"header\",\"name\":\"x-api-key\"}}}");
    qn_json_close(out, '}');
}

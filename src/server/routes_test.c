/* Which row of the table of routes a request finds, however its client built the path; that the description of the API has
 * every row. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
/* cmocka wants these before it */
#include <cmocka.h>

#include <stdio.h>

#include "base/buf.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "server/core/api/about.h"
#include "server/core/api/openapi.h"
#include "server/routes.h"

enum { SIZE = 160 };

static const qn_route *find(const char *method, const char *path, char *path_out, size_t size,
                            const char **allowed)
{
    const qn_route_match found =
        qn_route_find(qn_server_tables, QN_SERVER_TABLES, method, path, path_out, size);
    assert_int_equal(found.table != NULL, found.route || found.allowed);
    *allowed = found.allowed;
    return found.route;
}

static void test_paths(void **state)
{
    static const struct {
        const char *method, *path, *row, *found;
    } cases[] = {
        {"GET", "/health", "/health", "/health"},
        {"GET", "/v1/health/", "/v1/health", "/v1/health"},
        {"HEAD", "/health/", "/health", "/health"},
        {"GET", "//metrics", "/metrics", "/metrics"},
        {"GET", "/v1/models", "/v1/models", "/v1/models"},
        {"GET", "/v1/models/", "/v1/models", "/v1/models"},
        {"GET", "/models", "/v1/models", "/v1/models"},
        {"GET", "/v1/models/mill", "/v1/models/", "/v1/models/mill"},
        {"GET", "//models//grain/mill/", "/v1/models/", "/v1/models/grain/mill"},
        {"POST", "/v1/chat/completions", "/v1/chat/completions", "/v1/chat/completions"},
        {"POST", "//v1//chat///completions//", "/v1/chat/completions", "/v1/chat/completions"},
        {"POST", "/chat/completions", "/v1/chat/completions", "/v1/chat/completions"},
        {"POST", "/completions", "/completions", "/completions"},
        {"POST", "/v1/completions/", "/v1/completions", "/v1/completions"},
        {"POST", "/completion", "/completion", "/completion"},
        {"POST", "/slots/3", "/slots/", "/slots/3"},
        {"GET", "/slots", "/slots", "/slots"},
        {"GET", "/props/", "/props", "/props"},
        {"POST", "/embeddings/", "/v1/embeddings", "/v1/embeddings"},
        {"POST", "/v1/messages", "/v1/messages", "/v1/messages"},
        {"POST", "/messages/", "/v1/messages", "/v1/messages"},
        {"POST", "/v1/messages/count_tokens", "/v1/messages/count_tokens", "/v1/messages/count_tokens"},
        {"POST", "/responses", "/v1/responses", "/v1/responses"},
        {"POST", "/v1/responses/input_tokens", "/v1/responses/input_tokens", "/v1/responses/input_tokens"},
        {"POST", "/v1/responses/resp_1/cancel", "/v1/responses/{response_id}/cancel",
         "/v1/responses/resp_1/cancel"},
        {"GET", "/v1/responses/resp_1", "/v1/responses/{response_id}", "/v1/responses/resp_1"},
        {"GET", "/responses/resp_1/input_items", "/v1/responses/{response_id}/input_items",
         "/v1/responses/resp_1/input_items"},
        {"GET", "/v1/adapters", "/v1/adapters", "/v1/adapters"},
        {"POST", "/adapters/", "/v1/adapters", "/v1/adapters"},
        {"GET", "/v1/adapters/qv", "/v1/adapters/{adapter}", "/v1/adapters/qv"},
        {"DELETE", "/v1/adapters/qv", "/v1/adapters/{adapter}", "/v1/adapters/qv"},
        {"POST", "/v1/load_lora_adapter", "/v1/load_lora_adapter", "/v1/load_lora_adapter"},
        {"POST", "/v1/unload_lora_adapter", "/v1/unload_lora_adapter", "/v1/unload_lora_adapter"},
        {"GET", "/v1/cache/", "/v1/cache", "/v1/cache"},
        {"POST", "/cache/warm", "/v1/cache/warm", "/v1/cache/warm"},
        {"DELETE", "/v1/cache/warm/system", "/v1/cache/warm/{name}", "/v1/cache/warm/system"},
        {"POST", "/v1/cache/explain", "/v1/cache/explain", "/v1/cache/explain"},
        {"POST", "/v1/cache/save", "/v1/cache/save", "/v1/cache/save"},
        {"GET", "/lora-adapters", "/lora-adapters", "/lora-adapters"},
        {"GET", "/", "/", "/"},
        {"HEAD", "//", "/", "/"},
        {"POST", "/api/chat/", "/api/chat", "/api/chat"},
        {"POST", "//api//generate", "/api/generate", "/api/generate"},
        {"GET", "/api/tags", "/api/tags", "/api/tags"},
        {"DELETE", "/api/delete", "/api/delete", "/api/delete"},
        {"GET", "/api", NULL, "/api"},
        {"POST", "/v1/api/chat", NULL, "/v1/api/chat"},
        {"GET", "/v1", NULL, "/v1"},
        {"GET", "/v1/", NULL, "/v1"},
        {"GET", "/v1/v1/models", NULL, "/v1/v1/models"},
        {"GET", "/nothing//here/", NULL, "/nothing/here"},
        {"GET", "/./health", NULL, "/./health"},
        {"GET", "/v1/../health", NULL, "/v1/../health"},
        {"GET", "/v1/./models", NULL, "/v1/./models"},
        {"GET", "/%2fhealth", NULL, "/%2fhealth"},
        {"GET", "/healthy", NULL, "/healthy"},
        {"GET", "/Health", NULL, "/Health"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[SIZE];
        const char *allowed;
        const qn_route *r = find(cases[i].method, cases[i].path, path, sizeof path, &allowed);
        assert_string_equal(path, cases[i].found);
        assert_null(allowed);
        if (cases[i].row)
            assert_string_equal(r->path, cases[i].row);
        else
            assert_null(r);
    }
}

static void test_methods(void **state)
{
    char path[SIZE];
    const char *allowed;
    (void)state;
    assert_null(find("PUT", "/completions", path, sizeof path, &allowed));
    assert_string_equal(allowed, "POST");
    assert_string_equal(path, "/completions");
    assert_null(find("POST", "//v1/models", path, sizeof path, &allowed));
    assert_string_equal(allowed, "GET, HEAD");
    assert_null(find("PUT", "/v1/responses/resp_1", path, sizeof path, &allowed));
    assert_string_equal(allowed, "GET, HEAD, DELETE");
    assert_null(find("GET", "/v1/responses/input_tokens", path, sizeof path, &allowed));
    assert_string_equal(allowed, "POST");
}

/* Slashes do not count towards the size; what is too long finds no row but one for all below it. */
static void test_long_paths(void **state)
{
    char path[SIZE];
    const char *allowed;
    qn_buf text = {0};
    (void)state;
    for (int i = 0; i < 1000; i++) qn_buf_putc(&text, '/');
    qn_buf_puts(&text, "health");
    assert_non_null(find("GET", text.data, path, sizeof path, &allowed));
    qn_buf_reset(&text);
    for (size_t n = 1; n < 2 * SIZE; n++) {
        char *slash;
        qn_buf_reset(&text);
        qn_buf_putc(&text, '/');
        for (size_t i = 1; i < n; i++) qn_buf_putc(&text, 'x');
        if (n == 1) qn_buf_puts(&text, "?"); /* "/" is a row, which stands for itself alone */
        assert_null(find("GET", text.data, path, sizeof path, &allowed));
        assert_int_equal(strlen(path), text.length < SIZE ? text.length : SIZE - 1);
        qn_buf_reset(&text);
        qn_buf_puts(&text, "/v1/models/");
        for (size_t i = 0; i < n; i++) qn_buf_putc(&text, 'x');
        slash = strrchr(text.data, '/');
        assert_non_null(find("GET", text.data, path, sizeof path, &allowed));
        assert_memory_equal(path, text.data, (size_t)(slash - text.data));
    }
    qn_buf_free(&text);
}

static void test_segments(void **state)
{
    static const qn_route row = {.path = "/v1/things/{thing_id}/parts/{part}"};
    char text[8];
    (void)state;
    qn_route_get(&row, "/v1/things/one/parts/2", "thing_id", text, sizeof text);
    assert_string_equal(text, "one");
    qn_route_get(&row, "/v1/things/one/parts/2", "part", text, sizeof text);
    assert_string_equal(text, "2");
    qn_route_get(&row, "/v1/things/one/parts/2", "thing", text, sizeof text);
    assert_string_equal(text, "");
    qn_route_get(&row, "/v1/things/too-long-for-it/parts/2", "thing_id", text, sizeof text);
    assert_string_equal(text, "");
}

/* Each row and, of its body, each field of its table. */
static void test_description(void **state)
{
    qn_buf text = {0};
    json_t *all;
    (void)state;
    qn_openapi_write(qn_server_tables, QN_SERVER_TABLES, 1, &text);
    assert_int_equal(qn_json_parse("description", text.data, text.length, &all), QN_OK);
    for (size_t i = 0; i < QN_SERVER_TABLES; i++)
        for (size_t k = 0; k < qn_server_tables[i]->n_routes; k++) {
            const qn_route *r = &qn_server_tables[i]->routes[k];
            char path[SIZE], method[16];
            const int is_below = strlen(r->path) > 1 && r->path[strlen(r->path) - 1] == '/';
            snprintf(path, sizeof path, "%s%s", r->path, is_below ? "{name}" : "");
            snprintf(method, sizeof method, "%s",
                     strcmp(r->method, "GET") == 0    ? "get"
                     : strcmp(r->method, "POST") == 0 ? "post"
                                                      : "delete");
            assert_non_null(r->about);
            const json_t *operation =
                json_object_get(json_object_get(json_object_get(all, "paths"), path), method);
            assert_string_equal(json_string_value(json_object_get(operation, "summary")), r->about->summary);
            if (!r->about->fields) continue;
            const json_t *properties = NULL;
            assert_int_equal(json_unpack((json_t *)operation, "{s{s{s{s{so}}}}}", "requestBody", "content",
                                         "application/json", "schema", "properties", &properties),
                             0);
            for (const qn_field *f = r->about->fields; f->name; f++)
                assert_true(!(f->routes & r->about->route) || json_object_get(properties, f->name));
        }
    json_decref(all);
    qn_buf_free(&text);
}

/* The description fails as a whole if memory runs out. */
static void test_no_memory(void **state)
{
    (void)state;
    for (int64_t n = 1, ended = 0; !ended && n < 50; n++) {
        qn_buf text = {0};
        qn_mem_fail_nth(n);
        qn_openapi_write(qn_server_tables, QN_SERVER_TABLES, 0, &text);
        qn_mem_fail_nth(0);
        ended = text.status == QN_OK;
        qn_buf_free(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paths),       cmocka_unit_test(test_methods),
        cmocka_unit_test(test_long_paths),  cmocka_unit_test(test_segments),
        cmocka_unit_test(test_description), cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* A whole pull without a network: this file stands for net_curl.c and answers out of a table, a few bytes at a time.
 * So memory can run out at any allocation of it, and answers can be of any form. tests/hub has the real sockets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "hub/hub.h"
#include "hub/sources.h"
#include "tests/support/scratch.h"

enum { LARGE = (33 << 20) + 7, CHUNK = 100000 };

/* ---- the network ------------------------------------------------------------------------------------------ */

struct qn_net_call {
    qn_net_reply reply;
    qn_status (*take)(void *user, const qn_net_reply *reply, const void *bytes, size_t n);
    void *user;
    const char *body;
    size_t n_body, n_given;
    qn_net_call *next;
};

struct qn_net {
    qn_net_call *calls;
    int n_asked;
};

/* What the servers have; the bodies of files are `files`. */
static struct {
    const char *url, *body, *location;
    size_t n_body;
    int status, n_cut; /* cut the first so many answers in half */
} pages[16];
static int n_pages;
static char last_token[64];

static void add_page(const char *url, const char *body, size_t n, int status, const char *location)
{
    pages[n_pages].url = url;
    pages[n_pages].body = body;
    pages[n_pages].n_body = n;
    pages[n_pages].location = location ? location : "";
    pages[n_pages].n_cut = 0;
    pages[n_pages++].status = status;
}

qn_status qn_net_open(int timeout_s, qn_net **out)
{
    qn_net *net = qn_calloc(1, sizeof *net);
    if (!net) return QN_E_NOMEM;
    *out = net;
    return QN_OK;
}

void qn_net_end(qn_net *net, qn_net_call *call)
{
    if (!call) return;
    for (qn_net_call **p = &net->calls; *p; p = &(*p)->next)
        if (*p == call) {
            *p = call->next;
            break;
        }
    qn_free(call);
}

void qn_net_close(qn_net *net)
{
    while (net && net->calls) qn_net_end(net, net->calls);
    qn_free(net);
}

qn_status qn_net_start(qn_net *net, const qn_net_request *r, qn_net_call **out)
{
    qn_net_call *call = qn_calloc(1, sizeof *call);
    if (!call) return QN_E_NOMEM;
    snprintf(last_token, sizeof last_token, "%s", r->token ? r->token : "");
    call->take = r->take;
    call->user = r->user;
    call->reply = (qn_net_reply){.status = 404,
                                 .length = -1,
                                 .range_begin = -1,
                                 .range_total = -1,
                                 .retry_after_s = 0,
                                 .linked_size = -1,
                                 .location = "",
                                 .link = ""};
    for (int i = 0; i < n_pages; i++) {
        if (strcmp(pages[i].url, r->url) != 0) continue;
        call->reply.status = pages[i].status;
        call->reply.location = pages[i].location;
        call->body = pages[i].body;
        call->n_body = pages[i].n_body;
        if (r->end && pages[i].status == 206) {
            call->reply.range_begin = r->begin;
            call->reply.range_total = (int64_t)pages[i].n_body;
            call->body += r->begin;
            call->n_body = (size_t)(r->end - r->begin);
        }
        if (pages[i].n_cut-- > 0) {
            call->n_body /= 2;
            snprintf(call->reply.failure, sizeof call->reply.failure, "cut");
        }
    }
    net->n_asked++;
    qn_net_call **end = &net->calls;
    while (*end) end = &(*end)->next;
    *end = call;
    *out = call;
    return QN_OK;
}

/* The calls take turns, a chunk each. */
qn_status qn_net_wait(qn_net *net, int timeout_ms, qn_net_call **done, qn_status *status)
{
    qn_net_call *call = net->calls;
    *done = NULL;
    *status = QN_OK;
    if (!call) {
        if (timeout_ms) usleep(1000);
        return QN_OK;
    }
    const size_t left = call->n_body - call->n_given, n = left < CHUNK ? left : CHUNK;
    if (n) *status = call->take(call->user, &call->reply, call->body + call->n_given, n);
    call->n_given += n;
    if (*status != QN_OK || call->n_given == call->n_body) {
        *done = call;
    } else if (call->next) { /* to the end of the queue */
        net->calls = call->next;
        call->next = NULL;
        qn_net_call **end = &net->calls;
        while (*end) end = &(*end)->next;
        *end = call;
    }
    return QN_OK;
}

const qn_net_reply *qn_net_get_reply(const qn_net_call *call)
{
    return &call->reply;
}

void *qn_net_get_user(const qn_net_call *call)
{
    return call->user;
}

/* ---- a repository ----------------------------------------------------------------------------------------- */

#define HUB "https://hub.example"
#define COMMIT "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

static char *large;
static char tree[2048], large_url[256];

static void sum(qn_digest_kind kind, const char *bytes, size_t n, char *hex)
{
    qn_digest d;
    qn_digest_begin(&d, kind, (int64_t)n);
    qn_digest_put(&d, bytes, n);
    qn_digest_end(&d, hex);
}

/* The Hub with org/name: config.json from itself, a GGUF or safetensors of n bytes from another host. */
static void set_scene(const char *file, size_t n)
{
    static const char revision[] = "{\"sha\":\"" COMMIT "\"}", config[] = "{}";
    char of_config[QN_SUM_HEX_MAX], of_large[QN_SUM_HEX_MAX];
    n_pages = 0;
    sum(QN_SUM_GIT_SHA1, config, 2, of_config);
    sum(QN_SUM_SHA256, large, n, of_large);
    snprintf(
        tree, sizeof tree,
        "[{\"type\":\"file\",\"path\":\"config.json\",\"size\":2,\"oid\":\"%s\"},"
        "{\"type\":\"file\",\"path\":\"%s\",\"size\":1,\"oid\":\"x\",\"lfs\":{\"oid\":\"%s\",\"size\":%zu}}]",
        of_config, file, of_large, n);
    snprintf(large_url, sizeof large_url, HUB "/org/name/resolve/" COMMIT "/%s", file);
    add_page(HUB "/api/models/org/name/revision/main", revision, strlen(revision), 200, NULL);
    add_page(HUB "/api/models/org/name/tree/" COMMIT "?recursive=true", tree, strlen(tree), 200, NULL);
    add_page(HUB "/org/name/resolve/" COMMIT "/config.json", config, 2, 206, NULL);
    add_page(large_url, "", 0, 302, "https://cdn.example/large");
    add_page("https://cdn.example/large", large, n, 206, NULL);
}

static int n_notes;
static char last_note[512];

static void note(void *user, const char *text)
{
    n_notes++;
    snprintf(last_note, sizeof last_note, "%s", text);
}

static qn_status pull(const char *root, const char *text, qn_hub_pulled *out)
{
    qn_hub_settings settings = {.timeout_s = 5};
    qn_hub_session session = {.settings = &settings, .note = note};
    const qn_hub_pull_options options = {.memory_bytes = (int64_t)64 << 30};
    qn_hub_name name;
    qn_buf_printf(&settings.cache, "%s/hub", root);
    qn_buf_printf(&settings.own, "%s/own", root);
    qn_buf_puts(&settings.endpoint, HUB);
    qn_buf_puts(&settings.ollama, "https://ollama.example");
    qn_buf_puts(&settings.token, "t0k3n");
    qn_status status = settings.cache.status;
    if (status == QN_OK) status = settings.own.status;
    if (status == QN_OK) status = settings.endpoint.status;
    if (status == QN_OK) status = settings.ollama.status;
    if (status == QN_OK) status = settings.token.status;
    if (status == QN_OK) status = qn_hub_name_read(text, 1, &name);
    if (status == QN_OK) status = qn_hub_pull(&session, &name, &options, out);
    qn_hub_settings_free(&settings);
    return status;
}

static void expect(const char *root, const char *text, qn_status want, const char *said)
{
    qn_hub_pulled p = {.total_bytes = 0};
    const qn_status status = pull(root, text, &p);
    if (status != want) fail_msg("%s: status %d, %s", text, status, qn_last_error());
    if (said && !strstr(qn_last_error(), said)) fail_msg("%s: %s", said, qn_last_error());
    qn_hub_pulled_free(&p);
}

static int set_up(void **state)
{
    large = qn_alloc(LARGE);
    if (!large) return -1;
    for (size_t i = 0; i < LARGE; i++) large[i] = (char)(i * 2654435761u >> 24);
    memcpy(large, "GGUF", 4);
    return 0;
}

static int tear_down(void **state)
{
    qn_free(large);
    return 0;
}

static void test_pull(void **state)
{
    const char *root = qn_test_scratch();
    qn_hub_pulled p = {.total_bytes = 0};
    set_scene("model.safetensors", LARGE);
    pages[4].n_cut = 4; /* each piece is cut once or more, and goes on from there */
    assert_int_equal(pull(root, "org/name", &p), QN_OK);
    assert_true(p.came_bytes == LARGE + 2 && p.here_bytes == 0 && p.files.n == 2);
    qn_hub_pulled_free(&p);
    p = (qn_hub_pulled){.total_bytes = 0};
    assert_int_equal(pull(root, "org/name", &p), QN_OK);
    assert_true(p.came_bytes == 0 && p.here_bytes == LARGE + 2);
    assert_int_equal(access(p.path.data, F_OK), 0);
    qn_hub_pulled_free(&p);
    qn_test_remove(root);
}

static void test_a_server_without_ranges(void **state)
{
    const char *root = qn_test_scratch();
    set_scene("m-Q8_0.gguf", LARGE);
    pages[4].status = 200;
    expect(root, "org/name", QN_OK, NULL);
    qn_test_remove(root);
}

static void test_what_is_refused(void **state)
{
    const char *root = qn_test_scratch();
    set_scene("m-Q8_0.gguf", 1000);
    large[500] ^= 1;
    expect(root, "org/name", QN_E_FORMAT, "it was thrown away");
    large[500] ^= 1;
    pages[3].location = "";
    expect(root, "org/name", QN_E_FORMAT, "without an address");
    pages[3].location = "http://cdn.example/large";
    expect(root, "org/name", QN_E_FORMAT, "from https to http");
    pages[3].status = 404;
    expect(root, "org/name", QN_E_NOT_FOUND, "(404)");
    pages[1].body = "[]", pages[1].n_body = 2;
    expect(root, "org/name", QN_E_NOT_FOUND, "neither safetensors nor GGUF");
    pages[0].body = "{}", pages[0].n_body = 2;
    expect(root, "org/name", QN_E_FORMAT, "no commit");
    expect(root, "org/none", QN_E_NOT_FOUND, "no such thing");
    expect(root, "ollama:none", QN_E_NOT_FOUND, "no such thing");
    qn_test_remove(root);
}

static void test_the_token(void **state)
{
    const char *root = qn_test_scratch();
    set_scene("m-Q8_0.gguf", 1000);
    expect(root, "org/name", QN_OK, NULL);
    assert_string_equal(last_token, ""); /* the last call was the CDN's */
    expect(root, "org/name", QN_OK, NULL);
    assert_string_equal(last_token, "t0k3n"); /* the last call was the list's */
    add_page("https://other.example/m.gguf", large, 1000, 206, NULL);
    expect(root, "https://other.example/m.gguf", QN_OK, NULL);
    assert_string_equal(last_token, "");
    qn_test_remove(root);
}

static void test_a_url(void **state)
{
    const char *root = qn_test_scratch();
    n_pages = 0;
    add_page("https://other.example/m.gguf", large, 1000, 206, NULL);
    add_page("https://other.example/x.gguf", "<html>", 6, 206, NULL);
    expect(root, "https://other.example/m.gguf", QN_OK, NULL);
    expect(root, "https://other.example/x.gguf", QN_E_FORMAT, "not a GGUF file");
    qn_test_remove(root);
}

/* The URL of a part means all parts beside it, each with its own length; one that is missing is named. */
static void test_urls_of_parts(void **state)
{
    const char *root = qn_test_scratch();
    qn_hub_pulled p = {.total_bytes = 0};
    n_pages = 0;
    add_page("https://other.example/a/m-00001-of-00002.gguf?x=1", large, 1000, 206, NULL);
    expect(root, "https://other.example/a/m-00002-of-00002.gguf?x=1", QN_E_NOT_FOUND,
           "a/m-00002-of-00002.gguf?x=1: https://other.example has no such thing");
    add_page("https://other.example/a/m-00002-of-00002.gguf?x=1", large, 2000, 206, NULL);
    assert_int_equal(pull(root, "https://other.example/a/m-00002-of-00002.gguf?x=1", &p), QN_OK);
    assert_true(p.files.n == 2 && p.came_bytes == 3000 && p.files.files[1].size == 2000);
    assert_non_null(strstr(p.path.data, "/m-00001-of-00002.gguf"));
    assert_int_equal(access(p.path.data, F_OK), 0);
    qn_hub_pulled_free(&p);
    qn_test_remove(root);
}

static void expect_next(const char *link, const char *want)
{
    qn_buf out = {0};
    qn_status status = qn_hub_next_page(HUB "/api?x", link, &out);
    assert_int_equal(status, want ? QN_OK : QN_E_FORMAT);
    if (want) assert_string_equal(out.data ? out.data : "", want);
    qn_buf_free(&out);
}

static void test_next_pages(void **state)
{
    expect_next("", "");
    expect_next("<" HUB "/api?y>; rel=\"next\"", HUB "/api?y");
    expect_next("</z>; rel=\"next\"", HUB "/z");
    expect_next("<" HUB "/a>; rel=\"prev\", <" HUB "/b>; rel=\"next\"", HUB "/b");
    expect_next("<" HUB "/a>; rel=\"prev\"", "");
    expect_next("rel=\"next\"", "");
    expect_next("> rel=\"next\"", "");
    expect_next("<https://other.example/a>; rel=\"next\"", NULL);
    expect_next("<ftp://x>; rel=\"next\"", NULL);
}

static void test_memory_runs_out(void **state)
{
    static const char *const names[] = {"org/name", "ollama:mill", "https://other.example/m.gguf",
                                        "https://other.example/m-00002-of-00002.gguf"};
    char manifest[512], hex[QN_SUM_HEX_MAX], blob[128];
    set_scene("model.safetensors", 1000);
    sum(QN_SUM_SHA256, large, 1000, hex);
    snprintf(manifest, sizeof manifest,
             "{\"layers\":[{\"mediaType\":\"application/"
             "vnd.ollama.image.model\",\"digest\":\"sha256:%s\",\"size\":1000}]}",
             hex);
    snprintf(blob, sizeof blob, "https://ollama.example/v2/library/mill/blobs/sha256:%s", hex);
    add_page("https://ollama.example/v2/library/mill/manifests/latest", manifest, strlen(manifest), 200,
             NULL);
    add_page(blob, large, 1000, 206, NULL);
    add_page("https://other.example/m.gguf", large, 1000, 206, NULL);
    add_page("https://other.example/m-00001-of-00002.gguf", large, 1000, 206, NULL);
    add_page("https://other.example/m-00002-of-00002.gguf", large, 1001, 206, NULL);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (int n = 1;; n++) {
            const char *root = qn_test_scratch();
            qn_hub_pulled p = {.total_bytes = 0};
            const int64_t live = qn_mem_live_blocks();
            qn_mem_fail_nth(n);
            qn_status status = pull(root, names[i], &p);
            qn_mem_fail_nth(0);
            qn_hub_pulled_free(&p);
            assert_int_equal(qn_mem_live_blocks(), live);
            qn_test_remove(root);
            if (status == QN_OK) break;
            if (status != QN_E_NOMEM)
                fail_msg("%s: allocation %d: status %d, %s", names[i], n, status, qn_last_error());
            assert_true(n < 2000);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pull),
        cmocka_unit_test(test_a_server_without_ranges),
        cmocka_unit_test(test_what_is_refused),
        cmocka_unit_test(test_the_token),
        cmocka_unit_test(test_a_url),
        cmocka_unit_test(test_urls_of_parts),
        cmocka_unit_test(test_next_pages),
        cmocka_unit_test(test_memory_runs_out),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

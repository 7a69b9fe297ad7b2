/* A server with a store while memory runs out at every place of a request: it answers, or says what went wrong, and what it
 * does in the background ends. What clients see otherwise: tests/server. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <netinet/in.h>
#include <pthread.h>
#include <quern/log.h>
#include <quern/quern.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "server/server.h"
#include "tests/support/engine_help.h"

enum { REPLY_MAX = 1 << 16, NTH_MAX = 4000, POLL_US = 1000, POLLS = 10000 };

/* ---- a server in this process ------------------------------------------------------------------------- */

static struct {
    pthread_t thread;
    atomic_int port, is_ready;
    qn_status status;
} server;
static char folder[64];

static qn_status open_mock(void *user, qn_model **out)
{
    (void)user;
    return qn_model_open(
        "mock", &(qn_model_options){.backend = "mock", .n_threads = 1, .background = 1, .parallel_slots = 2},
        out);
}

static void say(void *user, const char *url)
{
    (void)user;
    if (url)
        atomic_store(&server.port, (int)strtol(strrchr(url, ':') + 1, NULL, 10));
    else
        atomic_store(&server.is_ready, 1);
}

static void *serve(void *arg)
{
    static const char *const hosts[] = {"127.0.0.1"};
    const qn_server_options o = {
        .http = {.hosts = hosts, .n_hosts = 1, .body_max_bytes = 1 << 20, .read_timeout_ms = 60000},
        .model_name = "mock",
        .no_look_ahead = 1,
        .store = {folder, 1 << 24, 3600, 1 << 20},
        .open = open_mock,
        .say = say};
    (void)arg;
    server.status = qn_server_run(&o);
    return NULL;
}

static void start_server(void)
{
    atomic_store(&server.is_ready, 0);
    assert_int_equal(pthread_create(&server.thread, NULL, serve, NULL), 0);
    while (!atomic_load(&server.is_ready)) usleep(1000);
}

static void stop_server(void)
{
    kill(getpid(), SIGTERM);
    pthread_join(server.thread, NULL);
    qn_test_ok(server.status);
}

/* ---- a client ----------------------------------------------------------------------------------------- */

/* Everything that the server says to a request, up to the end of the connection. */
static void ask(const char *method, const char *path, const char *type, const char *body, char *reply)
{
    char head[384];
    size_t n = 0;
    const struct sockaddr_in to = {.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)atomic_load(&server.port)),
                                   .sin_addr = {htonl(INADDR_LOOPBACK)}};
    const int s = socket(AF_INET, SOCK_STREAM, 0);
    snprintf(head, sizeof head,
             "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: %s\r\nContent-Length: "
             "%zu\r\n\r\n",
             method, path, type, strlen(body));
    assert_true(s >= 0);
    assert_int_equal(connect(s, (const struct sockaddr *)&to, sizeof to), 0);
    /* The server may close the connection before it has read all. */
    send(s, head, strlen(head), MSG_NOSIGNAL);
    send(s, body, strlen(body), MSG_NOSIGNAL);
    for (ssize_t more; n < REPLY_MAX - 1 && (more = recv(s, reply + n, REPLY_MAX - 1 - n, 0)) > 0;)
        n += (size_t)more;
    reply[n] = 0;
    close(s);
}

static int status_of(const char *reply)
{
    return strncmp(reply, "HTTP/1.1 ", 9) == 0 ? (int)strtol(reply + 9, NULL, 10) : 0;
}

/* The value of "id" in a reply; "" if there is none. */
static void id_of(const char *reply, char id[64])
{
    const char *at = strstr(reply, "\"id\":\"");
    snprintf(id, 64, "%s", at ? at + 6 : "");
    id[strcspn(id, "\"")] = 0;
}

static void no_log(void *user, qn_log_level level, const char *line)
{
    (void)user;
    (void)level;
    (void)line;
}

/* ---- requests ----------------------------------------------------------------------------------------- */

typedef struct {
    const char *method, *path, *type, *body;
    const char *pending; /* the state of an object that is not done yet; NULL: it is done with its answer */
} request;

#define JSON "application/json"
#define ASK "{\"input\":\"Hello\",\"max_output_tokens\":4,\"temperature\":0"
#define FORM                                                                                               \
    "--x\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--x\r\nContent-Disposition: " \
    "form-data; name=\"file\"; filename=\"f\"\r\n\r\n{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":"    \
    "\"/v1/chat/"                                                                                          \
    "completions\",\"body\":{\"max_tokens\":4,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\""         \
    "}]}}\nbad\r\n--x--\r\n"

static char previous[256], stored_path[128], items_path[128], content_path[128], batch_body[256];

static request requests[] = {
    {"POST", "/v1/responses", JSON, ASK "}", NULL},
    {"POST", "/v1/responses", JSON, previous, NULL},
    {"GET", stored_path, JSON, "", NULL},
    {"GET", items_path, JSON, "", NULL},
    {"POST", "/v1/responses", JSON, ASK ",\"background\":true}", "in_progress"},
    {"POST", "/v1/files", "multipart/form-data; boundary=x", FORM, NULL},
    {"GET", "/v1/files?limit=2", JSON, "", NULL},
    {"GET", content_path, JSON, "", NULL},
    {"POST", "/v1/batches", JSON, batch_body, "in_progress"},
    {"GET", "/openapi.json", JSON, "", NULL},
};

/* The objects that requests name. */
static void make_objects(void)
{
    static char reply[REPLY_MAX];
    char id[64];
    ask("POST", "/v1/responses", JSON, ASK "}", reply);
    assert_int_equal(status_of(reply), 200);
    id_of(reply, id);
    snprintf(previous, sizeof previous, ASK ",\"previous_response_id\":\"%s\"}", id);
    snprintf(stored_path, sizeof stored_path, "/v1/responses/%s", id);
    snprintf(items_path, sizeof items_path, "/v1/responses/%s/input_items", id);
    ask("POST", "/v1/files", "multipart/form-data; boundary=x", FORM, reply);
    assert_int_equal(status_of(reply), 200);
    id_of(reply, id);
    snprintf(content_path, sizeof content_path, "/v1/files/%s/content", id);
    snprintf(batch_body, sizeof batch_body,
             "{\"input_file_id\":\"%s\",\"endpoint\":\"/v1/chat/completions\",\"completion_window\":\"24h\"}",
             id);
}

/* An object that was made leaves its state. */
static void wait_for(const request *r, const char *reply)
{
    static char now[REPLY_MAX];
    char id[64], path[160], pending[64];
    if (!r->pending || status_of(reply) != 200) return;
    id_of(reply, id);
    snprintf(path, sizeof path, "%s/%s", r->path, id);
    snprintf(pending, sizeof pending, "\"status\":\"%s\"", r->pending);
    for (int i = 0; i < POLLS; i++) {
        ask("GET", path, JSON, "", now);
        if (status_of(now) == 200 && !strstr(now, pending)) return;
        usleep(POLL_US);
    }
    fail_msg("it does not end: %s", now);
}

/* A reply is good, or says what went wrong. Nothing else is disturbed. */
static void memory_runs_out(void **state)
{
    static char reply[REPLY_MAX];
    const request *r = *state;
    int64_t n_failed = 0, nth = 1;
    for (int is_over = 0; !is_over; nth++) {
        assert_true(nth < NTH_MAX);
        int64_t made = qn_mem_allocations();
        qn_mem_fail_nth(nth);
        ask(r->method, r->path, r->type, r->body, reply);
        if (r->pending) usleep(20000); /* what goes on may meet the failure as well */
        qn_mem_fail_nth(0);
        is_over = qn_mem_allocations() - made < nth;
        const int status = status_of(reply);
        n_failed += status >= 500;
        if (status && status != 200 && status != 500 && status != 503) fail_msg("%d: %s", (int)nth, reply);
        if (status >= 500) assert_non_null(strstr(reply, "\"error\""));
        wait_for(r, reply);
    }
    ask(r->method, r->path, r->type, r->body, reply);
    assert_int_equal(status_of(reply), 200);
    wait_for(r, reply);
    print_message("%d places, %d errors\n", (int)nth, (int)n_failed);
    assert_true(n_failed > 0);
}

static void remove_below(const char *path)
{
    DIR *d = opendir(path);
    for (const struct dirent *e; d && (e = readdir(d));) {
        char name[512];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        snprintf(name, sizeof name, "%s/%s", path, e->d_name);
        if (unlink(name) != 0) remove_below(name);
    }
    if (d) closedir(d);
    rmdir(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        {"a stored response", memory_runs_out, NULL, NULL, &requests[0]},
        {"a response behind another", memory_runs_out, NULL, NULL, &requests[1]},
        {"getting a response", memory_runs_out, NULL, NULL, &requests[2]},
        {"getting its items", memory_runs_out, NULL, NULL, &requests[3]},
        {"a response in the background", memory_runs_out, NULL, NULL, &requests[4]},
        {"an upload", memory_runs_out, NULL, NULL, &requests[5]},
        {"a list of files", memory_runs_out, NULL, NULL, &requests[6]},
        {"a content", memory_runs_out, NULL, NULL, &requests[7]},
        {"a batch", memory_runs_out, NULL, NULL, &requests[8]},
        {"the description", memory_runs_out, NULL, NULL, &requests[9]},
    };
    qn_log_set_sink(no_log, NULL);
    const int64_t live = qn_mem_live_blocks();
    snprintf(folder, sizeof folder, "build/stored-XXXXXX");
    if (!mkdtemp(folder)) return 1;
    start_server();
    make_objects();
    int failed = cmocka_run_group_tests_name("a store", tests, NULL, NULL);
    stop_server();
    if (qn_mem_live_blocks() != live) {
        fprintf(stderr, "%lld blocks were left\n", (long long)(qn_mem_live_blocks() - live));
        failed++;
    }
    remove_below(folder);
    return failed;
}

/* The whole server while memory runs out at every place of a request: the client gets an answer or an error, and
 * the next request is answered as ever. What clients see otherwise: tests/server. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
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

enum { REPLY_MAX = 1 << 16, NTH_MAX = 4000 };

/* ---- a server in this process ------------------------------------------------------------------------- */

static struct {
    pthread_t thread;
    atomic_int port, is_ready;
    qn_status status;
} server;

static qn_status open_mock(void *user, qn_model **out)
{
    (void)user;
    return qn_model_open(
        "mock", &(qn_model_options){.backend = "mock", .n_threads = 1, .background = 1, .parallel_slots = 2},
        out);
}

static qn_status save_nothing(void *user, qn_model *model)
{
    (void)user;
    (void)model;
    return QN_OK;
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
        .open = open_mock,
        .save = save_nothing,
        .say = say};
    (void)arg;
    server.status = qn_server_run(&o);
    return NULL;
}

static void start_server(void)
{
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
static void ask(const char *path, const char *body, char *reply)
{
    char head[256];
    size_t n = 0;
    const struct sockaddr_in to = {.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)atomic_load(&server.port)),
                                   .sin_addr = {htonl(INADDR_LOOPBACK)}};
    const int s = socket(AF_INET, SOCK_STREAM, 0);
    snprintf(head, sizeof head,
             "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
             "Content-Length: %zu\r\n\r\n",
             path, strlen(body));
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

/* What was generated: the texts of the reply, one behind the other. */
static void texts_of(const char *reply, char *out)
{
    for (const char *at = reply; (at = strstr(at, "\"content\":\""));) {
        at += strlen("\"content\":\"");
        const size_t n = strcspn(at, "\"");
        memcpy(out, at, n);
        out += n;
    }
    *out = 0;
}

static void no_log(void *user, qn_log_level level, const char *line)
{
    (void)user;
    (void)level;
    (void)line;
}

/* ---- requests ----------------------------------------------------------------------------------------- */

typedef struct {
    const char *path, *body;
} request;

#define TOOLS \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}}]"
#define HELLO "{\"max_tokens\":4,\"temperature\":0,\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]"

static request requests[] = {
    {"/v1/chat/completions", HELLO "}"},
    {"/v1/chat/completions", HELLO ",\"stream\":true,\"reasoning_effort\":\"low\"," TOOLS "}"},
    {"/v1/completions", "{\"max_tokens\":4,\"temperature\":0,\"prompt\":[\"a\",\"b\"],\"stream\":true}"},
    {"/prompt-cache", "{}"},
    {"/v1/completions", "{\"max_tokens\":2,\"temperature\":0,\"prompt\":\"a "
                        "b\",\"echo\":true,\"logprobs\":1,\"prompt_logprobs\":2}"},
    {"/v1/messages",
     "{\"max_tokens\":2,\"temperature\":0,\"system\":[{\"type\":\"text\",\"text\":\"s\",\"cache_control\":{}}"
     "],"
     "\"cache_control\":{\"type\":\"ephemeral\"},\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}"},
    {"/v1/cache/explain", "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}],\"cache_salt\":\"x\"}"},
};

/* A reply is good, or says what went wrong; where it had begun it ends early. Nothing else is disturbed. */
static void memory_runs_out(void **state)
{
    static char want[REPLY_MAX], reply[REPLY_MAX], texts[2][REPLY_MAX];
    const request *r = *state;
    ask(r->path, r->body, want);
    assert_int_equal(status_of(want), 200);
    texts_of(want, texts[0]);
    int64_t n_failed = 0, nth = 1;
    for (int is_over = 0; !is_over; nth++) {
        assert_true(nth < NTH_MAX);
        int64_t made = qn_mem_allocations();
        qn_mem_fail_nth(nth);
        ask(r->path, r->body, reply);
        qn_mem_fail_nth(0);
        is_over = qn_mem_allocations() - made < nth;
        const int status = status_of(reply);
        n_failed += status >= 500;
        if (status && status != 200 && status != 500 && status != 503) fail_msg("%d: %s", (int)nth, reply);
        if (status >= 500) assert_non_null(strstr(reply, "\"error\""));
        ask(r->path, r->body, reply);
        assert_int_equal(status_of(reply), 200);
        texts_of(reply, texts[1]);
        assert_string_equal(texts[1], texts[0]);
    }
    print_message("%d places, %d errors\n", (int)nth, (int)n_failed);
    assert_true(n_failed > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        {"a chat", memory_runs_out, NULL, NULL, &requests[0]},
        {"a stream with tools", memory_runs_out, NULL, NULL, &requests[1]},
        {"two texts", memory_runs_out, NULL, NULL, &requests[2]},
        {"saving prompts", memory_runs_out, NULL, NULL, &requests[3]},
        {"a prompt's figures", memory_runs_out, NULL, NULL, &requests[4]},
        {"marks of the cache", memory_runs_out, NULL, NULL, &requests[5]},
        {"a prompt explained", memory_runs_out, NULL, NULL, &requests[6]},
    };
    qn_log_set_sink(no_log, NULL);
    const int64_t live = qn_mem_live_blocks();
    start_server();
    int failed = cmocka_run_group_tests_name("server", tests, NULL, NULL);
    stop_server();
    if (qn_mem_live_blocks() != live) {
        fprintf(stderr, "%lld blocks were left\n", (long long)(qn_mem_live_blocks() - live));
        failed++;
    }
    return failed;
}

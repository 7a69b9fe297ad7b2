/* Long use by several callers: short requests, and chats of many turns, on a made-up model and on a fixture
 * with recurrent layers. Memory stays as it was, and no page is lost. QUERN_SOAK=1 (`make soak`) does it at
 * length and looks at resident memory too, which says nothing under a sanitizer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "base/buf.h"
#include "base/mem.h"
#include "tests/engine/requests.h"
#include "tests/engine/resident.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"

enum { CALLERS = 4, TURNS = 20, CACHE_BYTES = 4 << 20, FLAT_KIB = 1024 };

typedef struct {
    const char *name, *backend, *path;
} subject;

typedef struct {
    qn_model *model;
    int n_requests, n_chats;
    uint64_t seed;
    atomic_int next;
    atomic_llong n_tokens;
    pthread_mutex_t lock;
    qn_buf why; /* of the first call that failed */
} work;

static int note(work *w, qn_status status)
{
    if (status == QN_OK) return 1;
    pthread_mutex_lock(&w->lock);
    if (!w->why.length) qn_buf_puts(&w->why, qn_last_error());
    pthread_mutex_unlock(&w->lock);
    return 0;
}

/* The answer's text goes behind *text unless that is NULL. */
static int answer(work *w, const qn_prompt *prompt, const qn_generate_options *o, qn_buf *text)
{
    qn_generation *g = NULL;
    qn_token t = {0};
    if (!note(w, qn_generation_open(w->model, prompt, o, &g))) return 0;
    int good = 1;
    do {
        good = note(w, qn_generation_next(g, &t));
        if (good && text) qn_buf_append(text, t.text, t.text_bytes);
        atomic_fetch_add(&w->n_tokens, 1);
    } while (good && t.end == QN_END_NONE);
    qn_generation_close(g);
    return good;
}

static int short_request(work *w, uint64_t i)
{
    qn_test_draws d = {.seed = w->seed + i};
    char text[64];
    snprintf(text, sizeof text, "Request %d of %d", (int)qn_test_draw(&d, 1000), (int)qn_test_draw(&d, 3));
    qn_generate_options o = {.max_tokens = 1 + qn_test_draw(&d, 8),
                             .temperature = (float)qn_test_draw(&d, 2),
                             .seed = w->seed + i + 1};
    return answer(w, &(qn_prompt){.text = text}, &o, NULL);
}

/* A message more each turn, the model's answers among them. */
static int chat(work *w, uint64_t i)
{
    qn_test_draws d = {.seed = w->seed + i};
    qn_buf messages = {0}, said = {0};
    char text[64];
    int good = 1;
    qn_buf_puts(&messages, "[{\"role\":\"system\",\"content\":\"A chat of many turns.\"}");
    for (int turn = 0; good && turn < TURNS; turn++) {
        snprintf(text, sizeof text, "Message %d of chat %d", turn, (int)i);
        qn_buf_puts(&messages, ",{\"role\":\"user\",\"content\":");
        qn_buf_json_string(&messages, text, strlen(text));
        qn_buf_puts(&messages, "}]");
        qn_generate_options o = {.max_tokens = 1 + qn_test_draw(&d, 12), .temperature = 1, .seed = i + 1};
        qn_buf_reset(&said);
        good = answer(w, &(qn_prompt){.messages_json = messages.data}, &o, &said);
        messages.length--;
        qn_buf_puts(&messages, ",{\"role\":\"assistant\",\"content\":");
        qn_buf_json_string(&messages, said.data ? said.data : "", said.length);
        qn_buf_putc(&messages, '}');
    }
    qn_buf_free(&messages);
    qn_buf_free(&said);
    return good;
}

static void *call(void *user)
{
    work *w = user;
    int good = 1;
    for (int i; good && (i = atomic_fetch_add(&w->next, 1)) < w->n_requests + w->n_chats;)
        good = i < w->n_requests ? short_request(w, (uint64_t)i) : chat(w, (uint64_t)i);
    return NULL;
}

static void run(qn_model *model, int n_requests, int n_chats, uint64_t seed)
{
    work w = {.model = model, .n_requests = n_requests, .n_chats = n_chats, .seed = seed};
    pthread_t threads[CALLERS];
    pthread_mutex_init(&w.lock, NULL);
    for (int i = 0; i < CALLERS; i++) assert_int_equal(pthread_create(&threads[i], NULL, call, &w), 0);
    for (int i = 0; i < CALLERS; i++) pthread_join(threads[i], NULL);
    pthread_mutex_destroy(&w.lock);
    if (w.why.length) fail_msg("%s", w.why.data);
    assert_true(atomic_load(&w.n_tokens) > n_requests + n_chats);
}

/* Nobody computes: all pages are free or in the cache, and after it is cleared nothing is left. */
static void check_nothing_held(qn_model *model, int64_t *blocks)
{
    qn_memory memory;
    qn_test_ok(qn_model_get_memory(model, &memory));
    assert_int_equal(memory.kv_bytes, 0);
    assert_true(memory.cache_memory_bytes <= CACHE_BYTES);
    qn_test_ok(qn_model_clear_cache(model));
    qn_test_ok(qn_model_get_memory(model, &memory));
    assert_int_equal(memory.cache_memory_bytes, 0);
    qn_figures f;
    qn_test_ok(qn_model_get_figures(model, &f));
    assert_int_equal(f.n_active + f.n_queued + f.pages_used + f.pages_kept + f.n_failed, 0);
    int64_t live = qn_mem_live_blocks();
    if (*blocks) assert_int_equal(live, *blocks);
    *blocks = live;
}

static void long_use(void **state)
{
    const subject *s = *state;
    int at_length = getenv("QUERN_SOAK") != NULL, n_requests = at_length ? 20000 : 200,
        n_chats = at_length ? 200 : 4;
    enum { ROUNDS = 10 };
    int64_t before = qn_mem_live_blocks(), blocks = 0;
    long warm = 0, most = 0;
    qn_model *model = NULL;
    qn_test_ok(qn_model_open(
        s->backend ? s->path : qn_test_need_fixture(s->path),
        &(qn_model_options){.backend = s->backend, .parallel_slots = 4, .n_threads = 1, .context_size = 2048},
        &model));
    qn_test_ok(qn_model_set_cache_limit(model, CACHE_BYTES, NULL));
    for (int round = 0; round < ROUNDS; round++) {
        run(model, n_requests / ROUNDS, n_chats / ROUNDS + !at_length, (uint64_t)round * 1000000);
        check_nothing_held(model, &blocks);
        long now = qn_test_resident_kib();
        if (round < 2) warm = most = now;
        if (now > most) most = now;
    }
    if (at_length) {
        print_message("%s: %d requests and %d chats of %d turns: %ld KiB after warm-up, at most %ld later\n",
                      s->name, n_requests, n_chats, (int)TURNS, warm, most);
        assert_true(most <= warm + FLAT_KIB);
    }
    qn_model_close(&model);
    assert_int_equal(qn_mem_live_blocks(), before);
}

int main(void)
{
    static subject subjects[] = {{"made-up model", "mock", "7,end"},
                                 {"recurrent layers", NULL, "models/qwen3_5"}};
    /* What is resident is to be what we touch: no further arena of glibc's, which it begins when threads meet
     * in malloc, and no huge pages, which the system makes of small ones when it has the time. */
#ifdef __GLIBC__
    mallopt(M_ARENA_MAX, 1);
#endif
#ifdef __linux__
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
#endif
    struct CMUnitTest tests[2];
    for (int i = 0; i < 2; i++)
        tests[i] = (struct CMUnitTest){subjects[i].name, long_use, NULL, NULL, &subjects[i]};
    return _cmocka_run_group_tests("soak", tests, 2, NULL, NULL);
}

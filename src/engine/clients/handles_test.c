/* Handles: whatever is forked, cut and given back, logits are those of the same tokens in one piece. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "base/random.h"
#include "engine/clients/handle_parts.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"

enum { HANDLES_MAX = 6, IDS_MAX = 1024, VOCAB_MAX = 1 << 16 };

typedef struct {
    qn_engine *e, *other; /* other: what is compared with, in one piece */
    qn_scheduler *scheduler;
    qn_handles *h;
    int64_t vocab, context;
    float *logits;
    uint64_t n_draws, seed;
} world;

typedef struct {
    qn_handle *handle;
    int32_t ids[IDS_MAX];
    int64_t n;
} held;

static world open_world(const char *fixture, int64_t context, uint64_t seed)
{
    const char *path = qn_test_need_fixture(fixture);
    world w = {.seed = seed};
    qn_engine_options o = {.context_size = context, .max_sequences = 16, .n_threads = 1, .max_rows = 64};
    w.e = qn_test_engine(path, NULL, o);
    o.max_sequences = 1;
    o.max_rows = 256;
    w.other = qn_test_engine(path, NULL, o);
    qn_test_ok(qn_scheduler_new(w.e, &(qn_scheduler_options){0}, &w.scheduler));
    qn_test_ok(qn_handles_new(w.e, w.scheduler, &w.h));
    w.vocab = qn_engine_config(w.e)->vocab_size;
    w.context = context;
    w.logits = test_malloc((size_t)w.vocab * sizeof *w.logits);
    return w;
}

static void close_world(world *w)
{
    int64_t kv = (int64_t)qn_ledger_held(qn_engine_ledger(w->e), QN_LEDGER_KV);
    assert_int_equal(kv, 0);
    qn_handles_free(w->h);
    qn_scheduler_free(w->scheduler);
    qn_engine_close(w->e);
    qn_engine_close(w->other);
    test_free(w->logits);
}

static int64_t draw(world *w, int64_t n)
{
    return (int64_t)(qn_random_bits(w->seed, w->n_draws++) % (uint64_t)n);
}

static uint64_t hash(const world *w)
{
    return qn_hash_bytes(w->logits, (size_t)w->vocab * sizeof *w->logits, 0);
}

/* A pass of n tokens from `from` (NULL: none) into `to`, which may be the same; its logits are compared. */
static void go_on(world *w, const held *from, int64_t n, held *to)
{
    held next = {.n = 0};
    if (from) next = *from;
    for (int64_t i = 0; i < n; i++) next.ids[next.n++] = (int32_t)draw(w, w->vocab);
    next.handle = NULL;
    memset(w->logits, 0, (size_t)w->vocab * sizeof *w->logits);
    qn_test_ok(qn_handle_forward(w->h, from ? from->handle : NULL, next.ids + next.n - n, n, w->logits,
                                 &next.handle));
    assert_int_equal(qn_handle_length(next.handle), next.n);
    if (hash(w) != qn_test_last_hash(w->other, next.ids, next.n, next.n))
        fail_msg("the logits of %lld tokens differ, %lld of them new", (long long)next.n, (long long)n);
    qn_handle_free(w->h, to->handle);
    *to = next;
}

static void slice(world *w, const held *from, int64_t keep, held *to)
{
    held next = *from;
    next.n = keep;
    qn_test_ok(qn_handle_slice(w->h, from->handle, keep, &next.handle));
    assert_int_equal(qn_handle_length(next.handle), keep);
    qn_handle_free(w->h, to->handle);
    *to = next;
}

static void random_work(const char *fixture, int64_t context, int rounds)
{
    world w = open_world(fixture, context, (uint64_t)rounds + 1);
    held *all = test_calloc(HANDLES_MAX, sizeof *all);
    for (int round = 0; round < rounds; round++) {
        held *to = &all[draw(&w, HANDLES_MAX)], *from = &all[draw(&w, HANDLES_MAX)];
        int64_t what = draw(&w, 8), n = draw(&w, 4) ? 1 + draw(&w, 5) : 1 + draw(&w, 150);
        if (what == 0 && to->handle) {
            qn_handle_free(w.h, to->handle);
            to->handle = NULL;
        } else if (what < 3 && from->handle) {
            slice(&w, from, draw(&w, from->n + 1), to);
        } else if (!from->handle || from->n + n > context) {
            go_on(&w, NULL, n, to);
        } else {
            go_on(&w, from, n, to);
        }
    }
    for (int i = 0; i < HANDLES_MAX; i++) qn_handle_free(w.h, all[i].handle);
    test_free(all);
    close_world(&w);
}

static void full_attention(void **state)
{
    random_work("models/llama", 500, 150);
}

static void sliding_windows(void **state)
{
    random_work("models/gemma3_text", 500, 150);
}

static void recurrent(void **state)
{
    random_work("models/qwen3_5", 400, 120);
}

static void long_rope(void **state)
{
    random_work("models/phi3_longrope", 400, 120);
}

/* Forks of a handle hold its pages together with it. */
static void forks_share_pages(void **state)
{
    world w = open_world("models/llama", 600, 5);
    held root = {0}, forks[4] = {{0}};
    go_on(&w, NULL, 320, &root);
    int64_t before = qn_pages_free_count(w.e->pages[0]);
    for (int i = 0; i < 4; i++) slice(&w, &root, 320, &forks[i]);
    assert_int_equal(qn_pages_free_count(w.e->pages[0]), before);
    for (int i = 0; i < 4; i++) go_on(&w, &forks[i], 1, &forks[i]);
    assert_int_equal(qn_pages_free_count(w.e->pages[0]), before - 4);
    go_on(&w, &root, 3, &root); /* it is as it was */
    qn_handle_free(w.h, root.handle);
    for (int i = 0; i < 4; i++) qn_handle_free(w.h, forks[i].handle);
    close_world(&w);
}

static void refused(qn_status got, qn_status want, const char *words)
{
    assert_int_equal(got, want);
    if (!strstr(qn_last_error(), words)) fail_msg("'%s' is not in: %s", words, qn_last_error());
}

static void wrong_calls(void **state)
{
    world w = open_world("models/llama", 64, 6);
    held one = {0};
    qn_handle *out = NULL;
    int32_t ids[70] = {0};
    go_on(&w, NULL, 4, &one);
    refused(qn_handle_forward(w.h, one.handle, ids, 0, w.logits, &out), QN_E_ARG, "at least one");
    refused(qn_handle_forward(w.h, one.handle, ids, 61, w.logits, &out), QN_E_ARG, "61 tokens after 4");
    refused(qn_handle_forward(w.h, NULL, ids, 65, w.logits, &out), QN_E_ARG, "context");
    ids[2] = (int32_t)w.vocab;
    refused(qn_handle_forward(w.h, one.handle, ids, 3, w.logits, &out), QN_E_ARG, "position 6");
    ids[2] = -1;
    refused(qn_handle_forward(w.h, NULL, ids, 3, w.logits, &out), QN_E_ARG, "token id -1");
    refused(qn_handle_slice(w.h, one.handle, -1, &out), QN_E_ARG, "-1 tokens");
    refused(qn_handle_slice(w.h, one.handle, 5, &out), QN_E_ARG, "5 tokens");
    assert_null(out);
    go_on(&w, &one, 60, &one); /* the context is full */
    refused(qn_handle_forward(w.h, one.handle, ids, 1, w.logits, &out), QN_E_ARG, "context");
    qn_handle_free(w.h, one.handle);
    close_world(&w);
}

/* What a pass that failed computed goes no further; what was there before it does. */
static void poisoned(void **state)
{
    world w = open_world("models/llama", 200, 7);
    held one = {0}, longer = {0};
    qn_handle *out = NULL;
    const int32_t id = 1;
    go_on(&w, NULL, 40, &one);
    go_on(&w, &one, 10, &longer);
    const qn_block_table *t = &longer.handle->sequence.tables[0];
    qn_pages_poison(w.e->pages[0], t->ids[1], 45 % QN_PAGE_TOKENS);
    refused(qn_handle_forward(w.h, longer.handle, &id, 1, w.logits, &out), QN_E_DEVICE, "poisoned");
    refused(qn_handle_slice(w.h, longer.handle, 20, &out), QN_E_DEVICE, "poisoned");
    assert_null(out);
    go_on(&w, &one, 12, &one);
    qn_handle_free(w.h, longer.handle);
    qn_handle_free(w.h, one.handle);
    close_world(&w);
}

/* Keys that are not finite make logits that are not: the pass is refused, its pages go. */
static void not_finite(void **state)
{
    world w = open_world("models/llama", 200, 8);
    held one = {0};
    qn_handle *out = NULL;
    const int32_t id = 1;
    go_on(&w, NULL, 40, &one);
    int32_t page = one.handle->sequence.tables[0].ids[0];
    const qn_device_ops *ops = w.e->device->ops;
    size_t bytes = qn_pages_unit_bytes(w.e->pages[0]);
    char *good = test_malloc(bytes), *bad = test_malloc(bytes);
    ops->state_read(w.e->states[0], page, good);
    memset(bad, 0xff, bytes);
    ops->state_write(w.e->states[0], page, bad);
    int64_t n_free = qn_pages_free_count(w.e->pages[0]);
    refused(qn_handle_forward(w.h, one.handle, &id, 1, w.logits, &out), QN_E_DEVICE, "not finite");
    assert_null(out);
    assert_int_equal(qn_pages_free_count(w.e->pages[0]), n_free);
    ops->state_write(w.e->states[0], page, good);
    go_on(&w, &one, 1, &one);
    test_free(good);
    test_free(bad);
    qn_handle_free(w.h, one.handle);
    close_world(&w);
}

/* No pages are left: that call fails, and goes well when some are given back. */
static void full(void **state)
{
    world w = open_world("models/llama", 320, 9);
    enum { N = 1024 };
    held *all = test_calloc(N, sizeof *all);
    qn_handle *out = NULL;
    int n = 0;
    qn_status status = QN_OK;
    for (; n < N; n++) {
        for (all[n].n = 0; all[n].n < 300; all[n].n++) all[n].ids[all[n].n] = (int32_t)(n + all[n].n) % 50;
        status = qn_handle_forward(w.h, NULL, all[n].ids, all[n].n, w.logits, &all[n].handle);
        if (status != QN_OK) break;
    }
    refused(status, QN_E_FULL, "pages");
    assert_true(n > 2);
    qn_handle_free(w.h, all[0].handle);
    all[0].handle = NULL;
    qn_test_ok(qn_handle_forward(w.h, NULL, all[n].ids, all[n].n, w.logits, &out));
    qn_handle_free(w.h, out);
    for (int i = 1; i < n; i++) qn_handle_free(w.h, all[i].handle);
    test_free(all);
    close_world(&w);
}

/* Nothing is allocated once there are objects and logs enough. */
static void steady_state(void **state)
{
    world w = open_world("models/llama", 600, 10);
    held one = {0};
    for (int i = 0; i < 4; i++) go_on(&w, i ? &one : NULL, 3, &one);
    int64_t before = qn_mem_allocations();
    for (int32_t i = 0; i < 400; i++) {
        qn_handle *next = NULL;
        qn_test_ok(qn_handle_forward(w.h, one.handle, &i, 1, w.logits, &next));
        qn_handle_free(w.h, one.handle);
        one.handle = next;
    }
    assert_int_equal(qn_mem_allocations(), before);
    qn_handle_free(w.h, one.handle);
    close_world(&w);
}

/* One of several callers who go on from the same handle. */
typedef struct {
    world *w;
    const held *root;
    pthread_barrier_t *meet;
    float *logits;
    int32_t first;
    int failed;
} goer;

static void *go_steadily(void *arg)
{
    goer *g = arg;
    qn_handles *h = g->w->h;
    qn_handle *at = NULL, *next = NULL;
    g->failed = qn_handle_slice(h, g->root->handle, g->root->n, &at) != QN_OK;
    for (int32_t i = 0; i < 200; i++) {
        const int32_t id = (g->first + i) % 50;
        if (!g->failed) g->failed = qn_handle_forward(h, at, &id, 1, g->logits, &next) != QN_OK;
        if (i == 5) { /* all hold two handles, which is the most, while somebody counts */
            pthread_barrier_wait(g->meet);
            pthread_barrier_wait(g->meet);
        }
        qn_handle_free(h, at);
        at = next;
        next = NULL;
    }
    qn_handle_free(h, at);
    return NULL;
}

/* Nor do several callers, whatever they share a step with, who waits and who wakes whom. */
static void steady_company(void **state)
{
    enum { N = 6 };
    static const int spare_cores[] = {0, 1, N};
    world w = open_world("models/llama", 600, 14);
    held root = {0};
    go_on(&w, NULL, 40, &root);
    for (int k = 0; k < 3; k++) {
        goer goers[N];
        pthread_t threads[N];
        pthread_barrier_t meet;
        w.h->n_spare_cores = spare_cores[k];
        assert_int_equal(pthread_barrier_init(&meet, NULL, N + 1), 0);
        for (int i = 0; i < N; i++) {
            goers[i] = (goer){.w = &w, .root = &root, .meet = &meet, .first = 7 * i};
            goers[i].logits = test_malloc((size_t)w.vocab * sizeof(float));
            assert_int_equal(pthread_create(&threads[i], NULL, go_steadily, &goers[i]), 0);
        }
        pthread_barrier_wait(&meet);
        int64_t before = qn_mem_allocations();
        pthread_barrier_wait(&meet);
        for (int i = 0; i < N; i++) pthread_join(threads[i], NULL);
        assert_int_equal(qn_mem_allocations(), before);
        for (int i = 0; i < N; i++) {
            held all = root;
            for (int32_t j = 0; j < 200; j++) all.ids[all.n++] = (7 * i + j) % 50;
            assert_false(goers[i].failed);
            memcpy(w.logits, goers[i].logits, (size_t)w.vocab * sizeof(float));
            assert_true(hash(&w) == qn_test_last_hash(w.other, all.ids, all.n, all.n));
            test_free(goers[i].logits);
        }
        pthread_barrier_destroy(&meet);
    }
    qn_handle_free(w.h, root.handle);
    close_world(&w);
}

/* A pass from `from` and cuts of what it gives, with objects of their own. */
static qn_status use_fresh(world *w, const qn_handle *from, const int32_t *ids, int64_t n)
{
    qn_handle *out = NULL, *cut = NULL, *whole = NULL;
    qn_handles *h = NULL;
    QN_TRY(qn_handles_new(w->e, w->scheduler, &h));
    qn_status status = qn_handle_forward(h, from, ids, n, w->logits, &out);
    if (status == QN_OK) status = qn_handle_slice(h, out, 20, &cut);
    if (status == QN_OK) status = qn_handle_slice(h, out, qn_handle_length(out), &whole);
    qn_handle_free(h, whole);
    qn_handle_free(h, cut);
    qn_handle_free(h, out);
    qn_handles_free(h);
    return status;
}

/* Every allocation fails once: an error, everything given back, and the handle as it was. */
static void out_of_memory(void **state)
{
    static const char *const fixtures[] = {"models/llama", "models/qwen3_5"};
    for (int f = 0; f < 4; f++) {
        world w = open_world(fixtures[f % 2], 200, 11);
        held one = {0};
        int32_t ids[40];
        qn_status status = QN_E_NOMEM;
        for (int i = 0; i < 40; i++) ids[i] = i + 1;
        go_on(&w, NULL, 33, &one);
        for (int64_t nth = 1; status != QN_OK && nth < 2000; nth++) {
            int64_t blocks = qn_mem_live_blocks(), n_free = qn_pages_free_count(w.e->pages[0]);
            qn_mem_fail_nth(nth);
            status = use_fresh(&w, f < 2 ? one.handle : NULL, ids, 40);
            qn_mem_fail_nth(0);
            if (status != QN_OK) assert_int_equal(status, QN_E_NOMEM);
            assert_int_equal(qn_pages_free_count(w.e->pages[0]), n_free);
            assert_int_equal(qn_mem_live_blocks(), blocks);
            go_on(&w, &one, 1, &one);
        }
        assert_int_equal(status, QN_OK);
        qn_handle_free(w.h, one.handle);
        close_world(&w);
    }
}

typedef struct {
    world *w;
    const held *root;
    int thread;
    uint64_t got[20];
    int failed;
} job;

static void *work(void *arg)
{
    job *j = arg;
    float *logits = qn_alloc((size_t)j->w->vocab * sizeof *logits);
    qn_handle *at = NULL;
    j->failed = !logits || qn_handle_slice(j->w->h, j->root->handle, j->root->n, &at) != QN_OK;
    for (int32_t i = 0; !j->failed && i < 20; i++) {
        qn_handle *next = NULL;
        const int32_t id = (int32_t)(j->thread + 1) + i;
        j->failed = qn_handle_forward(j->w->h, at, &id, 1, logits, &next) != QN_OK;
        if (j->failed) break;
        j->got[i] = qn_hash_bytes(logits, (size_t)j->w->vocab * sizeof *logits, 0);
        qn_handle_free(j->w->h, at);
        at = next;
    }
    qn_handle_free(j->w->h, at);
    qn_free(logits);
    return NULL;
}

static void threads(void **state)
{
    world w = open_world("models/gemma3_text", 300, 12);
    enum { N = 4 };
    job jobs[N];
    pthread_t ids[N];
    held root = {0};
    go_on(&w, NULL, 50, &root);
    for (int i = 0; i < N; i++) {
        jobs[i] = (job){.w = &w, .root = &root, .thread = i};
        assert_int_equal(pthread_create(&ids[i], NULL, work, &jobs[i]), 0);
    }
    for (int i = 0; i < N; i++) pthread_join(ids[i], NULL);
    for (int i = 0; i < N; i++) {
        held expected = root;
        assert_false(jobs[i].failed);
        for (int32_t j = 0; j < 20; j++) {
            expected.ids[expected.n++] = (int32_t)(i + 1) + j;
            assert_true(qn_test_last_hash(w.other, expected.ids, expected.n, expected.n) == jobs[i].got[j]);
        }
    }
    qn_handle_free(w.h, root.handle);
    close_world(&w);
}

/* Handles from nothing, while the n-th allocation fails: the first pass, a slice, all of it again. */
static qn_status from_nothing(world *w, const int32_t *ids, int64_t n)
{
    qn_handles *h = NULL;
    qn_handle *whole = NULL, *part = NULL, *empty = NULL;
    qn_status status = qn_handles_new(w->e, w->scheduler, &h);
    if (status == QN_OK) status = qn_handle_new(h, "none", &empty);
    if (status == QN_OK) status = qn_handle_forward(h, NULL, ids, n, w->logits, &whole);
    if (status == QN_OK) status = qn_handle_slice(h, whole, n / 2, &part);
    if (h) qn_handle_free(h, part);
    part = NULL;
    if (status == QN_OK) status = qn_handle_slice(h, whole, n, &part);
    if (h) {
        qn_handle_free(h, part);
        qn_handle_free(h, whole);
        qn_handle_free(h, empty);
    }
    qn_handles_free(h);
    return status;
}

static void from_nothing_out_of_memory(void **state)
{
    static const char *const fixtures[] = {"models/llama", "models/qwen3_5"};
    for (int i = 0; i < 2; i++) {
        world w = open_world(fixtures[i], 128, 9);
        int32_t ids[70];
        for (int j = 0; j < 70; j++) ids[j] = (int32_t)draw(&w, w.vocab);
        qn_test_ok(from_nothing(&w, ids, 70));
        uint64_t expected = hash(&w);
        int64_t blocks = qn_mem_live_blocks(), n = 1;
        for (qn_status status = QN_E_NOMEM; status != QN_OK; n++) {
            qn_mem_fail_nth(n);
            status = from_nothing(&w, ids, 70);
            qn_mem_fail_nth(0);
            if (status != QN_OK) assert_int_equal(status, QN_E_NOMEM);
            assert_int_equal(qn_mem_live_blocks(), blocks);
        }
        assert_true(n > 5);
        assert_true(hash(&w) == expected);
        qn_handle *none = NULL;
        assert_int_equal(qn_handle_new(w.h, "no such adapter", &none), QN_E_NOT_FOUND);
        assert_null(none);
        close_world(&w);
    }
}

/* One pass of a thread. */
typedef struct {
    world *w;
    const held *root;
    int32_t ids[120];
    int64_t n;
    float *logits;
    qn_handle *out;
    qn_status status;
} one_pass;

static void *run_one(void *arg)
{
    one_pass *p = arg;
    p->status = qn_handle_forward(p->w->h, p->root->handle, p->ids, p->n, p->logits, &p->out);
    return NULL;
}

static int64_t count_waiting(world *w)
{
    pthread_mutex_lock(&w->h->lock);
    int64_t n = 0;
    for (const qn_handle_pass *p = w->h->first; p; p = qn_handle_pass_next(p)) n++;
    pthread_mutex_unlock(&w->h->lock);
    return n;
}

/* While somebody else has the engine, passes gather behind the first; the rest then share a step, but for
 * long ones. fail: so manieth allocation, the first that of the first pass, then those of the shared
 * step, whose passes are then computed alone. bad: a root that is not
 * finite. */
static void gather(const char *fixture, int fail, int bad)
{
    enum { N = 6 };
    static const int64_t lengths[N] = {1, 3, 1, 8, 100, 2};
    world w = open_world(fixture, 300, 13);
    held roots[N] = {{0}};
    one_pass *passes = test_calloc(N, sizeof *passes);
    pthread_t threads[N];
    size_t page_bytes = qn_pages_unit_bytes(w.e->pages[0]);
    char *ff = test_malloc(page_bytes);
    for (int i = 0; i < N; i++) {
        go_on(&w, NULL, 40 + 7 * i, &roots[i]);
        passes[i] = (one_pass){.w = &w, .root = &roots[i], .n = lengths[i]};
        passes[i].logits = test_malloc((size_t)w.vocab * sizeof(float));
        for (int64_t j = 0; j < lengths[i]; j++) passes[i].ids[j] = (int32_t)(i * 31 + j) % 60;
    }
    memset(ff, 0xff, page_bytes);
    int32_t page = roots[2].handle->sequence.tables[0].ids[1];
    if (bad) w.e->device->ops->state_write(w.e->states[0], page, ff);
    qn_test_ok(qn_scheduler_enter(w.scheduler));
    for (int i = 0; i < N; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, run_one, &passes[i]), 0);
        while (count_waiting(&w) < i) sched_yield(); /* the first is taken out at once */
    }
    if (fail) qn_mem_fail_nth(fail);
    qn_scheduler_leave(w.scheduler);
    for (int i = 0; i < N; i++) pthread_join(threads[i], NULL);
    qn_mem_fail_nth(0);
    int n_failed = 0;
    for (int i = 0; i < N; i++) {
        const held *root = &roots[i];
        n_failed += passes[i].status != QN_OK;
        if (passes[i].status == QN_OK) {
            int32_t ids[IDS_MAX];
            memcpy(ids, root->ids, (size_t)root->n * sizeof *ids);
            memcpy(ids + root->n, passes[i].ids, (size_t)lengths[i] * sizeof *ids);
            memcpy(w.logits, passes[i].logits, (size_t)w.vocab * sizeof *w.logits);
            int64_t n = root->n + lengths[i];
            assert_true(hash(&w) == qn_test_last_hash(w.other, ids, n, n));
        } else {
            assert_int_equal(passes[i].status, bad ? QN_E_DEVICE : QN_E_NOMEM);
        }
        qn_handle_free(w.h, passes[i].out);
        test_free(passes[i].logits);
    }
    if (bad) assert_int_not_equal(passes[2].status, QN_OK);
    assert_int_equal(n_failed, bad || fail == 1);
    for (int i = 0; i < N; i++) qn_handle_free(w.h, roots[i].handle);
    test_free(passes);
    test_free(ff);
    close_world(&w);
}

static void company(void **state)
{
    gather("models/llama", 0, 0);
    gather("models/gemma3_text", 0, 0);
    gather("models/qwen3_5", 0, 0);
    gather("models/phi3_longrope", 0, 0);
}

static void failures_in_company(void **state)
{
    gather("models/llama", 0, 1);
    gather("models/phi3_longrope", 1, 0);
    gather("models/phi3_longrope", 2, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(full_attention),
                                       cmocka_unit_test(sliding_windows),
                                       cmocka_unit_test(recurrent),
                                       cmocka_unit_test(long_rope),
                                       cmocka_unit_test(forks_share_pages),
                                       cmocka_unit_test(wrong_calls),
                                       cmocka_unit_test(poisoned),
                                       cmocka_unit_test(not_finite),
                                       cmocka_unit_test(full),
                                       cmocka_unit_test(steady_state),
                                       cmocka_unit_test(steady_company),
                                       cmocka_unit_test(out_of_memory),
                                       cmocka_unit_test(threads),
                                       cmocka_unit_test(company),
                                       cmocka_unit_test(failures_in_company),
                                       cmocka_unit_test(from_nothing_out_of_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

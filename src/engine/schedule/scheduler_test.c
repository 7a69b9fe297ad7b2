/* The scheduler: who leads, how requests leave in each phase of their life, and what begins again. What they
 * compute is looked at in tests/engine/schedule_test.c and tests/engine/fire_test.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "base/random.h"
#include "engine/machine/engine_parts.h"
#include "engine/machine/images.h"
#include "engine/machine/prefixes.h"
#include "engine/schedule/scheduler_parts.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"

enum { N_IDS = 100, RING = 8 };

/* ---- requests ----------------------------------------------------------------------------------------- */

typedef struct {
    qn_engine *e;
    qn_scheduler *s;
} world;

/* What comes of a request that wants logits. */
typedef struct {
    world *w;
    int64_t next;
    float first[N_IDS]; /* of each position */
    qn_status waited, answer;
} seen;

typedef struct {
    qn_client client; /* first */
    qn_request r;
    seen got;
    int is_quit;
} job;

static world open_world(const char *path, qn_engine_options o, int background)
{
    world w;
    o.n_threads = 1;
    w.e = qn_test_engine(qn_test_need_fixture(path), NULL, o);
    qn_test_ok(qn_scheduler_new(w.e, &(qn_scheduler_options){.background = background}, &w.s));
    return w;
}

static void close_world(world *w)
{
    qn_figures f;
    qn_scheduler_get_figures(w->s, &f);
    assert_int_equal(f.n_active, 0);
    assert_int_equal(f.n_queued, 0);
    qn_test_ok(qn_scheduler_enter(w->s)); /* its own thread may look for work */
    assert_null(w->s->quitting);
    qn_scheduler_leave(w->s);
    assert_int_equal(qn_ledger_held(w->e->ledger, QN_LEDGER_KV), 0);
    qn_scheduler_free(w->s);
    qn_engine_close(w->e);
}

static qn_status take(void *user, int64_t position, int64_t n, float *logits)
{
    seen *got = user;
    int64_t vocab = qn_engine_config(got->w->e)->vocab_size;
    assert_int_equal(position, got->next); /* in order, each once */
    for (int64_t i = 0; i < n; i++) got->first[got->next++] = logits[i * vocab];
    got->waited = qn_scheduler_wait(got->w->s, &(qn_client){0}, 0);
    return got->answer;
}

static void begin(world *w, job *j, int64_t n_ids, int64_t max_tokens)
{
    int32_t ids[N_IDS];
    *j = (job){.got.w = w};
    for (int64_t i = 0; i < n_ids; i++) ids[i] = (int32_t)(1 + qn_random_bits(7, (uint64_t)i) % 199);
    j->r.client = &j->client;
    j->r.adapter = -1;
    j->r.room = qn_engine_get_info(w->e)->context_size;
    j->r.max_tokens = max_tokens;
    if (max_tokens) {
        const qn_generate_options o = {.ignore_eos = 1};
        qn_test_ok(qn_sampler_new(qn_engine_logits_kernels(w->e), &o, qn_engine_config(w->e)->vocab_size,
                                  NULL, &j->r.sampler));
    } else {
        j->r.evaluate = take;
        j->r.evaluate_user = &j->got;
        j->r.own_thread = 1;
    }
    qn_test_ok(qn_request_init(&j->r, ids, n_ids, max_tokens ? RING : 0, 0));
}

static void quit(qn_client *client)
{
    ((job *)client)->is_quit++;
}

static void end(world *w, job *j)
{
    qn_scheduler_quit(w->s, &j->client, 1, &j->r, quit);
    assert_int_equal(j->is_quit, 1);
    qn_sampler_free(j->r.sampler);
    qn_request_end(&j->r);
}

static int is_done(const job *j)
{
    return atomic_load_explicit(&j->r.is_done, memory_order_acquire);
}

static void drain(job *j)
{
    while (qn_ring_peek(&j->r.ring)) qn_ring_drop(&j->r.ring);
}

/* Reads all of it. */
static void finish(world *w, job *j)
{
    while (!is_done(j)) {
        qn_test_ok(qn_scheduler_wait(w->s, &j->client, j->r.own_thread));
        if (j->r.sampler) drain(j);
    }
}

/* One step, and no more. */
static void step(world *w, job *j)
{
    qn_test_ok(qn_scheduler_enter(w->s));
    qn_batch_step(w->s, j ? &j->client : NULL);
    for (qn_client *c = w->s->touched; c; c = c->next_touched) { /* as who leads does */
        c->is_touched = 0;
        c->has_signal = 1;
    }
    for (qn_request *r = w->s->ended; r; r = r->next) atomic_store(&r->is_settled, 1);
    w->s->touched = NULL;
    w->s->ended = NULL;
    qn_scheduler_leave(w->s);
}

/* ---- leaving ------------------------------------------------------------------------------------------ */

enum { SENT, QUEUED, PROMPT, DECODING, PARKED, DONE, N_PHASES };

static void leaves_in(world *w, int phase)
{
    job first, j;
    begin(w, &first, 70, 1000);
    begin(w, &j, 80, 1000);
    if (phase == QUEUED) {
        qn_test_ok(qn_scheduler_submit(w->s, 1, &first.r));
        step(w, &first);
    }
    if (phase == DONE) j.r.max_tokens = 3;
    qn_test_ok(qn_scheduler_submit(w->s, 1, &j.r));
    if (phase == QUEUED || phase == PROMPT) step(w, &j);
    if (phase == DECODING) qn_test_ok(qn_scheduler_wait(w->s, &j.client, 0));
    while (phase == PARKED && qn_ring_room(&j.r.ring) > 0) qn_test_ok(qn_scheduler_wait(w->s, &j.client, 0));
    if (phase == DONE) finish(w, &j);
    if (!w->s->has_thread) {
        assert_int_equal(j.r.sequence != NULL, phase == PROMPT || phase == DECODING || phase == PARKED);
        assert_int_equal(w->s->queued.n, phase == QUEUED);
    }
    end(w, &j);
    if (phase == QUEUED)
        end(w, &first);
    else {
        qn_sampler_free(first.r.sampler);
        qn_request_end(&first.r);
    }
    assert_int_equal(atomic_load(&w->s->n_open), 0);
}

/* Whatever a request is about: its owner may let go of it, and nothing of it is left. */
static void leaving(void **state)
{
    (void)state;
    for (int background = 0; background < 2; background++) {
        world w =
            open_world("models/llama", (qn_engine_options){.context_size = 200, .max_rows = 16}, background);
        for (int phase = 0; phase < N_PHASES; phase++) leaves_in(&w, phase);
        close_world(&w);
    }
}

/* ---- who leads ---------------------------------------------------------------------------------------- */

typedef struct {
    world *w;
    int kind, failed;
} caller;

static void *call(void *user)
{
    caller *c = user;
    for (int i = 0; i < 6 && !c->failed; i++) {
        job j;
        if (c->kind == 2) {
            c->failed |= qn_scheduler_enter(c->w->s) != QN_OK || qn_scheduler_enter(c->w->s) != QN_E_ARG;
            qn_scheduler_leave(c->w->s);
            continue;
        }
        begin(c->w, &j, 20 + 10 * c->kind, c->kind == 1 ? 20 : 0);
        c->failed |= qn_scheduler_submit(c->w->s, 1, &j.r) != QN_OK;
        finish(c->w, &j);
        c->failed |= j.r.end != (c->kind == 1 ? QN_END_LENGTH : QN_END_STOP);
        end(c->w, &j);
    }
    return NULL;
}

/* Threads that generate, evaluate and enter meet: all come to an end, with a thread of the scheduler's own
 * and without. Who is called by the leader cannot compute. */
static void meeting(void **state)
{
    (void)state;
    for (int background = 0; background < 2; background++) {
        world w = open_world("models/llama",
                             (qn_engine_options){.context_size = 200, .max_rows = 16, .max_sequences = 2},
                             background);
        pthread_t threads[6];
        caller callers[6];
        for (int i = 0; i < 6; i++) {
            callers[i] = (caller){&w, i % 3, 0};
            assert_int_equal(pthread_create(&threads[i], NULL, call, &callers[i]), 0);
        }
        for (int i = 0; i < 6; i++) {
            pthread_join(threads[i], NULL);
            assert_int_equal(callers[i].failed, 0);
        }
        job j;
        begin(&w, &j, 5, 0);
        qn_test_ok(qn_scheduler_submit(w.s, 1, &j.r));
        finish(&w, &j);
        assert_int_equal(j.got.waited, QN_E_ARG);
        end(&w, &j);
        close_world(&w);
    }
}

/* Without memory for its thread the scheduler is not made, and nothing is left. */
static void no_thread(void **state)
{
    (void)state;
    qn_engine *e = qn_test_engine(qn_test_need_fixture("models/llama"), NULL,
                                  (qn_engine_options){.context_size = 64, .n_threads = 1});
    qn_scheduler *s = NULL;
    qn_status status = QN_E_NOMEM;
    int said = 0;
    const int64_t live = qn_mem_live_blocks();
    for (int64_t nth = 1; status != QN_OK; nth++) {
        assert_true(nth < 100 && qn_mem_live_blocks() == live);
        qn_mem_fail_nth(nth);
        status = qn_scheduler_new(e, &(qn_scheduler_options){.background = 1}, &s);
        qn_mem_fail_nth(0);
        if (status == QN_OK) break;
        assert_int_equal(status, QN_E_NOMEM);
        said |= strstr(qn_last_error(), "cannot start another thread") != NULL;
    }
    assert_true(said);
    qn_scheduler_free(s);
    assert_int_equal(qn_mem_live_blocks(), live);
    qn_engine_close(e);
}

/* Who lets go of a request that has ended, while its step still computes others, waits for the end of that
 * step: he is woken by who leads, and not before. */
typedef struct {
    world *w;
    job *j;
    atomic_int is_back;
} leaver;

static void *leave(void *user)
{
    leaver *l = user;
    end(l->w, l->j);
    atomic_store(&l->is_back, 1);
    return NULL;
}

static void leaves_within_a_step(void **state)
{
    (void)state;
    world w = open_world("models/llama", (qn_engine_options){.context_size = 200, .max_rows = 16}, 0);
    job j, other;
    begin(&w, &j, 20, 3);
    begin(&w, &other, 20, 0);
    qn_test_ok(qn_scheduler_submit(w.s, 1, &j.r));
    leaver l = {.w = &w, .j = &j};
    pthread_t thread;
    qn_test_ok(qn_scheduler_enter(w.s));
    while (!is_done(&j)) { /* as in a step that goes on behind the end of one of its requests */
        qn_batch_step(w.s, NULL);
        drain(&j);
    }
    assert_int_equal(pthread_create(&thread, NULL, leave, &l), 0);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(atomic_load(&l.is_back), 0);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    qn_scheduler_leave(w.s);
    qn_test_ok(qn_scheduler_submit(w.s, 1, &other.r)); /* the next step tells who was touched */
    finish(&w, &other);
    pthread_join(thread, NULL);
    assert_int_equal(atomic_load(&l.is_back), 1);
    end(&w, &other);
    close_world(&w);
}

/* ---- pictures ----------------------------------------------------------------------------------------- */

enum { N_PICTURES = 3, SIDE = 90 };

/* A request with pictures, which its owner frees. */
static void begin_pictures(world *w, job *j)
{
    static uint8_t rgb[3 * SIDE * SIDE];
    static const qn_image images[N_PICTURES] = {
        {rgb, SIDE, SIDE, 0}, {rgb, SIDE, SIDE / 2, 0}, {rgb, SIDE / 3, SIDE, 0}};
    const qn_model_config *c = qn_engine_config(w->e);
    int32_t ids[2 * N_PICTURES];
    qn_images *im = NULL;
    for (size_t i = 0; i < sizeof rgb; i++) rgb[i] = (uint8_t)qn_random_bits(5, i);
    for (int i = 0; i < 2 * N_PICTURES; i++) ids[i] = i % 2 ? c->vision.image_token_id : 11 + i;
    qn_test_ok(qn_images_new(c, N_PICTURES, images, ids, 2 * N_PICTURES, 1000, &im));
    begin(w, j, 1, 4);
    qn_ids prompt = qn_images_prompt(im);
    qn_free(j->r.ids);
    qn_test_ok(qn_request_init(&j->r, prompt.ids, prompt.n_ids, 0, 0));
    j->r.images = im;
    j->r.n_unseen = N_PICTURES;
}

/* A picture a step, and every step feeds those who decode; whoever has time enough waits for all others. */
static void pictures(void **state)
{
    (void)state;
    for (int idle = 0; idle < 2; idle++) {
        world w =
            open_world("models/qwen2_vl",
                       (qn_engine_options){.context_size = 1000, .max_rows = 64, .max_sequences = 2}, 0);
        job text, seeing;
        begin(&w, &text, 20, 40);
        begin_pictures(&w, &seeing);
        if (idle) seeing.r.priority = QN_PRIORITY_IDLE;
        qn_test_ok(qn_scheduler_submit(w.s, 1, &text.r));
        while (!text.r.n_generated) step(&w, &text);
        qn_test_ok(qn_scheduler_submit(w.s, 1, &seeing.r));
        for (int i = 0; i < N_PICTURES; i++) {
            int64_t n = text.r.n_generated;
            step(&w, &text);
            drain(&text);
            assert_int_equal(text.r.n_generated, n + 1);
            assert_int_equal(seeing.r.n_unseen, idle ? N_PICTURES : N_PICTURES - 1 - i);
        }
        finish(&w, &text);
        finish(&w, &seeing);
        assert_int_equal(text.r.end, QN_END_LENGTH);
        assert_int_equal(seeing.r.end, QN_END_LENGTH);
        assert_int_equal(seeing.r.n_unseen, 0);
        qn_images *im = seeing.r.images;
        end(&w, &text);
        end(&w, &seeing);
        qn_images_free(im);
        close_world(&w);
    }
}

/* ---- what begins again -------------------------------------------------------------------------------- */

/* Logits are handed out once each, whether the request gives its place away or a step fails behind them. */
static void logits_once(void **state)
{
    (void)state;
    world w = open_world("models/llama",
                         (qn_engine_options){.context_size = 200, .max_rows = 40, .no_prefix_cache = 1}, 0);
    job plain, moved, lost;
    begin(&w, &plain, N_IDS, 0);
    qn_test_ok(qn_scheduler_submit(w.s, 1, &plain.r));
    finish(&w, &plain);
    assert_int_equal(plain.got.next, N_IDS);

    begin(&w, &moved, N_IDS, 0);
    qn_test_ok(qn_scheduler_submit(w.s, 1, &moved.r));
    step(&w, &moved);
    assert_int_equal(moved.got.next, 40);
    qn_test_ok(qn_scheduler_enter(w.s));
    qn_batch_preempt(w.s, &moved.r);
    qn_scheduler_leave(w.s);
    finish(&w, &moved);
    assert_int_equal(moved.r.end, QN_END_STOP);
    assert_int_equal(moved.got.next, N_IDS);
    assert_memory_equal(moved.got.first, plain.got.first, sizeof plain.got.first);

    begin(&w, &lost, N_IDS, 0);
    qn_test_ok(qn_scheduler_submit(w.s, 1, &lost.r));
    qn_program *head = w.e->head;
    w.e->head = w.e->norm; /* takes fewer rows, and fails when all else is computed */
    step(&w, &lost);
    w.e->head = head;
    assert_int_equal(lost.got.next, 0);
    finish(&w, &lost);
    assert_int_equal(lost.r.end, QN_END_STOP);
    assert_int_equal(lost.r.n_restarts, 1);
    assert_int_equal(lost.got.next, N_IDS);
    assert_memory_equal(lost.got.first, plain.got.first, sizeof plain.got.first);
    end(&w, &plain);
    end(&w, &moved);
    end(&w, &lost);
    close_world(&w);
}

/* A unit that holds no numbers. */
static void spoil_unit(const world *w, qn_state *state, const qn_pages *p, int32_t unit)
{
    size_t bytes = qn_pages_unit_bytes(p);
    char *bad = test_malloc(bytes);
    memset(bad, 0xff, bytes);
    w->e->device->ops->state_write(state, unit, bad);
    test_free(bad);
}

/* Keys and values that are no numbers, in the pages that the request holds now. */
static void spoil(world *w, const qn_request *r)
{
    const qn_block_table *t = &r->sequence->tables[0];
    for (int64_t i = t->n_released; i < t->n; i++) spoil_unit(w, w->e->states[0], w->e->pages[0], t->ids[i]);
}

static void submit_and_rotate(world *w, job *j)
{
    j->r.rotate = 1;
    j->r.room = INT32_MAX;
    for (qn_test_ok(qn_scheduler_submit(w->s, 1, &j->r)); !j->r.ids_base; drain(j))
        qn_test_ok(qn_scheduler_wait(w->s, &j->client, 0));
}

/* One that has gone on past its context has no ids to begin anew with: it fails. */
static void rotated(void **state)
{
    (void)state;
    world w = open_world("models/llama", (qn_engine_options){.context_size = 64, .max_rows = 64}, 0);
    job first, j;
    begin(&w, &first, 50, 1);
    qn_test_ok(qn_scheduler_submit(w.s, 1, &first.r));
    finish(&w, &first);
    begin(&w, &j, 50, 2000);
    submit_and_rotate(&w, &j);
    assert_true(j.r.n_attached > 0);
    qn_test_ok(qn_scheduler_enter(w.s));
    spoil(&w, &j.r);
    qn_scheduler_leave(w.s);
    finish(&w, &j);
    assert_int_equal(j.r.end, QN_END_ERROR);
    assert_int_equal(j.r.failure, QN_E_INTERNAL);
    end(&w, &first);
    end(&w, &j);
    close_world(&w);
}

/* So does one that has rotated and reads what another is found to have left. */
static void rotated_on_poison(void **state)
{
    (void)state;
    world w = open_world("models/llama", (qn_engine_options){.context_size = 64, .max_rows = 64}, 0);
    job first, j;
    begin(&w, &first, 50, 1);
    qn_test_ok(qn_scheduler_submit(w.s, 1, &first.r));
    finish(&w, &first);
    begin(&w, &j, 50, 2000);
    submit_and_rotate(&w, &j);
    qn_test_ok(qn_scheduler_enter(w.s));
    qn_batch_forget(w.s, &first.r);
    assert_true(j.r.is_poisoned);
    qn_scheduler_leave(w.s);
    finish(&w, &j);
    assert_int_equal(j.r.end, QN_END_ERROR);
    assert_int_equal(j.r.failure, QN_E_DEVICE);
    assert_non_null(strstr(j.r.message, "depends on"));
    end(&w, &first);
    end(&w, &j);
    close_world(&w);
}

/* Those that have rotated do not give way to each other: without memory for a page the oldest fails. */
static void rotated_without_memory(void **state)
{
    (void)state;
    world w = open_world("models/llama",
                         (qn_engine_options){.context_size = 64, .max_rows = 64, .max_sequences = 2}, 0);
    job jobs[2];
    for (int i = 0; i < 2; i++) {
        begin(&w, &jobs[i], 50, 2000);
        jobs[i].r.rotate = jobs[i].r.no_cache = 1;
        jobs[i].r.room = INT32_MAX;
        qn_test_ok(qn_scheduler_submit(w.s, 1, &jobs[i].r));
    }
    while (!jobs[0].r.ids_base || !jobs[1].r.ids_base) {
        step(&w, NULL);
        drain(&jobs[0]);
        drain(&jobs[1]);
    }
    qn_ledger_set_limit(w.e->ledger, 1);
    for (int i = 0; i < 2; i++) {
        while (!is_done(&jobs[i])) {
            step(&w, NULL);
            drain(&jobs[0]);
            drain(&jobs[1]);
        }
        assert_int_equal(is_done(&jobs[1]), i);
        assert_int_equal(jobs[i].r.end, QN_END_ERROR);
        assert_int_equal(jobs[i].r.failure, QN_E_NOMEM);
    }
    qn_ledger_set_limit(w.e->ledger, 0);
    for (int i = 0; i < 2; i++) end(&w, &jobs[i]);
    close_world(&w);
}

/* Who runs on what is found to be no good begins anew, by itself. */
static void poisoned(void **state)
{
    static const char *const paths[] = {"models/llama", "models/gemma3_text", "models/qwen3_5"};
    (void)state;
    for (int i = 0; i < 3; i++) {
        world w = open_world(paths[i],
                             (qn_engine_options){.context_size = 200, .max_rows = 64, .max_sequences = 2}, 0);
        job writer, user;
        begin(&w, &writer, 70, 100);
        begin(&w, &user, 80, 12);
        writer.r.n_stable = 64;
        qn_test_ok(qn_scheduler_submit(w.s, 1, &writer.r));
        qn_test_ok(qn_scheduler_wait(w.s, &writer.client, 0));
        qn_test_ok(qn_scheduler_submit(w.s, 1, &user.r));
        qn_test_ok(qn_scheduler_wait(w.s, &user.client, 0));
        assert_true(user.r.n_attached >= 64);
        assert_false(user.r.is_poisoned);
        qn_test_ok(qn_scheduler_enter(w.s));
        qn_batch_forget(w.s, &writer.r);
        qn_scheduler_leave(w.s);
        finish(&w, &user);
        assert_int_equal(user.r.end, QN_END_LENGTH);
        assert_int_equal(user.r.n_restarts, 1);
        assert_int_equal(user.r.n_attached, 0);
        end(&w, &writer);
        end(&w, &user);
        close_world(&w);
    }
}

/* What led to logits that are no numbers is not used again, whoever wanted them. */
static void no_numbers(void **state)
{
    (void)state;
    world w = open_world("models/llama", (qn_engine_options){.context_size = 200, .max_rows = 40}, 0);
    static const qn_status answers[] = {QN_OK, QN_E_CANCELLED, QN_E_INTERNAL};
    for (int i = 0; i < 3; i++) {
        job bad, next;
        qn_tree_clear(w.e->tree);
        begin(&w, &bad, N_IDS, 0);
        bad.r.logits_from = N_IDS - 1;
        bad.got.next = N_IDS - 1;
        bad.got.answer = answers[i];
        qn_test_ok(qn_scheduler_submit(w.s, 1, &bad.r));
        finish(&w, &bad);
        assert_int_equal(bad.r.end, answers[i] == QN_OK ? QN_END_STOP : QN_END_ERROR);
        begin(&w, &next, N_IDS, 1);
        qn_test_ok(qn_scheduler_submit(w.s, 1, &next.r));
        finish(&w, &next);
        assert_int_equal(next.r.n_attached > 0, answers[i] != QN_E_INTERNAL);
        end(&w, &bad);
        end(&w, &next);
    }
    close_world(&w);
}

/* ---- who is to blame ---------------------------------------------------------------------------------- */

static const char *const kinds[] = {"models/llama", "models/gemma3_text", "models/qwen3_5"};

static world open_shared(const char *path)
{
    return open_world(path, (qn_engine_options){.context_size = 200, .max_rows = 64, .max_sequences = 4}, 0);
}

static void run(world *w, job *j)
{
    qn_test_ok(qn_scheduler_submit(w->s, 1, &j->r));
    finish(w, j);
}

/* One request leaves prefixes of 64 and 70 ids, of which the first is pinned. */
static void leave_prefix(world *w)
{
    job writer;
    begin(w, &writer, 70, 1);
    writer.r.n_stable = 64;
    run(w, &writer);
    assert_int_equal(writer.r.end, QN_END_LENGTH);
    qn_test_ok(qn_tree_pin(w->e->tree, &(qn_tree_key){.adapter = -1}, writer.r.ids, 64, "system"));
    end(w, &writer);
}

static qn_status spoil_node(void *user, const qn_tree_view *v)
{
    const world *w = user;
    for (int g = 0; g < w->e->groups.n; g++)
        for (int64_t i = 0; i < v->n_pages; i++)
            if (v->pages[g][i] >= 0) spoil_unit(w, w->e->states[g], w->e->pages[g], v->pages[g][i]);
    if (v->slot >= 0) spoil_unit(w, w->e->recurrent, w->e->slots, v->slot);
    return QN_OK;
}

static void same_ids(const job *a, const job *b)
{
    assert_int_equal(a->r.end, QN_END_LENGTH);
    assert_int_equal(a->r.n_ids, b->r.n_ids);
    assert_memory_equal(a->r.ids, b->r.ids, (size_t)a->r.n_ids * sizeof *a->r.ids);
}

/* Keys, values and state that another left are no numbers: who reads them begins anew and has the bits that
 * it has alone, whether tokens or logits are wanted, and nobody reads them again. */
static void reads_no_numbers(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        world w = open_shared(kinds[i / 2]);
        int64_t n_tokens = i % 2 ? 12 : 0;
        qn_figures f;
        job alone, reader, next;
        begin(&w, &alone, 80, n_tokens);
        begin(&w, &reader, 80, n_tokens);
        begin(&w, &next, 80, 1);
        alone.r.no_cache = 1;
        alone.r.logits_from = reader.r.logits_from = n_tokens ? 0 : 75;
        alone.got.next = reader.got.next = alone.r.logits_from;
        run(&w, &alone);
        leave_prefix(&w);
        qn_test_ok(qn_tree_walk(w.e->tree, spoil_node, &w));
        run(&w, &reader);
        assert_true(reader.r.n_cached >= 64);
        assert_int_equal(reader.r.n_restarts, 1);
        assert_int_equal(reader.r.n_attached, 0);
        if (n_tokens) {
            same_ids(&reader, &alone);
        } else {
            assert_int_equal(reader.r.end, QN_END_STOP);
            assert_int_equal(reader.got.next, 80);
            assert_memory_equal(reader.got.first + 75, alone.got.first + 75, 5 * sizeof(float));
        }
        assert_int_equal(qn_tree_unpin(w.e->tree, "system"), QN_E_NOT_FOUND);
        assert_null(qn_tree_check(w.e->tree));
        run(&w, &next);
        assert_true(next.r.n_attached > 0); /* what the reader has computed by itself */
        assert_int_equal(next.r.n_restarts, 0);
        assert_int_equal(next.r.end, QN_END_LENGTH);
        qn_scheduler_get_figures(w.s, &f);
        assert_int_equal(f.n_restarts, 1);
        assert_int_equal(f.n_failed, 0);
        end(&w, &alone);
        end(&w, &reader);
        end(&w, &next);
        close_world(&w);
    }
}

/* When what it has computed by itself gives no numbers either, it fails, and nothing else does. */
static void is_to_blame_itself(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        world w = open_shared(kinds[i % 2]);
        job bad, next;
        begin(&w, &bad, 80, i < 2 ? 12 : 0);
        begin(&w, &next, 80, 1);
        bad.r.logits_from = bad.got.next = i < 2 ? 0 : 79;
        bad.got.answer = QN_E_INTERNAL; /* of one who looks at what he gets */
        leave_prefix(&w);
        qn_test_ok(qn_tree_walk(w.e->tree, spoil_node, &w));
        qn_test_ok(qn_scheduler_submit(w.s, 1, &bad.r));
        step(&w, &bad);
        assert_int_equal(bad.r.n_restarts, 1);
        step(&w, &bad); /* 64 of 80 ids */
        assert_false(is_done(&bad));
        spoil(&w, &bad.r);
        finish(&w, &bad);
        assert_int_equal(bad.r.end, QN_END_ERROR);
        assert_int_equal(bad.r.failure, QN_E_INTERNAL);
        assert_int_equal(bad.r.n_restarts, 1);
        run(&w, &next);
        assert_int_equal(next.r.n_attached, 0);
        assert_int_equal(next.r.end, QN_END_LENGTH);
        end(&w, &bad);
        end(&w, &next);
        close_world(&w);
    }
}

/* Logits that are no numbers go to who wants them when they came of nothing that was given, and what led to
 * them is not kept, whatever he says. */
static void gets_no_numbers(void **state)
{
    (void)state;
    world w = open_shared(kinds[0]);
    job bad, next;
    begin(&w, &bad, 80, 0);
    begin(&w, &next, 80, 1);
    bad.r.logits_from = bad.got.next = 79;
    qn_test_ok(qn_scheduler_submit(w.s, 1, &bad.r));
    step(&w, &bad);
    spoil(&w, &bad.r);
    finish(&w, &bad);
    assert_int_equal(bad.r.end, QN_END_STOP);
    assert_true(bad.got.first[79] != bad.got.first[79]);
    run(&w, &next);
    assert_int_equal(next.r.n_attached, 0);
    end(&w, &bad);
    end(&w, &next);
    close_world(&w);
}

/* Who shares what is blamed begins anew; who wrote it goes on, for it has computed all by itself. */
static void others_go_on(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        world w = open_shared(kinds[i]);
        job alone[2], writer, reader, other;
        for (int k = 0; k < 2; k++) {
            begin(&w, &alone[k], k ? 80 : 70, 12);
            alone[k].r.no_cache = 1;
            run(&w, &alone[k]);
        }
        begin(&w, &writer, 70, 12);
        begin(&w, &reader, 80, 12);
        begin(&w, &other, 80, 12);
        writer.r.n_stable = 64;
        qn_test_ok(qn_scheduler_submit(w.s, 1, &writer.r));
        while (!writer.r.n_generated) step(&w, &writer);
        qn_test_ok(qn_scheduler_submit(w.s, 1, &reader.r));
        qn_test_ok(qn_scheduler_submit(w.s, 1, &other.r));
        while (!reader.r.n_generated || !other.r.n_generated) step(&w, &reader);
        assert_true(reader.r.n_attached >= 64 && other.r.n_attached >= 64);
        qn_test_ok(qn_scheduler_enter(w.s));
        assert_int_equal(qn_batch_blame(w.s, &writer.r), 0);
        assert_int_equal(qn_batch_blame(w.s, &reader.r), 1);
        assert_true(qn_sequence_is_poisoned(writer.r.sequence));
        assert_true(other.r.is_poisoned);
        assert_false(writer.r.is_poisoned);
        assert_int_equal(qn_batch_begin_anew(w.s, &reader.r), 1);
        qn_scheduler_leave(w.s);
        finish(&w, &writer);
        finish(&w, &reader);
        finish(&w, &other);
        assert_int_equal(writer.r.n_restarts, 0);
        assert_int_equal(reader.r.n_restarts, 1);
        assert_int_equal(other.r.n_restarts, 1);
        same_ids(&writer, &alone[0]);
        same_ids(&reader, &alone[1]);
        same_ids(&other, &alone[1]);
        assert_null(qn_tree_check(w.e->tree));
        job *const all[] = {&alone[0], &alone[1], &writer, &reader, &other};
        for (int k = 0; k < 5; k++) end(&w, all[k]);
        close_world(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(leaving),
        cmocka_unit_test(meeting),
        cmocka_unit_test(no_thread),
        cmocka_unit_test(leaves_within_a_step),
        cmocka_unit_test(pictures),
        cmocka_unit_test(logits_once),
        cmocka_unit_test(rotated),
        cmocka_unit_test(rotated_on_poison),
        cmocka_unit_test(rotated_without_memory),
        cmocka_unit_test(poisoned),
        cmocka_unit_test(no_numbers),
        cmocka_unit_test(reads_no_numbers),
        cmocka_unit_test(is_to_blame_itself),
        cmocka_unit_test(gets_no_numbers),
        cmocka_unit_test(others_go_on),
    };
    return cmocka_run_group_tests_name("scheduler", tests, NULL, NULL);
}

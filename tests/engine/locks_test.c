/* A profile of locks: no thread holds one while it computes a forward pass, so none can keep a caller waiting
 * for as long as that takes; and a pass that does not end keeps nobody from submitting. The linker leads the
 * calls below here (see the Makefile). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <quern/quern.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "array/program.h"
#include "tests/engine/requests.h"
#include "tests/support/engine_help.h"

enum { CALLERS = 5, REQUESTS = 60, HELD_MAX = 16, PATIENCE_S = 20 };

/* ---- the profile ----------------------------------------------------------------------------------------
 */

static _Thread_local const void *held[HELD_MAX];
static _Thread_local int n_held, n_locked, n_waited;
static atomic_int n_passes, n_passes_locked, n_most_held;

/* A pass that is told to stops at its beginning until it is let go. */
static atomic_int shall_stop;
static sem_t has_stopped, may_go;
static atomic_int gave_up;

static void take(const void *mutex)
{
    if (n_held < HELD_MAX) held[n_held] = mutex;
    n_held++;
    n_locked++;
    if (n_held > atomic_load(&n_most_held)) atomic_store(&n_most_held, n_held);
}

static void let_go(const void *mutex)
{
    int i = n_held < HELD_MAX ? n_held : HELD_MAX;
    while (i > 0 && held[i - 1] != mutex) i--;
    for (; i > 0 && i < n_held && i < HELD_MAX; i++) held[i - 1] = held[i];
    n_held--;
}

int __real_pthread_mutex_lock(pthread_mutex_t *m);
int __wrap_pthread_mutex_lock(pthread_mutex_t *m);
int __wrap_pthread_mutex_lock(pthread_mutex_t *m)
{
    int result = __real_pthread_mutex_lock(m);
    take(m);
    return result;
}

int __real_pthread_mutex_trylock(pthread_mutex_t *m);
int __wrap_pthread_mutex_trylock(pthread_mutex_t *m);
int __wrap_pthread_mutex_trylock(pthread_mutex_t *m)
{
    int result = __real_pthread_mutex_trylock(m);
    if (result == 0) take(m);
    return result;
}

int __real_pthread_mutex_unlock(pthread_mutex_t *m);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *m);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *m)
{
    let_go(m);
    return __real_pthread_mutex_unlock(m);
}

int __real_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m);
int __wrap_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m);
int __wrap_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m)
{
    n_waited++;
    return __real_pthread_cond_wait(c, m);
}

int __real_pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *until);
int __wrap_pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *until);
int __wrap_pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *until)
{
    n_waited++;
    return __real_pthread_cond_timedwait(c, m, until);
}

qn_status __real_qn_program_run(qn_program *p, const qn_sizes *sizes);
qn_status __wrap_qn_program_run(qn_program *p, const qn_sizes *sizes);
qn_status __wrap_qn_program_run(qn_program *p, const qn_sizes *sizes)
{
    atomic_fetch_add(&n_passes, 1);
    if (n_held) atomic_fetch_add(&n_passes_locked, 1);
    if (atomic_exchange(&shall_stop, 0)) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += PATIENCE_S;
        sem_post(&has_stopped);
        if (sem_timedwait(&may_go, &until) != 0) atomic_store(&gave_up, 1);
    }
    return __real_qn_program_run(p, sizes);
}

/* ---- tests ----------------------------------------------------------------------------------------------
 */

static qn_model *open_mock(qn_model_options o)
{
    qn_model *model = NULL;
    o.backend = "mock";
    o.n_threads = 2;
    qn_test_ok(qn_model_open("9", &o, &model));
    return model;
}

typedef struct {
    qn_model *model;
    atomic_int next, n_failed;
} work;

static void *call(void *user)
{
    work *w = user;
    for (int i; (i = atomic_fetch_add(&w->next, 1)) < REQUESTS;) {
        qn_test_draws d = {.seed = (uint64_t)i};
        qn_generate_options o = {.max_tokens = 1 + qn_test_draw(&d, 20), .temperature = 1, .seed = 3};
        qn_generation *g = NULL;
        qn_token t = {0};
        char text[64];
        snprintf(text, sizeof text, "%s %d", i % 2 ? "Some begin like this" : "", i);
        int good = qn_generate(w->model, text, &o, &g) == QN_OK;
        while (good && t.end == QN_END_NONE) good = qn_generation_next(g, &t) == QN_OK;
        qn_generation_close(g);
        if (!good) atomic_fetch_add(&w->n_failed, 1);
    }
    return NULL;
}

static void test_no_lock_while_computing(void **state)
{
    for (int32_t slots = 1; slots <= 4; slots += 3) {
        work w = {.model = open_mock((qn_model_options){.parallel_slots = slots})};
        pthread_t threads[CALLERS];
        atomic_store(&n_passes, 0);
        atomic_store(&n_passes_locked, 0);
        for (int i = 0; i < CALLERS; i++) assert_int_equal(pthread_create(&threads[i], NULL, call, &w), 0);
        for (int i = 0; i < CALLERS; i++) pthread_join(threads[i], NULL);
        qn_model_close(&w.model);
        assert_int_equal(atomic_load(&w.n_failed), 0);
        print_message("%d forward passes, %d of them under a lock; at most %d locks held by one thread\n",
                      atomic_load(&n_passes), atomic_load(&n_passes_locked), atomic_load(&n_most_held));
        assert_true(atomic_load(&n_passes) > REQUESTS);
        assert_int_equal(atomic_load(&n_passes_locked), 0);
        assert_int_equal(n_held, 0);
    }
}

static void *read_all(void *user)
{
    qn_token t = {0};
    while (t.end == QN_END_NONE && qn_generation_next(user, &t) == QN_OK)
        ;
    return NULL;
}

/* The first pass of a long prompt stands still meanwhile. */
static void test_submit_waits_for_nobody(void **state)
{
    enum { LONG = 4000, MORE = 8 };
    static int32_t ids[LONG];
    qn_generation *first = NULL, *more[MORE];
    pthread_t thread;
    qn_memory memory;
    qn_metrics metrics;
    qn_generate_options o = {.max_tokens = 3};
    char *text;
    for (int i = 0; i < LONG; i++) ids[i] = 300 + i;
    qn_model *model = open_mock((qn_model_options){.parallel_slots = 4});
    qn_test_ok(
        qn_generation_open(model, &(qn_prompt){.rows = &(qn_ids){ids, LONG}, .n_rows = 1}, &o, &first));
    atomic_store(&shall_stop, 1);
    assert_int_equal(pthread_create(&thread, NULL, read_all, first), 0);
    while (sem_wait(&has_stopped) != 0)
        ;

    n_waited = n_locked = 0;
    for (int i = 0; i < MORE; i++)
        qn_test_ok(qn_generation_open(model, &(qn_prompt){.rows = &(qn_ids){ids + i, 4}, .n_rows = 1}, &o,
                                      &more[i]));
    print_message("qn_generation_open: %d locks taken for a row of ids, %d waits\n", n_locked / MORE,
                  n_waited);
    assert_int_equal(n_waited, 0);
    qn_generation_cancel(more[0]);
    qn_test_ok(qn_model_get_memory(model, &memory));
    qn_test_ok(qn_model_get_metrics(model, &metrics));
    qn_test_ok(qn_model_decode(model, ids, 5, NULL, &text, NULL));
    qn_buffer_free(text);
    assert_int_equal(n_waited, 0);
    assert_int_equal(n_held, 0);
    assert_false(atomic_load(&gave_up));

    sem_post(&may_go);
    pthread_join(thread, NULL);
    for (int i = 0; i < MORE; i++) {
        read_all(more[i]);
        qn_generation_close(more[i]);
    }
    qn_generation_close(first);
    qn_model_close(&model);
}

int main(void)
{
    sem_init(&has_stopped, 0, 0);
    sem_init(&may_go, 0, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_lock_while_computing),
        cmocka_unit_test(test_submit_waits_for_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

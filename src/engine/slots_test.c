#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/random.h"
#include "engine/slots.h"

enum { PLACES = 3, THREADS = 6, ROUNDS = 300 };

static qn_slots *slots;
static atomic_int held, computing, stopped;

static qn_status go_on(void *user)
{
    return QN_OK;
}

static qn_status stop_when_told(void *user)
{
    return atomic_load(&stopped) ? QN_E_CANCELLED : QN_OK;
}

static void sleep_ms(int ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000L}, NULL);
}

static void *work(void *seed)
{
    for (uint64_t i = 0; i < ROUNDS; i++) {
        qn_slots_holder h = {0};
        int n = 1 + (int)(qn_random_bits((uintptr_t)seed, i) % PLACES);
        if (qn_slots_take(slots, n, &h, go_on, NULL) != QN_OK) return "take failed";
        if (atomic_fetch_add(&held, n) + n > PLACES) return "too many places";
        qn_slots_begin_turn(slots, &h);
        if (atomic_fetch_add(&computing, 1) != 0) return "two turns at once";
        atomic_fetch_sub(&computing, 1);
        qn_slots_end_turn(slots);
        atomic_fetch_sub(&held, n);
        qn_slots_give(slots, &h);
    }
    return NULL;
}

static void test_many_threads(void **state)
{
    pthread_t threads[THREADS];
    assert_int_equal(qn_slots_new(PLACES, &slots), QN_OK);
    for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, (void *)(i + 1));
    for (int i = 0; i < THREADS; i++) {
        void *fault;
        pthread_join(threads[i], &fault);
        if (fault) fail_msg("%s", (const char *)fault);
    }
    qn_slots_free(slots);
}

/* Waits for n places and notes when it got them. */
typedef struct {
    int64_t n;
    int place; /* 1: the first to get its places; -1: it was stopped */
} waiter;

static atomic_int next_place;

static void *wait_for_places(void *user)
{
    waiter *w = user;
    qn_slots_holder h = {0};
    qn_status status = qn_slots_take(slots, w->n, &h, w->n == 1 ? go_on : stop_when_told, NULL);
    w->place = status == QN_OK ? atomic_fetch_add(&next_place, 1) + 1 : -1;
    qn_slots_give(slots, &h);
    return NULL;
}

/* A call that wants all places is not overtaken by smaller ones, and lets them through when it is cancelled.
 */
static void test_order_of_arrival(void **state)
{
    for (int cancel = 0; cancel < 2; cancel++) {
        qn_slots_holder mine = {0};
        waiter big = {.n = PLACES}, small = {.n = 1};
        pthread_t a, b;
        atomic_store(&next_place, 0);
        atomic_store(&stopped, 0);
        assert_int_equal(qn_slots_new(PLACES, &slots), QN_OK);
        assert_int_equal(qn_slots_take(slots, 1, &mine, go_on, NULL), QN_OK);
        pthread_create(&a, NULL, wait_for_places, &big);
        sleep_ms(30);
        pthread_create(&b, NULL, wait_for_places, &small);
        sleep_ms(30);
        assert_int_equal(atomic_load(&next_place), 0);
        if (cancel) {
            atomic_store(&stopped, 1);
            pthread_join(b, NULL); /* while `mine` is still held */
        }
        qn_slots_give(slots, &mine);
        pthread_join(a, NULL);
        if (!cancel) pthread_join(b, NULL);
        assert_int_equal(big.place, cancel ? -1 : 1);
        assert_int_equal(small.place, cancel ? 1 : 2);
        qn_slots_free(slots);
    }
}

static void test_a_thread_does_not_wait_for_itself(void **state)
{
    qn_slots_holder first = {0}, second = {0};
    assert_int_equal(qn_slots_new(2, &slots), QN_OK);
    assert_int_equal(qn_slots_take(slots, 1, &first, go_on, NULL), QN_OK);
    assert_int_equal(qn_slots_take(slots, 2, &second, go_on, NULL), QN_E_FULL);
    assert_int_equal(qn_slots_take(slots, 1, &second, go_on, NULL), QN_OK);
    qn_slots_give(slots, &first);
    qn_slots_give(slots, &first);
    qn_slots_give(slots, &second);
    assert_int_equal(qn_slots_take(slots, 2, &second, go_on, NULL), QN_OK);
    qn_slots_give(slots, &second);
    qn_slots_free(slots);
}

static atomic_int turns, wanting;

static void compute_for_a_while(void)
{
    int64_t start = qn_clock_ns();
    while (qn_clock_ns() - start < 300000) {
    }
}

static void *take_turns_greedily(void *user)
{
    while (!atomic_load(&stopped)) {
        qn_slots_begin_turn(slots, NULL);
        if (atomic_load(&wanting)) atomic_fetch_add(&turns, 1);
        compute_for_a_while();
        qn_slots_end_turn(slots);
    }
    return NULL;
}

/* One that computes without pause does not keep the turn from another. */
static void test_turns_go_round(void **state)
{
    enum { TURNS = 30 };
    pthread_t greedy;
    atomic_store(&stopped, 0);
    assert_int_equal(qn_slots_new(2, &slots), QN_OK);
    pthread_create(&greedy, NULL, take_turns_greedily, NULL);
    for (int i = 0; i < TURNS; i++) {
        sleep_ms(1);
        atomic_store(&wanting, 1);
        qn_slots_begin_turn(slots, NULL);
        atomic_store(&wanting, 0);
        qn_slots_end_turn(slots);
    }
    atomic_store(&stopped, 1);
    pthread_join(greedy, NULL);
    qn_slots_free(slots);
    if (atomic_load(&turns) > 4 * TURNS) fail_msg("waited for %d turns of another", atomic_load(&turns));
}

/* Who has the turn may take it again (a sequence is freed while logits are handed out); new places it cannot
 * have: they would be used inside a step. */
static void test_a_turn_within_a_turn(void **state)
{
    qn_slots_holder h = {0};
    assert_int_equal(qn_slots_new(2, &slots), QN_OK);
    assert_int_equal(qn_slots_check_thread(slots), QN_OK);
    qn_slots_begin_turn(slots, NULL);
    qn_slots_begin_turn(slots, NULL);
    qn_slots_end_turn(slots);
    assert_int_equal(qn_slots_check_thread(slots), QN_E_ARG);
    assert_int_equal(qn_slots_take(slots, 1, &h, go_on, NULL), QN_E_ARG);
    qn_slots_end_turn(slots);
    assert_int_equal(qn_slots_check_thread(slots), QN_OK);
    assert_int_equal(qn_slots_take(slots, 1, &h, go_on, NULL), QN_OK);
    qn_slots_give(slots, &h);
    qn_slots_free(slots);
}

static void test_allocation_failures(void **state)
{
    int64_t before = qn_mem_live_blocks();
    qn_slots *s = NULL;
    qn_mem_fail_nth(1);
    assert_int_equal(qn_slots_new(2, &s), QN_E_NOMEM);
    assert_null(s);
    assert_int_equal(qn_mem_live_blocks(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_threads),
        cmocka_unit_test(test_order_of_arrival),
        cmocka_unit_test(test_a_thread_does_not_wait_for_itself),
        cmocka_unit_test(test_turns_go_round),
        cmocka_unit_test(test_a_turn_within_a_turn),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

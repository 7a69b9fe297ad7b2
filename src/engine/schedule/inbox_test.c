/* The way in and the way out of the scheduler: nothing is lost, nothing comes twice, and each sender's order
 * stays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "base/mem.h"
#include "engine/schedule/inbox.h"
#include "engine/schedule/ring.h"

enum { SENDERS = 4, LETTERS = 5000, TOKENS = 50000, PLACES = 8, TOP = 3 };

typedef struct {
    qn_letter letter;
    int sender, number;
} letter;

typedef struct {
    qn_inbox *inbox;
    letter letters[LETTERS];
} sender;

static void test_order(void **state)
{
    qn_inbox inbox = {0};
    letter letters[5];
    assert_false(qn_inbox_has(&inbox));
    assert_null(qn_inbox_take(&inbox));
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 5; i++) {
            letters[i].number = i;
            qn_inbox_send(&inbox, &letters[i].letter);
        }
        assert_true(qn_inbox_has(&inbox));
        int n = 0;
        for (qn_letter *l = qn_inbox_take(&inbox); l; l = l->next)
            assert_int_equal(((letter *)l)->number, n++);
        assert_int_equal(n, 5);
        assert_false(qn_inbox_has(&inbox));
    }
}

static void *send_all(void *user)
{
    sender *s = user;
    for (int i = 0; i < LETTERS; i++) {
        qn_inbox_send(s->inbox, &s->letters[i].letter);
        if (i % 64 == 0) sched_yield();
    }
    return NULL;
}

static void test_many_senders(void **state)
{
    static sender senders[SENDERS];
    qn_inbox inbox = {0};
    pthread_t threads[SENDERS];
    int n[SENDERS] = {0}, total = 0;
    for (int i = 0; i < SENDERS; i++) {
        senders[i].inbox = &inbox;
        for (int j = 0; j < LETTERS; j++) senders[i].letters[j] = (letter){.sender = i, .number = j};
        assert_int_equal(pthread_create(&threads[i], NULL, send_all, &senders[i]), 0);
    }
    while (total < SENDERS * LETTERS) {
        qn_letter *next, *l = qn_inbox_take(&inbox);
        if (!l) sched_yield();
        for (; l; l = next, total++) {
            const letter *got = (const letter *)l;
            next = l->next;
            assert_int_equal(got->number, n[got->sender]++);
        }
    }
    for (int i = 0; i < SENDERS; i++) pthread_join(threads[i], NULL);
    assert_false(qn_inbox_has(&inbox));
}

typedef struct {
    qn_ring ring;
    atomic_int n_wrong, n_was_full;
} channel;

static void *read_all(void *user)
{
    channel *c = user;
    for (int i = 0; i < TOKENS; i++) {
        const qn_drawn *d;
        while (!(d = qn_ring_peek(&c->ring))) sched_yield();
        int good = d->id == i && d->n_top == i % (TOP + 1);
        for (int j = 0; j < d->n_top; j++) good &= d->top[j].id == i + j;
        if (!good) atomic_fetch_add(&c->n_wrong, 1);
        if (qn_ring_drop(&c->ring)) atomic_fetch_add(&c->n_was_full, 1);
    }
    return NULL;
}

static void test_ring(void **state)
{
    channel c = {0};
    pthread_t thread;
    assert_int_equal(qn_ring_init(&c.ring, PLACES, TOP), QN_OK);
    assert_int_equal(qn_ring_room(&c.ring), PLACES);
    assert_null(qn_ring_peek(&c.ring));
    assert_int_equal(pthread_create(&thread, NULL, read_all, &c), 0);
    for (int i = 0; i < TOKENS;) {
        int64_t room = qn_ring_room(&c.ring), n = room < TOKENS - i ? room : TOKENS - i;
        if (!room) sched_yield();
        for (int64_t k = 0; k < n; k++, i++) {
            qn_drawn *d = qn_ring_place(&c.ring, k);
            d->id = i;
            d->n_top = i % (TOP + 1);
            for (int j = 0; j < d->n_top; j++) d->top[j].id = i + j;
        }
        qn_ring_publish(&c.ring, n);
    }
    pthread_join(thread, NULL);
    assert_int_equal(atomic_load(&c.n_wrong), 0);
    assert_int_equal(qn_ring_room(&c.ring), PLACES);
    qn_ring_end(&c.ring);
    qn_ring_end(&c.ring);
}

/* Who reads from a full ring is told, so that he tells who writes. */
static void test_full_ring(void **state)
{
    qn_ring r = {0};
    assert_int_equal(qn_ring_init(&r, 2, 0), QN_OK);
    qn_ring_place(&r, 0)->id = 1;
    qn_ring_publish(&r, 1);
    assert_int_equal(qn_ring_drop(&r), 0);
    qn_ring_publish(&r, 2);
    assert_int_equal(qn_ring_room(&r), 0);
    assert_int_not_equal(qn_ring_drop(&r), 0);
    assert_int_equal(qn_ring_drop(&r), 0);
    assert_null(qn_ring_peek(&r));
    qn_ring_end(&r);
}

static void test_memory(void **state)
{
    int64_t before = qn_mem_live_blocks();
    for (int64_t n = 1; n <= 2; n++) {
        qn_ring r = {0};
        qn_mem_fail_nth(n);
        assert_int_equal(qn_ring_init(&r, PLACES, TOP), QN_E_NOMEM);
        qn_mem_fail_nth(0);
        qn_ring_end(&r);
        assert_int_equal(qn_mem_live_blocks(), before);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),     cmocka_unit_test(test_many_senders), cmocka_unit_test(test_ring),
        cmocka_unit_test(test_full_ring), cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

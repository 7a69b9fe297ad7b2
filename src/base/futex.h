/* Sleeping on a word: the system keeps a thread asleep as long as the word has a value.
 *
 * Who changes the word wakes the sleepers afterwards. A sleeper may wake without cause and looks again; the
 * word may be gone by the time of the wake (its sleeper has seen the change without help): nothing is read of
 * it. Any thread. */
#ifndef QN_BASE_FUTEX_H
#define QN_BASE_FUTEX_H

#include <linux/futex.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Returns at once where the word has another value. */
static inline void qn_futex_wait(atomic_uint *word, unsigned value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

/* Wakes n of those who sleep on the word. */
static inline void qn_futex_wake(atomic_uint *word, int n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

#endif

#include "cli/interrupt.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

static _Atomic(qn_generation *) watched;
static atomic_int n_inside; /* handlers that run, on whatever thread */
static volatile sig_atomic_t interrupted;
static _Atomic(const char *) last_words;

static void on_interrupt(int signal_number)
{
    if (interrupted) {
        const char *words = atomic_load(&last_words);
        if (words && write(STDOUT_FILENO, words, strlen(words)) < 0) { /* nobody is left to be told */
        }
        signal(signal_number, SIG_DFL);
        raise(signal_number);
        return;
    }
    interrupted = 1;
    atomic_fetch_add(&n_inside, 1);
    qn_generation_cancel(atomic_load(&watched));
    atomic_fetch_sub(&n_inside, 1);
}

void qn_interrupt_start(void)
{
    /* Without SA_RESTART, so that a read from the terminal comes back. */
    struct sigaction action = {.sa_handler = on_interrupt};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

void qn_interrupt_watch(qn_generation *generation)
{
    atomic_store(&watched, generation);
    while (
        atomic_load(&n_inside)) { /* one may still hold the generation before, which is about to be closed */
    }
    /* Ctrl-C came while there was nothing to cancel yet. */
    if (generation && interrupted) qn_generation_cancel(generation);
}

void qn_interrupt_set_last_words(const char *bytes)
{
    atomic_store(&last_words, bytes);
}

int qn_interrupt_taken(void)
{
    int taken = interrupted;
    interrupted = 0;
    return taken;
}

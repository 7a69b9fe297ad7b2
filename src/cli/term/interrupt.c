#include "cli/term/interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

static _Atomic(qn_generation *) watched;
static _Atomic(qn_batch *) watched_batch;
static _Atomic(qn_cancel *) watched_call;
static _Atomic(qn_training *) watched_training;
static atomic_int n_inside; /* handlers that run, on whatever thread */
static volatile sig_atomic_t interrupted;
static _Atomic(const char *) last_words;
static int wake[2] = {-1, -1}; /* a pipe with a byte for each Ctrl-C that nobody has looked at */

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
    int before = errno;
    interrupted = 1;
    if (write(wake[1], "", 1) < 0) { /* it is full: that wakes as well */
    }
    atomic_fetch_add(&n_inside, 1);
    qn_generation_cancel(atomic_load(&watched));
    qn_batch_cancel(atomic_load(&watched_batch));
    qn_cancel_set(atomic_load(&watched_call));
    qn_training *training = atomic_load(&watched_training);
    if (training) qn_training_stop(training);
    atomic_fetch_sub(&n_inside, 1);
    errno = before;
}

void qn_interrupt_start(void)
{
    /* Without SA_RESTART, so that a read from the terminal comes back. */
    struct sigaction action = {.sa_handler = on_interrupt};
    if (wake[0] < 0 && pipe2(wake, O_CLOEXEC | O_NONBLOCK) != 0) wake[0] = wake[1] = -1;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

void qn_interrupt_start_for_files(void)
{
    static const int signals[] = {SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = on_interrupt}, before;
    qn_interrupt_start();
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (sigaction(signals[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(signals[i], &action, NULL);
}

void qn_interrupt_stop(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction now, plain = {.sa_handler = SIG_DFL};
    sigemptyset(&plain.sa_mask);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (sigaction(signals[i], NULL, &now) == 0 && now.sa_handler == on_interrupt)
            sigaction(signals[i], &plain, NULL);
    qn_interrupt_taken();
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

void qn_interrupt_watch_batch(qn_batch *batch)
{
    atomic_store(&watched_batch, batch);
    while (atomic_load(&n_inside)) { /* as above */
    }
    if (batch && interrupted) qn_batch_cancel(batch);
}

void qn_interrupt_watch_call(qn_cancel *cancel)
{
    atomic_store(&watched_call, cancel);
    while (atomic_load(&n_inside)) { /* as above */
    }
    if (cancel && interrupted) qn_cancel_set(cancel);
}

void qn_interrupt_watch_training(qn_training *training)
{
    atomic_store(&watched_training, training);
    while (atomic_load(&n_inside)) { /* as above */
    }
    if (training && interrupted) qn_training_stop(training);
}

void qn_interrupt_set_last_words(const char *bytes)
{
    atomic_store(&last_words, bytes);
}

int qn_interrupt_file(void)
{
    return wake[0];
}

int qn_interrupt_taken(void)
{
    char bytes[16];
    int woken = 0;
    while (read(wake[0], bytes, sizeof bytes) > 0) woken = 1;
    /* One that comes right here is not lost: its byte stays in the pipe. */
    int taken = woken || interrupted;
    interrupted = 0;
    return taken;
}

/* Ctrl-C: the first one ends the generation or training that runs, or sets a mark where none does; a second
 * one before the mark was looked at ends the process. */
#ifndef QN_CLI_TERM_INTERRUPT_H
#define QN_CLI_TERM_INTERRUPT_H

#include <quern/batch.h>
#include <quern/train.h>

/* Takes SIGINT over. */
void qn_interrupt_start(void);
/* The same, and SIGTERM and SIGHUP act as Ctrl-C: where files that are half written are to be removed. One
 * that is ignored (nohup) stays so. */
void qn_interrupt_start_for_files(void);
/* Gives the signals back: until the next start they end the process. */
void qn_interrupt_stop(void);
/* The generation that Ctrl-C cancels from now on, or at once where a mark is set; NULL: none. Main thread. */
void qn_interrupt_watch(qn_generation *generation);
/* The same of a batch. */
void qn_interrupt_watch_batch(qn_batch *batch);
/* The same of a call that looks at a cancel. */
void qn_interrupt_watch_call(qn_cancel *cancel);
/* The same of a training, which then saves. */
void qn_interrupt_watch_training(qn_training *training);
/* Bytes that the second Ctrl-C writes to standard output before the process ends, such as what puts a
 * terminal right; NULL: none. They must live on. */
void qn_interrupt_set_last_words(const char *bytes);
/* Readable from a Ctrl-C on until qn_interrupt_taken: to be polled beside what is waited for, on whatever
 * thread the signal comes. -1: none. */
int qn_interrupt_file(void);
/* Was there a Ctrl-C since the last call? */
int qn_interrupt_taken(void);

#endif

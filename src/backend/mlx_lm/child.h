/* A program that is talked to in lines: what it reads, what it says, and what it complains about are kept
 * apart, and nobody waits for it longer than asked. It is in a process group of its own, so that an
 * interrupt of the terminal does not reach it, and gets end of file when this process ends, however it ends.
 * One thread at a time. */
#ifndef QN_BACKEND_MLX_LM_CHILD_H
#define QN_BACKEND_MLX_LM_CHILD_H

#include <stddef.h>

#include "base/status.h"

enum { QN_CHILD_LINE_MAX = 16 << 20 };

typedef struct qn_child qn_child;

/* argv ends with NULL; argv[0] is looked for in PATH. environment: "NAME=value" that replace or add to this
 * process's own; ends with NULL. QN_E_NOT_FOUND: there is no such program (the message names it). */
qn_status qn_child_start(const char *const *argv, const char *const *environment, qn_child **out);
/* Ends it: after grace_ms of waiting by a signal that it cannot ignore. NULL is accepted. */
void qn_child_free(qn_child *c, int grace_ms);

/* Bytes for it to read; they are kept until it does. */
qn_status qn_child_write(qn_child *c, const char *bytes, size_t n);
/* Waits until it said something, at most timeout_ms (-1: as long as it takes), or until wake_fd (-1: none) is
 * readable, and moves bytes. reads 0: what it says is left in its pipe, so that it waits. */
qn_status qn_child_wait(qn_child *c, int reads, int timeout_ms, int wake_fd);
/* The next line without its end, NUL behind it, valid until the next wait; NULL: none yet. */
char *qn_child_line(qn_child *c, size_t *n);
/* Has it closed what it answers by, or said a line longer than QN_CHILD_LINE_MAX? No further lines come. */
int qn_child_is_gone(const qn_child *c);
/* The end of its complaints, and how it ended where that is known: "ended by signal 9; its last words: ...".
 * Of one that is gone. */
void qn_child_describe_end(qn_child *c, char *out, size_t size);

#endif

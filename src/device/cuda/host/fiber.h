/* Fibers: stacks between which one thread of the system switches. Not thread-safe: emulate.cpp locks. */
#ifndef QN_DEVICE_CUDA_HOST_FIBER_H
#define QN_DEVICE_CUDA_HOST_FIBER_H

struct qn_fiber;

/* A fiber of the pool that runs qn_fiber_run, or goes on in it, when it is switched to. */
qn_fiber *qn_fiber_take(void);
/* Gives one back, before it switches away. */
void qn_fiber_put(qn_fiber *f);
/* The one that runs. */
qn_fiber *qn_fiber_current(void);
/* from runs; returns when something switches to it. */
void qn_fiber_switch(qn_fiber *from, qn_fiber *to);
/* The same without a way back. */
void qn_fiber_leave(qn_fiber *to);
/* Makes f the stack of the caller. */
void qn_fiber_enter(qn_fiber *f);
/* Makes all fibers of the pool new: those that never came back too. Called outside of them. */
void qn_fiber_reset(void);

/* Never returns. By emulate.cpp. */
void qn_fiber_run(qn_fiber *self);

#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define QN_FIBER_ASAN 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#define QN_FIBER_ASAN 1
#endif

/* clang-format off */
#if !defined(__x86_64__) && !defined(__aarch64__)
#define QN_FIBER_UCONTEXT 1
#endif
/* clang-format on */

#ifdef QN_FIBER_UCONTEXT
#include <ucontext.h>
#endif
#include <stddef.h>

struct qn_fiber {
#ifdef QN_FIBER_UCONTEXT
    ucontext_t context;
#else
    void *sp;
#endif
    char *stack; /* NULL: the caller's */
    size_t stack_bytes;
    void *fake_stack; /* of the address sanitizer */
    qn_fiber *next;   /* in the pool */
};

#endif

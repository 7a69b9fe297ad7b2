/* Fibers: see fiber.h. The switch keeps what a called function must keep, in assembly for x86-64 and 64-bit Arm,
 * some 2 ns; elsewhere swapcontext. Stacks begin at different places of a page: the fibers of a block would
 * otherwise share a few sets of the cache. */
#include "device/cuda/host/fiber.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef QN_FIBER_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
enum { STACK = 256 << 10 };
#else
enum { STACK = 128 << 10 };
#endif

enum { MAX_FIBERS = 1025 };

static qn_fiber fibers[MAX_FIBERS], *pool, *current;
static unsigned n_fibers;

/* ---- the switch ---------------------------------------------------------------------------------------- */

#if defined(QN_FIBER_UCONTEXT)

static void jump(qn_fiber *from, qn_fiber *to)
{
    swapcontext(&from->context, &to->context);
}

#else

extern "C" void qn_fiber_jump(void **from, void *to);

#ifdef __x86_64__
__asm__(".text\n.hidden qn_fiber_jump\n.globl qn_fiber_jump\n.type qn_fiber_jump, @function\n"
        "qn_fiber_jump:\n"
        "push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
        "mov %rsp, (%rdi)\n"
        "mov %rsi, %rsp\n"
        "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n"
        "ret\n"
        ".size qn_fiber_jump, . - qn_fiber_jump\n");
enum { SAVED = 6, RETURN = 6, WORDS = 8 };
#else
__asm__(
    ".text\n.hidden qn_fiber_jump\n.globl qn_fiber_jump\n.type qn_fiber_jump, %function\n"
    "qn_fiber_jump:\n"
    "sub sp, sp, #160\n"
    "stp x19, x20, [sp]\n stp x21, x22, [sp, #16]\n stp x23, x24, [sp, #32]\n stp x25, x26, [sp, #48]\n"
    "stp x27, x28, [sp, #64]\n stp x29, x30, [sp, #80]\n"
    "stp d8, d9, [sp, #96]\n stp d10, d11, [sp, #112]\n stp d12, d13, [sp, #128]\n stp d14, d15, [sp, #144]\n"
    "mov x9, sp\n str x9, [x0]\n"
    "mov sp, x1\n"
    "ldp x19, x20, [sp]\n ldp x21, x22, [sp, #16]\n ldp x23, x24, [sp, #32]\n ldp x25, x26, [sp, #48]\n"
    "ldp x27, x28, [sp, #64]\n ldp x29, x30, [sp, #80]\n"
    "ldp d8, d9, [sp, #96]\n ldp d10, d11, [sp, #112]\n ldp d12, d13, [sp, #128]\n ldp d14, d15, [sp, #144]\n"
    "add sp, sp, #160\n"
    "ret\n"
    ".size qn_fiber_jump, . - qn_fiber_jump\n");
enum { RETURN = 11, WORDS = 20 };
#endif

static void jump(qn_fiber *from, qn_fiber *to)
{
    qn_fiber_jump(&from->sp, to->sp);
}

#endif

/* After a switch: `current` is the fiber that was switched to, this one. */
static void arrive(qn_fiber *from_main)
{
#ifdef QN_FIBER_ASAN
    const void *bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(current->fake_stack, &bottom, &bytes);
    if (from_main) from_main->stack_bytes = bytes, from_main->stack = (char *)bottom;
#endif
}

static qn_fiber *left; /* where the last switch came from */

void qn_fiber_switch(qn_fiber *from, qn_fiber *to)
{
    left = from;
    current = to;
#ifdef QN_FIBER_ASAN
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_bytes);
#endif
    jump(from, to);
    arrive(left->stack_bytes ? NULL : left);
}

void qn_fiber_leave(qn_fiber *to)
{
    qn_fiber_switch(current, to);
}

static void first(void)
{
    arrive(left->stack_bytes ? NULL : left);
    qn_fiber_run(current);
    abort();
}

/* ---- the pool ------------------------------------------------------------------------------------------ */

static void make_new(qn_fiber *f)
{
#ifdef QN_FIBER_ASAN
    __asan_unpoison_memory_region(f->stack, f->stack_bytes);
    f->fake_stack = NULL;
#endif
#ifdef QN_FIBER_UCONTEXT
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = f->stack_bytes;
    f->context.uc_link = NULL;
    makecontext(&f->context, first, 0);
#else
    const uintptr_t place = (uintptr_t)(f - fibers) % 21 * 192; /* of one page */
    void **top = (void **)(((uintptr_t)f->stack + f->stack_bytes - place) & ~(uintptr_t)63);
    top -= WORDS;
    for (int i = 0; i < WORDS; i++) top[i] = NULL;
    top[RETURN] = (void *)first;
    f->sp = top;
#endif
}

/* More than the system gives ends the process: a test's machine is out of memory. */
static void add_fiber(void)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *p = MAP_FAILED;
    if (n_fibers < MAX_FIBERS)
        p = mmap(NULL, page + STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                 0);
    if (p == MAP_FAILED || mprotect(p, page, PROT_NONE)) {
        fprintf(stderr, "cuda host: no memory for stacks\n");
        abort();
    }
    qn_fiber *f = &fibers[n_fibers++];
    f->stack = (char *)p + page;
    f->stack_bytes = STACK;
    make_new(f);
    qn_fiber_put(f);
}

qn_fiber *qn_fiber_take(void)
{
    if (!pool) add_fiber();
    qn_fiber *f = pool;
    pool = f->next;
    return f;
}

void qn_fiber_put(qn_fiber *f)
{
    f->next = pool;
    pool = f;
}

qn_fiber *qn_fiber_current(void)
{
    return current;
}

void qn_fiber_enter(qn_fiber *f)
{
    f->stack = NULL;
    f->stack_bytes = 0;
    current = f;
}

void qn_fiber_reset(void)
{
    pool = NULL;
    for (unsigned i = n_fibers; i--;) {
        make_new(&fibers[i]);
        qn_fiber_put(&fibers[i]);
    }
}

#include "base/mem.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/checked.h"

/* A header of one alignment unit before each block holds its size, which realloc needs. */
enum { ALIGN = 64 };

/* From here on a mapped block asks for huge pages. */
enum { LARGE_BYTES = 8 << 20 };

static atomic_int_fast64_t live, made, fail_at;
static atomic_size_t held, peak; /* bytes */
static _Thread_local int64_t thread_held;

qn_status qn_fail_nomem(size_t size_bytes)
{
    return qn_fail(QN_E_NOMEM, "out of memory (%zu bytes)", size_bytes);
}

static void raise_peak(size_t now)
{
    size_t most = atomic_load_explicit(&peak, memory_order_relaxed);
    while (now > most && !atomic_compare_exchange_weak_explicit(&peak, &most, now, memory_order_relaxed,
                                                                memory_order_relaxed))
        ;
}

int qn_mem_fails(void)
{
    atomic_fetch_add_explicit(&made, 1, memory_order_relaxed);
    if (atomic_load_explicit(&fail_at, memory_order_relaxed) <= 0) return 0;
    return atomic_fetch_sub(&fail_at, 1) == 1;
}

void *qn_alloc(size_t size_bytes)
{
    size_t total;
    if (qn_mem_fails() || !qn_add_size(size_bytes, 2 * ALIGN - 1, &total)) {
        qn_fail_nomem(size_bytes);
        return NULL;
    }
    char *raw = aligned_alloc(ALIGN, total / ALIGN * ALIGN);
    if (!raw) {
        qn_fail_nomem(size_bytes);
        return NULL;
    }
    memcpy(raw, &size_bytes, sizeof size_bytes);
    atomic_fetch_add_explicit(&live, 1, memory_order_relaxed);
    raise_peak(atomic_fetch_add_explicit(&held, size_bytes, memory_order_relaxed) + size_bytes);
    thread_held += (int64_t)size_bytes;
    return raw + ALIGN;
}

void *qn_alloc_array(size_t count, size_t size_bytes)
{
    size_t total;
    if (!qn_mul_size(count, size_bytes, &total)) {
        qn_fail_nomem(SIZE_MAX);
        return NULL;
    }
    return qn_alloc(total);
}

void *qn_calloc(size_t count, size_t size_bytes)
{
    void *p = qn_alloc_array(count, size_bytes);
    if (p) memset(p, 0, count * size_bytes);
    return p;
}

void *qn_realloc(void *p, size_t size_bytes)
{
    void *q = qn_alloc(size_bytes);
    if (!q || !p) return q;
    size_t old;
    memcpy(&old, (char *)p - ALIGN, sizeof old);
    memcpy(q, p, old < size_bytes ? old : size_bytes);
    qn_free(p);
    return q;
}

void qn_free(void *p)
{
    if (!p) return;
    size_t size_bytes;
    memcpy(&size_bytes, (char *)p - ALIGN, sizeof size_bytes);
    atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
    atomic_fetch_sub_explicit(&held, size_bytes, memory_order_relaxed);
    thread_held -= (int64_t)size_bytes;
    free((char *)p - ALIGN); /* the one bare free of the library, with its aligned_alloc above */
}

void *qn_alloc_mapped(size_t size_bytes)
{
    void *p = MAP_FAILED;
    if (!qn_mem_fails() && size_bytes)
        p = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                 0);
    if (p == MAP_FAILED) {
        qn_fail_nomem(size_bytes);
        return NULL;
    }
    atomic_fetch_add_explicit(&live, 1, memory_order_relaxed);
#ifdef MADV_HUGEPAGE
    if (size_bytes >= LARGE_BYTES) madvise(p, size_bytes, MADV_HUGEPAGE);
#endif
    return p;
}

void qn_free_mapped(void *p, size_t size_bytes)
{
    if (!p) return;
    atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
    munmap(p, size_bytes);
}

size_t qn_page_bytes(void)
{
    long page = sysconf(_SC_PAGESIZE);
    return page > 0 ? (size_t)page : 4096;
}

void qn_drop_pages(const void *begin, size_t n)
{
    size_t page = qn_page_bytes();
    uintptr_t a = ((uintptr_t)begin + page - 1) / page * page, b = ((uintptr_t)begin + n) / page * page;
    if (b > a) madvise((void *)a, b - a, MADV_DONTNEED);
}

void *qn_foreign_malloc(size_t size_bytes)
{
    return qn_mem_fails() ? NULL : malloc(size_bytes);
}

char *qn_strndup(const char *s, size_t n)
{
    char *copy = qn_alloc(n + 1);
    if (!copy) return NULL;
    memcpy(copy, s, n);
    copy[n] = 0;
    return copy;
}

char *qn_strdup(const char *s)
{
    return qn_strndup(s, strlen(s));
}

void qn_mem_fail_nth(int64_t n)
{
    atomic_store(&fail_at, n);
}

int64_t qn_mem_live_blocks(void)
{
    return atomic_load(&live);
}

int64_t qn_mem_allocations(void)
{
    return atomic_load(&made);
}

size_t qn_mem_peak_bytes(void)
{
    return atomic_load(&peak);
}

size_t qn_mem_reset_peak(void)
{
    size_t now = atomic_load(&held);
    atomic_store(&peak, now);
    return now;
}

int64_t qn_mem_thread_bytes(void)
{
    return thread_held;
}

#include "base/mem.h"

#include <ctype.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/checker.h"

/* A header of one alignment unit before each block. */
enum { ALIGN = 64 };
typedef struct {
    size_t size_bytes; /* as asked for; realloc needs it */
    int list;          /* of kept blocks; -1: none */
} header;

/* From here on a mapped block asks for huge pages. */
enum { LARGE_BYTES = 8 << 20 };

/* Freed blocks of these sizes are kept for the next: the system clears a page in some 300 ns, and malloc
 * gives what is free at the end of its heap back at once, so that a graph built again and again would pay for
 * each of its pages. Sizes are rounded to a quarter of a power of two, and each is a list of its own, last in
 * first out. A checker is to see every block: QN_EVERY_BLOCK, or
 * QUERN_KEPT_BYTES=0. */
enum { KEPT_FROM_LOG2 = 12, KEPT_TO_LOG2 = 22, KEPT_LISTS = (KEPT_TO_LOG2 - KEPT_FROM_LOG2) * 4 };
#ifdef QN_EVERY_BLOCK
enum { KEPT_BYTES = 0 };
#else
enum { KEPT_BYTES = 8 << 20 };
#endif

typedef struct kept_block {
    struct kept_block *next;
} kept_block;

static struct {
    pthread_mutex_t lock;
    kept_block *list[KEPT_LISTS];
    uint64_t used[KEPT_LISTS]; /* when the list was last asked: what goes first */
    uint64_t now;
    size_t bytes;
    atomic_size_t limit; /* SIZE_MAX: not known yet */
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER, .limit = SIZE_MAX};

static header *header_of(void *p)
{
    return (header *)(void *)((char *)p - ALIGN);
}

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

static size_t kept_limit(void)
{
    size_t limit = atomic_load_explicit(&kept.limit, memory_order_relaxed);
    if (limit != SIZE_MAX) return limit;
    const char *wish = getenv("QUERN_KEPT_BYTES");
    char *end = NULL;
    const unsigned long long bytes = wish && isdigit((unsigned char)*wish) ? strtoull(wish, &end, 10) : 0;
    limit = end && !*end && bytes < SIZE_MAX ? (size_t)bytes : KEPT_BYTES;
    atomic_store_explicit(&kept.limit, limit, memory_order_relaxed);
    return limit;
}

/* The list that blocks of *total bytes belong to, which is rounded up; -1: no list has such. */
static int kept_list(size_t *total)
{
    if (!kept_limit()) return -1;
    if (*total <= (size_t)1 << KEPT_FROM_LOG2 || *total > (size_t)1 << KEPT_TO_LOG2) return -1;
    const int log2 = 63 - __builtin_clzll((unsigned long long)*total - 1);
    const size_t quarter = (size_t)1 << (log2 - 2);
    *total = (*total + quarter - 1) / quarter * quarter;
    return (log2 - KEPT_FROM_LOG2) * 4 + (int)(*total / quarter) - 5;
}

static size_t list_bytes(int list)
{
    return (size_t)(list % 4 + 5) << (list / 4 + KEPT_FROM_LOG2 - 2);
}

static void *take_kept(int list)
{
    pthread_mutex_lock(&kept.lock);
    kept_block *b = kept.list[list];
    kept.used[list] = ++kept.now;
    if (b) {
        kept.list[list] = b->next;
        kept.bytes -= list_bytes(list);
    }
    pthread_mutex_unlock(&kept.lock);
    return b;
}

/* What goes: a block of the list that was asked for longest ago. The lock is held. */
static kept_block *drop_kept(void)
{
    int oldest = -1;
    for (int i = 0; i < KEPT_LISTS; i++)
        if (kept.list[i] && (oldest < 0 || kept.used[i] < kept.used[oldest])) oldest = i;
    if (oldest < 0) return NULL;
    kept_block *b = kept.list[oldest];
    kept.list[oldest] = b->next;
    kept.bytes -= list_bytes(oldest);
    return b;
}

static void keep(void *raw, int list)
{
    QN_SHOW(raw, list_bytes(list));
    kept_block *b = raw, *dropped = NULL;
    const size_t limit = kept_limit();
    pthread_mutex_lock(&kept.lock);
    b->next = kept.list[list];
    kept.list[list] = b;
    kept.bytes += list_bytes(list);
    while (kept.bytes > limit) {
        kept_block *d = drop_kept();
        d->next = dropped;
        dropped = d;
    }
    pthread_mutex_unlock(&kept.lock);
    for (; dropped; dropped = b) {
        b = dropped->next;
        free(dropped);
    }
}

void qn_mem_keep(size_t bytes)
{
    atomic_store_explicit(&kept.limit, bytes, memory_order_relaxed);
    for (int more = 1; more;) {
        pthread_mutex_lock(&kept.lock);
        kept_block *b = kept.bytes > bytes ? drop_kept() : NULL;
        pthread_mutex_unlock(&kept.lock);
        free(b);
        more = b != NULL;
    }
}

static header read_header(void *p)
{
    QN_SHOW(header_of(p), ALIGN);
    return *header_of(p);
}

/* For a checker the block ends with its last byte, so that what is read behind it is seen. */
static char *new_block(size_t size_bytes, size_t total, int list)
{
#ifdef QN_EVERY_BLOCK
    void *raw = NULL;
    return posix_memalign(&raw, ALIGN, list < 0 ? ALIGN + size_bytes : total) == 0 ? raw : NULL;
#else
    (void)size_bytes, (void)list;
    return aligned_alloc(ALIGN, total);
#endif
}

void *qn_alloc(size_t size_bytes)
{
    size_t total;
    if (qn_mem_fails() || !qn_add_size(size_bytes, 2 * ALIGN - 1, &total)) {
        qn_fail_nomem(size_bytes);
        return NULL;
    }
    total = total / ALIGN * ALIGN;
    const int list = kept_list(&total);
    char *raw = list < 0 ? NULL : take_kept(list);
    if (!raw) raw = new_block(size_bytes, total, list);
    if (!raw) {
        qn_fail_nomem(size_bytes);
        return NULL;
    }
    *(header *)(void *)raw = (header){size_bytes, list};
    QN_HIDE(raw, ALIGN);
    if (list >= 0) QN_HIDE(raw + ALIGN + size_bytes, total - ALIGN - size_bytes);
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
    const size_t old = read_header(p).size_bytes;
    memcpy(q, p, old < size_bytes ? old : size_bytes);
    qn_free(p);
    return q;
}

void qn_free(void *p)
{
    if (!p) return;
    const header h = read_header(p);
    atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
    atomic_fetch_sub_explicit(&held, h.size_bytes, memory_order_relaxed);
    thread_held -= (int64_t)h.size_bytes;
    if (h.list < 0)
        free(header_of(p));
    else
        keep(header_of(p), h.list);
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

#include "base/arena.h"

#include <string.h>

#include "base/checked.h"
#include "base/checker.h"
#include "base/mem.h"

struct qn_arena_block {
    qn_arena_block *next;
    size_t used, size;
    _Alignas(16) char data[];
};

enum { BLOCK_BYTES = 16 << 10, BLOCK_MAX = 1 << 20 };

void *qn_arena_alloc(qn_arena *a, size_t size_bytes)
{
    size_t n;
    if (!qn_align_size(size_bytes ? size_bytes : 1, 16, &n)) {
        qn_fail_nomem(size_bytes);
        return NULL;
    }
    qn_arena_block *b = a->head;
    if (!b || b->size - b->used < n) {
        size_t size = b ? (b->size < BLOCK_MAX ? b->size * 2 : BLOCK_MAX) : BLOCK_BYTES;
        if (size < n) size = n;
        size_t total, all;
        if (a->limit_bytes) { /* a block grows into what is left of the limit, not past it */
            size_t room = a->limit_bytes > a->total_bytes ? a->limit_bytes - a->total_bytes : 0;
            if (room < sizeof *b || room - sizeof *b < n) {
                qn_fail(QN_E_FULL, "memory budget of %zu bytes is used up", a->limit_bytes);
                return NULL;
            }
            if (size > room - sizeof *b) size = room - sizeof *b;
        }
        if (!qn_add_size(size, sizeof *b, &total) || !qn_add_size(a->total_bytes, total, &all)) {
            qn_fail_nomem(size_bytes);
            return NULL;
        }
        qn_arena_block *fresh = qn_alloc(total);
        if (!fresh) return NULL;
        fresh->used = 0;
        fresh->size = size;
        fresh->next = b;
        a->head = b = fresh;
        a->total_bytes = all;
        QN_HIDE(b->data, b->size);
    }
    void *p = b->data + b->used;
    b->used += n;
    QN_SHOW(p, size_bytes);
    return p;
}

void *qn_arena_calloc(qn_arena *a, size_t count, size_t size_bytes)
{
    size_t n;
    if (!qn_mul_size(count, size_bytes, &n)) {
        qn_fail_nomem(SIZE_MAX);
        return NULL;
    }
    void *p = qn_arena_alloc(a, n);
    if (p) memset(p, 0, n);
    return p;
}

char *qn_arena_strndup(qn_arena *a, const char *s, size_t n)
{
    char *p = qn_arena_alloc(a, n + 1);
    if (!p) return NULL;
    memcpy(p, s, n);
    p[n] = 0;
    return p;
}

void qn_arena_clear(qn_arena *a)
{
    for (qn_arena_block *b = a->head; b;) {
        qn_arena_block *next = b->next;
        qn_free(b);
        b = next;
    }
    a->head = NULL;
    a->total_bytes = 0;
}

/* An arena: many small allocations that die together (one parse, one graph, one request). One thread at a
 * time. */
#ifndef QN_BASE_ARENA_H
#define QN_BASE_ARENA_H

#include <stddef.h>

typedef struct qn_arena_block qn_arena_block;
typedef struct {
    qn_arena_block *head; /* newest block; blocks are chained */
    size_t total_bytes;   /* taken from the allocator */
    size_t limit_bytes;   /* 0: none; else an allocation that would pass it fails with QN_E_FULL's message */
} qn_arena;

/* A zeroed qn_arena is empty and valid. Blocks are aligned to 16 bytes and not zeroed. NULL on failure
 * (message set). */
void *qn_arena_alloc(qn_arena *a, size_t size_bytes);
/* Zeroed. */
void *qn_arena_calloc(qn_arena *a, size_t count, size_t size_bytes);
/* Copies n bytes and a NUL. */
char *qn_arena_strndup(qn_arena *a, const char *s, size_t n);
/* Frees everything; the arena is empty and valid again (limit kept). */
void qn_arena_clear(qn_arena *a);

#endif

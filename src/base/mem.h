/* All allocation of the library goes through here. One hook can replace the allocator; a test can make the
 * n-th allocation fail. Any thread. Every returned block is aligned to 64 bytes, so that kernels may use
 * aligned loads. */
#ifndef QN_BASE_MEM_H
#define QN_BASE_MEM_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* size_bytes may be 0 (a valid block is returned). NULL when memory is out; the message is then set. */
void *qn_alloc(size_t size_bytes);
/* Zeroed; count * size is checked. */
void *qn_calloc(size_t count, size_t size_bytes);
/* count * size is checked. */
void *qn_alloc_array(size_t count, size_t size_bytes);
/* The block keeps its first min(old, new) bytes. On failure NULL is returned and the old block lives on. p
 * may be NULL. */
void *qn_realloc(void *p, size_t size_bytes);
void qn_free(void *p);
/* Copies n bytes and ends them with a NUL. */
char *qn_strndup(const char *s, size_t n);
char *qn_strdup(const char *s);

/* The most bytes of freed blocks of 4 KiB to 4 MiB that stay with the process, for the next that are asked
 * for; what is above goes back at once. 8 MiB, or $QUERN_KEPT_BYTES (a number of bytes, else it counts as not
 * there); 0: none. */
void qn_mem_keep(size_t bytes);

/* Whole pages straight from the system, zeroed: pages that were never touched cost nothing, and MADV_DONTNEED
 * gives touched ones back. A large block gets huge pages where the system has them: streaming through them is
 * up to twice as fast. size_bytes > 0. NULL when the system refuses; the message is then set. */
void *qn_alloc_mapped(size_t size_bytes);
/* size_bytes as it was asked for. p may be NULL. */
void qn_free_mapped(void *p, size_t size_bytes);

/* Of a page of the system's memory. */
size_t qn_page_bytes(void);
/* Gives the whole pages of n bytes of a map back to the system, be it a file's or qn_alloc_mapped's: what is
 * read there next is the file's, or zeros. */
void qn_drop_pages(const void *begin, size_t n);

/* What malloc gives, counted as an allocation of ours: for a foreign library that frees it itself. No
 * message. */
void *qn_foreign_malloc(size_t size_bytes);

/* For tests. The n-th allocation from now on (1 = the next) fails, once; 0 switches this off. Process-wide.
 */
void qn_mem_fail_nth(int64_t n);
/* Counts as an allocation; nonzero when it is the one that is to fail. For what takes memory of the system by
 * other ways: maps of pages, threads. */
int qn_mem_fails(void);
/* Blocks and maps that live now, and allocations made since the start. */
int64_t qn_mem_live_blocks(void);
int64_t qn_mem_allocations(void);
/* The most bytes of blocks (not maps) that lived at once since the last reset. The reset returns the bytes
 * that live now. */
size_t qn_mem_peak_bytes(void);
size_t qn_mem_reset_peak(void);
/* Bytes of the blocks that this thread took, less those that it freed: the difference around a call is what
 * the call left behind, for the ledger. */
int64_t qn_mem_thread_bytes(void);

/* "out of memory (N bytes)"; returns QN_E_NOMEM. */
qn_status qn_fail_nomem(size_t size_bytes);

#endif

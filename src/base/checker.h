/* What AddressSanitizer is told of memory that it cannot tell apart: the room behind the bytes of a buffer,
 * the rest of an arena's block, the header before a block. Bytes that are hidden must not be touched; a read
 * there is reported as one behind a block is. Nothing in builds without QN_EVERY_BLOCK. For base alone. */
#ifndef QN_BASE_CHECKER_H
#define QN_BASE_CHECKER_H

#ifdef QN_EVERY_BLOCK
#include <sanitizer/asan_interface.h>
#define QN_HIDE(p, n) ASAN_POISON_MEMORY_REGION((p), (n))
#define QN_SHOW(p, n) ASAN_UNPOISON_MEMORY_REGION((p), (n))
#else
#define QN_HIDE(p, n) ((void)(p), (void)(n))
#define QN_SHOW(p, n) ((void)(p), (void)(n))
#endif

#endif
